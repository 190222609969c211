"""Nodes of an FX graph, emitted by their rules; and one node tried alone, before it is taken."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node

from ...errors import AicfError
from ...graph.emit.builder import Builder, GraphEmitter
from ...graph.emit.passes import lower
from ...ir import Value
from ...registry.select import Selector
from ...rows import RegionSpec
from ...types import TensorDesc, TensorSpec, f32
from .rules import STRIDES, Site, rules
from .scalars import is_cpu_scalar, read_as
from .types import Unsupported, dtype_of, hinted, layout_of, spec_of

Meta = Callable[[Node], Any]  # what a node makes: a fake tensor, a list of them, or a size
RULE_FAILED = "the rule failed"


def meta_of(node: Node) -> Any:
    """What a node made when the graph was traced."""
    return node.meta.get("val")


def name_of(node: Node) -> str:
    return (
        str(node.target)
        if isinstance(node.target, torch._ops.OpOverload)
        else getattr(node.target, "__name__", str(node.target))
    )


def line_of(node: Node) -> str | None:
    """The line of the user's code that called the op, and the code there."""
    found = re.findall(r'File "(.*)", line (\d+), in .*\n\s*(.*)', node.meta.get("stack_trace") or "")
    return "{}:{}: {}".format(*found[-1]) if found else None


def is_size(node: Node) -> bool:
    """Whether a node makes a number, not a tensor."""
    return isinstance(meta_of(node), (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool))


def tensors_of(node: Node) -> list[Node]:
    """The nodes that it reads tensors of."""
    return [n for n in node.all_input_nodes if not is_size(n)]


def emit_nodes(ctx: GraphEmitter, nodes: Iterable[Node], env: dict[Node, Any], meta: Meta = meta_of) -> None:
    """Emit nodes in order. `env` has what they read, and gets what they make."""
    for node in nodes:
        if node.op != "call_function" or is_size(node):
            continue
        with ctx.at(f"{node.name}: {name_of(node)}"):
            env[node] = _emitted(ctx, node, env, meta)


def _emitted(ctx: GraphEmitter, node: Node, env: Mapping[Node, Any], meta: Meta) -> Any:
    if node.target is operator.getitem:
        whole, n = node.args
        made = env[whole][n]
        if made is None and meta(node) is not None:
            raise Unsupported(f"result {n} of {name_of(whole)}")
        return made
    rule = rules().get(name_of(node))
    if rule is None:
        raise Unsupported(f"no rule for {name_of(node)}")

    def given(arg: Any) -> Any:
        if isinstance(arg, Node):
            return env[arg] if arg in env else _number(meta(arg))
        if isinstance(arg, (list, tuple)):
            return type(arg)(given(a) for a in arg)
        return arg

    args, named = [given(a) for a in node.args], {k: given(v) for k, v in node.kwargs.items()}
    made = meta(node)
    several = isinstance(made, (list, tuple))
    out = [_spec(m) for m in made] if several else _spec(made)
    used = frozenset(u.args[1] for u in node.users) if several else None
    if several and any(u.target is not operator.getitem for u in node.users):
        used = None
    first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
    source, alone = (None, False) if first is None else (meta(first), len(first.users) == 1)
    scalars = {
        env[n].vid: dtype_of(meta(n).dtype)
        for n in node.all_input_nodes
        if isinstance(env.get(n), Value) and is_cpu_scalar(meta(n))
    }
    result = rule(Site(ctx, out, used, source, alone, scalars), *args, **named)
    return _checked(result, out)


def _number(size: Any) -> Any:
    if isinstance(size, torch.SymInt):
        return hinted(size)
    if isinstance(size, (int, float, bool)):
        return size
    raise Unsupported("a number known only when it runs")


def _spec(made: Any) -> TensorSpec | None:
    return spec_of(made) if isinstance(made, torch.Tensor) else None


def _checked(result: Any, out: Any) -> Any:
    """That a rule made what PyTorch would: a difference would be a wrong result somewhere."""
    pairs = zip(result, out) if isinstance(out, list) else [(result, out)]
    for value, spec in pairs:
        if isinstance(value, Value) and (
            spec is None or (value.shape, value.dtype) != (spec.shape, spec.dtype)
        ):
            raise Unsupported(f"{RULE_FAILED}: {value.spec} where PyTorch has {spec}")
    return result


def computes_in_f32(node: Node) -> bool:
    """Whether all tensors that an op reads or makes are of f32, halves or bools, but for CPU scalars."""
    found = [m for n in (node, *tensors_of(node)) for m in _tensors(n) if not is_cpu_scalar(m)]
    return all(m.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.bool) for m in found)


