"""Matrix products by a warpgroup, four warps and 128 threads, from shared memory. PTX ISA, chapter "Asynchronous Warpgroup
Level Matrix Multiply-Accumulate Instructions"; sm_90a, which later architectures do not run.

Products run behind the threads that ask for them: `fence_products`, `multiply_slabs`, `commit_products`, and only after
`wait_products` may the sums be read, or the operands be overwritten. Sums stay in the registers that they are in: what
reads or moves them meanwhile makes ptxas wait after every product, and say so (C7510 and its neighbours).
"""

from __future__ import annotations

from typing import Any

from ....types import DType, bf16, f16
from ...dsl import deferred, intrinsic, ir, types
from ..element import const
from .assemble import assemble, instruction

ROWS = 64  # of a, that one instruction multiplies
DEPTH = 16  # of k, that it sums over: 32 bytes of halves
ATOM = 64  # halves in the 128 bytes of a swizzled row
GROUP_BYTES = (
    8 * 128
)  # eight rows, over which the swizzle repeats: where an operand begins is a multiple of it


def slab_bytes(lines: int) -> int:
    """Of `lines` x 64 of k, however they lie: 64 lines take 8192 bytes."""
    return lines * 2 * ATOM


def depth_bytes(k_fast: bool) -> int:
    """From one slice of 16 along k to the next: within rows of k, or 16 rows."""
    return 2 * DEPTH if k_fast else DEPTH * 2 * ATOM


def layout_bits(k_fast: bool) -> int:
    """A descriptor but for its address: an operand's part in shared memory, 128-byte swizzle, 64 of k deep.

    k_fast      rows of 64 along k, one under the other
    otherwise   rows of 64 lines (of m or n), one for each k; the next 64 lines after 64 rows

    bits 0-13   address / 16
    bits 16-29  bytes / 16 to the next 64 lines; not read if k is contiguous
    bits 32-45  bytes / 16 to the next eight rows
    bits 62-63  1: 128-byte swizzle
    """
    next_lines = 1 if k_fast else slab_bytes(ATOM) // 16
    return next_lines << 16 | (GROUP_BYTES // 16) << 32 | 1 << 62


@deferred
def describe(k_fast: bool) -> Any:
    """`of(address)`: the descriptor of what lies there; see `layout_bits`. No instruction."""
    bits = layout_bits(k_fast)

    @intrinsic
    def of(typing, address):
        def codegen(ctx, b, sig, args):
            start = b.zext(b.lshr(args[0], const(4)), ir.IntType(64))
            return b.or_(start, const(bits, 64))

        return types.uint64(types.uint32), codegen

    return of


@deferred
def fence_products() -> Any:
    """`fence()`: registers as they are now, before products that follow. `wgmma.fence`."""
    return instruction("wgmma.fence.sync.aligned;", together=True)


@deferred
def commit_products() -> Any:
    """`commit()`: the products asked for since the last one, as a group. `wgmma.commit_group`."""
    return instruction("wgmma.commit_group.sync.aligned;", together=True)


@deferred
def wait_products(pending: int) -> Any:
    """`wait()`: until at most `pending` groups are under way. Sums of those that are not may not be read before
    `finish_products` all the same: LLVM does not know that they were waited for. `wgmma.wait_group`."""
    return instruction(f"wgmma.wait_group.sync.aligned {pending};", together=True)


@deferred
def finish_products(count: int) -> Any:
    """`finish(acc)`: all products done, and the `count` sums, which go through so that no use of them moves above."""

    @intrinsic
    def finish(typing, acc):
        def codegen(ctx, b, sig, args):
            real = ir.FloatType()
            values = [b.extract_value(args[0], i) for i in range(count)]
            constraints = ",".join([*["=f"] * count, *map(str, range(count)), "~{memory}"])
            text, kind = "wgmma.wait_group.sync.aligned 0;", ir.LiteralStructType([real] * count)
            made = assemble(b, text, constraints, kind, values, True, True)
            return ctx.make_tuple(b, sig.return_type, [b.extract_value(made, i) for i in range(count)])

        return acc(acc), codegen

    return finish


def slab_text(dtype: DType, n: int, blocks: int, a_k_fast: bool, b_k_fast: bool) -> str:
    """The products of `multiply_slabs`: $0 and on are the sums of block after block, then they again as what is added to, then
    the descriptors of a and b, and whether to add at all."""
    kind, sums = {f16: "f16", bf16: "bf16"}[dtype], n // 2
    a_at, b_at, more = (f"${2 * blocks * sums + i}" for i in range(3))
    lines = [".reg .pred p, on;", ".reg .b64 a, b;", f"setp.ne.b32 p, {more}, 0;", "setp.eq.b32 on, 0, 0;"]
    for step in range(ATOM // DEPTH):
        for block in range(blocks):
            a_offset = (step * depth_bytes(a_k_fast) + block * slab_bytes(ROWS)) // 16
            registers = ", ".join(f"${block * sums + i}" for i in range(sums))
            lines += [
                f"add.s64 a, {a_at}, {a_offset};",
                f"add.s64 b, {b_at}, {step * depth_bytes(b_k_fast) // 16};",
                f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{kind}.{kind} {{{registers}}}, a, b, "
                f"{'on' if step else 'p'}, 1, 1, {int(not a_k_fast)}, {int(not b_k_fast)};",
            ]
    return "{\n" + "\n".join(lines) + "\n}"


@deferred
def multiply_slabs(dtype: DType, n: int, blocks: int, a_k_fast: bool, b_k_fast: bool) -> Any:
    """`multiply(acc, a, b, more)`: a b over 64 of k, added to acc, or put in its place where more is 0.

    a, b     descriptors (see `layout_bits`); a's blocks of 64 rows lie 8192 bytes apart
    n        columns: 8 to 256, in steps of 8
    acc      n / 2 f32 for each of the `blocks` blocks: of warp w and lane l, number i is row 16 w + l // 4 + 8 (i // 2 % 2),
             column 8 (i // 4) + 2 (l % 4) + i % 2

    `wgmma.mma_async.m64nNk16`, f16 or bf16, f32 sums, both operands in shared memory. Its transpose bits say that rows are
    of lines, not of k. One piece of assembly for all of them: LLVM finds no place to move a sum in.
    """
    text, count = slab_text(dtype, n, blocks, a_k_fast, b_k_fast), blocks * n // 2
    constraints = ",".join([*["=f"] * count, *map(str, range(count)), "l", "l", "r"])

    @intrinsic
    def multiply(typing, acc, a, b, more):
        def codegen(ctx, builder, sig, args):
            given = [builder.extract_value(args[0], i) for i in range(count)]
            sort = ir.LiteralStructType([ir.FloatType()] * count)
            made = assemble(builder, text, constraints, sort, [*given, *args[1:]], True, True)
            values = [builder.extract_value(made, i) for i in range(count)]
            return ctx.make_tuple(builder, sig.return_type, values)

        return acc(acc, types.uint64, types.uint64, types.uint32), codegen

    return multiply


@deferred
def keep_registers(count: int) -> Any:
    """`keep()`: this warpgroup gives back all but `count` registers a thread: a multiple of 8, 24 to 256. `setmaxnreg.dec`."""
    return instruction(f"setmaxnreg.dec.sync.aligned.u32 {count};", together=True)


@deferred
def take_registers(count: int) -> Any:
    """`take()`: this warpgroup waits until it has `count` registers a thread. `setmaxnreg.inc`."""
    return instruction(f"setmaxnreg.inc.sync.aligned.u32 {count};", together=True)
