"""Gradient rules, run op by op on f64 arrays, against central differences of the references."""

import numpy as np
import pytest
from draws.seeds import rng

from aicf.ops.schema import schema_of, schemas
from aicf.types import ActKind, DType, bf16, f16, f32
from examples import EVERYTHING

from .numpy_emitter import NumpyEmitter, call_gradient
from .sampling import name, operands, packed, spec, types_of

DIFFERENTIABLE = [s for s in schemas() if s.gradient_fn is not None]
GRADIENTLESS = {  # floats in, floats out, and nothing to differentiate
    "adagrad_slowing", "adagrad_step", "adam_correction", "adam_step", "amsgrad_step", "lamb_step", "lamb_trust", "lamb_update", "lion_step", "rmsprop_centered_step", "rmsprop_step",
    "add_gradient", "all_reduce", "broadcast_from", "cache_write", "mean_gradient", "check_labels", "clip_scale", "fill", "scale_gradient", "schedule_cosine", "schedule_linear", "schedule_step", "while_loop",
    "sgd_step", "gelu_erf_grad", "gelu_grad", "leaky_relu_grad", "relu_grad", "sigmoid_grad", "silu_grad", "attention_grad", "attention_bias_grad", "linear_cross_entropy_grad",
    "loss_scale_step", "sum_of_squares", "muon_momentum", "muon_norm", "muon_step", "refresh_copy", "ctc_loss_grad",
    "cross_entropy_grad", "tanh_grad", "number", "l2_normalize_grad", "layer_norm_grad", "log_softmax_grad", "rms_norm_grad", "softmax_grad",
}  # fmt: skip


def prepared(schema, sample, dtype=DType.f32, exact=True):
    """(operands, attributes, results, cotangents of the float results that a caller gets), all random."""
    arrays = operands(schema, sample, dtype, exact=exact)
    attrs = packed(schema, arrays, sample["attrs"])
    results = schema.call_reference(arrays, attrs)
    draw = np.random.default_rng(7)
    cotangents = [
        draw.normal(size=r.shape).astype(r.dtype) if spec(r).dtype.kind == "float" else None
        for r in results[: schema.public or None]
    ]
    return arrays, attrs, results, cotangents


def numeric(schema, arrays, attrs, cotangents, position, index, step=1e-6):
    """d <cotangents, op(arrays)> / d arrays[position][index]."""

    def value(shift):
        moved = [None if a is None else a.copy() for a in arrays]
        moved[position][index] += shift
        return sum(
            np.vdot(c, r) for c, r in zip(cotangents, schema.call_reference(moved, attrs)) if c is not None
        )

    return (value(step) - value(-step)) / (2 * step)


# a rounding is a staircase: its gradient, which passes, is not the difference, and straight_through's is meant for such; what is stopped has
# one that does not pass
CASES = [
    (s, sample)
    for s in DIFFERENTIABLE
    if s.name not in ("convert", "stop_gradient", "straight_through")
    for sample in s.sample_specs
]


@pytest.mark.sample(2, each="schema")
@pytest.mark.spec("D13")
@pytest.mark.parametrize("schema, sample", CASES, ids=name)
def test_against_central_differences(schema, sample, request):
    """At 8 drawn elements of each operand, or at 25."""
    arrays, attrs, results, cotangents = prepared(schema, sample)
    grads = call_gradient(schema, arrays, results, cotangents, attrs)
    assert len(grads) == len(schema.declared(len(arrays)))
    draw = rng(request.node.nodeid)
    for position, (array, grad) in enumerate(zip(arrays, grads)):
        operand = schema.declared(len(arrays))[position].name
        if array is None or array.dtype != np.float64 or (schema.name, operand) in TABLES:
            assert grad is None, f"{operand} has no gradient"
            continue
        if grad is None:  # of what changes by jumps alone
            grad = np.zeros(array.shape)
        assert grad.shape == array.shape
        for flat in draw.permutation(array.size)[: 25 if EVERYTHING else 8]:
            index = np.unravel_index(flat, array.shape)
            want = numeric(schema, arrays, attrs, cotangents, position, index)
            assert grad[index] == pytest.approx(want, rel=1e-6, abs=1e-6), (
                schema.declared(len(arrays))[position].name,
                index,
            )


TABLES = {("resample", "weights"), ("resample", "back_weights")}  # constants, by what the op says
DIFFERENTIATED = f32, f16, bf16  # fp8 is not


@pytest.mark.sample(2, each="schema")
@pytest.mark.parametrize("schema, sample", CASES, ids=name)
def test_a_gradient_has_its_operands_type(schema, sample, request):
    """In a drawn one of the types, or in all."""
    dtypes = [t for t in types_of(schema) if t in DIFFERENTIATED]
    for dtype in dtypes if EVERYTHING or not dtypes else [rng(request.node.nodeid).choice(dtypes)]:
        arrays, attrs, results, cotangents = prepared(schema, sample, dtype, exact=False)
        for array, grad in zip(arrays, call_gradient(schema, arrays, results, cotangents, attrs)):
            assert grad is None or spec(grad) == spec(array), dtype


def test_every_op_that_has_a_gradient_states_it():
    floats = {
        s.name for s in schemas() if s.origin == "aicf" and any(r.dtype.kind == "float" for r in _results(s))
    }
    composed = {
        s.name for s in schemas() if s.instead_fn is not None
    }  # of others, which have theirs: test_composed.py
    assert floats - composed - {s.name for s in DIFFERENTIABLE} == GRADIENTLESS


def _results(schema):
    arrays = operands(schema, schema.sample_specs[0])
    return schema.infer([spec(a) for a in arrays], packed(schema, arrays, schema.sample_specs[0]["attrs"]))


