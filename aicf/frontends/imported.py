"""Imported: a model made of another framework's graph. `aicf.compile`, `explain_for` and training take it as they take an nn.Model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..device.runtime import cuda_missing, runtime
from ..device.spec import PRESETS
from ..errors import DeviceError, VerifyError
from ..graph.emit.builder import Builder, GraphEmitter
from ..graph.emit.results import named_results
from ..ir import Initializer, Role, Value
from ..text import printable
from ..types import DType, TensorSpec

# First parts of names that mean something else in a program: see nn.model.
_RESERVED = frozenset({"const", "grad", "optimizer", "program", "sequences"})

Body = Callable[[GraphEmitter, Mapping[str, Value], Mapping[str, Value]], Any]


@dataclass(frozen=True)
class Weight:
    """A tensor that comes with a graph.

    array    its values, or a function without arguments that reads them, such as from a file: called once for each device
    role     "param": trained, and its gradient returned; "state": kept, in the state dict, not trained; "constant": neither
    """

    spec: TensorSpec
    array: np.ndarray | Callable[[], np.ndarray]
    role: str = "param"

    @classmethod
    def of(cls, array: np.ndarray, role: str | None = None) -> Weight:
        """Of an array: floats are params, the rest is state, unless `role` says otherwise."""
        spec = TensorSpec(array.shape, DType.of(array.dtype))
        return cls(spec, array, role or ("param" if spec.dtype.kind == "float" else "state"))

    def declared(self, ctx: GraphEmitter, name: str) -> Value:
        """Its Value in a graph."""
        shape, dtype = self.spec.shape, self.spec.dtype
        init: Initializer = partial(_values, self.array)
        if self.role == "param":
            return ctx.param(name, shape, init, dtype)
        return (ctx.state if self.role == "state" else ctx.table)(name, shape, init, dtype)


def _values(source: Any, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return np.asarray(source() if callable(source) else source)


class Imported:
    """A model whose graph came from elsewhere.

    inputs   specs by name; their dimensions may be named
    body     (ctx, inputs, weights) -> results: emits the graph, here once to see that it can be, and again for each size
             that is compiled. What it returns is named as what an nn.Model's layer returns: "output", or a dict's own keys
    weights  by the names that they have in their framework; each is declared whether `body` reads it or not
    sizes    a size for each named dimension: the one that `compile` plans for first
    source   what it was made of, for messages: "torch", "onnx model.onnx"

    `weight_inputs` has the names of inputs that are weights, whose rows are no samples: invariant rows are those of the other inputs.
    `ctx.at(line)` around what `body` emits says in messages which node of the foreign graph it was.
    """

    def __init__(
        self, inputs: Mapping[str, TensorSpec], body: Body, weights: Mapping[str, Weight] | None = None, *,
        sizes: Mapping[str, int] | None = None, source: str = "", seed: int = 0,
    ) -> None:  # fmt: skip
        self.inputs, self.weights = dict(inputs), dict(weights or {})
        self.body, self.sizes, self.source, self.seed = body, dict(sizes or {}), source, seed
        _check_names(self.inputs, self.weights, source)
        named = {dim for spec in self.inputs.values() for dim in spec.dims}
        if unbound := sorted(named - set(self.sizes)):
            raise VerifyError(
                f"{source}: no size for {', '.join(unbound)}", hint=f"sizes={{{unbound[0]!r}: 32}}"
            )
        self.sizes = {name: self.sizes[name] for name in sorted(named)}
        self.weight_inputs = frozenset[str]()
        self.outputs = self._outputs()

    def emit(self, ctx: GraphEmitter, inputs: Mapping[str, Value]) -> Any:
        """Emit the graph for the sizes of these inputs."""
        weights = {name: weight.declared(ctx, name) for name, weight in self.weights.items()}
        return self.body(ctx, inputs, weights)

    def _outputs(self) -> dict[str, TensorSpec]:
        """What it returns at its own sizes, by name; whatever is wrong with the graph is said here."""
        builder = Builder()
        ctx = GraphEmitter(builder, "cpu")
        bound = {name: spec.bind(self.sizes) for name, spec in self.inputs.items()}
        given = {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in bound.items()}
        return {name: value.spec for name, value in named_results(self.emit(ctx, given), builder).items()}

    @property
    def params(self) -> list[str]:
        """Names of the weights that are trained."""
        return [name for name, weight in self.weights.items() if weight.role == Role.param]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_variables"}

    def __repr__(self) -> str:
        given, made = (
            ", ".join(f"{n}: {s}" for n, s in specs.items()) for specs in (self.inputs, self.outputs)
        )
        return printable(
            f"Imported({self.source or 'graph'}: {given} -> {made}; {len(self.weights)} weights)"
        )


def _check_names(inputs: Mapping[str, Any], weights: Mapping[str, Weight], source: str) -> None:
    """Each name means one tensor, and none of what programs name themselves."""
    for name in (*inputs, *weights):
        if not isinstance(name, str) or not name or name.partition(".")[0] in _RESERVED:
            raise VerifyError(
                f"{source}: {name!r} can't be the name of an input or a weight",
                expected=f"text whose first part is none of {', '.join(sorted(_RESERVED))}",
            )
    if both := sorted(set(inputs) & set(weights)):
        raise VerifyError(
            f"{source}: an input and a weight are both called {both[0]!r}", expected="names of their own"
        )


def free_names(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Names for results: each as it is, but for an underscore where another tensor or a program has the name."""
    used, found = {*taken, "loss"}, []
    for name in names:
        if name.partition(".")[0] in _RESERVED:
            name = f"_{name}"
        while name in used:
            name += "_"
        used.add(name)
        found.append(name)
    return found


def runtime_of(device: str | None, model: str) -> str | None:
    """What `aicf.compile` takes: a preset's name stands for the GPU of this machine if it is one. `model` is how one asks for other GPUs."""
    if device not in PRESETS or device == "cpu":
        return device
    if not cuda_missing() and runtime("cuda").spec.name == PRESETS[device].name:
        return "cuda"
    raise DeviceError(
        f"this machine has no {device}, so nothing runs on it here", expected="cpu, cuda, cuda:N or auto",
        hint=f'aicf.explain_for({model}, "{device}") says what would run there',
    )  # fmt: skip
