"""Cross entropy of logits and labels, and its gradient where a graph has that, too: found by what is computed of rows of classes. Which row gives
what for a label that is no class is computed as well, and kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir import Op, Value
from ...ops.schema import schema_of
from ...types import DType
from .arrange import Laid, arranged
from .attention import TYPES
from .axes import MOVED, Layout, every
from .classes import CLASSES, MOST_ROWS, ClassProbe, ClassRegion
from .flow import CameClose, Edit, Flow, at

ANCHORS = frozenset({"exp", "log_softmax", "logsumexp"})
EXACT = 1e-7


@dataclass(frozen=True)
class Outside:
    """What a label that is no class gives. loss: "nan" or "zero"; slope: "softmax", as if no class were expected, or "zero"."""

    loss: str
    slope: str


@dataclass(frozen=True)
class Slope:
    """The gradient of logits: (softmax - label) * factor * of, a value of rows, or a number."""

    value: Value
    layout: Layout
    factor: float
    of: Laid | None


@dataclass(frozen=True)
class FoundLoss:
    """sign: of the loss, where the graph has it with the other one. wraps: whether negative labels count from the end."""

    logits: Value
    labels: Value
    loss: Value | None
    loss_layout: Layout
    sign: float
    slope: Slope | None
    wraps: bool
    outside: Outside
    rows: Layout
    ops: tuple[Op, ...]


def find_loss(flow: Flow, op: Op, seen: set[int]) -> FoundLoss | None:
    """Around an exponential of logits. CameClose says what is in the way."""
    close: CameClose | None = None
    for logits in _candidates(flow, op):
        if logits.vid in seen or not _fits(logits):
            continue
        seen.add(logits.vid)
        region = ClassRegion(flow, logits)
        for labels in region.labels():
            try:
                found = _Match(flow, region, labels).found()
            except CameClose as near:
                close = close or near
                continue
            if found is not None:
                return found
    if close is not None:
        raise close
    return None


def _candidates(flow: Flow, op: Op) -> list[Value]:
    value = flow.operands(op)[0]
    inner = value.producer
    found = [value]
    if op.kind == "exp" and inner is not None and inner.kind == "sub":
        found.append(flow.operands(inner)[0])
    return [_before_widening(flow, one) for one in reversed(found)]


def _before_widening(flow: Flow, value: Value) -> Value:
    while value.producer is not None and value.producer.kind in ("convert", "copy"):
        source = flow.operands(value.producer)[0]
        if source.dtype not in TYPES:
            break
        value = source
    return value


def _fits(logits: Value) -> bool:
    shape = logits.shape
    return (
        logits.dtype in TYPES
        and len(shape) > 1
        and shape[-1] > CLASSES
        and 0 < logits.spec.numel // shape[-1] <= MOST_ROWS
    )


class _Match:
    def __init__(self, flow: Flow, region: ClassRegion, labels: Value) -> None:
        self.flow, self.region, self.labels = flow, region, labels
        self.rng = np.random.default_rng(7)
        self.x = 2 * self.rng.normal(size=(region.count, CLASSES))
        e = np.exp(self.x - self.x.max(-1, keepdims=True))
        self.p = e / e.sum(-1, keepdims=True)
        self.lse = np.log(np.exp(self.x).sum(-1))
        self.leaves: dict[int, np.ndarray] = {}
        self.size = region.logits.shape[-1]
        self.drawn = self.rng.integers(0, CLASSES, region.count)

    def found(self) -> FoundLoss | None:
        region = self.region
        probe = self._run(self.drawn)
        loss, sign = self._loss(probe)
        slope = self._slope(probe)
        if loss is None and slope is None:
            return None
        wraps, outside = self._elsewhere(loss, sign, slope)
        ops = self._needed(loss, slope)
        layout = region.layouts.of(loss) if loss is not None else ()
        rows = region.layouts.of(region.logits)[:-1]
        return FoundLoss(
            self._logits(slope), self.labels, loss, layout, sign, slope, wraps, outside, rows, ops
        )  # fmt: skip

    def _run(self, labels: np.ndarray) -> ClassProbe:
        return self.region.probe(self.x, self.labels, labels, self.leaves)

    def _made(self, probe: ClassProbe, classes: bool) -> list[Value]:
        """Floats of rows, or of rows and classes, that were computed, in order."""
        region, found = self.region, []
        for op in region.ops:
            value = self.flow.result(op)
            own = set(probe.arrays[value.vid][1]) if value.vid in probe.arrays else set()
            if value.dtype.kind == "float" and own == {*region.rows, *(region.classes if classes else ())}:
                found.append(value)
        return found

    def _loss(self, probe: ClassProbe) -> tuple[Value | None, float]:
        want = self.lse - self.x[np.arange(len(self.x)), self.drawn]
        negative = None
        for value in self._made(probe, False):
            made = probe.rows_of(value)
            if np.allclose(made, want, rtol=EXACT, atol=EXACT):
                return value, 1.0
            if negative is None and np.allclose(made, -want, rtol=EXACT, atol=EXACT):
                negative = value
        return negative, -1.0

    def _slope(self, probe: ClassProbe) -> Slope | None:
        want = self.p - (np.arange(CLASSES) == self.drawn[:, None])
        for value in self._made(probe, True):
            made = probe.rows_of(value)
            with np.errstate(all="ignore"):
                ratios = made / want
            ratio = ratios[:, :1]
            if (
                not np.allclose(ratios, ratio, rtol=EXACT, atol=0)
                or not np.isfinite(ratio).all()
                or not ratio.any()
            ):
                continue
            found = self._factor(probe, ratio[:, 0])
            if found is not None:
                return Slope(value, self.region.layouts.of(value), *found)
        return None

    def _factor(self, probe: ClassProbe, ratio: np.ndarray) -> tuple[float, Laid | None] | None:
        """(factor, of): what a gradient is multiplied by."""
        if np.allclose(ratio, ratio[0], rtol=EXACT, atol=0):
            return float(ratio[0]), None
        for vid in self.leaves:
            value = self.flow.value(vid)
            of = probe.rows_of(value) if vid in probe.arrays else None
            if of is not None and np.allclose(ratio / of, ratio[0] / of[0], rtol=EXACT, atol=0):
                return float(ratio[0] / of[0]), Laid(value, self.region.layouts.of(value))
        return None

    # --- labels that are no class -----------------------------------------------------------------------------------------

    def _elsewhere(self, loss: Value | None, sign: float, slope: Slope | None) -> tuple[bool, Outside]:
        size, signed = self.size, self.labels.dtype.numpy.kind == "i"
        limits = np.iinfo(self.labels.dtype.numpy)
        wrapped = (
            self._given(self.drawn - size, loss, sign, slope) if signed and -size >= limits.min else None
        )
        beyond = [n for n in (size, size + 3, -size - 1, -size - 3) if limits.min <= n <= limits.max]
        found = {self._given(np.full_like(self.drawn, n), loss, sign, slope) for n in beyond}
        wraps = wrapped is not None and wrapped == ("label", "label")
        if wrapped is not None and not wraps:
            found.add(wrapped)
        if len(found) != 1 or "label" in (kinds := next(iter(found))):
            raise CameClose("labels that are no class give several things")
        return wraps, Outside(*kinds)

    def _given(
        self, labels: np.ndarray, loss: Value | None, sign: float, slope: Slope | None
    ) -> tuple[str, str]:
        """What other labels give, of loss and gradient: "label" where it is that of the class drawn for the row."""
        probe = self._run(labels)
        hot = np.arange(CLASSES) == self.drawn[:, None]
        losses = {
            "label": self.lse - self.x[hot],
            "nan": np.full(len(self.x), np.nan),
            "zero": np.zeros(len(self.x)),
        }
        slopes = {"label": self.p - hot, "softmax": self.p, "zero": 0 * self.p}
        kind, kind_of_slope = None, None
        if loss is not None and loss.vid in probe.arrays:
            made = sign * probe.rows_of(loss)
            kind = next(
                (
                    name
                    for name, x in losses.items()
                    if np.allclose(made, x, rtol=EXACT, atol=EXACT, equal_nan=True)
                ),
                None,
            )
        if slope is not None and slope.value.vid in probe.arrays:
            made = probe.rows_of(slope.value)
            of = 1.0 if slope.of is None else probe.rows_of(slope.of.value)[:, None]
            kind_of_slope = next(
                (
                    n
                    for n, x in slopes.items()
                    if np.allclose(made, x * slope.factor * of, rtol=EXACT, atol=EXACT)
                ),
                None,
            )
        if (loss is not None and kind is None) or (slope is not None and kind_of_slope is None):
            raise CameClose("labels that are no class give something else than nothing, or NaN")
        usual = {"label": "label", "nan": "softmax", "zero": "zero", "softmax": "nan"}
        return kind or usual[kind_of_slope or ""], kind_of_slope or usual[kind or ""]

    # --- what goes --------------------------------------------------------------------------------------------------------

    def _needed(self, loss: Value | None, slope: Slope | None) -> tuple[Op, ...]:
        """The ops that make them; CameClose where something else reads what only they make."""
        flow, region = self.flow, self.region
        ends = {v.vid for v in (loss, slope.value if slope else None) if v is not None}
        own = {op.oid: op for op in region.ops}
        found: dict[int, Op] = {}
        waiting = [flow.value(vid).producer for vid in ends]
        while waiting:
            op = waiting.pop()
            if op is None or op.oid in found or op.oid not in own:
                continue
            found[op.oid] = op
            waiting += [v.producer for v in flow.operands(op)]
        plain = {region.logits.vid}
        for n in sorted(found):
            op, value = found[n], flow.result(found[n])
            if op.kind in MOVED | {"convert"} and flow.operands(op)[0].vid in plain:
                plain.add(value.vid)
                continue
            if value.vid in ends or value.dtype.kind != "float":
                continue
            if flow.is_returned(value):
                raise CameClose(f"{op.kind}{at(op.where)} is returned, too")
            other = next((reader for reader in flow.readers(value) if reader.oid not in found), None)
            if other is not None:
                raise CameClose(f"{op.kind}{at(op.where)} is also read by {other.kind}{at(other.where)}")
        return tuple(found[n] for n in sorted(found))

    def _logits(self, slope: Slope | None) -> Value:
        """Those before they were widened, unless their gradient is kept wide."""
        logits = self.region.logits
        if slope is None or self.flow.kept_as(slope.value) == {logits.dtype} or logits.dtype is DType.f32:
            return logits
        wide = [
            op for op in self.flow.readers(logits) if op.kind == "convert" and op.attrs["dtype"] is DType.f32
        ]
        return self.flow.result(wide[0]) if wide else logits


# --- what stands in its place -----------------------------------------------------------------------------------------


class LossEdit:
    def __init__(self, flow: Flow, found: FoundLoss) -> None:
        self.flow, self.found, self.emit = flow, found, flow.ctx
        self.shape = found.logits.shape[:-1]

    def edits(self) -> list[Edit]:
        found = self.found
        ends = [v.producer for v in (found.loss, found.slope.value if found.slope else None) if v is not None]
        first = min((op for op in ends if op is not None), key=lambda op: op.oid)
        edits: list[Edit] = [(first, self.forward)]
        if found.slope is not None:
            assert found.slope.value.producer is not None
            edits.append((found.slope.value.producer, self.backward))
        return (
            edits if found.slope is None or found.slope.value.producer is not first else [(first, self.both)]
        )

    def both(self) -> list[tuple[Value, Value]]:
        return [*self.forward(), *self.backward()]

    def forward(self) -> list[tuple[Value, Value]]:
        emit: Any = self.emit
        found, size = self.found, self.found.logits.shape[-1]
        labels = (
            found.labels if found.labels.shape == self.shape else emit.reshape(found.labels, shape=self.shape)
        )
        if labels.dtype not in (DType.i32, DType.i64):
            labels = emit.convert(labels, dtype=DType.i32 if labels.dtype.itemsize < 4 else DType.i64)
        if found.wraps:
            labels = emit.select(emit.less(labels, 0), emit.add(labels, size), labels)
        inside = emit.logical_and(emit.greater_equal(labels, 0), emit.less(labels, size))
        self.labels = emit.select(inside, labels, NO_LABEL)
        loss, self.peak, self.rsum = unguarded(
            self.flow, "cross_entropy", found.logits, self.labels, ignore_index=NO_LABEL
        )
        if found.loss is None:
            return []
        if found.outside.loss == "nan":
            loss = emit.select(inside, loss, math.nan)
        loss = emit.neg(loss) if found.sign < 0 else loss
        return [(found.loss, self._laid(loss, found.rows, found.loss_layout, found.loss.dtype))]

    def backward(self) -> list[tuple[Value, Value]]:
        emit: Any = self.emit
        found = self.found
        slope = found.slope
        assert slope is not None
        if slope.of is None:
            factor = emit.fill(shape=self.shape, value=slope.factor, dtype=DType.f32)
        else:
            factor = arranged(emit, slope.of, found.rows, repeat=True)
            factor = factor if factor.dtype is DType.f32 else emit.convert(factor, dtype=DType.f32)
            factor = emit.mul(factor, slope.factor)
        ignored = NO_LABEL if found.outside.slope == "zero" else NO_LABEL - 1
        asked = {"ignore_index": ignored, "label": 1.0, "other": 0.0}
        made = emit.cross_entropy_grad(found.logits, self.labels, factor, self.peak, self.rsum, **asked)
        classes = [axis for axis in every(slope.layout) if axis not in every(found.rows)]
        return [
            (slope.value, self._laid(made, (*found.rows, tuple(classes)), slope.layout, slope.value.dtype))
        ]

    def _laid(self, value: Value, layout: Layout, target: Layout, dtype: DType) -> Value:
        emit: Any = self.emit
        made = arranged(emit, Laid(value, layout), target, repeat=True)
        return made if made.dtype is dtype else emit.convert(made, dtype=dtype)


NO_LABEL = -1


def described(found: FoundLoss) -> str:
    parts = [f"{found.logits.shape[-1]} classes"]
    parts += ["with its gradient" if found.loss is not None else "its gradient"] * (found.slope is not None)
    return ", ".join(parts)


def unguarded(flow: Flow, kind: str, *operands: Value, **attrs: Any) -> tuple[Value, ...]:
    """All results of an op whose operands need no check."""
    schema, ctx = schema_of(kind), flow.ctx
    pack = schema.pack(schema.normalized([v.spec for v in operands], attrs))
    specs = schema.infer(operands, pack, ctx.device)
    spec = (schema.kind.id, schema.attr_schema, pack.blob)
    return ctx.builder.emit(schema.name, operands, specs, schema.values(pack), {}, spec)


def drop_checks(flow: Flow, ops: Sequence[Op]) -> None:
    """Those of indices that only ops which are gone have read."""
    for vid in {op.inputs[1] for op in ops if op.kind in ("gather", "scatter_add")}:
        readers = flow.readers(flow.value(vid))
        if readers and all(op.kind == "check_indices" for op in readers):
            for op in readers:
                flow.drop_check(op)
