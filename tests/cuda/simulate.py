"""Run small kernels in numba's simulator and print one line of JSON per case: name, error or null.

A script of its own: the simulator is chosen by a variable that must be set before numba is first imported.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"

import numpy as np
from kernel_cases import (
    VARIANTS,
    Case,
    Operands,
    assert_close,
    biased_attentions,
    both_attentions,
    cache_write,
    desc,
    gemm,
    mark_tokens,
    operands_for,
    reference,
    region,
    sample_tokens,
    step,
)
from machines import simulated_blocks

from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import DeviceSpec
from aicf.types import ActKind, DType, bf16, f16, f32, i8, i32, i64, u8

TINY = DeviceSpec("tiny", "cuda", (9, 0), frozenset({"sm_90a"}), 2, 1000.0, {"f32": 20.0})
TILED, NAIVE = "cuda.gemm_tiled.v1[32x32]", "cuda.gemm_naive.v1"
FLAT, STRIDED, TRANSPOSED = (f"cuda.elementwise_{name}.v1" for name in ("flat", "strided", "transposed"))

CASES = [
    Case(FLAT, region("gelu", (300,))),
    Case(FLAT, step("adam_step", (40,))),
    Case(FLAT, step("lion_step", (40,))),
    Case(FLAT, step("rmsprop_centered_step", (40,))),
    Case(FLAT, step("amsgrad_step", (40,), decoupled=True)),
    Case(FLAT, region("convert", desc((40,), f32), dtype=f16.id), tolerance=1e-3),
    Case(FLAT, region("greater", (40,), (40,))),
    Case("cuda.elementwise_vector.v1", region("mul", (103,), (1,))),
    Case(STRIDED, region("add", (4, 1), (3, 1, 7))),
    Case(STRIDED, region("copy", desc((6, 5), f32, (1, 6)))),
    Case(TILED, gemm(20, 18, 9, bias=18, act=ActKind.relu, save_preact=True)),
    Case(TILED, gemm(33, 18, 40, c=True, trans_a=True, trans_b=True, alpha=0.5, beta=2.0)),
    Case(TILED, gemm(36, 20, 40, bias=36, trans_b=True, dtype=f16, save_preact=True, act=ActKind.tanh), tolerance=2e-3),
    Case(TILED, gemm(20, 36, 8, trans_a=True), tolerance=2e-5),
    Case(TILED, gemm(0, 5, 3)),
    Case(TILED, gemm(5, 0, 3)),
    Case("cuda.elementwise_vector.v1", region("mul", *2 * [desc((103,), f16)]), tolerance=1e-3),
    Case("cuda.add_f16_half2.v1", region("add", *2 * [desc((4, 7), f16)]), tolerance=1e-3),
    Case(NAIVE, gemm(5, 6, 7, bias=5, act=ActKind.sigmoid)),
    Case(NAIVE, gemm(3, 4, 0, bias=1)),
    Case("cuda.gemm_naive_int8.v1", region("gemm", desc((5, 9), i8), desc((9, 6), u8), None, None)),
    Case("cuda.gemm_naive_int8.v1", region("gemm", desc((2, 7, 3), u8), desc((4, 7), i8), None, None, trans_a=True, trans_b=True)),
    Case(STRIDED, region("bias_add", (4, 7), (4,))),
    Case(STRIDED, region("broadcast_in_dim", (4, 1), shape=(4, 3, 5), dims=(0, 2))),
    Case(STRIDED, region("transpose", (2, 3, 5), perm=(2, 0, 1))),
    Case(TRANSPOSED, region("transpose", (17, 70), perm=(1, 0))),
    Case(TRANSPOSED, region("transpose", desc((2, 18, 2, 16), f16), perm=(0, 2, 3, 1)), 1e-3),
    Case(STRIDED, region("reverse", (3, 7), dims=(1,))),
    Case(STRIDED, region("slice", (5, 9), start=(1, 2), limit=(5, 9), step=(3, 2))),
    Case(FLAT, region("slice", (9,), start=(2,), limit=(7,), step=(1,))),
    Case("cuda.elementwise_rows.v1", region("slice", (5, 16), start=(0, 4), limit=(5, 12), step=(2, 1))),
    Case("cuda.elementwise_rows.v1", region("mul", (3, 259), (3, 1))),
    Case("cuda.elementwise_rows.v1", region("mul", desc((2, 517), f16), desc((2, 1), f16)), tolerance=2e-3),
    Case(STRIDED, region("pad", desc((3, 5), f16), value=0.5, low=(1, -2), high=(0, 3), interior=(1, 0)), tolerance=1e-3),
    Case("cuda.dropout_philox.v1", region("dropout", (103,), desc((2,), i64), rate=0.3, layer=2)),
    Case("cuda.dropout_philox.v1", region("dropout", desc((30,), f16, alignment=2), desc((2,), i64), rate=0.6, layer=0),
         tolerance=1e-3),
    Case("cuda.rng_advance.v2", region("rng_advance", desc((2,), i64), desc((), DType.bool))),
    Case("cuda.fill.v1", region("fill", shape=(3, 5), value=1.0, dtype=DType.bool.id)),
    Case("cuda.reshape.v1", region("reshape", (3, 5), shape=(15,))),
    Case("cuda.reduce_rows.v2", region("reduce_sum", (3, 300), axes=(1,))),
    Case("cuda.reduce_rows.v2", region("reduce_mean", (70, 5), axes=(1,))),
    Case("cuda.reduce_rows.v2", region("reduce_mean", (5001,), axes=(0,))),  # split in two, through the workspace
    Case("cuda.reduce_columns.v2", region("reduce_max", (2, 40, 5), axes=(1,))),
    Case("cuda.reduce_columns.v2", region("reduce_mean", (1100, 5), axes=(0,))),  # split as well
    Case("cuda.reduce_naive.v2", region("reduce_sum", (2, 3, 5), axes=(0, 2))),
    Case("cuda.reduce_rows.v2", region("reduce_sum", desc((3, 40), i32), axes=(1,))),
    Case("cuda.reduce_rows.v2", region("argmax", (3, 70))),
    Case("cuda.reduce_rows.v2", region("argmin", (5001,))),  # split: keys go through the workspace
    Case("cuda.reduce_column_vectors.v2", region("reduce_max", desc((2, 40, 16), f16), axes=(1,))),
    Case("cuda.reduce_column_vectors.v2", region("reduce_mean", (1100, 8), axes=(0,))),  # split as well
    Case("cuda.reduce_column_vectors.v2", region("reduce_sum", desc((130, 24), bf16), axes=(0,)), 1e-2),
    Case("cuda.reduce_columns.v2", region("argmax", desc((2, 40, 5), i32), axis=1)),
    Case("cuda.reduce_naive.v2", region("reduce_min", (2, 3, 5), axes=(0, 2))),
    *(Case("cuda.all_finite.v1", region("all_finite", desc((70,), t), desc((3,), t), desc((5, 7), t, alignment=a)))
      for t, a in ((f32, 256), (f16, 256), (bf16, 256), (f16, 2))),
    Case("cuda.all_finite.v1", region("all_finite", desc((70,), f32), desc((3,), f16), desc((0,), bf16))),
    *(Case("cuda.sum_of_squares.v1", region("sum_of_squares", desc((70,), t), desc((3,), t), desc((5, 7), t, alignment=a)), 1e-5)
      for t, a in ((f32, 256), (f16, 256), (bf16, 256), (f16, 2))),
    Case("cuda.sum_of_squares.v1", region("sum_of_squares", desc((70,), f32), desc((3,), f16), desc((0,), bf16)), 1e-5),
    Case("cuda.check_labels.v1", region("check_labels", desc((70,), i32), desc((5,), i64), classes=5, ignore_index=-5)),
    Case("cuda.check_labels.v1", region("check_labels", desc((2100,), i64), desc((5,), i64), classes=4, ignore_index=-5)),
    Case(STRIDED, region("cross_entropy_grad", (3, 70), desc((3,), i32), *[(3,)] * 3)),
    Case(STRIDED, region("cross_entropy_grad", (3, 7), desc((3,), i64), *[(3,)] * 3, ignore_index=0, label=0.9, other=0.1)),
    Case("cuda.check_indices.v1", region("check_indices", desc((7, 10), i32), desc((5,), i64), size=5)),
    Case("cuda.check_indices.v1", region("check_indices", desc((2100,), i64), desc((5,), i64), size=9)),
    Case("cuda.check_indices.v1", region("check_indices", desc((9,), i32), desc((5,), i64), size=9, negative=False)),
    Case("cuda.scatter_add_rows.v2", region("scatter_add", desc((2, 300, 3), f16), desc((300,), i64), size=5, axis=1), 2e-2),
    Case("cuda.scatter_add_rows.v2", region("scatter_add", (260, 3), desc((260,), i32), size=9000), 1e-4),
    Case("cuda.scatter_add_rows.v2", region("scatter_add", desc((0, 5), i32), desc((0,), i32), size=3)),
    Case("cuda.scatter_add_sorted.v1", region("scatter_add", (40, 6), desc((40,), i32), size=300), 1e-4),
    *both_attentions((2, 5, 4), (2, 7, 4)),
    *both_attentions((2, 5, 3), (1, 70, 3), dv=70, causal=True),
    *both_attentions((1, 70, 8), (1, 66, 8), causal=True, window=9, softcap=2.0),
    *both_attentions((2, 4, 5, 4), (2, 2, 6, 4), mask=(2, 1, 5, 6), dtype=f16, tolerance=2e-3),
    *both_attentions((3, 2, 5, 4), (3, 1, 7, 4), ragged=True, causal=True, window=4),
    *both_attentions((2, 1, 2, 4), (2, 1, 66, 4), ragged=True, mask=(66,)),
    *biased_attentions((2, 2, 5, 4), (2, 1, 6, 4), (2, 5, 6), causal=True),
    *biased_attentions((2, 4, 5, 4), (2, 2, 6, 4), (2, 1, 5, 6), mask=(2, 4, 5, 6), softcap=1.5, dtype=f16, of_bias=f16, tolerance=2e-3),
    *biased_attentions((2, 2, 2, 5, 4), (2, 2, 1, 6, 4), (2, 1, 2, 5, 6), mask=(1, 2, 1, 1, 6), window=4),
    *biased_attentions((3, 2, 5, 4), (3, 1, 70, 4), (3, 1, 1, 70), ragged=True),
    *biased_attentions((3, 2, 5, 4), (3, 1, 7, 4), (5, 7), ragged=True),
    *both_attentions((2, 5, 4), (2, 0, 4)),
    *both_attentions((2, 0, 4), (2, 5, 4)),
    Case("cuda.cache_write.v1", cache_write((3,), 2, 7, 2, 4, 3)),
    Case("cuda.sample_tokens.v1", sample_tokens(2, 300)),
    Case("cuda.mark_tokens.v1", mark_tokens(3, 300, 4)),
    Case("cuda.cache_write.v1", cache_write((), 2, 3, 5, 4, 4, f16)),
    Case("cuda.scatter_add_along.v2", region("scatter_add", (3, 5, 2), desc((3, 5, 2), i32), size=4, axis=1, along=True)),
]  # fmt: skip


def simulate(case: Case, operands: Operands) -> list[np.ndarray]:
    variant, region = VARIANTS[case.variant], case.region
    reject = variant.supported(region, TINY)
    assert reject is None, reject
    results = [np.full(t.shape, -1).astype(t.dtype.numpy) for t in region.results]
    workspace = np.full(variant.query_workspace(region, TINY), 255, np.uint8)
    for launch in variant.build(region, TINY):
        engine.simulate(launch, operands.memory, results, workspace)
    return results


def check(case: Case) -> None:
    operands = operands_for(case)
    assert_close(case, simulate(case, operands), reference(case, operands.arrays))


def main(cases: Iterable[Case], check: Callable[[Case], None]) -> None:
    simulated_blocks.use()
    for case in cases:
        try:
            check(case)
            error = None
        except Exception:
            error = traceback.format_exc()
        print(json.dumps([str(case), error]))
        sys.stdout.flush()


if __name__ == "__main__":
    main(CASES, check)
