"""The Hopper GEMM without a GPU: what it takes, that its machine code is what it should be, and what it is said to cost.

What it computes is in test_wgmma_model.py.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import replace

import pytest
from clean_kernels import are_new, found_clean
from fused_gemm_cases import Product
from kernel_cases import desc, fused
from machines.hopper_bodies import bodies
from machines.hopper_model import Machine
from wgmma_cases import (
    ALL,
    H200,
    OTHERS,
    TILINGS,
    TRANSPOSES,
    VARIANTS,
    activated,
    assert_refused,
    backward,
    batches,
    gemm_launch,
    named,
    other,
    product,
    residual,
    stashed,
    takes,
)

import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.gemm import wgmma_results
from aicf.cuda_kernels.gemm.operands.tma import operands_of
from aicf.cuda_kernels.gemm.wgmma_tiling import SHARED, WgmmaTiling
from aicf.cuda_kernels.hopper.scheduler import grouped_raster
from aicf.cuda_kernels.hopper.units import SUBTILE_BYTES
from aicf.cuda_kernels.tiles.halves import functions
from aicf.device.spec import preset
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import DType, Precision, bf16, f8e4m3, f8e5m2, f16, f32, i64

# --- what is taken ----------------------------------------------------------------------------------------------------


def batch(count, a_stride=None):
    """So many products of a row and an 8 x 8 matrix."""
    operands = {"a": desc((count, 1, 8), f16, a_stride), "b": desc((count, 8, 8), f16)}
    return fused(operands, ("y", "gemm", "a", "b", None, None, {}))


@pytest.mark.parametrize("r, reason", [
    (product(64, 64, 64, dtype=f32, tb=True), "the product is to be exact, this one is tf32"),
    (product(64, 64, 64, dtype=f32, tb=True, precision=Precision.tf32x3), "the product is to be tf32x3, this one is tf32"),
    (product(64, 64, 64, dtype=f32, precision=Precision.tf32), "b is f32[64x64], needs rows of k, as tensor cores read f32, that begin"),
    (product(64, 64, 64, dtype=f8e4m3, ta=True, tb=True, out_dtype=f16.id), "a is f8e4m3[64x64], needs rows of k"),
    (product(64, 64, 72, dtype=f8e5m2, tb=True, out_dtype=f16.id), "needs rows of k, as tensor cores read f8e5m2, that begin at mult"),
    (replace(other(64, 64, 64, OTHERS[1]), strict=True), "strict takes sums in f32"),
    (product(64, 64, 0), "k 0 is under 1"),
    (product(64, 64, 60), "a is f16[64x60]"),
    (product(64, 60, 64), "b is f16[64x60]"),
    (product(64, 64, 64, pitch=(68, None)), "needs rows that begin at multiples of 16 bytes"),
    (product(64, 64, 64, pitch=(32, None)), "needs rows"),
    (product(64, 64, 64, alignment=8), "a is aligned to 8 bytes, needs 16"),
    (batches(37, 64, 64, f32)["heads"], "the product is to be exact"),
    (batch(3, (12, 8, 1)), "a is f16[3x1x8] strides (12, 8, 1), needs matrices that begin at multiples of 16 bytes"),
    (batch(2**31), "tiles of 64 x 64 2147483648 is over"),
])  # fmt: skip
def test_refuses_with_the_value_seen(r, reason):
    assert_refused(VARIANTS, r, reason)


@pytest.mark.spec("D10")
@pytest.mark.parametrize("types", OTHERS, ids=str)
def test_takes_words_and_bytes(types):
    """Of bytes, tilings that have registers for a slice's sums beside their own, and others to multiply meanwhile."""
    r = other(37, 53, 29, types)
    for t in TILINGS:
        reject = VARIANTS[named(t)].supported(r, H200)
        assert reject is None if takes(t, types) else "fp8 accumulators are promoted" in str(reject), reject
    assert {str(t) for t in TILINGS if t.can_promote} == {
        "256x128", "256x128_cluster2", "128x192", "128x128", "128x128_cluster2", "128x64", "64x128", "64x64",
        "128x128_cluster_split2", "128x64_cluster_split2",
    }  # fmt: skip


def test_sums_of_parts_are_no_strict_ones():
    for name, variant in VARIANTS.items():
        reject = variant.supported(replace(product(64, 64, 64), strict=True), H200)
        assert (str(reject) if reject else "").endswith("strict takes one sum") == (" cluster split" in name)


