"""What CUDA variants take and predict, without a GPU and without compiling."""

from __future__ import annotations

import dataclasses

import pytest
from kernel_cases import VARIANTS, desc, gemm, region

from aicf.cuda_kernels.elementwise import broadcast_strides, collapse
from aicf.cuda_kernels.reduce import Split, merged, split
from aicf.device.spec import preset
from aicf.ops.schema import schema_of
from aicf.types import f16

H200 = preset("h200")


@pytest.mark.parametrize("variant, r, reason", [
    ("elementwise_flat", region("add", (4, 1), (4, 7)), "operand 0 has shape (4, 1), needs one element or (4, 7)"),
    ("elementwise_flat", region("relu", desc((6, 5), stride=(1, 6))), "operand 0 has strides (1, 6) for shape (6, 5)"),
    ("elementwise_vector", region("relu", desc((8,), alignment=4)), "operand 0 is aligned to 4 bytes, needs 16"),
    ("elementwise_vector", region("relu", desc((8,), f16, alignment=4)), "operand 0 is aligned to 4 bytes, needs 8"),
    ("gemm_tiled_64x64", region("gemm", desc((8, 8), f16), desc((8, 8), f16), None, None), "operand 0 is f16, needs f32"),
    ("reduce_rows", region("reduce_sum", (3, 4), axes=(0,)), "axes (0,) of (3, 4) are not the last ones"),
    ("reduce_columns", region("reduce_sum", (3, 4), axes=(1,)), "axes (1,) of (3, 4) are not one run before others"),
])  # fmt: skip
def test_rejects_with_the_value_seen(variant, r, reason):
    reject = VARIANTS[f"cuda.{variant}.v1"].supported(r, H200)
    assert reject is not None and reason in str(reject)


def best(r) -> str:
    """The name of the best variant by score, ties by name."""
    kinds = {r.kind.name, *schema_of(r.kind).traits}
    scores = [(v.score(r, H200), v.name) for v in VARIANTS.values() if kinds & set(v.kinds)]
    return max(scores)[1]


@pytest.mark.spec("B8")
def test_the_score_picks_by_size():
    assert best(region("add", (2**24,), (2**24,))) == "elementwise_vector"
    assert best(region("add", (5000,), (5000,))) == "elementwise_flat"
    assert best(region("add", (4, 1), (1, 7))) == "elementwise_strided"
    assert best(gemm(8192, 8192, 8192)) == "gemm_tiled_128x128"
    assert best(gemm(64, 64, 64)) == "gemm_tiled_32x32"
    assert best(region("reduce_sum", (4096, 4096), axes=(1,))) == "reduce_rows"
    assert best(region("reduce_sum", (4096, 4096), axes=(0,))) == "reduce_columns"


@pytest.mark.parametrize("shape, strides, expected", [
    ((4, 7), [(7, 1)], ((28,), [(1,)])),
    ((4, 7), [(7, 1), (0, 1)], ((4, 7), [(7, 1), (0, 1)])),
    ((4, 1, 7), [(7, 9, 1), (0, 0, 0)], ((28,), [(1,), (0,)])),
    ((2, 3, 4), [(12, 4, 1), (0, 0, 1)], ((6, 4), [(4, 1), (0, 1)])),
    ((1, 1), [(5, 5)], ((1,), [(0,)])),
    ((), [()], ((1,), [(0,)])),
    ((0, 3), [(3, 1)], ((0,), [(1,)])),
])  # fmt: skip
def test_neighbouring_dimensions_merge(shape, strides, expected):
    assert collapse(shape, strides) == expected


def test_broadcast_strides_align_at_the_right():
    assert broadcast_strides(desc((4, 1)), (3, 4, 7)) == (0, 1, 0)
    assert broadcast_strides(desc(()), (3,)) == (0,)
    assert broadcast_strides(desc((1, 1)), (1, 1)) == (1, 1)


def test_axes_merge_into_runs():
    r = region("reduce_sum", (2, 3, 1, 5, 7), axes=(1, 3))
    assert merged(r) == [(2, False), (15, True), (7, False)]


def test_a_long_reduction_with_few_results_is_split():
    assert split(1000, 1, 256, H200) == Split(1, 1000)  # too short
    assert split(10**6, 4 * H200.sms, 256, H200) == Split(1, 10**6)  # enough blocks as it is
    parts, chunk = split(10**6, 1, 256, H200)
    assert parts > H200.sms and (parts - 1) * chunk < 10**6 <= parts * chunk


def test_only_a_split_reduction_needs_a_workspace():
    rows = VARIANTS["cuda.reduce_rows.v1"]
    assert rows.query_workspace(region("reduce_sum", (4096, 64), axes=(1,)), H200) == 0
    long = region("reduce_sum", (10**6,), axes=(0,))
    assert rows.query_workspace(long, H200) % 4 == 0 and rows.query_workspace(long, H200) > 4 * H200.sms
    assert len(rows.build(long, H200)) == 2


def test_no_variant_takes_more_than_one_op_but_gemm():
    two = region("relu", (8,))
    two = dataclasses.replace(two, ops=two.ops * 2)
    for variant in VARIANTS.values():
        if "elementwise" in variant.kinds:
            assert "takes one op" in str(variant.supported(two, H200))


def test_ids_are_versioned_and_named_by_device():
    assert all(v.id.startswith("cuda.") and v.id.endswith(".v1") and v.doc for v in VARIANTS.values())
