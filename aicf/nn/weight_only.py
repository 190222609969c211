"""Linear layers whose weights are codes of 8 or 4 bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..errors import TypeInferenceError, VerifyError
from ..ir import Initializer, Value
from ..ops.weight_only import BITS, pack_codes
from ..types import f32
from . import checks
from .layer import Layer
from .layers import Linear

Source = Callable[[], np.ndarray]


def codes_of(weight: np.ndarray, bits: int, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """(Codes, i8; scales, f32): of each row of weights (N, K) and each of its groups, the scale is the greatest number over 127, or over 7 of 4 bits, and
    codes are the nearest ones."""
    wide = np.asarray(weight, np.float32).reshape(len(weight), groups, -1)
    most = np.float32(2 ** (bits - 1) - 1)
    scale = np.abs(wide).max(-1, initial=0) / most
    codes = np.rint(wide / np.where(scale > 0, scale, np.float32(1))[:, :, None])
    return np.clip(codes, -most - 1, most).astype(np.int8).reshape(weight.shape), scale


class WeightOnlyLinear(Layer):
    """y = x @ W.T + bias along the last axis, with W of 8 or 4 bits: what `aicf.quantize` makes of a Linear. It is not trained.

    Shapes: x (..., inputs), y (..., outputs), of one float type. States: codes, i8 (outputs, inputs), or u8 (outputs, inputs / 2) with two codes of
    4 bits each; scale, f32 (outputs, inputs / group); bias (outputs,) of x's type is a parameter as Linear's.

    bits    8 or 4
    group   inputs that share a scale: a divisor of `inputs`; None is all of them
    source  makes the weights to begin with, (outputs, inputs); None is random ones
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        *,
        bits: int = 8,
        group: int | None = None,
        source: Source | None = None,
        bias_init: Initializer | None = None,
    ) -> None:
        name = "WeightOnlyLinear"
        self.inputs = checks.whole(f"{name}: inputs", inputs, 1)
        self.outputs = checks.whole(f"{name}: outputs", outputs)
        self.bias = checks.yes_or_no(f"{name}: bias", bias)
        if bits not in BITS or self.inputs * bits % 8:
            raise VerifyError(
                f"{name}: bits={bits!r}", expected="8, or 4 where inputs are even", got=f"inputs={inputs}"
            )
        self.bits = bits
        self.group = self.inputs if group is None else checks.whole(f"{name}: group", group, 1)
        if self.inputs % self.group:
            raise VerifyError(f"{name}: group={group!r}", expected=f"a divisor of inputs={inputs}")
        self.source = source or partial(_random, self.inputs, self.outputs)
        self.bias_init = bias_init or Linear(self.inputs, 0).bias_init

    def emit(self, ctx: Any, x: Value) -> Value:
        if x.rank == 0 or x.shape[-1] != self.inputs:
            raise TypeInferenceError(
                "WeightOnlyLinear: x has another number of features", expected=f"shape (..., {self.inputs})", got=str(x.spec),
                where=ctx.here(),
            )  # fmt: skip
        x, row = ctx.computed(x), self.inputs * self.bits // 8
        codes = ctx.state("codes", (self.outputs, row), self._codes, BITS[self.bits])
        scale = ctx.state("scale", (self.outputs, self.inputs // self.group), self._scale, f32)
        rows = x if x.rank == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        y = ctx.gemm_codes(rows, codes, scale, bits=self.bits)
        if self.bias:
            y = ctx.bias_add(y, ctx.param("bias", (self.outputs,), self.bias_init, x.dtype, "bias"))
        return y if x.rank == 2 else y.reshape(*x.shape[:-1], self.outputs)

    def _made(self) -> tuple[np.ndarray, np.ndarray]:
        return codes_of(self.source(), self.bits, self.inputs // self.group)

    def _codes(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        codes = self._made()[0]
        return pack_codes(codes) if self.bits == 4 else codes

    def _scale(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return self._made()[1]


def _random(inputs: int, outputs: int) -> np.ndarray:
    edge = 1.0 / math.sqrt(inputs)
    return np.random.default_rng([inputs, outputs]).uniform(-edge, edge, (outputs, inputs))