def test_needs_hopper_itself():
    for device in (preset("a100"), preset("b200")):
        assert all(v.supported(product(64, 64, 64), device).condition == "needs" for v in VARIANTS.values())


@pytest.mark.spec("D9")
@pytest.mark.parametrize("r, fast", [
    (product(40, 48, 56), (True, False)),
    (product(40, 48, 56, ta=True, tb=True), (False, True)),
    (product(37, 53, 29, pitch=(32, 56)), (True, False)),  # any extents, if rows lie well
    (product(1, 53, 29, tb=True, pitch=(None, 32)), (True, True)),  # a single row lies anywhere
    (product(37, 8, 1), (False, False)),  # a's only column is a row as well
])  # fmt: skip
def test_takes_either_order(r, fast):
    assert all(v.supported(r, H200) is None for v in VARIANTS.values())
    assert tuple(o.k_major for o in operands_of(r)) == fast


@pytest.mark.spec("D9")
@pytest.mark.parametrize("name, a_map, b_map", [
    ("alone", ((56, 40, 3), (112, 4480)), ((48, 56, 3), (96, 5376))),
    ("shared a", ((56, 40), (112,)), ((48, 56, 3), (96, 5376))),
    ("shared b", ((56, 240), (112,)), ((48, 56), (96,))),  # one product of more rows
    ("shared b, rows", ((56, 40, 6), (112, 4480)), ((48, 56), (96,))),
    ("heads", ((56, 40, 2, 3), (336, 13440, 112)), ((48, 56, 2, 3), (96, 16128, 5376))),
    ("heads of one b", ((40, 56, 2, 3), (240, 13440, 80)), ((48, 56, 2), (96, 16128))),
])  # fmt: skip
def test_a_shared_operand_has_no_axis_of_the_batch(name, a_map, b_map):
    """Of which the pitch would be 0, which no map has."""
    r = batches(40, 48, 56)[name]
    assert all(v.supported(r, H200) is None for v in VARIANTS.values())
    maps = [o.map(64) for o in operands_of(r)]
    assert [(m.extents, m.pitches) for m in maps] == [a_map, b_map]


@pytest.mark.parametrize("r, boxes", [
    (product(64, 64, 64), 1),
    (product(64, 60, 64, pitch=(None, 64)), 1),  # in lines: rows of the result are not 16-byte aligned
    (residual(64, 64, 64), 1),
    (stashed(64, 64, 64), 2),
    (stashed(64, 60, 64, pitch=(None, 64)), 0),
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": f32.id})), 0),
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": f32.id}), keep=("y", "w")), 0),
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": bf16.id})), 1),
    (product(64, 64, 64, ("w", "convert", "y", {"dtype": bf16.id}), keep=("y", "w")), 2),
    (backward(64, 64, 64), 1),
    (backward(64, 64, 64, keep=("s",)), 0),  # none but the sums
    (product(64, 64, 64, ("d", "dropout", "y", "rng", {"rate": 0.5, "layer": 0}), given={"rng": desc((2,), i64)}), 0),
])  # fmt: skip
def test_how_results_leave(r, boxes):
    assert wgmma_results.staged(WgmmaTiling(64, 128, 1), r) == boxes


# --- what a block is made of ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", TILINGS, ids=str)
@pytest.mark.parametrize("staged", [0, 1, 2, 3])
def test_shared_memory_and_registers_suffice(t, staged):
    assert t.stages(staged) >= 3
    assert t.shared(staged) <= SHARED and t.blocks * (t.shared(staged) + 1024) <= SHARED + 1024
    assert t.n % t.cluster == 0 == t.n // t.cluster % 64, "a block brings whole boxes of 64 lines"
    assert t.m == 64 * t.row_blocks * t.cooperative and t.consumers == t.turn_groups * t.cooperative
    assert t.cluster_split == 1 or (
        t.cluster == t.turn_groups == 1 and t.finished % 4 == 0 and t.together <= 8
    )
    assert t.slots_at(staged) % 16 == 0 == t.split_barriers_at(staged) % 8
    assert (
        t.barriers_at(staged)
        >= t.stages(staged) * t.stage_bytes + t.buffers(staged) * t.consumers * SUBTILE_BYTES
    )
    assert t.buffers(staged) in (2 * staged, max(2, staged) * (staged > 0)), "two subtiles at least"
    per_thread = 65536 // (t.threads * t.blocks) // 8 * 8
    if t.registers is None:
        assert min(per_thread, 255) >= t.accumulators + 90
    else:
        keep, take = t.registers
        assert keep % 8 == take % 8 == 0 and 24 <= keep <= per_thread <= take <= 256
        assert 128 * (keep + t.consumers * take) <= t.threads * per_thread


