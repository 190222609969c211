"""Cross entropy of logits and labels, and its gradient where a graph has that, too: found by what is computed of rows of classes. Which row gives
what for a label that is no class is computed as well, and kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...ir import Op, Value
from ...types import DType
from .arrange import Laid
from .attention import TYPES
from .axes import MOVED, Layout
from .classes import CLASSES, MOST_ROWS, PICKS, ClassProbe, ClassRegion
from .flow import CameClose, Flow, at
from .forms import SOFTMAXES, FormOps, reached, refused, stray
from .loss_samples import EXACT, LossCandidate, confirm, softmax_of

ANY = "any"
ANCHORS = frozenset({"exp", "log_softmax", "logsumexp"})
LOSS = FormOps("a cross entropy", SOFTMAXES | PICKS | {"softmax_grad", "log_softmax_grad", "power"})


@dataclass(frozen=True)
class Outside:
    """What a label that is no class gives. loss: "nan", "zero", or "sum", the logarithm of the sum alone; slope: "softmax", as if no class were
    expected, or "zero"."""

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
                found = _LossMatch(flow, region, labels).found()
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
        if source.dtype not in TYPES or source.dtype.itemsize > value.dtype.itemsize:
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


class _LossMatch:
    def __init__(self, flow: Flow, region: ClassRegion, labels: Value) -> None:
        self.flow, self.region, self.labels = flow, region, labels
        self.rng = np.random.default_rng(7)
        self.classes = len(region.sampled)
        self.x = 2 * self.rng.normal(size=(region.count, self.classes))
        self.p, self.lse = softmax_of(self.x)
        self.leaves: dict[int, np.ndarray] = {}
        self.size = region.logits.shape[-1]
        self.drawn = self.rng.permutation(np.resize(np.arange(self.classes), region.count))
        self.labelled = region.sampled[self.drawn]  # each row's class

    def found(self) -> FoundLoss | None:
        region = self.region
        probe = self._run(self.labelled)
        loss, sign = self._loss(probe)
        slopes: list[Slope | None] = [*self._slopes(probe)]
        if loss is None and not slopes:
            return None
        slope, wraps, outside = self._consistent(loss, sign, slopes or [None])
        ops = self._needed(loss, slope)
        layout = region.layouts.of(loss) if loss is not None else ()
        rows = region.layouts.of(region.logits)[:-1]
        return FoundLoss(
            self._logits(slope), self.labels, loss, layout, sign, slope, wraps, outside, rows, ops
        )  # fmt: skip

    def _run(self, labels: np.ndarray) -> ClassProbe:
        return self.region.probe(self.x, self.labels, labels, self.leaves, np.random.default_rng(11))

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
        negative, close = None, None
        for value in self._made(probe, False):
            made = probe.rows_of(value)
            sign = next((n for n in (1.0, -1.0) if np.allclose(made, n * want, rtol=EXACT, atol=EXACT)), 0.0)
            if sign and (other := self._stray(value)) is not None:
                close = close or other
            elif sign > 0:
                return value, 1.0
            elif sign < 0 and negative is None:
                negative = value
        if close is not None and negative is None:
            raise refused(LOSS, close)
        return negative, -1.0

    def _stray(self, value: Value, *stops: Value) -> Op | None:
        """An op, between the logits and a value, that a cross entropy has not."""
        flow, region = self.flow, self.region
        starts = {region.logits.vid, *(v.vid for v in stops)}
        return stray(flow, LOSS, reached(flow, [value], region.ops, starts), starts)

    def _slopes(self, probe: ClassProbe) -> list[Slope]:
        """What may be the gradient of logits: of the first value that is, by each thing that it may be multiplied by."""
        want = self.p - (np.arange(self.classes) == self.drawn[:, None])
        close: Op | None = None
        for value in self._made(probe, True):
            with np.errstate(all="ignore"):
                ratios = probe.rows_of(value) / want
            ratio = ratios[:, :1]
            if np.isfinite(ratio).all() and ratio.any() and np.allclose(ratios, ratio, rtol=EXACT, atol=0):
                layout = self.region.layouts.of(value)
                found = []
                for factor, of in self._factors(probe, ratio[:, 0]):
                    other = self._stray(value, *([of.value] if of else []))
                    close = close or other
                    if other is None:
                        found.append(Slope(value, layout, factor, of))
                if found:
                    return found
        if close is not None:
            raise refused(LOSS, close)
        return []

    def _factors(self, probe: ClassProbe, ratio: np.ndarray) -> list[tuple[float, Laid | None]]:
        """(factor, of): what a gradient is multiplied by, a number, or a number times a value of rows."""
        found: list[tuple[float, Laid | None]] = []
        if np.allclose(ratio, ratio[0], rtol=EXACT, atol=0):
            found.append((float(ratio[0]), None))
        values = [self.flow.value(vid) for vid in self.leaves if vid in probe.arrays]
        for value in [*values, *self._of_rows(probe)]:
            of = probe.rows_of(value)
            with np.errstate(all="ignore"):
                factors = ratio / of
            if np.isfinite(factors).all() and np.allclose(factors, factors[0], rtol=EXACT, atol=0):
                found.append((float(factors[0]), Laid(value, self.region.layouts.of(value))))
        return found

    def _of_rows(self, probe: ClassProbe) -> list[Value]:
        """Numbers of rows that are computed of no logits."""
        made, dependent = [], {self.region.logits.vid}
        for op in self.region.ops:
            value = self.flow.result(op)
            if dependent.intersection(op.inputs):
                dependent.update(op.outputs)
            elif (
                value.dtype.kind == "float"
                and value.vid in probe.arrays
                and set(probe.arrays[value.vid][1]) <= set(self.region.rows)
            ):
                made.append(value)
        return made

    # --- labels that are no class -----------------------------------------------------------------------------------------

    def _consistent(
        self, loss: Value | None, sign: float, slopes: list[Slope | None]
    ) -> tuple[Slope | None, bool, Outside]:
        close: CameClose | None = None
        for slope in slopes:
            try:
                found = self._elsewhere(loss, sign, slope)
                of = slope.of.value if slope is not None and slope.of is not None else None
                value, factor = (slope.value, slope.factor) if slope is not None else (None, 1.0)
                confirm(self.region, LossCandidate(self.labels, loss, sign, value, factor, of))
                return slope, *found
            except CameClose as near:
                close = close or near
        assert close is not None
        raise close

    def _elsewhere(self, loss: Value | None, sign: float, slope: Slope | None) -> tuple[bool, Outside]:
        size, signed = self.size, self.labels.dtype.numpy.kind == "i"
        limits = np.iinfo(self.labels.dtype.numpy)
        wrapped = (
            self._given(self.labelled - size, loss, sign, slope) if signed and -size >= limits.min else None
        )
        beyond = [n for n in (size, size + 3, -size - 1, -size - 3) if limits.min <= n <= limits.max]
        found = {self._given(np.full_like(self.drawn, n), loss, sign, slope) for n in beyond}
        wraps = wrapped is not None and wrapped[0] in ("label", ANY) and wrapped[1] in ("label", ANY)
        if wrapped is not None and not wraps:
            found.add(wrapped)
        losses, slopes = ({kinds[n] for kinds in found} - {ANY} for n in (0, 1))
        if len(losses) > 1 or len(slopes) > 1 or "label" in losses | slopes:
            raise CameClose("labels that are no class give several things")
        of_loss, of_slope = (next(iter(kinds), ANY) for kinds in (losses, slopes))
        if of_loss == ANY:
            of_loss = {"softmax": "sum", "zero": "zero", ANY: "zero"}[of_slope]
        if of_slope == ANY:
            of_slope = "zero" if of_loss == "zero" else "softmax"
        return wraps, Outside(of_loss, of_slope)

    def _given(
        self, labels: np.ndarray, loss: Value | None, sign: float, slope: Slope | None
    ) -> tuple[str, str]:
        """What other labels give, of loss and gradient: "label" where it is that of the class drawn for the row."""
        probe = self._run(labels)
        hot = np.arange(self.classes) == self.drawn[:, None]
        losses = {"label": self.lse - self.x[hot], "sum": self.lse, "nan": np.full(len(self.x), np.nan)} | {
            "zero": 0 * self.lse
        }
        slopes = {"label": self.p - hot, "softmax": self.p, "zero": 0 * self.p}
        kind = kind_of_slope = ANY
        if loss is not None:
            kind = self._kind(probe, loss, losses, sign)
        if slope is not None:
            of = 1.0 if slope.of is None else probe.rows_of(slope.of.value)[:, None]
            kind_of_slope = self._kind(probe, slope.value, slopes, slope.factor * of)
        return kind, kind_of_slope

    def _kind(self, probe: ClassProbe, value: Value, kinds: dict[str, np.ndarray], times: Any) -> str:
        """Which of these, times a number, a value is; ANY where that is 0."""
        made = probe.rows_of(value) if value.vid in probe.arrays else np.full(1, np.inf)
        matching = [
            n
            for n, x in kinds.items()
            if np.allclose(made, x * times, rtol=EXACT, atol=EXACT, equal_nan=n == "nan")
        ]
        if not matching:
            raise CameClose("labels that are no class give something else than nothing, or NaN")
        return ANY if len(matching) == len(kinds) else matching[0]

    # --- what goes --------------------------------------------------------------------------------------------------------

    def _needed(self, loss: Value | None, slope: Slope | None) -> tuple[Op, ...]:
        """The ops that make them; CameClose where something else reads what only they make."""
        flow, region = self.flow, self.region
        ends = {v.vid for v in (loss, slope.value if slope else None) if v is not None}
        own = {op.oid: op for op in region.ops}
        if slope is not None and slope.of is not None and slope.of.value.producer is not None:
            own.pop(slope.of.value.producer.oid, None)  # it stays, and what it is made of
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
