"""Is this run worse than that one? `retape bench --compare old.json --fail peak:1% time:10%`.

Rows are matched by subject (`Subject.key`), method and what it is wrapped around. Bytes are exact: more
than the limit is a regression. `time` is the median of a row's ratios to plain, round by round, and known as
well as rounds and their noise allow: where the two runs' medians may be the same with 95 % certainty, a row is too
noisy to judge, which is a warning. Seconds are judged by their quartiles. A rule that judges no row proves nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retape import UsageError
from retape._artefact import FORMAT
from retape._table import Column, fitted, leaving_out
from retape._text import Exit, format_bytes, format_seconds, median_between, offer, printable
from retape.bench import cells
from retape.bench.result import (
    BITWISE,
    CLOSE,
    DIFFERENT,
    Row,
    Run,
    Spread,
    Subject,
    WrongType,
    run_from,
)

if TYPE_CHECKING:
    from rich.console import Console

BETTER, SAME, NOISY, REGRESSION = "better", "same", "too noisy to judge", "regression"
_BITS = (BITWISE, CLOSE, DIFFERENT)
PLAIN = "plain"  # the method

# Metric, before, after, share, verdict: what a Change is made of.
Judged = tuple[str, str, str, float | None, str]


@dataclass(frozen=True)
class Metric:
    of: Callable[[Row], float | Spread | None]
    text: Callable[[float], str]
    help: str
    timed: bool = False


METRICS = {
    "peak": Metric(lambda row: row.peak, format_bytes, "bytes"),
    "held": Metric(lambda row: row.held, format_bytes, "bytes"),
    "time": Metric(
        lambda row: row.total, "{:.3f} x plain".format, "total, over plain's of its run", True
    ),
    "forward": Metric(lambda row: row.forward, format_seconds, "seconds", True),
    "backward": Metric(lambda row: row.backward, format_seconds, "seconds", True),
    "total": Metric(lambda row: row.total, format_seconds, "seconds", True),
    "gflop": Metric(lambda row: row.gflop, "{:.2f}".format, "that were run"),
    "replayed": Metric(lambda row: row.replayed, "{:.0f}".format, "ops"),
}


@dataclass(frozen=True)
class Rule:
    metric: str
    limit: float  # 0.01: may grow by 1 %

    def __str__(self) -> str:
        return f"{self.metric}:{self.limit * 100:g}%"


SHOWN = (Rule("peak", 0.01), Rule("time", 0.10))  # where no rule was given


@dataclass(frozen=True)
class Baseline:
    """A run from an artefact, the machine that it ran on, and the command that made it."""

    run: Run
    environment: dict[str, Any]
    command: str = ""


@dataclass(frozen=True)
class Change:
    subject: str
    method: str
    metric: str
    before: str
    after: str
    share: float | None  # 0.05: grew by 5 %
    verdict: str


@dataclass
class Comparison:
    rules: list[Rule]
    changes: list[Change] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    compared: int = 0  # rows

    def of(self, verdict: str) -> list[Change]:
        return [change for change in self.changes if change.verdict == verdict]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def unjudged(self) -> list[Rule]:
        """Those that no row of both runs has a number for."""
        judged = {change.metric for change in self.changes}
        return [rule for rule in self.rules if rule.metric not in judged]

    def unclear(self) -> list[Rule]:
        """Those that found every row of a method too noisy. Times of plain are the machine's."""

        def found(rule: Rule) -> set[str]:
            of_plain = PLAIN if METRICS[rule.metric].timed else None
            return {
                c.verdict for c in self.changes if c.metric == rule.metric and c.method != of_plain
            }

        return [rule for rule in self.rules if found(rule) == {NOISY}]

    def exit_code(self) -> Exit:
        """What --fail ends with. Nothing judged, by any one of its rules, is nothing proved."""
        if self.of(REGRESSION):
            return Exit.REGRESSION
        return Exit.VACUOUS if self.unjudged() or self.unclear() or not self.compared else Exit.OK


def parse_rules(words: Sequence[str]) -> list[Rule]:
    """`["peak:1%", "time:10%"]`. UsageError, with the right spelling, for what is none."""
    rules: dict[str, Rule] = {}
    for word in words:
        name, colon, limit = word.partition(":")
        if name not in METRICS:
            raise UsageError(f"no such value for --fail: {name!r}. {offer(name, METRICS)}")
        number = re.fullmatch(r"(\d+(?:\.\d+)?)%", limit)
        if number is None:
            raise UsageError(f"--fail {word}: expected a limit like {name}:{_example(limit)}%")
        if name in rules:
            raise UsageError(f"--fail: {name} is given twice. Fix: leave one out.")
        rules[name] = Rule(name, float(number[1]) / 100)
    return list(rules.values())


