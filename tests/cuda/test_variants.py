"""What CUDA variants take and predict, without a GPU and without compiling."""

from __future__ import annotations

import dataclasses
import re

import pytest
from draws import questions
from draws.seeds import run_seed
from kernel_cases import VARIANTS, desc, gemm, region, step

import aicf
from aicf.cuda_kernels.gemm import mma as gemm_mma
from aicf.cuda_kernels.rows.reduce import RowSplit, reduced, split
from aicf.device.spec import preset
from aicf.ops.schema import schema_of
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.rows.program import collapse
from aicf.types import Precision, bf16, f16, f32

H200 = preset("h200")


@pytest.mark.parametrize("variant, r, reason", [
    ("elementwise_flat", region("add", (4, 1), (4, 7)), "operand 0 has shape (4, 1), needs one element or (4, 7)"),
    ("elementwise_flat", region("relu", desc((6, 5), stride=(1, 6))), "operand 0 has strides (1, 6) for shape (6, 5)"),
    ("elementwise_vector", region("relu", desc((8,), alignment=4)), "operand 0 is aligned to 4 bytes, needs 16"),
    ("elementwise_vector", region("relu", desc((8,), f16, alignment=4)), "operand 0 is aligned to 4 bytes, needs 16"),
    ("elementwise_vector", region("convert", desc((8,), f16, alignment=4), dtype=f32.id),
     "operand 0 is aligned to 4 bytes, needs 8"),
    ("reduce_rows", region("reduce_sum", (3, 4), axes=(0,)), "axes (0,) of (3, 4) are not the last ones"),
    ("reduce_columns", region("reduce_sum", (3, 4), axes=(1,)), "axes (1,) of (3, 4) are not one run before others"),
])  # fmt: skip
def test_rejects_with_the_value_seen(variant, r, reason):
    (reject,) = [v.supported(r, H200) for v in VARIANTS.values() if v.name == variant]
    assert reject is not None and reason in str(reject)


def best(r) -> str:
    """The name of the best variant by score, ties by priority and name."""
    kinds = {r.kind.name, *schema_of(r.kind).traits, schema_of(r.kind).core}
    scores = [(v.score(r, H200), v.priority, v.name) for v in VARIANTS.values() if kinds & set(v.kinds)]
    return max(scores)[-1]


@pytest.mark.spec("B8")
def test_the_score_picks_by_size():
    assert best(region("add", (2**24,), (2**24,))) == "elementwise_vector"
    assert best(region("add", (4, 1), (1, 7))) == "elementwise_strided"
    assert best(gemm(8192, 8192, 8192)) == "gemm_fma[128x128]"
    assert best(gemm(64, 64, 64)) == "gemm_tiled[32x32]"
    assert best(region("reduce_sum", (4096, 4096), axes=(1,))) == "reduce_rows"
    assert best(region("reduce_sum", (4096, 4096), axes=(0,))) == "reduce_column_vectors"
    assert best(region("reduce_sum", (4096, 4095), axes=(0,))) == "reduce_columns"


def halves(*shape, stride=None, alignment=256, dtype=f16):
    """One operand of an `add` in halves."""
    return desc(shape, dtype, stride, alignment)


def taken_twice(r):
    op = r.anchor._replace(inputs=(0, 0), outputs=(1,))
    return type(r)((op,), (r.tensors[0], r.tensors[2]), (0,), (1,))


