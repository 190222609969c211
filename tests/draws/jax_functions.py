"""Random functions of JAX's, through aicf.jax.jit, against jax.jit: results and their types, gradients. NumPy's float64 is JAX's with x64, in
which the same function says how much rounding makes of a difference."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import numpy as np

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from .functions import Drawer, Function, Given, compared, numbers, off, outcome, smaller

__all__ = ["NAME", "NAMES", "argument", "check", "draw", "script", "smaller"]

NAME, DEVICES = "jax", ("cpu",)
NAMES = {"jax": jax, "jnp": jnp}
TYPES = "float32", "float16", "bfloat16"
EXTENTS = 1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 0
LARGEST = 3000


def argument(g: Given, dtype: str, seed: int) -> Any:
    """An argument, of this type where it is a number."""
    values = np.asarray(numbers(g, seed))
    if g.kind == "index":
        return jnp.asarray(values, jnp.int32)
    return jnp.asarray(values) if g.kind == "mask" else jnp.asarray(values, dtype)


def typed(g: Given, dtype: str) -> Any:
    """The type of an argument."""
    return jax.ShapeDtypeStruct(g.shape, {"index": jnp.int32, "mask": jnp.bool_}.get(g.kind, dtype))


def traced(text: str, values: dict[str, Any]) -> Any:
    """The type of what a text makes; None where JAX refuses it, or it is no array. Nothing is computed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = jax.eval_shape(lambda known: eval(text, {**NAMES, **known}), values)
    except Exception:
        return None
    return made if isinstance(made, jax.ShapeDtypeStruct) else None


def value_of(case: Function, name: str) -> Any:
    """The type of a value of a function; None where it does not trace."""
    values: dict[str, Any] = {g.name: typed(g, case.dtype) for g in case.given}
    for s in case.body:
        values[s.name] = traced(s.text, values)
        if values[s.name] is None:
            return None
    return values.get(name)


def unary() -> list[str]:
    """Functions of jax.numpy and jax.nn that may take one array."""
    spaces = ((jnp, "jnp"), (jax.nn, "jax.nn"))
    return [
        f"{text}.{name}" for space, text in spaces for name in sorted(dir(space))
        if callable(getattr(space, name)) and not name.startswith("_") and name not in LEFT_OUT and name[0].islower()
    ]  # fmt: skip


LEFT_OUT = {
    "save", "savez", "load", "empty", "empty_like", "printoptions", "set_printoptions", "get_printoptions",
    "fromfile", "frombuffer", "from_dlpack", "initializers",
}  # fmt: skip


class _Drawer(Drawer):
    language = "jax_functions"

    def value(self, g: Given) -> Any:
        return typed(g, self.dtype)

    def pick(self) -> str:
        found = [n for n, v in self.values.items() if str(v.dtype) == self.dtype]
        return self.of(found[-4:])

    def add(self, text: str) -> None:
        """A statement, if JAX can trace it."""
        value = traced(text, self.values)
        complex_ = value is not None and jnp.issubdtype(value.dtype, jnp.complexfloating)
        if value is not None and value.size <= LARGEST and value.ndim <= 5 and not complex_:
            self.record(text, value)

    def step(self) -> None:
        x = self.pick()
        shape = list(self.values[x].shape)
        rank = len(shape)
        d, n, like = self.axis(x), self.of(self.extents), self.like(x)
        y = like if self.rng.random() < 0.5 else self.broadcast(x)
        f = self.of(unary())
        texts = [
            f"{f}({x})",
            f"{f}({x}, {y})",
            f"{f}({x}, axis={d})",
            f"{f}({x}, axis={d}, keepdims=True)",
            f"{f}({x}, {self.of([0.5, 2, -1, 0])})",
        ] * 2
        texts += [
            f"{x} + {y}", f"{x} * {y}", f"{x} - {y}", f"{x} / (1 + {y} * {y})", f"{x} ** 2", f"jnp.where({x} > {y}, {x}, {self.of([0.0, -1.5])})",
            f"{x}.transpose({self.rng.permutation(rank).tolist()})", f"{x}.reshape(-1)", f"{x}[..., ::-1]", f"{x}[1:]", f"{x}[..., ::2]", f"jnp.pad({x}, 1)",
            f"jax.lax.dynamic_slice({x}, {[1] * rank}, {[max(s - 1, 0) for s in shape]})", f"jnp.concatenate([{x}, {like}], {d})",
            f"jax.lax.broadcast_in_dim({x}, {[n, *shape]}, {list(range(1, rank + 1))})", f"jnp.expand_dims({x}, {d})",
            f"jax.nn.softmax({x}, axis={d})", f"jax.nn.log_softmax({x}, {d})", f"{x}.sum({d})", f"{x}.mean({d}, keepdims=True)", f"{x}.max({d})", f"{x}.var({d})",
            f"jax.nn.logsumexp({x}, axis={d})", f"jax.lax.stop_gradient({x})", f"({x} - {x}.mean({d}, keepdims=True)) / jnp.sqrt({x}.var({d}, keepdims=True) + 1e-5)",
        ]  # fmt: skip
        if rank > 1:
            w = self.fresh((shape[-1], n))
            texts += [
                f"{x} @ {w}",
                f"jnp.einsum('...ij,jk->...ik', {x}, {w})",
                f"jax.lax.dot_general({x}, {w}, ((({rank - 1},), (0,)), ((), ())))",
            ] * 3
        if rank and shape[d]:
            i = self.fresh((self.of([1, 2, 3]),), "index", shape[d])
            texts += [
                f"jnp.take({x}, {i}, axis={d})",
                f"{x}.at[{i} % {max(shape[0], 1)}].add(1)",
                f"jnp.cumsum({x}, {d})",
                f"jax.nn.one_hot({i}, {shape[d]}, dtype={x}.dtype)",
            ] * 2
        self.add(self.of(texts))


