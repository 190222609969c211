"""fp8 on the host: every code read, hard numbers written, moved, and multiplied (D10)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from aicf.device.spec import host
from aicf.types import FINITE_MAX, ActKind, bf16, f8e4m3, f8e5m2, f16, f32, i32, rounded

from .regions import VARIANTS, Graph, normal

LOOP, GEMM, REFERENCE = "elementwise_loop", "gemm_blas", "reference"
FP8 = pytest.mark.parametrize("dtype", FINITE_MAX, ids=str)
PAIRS = list(itertools.product(FINITE_MAX, repeat=2))
TOLERANCE = {f32: 1e-5, f16: 4e-3, bf16: 3e-2}


def codes(dtype) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def hard(dtype) -> np.ndarray:
    """Numbers of any size, every number of the type, ties and what is next to them, and what is no number."""
    rng = np.random.default_rng()
    with np.errstate(all="ignore"):
        numbers = np.sort(codes(dtype).astype(np.float32))
        ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
        ties = ties[np.isfinite(ties)]
        sizes = rng.integers(0, 2**32, 3000, np.uint32).view(np.float32)
        near = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    return np.concatenate([numbers, ties, *near, sizes, rng.normal(size=999).astype(np.float32)])


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Also the signs of zeros; any NaN is one."""
    assert got.dtype == want.dtype
    with np.errstate(invalid="ignore"):  # NaN
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])


@pytest.mark.sample(1)
@pytest.mark.spec("D10", "A12")
@FP8
@pytest.mark.parametrize("variant", [LOOP, REFERENCE])
@pytest.mark.parametrize("to", [f32, f16, bf16, f8e4m3, f8e5m2], ids=str)
def test_every_code_is_read(dtype, to, variant):
    (got,) = Graph({"x": codes(dtype)}, ("convert", "x", "y", {"dtype": to.id})).run(variant)
    same(got, rounded(codes(dtype).astype(np.float32), to))


@pytest.mark.sample(2)
@pytest.mark.spec("D10", "A12")
@FP8
@pytest.mark.parametrize("variant", [LOOP, REFERENCE])
@pytest.mark.parametrize("of", [f32, f16, bf16, i32], ids=str)
def test_hard_numbers_are_written(dtype, of, variant):
    with np.errstate(all="ignore"):
        x = np.arange(-999, 999, dtype=np.int32) if of is i32 else hard(dtype).astype(of.numpy)
    (got,) = Graph({"x": x}, ("convert", "x", "y", {"dtype": dtype.id})).run(variant)
    same(got, rounded(x, dtype))


@pytest.mark.sample(1)
@pytest.mark.spec("D10", "A15")
@FP8
def test_what_is_kept_is_what_later_ops_read(dtype):
    x = hard(dtype)
    steps = [
        ("convert", "x", "y", {"dtype": dtype.id}),
        ("convert", "y", "z", {"dtype": f32.id}),
        ("neg", "z", "w", {}),
    ]
    with np.errstate(all="ignore"):
        for keep in ("y w", "w"):
            *_, got = Graph({"x": x}, *steps, keep=keep).run(LOOP)
            same(got, -rounded(x, dtype).astype(np.float32))


@pytest.mark.sample(1)
@pytest.mark.spec("D10")
@FP8
@pytest.mark.parametrize("variant", [LOOP, REFERENCE])
def test_movement_keeps_every_number(dtype, variant):
    """Infinities too, where there are some."""
    x, other = codes(dtype), codes(dtype)[::-1].copy()
    mask = np.arange(256) % 3 == 0
    same(Graph({"x": x}, ("copy", "x", "y", {})).run(variant)[0], x)
    wide = {"shape": (3, 256), "dims": (1,)}
    same(Graph({"x": x}, ("broadcast_in_dim", "x", "y", wide)).run(variant)[0], np.broadcast_to(x, (3, 256)))
    chosen = Graph({"m": mask, "x": x, "o": other}, ("select", "m x o", "y", {})).run(variant)[0]
    same(chosen, np.where(mask, x, other))
    (equal,) = Graph({"x": x, "o": x.copy()}, ("equal", "x o", "y", {})).run(variant)
    np.testing.assert_array_equal(equal, ~np.isnan(x.astype(np.float32)))


@pytest.mark.spec("D10")
@FP8
@pytest.mark.parametrize("value", [1.3, -447.0, np.inf, np.nan, 0.0])
def test_filled_as_convert_does(dtype, value):
    if np.isinf(value) and dtype is f8e4m3:
        return  # which has none, so that fill refuses it
    (got,) = Graph({}, ("fill", "", "y", {"shape": (3, 5), "value": value, "dtype": dtype.id})).run(REFERENCE)
    same(got, np.full((3, 5), rounded(np.float32([value]), dtype)[0]))


@pytest.mark.sample(4)
@pytest.mark.spec("D10", "D7")
@pytest.mark.parametrize("variant", [GEMM, REFERENCE])
@pytest.mark.parametrize("out", TOLERANCE, ids=str)
@pytest.mark.parametrize("a, b", PAIRS, ids=lambda t: t.name)
def test_products(a, b, out, variant):
    operands = {
        "a": normal(9, 6, dtype=a),
        "b": normal(11, 6, dtype=b),
        "c": normal(9, 11, dtype=out),
        "bias": normal(11, dtype=out),
    }
    attrs = {
        "trans_b": True,
        "alpha": 0.5,
        "beta": -1.5,
        "act": ActKind.gelu,
        "save_preact": True,
        "out_dtype": out.id,
    }
    Graph(operands, ("gemm", "a b c bias", "d z", attrs), keep="d z").check(variant, TOLERANCE[out])


@pytest.mark.spec("D10", "A12")
@FP8
def test_a_product_s_result_is_narrowed_in_its_kernel(dtype):
    operands = {"a": normal(9, 6, dtype=f8e4m3), "b": normal(6, 11, dtype=f8e4m3)}
    graph = Graph(
        operands, ("gemm", "a b", "d", {"alpha": 1000.0, "out_dtype": f32.id}), ("convert", "d", "y", {"dtype": dtype.id}), keep="d y"
    )  # fmt: skip
    assert VARIANTS[GEMM].supported(graph.region, host()) is None
    product, narrow = graph.run(GEMM)
    same(narrow, rounded(product, dtype))
    assert (np.abs(product) > FINITE_MAX[f8e4m3]).any()
