"""Small kernels around intrinsics of memory, warps, numbers and blocks that talk, to run on a GPU and on the model of one."""

from __future__ import annotations

import numpy as np
from ptx_kernels import SHARED, aligned

import aicf.cuda_kernels.ptx as ptx
from aicf.cuda_kernels.dsl import cuda, float32, int32, types, uint32
from aicf.cuda_kernels.tiles.tile import each, runs
from aicf.registry.variant import In, Launch, Out
from aicf.types import DType, f32, i64


def launch(kernel, *args, blocks: int = 1, threads: int = 128, cluster: int = 1, shared: int = 0) -> Launch:
    kernel.blocks_per_sm = 1
    return Launch(kernel, (blocks,), (threads,), args, shared, cluster)


def copied(words: int, hint: str) -> Launch:
    """Operand 0 to result 0, so many words by each thread."""
    at, load, store, wait, go = (
        ptx.global_address(), ptx.load_words(words, hint), ptx.store_words(words, hint), ptx.wait_kernel(), ptx.launch_dependents()
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


def signalled(blocks: int, token: int) -> Launch:
    """Result 0: operand 0 once more for each block; each warp copies what the block before wrote when that warp's flag says so,
    an i64 behind it all."""
    at, load, store = ptx.global_address(), ptx.load_acquire(i64), ptx.store_release(i64)

    def kernel(x, y):
        thread, block = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x)
        warp, first = thread // 32, thread % 32 == 0
        flags = blocks * 128 + warp
        if block == 0:
            y[thread] = x[thread]
        else:
            if first:
                while load(at(y, flags + (block - 1) * 4)) != token:
                    pass
            cuda.syncwarp()
            y[block * 128 + thread] = y[(block - 1) * 128 + (thread ^ 1)]
        cuda.syncwarp()
        if first:
            store(at(y, flags + block * 4), token)

    return launch(kernel, In(0), Out(0), blocks=blocks)


def handed(threads: int) -> Launch:
    """Result 0 is operand 0, and backwards again: half of the threads copy it, and the others, once told, copy the copies."""
    tell, meet, same = ptx.arrive_threads(2, threads), ptx.sync_threads(2, threads), ptx.opaque()

    def kernel(x, y):
        thread = int32(cuda.threadIdx.x)
        if thread < threads // 2:
            y[thread] = same(x[thread])
            tell()
        else:
            meet()
            y[thread] = y[threads - 1 - thread]

    return launch(kernel, In(0), Out(0), threads=threads)


def reduced(op: str) -> Launch:
    reduce, elected, first = ptx.reduce_warp(op), ptx.elect(), ptx.warp_uniform()

    def kernel(x, y):
        thread = int32(cuda.threadIdx.x)
        y[thread] = reduce(x[thread])
        y[thread + 128] = elected()
        y[thread + 256] = int32(first(uint32(thread)))

    return launch(kernel, In(0), Out(0))


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


def sent() -> Launch:
    """Two blocks of a cluster send each other four numbers of each thread, and wait at a barrier for as many bytes."""
    address, there, send, load = ptx.shared_address(), ptx.in_block(), ptx.send_remote(), ptx.load_shared()
    rank_of, arrive, wait = ptx.cluster_rank(), ptx.cluster_arrive(), ptx.cluster_wait()
    init, publish, announce, come = ptx.barrier_init(), ptx.publish_barriers(), ptx.expect(), ptx.wait_phase()

    def kernel(x, y):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        met, thread = uint32(base + uint32(2048)), int32(cuda.threadIdx.x)
        rank = int32(rank_of())
        own, other = uint32(base + uint32(16 * thread)), uint32(1 - rank)
        at = 512 * rank + 4 * thread
        if thread == 0:
            init(met, uint32(1))
            publish()
            announce(met, uint32(2048))
        arrive()
        wait()
        send(there(own, other), x[at], x[at + 1], x[at + 2], x[at + 3], there(met, other))
        come(met, uint32(0))
        got = load(own)
        y[at], y[at + 1], y[at + 2], y[at + 3] = got[0], got[1], got[2], got[3]

    return launch(kernel, In(0), Out(0), blocks=2, cluster=2, shared=SHARED)


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


