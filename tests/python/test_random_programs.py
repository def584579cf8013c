"""2,000 random programs through `retape.verify`: no bit may differ, and nothing may be found."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.python import programs
from tools import programs_section

import retape
from retape import _C
from retape.cli.verify.case import injected

PROGRAMS = 2000
CHUNK = 50


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_recomputed_programs_equal_plain_ones(first: int) -> None:
    own: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        program = programs.make(seed)
        checked = programs.check(program)
        if checked.found is not None:
            pytest.fail(programs.report(program, checked.found)[0], pytrace=False)
        own[checked.kinds[0]] += 1
        dropped[checked.kinds[1]] += 1
    assert dropped["equal"] >= 0.8 * CHUNK, "too many programs only raise"
    assert own["equal"] >= 0.6 * CHUNK, "too many programs keep everything"
    assert set(own) <= {"equal", "vacuous", "raised", "refused"}
    assert set(dropped) <= {"equal", "raised", "refused"}, "vacuous only by its own policies"


@pytest.mark.filterwarnings("ignore")
def test_programs_hold_every_kind_of_step_block_and_backward() -> None:
    steps: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    backwards: Counter[str] = Counter()
    for seed in range(1000):
        program = programs.make(seed)
        steps.update(step.kind for step in program.steps)
        blocks.update(step.holes["block"] for step in program.steps if step.kind == "open")
        backwards[program.backward] += 1
    assert {kind: steps[kind] for kind in programs.KINDS if steps[kind] < 3} == {}
    assert {block: blocks[block] for block in programs.BLOCKS if blocks[block] < 10} == {}
    assert not set(programs.BACKWARDS) - set(backwards)


def test_a_seed_always_makes_the_same_program() -> None:
    assert programs.source(programs.make(11)) == programs.source(programs.make(11))
    assert programs.source(programs.make(11)) != programs.source(programs.make(12))


def test_verifys_plain_run_is_the_run_without_retape() -> None:
    for seed in range(20):
        program = programs.make(seed)
        with retape.eager():
            eager = programs.run(program, retape)
        assert not eager.replayed
        assert programs.difference(programs.run(program), eager) is None


@pytest.mark.parametrize("fault", ["one-ulp", "rng-not-restored", "batchnorm-twice"])
def test_a_fault_in_some_program_is_found_by_its_name(fault: str) -> None:
    kinds = {known.kind for known in _C.faults() if known.id == fault}
    if fault == "rng-not-restored":
        kinds.add("private generator")  # where the first random op has been given one
    for program in map(programs.make, range(200)):
        with injected(fault):
            found = programs.check(program).found
        if found is not None:
            assert any(kind in found for kind in kinds), found
            return
    pytest.fail("it was found in no program")


def test_only_policies_that_keep_everything_make_a_program_vacuous() -> None:
    candidates = (
        p
        for p in map(programs.make, range(100))
        if "R.checkpoint" not in programs.source(p)
        and all(s.kind != "written_behind_an_alias" for s in p.steps)
        and all(s.holes["block"] == "scope" for s in p.steps if s.kind == "open")
    )
    program = next(p for p in candidates if programs.check(p).kinds == ("equal", "equal"))
    steps = tuple(
        replace(step, holes=step.holes | {"policy": '"none"'}) if "policy" in step.holes else step
        for step in program.steps
    )
    kept = programs.check(replace(program, steps=steps))
    assert (kept.found, kept.kinds) == (None, ("vacuous", "equal"))
    without = tuple(s for s in program.steps if s.kind not in ("open", "close"))
    nothing = programs.check(replace(program, steps=without))
    assert "no scope, checkpoint or layer was entered" in (nothing.found or "")


def test_a_failing_program_is_shrunk_to_the_steps_that_matter() -> None:
    """The failure here: a rrelu somewhere before a narrow."""

    def fails(program: programs.Program) -> bool:
        kinds = [step.kind for step in program.steps]
        runs = programs.run(program).error is None
        return runs and "rrelu" in kinds and "narrow" in kinds[kinds.index("rrelu") :]

    program = next(p for p in map(programs.make, range(400)) if len(p.steps) > 30 and fails(p))
    small = programs.shrink(program, fails)
    assert [step.kind for step in small.steps if step.kind in ("rrelu", "narrow")] == [
        "rrelu",
        "narrow",
    ]
    assert len(small.steps) <= 6


def test_a_printed_program_runs_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    equal = (
        p for p in map(programs.make, range(20)) if programs.check(p).kinds == ("equal", "equal")
    )
    text = programs.printed(next(equal))
    exec(compile(text, "printed", "exec"), {"__name__": "printed"})
    verdicts = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  ")]
    assert [verdict.split(":")[0] for verdict in verdicts] == ["equal"] * 2


# ---- what is written of them


def counted(path: Path, first: int, last: int, **counts: int) -> Path:
    path.write_text(json.dumps({"seeds": {"first": first, "last": last}, "counts": counts}))
    return path


def test_runs_that_follow_one_another_are_added_up(tmp_path: Path) -> None:
    second = counted(tmp_path / "b", 5, 11, programs=7, equal=13)
    first = counted(tmp_path / "a", 0, 4, programs=5, equal=10)
    seeds, counts = programs_section.added_up([second, first])
    assert seeds == range(12)
    assert counts == {"programs": 12, "equal": 23}
    shown = programs_section.markdown(seeds, counts)
    assert "| programs, seeds 0 to 11 | 12 |" in shown
    assert "| tensors that differ | 0 |" in shown
    with pytest.raises(SystemExit, match="seed 3 next, expected 5"):
        programs_section.added_up([first, counted(tmp_path / "c", 3, 4)])


def test_the_page_counts_programs_from_the_first_seed_on_and_nothing_was_found() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/proofs.md").read_text(encoding="utf-8")
    shown = page.split("<!-- programs: begin -->\n")[1].split("<!-- programs: end -->")[0]
    seeds = re.match(r"\| programs, seeds 0 to ([\d,]+) \| ([\d,]+) \|", shown)
    assert seeds is not None, "make fuzz, then make proofs"
    assert int(seeds[2].replace(",", "")) == int(seeds[1].replace(",", "")) + 1 >= 10_000
    for text in programs_section.ROWS.values():
        assert f"| {text} | " in shown
    for name in ("differences", "findings"):
        assert f"| {programs_section.ROWS[name]} | 0 |" in shown