@pytest.mark.spec("B9")
@pytest.mark.parametrize("r, condition, reason", [
    (region("add", halves(1024), halves(1024)), None, None),
    (region("add", halves(4, 7), halves(4, 7)), None, None),  # collapses to rank 1
    (region("add", halves(0), halves(0)), None, None),
    (region("add", halves(1024, alignment=4), halves(1024)), None, None),
    (taken_twice(region("add", halves(8), halves(8))), "arity", "takes 2 operands and 1 results, got 1 and 1"),
    (region("add", (1024,), (1024,)), "dtype", "operand 0 is f32, needs f16"),
    (region("add", halves(8, dtype=bf16), halves(8, dtype=bf16)), "dtype", "operand 0 is bf16, needs f16"),
    (region("add", halves(4, 6), halves(4, 6, stride=(8, 1))), "rank",
     "tensor 1 of shape (4, 6), strides (8, 1) collapses to rank 2, needs 1"),
    (region("add", halves(8, stride=(2,)), halves(8)), "contiguous",
     "operand 0 has strides (2,) for shape (8,), needs row-major"),
    (region("add", halves(4, 6), halves(1, 6)), "same_shape", "operand 1 has shape (1, 6), result 0 has (4, 6)"),
    (region("add", halves(1025), halves(1025)), "even", "length 1025 is odd"),
    (region("add", halves(3, 5), halves(3, 5)), "even", "length 15 is odd"),
    (region("add", halves(1024, alignment=2), halves(1024)), "aligned", "operand 0 is aligned to 2 bytes, needs 4"),
    (region("add", halves(1024), halves(1024, alignment=2)), "aligned", "operand 1 is aligned to 2 bytes, needs 4"),
])  # fmt: skip
def test_half2_takes_exactly_what_it_may(r, condition, reason):
    reject = VARIANTS["cuda.add_f16_half2.v1"].supported(r, H200)
    assert (reject and (reject.condition, reject.reason)) == (condition and (condition, reason))


@pytest.mark.spec("B8", "B9")
@pytest.mark.parametrize("n, alignment, name", [
    (2**24, 256, "elementwise_vector"), (2**24, 8, "add_f16_half2"), (2**24, 4, "add_f16_half2"),
    (2**24, 2, "elementwise_flat"), (2**24 + 1, 8, "elementwise_flat"), (2**24 + 1, 256, "elementwise_vector"),
])  # fmt: skip
def test_alignment_and_size_choose_how_halves_are_added(n, alignment, name):
    assert best(region("add", halves(n, alignment=alignment), halves(n))) == name


@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_optimizer_steps_go_in_vectors(dtype):
    """0-D rates beside the parameters do not stand in the way."""
    p = desc((2**24,), dtype)
    for taken in (step("sgd_step", p), step("adam_step", p), step("adam_step", p, f32)):
        assert best(taken) == "elementwise_vector"
        shifted = dataclasses.replace(p, alignment=dtype.itemsize)
        ragged = dataclasses.replace(taken, tensors=(shifted, *taken.tensors[1:]))
        assert best(ragged) == "elementwise_flat"


@pytest.mark.spec("D10")
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("sizes, more, widths", [
    ((36, 52, 28), {}, "k4_n4"), ((36, 52, 28), {"trans_a": True, "trans_b": True}, "m4_k4"),
    ((37, 52, 28), {"trans_a": True}, "m1_n4"), ((36, 53, 29), {}, "k1_n1"), ((36, 53, 29), {"trans_b": True}, "k1_k1"),
    ((36, 52, 28), {"alignment": 4}, "k{0}_n{0}"), ((36, 52, 28), {"alignment": 8}, "k{1}_n{1}"),
])  # fmt: skip
def test_matrices_come_in_runs_of_four_where_they_can(dtype, sizes, more, widths):
    (launch,) = VARIANTS["cuda.gemm_tiled.v1[64x64]"].build(gemm(*sizes, dtype=dtype, **more), H200)
    wide = [4 if alignment >= 4 * dtype.itemsize else 1 for alignment in (4, 8)]
    assert launch.body.__name__.startswith(f"gemm_tiled_64x64x16_{widths.format(*wide)}")


@pytest.mark.spec("D10")
@pytest.mark.parametrize("r, condition, reason", [
    (gemm(37, 56, 24, dtype=f16), None, None),
    (gemm(40, 53, 24, dtype=bf16, trans_b=True), None, None),
    (gemm(40, 56, 24), "dtype", "the product is in f32, needs f16 or bf16"),
    (gemm(40, 56, 20, dtype=f16), None, None),
    (gemm(40, 54, 24, dtype=f16, alignment=4), None, None),
    (gemm(40, 53, 24, dtype=f16), "aligned", "b is aligned to 2 bytes, or its rows are, needs 4"),
    (gemm(40, 56, 24, dtype=f16, alignment=2), "aligned", "a is aligned to 2 bytes, or its rows are, needs 4"),
    (region("gemm", desc((8, 8), f16, (16, 2)), desc((8, 8), f16), None, None), "aligned",
     "a is aligned to 2 bytes, or its rows are, needs 4"),
    (region("gemm", desc((8, 8), f16, (12, 1)), desc((8, 8), f16), None, None), None, None),
])  # fmt: skip
def test_tensor_cores_take_any_rows_and_the_widest_tiles_those_of_whole_words(r, condition, reason):
    small, large = (VARIANTS[f"cuda.gemm_mma.v1[{tile}]"].supported(r, H200) for tile in ("64x64", "128x256"))
    assert (large and (large.condition, large.reason)) == (condition and (condition, reason))
    assert small == (None if condition == "aligned" else large)


