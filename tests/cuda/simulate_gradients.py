"""Gradients of convolutions in numba's simulator, against float64, and sums of splits. Prints as simulate.py does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import simulate
from fused_gemm_cases import simulated
from gradient_cases import OTHERS, tiled_cases

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.conv.gradients_body import THREADS, sum_parts
from aicf.registry.variant import Launch, Num, Out, Work, cdiv
from aicf.types import f16, f32, i32


class Sum(NamedTuple):
    """Of splits of a result (rows, places, channels), whose places lie `apart`."""

    rows: int
    places: int
    channels: int
    apart: int
    splits: int
    width: int
    slices: int


SUMS = [Sum(3, 2, 8, 64, 37, 4, 16), Sum(5, 1, 6, 8, 9, 2, 4), Sum(2, 3, 5, 8, 70, 1, 8), Sum(9, 2, 8, 8, 1, 4, 2), Sum(4, 2, 8, 8, 3, 4, 1)]  # fmt: skip


def check_sum(s: Sum) -> None:
    partial = (
        np.random.default_rng().integers(-4, 5, (s.splits, s.rows, s.places, s.apart)).astype(np.float32)
    )
    result, runs = (
        np.full((s.rows, s.places, s.channels), np.nan, np.float32),
        s.rows * s.places * s.channels // s.width,
    )
    shape, row = tuple(Num(n, i32) for n in (s.places, s.channels, runs)), s.places * s.apart
    args = Work(0), Out(0), Num(s.splits, i32), shape, (Num(s.apart), Num(row), Num(s.rows * row))
    grid = (cdiv(runs, THREADS // s.slices),)
    launch = Launch(sum_parts(f32, s.width, s.slices), grid, (THREADS,), args)
    engine.simulate(launch, [], [result.reshape(-1)], partial.reshape(-1).view(np.uint8))
    np.testing.assert_array_equal(result, partial.sum(0)[..., : s.channels])


if __name__ == "__main__":
    small = 2 * len(OTHERS)
    simulate.main(
        simulated([*tiled_cases(f32, 2e-5)[:small], *tiled_cases(f16, 4e-3)[:small]]), simulate.check
    )
    simulate.main(SUMS, check_sum)
