"""An Expression as host code: its scalar functions called in order, at each element of a run, by one vectorised loop.

Written to numba's typed IR (an intrinsic) instead of a tower of small jitted functions, each of which would take numba as
long to compile as the loop. A run goes in blocks: results of a block are made in stack memory and then copied. So every
operand of an element is read before a result is written, a result may lie over an operand, and LLVM vectorises without
asking which pointers overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import contextmanager
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, store_item

from ...rows.program import Bound, Expression
from ...types import DType
from . import halves, vector_math, wide_math
from .frame import inner, numba_type
from .spec import APART, NEXT, REPEATED

BLOCK = 256  # elements of a result that are on the stack at a time

_WIDEN = {
    DType.f16: halves.widen_f16, DType.bf16: halves.widen_bf16, DType.f8e4m3: halves.widen_e4m3, DType.f8e5m2: halves.widen_e5m2,
}  # fmt: skip
_NARROW = {
    DType.f16: halves.narrow_f16, DType.bf16: halves.narrow_bf16, DType.f8e4m3: halves.narrow_e4m3,
    DType.f8e5m2: halves.narrow_e5m2,
}  # fmt: skip
_BITS = types.uint16, types.uint8  # that loops see halves and fp8 as


_TYPES = {t: numba_type(t.numpy.name) for t in DType if t.compute is t}


@lru_cache(maxsize=1024)
def compiled(function: FunctionType, double: bool = False) -> Any:
    """A scalar function for the host: plain functions that it calls are compiled too; math is vector_math, of f64 wide_math."""
    names = {
        n: _for_host(v, double)
        for n in function.__code__.co_names
        if (v := function.__globals__.get(n)) is not None
    }
    cells = [_for_host(cell.cell_contents, double) for cell in function.__closure__ or ()]
    rebuilt = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        None,
        tuple(map(CellType, cells)),
    )
    return inner(rebuilt)


def _for_host(value: Any, double: bool) -> Any:
    """What a scalar function reads: math's functions, however they were imported, as the host's; plain ones compiled."""
    if isinstance(value, FunctionType):
        return compiled(value, double)
    functions = wide_math if double else vector_math
    if value is math:
        return functions
    if isinstance(value, BuiltinFunctionType) and value is getattr(math, value.__name__, None):
        return getattr(functions, value.__name__)
    return value


def run_of(
    expression: Expression,
    sources: tuple[int | None, ...],
    walks: tuple[int, ...],
    bounds: tuple[tuple[Bound, ...], ...] = (),
) -> Callable[..., Any]:
    """run(arrays, at, strides, targets, blocks, position, place, count): the expression on `count` elements, at least one.

    arrays    a pointer for each distinct operand; `sources` says which one an argument reads, None: the index itself
    at        int64 of each argument's first element
    strides   int64 of each argument; only read where `walks` says APART
    targets   pointers, for the first results; written from `position` on
    blocks    pointers, for the others; written from `place` on
    bounds    of each argument; one that is outside of them is 0, and not read

    f16 and bf16 come and go as uint16, fp8 as uint8; a pointer may be of the compute type instead.
    """

    @intrinsic
    def run(typing, arrays, at, strides, targets, blocks, position, place, count):
        given = types.void(arrays, at, strides, targets, blocks, position, place, count)
        return given, partial(_generate, typing, expression, sources, walks, bounds or ((),) * len(sources))

    return run


def _generate(typing, expression, sources, walks, bounds, context, builder, signature, args):
    emit = _Emitter(typing, context, builder, expression)
    arrays, _, _, targets, blocks, *_ = signature.args
    _, at, strides, *_ = args
    ins, outs = (
        emit.pointers(arrays, args[0]),
        emit.pointers(targets, args[3]) + emit.pointers(blocks, args[4]),
    )
    arrays, targets = (
        [types.Array(p.dtype, 1, "C") for p in kinds] for kinds in (arrays, (*targets, *blocks))
    )
    position, place, total = args[5:]
    begins = [position] * (len(targets) - len(signature.args[4])) + [place] * len(signature.args[4])
    number, add, count = emit.number, builder.add, range(expression.arguments)
    starts = [builder.load(builder.gep(at, [number(k)])) for k in count]
    steps = {k: builder.load(builder.gep(strides, [number(k)])) for k in count if walks[k] == APART}

    def load(k, pointer):
        loaded = load_item(context, builder, arrays[sources[k]], pointer)
        return emit.widened(k, loaded) if emit.is_bits(k, arrays[sources[k]].dtype) else loaded

    def walked(k, i):
        if walks[k] == REPEATED:
            return starts[k]
        return add(starts[k], i if walks[k] == NEXT else builder.mul(i, steps[k]))

    def argument(k, i, values):
        if not bounds[k]:
            where = walked(k, i)
            return where if sources[k] is None else load(k, builder.gep(ins[sources[k]], [where]))
        inside, further = emit.bounded(bounds[k], values)
        if sources[k] is None:
            return inside
        where = add(walked(k, i), further)
        return emit.where(inside, lambda: load(k, builder.gep(ins[sources[k]], [where])))

    repeated: dict[int, Any] = {}  # arguments that are the same for all of the run
    for k in count:
        if walks[k] == REPEATED and all(slot in repeated for bound in bounds[k] for slot in bound.slots):
            repeated[k] = argument(k, number(0), repeated)
    # Bounds of coordinates that go on by one end blocks. So they hold for all of a block, or nowhere in it, and it is loaded
    # without asking, from zeros if need be.
    moving = {k for k in count if walks[k] == NEXT and sources[k] is None and not bounds[k]}
    ends = [
        b
        for k in count
        for b in bounds[k]
        if b.slot in moving and b.every == 1 and b.stride is None and b.size in repeated
    ]
    whole = {
        k: k not in repeated and all(b in ends or all(slot in repeated for slot in b.slots) for b in bounds[k])
        for k in count if bounds[k]
    }  # fmt: skip
    if any(whole.values()):
        zeros = emit.zeros(8 * BLOCK)

    def base(k, start):
        """Of an argument whose bounds are the same for all of a block: the mask, or a pointer and how it goes on."""
        values = {**repeated, **{m: add(starts[m], start) for m in moving}}
        inside, further = emit.bounded(bounds[k], values)
        if sources[k] is None:
            return inside, None
        pointer = builder.gep(ins[sources[k]], [add(walked(k, start), further)])
        step = steps[k] if walks[k] == APART else number(int(walks[k] == NEXT))
        if walks[k] == APART:
            step = builder.select(inside, step, number(0))
        return builder.select(inside, pointer, builder.bitcast(zeros, pointer.type)), step

    made = [cgutils.alloca_once(builder, context.get_data_type(t.dtype), BLOCK) for t in targets]
    with emit.blocks(total, [(starts[b.slot], repeated[b.size]) for b in ends]) as (start, size):
        bases = {k: base(k, start) for k in count if whole.get(k)}
        with cgutils.for_range(builder, size) as loop:
            i, given = add(start, loop.index), []
            for k in count:
                if k in repeated:
                    given.append(repeated[k])
                elif k in bases:
                    first, step = bases[k]
                    further = None if step is None else builder.mul(loop.index, step)
                    given.append(first if step is None else load(k, builder.gep(first, [further])))
                else:
                    given.append(argument(k, i, given))
            values = emit.evaluate(given)
            for slot, value, kind, stack in zip(expression.results, values, targets, made):
                value = emit.narrowed(slot, value) if emit.is_bits(slot, kind.dtype) else value
                store_item(context, builder, kind, value, builder.gep(stack, [loop.index]))
        for kind, stack, out, begin in zip(targets, made, outs, begins):
            itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            cgutils.raw_memcpy(builder, builder.gep(out, [add(begin, start)]), stack, size, itemsize)
    return context.get_dummy_value()


@contextmanager
def _while(builder, condition):
    """The body again and again, as long as the condition holds."""
    again, body, done = (builder.append_basic_block(f"while.{name}") for name in ("again", "body", "done"))
    builder.branch(again)
    builder.position_at_end(again)
    builder.cbranch(condition(), body, done)
    builder.position_at_end(body)
    yield
    builder.branch(again)
    builder.position_at_end(done)


class _Emitter:
    """IR of one run: calls of jitted functions, and the slots of the expression."""

    def __init__(self, typing, context, builder, expression) -> None:
        self.typing, self.context, self.builder, self.expression = typing, context, builder, expression

    def number(self, value):
        return self.context.get_constant(types.intp, value)

    def pointers(self, tuple_type, value):
        return cgutils.unpack_tuple(self.builder, value, len(tuple_type))

    def call(self, function, given, values):
        """(type, value) of a jitted function's result."""
        kind = types.Dispatcher(function)
        signature = kind.get_call_type(self.typing, given, {})
        code = self.context.get_function(kind, signature)
        value = code(self.builder, values)
        self.context.add_linking_libs(getattr(code, "libs", ()))
        return signature.return_type, value

    @contextmanager
    def blocks(self, total, ends):
        """(where it begins, how many elements) of each block. `ends`: (coordinate at 0, size): it ends where the coordinate comes
        to 0 or to the size."""
        builder, number = self.builder, self.number
        most, zero = number(BLOCK), number(0)

        def least(a, b):
            return builder.select(builder.icmp_signed("<", a, b), a, b)

        if not ends:
            with cgutils.for_range_slice(builder, zero, total, most, zero.type) as (start, _):
                yield start, least(builder.sub(total, start), most)
            return
        place = cgutils.alloca_once_value(builder, zero)
        with _while(builder, lambda: builder.icmp_signed("<", builder.load(place), total)):
            start = builder.load(place)
            size = least(builder.sub(total, start), most)
            for first, extent in ends:
                at = builder.add(first, start)
                ahead = builder.select(builder.icmp_signed("<", at, extent), builder.sub(extent, at), most)
                size = least(size, builder.select(builder.icmp_signed("<", at, zero), builder.neg(at), ahead))
            yield start, size
            builder.store(builder.add(start, size), place)

    def zeros(self, nbytes):
        """A pointer at so many bytes that are 0."""
        constant = ir.Constant(ir.ArrayType(ir.IntType(8), nbytes), None)
        made = cgutils.global_constant(self.builder, "zeros", constant)
        made.align = 64
        return made

    def bounded(self, bounds, values):
        """Whether all of these hold, and how far they lead a load; values of arguments by their slots."""
        builder, inside, further = self.builder, None, self.number(0)
        for bound in bounds:
            holds, index = self.inside(bound, values)
            inside = holds if inside is None else builder.and_(inside, holds)
            if bound.stride is not None:
                further = builder.add(further, builder.mul(index, values[bound.stride]))
        return inside, further

    def inside(self, bound, values):
        """(whether a bound holds, the index): of arguments by their slots."""
        builder, index, size = self.builder, values[bound.slot], values[bound.size]
        zero = self.number(0)
        if index.type != zero.type:
            index = builder.sext(index, zero.type)
        if bound.wraps:
            index = builder.select(builder.icmp_signed("<", index, zero), builder.add(index, size), index)
        if bound.every == 1:
            return builder.icmp_unsigned("<", index, size), index
        every = self.number(bound.every)
        whole = builder.udiv(index, every)
        even = builder.icmp_unsigned("==", builder.mul(whole, every), index)
        return builder.and_(even, builder.icmp_unsigned("<", whole, size)), whole

    def where(self, condition, make):
        """What `make` gives, called where the condition holds; elsewhere 0."""
        builder, before = self.builder, self.builder.block
        with builder.if_then(condition):
            value, made = make(), builder.block
        chosen = builder.phi(value.type)
        chosen.add_incoming(value, made)
        chosen.add_incoming(value.type(None), before)
        return chosen

    def is_bits(self, slot, kind):
        """Whether memory of this type has a slot's floats as bits; u8 and u16 are what they are."""
        return self.expression.dtypes[slot] in _WIDEN and kind in _BITS

    def widened(self, slot, value):
        dtype = self.expression.dtypes[slot]
        return self.call(_WIDEN[dtype], (_BITS[dtype.itemsize == 1],), [value])[1]

    def narrowed(self, slot, value):
        return self.call(_NARROW[self.expression.dtypes[slot]], (types.float32,), [value])[1]

    def evaluate(self, values):
        """The results, in their compute types, of the arguments' values."""
        expression, slots = self.expression, dict(enumerate(values))

        def settle(slot, value):
            slots[slot] = (
                self.widened(slot, self.narrowed(slot, value)) if slot in expression.rounded else value
            )

        for slot, value in enumerate(values):
            settle(slot, value)
        for function, ins, outs in expression.steps:
            # attributes as constants, not left to numba's defaults: those know no -0.0 beside 0.0
            constants = [(numba.typeof(value), value) for value in function.__defaults__ or ()]
            given = [_TYPES[expression.dtypes[i].compute] for i in ins] + [kind for kind, _ in constants]
            values = [slots[i] for i in ins]
            values += [self.context.get_constant_generic(self.builder, *constant) for constant in constants]
            double = types.float64 in given[: len(ins)]
            kind, value = self.call(compiled(function, double), tuple(given), values)
            several = isinstance(kind, types.BaseTuple)
            kinds = list(kind) if several else [kind]
            parts = cgutils.unpack_tuple(self.builder, value, len(kinds)) if several else [value]
            for slot, have, part in zip(outs, kinds, parts):
                want = _TYPES[expression.dtypes[slot].compute]
                settle(slot, self.context.cast(self.builder, part, have, want))
        return [slots[slot] for slot in expression.results]
