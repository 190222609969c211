"""The variant for reductions of columns that lie aligned: sums of the rows of activations, such as gradients of biases and norms."""

from __future__ import annotations

from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, one_launch, roofline
from ...registry.variant import Checks, Launch, Num, Reject, at_least, cdiv, multiple, variant
from ...rows import RegionSpec
from ...rows.program import Load
from ...types import f32
from ..maps.elementwise import THREADS, VECTOR, grid_for, store_types, unaligned
from .reduce import (
    EFFICIENCY,
    KINDS,
    TAKES,
    Reduced,
    RowSplit,
    chain_us,
    first_part,
    fitted,
    flops_of,
    lanes_for,
    partial_side,
    reduced,
    side,
    split,
    tree_us,
    walkable,
)

COLUMNS = (False, True, False)  # which of a kernel's coordinates are reduced
RESIDENT = 4  # blocks on a multiprocessor, by the registers of a vector of totals
LEAST = 4  # columns of a thread
MEMORY = 0.85  # of memory's rate
JOINED = 8  # neighbouring columns of a block of the second launch: a sector of f32, so that its blocks are many and its chains short


def _moves(r: Reduced) -> tuple[bool, ...]:
    """Which loads before the reduction go on along columns."""
    walks = fitted(r, COLUMNS)[1]
    return tuple(walk[-1] != 0 for walk, _ in zip(walks, r.before.loads))


def _moving(r: Reduced) -> list[Load]:
    return [load for load, moves in zip(r.before.loads, _moves(r)) if moves]


def _vector(r: Reduced) -> int:
    """Columns of a thread: 16 bytes of the widest type that goes on along them, numbers of rows aside; 4 at least."""
    types = [load.dtype for load in _moving(r) if load.operand is not None] + [*store_types(r.before)]
    vector = max(LEAST, VECTOR // max([t.itemsize for t in types], default=VECTOR))
    while vector > LEAST and fitted(r, COLUMNS)[0][-1] % vector:
        vector //= 2
    return vector


def _division(r: Reduced, device: DeviceSpec) -> tuple[int, int, RowSplit]:
    """Threads per line, columns of a thread, and how the lines are split."""
    (outer, length, inner), vector = fitted(r, COLUMNS)[0], _vector(r)
    width = min(32, lanes_for(cdiv(inner, vector)))
    return width, vector, split(length, outer * cdiv(inner, width * vector), THREADS // width, device)


def _vectors(region: RegionSpec, r: Reduced) -> Checks:
    vector = _vector(r)
    yield multiple("columns", fitted(r, COLUMNS)[0][-1], vector)
    yield at_least("operands that go on along columns", len(_moving(r)), 1)
    yield unaligned(region, r.before, vector, _moving(r))
    for load, walk in zip(r.before.loads, fitted(r, COLUMNS)[1]):
        if load.operand is None:
            yield Reject("access", "an index is computed for each element, needs operands")
        elif walk[-1]:
            yield next((multiple("row pitch", step, vector) for step in walk[:-1] if step % vector), None)


@variant(*KINDS, id="cuda.reduce_column_vectors.v2", takes=TAKES)
class ReduceColumnVectors:
    """The last axes are kept, those before them reduced, as in reduce_columns, in 16-byte loads. Any number type.

    A thread has 4 to 8 neighbouring columns, so that few lines in flight are many bytes. A long reduction with few columns is split, and
    the segments' results are reduced by a second launch. Bytes: each operand once; f32 accumulation in a fixed order.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from walkable(region, ([True, False], [False, True, False]), "one run before others")
        yield from _vectors(region, reduced(region))

    least = one_launch

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        r = reduced(region)
        outer, _, inner = fitted(r, COLUMNS)[0]
        width, vector, parts = _division(r, device)
        again = (
            chain_us(cdiv(parts.parts, THREADS // JOINED), machine(device).trip_us)
            if parts.parts > 1
            else 0.0
        )
        return roofline(
            device, bytes=region.nbytes, flops=flops_of(r), efficiency=EFFICIENCY, memory_efficiency=MEMORY,
            blocks=outer * cdiv(inner, width * vector) * parts.parts, blocks_per_sm=RESIDENT,
            launches=1 if parts.parts == 1 else 2,
            chain=chain_us(cdiv(parts.chunk, THREADS // width), machine(device).trip_us) + again, finish=tree_us(r),
        )  # fmt: skip

    def workspace(region: RegionSpec, device: DeviceSpec) -> int:
        r = reduced(region)
        outer, _, inner = fitted(r, COLUMNS)[0]
        parts = _division(r, device)[2].parts
        return outer * parts * inner * r.partial.itemsize if parts > 1 else 0

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .columns_body import column_vectors
        from .reduce_body import columns

        r = reduced(region)
        (outer, length, inner), before_walks, after_walks = fitted(r, COLUMNS)
        width, vector, (parts, chunk) = _division(r, device)
        source, sink = side(r.before, before_walks), side(r.after, after_walks)

        def launch(
            body: Any, ends: tuple[Any, Any], across: int, length: int, splits: int, chunk: int
        ) -> Launch:
            numbers = Num(length), Num(inner), Num(splits), Num(chunk), Num(r.length, f32)
            tiles = outer * splits * cdiv(inner, across)
            return Launch(body, grid_for(tiles * THREADS), (THREADS,), (*ends[0][1], *ends[1][1], *numbers))

        def vectors(how: str, target: Any) -> Any:
            return column_vectors(how, r.partial, source[0], target[0], _moves(r), width, vector, parts > 1)

        if parts == 1:
            return [launch(vectors(r.core.how, sink), (source, sink), width * vector, length, 1, length)]
        inside, again = partial_side(r.partial), partial_side(r.partial, (parts * inner, inner, 1))
        narrow = min(JOINED, lanes_for(inner))
        last = columns(r.core.how, r.partial, again[0], sink[0], narrow, False)
        first = vectors(first_part(r.core.how), inside)
        return [
            launch(first, (source, inside), width * vector, length, parts, chunk),
            launch(last, (again, sink), narrow, parts, 1, parts),
        ]
