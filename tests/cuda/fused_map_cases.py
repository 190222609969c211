"""Regions of several ops for the kernels that are composed of them: maps, reductions between maps, independent maps.

Small ones, for numba's simulator and for every compiler target; LARGE has the same at sizes that fill a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from kernel_cases import Case, Operands, desc, fused

from aicf.ops.schema import schema_of
from aicf.rows import RegionOp, RegionSpec
from aicf.types import DType, bf16, f16, f32, i8, i32, i64, u8

FLAT, VECTOR, STRIDED, ROWS = (
    f"cuda.elementwise_{name}.v1" for name in ("flat", "vector", "strided", "rows")
)
REDUCE_ROWS, REDUCE_COLUMNS, REDUCE_NAIVE = (
    f"cuda.reduce_{name}.v2" for name in ("rows", "columns", "naive")
)
MULTI, TABLE = "cuda.multi_map.v1", "cuda.multi_map_table.v1"
TOLERANCE = {f32: 1e-5, f16: 4e-3, bf16: 3e-2}

# --- maps -------------------------------------------------------------------------------------------------------------


def chain(n: int, dtype: DType = f32, **more: Any) -> RegionSpec:
    """Each value read once; a factor of one element."""
    x = desc((n,), dtype, **more)
    return fused({"x": x, "y": x, "c": desc((), dtype)}, ("a", "scale", "x", {"factor": -1.5}), ("b", "add", "a", "y"),
                 ("d", "mul", "b", "c"), ("e", "tanh", "d"))  # fmt: skip


def tree(n: int, dtype: DType = f32, strict: bool = False) -> RegionSpec:
    """Two branches that meet, one operand in both; the branches are kept."""
    x = desc((n,), dtype)
    return fused({"x": x, "y": x, "z": x}, ("a", "mul", "x", "y"), ("b", "sub", "x", "z"), ("c", "add", "a", "b"),
                 keep=("c", "a", "b"), strict=strict)  # fmt: skip


def residual(shape: Sequence[int], bias: int, dtype: DType = f32) -> RegionSpec:
    """What a block of a model ends with; the activation's operand is kept for its gradient."""
    x = desc(shape, dtype)
    return fused({"x": x, "b": desc((bias,), dtype), "r": x}, ("h", "bias_add", "x", "b"), ("g", "gelu", "h"),
                 ("y", "add", "g", "r"), keep=("h", "y"))  # fmt: skip


def dropped(shape: Sequence[int], dtype: DType = f32) -> RegionSpec:
    return fused({"x": desc(shape, dtype), "r": desc(shape, dtype), "rng": desc((2,), i64)}, ("h", "relu", "x"),
                 ("d", "dropout", "h", "rng", {"rate": 0.4, "layer": 3}), ("y", "add", "d", "r"))  # fmt: skip


def compared(n: int, dtype: DType = f32) -> RegionSpec:
    """A comparison of values that are rounded first; its bools are kept."""
    x = desc((n,), dtype)
    return fused({"x": x, "y": x}, ("s", "add", "x", "y"), ("m", "greater", "s", "y"), ("n", "neg", "s"),
                 ("r", "select", "m", "s", "n"), keep=("m", "r"))  # fmt: skip


def converted(n: int) -> RegionSpec:
    """Through four element types."""
    return fused({"x": (n,), "k": desc((n,), i32)}, ("h", "convert", "x", {"dtype": f16.id}),
                 ("w", "convert", "h", {"dtype": f32.id}), ("d", "sub", "x", "w"), ("f", "convert", "k", {"dtype": f32.id}),
                 ("p", "mul", "d", "f"), ("o", "convert", "p", {"dtype": bf16.id}), keep=("h", "o"))  # fmt: skip


