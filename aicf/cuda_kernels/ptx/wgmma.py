"""Matrix products by a warpgroup, four warps and 128 threads, from shared memory, or with one operand in registers. PTX ISA,
chapter "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions"; sm_90a, which later architectures do not run.

Products run behind the threads that ask for them: `fence_products`, `multiply_k_tiles`, `commit_products`, and only after
`wait_products` may the accumulators be read, or the operands be overwritten. Accumulators stay in the registers that they are in: what
reads or moves them meanwhile makes ptxas wait after every product, and say so (C7510 and its neighbours).
"""

from __future__ import annotations

from typing import Any

from ...types import DType
from ..dsl import deferred, device, intrinsic, ir, types, uint32
from .assemble import assemble, instruction, letter

ROWS = 64  # of a, that one instruction multiplies
SWIZZLE_BYTES = 128  # of k, in a swizzled row: a K-tile is so deep
STEP_BYTES = 32  # of k, that one instruction sums over
GROUP_BYTES = (
    8 * SWIZZLE_BYTES
)  # eight rows, over which the swizzle repeats: where an operand begins is a multiple of it
UPPER = GROUP_BYTES // 16 | 1 << 30  # bits of every descriptor here: see `layout_bits`
STEPS = SWIZZLE_BYTES // STEP_BYTES
WORDS = 4 * STEPS  # of 32 bits, that a thread has of a's 64 rows, if a lies in registers

NBYTES = {"f16": 2, "bf16": 2, "tf32": 4, "e4m3": 1, "e5m2": 1, "s8": 1, "u8": 1}  # of an element
FAMILIES = {"f16"}, {"bf16"}, {"tf32"}, {"e4m3", "e5m2"}, {"s8", "u8"}  # that are multiplied with each other
WHOLE = frozenset({"s8", "u8"})  # whose sums are s32
Elements = DType | str | tuple[str, str]  # of both operands, or of a and b


def kinds_of(elements: Elements) -> tuple[str, str]:
    """Of a and b, as PTX names them."""
    kinds = elements if isinstance(elements, tuple) else (str(elements),) * 2
    assert any(family.issuperset(kinds) for family in FAMILIES), f"no product of {kinds[0]} with {kinds[1]}"
    return kinds


def depth(kind: str) -> int:
    """Of k, that one instruction sums over: m64nNk16 for halves, k8 for tf32, k32 for bytes."""
    return STEP_BYTES // NBYTES[kind]


def k_tile_bytes(mn: int) -> int:
    """Of `mn` x 128 bytes of k, K-major or MN-major: 64 rows take 8192 bytes."""
    return mn * SWIZZLE_BYTES


def depth_bytes(k_major: bool) -> int:
    """From one instruction's slice of k to the next: within rows of k, or 16 rows of halves."""
    return STEP_BYTES if k_major else depth("f16") * SWIZZLE_BYTES


def layout_bits(k_major: bool) -> int:
    """A descriptor but for its address: an operand's part in shared memory, 128-byte swizzle, 128 bytes of k deep.

    k_major      rows of 128 bytes along k, one under the other
    otherwise   of halves only: MN-major, rows of 64 of m or n, one for each k; the next 64 after 64 rows

    bits 0-13   address / 16, within the block
    bits 16-29  bytes / 16 to the next 64 of m or n; not read if k is contiguous
    bits 32-45  bytes / 16 to the next eight rows
    bits 62-63  1: 128-byte swizzle
    """
    next_mn = 1 if k_major else k_tile_bytes(64) // 16
    return next_mn << 16 | UPPER << 32


def describe(k_major: bool) -> Any:
    """`of(address)`: the lower 32 bits of the descriptor of what lies there; see `layout_bits`. The upper ones are always the
    same. What lies further on in the same block is described by as many more sixteenths of bytes."""
    bits = layout_bits(k_major) & 0xFFFFFFFF

    def of(address):
        # the upper bits of an address are the block's rank in its cluster, which are no part of a descriptor
        return uint32(uint32(address) >> uint32(4) & uint32(0x3FFF) | uint32(bits))

    return device(of)


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
    """`wait()`: until at most `pending` groups are under way. Accumulators of those that are not may not be read before
    `finish_products` all the same: LLVM does not know that they were waited for. `wgmma.wait_group`."""
    return instruction(f"wgmma.wait_group.sync.aligned {pending};", together=True)


@deferred
def finish_products(count: int, pending: int = 0, words: int = 0) -> Any:
    """`finish(acc)`: `count` accumulators, when at most `pending` groups are under way, which are of others. They go through so that no
    use of them moves above. With `words`, `finish(acc, a)`: so many words of an operand in registers stay in them until then.
    `wgmma.wait_group`."""
    text = f"wgmma.wait_group.sync.aligned {pending};"

    def generate(ctx, b, sig, args):
        values = [b.extract_value(args[0], i) for i in range(count)]
        values += [b.extract_value(args[1], i) for i in range(words)]
        sort = letter(sig.args[0].dtype)
        constraints = ",".join([*["=" + sort] * count, *map(str, range(count)), *["r"] * words, "~{memory}"])
        kind = ir.LiteralStructType([ctx.get_value_type(sig.args[0].dtype)] * count)
        made = assemble(b, text, constraints, kind, values, True, True)
        return ctx.make_tuple(b, sig.return_type, [b.extract_value(made, i) for i in range(count)])

    if words:

        @intrinsic
        def finish_both(typing, acc, a):
            return acc(acc, a), generate

        return finish_both

    @intrinsic
    def finish(typing, acc):
        return acc(acc), generate

    return finish


