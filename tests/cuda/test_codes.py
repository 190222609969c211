"""Products with weights of 8 and 4 bits: when their kernel is taken, that it compiles well, and what it computes, on the host and on a GPU."""

from __future__ import annotations

import random

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from codes_cases import CODES, SIZES, assert_near, biased, coded, operands_of
from kernel_cases import VARIANTS, Case, desc, region
from test_fused_maps import fresh_seed, run_on_host
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

import aicf
from aicf import nn
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm.small_m import code_tile
from aicf.device.spec import preset
from aicf.ops.weight_only import pack_codes, unpack_codes
from aicf.registry.select import select
from aicf.types import DType, TensorSpec, bf16, f16, f32, i8
from examples import EVERYTHING

H200 = preset("h200")

# --- what is taken ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["h200", "a100", "l4"])
@pytest.mark.parametrize("bits", [8, 4])
def test_is_taken_with_what_follows(device, bits):
    for make in (coded, biased):
        r = make(4, 4096, 4096, bits, 128)
        assert select(r, preset(device), aicf.default_registry()).kernel_id == CODES


@pytest.mark.parametrize("r, reason", [
    (coded(17, 64, 128), "rows 17 is over 16"), (coded(1, 64, 128, dtype=f32), "x is f32, needs f16 or bf16"),
    (coded(1, 64, 48), "k 48 is not a multiple of 32"), (coded(1, 64, 24, 8), "k 24 is not a multiple of 16"),
    (coded(1, 64, 128, 4, 16), "group 16 is not a multiple of 32"), (coded(0, 64, 128), "least extent 0 is under 1"),
    (region("gemm_codes", desc((2, 128), bf16, (132, 1)), desc((64, 128), i8), desc((64, 1))), "needs rows along k that begin at multiples of 16"),
    (region("gemm_codes", desc((2, 128), bf16), desc((64, 128), i8, (136, 1)), desc((64, 1))), "needs rows along k that begin at multiples of 16"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert reason in str(VARIANTS[CODES].supported(r, H200))


def test_codes_of_4_bits_take_about_half_of_the_time_of_8_where_memory_is_the_limit():
    us = [VARIANTS[CODES].cost(coded(1, 128256, 4096, bits, 128), H200).us for bits in (4, 8)]
    assert 1.7 < us[1] / us[0] < 2.1


def test_codes_are_packed_as_they_are_read():
    codes = np.random.default_rng().integers(-8, 8, (5, 14))
    packed = pack_codes(codes)
    assert packed.dtype == np.uint8 and packed[1, 2] == codes[1, 4] + 8 + 16 * (codes[1, 5] + 8)
    assert np.array_equal(unpack_codes(packed), codes)


# --- what is computed -------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, each="bits", pool="on the host")
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_run_on_the_host(sizes, dtype, bits):
    """A warp's threads side by side, products of tensor cores by NumPy. Alone, with a bias, or both with AICF_TEST_ALL=1."""
    both = coded(*sizes[:3], bits, sizes[3], dtype=dtype), biased(*sizes[:3], bits, sizes[3], dtype)
    for r in both if EVERYTHING else [both[fresh_seed() % 2]]:
        given = operands_of(r, fresh_seed())
        (got,) = run_on_host(Case(CODES, r), given)
        assert_near(r, got, given.arrays)


class Product(nn.Layer):
    def __init__(self, bits):
        self.bits = bits

    def emit(self, ctx, x, w, scale):
        return ctx.gemm_codes(x, w, scale, bits=self.bits)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("rows", [(1,), (3, 5), (40,)], ids=str)
def test_in_a_model(rows, bits, device):
    """With as many rows as a prompt has, weights are made first; on the CPU always."""
    rng = np.random.default_rng()
    x = rng.normal(size=(*rows, 256)).astype(np.float16)
    codes = rng.integers(-8, 8, (48, 256)).astype(np.int8)
    w = pack_codes(codes) if bits == 4 else codes
    scale = rng.uniform(0.01, 0.02, (48, 4)).astype(np.float32)
    specs = {n: TensorSpec(a.shape, DType.of(a.dtype)) for n, a in (("x", x), ("w", w), ("scale", scale))}
    got = aicf.compile(nn.Model(specs, Product(bits)), device=device)({"x": x, "w": w, "scale": scale})[
        "output"
    ].numpy()
    want = x.astype(np.float64) @ (codes * np.repeat(scale, 64, 1).astype(np.float64)).T
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_on_a_gpu(gpu, dtype, bits):  # noqa: F811
    """And of the sizes of models: as many lines as fill the device, more than one tile of a warp."""
    for m, n, k, group in [
        *SIZES,
        (1, 4096, 4096, 128),
        (4, 14336, 4096, 128),
        (16, 12288, 2048, 32),
        (1, 2048, 8192, 0),
        (7, 128256, 512, 64),
    ]:
        for scale in (f32, dtype)[: 1 + (n < 10000)]:
            r = coded(m, n, k, bits, group, dtype=dtype, scale=scale)
            given = operands_of(r, random.randrange(2**32))
            got = launch_case(gpu, Case(CODES, r), given.memory)
            assert_near(r, got, given.arrays)
        r = biased(m, n, k, bits, group, dtype)
        given = operands_of(r, random.randrange(2**32))
        assert_near(r, launch_case(gpu, Case(CODES, r), given.memory), given.arrays)


# --- machine code -----------------------------------------------------------------------------------------------------

TILES = [
    (m, n, k, group) for m in (8, 16) for n in (64, 14336) for k, group in ((1024, 0), (1024, 32), (16384, 0))
]
CODE = [(bits, dtype, *sizes) for bits in (8, 4) for dtype in (f16, bf16) for sizes in TILES]


def is_new(bits, dtype, m, n, k, group) -> bool:
    r = biased(m, n, k, bits, group, dtype)
    return are_new(VARIANTS[CODES].build(r, H200), r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.parametrize("bits, dtype, m, n, k, group", CODE)
def test_compiles_without_spills(bits, dtype, m, n, k, group):
    r = biased(m, n, k, bits, group, dtype)
    (launch,) = VARIANTS[CODES].build(r, H200)
    for target in (H200.target, "sm_80"):
        made = engine.compile_launch(launch, r, target)
        assert made.spill_bytes == made.stack_bytes == 0
        assert made.registers * launch.block[0] * code_tile(r).resident <= 65536
        if target == H200.target:
            found_clean(launch, r, target)
    text = engine.ptx_of(launch, r, H200.target)
    assert "mma.sync.aligned.m16n8k16" in text and ".f64" not in text
