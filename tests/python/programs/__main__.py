"""The long run: random programs until one fails, or the count or the time is reached."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch
from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

from .maker import make
from .program import check, printed
from .shrink import report

FAILURES = Path("build/fuzz")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.python.programs",
        description="Random programs, plain against recomputed, bit for bit.",
        epilog="example: python -m tests.python.programs --count 10000 --seed 42 --minutes 30",
    )
    parser.add_argument("--count", type=int, default=1000, help="how many programs (1000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (0)")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--show", type=int, metavar="SEED", help="print one program and exit")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if args.show is not None:
        print(printed(make(args.show)))
        return 0
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    deadline = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    tally: Counter[str] = Counter()
    with Progress(*columns, transient=not sys.stdout.isatty()) as progress:
        bar = progress.add_task("programs", total=args.count)
        for seed in range(args.seed, args.seed + args.count):
            program = make(seed)
            found, plain, recomputed = check(program)
            if found is not None:
                progress.stop()
                text, small = report(program, found)
                path = FAILURES / f"seed_{seed}.py"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(printed(small))
                print(f"{text}\nAs a file that runs by itself: {path}")
                return 1
            tally["programs"] += 1
            tally["both raise"] += plain.error is not None
            tally["refused"] += recomputed.error is not None and plain.error is None
            tally["with ops replayed"] += recomputed.ops_replayed > 0
            tally["ops replayed"] += recomputed.ops_replayed
            progress.advance(bar)
            if time.monotonic() > deadline:
                break
    print(", ".join(f"{name} {count}" for name, count in tally.items()) + ": no bit differs")
    return 0


if __name__ == "__main__":
    sys.exit(main())
