"""Model: inputs and what is computed of them, one layer or a chain of layers; emitted here and again for each size that is compiled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ..errors import StateError, VerifyError
from ..graph.emit.builder import Builder, GraphEmitter, user_line
from ..graph.emit.results import main_result, named_results
from ..ir import Graph, Initializer, Role, Value
from ..ir.tree import children
from ..text import printable
from ..types import TensorSpec
from . import checks
from .layer import Layer
from .summary import Summary, summary

# First parts of names that mean something else: results, the optimizer's state, the run counter, constants, a generator's state.
RESERVED_LAYERS = frozenset({"const", "grad", "optimizer", "program", "sequences"})
RESERVED_INPUTS = frozenset({"loss", "output"})
_EMITTED = ("_builder", "_ctx", "_last", "_variables")  # what a copy or a pickle makes anew


class Model:
    """One layer of the inputs, or a chain of layers over the first of them.

    inputs  specs by name, or the spec of the one input "x"; a shape alone is of f32. Dimensions may be names, such as
            "batch", whose sizes follow each feed
    layer   the layer that is the model: its `emit` is given the inputs, several ones by their names, and its weights' names begin
            with its own attributes. What it returns are the results: a Value is "output", those of a tuple "output.0", "output.1", …,
            those of a dict have their keys. Without it `add` makes a chain
    sizes   a size for each named dimension: the one that `add` checks types with and `compile` plans for first
    seed    of the initialisers
    initial what weights start from in the place of their layers' initialisers, by name: functions of (shape, rng)

        model = Model({"x": TensorSpec(("batch", 64))}, batch=32)
        model.add(Linear(64, 10)).add(ReLU())
        model = Model({"tokens": TensorSpec(("batch", "seq"), i32)}, GPT(config), batch=8, seq=1024)

    A copy or a pickle of a model is its layers: they start from the seed again. `state_dict` carries trained weights.
    """

    def __init__(
        self,
        inputs: Mapping[str, TensorSpec] | TensorSpec | tuple,
        layer: Layer | None = None,
        *,
        seed: int = 0,
        initial: Mapping[str, Initializer] | None = None,
        **sizes: int,
    ) -> None:
        self.inputs = _specs(inputs)
        self.layer = None if layer is None else _whole(checks.layer(layer), self.inputs)
        self.seed = checks.whole("seed", seed)
        named = sorted({d for spec in self.inputs.values() for d in spec.dims})
        if unknown := sorted(set(sizes) - set(named)):
            raise VerifyError(
                f"no input has a dimension called {unknown[0]!r}",
                expected=f"a size for {', '.join(named)}" if named else "no sizes: no dimension has a name",
                got=f"{unknown[0]}={sizes[unknown[0]]!r}",
            )
        if unbound := [d for d in named if d not in sizes]:
            raise VerifyError(f"no size for {', '.join(unbound)}", hint=f"nn.Model(..., {unbound[0]}=32)")
        self.sizes = {name: checks.whole(name, size) for name, size in sizes.items()}
        self.layers: list[tuple[str, Layer]] = []
        self._lines: dict[str, str] = {}  # where each layer was added, for messages
        self._start()
        self.initial = _initial(initial or {}, self.graph)

    def _start(self) -> None:
        """Emit the layers there are into a graph of the model's own."""
        self._builder = Builder()
        self._ctx = GraphEmitter(self._builder, "cpu")
        self._last = self.emit(self._ctx, self._inputs(self._ctx))
        if self.layer is not None:
            named_results(self._last, self._builder)  # what is wrong with them is said here

    def _inputs(self, ctx: GraphEmitter) -> dict[str, Value]:
        bound = {name: spec.bind(self.sizes) for name, spec in self.inputs.items()}
        return {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in bound.items()}

    def add(self, layer: Layer, name: str | None = None) -> Model:
        """Emit a layer after those there are. A shape that does not fit is an error here, at the caller's line.

        name  of the layer, in front of its weights' names; its number if there is none. A layer object that is added
              again shares its weights, under the name it had first
        """
        line = user_line()
        checks.layer(layer)
        if self.layer is not None:
            raise VerifyError(
                f"this model is one layer, {type(self.layer).__name__}, and no chain", where=line,
                hint="nn.Model(inputs, nn.Sequential(first, second)) is both",
            )  # fmt: skip
        name = self._name(name)
        before = self._builder.mark()
        try:
            self._last = self._handed_on(layer, name)
        except Exception:
            self._builder.rewind(before)  # a refused layer leaves no trace
            raise
        self.layers.append((name, layer))
        self._lines[name] = line
        return self

    def _handed_on(self, layer: Any, name: str) -> Any:
        """What a layer makes of what the last one has returned."""
        try:
            return self._ctx.emit_layer(layer, name, (self._last,), {})
        except (AttributeError, TypeError) as error:  # a layer of one Value asks a tuple what it is not
            _check_takes(layer, (self._last,), {})
            if not children(self._last):
                raise
            raise VerifyError(
                f"{type(layer).__name__} does not take what the layer before it returns: {error}", where=user_line(),
                got=f"a {type(self._last).__name__} of {len(self._last)}", hint="a layer around them takes it apart",
            ) from error  # fmt: skip

    def check_complete(self) -> None:
        """VerifyError if there is nothing to compile; `compile` asks."""
        if self.layer is None and not self.layers and type(self).emit is Model.emit:
            raise VerifyError(
                "the model has no layers", expected="a layer at least, before it is compiled", got=repr(self),
                hint="model.add(nn.Linear(64, 10)); model.add(nn.Identity()) returns what it is fed",
            )  # fmt: skip

    def check_same(self, compiled: Model) -> None:
        """StateError if the layers are no longer those of an older copy, of which a program was compiled."""
        if self.layers == compiled.layers:
            return
        names, before = ([name for name, _ in one.layers] for one in (self, compiled))
        new = [name for name in names if name not in before]
        what = f"layer {new[0]!r} was added" if new else "its layers are others"
        raise StateError(
            f"the model has changed since this program was compiled: {what}", where=self._lines.get(new[0]) if new else None,
            expected=f"layers {', '.join(before)}", got=f"layers {', '.join(names) or 'none'}",
            hint="aicf.compile(model, ...) compiles the model of now, with the same weights; to keep a program of some layers, compile copy.copy(model)",
        )  # fmt: skip

    def _name(self, name: str | None) -> str:
        if name is None:
            name = str(len(self.layers))
        if not isinstance(name, str) or not name or "." in name or name in RESERVED_LAYERS:
            raise VerifyError(
                f"{name!r} can't be the name of a layer",
                expected=f"text without dots, other than {', '.join(sorted(RESERVED_LAYERS))}",
                where=user_line(),
            )
        if name in self._lines:
            raise VerifyError(f"two layers are called {name!r}", where=user_line())
        return name

    def __getstate__(self) -> dict[str, Any]:
        state = {k: v for k, v in vars(self).items() if k not in _EMITTED}
        return state | {"layers": list(self.layers), "_lines": dict(self._lines)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __copy__(self) -> Model:
        """The layers of now: what is added to the original later is not in the copy, nor the other way round."""
        other = object.__new__(type(self))
        other.__setstate__(self.__getstate__())
        return other

    @property
    def graph(self) -> Graph:
        """The forward graph at the model's own sizes, as `add` emitted it."""
        return self._builder.graph

    @property
    def outputs(self) -> dict[str, TensorSpec]:
        """All results by name, at the model's own sizes."""
        return {name: value.spec for name, value in named_results(self._last, self._builder).items()}

    @property
    def output(self) -> TensorSpec:
        """The result called "output", or the first: what losses read unless they name another."""
        outputs = self.outputs
        return outputs[main_result(outputs)]

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Any:
        """Emit the whole model again, for the sizes of these inputs; what its layer returns."""
        if self.layer is not None:
            one = len(inputs) == 1
            values, named = (tuple(inputs.values()), {}) if one else ((), inputs)
            return ctx.emit_layer(self.layer, "", values, named)
        x: Any = next(iter(inputs.values()))
        for name, layer in self.layers:
            x = ctx.emit_layer(layer, name, (x,), {}, self._lines[name])
        return x

    def summary(self) -> Summary:
        """A table of the layers: their names, what they make, their parameters; those of shared layers count once."""
        return summary(self)

    def __repr__(self) -> str:
        body = "".join(f"\n  {name}: {layer!r}" for name, layer in self.layers)
        body += "" if self.layer is None else f"\n  {self.layer!r}"
        return printable(f"Model({', '.join(f'{n}: {s}' for n, s in self.inputs.items())}){body}")


def _initial(given: Mapping[str, Initializer], graph: Graph) -> dict[str, Initializer]:
    """Initializers of weights that there are."""
    known = [value.name for value in graph.externals(Role.param)]
    if unknown := sorted(set(given) - set(known)):
        raise VerifyError(
            f"no weight is called {unknown[0]!r}", expected=", ".join(known[:8]) or "none: `add` comes later"
        )
    return {name: checks.initializer(f"initial[{name!r}]", init) for name, init in given.items()}


def _whole(layer: Any, inputs: Mapping[str, TensorSpec]) -> Any:
    """A layer that is a model: it takes the inputs, and its parts have names that mean nothing else."""
    kind = type(layer).__name__
    one = len(inputs) == 1
    _check_takes(layer, (0,) if one else (), {} if one else inputs, ", ".join(inputs), "the model's inputs")
    for name, part in layer.children() if isinstance(layer, Layer) else ():
        if (first := name.partition(".")[0]) in RESERVED_LAYERS:
            raise VerifyError(
                f"{kind}.{first} can't be the name of a layer: {part!r}", where=user_line(),
                expected=f"an attribute other than {', '.join(sorted(RESERVED_LAYERS))}",
            )  # fmt: skip
    return layer


def _check_takes(
    layer: Any,
    values: tuple[Any, ...],
    named: Mapping[str, Any],
    names: str = "x",
    what: str = "ctx and a Value",
) -> None:
    """VerifyError if a layer's emit can't be called with `ctx` and these."""
    try:
        inspect.signature(layer.emit).bind("ctx", *values, **named)
    except TypeError as error:
        raise VerifyError(
            f"{type(layer).__name__}.emit does not take {what}: {error}", expected=f"emit(self, ctx, {names})",
            got=f"emit{inspect.signature(layer.emit)}", where=user_line(), hint=f"def emit(self, ctx, {names}): ctx has the ops, such as ctx.relu(x)",
        ) from None  # fmt: skip


def _specs(inputs: Any) -> dict[str, TensorSpec]:
    if isinstance(inputs, (TensorSpec, tuple)):
        inputs = {"x": inputs}
    example = 'nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=32)'
    if not isinstance(inputs, Mapping):
        raise VerifyError(f"the inputs are {inputs!r}", expected="specs by name", hint=example)
    if not inputs:
        raise VerifyError("a model needs an input", hint=example)
    specs = {}
    for name, spec in inputs.items():
        if not isinstance(name, str) or not name or name in RESERVED_INPUTS:
            raise VerifyError(
                f"{name!r} can't be the name of an input",
                expected="text other than " + " and ".join(sorted(RESERVED_INPUTS)),
            )
        if not isinstance(spec, (TensorSpec, tuple, list)):
            raise VerifyError(
                f"input {name} is declared as {spec!r}", expected="a TensorSpec or a shape", hint=example
            )
        specs[name] = spec if isinstance(spec, TensorSpec) else TensorSpec(tuple(spec))
    return specs
