"""Makes a failing program small: fewer steps, fewer losses, simpler policies, the same failure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator

from .kinds import KINDS
from .program import Program, Step, check, source

DROP_ALL = "R.Policy.full().anchors(False)"


def _without(program: Program, drop: set[int]) -> Program | None:
    """The program without those steps and without whatever needs their results."""
    gone: set[str] = set()
    steps: list[Step] = []
    open_blocks: list[bool] = []  # kept or dropped
    for i, step in enumerate(program.steps):
        if step.kind == "open":
            open_blocks.append(i not in drop)
            keep = open_blocks[-1]
            if keep and "args" in step.holes:
                args = [a for a in step.holes["args"].split(", ") if a and a not in gone]
                step = dataclasses.replace(step, holes=step.holes | {"args": ", ".join(args)})
        elif step.kind == "close":
            keep = open_blocks.pop()
        else:
            keep = i not in drop and not gone.intersection(step.operands)
            if not keep:
                gone.update(step.results)
        if keep:
            steps.append(step)
    kept = (tuple(t for t in terms if t.split(".")[0] not in gone) for terms in program.losses)
    losses = tuple(filter(None, kept))
    outputs = tuple(x for x in program.outputs if x not in gone)
    if not losses:
        return None
    return dataclasses.replace(program, steps=tuple(steps), losses=losses, outputs=outputs)


def _renamed(program: Program, index: int, operand: str) -> Program:
    """The program without one step, its results replaced by one of its operands."""
    step = program.steps[index]
    swap = {name: operand for name in step.results}

    def rename(s: Step) -> Step:
        holes = {
            k: swap.get(v, v) if len(k) == 1 and isinstance(v, str) else v
            for k, v in s.holes.items()
        }
        if "args" in holes:
            args = dict.fromkeys(swap.get(a, a) for a in holes["args"].split(", ") if a)
            holes["args"] = ", ".join(args)
        return dataclasses.replace(s, holes=holes)

    def renamed_terms(terms: tuple[str, ...]) -> tuple[str, ...]:
        pairs = (text.split(".", 1) for text in terms)
        return tuple(f"{swap.get(name, name)}.{rest}" for name, rest in pairs)

    return dataclasses.replace(
        program,
        steps=tuple(map(rename, program.steps[:index] + program.steps[index + 1 :])),
        losses=tuple(map(renamed_terms, program.losses)),
        outputs=tuple(n for n in program.outputs if n not in swap),
    )


def shrink(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A program with as few steps as can be found for which `fails` still holds."""

    def still(candidate: Program | None) -> bool:
        if candidate is None:
            return False
        try:
            return fails(candidate)
        except Exception:
            return False

    smaller = True
    while smaller:
        smaller = False
        size = max(1, len(program.steps) // 2)
        while size:
            start = len(program.steps)
            while start > 0:
                start -= size
                candidate = _without(program, set(range(max(start, 0), start + size)))
                if candidate and len(candidate.steps) < len(program.steps) and still(candidate):
                    program, smaller = candidate, True
            size //= 2
        for index in reversed(range(len(program.steps))):
            step = program.steps[index]
            for operand in step.operands if step.results else ():
                candidate = _renamed(program, index, operand)
                if still(candidate):
                    program, smaller = candidate, True
                    break
        for change in _simplifications(program):
            if still(change):
                program, smaller = change, True
                break
    return program


def _simplifications(program: Program) -> Iterator[Program]:
    for name in program.outputs:
        yield dataclasses.replace(program, outputs=tuple(n for n in program.outputs if n != name))
    for i, terms in enumerate(program.losses):
        for term in terms:
            fewer = tuple(t for t in terms if t != term)
            losses = program.losses[:i] + ((fewer,) if fewer else ()) + program.losses[i + 1 :]
            if losses:
                yield dataclasses.replace(program, losses=losses)
    for i, step in enumerate(program.steps):
        if step.holes.get("policy", DROP_ALL) != DROP_ALL:
            simple = dataclasses.replace(step, holes=step.holes | {"policy": DROP_ALL})
            steps = program.steps[:i] + (simple,) + program.steps[i + 1 :]
            yield dataclasses.replace(program, steps=steps)
    if program.backward != "sum":
        yield dataclasses.replace(program, backward="sum")
    text = source(program)
    for line in program.leaves:
        name = line.split(" ", 1)[0]
        if len(re.findall(rf"\b{name}\b", text)) == 2:  # its own line: assigned, named to `seen`
            yield dataclasses.replace(
                program, leaves=tuple(other for other in program.leaves if other != line)
            )


def same_failure(program: Program) -> Callable[[Program], bool]:
    """Fails in the same manner: where one of the two runs raised, it raises, and else both end."""

    def manner(candidate: Program) -> tuple[bool, str]:
        checked = check(candidate)
        return checked.found is not None, checked.kinds[-1]

    wanted = manner(program)
    return lambda candidate: manner(candidate) == wanted


def report(program: Program, found: str) -> tuple[str, Program]:
    """What is wrong in the smallest program that still fails, and that program."""
    small = shrink(program, same_failure(program))
    again = check(small).found
    count, size = (sum(s.kind in KINDS for s in p.steps) for p in (program, small))
    return (
        f"seed {program.seed // 1000}: {again or found}\n"
        f"shrunk from {count} to {size} steps:\n\n{source(small)}"
    ), small
