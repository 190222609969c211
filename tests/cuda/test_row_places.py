"""Equal rows have equal bits at every place of a block, of kernels that add up parts of k in the order of k."""

from __future__ import annotations

import numpy as np
import pytest
from draws.seeds import rng
from gemv_cases import SIMT, TYPES
from kernel_cases import VARIANTS, Case, gemm, operands_for
from test_fused_maps import run_on_host
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.gemm.small_m import share
from aicf.device.spec import preset
from aicf.types import f32

H200 = preset("h200")


def drawn_case(draw: np.random.Generator) -> Case:
    """A product with few rows, or one with few columns, that the kernel takes; half of n and k are multiples of 8."""
    few, many = (2, 17), (17, 40)
    while True:
        m, n = (int(draw.integers(*ends)) for ends in ((few, many) if draw.random() < 0.5 else (many, few)))
        n, k = (x // 8 * 8 if x > 8 and draw.random() < 0.5 else x for x in (n, int(draw.integers(100, 400))))
        dtype = (f32, TYPES[draw.integers(3)])[draw.integers(2)]
        layout = {"trans_a": bool(draw.random() < 0.3), "trans_b": bool(draw.random() < 0.6)}
        r = gemm(m, n, k, dtype=dtype, **layout)
        if VARIANTS[SIMT].supported(r, H200) is None:
            return Case(SIMT, r)


def moved_rows(case: Case, run, draw: np.random.Generator) -> list[int]:
    """Rows whose bits change when all rows are reordered."""
    seed, order = int(draw.integers(2**32)), draw.permutation(case.region.results[0].shape[0])
    given = [operands_for(case, seed) for _ in range(2)]
    rows = given[1].arrays[0].T if case.region.attrs.get("trans_a") else given[1].arrays[0]
    rows[...] = rows[order].copy()
    (first, *_), (second, *_) = run(case, *given)
    return [int(i) for n, i in enumerate(order) if first[i].tobytes() != second[n].tobytes()]


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "C12")
def test_drawn_rows_have_the_same_bits_in_another_order_on_the_host(request):
    """Lanes along k and lanes along lines, rows few and rows many: two of the four, compiled for the host from the LLVM that the GPU
    gets. Partial sums were added from the index of the result in the block on."""
    draw = rng(request.node.nodeid)
    wanted = [(bool(w & 1), bool(w & 2)) for w in draw.permutation(4)[:2]]
    while wanted:
        case = drawn_case(draw)
        walk = share(case.region)[0].k_major, case.region.results[0].shape[0] > 16
        if walk in wanted:
            wanted.remove(walk)
            assert not moved_rows(case, run_on_host, draw), case


@pytest.mark.gpu
@pytest.mark.spec("A15", "C12")
def test_drawn_rows_have_the_same_bits_in_another_order(gpu, request):  # noqa: F811
    draw = rng(request.node.nodeid)

    def run(case, *many):
        return [launch_case(gpu, case, operands.memory) for operands in many]

    for _ in range(60):
        case = drawn_case(draw)
        assert not moved_rows(case, run, draw), case
