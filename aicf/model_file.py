"""The model in a file, as `aicf explain FILE` and `aicf tune FILE` take it.

FILE.onnx is read. Of a Python file, FILE or FILE:NAME, the file is run once, as `python FILE` would but not as `__main__`; then there are two ways to have a model:

    a function build() -> Model, and to train it loss() and optimizer(); examples/mlp.py
    a Model at module level, or a Program that `aicf.compile` made of one, whatever it is called

A program brings its mode, loss, optimizer, precision and numerics. Of several models NAME picks one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import AicfError
from .frontends import onnx
from .graph.emit.policy import Policy
from .graph.run.program import Program
from .nn import Model
from .types import Precision

NEEDED = {"infer": (), "grad": ("loss",), "train": ("loss", "optimizer")}
EXAMPLES = {"loss": "nn.SoftmaxCrossEntropy()", "optimizer": "nn.AdamW(lr=1e-3)"}
BUILD = "build"


@dataclass(frozen=True)
class Asked:
    """What to explain or tune; the fields are parameters of `compile`."""

    model: Any
    mode: str = "infer"
    loss: Any = None
    optimizer: Any = None
    accumulate: int = 1
    precision: Precision | str = Precision.exact
    numerics: str | None = None
    policy: Policy | str = "f32"
    invariant: bool = False


def load(place: str, mode: str | None = None, sizes: Mapping[str, int] | None = None, **wanted: Any) -> Asked:
    """The model of FILE or FILE:NAME, with the loss and optimizer that the mode needs.

    mode    None is the program's own; "infer" where there is none
    sizes   of an ONNX model's dimensions that have names
    wanted  precision, numerics, policy, invariant; None leaves them as the program has them
    """
    if is_onnx(place):
        return _onnx(place, mode, sizes or {}, {k: v for k, v in wanted.items() if v is not None})
    if sizes:
        raise AicfError(
            f"{place} says its sizes itself: --size is for ONNX models",
            hint="nn.Model(inputs, layer, batch=8)",
        )
    path, name = _split(place)
    module = _run(path)
    made = {n: value for n, value in vars(module).items() if isinstance(value, (Model, Program))}
    function = getattr(module, name or BUILD, None)
    if name in made:
        asked = _asked(made, name, mode)
    elif inspect.isfunction(function):
        asked = Asked(_built(path, name or BUILD, function))
    elif name is not None or not made:
        raise _not_found(path, name, made)
    else:
        asked = _asked(made, _only(path, made), mode)
    if mode not in (None, asked.mode):
        kept = {part: getattr(asked, part) for part in NEEDED[mode]}
        asked = Asked(
            asked.model,
            mode,
            **kept,
            precision=asked.precision,
            numerics=asked.numerics,
            policy=asked.policy,
            invariant=asked.invariant,
        )
    lacking = [part for part in NEEDED[asked.mode] if getattr(asked, part) is None]
    parts = {part: _part(path, module, part, asked.mode) for part in lacking}
    return replace(asked, **parts, **{k: v for k, v in wanted.items() if v is not None})


def is_onnx(place: str) -> bool:
    return place.lower().endswith(".onnx")


def _onnx(place: str, mode: str | None, sizes: Mapping[str, int], wanted: dict[str, Any]) -> Asked:
    if mode not in (None, "infer"):
        raise AicfError(
            f"{place} has no loss, which mode {mode} needs", expected="mode infer",
            hint=f"in Python: aicf.from_onnx({place!r}, mode={mode!r}, loss=…)",
        )  # fmt: skip
    return Asked(onnx.load(place, sizes=sizes), **wanted)


def _split(place: str) -> tuple[str, str | None]:
    path, colon, name = place.rpartition(":")
    if colon and name.isidentifier() and not Path(place).is_file():
        return path, name
    return place, None


def _run(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        what = f"{path!r} is a folder" if file.is_dir() else f"there is no file {path!r}"
        raise AicfError(
            what, expected="a Python file with a model in it, or FILE.onnx", hint="aicf examples lists some"
        )
    name = f"aicf_model_{file.stem}"  # json.py must not become Python's json
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise AicfError(f"{path} is no Python file", expected="a name that ends in .py or .onnx")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _as_a_script(file):
        call(path, partial(spec.loader.exec_module, module))
    return module


@contextlib.contextmanager
def _as_a_script(file: Path) -> Iterator[None]:
    """Its folder's modules can be imported, its arguments are its own, and what it prints is not the command's output."""
    arguments, sys.argv = sys.argv, [str(file)]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.argv = arguments


def call(path: str, function: Callable[[], Any]) -> Any:
    """Run the user's code; what goes wrong in it becomes an error that names its file and line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return function()
    except AicfError:
        raise
    except (Exception, SystemExit) as error:
        lines = [
            f.lineno
            for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).name == Path(path).name
        ]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
        hint = 'what ends the process belongs under `if __name__ == "__main__":`'
        raise AicfError(
            f"{path} failed: {type(error).__name__}: {error}", where=f"{path}:{line}" if line else path,
            hint=hint if isinstance(error, SystemExit) else None,
        ) from error  # fmt: skip


