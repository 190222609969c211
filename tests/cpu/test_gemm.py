"""Products on the host with anything elementwise behind them (A12, D3-D8)."""

from __future__ import annotations

from operator import itemgetter

import numpy as np
import pytest

from aicf.device.spec import host
from aicf.types import ActKind, bf16, f16, f32

from .regions import VARIANTS, Graph, normal, with_specials

GEMM = "gemm_blas"
SIZES = [(1, 1, 1), (3, 5, 7), (33, 17, 65), (1, 9, 4), (9, 1, 4), (4, 6, 0), (0, 5, 3)]
HALF = {f32: None, f16: 4e-3, bf16: 3e-2}


def ab(m, n, k, dtype=f32, **more):
    return {"a": normal(m, k, dtype=dtype), "b": normal(k, n, dtype=dtype), **more}


PRODUCT = ("gemm", "a b", "d", {})


@pytest.fixture(params=[GEMM, "gemm_blocks"])
def gemm(request: pytest.FixtureRequest) -> str:
    """Both kernels of products."""
    return request.param


@pytest.mark.sample(2)
@pytest.mark.spec("A12", "D5")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("m, n, k", SIZES)
def test_bias_and_activation(m, n, k, dtype, gemm):
    operands = ab(m, n, k, dtype, bias=normal(n, dtype=dtype))
    Graph(operands, PRODUCT, ("bias_add", "d bias", "z", {}), ("gelu", "z", "y", {})).check(
        gemm, HALF[dtype] or 1e-5
    )


@pytest.mark.sample(1)
@pytest.mark.spec("D9")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("a, b, bias", [
    ((2, 3, 5, 7), (2, 3, 7, 4), 5), ((3, 5, 7), (7, 4), 4), ((5, 7), (3, 7, 4), 5), ((0, 5, 7), (7, 4), 4), ((2, 1, 7), (2, 7, 1), 1),
])  # fmt: skip
def test_batches(a, b, bias, dtype, gemm):
    out = (*(a[:-2] or b[:-2]), a[-2], b[-1])
    shapes = {"a": a, "b": b, "c": out, "bias": (bias,), "r": out}
    operands = {name: normal(*shape, dtype=dtype) for name, shape in shapes.items()}
    attrs = {"alpha": 0.5, "beta": -1.5, "act": ActKind.gelu, "save_preact": True}
    Graph(operands, ("gemm", "a b c bias", "d z", attrs), ("add", "d r", "y", {}), keep="z y").check(
        gemm, HALF[dtype] or 1e-5
    )


@pytest.mark.sample(2)
@pytest.mark.spec("D10")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("out", HALF, ids=str)
def test_the_results_type_is_chosen(out, dtype, gemm):
    """c and the bias have it too; alone, the product is nothing but what BLAS makes."""
    operands = ab(9, 11, 6, dtype, c=normal(9, 11, dtype=out), bias=normal(11, dtype=out))
    attrs = {"beta": 0.5, "act": ActKind.gelu, "save_preact": True, "out_dtype": out.id}
    whole = Graph(operands, ("gemm", "a b c bias", "d z", attrs), keep="d z")
    alone = Graph(ab(9, 11, 6, dtype), ("gemm", "a b", "d", {"out_dtype": out.id}))
    for graph in (whole, alone):
        assert {t.dtype for t in graph.region.results} == {out}
        graph.check(gemm, HALF[out] or 1e-5)


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D7")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("act", [ActKind.none, ActKind.relu, ActKind.tanh, ActKind.leaky_relu])
def test_what_the_op_itself_carries_and_z_kept(act, dtype, gemm):
    operands = ab(9, 11, 6, dtype, c=normal(9, 11, dtype=dtype), bias=normal(9, dtype=dtype))
    attrs = {"alpha": 0.5, "beta": -1.5, "act": act, "save_preact": True, "slope": 0.2}
    Graph(
        operands, ("gemm", "a b c bias", "d z", attrs), ("scale", "d", "y", {"factor": 3.0}), keep="d z y"
    ).check(gemm, HALF[dtype] or 1e-5)


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("keep", ["y", "d y", "d", "z y", "d z y"])
def test_a_residual_with_whatever_is_read_outside(keep, gemm):
    operands = ab(21, 34, 8, bias=normal(34), r=normal(21, 34))
    steps = [PRODUCT, ("bias_add", "d bias", "z", {}), ("add", "z r", "s", {}), ("relu", "s", "y", {})]
    Graph(operands, *steps, keep=keep).check(gemm, 1e-5)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("over", ["r", "c"])
def test_a_result_over_what_the_epilogue_reads_yet(over, gemm):
    operands = ab(21, 34, 8, c=normal(21, 34), r=normal(21, 34))
    steps = [("gemm", "a b c", "d", {"beta": 0.5}), ("mul", "d r", "y", {})]
    Graph(operands, *steps).check(gemm, 1e-5, alias={"y": over})


