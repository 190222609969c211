"""A part: a subgraph that aicf computes. It is compiled for its sizes, and run on PyTorch's tensors, memory and stream."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node

from ...device import streams
from ...device.runtime import runtime
from ...dispatch import KernelLoader, default_registry
from ...errors import KernelCompileError, NoKernelError, VerifyError
from ...graph.compile import compile_graph
from ...graph.dump import begin
from ...graph.emit.builder import GraphEmitter
from ...graph.emit.trace import Recipe
from ...graph.run.call import FIRST, PlanCall, Whereabouts
from ...graph.run.compilations import GRAPH
from ...graph.run.tell import tell_plan
from ...graph.run.variables import Variables
from ...ir import Value
from ...registry.index import required_flags
from ...registry.registry import KernelRegistry
from ...registry.select import Selector
from ...types import Precision, TensorSpec
from .emit import Meta, NodeTrial, PartEmitter, emit_nodes, meta_of
from .report import GraphReport, compilations
from .rules import Unread
from .scalars import filled_on, is_cpu_scalar, read_as
from .types import DTYPES, TORCH, TorchLayout, Unsupported, brief, hinted, layout_of, may_overlap

COMPILING = threading.RLock()
WEIGHT = "aicf_weight"  # in the meta of a node: a parameter or a buffer of the module, or computed from these alone


class Numerics(NamedTuple):
    """What is asked of kernels: as of aicf.compile."""

    deterministic: bool = True
    strict: bool = False
    invariant: bool = False


DEFAULT = Numerics()


class Target:
    """A device with what compiling for it keeps: which kernels there are, and what was chosen among them."""

    def __init__(self, place: str, numerics: Numerics, precision: Precision) -> None:
        self.runtime, self.precision = runtime(place), precision
        deterministic, *rounding = numerics
        self.selector = Selector(
            _registry(), self.runtime.spec, None, required_flags(deterministic), *rounding
        )
        self.loader = KernelLoader(_registry(), self.runtime)
        self.takes = NodeTrial(self.selector)


@cache
def _registry() -> KernelRegistry:
    """Without the kernel whose pointers are in a table: a table is filled when a launch is bound, and calls bind none."""
    registry = default_registry().copy()
    registry.remove("cuda.multi_map_table.v1")
    return registry


_target = cache(Target)


def target(device: torch.device, numerics: Numerics = DEFAULT) -> Target:
    """The target of a device, under PyTorch's settings of now."""
    place = (
        "cpu"
        if device.type == "cpu"
        else f"cuda:{device.index if device.index is not None else torch.cuda.current_device()}"
    )
    exact = device.type == "cpu" or torch.get_float32_matmul_precision() == "highest"
    deterministic = numerics.deterministic or torch.are_deterministic_algorithms_enabled()
    precision = Precision.exact if exact else Precision.tf32
    return _target(place, numerics._replace(deterministic=deterministic), precision)


class PartModel:
    """The subgraph as a model: what a recipe compiles. Inputs are as they lie in memory, and so are results."""

    seed = 0
    sizes: Mapping[str, int] = {}

    def __init__(self, graph: GraphModule, meta: Meta) -> None:
        self._nodes, self._meta = list(graph.graph.nodes), meta
        given = [n for n in self._nodes if n.op == "placeholder" and isinstance(meta(n), torch.Tensor)]
        (self._output,) = [n for n in self._nodes if n.op == "output"]
        made = self._output.args[0]
        self.made: list[Node] = [made] if isinstance(made, Node) else list(made)
        self.given = {f"i{n}": node for n, node in enumerate(given)}
        self.weight_inputs = {name for name, node in self.given.items() if node.meta.get(WEIGHT)}
        gpu = any(meta(node).device.type != "cpu" for node in self.made)
        dtypes = [read_as(meta(node), gpu) for node in given]
        self.types = [
            (dtype, tuple(hinted(n) for n in meta(node).shape)) for dtype, node in zip(dtypes, given)
        ]
        self.layouts = {name: layout_of(meta(node)) for name, node in self.given.items()}
        self.inputs = {
            name: TensorSpec(self.layouts[name].dense, DTYPES[dtype])
            for name, dtype in zip(self.given, dtypes)
        }
        self.results = [_result(layout_of(meta(node))) for node in self.made]
        self.dtypes = [meta(node).dtype for node in self.made]
        self.strides = [tuple(hinted(n) for n in meta(node).stride()) for node in self.made]
        self.outputs = [f"o{n}" for n in range(len(self.made))]
        self.unread: set[str] = set()  # results that are zeros; known when it was emitted

    def emit(self, ctx: GraphEmitter, inputs: Mapping[str, Value]) -> dict[str, Value]:
        ctx.__class__ = PartEmitter
        env: dict[Node, Any] = {
            node: _as_read(ctx, inputs[name], self.layouts[name]) for name, node in self.given.items()
        }
        emit_nodes(ctx, self._nodes, env, self._meta)
        self.unread = {name for name, node in zip(self.outputs, self.made) if isinstance(env[node], Unread)}
        left: dict[str, Value] = {}
        for name, node, layout in zip(self.outputs, self.made, self.results):
            if name not in self.unread:
                left[name] = _same_bytes(ctx, _as_stored(ctx, env[node], layout), left.values())
        return left


