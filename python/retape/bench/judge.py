"""Are blocks as quick as was promised? `retape report run.json --judge`, from what one run measured.

- `retape cheap` takes at most 5 % longer than plain.
- `retape full` stays within 3 % of plain plus the ideal cost of what it replays: its share of FLOPs.
- Neither is slower than torch.utils.checkpoint around the same block.

Times are ratios to plain's of the same round, with their quartiles. Where those lie on both sides of a
limit and are far apart, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retape._text import Exit, printable
from retape.bench.result import Row, Run, Spread, Subject

if TYPE_CHECKING:
    from rich.console import Console

MET, BROKEN, UNCLEAR = "met", "broken", "cannot judge"
CHEAP, FULL, PEERS = "retape cheap", "retape full", ("torch checkpoint", "torch reentrant")
CHEAP_LIMIT, FULL_LIMIT = 0.05, 0.03
NOISE = 0.04  # quartiles closer than this, in parts of the median: the median decides


@dataclass(frozen=True)
class Limit:
    subject: str
    method: str
    than: str  # "plain + 5 %"
    ratio: Spread | None  # of the method's time to plain's
    most: Spread | None  # that it may be
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
        """Nothing that could be judged is nothing proved."""
        if self.of(BROKEN):
            return Exit.REGRESSION
        return Exit.OK if self.of(MET) else Exit.VACUOUS


def judge(run: Run) -> Judgement:
    blocks = [subject for subject in run.subjects if subject.group == "blocks"]
    return Judgement([limit for subject in blocks for limit in _judge(subject)])


def verdict(ratio: Spread, most: Spread) -> str:
    """A limit that is a number has quartiles of no width."""
    if ratio[0] > most[2]:
        return BROKEN
    is_met = ratio[1] <= most[1] and max(_width(ratio), _width(most)) <= NOISE
    return MET if ratio[2] <= most[0] or is_met else UNCLEAR


def _width(spread: Spread) -> float:
    return (spread[2] - spread[0]) / spread[1]


def _judge(subject: Subject) -> Iterator[Limit]:
    rows = {row.method: row for row in subject.rows if row.method in (CHEAP, FULL, *PEERS)}
    for method in (CHEAP, FULL):
        own = rows.get(method)
        than, most = _beside_plain(method, own, subject.plain)
        yield _limit(subject, method, own, than, most)
        for peer in PEERS:
            if peer in rows:
                yield _limit(subject, method, own, peer, rows[peer].ratio)


def _beside_plain(method: str, own: Row | None, plain: Row | None) -> tuple[str, Spread | None]:
    if method == CHEAP:
        return f"plain + {CHEAP_LIMIT:.0%}", _exactly(1 + CHEAP_LIMIT)
    if own is None or plain is None or own.gflop is None or not plain.gflop:
        return f"plain + replayed FLOPs + {FULL_LIMIT:.0%}", None
    ideal = own.gflop / plain.gflop - 1
    return f"plain + {ideal:.1%} of FLOPs + {FULL_LIMIT:.0%}", _exactly(
        (1 + ideal) * (1 + FULL_LIMIT)
    )


def _exactly(ratio: float) -> Spread:
    return ratio, ratio, ratio


def _limit(subject: Subject, method: str, own: Row | None, than: str, most: Spread | None) -> Limit:
    ratio = own.ratio if own is not None else None
    if ratio is None or most is None:
        missing = f"no time of {method}" if ratio is None else f"nothing known of {than}"
        return Limit(subject.key, method, than, ratio, most, UNCLEAR, missing)
    found = verdict(ratio, most)
    why = f"quartiles {ratio[0]:.3f} to {ratio[2]:.3f}" if found == UNCLEAR else ""
    return Limit(subject.key, method, than, ratio, most, found, why)


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
    took = f"takes {limit.ratio[1]:.3f} x plain" if limit.ratio else "has no time"
    most = f" ({limit.most[1]:.3f})" if limit.most else ""
    why = f": {limit.why}" if limit.why else ""
    return printable(
        f"{limit.subject}: {limit.method} {took}, expected at most {limit.than}{most}{why}"
    )


def worst(codes: Sequence[Exit]) -> Exit:
    """Wrong gradients before a regression, that before nothing proved."""
    order = (Exit.DIFFERENT, Exit.REGRESSION, Exit.VACUOUS, Exit.OK)
    return min(codes, key=order.index)
