"""PTX instructions as intrinsics: what numba does not say. The one package with assembly in it.

Each is a factory; its docstring says what the intrinsic does, the instruction, and the architecture that first has it. What a
single thread can do has a twin in NumPy for the simulator; what takes a warp, an engine or a barrier has none, since there
a warp's threads can't act as one.
"""

from .assemble import assemble, instruction
from .barrier import (
    arrive,
    arrive_remote,
    arrive_threads,
    barrier_init,
    cluster_arrive,
    cluster_rank,
    cluster_wait,
    expect,
    in_block,
    publish_barriers,
    sync_threads,
    wait_phase,
)
from .copy import copy_async, shared_address, wait_copies
from .math import add_half2, forget, pack_halves
from .memory import global_address
from .mma import Places, multiply_tiles, store_matrices
from .tma import (
    add_box,
    commit_stores,
    fence_async,
    load_box,
    load_bytes,
    multicast_box,
    prefetch_box,
    prefetch_map,
    store_box,
    store_bytes,
    wait_stores,
    wait_stores_read,
)
from .wgmma import (
    commit_products,
    describe,
    fence_products,
    finish_products,
    keep_registers,
    multiply_slabs,
    take_registers,
    wait_products,
)

__all__ = [
    "Places", "add_box", "add_half2", "arrive", "arrive_remote", "arrive_threads", "assemble", "barrier_init",
    "cluster_arrive", "cluster_rank",
    "cluster_wait", "commit_products", "commit_stores", "copy_async", "describe", "expect", "fence_async",
    "fence_products", "finish_products", "forget", "global_address", "in_block", "instruction", "keep_registers", "load_box", "load_bytes",
    "multicast_box", "multiply_slabs", "multiply_tiles", "pack_halves", "prefetch_box", "prefetch_map", "publish_barriers",
    "shared_address", "store_box", "store_bytes", "store_matrices", "sync_threads", "take_registers", "wait_copies",
    "wait_phase", "wait_products", "wait_stores", "wait_stores_read",
]  # fmt: skip
