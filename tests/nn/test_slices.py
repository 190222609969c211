"""The gradient of a value that is read in slices: one concatenation where they make the whole, else a sum; and what is emitted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import on_each_device


class Of(nn.Layer):
    """A function of ctx and x + shift."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def emit(self, ctx: Any, x: Any) -> Any:
        return self.function(ctx, x + ctx.param("shift", x.shape, nn.init.zeros))


def of_three(a, b, c):
    return (a * b + c) * 0.5


# name: (a function of arrays and Values alike, whether its gradient is a concatenation)
CASES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "three parts": (lambda x: of_three(x[..., :2], x[..., 2:4], x[..., 4:]), True),
    "in another order": (lambda x: of_three(x[..., 4:], x[..., :2], x[..., 2:4]), True),
    "of other sizes": (lambda x: x[:, :1] * x[:, 1:], True),
    "along the first axis": (lambda x: x[:2] - 2 * x[2:], True),
    "each alone": (lambda x: x[..., 0] * x[..., 1] + x[..., 2] * x[..., 3] - x[..., 4] * x[..., 5], True),
    "and as a whole": (lambda x: x[..., :3] * x[..., 3:] + (x * x).sum(-1, keepdims=True), True),
    "one of them twice": (lambda x: x[..., :3] * x[..., 3:] + x[..., 3:], False),
    "with a gap": (lambda x: x[..., :2] * x[..., 4:], False),
    "not to the end": (lambda x: x[..., :2] * x[..., 2:4], False),
    "over each other": (lambda x: x[..., :4] * x[..., 2:], False),
    "by steps": (lambda x: x[..., ::2] * x[..., 1::2], False),
    "along two axes": (lambda x: x[:2, :, :3] * x[2:, :, 3:], False),
    "one alone": (lambda x: x[..., 1:4] * 3.0, False),
}
SHAPE = (4, 3, 6)


@pytest.mark.spec("D13")
@pytest.mark.sample(6)
@on_each_device
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_slices_are_the_numerical_ones(name, device):
    function, _ = CASES[name]
    rng = np.random.default_rng()
    x = rng.standard_normal(SHAPE, np.float32)
    target = rng.standard_normal(function(x).shape, np.float32)
    model = nn.Model({"x": SHAPE}, Of(lambda ctx, x: function(x)))
    got = aicf.compile(model, "grad", device=device, loss=nn.MeanSquaredError())({"x": x, "y": target})
    wide = x.astype(np.float64)
    np.testing.assert_allclose(got["output"].numpy(), function(wide), rtol=1e-4, atol=1e-5)
    numeric = np.empty(SHAPE)
    for at in np.ndindex(SHAPE):
        sides = []
        for step in (1e-5, -1e-5):
            moved = wide.copy()
            moved[at] += step
            sides.append(np.mean((function(moved) - target) ** 2))
        numeric[at] = (sides[0] - sides[1]) / 2e-5
    np.testing.assert_allclose(
        got["grad.shift"].numpy(), numeric, rtol=1e-3, atol=1e-3 * np.abs(numeric).max()
    )


@pytest.mark.parametrize("name", CASES)
def test_slices_that_make_the_whole_are_put_side_by_side(name):
    function, joined = CASES[name]
    model = nn.Model({"x": SHAPE}, Of(lambda ctx, x: function(x)))
    explained = aicf.explain_for(model, "h200", "grad", loss=nn.MeanSquaredError())
    ops = " + ".join(str(region.spec.signature) for region in explained.regions).split(" + ")
    assert ("concatenate" in ops, "pad" in ops) == (joined, not joined)


# --- once -----------------------------------------------------------------------------------------------------------


class Place(nn.Layer):
    def emit(self, ctx: Any, x: Any) -> Any:
        rows = x.shape[0]
        return x + ctx.once(("places", rows), lambda: ctx.iota(shape=(rows, 1), axis=0, dtype=aicf.f32))


def test_what_several_layers_ask_for_is_emitted_once():
    model = nn.Model({"x": aicf.TensorSpec(("rows", 2))}, rows=3)
    for _ in range(3):
        model.add(Place())
    assert [op.kind for op in model.graph.ops] == ["iota", "add", "add", "add"]
    program = aicf.compile(model, device="cpu")
    for rows in (3, 5):
        got = program({"x": np.zeros((rows, 2), np.float32)})["output"].numpy()
        np.testing.assert_array_equal(got, 3.0 * np.arange(rows)[:, None] * np.ones(2))


def test_a_layer_that_is_refused_takes_along_what_it_made_once():
    class Bad(Place):
        def emit(self, ctx: Any, x: Any) -> Any:
            super().emit(ctx, x)
            raise ValueError("no")

    model = nn.Model({"x": (3, 2)})
    with pytest.raises(ValueError, match="no"):
        model.add(Bad())
    model.add(Place())
    assert [op.kind for op in model.graph.ops] == ["iota", "add"]
    assert aicf.compile(model, device="cpu")({"x": np.ones((3, 2), np.float32)})["output"].shape == (3, 2)


def test_once_makes_a_value():
    with pytest.raises(VerifyError, match=r"ctx\.once: 'places' is a int"):
        nn.Model({"x": (3, 2)}, Of(lambda ctx, x: x + ctx.once("places", lambda: 3)))


# --- tables ---------------------------------------------------------------------------------------------------------


def squares(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.arange(shape[0]) ** 2.0


def test_a_table_is_one_array_of_all_layers_and_in_no_state_dict():
    def emit(ctx: Any, x: Any) -> Any:
        return x * ctx.table("squares", (4,), squares) + ctx.table("squares", (4,), squares)

    program = aicf.compile(nn.Model({"x": (2, 4)}, Of(emit)), device="cpu")
    got = program({"x": np.ones((2, 4), np.float32)})["output"].numpy()
    np.testing.assert_array_equal(got, [[0, 2, 8, 18]] * 2)
    assert list(program.state_dict()) == ["shift"]


def test_a_table_of_two_types_is_refused():
    def emit(ctx: Any, x: Any) -> Any:
        return x * ctx.table("squares", (4,), squares) + ctx.table("squares", (2,), squares)

    with pytest.raises(VerifyError, match=r"there is a table const\.squares(.|\n)*tensor<2xf32>"):
        nn.Model({"x": (2, 4)}, Of(emit))
