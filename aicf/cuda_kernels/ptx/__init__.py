"""PTX instructions as intrinsics: what numba does not say. The one package with assembly in it.

Each is a factory; its docstring says what the intrinsic does, the instruction, and the architecture that first has it. What a
single thread can do has a twin in NumPy for the simulator; what takes a warp, an engine or a barrier has none, since there
a warp's threads can't act as one.
"""

from .assemble import assemble, instruction
from .barrier import (
    arrive,
    arrive_at,
    arrive_remote,
    arrive_threads,
    barrier_end,
    barrier_init,
    cluster_arrive,
    cluster_arrive_only,
    cluster_rank,
    cluster_size,
    cluster_wait,
    expect,
    expect_more,
    expect_remote,
    in_block,
    load_remote,
    phase_over,
    publish_barriers,
    send_remote,
    store_remote,
    sync_at,
    sync_threads,
    wait_phase,
)
from .copy import (
    Place,
    commit_copies,
    copy_async,
    load_shared,
    load_shared_word,
    load_units,
    shared_address,
    store_shared,
    store_shared_word,
    store_units,
    wait_copies,
)
from .lines import line_offset, load_shared_pair, store_half_below, store_pair_below
from .math import (
    add_half2,
    approximate,
    larger,
    opaque,
    optimization_barrier,
    pack_fp8,
    pack_halves,
    tanh_for_halves,
    unpack_fp8,
    unpack_halves,
)
from .memory import (
    add_words,
    cache_policy,
    fence_memory,
    fetch_add,
    global_address,
    launch_dependents,
    load_acquire,
    load_words,
    store_release,
    store_words,
    wait_kernel,
)
from .mma import (
    Places,
    Words,
    load_matrices,
    multiply_fragments,
    multiply_steps,
    multiply_words,
    multiply_words_steps,
    read_fragments,
    read_operand,
    store_matrices,
)
from .quads import load_front, multiply_quad, transpose_runs
from .register_operand import load_register_operand
from .tma import (
    add_box,
    add_bytes,
    commit_stores,
    fence_async,
    fence_async_all,
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
from .warp import elect, read_thread, reduce_warp, scatter_sums, warp_uniform
from .wgmma import (
    commit_products,
    describe,
    fence_products,
    finish_products,
    multiply_k_tiles,
    setmaxnreg_dec,
    setmaxnreg_inc,
    wait_products,
)

__all__ = [
    "Place", "Places", "Words", "add_box", "add_bytes", "add_half2", "add_words", "approximate", "arrive", "arrive_at", "arrive_remote",
    "arrive_threads", "assemble", "barrier_end", "barrier_init", "cache_policy", "cluster_arrive",
    "cluster_arrive_only", "cluster_rank", "cluster_size", "cluster_wait", "commit_copies", "commit_products",
    "commit_stores", "copy_async", "describe", "elect", "expect", "expect_more", "expect_remote",
    "fence_async", "fence_async_all", "fence_memory", "fence_products", "fetch_add", "finish_products",
    "global_address", "in_block", "instruction", "larger", "launch_dependents", "line_offset", "load_acquire", "load_box",
    "load_bytes", "load_front", "load_matrices", "load_register_operand", "load_remote", "load_shared", "load_shared_pair", "load_shared_word",
    "load_units", "load_words", "multicast_box", "multiply_fragments", "multiply_k_tiles", "multiply_quad",
    "multiply_steps", "multiply_words", "multiply_words_steps", "opaque", "optimization_barrier", "pack_fp8", "pack_halves",
    "phase_over", "prefetch_box", "prefetch_map", "publish_barriers", "read_fragments", "read_operand", "read_thread", "reduce_warp",
    "scatter_sums", "send_remote", "setmaxnreg_dec", "setmaxnreg_inc", "shared_address", "store_box",
    "store_bytes", "store_half_below", "store_matrices", "store_pair_below", "store_release", "store_remote", "store_shared", "store_shared_word", "store_units",
    "store_words", "sync_at", "sync_threads", "tanh_for_halves", "transpose_runs", "unpack_fp8", "unpack_halves",
    "wait_copies", "wait_kernel", "wait_phase", "wait_products", "wait_stores", "wait_stores_read",
    "warp_uniform",
]  # fmt: skip
