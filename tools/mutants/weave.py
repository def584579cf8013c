"""Writes a source in which every mutant is there at once, each behind its switch."""

import dataclasses

from .mutant import Form, Mutant

INCLUDE = '#include "mutant_switch.h"\n#line 1\n'


@dataclasses.dataclass
class Node:
    """Mutants of one range of the source, and of ranges inside it."""

    start: int
    end: int
    mutants: list[tuple[int, Mutant]]
    inside: list["Node"]


@dataclasses.dataclass
class Woven:
    text: str
    spans: list[tuple[int, int, int]]  # where in the text each mutant is: start, end, number

    def at(self, line: int, column: int) -> list[int]:
        """Numbers of the mutants that an error at this place is about: the innermost, or the line's."""
        lines = self.text[len(INCLUDE) :].split("\n")
        first = len(INCLUDE) + sum(len(text) + 1 for text in lines[: line - 1])
        offset = first + column - 1
        around = [s for s in self.spans if s[0] <= offset < s[1]]
        if around:
            return [min(around, key=lambda s: s[1] - s[0])[2]]
        last = first + len(lines[line - 1])
        return [number for start, end, number in self.spans if start < last and first < end]


def tree(mutants: list[tuple[int, Mutant]], size: int) -> Node:
    root = Node(0, size, [], [])
    open_nodes = [root]
    for number, mutant in sorted(mutants, key=lambda item: (item[1].start, -item[1].end)):
        while open_nodes[-1].end < mutant.end:
            open_nodes.pop()
        around = open_nodes[-1]
        if around is not root and (around.start, around.end) == (mutant.start, mutant.end):
            around.mutants.append((number, mutant))
            continue
        node = Node(mutant.start, mutant.end, [(number, mutant)], [])
        around.inside.append(node)
        open_nodes.append(node)
    return root


def before(number: int, mutant: Mutant) -> str:
    switch = f"::retape_mutant({number})"
    if mutant.form is Form.FLIP:
        return f"({switch} != static_cast<bool>("
    if mutant.form is Form.CHOOSE:
        return f"({switch} ? ({mutant.mutated}) : ("
    return f"{{ if (!{switch}) {{ "


def after(mutant: Mutant) -> str:
    return " } }" if mutant.form is Form.DROP else "))"


def weave(source: str, mutants: list[tuple[int, Mutant]]) -> Woven:
    """`mutants` with their numbers. Lines stay where they are."""
    out: list[str] = [INCLUDE]
    spans: list[tuple[int, int, int]] = []
    length = len(INCLUDE)

    def put(text: str) -> None:
        nonlocal length
        out.append(text)
        length += len(text)

    def render(node: Node) -> None:
        starts = []
        for number, mutant in node.mutants:
            starts.append(length)
            put(before(number, mutant))
        at = node.start
        for inner in node.inside:
            put(source[at : inner.start])
            render(inner)
            at = inner.end
        put(source[at : node.end])
        for (number, mutant), start in reversed(list(zip(node.mutants, starts, strict=True))):
            put(after(mutant))
            spans.append((start, length, number))

    render(tree(mutants, len(source)))
    return Woven("".join(out), spans)
