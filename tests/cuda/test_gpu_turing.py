"""Kernels of tensor cores for sm_75 on a GPU of that architecture or a later one, which has their instructions: drawn products and attentions, against
float64. Results start as NaN and are between guards that must stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws.seeds import rng
from fused_gemm_cases import Product, biased, gradient, own, residual, summed
from kernel_cases import (
    TURING_ATTENTION,
    TURING_ATTENTION_GRAD,
    TURINGS,
    VARIANTS,
    Case,
    assert_close,
    attention,
    attention_grad,
    desc,
    operands_for,
    reference,
    region,
)
from test_compile import DEVICES, compile_case
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import f16, f32

T4, SM_75 = preset("t4"), DEVICES[0]
DRAWS = 4
HALF = 2e-3


def drawn_product(random: np.random.Generator) -> RegionSpec:
    """A product of any layout, alignment, sizes and batch, with or without what follows it."""
    step = int(random.choice([1, 2, 4, 8]))  # to which extents are rounded
    m, n, k = (int(random.integers(0, 300 // step)) * step for _ in range(3))
    m, n = max(m, 1), max(n, 1)
    trans_a, trans_b = (bool(random.integers(2)) for _ in range(2))
    kind = random.choice(
        ["alone", "pitched", "residual", "bias", "gradient", "sums", "f32", "batch", "heads"]
    )
    if kind == "pitched":  # rows that end within the bytes of a copy
        (a, a_pitch), (b, b_pitch) = (
            (shape, -(-shape[1] // 8) * 8 + 8 * int(random.integers(3)))
            for shape in ((k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n))
        )
        operands = desc(a, f16, (a_pitch, 1)), desc(b, f16, (b_pitch, 1))
        return region("gemm", *operands, None, None, trans_a=trans_a, trans_b=trans_b)
    batch = {"batch": (3,), "heads": (2, 3)}.get(kind, ())
    alignment = int(random.choice([4, 8, 16, 256]))
    p = Product(
        m,
        n,
        k,
        f16,
        trans_a,
        trans_b,
        alignment,
        batch,
        heads=kind == "heads",
        out=f32 if kind == "f32" else None,
    )
    follows = {
        "residual": residual, "bias": lambda p: biased(p, p.n, "gelu", True), "gradient": lambda p: gradient(p, "gelu"),
        "sums": lambda p: summed(p, "gelu"), "f32": own,
    }  # fmt: skip
    return follows.get(kind, lambda p: p.then({}))(p)


def accepted_product(variant: str, random: np.random.Generator) -> Case:
    """The first one drawn that the kernel accepts: few accept rows at any two bytes."""
    while VARIANTS[variant].supported(r := drawn_product(random), T4) is not None:
        pass
    return Case(variant, r, HALF)


def drawn_attention(kind: str, random: np.random.Generator) -> Case:
    """Any head sizes, groups of query heads, lengths, masks, and what is added to scores."""
    more: dict[str, Any] = {"causal": bool(random.integers(2))}
    widest = 192 if kind == TURING_ATTENTION and random.integers(2) else 128  # 192 without mask and bias
    d, dv = (2 * int(random.integers(1, widest // 2 + 1)) for _ in range(2))
    if random.integers(2):
        d = dv = int(random.choice([64, 128]))
    batch, heads = int(random.integers(1, 4)), int(random.integers(1, 3))
    queries, keys = (int(x) for x in random.integers(1, 300, 2))
    group = int(random.integers(1, 4))
    if widest == 128 and random.integers(3) == 0:
        more["mask"] = (keys,)
    if widest == 128 and random.integers(3) == 0:
        more["bias"] = (queries, keys)
    if random.integers(4) == 0:
        more["softcap"] = 5.0
    if random.integers(4) == 0:
        more["ragged"] = True
    make = attention if kind == TURING_ATTENTION else attention_grad
    r = make((batch, heads * group, queries, d), (batch, heads, keys, d), dv=dv, dtype=f16, **more)
    return Case(kind, r, HALF if kind == TURING_ATTENTION else 5 * HALF)


def run(gpu, case: Case, seed: int) -> None:  # noqa: F811
    operands = operands_for(case, seed)
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("n", range(DRAWS))
@pytest.mark.parametrize("variant", TURINGS)
def test_drawn_products(gpu, variant, n, request):  # noqa: F811
    random = rng(request.node.nodeid)
    run(gpu, accepted_product(variant, random), int(random.integers(2**32)))


@pytest.mark.gpu
@pytest.mark.spec("F2")
@pytest.mark.parametrize("n", range(3 * DRAWS))
@pytest.mark.parametrize("kind", [TURING_ATTENTION, TURING_ATTENTION_GRAD])
def test_drawn_attentions(gpu, kind, n, request):  # noqa: F811
    random = rng(request.node.nodeid)
    run(gpu, drawn_attention(kind, random), int(random.integers(2**32)))


@pytest.mark.gpu
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", TURINGS)
def test_special_values_stay_in_their_rows_and_columns(gpu, variant):  # noqa: F811
    r = region("gemm", desc((300, 520), f16), desc((520, 264), f16), None, None)
    case = Case(variant, r, HALF)
    operands = operands_for(case, 1)
    operands.arrays[0][130, 515], operands.arrays[1][7, 250] = np.nan, np.inf
    (got,), (want,) = launch_case(gpu, case, operands.memory), reference(case, operands.arrays)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.gpu
@pytest.mark.spec("F2")
@pytest.mark.parametrize(
    "kind, make", [(TURING_ATTENTION, attention), (TURING_ATTENTION_GRAD, attention_grad)]
)
def test_equal_launches_have_equal_bits(gpu, kind, make):  # noqa: F811
    case = Case(kind, make((8, 700, 64), (2, 900, 64), causal=True, dtype=f16))
    operands = operands_for(case)
    first, *others = ([x.tobytes() for x in launch_case(gpu, case, operands.memory)] for _ in range(4))
    assert all(first == other for other in others)


@pytest.mark.spec("D10", "F2")
def test_a_drawn_product_compiles_for_turing(request):
    """Without spills."""
    random = rng(request.node.nodeid)
    compile_case(accepted_product(str(random.choice(TURINGS)), random), SM_75)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("kind", [TURING_ATTENTION, TURING_ATTENTION_GRAD])
def test_a_drawn_attention_compiles_for_turing(kind, request):
    compile_case(drawn_attention(kind, rng(request.node.nodeid)), SM_75)