def coded(*shape: int, dtype: DType = f32) -> RegionSpec:
    """Codes of 8 bits read, and others written: a number and its code, two codes with a sign and without."""
    given = {"x": desc(shape, dtype), "k": desc(shape, i8), "j": desc(shape, u8), "s": desc((*shape[:-1], 1))}
    return fused(given, ("a", "convert", "x", {"dtype": f32.id}), ("f", "convert", "k", {"dtype": f32.id}), ("g", "convert", "j", {"dtype": f32.id}),
                 ("h", "add", "f", "g"), ("p", "mul", "h", "s"), ("q", "add", "p", "a"), ("w", "convert", "q", {"dtype": dtype.id}),
                 ("o", "convert", "g", {"dtype": i8.id}), ("u", "bitwise_xor", "k", "o"), ("v", "maximum", "j", "j"), keep=("o", "w", "u", "v"))  # fmt: skip


def broadcast(rank_four: bool = False) -> RegionSpec:
    """Operands repeated along different dimensions, one of them by an op."""
    if rank_four:
        return fused({"x": (2, 1, 3, 1), "y": (1, 4, 1, 5)}, ("a", "add", "x", "y"), ("b", "exp", "a"))
    return fused({"x": (3, 5, 7), "b": (5,), "c": (3, 1, 1)}, ("w", "broadcast_in_dim", "b", {"shape": (3, 5, 7), "dims": (1,)}),
                 ("y", "mul", "x", "w"), ("z", "sub", "y", "c"))  # fmt: skip


def transposed(m: int, n: int) -> RegionSpec:
    return fused(
        {"x": desc((m, n), stride=(1, m)), "y": (m, n)}, ("a", "mul", "x", "y"), ("b", "square", "a")
    )


def padded(shape: Sequence[int], dtype: DType = f32, **amounts: tuple[int, ...]) -> RegionSpec:
    """Maps before and behind a pad, and a residual that is as wide."""
    x = desc(shape, dtype)
    wide = schema_of("pad").infer([x], {"value": 0.5, **amounts})[0].shape
    return fused({"x": x, "b": desc(shape[-1:], dtype), "r": desc(wide, dtype)}, ("h", "bias_add", "x", "b"),
                 ("p", "pad", "h", {"value": 0.5, **amounts}), ("y", "add", "p", "r"))  # fmt: skip


def padded_between(shape: Sequence[int], dtype: DType = f32) -> RegionSpec:
    """What the gradient of a slice with steps is; then another pad, backwards."""
    rank = len(shape)
    amounts = {"interior": (2,) * rank, "low": (1,) * rank, "high": (-1,) * rank}
    return fused({"x": desc(shape, dtype)}, ("p", "pad", "x", amounts), ("q", "reverse", "p", {"dims": (0,)}),
                 ("y", "pad", "q", {"low": (-2,) * rank, "high": (3,) * rank}))  # fmt: skip


def padded_sums(m: int, n: int, axis: int, dtype: DType = f32) -> RegionSpec:
    """A pad on the way into a reduction, and one behind it."""
    kept = (m + 3, 1) if axis else (1, n + 4)
    small = desc((m, 1) if axis else (1, n), dtype)
    low = tuple([k - s for k, s in zip(kept, small.shape)])
    return fused({"x": desc((m, n), dtype), "z": small}, ("p", "pad", "x", {"low": (1, 0), "high": (2, 4), "value": 0.5}),
                 ("q", "square", "p"), ("s", "reduce_mean", "q", {"axes": (axis,), "keepdims": True}),
                 ("w", "pad", "z", {"low": low}), ("y", "add", "s", "w"))  # fmt: skip


def embedded(n: int, width: int, dtype: DType = f32, index: DType = i64) -> RegionSpec:
    """What a transformer begins with: a row for each token, scaled, and one for its position."""
    table = desc((11, width), dtype)
    return fused({"table": table, "ids": desc((2, n), index), "p": desc((n, width), dtype)}, ("e", "gather", "table", "ids"),
                 ("s", "scale", "e", {"factor": 3.0}), ("y", "add", "s", "p"))  # fmt: skip