def widths(r: RegionSpec) -> list[tuple[bool, int]]:
    return [(o.mn_major, o.width) for o in gemm_mma.operands(r)]


@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("r, expected", [
    (gemm(40, 56, 24, dtype=f16), [(False, 16), (True, 16)]),
    (gemm(40, 56, 24, dtype=f16, trans_a=True, trans_b=True), [(True, 16), (False, 16)]),
    (gemm(40, 53, 28, dtype=f16), [(False, 8), (True, 2)]),
    (gemm(40, 54, 28, dtype=f16, alignment=4), [(False, 4), (True, 4)]),
    (gemm(40, 53, 28, precision=Precision.tf32), [(False, 16), (True, 4)]),
    (gemm(1, 1, 29, dtype=f16), [(False, 2), (False, 2)]),
    (region("gemm", desc((8, 8), f16, (16, 2)), desc((8, 8), f16), None, None), [(False, 2), (True, 16)]),
])  # fmt: skip
def test_copies_are_as_wide_as_rows_are_aligned(r, expected):
    assert widths(r) == expected


@pytest.mark.spec("D9")
def test_a_batch_lies_as_apart_as_its_copies_need():
    plain = region("gemm", desc((3, 8, 16), f16, (260, 16, 1)), desc((3, 16, 24), f16), None, None)
    assert widths(plain) == [(False, 8), (True, 16)]


@pytest.mark.spec("D10")
def test_f32_is_rounded_only_as_far_as_it_may_be():
    for allowed, taken in (
        (Precision.exact, ()),
        (Precision.tf32x3, ("tf32x3",)),
        (Precision.tf32, ("tf32x3", "tf32")),
    ):
        for precision in ("tf32x3", "tf32"):
            reject = VARIANTS[f"cuda.gemm_mma.v1[64x64 {precision}]"].supported(
                gemm(40, 56, 24, precision=allowed), H200
            )
            assert (reject is None) == (precision in taken)
            assert (
                reject is None
                or reject.reason == f"the product is to be {allowed.name}, this one is {precision}"
            )


def test_shared_memory_that_a_device_lacks():
    reject = VARIANTS["cuda.gemm_mma.v1[128x256 deep]"].supported(
        gemm(64, 64, 64, dtype=f16), preset("rtx4090")
    )
    assert str(reject) == "needs 147584 bytes of shared memory for a block; rtx4090 has 101376"


@pytest.mark.spec("D10", "B8")
def test_tensor_cores_where_there_are_some():
    assert best(gemm(8192, 8192, 8192, dtype=f16)).startswith("gemm_wgmma")
    assert best(gemm(128, 512, 512, dtype=bf16)).startswith(("gemm_mma[32x32", "gemm_wgmma[64x64"))
    assert best(gemm(8192, 8191, 8192, dtype=f16)).endswith(" packed]")
    assert best(gemm(4096, 4096, 4096)) == "gemm_fma[128x128]"
    assert best(gemm(4096, 4096, 4096, precision=Precision.tf32x3)).endswith(" tf32x3]")
    assert best(gemm(4096, 4096, 4096, precision=Precision.tf32)).endswith(" rs]")
    reject = VARIANTS["cuda.gemm_mma.v1[64x64]"].supported(gemm(64, 64, 64, dtype=f16), preset("t4"))
    assert str(reject) == "needs sm_80 or newer; t4 is sm_75"


