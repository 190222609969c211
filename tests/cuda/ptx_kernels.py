"""Small kernels around the instructions of aicf/cuda_kernels/ptx, to run on a GPU and on the model of one, with what they compute.

Each takes blocks of 256 threads: the first warpgroup brings, the second one multiplies. `launch` makes them.
"""

from __future__ import annotations

from aicf.cuda_kernels import ptx
from aicf.cuda_kernels.dsl import cuda, device, int32, types, uint32
from aicf.registry.variant import In, Launch, Num, Out, TensorMap
from aicf.types import DType, i32

BOX = 64 * 64 * 2  # bytes
SHARED = 1024 + 6 * BOX + 64
BARRIERS = 6 * BOX


def matrix(source: In | Out, dtype: DType, rows: int, columns: int) -> TensorMap:
    return TensorMap(source, dtype, (columns, rows), columns * 2, (64, 64))


@device
def aligned(address):
    return uint32((address + uint32(1023)) & uint32(0xFFFFFC00))


def moved(
    source: TensorMap, target: TensorMap, at: tuple[int, ...], to: tuple[int, ...], adds: int = 0
) -> Launch:
    """A box of a tensor to another place of another: load, barrier, store; then added there, so many times."""
    address, init, publish, fence = (
        ptx.shared_address(), ptx.barrier_init(), ptx.publish_barriers(), ptx.fence_async()
    )  # fmt: skip
    rank, nbytes = len(at), source.nbytes
    prefetch, ahead, expect, load, wait = (
        ptx.prefetch_map(), ptx.prefetch_box(rank), ptx.expect(), ptx.load_box(rank), ptx.wait_phase()
    )  # fmt: skip
    store, add, commit, wait_read, wait_all = (
        ptx.store_box(rank), ptx.add_box(rank), ptx.commit_stores(), ptx.wait_stores_read(0), ptx.wait_stores()
    )  # fmt: skip

    def kernel(source, target, at, to):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        barrier = uint32(base + uint32(BARRIERS))
        if cuda.threadIdx.x == 0:
            init(barrier, uint32(1))
            publish()
            fence()
            prefetch(source)
            ahead(source, *at)
        cuda.syncthreads()
        if cuda.threadIdx.x == 0:
            expect(barrier, uint32(nbytes))
            load(base, source, barrier, *at)
        wait(barrier, uint32(0))
        if cuda.threadIdx.x == 0:
            store(target, base, *to)
            commit()
            wait_read()
            wait_all()
            for _ in range(adds):
                add(target, base, *to)
            commit()
            wait_all()

    kernel.blocks_per_sm = 1
    places = tuple(tuple(Num(v, i32) for v in place) for place in (at, to))
    return Launch(kernel, (1,), (256,), (source, target, *places), SHARED)


def moved_bytes(nbytes: int) -> Launch:
    """The first bytes of operand 0 to result 0, by way of shared memory, without a tensor map."""
    address, init, publish, fence, at = (
        ptx.shared_address(), ptx.barrier_init(), ptx.publish_barriers(), ptx.fence_async(), ptx.global_address()
    )  # fmt: skip
    expect, load, wait, store = ptx.expect(), ptx.load_bytes(), ptx.wait_phase(), ptx.store_bytes()
    commit, wait_all = ptx.commit_stores(), ptx.wait_stores()

    def kernel(source, target):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        barrier = uint32(base + uint32(BARRIERS))
        if cuda.threadIdx.x == 0:
            init(barrier, uint32(1))
            publish()
            fence()
            expect(barrier, uint32(nbytes))
            load(base, at(source, 0), uint32(nbytes), barrier)
            wait(barrier, uint32(0))
            store(at(target, 0), base, uint32(nbytes))
            commit()
            wait_all()

    kernel.blocks_per_sm = 1
    return Launch(kernel, (1,), (256,), (In(0), Out(0)), SHARED)


def shared_boxes(dtype: DType, shape: tuple[int, int]) -> Launch:
    """Two blocks of a cluster each bring one box of operand 0 for both, tell each other, and write both to result 0: box i by
    block r to row 64 (2 r + i)."""
    address, init, publish, fence = (
        ptx.shared_address(),
        ptx.barrier_init(),
        ptx.publish_barriers(),
        ptx.fence_async(),
    )
    expect, load, wait, rank_of = ptx.expect(), ptx.multicast_box(2), ptx.wait_phase(), ptx.cluster_rank()
    arrive, wait_cluster = ptx.cluster_arrive(), ptx.cluster_wait()
    tell, there, store, commit, wait_all = (
        ptx.arrive_remote(), ptx.in_block(), ptx.store_box(), ptx.commit_stores(), ptx.wait_stores()
    )  # fmt: skip

    def kernel(source, target):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        full = uint32(base + uint32(BARRIERS))
        seen = uint32(full + uint32(8))
        rank, thread = uint32(rank_of()), uint32(cuda.threadIdx.x)
        if thread == 0:
            init(full, uint32(1))
            init(seen, uint32(2))
            publish()
            fence()
        arrive()
        wait_cluster()
        if thread == 0:
            expect(full, uint32(2 * BOX))
            load(uint32(base + rank * uint32(BOX)), source, full, int32(0), int32(64 * rank))
        wait(full, uint32(0))
        if thread >= 128 and thread < 130:
            tell(there(seen, uint32(thread - 128)))
        wait(seen, uint32(0))
        if thread == 0:
            for i in range(2):
                store(target, uint32(base + uint32(i * BOX)), int32(0), int32(64 * (2 * rank + i)))
            commit()
            wait_all()
        arrive()
        wait_cluster()

    maps = matrix(In(0), dtype, *shape), matrix(Out(0), dtype, 2 * shape[0], shape[1])
    kernel.blocks_per_sm = 1
    return Launch(kernel, (2,), (256,), maps, SHARED, 2)


def set_aside() -> Launch:
    """Registers from the first warpgroup to the second; result 0 has each thread's own number."""
    keep, take = ptx.setmaxnreg_dec(24), ptx.setmaxnreg_inc(240)

    def kernel(out):
        thread = int32(cuda.threadIdx.x)
        if thread < 128:
            keep()
            out[thread] = thread
        else:
            take()
            out[thread] = thread

    kernel.blocks_per_sm = 1
    return Launch(kernel, (1,), (256,), (Out(0),))
