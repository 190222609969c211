"""What layers declare through `ctx`: their names, inputs, params, states, meta-parameters and random numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import AicfError, VerifyError
from ...ir import Check, Initializer, Role, Value
from ...ir.tree import leaves
from ...types import DType, TensorSpec, f32, i32, i64
from .narrowing import Narrowing
from .policy import Policy
from .sequences import Sequences


@dataclass(frozen=True)
class Constant:
    value: float

    def __call__(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        return np.full(shape, self.value)


DRAWS = 2**20  # uses of the random state that a rank has: the numbers of another begin behind them


class Declarations(Narrowing):
    """The part of an emitter that names things. A name is that of the layers it is declared in, and its own: `0.inner.weight`."""

    builder: Any  # the Builder that it emits into
    device: str

    def __init__(self, policy: Policy, declared: Mapping[str, DType], copies: bool) -> None:
        super().__init__(policy, declared, copies)
        self._draws = 0
        self.rank = 0  # of several that draw numbers of their own
        self._scope: tuple[str, ...] = ()
        self._again = False  # inside a layer that was emitted before: its names mean the same weights
        self._made: dict[Hashable, Value] = {}  # what is emitted once
        self.owner: Any = None  # the layer that is being emitted
        self.sequences: Sequences | None = None  # that the graph goes on with; None: it sees whole ones

    @contextmanager
    def scope(self, name: str, line: str = "") -> Iterator[None]:
        """Names declared inside get `name.` in front; messages about what is emitted inside give `line`."""
        with self._within((*self._scope, name), line):
            yield

    @contextmanager
    def at(self, line: str) -> Iterator[None]:
        """Messages about what is emitted inside give `line`, such as the node of a graph that was read."""
        with self._within(self._scope, line):
            try:
                yield
            except AicfError as error:
                error.where = error.where or line
                raise

    @contextmanager
    def _within(
        self, scope: tuple[str, ...], line: str, again: bool = False, owner: Any = None
    ) -> Iterator[None]:
        builder = self.builder
        before = self._scope, self._again, builder.line, builder.layer, self.owner
        self._scope, self._again = scope, again or self._again
        builder.line, builder.layer = line or builder.line, ".".join(scope)
        self.owner = self.owner if owner is None else owner
        try:
            yield
        finally:
            self._scope, self._again, builder.line, builder.layer, self.owner = before

    # --- layers -----------------------------------------------------------------------------------------------------

    def layer(self, layer: Any, name: str, /, *values: Any, **named: Any) -> Any:
        """Emit a layer of these operands, its weights called `<name>.…`. One that was emitted before shares the weights it has.

        Inside a layer's `emit`, `self.inner(x)` is ctx.layer(self.inner, "inner", x).
        """
        return self.emit_layer(layer, name, values, named)

    def emit_layer(
        self, layer: Any, name: str, values: Sequence[Any], named: Mapping[str, Any], line: str = ""
    ) -> Any:
        """`layer`, with the line that messages give. A layer without a name adds nothing to those of its weights."""
        known = self.builder.layers.get(id(layer))
        _, scope = known or (layer, (*self._scope, name) if name else self._scope)
        self.builder.layers[id(layer)] = layer, scope
        with self._within(scope, line, again=known is not None, owner=layer):
            y = self._emit(layer, scope, values, named)
            for path, result in leaves(y):
                at = f" {path!r}" if path else ""
                self._check_owned(result, f"{type(layer).__name__}.emit's result{at}")
        return y

    def emitted(self, layer: Any) -> bool:
        """Whether a layer was emitted before: it has its name then."""
        return id(layer) in self.builder.layers

    # --- tensors ----------------------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def input(self, name: str, shape: tuple[int, ...], dtype: Any = f32) -> Value:
        return self.builder.value(name, TensorSpec(shape, DType.of(dtype), self.device), Role.input)

    def param(
        self, name: str, shape: tuple[int, ...], init: Initializer, dtype: Any = f32, use: str = "weight"
    ) -> Value:
        """A trained tensor, called `<scope>.<name>`.

        use  what it is for: "weight", "bias", "norm", "embedding", or a word of one's own; groups of an optimizer may name it
        """
        full, dtype = self._name(name), DType.of(dtype)
        spec = TensorSpec(shape, self._kept(full, dtype), self.device)
        known = self.builder.find(full) if self._again else None
        if known is None:
            return self._used(self.builder.value(full, spec, Role.param, init, use=use), dtype)
        self._check_shared(known, spec, "a shared layer has one", "add a layer of its own there")
        return self._used(known, dtype)

    def param_of(self, layer: Any, name: str, shape: tuple[int, ...], dtype: Any = f32) -> Value:
        """A param that another layer has declared, of this type: tied weights. Their gradients add up."""
        kind = type(layer).__name__
        if not self.emitted(layer):
            raise VerifyError(
                f"a weight is tied to that of {layer!r}, which was not emitted before",
                where=self.builder.here(), hint=f"call the {kind} first: it names the weight and gives it its first value",
            )  # fmt: skip
        full = ".".join((*self.builder.layers[id(layer)][1], name))
        known = self.builder.find(full)
        if known is None or known.role is not Role.param:
            raise VerifyError(f"{layer!r} has no param called {name!r}", got=full, where=self.builder.here())
        spec = TensorSpec(shape, self._kept(full, DType.of(dtype)), self.device)
        self._check_shared(known, spec, "a weight is tied to", "tied weights have one shape and element type")
        return self._used(known, DType.of(dtype))

    def _check_shared(self, known: Value, spec: TensorSpec, what: str, hint: str) -> None:
        if known.spec != spec:
            raise VerifyError(
                f"{what} {known.name}", expected=str(known.spec), got=str(spec), where=self.builder.here(), hint=hint
            )  # fmt: skip

    def state(
        self, name: str, shape: tuple[int, ...], init: Initializer | float, dtype: Any = f32, check: Check | None = None,
    ) -> Value:  # fmt: skip
        """A tensor kept between runs; the same name gives the same value. `init` may be a number.

        check  of (name, value); raises VerifyError for what a state dict can't bring
        """
        full, dtype = self._name(name), DType.of(dtype)
        known = self.builder.find(full)
        if known is not None:
            return known
        start = init if callable(init) else Constant(self._number(init, dtype, f"state: {full}"))
        spec = TensorSpec(shape, dtype, self.device)
        return self.builder.value(full, spec, Role.state, start, check=check)

    def session(
        self, name: str, shape: tuple[int, ...], init: Initializer | float, dtype: Any = f32
    ) -> Value:
        """A state of one generator, not of the model: no state dict has it, and its name is whole."""
        known = self.builder.find(name)
        if known is not None:
            return known
        spec = TensorSpec(shape, DType.of(dtype), self.device)
        start = init if callable(init) else Constant(self._number(init, spec.dtype, f"session: {name}"))
        return self.builder.value(name, spec, Role.state, start, session=True)

    def positions(self, count: int) -> Value:
        """The places, from 0, of `count` rows in a row of a sequence: (count,) of i32, or (batch, count) where the graph goes on with
        sequences. An embedding of places, or whatever else depends on them, reads it, so that a KV cache can serve the model."""
        if self.sequences is not None:
            return self.sequences.positions(count)
        return self.once(("positions", count), lambda: self.op("iota", shape=(count,), axis=0, dtype=i32))

    def table(self, name: str, shape: tuple[int, ...], init: Initializer, dtype: Any = f32) -> Value:
        """A constant array that `init` makes once. It is in no state dict, and the same in all layers that name it."""
        full, spec = f"const.{name}", TensorSpec(shape, DType.of(dtype), self.device)
        known = self.builder.find(full)
        if known is None:
            return self.builder.value(full, spec, Role.state, init, constant=True)
        self._check_shared(known, spec, "there is a table", "a table of another type has another name")
        return known

    def once(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """What `make` emits, once for all layers that ask for the same key: positions, masks, what is read from tables."""
        known = self._made.get(key)
        if known is None or not self.builder.owns(known):  # a layer that was refused takes along what it made
            known = self._made[key] = make()
            self._check_owned(known, f"ctx.once: {key!r}")
        return known

    def meta(self, name: str, value: float, check: Check | None = None, shared: bool = False) -> Value:
        """A meta-parameter: a 0-D f32 state that `program.set(name=…)` changes, without a new plan.

        check   of (name, value) -> value; raises for what the parameter can't be
        shared  with the model's other programs that declare it so; else it is this program's own
        """
        full, spec = self._name(name), TensorSpec((), f32, self.device)
        known = self.builder.find(full)
        if known is not None:
            return known
        return self.builder.value(
            full, spec, Role.state, Constant(value), meta=name, check=check, shared=shared
        )

    # --- random numbers ---------------------------------------------------------------------------------------------

    def random(self) -> tuple[Value, int]:
        """(the graph's random state, the number of this use of it). `advance` goes on to the next step."""
        known = self.builder.find("rng")
        if known is None or known.role is not Role.state:
            spec = TensorSpec((2,), i64, self.device)
            known = self.builder.value("rng", spec, Role.state, _random_start, check=_check_random)
        self._draws += 1
        return known, self._draws - 1 + self.rank * DRAWS

    def advance(self) -> None:
        """After everything that reads the random state: the next run draws other numbers."""
        if self._draws:
            state = self.builder.find("rng")
            assert state is not None
            self.builder.update(state, self.op("rng_advance", state))

    # --- what the emitter has ---------------------------------------------------------------------------------------

    if TYPE_CHECKING:

        def _number(self, value: Any, dtype: DType, what: str) -> float: ...

        def _check_owned(self, value: Any, what: str) -> None: ...


def _random_start(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """A key drawn from the model's seed, and step 0."""
    return np.array([rng.integers(2**63), 0])


def _check_random(name: str, state: np.ndarray) -> None:
    if state[1] < 0:
        raise VerifyError(f"{name}={state.tolist()}", expected="a key, and a step of 0 or more")
