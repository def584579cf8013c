"""The long run: random programs until one fails, or the count or the time is reached."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import torch
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

import retape

from .child import ChildFailed, in_child
from .maker import candidates, make
from .program import Program, check, printed, source
from .shrink import report, shrink

FAILURES = Path("build/fuzz")
BATCH = 50
Result = tuple[str | None, Counter[str]]  # the report of a failure, and what there is to count
PATIENCE = 30.0  # seconds for one program; the slowest take a tenth of one


def try_seed(seed: int) -> Result:
    """In this process. A failing program is shrunk and saved."""
    program = make(seed)
    checked = check(program)
    if checked.found is not None:
        text, small = report(program, checked.found)
        return f"{text}\n{_saved(seed, small)}", Counter()
    return None, Counter(programs=1) + Counter(checked.kinds) + checked.counts


def in_order(seeds: range, jobs: int, deadline: float) -> Iterator[list[Result]]:
    """Results batch by batch, `jobs` of them at work; no new one is begun after the deadline."""
    batches = iter([seeds[i : i + BATCH] for i in range(0, len(seeds), BATCH)])
    with ThreadPoolExecutor(jobs) as pool:
        running = deque(pool.submit(try_seeds, batch) for batch in islice(batches, jobs))
        try:
            while running:
                yield running.popleft().result()
                if time.monotonic() < deadline:
                    running.extend(pool.submit(try_seeds, batch) for batch in islice(batches, 1))
        finally:
            for future in running:
                future.cancel()


def warm_up() -> None:
    """Imports here what children would each import again: tracing a branch takes torch seconds."""
    x = torch.ones(2, requires_grad=True)
    torch.ops.higher_order.cond(x.sum() > 0, lambda y: (y.sin(),), lambda y: (y.cos(),), (x,))
    integers = torch.ones(2, 2, dtype=torch.int8)
    mm = torch.ops.aten.mm.default
    torch.ops.higher_order.out_dtype(mm, torch.int32, integers, integers)


def try_seeds(seeds: range) -> list[Result]:
    """In a child process; where that dies or hangs, each seed in a child of its own."""
    try:
        return in_child(lambda: [try_seed(seed) for seed in seeds], PATIENCE * len(seeds))
    except ChildFailed as failure:
        if len(seeds) > 1:
            singles = []
            for seed in seeds:
                singles += try_seeds(range(seed, seed + 1))
            if any(text is not None for text, _ in singles):
                return singles
            return [(f"seeds {seeds[0]} to {seeds[-1]} in one process: {failure}", Counter())]
        return [(_fatal(seeds[0], failure), Counter())]


def _fatal(seed: int, failure: ChildFailed) -> str:
    def fails(program: Program) -> bool:
        try:
            in_child(lambda: check(program), PATIENCE)
        except ChildFailed as again:
            return again.raised == failure.raised
        return False

    try:
        programs = in_child(lambda: list(islice(candidates(seed), 3)), PATIENCE)
    except ChildFailed as plain:
        return f"seed {seed}: without Retape already: {plain}"
    program = next(filter(fails, programs), None)
    if program is None:
        return f"seed {seed}: {failure}"
    small = shrink(program, fails)
    return f"seed {seed}: {failure}\n\n{source(small)}\n{_saved(seed, small)}"


def _saved(seed: int, program: Program) -> str:
    path = FAILURES / f"seed_{seed}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(printed(program))
    return f"As a file that runs by itself: {path}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.python.programs",
        description="Random programs, plain against recomputed, bit for bit: retape.verify on each.",
        epilog="example: python -m tests.python.programs --count 10000 --seed 42 --minutes 30",
    )
    parser.add_argument("--count", type=int, default=1000, help="how many programs (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (0)")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, help=f"processes at once ({cores})")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many (1)")
    parser.add_argument("--json", type=Path, help="write what was counted, if nothing failed")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program and exit")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    retape._C.set_least_lean_bytes(0)  # small tensors too
    warnings.simplefilter("ignore")
    if args.show is not None:
        print(printed(make(args.show)))
        return 0
    warm_up()
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    tally: Counter[str] = Counter()
    failures = 0
    with Progress(*columns, transient=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("programs", total=args.count)
        for results in in_order(range(args.seed, args.seed + args.count), args.jobs, deadline):
            for text, counts in results:
                if text is not None:
                    failures += 1
                    progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
                tally.update(counts)
            progress.advance(bar, len(results))
            if failures >= args.failures:
                break
    if failures:
        print(f"{failures} of {tally['programs'] + failures} programs fail")
        return 1
    print(", ".join(f"{name} {count}" for name, count in tally.items()) + ": no bit differs")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        seeds = {"first": args.seed, "last": args.seed + tally["programs"] - 1}
        args.json.write_text(json.dumps({"seeds": seeds, "counts": tally}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