def _built(path: str, name: str, function: Callable[[], Any]) -> Model:
    model = call(path, function)
    if not isinstance(model, Model):
        raise AicfError(f"{path}: {name}() returned a {type(model).__name__}", expected="an aicf.nn.Model")
    return model


def _part(path: str, module: ModuleType, part: str, mode: str) -> Any:
    """A loss or an optimizer that the file defines: a function that makes it, or the object."""
    found = getattr(module, part, None)
    if hasattr(found, "emit"):
        return found
    if not inspect.isfunction(found):
        raise AicfError(
            f"{path} defines no {part}(), which mode {mode} needs",
            expected=f"def {part}(): return {EXAMPLES[part]}",
            hint=f"or a program at module level that aicf.compile made in mode {mode!r}",
        )
    return call(path, found)


def _asked(made: dict[str, Any], name: str, mode: str | None) -> Asked:
    """A model with what the programs made of it say; a program, as it was compiled."""
    value = made[name]
    if isinstance(value, Program):
        return _of_program(value)
    programs = [p for p in made.values() if isinstance(p, Program) and _made_of(p, value)]
    if not programs:
        return Asked(value)
    modes = tuple(reversed(NEEDED))  # train says the most
    best = min(programs, key=lambda p: (p.mode != mode, modes.index(p.mode)))
    return replace(_of_program(best), model=value)


def _of_program(program: Program) -> Asked:
    recipe = program.recipe
    regions = program.compiled().regions
    invariant = any(region.spec.invariant for region in regions)
    strict = not invariant and any(region.spec.strict for region in regions)
    return Asked(
        recipe.model, recipe.mode, recipe.loss, recipe.optimizer, recipe.accumulate, recipe.precision,
        "strict" if strict else None, recipe.policy, invariant,
    )  # fmt: skip


def _made_of(program: Program, model: Model) -> bool:
    """A program has a copy of its model, made of the same layers."""
    return _layers(program.recipe.model) == _layers(model)


def _layers(model: Any) -> list[int]:
    if not isinstance(model, Model):
        return [id(model)]
    return [id(layer) for _, layer in model.layers] if model.layer is None else [id(model.layer)]


def _only(path: str, made: dict[str, Any]) -> str:
    """The name of the one model there is; a program stands for its model where that has no name."""
    names: dict[tuple[int, ...], str] = {}
    for name, value in sorted(made.items(), key=lambda item: isinstance(item[1], Program)):
        names.setdefault(tuple(_layers(value.recipe.model if isinstance(value, Program) else value)), name)
    if len(names) > 1:
        raise AicfError(
            f"{path} has {len(names)} models", expected=f"{path}:NAME", details=_listed(path, made),
            hint=f"aicf explain {path}:{next(iter(names.values()))}",
        )  # fmt: skip
    (name,) = names.values()
    if not isinstance(made[name], Program):
        return name
    modes = tuple(reversed(NEEDED))  # of a model's programs, the one that says the most
    return min(made, key=lambda n: modes.index(made[n].mode))


def _listed(path: str, made: dict[str, Any]) -> list[str]:
    return [
        f"{path}:{name}   "
        + (f"a program, mode {value.mode}" if isinstance(value, Program) else f"{len(value.layers)} layers")
        for name, value in made.items()
    ]


def _not_found(path: str, name: str | None, made: dict[str, Any]) -> AicfError:
    if name is not None:
        return AicfError(
            f"{path} has no model called {name!r}",
            expected="a Model, a Program, or a function that returns a Model", details=_listed(path, made),
            hint=f"aicf explain {path}" if made else None,
        )  # fmt: skip
    return AicfError(
        f"{path} has no model",
        expected="a Model or a compiled Program at module level, or def build() -> aicf.nn.Model",
        hint='what is inside a function, or under `if __name__ == "__main__":`, is not looked at; '
        "aicf examples lists files that work",
    )