def picked(dtype: DType = f32) -> RegionSpec:
    """Along the last axis, an index for each element; then a pad of it, so that indices are masked themselves."""
    return fused({"x": desc((5, 7), dtype), "i": desc((5, 3), i32)}, ("t", "take_along_axis", "x", "i", {"axis": 1}),
                 ("y", "pad", "t", {"low": (1, 2), "value": 0.5}))  # fmt: skip


def picked_sums(m: int, n: int) -> RegionSpec:
    return fused({"x": (6, n), "i": desc((m,), i64)}, ("t", "gather", "x", "i"), ("q", "square", "t"),
                 ("s", "reduce_sum", "q", {"axes": (1,)}))  # fmt: skip


def joined(axis: int, *sizes: int, dtype: DType = f32) -> RegionSpec:
    """Halves put together after maps, as many as there are sizes; a map behind them."""
    given = {f"x{n}": desc((size, 24) if axis == 0 else (5, size), dtype) for n, size in enumerate(sizes)}
    steps = [(f"h{n}", "tanh" if n % 2 else "neg", f"x{n}") for n in range(min(len(sizes), 6))]
    halves = [f"h{n}" if n < len(steps) else f"x{n}" for n in range(len(sizes))]
    return fused(given, *steps, ("c", "concatenate", *halves, {"axis": axis}), ("y", "relu", "c"))


