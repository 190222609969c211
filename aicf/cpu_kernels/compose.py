"""An Expression as host code: its scalar functions called in order, at each element of a run, by one vectorised loop.

Written to numba's typed IR (an intrinsic) instead of a tower of small jitted functions, each of which would take numba as
long to compile as the loop. A run goes in blocks: results of a block are made in stack memory and then copied. So every
operand of an element is read before a result is written, a result may lie over an operand, and LLVM vectorises without
asking which pointers overlap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any

import numba
from numba.core import cgutils, types
from numba.extending import intrinsic
from numba.np.arrayobj import load_item, store_item

from ..registry.program import Expression
from ..types import DType
from . import halves, vector_math
from .loops import APART, NEXT, REPEATED

# error_model="numpy": division by zero gives Inf or NaN, as on the GPU; no fastmath: NaN and Inf mean something, and
# nothing is contracted
_OPTIONS = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
helper = numba.njit(**_OPTIONS, no_cpython_wrapper=True)  # from other loops only
inner = numba.njit(
    **_OPTIONS, no_cpython_wrapper=True, forceinline=True
)  # for each element: a call would end vectors

BLOCK = 256  # elements of a result that are on the stack at a time

_TYPES = {DType.f32: types.float32, DType.i32: types.int32, DType.i64: types.int64, DType.bool: types.boolean}
_WIDEN = {
    DType.f16: halves.widen_f16, DType.bf16: halves.widen_bf16, DType.f8e4m3: halves.widen_e4m3, DType.f8e5m2: halves.widen_e5m2,
}  # fmt: skip
_NARROW = {
    DType.f16: halves.narrow_f16, DType.bf16: halves.narrow_bf16, DType.f8e4m3: halves.narrow_e4m3,
    DType.f8e5m2: halves.narrow_e5m2,
}  # fmt: skip
_BITS = types.uint16, types.uint8  # that loops see halves and fp8 as


FRAME = types.CPointer(types.int64)


def _numba_type(name: str) -> Any:
    return types.boolean if name == "bool" else getattr(types, name)


def pointers(first: int, names: Sequence[str]) -> Callable[..., Any]:
    """of(frame): the numbers from `first` on as a tuple of pointers at elements of these types."""
    kinds = [types.CPointer(_numba_type(name)) for name in names]

    @intrinsic
    def of(typing, frame):
        made = types.Tuple(kinds)

        def generate(context, builder, signature, args):
            places = [
                builder.gep(args[0], [context.get_constant(types.intp, first + i)]) for i in range(len(kinds))
            ]
            found = [
                builder.inttoptr(builder.load(p), context.get_value_type(k)) for p, k in zip(places, kinds)
            ]
            return context.make_tuple(builder, made, found)

        return made(frame), generate

    return of


def offset(count: int) -> Callable[..., Any]:
    """of(frame): the pointer to its number `count`."""

    @intrinsic
    def of(typing, frame):
        def generate(context, builder, signature, args):
            return builder.gep(args[0], [context.get_constant(types.intp, count)])

        return frame(frame), generate

    return of


def retyped(name: str, first: int = 0) -> Callable[..., Any]:
    """of(memory): a pointer at elements of a type, from byte `first` of some memory on; it is a multiple of 8."""
    kind = types.CPointer(_numba_type(name))

    @intrinsic
    def of(typing, memory):
        def generate(context, builder, signature, args):
            place = builder.gep(args[0], [context.get_constant(types.intp, first // 8)])
            return builder.bitcast(place, context.get_value_type(kind))

        return kind(memory), generate

    return of


def local(count: int, name: str = "int64") -> Callable[..., Any]:
    """make(): a pointer at so many elements on the stack."""
    kind = _numba_type(name)

    @intrinsic
    def make(typing):
        def generate(context, builder, signature, args):
            return cgutils.alloca_once(builder, context.get_data_type(kind), count)

        return types.CPointer(kind)(), generate

    return make


@lru_cache(maxsize=1024)
def compiled(function: FunctionType) -> Any:
    """A scalar function for the host: plain functions that it calls are compiled too, and math is vector_math."""
    names = {
        n: _for_host(v) for n in function.__code__.co_names if (v := function.__globals__.get(n)) is not None
    }
    cells = [_for_host(cell.cell_contents) for cell in function.__closure__ or ()]
    rebuilt = FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        None,
        tuple(map(CellType, cells)),
    )
    return inner(rebuilt)


def _for_host(value: Any) -> Any:
    """What a scalar function reads: math's functions, however they were imported, as vector_math's; plain ones compiled."""
    if value is math:
        return vector_math
    if isinstance(value, BuiltinFunctionType) and value is getattr(math, value.__name__, None):
        return getattr(vector_math, value.__name__)
    return compiled(value) if isinstance(value, FunctionType) else value


def run_of(
    expression: Expression, sources: tuple[int | None, ...], walks: tuple[int, ...]
) -> Callable[..., Any]:
    """run(arrays, at, strides, targets, fed, position, place, count): the expression on `count` elements, at least one.

    arrays    a pointer for each distinct operand; `sources` says which one an argument reads, None: the index itself
    at        int64 of each argument's first element
    strides   int64 of each argument; only read where `walks` says APART
    targets   pointers, for the first results; written from `position` on
    fed       pointers, for the others; written from `place` on

    f16 and bf16 come and go as uint16, fp8 as uint8; a pointer may be of the compute type instead.
    """

    @intrinsic
    def run(typing, arrays, at, strides, targets, fed, position, place, count):
        given = types.void(arrays, at, strides, targets, fed, position, place, count)
        return given, partial(_generate, typing, expression, sources, walks)

    return run


def _generate(typing, expression, sources, walks, context, builder, signature, args):
    emit = _Emitter(typing, context, builder, expression)
    arrays, _, _, targets, fed, *_ = signature.args
    _, at, strides, *_ = args
    ins, outs = emit.pointers(arrays, args[0]), emit.pointers(targets, args[3]) + emit.pointers(fed, args[4])
    arrays, targets = ([types.Array(p.dtype, 1, "C") for p in kinds] for kinds in (arrays, (*targets, *fed)))
    position, place, total = args[5:]
    begins = [position] * (len(targets) - len(signature.args[4])) + [place] * len(signature.args[4])
    number, add, count = emit.number, builder.add, range(expression.arguments)
    starts = [builder.load(builder.gep(at, [number(k)])) for k in count]
    steps = {k: builder.load(builder.gep(strides, [number(k)])) for k in count if walks[k] == APART}

    def argument(k, i):
        where = starts[k]
        if walks[k] == NEXT:
            where = add(where, i)
        elif walks[k] == APART:
            where = add(where, builder.mul(i, steps[k]))
        if sources[k] is None:
            return where
        kind = arrays[sources[k]]
        loaded = load_item(context, builder, kind, builder.gep(ins[sources[k]], [where]))
        return emit.widened(k, loaded) if kind.dtype in _BITS else loaded

    repeated = {k: argument(k, number(0)) for k in count if walks[k] == REPEATED}
    made = [cgutils.alloca_once(builder, context.get_data_type(t.dtype), BLOCK) for t in targets]
    with cgutils.for_range_slice(builder, number(0), total, number(BLOCK), number(0).type) as (start, _):
        left = builder.sub(total, start)
        size = builder.select(builder.icmp_signed("<", left, number(BLOCK)), left, number(BLOCK))
        with cgutils.for_range(builder, size) as loop:
            i = add(start, loop.index)
            values = emit.evaluate([repeated[k] if k in repeated else argument(k, i) for k in count])
            for slot, value, kind, stack in zip(expression.results, values, targets, made):
                value = emit.narrowed(slot, value) if kind.dtype in _BITS else value
                store_item(context, builder, kind, value, builder.gep(stack, [loop.index]))
        for kind, stack, out, begin in zip(targets, made, outs, begins):
            itemsize = context.get_abi_sizeof(context.get_data_type(kind.dtype))
            cgutils.raw_memcpy(builder, builder.gep(out, [add(begin, start)]), stack, size, itemsize)
    return context.get_dummy_value()


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
            kind, value = self.call(compiled(function), tuple(given), values)
            several = isinstance(kind, types.BaseTuple)
            kinds = list(kind) if several else [kind]
            parts = cgutils.unpack_tuple(self.builder, value, len(kinds)) if several else [value]
            for slot, have, part in zip(outs, kinds, parts):
                want = _TYPES[expression.dtypes[slot].compute]
                settle(slot, self.context.cast(self.builder, part, have, want))
        return [slots[slot] for slot in expression.results]
