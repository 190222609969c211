"""What `infer` checks, with one part of it left out at a time: a mutant that no test notices is a check that no test holds.

A mutant leaves out a `require` (or a `raise ConstraintBroken`), an operand of an `and` or an `or` in its condition, a comparison of a
chain such as `0 <= axis < rank`, or turns of the loop that it stands in. They are found in the source, so a check that is written
tomorrow has its mutants, too. Functions get the code of rewritten ones, which ask a Switch for each part.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from aicf.ops.record import OpSchema

NAME = "__switch__"
DECLARED = (
    "operands",
    "types",
    "devices",
)  # what a declaration says of every op has a word instead of a number


@dataclass(frozen=True)
class Mutant:
    where: str  # file:line
    what: str
    refuses_more: bool = False  # a part of an `or`: what is well-formed notices

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Switch:
    """What rewritten functions ask, under the number of each mutant: one of them is on, or none."""

    def __init__(self) -> None:
        self.mutants: list[Mutant] = []
        self.on: int | None = None

    def part(self, number: int, condition: Any) -> Any:
        return not self.mutants[number].refuses_more if number == self.on else condition

    def turns(self, first: int, count: int, literal: bool, items: Any) -> list[Any]:
        items, number = list(items), -1 if self.on is None else self.on - first
        if not 0 <= number < count:
            return items
        if literal:
            return items[:number] + items[number + 1 :]
        return items[1:] if number == 0 else items[:1]


class _Rewriter(ast.NodeTransformer):
    def __init__(self, file: str, switch: Switch) -> None:
        self.file, self.switch = file, switch
        self.within: list[tuple[str, int]] = []  # functions, by name and first line
        self.numbers: dict[tuple[str, int], list[int]] = {}
        self.unnumbered: dict[tuple[str, int], list[str]] = {}

    def _new(self, node: ast.AST, what: str, refuses_more: bool = False) -> ast.Constant:
        self.switch.mutants.append(Mutant(f"{self.file}:{node.lineno}", what, refuses_more))
        number = len(self.switch.mutants) - 1
        self.numbers[self.within[-1]].append(number)
        return ast.Constant(number)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        key = node.name, min([node.lineno, *(d.lineno for d in node.decorator_list)])
        self.numbers[key], self.unnumbered[key] = [], []
        self.within.append(key)
        self.generic_visit(node)
        self.within.pop()
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        if any(_is_require(n) for n in ast.walk(node)):
            literal = isinstance(node.iter, ast.Tuple)
            items = ast.unparse(node.iter)
            left_out = map(ast.unparse, node.iter.elts) if literal else ("the first", "all but the first")
            numbers = [self._new(node, f"the loop over {items} without {turn}") for turn in left_out]
            turns = numbers[0], ast.Constant(len(numbers)), ast.Constant(literal), node.iter
            node.iter = _ask("turns", *turns)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not _is_require(node):
            return self.generic_visit(node)
        condition, constraint, _ = node.args
        where = f"{self.file}:{node.lineno}: "
        assert not isinstance(condition, ast.Name), f"{where}the condition belongs into the require"
        numbered = getattr(constraint, "id", "") == "constraint" or _is_number(
            getattr(constraint, "value", None)
        )
        assert numbered, f"{where}{ast.unparse(constraint)} is not the number of a constraint"
        number = self._new(node, f"without require({ast.unparse(condition)}, {ast.unparse(constraint)}, …)")
        node.args[0] = _ask("part", number, self._in_parts(condition))
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if not (isinstance(node.exc, ast.Call) and getattr(node.exc.func, "id", "") == "ConstraintBroken"):
            self.unnumbered[self.within[-1]].append(f"{self.file}:{node.lineno}: {ast.unparse(node)}")
            return node
        asked = _ask("part", self._new(node, f"without raise {ast.unparse(node.exc)}"), ast.Constant(False))
        return ast.If(asked, [ast.Pass()], [node])

    def _in_parts(self, condition: ast.expr) -> ast.expr:
        if isinstance(condition, ast.Compare) and len(condition.ops) > 1:
            operands = [condition.left, *condition.comparators]
            links = zip(operands, condition.ops, operands[1:])
            condition = ast.BoolOp(
                ast.And(), [ast.copy_location(ast.Compare(a, [o], [b]), a) for a, o, b in links]
            )
        if not isinstance(condition, ast.BoolOp):
            return condition
        either = isinstance(condition.op, ast.Or)
        whole, parts = ast.unparse(condition), []
        for part in condition.values:
            number = self._new(part, f"{whole}, without {ast.unparse(part)}", refuses_more=either)
            parts.append(_ask("part", number, self._in_parts(part)))
        return ast.BoolOp(condition.op, parts)


def _is_require(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "require"


def _is_number(constraint: Any) -> bool:
    return constraint in DECLARED or bool(re.fullmatch(r"C\d+", str(constraint)))


def _ask(method: str, *args: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load()), list(args), [])


SWITCH = Switch()


@dataclass(frozen=True)
class Rewritten:
    code: CodeType
    numbers: tuple[int, ...]  # of its mutants
    unnumbered: tuple[str, ...]  # what it raises that is no constraint


@functools.cache
def _rewritten(path: Path) -> dict[tuple[str, int], Rewritten]:
    """The functions of a file, by name and first line."""
    tree, rewriter = ast.parse(path.read_text()), _Rewriter(path.name, SWITCH)
    module = compile(ast.fix_missing_locations(rewriter.visit(tree)), str(path), "exec", dont_inherit=True)
    codes = {(c.co_name, c.co_firstlineno): c for c in _within(module)}
    return {
        k: Rewritten(codes[k], tuple(n), tuple(rewriter.unnumbered[k])) for k, n in rewriter.numbers.items()
    }


def _within(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _within(inner)


def rewritten(function: FunctionType) -> Rewritten:
    path = Path(inspect.getsourcefile(function))
    return _rewritten(path)[function.__code__.co_name, function.__code__.co_firstlineno]


def checks(*functions: FunctionType) -> set[FunctionType]:
    """These functions, and those of aicf.ops that they call by name."""
    found, ahead = set(), list(functions)
    while ahead:
        function = ahead.pop()
        if function not in found:
            found.add(function)
            names = {n for code in (function.__code__, *_within(function.__code__)) for n in code.co_names}
            called = [function.__globals__.get(n) for n in names - {"require"}]
            ahead += [
                f for f in called if isinstance(f, FunctionType) and f.__module__.startswith("aicf.ops")
            ]
    return found


def checks_of(schema: OpSchema) -> set[FunctionType]:
    of_all = [
        getattr(OpSchema, name, None)
        for name in OpSchema.infer.__code__.co_names
        if name.startswith("_check")
    ]
    return checks(*filter(None, of_all), schema.rule, *filter(None, [schema.check_fn]))


def numbers_everywhere() -> set[int]:
    """Of the mutants of all files; where `require` itself is, there are none."""
    paths = [
        p for p in Path(inspect.getsourcefile(OpSchema)).parent.glob("*.py") if p.name != "constraints.py"
    ]
    return {number for path in paths for made in _rewritten(path).values() for number in made.numbers}


def install(patch: pytest.MonkeyPatch, functions: Iterable[FunctionType]) -> None:
    codes = {function: rewritten(function).code for function in functions}
    for function, code in codes.items():
        patch.setattr(function, "__code__", code)
        patch.setitem(function.__globals__, NAME, SWITCH)
