"""More than 2^31 elements in an operand or in the result, for each family of products, on a GPU with room for them.

Numbers are small and whole, so that sums are exact and all of a result can be compared. One test does all families, so that
memory is taken once.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from test_gpu_kernels import VARIANTS, gpu, opened  # noqa: F401  (fixtures)
from wgmma_cases import ALL, product

from aicf.cuda_kernels.compiler import engine
from aicf.types import f16, f32

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

FAMILIES = [
    "gemm_naive", "gemm_tiled[128x128]", "gemm_tiled[64x64 split]", "gemm_mma[32x32]", "gemm_mma[128x256]", "gemv_simt", "gemv_mma",
    "gemm_wgmma[128x256]", "gemm_wgmma[128x128 pingpong]", "gemm_wgmma[256x128 cluster2]", "gemm_wgmma[64x64]", "gemm_wgmma[64x64 cluster split2]",
    "gemm_wgmma[64x64 split]", "gemm_wgmma[64x64 packed]", "gemm_wgmma[128x256 stream]", "gemm_wgmma[128x128 120 pingpong]",
    "gemm_fma[128x128]", "gemm_fma[64x128 sliced4]",
]  # fmt: skip
BY_NAME = {v.name: v for v in VARIANTS.values()}
EVERY = [name for name in BY_NAME if "gem" in name]
# m, n, k, the type, and how many families there are at least that take it
PROBLEMS = {
    "a": (2**25 + 8, 8, 64, f16, 11), "b": (8, 2**15, 2**16 + 8, f16, 12), "result": (2**16 + 8, 2**15 + 8, 16, f16, 9),
    "b, in odd rows": (16, 2**15, 2**16 + 9, f16, 5), "result of f32": (2**16 + 8, 2**15 + 8, 16, f32, 4),
}  # fmt: skip
AROUND, CHUNK = 4096, 2**27  # elements of poison on either side; those compared at once


@pytest.fixture(autouse=True)
def given_back():
    """PyTorch keeps what it has once had, and other processes test on the same GPU."""
    yield
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("what", PROBLEMS)
def test_more_than_two_to_the_31_elements(gpu, what):  # noqa: F811
    torch = pytest.importorskip("torch")
    m, n, k, dtype, least = PROBLEMS[what]
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GB of free memory")
    r, kind = product(m, n, k, dtype=dtype, tb=True), {f16: torch.float16, f32: torch.float32}[dtype]
    a, b = (torch.randint(-2, 3, s, device="cuda", dtype=torch.int8).to(kind) for s in ((m, k), (n, k)))
    assert max(t.numel() for t in (a, b)) > 2**31 or m * n > 2**31
    memory = torch.empty(m * n + 2 * AROUND, device="cuda", dtype=kind)
    c, taken = memory[AROUND:-AROUND].view(m, n), 0
    for name in EVERY if ALL else FAMILIES:
        variant = BY_NAME[name]
        if variant.supported(r, gpu.spec) is not None:
            continue
        taken += 1
        memory.fill_(float("nan"))
        run(gpu, variant, r, (a, b, c), torch)
        step = max(1, CHUNK // max(n, k))
        for rows, columns in (
            ((s, slice(None)) for s in slices(m, step))
            if m > n
            else ((slice(None), s) for s in slices(n, step))
        ):
            want = (a[rows].float() @ b[columns].float().T).to(kind)
            assert bool((c[rows, columns] == want).all()), f"{name}, {what}, {rows} {columns}"
        assert bool(memory[:AROUND].isnan().all()) and bool(memory[-AROUND:].isnan().all()), name
    assert taken >= least


def slices(count: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, count, step)]


def run(gpu: Any, variant: Any, r: Any, tensors: Any, torch: Any) -> None:  # noqa: F811
    a, b, c = (t.data_ptr() for t in tensors)
    work = torch.full((variant.query_workspace(r, gpu.spec) + 256,), 255, device="cuda", dtype=torch.uint8)
    torch.cuda.synchronize()
    for launch in variant.build(r, gpu.spec):
        engine.bind(engine.prepare(launch, r, variant.id), gpu.stream, [a, b], [c], work.data_ptr())()
    gpu.stream.sync()
