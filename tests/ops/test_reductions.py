"""Reductions: axes in every spelling, empty sums, NaN, accumulation; against loops over the elements."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicf.errors import TypeInferenceError
from aicf.ops.schema import schema_of
from aicf.types import DType, TensorSpec

from .cases import f32
from .sampling import packed

REDUCTIONS = ["reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min"]


def reduce(op, x, **attrs):
    schema = schema_of(op)
    return schema.call_reference([x], packed(schema, [x], attrs))[0]


@st.composite
def shapes_and_axes(draw):
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=4)))
    axes = draw(st.permutations(range(len(shape))))[: draw(st.integers(0, len(shape)))]
    signed = tuple(a - len(shape) if draw(st.booleans()) else a for a in axes)
    return shape, tuple(axes), signed


@given(shapes_and_axes(), st.booleans())
def test_axes_are_normalised_and_every_spelling_means_the_same(case, keepdims):
    shape, axes, signed = case
    full = tuple(sorted(axes)) or tuple(range(len(shape)))
    schema, spec = schema_of("reduce_sum"), TensorSpec(shape)
    attrs = {"axes": signed, "keepdims": keepdims}
    once = schema.normalized([spec], attrs)
    assert once == {"axes": full, "keepdims": keepdims}
    assert schema.normalized([spec], once) == once
    assert attrs["axes"] == signed, "the caller's attributes are left alone"
    assert schema.infer([spec], attrs) == schema.infer([spec], once)
    x = np.arange(spec.numel, dtype=np.float64).reshape(shape)
    got, want = reduce("reduce_sum", x, **attrs), _loop_sum(x, full, keepdims)
    assert got.shape == want.shape == schema.infer([spec], attrs)[0].shape
    assert np.array_equal(got, want)


def _loop_sum(x, axes, keepdims):
    out = np.zeros([1 if i in axes else d for i, d in enumerate(x.shape)])
    for index in np.ndindex(x.shape):
        out[tuple(0 if i in axes else j for i, j in enumerate(index))] += x[index]
    return out if keepdims else out.reshape([d for i, d in enumerate(x.shape) if i not in axes])


@pytest.mark.parametrize("axes", [(2,), (-3,), (0, -2), (0.5,), (True,), ((0,),), ("0",)])
@pytest.mark.parametrize("op", REDUCTIONS)
def test_normalising_leaves_invalid_axes_to_infer(op, axes):
    schema = schema_of(op)
    attrs = {"axes": axes, "keepdims": False}
    assert schema.normalized([f32(4, 7)], attrs) == attrs
    with pytest.raises(TypeInferenceError, match=rf"{op} C[12]: "):
        schema.infer([f32(4, 7)], attrs)


@pytest.mark.parametrize(
    "op, want", [("reduce_sum", 0), ("reduce_mean", np.nan), ("reduce_max", -np.inf), ("reduce_min", np.inf)]
)
def test_of_nothing(op, want):
    assert np.array_equal(reduce(op, np.zeros((2, 0), np.float32), axes=(1,)), [want] * 2, equal_nan=True)
    assert reduce(op, np.zeros((0, 2), np.float32), axes=(1,)).shape == (0,)


def test_the_least_integer_is_the_maximum_of_no_integers():
    assert reduce("reduce_max", np.zeros((1, 0), np.int32), axes=(1,))[0] == -(2**31)
    assert reduce("reduce_min", np.zeros((1, 0), np.int32), axes=(1,))[0] == 2**31 - 1


@pytest.mark.parametrize("op", REDUCTIONS)
def test_nan_propagates(op):
    x = np.array([[1, np.nan, 3], [np.inf, 1, 2], [-np.inf, 1, 2]], np.float32)
    of_inf, of_minus_inf = {"reduce_max": (np.inf, 2), "reduce_min": (1, -np.inf)}.get(op, (np.inf, -np.inf))
    want = [np.nan, of_inf, of_minus_inf]
    assert np.array_equal(reduce(op, x, axes=(1,)), want, equal_nan=True)


@pytest.mark.parametrize("dtype", [DType.f16, DType.bf16], ids=str)
def test_narrow_floats_accumulate_in_f32(dtype):
    """In their own type 4096 ones would stop at 2048 in f16, at 256 in bf16."""
    assert reduce("reduce_sum", np.ones(4096, dtype.numpy)) == 4096
    assert reduce("reduce_mean", np.ones(4096, dtype.numpy)) == 1


def test_integer_sums_wrap_in_their_own_type():
    got = reduce("reduce_sum", np.array([2**31 - 1, 1], np.int32))
    assert got.dtype == np.int32 and got == -(2**31)
