"""An emitter that computes at once: gradient rules run on NumPy arrays, and each op they emit is type-checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from aicf.graph.emit.autodiff import from_seeds
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.scan_gradient import scan_gradient
from aicf.ops.activations import activation_gradient
from aicf.ops.schema import OpSchema, schema_of
from aicf.types import DType, TensorSpec

from .sampling import packed, spec


@dataclass(eq=False)
class Tensor:
    """A NumPy array that looks like a graph's Value."""

    data: np.ndarray

    @property
    def spec(self) -> TensorSpec:
        return spec(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def dtype(self) -> DType:
        return self.spec.dtype

    @property
    def rank(self) -> int:
        return self.data.ndim


class NumpyEmitter:
    """`emit.add(x, 1)` is a Tensor. It lists what it emitted in `emitted`."""

    def __init__(self) -> None:
        self.emitted: list[str] = []

    def __getattr__(self, kind: str) -> Any:
        return lambda *operands, **attrs: self.op(kind, *operands, **attrs)

    def op(self, kind: str, *operands: Tensor | float | None, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        schema = schema_of(kind)
        self.emitted.append(kind)
        declared = zip(operands, schema.declared(len(operands)))
        typed = (o.data for o, d in declared if isinstance(o, Tensor) and d.type.shared)
        like = next(typed, np.empty(0, np.float32)).dtype
        arrays = [
            np.asarray(o, like) if isinstance(o, (int, float)) else None if o is None else o.data
            for o in operands
        ]
        results = tuple(map(Tensor, schema.call_reference(arrays, packed(schema, arrays, attrs))))
        return results if len(results) > 1 else results[0]

    def more_results(self, made, operands, **attrs):
        """Of an op that has no place in a graph: it is computed again."""
        return self.op("scan", *operands, **attrs)

    def scan_gradient(self, pull, xs, ys, dys, **attrs):
        return scan_gradient(self, self.tracer, pull, xs, ys, dys, **attrs)

    def constant(self, value: float, dtype: DType = DType.f32) -> Tensor:
        return Tensor(np.asarray(value, dtype.numpy))

    def table(self, name: str, shape: tuple[int, ...], init: Any, dtype: DType = DType.f32) -> Tensor:
        made = init(shape, np.random.default_rng(0))
        assert made.shape == tuple(shape), name
        return Tensor(made.astype(np.float64 if dtype is DType.f32 else dtype.numpy))

    def activation_gradient(self, name: str, dy: Tensor, x: Tensor, y: Tensor, **attrs: Any) -> Tensor:
        return activation_gradient(self, name, dy, x, y, **attrs)


def call_gradient(
    schema: OpSchema, operands: Sequence[np.ndarray | None], results: Sequence[np.ndarray],
    cotangents: Sequence[np.ndarray | None], attrs: Mapping[str, Any], emit: NumpyEmitter | None = None,
) -> list[np.ndarray | None]:  # fmt: skip
    """Run an op's gradient rule: one gradient, or None, per operand."""
    given = [None if array is None else Tensor(array) for array in operands]
    known: dict[str, Any] = {
        "emit": emit or NumpyEmitter(),
        **schema.values(attrs),
        **schema.by_parameter(given),
    }
    known.update(schema.results_by_parameter([Tensor(y) for y in results]))
    given = [None if dy is None else Tensor(dy) for dy in cotangents]
    known.update(("d" + result, dy) for result, dy in schema.results_by_parameter(given).items())
    tracer = GraphEmitter(Builder(), "cpu")
    known["emit"].tracer, known["pull"] = tracer, partial(from_seeds, tracer)
    wanted = {p: known[p] for p in inspect.signature(schema.gradient_fn).parameters}
    grads = schema.gradient_fn(**wanted)
    grads = grads if isinstance(grads, tuple) else (grads,)
    return [None if g is None else g.data for g in grads]