def _result(layout: TorchLayout) -> TorchLayout:
    """The dense layout that a kernel writes a result in."""
    return layout if not layout.repeated else layout_of(torch.empty(layout.shape, device="meta"))


def _as_read(ctx: GraphEmitter, x: Value, layout: TorchLayout) -> Value:
    """A dense input as the graph reads it: its axes in their order, repeated where they have no memory."""
    if layout.repeated:
        return ctx.broadcast_in_dim(x, shape=layout.shape, dims=layout.order)
    if layout.plain:
        return x
    perm = tuple(sorted(range(len(layout.order)), key=layout.order.__getitem__))
    return ctx.transpose(x, perm=perm)


def _as_stored(ctx: GraphEmitter, x: Value, layout: TorchLayout) -> Value:
    if layout.plain:
        return x
    values, made = ctx.builder.graph.values, x.producer
    if made is not None and made.kind == "transpose" and _inverse(made.attrs["perm"]) == layout.order:
        return values[made.inputs[0]]
    for reader in x.users:
        if reader.kind == "transpose" and tuple(reader.attrs["perm"]) == layout.order:
            return values[reader.outputs[0]]
    return ctx.transpose(x, perm=layout.order)


def _inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted(range(len(perm)), key=perm.__getitem__))


def _same_bytes(ctx: GraphEmitter, x: Value, others: Collection[Value]) -> Value:
    """What a result is a reshape of: whoever reads it knows its shape. A value leaves once, and what was fed does not."""
    made = x.producer
    while made is not None and made.kind == "reshape":
        before = ctx.builder.graph.values[made.inputs[0]]
        if before.producer is None or any(before is other for other in others):
            break
        x, made = before, before.producer
    return x


class BoundPart:
    """A part compiled for its sizes."""

    def __init__(self, model: PartModel, on: Target, device: torch.device) -> None:
        recipe = Recipe(model, "infer", precision=on.precision)
        variables = Variables(on.runtime, 0).of_program()
        with on.runtime.current():
            start, dump = time.perf_counter(), begin(recipe, {}, "step", on.selector, name="torch")
            made = self.compiled = compile_graph(recipe, {}, on.selector, variables=variables, dump=dump)
            plan, seconds = made.plan, time.perf_counter() - start
            why = "a part of a graph of PyTorch's"
            tell_plan(plan, made.regions, made.once, on.runtime, "step", {}, seconds, why)
            computed = [n for n, name in enumerate(model.outputs) if name not in model.unread]
            names = [model.outputs[n] for n in computed]
            self.call = PlanCall(plan, on.loader, variables, list(model.inputs), names, made.watch)
            on.runtime.sync()  # constants are there, whatever stream reads them
        self.device, self.ordinal, self.on = device, getattr(on.runtime, "ordinal", None), on
        self.ready = False  # whether its kernels are loaded
        self._inputs = list(zip(model.layouts.values(), self.call.alignments))
        self._types = model.types
        first = FIRST + len(model.inputs)
        self._results = [
            _Result(model.results[n], place, first + i)
            for i, (n, place) in enumerate(zip(computed, self.call.places))
        ]
        self._dtypes = [TORCH[p.spec.dtype] for p in self.call.places]
        unread = [n for n, name in enumerate(model.outputs) if name in model.unread]
        self._zeros = [(n, model.results[n].shape, model.dtypes[n]) for n in unread]
        laid_out = [(n, r.stride, model.strides[n]) for n, r in enumerate(model.results)]
        self._strides = [(n, traced) for n, stride, traced in laid_out if stride != traced or n in unread]

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether tensors have the types that the part was compiled for: an op of PyTorch's may return another type than was traced."""
        return all(
            t.dtype is dtype and t.shape == shape and t.device == self.device
            for t, (dtype, shape) in zip(tensors, self._types)
        )

    def bind(self) -> None:
        with self.on.runtime.current():
            self.call.bind()
        self.ready = True

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        arena = torch.empty(max(self.call.arena_bytes, 1), dtype=torch.uint8, device=self.device)
        given = [_as_laid_out(t, layout, alignment) for t, (layout, alignment) in zip(tensors, self._inputs)]
        made = [
            torch.empty_strided(r.layout.shape, r.layout.stride, dtype=dtype, device=self.device)
            if r.own
            else None
            for r, dtype in zip(self._results, self._dtypes)
        ]
        pointers = [t.data_ptr() for t in (arena, *given)]
        pointers += [0 if t is None else t.data_ptr() for t in made]
        self.call(pointers, 0 if self.ordinal is None else streams.torch_stream(self.ordinal))
        bases: list[Any] = [arena, *given, *made]
        results = [
            t if t is not None else r.seen(bases, dtype)
            for t, r, dtype in zip(made, self._results, self._dtypes)
        ]
        for n, shape, dtype in self._zeros:
            results.insert(n, torch.zeros(shape, dtype=dtype, device=self.device))
        for n, stride in self._strides:
            results[n] = _with_strides(results[n], stride)
        return results


