"""What attention adds to its scores and hides of them, as the op has it: a causal mask or a window by what the elements of a mask are, where they
are known; masks; a bias; and what a query without any key gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...ir import Op, Role, Value
from ...ops.attention import visible
from ...ops.schema import ELEMENTWISE, schema_of
from ...types import bool_
from .arrange import Laid
from .axes import MOVED, Axis, Group, Layout, atoms, before, every, settled
from .flow import CameClose, Flow
from .probe import Layouts
from .scores import LEAST, LEAST_OF_OTHERS, Hidden, Scores

ABSORBS = 2.0**100  # a number so large that adding a score to it changes nothing
WORTH_A_GRADIENT = 1e5  # beyond it an lse that is as large tells weights no more


Known = tuple[np.ndarray, Group]  # true where scores count; an axis for each atom that it depends on


@dataclass(frozen=True)
class Condition:
    """A bool that says which scores count: where it is `shown`."""

    laid: Laid
    shown: bool


@dataclass(frozen=True)
class Masks:
    """rows       the atoms that queries are counted along, if a mask of positions says so
    conditions    all of them must hold
    empty         what a query without keys gives: "nan", "mean" of all values, or None: there is no such query
    """

    rows: Group = ()
    causal: bool = False
    window: int = 0
    conditions: tuple[Condition, ...] = ()
    bias: tuple[tuple[Laid, float], ...] = ()
    empty: str | None = None


@dataclass(frozen=True)
class Hiding:
    """What hides scores: `data` is known when it runs, the rest are arrays over atoms, true where scores count.

    known  what the arrays are of
    sets   whether scores are replaced; else something is added to them
    exact  whether all scores of a query without keys are equal
    """

    data: tuple[Condition, ...]
    arrays: tuple[Known, ...]
    known: tuple[Condition, ...]
    fill: float
    sets: bool
    exact: bool


def masks_of(flow: Flow, domain: Layouts, scores: Scores, keys: Group, rows: Group, trains: bool) -> Masks:
    """keys, rows: the atoms of the softmax's axis, and those that only queries have. CameClose where the op would mean something else."""
    least = LEAST.get(flow.result(scores.product).dtype.name, LEAST_OF_OTHERS)
    hiding = [_of_select(flow, domain, hidden, least) for hidden in scores.hidden]
    biases: list[tuple[Laid, float]] = []
    for added in scores.added:
        for laid, factor in _terms(flow, Laid(added.value, domain.of(added.value)), added.factor):
            array = flow.known(laid.value)
            if array is not None and not array.any():
                continue
            found = _of_sum(flow, laid, factor, least, trains)
            if found is None:
                biases.append((laid, factor))
            else:
                hiding.append(found)
    whole, order = together([array for one in hiding for array in one.arrays])
    data = tuple(condition for one in hiding for condition in one.data)
    emptied = bool(data) or not along(whole, order, keys).any(-1).all()
    empty = _of_empty(hiding) if emptied else None
    if trains and empty == "mean" and not all(one.sets for one in hiding):
        raise CameClose("a mask is added, which lets gradients of a query without keys through")
    for laid, _ in biases:
        infinite, least_number = _extremes(flow, laid.value)
        if infinite and empty == "mean":
            raise CameClose("a bias that may be -inf stands beside a mask that is finite")
        if trains and least_number < -WORTH_A_GRADIENT:
            raise CameClose(
                f"a bias may be {least_number:g}, which is too much for the gradient of a query without keys"
            )
        empty = "nan" if infinite else empty
    if whole.all():
        return Masks((), False, 0, data, tuple(biases), empty)
    placed = of_positions(whole, order, keys, rows)
    if placed is None:
        return Masks((), False, 0, (*data, *(c for one in hiding for c in one.known)), tuple(biases), empty)
    row, causal, window = placed
    return Masks((row,), causal, window, data, tuple(biases), empty)


def _of_empty(hiding: Sequence[Hiding]) -> str:
    """What a query without keys gives."""
    if not all(one.exact for one in hiding):
        raise CameClose("a query without keys would weigh them by scores that were rounded away")
    fills = sorted({one.fill for one in hiding})
    if len(fills) > 1:
        raise CameClose(
            f"scores are hidden by {' and by '.join(f'{f:g}' for f in fills)}, which a query without keys could tell"
        )
    if fills[0] == -np.inf:
        return "nan"
    if len(hiding) > 1 and not all(one.sets for one in hiding):
        raise CameClose("several masks are added up, which a query without keys could tell")
    return "mean"


# --- what hides -------------------------------------------------------------------------------------------------------


