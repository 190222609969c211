"""Layer: what emits a part of the forward pass, and how layers inside it get their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import VerifyError
from ..graph.emit.builder import user_line
from ..ir import Value
from ..ir.tree import leaves
from . import checks


class Layer:
    """Emits its part of the forward pass: `emit(ctx, x) -> y`, declaring weights with `ctx.param`.

    It may take several Values, by position or by name, and other Python objects; it returns a Value, or Values in tuples, lists and
    dicts. A layer in an attribute of another, or in a list or dict there, is called inside that one's `emit`, `self.attention(x)`, and its
    weights are called after where it is: `blocks.0.attention.weight`. A layer object that is used in two places has one set of
    weights, under the name it had first.
    """

    def emit(self, ctx: Any, *values: Any, **named: Any) -> Any:
        """What the layer computes of these Values: a Value, or Values in tuples, lists and dicts. `ctx` has all ops as
        methods, `param` and `positions`."""
        raise checks.lacks(self, "emit", "ctx, x", "a Value")

    def __call__(self, *values: Any, **named: Any) -> Any:
        """Emit this layer inside another one's `emit`, after the Values that it is given."""
        ctx = _emitter(self, values, named)
        name = "" if ctx.emitted(self) else _name(self, ctx)
        return ctx.emit_layer(self, name, values, named)

    def children(self) -> Iterator[tuple[str, Any]]:
        """The layers in this one's attributes, with their names; those in lists and dicts have their place in the name."""
        for name, value in vars(self).items():
            yield from _layers(name, value)

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{k}={v!r}"
            for k, v in vars(self).items()
            if isinstance(v, (bool, int, float, str)) or _numbers(v)
        )
        return f"{type(self).__name__}({shown})"


def _numbers(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(type(n) is int for n in value)


def _layers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Layer):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for n, inner in enumerate(value):
            yield from _layers(f"{name}.{n}", inner)
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _layers(f"{name}.{key}", inner)


def _emitter(layer: Layer, values: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    found = [v for given in (*values, *named.values()) for _, v in leaves(given)]
    ctx = next((v.emitter for v in found if isinstance(v, Value) and v.emitter is not None), None)
    if ctx is None:
        raise VerifyError(
            f"{layer!r} was called without a Value", got=", ".join(type(v).__name__ for v in found) or "no operand",
            expected="Values of a graph, inside another layer's emit", where=user_line(),
            hint="a model runs when it is compiled: aicf.compile(model)({'x': array}); ctx.layer(layer, name) emits one without operands",
        )  # fmt: skip
    return ctx


def _name(layer: Layer, ctx: Any) -> str:
    """Where a layer is, seen from the one that is being emitted: the shortest way of attributes."""
    seen, front = {id(ctx.owner)}, [("", ctx.owner)]
    while front:
        inner = [(f"{path}{name}", part) for path, whole in front for name, part in _children(whole)]
        for name, part in inner:
            if part is layer:
                return name
        front = [(f"{name}.", part) for name, part in inner if id(part) not in seen]
        seen.update(id(part) for _, part in front)
    kind = type(ctx.owner).__name__
    raise VerifyError(
        f"{layer!r} is called in {kind}.emit, but in no attribute of the {kind}", where=ctx.here(),
        expected="a layer that its owner keeps, so that its weights have a name",
        hint=f"self.inner = {type(layer).__name__}(...) in __init__, and self.inner(x) in emit; or ctx.layer(layer, name, x)",
    )  # fmt: skip


def _children(layer: Any) -> Iterator[tuple[str, Any]]:
    return layer.children() if isinstance(layer, Layer) else iter(())
