"""What a policy does to the values of a model: where they are narrowed, in which types params are kept, which layers are exempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import Role, Value
from ...ir.tree import tree_map
from ...types import DType, TensorSpec, f32
from .policy import Policy


class Narrowing:
    """The part of an emitter that follows a policy.

    policy    the element type of each role
    declared  the types in which the model declares its params without a policy, by name
    copies    whether params of f32 have copies in the type that is computed in, which outlive a run and are written with the params
    """

    builder: Any
    device: str

    def __init__(self, policy: Policy, declared: Mapping[str, DType], copies: bool) -> None:
        self.policy = policy
        # what params and inputs of f32 are converted to where they are used; None: they stay as they are
        self.compute: DType | None = policy.narrow
        self.copies: list[tuple[Value, Value]] = []  # copies of params, and whose they are
        self._declared, self._copied = declared, copies
        self._narrowed: dict[tuple[int, DType], Value] = {}
        self._exact: dict[int, Value] = {}  # what exempt layers made, by what it was narrowed to

    def computed(self, value: Value) -> Value:
        """A value of f32 in the type that the policy computes in."""
        return value if self.compute is None or value.dtype is not f32 else self._as(value, self.compute)

    def exact(self, value: Value) -> Value:
        """What an exempt layer made, if this is the narrowed form of it; else the value."""
        return self._exact.get(value.vid, value)

    def widened(self, value: Value) -> Value:
        """What a policy narrowed, in f32 again: what exempt layers, a loss or a caller see of the model."""
        value = self.exact(value)
        return self._as(value, f32) if value.dtype is self.policy.narrow else value

    def moment(self, param: Value, name: str, init: Any = 0.0) -> Value:
        """A state that an optimizer keeps of a parameter, `<param>.<name>`, in the policy's type for those."""
        made: Value = self.state(f"{param.name}.{name}", param.shape, init, self.policy.optimizer)
        return made

    def _kept(self, name: str, asked: DType) -> DType:
        """The type that a param is kept in: what the model declares; where that follows the policy alone, f32."""
        declared = self._declared.get(name, f32 if asked is self.policy.narrow else asked)
        return DType.of(self.policy.parameters) if declared is f32 else declared

    def _used(self, param: Value, asked: DType) -> Value:
        """A param as a layer asked for it; what it asks for in f32, as the policy computes."""
        wanted = self.compute if self.compute is not None and asked is f32 else asked
        if param.dtype is wanted:
            return param
        if not self._copied or param.dtype is not f32:
            return self._as(param, wanted)
        known = self.builder.find(f"{param.name}.{wanted}")
        if known is None:
            spec = TensorSpec(param.shape, wanted, self.device)
            known = self.builder.value(f"{param.name}.{wanted}", spec, Role.state, _unset, copy_of=param.name)
            self.copies.append((known, param))
        return known

    def _as(self, value: Value, dtype: DType) -> Value:
        """A conversion, emitted once."""
        known = self._narrowed.get((value.vid, dtype))
        if known is None or not self.builder.owns(known):
            known = self._narrowed[value.vid, dtype] = self.op("convert", value, dtype=dtype)
        return known

    # --- exempt layers ------------------------------------------------------------------------------------------------

    def _emit(self, layer: Any, scope: Sequence[str], values: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """A layer's part of the graph; of an exempt one in f32, between what is widened and what is narrowed."""
        if self.compute is None or not self.policy.exempts(".".join(scope), layer):
            return layer.emit(self, *values, **named)
        narrow = self.compute
        values = [self._each(v, self.widened) for v in values]
        named = {name: self._each(v, self.widened) for name, v in named.items()}
        self.compute = None
        try:
            y = layer.emit(self, *values, **named)
        finally:
            self.compute = narrow
        return self._each(y, self._handed_on)

    def _handed_on(self, value: Value) -> Value:
        narrow = self.computed(value)
        if narrow is not value:
            self._exact[narrow.vid] = value
        return narrow

    def _each(self, given: Any, change: Any) -> Any:
        def owned(leaf: Any) -> Any:
            return change(leaf) if isinstance(leaf, Value) and self.builder.owns(leaf) else leaf

        return tree_map(owned, given)

    if TYPE_CHECKING:

        def op(self, kind: str, *operands: Value | float | None, **named: Any) -> Any: ...

        def state(self, name: str, shape: tuple[int, ...], init: Any, dtype: Any = f32) -> Value: ...


def _unset(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Before its first use a copy is made of its param."""
    return np.zeros(shape)
