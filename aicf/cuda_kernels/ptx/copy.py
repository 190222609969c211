"""Shared memory: where arrays lie in it, and copies to it that a thread does not wait for. PTX ISA, chapter "Data Movement and
Conversion Instructions", section "Non-bulk copy"; sm_80. Before that K-tiles pass through registers: `load_unit_words`, `store_unit_words`.

Copies run behind the thread that asks for them: `copy_async`, `commit_copies`, and after `wait_copies` they have arrived, for
that thread; for others after a barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..dsl import deferred, intrinsic, ir, types
from ..llvm import const, emit_call
from .assemble import assemble, instruction

Place = tuple[
    int, int
]  # from one address to another: bits to flip, then bytes to add; swizzled rows need both


def moved(b: Any, address: Any, place: Place) -> Any:
    """The LLVM of an address that is moved."""
    flipped = b.xor(address, const(place[0])) if place[0] else address
    return b.add(flipped, const(place[1])) if place[1] else flipped


@deferred
def shared_address() -> Any:
    """`address(array)`: where a shared array lies, in bytes, in the 32-bit window that instructions take. No instruction."""

    @intrinsic
    def address(typing, array):
        def codegen(ctx, b, sig, args):
            data = ctx.make_array(array)(ctx, b, args[0]).data
            shared = ir.IntType(8).as_pointer(3)
            here = b.bitcast(data, shared) if data.type.addrspace == 3 else b.addrspacecast(data, shared)
            return b.ptrtoint(here, ir.IntType(32))

        return types.uint32(array), codegen

    return address


@deferred
def load_shared() -> Any:
    """`load(address)`: four f32 of this block's shared memory, at a multiple of 16 bytes. `ld.shared`, sm_70."""
    text = "ld.shared.v4.f32 {$0, $1, $2, $3}, [$4];"
    return instruction(text, types.uint32, result=(types.float32,) * 4)


@deferred
def store_shared() -> Any:
    """`store(address, a, b, c, d)`: four f32 to there. `st.shared`, sm_70."""
    return instruction("st.shared.v4.f32 [$0], {$1, $2, $3, $4};", types.uint32, *[types.float32] * 4)


@deferred
def load_shared_words() -> Any:
    """`load(address)`: four words of this block's shared memory, at a multiple of 16 bytes. `ld.shared`, sm_70."""
    text = "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];"
    return instruction(text, types.uint32, result=(types.uint32,) * 4)


@deferred
def store_shared_words() -> Any:
    """`store(address, a, b, c, d)`: four words to there. `st.shared`, sm_70."""
    return instruction("st.shared.v4.b32 [$0], {$1, $2, $3, $4};", *[types.uint32] * 5)


@deferred
def store_shared_number() -> Any:
    """`store(address, x)`: an f32 to there. `st.shared`, sm_70."""
    return instruction("st.shared.b32 [$0], $1;", types.uint32, types.float32)


@deferred
def load_shared_word() -> Any:
    """`load(address)`: 32 bits of this block's shared memory. `ld.shared`, sm_70."""
    return instruction("ld.shared.u32 $0, [$1];", types.uint32, result=types.uint32)


@deferred
def store_shared_word() -> Any:
    """`store(address, x)`: 32 bits to there. `st.shared`, sm_70."""
    return instruction("st.shared.u32 [$0], $1;", types.uint32, types.uint32)


def copy_text(width: int) -> str:
    """16 bytes go past L1, which they would only pass through."""
    return f"cp.async.{'cg' if width == 16 else 'ca'}.shared.global [$0], [$1], {width}, $2;"


def _units(ctx: Any, b: Any, span: Callable[..., Any], env: Any, value: Any, count: int, apart: int) -> Any:
    """For each unit: its first element, and how many bytes of it there are. Elements are counted up from one to the next: what
    is computed from their number alone would be kept in registers."""
    four = types.UniTuple(types.int64, 4)
    at, step, nbytes, rows = (
        b.extract_value(emit_call(ctx, b, span, four, [env], [value]), i) for i in range(4)
    )
    step = b.mul(step, const(apart, 64))
    for i in range(count):
        inside = b.icmp_signed("<", const(i * apart, 64), rows)
        yield at, b.select(inside, nbytes, const(0, 64))
        at = b.add(at, step)


