"""Gradient rules of drawn ops, run op by op in float64, against difference quotients along random directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from aicf.ops.schema import OpSchema
from aicf.types import AttrPack, DType

from . import ops
from .ops import OpCase
from .seeds import seeded

NAME = "gradients"
STEPS = 1e-5, 2e-6
# a rounding is a staircase, whose rule passes the gradient; what is stopped has one that does not pass
NO_SLOPE = {"convert", "stop_gradient", "straight_through"}
CONSTANT = {
    ("resample", "weights"),
    ("resample", "back_weights"),
}  # operands that are constants, by what the op says


def enrolled() -> list[OpSchema]:
    """Ops with a gradient rule that is their slope."""
    return [s for s in ops.enrolled() if s.gradient_fn is not None and s.name not in NO_SLOPE]


def draw(rng: np.random.Generator, where: str = "cpu", op: str | None = None) -> OpCase | None:
    """A case of f32 operands where the op takes them, dense and with plain values."""
    case = ops.draw(rng, where, op or enrolled()[rng.integers(len(enrolled()))].name)
    if case is None:
        return None
    types = tuple(DType.f32 if t and t.kind == "float" else t for t in case.types)
    case = replace(
        case, types=types, layouts=("dense",) * len(types), results="dense", over=False, values="plain"
    )
    return case if case.fits() else None


def check(case: OpCase, where: str = "cpu") -> str | None:
    """Where a gradient differs from a difference quotient, and both quotients agree with each other."""
    from ops.numpy_emitter import call_gradient

    schema, pack, rng = case.schema, case.pack(), seeded(case.seed, "directions")
    arrays = [None if o is None else np.array(o.array) for o in case.operands()]
    arrays = [a if a is None or a.dtype != np.float32 else a.astype(np.float64) for a in arrays]
    with np.errstate(all="ignore"):
        results = schema.call_reference(arrays, pack)
        float_ = [r.dtype == np.float64 for r in results]
        weights = [
            rng.normal(size=r.shape) if f else None for r, f in zip(results[: schema.public or None], float_)
        ]
        if not any(float_) or not all(np.isfinite(r).all() for r in results):
            return None
        grads = call_gradient(schema, arrays, results, weights, pack)
    for position, (array, grad) in enumerate(zip(arrays, grads)):
        name = schema.declared(len(arrays))[position].name
        if array is None or array.dtype != np.float64 or (schema.name, name) in CONSTANT:
            continue
        grad = np.zeros(array.shape) if grad is None else grad
        if grad.shape != array.shape:
            return f"gradient of {name} has shape {grad.shape}, expected {array.shape}"
        if schema.guard_fn is not None and np.isnan(grad).any():
            continue  # of an index that a graph's guard refuses
        if array.size and (said := _along(schema, pack, arrays, weights, position, grad, rng)):
            return f"gradient of {name}: {said}"
    return None


def _along(
    schema: OpSchema, pack: AttrPack, arrays: list, weights: Sequence, position: int, grad: np.ndarray, rng: np.random.Generator
) -> str | None:  # fmt: skip
    """What is wrong along some directions: one of all elements, three of a few."""
    array = arrays[position]
    for share in (1.0, *[2 / array.size] * 3):
        direction = rng.normal(size=array.shape) * (rng.random(array.shape) < share)
        found, scale = [], 0.0
        for step in STEPS:
            values = []
            for sign in (1, -1):
                moved = [*arrays[:position], array + sign * step * direction, *arrays[position + 1 :]]
                made = schema.call_reference(moved, pack)
                terms = [w * r for w, r in zip(weights, made) if w is not None]
                values.append(sum(float(t.sum()) for t in terms))
                scale = max([scale, *(float(np.abs(t).sum()) for t in terms)])
            found.append((values[0] - values[1]) / (2 * step))
        want, got = found[1], float((grad * direction).sum())
        allowed = (
            1e-5 * (abs(want) + float(np.abs(grad * direction).sum())) + 1e-9 * scale / STEPS[1] * 1e-3 + 1e-7
        )
        if abs(found[0] - found[1]) > allowed or not np.isfinite(want):
            continue  # a kink between the points
        if not abs(got - want) <= 3 * allowed:
            return f"{got:.9g} along a direction, expected {want:.9g} within {3 * allowed:.3g}"
    return None


def smaller(case: OpCase) -> Iterator[OpCase]:
    """As of ops."""
    return ops.smaller(case)


def script(case: OpCase, where: str = "cpu") -> str:
    """The check, by its module: gradient rules run in the tests' emitter."""
    return f"""import sys

sys.path[:0] = ["tests", "tests/ops"]  # from the root of the repository
from draws import gradients
from draws.ops import OpCase

from aicf.types import DType

f32, f16, bf16, i32, i64, bool_ = (DType[n] for n in ("f32", "f16", "bf16", "i32", "i64", "bool"))
{_names()}
print(gradients.check({case!r}))
"""


def _names() -> str:
    return "\n".join(f"{t.name} = DType.{t.name}" for t in DType if t.name != "bool")
