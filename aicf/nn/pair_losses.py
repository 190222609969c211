"""Losses of a model that returns several tensors, such as embeddings of pairs: named and parametrised as PyTorch's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..graph.emit.objective import EVERYTHING
from ..ir import Value
from ..types import TensorSpec
from . import checks
from .criteria import ReducedLoss, wide

_PAIR = "the first tensor", "the second tensor"


@dataclass(frozen=True)
class _PairLoss(ReducedLoss):
    result: str = field(default=EVERYTHING, kw_only=True)
    reads_all: ClassVar[bool] = True

    def _both(self, output: Any) -> tuple[Value, ...]:
        return tuple(map(wide, self._pair(output, _PAIR)))


@dataclass(frozen=True)
class MarginRankingLoss(_PairLoss):
    """max(0, -target * (x1 - x2) + margin), of a model that returns x1 and x2; the target, of their type and shape, is 1 where x1 should be
    the greater one, else -1."""

    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "margin", checks.anything(f"{self._own}: margin", self.margin))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        first = self._pair(output, _PAIR)[0]
        return {self.target: TensorSpec(first.shape, first.dtype, first.device)}

    def compute(self, ctx: Any, output: Any, target: Value) -> Value:
        a, b = self._both(output)
        return ctx.relu(self.margin - wide(target) * (a - b))


@dataclass(frozen=True)
class CosineEmbeddingLoss(_PairLoss):
    """1 - cos(x1, x2) where the target is 1, max(0, cos(x1, x2) - margin) where it is -1, of a model that returns x1 and x2.

    Shapes: x1 and x2 (..., features), the target (...,), of their type.
    """

    margin: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "margin", checks.anything(f"{self._own}: margin", self.margin))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        first = self._pair(output, _PAIR)[0]
        return {self.target: TensorSpec(first.shape[:-1], first.dtype, first.device)}

    def compute(self, ctx: Any, output: Any, target: Value) -> Value:
        a, b = self._both(output)
        t = wide(target)
        squares = [ctx.square(x).sum(-1) + 1e-12 for x in (a, b)]
        near = (a * b).sum(-1) * ctx.rsqrt(squares[0] * squares[1])
        return ctx.select(t == 1, 1 - near, 0.0) + ctx.select(t == -1, ctx.relu(near - self.margin), 0.0)


@dataclass(frozen=True)
class CosineSimilarityLoss(_PairLoss):
    """1 - cos(x1, x2) along an axis, of a model that returns x1 and x2; or, as a call, of two Values. MLX's cosine_similarity_loss is the cosine.

    eps  the least that each of the norms counts as
    """

    axis: int = -1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "eps", checks.positive(f"{self._own}: eps", self.eps))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        self._pair(output, _PAIR)
        return {}

    def compute(self, ctx: Any, output: Any, *more: Value) -> Value:
        a, b = self._both((output, *more) if more else output)
        return 1 - ctx.cosine_similarity(a, b, axis=self.axis, eps=self.eps)


@dataclass(frozen=True)
class TripletMarginLoss(_PairLoss):
    """max(0, |anchor - positive| - |anchor - negative| + margin), of a model that returns the three, each (..., features).

    p     of the norm
    eps   added to each difference, so that the norm has a slope where there is none
    swap  takes |positive - negative| in the place of |anchor - negative| where that is less
    """

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, check in (
            ("margin", checks.anything),
            ("p", checks.positive),
            ("eps", checks.not_negative),
        ):
            object.__setattr__(self, name, check(f"{self._own}: {name}", getattr(self, name)))

    def targets(self, output: Any) -> Mapping[str, TensorSpec]:
        self._pair(output, _TRIPLET)
        return {}

    def compute(self, ctx: Any, output: Any, *more: Value) -> Value:
        anchor, positive, negative = map(wide, self._pair((output, *more) if more else output, _TRIPLET))
        far = self._distance(ctx, anchor, negative)
        if self.swap:
            far = ctx.minimum(far, self._distance(ctx, positive, negative))
        return ctx.relu(self._distance(ctx, anchor, positive) - far + self.margin)

    def _distance(self, ctx: Any, a: Value, b: Value) -> Value:
        d = abs(a - b + self.eps)
        if self.p == 1:
            return d.sum(-1)
        if self.p == 2:
            made: Value = ctx.sqrt(ctx.square(d).sum(-1))
            return made
        return (d**self.p).sum(-1) ** (1 / self.p)


_TRIPLET = "the anchor", "the positive", "the negative"
