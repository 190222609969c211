"""Next steps name what there is: every call, option, command, file and setting in the hints of aicf's errors exists, with those arguments."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import aicf
from aicf import cli, config, near, nn
from aicf.device.tensor import Tensor
from aicf.generation import Generator
from aicf.graph.emit.builder import GraphEmitter
from aicf.ir import Value
from aicf.nn.layer import Layer

ROOT = Path(aicf.__file__).parents[1]
SOURCES = sorted(p for p in Path(aicf.__file__).parent.rglob("*.py"))
OPS = {str(schema.name): schema for schema in (aicf.schema_of(n) if isinstance(n, str) else n for n in aicf.schemas())}  # fmt: skip


def literal(node: ast.AST) -> Iterator[str]:
    """The texts that an expression may be: of an f-string with `X` where a value is written."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(v.value if isinstance(v, ast.Constant) else "X" for v in node.values)
    elif isinstance(node, ast.IfExp):
        yield from literal(node.body)
        yield from literal(node.orelse)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from ("".join(parts) for parts in zip(literal(node.left), literal(node.right)))


@functools.cache
def hints() -> dict[str, str]:
    """Each text, with where it is written."""
    found: dict[str, str] = {}
    texts = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    for path in (path for path, text in texts.items() if re.search(r"\b(hint|instead)\b", text)):
        for node in ast.walk(ast.parse(texts[path])):
            if isinstance(node, ast.keyword):
                name = node.arg
            else:
                name = getattr(node.targets[0], "id", "") if isinstance(node, ast.Assign) else ""
            for said in literal(node.value) if name in ("hint", "instead") else ():
                found[said] = f"{path.relative_to(ROOT)}:{node.value.lineno}"
    for table in (near.OPS, near.NN, near.AICF, near.MODELS, near.MODELS_OF, *near.PARTS.values()):
        for name, said in table.items():
            found[said if isinstance(said, str) else said[1]] = f"near.py, {name}"
    return found


CALL = re.compile(r"(?<![\w.'\"])((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*)\(")


def calls(said: str) -> Iterator[tuple[str, str]]:
    """(name, arguments as text) of each call in a text."""
    for match in CALL.finditer(said):
        depth, at = 1, match.end()
        while at < len(said) and depth:
            depth += {"(": 1, ")": -1}.get(said[at], 0)
            at += 1
        if not depth:
            yield match[1], said[match.end() : at - 1]


# What stands for what in hints that do not say whose function it is.
OF: dict[str, Any] = {
    "aicf": aicf, "nn": nn, "program": aicf.Program, "model": nn.Model, "batches": aicf.training.Batches, "spec": aicf.TensorSpec,
    "compile": aicf.compile, "fit": aicf.training.fit, "Model": nn.Model, "Batches": aicf.training.Batches, "Sequential": nn.Sequential,
    "DataParallel": aicf.distributed.DataParallel, "load_state_dict": aicf.Program.load_state_dict, "generate": aicf.generate,
    "state_dict": aicf.Program.state_dict, "run": aicf.Program.run, "select": aicf.select, "LlamaConfig": aicf.models.LlamaConfig,
    "x": (Value, Tensor), "explanation": None, "generator": Generator, "plan": aicf.ExecPlan,
}  # fmt: skip


OTHERS = {
    "emit",
    "aicf.from_torch",
    "model.save_pretrained",
    "model.export",
}  # declared, or other frameworks' own


def meant(name: str) -> tuple[Any, bool]:
    """(what a dotted name is, whether it is a method): LookupError if there is no such thing, TypeError if it is not aicf's."""
    head, *rest = name.split(".")
    if name in OTHERS or "X" in rest:
        raise TypeError(name)
    if name.startswith("program.plan."):
        head, rest = "plan", rest[1:]
    if head in ("ctx", "emit"):
        if len(rest) == 1 and rest[0] in OPS:
            return OPS[rest[0]], True
        found: Any = getattr(GraphEmitter, rest[0], None)
        if found is None:
            raise LookupError(name)
        return found, True
    if head not in OF:
        raise TypeError(name)
    found, method = OF[head], bool(rest) and head not in ("aicf", "nn")
    for part in rest:
        owners = found if isinstance(found, tuple) else (found,)
        owner = next((o for o in owners if hasattr(o, part)), None)
        if owner is None:
            if found is None:
                raise TypeError(name)
            raise LookupError(name)
        found = getattr(owner, part)
    if not rest and head in ("load_state_dict", "state_dict", "run"):
        method = True
    return found, method


