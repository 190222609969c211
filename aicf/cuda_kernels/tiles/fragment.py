"""What a thread reads of lines of f32 in shared memory, and products of that: by intrinsics, as in tile.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..dsl import SIMULATED, deferred, intrinsic, ir, types
from ..llvm import const


@dataclass(frozen=True)
class Fragment:
    """What a thread reads of a line in shared memory: `groups` runs of `width` elements, `apart` elements between their starts.

    Each run is one vector load, of up to 16 bytes: starts are multiples of width, the array aligned to it.
    """

    groups: int
    width: int
    apart: int

    @property
    def count(self) -> int:
        return self.groups * self.width

    def places(self, base: int) -> list[int]:
        return [base + g * self.apart + i for g in range(self.groups) for i in range(self.width)]

    def emit(self, ctx: Any, b: Any, shared: Any, array: Any, base: Any, offset: int = 0) -> list[Any]:
        data = ctx.make_array(shared)(ctx, b, array).data
        vector = ir.VectorType(ir.FloatType(), self.width).as_pointer(data.type.addrspace)
        values = []
        for g in range(self.groups):
            at = b.add(base, ir.Constant(base.type, offset + g * self.apart))
            run = b.load(b.bitcast(b.gep(data, [at]), vector), align=4 * self.width)
            values += [b.extract_element(run, const(i)) for i in range(self.width)]
        return values


@deferred
def fragment(groups: int, width: int, apart: int) -> Any:
    """`read(shared, base)`: a Fragment of the line from base on."""
    part = Fragment(groups, width, apart)
    if SIMULATED:
        return lambda shared, base: tuple(shared[at] for at in part.places(base))

    @intrinsic
    def read(typing, shared, base):
        def codegen(ctx, b, sig, args):
            return ctx.make_tuple(b, sig.return_type, part.emit(ctx, b, shared, args[0], args[1]))

        return types.UniTuple(types.float32, groups * width)(shared, base), codegen

    return read


@deferred
def outer(a: Fragment, b: Fragment, lines: int, a_line: int, b_line: int) -> Any:
    """`add(acc, a, b, a_base, b_base)`: acc, row-major, + x yᵀ for the Fragments x and y of `lines` lines of both, `a_line` and
    `b_line` elements long: one fused multiply-add per element and line, in order.

    Several lines at a time: what addresses and the loop take is divided by them, and loads are ahead of their arithmetic.
    """
    rows, columns = a.count, b.count
    if SIMULATED:

        def add_each(acc, a_shared, b_shared, a_base, b_base):
            for k in range(lines):
                x = [a_shared[at] for at in a.places(a_base + k * a_line)]
                y = [b_shared[at] for at in b.places(b_base + k * b_line)]
                acc = tuple(acc[i] + x[i // columns] * y[i % columns] for i in range(rows * columns))
            return acc

        return add_each

    @intrinsic
    def add(typing, acc, a_shared, b_shared, a_base, b_base):
        def codegen(ctx, builder, sig, args):
            made = [builder.extract_value(args[0], i) for i in range(rows * columns)]
            for k in range(lines):
                x = a.emit(ctx, builder, a_shared, args[1], args[3], k * a_line)
                y = b.emit(ctx, builder, b_shared, args[2], args[4], k * b_line)
                made = [builder.fma(x[i // columns], y[i % columns], sum) for i, sum in enumerate(made)]
            return ctx.make_tuple(builder, sig.return_type, made)

        return acc(acc, a_shared, b_shared, a_base, b_base), codegen

    return add
