"""Reductions on the host: any sum, mean or max over neighbouring axes, with maps before and after (A12, A15)."""

from __future__ import annotations

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS
from draws.ops import OpCase, check
from draws.seeds import rng

from aicf.device.spec import host
from aicf.types import bf16, f16, f32, i32, i64

from .regions import VARIANTS, Graph, normal, with_specials

REDUCE = "reduce_loop"
HOWS = ["reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min"]
# shape, axes: rows, columns, all, middle, blocks of rows that are longer and shorter than a block, empty
DOMAINS = [
    ((4, 7), (1,)), ((4, 7), (0,)), ((4, 7), ()), ((), ()), ((1,), (0,)), ((2, 3, 5), (1,)), ((2, 3, 5), (0, 1)),
    ((2, 3, 5), (1, 2)), ((3, 9001), (1,)), ((3, 9001), (0,)), ((2000, 3), (0,)), ((2000, 3), (1,)), ((7, 1, 33), (0, 2)),
    ((3, 257), (1,)), ((3, 1, 5), (1,)), ((3, 0), (1,)), ((0, 3), (0,)), ((2, 4097, 2), (1,)),
]  # fmt: skip


def reduced(x, how, axes, keepdims=False, **more):
    return Graph({"x": x}, (how, "x", "y", {"axes": axes, "keepdims": keepdims}), **more)


@pytest.mark.sample(4)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("shape, axes", DOMAINS, ids=str)
def test_reductions_alone(shape, axes, how):
    reduced(normal(*shape), how, axes).check(REDUCE)
    reduced(normal(*shape), how, axes, keepdims=True).check(REDUCE)


@pytest.mark.spec("A12")
def test_reductions_with_drawn_empty_and_unit_extents_write_their_results_alone(request):
    """Without columns there is nothing to write; the memory around a result is checked."""
    draw = rng(request.node.nodeid)
    cases = [((300, 3, 0), (1,)), ((3, 300, 0), (0,))]
    for _ in range(10):
        shape = draw.choice([0, 1, 3, 300], draw.integers(2, 5), p=[0.3, 0.3, 0.3, 0.1]).tolist()
        low, high = sorted(draw.choice(len(shape) + 1, 2, replace=False))
        cases.append((tuple(shape), tuple(range(low, high))))
    for shape, axes in cases:
        case = OpCase("reduce_sum", (f32,), (shape,), (("axes", axes),), ("dense",))
        assert not (said := check(case)), f"{case}: {said}"


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("how", ["reduce_sum", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("dtype", [i32, i64, f16, bf16], ids=str)
@pytest.mark.parametrize("shape, axes", [((5, 77), (1,)), ((77, 5), (0,)), ((3, 0), (1,))], ids=str)
def test_other_types(dtype, how, shape, axes):
    reduced(normal(*shape, dtype=dtype), how, axes).check(REDUCE)


@pytest.mark.spec("A12")
def test_integers_wrap():
    x = np.full((3, 5), 2**30, np.int32)
    (got,) = reduced(x, "reduce_sum", (1,)).run(REDUCE)
    np.testing.assert_array_equal(got, x.sum(1, dtype=np.int32))


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("shape, axes", DOMAINS, ids=str)
def test_maps_before_and_after(shape, axes, how):
    operands = {"x": normal(*shape), "w": normal(*shape[-1:]), "eps": np.float32(0.5)}
    operands = {k: np.asarray(v) for k, v in operands.items()}
    steps = [
        ("mul", "x w", "p", {}), ("square", "p", "q", {}), (how, "q", "m", {"axes": axes}), ("add", "m eps", "e", {}),
        ("sqrt", "e", "y", {}),
    ]  # fmt: skip
    Graph(operands, *steps, keep="p m y").check(REDUCE, 1e-5)
    Graph(operands, *steps).check(REDUCE, 1e-5)


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("dtype, tolerance", [(f32, None), (f16, 2e-3), (bf16, 2e-2)], ids=str)
def test_the_gradient_of_a_bias_beside_that_of_an_activation(dtype, tolerance):
    operands = {"dy": normal(65, 34, dtype=dtype), "y": normal(65, 34, dtype=dtype)}
    Graph(
        operands, ("relu_grad", "dy y", "g", {}), ("reduce_sum", "g", "b", {"axes": (0,)}), keep="g b"
    ).check(REDUCE, tolerance)


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_of_every_layout(layout):
    for shape, axes in (((4, 7), (1,)), ((4, 7), (0,)), ((2, 3, 65), (1, 2)), ((2, 3, 65), (1,))):
        reduced(LAYOUTS[layout](normal(*shape)), "reduce_sum", axes).check(REDUCE)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("axes", [(0,), (1,)])
@pytest.mark.parametrize("how", HOWS)
def test_not_a_number_and_the_infinities_count(how, axes):
    x = normal(40, 50)
    x[3, 4], x[7, 8], x[9, 10] = np.nan, np.inf, -np.inf
    reduced(x, how, axes).check(REDUCE)
    Graph({"x": with_specials(x)}, ("neg", "x", "n", {}), (how, "n", "y", {"axes": axes})).check(REDUCE)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_long_sums_are_at_least_as_exact_as_numpys(axes):
    x = (normal(300, 300_00 // 10) + np.float32(1000)).astype(np.float32)
    (got,) = reduced(x, "reduce_sum", axes).run(REDUCE)
    exact = x.sum(axes, dtype=np.float64)
    assert np.abs(got - exact).max() <= np.abs(x.sum(axes) - exact).max()


@pytest.mark.sample(2)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("how", ["reduce_sum", "reduce_mean"])
@pytest.mark.parametrize(
    "shape, axes", [((5, 9001), (1,)), ((5, 100), (1,)), ((900, 7), (0,)), ((3, 9001), (0,))]
)
def test_strict_numbers_are_those_of_the_ops_apart_bit_for_bit(shape, axes, how):
    """What is fused before and after a sum does not change the order it is added up in."""
    x, w = normal(*shape), normal(*shape[:1], *[1] * (len(shape) - 1))
    steps = [("mul", "x w", "p", {}), (how, "p", "m", {"axes": axes}), ("exp", "m", "y", {})]
    (fused,) = Graph({"x": x, "w": w}, *steps, strict=True).run(REDUCE)
    known = {"x": x, "w": w}
    for step in steps:
        apart = Graph({n: known[n] for n in step[1].split()}, step, strict=True)
        (known[step[2]],) = apart.run(REDUCE if step[0] == how else "elementwise_loop")
    assert fused.tobytes() == known["y"].tobytes()


@pytest.mark.spec("B8")
def test_axes_apart_are_refused_with_their_values():
    region = reduced(normal(2, 3, 5), "reduce_sum", (0, 2)).region
    assert (
        str(VARIANTS[REDUCE].supported(region, host()))
        == "axes (0, 2) of (2, 3, 5) are not neighbours: two loops"
    )


@pytest.mark.spec("A9")
@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_fusing_before_a_reduction_is_predicted_to_pay(axes):
    x = normal(500, 400)
    square, total = ("square", "x", "s", {}), ("reduce_sum", "s", "y", {"axes": axes})
    cost = {
        name: VARIANTS[variant].cost(Graph(dict.fromkeys(ins, x), *steps).region, host()).us
        for name, variant, ins, steps in (
            ("fused", REDUCE, "x", [square, total]), ("before", "elementwise_loop", "x", [square]), ("alone", REDUCE, "s", [total]),
        )
    }  # fmt: skip
    assert cost["fused"] < cost["before"] + cost["alone"]
