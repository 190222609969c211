"""Reductions of columns in vectors, run on the host: several types, sizes that fill no block, maps on both sides, NaN; and what is refused."""

from __future__ import annotations

import pytest
from fused_map_cases import TOLERANCE, bias_gradient
from kernel_cases import (
    VARIANTS,
    Case,
    assert_close,
    desc,
    fused,
    operands_for,
    reference,
    region,
    with_specials,
)
from test_fused_maps import fresh_seed, run_on_host

from aicf.device.spec import preset
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import select
from aicf.types import DType, bf16, f16, f32, i32

KERNEL = "cuda.reduce_column_vectors.v2"
H200 = preset("h200")


def norm_gradient(rows: int, columns: int, dtype: DType):
    """Of a norm's weight: what the reduction reads is a product of wide and of narrow values, some one number a row."""
    x, number = desc((2, rows, columns), dtype), desc((2, rows, 1), f32)
    return fused(
        {"dy": x, "x": x, "mean": number, "rstd": number},
        ("w", "convert", "x", {"dtype": f32}), ("c", "sub", "w", "mean"), ("h", "mul", "c", "rstd"),
        ("g", "convert", "dy", {"dtype": f32}), ("p", "mul", "g", "h"), ("s", "reduce_sum", "p", {"axes": (0, 1), "keepdims": False}),
    )  # fmt: skip


CASES = [
    *(Case(KERNEL, region("reduce_sum", desc((m, n), t), axes=(0,)), 4 * TOLERANCE[t]) for t in TOLERANCE for m, n in ((70, 264), (9, 8))),
    *(Case(KERNEL, norm_gradient(50, 40, t), 4 * TOLERANCE[t]) for t in TOLERANCE),
    *(Case(KERNEL, bias_gradient(1100, 48, t), 8 * TOLERANCE[t]) for t in TOLERANCE),
    Case(KERNEL, region("reduce_max", desc((3, 40, 16), f16), axes=(1,))),
    Case(KERNEL, region("reduce_mean", (1100, 8), axes=(0,))),
    Case(KERNEL, region("reduce_sum", desc((70, 8), i32), axes=(0,))),
]  # fmt: skip


@pytest.mark.sample(4, pool="on the host")
@pytest.mark.spec("A13")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_columns_are_reduced(case):
    for operands in (operands_for(case, fresh_seed()), with_specials(case, operands_for(case))):
        (results,) = run_on_host(case, operands)
        assert_close(case, results, reference(case, operands.arrays))


@pytest.mark.spec("A13")
@pytest.mark.parametrize(
    "refused, condition",
    [
        (region("reduce_sum", (70, 6), axes=(0,)), "columns"),
        (region("reduce_sum", desc((70, 8), f32, alignment=8), axes=(0,)), "aligned"),
        (region("reduce_sum", desc((70, 8), f32, (10, 1)), axes=(0,)), "row pitch"),
        (region("reduce_sum", (8, 70), axes=(1,)), "axes"),
    ],
)
def test_what_is_not_aligned_is_refused(refused, condition):
    assert VARIANTS[KERNEL].supported(refused, H200).condition == condition


@pytest.mark.spec("A7")
def test_gradients_of_biases_of_whole_activations_are_read_in_vectors():
    registry = KernelRegistry(VARIANTS.values())
    for t in (f32, f16, bf16):
        found = select(region("reduce_sum", desc((16384, 768), t), axes=(0,)), H200, registry)
        assert found.kernel_id == KERNEL and found.chosen.us < 30


@pytest.mark.parametrize("columns, dtype, vector", [(768, bf16, 8), (772, bf16, 4), (768, f32, 4)], ids=str)
def test_loads_are_as_wide_as_what_goes_on_along_columns(columns, dtype, vector):
    """Numbers of rows, of a wider type, do not count."""
    launches = VARIANTS[KERNEL].build(norm_gradient(8192, columns, dtype), H200)
    assert launches[0].body.__name__.startswith(f"reduce_columns32x{vector}_split")
