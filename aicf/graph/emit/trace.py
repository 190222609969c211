"""From a model to a graph: the forward pass, and for training the loss, the gradients and the optimizer's steps.

graph/ knows models, losses and optimizers only by these protocols; aicf.nn implements them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ... import near
from ...errors import AicfError, VerifyError
from ...ir import Graph, Role, Value
from ...ir.tree import tree_map
from ...types import DType, Precision, TensorSpec
from .builder import Builder, GraphEmitter
from .objective import LossLike, emit_loss, loss_of, result_read
from .parallel import Parallel, reduced
from .policy import Policy, policy_of
from .results import GRAD, LOSS, check_free, named_results
from .step import OptimizerLike, accumulated, keep_if_valid, optimizer_step, scaled_gradients, unscaled

MODES = ("infer", "grad", "train")
FED = "fed"  # see `trace`
Rewrite = Callable[[GraphEmitter, Iterable[Value], Iterable[Value]], object]


class ModelLike(Protocol):
    """A model: input specs whose dimensions may be named, and an `emit` from input values to what it returns: see `named_results`."""

    @property
    def inputs(self) -> Mapping[str, TensorSpec]: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def seed(self) -> int: ...

    def emit(self, ctx: Any, inputs: Mapping[str, Value]) -> Any: ...


@dataclass(frozen=True)
class Recipe:
    """What to compile: everything but the sizes of named dimensions.

    accumulate  the optimizer steps when the gradients of so many runs are there, by their mean
    precision   of products of f32, where an op is not told its own
    policy      the element type of each role, or the name of a preset
    parallel    how it is spread over ranks; None on one
    """

    model: ModelLike
    mode: str
    loss: LossLike | None = None
    optimizer: OptimizerLike | None = None
    accumulate: int = 1
    precision: Precision | str = Precision.exact
    policy: Policy | str = "f32"
    parallel: Parallel | None = None

    def __post_init__(self) -> None:
        _check_part(
            "model",
            self.model,
            ("inputs", "sizes", "seed", "emit"),
            "an nn.Model",
            'nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=32).add(layer)',
        )
        getattr(self.model, "check_complete", lambda: None)()
        object.__setattr__(self, "loss", loss_of(self.loss))
        if self.loss is not None:
            losses = "loss=nn.SoftmaxCrossEntropy() for classes, loss=nn.MeanSquaredError() for numbers"
            _check_part("loss", self.loss, ("targets", "emit"), "an nn.Loss", losses)
        if self.optimizer is not None:
            _check_part(
                "optimizer", self.optimizer, ("emit",), "an nn.Optimizer", "optimizer=nn.Adam(lr=1e-3)"
            )
        if self.mode not in MODES:
            raise VerifyError(f"mode {self.mode!r} is unknown", expected=", ".join(MODES))
        if self.mode != "infer" and self.loss is None:
            raise VerifyError(
                f"mode {self.mode!r} needs a loss", hint="compile(..., loss=nn.SoftmaxCrossEntropy())"
            )
        if self.mode == "train" and self.optimizer is None:
            raise VerifyError(
                "mode 'train' needs an optimizer", hint="compile(..., optimizer=nn.Adam(lr=1e-3))"
            )
        runs = self.accumulate
        if type(runs) is not int or runs < 1 or (runs > 1 and self.mode != "train"):
            raise VerifyError(
                f"accumulate={runs!r} in mode {self.mode!r}",
                expected="the whole number 1, or more in mode 'train'",
            )
        if isinstance(self.precision, bool) or self.precision not in (*Precision, *Precision.__members__):
            raise VerifyError(
                f"precision {self.precision!r} is unknown", expected=", ".join(Precision.__members__)
            )
        policy_of(self.policy)

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the ops that have them."""
        chosen = self.precision
        return {"precision": int(Precision[chosen] if isinstance(chosen, str) else chosen)}

    @property
    def types(self) -> Policy:
        return policy_of(self.policy)

    def emitter(self, builder: Builder, device: str, training: bool, copies: bool) -> GraphEmitter:
        """A `ctx` that follows the policy, and keeps params in the types that the model declares without one."""
        declared: Mapping[str, DType] = {} if self.types.narrow is None else self._declared(device, training)
        ctx = GraphEmitter(builder, device, training, self.attrs, self.types, declared, copies)
        ctx.rank = 0 if self.parallel is None else self.parallel.rank
        return ctx

    def _declared(self, device: str, training: bool) -> dict[str, DType]:
        plain = Builder()
        ctx = GraphEmitter(plain, device, training, self.attrs)
        try:
            self.model.emit(ctx, _inputs(self, ctx, self.model.sizes))
        except AicfError:  # it has no types without a policy
            return {}
        return {param.name: param.dtype for param in plain.graph.externals(Role.param)}


