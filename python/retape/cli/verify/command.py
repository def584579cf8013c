"""`retape verify`: is a step, recomputed, the same step, bit for bit?"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

import retape
from retape import _tolerance
from retape._progress import progress
from retape._text import Exit, offer, told_by_a_verb
from retape.cli.verify import apart, faults, junit, table
from retape.cli.verify import case as cases
from retape.cli.verify.case import DIFFERENT, EQUAL, NOT_BUILT, VACUOUS, Case, Result
from retape.subjects import find

if TYPE_CHECKING:
    from rich.console import Console

    from retape.cli.page import Page

POLICIES = ("full", "cheap", "none")
DTYPES = ("float32", "float64", "bfloat16", "float16")
Outcome = tuple[Exit, dict[str, Any]]
FAULTS_TAKE_NO = "policy dtype layers method steps orders may_be_dead region tolerance".split()
HAZARDS_TAKE_NO = ["subjects", "all_hf", "inject", "seed", "jobs", "time_limit", *FAULTS_TAKE_NO]
TIME_LIMIT = 300.0  # seconds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "subjects",
        nargs="*",
        metavar="subject",
        help="demo:gpt, demo:mixed, cpp:transformer, cpp:moe, cpp:pi05, hf:NAME (Hugging Face, tiny "
        "and random), or package.module:factory, a function of yours that makes (model, inputs) or "
        "a retape.Step: its code is run (all demos and C++ models)",
    )
    parser.add_argument(
        "--all-hf", action="store_true", help="every architecture of the installed transformers"
    )
    parser.add_argument(
        "--hazards",
        action="store_true",
        help="models that a second call gets wrong: torch.utils.checkpoint and Retape side by side",
    )

    def many(option: str, metavar: str, text: str, **more: Any) -> None:
        text = f"{text}; repeat for more"
        parser.add_argument(option, action="append", metavar=metavar, help=text, **more)

    many("--policy", "NAME", f"what is recomputed: {', '.join(POLICIES)} (full)", choices=POLICIES)
    many("--dtype", "DTYPE", f"{', '.join(DTYPES)} (what the subject makes)", choices=DTYPES)
    layers = 'regions around layers, "auto" or names with * (one scope around all)'
    many("--layers", "NAME", layers, default=[])
    parser.add_argument(
        "--method", choices=("replay", "rerun"), help="rerun calls functions again (replay)"
    )
    parser.add_argument("--steps", type=int, default=1, help="with an optimizer (%(default)s)")
    parser.add_argument(
        "--orders",
        action="store_true",
        help="also each order of losses, backward twice, two forwards then one backward",
    )
    dead = 'a parameter that gets no gradient, or zeros; "head.*": every name with that prefix'
    many("--may-be-dead", "NAME", dead, default=[])
    many("--region", "NAME", "must have run and been recomputed", default=[])
    many("--tolerance", "DTYPE=RTOL,ATOL", "float32=1e-5,1e-8 (bit for bit)", default=[])
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and noise (0)")
    parser.add_argument(
        "--inject",
        metavar="FAULT",
        help='break one thing on purpose; "list" shows what, "all" tries each',
    )
    parser.add_argument(
        "--junit", metavar="PATH", help="a JUnit XML file, a test case for each row"
    )
    parser.add_argument("--html", metavar="PATH", help="one page with everything in it")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="rows in N processes of their own, where a crash is a row; 0: in this one "
        "(with --all-hf a process for each core, else 0)",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"for each row, in a process of its own; implies --jobs 1 ({TIME_LIMIT:g})",
    )


def run(args: argparse.Namespace, console: Console) -> Outcome:
    try:
        _check(args)
        if args.hazards:
            return _hazards(args, console)
        if args.inject == "list":
            return faults.print_list(console)
        subjects = _subjects(args, console)
        rows = _cases(args, subjects)
        if args.inject == "all":
            return _faults(args, rows, console)
        return _verify(args, rows, console)
    except retape.UsageError as error:
        args.parser.refuse(told_by_a_verb(error))


def _check(args: argparse.Namespace) -> None:
    _tolerance.parsed(args.tolerance)
    if args.steps < 1:
        args.parser.error(f"--steps {args.steps}: expected at least 1")
    if args.jobs is not None and args.jobs < 0:
        args.parser.error(f"--jobs {args.jobs}: expected 0 or more")
    if args.time_limit is not None and not args.time_limit > 0:
        args.parser.error(f"--time-limit {args.time_limit:g}: expected more than 0")
    if args.time_limit is not None and args.jobs == 0:
        args.parser.refuse(
            "--time-limit with --jobs 0: only a process can be ended. Fix: leave one out."
        )
    if args.inject is not None and (args.jobs or args.time_limit is not None):
        given = "--jobs" if args.jobs else "--time-limit"
        args.parser.refuse(
            f"{given} with --inject, which counts hits in this process. Fix: leave one out."
        )
    if args.method == "rerun" and args.policy:
        args.parser.refuse("--policy with --method rerun, which keeps nothing. Fix: leave one out.")
    if args.inject not in (None, "list", "all"):
        names = faults.names()
        if args.inject not in names:
            offered = offer(args.inject, [*names, "list", "all"])
            args.parser.refuse(f"no such value for --inject: {args.inject!r}. {offered}")
    if args.hazards:
        _refuse_given(args, "--hazards has its own models and ways", HAZARDS_TAKE_NO)
    if args.inject is not None and not args.subjects and not args.all_hf:
        _refuse_given(
            args, "--inject without a subject has its own models and ways", FAULTS_TAKE_NO
        )
    args.parser.check_writable(args.junit, args.html)


def _refuse_given(args: argparse.Namespace, because: str, options: Sequence[str]) -> None:
    """What would have no effect is a mistake."""
    given = [n for n in options if getattr(args, n) not in ([], args.parser.get_default(n))]
    if given:
        shown = [
            "subjects" if name == "subjects" else "--" + name.replace("_", "-") for name in given
        ]
        args.parser.refuse(f"{because}. Fix: leave out {', '.join(shown)}.")


def _write_reports(
    args: argparse.Namespace, test_cases: list[junit.TestCase], of: Callable[[ModuleType], Page]
) -> None:
    if args.junit:
        junit.write(args.junit, test_cases)
    if args.html:
        from retape.cli.verify import page

        page.write(args.html, of(page))


def _subjects(args: argparse.Namespace, console: Console) -> list[str]:
    names = list(args.subjects)
    if args.all_hf:
        names += find.names_of("hf")
    if args.inject is not None and not names:
        return []
    names = list(dict.fromkeys(names or [*find.demos(), *find.cpp_names()]))
    find.announce([find.find(name) for name in names], console)
    return names


def _cases(args: argparse.Namespace, subjects: list[str]) -> list[Case]:
    if args.inject is not None and not args.subjects and not args.all_hf:
        return faults.programs(faults.names() if args.inject == "all" else [args.inject], args.seed)
    fault = None if args.inject == "all" else args.inject
    return [
        Case(
            subject,
            policy,
            dtype,
            layers=tuple(args.layers),
            method=args.method or "replay",
            steps=args.steps,
            orders=args.orders,
            seed=args.seed,
            fault=fault,
            may_be_dead=tuple(args.may_be_dead),
            regions=tuple(args.region),
            tolerance=tuple(args.tolerance),
        )
        for subject, dtype, policy in itertools.product(
            subjects, args.dtype or [None], args.policy or ["full"]
        )
    ]


def _run_all(rows: Sequence[Case], console: Console, one_of_many: bool = False) -> list[Result]:
    results: list[Result] = []

    def each(advance: Callable[[str], None]) -> None:
        for row in rows:
            advance(f"{row.subject}, {row.how}" + (f", {row.fault}" if row.fault else ""))
            results.append(cases.run(row, one_of_many))

    progress(each, len(rows), console)
    return results


def _run_apart(rows: Sequence[Case], jobs: int, limit: float, console: Console) -> list[Result]:
    results: list[Result] = []

    def all_of_them(advance: Callable[[str], None]) -> None:
        advance(f"{jobs} processes")
        results.extend(
            apart.run(rows, jobs, limit, lambda row: advance(f"{row.subject}, {row.how}"))
        )

    progress(all_of_them, len(rows), console)
    return results


def _verify(args: argparse.Namespace, rows: list[Case], console: Console) -> Outcome:
    started = time.perf_counter()
    if jobs := _jobs(args):
        results = _run_apart(rows, jobs, args.time_limit or TIME_LIMIT, console)
    else:
        results = _run_all(rows, console, one_of_many=args.all_hf)
    named = args.subjects if args.all_hf else [row.subject for row in rows]
    table.print_results(results, console, named)
    test_cases = [_test_case(result, named) for result in results]
    _write_reports(args, test_cases, lambda page: page.of_results(results, named))
    return exit_code(results, named), {
        "counts": table.counts(results),
        "seconds": round(time.perf_counter() - started, 1),
        **({"transformers": find.plugged("hf").version()} if args.all_hf else {}),
        "rows": [result.to_dict() for result in results],
    }


def _jobs(args: argparse.Namespace) -> int:
    """Processes; 0: this one."""
    if args.jobs is not None:
        return args.jobs
    if args.all_hf:
        return os.cpu_count() or 1
    return 0 if args.time_limit is None else 1


def exit_code(results: Sequence[Result], named: Collection[str]) -> Exit:
    """Different beats vacuous. What was asked for by name and could not run is the caller's mistake."""
    kinds = {result.kind for result in results}
    if DIFFERENT in kinds:
        return Exit.DIFFERENT
    if any(result.kind == NOT_BUILT and result.is_failure(named) for result in results):
        return Exit.USAGE
    if VACUOUS in kinds or EQUAL not in kinds:
        return Exit.VACUOUS
    return Exit.OK


