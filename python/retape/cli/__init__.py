"""The `retape` command.

A verb is one line in VERBS and one module with two functions:

    add_arguments(parser)              # its options
    run(args, console) -> (code, result)   # does the work, prints, returns what goes in the JSON

`args.command_line` is what was typed and `args.environment()` where, for reports; a verb that shows an old
run puts that run's in their place. `args.save(code, result)` writes the artefact of what is done so far,
for work that may be killed; `args.broken` is why Retape cannot be imported, for the doctor. Everything else (help, examples, spelling, exit codes, the artefact) is done
here, once.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from retape._text import Exit, first_line, make_console, offer, printable, told_by_a_verb


@dataclass(frozen=True)
class Verb:
    name: str  # "bench overhead": the words to type
    module: str  # imported only when the verb is asked for
    summary: str
    example: str  # or several lines of them
    artefact: str  # where the JSON goes unless --json says otherwise; "{output}" is that option
    goes_on: bool = False  # without an artefact, where the folder cannot be written


VERBS = (
    Verb(
        "demo",
        "retape.cli.demo",
        "train a small transformer plain and with Retape, and compare every gradient bit for bit",
        "retape demo --steps 10 --output build/demo",
        "{output}/report.json",
    ),
    Verb(
        "verify",
        "retape.cli.verify.command",
        "run a step plain and recomputed, from the same state, and compare every bit",
        "retape verify demo:gpt --policy full --policy cheap --orders",
        "build/verify.json",
    ),
    Verb(
        "gradcheck",
        "retape.cli.gradcheck.command",
        "run a step by ranks and by one process, and find what is summed wrong",
        "retape gradcheck mymodule:factory --ranks 4 --html gradcheck.html",
        "build/gradcheck.json",
    ),
    Verb(
        "bench run",
        "retape.bench.run",
        "memory, time and gradients of Retape and of what is used instead, on the same work",
        "retape bench --quick --html bench.html\n  retape bench --subject mymodule:factory --html bench.html",
        "build/bench/run.json",
    ),
    Verb(
        "bench overhead",
        "retape.bench.overhead",
        "what recording and replaying cost per op, beside torch's own ways",
        "retape bench overhead --quick --json overhead.json",
        "build/bench/overhead.json",
    ),
    Verb(
        "bench check",
        "retape.bench.check",
        "what a step costs whose replayed values are compared with forward's (RETAPE_CHECK)",
        "retape bench check --quick",
        "build/bench/check.json",
    ),
    Verb(
        "report",
        "retape.bench.report.cli",
        "show a bench or a gradcheck again, from its JSON artefact: tables, Markdown, CSV, HTML, or a comparison",
        "retape report build/bench/run.json --html bench.html",
        "build/report.json",
    ),
    Verb(
        "doctor",
        "retape.cli.doctor",
        "check this installation, also one that cannot be imported: versions, build, gloo, hooks, one replay",
        "retape doctor --json doctor.json",
        "build/doctor.json",
        goes_on=True,
    ),
)

# The first word of verbs that have a second one.
GROUPS = {"bench": "measure speed or memory"}

# Said of a group when only its options are: `retape bench --quick`.
DEFAULTS = {"bench": "run"}

# The option that takes what may have been typed as a verb: `retape bench swiglu`.
WORDS_OF = {"retape bench": "--subject"}


class Parser(argparse.ArgumentParser):
    """argparse that offers the closest spelling and exits with 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        self.refuse(self._explain(message))

    def refuse(self, text: str) -> NoReturn:
        """Like `error`, for a text that needs no explanation."""
        self.print_usage(sys.stderr)
        self.exit(Exit.USAGE, f"[{self.prog}] {text}\n")

    def check_writable(self, *paths: str | None) -> None:
        """Fails now, not after minutes of work."""
        from retape import _artefact

        for path in filter(None, paths):
            try:
                _artefact.prepare(path)
            except OSError as error:
                self.error(f"cannot write {path} ({error.strerror})")

    def _explain(self, message: str) -> str:
        choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        if choice:
            known = re.findall(r"'([^']*)'", choice[2])
            return f"no such {self._what(message)}: {choice[1]!r}. {offer(choice[1], known)}{self._hint(choice[1])}"
        unknown = re.search(r"unrecognized arguments: (\S+)", message)
        if unknown:
            word = unknown[1].split("=", 1)[0]
            return f"unknown argument {word}. " + offer(word, list(self._option_string_actions))
        return f"{message}. Fix: {self.prog} --help shows an example."

    def _hint(self, word: str) -> str:
        option = WORDS_OF.get(self.prog)
        return f" If it is a subject: {self.prog} {option} {word}" if option else ""

    @staticmethod
    def _what(message: str) -> str:
        option = re.match(r"argument (--\S+):", message)
        return f"value for {option[1]}" if option else "verb"


