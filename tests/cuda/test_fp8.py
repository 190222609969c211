"""fp8 in CUDA kernels: every code read, hard numbers written, moved, and multiplied (D10). Conversions are in integers, and
by instructions from sm_89 on: the host runs both."""

from __future__ import annotations

import itertools
import os
import random
import re

import numpy as np
import pytest
from fused_gemm_cases import TYPES, Product, biased, case_of, own, residual
from kernel_cases import VARIANTS, Case, Operands, assert_close, desc, fused, operands_for, reference, region
from machines import on_host
from test_compile import DEVICES, HOPPER, compile_case
from test_fused_maps import fresh_seed, run_on_host
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import PRESETS, from_properties, preset
from aicf.types import FINITE_MAX, DType, TensorDesc, bf16, f8e4m3, f8e5m2, f16, f32, i32, rounded

FLAT, VECTOR, STRIDED, ROWS = (
    f"cuda.elementwise_{name}.v1" for name in ("flat", "vector", "strided", "rows")
)
NAIVE, TILED, SPLIT, GEMV = (
    f"cuda.gem{name}" for name in ("m_naive.v1", "m_tiled.v1[32x32]", "m_tiled.v1[32x32 split]", "v_simt.v2")
)
FP8 = pytest.mark.parametrize("dtype", FINITE_MAX, ids=str)
PAIRS = list(itertools.product(FINITE_MAX, repeat=2))
TARGETS = [d for d in DEVICES if d.target in ("sm_75", "sm_80", "sm_90a")]
EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))  # else a sample


@pytest.fixture(params=[(8, 0), (8, 9)], ids=["integers", "instructions"])
def way(request, monkeypatch):
    monkeypatch.setattr(on_host, "CAPABILITY", request.param)


# --- conversions ------------------------------------------------------------------------------------------------------


def codes(dtype: DType) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(dtype.numpy)


def hard(dtype: DType) -> np.ndarray:
    """Numbers of any size, ties and what is next to them, and what is no number; a multiple of 16 of them."""
    rng = np.random.default_rng(fresh_seed())
    with np.errstate(all="ignore"):
        numbers = np.sort(codes(dtype).astype(np.float32))
        ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
        ties = ties[np.isfinite(ties)]
        sizes = rng.integers(0, 2**32, 2000, np.uint32).view(np.float32)
        near = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
    made = np.concatenate([numbers, ties, *near, sizes])
    return made[: len(made) // 16 * 16]


def converted(x: np.ndarray, to: DType, variant: str = FLAT) -> Case:
    return Case(variant, region("convert", desc(x.shape, DType.of(x.dtype)), dtype=to.id))


def moved(dtype: DType, variant: str) -> Case:
    """Copied, and copied from every second element of a longer tensor."""
    stride = {STRIDED: (2,)}.get(variant)
    return Case(variant, region("copy", desc((256,), dtype, stride)))


def same(got: np.ndarray, want: np.ndarray) -> None:
    """Also the signs of zeros; any NaN is one."""
    assert got.dtype == want.dtype
    with np.errstate(invalid="ignore"):  # NaN
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got)[want == 0], np.signbit(want)[want == 0])


def only(x: np.ndarray) -> Operands:
    return Operands([x], [x])


def readings(dtype: DType) -> list[tuple[Case, np.ndarray, np.ndarray]]:
    """(case, operand, result)."""
    x = codes(dtype)
    return [
        (converted(x, to, variant), x, rounded(x.astype(np.float32), to))
        for variant in (FLAT, VECTOR) for to in (f32, f16, bf16, f8e4m3, f8e5m2)
    ]  # fmt: skip


def writings(dtype: DType) -> list[tuple[Case, np.ndarray, np.ndarray]]:
    made = []
    for variant, of in ((FLAT, f32), (VECTOR, f32), (VECTOR, bf16), (VECTOR, f16), (FLAT, i32)):
        with np.errstate(all="ignore"):
            x = np.arange(-999, 999, dtype=np.int32) if of is i32 else hard(dtype).astype(of.numpy)
        made.append((converted(x, dtype, variant), x, rounded(x, dtype)))
    return made


@pytest.mark.sample(1)
@pytest.mark.spec("D10", "F2")
@FP8
def test_every_code_is_read_on_the_host(dtype, way):
    for case, x, want in readings(dtype):
        same(run_on_host(case, only(x))[0][0], want)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D10", "F2")
@FP8
def test_hard_numbers_are_written_on_the_host(dtype, way):
    for case, x, want in writings(dtype):
        same(run_on_host(case, only(x))[0][0], want)