def masked() -> list[Case]:
    around, aligned = {"low": (1, 3), "high": (2, 0)}, {"low": (1, 8), "high": (0, 16)}
    cases = [Case(STRIDED, padded((5, 7), t, **around), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(STRIDED, padded(shape, **around)) for shape in ((0, 7), (1, 1), (3, 0))]
    cases += [Case(STRIDED, padded_between((3, 4), t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(ROWS, padded((5, 24), t, **aligned), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(ROWS, padded((5, 16), low=(2, 0), high=(-3, 0)))]
    cases += [Case(REDUCE_ROWS, padded_sums(5, 37, 1, t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(STRIDED, embedded(3, 7, t, i32), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(ROWS, embedded(3, 24, t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(STRIDED, joined(1, 3, 4, dtype=t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [
        Case(ROWS, joined(axis, 8, 16, *[0] * (1 - axis), dtype=t), TOLERANCE[t])
        for axis in (0, 1)
        for t in (f32, f16)
    ]
    cases += [Case(STRIDED, joined(0, *range(9)))]
    cases += [Case(STRIDED, picked()), Case(STRIDED, embedded(0, 7)), Case(REDUCE_ROWS, picked_sums(4, 37))]
    cases += [Case(REDUCE_COLUMNS, padded_sums(37, 5, 0)), Case(REDUCE_NAIVE, padded_sums(5, 7, 1))]
    return cases


def maps() -> list[Case]:
    cases = [
        Case(v, chain(n, t), TOLERANCE[t]) for v in (FLAT, VECTOR) for t in TOLERANCE for n in (0, 1, 103)
    ]
    cases += [
        Case(v, r(41, t), TOLERANCE[t]) for v in (FLAT, VECTOR) for t in TOLERANCE for r in (tree, compared)
    ]
    cases += [Case(FLAT, tree(41, t, strict=True), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(FLAT, chain(33, t, alignment=t.itemsize), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(STRIDED, residual(shape, shape[axis], t), TOLERANCE[t])
              for t in TOLERANCE for shape, axis in (((5, 7), 1), ((5, 7), 0), ((1, 1), 0), ((0, 7), 1))]  # fmt: skip
    cases += [
        Case(ROWS, residual((6, 16), length, t), TOLERANCE[t]) for t in TOLERANCE for length in (16, 6, 1)
    ]
    cases += [
        Case(v, dropped((n,), t), TOLERANCE[t]) for v in (FLAT, VECTOR) for t in TOLERANCE for n in (1, 37)
    ]
    cases += [Case(STRIDED, dropped((3, 7))), Case(ROWS, dropped((3, 8)))]
    cases += [Case(v, converted(43), TOLERANCE[bf16]) for v in (FLAT, VECTOR)]
    cases += [Case(STRIDED, coded(5, 7, dtype=t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [
        Case(v, coded(n, dtype=t), TOLERANCE[t]) for t in TOLERANCE for v in (FLAT, VECTOR) for n in (1, 37)
    ]
    cases += [Case(ROWS, coded(6, 16, dtype=t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(STRIDED, r) for r in (broadcast(), broadcast(rank_four=True), transposed(6, 5))]
    return cases


# --- reductions -------------------------------------------------------------------------------------------------------


def bias_gradient(m: int, n: int, dtype: DType = f32) -> RegionSpec:
    """The gradient that goes on is kept beside its sum."""
    x = desc((m, n), dtype)
    return fused(
        {"dy": x, "y": x},
        ("d", "relu_grad", "dy", "y"),
        ("b", "reduce_sum", "d", {"axes": (0,)}),
        keep=("d", "b"),
    )


def spread(m: int, n: int, dtype: DType = f32, op: str = "reduce_mean") -> RegionSpec:
    """Operands repeated along rows and along columns; the root of a mean of squares."""
    given = {
        "x": desc((m, n), dtype),
        "m": desc((m, 1), dtype),
        "g": desc((n,), dtype),
        "s": desc((m, 1), dtype),
    }
    return fused(given, ("d", "sub", "x", "m"), ("e", "mul", "d", "g"), ("q", "square", "e"),
                 ("r", op, "q", {"axes": (1,), "keepdims": True}), ("t", "sqrt", "r"), ("u", "add", "t", "s"),
                 keep=("e", "r", "u"))  # fmt: skip


def loss(*shape: int) -> RegionSpec:
    """Down to one number."""
    return fused({"x": shape, "y": shape}, ("d", "sub", "x", "y"), ("q", "square", "d"), ("l", "reduce_mean", "q", {"axes": ()}),
                 ("s", "scale", "l", {"factor": 0.5}))  # fmt: skip


def middle(dtype: DType = f32, length: int = 40) -> RegionSpec:
    """The axis in between; the map after it knows the one before and the one behind."""
    given = {
        "x": desc((2, length, 5), dtype),
        "w": desc((length, 1), dtype),
        "b": desc((5,), dtype),
        "c": desc((2, 1), dtype),
    }
    return fused(given, ("y", "mul", "x", "w"), ("s", "reduce_sum", "y", {"axes": (1,)}), ("t", "add", "s", "b"),
                 ("u", "mul", "t", "c"), keep=("s", "u"))  # fmt: skip


def scattered() -> RegionSpec:
    return fused({"x": (2, 3, 5), "b": (3, 1), "c": (3,)}, ("y", "sub", "x", "b"), ("s", "reduce_max", "y", {"axes": (0, 2)}),
                 ("t", "add", "s", "c"), keep=("y", "t"))  # fmt: skip


def counted(m: int, n: int, axis: int) -> RegionSpec:
    """Integers made of a comparison."""
    return fused({"x": (m, n), "y": (m, n)}, ("g", "greater", "x", "y"), ("k", "convert", "g", {"dtype": i32.id}),
                 ("s", "reduce_sum", "k", {"axes": (axis,)}), ("f", "convert", "s", {"dtype": f32.id}))  # fmt: skip


def after_only(m: int, n: int, axis: int, dtype: DType = f32) -> RegionSpec:
    return fused({"x": desc((m, n), dtype)}, ("s", "reduce_sum", "x", {"axes": (axis,)}), ("y", "tanh", "s"))


def reductions() -> list[Case]:
    cases = [Case(v, spread(5, 37, t), TOLERANCE[t]) for v in (REDUCE_ROWS, REDUCE_NAIVE) for t in TOLERANCE]
    cases += [Case(REDUCE_ROWS, r) for r in (spread(3, 300, op="reduce_max"), spread(1, 4200), loss(7, 3), loss(5001),
                                             counted(3, 40, 1), after_only(4, 0, 1), after_only(70, 5, 1))]  # fmt: skip
    cases += [Case(REDUCE_COLUMNS, bias_gradient(20, 7, t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(REDUCE_COLUMNS, middle(t), 2 * TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(REDUCE_COLUMNS, r) for r in (bias_gradient(1100, 5), middle(length=600), counted(40, 3, 0),
                                                after_only(0, 4, 0), after_only(9, 33, 0, f32))]  # fmt: skip
    cases += [Case(REDUCE_NAIVE, r) for r in (scattered(), middle(), loss(7, 3), bias_gradient(20, 7))]
    return cases


# --- independent maps -------------------------------------------------------------------------------------------------


def optimizer(*shapes: tuple[int, ...], dtype: DType = f32, **more: Any) -> RegionSpec:
    """Adam on several parameters with the same rates."""
    rates: dict[str, Any] = dict.fromkeys(("lr", "beta1", "beta2", "eps", "decay", "c1", "c2"), ())
    rates |= {"valid": desc((), DType.bool)}
    given: dict[str, Any] = dict(rates)
    steps = []
    for i, shape in enumerate(shapes):
        own = [f"{name}{i}" for name in ("p", "g", "m", "v")]
        given |= {name: desc(shape, f32 if name[0] in "mv" else dtype, **more) for name in own}
        steps.append((tuple(f"{name}'" for name in own if name[0] != "g"), "adam_step", *own, *rates))
    return fused(given, *steps, keep=[result for results, *_ in steps for result in results])


def several(op: str, *shapes: tuple[int, ...], dtype: DType = f32) -> RegionSpec:
    """One op with two operands on each of these, of their own."""
    given = {f"{name}{i}": desc(shape, dtype) for i, shape in enumerate(shapes) for name in "xy"}
    steps = [(f"z{i}", op, f"x{i}", f"y{i}") for i in range(len(shapes))]
    return fused(given, *steps, keep=[z for z, *_ in steps])


def independent() -> list[Case]:
    sizes = ((33,), (4, 7), (300,))
    cases = [Case(MULTI, optimizer(*sizes, dtype=t), TOLERANCE[t]) for t in TOLERANCE]
    cases += [Case(MULTI, optimizer(*sizes, alignment=4)), Case(MULTI, optimizer((1,), (), (0,), (5,)))]
    cases += [
        Case(MULTI, several("relu_grad", *[(n,) for n in range(1, 17)])),
        Case(MULTI, several("sub", (37,), (37,))),
    ]
    cases += [
        Case(MULTI, several("mul", (), (40,), dtype=f16), TOLERANCE[f16]),
        Case(MULTI, several("greater", (0,), (0, 3))),
    ]
    cases += [Case(v, clipped(*sizes, dtype=t), TOLERANCE[t]) for t in TOLERANCE for v in (MULTI, TABLE)]
    many = [(1 + n % 7,) if n % 3 else (2, 1 + n % 5) for n in range(300)]
    cases += [Case(TABLE, several("sub", *many)), Case(TABLE, optimizer(*sizes, alignment=4))]
    cases += [Case(TABLE, optimizer((1,), (0,), (5,), (70, 9), dtype=t), TOLERANCE[t]) for t in TOLERANCE]
    return cases


def clipped(*shapes: tuple[int, ...], dtype: DType = f32) -> RegionSpec:
    """Gradients that are scaled, each with the step behind it: all of the first, then all of the second."""
    rates: dict[str, Any] = {
        "lr": (),
        "momentum": (),
        "decay": (),
        "valid": desc((), DType.bool),
        "factor": (),
    }
    given: dict[str, Any] = dict(rates)
    scales, steps = [], []
    for i, shape in enumerate(shapes):
        given |= {f"{name}{i}": desc(shape, f32 if name == "v" else dtype) for name in "pgv"}
        scales.append((f"s{i}", "scale_gradient", f"g{i}", "factor"))
        operands = (f"p{i}", f"s{i}", f"v{i}", "lr", "momentum", "decay", "valid")
        steps.append(((f"p{i}'", f"v{i}'"), "sgd_step", *operands))
    return fused(given, *scales, *steps, keep=[result for results, *_ in steps for result in results])


# --- strict: the same region, and its ops one by one --------------------------------------------------------------------


def strict(case: Case) -> Case:
    return dataclasses.replace(case, region=dataclasses.replace(case.region, strict=True))


def one_by_one(
    case: Case, operands: Operands, run: Callable[[Case, Operands], list[np.ndarray]]
) -> list[np.ndarray]:
    """The region's results from a launch for each op, values going through memory; maps by the strided kernel.

    A reduction is made by the case's own kernel, which must not accumulate in another order for what it is fused with.
    """
    r = case.region
    values = dict(zip(r.inputs, zip(operands.memory, r.operands)))
    for op in r.ops:
        variant = case.variant if schema_of(op.kind).core == "reduce" else STRIDED
        ins = list(dict.fromkeys(op.inputs))
        tensors = tuple(values[i][1] if i in values else r.tensors[i] for i in ins)
        outs = tuple(r.tensors[i] for i in op.outputs)
        one = RegionOp(
            op.kind, op.attrs, tuple(map(ins.index, op.inputs)), tuple(range(len(ins), len(ins) + len(outs)))
        )
        alone = RegionSpec((one,), (*tensors, *outs), tuple(range(len(ins))), one.outputs, True)
        made = run(Case(variant, alone), Operands([], [values[i][0] for i in ins]))
        values.update((i, (x, t)) for i, x, t in zip(op.outputs, made, outs))
    return [values[i][0] for i in r.outputs]


SMALL = maps() + reductions() + independent() + masked()

LARGE = [
    *(Case(v, padded((1000, 1024), t, low=(3, 8), high=(0, 24)), TOLERANCE[t]) for v in (STRIDED, ROWS) for t in TOLERANCE),
    *(Case(v, joined(1, 512, 1024, dtype=t), TOLERANCE[t]) for v in (STRIDED, ROWS) for t in TOLERANCE),
    *(Case(v, embedded(700, 768, t), TOLERANCE[t]) for v in (STRIDED, ROWS) for t in TOLERANCE),
    Case(STRIDED, padded_between((700, 333))), Case(REDUCE_ROWS, picked_sums(500, 1000), 1e-4), Case(REDUCE_ROWS, padded_sums(1000, 1000, 1)),
    *(Case(v, chain(2**20 + 3, t), TOLERANCE[t]) for v in (FLAT, VECTOR) for t in TOLERANCE),
    *(Case(v, residual((1000, 1024), length, t), TOLERANCE[t])
      for v in (STRIDED, ROWS) for t in TOLERANCE for length in (1000, 1024)),
    *(Case(v, dropped((1000, 1024), t), TOLERANCE[t]) for v in (VECTOR, ROWS) for t in TOLERANCE),
    *(Case(REDUCE_ROWS, spread(m, n, t), TOLERANCE[t]) for t in TOLERANCE for m, n in ((1000, 1000), (2, 100000))),
    *(Case(REDUCE_COLUMNS, bias_gradient(m, n, t), TOLERANCE[t]) for t in TOLERANCE for m, n in ((1000, 1000), (50000, 10))),
    Case(REDUCE_ROWS, loss(1000, 1000)), Case(REDUCE_COLUMNS, middle(length=30000), 1e-4),
    *(Case(v, optimizer((1000, 1000), (1000,), (1000, 10), (10,), dtype=t), TOLERANCE[t]) for t in TOLERANCE for v in (MULTI, TABLE)),
]  # fmt: skip
