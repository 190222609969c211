"""`torch.compile(model, backend="aicf")`: TorchDynamo's graphs, forward and backward, through AOTAutograd."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.convert_frame import compile_lock
from torch._functorch.aot_autograd import make_boxed_func
from torch._guards import TracingContext
from torch.fx import GraphModule

from ...errors import VerifyError
from ...graph.run.compilations import GRAPH
from . import report as reports
from .decompositions import decompositions
from .losses import join_cross_entropy, partition
from .part import COMPILING, WEIGHT, Numerics
from .partition import cut, refuse_left
from .recognise import recognise
from .report import GraphBreak, GraphReport
from .types import brief

OPTIONS: Mapping[str, tuple[Any, ...]] = {
    "fallback": ("eager", "error"),
    "numerics": ("fused", "strict"),
    "deterministic": (True, False),
    "invariant": (False, True),
}


def backend(
    graph: GraphModule,
    example_inputs: Any,
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Any:
    """A graph of TorchDynamo's, compiled: what `torch.compile(model, backend="aicf")` calls. Inference and training.

    options  "fallback": "eager" runs what aicf lacks in PyTorch, between parts; "error" refuses such a graph, naming the first op.
             "numerics": "fused" or "strict", as for aicf.compile. "deterministic": as for aicf.compile; where PyTorch's
             own `torch.use_deterministic_algorithms` is on, False is not read. "invariant": True: rows of forward passes, of training,
             too, have bits that do not depend on their number; aicf then takes all ops of such a pass, or refuses it
    mode     refused: it is for TorchInductor

    `aicf.torch.report()` prints what was taken and what was left.
    """
    asked = _checked(options or {}, mode)
    name, broken = _name_of(graph), _break_of(graph)
    if broken is not None and asked["invariant"]:
        raise _broken(name, broken)
    strict = asked["numerics"] == "strict" or asked["invariant"]  # ops stay as they were written
    recognised: Counter[str] = Counter() if strict else recognise(graph)
    compilers = {
        kind: partial(_compiled, name=name, kind=kind, asked=asked, recognised=recognised, broken=broken)
        for kind in ("forward", "backward", "inference")
    }
    compiled = aot_autograd(
        fw_compiler=compilers["forward"], bw_compiler=compilers["backward"], inference_compiler=compilers["inference"],
        decompositions=decompositions(), partition_fn=partial(partition, joins=not strict),
    )  # fmt: skip
    with compile_session():
        return compiled(graph, example_inputs)


@contextmanager
def compile_session() -> Iterator[None]:
    """Mark AOTAutograd's trace as a compilation, so that other threads may call compiled functions meanwhile.

    While FX traces, a flag of the process makes every compiled function raise, unless a second flag says that a compiler traces.
    PyTorch sets the second one itself from 2.13 on.
    """
    with compile_lock:
        before = torch.compiler._is_compiling_flag
        torch.compiler._is_compiling_flag = True
        try:
            yield
        finally:
            torch.compiler._is_compiling_flag = before


def _checked(options: Mapping[str, Any], mode: str | None) -> dict[str, Any]:
    if mode is not None and mode != "default":
        raise VerifyError(
            f'torch.compile(mode={mode!r}, backend="aicf")',
            expected="no mode",
            hint=f"options={{…}} takes {', '.join(OPTIONS)}",
        )
    for name, value in options.items():
        if name not in OPTIONS:
            raise VerifyError(f"option {name!r} is unknown", expected=", ".join(OPTIONS))
        if value not in OPTIONS[name]:
            raise VerifyError(f"option {name}={value!r}", expected=" or ".join(map(repr, OPTIONS[name])))
    for name, value in (("numerics", "fused"), ("fallback", "eager")) if options.get("invariant") else ():
        if options.get(name) == value:
            raise VerifyError(
                f'option invariant=True with {name}="{value}"', expected=f'{name}="{OPTIONS[name][1]}", which invariant rows imply',
                hint=f"leave {name} out",
            )  # fmt: skip
    return {name: options.get(name, known[0]) for name, known in OPTIONS.items()}


def _break_of(graph: GraphModule) -> GraphBreak | None:
    """Why TorchDynamo ended the graph before its function returns, and where; for a graph that goes on behind a break, that it does."""
    reason = getattr(graph, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        where = [f"{frame.filename}:{frame.lineno}" for frame in reason.user_stack or ()]
        return GraphBreak(reason.reason, where[-1] if where else "")
    at = getattr(symbolic_convert.tls, "current_tx", None)
    if at is not None and at.f_code.co_name.startswith("torch_dynamo_resume_in"):
        return GraphBreak(
            "goes on behind a graph break", f"{at.f_code.co_filename}:{at.f_code.co_firstlineno}"
        )
    return None


def _broken(name: str, broken: GraphBreak) -> VerifyError:
    return VerifyError(
        f"{name}: TorchDynamo breaks the graph, and what is between the parts would run in PyTorch", where=broken.where or None,
        got=broken.brief, expected="one graph: rows of PyTorch's kernels have other bits in other batches",
        hint=broken.advice or "torch.compile(..., fullgraph=True) says what breaks it; or leave invariant out",
    )  # fmt: skip


def _name_of(graph: GraphModule) -> str:
    """The class of the model, or the name of the function, that TorchDynamo is at; elsewhere the class of the first layer of the graph."""
    at = getattr(symbolic_convert.tls, "current_tx", None)
    if at is not None:
        for model in (at.f_locals.get("self"), at.f_locals.get("fn")):  # `fn`: what PyTorch wraps modules in
            if isinstance(model, torch.nn.Module):
                return type(model).__name__
        name = re.sub(r"torch_dynamo_resume_in_(\w+)_at_\d+$", r"\1", at.f_code.co_qualname)
        return name.removesuffix(".forward").rpartition(".")[2]
    for node in graph.graph.nodes:
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    return "function"


def _compiled(
    graph: GraphModule,
    example_inputs: Any,
    *,
    name: str,
    kind: str,
    asked: Mapping[str, Any],
    recognised: Counter[str],
    broken: GraphBreak | None,
) -> Any:
    said = GraphReport(name, kind, broken=broken)
    if kind != "backward":  # made of what was recognised before
        said.recognised = recognised
    # Threads may meet a backward pass at once, or while TorchDynamo traces in another one, which has state of the process'.
    with compile_lock, COMPILING, torch.no_grad():
        invariant = asked["invariant"] and kind != "backward"
        strict = asked["numerics"] == "strict" or invariant
        whole = asked["fallback"] == "error" or invariant
        if kind == "inference" and not strict:
            join_cross_entropy(graph)
        if invariant:
            _mark_weights(graph)
        with reports.compilations().made("function", _facts(graph, name, kind)):
            made = cut(graph, said, Numerics(asked["deterministic"], strict, invariant), whole)
    reports.add(said)
    if whole:
        refuse_left(said, invariant)
    return make_boxed_func(made.forward)


def _mark_weights(graph: GraphModule) -> None:
    """Mark the parameters and buffers of the module, which AOTAutograd lists by the index of the input, and what is computed from them alone."""
    context = TracingContext.try_get()
    metadata = None if context is None else context.fw_metadata
    listed = set() if metadata is None else set(metadata.static_input_indices or ())
    inputs = [node for node in graph.graph.nodes if node.op == "placeholder"]
    marked = {node for n, node in enumerate(inputs) if n in listed}
    for node in graph.graph.nodes:
        read = node.all_input_nodes
        if node in marked or (node.op == "call_function" and read and marked.issuperset(read)):
            marked.add(node)
            node.meta[WEIGHT] = True


def _facts(graph: GraphModule, name: str, kind: str) -> dict[str, Any]:
    """What a graph is compiled for, by name: its tensors as they lie, and its numbers."""
    facts: dict[str, Any] = {GRAPH: f"{name}, {kind}"}
    for n, node in enumerate(node for node in graph.graph.nodes if node.op == "placeholder"):
        facts[f"input {n}"] = brief(node.meta.get("val"))
    return facts