def _check_part(name: str, value: Any, needs: tuple[str, ...], expected: str, hint: str) -> None:
    """An object with these attributes; a class or a name in its place is a slip of the pen."""
    meant = near.part(name, value)
    fits = not isinstance(value, type) and all(hasattr(value, need) for need in needs)
    foreign = near.foreign_model(value) if name == "model" and not fits else None
    if foreign is not None:
        raise VerifyError(f"{name} is {foreign[0]}", expected=expected, hint=foreign[1])
    if isinstance(value, type) and not near.from_torch(value):
        raise VerifyError(
            f"{name} is the class {value.__name__}", expected=f"{expected}, an instance",
            hint=meant or f"{name}={value.__name__}(...)",
        )  # fmt: skip
    hint = meant or hint
    if near.from_torch(value) and not (fits and name == "model"):
        raise VerifyError(f"{name} is PyTorch's {_class_of(value)}", expected=expected, hint=hint)
    if not all(hasattr(value, need) for need in needs):
        raise VerifyError(f"{name} is {value!r}", expected=expected, hint=hint)


def _class_of(value: Any) -> str:
    return value.__name__ if isinstance(value, type) else type(value).__name__


def trace(
    recipe: Recipe, sizes: Mapping[str, int], device: str, phase: str = "step", rewrite: Rewrite | None = None
) -> Graph:
    """Emit a recipe for given sizes.

    phase    "step"; "accumulate" for the runs between two steps; FED for runs that are fed params, which have no copies then
    rewrite  changes what the model and its loss have emitted, before gradients are: (the emitter, the model's results, what the loss made)
    """
    builder = Builder()
    ctx = recipe.emitter(builder, device, recipe.mode != "infer", copies=phase != FED)
    inputs = _inputs(recipe, ctx, sizes)
    made = recipe.model.emit(ctx, {name: ctx.computed(value) for name, value in inputs.items()})
    results, loss = named_results(made, builder), recipe.loss
    read = result_read(loss, results)
    # else the loss looks for the layer that makes it
    left = None if getattr(loss, "returns_output", True) else read
    results = {n: ctx.exact(v) if n == left else ctx.widened(v) for n, v in results.items()}
    params = builder.graph.externals(Role.param)
    stepped, grads, beside = set[int](), dict[str, Value](), dict[str, Value]()
    if loss is not None:
        whole = results[read] if read is not None else tree_map(ctx.widened, made)
        value, beside = emit_loss(loss, ctx, whole, inputs, sizes)
        beside = {LOSS: value} | beside
    if rewrite is not None:
        rewrite(ctx, [*results.values()], [*beside.values()])
    # before any parameter is written in place
    beside = {name: _own(ctx, value) for name, value in beside.items()}
    shown = {n: _own(ctx, ctx.widened(v)) for n, v in results.items() if recipe.mode == "infer" or n != left}
    if loss is not None and recipe.mode != "infer":
        stepped, grads = _backward(recipe, ctx, value, params, phase)
    for name, value in [*shown.items(), *beside.items(), *grads.items()]:
        _return(ctx, name, value)
    ctx.advance()
    keep_if_valid(ctx, set(builder.graph.updates) - stepped)
    return builder.graph


def declared_names(recipe: Recipe, device: str, training: bool) -> set[str]:
    """Names of the params and states that the model itself declares, when it is trained or not."""
    builder = Builder()
    ctx = recipe.emitter(builder, device, training, copies=False)
    inputs = _inputs(recipe, ctx, recipe.model.sizes)
    recipe.model.emit(ctx, {name: ctx.computed(value) for name, value in inputs.items()})
    return {value.name for value in builder.graph.externals(Role.param, Role.state)}


def _inputs(recipe: Recipe, ctx: GraphEmitter, sizes: Mapping[str, int]) -> dict[str, Value]:
    bound = ((name, spec.bind(sizes)) for name, spec in recipe.model.inputs.items())
    return {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in bound}


def _backward(
    recipe: Recipe, ctx: GraphEmitter, loss: Value, params: list[Value], phase: str
) -> tuple[set[int], dict[str, Value]]:
    """Emits what is behind the loss: the vids of what the optimizer has updated, and the gradients that are returned."""
    if not params:
        raise VerifyError(
            "the model has no parameters to differentiate", hint="add a layer with weights: nn.Linear(...)"
        )
    follows, summed = recipe.mode == "train", recipe.accumulate > 1
    grads = scaled_gradients(ctx, loss, params, follows)
    parallel = recipe.parallel
    if recipe.mode == "grad":
        plain = unscaled(ctx, grads, follows)
        plain = plain if parallel is None or parallel.ranks == 1 else reduced(ctx, parallel, plain)
        return set(), {f"{GRAD}.{param.name}": grad for param, grad in zip(params, plain)}
    if summed:
        grads = accumulated(ctx, params, unscaled(ctx, grads, follows), phase)
    if phase != "step":
        return set(), {}
    assert recipe.optimizer is not None
    optimizer = recipe.optimizer
    if parallel is not None and parallel.ranks > 1:
        grads, optimizer = reduced(ctx, parallel, grads, steps=True), parallel.sharded(optimizer)
    return optimizer_step(ctx, optimizer, params, grads, scaled=not summed), {}


def _own(ctx: GraphEmitter, value: Value) -> Value:
    """A value that the run itself makes: inputs, params and states are copied."""
    return value if value.role is Role.tmp else ctx.copy(value)


def _return(ctx: GraphEmitter, name: str, value: Value) -> None:
    """Mark an output; what is returned under two names, or also becomes a state, is copied."""
    check_free(name, value, ctx.builder)
    taken = value.role is not Role.tmp or value.vid in ctx.builder.graph.updates.values()
    ctx.builder.output(name, ctx.copy(value) if taken else value)