@pytest.mark.spec("D10", "B8")
@pytest.mark.parametrize("trans_a, trans_b", [(False, False), (True, False), (False, True), (True, True)])
def test_turing_multiplies_f16_on_tensor_cores_and_bf16_on_cuda_cores(trans_a, trans_b):
    t4, registry = preset("t4"), aicf.default_registry()

    def chosen(*sizes, **more):
        return select(gemm(*sizes, trans_a=trans_a, trans_b=trans_b, **more), t4, registry)

    large = chosen(4096, 4096, 4096, dtype=f16)
    assert large.kernel_id in ("cuda.gemm_mma.v1[128x256 turing]", "cuda.gemm_mma.v1[256x128 turing]")
    assert 2 * 4096**3 / 65e6 < large.chosen.cost.us <= 4000
    assert "turing packed" in chosen(4097, 4095, 4099, dtype=f16).kernel_id
    assert "turing" in chosen(512, 512, 1024, dtype=f16).kernel_id
    assert "mma" not in chosen(4096, 4096, 4096, dtype=bf16).kernel_id
    assert "mma" not in chosen(4096, 4096, 4096).kernel_id
    reject = VARIANTS["cuda.gemm_mma.v1[64x64 turing]"].supported(gemm(64, 64, 64, dtype=bf16), t4)
    assert str(reject) == "the product is in bf16, needs f16 on tensor cores before sm_80"
    for device in map(preset, ("a100", "l4", "h100", "b200")):
        for sizes in ((4096, 4096, 4096), (512, 512, 1024), (4097, 4095, 4099)):
            kernel = select(
                gemm(*sizes, trans_a=trans_a, trans_b=trans_b, dtype=f16), device, registry
            ).kernel_id
            assert "turing" not in kernel


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


@pytest.mark.parametrize("shape", [(0, 20, 40), (20, 0, 40), (20, 40, 0), (3, 0, 20, 40)])
def test_no_block_transposes_an_empty_tensor(shape):
    """A block of a tile would write outside of the result."""
    r = region("transpose", desc(shape), perm=(*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
    assert VARIANTS["cuda.elementwise_transposed.v1"].supported(r, H200) is not None


def test_axes_merge_into_runs():
    runs = reduced(region("reduce_sum", (2, 3, 1, 5, 7), axes=(1, 3))).runs
    assert [(run.reduced, run.shape) for run in runs] == [(False, (2,)), (True, (15,)), (False, (7,))]


def test_a_long_reduction_with_few_results_is_split():
    assert split(1000, 1, 256, H200) == RowSplit(1, 1000)  # too short
    assert split(10**5, 4 * H200.sms, 256, H200) == RowSplit(1, 10**5)  # enough blocks as it is
    assert split(10**6, 4 * H200.sms, 256, H200) == RowSplit(2, 10**6 // 2)  # but very long ways to go
    parts, chunk = split(10**6, 1, 256, H200)
    assert parts > H200.sms and (parts - 1) * chunk < 10**6 <= parts * chunk


def test_only_a_split_reduction_needs_a_workspace():
    rows = VARIANTS["cuda.reduce_rows.v2"]
    assert rows.query_workspace(region("reduce_sum", (4096, 64), axes=(1,)), H200) == 0
    long = region("reduce_sum", (10**6,), axes=(0,))
    assert rows.query_workspace(long, H200) % 4 == 0 and rows.query_workspace(long, H200) > 4 * H200.sms
    assert len(rows.build(long, H200)) == 2


def test_ids_are_versioned_and_named_by_device():
    assert all(
        re.fullmatch(r"cuda\.\w+\.v\d+(\[\d+x\d+( \w+)*\])?", v.id) and v.doc for v in VARIANTS.values()
    )


@pytest.mark.spec("B7")
def test_a_floor_is_below_every_cost():
    """Of drawn products, whose layouts and lengths decide which of a block's waits is the longest."""
    reached = set()
    for r in questions.regions(run_seed(), 40, ["products"]):
        for spec in (H200, preset("a100")):
            for v in VARIANTS.values():
                if v.least is not None and "gemm" in v.kinds and v.supported(r, spec) is None:
                    reached.add(v.kernel)
                    assert v.least(r, spec) <= v.cost(r, spec).us * (1 + 1e-12), (v.id, str(r))
    assert {"cuda.gemm_naive.v1", "cuda.gemm_tiled.v1"} <= reached
