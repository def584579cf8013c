"""Are blocks as quick as was promised? `retape report run.json --judge`, from what one run measured.

- `retape cheap` takes at most 5 % longer than plain.
- `retape full` stays within 3 % of plain plus the ideal cost of what it replays: its share of FLOPs.
- Neither is slower than torch.utils.checkpoint around the same block.

A time is a ratio to plain's, or to the peer's, of the same round. Its median is known as well as the number of
rounds and their noise allow: a limit is met, or broken, where 95 % of certainty lie on one side of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retape._text import Exit, median_between, printable
from retape.bench.result import Row, Run, Spread, Subject

if TYPE_CHECKING:
    from rich.console import Console

MET, BROKEN, UNCLEAR = "met", "broken", "cannot judge"
CHEAP, FULL, PEERS = "retape cheap", "retape full", ("torch checkpoint", "torch reentrant")
CHEAP_LIMIT, FULL_LIMIT = 0.05, 0.03
SAME = 0.01  # as slow as a peer: what is less means nothing
TOO_FEW = "fewer than six rounds"


@dataclass(frozen=True)
class Limit:
    subject: str
    method: str
    beside: str  # "plain", or a peer
    than: str  # "plain + 5 %"
    ratio: Spread | None  # of the method's time to that beside it: the median, between its bounds
    most: float | None  # that it may be
    verdict: str
    why: str = ""  # it cannot be judged


@dataclass
class Judgement:
    limits: list[Limit] = field(default_factory=list)

    def of(self, verdict: str) -> list[Limit]:
        return [limit for limit in self.limits if limit.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def exit_code(self) -> Exit:
        """What could not be judged is not proved."""
        if self.of(BROKEN):
            return Exit.REGRESSION
        return Exit.VACUOUS if self.of(UNCLEAR) or not self.limits else Exit.OK


def judge(run: Run) -> Judgement:
    blocks = [subject for subject in run.subjects if subject.group == "blocks"]
    return Judgement([limit for subject in blocks for limit in _judge(subject)])


def verdict(ratio: Spread, met_up_to: float, broken_from: float) -> str:
    low, _, high = ratio
    if low > broken_from:
        return BROKEN
    return MET if high <= met_up_to else UNCLEAR


def _judge(subject: Subject) -> Iterator[Limit]:
    rows = {row.method: row for row in subject.rows if row.method in (CHEAP, FULL, *PEERS)}
    for method in (CHEAP, FULL):
        own = rows.get(method)
        yield _beside_plain(subject, method, own)
        for peer in PEERS:
            if peer in rows:
                yield _beside_peer(subject, method, own, rows[peer])


def _beside_plain(subject: Subject, method: str, own: Row | None) -> Limit:
    plain = subject.plain
    if method == CHEAP:
        than, most = f"plain + {CHEAP_LIMIT:.0%}", 1 + CHEAP_LIMIT
    elif own is None or plain is None or own.gflop is None or not plain.gflop:
        than = f"plain + replayed FLOPs + {FULL_LIMIT:.0%}"
        why = f"nothing known of {than}"
        return Limit(subject.key, method, "plain", than, None, None, UNCLEAR, why)
    else:
        ideal = own.gflop / plain.gflop - 1
        than = f"plain + {ideal:.1%} of FLOPs + {FULL_LIMIT:.0%}"
        most = (1 + ideal) * (1 + FULL_LIMIT)
    ratios = own.ratios if own is not None else []
    return _limit(subject, method, "plain", than, ratios, most, most)


def _beside_peer(subject: Subject, method: str, own: Row | None, peer: Row) -> Limit:
    ratios = []
    if own is not None and len(own.ratios) == len(peer.ratios) and all(peer.ratios):
        ratios = [a / b for a, b in zip(own.ratios, peer.ratios, strict=True)]
    return _limit(subject, method, peer.method, peer.method, ratios, 1 + SAME, 1.0)


def _limit(
    subject: Subject,
    method: str,
    beside: str,
    than: str,
    ratios: Sequence[float],
    met_up_to: float,
    broken_from: float,
) -> Limit:
    ratio = median_between(ratios)
    if ratio is None:
        why = TOO_FEW if ratios else f"no times of {method} and {beside}"
        return Limit(subject.key, method, beside, than, None, broken_from, UNCLEAR, why)
    found = verdict(ratio, met_up_to, broken_from)
    why = "more rounds would tell" if found == UNCLEAR else ""
    return Limit(subject.key, method, beside, than, ratio, broken_from, found, why)


def print_judgement(found: Judgement, console: Console) -> None:
    """A line for each limit that is not met, and one for all."""
    styles = {BROKEN: "bold red", UNCLEAR: "yellow", MET: "green"}
    for limit in (*found.of(BROKEN), *found.of(UNCLEAR)):
        console.print(f"{limit.verdict}: {_text(limit)}", style=styles[limit.verdict], markup=False)
    worst = next((v for v in (BROKEN, UNCLEAR) if found.of(v)), MET if found.limits else UNCLEAR)
    counts = ", ".join(f"{len(found.of(v))} {v}" for v in (MET, UNCLEAR, BROKEN) if found.of(v))
    console.print(
        f"limits of time: {counts or 'no block was timed'}", style=styles[worst], markup=False
    )


def _text(limit: Limit) -> str:
    took = "cannot be told"
    if limit.ratio is not None:
        low, middle, high = limit.ratio
        took = f"takes {middle:.3f} ({low:.3f} to {high:.3f}) x {limit.beside}"
    most = f" {limit.most:.3f}:" if limit.most is not None else ""
    why = f" ({limit.why})" if limit.why else ""
    return printable(
        f"{limit.subject}: {limit.method} {took}, expected at most{most} {limit.than}{why}"
    )


def worst(codes: Sequence[Exit]) -> Exit:
    """Wrong gradients before a regression, that before nothing proved."""
    order = (Exit.DIFFERENT, Exit.REGRESSION, Exit.VACUOUS, Exit.OK)
    return min(codes, key=order.index)