def _example(limit: str) -> str:
    number = re.match(r"\d+(?:\.\d+)?", limit)
    return number[0] if number else "1"


def load(path: str) -> Baseline:
    """From an artefact of a bench. UsageError where it is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})") from None
    except ValueError:
        raise UsageError(f"{path} is not JSON. Fix: give the artefact of a bench.") from None
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise UsageError(f"{path}: expected the format {FORMAT!r}, got {found!r}")
    result = content.get("result")
    if not isinstance(result, dict) or not isinstance(result.get("subjects"), list):
        raise UsageError(
            f"{path} is of `retape {content.get('verb')}`, which has no subjects and rows to compare. "
            "Fix: give the artefact of a bench of blocks or models."
        )
    try:
        command = str(content.get("command", ""))
        if not isinstance(content["environment"], dict):
            raise WrongType(f"{type(content['environment']).__name__} as 'environment'")
        return Baseline(run_from(result), content["environment"], command)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{path}: expected subjects and rows as this version of Retape writes them, got "
            f"{_unknown_fields(result) or _unreadable(error)}. "
            "Fix: use the version that wrote it, or run that bench again."
        ) from None


def _unreadable(error: Exception) -> str:
    if isinstance(error, WrongType):
        return printable(str(error))
    return (
        f"no field {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    )


def _unknown_fields(result: dict[str, Any]) -> str:
    """Of subjects and rows that could not be read: what a newer version may have put there."""
    subjects = [each for each in result["subjects"] if isinstance(each, dict)]
    listed = [each["rows"] for each in subjects if isinstance(each.get("rows"), list)]
    rows = [row for each in listed for row in each if isinstance(row, dict)]
    unknown = {
        f"{name!r} of a {kind.__name__.lower()}": None
        for kind, found in ((Subject, subjects), (Row, rows))
        for each in found
        for name in each
        if name not in {known.name for known in fields(kind)}
    }
    return f"an unknown field: {', '.join(unknown)}" if unknown else ""


def compare(old: Baseline, new: Baseline, rules: Sequence[Rule] = SHOWN) -> Comparison:
    found = Comparison(list(rules))
    found.warnings += _machines(old.environment, new.environment)
    before = {subject.key: subject for subject in old.run.subjects}
    for subject in new.run.subjects:
        was = before.pop(subject.key, None)
        if was is None:
            found.warnings.append(f"{subject.key}: not in the old run")
        elif (was.size, was.time_size) != (subject.size, subject.time_size):
            sizes = f"{cells.sizes_text(was)} against {cells.sizes_text(subject)}"
            found.warnings.append(f"{subject.key}: not compared, its size differs: {sizes}")
        else:
            _compare_subjects(was, subject, found)
    found.warnings += [f"{key}: not in the new run" for key in before]
    noisy = len(found.of(NOISY))
    if noisy:
        found.warnings.append(
            f"too noisy to judge: in {noisy} case{'s' * (noisy != 1)} a time is beyond its limit, but "
            "both runs may mean the same. Close other programs, or raise --rounds."
        )
    if not found.compared:
        found.warnings.append("nothing was compared: no row has in both runs what a rule is about")
    for rule in found.unjudged():
        text = f"expected one with a {rule.metric} in both runs, got none"
        found.warnings.append(f"{rule} judged no row: {text}")
    for rule in found.unclear():
        found.warnings.append(
            f"{rule} judged no row clearly: every one is too noisy, which is no proof"
        )
    return found


def _machines(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    return [
        f"{name} was {old[name]}, is {new[name]}: times and bits may differ for that"
        for name in ("cpu", "cores", "threads", "torch", "blas")
        if name in old and name in new and old[name] != new[name]
    ]


def _compare_subjects(old: Subject, new: Subject, found: Comparison) -> None:
    before = {(row.method, row.around): row for row in old.rows}
    plains = (old.plain, new.plain)
    _judge_plain(new.key, plains, found)
    _tell_what_is_gone(old, new, found)
    for label, row in zip(cells.labels(new), new.rows, strict=True):
        was = before.get((row.method, row.around))
        if was is None or was.error or was.skipped:
            continue
        if row.skipped:
            found.warnings.append(f"{new.key}, {label}: {cells.note(row)}")
            continue
        judged = [each for rule in found.rules if (each := _judge(rule, was, row, plains))]
        found.compared += bool(judged)
        if row.error:
            judged.append(("row", "measured", cells.note(row), None, REGRESSION))
        if was.equal in _BITS and row.equal in _BITS and was.equal != row.equal:
            worse = _BITS.index(row.equal) > _BITS.index(was.equal)
            judged.append(("bits", was.equal, row.equal, None, REGRESSION if worse else BETTER))
        found.changes += [Change(new.key, label, *each) for each in judged]


def _tell_what_is_gone(old: Subject, new: Subject, found: Comparison) -> None:
    there = {(row.method, row.around) for row in new.rows}
    gone = [
        label
        for label, row in zip(cells.labels(old), old.rows, strict=True)
        if (row.method, row.around) not in there and not row.error and not row.skipped
    ]
    if gone:
        found.warnings.append(f"{new.key}: not in the new run: {'; '.join(gone)}")


def _judge_plain(key: str, plains: tuple[Row | None, Row | None], found: Comparison) -> None:
    """A change of plain's own time is a change of the machine."""
    limit = next((rule.limit for rule in found.rules if METRICS[rule.metric].timed), None)
    old, new = (row.total[1] if row and row.total else 0 for row in plains)
    if limit is not None and old and new and abs(new / old - 1) > limit:
        found.warnings.append(
            f"{key}: plain itself takes {new / old:.2f} times as long as in the old run; "
            "trust time (over plain's), not forward, backward and total"
        )


