"""What constants decide is decided before anything runs: numbers, selections, checks of indices. What data decides stays."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf.frontends.imported import Imported
from aicf.graph.emit.evaluate import evaluate

from .spelt import Spelt


def test_numbers_that_follow_from_numbers():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3, 4)
    count = c.sub(c.constant(4.0), c.convert(c.constant(1, "i32"), dtype="f32"))
    y = c.div(c.reduce_sum(x, axes=(1,), keepdims=True), count)
    assert s.found(y) == [] and s.decided == ["a number", "a number"]
    assert s.kinds == ["reduce_sum", "div"]


def test_numbers_keep_their_type_s_rounding():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3)
    y = c.mul(x, c.convert(c.convert(c.constant(0.1), dtype="bf16"), dtype="f32"))
    s.found(y)
    assert s.kinds == ["mul"]
    assert evaluate(s.builder.graph, s.fed)[y] == pytest.approx(s.fed[x] * 0.10009765625)


@pytest.mark.parametrize("shape", [(), (1, 4), (3, 4)])
def test_selections_by_what_is_the_same_everywhere(shape):
    s = Spelt()
    c, x = s.ctx, s.input("x", 3, 4)
    condition = c.greater(c.iota(shape=shape, axis=0, dtype="i32") if shape else c.constant(1.0), -1)
    y = c.tanh(c.select(condition, x, math.nan))
    z = c.tanh(c.select(c.logical_not(condition), 1.0, x))
    assert s.found(y, z) == []
    assert s.kinds == ["tanh", "tanh"]


def test_selections_that_data_or_elements_decide_stay():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3, 4)
    some = c.greater(c.iota(shape=(3, 4), axis=1, dtype="i32"), 1)
    y = c.tanh(c.select(some, x, 0.0))
    z = c.tanh(c.select(c.greater(s.input("flag"), 0.0), x, 0.0))
    wide = c.tanh(c.select(c.greater(c.constant(1.0), 0.0), s.input("row", 4), x))  # repeated by it
    assert s.found(y, z, wide) == []
    assert s.kinds.count("select") == 3


def test_what_is_returned_is_made():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3)
    y = c.select(c.greater(c.constant(1.0), 0.0), c.tanh(x), x)
    assert s.found(y, c.add(c.constant(1.0), 1.0)) == [] and s.decided == ["a number"]
    assert s.kinds == ["tanh", "select", "add"] and s.builder.graph.outputs[0] is y


def test_arrays_of_one_number_are_that_number():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3, 4)
    zeros = c.fill(shape=(3, 4), value=0.0, dtype="f32")
    ones = c.broadcast_in_dim(c.constant(1.0), shape=(3, 4), dims=())
    y = c.select(c.greater(x, zeros), c.add(x, ones), zeros)
    assert s.found(y) == [] and s.decided == ["an array of one number"] * 3
    assert s.kinds == ["greater", "add", "select"]


def test_numbers_that_were_filled_are_rounded_to_their_type():
    s = Spelt()
    c, x = s.ctx, s.input("x", 3)
    y = c.mul(x, c.convert(c.fill(shape=(), value=0.1, dtype="bf16"), dtype="f32"))
    s.found(y)
    assert s.kinds == ["mul"]
    assert evaluate(s.builder.graph, s.fed)[y] == pytest.approx(s.fed[x] * 0.10009765625)


def test_arrays_that_give_a_result_its_shape_stay():
    s = Spelt()
    c, x = s.ctx, s.input("x", 4)
    y = c.add(x, c.fill(shape=(3, 4), value=1.0, dtype="f32"))
    assert s.found(y, c.add(c.fill(shape=(2,), value=1.0, dtype="f32"), 1.0)) == []
    assert s.kinds.count("fill") == 2


def gathered(first, bound):
    """x[first + 3, first + 2, …], of a table of `bound` rows."""

    def body(ctx, inputs, weights):
        places = ctx.sub(first + 3, ctx.iota(shape=(4,), axis=0, dtype="i32"))
        return ctx.gather(inputs["x"], places, axis=0)

    return Imported({"x": aicf.TensorSpec((bound, 2))}, body)


@pytest.mark.parametrize(
    "first, bound, checked", [(0, 4, False), (-4, 4, False), (1, 4, True), (-5, 4, True)]
)
def test_checks_of_indices_that_are_known(first, bound, checked):
    program = aicf.compile(gathered(first, bound), device="cpu")
    assert ("check_indices" in str(program.explain())) is checked
    x = np.arange(2.0 * bound, dtype=np.float32).reshape(bound, 2)
    if checked:
        with pytest.raises(aicf.errors.OutOfBoundsError):
            program({"x": x})
    else:
        np.testing.assert_array_equal(
            program({"x": x})["output"].numpy(), x[np.arange(first + 3, first - 1, -1)]
        )


def test_checks_stay_where_the_graph_is_trained_and_with_strict_numerics():
    assert "check_indices" in str(aicf.compile(gathered(0, 4), device="cpu", numerics="strict").explain())
    model = Imported(
        {"x": aicf.TensorSpec((4, 2))},
        lambda ctx, inputs, weights: ctx.gather(weights["w"], ctx.sub(3, ctx.iota(shape=(4,), axis=0, dtype="i32")), axis=0) * inputs["x"],
        {"w": aicf.frontends.imported.Weight.of(np.ones((4, 2), np.float32))},
    )  # fmt: skip
    asked = {"device": "cpu", "loss": aicf.nn.MeanSquaredError(), "optimizer": aicf.nn.SGD(lr=0.5)}
    program = aicf.compile(model, "train", **asked)
    ones = np.ones((4, 2), np.float32)
    losses = [float(program({"x": ones, "y": 0 * ones})["loss"].numpy()) for _ in range(3)]
    assert losses[0] == 1 and losses[-1] < losses[0]


def test_it_is_told():
    text = str(aicf.explain_for(gathered(0, 4), "h200"))
    assert "recognised  what constants decide 1 × (a check of indices)" in text