def _test_case(result: Result, named: Collection[str]) -> junit.TestCase:
    name = " ".join(filter(None, (result.case.how, result.case.dtype, result.case.fault)))
    kind, failed = result.kind, result.is_failure(named)
    told = [result.cause] if result.verdict is not None else []  # else it is told below
    told += [result.explanation, f"Again: {result.command}"]
    return junit.TestCase(
        suite=result.case.subject,
        name=name,
        seconds=result.seconds,
        failure=kind if failed and kind != NOT_BUILT else "",
        error=kind if failed and kind == NOT_BUILT else "",
        skipped=result.reason if kind == NOT_BUILT and not failed else "",
        text="\n".join(told) if failed else "",
    )


def _faults(args: argparse.Namespace, rows: list[Case], console: Console) -> Outcome:
    if not rows[0].fault:
        # Some strike only in a second call, a second backward or a second step, some only from
        # outside.
        thorough = [
            replace(row, method=method, layers=layers, orders=True, steps=max(2, row.steps))
            for row in rows
            for method, layers in _ways(args, row)
        ]
        rows = [replace(row, fault=name) for name in faults.names() for row in thorough]
    results = _run_all(rows, console)
    found = faults.verdicts(results)
    faults.print_verdicts(found, console)
    _write_reports(args, [each.test_case() for each in found], lambda page: page.of_faults(found))
    return faults.exit_code(found), {
        "faults": [each.to_dict() for each in found],
        "rows": [result.to_dict() for result in results],
    }


def _ways(args: argparse.Namespace, row: Case) -> list[tuple[str, tuple[str, ...]]]:
    if args.method:
        return [(args.method, row.layers)]
    ways = [("replay", row.layers), ("rerun", row.layers)]
    if row.subject.startswith("demo:") and not row.layers:
        ways.append(("rerun", ("auto",)))
    return ways


def _hazards(args: argparse.Namespace, console: Console) -> Outcome:
    from retape import hazards
    from retape.hazards import table as hazard_table

    rows: list[hazards.Row] = []

    def each(advance: Callable[[str], None]) -> None:
        rows.extend(hazards.run_all(lambda hazard: advance(hazard.title)))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        progress(each, len(hazards.HAZARDS), console)
    finally:
        torch.set_num_threads(threads)
    hazard_table.print_table(rows, console)
    test_cases = [hazard_table.test_case(row) for row in rows]
    _write_reports(args, test_cases, lambda page: page.of_hazards(rows))
    return hazard_table.exit_code(rows), {"rows": [row.to_dict() for row in rows]}