def _judge(rule: Rule, old: Row, new: Row, plains: tuple[Row | None, Row | None]) -> Judged | None:
    metric = METRICS[rule.metric]
    if rule.metric == "time":
        if old is plains[0]:
            return None
        before, after, text = _over_plain(old, new, plains)
    else:
        before, after, text = _spread(metric.of(old)), _spread(metric.of(new)), metric.text
    if before is None or after is None:
        return None
    share = _growth(before[1], after[1])
    if share > rule.limit:
        verdict = REGRESSION if after[0] > before[2] else NOISY
    else:
        verdict = BETTER if share < -rule.limit and after[2] < before[0] else SAME
    return rule.metric, text(before[1]), text(after[1]), share, verdict


def _growth(before: float, after: float) -> float:
    if before:
        return after / before - 1
    return math.inf if after else 0.0


def _spread(value: float | Spread | None) -> Spread | None:
    return value if value is None or isinstance(value, tuple) else (value, value, value)


def _over_plain(
    old: Row, new: Row, plains: tuple[Row | None, Row | None]
) -> tuple[Spread | None, Spread | None, Callable[[float], str]]:
    """The ratio to plain's of the same round, and what its true median lies between: a slower machine is no slower
    method, and neither is a slow minute. Seconds, where a run has no plain row with a time."""
    if not all(row is not None and row.total for row in plains):
        return old.total, new.total, format_seconds
    return _median_ratio(old), _median_ratio(new), METRICS["time"].text


def _median_ratio(row: Row) -> Spread | None:
    if row.ratio is None or not row.ratios:
        return row.ratio  # quartiles are all that is known
    return median_between(row.ratios) or (0.0, row.ratio[1], math.inf)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--compare", metavar="OLD.json", help="the artefact of an earlier run")
    parser.add_argument(
        "--fail",
        nargs="+",
        action="extend",
        metavar="WHAT:LIMIT%",
        help="with --compare: exit with 3 where a row grew by more, e.g. peak:1%% time:10%%; there is "
        + ", ".join(METRICS),
    )


_STYLES = {REGRESSION: "bold red", NOISY: "yellow", BETTER: "green", SAME: "dim"}


def print_comparison(found: Comparison, console: Console) -> None:
    if shown := [change for change in found.changes if change.verdict != SAME]:
        layouts = leaving_out(_columns(shown), ("old", "new"))
        console.print(fitted(layouts, console, title="beside the old run", title_style="bold"))
        console.print()
    limits = ", ".join(f"{rule.metric} {rule.limit * 100:g} %" for rule in found.rules)
    counts = ", ".join(
        f"{len(found.of(v))} {v}" for v in (REGRESSION, NOISY, BETTER, SAME) if found.of(v)
    )
    worst = next((v for v in (REGRESSION, NOISY) if found.of(v)), BETTER)
    console.print(
        f"{found.compared} row{'s' * (found.compared != 1)} compared (limits: {limits}){': ' + counts if counts else ''}",
        style=_STYLES[worst],
        markup=False,
    )
    for warning in found.warnings:
        console.print(f"Warning: {printable(warning)}", style="yellow", markup=False)


def _columns(changes: Sequence[Change]) -> list[Column]:
    from rich.text import Text

    def names(name: str, texts: Sequence[str]) -> Column:
        return Column(name, [printable(text) for text in texts], justify="left", least=0)

    return [
        names("subject", [change.subject for change in changes]),
        names("method", [change.method for change in changes]),
        names("what", [change.metric for change in changes]),
        Column("old", [printable(change.before) for change in changes], least=8),
        Column("new", [printable(change.after) for change in changes], least=8),
        Column("change", ["" if each.share is None else f"{each.share:+.1%}" for each in changes]),
        Column(
            "verdict",
            [Text(change.verdict, style=_STYLES[change.verdict]) for change in changes],
            justify="left",
            least=0,
        ),
    ]
