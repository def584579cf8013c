"""2,000 random programs, plain against recomputed: no bit may differ."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.python import programs

PROGRAMS = 2000
CHUNK = 50


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, PROGRAMS, CHUNK))
def test_recomputed_programs_equal_plain_ones(first: int) -> None:
    tally: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        program = programs.make(seed)
        found, _, recomputed = programs.check(program)
        if found is not None:
            pytest.fail(programs.report(program, found)[0], pytrace=False)
        tally["raise"] += recomputed.error is not None
        tally["replayed"] += recomputed.ops_replayed > 0
    assert tally["replayed"] >= 0.8 * CHUNK, "too few programs replayed anything"
    assert tally["raise"] <= 0.15 * CHUNK, "too many programs only raise"


@pytest.mark.filterwarnings("ignore")
def test_programs_hold_every_kind_of_step_block_and_backward() -> None:
    steps: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    backwards: Counter[str] = Counter()
    for seed in range(300):
        program = programs.make(seed)
        steps.update(step.kind for step in program.steps)
        blocks.update(step.holes["block"] for step in program.steps if step.kind == "open")
        backwards[program.backward] += 1
    assert not set(programs.KINDS) - set(steps)
    assert not set(programs.BLOCKS) - set(blocks)
    assert not set(programs.BACKWARDS) - set(backwards)


def test_a_seed_always_makes_the_same_program() -> None:
    assert programs.source(programs.make(11)) == programs.source(programs.make(11))
    assert programs.source(programs.make(11)) != programs.source(programs.make(12))


def test_two_plain_runs_of_a_program_agree() -> None:
    for seed in range(20):
        program = programs.make(seed)
        assert programs.difference(programs.run(program), programs.run(program)) is None


def test_the_comparison_sees_a_changed_gradient_generator_and_buffer() -> None:
    candidates = (p for p in map(programs.make, range(100)) if p.backward == "sum")
    program = next(p for p in candidates if programs.run(p).error is None)
    for name in ("gradient of", "state of the default generator", "buffer afterwards"):
        plain, other = programs.run(program), programs.run(program)
        key = next(k for k, v in plain.values.items() if k.startswith(name) and v is not None)
        other.values[key] = other.values[key].clone()
        other.values[key].view(-1)[0] += 1
        found = programs.difference(plain, other)
        assert found is not None
        assert key in found


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
    text = programs.printed(programs.make(3))
    exec(compile(text, "printed", "exec"), {"__name__": "printed"})
    assert capsys.readouterr().out == ""