@deferred
def copy_async(
    places: tuple[Place, ...], apart: int, span: Callable[..., Any], width: int, itemsize: int
) -> Any:
    """`copy(pointer, to, env)`: `width` bytes, 4, 8 or 16, to each place from shared address `to` on; returns ().

    span(env)  (element that the first one starts at, elements from row to row, bytes there are of each, rows there are): units
               are `apart` rows from each other. What is not there is filled with zeros. Both ends are aligned to the width
    `cp.async.ca`; of 16 bytes `cp.async.cg`
    """
    text = copy_text(width)

    @intrinsic
    def copy(typing, pointer, to, env):
        def codegen(ctx, b, sig, args):
            first = b.ptrtoint(args[0], ir.IntType(64))
            for place, (at, nbytes) in zip(places, _units(ctx, b, span, env, args[2], len(places), apart)):
                source = b.add(first, b.mul(at, const(itemsize, 64)))
                given = [moved(b, args[1], place), source, b.trunc(nbytes, ir.IntType(32))]
                assemble(b, text, "r,l,r,~{memory}", ir.VoidType(), given, True)
            return ctx.make_tuple(b, sig.return_type, [])

        return types.Tuple(())(pointer, types.uint32, env), codegen

    return copy


@deferred
def load_units(count: int, apart: int, span: Callable[..., Any]) -> Any:
    """`load(pointer, to, env)`: `count` elements, each as it is: for what is aligned to nothing more. `span` as for `copy_async`; 0 stands for what is not there. `ld.global`."""

    @intrinsic
    def load(typing, pointer, to, env):
        def codegen(ctx, b, sig, args):
            kind, values = args[0].type.pointee, []
            for at, nbytes in _units(ctx, b, span, env, args[2], count, apart):
                outside = b.basic_block
                with b.if_then(b.icmp_signed(">", nbytes, const(0, 64))):
                    loaded = b.load(b.gep(args[0], [at]))
                    inside = b.basic_block
                value = b.phi(kind)
                value.add_incoming(ir.Constant(kind, 0), outside)
                value.add_incoming(loaded, inside)
                values.append(value)
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(pointer.dtype, count)(pointer, types.uint32, env), codegen

    return load


def _vector(words: int, first: int) -> tuple[str, str]:
    """The suffix and the registers of an instruction that moves 1, 2 or 4 words."""
    names = ",".join(f"${first + i}" for i in range(words))
    return (f".v{words}", f"{{{names}}}") if words > 1 else ("", names)