@pytest.mark.parametrize(
    "rows, columns, layers", [(1, 1, 1), (3, 5, 1), (8, 2, 3), (19, 7, 2), (1, 20, 1), (40, 1, 4)]
)
@pytest.mark.parametrize("group_m", [1, 5, 8])
def test_every_tile_is_visited_once_and_neighbours_in_time_are_near(rows, columns, layers, group_m):
    where = bodies(Machine(0)).of(grouped_raster(group_m, layers > 1))
    visited = [where(tile, rows, columns) for tile in range(rows * columns * layers)]
    assert sorted(visited) == list(itertools.product(range(rows), range(columns), range(layers)))
    assert [v[2] for v in visited] == sorted(v[2] for v in visited)
    assert all(abs(a[0] - b[0]) <= group_m for a, b in itertools.pairwise(visited) if a[1:] == b[1:])


def test_groups_of_rows_are_about_as_high_as_what_runs_at_once_is_wide():
    """With that, the fewest bytes come from memory: docs/notes/2026-11-20-rasterization-order.md has the count."""
    groups = {str(t): t.group_m for t in TILINGS}
    assert (groups["128x256"], groups["128x256_cluster2"], groups["256x128_cluster2"]) == (16, 8, 4)
    for t in TILINGS:
        high = t.group_m * t.m * t.cluster
        assert 0.7 < high / (132 * t.blocks * t.m * t.columns / high) < 1.4


# --- machine code -----------------------------------------------------------------------------------------------------


def compiled(t: WgmmaTiling, r: RegionSpec):
    launch = gemm_launch(t, r, H200)
    made = engine.compile_launch(launch, r, H200.target)
    assert_clean(t, made)
    found_clean(launch, r, H200.target)
    return launch, made


# HGMMA.64x8x16.F16 RZ, gdesc[URZ], RZ, !UPT: a product of nothing. ptxas commits one where it can't tell of which products a group is,
# as where two ways of asking for them meet before `commit_group`; waiting for all groups but the last then waits for all
# products, of which the log says nothing, and an H200 took 25 % longer.
NO_PRODUCT = bytes.fromhex("f079ff3f00000000")


def assert_clean(t: WgmmaTiling, made: engine.CompiledKernel) -> None:
    assert made.registers > 0, f"the log can't be read:\n{made.log}"
    assert (made.spill_bytes, made.stack_bytes) == (0, 0), made.log
    assert not re.findall(r"C75\d\d", made.log), made.log  # serialized products, ignored setmaxnreg
    assert NO_PRODUCT not in made.cubin, "each slice waits for its own products"
    assert made.registers * t.threads * t.blocks <= 65536


EPILOGUES = {
    "plain": product, "residual": residual, "stashed": stashed, "activated": activated, "backward": backward,
}  # fmt: skip
ADDING = {then: [t for t in TILINGS if then != "backward" or t.columns % 64 == 0] for then in EPILOGUES}
CODE = [c for c in itertools.product(TILINGS, TRANSPOSES, (f16, bf16), EPILOGUES) if c[0] in ADDING[c[3]]]
# of each tiling one way, another for each
EACH = [random.Random(f"{t}").choice([c for c in CODE if c[0] == t]) for t in TILINGS]


@pytest.mark.parametrize("types", [(f16, f16, f16), *OTHERS[:2]], ids=str)
def test_sums_of_an_empty_batch_are_for_a_kernel_of_their_own(types):
    """gZ has no rows, and the sums of its columns are zeros, which have to be written: a product has no tiles for it, and a
    descriptor can't be of nothing."""
    made = {
        m: backward(m, 4096, 4096, tb=True) if types[0] is f16 else other(m, 4096, 4096, types, backward)
        for m in (0, 1)
    }
    taken = {
        m: [v.id for v in aicf.default_registry() if v.supported(r, H200) is None] for m, r in made.items()
    }
    assert taken[1] and not taken[0]
    for variant in VARIANTS.values():
        assert "least extent of results 0 is under 1" in str(variant.supported(product(0, 8, 8), H200))


def region_of(order: tuple[bool, bool], dtype: DType, then: str) -> RegionSpec:
    return EPILOGUES[then](1000, 1000, 1000, dtype=dtype, ta=order[0], tb=order[1])


