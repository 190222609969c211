"""Intrinsics of memory, of warps, of numbers and of blocks that talk to each other: their code and what they do."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from draws.seeds import rng
from kernel_cases import desc
from memory_kernels import (
    added,
    copied,
    handed,
    in_turns,
    late,
    matrices,
    packed,
    reduced,
    relayed,
    sent,
    signalled,
    summed,
    talked,
    unpacked,
)
from ptx_support import PLACES, Instructions, assembles, code, computer, groups, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

import aicf.cuda_kernels.ptx as ptx
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.dsl import int32
from aicf.types import bf16, f16, f32, i32, i64
from examples import EVERYTHING

# --- one by one -------------------------------------------------------------------------------------------------------

AMPERE: Instructions = {
    "ld.global.v4.b32": (ptx.load_words(4), lambda f: lambda a, m, x: int32(f(m)[0])),
    "ld.global.nc.L1::no_allocate.L2::128B.v4.b32": (ptx.load_words(4, "once"), lambda f: lambda a, m, x: int32(f(m)[3])),
    "ld.global.nc.L1::no_allocate.L2::128B.b32": (ptx.load_words(1, "once"), lambda f: lambda a, m, x: int32(f(m)[0])),
    "ld.global.L1::no_allocate.L2::cache_hint.v2.b32": (
        ptx.load_words(2, "policy"), lambda f: lambda a, m, x: int32(f(m, m)[1])),
    "createpolicy.fractional.L2::evict_first.b64": (ptx.cache_policy("first"), lambda f: lambda a, m, x: int32(f())),
    "createpolicy.fractional.L2::evict_last.b64": (ptx.cache_policy("last"), lambda f: lambda a, m, x: int32(f())),
    "st.global.v2.b32": (ptx.store_words(2), lambda f: lambda a, m, x: f(m, a, a)),
    "st.global.cs.v4.b32": (ptx.store_words(4, "once"), lambda f: lambda a, m, x: f(m, a, a, a, a)),
    "st.global.L2::cache_hint.b32": (ptx.store_words(1, "policy"), lambda f: lambda a, m, x: f(m, m, a)),
    "red.relaxed.gpu.global.add.f32": (ptx.add_words(f32, 1), lambda f: lambda a, m, x: f(m, x)),
    "red.relaxed.gpu.global.add.noftz.f16x2": (ptx.add_words(f16, 1), lambda f: lambda a, m, x: f(m, a)),
    "atom.acq_rel.gpu.global.add.s32": (ptx.fetch_add(), lambda f: lambda a, m, x: f(m, x)),
    "ld.acquire.gpu.global.s32": (ptx.load_acquire(), lambda f: lambda a, m, x: f(m)),
    "ld.acquire.gpu.global.s64": (ptx.load_acquire(i64), lambda f: lambda a, m, x: int32(f(m))),
    "ld.shared.v4.f32": (ptx.load_shared(), lambda f: lambda a, m, x: int32(f(a)[3])),
    "st.shared.v4.f32": (ptx.store_shared(), lambda f: lambda a, m, x: f(a, x, x, x, x)),
    "ld.shared.u32": (ptx.load_shared_word(), lambda f: lambda a, m, x: int32(f(a))),
    "ld.shared.b16": (ptx.load_shared_pair(), lambda f: lambda a, m, x: int32(f(a, a))),
    "@inside st.global.v4.b32": (ptx.copy_run_below(), lambda f: lambda a, m, x: f(m, a, x, x)),
    "@inside st.global.b32": (ptx.store_pair_below(), lambda f: lambda a, m, x: f(m, a, x, x)),
    "@inside st.global.b16": (ptx.store_half_below(), lambda f: lambda a, m, x: f(m, a, x, x)),
    "st.shared.u32": (ptx.store_shared_word(), lambda f: lambda a, m, x: f(a, a)),
    "st.release.gpu.global.s32": (ptx.store_release(), lambda f: lambda a, m, x: f(m, x)),
    "st.release.gpu.global.s64": (ptx.store_release(i64), lambda f: lambda a, m, x: f(m, x)),
    "fence.acq_rel.gpu": (ptx.fence_memory("gpu"), lambda f: lambda a, m, x: f()),
    "fence.acq_rel.sys": (ptx.fence_memory("sys"), lambda f: lambda a, m, x: f()),
    "redux.sync.add.s32": (ptx.reduce_warp("add"), lambda f: lambda a, m, x: f(x)),
    "redux.sync.max.s32": (ptx.reduce_warp("max"), lambda f: lambda a, m, x: f(x)),
    "redux.sync.xor.b32": (ptx.reduce_warp("xor"), lambda f: lambda a, m, x: f(x)),
    "mbarrier.inval.shared::cta.b64": (ptx.barrier_end(), lambda f: lambda a, m, x: f(a)),
    "mbarrier.test_wait.parity.shared::cta.b64": (ptx.phase_over(), lambda f: lambda a, m, x: f(a, a)),
    "cvt.f32.f16": (ptx.unpack_halves(f16), lambda f: lambda a, m, x: int32(f(a)[1])),
    "and.b32 x, ": (ptx.unpack_halves(bf16), lambda f: lambda a, m, x: int32(f(a)[1])),
}  # fmt: skip
ADA: Instructions = {
    "cvt.rn.satfinite.e4m3x2.f32": (ptx.pack_fp8("e4m3"), lambda f: lambda a, m, x: int32(f(x, x, x, x))),
    "cvt.rn.satfinite.e5m2x2.f32": (ptx.pack_fp8("e5m2"), lambda f: lambda a, m, x: int32(f(x, x, x, x))),
    "cvt.rn.f16x2.e4m3x2": (ptx.unpack_fp8("e4m3"), lambda f: lambda a, m, x: int32(f(a)[3])),
    "cvt.rn.f16x2.e5m2x2": (ptx.unpack_fp8("e5m2"), lambda f: lambda a, m, x: int32(f(a)[0])),
}  # fmt: skip
HOPPER: Instructions = {
    "red.relaxed.gpu.global.add.v2.f32": (ptx.add_words(f32, 2), lambda f: lambda a, m, x: f(m, x, x)),
    "red.relaxed.gpu.global.add.v4.f32": (ptx.add_words(f32, 4), lambda f: lambda a, m, x: f(m, x, x, x, x)),
    "red.relaxed.gpu.global.add.noftz.bf16x2": (ptx.add_words(bf16, 1), lambda f: lambda a, m, x: f(m, a)),
    "red.relaxed.gpu.global.add.noftz.v4.f16x2": (ptx.add_words(f16, 4), lambda f: lambda a, m, x: f(m, a, a, a, a)),
    "red.relaxed.gpu.global.add.noftz.v2.bf16x2": (ptx.add_words(bf16, 2), lambda f: lambda a, m, x: f(m, a, a)),
    "fence.acq_rel.cluster": (ptx.fence_memory("cluster"), lambda f: lambda a, m, x: f()),
    "fence.proxy.async;": (ptx.fence_async_all(), lambda f: lambda a, m, x: f()),
    "griddepcontrol.wait": (ptx.wait_kernel(), lambda f: lambda a, m, x: f()),
    "griddepcontrol.launch_dependents": (ptx.launch_dependents(), lambda f: lambda a, m, x: f()),
    "elect.sync": (ptx.elect(), lambda f: lambda a, m, x: f()),
    "shfl.sync.idx.b32": (ptx.warp_uniform(), lambda f: lambda a, m, x: int32(f(a))),
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64": (ptx.expect_more(), lambda f: lambda a, m, x: f(a, a)),
    "mbarrier.arrive.expect_tx.shared::cluster.b64": (ptx.expect_remote(), lambda f: lambda a, m, x: f(a, a)),
    "%cluster_nctarank": (ptx.cluster_size(), lambda f: lambda a, m, x: int32(f())),
    "ld.shared::cluster.f32": (ptx.load_remote(), lambda f: lambda a, m, x: int32(f(a))),
    "st.shared::cluster.f32": (ptx.store_remote(), lambda f: lambda a, m, x: f(a, x)),
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32": (
        ptx.send_remote(), lambda f: lambda a, m, x: f(a, x, x, x, x, a)),
    "barrier.cluster.arrive.relaxed.aligned": (ptx.cluster_arrive_only(), lambda f: lambda a, m, x: f()),
}  # fmt: skip
INSTRUCTIONS = {**AMPERE, **ADA, **HOPPER}
VALUES = {
    text for text in INSTRUCTIONS if text.startswith(("ld.", "createpolicy", "atom.", "redux", "cvt.", "and.", "elect", "shfl", "%"))
} | {"mbarrier.test_wait.parity.shared::cta.b64"}  # fmt: skip


@pytest.mark.spec("F2")
@pytest.mark.parametrize("target, group", [
    (target, group) for target, table in (("sm_80", AMPERE), ("sm_89", ADA), ("sm_90a", HOPPER)) for group in groups(table)
])  # fmt: skip
def test_assembles_to_its_instruction(target, group):
    """On the architecture that is said to have it first; what has it before Ampere is not tried there."""
    assembles(INSTRUCTIONS, VALUES, group, target)


@pytest.mark.parametrize("make", [
    lambda: ptx.load_words(3), lambda: ptx.store_words(8), lambda: ptx.cache_policy("none"), lambda: ptx.fence_memory("cta"),
    lambda: ptx.unpack_fp8("e3m4"),
])  # fmt: skip
def test_what_no_instruction_does_is_refused(make):
    place = make()
    with pytest.raises(AssertionError):
        place.factory(*place.args)


# --- what they do -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=PLACES)
def compute(request):
    return computer(request)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng().integers(-50, 50, shape).astype(np.int32)


@pytest.mark.parametrize("words, hint", list(itertools.product((1, 2, 4), ("", "once", "policy"))))
def test_words_are_copied(compute, words, hint):
    x = integers(128 * words)
    r = regions_of([desc(x.shape, i32)], desc(x.shape, i32))
    np.testing.assert_array_equal(compute(copied(words, hint), r, [x]), x)


@pytest.mark.parametrize("dtype, words", list(itertools.product((f32, f16, bf16), (1, 2, 4))), ids=str)
def test_words_are_added(compute, dtype, words):
    """Small whole numbers: sums are exact in any order."""
    lanes = words * 4 // dtype.itemsize
    x = np.random.default_rng().integers(-1, 3, (128, lanes)).astype(dtype.numpy)
    r = regions_of([desc(x.shape, dtype)], desc((lanes,), dtype))
    got = compute(added(dtype, words), r, [x])
    np.testing.assert_array_equal(got.astype(np.float64), x.astype(np.float64).sum(0))


def test_blocks_take_turns(compute):
    x = integers(4, 128)
    r = regions_of([desc(x.shape, i32)], desc((134,), i32))
    got = compute(in_turns(4), r, [x])
    np.testing.assert_array_equal(got[:128], x.sum(0))
    np.testing.assert_array_equal(got[128:], [3, 3, 0, 1, 2, 3])


def test_blocks_wait_for_signals_of_others(compute):
    x, token = integers(128).astype(np.int64), 0x1234_5678_9ABC_DEF0
    got = compute(signalled(4, token), regions_of([desc((128,), i64)], desc((528,), i64)), [x])
    turned = x.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_array_equal(got[:512], np.concatenate([x, turned, x, turned]))
    np.testing.assert_array_equal(got[512:], token)


def test_half_a_block_waits_for_the_other(compute):
    x = integers(64)
    got = compute(handed(128), regions_of([desc((64,), i32)], desc((128,), i32)), [x])
    np.testing.assert_array_equal(got, np.concatenate([x, x[::-1]]))


OPS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@pytest.mark.parametrize("op", OPS)
def test_warps_reduce_and_elect(compute, op):
    x = integers(4, 32)
    got = compute(reduced(op), regions_of([desc(x.shape, i32)], desc((384,), i32)), [x]).reshape(12, 32)
    np.testing.assert_array_equal(got[:4], np.repeat(OPS[op].reduce(x, 1)[:, None], 32, 1))
    assert (got[4:8].sum(1) == 1).all() and set(got[4:8].flat) == {0, 1}
    np.testing.assert_array_equal(got[8:], np.repeat(np.arange(0, 128, 32)[:, None], 32, 1))


def test_blocks_of_a_cluster_talk(compute):
    x = np.random.default_rng().normal(size=(2, 128)).astype(np.float32)
    got = compute(talked(), regions_of([desc(x.shape, f32)], desc((528,), f32)), [x])
    np.testing.assert_array_equal(got[:256].reshape(2, 128), x[::-1])
    np.testing.assert_array_equal(got[256:512].reshape(2, 128), x)
    np.testing.assert_array_equal(got[512:].reshape(2, 8)[:, :3], [[0, 1, 1]] * 2)


def test_engines_read_what_threads_wrote(compute):
    x = integers(128)
    got = compute(relayed(), regions_of([desc((128,), i32)], desc((256,), i32)), [x])
    np.testing.assert_array_equal(got, np.concatenate([x, x]))


@pytest.mark.parametrize("count", [8, 32])
def test_lanes_of_the_same_columns_add_up(compute, count):
    """Lane 4 i + j gets the i-th eighth of the sums over the lanes that are j modulo 4."""
    x = integers(4, 8, 4, count).astype(np.float32)
    r = regions_of([desc(x.shape, f32)], desc((4, 8, 4, count // 8), f32))
    want = x.sum(1).reshape(4, 4, 8, count // 8).transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(compute(summed(count), r, [x]), want)


def test_blocks_of_a_cluster_send(compute):
    x = np.random.default_rng().normal(size=(2, 512)).astype(np.float32)
    got = compute(sent(), regions_of([desc(x.shape, f32)], desc((1024,), f32)), [x])
    np.testing.assert_array_equal(got.reshape(2, 512), x[::-1])


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


@pytest.mark.parametrize("kind", NUMPY)
def test_numbers_become_bytes(compute, kind):
    """Every number there is, halfway between each two, too large ones, infinities and NaN, by value."""
    known = np.arange(256, dtype=np.uint8).view(NUMPY[kind]).astype(np.float32)
    known = np.unique(known[np.isfinite(known)])
    between = (known[1:] + known[:-1]) / 2
    x = np.concatenate([known, between, [np.inf, -np.inf, np.nan, 1e30, -1e30]]).astype(np.float32)
    x = np.pad(x, (0, 512 - len(x)))
    got = (
        compute(packed(kind), regions_of([desc(x.shape, f32)], desc((128,), i32)), [x])
        .view(NUMPY[kind])
        .astype(np.float32)
    )
    at = np.clip(np.searchsorted(known, x), 1, len(known) - 1)  # x is between known[at - 1] and known[at]
    below, above = known[at - 1].astype(np.float64), known[at].astype(np.float64)
    even = known.astype(NUMPY[kind]).view(np.uint8) % 2 == 0
    want = np.where((x - below < above - x) | ((x - below == above - x) & even[at - 1]), below, above)
    want = np.where(
        np.isnan(x), np.nan, np.where(x <= known[0], known[0], np.where(x >= known[-1], known[-1], want))
    )
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", NUMPY)
def test_bytes_become_numbers(compute, kind):
    x = np.tile(np.arange(256, dtype=np.uint8), 2)
    r = regions_of([desc((128,), i32)], desc((512,), f32))
    got = compute(unpacked(ptx.unpack_fp8(kind), 4), r, [x.view(np.uint32)])
    np.testing.assert_array_equal(got, x.view(NUMPY[kind]).astype(np.float32))


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_halves_become_numbers(compute, dtype):
    x = np.random.default_rng().integers(0, 2**16, 256).astype(np.uint16)
    x[:6] = [0, 0x8000, 1, 0x7C00, 0x7F80, 0xFFFF]
    r = regions_of([desc((128,), i32)], desc((256,), f32))
    got = compute(unpacked(ptx.unpack_halves(dtype), 2), r, [x.view(np.uint32)])
    np.testing.assert_array_equal(got, x.view(dtype.numpy).astype(np.float32))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_matrices_are_stored(compute, dtype, transposed):
    """Rounded to nearest even; lane 4 r + c has two neighbours of row r of each, or of column r."""
    x = np.random.default_rng().normal(size=(4, 32, 4, 2)).astype(np.float32)  # warp, lane, matrix, half
    x[0, 0, 0] = 1 + np.array([0.5, 1.5]) * float(
        ml_dtypes.finfo(dtype.numpy).eps
    )  # halfway: to 1, and to the one after next
    got = compute(
        matrices(dtype, transposed), regions_of([desc(x.shape, f32)], desc((4, 4, 8, 8), dtype)), [x]
    )
    want = x.astype(dtype.numpy).reshape(4, 8, 4, 4, 2).transpose(0, 3, 1, 2, 4).reshape(4, 4, 8, 8)
    want = want.transpose(0, 1, 3, 2) if transposed else want
    np.testing.assert_array_equal(got.view(np.uint16), want.view(np.uint16))


# --- one kernel after another -------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_kernels_that_begin_early_wait_for_results(gpu):  # noqa: F811
    """Each launched while the one before still runs; and adds one to what that one leaves, long after it let go of it."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as start

    if "sm_90a" not in gpu.spec.features:
        pytest.skip(f"needs sm_90a; this is {gpu.spec.target}")
    made, r = late(), regions_of([], desc((128,), i32))
    ready = engine.prepare(made, r)
    config = LaunchConfig(**engine.configuration(made), programmatic_stream_serialization=True)
    out = gpu.allocate(512)
    gpu.upload(out, np.zeros(128, np.int32))
    for _ in range(50):
        start(gpu.stream, config, ready.kernel, out)
    gpu.stream.sync()
    np.testing.assert_array_equal(gpu.download(out, 512).view(np.int32), 50)