@pytest.mark.spec("D10", "F2")
@FP8
@pytest.mark.parametrize("variant", [VECTOR, STRIDED])
def test_movement_keeps_every_number(dtype, variant, way):
    """Infinities too, where there are some."""
    memory = np.repeat(codes(dtype), 2) if variant == STRIDED else codes(dtype)
    case = moved(dtype, variant)
    same(run_on_host(case, only(memory))[0][0], codes(dtype))


def quantised(dtype: DType) -> Case:
    """What is kept is what later ops read, and what is not kept is rounded all the same."""
    r = fused({"x": (992,)}, ("y", "convert", "x", {"dtype": dtype.id}), ("z", "convert", "y", {"dtype": f32.id}),
              ("w", "neg", "z"), keep=("y", "w"))  # fmt: skip
    return Case(VECTOR, r)


@pytest.mark.spec("D10", "A15", "F2")
@FP8
def test_what_is_rounded_inside_a_kernel_is_what_memory_would_hold(dtype, way):
    x = hard(dtype)[:992]
    narrow, back = run_on_host(quantised(dtype), only(x))[0]
    same(narrow, rounded(x, dtype))
    with np.errstate(invalid="ignore"):
        same(back, -rounded(x, dtype).astype(np.float32))


@pytest.mark.sample(4)
@pytest.mark.spec("D10")
@FP8
@pytest.mark.parametrize("value", [1.3, -447.0, np.inf, np.nan])
def test_filled_as_convert_does(dtype, value, way):
    if np.isinf(value) and dtype is f8e4m3:
        return  # which has none, so that fill refuses it
    case = Case("cuda.fill.v1", region("fill", shape=(3, 5), value=value, dtype=dtype.id))
    same(run_on_host(case, Operands())[0][0], np.full((3, 5), rounded(np.float32([value]), dtype)[0]))


# --- products ---------------------------------------------------------------------------------------------------------


def products(variant: str) -> list[Case]:
    """Every pair of types, each with another result; a result that is narrowed; rows of one byte more or less."""
    outs = itertools.cycle((f32, f16, bf16))
    sizes = {GEMV: (2, 24, 40), SPLIT: (5, 8, 200)}.get(variant, (6, 8, 12))
    made = [own(Product(*sizes, a, out=next(outs), b_dtype=b)) for a, b in PAIRS]
    made += [
        residual(Product(*[s + 1 for s in sizes], a, out=next(outs), b_dtype=b, trans_a=True, trans_b=True))
        for a, b in PAIRS
    ]
    p = Product(*sizes, f8e5m2, out=f32, b_dtype=f8e4m3, trans_b=True)
    made += [biased(p, p.n, "relu")]
    return [case_of(variant, r) for r in made]


def narrowed(variant: str, to: DType) -> Case:
    p = Product(6, 8, 12, f8e4m3, out=f32)
    return Case(variant, p.then({}, ("w", "convert", "y", {"dtype": to.id}), keep=("y", "w"), alpha=100.0))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize(
    "variant", [TILED, SPLIT, GEMV]
)  # blocks of the naive one have two axes; the simulator runs it
def test_products_run_on_the_host_agree_with_numpy(variant, way, request):
    cases = products(variant)
    for case in cases if EVERYTHING else random.Random(request.node.name).sample(cases, 3):
        given = operands_for(case, fresh_seed())
        (results,) = run_on_host(case, given)
        assert_close(case, results, reference(case, given.arrays))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("D10", "F2")
@FP8
def test_a_product_s_result_is_narrowed_in_its_kernel(dtype):
    case = narrowed(TILED, dtype)
    product, narrow = run_on_host(case, operands_for(case, fresh_seed()))[0]
    same(narrow, rounded(product, dtype))


def test_tensor_cores_of_halves_leave_fp8_to_others():
    r = own(Product(40, 56, 32, f8e4m3, out=f16))
    for variant in (v for name, v in VARIANTS.items() if "_mma" in name and "gemm" in v.kinds):
        reject = variant.supported(r, preset("h200"))
        assert reject is not None and reject.reason.startswith("the product is in f8e4m3, needs f")


# --- machine code -----------------------------------------------------------------------------------------------------


def operand(dtype: DType) -> TensorDesc:
    """More than whole vectors."""
    return desc((4099,), dtype)


COMPILED = [
    *(Case(VECTOR, region("convert", operand(a), dtype=b.id)) for t in FINITE_MAX for a, b in ((f32, t), (t, bf16))),
    Case(ROWS, region("select", desc((64, 1), DType.bool), *2 * [desc((64, 64), f8e4m3)])),
    *(case_of(v, own(Product(132, 136, 72, f8e4m3, out=f16, b_dtype=f8e5m2))) for v in (NAIVE, "cuda.gemm_tiled.v1[64x64]")),
    case_of("cuda.gemm_tiled.v1[128x128]", residual(Product(132, 136, 72, f8e5m2, out=f32, b_dtype=f8e4m3))),
    *(case_of(GEMV, residual(Product(m, 4096, 4096, f8e4m3, out=bf16, trans_b=t))) for m, t in ((1, True), (4, False))),
]  # fmt: skip


