"""Reads under a mask on the host: pads, alone and among maps and reductions (A12, A14)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf.device.spec import host
from aicf.types import DType, bool_, f16, f32, i32, i64

from .regions import VARIANTS, Graph, normal

LOOP, REDUCE = "elementwise_loop", "reduce_loop"
PADS = {
    "around": ((3, 5), {"low": (1, 2), "high": (2, 1)}),
    "behind the last": ((4, 513), {"high": (0, 300)}),
    "before the last": ((4, 3), {"low": (0, 600)}),
    "rows": ((5, 1000), {"low": (2, 0), "high": (1, 0)}),
    "cut and padded": ((7, 6), {"low": (-2, 3), "high": (1, -4)}),
    "cut": ((7, 6), {"low": (-2, 0), "high": (0, -4)}),
    "between": ((3, 4), {"interior": (2, 1), "low": (0, 1)}),
    "between, and cut": ((3, 4), {"interior": (2, 1), "low": (-1, -2), "high": (-3, 2)}),
    "one of one": ((1, 1), {"low": (2, 0), "high": (0, 2), "interior": (3, 3)}),
    "of nothing": ((0, 3), {"low": (2, 1), "high": (1, 0)}),
    "to nothing": ((2, 3), {"low": (-2, 0)}),
    "nothing": ((2, 3), {}),
    "a number": ((), {}),
}


@pytest.mark.sample(5)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("pad", PADS)
def test_a_pad_is_a_loop(pad):
    shape, amounts = PADS[pad]
    Graph({"x": normal(*shape)}, ("pad", "x", "y", {"value": 0.5, **amounts})).check(LOOP, 1e-12)


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", [f16, i64, bool_, DType.f8e4m3], ids=str)
def test_pads_of_every_type(dtype):
    x = normal(3, 5, dtype=dtype)
    Graph({"x": x}, ("pad", "x", "y", {"value": 1.0, "low": (1, 2), "high": (0, 3)})).check(LOOP, 1e-12)


@pytest.mark.spec("A12")
def test_a_pad_of_a_strided_operand():
    x = normal(12, 10)[::-3, 1::2]
    Graph({"x": x}, ("pad", "x", "y", {"low": (1, 0), "high": (0, 2)}), ("relu", "y", "z", {})).check(
        LOOP, 1e-12
    )


@pytest.mark.sample(4)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("pad", [name for name, (_, amounts) in PADS.items() if "interior" not in amounts])
def test_maps_around_a_pad(pad):
    """What comes before is computed where there is an element, what comes after everywhere."""
    shape, amounts = PADS[pad]
    Graph(
        {"x": normal(*shape), "b": normal(*shape[-1:])}, ("exp", "x", "e", {}), ("add", "e b", "a", {}),
        ("pad", "a", "p", {"value": -1.0, **amounts}), ("square", "p", "s", {}),
    ).check(LOOP, 2e-6)  # fmt: skip


@pytest.mark.spec("A12")
def test_a_pad_of_a_pad_and_views_around_it():
    x = normal(5, 7)
    Graph(
        {"x": x}, ("pad", "x", "a", {"low": (1, 2), "high": (0, 1), "value": 2.0}), ("neg", "a", "n", {}),
        ("reverse", "n", "r", {"dims": (0, 1)}), ("pad", "r", "b", {"low": (-2, 1), "high": (3, -4)}),
        ("transpose", "b", "t", {"perm": (1, 0)}), ("slice", "t", "s", {"start": (1, 0), "limit": (7, 7), "step": (2, 3)}),
        ("tanh", "s", "out", {}),
    ).check(LOOP)  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_a_pad_before_and_behind_a_reduction(axes):
    x = normal(9, 300)
    before = ("pad", "x", "p", {"low": (2, 3), "value": 0.25}), ("square", "p", "s", {})
    Graph({"x": x}, *before, ("reduce_sum", "s", "out", {"axes": axes, "keepdims": True})).check(REDUCE)
    shape = (1 if 0 in axes else 9, 1 if 1 in axes else 300)
    low = tuple(0 if n == 1 else 2 for n in shape)
    small = normal(*(n - k for n, k in zip(shape, low)))
    Graph(
        {"x": x, "z": small}, ("reduce_mean", "x", "m", {"axes": axes, "keepdims": True}),
        ("pad", "z", "q", {"low": low}), ("sub", "m q", "out", {}),
    ).check(REDUCE)  # fmt: skip


JOINS = {
    "columns": (1, 300, 7), "rows": (0, 3, 4), "with nothing": (1, 0, 5, 0), "one": (0, 4), "many": (0, *range(12)), "to nothing": (1, 0, 0),
}  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("dtype", [f32, f16, i32], ids=str)
def test_a_concatenate_of_halves_after_maps_is_a_loop(join, dtype):
    axis, *sizes = JOINS[join]
    given = {
        f"x{n}": normal(*((size, 5) if axis == 0 else (3, size)), dtype=dtype) for n, size in enumerate(sizes)
    }
    steps = [("square" if n % 2 else "neg", f"x{n}", f"h{n}", {}) for n in range(min(len(sizes), 5))]
    halves = " ".join(f"h{n}" if n < len(steps) else f"x{n}" for n in range(len(sizes)))
    Graph(given, *steps, ("concatenate", halves, "c", {"axis": axis}), ("abs", "c", "y", {})).check(LOOP)


# --- by index ---------------------------------------------------------------------------------------------------------


def ids(*shape, size, dtype=i64):
    return np.random.default_rng().integers(-size, size, shape).astype(dtype.numpy)


TAKES = {
    "rows": ("gather", (11, 300), (5,), 0), "rows of two": ("gather", (11, 7), (2, 3), 0), "columns": ("gather", (4, 9), (2, 3), 1),
    "one": ("gather", (11, 7), (), 0), "none": ("gather", (11, 7), (0,), 1), "of nothing": ("gather", (4, 0), (3,), 0),
    "along": ("take_along_axis", (5, 9), (5, 3), 1), "along rows": ("take_along_axis", (6, 4), (9, 4), 0),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("dtype", [f32, f16, i32], ids=str)
def test_a_gather_among_maps_is_a_loop(take, dtype):
    kind, shape, indices, axis = TAKES[take]
    index = ids(*indices, size=shape[axis], dtype=i32 if len(indices) == 2 else i64)
    Graph(
        {"x": normal(*shape, dtype=dtype), "i": index},
        (kind, "x i", "t", {"axis": axis}),
        ("square", "t", "y", {}),
    ).check(LOOP)


def test_one_element_is_gathered_into_strides():
    """No loop writes strides: the reference does."""
    y = np.zeros((4, 2), np.float32)[:, 0]
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    aicf.op_call("gather", [x, np.array(-1)], [y], {"axis": 1})
    np.testing.assert_array_equal(y, x[:, 2])


@pytest.mark.spec("A12")
def test_an_embedding_with_positions_between_pads_and_views():
    table, index, p = normal(11, 40)[:, ::2], ids(2, 6, size=11)[:, ::2], normal(3, 20)
    Graph(
        {"table": table, "i": index, "p": p}, ("gather", "table i", "e", {}), ("scale", "e", "s", {"factor": 3.0}),
        ("add", "s p", "a", {}), ("pad", "a", "w", {"low": (0, 2, 0), "high": (1, 0, -3)}),
        ("transpose", "w", "t", {"perm": (2, 0, 1)}), ("tanh", "t", "y", {}),
    ).check(LOOP)  # fmt: skip


@pytest.mark.spec("A12")
def test_a_gather_on_the_way_into_a_reduction():
    x, index = normal(11, 300), ids(7, size=11)
    Graph(
        {"x": x, "i": index}, ("gather", "x i", "t", {}), ("square", "t", "q", {}), ("reduce_sum", "q", "s", {"axes": (1,)}),
    ).check(REDUCE)  # fmt: skip


def test_what_is_made_in_the_region_is_not_read_by_index():
    """Its indices, or what it picks from, are read from memory."""
    x, index = normal(5, 4), ids(3, size=5)
    for steps in (
        [("exp", "x", "e", {}), ("gather", "e i", "y", {})],
        [("neg", "i", "j", {}), ("gather", "x j", "y", {})],
    ):
        reject = VARIANTS[LOOP].supported(Graph({"x": x, "i": index}, *steps).region, host())
        assert reject.condition == "access" and "the region makes" in reject.reason
