"""Models whose weights are codes, of other models."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..errors import VerifyError
from ..graph.run.program import Program
from ..graph.run.variables import stream
from ..ir import KEPT, Initializer
from ..nn import checks
from ..nn.layer import Layer
from ..nn.layers import Linear
from ..nn.model import Model
from ..nn.weight_only import WeightOnlyLinear
from ..ops.weight_only import CHUNK

FORMATS = {"int8": 8, "int4": 4}
GROUP = 128  # of codes of 4 bits, unless it is said


def quantize(
    model: Model | Program, to: str = "int4", *, group: int | None = None, least: int = 256
) -> Model:
    """A model as this one, whose Linear layers have weights of 8 or 4 bits: a third to a quarter of the memory, and about as much less time for each token
    of one sequence, as that is the time to read weights. What is computed of them has the type that it had.

    model  a model, such as `aicf.models.from_pretrained` makes, or a program, whose weights are taken as they are now. It is left as it is
    to     "int8" or "int4"
    group  inputs that share a scale; None is all of them for int8, and 128 for int4, or what divides them
    least  Linear layers with fewer inputs or outputs stay as they are

    A head that has the weights of an embedding gets codes of its own; the embedding keeps its table. The model can be compiled, explained, and served by
    `aicf.Generator`; it is not trained.
    """
    if to not in FORMATS:
        raise VerifyError(f"quantize: to={to!r}", expected=" or ".join(map(repr, FORMATS)))
    program = model if isinstance(model, Program) else None
    if program is not None:
        found = getattr(getattr(program, "recipe", None), "model", None)
        model = found  # type: ignore[assignment]
    if not isinstance(model, Model):
        raise VerifyError(
            f"quantize: {type(model).__name__} has no layers", expected="an nn.Model, or a program of one",
            hint="aicf.quantize(nn.Model(inputs, layer, ...))",
        )  # fmt: skip
    weights = _Weights(model, program)
    wanted = None if group is None else checks.whole("quantize: group", group, 1)
    work = _Replacement(FORMATS[to], wanted, checks.whole("quantize: least", least), weights)
    made = _copied(model)
    if made.layer is not None:
        made.layer = work.whole(made.layer)
    made.layers = [(name, work.inside(layer, name)) for name, layer in made.layers]
    if not work.count:
        raise VerifyError(
            "quantize: there is no Linear layer to quantise", got=f"layers of less than {least} inputs or outputs, or none", hint="least=1",
        )  # fmt: skip
    kept = weights.initial(without=work.names)
    made.initial = {}
    made._start()
    known = {value.name for value in made.graph.externals(*KEPT)}
    made.initial = {name: init for name, init in kept.items() if name in known}
    return made


def _copied(model: Model) -> Model:
    """Its layers are copies, too; those that it has twice, or that others are tied to, are one again."""
    other = copy.copy(model)
    other.layer, other.layers = copy.deepcopy((model.layer, model.layers))
    return other


class _Weights:
    """The weights of a model by name: those of a program, those that a model starts from, or what its layers make."""

    def __init__(self, model: Model, program: Program | None) -> None:
        self.model, self.program = model, program
        self.specs = {value.name: value.spec for value in model.graph.externals(*KEPT)}
        self.made = {value.name: value.init for value in model.graph.externals(*KEPT)}

    def get(self, name: str) -> np.ndarray:
        if self.program is not None:
            return np.asarray(self.program.variables[name].numpy())
        init = self.model.initial.get(name) or self.made[name]
        assert init is not None, name
        return np.asarray(init(self.specs[name].shape, stream(self.model.seed, name)))

    def initial(self, without: set[str]) -> Mapping[str, Initializer]:
        if self.program is None:
            return {name: init for name, init in self.model.initial.items() if name not in without}
        return {
            name: partial(_given, self, name)
            for name in self.specs
            if name not in without and not name.startswith("const.")
        }


def _given(weights: _Weights, name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return weights.get(name)


class _Replacement:
    """Linear layers of a tree of layers, each replaced by one with codes. `names`: of the weights that go."""

    def __init__(self, bits: int, group: int | None, least: int, weights: _Weights) -> None:
        self.bits, self.group, self.least, self.weights = bits, group, least, weights
        self.count, self.names, self.known = 0, set[str](), dict[int, Any]()
        self.places: dict[int, str] = {}

    def whole(self, layer: Any) -> Any:
        return self.inside(layer, "")

    def inside(self, layer: Any, name: str) -> Any:
        """The layer, or what stands in its place; of a layer that is met again, the same."""
        if id(layer) in self.known:
            return self.known[id(layer)]
        self.places.setdefault(id(layer), name)
        made = self._linear(layer, name) if type(layer) is Linear else layer
        self.known[id(layer)] = made
        if made is layer and isinstance(layer, Layer):
            for attribute, value in list(vars(layer).items()):
                vars(layer)[attribute] = self._value(value, f"{name}.{attribute}" if name else attribute)
        return made

    def _value(self, value: Any, name: str) -> Any:
        if isinstance(value, Layer):
            return self.inside(value, name)
        if isinstance(value, (list, tuple)):
            return type(value)([self._value(x, f"{name}.{n}") for n, x in enumerate(value)])
        if isinstance(value, dict):
            return {key: self._value(x, f"{name}.{key}") for key, x in value.items()}
        return value

    def _linear(self, layer: Linear, name: str) -> Any:
        chunk = CHUNK[self.bits]
        if min(layer.inputs, layer.outputs) < self.least or layer.inputs * self.bits % 8:
            return layer
        owner = f"{name}.weight" if layer.tied is None else f"{self.places[id(layer.tied)]}.weight"
        default = layer.inputs if self.bits == 8 else _group_of(layer.inputs, chunk)
        group = default if self.group is None else self.group
        if layer.inputs % group:
            raise VerifyError(
                f"quantize: group={group}", expected=f"a divisor of the inputs of {name}, {layer.inputs}"
            )
        self.count += 1
        if layer.tied is None:
            self.names.add(owner)
        return WeightOnlyLinear(
            layer.inputs,
            layer.outputs,
            layer.bias,
            bits=self.bits,
            group=group,
            source=partial(self.weights.get, owner),
            bias_init=layer.bias_init,
        )


def _group_of(inputs: int, chunk: int) -> int:
    """128, or the greatest divisor of the inputs below it that kernels read, or all of them."""
    fitting: Iterator[int] = (g for g in range(GROUP, 0, -chunk) if inputs % g == 0)
    return next(fitting, inputs)