@deferred
def load_unit_words(
    count: int, apart: int, span: Callable[..., Any], width: int, itemsize: int, partial: bool
) -> Any:
    """`load(pointer, to, env)`: `count` units of `width` bytes, 2 to 16, as words in registers, for `store_unit_words`; 2 bytes in a word of
    their own.

    span(env)  as for `copy_async`; zeros stand for what does not exist
    partial    a unit may exist in part, of numbers of 16 bits; otherwise it exists in full or not at all
    `ld.global`, sm_70. Loads have predicates: branches would take registers for their addresses
    """
    words = -(-width // 4)

    @intrinsic
    def load(typing, pointer, to, env):
        def codegen(ctx, b, sig, args):
            first, values = b.ptrtoint(args[0], ir.IntType(64)), []
            for at, nbytes in _units(ctx, b, span, env, args[2], count, apart):
                source = b.add(first, b.mul(at, const(itemsize, 64)))
                bytes_here = b.trunc(nbytes, ir.IntType(32))
                if width == 2:
                    values.append(_load_half(b, bytes_here, source, 0))
                    continue
                full = b.icmp_signed(">=", bytes_here, const(width))
                unit = _load_if(b, full, source, words)
                values += _load_rest(b, full, bytes_here, source, unit) if partial else unit
            return ctx.make_tuple(b, sig.return_type, values)

        return types.UniTuple(types.uint32, count * words)(pointer, types.uint32, env), codegen

    return load


def _load_rest(b: Any, full: Any, nbytes: Any, source: Any, unit: list[Any]) -> list[Any]:
    """A unit, or what exists of it."""
    before = b.basic_block
    with b.if_then(b.and_(b.not_(full), b.icmp_signed(">", nbytes, const(0))), likely=False):
        halves = [_load_half(b, nbytes, source, 2 * i) for i in range(2 * len(unit))]
        found = [b.or_(low, b.shl(high, const(16))) for low, high in zip(halves[::2], halves[1::2])]
        inside = b.basic_block
    return [_either(b, (x, before), (y, inside)) for x, y in zip(unit, found)]


def _load_if(b: Any, exists: Any, source: Any, words: int) -> list[Any]:
    """1, 2 or 4 words from a global address, or zeros."""
    vector, registers = _vector(words, 0)
    zeros = " ".join(f"mov.b32 ${i}, 0;" for i in range(words))
    text = f"{{ .reg .pred p; setp.ne.b32 p, ${words + 1}, 0; {zeros} @p ld.global{vector}.b32 {registers}, [${words}]; }}"
    word = ir.IntType(32)
    kind: Any = word if words == 1 else ir.LiteralStructType([word] * words)
    constraints = ",".join([*["=r"] * words, "l", "r", "~{memory}"])
    loaded = assemble(b, text, constraints, kind, [source, b.zext(exists, word)], True)
    return [loaded] if words == 1 else [b.extract_value(loaded, i) for i in range(words)]


def _load_half(b: Any, nbytes: Any, source: Any, at: int) -> Any:
    """16 bits, so many bytes behind a global address, as a word; or 0 where there are no more than these."""
    text = f"{{ .reg .pred p; setp.gt.s32 p, $2, {at}; mov.b32 $0, 0; @p ld.global.u16 $0, [$1+{at}]; }}"
    return assemble(b, text, "=r,l,r,~{memory}", ir.IntType(32), [source, nbytes], True)


def _either(b: Any, *ways: tuple[Any, Any]) -> Any:
    """The value of the block that the thread comes from."""
    value = b.phi(ways[0][0].type)
    for incoming, block in ways:
        value.add_incoming(incoming, block)
    return value


@deferred
def store_unit_words(places: tuple[Place, ...], width: int) -> Any:
    """`store(to, words)`: the units of `load_unit_words`, each to its place from shared address `to` on. `st.shared`, sm_70."""
    words = -(-width // 4)
    vector, registers = _vector(words, 1)
    text = f"st.shared{vector}.b{min(32, 8 * width)} [$0], {registers};"
    constraints = ",".join(["r", *["h" if width == 2 else "r"] * words, "~{memory}"])

    @intrinsic
    def store(typing, to, values):
        def codegen(ctx, b, sig, args):
            for i, place in enumerate(places):
                unit = [b.extract_value(args[1], words * i + j) for j in range(words)]
                unit = [b.trunc(x, ir.IntType(16)) for x in unit] if width == 2 else unit
                assemble(b, text, constraints, ir.VoidType(), [moved(b, args[0], place), *unit], True)
            return ctx.get_dummy_value()

        return types.void(types.uint32, values), codegen

    return store


@deferred
def commit_copies() -> Any:
    """`commit()`: the copies that this thread asked for since the last one, as a group. `cp.async.commit_group`."""
    return instruction("cp.async.commit_group;")


@deferred
def wait_copies(pending: int) -> Any:
    """`wait()`: until at most `pending` of this thread's groups are under way. `cp.async.wait_group`."""
    return instruction(f"cp.async.wait_group {pending};")
