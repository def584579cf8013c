"""The long run: random programs until one fails, or the count or the time is reached."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import Counter
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
PATIENCE = 30.0  # seconds for one program; the slowest take a tenth of one


def try_seed(seed: int) -> tuple[str | None, Counter[str]]:
    """The report of a failure, if there is one, and what there is to count."""
    program = make(seed)
    checked = check(program)
    if checked.found is not None:
        text, small = report(program, checked.found)
        return f"{text}\n{_saved(seed, small)}", Counter()
    return None, Counter(programs=1) + Counter(checked.kinds) + checked.counts


def try_seeds(seeds: range) -> list[tuple[str | None, Counter[str]]]:
    """In a child process; where that dies or hangs, each seed in a child of its own."""
    try:
        return in_child(lambda: [try_seed(seed) for seed in seeds], PATIENCE * len(seeds))
    except ChildFailed as failure:
        if len(seeds) > 1:
            singles = []
            for seed in seeds:
                singles += try_seeds(range(seed, seed + 1))
                if singles[-1][0] is not None:
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
    parser.add_argument("--json", type=Path, help="write what was counted, if nothing failed")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program and exit")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    retape._C.set_least_lean_bytes(0)  # small tensors too
    warnings.simplefilter("ignore")
    if args.show is not None:
        print(printed(make(args.show)))
        return 0
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    tally: Counter[str] = Counter()
    end = args.seed + args.count
    with Progress(*columns, transient=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("programs", total=args.count)
        for first in range(args.seed, end, BATCH):
            seeds = range(first, min(first + BATCH, end))
            for text, counts in try_seeds(seeds):
                if text is not None:
                    progress.stop()
                    print(text)
                    return 1
                tally.update(counts)
            progress.advance(bar, len(seeds))
            if time.monotonic() > deadline:
                break
    print(", ".join(f"{name} {count}" for name, count in tally.items()) + ": no bit differs")
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        seeds = {"first": args.seed, "last": args.seed + tally["programs"] - 1}
        args.json.write_text(json.dumps({"seeds": seeds, "counts": tally}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