@pytest.mark.spec("D3")
@pytest.mark.parametrize("act", [a.name for a in ActKind if a], ids=str)
def test_an_activations_backward_is_one_kernel(act):
    schema, emit = schema_of(act), NumpyEmitter()
    arrays, attrs, results, cotangents = prepared(schema, schema.sample_specs[0])
    call_gradient(schema, arrays, results, cotangents, attrs, emit)
    assert emit.emitted == [f"{act}_grad"]


def gradient_at(op, *arrays, dy=None, **attrs):
    schema = schema_of(op)
    packed_attrs = packed(schema, arrays, attrs)
    results = schema.call_reference(arrays, packed_attrs)
    cotangents = [np.ones_like(results[0]) if dy is None else dy]
    return call_gradient(schema, arrays, results, cotangents, packed_attrs)


def test_ties_share_the_gradient():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 0.0])
    for op, wants in [("maximum", ([0.5, 0, 1], [0.5, 1, 0])), ("minimum", ([0.5, 1, 0], [0.5, 0, 1]))]:
        for got, want in zip(gradient_at(op, a, b), wants):
            assert np.array_equal(got, want)
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    (got,) = gradient_at("reduce_max", x, axes=(1,))
    assert np.array_equal(got, [[0, 0.5, 0.5], [1, 0, 0]])
    (got,) = gradient_at("reduce_min", -x, axes=(1,))
    assert np.array_equal(got, [[0, 0.5, 0.5], [1, 0, 0]])
    (got,) = gradient_at("reduce_max", np.ones((2, 2)))
    assert np.array_equal(got, np.full((2, 2), 0.25))


def test_convert_passes_gradients_between_floats():
    x, dy = np.array([0.1, 2.0], np.float16), np.array([1.5, -1.0], np.float32)
    (got,) = gradient_at("convert", x, dy=dy, dtype=DType.f32.id)
    assert got.dtype == np.float16 and np.array_equal(got, dy)
    assert gradient_at("convert", np.array([1, 2], np.int32), dy=dy, dtype=DType.f32.id) == [None]


def test_kinks():
    x = np.array([-1.0, -0.0, 0.0, 1.0])
    assert np.array_equal(gradient_at("abs", x)[0], [-1, 0, 0, 1])
    assert np.array_equal(gradient_at("relu", x)[0], [0, 0, 0, 1])
    assert np.array_equal(gradient_at("leaky_relu", x, slope=0.5)[0], [0.5, 0.5, 0.5, 1])
    assert np.array_equal(gradient_at("elu", x[1:], alpha=0.5)[0], [0.5, 0.5, 1])
    ends = np.array([-3.0, -2.9, 2.9, 3.0])
    assert np.allclose(gradient_at("hard_sigmoid", ends)[0], [0, 1 / 6, 1 / 6, 0])
    assert np.allclose(gradient_at("hard_swish", ends)[0], [-0.5, 0.5 - 2.9 / 3, 0.5 + 2.9 / 3, 1.5])


def test_a_clamp_s_gradient_at_and_beyond_its_ends_is_pytorch_s():
    """To x within the bounds, both included; where they cross, to the upper one alone."""
    x = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
    low, x_, high = gradient_at("clamp", np.full(5, -1.0), x, np.full(5, 1.0))
    assert np.array_equal(low, [1, 0, 0, 0, 0]) and np.array_equal(high, [0, 0, 0, 0, 1])
    assert np.array_equal(x_, [0, 1, 1, 1, 0])
    low, x_, high = gradient_at("clamp", np.full(5, 1.0), x, np.full(5, -1.0))
    assert not low.any() and not x_.any() and np.array_equal(high, np.ones(5))


def test_gelus_gradient_stays_finite_for_every_finite_operand():
    x = np.array([1e38, 1e20, 1e7, 11, 10, -10, -11, -1e7, -1e20, -1e38], np.float32)
    assert np.allclose(gradient_at("gelu", x)[0], [1] * 5 + [0] * 5, atol=1e-6)


@pytest.mark.parametrize(
    "like, g", [((5,), (4, 5)), ((1, 5), (4, 5)), ((4, 1), (3, 4, 5)), ((), (2, 3)), ((2,), (2,))]
)
def test_unbroadcast_emits_at_most_one_reduction(like, g):
    schema, emit = schema_of("add"), NumpyEmitter()
    a, b = np.zeros(like), np.zeros(g)
    grads = call_gradient(schema, [a, b], [a + b], [np.ones(g)], {}, emit)
    assert [grad.shape for grad in grads] == [like, g]
    assert np.all(grads[0] == np.prod(g) / np.prod(like))
    assert emit.emitted.count("reduce_sum") == (like != g)


def test_a_scaled_gradient_is_not_rounded_by_its_type():
    """1 / 100000 is no f16, but a mean over that many elements has it as its gradient all the same."""
    (got,) = gradient_at("reduce_mean", np.zeros(100_000, np.float16), dy=np.array(100.0, np.float16))
    assert np.all(got == np.float16(1e-3))


def test_a_row_of_minus_infinity_has_no_gradient_of_logsumexp():
    x = np.array([[-np.inf, -np.inf], [-np.inf, 2], [0, 0]])
    y = np.array([[-np.inf], [2], [np.log(2)]])
    (dx,) = call_gradient(schema_of("logsumexp"), [x], [y], [np.ones((3, 1))], {"axis": 1})
    np.testing.assert_allclose(dx, [[0, 0], [0, 1], [0.5, 0.5]], rtol=1e-12)