def _of_select(flow: Flow, domain: Layouts, hidden: Hidden, least: float) -> Hiding:
    if not hidden.fill <= least:
        raise CameClose(f"hidden scores are {hidden.fill:g}, not below all others, as {least:.0e} is")
    laid = Laid(hidden.condition, domain.of(hidden.condition))
    exact = not hidden.later or hidden.fill <= -ABSORBS
    return Hiding(*conditions_of(flow, Condition(laid, hidden.shown)), hidden.fill, True, exact)


def _of_sum(flow: Flow, laid: Laid, factor: float, least: float, trains: bool) -> Hiding | None:
    """A bias that is 0 or a number below all scores; None where it is anything else."""
    array = flow.known(laid.value)
    if array is not None:
        fills = [float(n) * factor for n in np.unique(array.astype(np.float64)) if n != 0]
        if len(fills) != 1 or not fills[0] <= least:
            return None
        return Hiding(
            (),
            (labelled(array == 0, laid.layout),),
            (Condition(laid, True),),
            fills[0],
            False,
            fills[0] <= -ABSORBS,
        )
    two = _two_valued(flow, laid)
    if two is None:
        return None
    condition, *values = two
    values = [n * factor for n in values]
    fill = min(values)
    if max(values) != 0 or not fill < 0:
        return None
    if fill > -ABSORBS:  # a query without keys would weigh them by their scores
        if trains and fill < -WORTH_A_GRADIENT:
            raise CameClose(
                f"a mask adds {fill:g}, too much for the gradient of a query without keys, and too little to hide its scores"
            )
        return None
    return Hiding(*conditions_of(flow, Condition(condition, values[1] == 0)), fill, False, True)


def _two_valued(flow: Flow, laid: Laid) -> tuple[Laid, float, float] | None:
    """(a bool, what a value is where it is false, and where true), if it is a function of that bool and of numbers."""
    value, layout = laid.value, laid.layout
    steps: list[tuple[Op, int, list[float | None]]] = []
    while value.dtype is not bool_:
        op = value.producer
        if op is None or len(op.outputs) != 1:
            return None
        operands = flow.operands(op)
        if op.kind in MOVED:
            inner = before(op, settled(layout), operands[0])
            if inner is None:
                return None
            value, layout = operands[0], inner
            continue
        if ELEMENTWISE not in schema_of(op.kind).traits:
            return None
        numbers = [flow.number(v) for v in operands]
        asked = [n for n, number in enumerate(numbers) if number is None]
        if len(asked) != 1:
            return None
        steps.append((op, asked[0], numbers))
        layout = _operand_layout(layout, operands[asked[0]], value)
        value = operands[asked[0]]
    no, yes = (_replayed(flow, steps, state) for state in (False, True))
    return Laid(value, layout), no, yes


def _replayed(flow: Flow, steps: Sequence[tuple[Op, int, list[float | None]]], state: bool) -> float:
    at = np.asarray(state)
    for op, place, numbers in reversed(steps):
        arrays: list[np.ndarray | None] = [
            at if n == place else np.asarray(number, v.dtype.numpy if v.dtype.kind != "float" else np.float32)
            for n, (number, v) in enumerate(zip(numbers, flow.operands(op)))
        ]
        (at,) = schema_of(op.kind).call_reference(arrays, op.attrs)
    return float(at)


def _operand_layout(layout: Layout, operand: Value, result: Value) -> Layout:
    """Of an operand that NumPy's rule repeats."""
    last = settled(layout)[result.rank - operand.rank :]
    return tuple(() if n == 1 else group for n, group in zip(operand.shape, last))


# --- conditions -------------------------------------------------------------------------------------------------------


def conditions_of(
    flow: Flow, condition: Condition
) -> tuple[tuple[Condition, ...], tuple[Known, ...], tuple[Condition, ...]]:
    """(those that depend on data; what the others are; the others)."""
    data, arrays, known = [], [], []
    for one in _parts(flow, condition):
        array = flow.known(one.laid.value)
        if array is None:
            data.append(one)
        else:
            arrays.append(labelled(array.astype(np.bool_) == one.shown, one.laid.layout))
            known.append(one)
    return tuple(data), tuple(arrays), tuple(known)


def _parts(flow: Flow, condition: Condition) -> Iterator[Condition]:
    """Conditions that must all hold, if this one must."""
    value, layout, shown = condition.laid.value, settled(condition.laid.layout), condition.shown
    op = value.producer
    if op is None or flow.known(value) is not None:
        yield condition
        return
    operands = flow.operands(op)
    if op.kind in MOVED and (inner := before(op, layout, operands[0])) is not None:
        yield from _parts(flow, Condition(Laid(operands[0], inner), shown))
    elif op.kind == "logical_not":
        yield from _parts(flow, Condition(Laid(operands[0], layout), not shown))
    elif op.kind == ("logical_and" if shown else "logical_or"):
        for operand in operands:
            yield from _parts(flow, Condition(Laid(operand, _operand_layout(layout, operand, value)), shown))
    elif op.kind == "select" and shown and flow.number(operands[2]) == 0:
        for operand in operands[:2]:
            yield from _parts(flow, Condition(Laid(operand, _operand_layout(layout, operand, value)), shown))
    else:
        yield condition