@pytest.mark.spec("A12", "C15")
def test_two_biases_and_dropout(gemm):
    operands = ab(40, 13, 5, first=normal(13), second=normal(40), rng=np.array([3, 4]))
    Graph(
        operands, PRODUCT, ("bias_add", "d first", "e", {}), ("bias_add", "e second", "f", {}),
        ("dropout", "f rng", "y", {"rate": 0.25, "layer": 2}), keep="f y",
    ).check(gemm, 1e-5)  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("trans_a, trans_b", [(0, 1), (1, 0), (1, 1)])
def test_the_gradient_of_an_activation_behind_a_transposed_product(trans_a, trans_b, gemm):
    a, b = normal(*((6, 19) if trans_a else (19, 6))), normal(*((8, 6) if trans_b else (6, 8)))
    operands = {"a": a, "b": b, "y": normal(19, 8)}
    attrs = {"trans_a": bool(trans_a), "trans_b": bool(trans_b), "alpha": 2.0}
    Graph(operands, ("gemm", "a b", "d", attrs), ("relu_grad", "d y", "g", {})).check(gemm, 1e-5)


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D6")
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("keep", ["g s", "s", "d g s"])
@pytest.mark.parametrize("m, n, k", [*filter(itemgetter(0), SIZES), (300, 130, 9), (5, 0, 3)])  # of some rows
def test_sums_of_the_columns_of_what_follows(m, n, k, keep, dtype, gemm):
    operands = ab(m, n, k, dtype, y=normal(m, n, dtype=dtype), c=normal(m, n, dtype=dtype))
    steps = [("gemm", "a b c", "d", {"alpha": 0.5, "beta": 2.0}), ("relu_grad", "d y", "g", {})]
    Graph(operands, *steps, ("reduce_sum", "g", "s", {"axes": (0,)}), keep=keep).check(
        gemm, HALF[dtype] or 1e-4
    )


@pytest.mark.spec("A12", "D6")
def test_sums_of_the_product_itself_with_special_values(gemm):
    operands = ab(7, 9, 4)
    operands["a"][2, 1], operands["a"][3, 2] = np.nan, np.inf
    steps = [PRODUCT, ("reduce_sum", "d", "s", {"axes": (0,), "keepdims": True})]
    Graph(operands, *steps, keep="d s").check(gemm, 1e-4)


@pytest.mark.spec("A12")
def test_operands_with_gaps(gemm):
    a, b, bias = normal(30, 22)[::2, ::3], normal(9, 8).T, normal(20)[::2][:9]
    Graph({"a": a, "b": b, "bias": bias}, PRODUCT, ("bias_add", "d bias", "y", {})).check(gemm, 1e-5)


@pytest.mark.spec("A12")
def test_an_epilogue_without_numbers_of_its_own_type(gemm):
    operands = ab(5, 6, 7, t=normal(5, 6))
    Graph(
        operands, PRODUCT, ("greater", "d t", "c", {}), ("select", "c d t", "s", {}),
        ("convert", "s", "h", {"dtype": f16.id}), keep="c h",
    ).check(gemm, 1e-3)  # fmt: skip


@pytest.mark.spec("A12")
def test_not_a_number_and_the_infinities_go_through(gemm):
    operands = ab(7, 9, 4, r=with_specials(normal(7, 9)))
    Graph(operands, PRODUCT, ("add", "d r", "s", {}), ("relu", "s", "y", {})).check(gemm, 1e-5)


@pytest.mark.sample(1)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_strict_numbers_are_those_of_the_ops_apart_bit_for_bit(dtype, gemm):
    operands = ab(19, 33, 8, dtype, bias=normal(33, dtype=dtype), r=normal(19, 33, dtype=dtype))
    steps = [PRODUCT, ("bias_add", "d bias", "z", {}), ("gelu", "z", "g", {}), ("add", "g r", "y", {})]
    (fused,) = Graph(operands, *steps, strict=True).run(gemm)
    known = dict(operands)
    for step in steps:
        apart = Graph({n: known[n] for n in step[1].split()}, step, strict=True)
        (known[step[2]],) = apart.run(gemm if step is PRODUCT else "elementwise_loop")
    assert fused.tobytes() == known["y"].tobytes()


@pytest.mark.spec("A9")
def test_fusing_behind_a_product_is_predicted_to_pay():
    operands = ab(256, 512, 128, bias=normal(512))
    steps = [PRODUCT, ("bias_add", "d bias", "z", {}), ("relu", "z", "y", {})]
    whole = Graph(operands, *steps).region
    split = [
        Graph(operands, PRODUCT).region,
        Graph({"d": normal(256, 512), "bias": normal(512)}, steps[1]).region,
        Graph({"z": normal(256, 512)}, steps[2]).region,
    ]
    fused = VARIANTS[GEMM].cost(whole, host()).us
    apart = [VARIANTS[GEMM if n == 0 else "elementwise_loop"].cost(r, host()).us for n, r in enumerate(split)]
    assert fused < sum(apart)
