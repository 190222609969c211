"""Axes of values, followed through a graph. An axis of a value is a group of atoms, major to minor: a reshape splits and merges groups, and what
is combined element by element has the same atoms. A value has no atom of an axis of size 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from ...ir import Op, Value
from ...ops.schema import ELEMENTWISE, schema_of

MOVED = frozenset({"transpose", "reshape", "copy", "broadcast_in_dim"})  # elements as they are, elsewhere
FOLDED = frozenset(
    {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_any", "reduce_all"}
)
ALONG = frozenset({"softmax", "log_softmax", "logsumexp", "softmax_grad", "log_softmax_grad"})


class Axis:
    """An atom. `free` until it meets one that is not; `same`: the one that it met; `parts`: those that it was split to."""

    __slots__ = ("free", "parts", "same", "size")

    def __init__(self, size: int, free: bool = False) -> None:
        self.size, self.free = size, free
        self.parts: tuple[Axis, ...] = ()
        self.same: Axis | None = None

    def __repr__(self) -> str:
        return f"{'free ' * self.free}{self.size}@{id(self) % 9973}"


Group = tuple[Axis, ...]
Layout = tuple[Group, ...]


def atoms(group: Iterable[Axis]) -> Group:
    """What a group consists of by now."""
    found: list[Axis] = []
    for axis in group:
        while axis.same is not None:
            axis = axis.same
        found += atoms(axis.parts) if axis.parts else (axis,)
    return tuple(found)


def settled(layout: Layout) -> Layout:
    return tuple(atoms(group) for group in layout)


def every(layout: Layout) -> Group:
    """All atoms, in row-major order."""
    return tuple(axis for group in layout for axis in atoms(group))


def fresh(shape: Sequence[int], free: bool = False) -> Layout:
    return tuple(() if n == 1 else (Axis(n, free),) for n in shape)


def size_of(group: Iterable[Axis]) -> int:
    return prod(axis.size for axis in group)


def _split(axis: Axis, inner: int) -> Group:
    axis.parts = Axis(axis.size // inner, axis.free), Axis(inner, axis.free)
    return axis.parts


def unify(a: Group, b: Group) -> bool:
    """Whether two groups can be the same; from now on they are."""
    left, right = list(atoms(a)), list(atoms(b))
    while left and right:
        x, y = left.pop(), right.pop()
        if x is y:
            continue
        if x.size != y.size:
            small, large, rest = (x, y, right) if x.size < y.size else (y, x, left)
            if large.size % small.size:
                return False
            outer, inner = _split(large, small.size)
            rest.append(outer)
            x, y = small, inner
        if not x.free and not y.free:
            return False
        if x.free:
            x.same = y
        else:
            y.same = x
    return not left and not right


def regroup(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """The layout of the same elements in another shape, in row-major order; None where atoms do not factor so."""
    waiting = list(reversed(every(layout)))
    made: list[Group] = []
    for n in shape:
        group: list[Axis] = []
        have = 1
        while have < n:
            if not waiting:
                return None
            axis = waiting.pop()
            if (have * axis.size) > n:
                needed = n // have
                if n % have or needed == 0 or axis.size % needed:
                    return None
                axis, rest = _split(axis, axis.size // needed)
                waiting.append(rest)
            group.append(axis)
            have *= axis.size
        if have != n:
            return None
        made.append(tuple(group))
    return tuple(made) if not waiting else None


def aligned(
    layouts: Sequence[Layout], shapes: Sequence[tuple[int, ...]], shape: tuple[int, ...]
) -> Layout | None:
    """The layout of what is combined of operands element by element, which NumPy's rule repeats; None where axes do not go together."""
    made: list[Group] = []
    for back in range(len(shape), 0, -1):
        groups = [g[-back] for g, s in zip(layouts, shapes) if len(s) >= back and s[-back] != 1]
        if any(not unify(groups[0], other) for other in groups[1:]):
            return None
        made.append(atoms(groups[0]) if groups else ())
    return tuple(made)


def behind(
    op: Op, layouts: Sequence[Layout], values: Sequence[Value], shape: tuple[int, ...]
) -> Layout | None:
    """The layout of an op's one result, of those of its operands; None where it has none that can be said."""
    kind, attrs = op.kind, op.attrs
    if kind == "reshape":
        return regroup(layouts[0], shape)
    if kind == "transpose":
        return tuple(layouts[0][axis] for axis in attrs["perm"])
    if kind == "broadcast_in_dim":
        made: list[Group] = list(fresh(shape, free=True))
        for group, size, d in zip(layouts[0], values[0].shape, attrs["dims"]):
            made[d] = group if size == shape[d] else made[d]
        return tuple(made)
    if kind in FOLDED:
        over = {axis % values[0].rank for axis in attrs["axes"]}
        if attrs["keepdims"]:
            return tuple(() if n in over else g for n, g in enumerate(layouts[0]))
        return tuple(g for n, g in enumerate(layouts[0]) if n not in over)
    if kind in ALONG:
        whole = aligned(layouts, [v.shape for v in values], values[0].shape)
        if whole is None or kind != "logsumexp":
            return whole
        axis = attrs["axis"] % values[0].rank
        return tuple(() if n == axis else g for n, g in enumerate(whole))
    if ELEMENTWISE in schema_of(kind).traits and len(op.outputs) == 1:
        return aligned(layouts, [v.shape for v in values], shape)
    return None


def before(op: Op, layout: Layout, operand: Value) -> Layout | None:
    """The layout of what an op moves, of its result's. It has no atoms of axes along which it is repeated."""
    if op.kind == "copy":
        return layout
    if op.kind == "reshape":
        return regroup(layout, operand.shape)
    if op.kind == "transpose":
        made: dict[int, Group] = {axis: layout[n] for n, axis in enumerate(op.attrs["perm"])}
        return tuple(made[n] for n in range(operand.rank))
    if op.kind == "broadcast_in_dim":
        return tuple(() if n == 1 else layout[d] for n, d in zip(operand.shape, op.attrs["dims"]))
    return None
