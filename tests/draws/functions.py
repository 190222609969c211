"""Random functions of a framework as data: arguments that follow from a seed, statements as text, and how a failure is shrunk.

`torch_functions.py` and `jax_functions.py` draw them. Each says in what names statements are read (`NAMES`), and makes arguments of
NumPy arrays.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Given:
    """An argument: numbers, indices below `below`, or a mask."""

    name: str
    shape: tuple[int, ...]
    kind: str = "float"
    below: int = 0
    layout: str = "dense"


@dataclass(frozen=True)
class Statement:
    """`name = text`; the text names earlier values."""

    name: str
    text: str
    reads: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function of arguments that follow from a seed.

    language  the module here that drew it
    whole     every op that has a rule and a kernel is taken, be it faster or not
    """

    language: str
    dtype: str
    given: tuple[Given, ...]
    body: tuple[Statement, ...]
    returned: tuple[str, ...]
    gradient: bool
    whole: bool
    seed: int

    def source(self) -> str:
        lines = [f"    {s.name} = {s.text}" for s in self.body]
        names = ", ".join(g.name for g in self.given)
        return "\n".join([f"def f({names}):", *lines, f"    return {', '.join(self.returned)},\n"])

    @property
    def module(self) -> Any:
        return importlib.import_module(f"{__package__}.{self.language}")

    def function(self) -> Any:
        made = dict(self.module.NAMES)
        exec(self.source(), made)
        return made["f"]

    def arguments(self, dtype: str = "") -> list[Any]:
        """The arguments, of the function's type or of another."""
        return [self.module.argument(g, dtype or self.dtype, self.seed) for g in self.given]

    def value_of(self, name: str) -> Any:
        """What a statement makes, or its type; None where the function does not run."""
        if hasattr(self.module, "value_of"):
            return self.module.value_of(self, name)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return replace(self, returned=(name,)).function()(*self.arguments())[0]
        except Exception:
            return None

    def having(self, body: tuple[Statement, ...], returned: tuple[str, ...]) -> Function | None:
        """With these statements, and the arguments that they read; None if it does not run."""
        reads = {name for s in body for name in s.reads} | set(returned)
        known = {g.name for g in self.given} | {s.name for s in body}
        given = tuple(g for g in self.given if g.name in reads)
        if not returned or not given or not reads <= known:
            return None
        made = replace(self, given=given, body=body, returned=returned)
        return made if made.runs() else None

    def runs(self) -> bool:
        return self.value_of(self.returned[0]) is not None

    def __str__(self) -> str:
        return f"{'; '.join(f'{s.name} = {s.text}' for s in self.body)} of {self.dtype}, returns {', '.join(self.returned)}"


def numbers(g: Given, seed: int) -> np.ndarray:
    """An argument's numbers, which f16 and bf16 have exactly."""
    rng = np.random.default_rng([seed, *g.name.encode()])
    if g.kind == "index":
        return rng.integers(0, max(g.below, 1), g.shape)
    if g.kind == "mask":
        return rng.random(g.shape) < 0.5
    values = np.rint(np.asarray(rng.normal(size=g.shape)) * 32) / 32
    return np.abs(values) + 0.5 if g.kind == "positive" else values


def names_in(text: str) -> tuple[str, ...]:
    """The values that a text names."""
    return tuple(dict.fromkeys(re.findall(r"\b[xt]\d+\b", text)))


# --- shrinking --------------------------------------------------------------------------------------------------------


def smaller(case: Function) -> Iterator[Function]:
    """With fewer results, fewer statements, without gradients, smaller arguments, plain layouts."""
    options = [replace(case, gradient=False)] if case.gradient else []
    options += [
        c for n in case.returned if (c := case.having(case.body, tuple(r for r in case.returned if r != n)))
    ]
    for n in range(len(case.body) - 1, -1, -1):
        gone = {case.body[n].name}
        kept = []
        for s in case.body:
            if s.name in gone or gone & set(s.reads):
                gone.add(s.name)
            else:
                kept.append(s)
        returned = tuple(r for r in case.returned if r not in gone) or tuple(s.name for s in kept[-1:])
        options.append(case.having(tuple(kept), returned))  # type: ignore[arg-type]
        value = case.value_of(case.body[n].name)
        if str(getattr(value, "dtype", "")).endswith(case.dtype):
            given = Given(case.body[n].name, tuple(value.shape))
            body = (*case.body[:n], *case.body[n + 1 :])
            replaced = replace(case, given=(*case.given, given))
            options.append(replaced.having(body, tuple(r for r in case.returned if r != given.name)))  # type: ignore[arg-type]
    for n, g in enumerate(case.given):
        for other in (replace(g, layout="dense"), *(replace(g, shape=s) for s in fewer(g.shape))):
            if other != g:
                made = replace(case, given=(*case.given[:n], other, *case.given[n + 1 :]))
                options.append(made if made.runs() else None)  # type: ignore[arg-type]
    yield from (o for o in options if o is not None and o != case)


def fewer(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for axis, d in enumerate(shape):
        for value in {1, 2, d // 2} - {d, 0}:
            if value < d:
                yield (*shape[:axis], value, *shape[axis + 1 :])