def matrices(dtype: DType, transposed: bool) -> Launch:
    """Eight f32 of operand 0 of each thread, in pairs, as four 8 x 8 matrices of halves for each warp, row by row, in result 0."""
    address, at, pack, put = (
        ptx.shared_address(), ptx.global_address(), ptx.pack_halves(dtype), ptx.store_matrices(transposed)
    )  # fmt: skip
    fence, meet, store, commit, wait = (
        ptx.fence_async(), ptx.sync_threads(1, 128), ptx.store_bytes(), ptx.commit_stores(), ptx.wait_stores()
    )  # fmt: skip

    def kernel(x, y):
        base, thread = aligned(address(cuda.shared.array(0, types.uint8))), int32(cuda.threadIdx.x)
        i = thread * 8
        row = uint32(base + uint32(thread * 16))
        a, b = pack(x[i], x[i + 1]), pack(x[i + 2], x[i + 3])
        put(row, a, b, pack(x[i + 4], x[i + 5]), pack(x[i + 6], x[i + 7]))
        fence()
        meet()
        if thread == 0:
            store(at(y, 0), base, uint32(2048))
            commit()
            wait()

    return launch(kernel, In(0), Out(0), shared=SHARED)


def summed(count: int) -> Launch:
    """The eighths of `count` sums that each thread gets of its warp's, in result 0."""
    eighth = count // 8
    load, add = (runs(f32, count, 1, lambda i, env: np.int64(env[0] * count + i)), ptx.scatter_sums(count))

    def put(i, run, env):
        env[0][env[1] * eighth + i] = run[0]

    keep = each(eighth, 1, put)

    def kernel(x, y):
        thread = int32(cuda.threadIdx.x)
        keep(add(load(x, (thread,))), (y, thread))

    return launch(kernel, In(0), Out(0))


def relayed() -> Launch:
    """Operand 0 to result 0 by threads, and from there behind it by the copy engines, by way of shared memory."""
    address, at, fence, meet = (
        ptx.shared_address(), ptx.global_address(), ptx.fence_async_all(), ptx.sync_threads(1, 128)
    )  # fmt: skip
    init, publish, expect, load = (
        ptx.barrier_init(), ptx.publish_barriers(), ptx.expect(), ptx.load_bytes()
    )  # fmt: skip
    arrived, store, commit, wait = ptx.wait_phase(), ptx.store_bytes(), ptx.commit_stores(), ptx.wait_stores()

    def kernel(x, y):
        base, thread = aligned(address(cuda.shared.array(0, types.uint8))), int32(cuda.threadIdx.x)
        barrier = uint32(base + uint32(512))
        y[thread] = x[thread]
        fence()
        meet()
        if thread == 0:
            init(barrier, uint32(1))
            publish()
            expect(barrier, uint32(512))
            load(base, at(y, 0), uint32(512), barrier)
            arrived(barrier, uint32(0))
            store(at(y, 128), base, uint32(512))
            commit()
            wait()

    return launch(kernel, In(0), Out(0), shared=SHARED)


def applied(function, operands: int, words: bool = False) -> Launch:
    """Result 0: the function of each number of one operand, or of two; of words as u32."""

    def one(x, y):
        y[cuda.threadIdx.x] = function(x[cuda.threadIdx.x])

    def two(x, y, out):
        out[cuda.threadIdx.x] = function(x[cuda.threadIdx.x], y[cuda.threadIdx.x])

    def two_words(x, y, out):
        i = cuda.threadIdx.x
        out[i] = int32(function(uint32(x[i]), uint32(y[i])))

    kernel = two_words if words else two if operands == 2 else one
    return launch(kernel, *map(In, range(operands)), Out(0))


def late() -> Launch:
    """Adds one to each of result 0, some time after the next kernel may begin."""
    wait, go, fence = ptx.wait_kernel(), ptx.launch_dependents(), ptx.fence_memory("gpu")

    def kernel(y):
        go()
        wait()
        before = y[cuda.threadIdx.x]
        for _ in range(1000):
            fence()
        y[cuda.threadIdx.x] = before + int32(1)

    return launch(kernel, Out(0))