def draw(rng: np.random.Generator, where: str = "cpu") -> Function | None:
    """A function of up to 10 statements."""
    drawer, count = (
        _Drawer(rng, str(rng.choice(TYPES, p=[0.7, 0.15, 0.15])), EXTENTS),
        int(rng.integers(1, 11)),
    )
    drawer.fresh(drawer.of(drawer.extents) for _ in range(int(rng.integers(0, 4))))
    drawer.steps(count)
    return drawer.function(gradient=0.5)


def check(case: Function, where: str = "cpu") -> str | None:
    """What differs from jax.jit by more than ten times what jax.jit differs from float64."""
    import aicf

    f = case.function()
    call = _with_gradients(f, case) if case.gradient else f
    want = outcome(partial(results, jax.jit(call), case.arguments()))
    with jax.enable_x64(True):
        exact = outcome(partial(results, jax.jit(call), case.arguments("float64")))
    got = outcome(partial(results, aicf.jax.jit(call), case.arguments()))
    return compared(got, want, exact, "by jax.jit", difference)


def results(f: Any, args: list[Any]) -> dict[str, np.ndarray]:
    """Results by name, gradients among them."""
    return {f"result {n}": np.asarray(y) for n, y in enumerate(f(*args))}


def _with_gradients(f: Any, case: Function) -> Any:
    """The function with the gradient of a weighted sum of its results, for its float arguments."""
    floats = tuple(n for n, g in enumerate(case.given) if g.kind == "float")

    def total(*args: Any) -> Any:
        made = [y for y in f(*args) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum(
            (jnp.sum(y * jnp.linspace(0.5, 1.5, y.size, dtype=y.dtype).reshape(y.shape)) for y in made),
            jnp.zeros((), args[floats[0]].dtype),
        )

    return lambda *args: (*f(*args), *jax.grad(total, floats)(*args)) if floats else f(*args)


def difference(got: np.ndarray, want: np.ndarray, exact: np.ndarray) -> str | None:
    """Of one array."""
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    a, b, e = (x.astype(np.float64) for x in (got, want, exact))
    if not jnp.issubdtype(want.dtype, jnp.floating):
        return off(a, b, e, 0.0, 0.0)
    info = jnp.finfo(want.dtype)
    return off(a, b, e, 8 * float(info.eps), float(info.tiny))


def script(case: Function, where: str = "cpu") -> str:
    """The function, by aicf.jax.jit and by jax.jit."""
    given = "".join(f"    {_text(g, case)},\n" for g in case.given)
    floats = tuple(n for n, g in enumerate(case.given) if g.kind == "float")
    call = (
        f"lambda *args: (*f(*args), *jax.grad(total, {floats})(*args))" if case.gradient and floats else "f"
    )
    return f"""import jax
import jax.numpy as jnp

import aicf

nan, inf = jnp.nan, jnp.inf

{case.source()}

def total(*args):
    made = [y for y in f(*args) if jnp.issubdtype(y.dtype, jnp.floating)]
    return sum(jnp.sum(y * jnp.linspace(0.5, 1.5, y.size, dtype=y.dtype).reshape(y.shape)) for y in made)


given = [
{given}]
call = {call}
for got, want in zip(aicf.jax.jit(call)(*given), jax.jit(call)(*given)):
    print("got", got, "expected", want)
"""


def _text(g: Given, case: Function) -> str:
    x = argument(g, case.dtype, case.seed)
    return f"jnp.array({x.tolist()!r}, {str(x.dtype)!r}).reshape({x.shape})"
