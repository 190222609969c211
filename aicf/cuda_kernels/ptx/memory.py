"""Global memory, with what a compiler does not say of an access: how long caches should keep it, and what it orders. PTX ISA,
chapters "Data Movement and Conversion Instructions" and "Parallel Synchronization and Communication Instructions".

An address is `u64`, of `global_address`; words are 32 bits, whatever is in them. Its twin in NumPy is what lies from there on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...types import DType, bf16, f16, f32, i32, i64
from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from .assemble import instruction


@deferred
def global_address() -> Any:
    """`at(pointer, i)`: where element i lies. No instruction."""
    if SIMULATED:
        return lambda pointer, i: pointer[i:]

    @intrinsic
    def at(typing, pointer, i):
        def codegen(ctx, b, sig, args):
            return b.ptrtoint(b.gep(args[0], [args[1]]), ir.IntType(64))

        return types.uint64(pointer, types.int64), codegen

    return at


@deferred
def same_place() -> Any:
    """`same(a, b)`: whether two pointers are equal. No instruction but the comparison."""
    if SIMULATED:
        return lambda a, b: bool(np.shares_memory(a, b))

    @intrinsic
    def same(typing, a, b):
        def codegen(ctx, builder, sig, args):
            wide = ir.IntType(64)
            return builder.icmp_unsigned("==", *(builder.ptrtoint(x, wide) for x in args))

        return types.boolean(a, b), codegen

    return same


def _vector(words: int, first: int = 0) -> tuple[str, str]:
    """(what an instruction says of so many words, their registers from `first` on)."""
    assert words in (1, 2, 4), "4, 8 or 16 bytes"
    names = ", ".join(f"${first + i}" for i in range(words))
    return (f".v{words}", f"{{{names}}}") if words > 1 else ("", names)


def _words(memory: Any, words: int) -> Any:
    return memory.view(np.uint8)[: 4 * words].view(np.uint32)


# --- loads and stores -------------------------------------------------------------------------------------------------

LOADS = {
    "": "ld.global",
    "once": "ld.global.nc.L1::no_allocate.L2::128B",  # by nobody written meanwhile; L2 fetches whole lines
    "policy": "ld.global.L1::no_allocate.L2::cache_hint",
}
STORES = {"": "st.global", "once": "st.global.cs", "policy": "st.global.L2::cache_hint"}


@deferred
def cache_policy(keep: str) -> Any:
    """`policy()`: "first" or "last" to be thrown out of L2, for loads and stores that take one; `u64`.
    `createpolicy.fractional`, sm_80."""
    assert keep in ("first", "last")
    if SIMULATED:
        return lambda: np.uint64(0)
    return instruction(
        f"createpolicy.fractional.L2::evict_{keep}.b64 $0, 1.0;", result=types.uint64, effects=False
    )


@deferred
def load_words(words: int, hint: str = "") -> Any:
    """`load(address)`, or with a hint of "policy" `load(address, policy)`: a tuple of 1, 2 or 4 words, aligned to all of them.

    hint  "once": it won't be read again, goes past L1, and nothing writes it while the kernel runs; "policy": see
          `cache_policy`, also past L1. `ld.global`, sm_80
    """
    if SIMULATED:
        return lambda address, *policy: tuple(_words(address, words))
    vector, registers = _vector(words)
    policy = [types.uint64] * (hint == "policy")
    text = f"{LOADS[hint]}{vector}.b32 {registers}, [${words}]{f', ${words + 1}' * len(policy)};"
    return instruction(text, types.uint64, *policy, result=(types.uint32,) * words)


@deferred
def store_words(words: int, hint: str = "") -> Any:
    """`store(address, a, …)`, or with a hint of "policy" `store(address, policy, a, …)`: 1, 2 or 4 words, aligned to all.

    hint  "once": it won't be read soon; "policy": see `cache_policy`. `st.global`, sm_80
    """
    if SIMULATED:

        def store(address, *values):
            _words(address, words)[:] = values[-words:]

        return store
    policy = [types.uint64] * (hint == "policy")
    vector, registers = _vector(words, 1 + len(policy))
    text = f"{STORES[hint]}{vector}.b32 [$0], {registers}{', $1' * len(policy)};"
    return instruction(text, types.uint64, *policy, *[types.uint32] * words)


# --- additions and signals --------------------------------------------------------------------------------------------

SIGNALS = {i32: "s32", i64: "s64"}


@deferred
def add_words(dtype: DType, words: int) -> Any:
    """`add(address, a, …)`: 1, 2 or 4 words to what is there, each lane whole, in any order of those who add: of f32, or two
    halves in each, rounded to nearest even. Several words, and bf16: sm_90; else sm_70. `red.global.add`."""
    kind = {f32: "f32", f16: "f16x2", bf16: "bf16x2"}[dtype]
    if SIMULATED:

        def add(address, *values):
            lanes = _words(address, words).view(dtype.numpy)
            lanes += np.array(values, np.float32 if dtype is f32 else np.uint32).view(dtype.numpy)

        return add
    vector, registers = _vector(words, 1)
    text = f"red.relaxed.gpu.global.add{'.noftz' * (dtype is not f32)}{vector}.{kind} [$0], {registers};"
    return instruction(text, types.uint64, *[types.float32 if dtype is f32 else types.uint32] * words)


@deferred
def fetch_add() -> Any:
    """`take(address, x)`: adds to an i32, and returns what was there: a ticket. What this thread wrote before is seen by those
    who come after, and it sees what those before wrote. `atom.acq_rel.gpu.add`, sm_70."""
    if SIMULATED:

        def take(address, x):
            before = address[0]
            address[0] = before + x
            return before

        return take
    text = "atom.acq_rel.gpu.global.add.s32 $0, [$1], $2;"
    return instruction(text, types.uint64, types.int32, result=types.int32)


@deferred
def load_acquire(dtype: DType = i32) -> Any:
    """`load(address)`: an i32 or i64, and all that was written before it was stored by `store_release`. `ld.acquire.gpu`, sm_70."""
    kind = SIGNALS[dtype]
    if SIMULATED:
        return lambda address: address[0]
    made = getattr(types, f"int{kind[1:]}")
    return instruction(f"ld.acquire.gpu.global.{kind} $0, [$1];", types.uint64, result=made)


@deferred
def store_release(dtype: DType = i32) -> Any:
    """`store(address, x)`: an i32 or i64, after all that this thread wrote; and others, if it synchronized with them. `st.release.gpu`, sm_70."""
    kind = SIGNALS[dtype]
    if SIMULATED:
        return lambda address, x: address.__setitem__(0, x)
    made = getattr(types, f"int{kind[1:]}")
    return instruction(f"st.release.gpu.global.{kind} [$0], $1;", types.uint64, made)


@deferred
def fence_memory(scope: str) -> Any:
    """`fence()`: what this thread wrote and read before, before what it does after, as the threads of a "cluster" (sm_90),
    of the "gpu" or of the whole "sys" see it. `fence.acq_rel`, sm_70."""
    assert scope in ("cluster", "gpu", "sys")
    if SIMULATED:
        return lambda: None
    return instruction(f"fence.acq_rel.{scope};")


# --- one kernel after another -----------------------------------------------------------------------------------------


@deferred
def wait_kernel() -> Any:
    """`wait()`: until the kernel before, of a stream, is done and its results are seen, if this one was launched to begin
    earlier (programmatic dependent launch); else nothing. `griddepcontrol.wait`, sm_90."""
    if SIMULATED:
        return lambda: None
    return instruction("griddepcontrol.wait;")


@deferred
def launch_dependents() -> Any:
    """`launch()`: the kernel after this one may begin, as soon as all blocks have said so; it still waits for results by
    `wait_kernel`. `griddepcontrol.launch_dependents`, sm_90."""
    if SIMULATED:
        return lambda: None
    return instruction("griddepcontrol.launch_dependents;")
