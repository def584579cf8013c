"""One row: a subject, a policy, a dtype, and what came of verifying them."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any

import torch

import retape
from retape import _C, _tolerance
from retape._text import told_by_a_verb
from retape._verdict import Verdict
from retape.subjects import raised
from retape.subjects.find import NotBuilt, find

EQUAL, DIFFERENT, VACUOUS, NOT_BUILT = "equal", "different", "vacuous", "not built"
KINDS = (DIFFERENT, VACUOUS, NOT_BUILT, EQUAL)  # the worst first


@dataclass(frozen=True)
class Case:
    subject: str
    policy: str = "full"
    dtype: str | None = None  # as the subject makes it
    layers: tuple[str, ...] = ()  # none: one scope around all of it
    method: str = "replay"
    steps: int = 1
    orders: bool = False
    seed: int = 0
    fault: str | None = None  # injected
    may_be_dead: tuple[str, ...] = ()  # besides what the subject declares
    regions: tuple[str, ...] = ()
    tolerance: tuple[str, ...] = ()  # "float32=1e-5,1e-8"

    @property
    def command(self) -> str:
        """A line that runs just this again."""
        words = ["retape", "verify", self.subject]
        words += ["--policy", self.policy] if self.method == "replay" else []
        words += ["--dtype", self.dtype] if self.dtype else []
        words += _repeated("--layers", self.layers)
        words += ["--method", self.method] if self.method != "replay" else []
        words += ["--steps", str(self.steps)] if self.steps != 1 else []
        words += ["--orders"] if self.orders else []
        words += ["--seed", str(self.seed)] if self.seed else []
        words += ["--inject", self.fault] if self.fault else []
        words += _repeated("--may-be-dead", self.may_be_dead)
        words += _repeated("--region", self.regions)
        words += _repeated("--tolerance", self.tolerance)
        return shlex.join(words)

    @property
    def how(self) -> str:
        """What is recomputed: a policy, or a second call, and of what."""
        what = self.policy if self.method == "replay" else self.method
        if self.layers:
            what += f", layers {' '.join(self.layers)}"
        return what


def _repeated(option: str, values: tuple[str, ...]) -> list[str]:
    return [word for value in values for word in (option, value)]


@dataclass
class Result:
    case: Case
    kind: str
    verdict: Verdict | None = None
    reason: str = ""  # why it was not built
    more: str = ""  # lines that the reason has no room for
    apart: tuple[str, ...] = ()  # options without which a crash would not be a row
    seconds: float = 0.0
    hits: int = 0  # times that the injected fault struck

    @property
    def cause(self) -> str:
        """One line: where it came from, or why it proves nothing."""
        if self.verdict is None:
            return self.reason
        return cause_of(self.verdict)

    @property
    def explanation(self) -> str:
        if self.verdict is None:
            return "\n".join(filter(None, (self.reason, self.more)))
        return self.verdict.explain()

    @property
    def command(self) -> str:
        """A line that runs just this again."""
        return " ".join([self.case.command, *self.apart])

    def is_failure(self, named: Collection[str]) -> bool:
        """A subject that was not built fails only if it was named: --all-hf asks for every one."""
        if self.kind == NOT_BUILT:
            return self.case.subject in named
        return self.kind != EQUAL

    def to_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.case),
            "fault_hits": self.hits,
            "kind": self.kind,
            "cause": self.cause,
            "command": self.command,
            "seconds": round(self.seconds, 4),
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
        }


def cause_of(verdict: Verdict) -> str:
    if verdict.kind == VACUOUS:
        return "; ".join(verdict.vacuous)
    if verdict.findings:
        return finding_line(verdict.findings[0])
    if verdict.error:
        return verdict.error.splitlines()[0]
    if verdict.differences:
        first = verdict.differences[0]
        more = len(verdict.differences) - 1
        text = f"{first.what} {first.name}: {first.differing} of {first.elements} elements"
        return text + (f", and {more} more tensors" if more else "")
    return ""


def finding_line(finding: _C.Finding) -> str:
    region = f'region "{finding.region}"' if finding.region else ""
    where = ", ".join(each for each in (finding.op, region, finding.source) if each)
    return f"{finding.kind}: {where + ': ' if where else ''}{finding.what}"


def run(
    case: Case, one_of_many: bool = False, before_recompute: Callable[[], None] | None = None
) -> Result:
    """Whatever keeps the plain step from running is the reason why it was not built. UsageError is raised,
    unless this is one of many cases that were not named."""
    started = time.perf_counter()
    fault = injected(case.fault)
    try:
        with fault:
            verdict = _verify(case, before_recompute)
    except NotBuilt as error:
        result = Result(case, NOT_BUILT, reason=error.reason)
    except retape.UsageError as error:
        if not one_of_many:
            raise
        result = Result(case, NOT_BUILT, reason=told_by_a_verb(error))
    except (Exception, SystemExit) as error:
        reason = f"the plain step raises {raised.in_short(error)}"
        result = Result(case, NOT_BUILT, reason=reason, more=raised.more(error))
    else:
        if case.fault and not fault.hits and verdict.kind != DIFFERENT:
            verdict._verdict.add_vacuous(_did_not_strike(case.fault))
        result = Result(case, verdict.kind, verdict)
    result.seconds = time.perf_counter() - started
    result.hits = fault.hits
    return result


def _verify(case: Case, before_recompute: Callable[[], None] | None) -> Verdict:
    dtype = None if case.dtype is None else getattr(torch, case.dtype)
    subject, inputs, options = find(case.subject).make(dtype, case.seed)
    options["may_be_dead"] = (*options.get("may_be_dead", ()), *case.may_be_dead)
    layers: Any = list(case.layers) or None
    if case.layers == ("auto",):
        layers = "auto"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        return retape.verify(
            subject,
            inputs,
            policy=case.policy,
            layers=layers,
            method=case.method,
            steps=case.steps,
            orders=case.orders,
            tolerance=_tolerance.parsed(case.tolerance),
            regions=case.regions,
            before_recompute=before_recompute,
            **options,
        )


def _did_not_strike(fault: str) -> str:
    return (
        f"the fault {fault} did not strike: nothing here does what it breaks. "
        f"Fix: retape verify --inject {fault}, in the model that is built in for it"
    )


class injected:
    """While it is entered, a fault strikes, `hits` times; None: none does."""

    def __init__(self, fault: str | None) -> None:
        self.fault = fault
        self.hits = 0

    def __enter__(self) -> None:
        if self.fault is not None:
            _C.inject(self.fault)

    def __exit__(self, *_: object) -> None:
        if self.fault is not None:
            self.hits = _C.fault_hits()
            _C.inject("")
