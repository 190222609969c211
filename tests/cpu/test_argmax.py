"""argmax and argmin on the host (A12, A15): NumPy's places, exactly; alone, with what stands around them, and in programs."""

from __future__ import annotations

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS

import aicf
from aicf import nn
from aicf.types import bf16, f16, f32, i8, i16, i32, u8, u16, u32

from .regions import Graph, normal

REDUCE = "reduce_loop"
PLACES = {"argmax": np.argmax, "argmin": np.argmin}
SHAPES = [(4, 7), (1, 1), (37,), (2, 3, 5), (3, 9001), (2000, 3), (0, 3)]
EXTREME = np.array([
    [1, np.nan, -np.nan, 9], [-0.0, 0.0, -0.0, 0.0], [-np.inf, -1, -2, -1], [np.inf, np.inf, 3, -np.inf], [5, 5, -5, -5],
    [1e-40, 2e-40, -1e-40, -2e-40], [-1, -1.5, -2.5, -1], [np.nan, np.nan, np.inf, -np.inf],
])  # fmt: skip

pytestmark = pytest.mark.spec("A12")


def found(x, how, **attrs):
    (got,) = Graph({"x": x}, (how, "x", "y", attrs)).run(REDUCE)
    return got


def wide(x):
    return x.astype(np.float64 if x.dtype.kind not in "iu" else np.int64)


@pytest.mark.sample(1, each="shape")
@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_along_each_axis(shape, how):
    x = normal(*shape)
    for axis in [a for a, size in enumerate(shape) if size]:
        for keepdims in (False, True):
            got = found(x, how, axis=axis, keepdims=keepdims)
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, PLACES[how](x, axis, keepdims=keepdims))


def test_places_along_an_axis_that_others_are_within():
    """One form of region, and sizes of its own for each: the index of an axis is a quotient by those within it."""
    for shape in [(300, 3), (7, 90), (20, 11), (300, 2)]:
        x = normal(*shape)
        np.testing.assert_array_equal(found(x, "argmax", axis=0), x.argmax(0))


@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_the_first_of_equals_and_the_first_nan(dtype, how):
    x = EXTREME.astype(dtype.numpy)
    for axis in (0, 1):
        np.testing.assert_array_equal(found(x, how, axis=axis), PLACES[how](wide(x), axis))
    many = np.tile(x, (1, 3000))  # equals in every lane, and in every block
    np.testing.assert_array_equal(found(many, how), PLACES[how](wide(many), 1))


@pytest.mark.sample(3)
@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("dtype", [i32, u32, i16, u16, i8, u8], ids=str)
def test_integers_from_the_least_to_the_greatest(dtype, how):
    ends = np.iinfo(dtype.numpy)
    x = np.random.default_rng(3).integers(ends.min, ends.max, (9, 700), dtype.numpy, endpoint=True)
    x[:, 333], x[:, 400], x[:, 500] = ends.min, ends.max, ends.max
    for axis in (0, 1):
        np.testing.assert_array_equal(found(x, how, axis=axis), PLACES[how](x, axis))


@pytest.mark.sample(1, each="layout")
@pytest.mark.parametrize("how", PLACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_every_layout(layout, how):
    x = LAYOUTS[layout](normal(2, 3, 65))
    for axis in (0, 1, 2):
        np.testing.assert_array_equal(found(x, how, axis=axis), PLACES[how](x, axis))


@pytest.mark.spec("A15")
@pytest.mark.parametrize("how", PLACES)
def test_what_is_compared_is_rounded_as_in_memory(how):
    """Sums that differ in f32 alone are equal halves: the first of them is the place."""
    x, tiny = np.ones((3, 50), np.float16), np.linspace(-2e-4, 2e-4, 50).astype(np.float16)
    (got,) = Graph({"x": x, "t": tiny}, ("add", "x t", "s", {}), (how, "s", "y", {})).run(REDUCE)
    np.testing.assert_array_equal(got, PLACES[how]((x + tiny).astype(np.float16), 1))


# --- programs ---------------------------------------------------------------------------------------------------------


class Fn(nn.Layer):
    def __init__(self, emit):
        self.function = emit

    def emit(self, ctx, x):
        return self.function(ctx, x)


def program_of(emit, dtype=f32):
    return aicf.compile(nn.Model({"x": aicf.TensorSpec((6, 5), dtype)}).add(Fn(emit)), device="cpu")


LABELS = np.array([0, 1, 2, 3, 4, 2])


@pytest.mark.spec("A9")
@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_which_answers_are_right_is_one_region(dtype):
    def right(ctx, x):
        return ctx.argmax(x) == ctx.state("labels", (6,), lambda shape, rng: LABELS, aicf.i64)

    program = program_of(right, dtype)
    x = np.random.default_rng(5).integers(-2, 3, (6, 5)).astype(dtype.numpy)
    np.testing.assert_array_equal(program.run({"x": x})["output"].numpy(), wide(x).argmax(1) == LABELS)
    assert [r.spec.signature for r in program.compiled().regions] == ["argmax + equal"]


def test_the_place_among_all_elements():
    x = normal(6, 5)
    for method in PLACES:
        for keepdims in (False, True):
            program = program_of(lambda ctx, x, m=method, k=keepdims: getattr(x, m)(keepdims=k))
            got = program.run({"x": x})["output"].numpy()
            np.testing.assert_array_equal(got, PLACES[method](x, keepdims=keepdims))
            assert got.shape == PLACES[method](x, keepdims=keepdims).shape


def test_a_place_reads_what_lies_there():
    x = normal(6, 5)
    program = program_of(
        lambda ctx, x: ctx.take_along_axis(x, x.argmin(-1, keepdims=True), axis=1) - x.min(-1, keepdims=True)
    )
    assert not program.run({"x": x})["output"].numpy().any()


@pytest.mark.parametrize("dtype", ["i64", "f64"])
def test_wider_types_are_refused_with_those_that_are_taken(dtype):
    with pytest.raises(aicf.AicfError, match=f"x.*{dtype}.*float or integer of at most 32 bits"):
        program_of(lambda ctx, x: ctx.argmax(x.astype(dtype)))
