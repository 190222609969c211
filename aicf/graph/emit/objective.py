"""The loss in a graph: what it reads of the model's results, what it is fed, and what it returns beside its value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from ... import near
from ...errors import VerifyError
from ...ir import Role, Value
from ...ir.tree import tree_map
from ...types import TensorSpec
from .builder import GraphEmitter
from .results import main_result, named_results

EVERYTHING = "*"  # what a loss reads: all that the model returns, as it returns it


class LossLike(Protocol):
    """A loss: the targets it is fed, given the spec of the result that it reads, and the 0-D value it computes.

    It may have a `result`: the name of the result that it reads, in the place of "output" or the first; "*" is all that the model returns.
    `emit` may return a tuple: the loss, and Values by name that programs return beside it. With a `returns_output` that is false, programs
    that differentiate it don't return the result that it reads.
    """

    def targets(self, output: Any) -> Mapping[str, TensorSpec | None]: ...

    def emit(self, ctx: Any, output: Any, targets: Mapping[str, Value]) -> Any: ...


class LossFunction:
    """A loss that is a function of what the model returns, as it returns it: a Value, a tuple, a dict.

    function  (out, y, …) -> 0-D Value, or (ctx, out, y, …); or a layer without weights, whose `emit` is that. Parameters behind the first are
              inputs of the model, or targets. It may return a tuple: the loss, and a dict of Values that programs return beside it
    targets   the specs of targets by name; dimensions may have the names of those of the inputs

        loss = nn.LossFunction(
            lambda ctx, out, y: ctx.cross_entropy(out["logits"], y).mean() + 0.01 * out["router"],
            y=aicf.TensorSpec(("batch",), aicf.i64),
        )

    A function whose parameters are all inputs of the model may be given to `compile` as it is.
    """

    result = EVERYTHING

    def __init__(self, function: Callable[..., Any] | Any, /, **targets: TensorSpec | tuple) -> None:
        emit = getattr(function, "emit", None)
        if isinstance(function, type) or not callable(emit or function):
            raise VerifyError(
                f"LossFunction: {function!r}",
                expected="a function (out, y) or (ctx, out, y), or a layer",
                hint=_HINT,
            )
        self.function = function
        self._takes_ctx, self._names = _parameters(emit or function, emit is not None, targets)
        self._targets = {
            name: spec if isinstance(spec, TensorSpec) else TensorSpec(tuple(spec))
            for name, spec in targets.items()
        }

    def targets(self, output: Any) -> Mapping[str, TensorSpec | None]:
        """The specs of what the function is fed by name; None for an input of the model."""
        return {name: self._targets.get(name) for name in self._names}

    def emit(self, ctx: Any, output: Any, targets: Mapping[str, Value]) -> Any:
        """What the function returns."""
        if hasattr(self.function, "emit"):
            return ctx.emit_layer(self.function, "loss", (output,), targets)
        return self.function(*((ctx,) if self._takes_ctx else ()), output, **targets)

    def __repr__(self) -> str:
        said = "".join(f", {name}={spec}" for name, spec in self._targets.items())
        return f"LossFunction({getattr(self.function, '__name__', repr(self.function))}{said})"


_HINT = 'nn.LossFunction(lambda out, y: abs(out["mean"] - y).mean(), y=aicf.TensorSpec(("batch", 3)))'


def _parameters(function: Any, layer: bool, targets: Mapping[str, Any]) -> tuple[bool, tuple[str, ...]]:
    """(whether it takes `ctx`, the names of what it is fed)."""
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin has none
        return layer, tuple(targets)
    takes_ctx = layer or bool(found and found[0].name == "ctx")
    rest = found[takes_ctx + 1 :]
    if len(found) <= takes_ctx or any(p.kind is p.POSITIONAL_ONLY for p in rest):
        raise VerifyError(
            f"LossFunction: a function of {', '.join(p.name for p in found) or 'nothing'}",
            expected="(out), (out, y) or (ctx, out, y), targets by their names", hint=_HINT,
        )  # fmt: skip
    named = [p.name for p in rest if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if unknown := [n for n in targets if n not in named and not any(p.kind is p.VAR_KEYWORD for p in rest)]:
        raise VerifyError(
            f"LossFunction: the function takes no {unknown[0]!r}", expected=", ".join(named) or "no targets"
        )
    asked = [p.name for p in rest if p.name in named and (p.default is p.empty or p.name in targets)]
    return takes_ctx, tuple(dict.fromkeys([*asked, *targets]))


def loss_of(given: Any) -> Any:
    """What `compile(loss=…)` was given; a bare function, or a layer, as a LossFunction."""
    bare = callable(given) and not isinstance(given, type) and not hasattr(given, "targets")
    foreign = near.from_torch(given) or str(getattr(given, "__module__", "")).partition(".")[0] == "torch"
    return LossFunction(given) if bare and not foreign else given


def result_read(loss: LossLike | None, results: Mapping[str, Value]) -> str | None:
    """The name of the result that a loss reads; None if it reads all, or there is no loss."""
    name = getattr(loss, "result", None) or main_result(results)
    if loss is None or name == EVERYTHING:
        return None
    if name not in results:
        raise VerifyError(
            f"{type(loss).__name__} reads the result {name!r}, which the model does not return", expected=", ".join(results),
            hint=f"result={next(iter(results))!r}",
        )  # fmt: skip
    return str(name)


def emit_loss(
    loss: LossLike, ctx: GraphEmitter, read: Any, inputs: Mapping[str, Value], sizes: Mapping[str, int]
) -> tuple[Value, dict[str, Value]]:
    """(the loss, what it returns beside it), of what it reads: a Value, or all that the model returns."""
    builder, kind = ctx.builder, type(loss).__name__
    params = len(builder.graph.externals(Role.param))
    specs = loss.targets(tree_map(lambda value: replace(value.spec), read))
    targets = {name: _target(ctx, inputs, name, spec, sizes) for name, spec in specs.items()}
    made = loss.emit(ctx, read, targets)
    value, aside = (made[0], made[1]) if isinstance(made, (tuple, list)) and len(made) == 2 else (made, {})
    ctx._check_owned(value, f"{kind}.emit's result")
    if not isinstance(aside, Mapping):
        raise VerifyError(
            f"{kind}.emit returned {type(aside).__name__} beside the loss", expected="a dict of Values: (loss, {'accuracy': …})",
            where=value.where,
        )  # fmt: skip
    if len(builder.graph.externals(Role.param)) > params:
        raise VerifyError(
            f"{kind} declares a weight", expected="a loss without weights: the optimizer trains those of the model", where=value.where,
            hint="declare it in the model, and return what the loss needs of it",
        )  # fmt: skip
    beside = named_results(dict(aside), builder) if aside else {}
    for name, part in beside.items():
        ctx._check_owned(part, f"{kind}.emit's {name!r}")
    return value, {name: ctx.widened(part) for name, part in beside.items()}


def _target(
    ctx: GraphEmitter, inputs: Mapping[str, Value], name: str, spec: TensorSpec | None, sizes: Mapping[str, int]
) -> Value:  # fmt: skip
    """What a loss is fed; an input of the model may be a target as well, if it has the target's type."""
    known = inputs.get(name)
    if spec is None and known is None:
        raise VerifyError(
            f"the loss takes {name!r}, which is no input of the model", expected=f"{', '.join(inputs)}, or a target with its spec",
            hint=f'nn.LossFunction(function, {name}=aicf.TensorSpec(("batch",), aicf.i64))',
        )  # fmt: skip
    if spec is None:
        assert known is not None
        return known
    bound = spec.bind(sizes)
    if known is None:
        return ctx.input(name, bound.shape, bound.dtype)
    if (known.shape, known.dtype) != (bound.shape, bound.dtype):
        raise VerifyError(
            f"the loss's target {name!r} has the name of an input of the model", expected=f"{name}: {bound}",
            got=f"{name}: {known.spec}", hint=f"feed the target under another name: target={name + '_target'!r}",
        )  # fmt: skip
    return known
