"""Losses of classes: labels that are integers, several labels at once, sequences of labels. Named and parametrised as PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from ..types import DType, TensorSpec, f32, i32, i64
from . import checks
from .criteria import ReducedLoss, wide
from .tables import WeightTable, read_table, table


@dataclass(frozen=True)
class _LabelLoss(ReducedLoss):
    """What losses of one label a row have in common: labels, weights of classes, a label that is left out."""

    weight: WeightTable | None = None
    ignore_index: int = -100
    axis: int = field(default=1, kw_only=True)
    dtype: DType = field(default=i64, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weight", table(f"{self._own}: weight", self.weight, rank=1))
        object.__setattr__(self, "dtype", DType.of(self.dtype))
        checks.whole(f"{self._own}: ignore_index", self.ignore_index, -(2**63), 2**63 - 1)

    def _axis(self, rank: int) -> int:
        """The axis of classes, from the front: of rank 1 there is one."""
        if rank == 0:
            raise VerifyError(f"{self._own} of a number", expected="an output with an axis of classes")
        axis = 0 if rank == 1 else self.axis
        if not -rank <= axis < rank:
            raise VerifyError(
                f"{self._own}: axis={axis} of an output of rank {rank}", expected=f"one of [-{rank}, {rank})"
            )
        return axis % rank

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        spec = self._spec(output)
        axis = self._axis(len(spec.shape))
        return {
            self.target: TensorSpec((*spec.shape[:axis], *spec.shape[axis + 1 :]), self.dtype, spec.device)
        }

    def _last(self, output: Value) -> Value:
        """The output in f32, its classes last."""
        x, axis = wide(output), self._axis(output.ndim)
        if axis == x.ndim - 1:
            return x
        return x.transpose(*(a for a in range(x.ndim) if a != axis), axis)

    def _weights(self, ctx: Any, x: Value) -> Value | None:
        if self.weight is None:
            return None
        many = x.shape[-1]
        if self.weight.array.shape != (many,):
            raise VerifyError(
                f"{self._own}: weight has {self.weight.array.size} numbers",
                expected=f"{many}, one for each class",
            )
        return read_table(ctx, self.weight, x.dtype)

    def _kept(self, ctx: Any, labels: Value) -> tuple[Value, Value]:
        """(which rows count, their labels with class 0 in the place of those that do not)."""
        kept = ctx.not_equal(labels, self.ignore_index)
        return kept, ctx.select(kept, labels, 0)

    def _mean(self, ctx: Any, losses: Value, share: Value | None, count: Value) -> Value:
        """Losses, reduced: their mean is by the weights of the rows that count."""
        if self.reduction != "mean":
            return losses if self.reduction == "none" else losses.sum()
        return losses.sum() / (count.astype(losses.dtype) if share is None else share.sum())

    def reduced(self, losses: Value) -> Value:
        """Losses as they are: `compute` has reduced them."""
        return losses


@dataclass(frozen=True)
class CrossEntropyLoss(_LabelLoss):
    """-log softmax(output)[label], PyTorch's: an output of (N, classes, ...), labels of (N, ...). nn.SoftmaxCrossEntropy has classes last.

    weight           one number for each class, an array: the mean is then over the weights of the labels
    ignore_index     the label of rows that are left out, of the mean too; NaN if all are
    label_smoothing  how much of the target all classes share, from 0 to 1
    axis             where the classes are; an output of rank 1 has them alone
    dtype            of the labels, i64 or i32; a float type: targets are probabilities, of the output's shape

    A label that is no class is a LabelError, as with nn.SoftmaxCrossEntropy.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        number = checks.Range(low=0, high=1)(f"{self._own}: label_smoothing", self.label_smoothing)
        object.__setattr__(self, "label_smoothing", number)
        if self.dtype not in (i32, i64) and self.dtype.kind != "float":
            raise VerifyError(
                f"{self._own}: targets of {self.dtype}",
                expected="i64 or i32, or a float type for probabilities",
            )

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        if self.dtype.kind != "float":
            return super().targets(output)
        spec = self._spec(output)
        return {self.target: TensorSpec(spec.shape, self.dtype, spec.device)}

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        if target.dtype.kind == "float":
            return self._of_probabilities(ctx, self._last(output), self._last(target))
        x, smoothing = self._last(output), self.label_smoothing
        weight, asked = self._weights(ctx, x), {"ignore_index": self.ignore_index}
        count = ctx.check_labels(target, classes=x.shape[-1], **asked)
        if weight is None:
            losses = ctx.cross_entropy(x, target, label_smoothing=smoothing, **asked)
            return self._mean(ctx, losses, None, count)
        kept, labels = self._kept(ctx, target)
        share = ctx.select(kept, ctx.gather(weight, labels), 0.0)
        losses = ctx.cross_entropy(x, target, **asked) * share
        if smoothing:
            spread = -(ctx.log_softmax(x, axis=-1) * weight).sum(-1) * (1 / x.shape[-1])
            losses = losses * (1 - smoothing) + ctx.select(kept, spread, 0.0) * smoothing
        return self._mean(ctx, losses, share, count)

    def _of_probabilities(self, ctx: Any, x: Value, target: Value) -> Value:
        if x.shape != target.shape:
            raise VerifyError(
                f"{self._own}: probabilities of shape {target.shape}",
                expected=f"{x.shape}, that of the output",
                where=target.where,
            )
        weight, smoothing = self._weights(ctx, x), self.label_smoothing
        if smoothing:
            target = target * (1 - smoothing) + smoothing / x.shape[-1]
        logs = ctx.log_softmax(x, axis=-1)
        losses = -(target * (logs if weight is None else logs * weight)).sum(-1)
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.mean()


