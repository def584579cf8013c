"""docs/verify.md: its code runs, its commands parse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from retape import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs/verify.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_code_runs_as_shown_in_the_readers_own_tests_too(capsys, assert_same_gradients):
    first, fixture = blocks("python")
    names: dict = {}
    exec(first, names)
    assert capsys.readouterr().out.startswith("equal")
    exec(fixture, names)
    names["test_block"](assert_same_gradients)


@pytest.mark.parametrize("line", blocks("sh")[0].splitlines())
def test_commands_parse(line):
    words = shlex.split(line.partition("#")[0])
    assert words[0] == "retape"
    assert cli.build_parser(words[1:]).parse_args(words[1:]).chosen.name == "verify"
