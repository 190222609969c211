"""Random functions of a framework as data: arguments that follow from a seed, statements as text, and how a failure is shrunk.

`torch_functions.py` and `jax_functions.py` draw them. Each says in what names statements are read (`NAMES`), and makes arguments of
NumPy arrays.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
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


# --- drawing ----------------------------------------------------------------------------------------------------------


class Drawer:
    """Draws statements one after the other. A language says what an argument's value is (`value`), and adds the statements that it can
    evaluate (`add`)."""

    language: str

    def __init__(self, rng: np.random.Generator, dtype: str, extents: Sequence[int]) -> None:
        self.rng, self.dtype, self.seed = rng, dtype, int(rng.integers(2**31))
        self.extents = [int(n) for n in rng.choice(extents, 3)]
        self.given: list[Given] = []
        self.body: list[Statement] = []
        self.values: dict[str, Any] = {}

    def value(self, g: Given) -> Any:
        """An argument's value, or its type."""
        raise NotImplementedError

    def of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def fresh(self, shape: Any, kind: str = "float", below: int = 0, layout: str = "dense") -> str:
        """The name of a new argument."""
        g = Given(f"x{len(self.given)}", tuple(shape), kind, below, layout)
        self.given.append(g)
        self.values[g.name] = self.value(g)
        return g.name

    def record(self, text: str, value: Any) -> None:
        """A statement that was evaluated."""
        name = f"t{len(self.body)}"
        self.body.append(Statement(name, text, names_in(text)))
        self.values[name] = value

    def axis(self, x: str) -> int:
        """An axis of a value, from the front or from the back."""
        rank = max(self.values[x].ndim, 1)
        return int(self.rng.integers(-rank, rank))

    def like(self, x: str) -> str:
        """A value of the shape and type of x."""
        shape, dtype = self.values[x].shape, self.values[x].dtype
        return self.of([n for n, v in self.values.items() if v.shape == shape and v.dtype == dtype])

    def broadcast(self, x: str) -> str:
        """A new argument that broadcasts with x."""
        shape = self.values[x].shape
        drop = int(self.rng.integers(0, len(shape) + 1))
        return self.fresh(1 if self.rng.random() < 0.3 else d for d in shape[drop:])

    def steps(self, count: int) -> None:
        """Up to so many statements."""
        for _ in range(8 * count):
            if len(self.body) >= count:
                break
            self.step()

    def step(self) -> None:
        """Try to add one statement."""
        raise NotImplementedError

    def function(self, gradient: float, whole: float = 0.0, inner: float = 0.0) -> Function | None:
        """The function, which returns what no statement reads. The numbers are probabilities: of gradients, of taking every op, of
        returning a value that is read, too."""
        read = {n for s in self.body for n in s.reads}
        returned = tuple(s.name for s in self.body if s.name not in read)
        others = [s.name for s in self.body if s.name in read]
        if others and self.rng.random() < inner:
            returned += (str(self.rng.choice(others)),)
        flags = [bool(self.rng.random() < p) for p in (gradient, whole)]
        drawn = Function(
            self.language, self.dtype, tuple(self.given), tuple(self.body), returned, *flags, self.seed
        )
        return drawn.having(drawn.body, returned)


# --- comparing --------------------------------------------------------------------------------------------------------


def outcome(f: Callable[[], Any]) -> Any:
    """What a call returns; the text of what it raises."""
    try:
        return f()
    except Exception as error:
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"


def compared(got: Any, want: Any, exact: Any, by: str, difference: Callable[..., str | None]) -> str | None:
    """How two outcomes differ: in what they raise, or in a value, by name. Where the framework raises, aicf has to."""
    if isinstance(want, str):
        return None if isinstance(got, str) else f"raises: {want} {by}, and nothing by aicf"
    if isinstance(got, str):
        return f"raises: {got}"
    exact = want if isinstance(exact, str) else exact  # what float64 lacks is compared without rounding
    for name, a, b, e in zip(want, got.values(), want.values(), exact.values()):
        if said := difference(a, b, e):
            return f"{name}: {said}"
    return None


def off(a: np.ndarray, b: np.ndarray, exact: np.ndarray, eps: float, tiny: float) -> str | None:
    """Where a result is further from the framework's than ten times the framework's from float64's, and some ulps of the greatest. All are
    in float64; eps is 0 for what is no float.
    """
    agreed = (b == exact) | np.isnan(b) & np.isnan(exact)
    allowed = 0.0
    if eps:
        finite = np.isfinite(b) & np.isfinite(exact)
        noise = float(np.abs(b - exact)[finite].max(initial=0.0))
        allowed = 10 * noise + eps * float(np.abs(b)[finite].max(initial=0.0)) + tiny
        agreed |= finite
    with np.errstate(invalid="ignore"):
        bad = agreed & ~(np.abs(a - b) <= allowed) & ~((a == b) | np.isnan(a) & np.isnan(b))
    if not bad.any():
        return None
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{list(at)} is {a[at]:.9g}, expected {b[at]:.9g} within {allowed:.3g}; {int(bad.sum())} of {bad.size} differ"


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