@dataclass(frozen=True)
class NLLLoss(_LabelLoss):
    """-output[label], of an output of logs of probabilities: (N, classes, ...), labels of (N, ...).

    weight        one number for each class, an array: the mean is then over the weights of the labels
    ignore_index  the label of rows that are left out, of the mean too; NaN if all are
    axis          where the classes are
    dtype         of the labels, i64 or i32
    """

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x = self._last(output)
        weight = self._weights(ctx, x)
        count = ctx.check_labels(target, classes=x.shape[-1], ignore_index=self.ignore_index)
        kept, labels = self._kept(ctx, target)
        taken = ctx.take_along_axis(x, labels.expand_dims(-1), axis=-1).squeeze(-1)
        share = None if weight is None else ctx.select(kept, ctx.gather(weight, labels), 0.0)
        losses = ctx.select(kept, -taken if share is None else -taken * share, 0.0)
        return self._mean(ctx, losses, share, count)


@dataclass(frozen=True)
class MultiMarginLoss(ReducedLoss):
    """The sum of max(0, margin - output[label] + output[c])^p over all other classes c, divided by the number of classes.

    Shapes: an output of (N, classes), labels of (N,), or without N.

    p       1 or 2
    weight  one number for each class, an array: that of the label multiplies its row
    dtype   of the labels, i64 or i32
    """

    p: int = 1
    margin: float = 1.0
    weight: WeightTable | None = None
    dtype: DType = field(default=i64, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(f"{self._own}: p", self.p, 1, 2)
        object.__setattr__(self, "margin", checks.anything(f"{self._own}: margin", self.margin))
        object.__setattr__(self, "weight", table(f"{self._own}: weight", self.weight, rank=1))
        object.__setattr__(self, "dtype", DType.of(self.dtype))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        spec = self._spec(output)
        return {self.target: TensorSpec(spec.shape[:-1], self.dtype, spec.device)}

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, many = wide(output), output.shape[-1]
        ctx.check_labels(target, classes=many)
        label = target.expand_dims(-1)
        over = ctx.relu(self.margin - ctx.take_along_axis(x, label, axis=-1) + x)
        over = ctx.square(over) if self.p == 2 else over
        if self.weight is not None:
            over = over * ctx.gather(read_table(ctx, self.weight, x.dtype), target).expand_dims(-1)
        own = ctx.equal(label, ctx.iota(shape=(many,), axis=0, dtype=target.dtype))
        return ctx.select(own, 0.0, over).sum(-1) * (1 / many)


@dataclass(frozen=True)
class MultiLabelMarginLoss(ReducedLoss):
    """The sum of max(0, 1 - output[label] + output[c]) over the labels of a row and all classes c that are none of them, divided by the
    number of classes.

    Shapes: output and target (N, classes), or without N. A target has the labels of its row first, then -1; what is behind it is not read.

    dtype   of the labels, i64 or i32
    """

    dtype: DType = field(default=i64, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "dtype", DType.of(self.dtype))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        spec = self._spec(output)
        return {self.target: TensorSpec(spec.shape, self.dtype, spec.device)}

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, many = wide(output), output.shape[-1]
        ended = ctx.cumsum(ctx.less(target, 0).astype(i32), axis=-1)
        there = ctx.equal(ended, 0)
        labels = ctx.select(there, target, 0)
        own = ctx.take_along_axis(x, labels, axis=-1).expand_dims(-1)
        classes = ctx.iota(shape=(many,), axis=0, dtype=target.dtype)
        hot = ctx.equal(labels.expand_dims(-1), classes) & there.expand_dims(-1)
        others = ctx.logical_not(ctx.reduce_any(hot, axes=(-2,), keepdims=True))
        over = ctx.relu(1.0 - own + x.expand_dims(-2))
        counted = ctx.broadcast_in_dim(
            others, shape=hot.shape, dims=tuple(range(others.ndim))
        ) & there.expand_dims(-1)
        return ctx.select(counted, over, 0.0).sum((-2, -1)) * (1 / many)


@dataclass(frozen=True)
class MultiLabelSoftMarginLoss(ReducedLoss):
    """BCEWithLogitsLoss of several labels at once, its mean over the classes of a row.

    Shapes: output and target (..., classes), of one type.

    weight  one number for each class, an array
    """

    weight: WeightTable | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "weight", table(f"{self._own}: weight", self.weight))

    def compute(self, ctx: Any, output: Value, target: Value) -> Value:
        x, t = wide(output), wide(target)
        losses = ctx.softplus(x) - x * t
        if self.weight is not None:
            losses = losses * read_table(ctx, self.weight, x.dtype)
        return losses.mean(-1)


