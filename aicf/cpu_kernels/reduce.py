"""Reductions on the host, with the elementwise work before and after them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..registry.cost import Cost, one_launch
from ..registry.variant import HostCall, NumericClass, Reject, variant
from ..rows import RegionSpec
from ..rows.program import ColumnSums, Map, Reduction
from ..rows.read import read
from ..types import numel
from .compiler.spec import LANES
from .costs import loop_us
from .elementwise import loops_take, program_of

ADD_US = 5e-5  # an element into its sum
ROW_US, SHORT_ROW_US = 0.01, 1.6e-4  # a row's sums into one, and for each element of a short one
# An element into one of many sums, which are f64: up to so many bytes of them fit into a cache.
SUMS_US = (24 * 2**10, 0.0), (2**20, 7e-5), (float("inf"), 2.6e-4)


def fold_class(length: int, inner: int) -> NumericClass:
    """Of sums of so many values each: of neighbours in memory by the lanes of a vector, of `inner` columns beside each other in order."""
    lanes = f"by {LANES} lanes" if inner == 1 and length >= LANES else "in order"
    return NumericClass("sums in f64", length, lanes)


@variant(
    "map", "reduce", id="cpu.reduce_loop.v1", takes=("reduce", "map+reduce", "reduce+map", "map+reduce+map"),
    masked=True,
)  # fmt: skip
class ReduceLoop:
    """Sum, mean, max or min over neighbouring axes; maps before it run block by block on the way, one after it on the result.

    Floats add up in f64, so that no sum is less exact than NumPy's. Bytes: operands once, results once.
    """

    def accepts(region):
        program = read(region)
        yield program if isinstance(program, Reject) else None
        yield from loops_take(region)
        if _view(program.before.shape, program.core.axes) is None:
            yield Reject(
                "axes", f"axes {program.core.axes} of {program.before.shape} are not neighbours: two loops"
            )

    least = one_launch

    def numerics(region, device):
        program = program_of(region)
        _, reduced, inner = _view(program.before.shape, program.core.axes)
        return fold_class(reduced, inner)

    def cost(region, device):
        program = program_of(region)
        before, after = program.before, program.after
        outer, reduced, width = _view(before.shape, program.core.axes)
        terms = {"launch": device.launch_us, **loop_us(before, region, device)}
        reading = terms.get("memory", 0.0) + terms.get("compute", 0.0)
        terms["sums"] = max(0.0, before.numel * ADD_US - reading)
        if width == 1:
            terms["rows"] = outer * min(ROW_US, reduced * SHORT_ROW_US)
        else:
            terms["sums in a cache"] = sums_us(before.numel, width)
        if not _trivial(after):
            terms["epilogue"] = sum(loop_us(after, region, device).values())
        return Cost(terms)

    def build(region, device):
        from .compiler.loops import FoldLoop, MapLoop

        program = program_of(region)
        core, before, after = program.core, program.before, program.after
        assert isinstance(core, Reduction)
        sizes = _view(before.shape, core.axes)
        kept = _kept(before)
        feed = MapLoop(
            before if kept is None else replace(before, core_input=None), region.operands, region.results
        )
        fold = FoldLoop(core.how, core.dtype, feed, _plain(before, region), kept, sizes, sizes[2] > 1)
        finish = None if _trivial(after) else MapLoop(after, region.operands, region.results)
        place = after.stores[0][1]
        number = core.dtype.compute.numpy

        def bind(operands, results):
            if not sizes[0] * sizes[2]:
                return lambda: None  # every result is empty, and a loop over no columns would not end
            out = results[place] if finish is None else np.empty(sizes[0] * sizes[2], number)
            reduce = fold.bind(operands, results, out)
            if finish is None:
                return reduce
            last = finish.bind(operands, results)

            def run():
                reduce()
                last(out)

            return run

        return HostCall.binding(bind)


def sums_us(numel: int, width: int) -> float:
    """So many elements, each into one of `width` sums side by side."""
    return numel * next(us for most, us in SUMS_US if 8 * width <= most)


def summed_columns(map: Map, reduction: ColumnSums, region: RegionSpec) -> Callable[..., Callable[..., None]]:
    """A map over a product, and the epilogue reduction behind it: `bind(operands, results)` is a call of the product."""
    from .compiler.loops import FoldLoop, MapLoop

    kept, (rows, columns), dtype = _kept(map), map.shape, reduction.dtype.compute.numpy
    feed = MapLoop(map if kept is None else replace(map, core_input=None), region.operands, region.results)
    fold = FoldLoop("sum", reduction.dtype, feed, False, kept, (1, rows, columns), True)

    def bind(operands, results):
        if columns == 0:
            return lambda product: None
        out = results[reduction.result]
        sums = out if out.dtype == dtype else np.empty(columns, dtype)
        reduce = fold.bind(operands, results, sums)
        if sums is out:
            return reduce

        def run(product):
            reduce(product)
            with np.errstate(over="ignore"):  # Inf is a value here, not a warning
                out[...] = sums.reshape(out.shape)

        return run

    return bind


def _view(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """(outer, reduced, inner) sizes; None if a kept axis lies between reduced ones."""
    real = [a for a in axes if shape[a] != 1]
    if not real:
        return numel(shape), 1, 1
    first, last = real[0], real[-1]
    if any(shape[a] != 1 and a not in axes for a in range(first, last)):
        return None
    return numel(shape[:first]), numel(shape[first : last + 1]), numel(shape[last + 1 :])


def _plain(before: Map, region) -> bool:
    """The operand itself is reduced, as it lies in memory, and nothing else is done on the way."""
    if before.applies or before.rounded or before.stores:
        return False
    (load,) = before.loads
    desc = region.operands[load.operand]
    return load.dtype is load.dtype.compute and desc.contiguous and load.offset == 0


def _kept(before: Map) -> int | None:
    """Which of the map's stores holds what is reduced, in the type that it adds up in."""
    slots = [slot for slot, _ in before.stores]
    assert before.core_input is not None
    dtype = before.dtypes[before.core_input]
    return slots.index(before.core_input) if before.core_input in slots and dtype is dtype.compute else None


def _trivial(after: Map) -> bool:
    """The reduction itself is the only result."""
    return not after.applies and len(after.stores) == 1 and after.dtypes[0] is after.dtypes[0].compute
