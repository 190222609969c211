"""Python's and NumPy's numbers beside tensors: rounded at most, never cut, wrapped or made infinite (E6)."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import AttrError, RegistryError, StateError, TypeInferenceError, VerifyError
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.ops.schema import Int, Number, elementwise, schema_of, unregister

from .chains import model_of

INF, NAN = float("inf"), float("nan")


def emit(op, number, dtype):
    ctx = GraphEmitter(Builder(), "cpu")
    x = ctx.input("x", (3,), dtype)
    return ctx.op(op, x, number)


REFUSED = [  # op, number, type, what is wrong, what to write
    ("mul", 2.5, "i32", "i32 is a type of integers", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("mul", np.float32(2.5), "i64", "i64 is a type of integers", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("mul", 2.0, "i32", "i32 is a type of integers", "write 2$"),
    ("add", 2**40, "i32", "i32 reaches from -2147483648 to 2147483647", r"ctx.convert\(x, dtype=aicf.i64\)"),
    ("add", np.int64(-(2**31) - 1), "i32", "i32 reaches from", r"ctx.convert\(x, dtype=aicf.i64\)"),
    ("add", 2**70, "i32", "i32 reaches from", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("add", 2**70, "i64", "i64 reaches from", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("add", 10**400, "f32", "the greatest f32 is", r'write float\("inf"\)'),
    ("maximum", NAN, "i32", "i32 has no nan", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("minimum", INF, "i64", "i64 has no inf", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("mul", 70000.0, "f16", "the greatest f16 is 65504", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("mul", 65520, "f16", "the greatest f16 is 65504", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("mul", -1e39, "f32", r"the greatest f32 is 3.40282e\+38", r'write -float\("inf"\)'),
    ("equal", 3, "bool", "a bool is True or False", "write True or False"),
    ("equal", 500.0, "f8e4m3", "the greatest f8e4m3 is 448", r"ctx.convert\(x, dtype=aicf.f32\)"),
    ("equal", INF, "f8e4m3", "f8e4m3 has no infinity", r"ctx.convert\(x, dtype=aicf.f32\)"),
]  # fmt: skip


@pytest.mark.parametrize("op, number, dtype, reason, advice", REFUSED, ids=range(len(REFUSED)))
def test_a_number_that_its_type_does_not_hold_is_refused_with_what_to_write(
    op, number, dtype, reason, advice
):
    with pytest.raises(TypeInferenceError) as caught:
        emit(op, number, dtype)
    message = str(caught.value)
    assert re.match(rf"{op}: b is .* where {dtype} is needed: {reason}", message), message
    assert re.search(rf"next: {advice}", message), message
    assert re.search(r"\n  at: \S*test_numbers.py:\d+\n", message), message
    assert type(number).__name__ in message


@pytest.mark.parametrize(
    "op, number, dtype",
    [("add", True, "i32"), ("add", np.int64(5), "i32"), ("add", -(2**31), "i32"), ("add", 2**63 - 1, "i64"),
     ("mul", 0.1, "f16"), ("mul", 65519.0, "f16"), ("mul", 2049, "f16"), ("mul", INF, "f16"), ("mul", NAN, "bf16"),
     ("mul", 3.4028235e38, "f32"), ("mul", 1e-50, "f32"), ("mul", 2**70, "f32"), ("equal", True, "bool"),
     ("equal", 0, "bool"), ("equal", 448, "f8e4m3"), ("equal", INF, "f8e5m2"), ("mul", np.longdouble(2), "f32")],
)  # fmt: skip
def test_what_is_rounded_at_most_is_taken(op, number, dtype):
    assert emit(op, number, dtype) is not None


@pytest.mark.parametrize("advised", [lambda ctx, x: ctx.convert(x, dtype=aicf.f32), lambda ctx, x: x])
def test_the_advice_works(advised):
    """2.5 beside integers, converted as the message says; and an integer."""
    number = 2.5 if advised.__code__.co_names else 2

    def layer(ctx, x):
        i = ctx.convert(x, dtype=aicf.i32)
        return ctx.convert(ctx.mul(advised(ctx, i), number), dtype=aicf.f32)

    x = np.array([[1.0, 3.0, -5.0, 7.0]], np.float32)
    got = aicf.compile(model_of(layer, 4, 1), device="cpu").run({"x": x})["output"].numpy()
    np.testing.assert_array_equal(got, x * number)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**62) - 3, 2**63 - 1])
def test_great_integers_keep_every_digit_beside_i64(value):
    def layer(ctx, x):
        i = ctx.convert(ctx.mul(x, 0.0), dtype=aicf.i64)
        ctx.builder.output("exact", ctx.add(i, value))
        return x

    program = aicf.compile(model_of(layer, 4, 1), device="cpu")
    got = program.run({"x": np.zeros((1, 4), np.float32)})["exact"].numpy()
    assert got.tolist() == [[value] * 4]


@pytest.mark.parametrize(
    "number, dtype, want",
    [(1 + 2**-8 + 2**-30, "bf16", 1 + 2**-7), (2**60 + 2**52 + 1, "bf16", 2**60 + 2**53), (2**60 + 2**36 + 1, "f32", 2**60 + 2**37),
     (1 + 2**-24 + 2**-50, "f32", 1 + 2**-23), (1 + 2**-11 + 2**-40, "f16", 1 + 2**-10)],
)  # fmt: skip
def test_a_number_is_rounded_once(number, dtype, want):
    """By way of another float each of these is a tie there, and would go to the even neighbour."""

    def layer(ctx, x):
        ctx.builder.output("constant", ctx.copy(ctx.constant(number, dtype)))
        return x

    program = aicf.compile(model_of(layer, 4, 1), device="cpu")
    assert float(program.run({"x": np.zeros((1, 4), np.float32)})["constant"]) == want


@pytest.mark.parametrize(
    "made, error, said",
    [
        (lambda ctx, x: ctx.constant(0.5, aicf.i32), TypeInferenceError, "constant: value is 0.5 where i32"),
        (lambda ctx, x: ctx.constant("3"), VerifyError, "ctx.constant: value is a str"),
        (lambda ctx, x: ctx.state("n", (), 2.5, aicf.i32), TypeInferenceError, "state: 0.n is 2.5 where i32"),
        (lambda ctx, x: ctx.scale(x, factor=1e39), AttrError, r"scale: attribute factor is 1e\+39"),
        (lambda ctx, x: ctx.scale(x, factor=10**400), AttrError, "factor is an integer of 1329 bits"),
        (lambda ctx, x: ctx.fill(shape=(2,), value=70000.0, dtype=aicf.f16), TypeInferenceError, "fill C2: value is 70000: the"),
        (lambda ctx, x: ctx.fill(shape=(2,), value=NAN, dtype=aicf.i64), TypeInferenceError, "fill C2: value is nan: i64 has no"),
        (lambda ctx, x: ctx.fill(shape=(2,), value=2**40, dtype=aicf.i32), TypeInferenceError, "fill C2: value is 1099511627776"),
    ],
)  # fmt: skip
def test_constants_attributes_and_fill_values_are_held_to_the_same(made, error, said):
    with pytest.raises(error, match=said):
        model_of(lambda ctx, x: made(ctx, x))


def test_op_call_holds_attributes_to_the_same():
    x = np.ones(3, np.float32)
    with pytest.raises(AttrError, match=r"factor is 1e\+39\n *expected: a number of f32"):
        aicf.op_call("scale", [x], [x.copy()], {"factor": 1e39})
    y = np.empty(2, np.int32)
    with pytest.raises(TypeInferenceError, match=r"fill C2: value is 2.5"):
        aicf.op_call("fill", [], [y], {"shape": (2,), "value": 2.5, "dtype": aicf.i32})


@pytest.mark.parametrize(
    "init, dtype, said",
    [(nn.init.constant(2.5), "i32", "makes 2.5: i32 is a type of integers"), (nn.init.constant(7e4), "f16", "makes 70000.0: the"),
     (lambda shape, rng: np.full(shape, 2**40), "i32", "makes 1099511627776: i32 reaches"),
     (lambda shape, rng: np.full(shape, NAN), "i64", "makes nan: i64 has no nan")],
)  # fmt: skip
def test_initial_values_are_held_to_the_same(init, dtype, said):
    model = model_of(lambda ctx, x: (ctx.state("s", (2,), init, dtype), ctx.relu(x))[1])
    with pytest.raises(StateError, match=rf"the initializer of 0.s {said}"):
        aicf.compile(model, device="cpu")


@pytest.fixture
def clamp():
    @elementwise("clamp_number", types=Number)
    def clamp_number(x, *, low: float = 0.0, high: float = 1.0):
        """x within bounds."""
        return min(max(x, low), high)

    clamp_number.reference(lambda x, low, high: np.clip(x, x.dtype.type(low), x.dtype.type(high)))
    yield clamp_number
    unregister("clamp_number")


def test_bounds_beside_integers_are_integers(clamp):
    x, y = np.array([-3, 2, 9], np.int32), np.empty(3, np.int32)
    aicf.op_call("clamp_number", [x], [y], {"low": 0.0, "high": 5.0})
    assert y.tolist() == [0, 2, 5]
    for low, said in ((0.5, "i32 is a type of integers"), (-1e12, "i32 reaches from")):
        with pytest.raises(
            TypeInferenceError, match=rf"clamp_number types: low is .*, a constant beside i32: {said}"
        ):
            aicf.op_call("clamp_number", [x], [y], {"low": low})
    z = np.empty(3, np.float32)
    aicf.op_call("clamp_number", [x.astype(np.float32)], [z], {"low": 0.5, "high": INF})
    assert z.tolist() == [0.5, 2.0, 9.0]


def test_a_literal_of_a_scalar_function_is_held_to_the_same():
    @elementwise("halved", types=Int)
    def halved(x):
        """x / 2."""
        return x * 0.5

    try:
        with pytest.raises(
            RegistryError,
            match=r"halved has the number 0.5, and on i32 .*\n(.*\n)*  at: .*test_numbers.py:\d+",
        ):
            aicf.op_call("halved", [np.ones(3, np.int32)], [np.ones(3, np.int32)])
    finally:
        unregister("halved")


def test_variables_take_numbers_that_fit():
    def layer(ctx, x):
        return ctx.add(x, ctx.convert(ctx.state("n", (), 3, aicf.i32), dtype=aicf.f32))

    program = aicf.compile(model_of(layer), device="cpu")
    with pytest.raises(StateError, match=r"0\.n can't be 2\.5: i32 is a type of integers"):
        program.load_state_dict({"0.n": 2.5})
    program.load_state_dict({"0.n": 7})
    assert int(program.get("0.n")) == 7


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_infinities_and_nan_are_numbers_of_floats(value):
    layer = lambda ctx, x: ctx.scale(ctx.add(x, value), factor=value)  # noqa: E731
    got = (
        aicf.compile(model_of(layer, 4, 1), device="cpu")
        .run({"x": np.ones((1, 4), np.float32)})["output"]
        .numpy()
    )
    want = (1.0 + value) * value
    assert all(g == want or (math.isnan(g) and math.isnan(want)) for g in got.ravel().tolist())
    schema_of("scale").pack({"factor": value})