def bound(what: Any, method: bool, arguments: str) -> None:
    """TypeError if a call can't have these arguments. `…` and `...` are any number of them."""
    text = arguments.replace("…", "...")
    try:
        call = ast.parse(f"f({text})", mode="eval").body
    except SyntaxError:
        return  # such as `(N, 32)`, prose in parentheses
    assert isinstance(call, ast.Call)
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return
    if what in OPS.values():
        if unknown := {k.arg for k in call.keywords} - {a.name for a in what.attrs} - what.operand_names:
            raise TypeError(f"no attributes {sorted(unknown)}")
        return
    if not callable(what):
        return
    parameters = inspect.signature(what)
    values = [None] * (method and not inspect.ismethod(what) and inspect.isfunction(what))
    open_ended = any(isinstance(a, ast.Constant) and a.value is ... for a in call.args)
    values += [None for a in call.args if not (isinstance(a, ast.Constant) and a.value is ...)]
    keywords = {k.arg: None for k in call.keywords}
    if open_ended:
        parameters.bind_partial(**keywords)
    else:
        parameters.bind_partial(*values, **keywords)


@pytest.mark.spec("D16")
def test_calls_in_hints_can_be_made():
    checked, wrong = 0, []
    for said, where in hints().items():
        for name, arguments in calls(said):
            try:
                what, method = meant(name)
                bound(what, method, arguments)
                checked += 1
            except LookupError:
                wrong.append(f"{where}: {name} is nowhere: {said}")
            except TypeError as error:
                if str(error) != name:
                    wrong.append(f"{where}: {name}({arguments}): {error}")
    assert not wrong, "\n".join(wrong)
    assert checked > 100


def test_names_in_hints_exist():
    wrong = []
    for said, where in hints().items():
        for path in re.findall(r"(?<![\w./'])(?:aicf|nn)(?:\.[A-Za-z_]\w*)+", said):
            head, *rest = path.split(".")
            found: Any = {"aicf": aicf, "nn": nn}[head]
            for part in rest:
                if part == "X":
                    break
                if part in ("jax", "torch", "onnx", "from_torch"):  # of frameworks that need not be there
                    break
                if not hasattr(found, part):
                    wrong.append(f"{where}: {path}: {said}")
                    break
                found = getattr(found, part)
    assert not wrong, "\n".join(wrong)


def options() -> dict[str, set[str]]:
    """Of each command."""
    commands = next(a for a in cli.parser()._actions if hasattr(a, "choices") and a.choices)
    return {name: {o for a in p._actions for o in a.option_strings} for name, p in commands.choices.items()}


def test_commands_options_files_and_settings_in_hints_exist():
    known, wrong = options(), []
    every = set().union(*known.values())
    settings = set(re.findall(r"^(AICF_\w+)", config.__doc__ or "", re.MULTILINE))
    for said, where in hints().items():
        for command in re.findall(r"(?<![\w.])aicf ([a-z]+)(?= |$|`|')", said):
            if command in known or re.search(rf"aicf {command} (?!-|FILE|X)", said):
                continue
            wrong.append(f"{where}: aicf {command}: {said}")
        ours = not re.search("pip|mpirun|docker|py-spy|sudo", said)
        wrong += [
            f"{where}: {o}: {said}"
            for o in re.findall(r"(?<!\S)--[a-z][a-z-]*", said)
            if ours and o not in every
        ]
        wrong += [
            f"{where}: {f}: {said}"
            for f in re.findall(r"(?:docs|examples)/[\w/.-]+\.(?:md|py)", said)
            if not (ROOT / f).exists()
        ]
        wrong += [f"{where}: {v}: {said}" for v in re.findall(r"\bAICF_[A-Z_]+\b", said) if v not in settings]
    assert not wrong, "\n".join(wrong)


def test_layers_in_hints_have_the_names_of_their_parameters():
    """`nn.Linear(inputs, outputs)`: names in the place of arguments are those of the parameters there."""
    wrong = []
    for said, where in hints().items():
        for name, arguments in calls(said):
            kind: Callable[..., Any] | None = (
                getattr(nn, name.removeprefix("nn."), None) if name.startswith("nn.") else None
            )
            if not (isinstance(kind, type) and issubclass(kind, Layer)) or not re.fullmatch(
                r"\w+(, \w+)*", arguments
            ):
                continue
            names = arguments.split(", ")
            if all(n.isidentifier() and n != "X" and n.islower() for n in names):
                there = list(inspect.signature(kind).parameters)
                if any(n not in there for n in names if len(n) > 1) and "input" in names[0]:
                    wrong.append(f"{where}: {name}({arguments}), parameters {there}")
    assert not wrong, "\n".join(wrong)
