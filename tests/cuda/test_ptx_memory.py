"""Intrinsics of memory, of warps, of numbers and of blocks that talk to each other: their code and what they do."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from kernel_cases import desc
from ptx_kernels import SHARED, aligned
from ptx_support import PLACES, Instructions, assembles, code, computer, groups, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)

import aicf.cuda_kernels.bodies.ptx as ptx
from aicf.cuda_kernels.dsl import cuda, float32, int32, types, uint32
from aicf.registry.variant import In, Launch, Out
from aicf.types import DType, bf16, f16, f32, i32

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
    "st.release.gpu.global.s32": (ptx.store_release(), lambda f: lambda a, m, x: f(m, x)),
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
    "griddepcontrol.launch_dependents": (ptx.launch_next(), lambda f: lambda a, m, x: f()),
    "elect.sync": (ptx.elect(), lambda f: lambda a, m, x: f()),
    "mbarrier.expect_tx.relaxed.cta.shared::cta.b64": (ptx.expect_more(), lambda f: lambda a, m, x: f(a, a)),
    "mbarrier.arrive.expect_tx.shared::cluster.b64": (ptx.expect_remote(), lambda f: lambda a, m, x: f(a, a)),
    "%cluster_nctarank": (ptx.cluster_size(), lambda f: lambda a, m, x: int32(f())),
    "ld.shared::cluster.f32": (ptx.load_remote(), lambda f: lambda a, m, x: int32(f(a))),
    "st.shared::cluster.f32": (ptx.store_remote(), lambda f: lambda a, m, x: f(a, x)),
    "barrier.cluster.arrive.relaxed.aligned": (ptx.cluster_arrive_only(), lambda f: lambda a, m, x: f()),
}  # fmt: skip
INSTRUCTIONS = {**AMPERE, **ADA, **HOPPER}
VALUES = {
    text for text in INSTRUCTIONS if text.startswith(("ld.", "createpolicy", "atom.", "redux", "cvt.", "and.", "elect", "%"))
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


def launch(kernel, *args, blocks: int = 1, threads: int = 128, cluster: int = 1, shared: int = 0) -> Launch:
    kernel.blocks_per_sm = 1
    return Launch(kernel, (blocks,), (threads,), args, shared, cluster)


def integers(*shape: int) -> np.ndarray:
    return np.random.default_rng().integers(-50, 50, shape).astype(np.int32)


def copied(words: int, hint: str) -> Launch:
    """Operand 0 to result 0, so many words by each thread."""
    at, load, store, wait, go = (
        ptx.global_address(), ptx.load_words(words, hint), ptx.store_words(words, hint), ptx.wait_kernel(), ptx.launch_next()
    )  # fmt: skip
    first, last = ptx.cache_policy("first"), ptx.cache_policy("last")

    def plain(x, y):
        wait()
        i = cuda.threadIdx.x * words
        store(at(y, i), *load(at(x, i)))
        go()

    def kept(x, y):
        i = cuda.threadIdx.x * words
        store(at(y, i), last(), *load(at(x, i), first()))

    return launch(kept if hint == "policy" else plain, In(0), Out(0))


@pytest.mark.parametrize("words, hint", list(itertools.product((1, 2, 4), ("", "once", "policy"))))
def test_words_are_copied(compute, words, hint):
    x = integers(128 * words)
    r = regions_of([desc(x.shape, i32)], desc(x.shape, i32))
    np.testing.assert_array_equal(compute(copied(words, hint), r, [x]), x)


def added(dtype: DType, words: int) -> Launch:
    """What 128 threads have in operand 0, word by word, added in result 0, behind zeros that are stored first."""
    at, add, load, store = (
        ptx.global_address(), ptx.add_words(dtype, words), ptx.load_words(words), ptx.store_words(1)
    )  # fmt: skip

    def halves(x, y):
        thread = int32(cuda.threadIdx.x)
        if thread < words:
            store(at(y, thread * 2), uint32(0))
        cuda.syncthreads()
        add(at(y, 0), *load(at(x, thread * words * 2)))

    def ones(x, y):
        if cuda.threadIdx.x == 0:
            y[0] = float32(0)
        cuda.syncthreads()
        add(at(y, 0), x[cuda.threadIdx.x])

    def pairs(x, y):
        i = int32(2 * cuda.threadIdx.x)
        if i < 2:
            y[i] = float32(0)
            y[i + 1] = float32(0)
        cuda.syncthreads()
        add(at(y, 0), x[i], x[i + 1])

    def fours(x, y):
        i = int32(4 * cuda.threadIdx.x)
        if i < 16:
            y[i // 4] = float32(0)
        cuda.syncthreads()
        add(at(y, 0), x[i], x[i + 1], x[i + 2], x[i + 3])

    return launch({1: ones, 2: pairs, 4: fours}[words] if dtype is f32 else halves, In(0), Out(0))


@pytest.mark.parametrize("dtype, words", list(itertools.product((f32, f16, bf16), (1, 2, 4))), ids=str)
def test_words_are_added(compute, dtype, words):
    """Small whole numbers: sums are exact in any order."""
    lanes = words * 4 // dtype.itemsize
    x = np.random.default_rng().integers(-1, 3, (128, lanes)).astype(dtype.numpy)
    r = regions_of([desc(x.shape, dtype)], desc((lanes,), dtype))
    got = compute(added(dtype, words), r, [x])
    np.testing.assert_array_equal(got.astype(np.float64), x.astype(np.float64).sum(0))


def in_turns(blocks: int) -> Launch:
    """Result 0: a sum that blocks add to one after another, as the flag behind it says; and tickets, counted from -1."""
    at, load, store, fence = (
        ptx.global_address(), ptx.load_acquire(), ptx.store_release(), ptx.fence_memory("gpu")
    )  # fmt: skip
    take = ptx.fetch_add()

    def kernel(x, y):
        thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        if thread == 0:
            while load(at(y, 128)) != block - 1:
                pass
        cuda.syncthreads()
        y[thread] = x[block * 128 + thread] + (y[thread] if block > 0 else int32(0))
        fence()
        cuda.syncthreads()
        if thread == 0:
            store(at(y, 128), block)
            y[131 + take(at(y, 129), 1)] = block

    return launch(kernel, In(0), Out(0), blocks=blocks)


def test_blocks_take_turns(compute):
    x = integers(4, 128)
    r = regions_of([desc(x.shape, i32)], desc((134,), i32))
    got = compute(in_turns(4), r, [x])
    np.testing.assert_array_equal(got[:128], x.sum(0))
    np.testing.assert_array_equal(got[128:], [3, 3, 0, 1, 2, 3])


OPS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduced(op: str) -> Launch:
    reduce, elected = ptx.reduce_warp(op), ptx.elect()

    def kernel(x, y):
        thread = int32(cuda.threadIdx.x)
        y[thread] = reduce(x[thread])
        y[thread + 128] = elected()

    return launch(kernel, In(0), Out(0))


@pytest.mark.parametrize("op", OPS)
def test_warps_reduce_and_elect(compute, op):
    x = integers(4, 32)
    got = compute(reduced(op), regions_of([desc(x.shape, i32)], desc((256,), i32)), [x]).reshape(8, 32)
    np.testing.assert_array_equal(got[:4], np.repeat(OPS[op].reduce(x, 1)[:, None], 32, 1))
    assert (got[4:].sum(1) == 1).all() and set(got[4:].flat) == {0, 1}


def talked() -> Launch:
    """Two blocks of a cluster swap numbers: result 0 has what was stored in each by the other, then what each finds in the other,
    then what barriers said."""
    address, there, store, load = ptx.shared_address(), ptx.in_block(), ptx.store_remote(), ptx.load_remote()
    rank_of, size_of, arrive, wait, leave = (
        ptx.cluster_rank(), ptx.cluster_size(), ptx.cluster_arrive(), ptx.cluster_wait(), ptx.cluster_arrive_only()
    )  # fmt: skip
    init, publish, over, come, end = (
        ptx.barrier_init(), ptx.publish_barriers(), ptx.phase_over(), ptx.arrive(), ptx.barrier_end()
    )  # fmt: skip
    more, remote, until = ptx.expect_more(), ptx.expect_remote(), ptx.wait_phase()

    def kernel(x, y):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        barrier, thread = uint32(base + uint32(1024)), int32(cuda.threadIdx.x)
        rank, size = int32(rank_of()), int32(size_of())
        own, other = uint32(base + uint32(4 * thread)), uint32(size - 1 - rank)
        out = rank * 128
        if thread == 0:
            init(barrier, uint32(1))
            init(uint32(barrier + uint32(8)), uint32(2))
            publish()
        arrive()
        wait()
        store(there(own, other), x[out + thread])
        arrive()
        wait()
        y[out + thread] = load(there(own, uint32(rank)))
        y[256 + out + thread] = load(there(own, other))
        if thread == 0:
            said = 512 + 8 * rank
            y[said] = float32(over(barrier, uint32(0)))
            more(barrier, uint32(0))
            come(barrier)
            y[said + 1] = float32(over(barrier, uint32(0)))
            end(barrier)
            second = uint32(barrier + uint32(8))
            come(second)
            remote(there(second, other), uint32(0))
            until(second, uint32(0))
            y[said + 2] = float32(over(second, uint32(0)))
        leave()
        wait()

    return launch(kernel, In(0), Out(0), blocks=2, cluster=2, shared=SHARED)


def test_blocks_of_a_cluster_talk(compute):
    x = np.random.default_rng().normal(size=(2, 128)).astype(np.float32)
    got = compute(talked(), regions_of([desc(x.shape, f32)], desc((528,), f32)), [x])
    np.testing.assert_array_equal(got[:256].reshape(2, 128), x[::-1])
    np.testing.assert_array_equal(got[256:512].reshape(2, 128), x)
    np.testing.assert_array_equal(got[512:].reshape(2, 8)[:, :3], [[0, 1, 1]] * 2)


# --- numbers ----------------------------------------------------------------------------------------------------------

NUMPY = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def packed(kind: str) -> Launch:
    """Four f32 of operand 0 in each word of result 0."""
    pack, at, store = ptx.pack_fp8(kind), ptx.global_address(), ptx.store_words(1)

    def kernel(x, y):
        i = int32(4 * cuda.threadIdx.x)
        store(at(y, cuda.threadIdx.x), pack(x[i], x[i + 1], x[i + 2], x[i + 3]))

    return launch(kernel, In(0), Out(0))


def unpacked(unpack, lanes: int) -> Launch:
    """Each word of operand 0 as numbers."""
    at, load = ptx.global_address(), ptx.load_words(1)

    def two(x, y):
        i = int32(2 * cuda.threadIdx.x)
        y[i], y[i + 1] = unpack(load(at(x, cuda.threadIdx.x))[0])

    def four(x, y):
        i = int32(4 * cuda.threadIdx.x)
        y[i], y[i + 1], y[i + 2], y[i + 3] = unpack(load(at(x, cuda.threadIdx.x))[0])

    return launch(two if lanes == 2 else four, In(0), Out(0))


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


# --- kernels of these tests, compiled -----------------------------------------------------------------------------------


def test_kernels_compile():
    """What is run above, for a GPU: one of each."""
    word, real = desc((128,), i32), desc((128,), f32)
    for made, given, result in [
        (copied(4, "policy"), word, word), (added(f16, 2), desc((512,), f16), desc((4,), f16)),
        (added(f32, 4), real, real), (in_turns(4), word, word), (reduced("min"), word, word), (talked(), real, real),
        (packed("e4m3"), real, word), (unpacked(ptx.unpack_fp8("e5m2"), 4), word, real),
        (unpacked(ptx.unpack_halves(bf16), 2), word, real),
    ]:  # fmt: skip
        code(made, regions_of([given], result))