def is_new(t: WgmmaTiling, order: tuple[bool, bool], dtype: DType, then: str) -> bool:
    r = region_of(order, dtype, then)
    return are_new([gemm_launch(t, r, H200)], r, H200.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, order, dtype, then", CODE if ALL else EACH, ids=lambda v: str(v))
def test_compiles_without_spills_or_serialized_products(t, order, dtype, then):
    compiled(t, region_of(order, dtype, then))


NARROW = list(itertools.product([t for t in TILINGS if t.can_promote], OTHERS[1:], EPILOGUES))
NARROW = [c for c in NARROW if c[0] in ADDING[c[2]]]
WIDE = [c for c in itertools.product(TILINGS, OTHERS[:1], EPILOGUES) if c[0] in ADDING[c[2]]]
LINES = [*WIDE, *NARROW] if ALL else [*random.Random(0).sample(WIDE, 4), *random.Random(0).sample(NARROW, 6)]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, types, then", LINES, ids=str)
def test_words_and_bytes_compile_without_spills_or_serialized_products(t, types, then):
    r = other(1000, 1016, 1000, types, EPILOGUES[then])
    launch, _ = compiled(t, r)
    a, b = ("tf32",) * 2 if types[0] is f32 else (x.name[2:] for x in types[:2])
    depth = 8 if types[0] is f32 else 32
    assert f"m64n{t.n}k{depth}.f32.{a}.{b} " in engine.ptx_of(launch, r, H200.target)


# but for what is one product of more rows
BATCHED = list(itertools.product(TILINGS, sorted(batches(8, 8, 8)), (f16, bf16)))


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "D10")
@pytest.mark.parametrize("t, name, dtype", BATCHED if ALL else random.Random(0).sample(BATCHED, 6), ids=str)
def test_batches_compile_without_spills_or_serialized_products(t, name, dtype):
    compiled(t, batches(1000, 1016, 1000, dtype)[name])


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("t", TILINGS if ALL else TILINGS[1:2], ids=str)
def test_compiles_what_takes_the_most_registers(t):
    """Dropout, a column-major residual, results of other widths, rows of odd length."""
    given = {"rng": desc((2,), i64), "x": desc((1000, 1001), f16, (1, 1000))}
    ops = (
        ("d", "dropout", "y", "rng", {"rate": 0.4, "layer": 3}),
        ("s", "sub", "d", "x"),
        ("w", "convert", "s", {"dtype": DType.f32.id}),
    )
    compiled(t, product(1000, 1001, 1000, *ops, tb=True, given=given, keep=("w", "d")))


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("A15")
def test_strict_epilogues_call_the_functions_that_ops_call_alone():
    """Those that are as exact as halves need them give other last bits: strict regions store by threads. Invariant ones call them everywhere."""
    assert {name for name, _ in functions()} == wgmma_results.SHORTENED
    t = WgmmaTiling(128, 128, 2, ping_pong=True)
    for strict, invariant in ((False, False), (True, False), (True, True)):
        r = replace(activated(1000, 1000, 1000, tb=True, keep=("d",)), strict=strict, invariant=invariant)
        if invariant:  # without contraction the map takes an instruction more, and a register; stores by threads take three times as long
            launch = gemm_launch(t, r, H200)
            assert engine.compile_launch(launch, r, H200.target).spill_bytes <= 8
        else:
            compiled(t, r)
        assert (wgmma_results.staged(t, r) == 0) == (strict and not invariant)
    relu = replace(stashed(1000, 1000, 1000), strict=True)
    assert wgmma_results.staged(t, relu), "what has no such function still leaves in boxes"


COOPERATIVE = {
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16": 4,
    "wgmma.fence": 1,
    "wgmma.commit_group": 1,
    "wgmma.wait_group": 2,
    "setmaxnreg.dec": 1,
    "setmaxnreg.inc": 1,
    "barrier.cluster.arrive": 1,
    "bar.sync": 4 * 2 * 2,  # for each subtile, before and after, of either consumer
    "bar.arrive": 0,
    "stmatrix": 16,
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group": 4,
}
PINGPONG = {
    **COOPERATIVE,
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16": 0,
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16": 2 * 4,
    "bar.sync": 4 * 2 * 2 + 2,  # and one at which each turn group waits for its turn
    "bar.arrive": 2,
}


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("t, expected", [
    (WgmmaTiling(128, 256, 2, cluster=2), COOPERATIVE), (WgmmaTiling(128, 128, 2, ping_pong=True, cluster=2), PINGPONG),
], ids=str)  # fmt: skip
def test_the_code_has_the_instructions_that_it_should(t, expected):
    r = product(1000, 1000, 1000, ta=True)
    launch, _ = compiled(t, r)
    ptx = engine.ptx_of(launch, r, H200.target)
    for instruction, count in expected.items():
        assert ptx.count(instruction) == count, f"{instruction}: what a warp does together is nowhere copied"
    assert "multicast::cluster" in ptx
    assert ".release.cluster" not in re.sub(r"(fence|barrier)\S*", "", ptx), "a MEMBAR in the main loop"
    assert ".f64" not in re.sub(r"\.reg.*", "", ptx)


