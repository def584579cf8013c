"""Finds what can be mutated in a source, with libclang's syntax tree and the source's own text."""

import collections
import dataclasses
import re

from clang.cindex import Cursor, CursorKind, Index, TranslationUnit, TypeKind

from .mutant import Form, Mutant, one_line

FUNCTIONS = {
    CursorKind.FUNCTION_DECL, CursorKind.CXX_METHOD, CursorKind.CONSTRUCTOR,
    CursorKind.DESTRUCTOR, CursorKind.FUNCTION_TEMPLATE, CursorKind.CONVERSION_FUNCTION,
}  # fmt: skip
SCOPES = {
    CursorKind.NAMESPACE, CursorKind.CLASS_DECL, CursorKind.STRUCT_DECL, CursorKind.CLASS_TEMPLATE,
    CursorKind.LINKAGE_SPEC, CursorKind.UNEXPOSED_DECL,
}  # fmt: skip
NAMES = {CursorKind.DECL_REF_EXPR, CursorKind.MEMBER_REF_EXPR}
OTHERS = {
    "==": ["!="], "!=": ["=="],
    "<": ["<=", ">="], "<=": ["<", ">"], ">": [">=", "<="], ">=": [">", "<"],
    "&&": ["||"], "||": ["&&"],
    "+": ["-"], "-": ["+"], "*": ["+"],
    "+=": ["-="], "-=": ["+="], "|=": ["="], "&": ["|"],
    "++": ["--"], "--": ["++"],
}  # fmt: skip
CONDITIONS = {"==", "!=", "<", "<=", ">", ">=", "&&", "||"}
ARITHMETIC = {"+", "-", "*", "+=", "-=", "&"}

# Faults to inject (src/tape/fault.h): not in builds that anybody uses.
FAULTS = re.compile(r"\b(injected|hit|sabotage\w*)\b")


