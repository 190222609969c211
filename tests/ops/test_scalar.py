"""An elementwise op's scalar function, called by Python for each element, against its NumPy reference."""

import numpy as np
import pytest

from aicf.ops.schema import schema_of
from aicf.types import DType, rounded

from .evaluate import evaluate
from .sampling import arity, elementwise_ops, name, operands, packed, types_of

SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40, 1e30, -1e30, 1.0]


def specials(schema, arrays, rng):
    """The same arrays with a third of what the op computes on replaced by IEEE 754's special values."""
    for decl, array in zip(schema.declared(len(arrays)), arrays):
        if array.dtype.kind == "f" and decl.type.name != "f32":
            hit = rng.random(array.shape) < 0.3
            array[hit] = rng.choice(SPECIAL, hit.sum()).astype(array.dtype)
    return arrays


ELEMENTS = 300
FLOATS = [s for s in elementwise_ops() if DType.f32 in types_of(s)]
OTHERS = [(s, t) for s in elementwise_ops() for t in types_of(s) if t.kind != "float"]


def different_attrs(schema):
    """Each set of attributes among an op's samples, once."""
    seen = {str(sorted(s["attrs"].items())): s["attrs"] for s in schema.sample_specs}
    return list(seen.values())


def check(schema, arrays, attrs, number, rtol):
    results = schema.call_reference(arrays, packed(schema, arrays, attrs))
    for got, want in zip(evaluate(schema, arrays, packed(schema, arrays, attrs), number), results):
        if want.dtype == bool:
            assert set(map(float, got)) <= {0.0, 1.0}, "storing a bool tests nothing"
        with np.errstate(all="ignore"):
            exact = want.dtype == np.float64
            got = np.asarray(got, np.float64) if exact else rounded(np.asarray(got), DType.of(want.dtype))
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


IN_F32 = {"schedule_cosine": 3e-7}  # by a series that is as long as f32 needs


@pytest.mark.parametrize("number, rtol", [(np.float32, 3e-6), (np.float64, 1e-12)], ids=["f32", "f64"])
@pytest.mark.parametrize("schema", FLOATS, ids=name)
def test_on_random_values(schema, number, rtol):
    for attrs in different_attrs(schema):
        if schema.name == "convert" and number is np.float64:
            continue  # the reference rounds to the new type, the function leaves that to the store
        sample = {"shapes": [(ELEMENTS,)] * arity(schema), "attrs": attrs}
        arrays = operands(schema, sample, exact=number is np.float64)
        check(schema, arrays, attrs, number, max(rtol, IN_F32.get(schema.name, 0.0)))


@pytest.mark.parametrize("schema", FLOATS, ids=name)
def test_on_nan_infinities_zeros_and_subnormals(schema):
    for attrs in different_attrs(schema):
        if schema.name == "convert" and attrs["dtype"].kind == "int":
            continue  # unspecified for what does not fit
        sample = {"shapes": [(ELEMENTS,)] * arity(schema), "attrs": attrs}
        arrays = specials(schema, operands(schema, sample), np.random.default_rng(1))
        check(schema, arrays, attrs, np.float32, 3e-6)


@pytest.mark.parametrize("schema", FLOATS, ids=name)
def test_infinities_mean_the_same_in_both_precisions(schema):
    """Combinations of NaN, infinities, zeros and drawn numbers: f32 and f64 are NaN, or infinite, at the same places. A limit that is 0
    may not be a tiny number in one of them, which an infinity times it shows."""
    rng = np.random.default_rng()
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, *rng.normal(size=2)])
    for attrs in different_attrs(schema):
        if schema.name == "convert":
            continue  # another type's infinities
        count = len(values) ** min(arity(schema), 3)  # all pairs, and all threes
        arrays = operands(schema, {"shapes": [(count,)] * arity(schema), "attrs": attrs})
        for n, (decl, array) in enumerate(zip(schema.declared(len(arrays)), arrays)):
            if array.dtype.kind == "f" and decl.type.name != "f32":
                digit = np.arange(count) // len(values) ** n if n < 3 else rng.integers(count, size=count)
                array[:] = values[digit % len(values)]
        wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
        with np.errstate(all="ignore"):
            f32, f64 = (
                schema.call_reference(given, packed(schema, given, attrs)) for given in (arrays, wide)
            )
        for a, b in zip(f32, f64):
            if a.dtype.kind == "f":
                np.testing.assert_array_equal(*(np.where(np.isfinite(x), 0, x) for x in (a, b)))


@pytest.mark.parametrize("schema, dtype", OTHERS, ids=name)
def test_on_integers_and_bools(schema, dtype):
    for attrs in different_attrs(schema):
        arrays = operands(schema, {"shapes": [(ELEMENTS,)] * arity(schema), "attrs": attrs}, dtype)
        check(schema, arrays, attrs, dtype.numpy.type, 0)


@pytest.mark.parametrize("op", ["add", "sub", "mul", "neg", "abs", "square"])
def test_integers_wrap(op):
    schema, least = schema_of(op), np.iinfo(np.int32).min
    arrays = [np.array([least, least, 2**31 - 1], np.int32)] * arity(schema)
    check(schema, arrays, {}, np.int32, 0)


@pytest.mark.parametrize("op", ["neg", "copy", "abs", "scale", "convert"])
def test_signs_of_zeros(op):
    """What assert_allclose does not see."""
    schema = schema_of(op)
    attrs = schema.sample_specs[0]["attrs"]
    arrays = [np.array([0.0, -0.0], np.float32)] * arity(schema)
    (got,) = evaluate(schema, arrays, attrs, np.float32)
    (want,) = schema.call_reference(arrays, schema.pack(attrs))
    assert np.array_equal(np.signbit(got), np.signbit(want))


def test_flops_are_counted():
    assert schema_of("add").flops == 1
    assert schema_of("gelu").flops > schema_of("relu").flops
