"""Drawn loops of the host, bit for bit: maps beside an interpreter of their expression in NumPy, reductions beside their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from draws.seeds import rng

from aicf.cpu_kernels.compiler.loops import FoldLoop, MapLoop
from aicf.rows.program import Expression, Load, Shape
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f16, f32, f64, i32, i64, row_major, u8, u32

pytestmark = pytest.mark.spec("F1", "F4")


@dataclass(frozen=True)
class Drawn:
    """What MapLoop reads of a Map."""

    shape: Shape
    loads: tuple[Load, ...]
    stores: tuple[tuple[int, int], ...]
    expression: Expression
    core_input: int | None = None
    core_results: int = 0

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return self.expression.dtypes

    @property
    def numel(self) -> int:
        return int(np.prod(self.shape))


def both(a: Any, b: Any) -> Any:
    return a + b, a - b


FACTOR = np.float32(0.75)


def scaled(a: Any, by: Any = FACTOR) -> Any:
    return a * by


def choose(a: Any, b: Any) -> Any:
    return a if a > b else b


# (scalar function, the same on arrays, operands)
EXACT: list[tuple[Callable[..., Any], Callable[..., Any], int]] = [
    (lambda a, b: a + b, lambda a, b: a + b, 2), (lambda a, b: a * b, lambda a, b: a * b, 2), (both, both, 2),
    (choose, lambda a, b: np.where(a > b, a, b), 2), (lambda a: -a, lambda a: -a, 1), (lambda a: a * a, lambda a: a * a, 1),
]  # fmt: skip
FLOAT = [*EXACT, (scaled, lambda a: a * FACTOR, 1), (lambda a, b: a / b, lambda a, b: a / b, 2)]


def draw_map(draw: np.random.Generator) -> tuple[Drawn, list[np.ndarray], list[np.ndarray]]:
    """(a map, its operands, the results that NumPy has)."""
    dtype = [f32, f16, bf16, f64, i32, u8][int(draw.integers(6))]
    functions = FLOAT if dtype.kind == "float" else EXACT
    shape = tuple(int(n) for n in draw.choice([1, 2, 3, 5, 8, 300, 700], int(draw.integers(1, 4)), p=[0.1, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1]))  # fmt: skip
    operands, loads, values = [], [], []
    for n in range(int(draw.integers(1, 4))):
        array = draw_array(draw, dtype, shape)
        loads.append(Load(n, dtype, tuple(s // array.itemsize for s in array.strides)))
        operands.append(array)
        values.append(wide(array, dtype))
    arguments, steps, rounded = len(values), [], set[int]()
    for _ in range(int(draw.integers(1, 6))):
        scalar, on_arrays, count = functions[int(draw.integers(len(functions)))]
        ins = tuple(int(slot) for slot in draw.integers(len(values), size=count))
        with np.errstate(all="ignore"):
            made = on_arrays(*(values[slot] for slot in ins))
        outs = []
        for value in made if isinstance(made, tuple) else (made,):
            outs.append(len(values))
            value = value.astype(dtype.compute.numpy)
            if dtype.compute is not dtype and draw.random() < 0.4:
                rounded.add(len(values))
                value = wide(narrow(value, dtype), dtype)
            values.append(value)
        steps.append((scalar, ins, tuple(outs)))
    results = tuple(
        int(slot) for slot in draw.integers(arguments, len(values), size=int(draw.integers(1, 3)))
    )
    expression = Expression(
        "drawn", tuple(steps), (dtype,) * len(values), frozenset(rounded), arguments, results
    )
    stores = tuple((slot, n) for n, slot in enumerate(results))
    return (
        Drawn(shape, tuple(loads), stores, expression),
        operands,
        [narrow(values[s], dtype) for s in results],
    )


def draw_array(draw: np.random.Generator, dtype: DType, shape: Shape) -> np.ndarray:
    """Values of an array of that shape: dense, every other element of one, repeated along axes, or with axes in another order."""
    kind = draw.choice(["dense", "strided", "repeated", "transposed"])
    axes = draw.permutation(len(shape))
    own = [1 if kind == "repeated" and draw.random() < 0.5 else n for n in shape]
    stored = [own[axis] for axis in axes] if kind == "transposed" else own
    stored[-1] *= 2 if kind == "strided" else 1
    if dtype.kind == "int":
        array = draw.integers(0 if dtype is u8 else -9, 200, stored).astype(dtype.numpy)
    else:
        array = narrow(draw.normal(size=stored) * 4, dtype)
    if kind == "strided":
        array = array[..., ::2]
    if kind == "transposed":
        array = array.transpose(np.argsort(axes))
    return np.broadcast_to(array, shape)


def narrow(x: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(x).astype(np.float64 if dtype is f64 else dtype.compute.numpy).astype(dtype.numpy)


def wide(x: np.ndarray, dtype: DType) -> np.ndarray:
    return x.astype(dtype.compute.numpy)


def described(array: np.ndarray, dtype: DType) -> TensorDesc:
    return TensorDesc(dtype, array.shape, tuple(s // array.itemsize for s in array.strides))


def same_bits(got: np.ndarray, want: np.ndarray, what: str) -> None:
    """Signs of zeros count, those of NaN do not."""
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64), err_msg=what)
    numbers = ~np.isnan(want.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got[numbers].astype(np.float64)), np.signbit(want[numbers].astype(np.float64)), what)  # fmt: skip


@pytest.mark.parametrize("some", range(2))
def test_drawn_maps_have_the_bits_of_numpy(some, request):
    draw = rng(request.node.nodeid)
    for n in range(12):
        map, operands, wanted = draw_map(draw)
        dtype = map.dtypes[0]
        got = [np.full(map.shape, 77).astype(dtype.numpy) for _ in wanted]
        results = [TensorDesc.dense(TensorSpec(map.shape, dtype)) for _ in got]
        loop = MapLoop(map, [described(a, dtype) for a in operands], results)
        if draw.random() < 0.5:
            loop.bind(operands, got)()
        else:  # in two parts
            span, middle = loop.bind_span(operands, got), int(draw.integers(map.numel + 1))
            span(middle, map.numel - middle)
            span(0, middle)
        for one, want in zip(got, wanted):
            same_bits(one, want, f"{n}: {map}")


# --- reductions -------------------------------------------------------------------------------------------------------

LANES, BLOCK = 32, 16384
JOINS: dict[str, np.ufunc] = {"sum": np.add, "mean": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}  # fmt: skip


def in_order(row: np.ndarray, how: str, nothing: Any) -> Any:
    """A row as the host adds it up: short ones from left to right, others in 32 sums, eight elements of each at a time."""
    join = JOINS[how]
    if len(row) < LANES:
        return join.accumulate(np.concatenate([[nothing], row]).astype(row.dtype))[-1]
    sums = np.full(LANES, nothing, row.dtype)
    for start in range(0, len(row), BLOCK):
        block = row[start : start + BLOCK]
        while len(block) >= 8 * LANES:
            some = list(block[: 8 * LANES].reshape(8, LANES))
            while len(some) > 1:
                some = [join(a, b) for a, b in zip(some[::2], some[1::2])]
            sums, block = join(sums, some[0]), block[8 * LANES :]
        while len(block):
            count = min(LANES, len(block))
            sums[:count] = join(sums[:count], block[:count])
            block = block[count:]
    while len(sums) > 1:
        sums = join(sums[: len(sums) // 2], sums[len(sums) // 2 :])
    return sums[0]


def reduced(values: np.ndarray, how: str, dtype: DType, columns: bool) -> np.ndarray:
    """(outer, reduced, inner) → (outer, inner), in the type of the values."""
    exact = how in ("max", "min")
    longest = (
        np.dtype(f"{dtype.numpy.kind}8") if dtype.kind == "int" and how != "mean" else np.dtype(np.float64)
    )
    kind = dtype.numpy if exact else longest
    nothing: Any = how == "prod"
    if exact:
        info = np.finfo(kind) if dtype.kind == "float" else np.iinfo(kind)
        nothing = info.min if how == "max" else info.max
    with np.errstate(all="ignore"):
        wide = values.astype(kind)
        if columns:
            first = np.full((wide.shape[0], 1, wide.shape[2]), nothing, kind)
            totals = JOINS[how].accumulate(np.concatenate([first, wide], 1), 1)[:, -1]
        else:
            totals = np.array([[in_order(row[:, 0], how, nothing)] for row in wide], kind)
        return (totals / values.shape[1] if how == "mean" else totals).astype(dtype.numpy)


def times(a: Any, b: Any) -> Any:
    return a * b


@pytest.mark.parametrize("columns", [False, True], ids=["rows", "columns"])
def test_drawn_reductions_have_the_bits_of_their_order(columns, request):
    """Of values as they are stored, of a map's that go through a block, and of a map's that are a result as well."""
    draw = rng(request.node.nodeid)
    for n in range(14):
        dtype = [f32, f32, f64, i32, i64, u32][int(draw.integers(6))]
        how = str(draw.choice(["sum", "mean", "prod", "max", "min"] if dtype.kind == "float" else ["sum", "prod", "max", "min"]))  # fmt: skip
        lengths = [1, 2, 7, 31, 32, 33, 100, 255, 256, 300, 700] + (
            [] if columns else [5000, BLOCK, BLOCK + 1, 40000]
        )
        sizes = (
            int(draw.integers(1, 6)),
            int(draw.choice(lengths)),
            int(draw.choice([2, 3, 5, 17, 70, 300])) if columns else 1,
        )
        if columns and n == 0:
            sizes = 2, 3, BLOCK + 5
        x, y = (
            draw.integers(1 if dtype is u32 else -9, 9, sizes).astype(dtype.numpy) if dtype.kind == "int"
            else (draw.normal(size=sizes) + (0 if how != "prod" else 1)).astype(dtype.numpy)
            for _ in range(2)
        )  # fmt: skip
        way = str(draw.choice(["plain", "block", "kept"]))
        values = x if way == "plain" else x * y
        strides = row_major(sizes)
        loads = tuple(Load(k, dtype, strides) for k in range(1 if way == "plain" else 2))
        steps = () if way == "plain" else ((times, (0, 1), (2,)),)
        slot = 0 if way == "plain" else 2
        expression = Expression("drawn", steps, (dtype,) * (slot + 1), frozenset(), len(loads), (slot,))
        map = Drawn(
            sizes, loads, ((slot, 0),) if way == "kept" else (), expression, None if way == "kept" else slot
        )
        desc = TensorDesc.dense(TensorSpec(sizes, dtype))
        feed = MapLoop(map, [desc] * len(loads), [desc])
        fold = FoldLoop(how, dtype, feed, way == "plain", 0 if way == "kept" else None, sizes, columns)
        kept, out = np.zeros(sizes, dtype.numpy), np.full((sizes[0], sizes[2]), 77, dtype.numpy)
        if draw.random() < 0.5:
            fold.bind([x, y], [kept], out)()
        else:
            span, middle = fold.bind_span([x, y], [kept], out), int(draw.integers(sizes[0] + 1))
            span(middle, sizes[0] - middle)
            span(0, middle)
        what = f"{n}: {how} of {dtype} {sizes}, {way}"
        same_bits(out, reduced(values, how, dtype, columns), what)
        if way == "kept":
            same_bits(kept, values, what)


def test_a_reduction_of_infinities_and_nan_is_ieee_s(request):
    draw = rng(request.node.nodeid)
    for n in range(12):
        length, width = int(draw.choice([5, 40, 700])), int(draw.choice([1, 6]))
        x = draw.normal(size=(3, length, width)).astype(np.float32)
        x[tuple(draw.integers(s, size=4) for s in x.shape)] = draw.choice([np.nan, np.inf, -np.inf], 4)
        desc, strides = TensorDesc.dense(TensorSpec(x.shape, f32)), row_major(x.shape)
        expression = Expression("copy", (), (f32,), frozenset(), 1, (0,))
        feed = MapLoop(Drawn(x.shape, (Load(0, f32, strides),), (), expression, 0), [desc], [])
        how = ("sum", "max", "min")[n % 3]
        out = np.empty((3, width), np.float32)
        FoldLoop(how, f32, feed, True, None, x.shape, width > 1).bind([x], [], out)()
        with np.errstate(all="ignore"):
            want = getattr(np, how)(x.astype(float), 1)
        np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6, err_msg=f"{n}: {how} of {x.shape}")