# --- kernels of these tests, compiled -----------------------------------------------------------------------------------


def test_kernels_compile(request):
    """What is run above, for a GPU: one of each, or five drawn ones."""
    word, real = desc((128,), i32), desc((128,), f32)
    kernels = [
        (copied(4, "policy"), word, word), (added(f16, 2), desc((512,), f16), desc((4,), f16)),
        (added(f32, 4), real, real), (in_turns(4), word, word), (reduced("min"), word, word), (talked(), real, real),
        (sent(), desc((1024,), f32), desc((1024,), f32)),
        (packed("e4m3"), real, word), (unpacked(ptx.unpack_fp8("e5m2"), 4), word, real),
        (unpacked(ptx.unpack_halves(bf16), 2), word, real), (matrices(bf16, True), real, desc((1024,), bf16)), (late(), word, word),
        (signalled(2, 5), desc((128,), i64), desc((264,), i64)),
        (handed(128), word, word), (relayed(), word, desc((256,), i32)), (summed(32), desc((4096,), f32), desc((512,), f32)),
    ]  # fmt: skip
    drawn = rng(request.node.nodeid).permutation(len(kernels))
    for made, given, result in kernels if EVERYTHING else [kernels[n] for n in drawn[:5]]:
        code(made, regions_of([given], result))