class Finder:
    """Walks one translation unit. `mutants` is the result."""

    def __init__(self, unit: TranslationUnit, path: str, source: bytes, file: str):
        self.path = path
        self.source = source
        self.file = file
        self.mutants: list[Mutant] = []
        self.function: Cursor | None = None
        self.macros = [
            (c.extent.start.offset, c.extent.end.offset)
            for c in unit.cursor.get_children()
            if c.kind == CursorKind.MACRO_INSTANTIATION and self.here(c)
        ]
        self.declarations(unit.cursor)

    def here(self, cursor: Cursor) -> bool:
        return cursor.location.file is not None and cursor.location.file.name == self.path

    def text(self, start: int, end: int) -> str:
        return self.source[start:end].decode()

    def text_of(self, cursor: Cursor) -> str:
        return self.text(cursor.extent.start.offset, cursor.extent.end.offset)

    def declarations(self, cursor: Cursor) -> None:
        for child in cursor.get_children():
            if not self.here(child):
                continue
            if child.kind in FUNCTIONS:
                if child.is_definition():
                    self.function = child
                    self.body(child)
            elif child.kind in SCOPES:
                self.declarations(child)

    # ---- what is added ----------------------------------------------------------------------

    def add(self, kind: str, form: Form, start: int, end: int, mutated: str) -> None:
        if any(start < b and a < end for a, b in self.macros):
            return  # asserts, and names that mean something else elsewhere
        owner = self.function.semantic_parent
        prefix = f"{owner.spelling}::" if owner.kind in SCOPES - {CursorKind.NAMESPACE} else ""
        line = self.source.count(b"\n", 0, start) + 1
        self.mutants.append(
            Mutant(
                self.file, prefix + self.function.spelling.split("<")[0], kind, form, start, end, line,
                one_line(self.text(start, end)), one_line(mutated),
            )
        )  # fmt: skip

    def expression(self, kind: str, form: Form, cursor: Cursor, mutated: str) -> None:
        self.add(kind, form, cursor.extent.start.offset, cursor.extent.end.offset, mutated)

    def flip(self, kind: str, cursor: Cursor) -> None:
        """Negates a condition, unless what it consists of is negated anyway."""
        cursor = bare(cursor)
        if cursor.kind == CursorKind.CXX_BOOL_LITERAL_EXPR or FAULTS.search(self.text_of(cursor)):
            return
        operator = self.operator(cursor)
        negated = CONDITIONS | {"!"} if kind == "operand" else CONDITIONS - {"&&", "||"} | {"!"}
        if operator is None or operator[0] not in negated:
            self.expression(kind, Form.FLIP, cursor, f"!({self.text_of(cursor)})")

    # ---- walking ----------------------------------------------------------------------------

    def body(self, cursor: Cursor, parent: Cursor | None = None) -> None:
        for child in cursor.get_children():
            self.visit(child, cursor)

    def visit(self, cursor: Cursor, parent: Cursor) -> None:
        kind = cursor.kind
        if kind.is_declaration() and kind not in FUNCTIONS:
            if is_constant(self.text_of(cursor)):
                return
        if kind in {CursorKind.TYPE_REF, CursorKind.TEMPLATE_REF, CursorKind.STATIC_ASSERT}:
            return
        if kind == CursorKind.DECL_STMT and is_constant(self.text_of(cursor)):
            return
        if parent.kind == CursorKind.COMPOUND_STMT:
            if self.is_fault(cursor):
                return
            self.statement(cursor)
        if kind in {CursorKind.IF_STMT, CursorKind.WHILE_STMT} and self.branch(cursor):
            return
        if kind == CursorKind.CASE_STMT:
            for child in list(cursor.get_children())[1:]:
                self.visit(child, cursor)
            return
        if kind == CursorKind.CONDITIONAL_OPERATOR:
            self.flip("condition", next(cursor.get_children()))
        if kind == CursorKind.RETURN_STMT and self.returns_bool(cursor):
            for child in cursor.get_children():
                self.flip("return", child)
        self.operation(cursor, parent)
        if parent.kind not in NAMES:  # a template's argument
            self.literal(cursor)
        self.body(cursor)

    def is_fault(self, statement: Cursor) -> bool:
        return statement.kind.is_expression() and FAULTS.search(self.text_of(statement)) is not None

    def returns_bool(self, cursor: Cursor) -> bool:
        """By the expression: in a lambda, `function` is the one around it."""
        expression = next(cursor.get_children(), None)
        return expression is not None and bare(expression).type.kind == TypeKind.BOOL

    def branch(self, cursor: Cursor) -> bool:
        """The condition of an if or while. True if all of it has been visited."""
        children = list(cursor.get_children())
        at = next(
            (
                i
                for i, c in enumerate(children)
                if c.kind.is_statement() and i > 0 and c.kind != CursorKind.DECL_STMT
            ),
            None,
        )
        if at is None:
            return False
        condition = children[at - 1]
        start = condition.extent.start.offset
        before = self.text(0, start).rstrip()[-1:]
        fault = FAULTS.search(re.sub(r"!injected\([\w:]+\)", "", self.text_of(condition)))
        if fault:
            for child in children[at + 1 :]:
                self.visit(child, cursor)
            return True
        if before in {"(", ";"}:  # a declared variable is not negated
            self.flip("condition", condition)
        return False

    def statement(self, cursor: Cursor) -> None:
        """Leaves it out."""
        bare_return = cursor.kind == CursorKind.RETURN_STMT and not list(cursor.get_children())
        jump = cursor.kind in {CursorKind.BREAK_STMT, CursorKind.CONTINUE_STMT}
        if not (cursor.kind.is_expression() or bare_return or jump):
            return
        end = self.source.find(b";", cursor.extent.end.offset) + 1
        if self.source[cursor.extent.end.offset : end].strip() != b";":
            return
        self.add(
            "jump" if bare_return or jump else "statement",
            Form.DROP,
            cursor.extent.start.offset,
            end,
            "",
        )

    def operator(self, cursor: Cursor) -> tuple[str, list[Cursor]] | None:
        """Its operator, built in or overloaded, and operands."""
        children = list(cursor.get_children())
        binary = {CursorKind.BINARY_OPERATOR, CursorKind.COMPOUND_ASSIGNMENT_OPERATOR}
        if (
            cursor.kind == CursorKind.CALL_EXPR
            and len(children) == 3
            and self.is_operator_name(children[1])
        ):
            children = [children[0], children[2]]
        elif (
            cursor.kind == CursorKind.CALL_EXPR
            and len(children) == 2
            and self.text_of(cursor)[:2] in {"++", "--"}
        ):
            return self.text_of(cursor)[:2], children
        elif cursor.kind == CursorKind.UNARY_OPERATOR and len(children) == 1:
            return self.text(
                cursor.extent.start.offset, children[0].extent.start.offset
            ).strip(), children
        elif cursor.kind not in binary and not self.is_rewritten(cursor, children):
            return None
        if len(children) != 2:
            return None
        between = self.text(children[0].extent.end.offset, children[1].extent.start.offset)
        return one_line(between).strip(), children

    def is_operator_name(self, cursor: Cursor) -> bool:
        return cursor.spelling.startswith("operator") and not cursor.spelling.startswith(
            "operator()"
        )

    def is_rewritten(self, cursor: Cursor, children: list[Cursor]) -> bool:
        """C++20's `a != b` by way of `==`."""
        return cursor.kind == CursorKind.UNEXPOSED_EXPR and len(children) == 2

    def operation(self, cursor: Cursor, parent: Cursor) -> None:
        found = self.operator(cursor)
        if found is None:
            return
        operator, operands = found
        if any(FAULTS.fullmatch(self.text_of(bare(o)).lstrip("!").split("(")[0]) for o in operands):
            return
        if operator == "!":
            self.expression("not", Form.FLIP, cursor, self.text_of(operands[0]))
        if operator in {"&&", "||"}:
            for operand in operands:
                self.flip("operand", operand)
        if operator in {"++", "--"} and parent.kind == CursorKind.FOR_STMT:
            return  # a loop without end, every time
        if operator in ARITHMETIC and not is_number(cursor):
            return
        for other in OTHERS.get(operator, []):
            kind = "comparison" if operator in CONDITIONS - {"&&", "||"} else "operator"
            if len(operands) == 1 or operator in {"++", "--"}:
                mutated = other + self.text_of(cursor)[len(operator) :]
            else:
                mutated = f"{self.text_of(operands[0])} {other} {self.text_of(operands[1])}"
            self.expression(kind, Form.CHOOSE, cursor, mutated)

    def literal(self, cursor: Cursor) -> None:
        text = self.text_of(cursor)
        if cursor.kind == CursorKind.CXX_BOOL_LITERAL_EXPR and text in {"true", "false"}:
            self.expression("literal", Form.CHOOSE, cursor, "false" if text == "true" else "true")
        if cursor.kind == CursorKind.INTEGER_LITERAL and text.isdigit():
            self.expression(
                "literal", Form.CHOOSE, cursor, "0" if text == "1" else str(int(text) + 1)
            )


