"""Products whose parts of k depend on k alone, for invariant rows: splits, tiles that add up one part after another, and chains of few rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from clean_kernels import found_clean
from draws.seeds import rng
from kernel_cases import (
    PARTS,
    SPLITS,
    VARIANTS,
    Case,
    assert_close,
    gemm,
    invariant,
    operands_for,
    reference,
    with_specials,
)
from machines.hopper_model import Machine
from row_places import OverRows, classes, differing
from test_fused_maps import TINY
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_numeric_class import Host

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import fma as gemm_fma
from aicf.cuda_kernels.gemm.schedule.parts import by_k
from aicf.cuda_kernels.gemm.tilings import FmaTiling
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import ActKind, bf16, f16, f32

H200 = preset("h200")
CHAINS = "cuda.gemv_in_order.v1", "cuda.gemv_in_parts.v1"
TILED = [v for v in (*PARTS, *SPLITS) if ".gemm_tiled." in v]
FMA = "cuda.gemm_fma.v1[128x128 parts]", "cuda.gemm_fma.v1[128x128 split]"
EPILOGUES = ({}, {"act": ActKind.gelu}, {"act": ActKind.relu, "alpha": 0.375, "beta": -1.5, "c": True})


def drawn(draw: np.random.Generator, most: int, longest: int, dtypes=(f32, f32, f16, bf16)) -> OverRows:
    """A product of several parts, in any layout; half of the sizes are multiples of 8."""
    n, k = int(draw.integers(2, most)), int(draw.integers(384, longest))
    if draw.random() < 0.5:
        n, k = n // 8 * 8 or 8, k // 8 * 8
    trans_a, trans_b, dtype = (
        bool(draw.random() < 0.3),
        bool(draw.random() < 0.6),
        dtypes[draw.integers(len(dtypes))],
    )
    more = EPILOGUES[draw.integers(3)]
    rows = {0: int(trans_a), **({2: 0} if "c" in more else {})}

    def make(m: int) -> RegionSpec:
        return invariant(gemm(m, n, k, dtype=dtype, trans_a=trans_a, trans_b=trans_b, bias=n, **more))

    return OverRows(make, rows, f"{dtype} {n}x{k} ta={trans_a} tb={trans_b} {more}")


@pytest.mark.spec("A15", "B14")
def test_parts_are_of_whole_steps_and_depend_on_k_alone(request):
    """Of drawn k: nothing is left out or empty, and all kernels that accept the product have one class for all rows and devices."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        k = int(2 ** draw.uniform(3, 15))
        number, each = by_k(k)
        assert (number - 1) * each < k <= number * each and each % 32 == 0 and number <= 8
        assert (number > 1) == (k >= 384), k
        found = {
            str(VARIANTS[v].numeric_class(r, device))
            for m in (1, 3, 16, 70, 5000)
            for device in (H200, preset("l4"), preset("t4"))
            for v in (*PARTS, *SPLITS, *FMA)
            if v != CHAINS[0] and VARIANTS[v].supported(r := invariant(gemm(m, 72, k)), device) is None
        }
        assert len(found) == (k >= 384), (k, found)


@pytest.mark.spec("B12")
def test_free_regions_are_refused():
    """Strict ones too, unless a result is one chain."""
    free = gemm(3, 72, 600)
    for v in PARTS:
        assert VARIANTS[v].supported(free, H200).condition in ("invariant", "strict"), v
        strict = VARIANTS[v].supported(replace(free, strict=True), H200)
        assert (strict is None) == (v == CHAINS[0]), v
    assert "17 is over 16" in str(VARIANTS[CHAINS[1]].supported(invariant(gemm(17, 72, 600)), H200))
    assert "k 383 is under 384" in str(VARIANTS[CHAINS[1]].supported(invariant(gemm(3, 72, 383)), H200))


