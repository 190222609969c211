"""Losses: what they are fed beside the model's output, and the 0-D value they compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..ir import Value
from ..types import DType, TensorSpec


class Loss:
    """`targets` declares the fed tensors by name; `emit` computes a 0-D loss."""

    def targets(self, output: TensorSpec) -> Mapping[str, TensorSpec]:
        raise NotImplementedError

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        raise NotImplementedError


@dataclass(frozen=True)
class SoftmaxCrossEntropy(Loss):
    """Mean over the batch of -log softmax(output)[label]. output (N, classes), labels (N,) in [0, classes).

    target  name under which the labels are fed; dtype theirs, i64 or i32
    """

    target: str = "y"
    dtype: DType = DType.i64

    def targets(self, output: TensorSpec) -> Mapping[str, TensorSpec]:
        return {self.target: TensorSpec(output.shape[:1], self.dtype, output.device)}

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        return ctx.reduce_mean(ctx.softmax_cross_entropy(output, targets[self.target]))


@dataclass(frozen=True)
class MeanSquaredError(Loss):
    """Mean over all elements of (output - target)^2; the target has the output's type."""

    target: str = "y"

    def targets(self, output: TensorSpec) -> Mapping[str, TensorSpec]:
        return {self.target: replace(output)}

    def emit(self, ctx: Any, output: Value, targets: Mapping[str, Value]) -> Value:
        return ctx.reduce_mean(ctx.squared_error(output, targets[self.target]))