class _Result:
    """A result of a part: memory of its own, or a view of what is there."""

    def __init__(self, layout: TorchLayout, place: Whereabouts, own: int) -> None:
        self.layout, self.place = layout, place
        self.own = place.base == own

    def seen(self, bases: Sequence[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
        base = bases[self.place.base]
        size = dtype.itemsize
        flat = torch.empty(0, dtype=dtype, device=base.device)
        start = base.storage_offset() * base.element_size() + self.place.offset
        return flat.set_(base.untyped_storage(), start // size, self.layout.shape, self.layout.stride).clone()


def _as_laid_out(tensor: torch.Tensor, layout: TorchLayout, alignment: int) -> torch.Tensor:
    """A tensor whose memory is as the part was compiled for; a copy where it lies otherwise."""
    if tensor.is_neg():  # a view that negates when it is read: the imaginary part of a conjugate
        tensor = tensor.resolve_neg()
    if _lies(tensor, layout) and tensor.data_ptr() % alignment == 0:
        return tensor
    for axis in layout.repeated:
        tensor = tensor.narrow(axis, 0, 1)
    dense = tensor.permute(*layout.order, *layout.repeated) if layout.shape else tensor
    return dense.clone(memory_format=torch.contiguous_format)


def _with_strides(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with these strides, which may leave gaps or have elements that share memory."""
    if tensor.stride() == stride:
        return tensor
    made = torch.empty_strided(tensor.shape, stride, dtype=tensor.dtype, device=tensor.device)
    if not tensor.numel() or not may_overlap(tensor.shape, stride):
        return made.copy_(tensor)
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, stride))
    places = torch.arange(extent, device=tensor.device).as_strided(tensor.shape, stride)
    made.as_strided((extent,), (1,))[places.flatten()] = tensor.flatten()  # equal elements where they share
    return made


def _lies(tensor: torch.Tensor, layout: TorchLayout) -> bool:
    stride = tensor.stride()
    if stride == layout.stride or not tensor.numel():
        return True
    return all(n == 1 or s == w for n, s, w in zip(layout.shape, stride, layout.stride))


class PartModule(torch.nn.Module):
    """The part in the graph that runs: as PyTorch calls it. Each combination of types is compiled when it is first met: sizes may change,
    and an op that PyTorch runs may return another type than its trace says.

    report   receives the types for which aicf can't compute the part: PyTorch does. None: they are an error
    """

    def __init__(
        self, graph: GraphModule, device: torch.device, on: Target, report: GraphReport | None = None
    ) -> None:
        super().__init__()
        self.graph_module, self.device, self.on, self._report = graph, device, on, report
        placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
        self._tensors = [i for i, n in enumerate(placeholders) if isinstance(meta_of(n), torch.Tensor)]
        self._scalars = [
            n for n, i in enumerate(self._tensors)
            if device.type != "cpu" and is_cpu_scalar(meta_of(placeholders[i]))
        ]  # fmt: skip
        self._static = not any(_symbolic(meta_of(n)) for n in placeholders)
        output = next(n for n in graph.graph.nodes if n.op == "output")
        self._single = isinstance(output.args[0], Node)
        self._bound: dict[Any, BoundPart | None] = {}  # None: PyTorch runs these types
        if self._static:
            self._keep(None, self._compile(meta_of))

    def _compile(self, meta: Meta) -> BoundPart:
        with COMPILING:
            return BoundPart(PartModel(self.graph_module, meta), self.on, self.device)

    def _keep(self, key: Any, made: BoundPart | None) -> None:
        self._bound[key] = made
        if made is not None:
            _UNBOUND.append((weakref.ref(self), key))

    def bind(self, key: Any) -> None:
        """Have the kernels for these sizes ready. Where one does not compile PyTorch runs the part, and the report says so."""
        made = self._bound[key]
        try:
            if made is not None and not made.ready:
                made.bind()
        except KernelCompileError as error:
            self._refused(error)
            self._bound[key] = None

    def _met(self, args: Sequence[Any]) -> BoundPart | None:
        """The part for the types of these arguments: rules and kernels were checked for those of the trace alone."""
        title = f"{self._report.name}, {self._report.kind}" if self._report else "a part"
        facts = {f"input {n}": brief(a) for n, a in enumerate(args)}
        try:
            with compilations().made("sizes", {GRAPH: title, **facts}):
                for place, n in enumerate(self._tensors):
                    scalar = place in self._scalars and is_cpu_scalar(args[n])
                    if args[n].device != self.device and not scalar:
                        raise Unsupported(f"input {n} is {brief(args[n])}, and the part is on {self.device}")
                return self._compile(concrete(self.graph_module, args))
        except (Unsupported, NoKernelError) as error:
            self._refused(error)
            return None

    def _refused(self, error: Exception) -> None:
        why = str(error).splitlines()[0]
        if self._report is None:
            raise VerifyError(
                "a part would run in PyTorch for types met after it was compiled", got=why,
                expected="ops that aicf takes at all sizes",
                hint='options={"fallback": "eager"}, the default, runs it in PyTorch; dynamic=False compiles each size',
            ) from error  # fmt: skip
        self._report.refused[why] += 1

    @property
    def bound(self) -> list[BoundPart]:
        """One for each combination of sizes."""
        return [part for part in self._bound.values() if part is not None]

    def forward(self, *args: Any) -> Any:
        tensors = [args[i] for i in self._tensors]
        for n in self._scalars:
            tensors[n] = filled_on(self.device, tensors[n])
        key = None
        if not self._static or ((traced := self._bound[None]) and not traced.fits(tensors)):
            key = tuple(_type_of(a) if isinstance(a, torch.Tensor) else a for a in args)
        if key not in self._bound:
            self._keep(key, self._met(args))
        bound = self._bound[key]
        if bound is not None and not bound.ready:
            bind_all()
            bound = self._bound[key]
        if bound is None:
            return self.graph_module(*args)
        made = bound(tensors)
        return made[0] if self._single else tuple(made)


_UNBOUND: list[tuple[weakref.ref[PartModule], Any]] = []  # compiled, with kernels that may be underway


def bind_all() -> None:
    """Make all parts ready that were compiled so far: a forward pass readies its backward pass, too, which may run under a capture."""
    with COMPILING:
        while _UNBOUND:
            part, key = _UNBOUND.pop(0)
            if (module := part()) is not None:
                module.bind(key)


def _type_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _symbolic(made: Any) -> bool:
    if isinstance(made, torch.Tensor):
        return any(not isinstance(n, int) for n in (*made.shape, *made.stride()))
    return True


def concrete(graph: GraphModule, args: Sequence[Any]) -> Meta:
    """The result of each node for the types of these arguments. Under TorchDynamo's lock: what PyTorch notes while it runs a graph
    node by node is state of the process."""

    found: dict[Node, Any] = {}

    class Noting(Interpreter):
        def run_node(self, n: Node) -> Any:
            found[n] = super().run_node(n)
            return found[n]

    with compile_lock, FakeTensorMode() as mode, torch.no_grad():
        given = [
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
            if isinstance(a, torch.Tensor)
            else hinted(a)
            for a in args
        ]
        del mode
        Noting(graph).run(*given)
    return found.__getitem__