# --- equal bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14", "D9")
@pytest.mark.parametrize("number", range(4))
def test_chains_and_tiles_of_one_class_have_equal_bits_on_the_host(number, request):
    """By the LLVM that the GPU gets: a drawn product by two kernels, alone and among others, and near float64."""
    draw = rng(request.node.nodeid)
    rows = drawn(draw, 40, 500)
    chain = CHAINS[number % 2]
    other = ("cuda.gemm_tiled.v1[32x32]", str(draw.choice([v for v in TILED if "128" not in v])))[number % 2]
    one = {id: c for id, c in classes(rows.make(5), TINY).items() if id in (chain, other)}
    assert len(one) == 2 and len(set(one.values())) == 1
    host = Host()
    assert not differing(rows, one, TINY, host, draw, 5), rows.name
    case = Case(chain, rows.make(4), {f32: 1e-5, f16: 2e-3, bf16: 1.6e-2}[rows.make(4).results[0].dtype])
    for operands in (operands_for(case, 5), with_specials(case, operands_for(case, 6))):
        assert_close(case, host(case, operands), reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the model")
@pytest.mark.spec("A15", "D9")
@pytest.mark.parametrize("tb", [False, True])
def test_tiles_of_hopper_add_parts_as_splits_do(tb, request):
    """On the model of a machine: fused multiply-adds in each part, and parts in order, of drawn k."""
    draw, tile = rng(request.node.nodeid), FmaTiling(64, 64, 32, 1, parts=True)
    k = 4 * int(draw.integers(96, 200))
    r = invariant(gemm(8, 12, k, trans_b=tb))
    a, b = (draw.standard_normal(d.shape).astype(np.float32) for d in r.operands)
    want, columns, each = np.zeros((8, 12), np.float32), b.T if tb else b, by_k(k).k
    for start in range(0, k, each):
        part = np.zeros_like(want)
        for i in range(start, min(k, start + each)):
            part = (np.outer(a[:, i].astype(np.float64), columns[i].astype(np.float64)) + part).astype(
                np.float32
            )
        want += part
    out, work = np.full(96, np.nan, np.float32), np.full(4 * 64 * 64, 0xFF, np.uint8)
    Machine(0).launch(gemm_fma.launch(tile, r), [a.reshape(-1), b.reshape(-1)], [out], workspace=work)
    np.testing.assert_array_equal(out.reshape(8, 12), want)


# --- machine code ---------------------------------------------------------------------------------------------------------

LAYOUTS = [
    (ta, tb, n, k)
    for ta in (False, True)
    for tb in (False, True)
    for n, k in ((768, 3072), (50256, 768), (777, 999))
]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("m", [1, 4, 16])
def test_chains_compile_without_spills(target, m, request):
    """Both configs of a drawn layout, in drawn types."""
    draw = rng(request.node.nodeid)
    ta, tb, n, k = LAYOUTS[draw.integers(len(LAYOUTS))]
    r = invariant(
        gemm(m, n, k, trans_a=ta, trans_b=tb, dtype=(f32, f16)[draw.integers(2)], bias=n, act=ActKind.gelu)
    )
    for v in CHAINS:
        (launch,) = VARIANTS[v].build(r, H200)
        made = engine.compile_launch(launch, r, target)
        assert (made.spill_bytes, made.stack_bytes) == (0, 0), (r, made.log)
        found_clean(launch, r, target)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("tb", [False, True])
def test_hopper_tiles_compile_without_spills(tb):
    r = invariant(gemm(1000, 1024, 1000, trans_b=tb, bias=1024, act=ActKind.gelu))
    (launch,) = VARIANTS[FMA[0]].build(r, H200)
    made = engine.compile_launch(launch, r, "sm_90a")
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    found_clean(launch, r, "sm_90a")


# --- on a GPU -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("number", range(12))
def test_kernels_of_cuda_cores_give_equal_bits(gpu, number, request):  # noqa: F811
    """Every kernel of CUDA cores that has a class, of drawn products with few rows and with many: alone, among others, at any index."""
    draw = rng(request.node.nodeid)
    rows = drawn(draw, 2000, 3000, (f32, f32, f32, f16))
    count = int(draw.integers(1, 17)) if number % 2 else int(draw.integers(17, 700))
    kernels = {id: c for id, c in classes(rows.make(count), gpu.spec).items() if "fma in f32" in c.compute}
    # of a class there are kernels of few rows and of many; all are compared with each other at one row
    assert len(set(kernels.values())) >= 2, rows.name
    run = lambda case, operands: launch_case(gpu, case, operands.memory)  # noqa: E731
    assert not differing(rows, kernels, gpu.spec, run, draw, count), rows.name


@pytest.mark.gpu
@pytest.mark.spec("A15", "D9")
@pytest.mark.parametrize("number", range(8))
def test_few_rows_have_the_bits_of_many(gpu, number, request):  # noqa: F811
    """A row by chains, and among hundreds by every tile of its class."""
    draw = rng(request.node.nodeid)
    rows, count = drawn(draw, 1500, 4000, (f32, f32, f32, f16)), int(draw.integers(100, 900))
    operands, at = rows.operands(count, int(draw.integers(2**32))), int(draw.integers(count))
    for v in CHAINS:
        one = rows.make(1)
        wanted = VARIANTS[v].numeric_class(one, gpu.spec)
        (alone, *_) = launch_case(gpu, Case(v, one), rows.take(operands, [at]).memory)
        tiles = [id for id, c in classes(rows.make(count), gpu.spec).items() if c == wanted]
        assert tiles, wanted
        for tile in tiles:
            (many, *_) = launch_case(gpu, Case(tile, rows.make(count)), operands.memory)
            assert many[at].tobytes() == alone[0].tobytes(), (rows.name, v, tile, at)


@pytest.mark.gpu
@pytest.mark.spec("A12", "D9")
@pytest.mark.parametrize("variant", PARTS)
def test_agrees_with_float64(gpu, variant, request):  # noqa: F811
    """Of drawn sizes and layouts, with numbers, and with NaN and infinities among them."""
    draw = rng(request.node.nodeid)
    for _ in range(6):
        rows = drawn(draw, 700, 2500, (f32,) if ".gemm_fma." in variant else (f32, f16, bf16))
        r = rows.make(int(draw.integers(1, 17) if ".gemv_" in variant else draw.integers(1, 500)))
        if VARIANTS[variant].supported(r, gpu.spec) is not None:
            continue
        case = Case(variant, r, {f32: 2e-5, f16: 2e-3, bf16: 1.6e-2}[r.results[0].dtype])
        for operands in (operands_for(case, 5), with_specials(case, operands_for(case, 6))):
            assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