def cmake_dir() -> Path:
    """The folder that holds RetapeConfig.cmake."""
    return Path(__file__).absolute().parents[1] / "lib" / "cmake" / "Retape"


class _CMakeDir(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        folder = cmake_dir()
        if not (folder / "RetapeConfig.cmake").is_file():
            parser.exit(
                Exit.USAGE,
                f"[retape --cmake-dir] no RetapeConfig.cmake in {folder}: this copy of Retape "
                "was not installed by its build. Fix: pip install . --no-build-isolation\n",
            )
        print(folder)
        parser.exit(Exit.OK)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        import torch

        import retape

        print(f"retape {retape.__version__} (torch {torch.__version__})")
        parser.exit(Exit.OK)


def build_parser(words: Sequence[str]) -> Parser:
    """The whole command. Only verbs that `words` could mean get their options, so that a call
    like `retape --cmake-dir` imports none of them."""
    parser = Parser(
        prog="retape",
        description="Train bigger models in the same memory, with gradients that did not change.",
        epilog="example:\n  retape demo",
    )
    parser.set_defaults(parser=parser)
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        dest=argparse.SUPPRESS,
        help="print the version and exit",
    )
    parser.add_argument(
        "--cmake-dir",
        action=_CMakeDir,
        nargs=0,
        dest=argparse.SUPPRESS,
        help="print the folder for find_package(Retape) and exit",
    )
    verbs = parser.add_subparsers(title="verbs", metavar="verb", dest="verb", required=True)
    groups: dict[str, Any] = {}
    for name, summary in GROUPS.items():
        members = [verb for verb in VERBS if verb.name.startswith(f"{name} ")]
        group = verbs.add_parser(
            name,
            help=summary,
            description=f"retape {name}: {summary}.",
            epilog=f"example:\n  {members[0].example}",
        )
        group.set_defaults(parser=group)
        groups[name] = group.add_subparsers(
            title="what", metavar="what", dest="what", required=True
        )
    for verb in VERBS:
        first, _, last = verb.name.rpartition(" ")
        command = (groups[first] if first else verbs).add_parser(
            last,
            help=verb.summary,
            description=f"retape {verb.name}: {verb.summary}.{_others(verb)}",
            epilog=f"example:\n  {verb.example}",
        )
        command.set_defaults(parser=command, chosen=verb)
        if (first or last) in words:
            command.add_argument(
                "--json",
                metavar="PATH",
                help='where the JSON artefact goes, "-" for standard output '
                f"({re.sub('{.*}', 'FOLDER', verb.artefact)})",
            )
            importlib.import_module(verb.module).add_arguments(command)
    return parser


def _others(verb: Verb) -> str:
    """The rest of a group, for the help of the one that stands for it."""
    first, _, last = verb.name.rpartition(" ")
    if DEFAULTS.get(first) != last:
        return ""
    names = [each.name for each in VERBS if each.name.startswith(f"{first} ") and each is not verb]
    return "\nThere is also: " + ", ".join(f"retape {name}" for name in names) + "."


def _completed(words: list[str]) -> list[str]:
    """`bench --quick` is `bench run --quick`, and its help is too."""
    default = DEFAULTS.get(words[0]) if words else None
    if default is None or (len(words) > 1 and not words[1].startswith("-")):
        return words
    return [words[0], default, *words[1:]]