def costs(*sizes):
    r = product(*sizes, dtype=bf16, tb=True)
    return {v.config: v.cost(r, H200).us for name, v in VARIANTS.items()}


@pytest.mark.spec("D5")
@pytest.mark.parametrize(
    "sizes, tflops", [((1024,) * 3, 150), ((2048,) * 3, 675), ((4096,) * 3, 766), ((8192,) * 3, 720)]
)
def test_predictions_are_near_what_was_measured(sizes, tflops):
    m, n, k = sizes
    assert costs(*sizes)["128x256 cluster2"] == pytest.approx(2e-6 * m * n * k / tflops, rel=0.13)


@pytest.mark.spec("D5")
def test_costs_tell_large_from_small():
    def best(*sizes):
        found = costs(*sizes)
        return min(found, key=found.__getitem__)

    assert best(2048, 2048, 2048) == "128x128 pingpong", "half of the results leave before the end"
    assert best(4096, 4096, 4096) == best(8192, 1024, 8192) == "128x256", "less is moved for each product"
    assert best(3072, 3072, 3072) in ("192x128", "128x192"), (
        "384 tiles for 132 multiprocessors; others need a fourth wave"
    )
    assert best(1024, 1024, 1024) in ("128x64", "64x128 pingpong"), "128 tiles"
    assert best(256, 256, 256) == "64x64"
    assert best(512, 512, 512).startswith("64x64")
    for sizes in ((16, 4096, 4096), (128, 4096, 4096)):
        assert "cluster split" in best(*sizes), "tiles for half of the multiprocessors, or fewer"
    assert "pingpong" in best(8192, 8192, 512), "where tiles end often"
    for n in (256, 1024):
        found = costs(n, n, n)
        assert all(found[name] < found[name + " cluster2"] for name in found if name + " cluster2" in found)
    short, long = costs(8192, 8192, 512), costs(8192, 8192, 8192)
    assert short["128x128"] / short["128x128 pingpong"] > 1.1
    assert 1 < long["128x128"] / long["128x128 pingpong"] < 1.02


@pytest.mark.spec("D5")
def test_a_batch_costs_its_tiles():
    """As many of them as one product of that many rows has, and about as much."""
    t = VARIANTS["gemm_wgmma[128x128]"]
    one, many = product(3072, 1024, 512), batches(1024, 1024, 512)["alone"]
    assert t.cost(many, H200).us == pytest.approx(t.cost(one, H200).us, rel=0.1)


@pytest.mark.spec("B8")
def test_a_prediction_is_told_by_its_causes():
    terms = VARIANTS["gemm_wgmma[128x256 cluster2]"].cost(product(3072, 3072, 3072), H200).terms
    assert list(terms) == ["launch", "latency", "compute", "wave tail", "epilogue"]
    edges = VARIANTS["gemm_wgmma[128x256 cluster2]"].cost(product(3000, 3072, 3072), H200).terms
    assert edges["tile padding"] > 0


@pytest.mark.spec("B7", "B8")
def test_beside_the_others_a_tiling_is_chosen_where_it_can_be_and_the_reason_told_where_not():
    kernels = aicf.default_registry()
    heads = Product(1024, 1024, 1024, bf16, batch=(8, 12), heads=True, trans_b=True).then({})
    words, byte = other(4096, 4096, 4096, OTHERS[0]), other(8192, 8192, 8192, OTHERS[1])
    for r in (product(4096, 4096, 4096, dtype=bf16, tb=True), heads, words, byte):
        assert "gemm_wgmma" in select(r, H200, kernels).kernel_id
    ragged = select(product(4097, 4095, 4095), H200, kernels)
    told = {r.variant.name: r.reject.reason for r in ragged.rejected}
    assert ragged.kernel_id.endswith(" packed]") and all("16 bytes" in told[name] for name in VARIANTS)
    assert "gemm_wgmma" not in select(product(4096, 4096, 4096), preset("a100"), kernels).kernel_id