@pytest.mark.sample(1, each="case", pool="machine code")
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("device", TARGETS, ids=lambda d: d.target)
@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_compiles_for_every_architecture(case, device):
    compile_case(case, device, look_at_ptx=device is HOPPER)


@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize("of, to", [(f8e4m3, f8e4m3), (f8e4m3, f32), (f32, f8e5m2)], ids=str)
def test_bytes_travel_in_words(of, to):
    """16 of them, or as many as the wider type leaves."""
    op, more = ("copy", {}) if of is to else ("convert", {"dtype": to.id})
    r = region(op, operand(of), **more)
    (launch,) = VARIANTS[VECTOR].build(r, preset("h200"))
    ptx = engine.ptx_of(launch, r, "sm_90a")
    words = {f8e4m3: 4 if of is to else 1, f8e5m2: 1, f32: 4}
    for instruction, dtype in (("ld", of), ("st", to)):
        found = re.findall(rf"^\s+{instruction}\.global\S*?(?:\.v(\d))?\.[bfu](\d+)", ptx, re.MULTILINE)
        last = ("", str(8 * dtype.itemsize))  # the elements after the last whole vector, one at a time
        assert found.pop() == last and set(found) == {(str(words[dtype]).replace("1", ""), "32")}


@pytest.mark.sample(2)
@pytest.mark.spec("D10", "F2")
@pytest.mark.parametrize(
    "target, expected", [("sm_80", 0), ("sm_86", 0), ("sm_89", 1), ("sm_90a", 1), ("sm_100a", 1)]
)
def test_pairs_are_converted_by_one_instruction_where_there_is_one(target, expected):
    for r, instruction, pairs in (
        (region("convert", operand(f32), dtype=f8e4m3.id), "cvt.rn.satfinite.e4m3x2.f32", 2),
        (region("convert", operand(f8e5m2), dtype=f32.id), "cvt.rn.f16x2.e5m2x2", 2),
    ):
        (launch,) = VARIANTS[VECTOR].build(r, preset("h200"))
        found = engine.ptx_of(launch, r, target).count(instruction)
        assert found > pairs if expected else not found  # in each vector, and one at the end


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D10", "B8")
def test_devices_know_their_rate_of_fp8():
    """Dense, with f32 sums, of NVIDIA's datasheets; none before Ada."""
    rates = {name: spec.tflops.get("f8", 0.0) for name, spec in PRESETS.items() if spec.kind == "cuda"}
    assert {n: rate for n, rate in rates.items() if rate} == {
        "rtx4090": 330, "rtx5090": 419, "l4": 242, "l40s": 724, "h20": 296, "h100": 1978, "h200": 1978, "gh200": 1978, "b200": 4500,
    }  # fmt: skip
    found = from_properties("other", (8, 9), 46, 2**25, 99 * 1024, 2**33, 2.0, 500.0)
    assert found.tflops["f8"] == 2 * found.tflops["f16"]
    assert from_properties("older", (8, 6), 46, 2**25, 99 * 1024, 2**33, 2.0, 500.0).tflops["f8"] == 0.0


# --- on a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.spec("D10")
@FP8
def test_conversions(gpu: Gpu, dtype):  # noqa: F811
    for case, x, want in (
        *readings(dtype),
        *writings(dtype),
        (moved(dtype, VECTOR), codes(dtype), codes(dtype)),
    ):
        same(launch_case(gpu, case, [x])[0], want)


@pytest.mark.gpu
@pytest.mark.sample(2, gpu=True)
@pytest.mark.spec("D10")
@pytest.mark.parametrize("variant", [NAIVE, TILED, SPLIT, GEMV])
def test_products(gpu: Gpu, variant):  # noqa: F811
    sizes = (3, 136, 264) if variant == GEMV else (132, 136, 264)
    turn = [NAIVE, TILED, SPLIT, GEMV].index(variant)  # of results' types
    outs = [list(TYPES)[(i + turn) % len(TYPES)] for i in range(len(PAIRS))]
    more = [own(Product(*sizes, a, out=out, b_dtype=b, trans_b=True)) for (a, b), out in zip(PAIRS, outs)]
    for case in [*products(variant), *(case_of(variant, r) for r in more)]:
        operands = operands_for(case, fresh_seed())
        assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