def _recorded(args: argparse.Namespace) -> dict[str, Any]:
    plumbing = {
        "parser",
        "chosen",
        "verb",
        "what",
        "json",
        "command_line",
        "environment",
        "save",
        "broken",
    }
    return {name: value for name, value in vars(args).items() if name not in plumbing}


def main(argv: Sequence[str] | None = None, broken: str = "") -> int:
    """Runs one verb and returns its exit code. Bad arguments raise SystemExit(2). `broken`: why Retape
    cannot be imported; the doctor is the only verb then."""
    words = _completed(list(sys.argv[1:] if argv is None else argv))
    try:
        return _run(words, broken)
    except Exception as error:
        return _unexpected(
            " ".join(["retape", *(word for word in words[:1] if word.isalpha())]), error
        )


def _unexpected(what: str, error: Exception) -> int:
    """Not 1, which says something of gradients: what a user can mend is 2, the rest an error of Retape's own."""
    usage = getattr(sys.modules.get("retape"), "UsageError", ())
    if isinstance(error, usage):
        sys.stderr.write(f"[{what}] {told_by_a_verb(error)}\n")
        return int(Exit.USAGE)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        sys.stderr.write(f"[{what}] cannot write output: {error.strerror}\n")
        return int(Exit.USAGE)
    debug = os.environ.get("RETAPE_DEBUG") == "1"
    if debug:
        traceback.print_exception(error)
    kind, text = type(error).__name__, first_line(error)
    told = kind if kind == text else f"{kind}: {text}"
    fix = "" if debug else " RETAPE_DEBUG=1 shows the stack."
    sys.stderr.write(printable(f"[{what}] internal error: {told} ({_where(error)}).{fix}") + "\n")
    return int(Exit.INTERNAL)


def _where(error: Exception) -> str:
    """The last line of Retape's own that was reached: "retape/bench/cells.py:87"."""
    package = Path(__file__).parents[1]
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if package in Path(frame.filename).parents]
    if not ours:
        return "nowhere"
    return f"{Path(ours[-1].filename).relative_to(package.parent)}:{ours[-1].lineno}"


def _run(words: list[str], broken: str) -> int:
    args, rest = build_parser(words).parse_known_args(words)
    if rest:
        args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    verb: Verb = args.chosen
    may_go_on = verb.goes_on and args.json is None
    if args.json is None:
        args.json = verb.artefact.format(**vars(args))
    try:
        console = make_console(to_stderr=args.json == "-")
    except ModuleNotFoundError as error:
        args.parser.exit(
            Exit.USAGE, f"[retape {verb.name}] rich is not there ({error}). Fix: pip install rich\n"
        )
    module = importlib.import_module(verb.module)

    from retape import _artefact

    args.command_line = _artefact.command_line(words)
    args.environment = _artefact.environment
    args.broken = broken
    try:
        _artefact.prepare(args.json)
        not_written = ""
    except OSError as error:
        not_written = f"cannot write {args.json} ({error.strerror})"
        if not may_go_on:
            args.parser.error(not_written)
    saved = False

    def save(code: Exit, result: dict[str, Any]) -> None:
        nonlocal saved
        made = _artefact.artefact(
            verb.name, _recorded(args), result, code, args.command_line, args.environment()
        )
        try:
            _artefact.write(args.json, made)
        except OSError as error:
            args.parser.error(f"cannot write {args.json} ({error.strerror})")
        saved = True

    args.save = save if args.json != "-" and not not_written else lambda code, result: None
    alone = args.json == "-"  # nothing else on standard output, whatever a user's model prints
    try:
        with contextlib.redirect_stdout(sys.stderr) if alone else contextlib.nullcontext():
            code, result = module.run(args, console)
    except KeyboardInterrupt:
        kept = f"{args.json} has what was done until then" if saved else "no artefact was written"
        console.print(f"[retape {verb.name}] interrupted; {kept}.", markup=False)
        return 130
    if not_written:
        console.print(f"No artefact: {not_written}. Fix: --json PATH", markup=False)
        return int(code)
    save(code, result)
    if args.json != "-":
        console.print(f"Artefact: {args.json}")
    return int(code)