def bare(cursor: Cursor) -> Cursor:
    """Without the implicit conversions around it."""
    while cursor.kind == CursorKind.UNEXPOSED_EXPR:
        children = list(cursor.get_children())
        if len(children) != 1 or children[0].extent != cursor.extent:
            break
        cursor = children[0]
    return cursor


def is_constant(text: str) -> bool:
    return re.match(r"(static\s+|const\s+|thread_local\s+)*constexpr\b", text) is not None


def is_number(cursor: Cursor) -> bool:
    kind = cursor.type.get_canonical().kind
    return TypeKind.BOOL.value <= kind.value <= TypeKind.LONGDOUBLE.value


def find(path: str, flags: list[str], file: str, source: bytes | None = None) -> list[Mutant]:
    """All mutants of the source at `path`, which reports call `file`, in the order of the text."""
    if source is None:
        with open(path, "rb") as stream:
            source = stream.read()
    unit = Index.create().parse(
        path, flags, unsaved_files=[(path, source.decode())],
        options=TranslationUnit.PARSE_DETAILED_PROCESSING_RECORD,
    )  # fmt: skip
    # Of this source: Clang has an opinion on precompiled va_list, too.
    errors = [
        str(d)
        for d in unit.diagnostics
        if d.severity >= d.Error and d.location.file and d.location.file.name == path
    ]
    if errors:
        raise RuntimeError(f"[mutants] {file} does not parse: {errors[0]}. Fix: build it first.")
    return numbered(Finder(unit, path, source, file).mutants)


def numbered(mutants: list[Mutant]) -> list[Mutant]:
    distinct = {(m.start, m.end, m.mutated): m for m in reversed(mutants)}
    seen: collections.Counter[str] = collections.Counter()
    result = []
    for mutant in sorted(distinct.values(), key=lambda m: (m.start, -m.end, m.mutated)):
        nth = seen[mutant.key]
        seen[mutant.key] += 1
        result.append(dataclasses.replace(mutant, nth=nth))
    return result
