"""Barriers: mbarriers in shared memory, named barriers of a few warps, clusters of blocks. PTX ISA, chapter "Parallel
Synchronization and Communication Instructions".

An mbarrier is 8 bytes of shared memory, a `u32` address here. Its phase is over when as many arrivals as it was made for
have come and as many bytes as were announced; then the next one begins. Waiting names the phase by its parity: a fresh
barrier is in phase 0, so waiting for parity 1 (of the phase before) passes at once.
"""

from __future__ import annotations

from typing import Any

from ..dsl import deferred, types
from .assemble import instruction


@deferred
def barrier_init() -> Any:
    """`init(barrier, count)`: each phase takes `count` arrivals. `mbarrier.init`, sm_80."""
    return instruction("mbarrier.init.shared::cta.b64 [$0], $1;", types.uint32, types.uint32)


@deferred
def barrier_end() -> Any:
    """`end(barrier)`: its place may be used for something else. `mbarrier.inval`, sm_80."""
    return instruction("mbarrier.inval.shared::cta.b64 [$0];", types.uint32)


@deferred
def publish_barriers() -> Any:
    """`publish()`: this thread's inits, before all that the cluster's other threads and its copy engines do after they
    synchronize with it. `fence.mbarrier_init`, sm_90."""
    return instruction("fence.mbarrier_init.release.cluster;")


@deferred
def expect() -> Any:
    """`expect(barrier, nbytes)`: one arrival, and so many bytes to come in this phase. `mbarrier.arrive.expect_tx`, sm_90."""
    return instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", types.uint32, types.uint32)


@deferred
def expect_more() -> Any:
    """`expect(barrier, nbytes)`: so many bytes more to come in this phase, and no arrival. `mbarrier.expect_tx`, sm_90."""
    return instruction("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", types.uint32, types.uint32)


@deferred
def expect_remote() -> Any:
    """`expect(barrier, nbytes)`: as `expect`, at a barrier of the cluster, at an address that `in_block` made.
    `mbarrier.arrive.expect_tx.shared::cluster`, sm_90."""
    return instruction(
        "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [$0], $1;", types.uint32, types.uint32
    )


@deferred
def arrive() -> Any:
    """`arrive(barrier)`: one arrival at a barrier of this block. `mbarrier.arrive`, sm_90."""
    return instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", types.uint32)


@deferred
def arrive_remote() -> Any:
    """`arrive(barrier)`: one arrival at a barrier of the cluster, at an address that `in_block` made.
    `mbarrier.arrive.shared::cluster`, sm_90.

    Without `.release.cluster`, which ptxas turns into a MEMBAR.ALL.GPU: in a main loop that took a quarter of the speed.
    Nothing needs it where what was read is read by wgmma, and done.
    """
    return instruction("mbarrier.arrive.shared::cluster.b64 _, [$0];", types.uint32)


@deferred
def in_block() -> Any:
    """`there(address, rank)`: the same place in the shared memory of the cluster's block `rank`. `mapa.shared::cluster`, sm_90."""
    return instruction(
        "mapa.shared::cluster.u32 $0, $1, $2;", types.uint32, types.uint32, result=types.uint32, effects=False
    )


@deferred
def wait_phase() -> Any:
    """`wait(barrier, parity)`: until the phase of this parity is over. `mbarrier.try_wait.parity`, sm_90: the hardware
    suspends the thread for a while at each try."""
    text = (
        "{\n.reg .pred over;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 over, [$0], $1;\n"
        "@over bra OVER;\nbra AGAIN;\nOVER:\n}"
    )
    return instruction(text, types.uint32, types.uint32)


@deferred
def phase_over() -> Any:
    """`over(barrier, parity)`: 1 if the phase of this parity is over, 0 if not; waits for nothing.
    `mbarrier.test_wait.parity`, sm_80."""
    text = (
        "{\n.reg .pred over;\nmbarrier.test_wait.parity.shared::cta.b64 over, [$1], $2;\n"
        "selp.b32 $0, 1, 0, over;\n}"
    )
    return instruction(text, types.uint32, types.uint32, result=types.int32)


@deferred
def sync_threads(barrier: int, threads: int) -> Any:
    """`sync()`: so many threads, whole warps, synchronize at one of the block's 16 barriers; 0 is syncthreads'. `bar.sync`, sm_70.

    Its number is a constant, so that a block takes no more barriers than it uses.
    """
    return instruction(f"bar.sync {barrier}, {threads};", together=True)


@deferred
def arrive_threads(barrier: int, threads: int) -> Any:
    """`arrive()`: this warp is counted among the `threads` of a barrier at which others wait, and goes on. `bar.arrive`, sm_70."""
    return instruction(f"bar.arrive {barrier}, {threads};", together=True)


@deferred
def sync_at(threads: int) -> Any:
    """`sync(barrier)`: as `sync_threads`, at a barrier that the kernel computes: then a block takes all 16. `bar.sync`, sm_70."""
    return instruction(f"bar.sync $0, {threads};", types.uint32, together=True)


@deferred
def arrive_at(threads: int) -> Any:
    """`arrive(barrier)`: as `arrive_threads`, likewise. `bar.arrive`, sm_70."""
    return instruction(f"bar.arrive $0, {threads};", types.uint32, together=True)


@deferred
def cluster_rank() -> Any:
    """`rank()`: this block's place in its cluster. `%cluster_ctarank`, sm_90."""
    return instruction("mov.u32 $0, %cluster_ctarank;", result=types.uint32, effects=False)


@deferred
def cluster_size() -> Any:
    """`size()`: how many blocks this one's cluster has. `%cluster_nctarank`, sm_90."""
    return instruction("mov.u32 $0, %cluster_nctarank;", result=types.uint32, effects=False)


@deferred
def load_remote() -> Any:
    """`load(address)`: an f32 of the shared memory of a block of the cluster, at an address that `in_block` made.
    `ld.shared::cluster`, sm_90."""
    return instruction("ld.shared::cluster.f32 $0, [$1];", types.uint32, result=types.float32)


@deferred
def store_remote() -> Any:
    """`store(address, x)`: the other way. What was stored is seen after the cluster has synchronized. `st.shared::cluster`, sm_90."""
    return instruction("st.shared::cluster.f32 [$0], $1;", types.uint32, types.float32)


@deferred
def send_remote() -> Any:
    """`send(address, a, b, c, d, barrier)`: four f32 to a block of the cluster, and their 16 bytes to a barrier there: both at
    addresses that `in_block` made, the first aligned to 16. Nobody waits for it but who waits there. `st.async`, sm_90."""
    text = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1, $2, $3, $4}, [$5];"
    return instruction(text, types.uint32, *[types.float32] * 4, types.uint32)


@deferred
def cluster_arrive_only() -> Any:
    """`arrive()`: as `cluster_arrive`, but nothing is released: before a block leaves, for one. Whole warps.
    `barrier.cluster.arrive.relaxed`, sm_90."""
    return instruction("barrier.cluster.arrive.relaxed.aligned;", together=True)


@deferred
def cluster_arrive() -> Any:
    """`arrive()`: half a barrier of all threads of the cluster; what was written is released. Whole warps.
    `barrier.cluster.arrive.release`, sm_90."""
    return instruction("barrier.cluster.arrive.release.aligned;", together=True)


@deferred
def cluster_wait() -> Any:
    """`wait()`: the other half, until all have arrived; what they released is acquired. Whole warps.
    `barrier.cluster.wait.acquire`, sm_90."""
    return instruction("barrier.cluster.wait.acquire.aligned;", together=True)
