"""References of ops against PyTorch's functions of the same name, in float64: an oracle by other authors.

An op enrols if torch, torch.special or torch.nn.functional has its name, and the function takes its operands and attributes (`axis` and
`axes` as `dim`, `keepdims` as `keepdim`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from aicf.ops.schema import OpSchema
from aicf.types import DType

from . import ops
from .bounds import bounds, differs
from .ops import OpCase
from .seeds import seeded

NAME, DEVICES = "references", ("cpu",)
SPACES = torch, torch.special, F
NAMES = {"axis": "dim", "axes": "dim", "keepdims": "keepdim"}
WRITTEN = {  # the same op by another name or with another default
    "gelu": lambda x: x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)), "gelu_erf": lambda x: x / 2 * torch.erfc(-x / math.sqrt(2)), "rem": torch.fmod, "mod": torch.remainder, "erf_inv": torch.erfinv,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"), "trunc_divide": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "is_finite": torch.isfinite, "hard_swish": F.hardswish, "hard_sigmoid": F.hardsigmoid, "reduce_sum": torch.sum, "reduce_mean": torch.mean,
    "reduce_max": torch.amax, "reduce_min": torch.amin, "shift_left": torch.bitwise_left_shift, "shift_right_arithmetic": torch.bitwise_right_shift,
    "clamp": lambda low, x, high: torch.clamp(x, low, high), "select": torch.where, "power": torch.pow, "reverse": torch.flip, "transpose": torch.permute,
    "reduce_var": torch.var, "reduce_std": torch.std, "softplus": lambda x, beta: torch.logaddexp(beta * x, torch.zeros_like(x)) / beta,
    "cummax": lambda x, axis, reverse: _scanned(torch.cummax, x, axis, reverse)[0], "cummin": lambda x, axis, reverse: _scanned(torch.cummin, x, axis, reverse)[0],
}  # fmt: skip
OTHER = {
    "concatenate",
    "stack",
    "einsum",
    "unfold",
    "fold",
    "dropout",
    "copy",
    "broadcast_in_dim",
    "round_half_away",
    "scatter",
    "square",
    "threshold",
    "sort",
    "argsort",
    "outer",
}


def _scanned(f: Any, x: torch.Tensor, axis: int, reverse: bool) -> Any:
    if not reverse:
        return f(x, axis)
    return tuple(t.flip(axis) for t in f(x.flip(axis), axis))


def function(schema: OpSchema) -> Any:
    """PyTorch's function, or None."""
    if schema.name in WRITTEN:
        return WRITTEN[schema.name]
    if schema.name in OTHER or schema.variadic:
        return None
    return next((getattr(s, schema.name) for s in SPACES if callable(getattr(s, schema.name, None))), None)


def enrolled() -> list[OpSchema]:
    """Ops whose name is a function's."""
    return [s for s in ops.enrolled() if function(s) is not None]


def draw(rng: np.random.Generator, where: str = "cpu", op: str | None = None) -> OpCase | None:
    """A case of f64, or of integers, dense."""
    case = ops.draw(rng, where, op or enrolled()[rng.integers(len(enrolled()))].name)
    if case is None:
        return None
    if dict(case.attrs).get("correction", 0) < 0:
        return None  # PyTorch has another opinion of empty rows there
    case = replace(case, layouts=("dense",) * len(case.types), results="dense", over=False)
    return case if wanted(case) is not None else None


def _arrays(case: OpCase) -> list[np.ndarray | None]:
    arrays = [None if o is None else np.array(o.array) for o in case.operands()]
    return [a if a is None or DType.of(a.dtype).kind != "float" else a.astype(np.float64) for a in arrays]


def wanted(case: OpCase) -> list[np.ndarray] | None:
    """What PyTorch computes; None where it does not take the case."""
    attrs = dict(case.schema.values(case.pack()))
    given = [None if a is None else torch.from_numpy(a) for a in _arrays(case)]
    renamed = {NAMES.get(k, k): v for k, v in attrs.items()}
    for how in ({**renamed, "reduction": "none"}, renamed, attrs):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made = function(case.schema)(*given, **how)
        except Exception:
            continue
        made = made if isinstance(made, tuple) else (made,)
        if all(isinstance(y, torch.Tensor) and not y.is_complex() for y in made):
            return [y.numpy() for y in made]
    return None


def check(case: OpCase, where: str = "cpu") -> str | None:
    """Where the reference differs from PyTorch by more than float64's rounding."""
    arrays, pack, schema = _arrays(case), case.pack(), case.schema
    want, got = wanted(case), schema.call_reference(arrays, pack)
    types = [s.dtype if s.dtype.kind != "float" else DType.f64 for s in case.inferred()]
    reference = lambda a: schema.call_reference(a, pack)  # noqa: E731
    allowed = bounds(reference, arrays, got, types, 2.0**-48, seeded(case.seed, "moves"))
    for n, (a, b, e, t) in enumerate(zip(got, want or [], allowed, types)):
        if a.size != b.size:
            return f"shape {a.shape}, PyTorch's is {b.shape}"
        b = b.reshape(a.shape).astype(
            a.dtype
        )  # axes of one element are kept or not; PyTorch sums integers in i64
        bad = differs(a, b, e + 1e-300, t)
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            operands = ", ".join(f"{x[at]:.9g}" for x in arrays if x is not None and x.shape == b.shape)
            return f"result {n}{list(at)} of ({operands}) is {a[at]:.12g}, PyTorch's {b[at]:.12g}; {int(bad.sum())} of {bad.size} differ"
    return None


def smaller(case: OpCase) -> Iterator[OpCase]:
    """As of ops, where PyTorch takes the case."""
    return (c for c in ops.smaller(case) if wanted(c) is not None)


def script(case: OpCase, where: str = "cpu") -> str:
    """The reference and PyTorch's results on the operands."""
    arrays = "".join(
        f"    {None if a is None else f'np.array({a.tolist()!r}, {a.dtype.name!r}).reshape({a.shape})'},\n"
        for a in _arrays(case)
    )
    return f"""import numpy as np

from aicf.ops.schema import schema_of

nan, inf = np.nan, np.inf
operands = [
{arrays}]
op = schema_of({case.op!r})
print("got", op.call_reference(operands, op.pack({dict(case.pack())!r})))
print("PyTorch's", {[w.tolist() for w in wanted(case) or []]!r})
"""