def _tensors(node: Node) -> list[torch.Tensor]:
    """The tensors that a node made."""
    made = meta_of(node)
    found = made if isinstance(made, (list, tuple)) else [made]
    return [m for m in found if isinstance(m, torch.Tensor)]


def _devices(node: Node) -> set[torch.device]:
    return {m.device for m in _tensors(node)}


class PartEmitter(GraphEmitter):
    """Emits what runs among PyTorch's ops. Indices are checked on the host; on a GPU one that is out of bounds reads NaN, as
    nobody could be told in the order of PyTorch's stream."""

    @property
    def reports(self) -> bool:
        return self.device == "cpu"

    def check_indices(self, indices: Value, *, size: int, negative: bool = True, of: str = "") -> None:
        if self.reports:
            super().check_indices(indices, size=size, negative=negative, of=of)

    def check_labels(self, labels: Value, *, classes: int, ignore_index: int = -100) -> Value:
        if self.reports:
            return super().check_labels(labels, classes=classes, ignore_index=ignore_index)
        counted = self.convert(self.not_equal(labels, ignore_index), dtype=f32)
        return self.reduce_sum(counted, axes=tuple(range(labels.rank)))


class NodeTrial:
    """Asks of single nodes whether aicf takes them on a device: a rule, types that `infer` accepts, and a kernel for each op."""

    def __init__(self, selector: Selector) -> None:
        self.selector = selector
        self._known: dict[str, str | None] = {}

    def __call__(self, node: Node) -> str | None:
        """Why it is left to PyTorch; None if it is taken."""
        if name_of(node) not in rules():
            return "no rule"
        try:
            key = self._key(node)
            if key not in self._known:
                self._known[key] = self._asked(node)
            return self._known[key]
        except Unsupported as refused:
            return str(refused)

    def _key(self, node: Node) -> str:
        def said(arg: Any) -> Any:
            if isinstance(arg, Node):
                made = meta_of(arg)
                if not isinstance(made, torch.Tensor):
                    return _number(made)
                lies = (layout_of(made), hinted(made.storage_offset())) if name_of(node) in STRIDES else None
                return "tensor", str(_spec(made)), str(made.device), lies
            return [said(a) for a in arg] if isinstance(arg, (list, tuple)) else arg

        used = [u.args[1] if u.target is operator.getitem else None for u in node.users]
        return repr(
            (
                name_of(node),
                said(list(node.args)),
                {k: said(v) for k, v in node.kwargs.items()},
                sorted(map(str, used)),
                sorted(map(str, _devices(node))),
            )
        )

    def _asked(self, node: Node) -> str | None:
        builder = Builder()
        ctx = PartEmitter(builder, self.selector.device.kind)
        env: dict[Node, Any] = {}
        try:
            others = [n for n in tensors_of(node) if not is_cpu_scalar(meta_of(n))]
            if len(_devices(node).union(*map(_devices, others))) > 1:
                raise Unsupported("tensors on several devices")
            for n, read in enumerate(tensors_of(node)):
                if not isinstance(meta_of(read), torch.Tensor):
                    raise Unsupported("a list of tensors")
                spec = spec_of(meta_of(read))
                dtype = dtype_of(read_as(meta_of(read), ctx.device != "cpu"))
                if dtype is not spec.dtype and not computes_in_f32(node):
                    raise Unsupported("a CPU scalar of f64 beside integers or f64")
                env[read] = ctx.input(f"i{n}", spec.shape, dtype)
            emit_nodes(ctx, [node], env)
            for user in node.users:
                if user.target is operator.getitem:
                    emit_nodes(ctx, [user], env)
        except Unsupported as refused:
            return str(refused)
        except AicfError as error:
            return str(error).splitlines()[0]
        except Exception as error:
            return f"{RULE_FAILED}: {type(error).__name__}: {error}"
        return self._without_kernel(builder)

    def _without_kernel(self, builder: Builder) -> str | None:
        values = builder.graph.values

        def described(vid: int) -> TensorDesc | None:
            return TensorDesc.dense(values[vid].spec) if vid >= 0 else None

        for op in lower(builder.graph):
            results = [d for v in op.out_vids if (d := described(v)) is not None]
            region = RegionSpec.single(op.kind, op.attrs, [described(v) for v in op.in_vids], results)
            if self.selector.alone(region) is None:
                types = ", ".join(dict.fromkeys(str(t.dtype) for t in region.tensors))
                return f"no {self.selector.device.kind} kernel for {op.kind} of {types}"
        return None