@dataclass(frozen=True)
class CTCLoss(ReducedLoss):
    """-log of the probability that a sequence of labels is read from an output (connectionist temporal classification).

    Shapes: the output (time, N, classes) of logs of probabilities, labels (N, length), input_lengths and target_lengths (N,): how much of the
    output, and of the labels, belongs to each sequence.

    blank          the class that stands for no label
    zero_infinity  whether a sequence that is too short for its labels counts as 0, without a gradient, instead of infinite
    reduction      the mean is over the losses divided by target_lengths, as PyTorch's
    length         the size of the labels' last axis: what `compile` feeds; calls need none
    dtype          of labels and lengths, i64 or i32
    """

    blank: int = 0
    zero_infinity: bool = False
    length: int = 0
    dtype: DType = field(default=i64, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole(f"{self._own}: blank", self.blank)
        checks.whole(f"{self._own}: length", self.length)
        object.__setattr__(self, "dtype", DType.of(self.dtype))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        spec = self._spec(output)
        if len(spec.shape) != 3:
            raise VerifyError(f"{self._own} of {spec}", expected="an output of (time, N, classes)")
        if not self.length:
            raise VerifyError(
                f"{self._own}: length=0",
                expected="the size of the labels' last axis",
                hint="nn.CTCLoss(length=32): labels of (N, 32)",
            )
        row, device = spec.shape[1:2], spec.device
        lengths = {name: TensorSpec(row, self.dtype, device) for name in ("input_lengths", "target_lengths")}
        return {self.target: TensorSpec((*row, self.length), self.dtype, device), **lengths}

    def compute(
        self, ctx: Any, output: Value, target: Value, input_lengths: Value, target_lengths: Value
    ) -> Value:
        asked = {"blank": self.blank, "zero_infinity": self.zero_infinity}
        losses: Value = ctx.ctc_loss(wide(output), target, input_lengths, target_lengths, **asked)
        if self.reduction != "mean":
            return losses
        return losses / ctx.maximum(target_lengths, 1).astype(f32)
