"""Gradients of convolutions on the model of a Hopper multiprocessor, against NumPy: their launches one after the other."""

from __future__ import annotations

import numpy as np
from convolution_cases import H200
from kernel_cases import Case, assert_close, reference
from machines.hopper_model import Machine

from aicf.cuda_kernels.conv import operands, problem, wgmma
from aicf.cuda_kernels.gemm.schedule.split_k import divide
from aicf.cuda_kernels.gemm.wgmma_tiling import WgmmaTiling
from aicf.rows import RegionSpec


def small_numbers(r: RegionSpec, seed: int) -> list[np.ndarray]:
    """Whole ones: sums are exact, whatever their order."""
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, d.shape).astype(d.dtype.numpy) for d in r.operands]


def run_weight_gradient(
    tiling: WgmmaTiling, r: RegionSpec, seed: int, splits: int, tolerance: float = 0.0, grid: int = 1
) -> None:
    """The model's launch, and NumPy's sum of the splits: which of the workspace's columns are those of the result."""
    p = problem.read(r)
    n, split = wgmma.padded_n(p), divide(p.rows, splits, 64)
    workspace = np.full(4 * split.number * p.o * n, 255, np.uint8)
    arrays = small_numbers(r, seed)
    launch = wgmma.launch_weight(tiling, r, H200, split)
    Machine(seed).launch(launch, [a.reshape(-1) for a in arrays], [], grid, workspace)
    partial = workspace.view(np.float32).reshape(split.number, p.o, p.places, n // p.places)
    got = (
        partial.astype(np.float64)
        .sum(0)[..., : p.c]
        .reshape(r.results[0].shape)
        .astype(r.results[0].dtype.numpy)
    )
    assert_close(Case("", r, tolerance=tolerance), [got], reference(Case("", r), arrays))


def run_strided_data_gradient(tiling: WgmmaTiling, r: RegionSpec, seed: int, tolerance: float = 0.0) -> None:
    """All phases, one after the other."""
    arrays = small_numbers(r, seed)
    (dx,) = r.results
    out = np.full(dx.numel, np.nan).astype(dx.dtype.numpy)
    for phase in operands.phases(r):
        launch = wgmma.launch_phase(tiling, r, phase, H200)
        Machine(seed).launch(launch, [a.reshape(-1) for a in arrays], [out], 1)
    assert_close(Case("", r, tolerance=tolerance), [out.reshape(dx.shape)], reference(Case("", r), arrays))