def labelled(array: np.ndarray, layout: Layout) -> Known:
    """With an axis for each atom that it depends on."""
    order = every(layout)
    array = array.reshape([axis.size for axis in order])
    kept = []
    for n in range(len(order) - 1, -1, -1):
        first = array[(slice(None),) * n + (slice(1),)]
        if array.strides[n] == 0 or (array == first).all():
            array = first[(slice(None),) * n + (0,)]
        else:
            kept.append(order[n])
    return array, tuple(reversed(kept))


def together(arrays: Sequence[Known]) -> Known:
    order: Group = tuple(dict.fromkeys(axis for _, own in arrays for axis in atoms(own)))
    whole = np.ones([axis.size for axis in order], np.bool_)
    for array, own in arrays:
        whole &= along(array, own, (), order)
    return whole, order


def along(array: np.ndarray, own: Group, last: Group, order: Group = ()) -> np.ndarray:
    """An array whose axes are those of `order`, 1 where it lacks one; or with the axes `last` at the end, as one."""
    if not last:
        array = np.transpose(array, [own.index(axis) for axis in order if axis in own])
        return array.reshape([axis.size if axis in own else 1 for axis in order])
    others = [axis for axis in own if axis not in last]
    moved = along(array, own, (), (*others, *last))
    return moved.reshape([*(axis.size for axis in others), -1])


def of_positions(whole: np.ndarray, order: Group, keys: Group, rows: Group) -> tuple[Axis, bool, int] | None:
    """(the axis of queries, causal, window) of a mask that follows from positions."""
    if len(keys) != 1 or len(order) != 2 or keys[0] not in order:
        return None
    (row,) = (axis for axis in order if axis is not keys[0])
    if row not in rows:
        return None
    queries, count = row.size, keys[0].size
    seen = whole if order[0] is row else whole.T
    window = _window_of(seen, count - queries)
    for causal in (True, False):
        if (visible(range(queries), range(count), count - queries, causal, window) == seen).all():
            return row, causal, window
    return None


def _window_of(seen: np.ndarray, offset: int) -> int:
    """How far back queries look, if some of them does not see the first key."""
    for query in range(len(seen) - 1, -1, -1):
        low = int(seen[query].argmax())
        if low:
            return query + offset - low + 1
    return 0


# --- biases -----------------------------------------------------------------------------------------------------------


def _terms(flow: Flow, laid: Laid, factor: float) -> list[tuple[Laid, float]]:
    """A bias as it is, or the terms of a sum, if one of them may be a mask."""
    value, layout = laid.value, settled(laid.layout)
    op = value.producer
    while op is not None and op.kind in MOVED and flow.known(value) is None:
        source = flow.value(op.inputs[0])
        inner = before(op, layout, source)
        if inner is None:
            break
        value, layout, op = source, inner, source.producer
    if op is not None and op.kind == "add" and flow.known(value) is None:
        terms = [
            term
            for operand in flow.operands(op)
            for term in _terms(flow, Laid(operand, _operand_layout(layout, operand, value)), factor)
        ]
        if any(flow.known(t.value) is not None or _two_valued(flow, t) is not None for t, _ in terms):
            return terms
    return [(laid, factor)]


_LINEAR_KINDS = MOVED | {"add", "sub", "mul", "convert", "gather", "slice", "concatenate", "scale", "neg"}


def _extremes(flow: Flow, value: Value) -> tuple[bool, float]:
    """Whether a bias may be -inf, and the least number in what it is computed of: as far as is looked at. Params are finite and small."""
    waiting, seen, infinite, least = [value], set[int](), False, 0.0
    while waiting:
        one = waiting.pop()
        if one.vid in seen:
            continue
        seen.add(one.vid)
        array = flow.known(one)
        if array is not None:
            infinite = infinite or not np.isfinite(array).all()
            least = min(least, float(np.nanmin(array, initial=0.0)))
        elif one.producer is not None and one.producer.kind in _LINEAR_KINDS:
            waiting += [v for v in flow.operands(one.producer) if v.dtype.kind == "float"]
        elif one.producer is not None or one.role is not Role.param:
            infinite = True
    return infinite, least
