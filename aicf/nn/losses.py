"""Losses: what they are fed beside the model's output, and the 0-D value they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..errors import VerifyError
from ..graph.emit.objective import EVERYTHING
from ..ir import Value
from ..types import DType, TensorSpec, i32, i64
from . import checks


class Loss:
    """`targets` declares the fed tensors by name; `emit` computes a 0-D loss.

    A target may be an input of the model, as in an autoencoder, if it has the input's type. `emit` may return a tuple: the loss, and a
    dict of Values that programs return beside it, such as an accuracy.

    result          the name of the model's result that it reads; "" is "output", or the first; "*" is all, as the model returns them
    returns_output  whether programs that train or give gradients return that result, too
    """

    result: str = ""
    returns_output: ClassVar[bool] = True

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        """The specs of what is fed beside the inputs, by name; `output` is the spec of the result that the loss reads."""
        raise checks.lacks(self, "targets", "output", '{"y": TensorSpec(...)}')

    def emit(self, ctx: Any, output: Any, targets: Mapping[str, Value]) -> Any:
        """The 0-D loss of that result and of these targets, or a tuple of it and a dict of Values to return beside it."""
        raise checks.lacks(self, "emit", "ctx, output, targets", "the 0-D loss")


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over the rows of -log softmax(output)[label]. output (..., classes), labels (...) in [0, classes).

    target           name under which the labels are fed; dtype theirs, i64 or i32
    result           of the model, as Loss
    ignore_index     the label of rows that are left out, of the mean too; NaN if all are
    label_smoothing  how much of the target all classes share, from 0 to 1

    Another label is a LabelError that names its row. Nothing of its run is kept: on the CPU device it is raised before
    anything is written, on CUDA the step is not taken and the next read of a result raises.
    """

    target: str = "y"
    dtype: DType = i64
    ignore_index: int = -100
    label_smoothing: float = 0.0
    result: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_names(self.target, self.result)
        object.__setattr__(self, "dtype", DType.of(self.dtype))
        own = type(self).__name__
        if self.dtype not in (i32, i64):
            raise VerifyError(f"{own}: labels of {self.dtype}", expected="i64 or i32")
        if type(self.ignore_index) is not int or not -(2**63) <= self.ignore_index < 2**63:
            raise VerifyError(
                f"{own}: ignore_index={self.ignore_index!r}", expected="a whole number of 64 bits"
            )
        smoothing = self.label_smoothing
        if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)) or not 0 <= smoothing <= 1:
            raise VerifyError(f"{own}: label_smoothing={smoothing!r}", expected="a number from 0 to 1")

    def targets(self, output: TensorSpec) -> Mapping[str, TensorSpec]:
        return {self.target: TensorSpec(output.shape[:-1], self.dtype, output.device)}

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        labels, ignored = targets[self.target], self.ignore_index
        losses = ctx.cross_entropy(
            output, labels, ignore_index=ignored, label_smoothing=float(self.label_smoothing)
        )
        count = ctx.check_labels(labels, classes=output.shape[-1], ignore_index=ignored)
        return losses.sum() / count


@dataclass(frozen=True)
class LinearCrossEntropy(SoftmaxCrossEntropy):
    """SoftmaxCrossEntropy of a model whose output is an nn.Linear without a bias, tied or not, computed with that layer as one op: the
    logits are never in memory as a whole.

    Programs that train or give gradients return no output, which would be the logits; in mode "infer" they do.

    z_loss  adds the mean of z_loss * log(sum(exp(logits)))^2, which keeps the logits from drifting; 1e-4 where it is used
    """

    z_loss: float = 0.0

    returns_output: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative("LinearCrossEntropy: z_loss", self.z_loss)

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        found = ctx.product_of(output)
        if found is None:
            made = output.producer
            raise VerifyError(
                "LinearCrossEntropy: the model's output is not an nn.Linear without a bias", where=output.where,
                expected="nn.Linear(..., bias=False) as its last layer", got=f"the result of {made.kind}" if made else repr(output),
                hint="loss=nn.SoftmaxCrossEntropy() takes any logits",
            )  # fmt: skip
        x, weight, precision = found
        labels = targets[self.target]
        if labels.rank != 1:
            labels = labels.reshape(x.shape[0])
        losses = ctx.linear_cross_entropy(
            x, weight, labels, ignore_index=self.ignore_index, label_smoothing=float(self.label_smoothing),
            z_loss=float(self.z_loss), precision=precision,
        )  # fmt: skip
        return losses.sum() / ctx.check_labels(
            labels, classes=weight.shape[0], ignore_index=self.ignore_index
        )


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean over all elements of (output - target)^2; the target has the output's type. `result` as Loss."""

    target: str = "y"
    result: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        check_names(self.target, self.result)

    def targets(self, output: TensorSpec) -> Mapping[str, TensorSpec]:
        return {self.target: replace(output)}

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        return ctx.squared_error(output, targets[self.target]).mean()


def check_names(target: object, result: object) -> None:
    if not isinstance(target, str) or not target:
        raise VerifyError(f"target={target!r}", expected="the name that the target is fed under, such as 'y'")
    if not isinstance(result, str) or result == EVERYTHING:
        raise VerifyError(
            f"result={result!r}", expected="the name of one of the model's results, such as 'logits'"
        )