def k_tile_text(
    elements: Elements, n: int, blocks: int, a_k_major: bool | None, b_k_major: bool, apart: int = 0
) -> str:
    """The products of `multiply_k_tiles`: $0 and on are the accumulators of block after block, then they again as what is added to; then
    the descriptor of a, or its words, block after block; the descriptor of b; and whether to add at all."""
    (left, right), accumulators = kinds_of(elements), n // 2
    apart = apart or accumulators
    whole, halves = left in WHOLE, NBYTES[left] == 2
    assert 8 <= n <= 256 and n % (16 if whole and n > 32 else 8) == 0, (
        f"no product has {n} columns of {right}"
    )
    assert halves or (a_k_major is not False and b_k_major), (
        f"{left}: k is contiguous, only halves may lie the other way"
    )
    product = f"wgmma.mma_async.sync.aligned.m64n{n}k{depth(left)}.{'s32' if whole else 'f32'}.{left}.{right}"
    majors = [int(not k_major) for k_major in (a_k_major, b_k_major) if k_major is not None] if halves else []
    end = ", ".join(map(str, [] if whole else [1, 1, *majors]))  # signs, and which operands are transposed

    a_at = 2 * blocks * apart
    b_at = a_at + (blocks * WORDS if a_k_major is None else 1)
    lines = [
        ".reg .pred p, on;",
        ".reg .b64 a, b;",
        ".reg .b32 lower, upper;",
        f"setp.ne.b32 p, ${b_at + 1}, 0;",
        "setp.eq.b32 on, 0, 0;",
        f"mov.b32 upper, {UPPER};",
    ]
    if a_k_major is None:
        lines.append("wgmma.fence.sync.aligned;")  # LLVM may compute words, or move them, behind another
    for step in range(STEPS):
        for block in range(blocks):
            registers = ", ".join(f"${block * apart + i}" for i in range(accumulators))
            if a_k_major is None:
                first = a_at + block * WORDS + 4 * step
                a = f"{{{', '.join(f'${first + i}' for i in range(4))}}}"
            else:
                a = "a"
                offset = (step * depth_bytes(a_k_major) + block * k_tile_bytes(ROWS)) // 16
                lines += [f"add.u32 lower, ${a_at}, {offset};", "mov.b64 a, {lower, upper};"]
            lines += [
                f"add.u32 lower, ${b_at}, {step * depth_bytes(b_k_major) // 16};",
                "mov.b64 b, {lower, upper};",
                f"{product} {{{registers}}}, {a}, b, {'on' if step else 'p'}{', ' * bool(end)}{end};",
            ]
    return "{\n" + "\n".join(lines) + "\n}"


@deferred
def multiply_k_tiles(
    elements: Elements, n: int, blocks: int, a_k_major: bool | None, b_k_major: bool, apart: int = 0
) -> Any:
    """`multiply(acc, a, b, more)`: a b over 128 bytes of k, added to acc, or put in its place where more is 0.

    elements  of both, f16, bf16 or tf32; or of a and b, each e4m3 or e5m2, or each s8 or u8
    a, b      descriptors (see `describe`); a's blocks of 64 rows lie 8192 bytes apart
    a         in registers, where a_k_major is None: 16 words for each block, which may change after a wait only. Word 4 s + j of
              warp w and lane l is of row 16 w + l // 4 + 8 (j % 2), from byte 32 s + 16 (j // 2) + 4 (l % 4) of k on
    n         columns: 8 to 256, in steps of 8; of s8 and u8 above 32, in steps of 16
    acc       n / 2 f32, or i32 of s8 and u8, for each of the `blocks` blocks: of warp w and lane l, number i is of row
              16 w + l // 4 + 8 (i // 2 % 2), column 8 (i // 4) + 2 (l % 4) + i % 2
    apart     numbers of acc from one block to the next, if not n / 2; what is between is left as it is

    `wgmma.mma_async`. Its transpose bits say that an operand is MN-major: only halves have them. Of tf32 it reads the upper
    19 bits; sums of e4m3 and e5m2 are kept to some 14 bits. One piece of assembly for all: LLVM finds no place to move a sum in.
    """
    text, count = k_tile_text(elements, n, blocks, a_k_major, b_k_major, apart), blocks * (apart or n // 2)
    words = blocks * WORDS if a_k_major is None else 0

    @intrinsic
    def multiply(typing, acc, a, b, more):
        def codegen(ctx, builder, sig, args):
            sums, tied = ["=" + letter(acc.dtype)] * count, map(str, range(count))
            constraints = ",".join([*sums, *tied, *["r"] * (words or 1), "r", "r"])
            given = [builder.extract_value(args[0], i) for i in range(count)]
            left = [builder.extract_value(args[1], i) for i in range(words)] or [args[1]]
            sort = ir.LiteralStructType([ctx.get_value_type(acc.dtype)] * count)
            made = assemble(builder, text, constraints, sort, [*given, *left, *args[2:]], True, True)
            values = [builder.extract_value(made, i) for i in range(count)]
            return ctx.make_tuple(builder, sig.return_type, values)

        word = types.uint32
        return acc(acc, types.UniTuple(word, words) if words else word, word, word), codegen

    return multiply


@deferred
def setmaxnreg_dec(count: int) -> Any:
    """`keep()`: this warpgroup gives back all but `count` registers a thread: a multiple of 8, 24 to 256. `setmaxnreg.dec`."""
    return instruction(f"setmaxnreg.dec.sync.aligned.u32 {count};", together=True)


@deferred
def setmaxnreg_inc(count: int) -> Any:
    """`take()`: this warpgroup waits until it has `count` registers a thread. `setmaxnreg.inc`."""
    return instruction(f"setmaxnreg.inc.sync.aligned.u32 {count};", together=True)
