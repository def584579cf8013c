"""python -m tools.mutants: see docs/mutants.md."""

import argparse
import dataclasses
import hashlib
import json
import pathlib
import sys
import time

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from . import page, report
from .build import Plain, Weaver
from .mutant import Form, Mutant
from .results import Cache, Reasons, digest_of
from .run import Runner

FOLDERS = ["src/torch", "src/tape", "src/residency", "src/record", "src/replay", "src/frontends"]
PER_FILE = 2000  # numbers; a file's stay its own when another changes


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools.mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=600, help="how many mutants to run; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="files whose name contains this")
    parser.add_argument("--minimum", type=float, default=0.9, help="share that must be killed")
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--page", type=pathlib.Path, help="write the result into this page")
    parser.add_argument("--list", action="store_true", help="show the mutants and stop")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"))
    return parser.parse_args()


def mutants_of(
    root: pathlib.Path, plain: Plain, work: pathlib.Path, only: str
) -> dict[int, Mutant]:
    """All of them by number, from the sources or, where a source is as it was, from the run before."""
    sources = sorted(path for folder in FOLDERS for path in (root / folder).glob("*.cpp"))
    known_path = work / "found.json"
    tool = (pathlib.Path(__file__).parent / "find.py").read_bytes()
    known = json.loads(known_path.read_text()) if known_path.exists() else {}
    found, headers = {}, None
    for index, source in enumerate(sources):
        file = str(source.relative_to(root))
        digest = hashlib.sha256(tool + source.read_bytes()).hexdigest()
        if known.get(file, {}).get("digest") != digest:
            from .find import find  # libclang is needed only here
            from .flags import compile_flags, precompiled

            flags = compile_flags(plain.commands, source)
            headers = headers or precompiled(sources, flags, work)
            rows = [
                {**dataclasses.asdict(m), "form": m.form.value}
                for m in find(str(source), flags + headers, file)
            ]
            known[file] = {"digest": digest, "mutants": rows}
        if only in file:
            for i, row in enumerate(known[file]["mutants"]):
                found[index * PER_FILE + i] = Mutant(**{**row, "form": Form(row["form"])})
    known_path.write_text(json.dumps(known))
    return found


def sampled(mutants: dict[int, Mutant], size: int, seed: int) -> dict[int, Mutant]:
    """Evenly from all files. By name, so that a change elsewhere leaves the sample as it was."""
    if size == 0 or size >= len(mutants):
        return mutants
    files: dict[str, list[int]] = {}
    for number, mutant in mutants.items():
        files.setdefault(mutant.file, []).append(number)
    chosen = []
    for numbers in files.values():
        numbers.sort(key=lambda n: hashlib.sha256(f"{seed} {mutants[n].key}".encode()).digest())
        chosen += numbers[: -(-size * len(numbers) // len(mutants))]
    return {number: mutants[number] for number in sorted(chosen)}


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console,
    )  # fmt: skip


def main() -> int:
    args = arguments()
    console = Console()
    root = pathlib.Path(__file__).resolve().parents[2]
    work = args.build.resolve() / "mutants"
    work.mkdir(parents=True, exist_ok=True)
    started = time.time()

    plain = Plain(root, work / "plain")
    plain.make(sys.executable, args.jobs)
    mutants = mutants_of(root, plain, work, args.only)
    if args.list:
        for mutant in mutants.values():
            console.print(
                f"{mutant.file}:{mutant.line}: {mutant.key}", markup=False, soft_wrap=True
            )
        return 0

    with progress(console) as bar:
        weaver = Weaver(plain, work / "woven")
        task = bar.add_task("sources", total=len({m.file for m in mutants.values()}))
        dropped = weaver.sources(mutants, args.jobs, lambda file: bar.advance(task))
        mutants = {n: m for n, m in mutants.items() if n not in dropped}
        chosen = sampled(mutants, args.sample, args.seed)

        cache_path = work / "results.json"
        if args.fresh:
            cache_path.unlink(missing_ok=True)
        cache = Cache(cache_path, digest_of(root / "tests/cpp", root / "src", root / "include"))
        texts = {m.file: (root / m.file).read_text() for m in chosen.values()}
        digests = {n: m.digest(texts[m.file]) for n, m in chosen.items()}
        results = {n: r for n in chosen if (r := cache.get(digests[n])) is not None}
        left = {n: m for n, m in chosen.items() if n not in results}
        broken: list[str] = []
        if left:
            runner = Runner(weaver.program, args.jobs)
            task = bar.add_task("tests without mutant", total=len(runner.names()))
            for _ in runner.survey(max(mutants) + 1):
                bar.advance(task)
            broken = runner.broken
            task = bar.add_task("mutants", total=len(chosen), completed=len(results))
            try:
                for number, result in runner.all(left):
                    results[number] = result
                    cache.put(digests[number], result)
                    bar.advance(task)
                    if len(results) % 10 == 0:
                        cache.save()
            finally:
                cache.save()
            runner.close()

    reasons = Reasons(pathlib.Path(__file__).parent / "survivors.toml")
    report.show(console, chosen, results, reasons)
    for name in broken:
        console.print(f"[yellow]{name} fails without a mutant: it was not used.[/]")
    for reason in reasons.outdated(mutants.values(), args.only):
        console.print(
            f"[yellow]survivors.toml has a reason for what is not there:[/] {escape(reason)}"
        )
    report.save(
        args.build / "mutants.json", chosen, results, reasons,
        found=len(mutants), not_compiled=len(dropped), seconds=round(time.time() - started),
    )  # fmt: skip
    if args.page is not None:
        page.write(args.page, chosen, results, reasons, len(mutants))
    console.print(
        f"{len(mutants)} mutants found, {len(dropped)} more do not compile. {args.build}/mutants.json"
    )
    unexplained = any(
        r.status != "killed" and not reasons.of(chosen[n]) for n, r in results.items()
    )
    return 1 if unexplained or report.share(results) < args.minimum else 0


if __name__ == "__main__":
    sys.exit(main())
