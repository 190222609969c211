"""from_torch: a module of PyTorch's as a Program, through torch.export; `load`: as a model that `aicf.compile`, `explain_for` and training take."""

from __future__ import annotations

import operator
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ...device.interop import adopt
from ...errors import VerifyError
from ...graph.compile import compile
from ...graph.emit.builder import Builder, GraphEmitter
from ...graph.run.program import Program
from ...ir import Value
from ...types import TensorSpec
from ..imported import Imported, Weight, free_names, runtime_of
from ..recorded import IndexCheck, Recorded
from .decompositions import decompositions
from .emit import Meta, emit_nodes, meta_of, name_of
from .part import concrete
from .recognise import recognise
from .rules import rules
from .types import DTYPES, Unsupported, hinted

_ROLES = {InputKind.PARAMETER: "param", InputKind.BUFFER: "state", InputKind.CONSTANT_TENSOR: "constant"}
_WRITTEN = {"USER_INPUT_MUTATION": "argument", "PARAMETER_MUTATION": "parameter"}


def from_torch(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, device: str | None = None, *,
    dynamic_shapes: Any = None, **options: Any,
) -> Program:  # fmt: skip
    """Compile a module, as it is, for runs without PyTorch's.

    device   as for `aicf.compile`, or the name of the GPU that is here; `aicf.explain_for(aicf.torch.load(module, args), "l4")` needs none
    options  of `aicf.compile`, such as mode, loss, optimizer, policy

    The rest as for `load`, and so are the errors.
    """
    # the program copies them at once
    model = _loaded(module, args, kwargs, dynamic_shapes, copied=False)
    return compile(model, device=runtime_of(device, "aicf.torch.load(module, args)"), **options)


def load(
    module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, dynamic_shapes: Any = None,
) -> Imported:  # fmt: skip
    """A module as a model that `aicf.compile` and `aicf.explain_for` take. It is exported as it is: in training or evaluation mode.

    args, kwargs     what its forward is called with: tensors whose shapes and element types the model has
    dynamic_shapes   as torch.export has it: dimensions of inputs that may change, as torch.export.Dim("batch"); those are named
                     dimensions of the model

    Weights have the names of the module's state dict, so that `program.load_state_dict(module.state_dict())` works. Buffers are
    states, which no optimizer changes; those that a forward pass writes, such as running means, are written by each run. Inputs have the
    names of forward's arguments, results those of the fields or keys that it returns.

    The model is free of PyTorch, unless it has named dimensions: for each size PyTorch is asked again what its ops make.
    VerifyError for ops that aicf lacks, with how often they are there, and for a forward that writes into its arguments or parameters.
    """
    return _loaded(module, args, kwargs, dynamic_shapes, copied=True)


def _loaded(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
    copied: bool,
) -> Imported:
    """copied   whether the model has weights of its own, or the module's"""
    if not isinstance(args, tuple | list):
        raise VerifyError(
            f"args is a {type(args).__name__}", expected="a tuple of what forward is called with", hint="aicf.from_torch(module, (x,))"
        )  # fmt: skip
    with warnings.catch_warnings():  # PyTorch's, of its own pytrees
        warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.`", FutureWarning)
        try:
            exported = torch.export.export(
                module, tuple(args), dict(kwargs or {}), dynamic_shapes=dynamic_shapes
            )
            recognise(exported.graph_module)
            exported = exported.run_decompositions(decompositions())
        except AssertionError as error:
            raise _explained(module, error) from error
    _drop_assertions(exported.graph_module)
    graph = _Exported(exported, type(module).__name__, copied)
    graph.refuse_unknown()
    inputs, sizes = graph.inputs(dynamic_shapes)
    body = graph.recorded(inputs) if not sizes else graph.body
    return Imported(inputs, body, graph.weights, sizes=sizes, source=f"PyTorch's {graph.name}")


def _explained(module: torch.nn.Module, error: AssertionError) -> Exception:
    """The reason for a failed assertion of torch.export's where tensors of the module share memory, which it can't write into."""
    memory: dict[int, list[str]] = {}
    for name, tensor in [
        *module.named_buffers(remove_duplicate=False),
        *module.named_parameters(remove_duplicate=False),
    ]:
        if tensor.numel():
            memory.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    shared = [names for names in memory.values() if len(names) > 1]
    if not shared:
        return error
    return VerifyError(
        f"torch.export refuses {type(module).__name__}, whose {' and '.join(shared[0])} share memory", got=str(error),
        expected="buffers with memory of their own, where forward writes into one",
        hint=f'{shared[0][-1]} as a clone, or torch.compile(module, backend="aicf")',
    )  # fmt: skip


def _drop_assertions(graph: GraphModule) -> None:
    """What PyTorch asserts of types and sizes holds: the graph was traced with them. What only that read goes, too."""
    for node in reversed(graph.graph.nodes):
        if node.op == "call_function" and name_of(node).startswith("aten._assert"):
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()


class _Exported:
    """An exported program: which of its placeholders and results are what."""

    def __init__(self, exported: Any, name: str, copied: bool) -> None:
        self.exported, self.name, self.copied = exported, name, copied
        self.graph: GraphModule = exported.graph_module
        nodes = [n for n in self.graph.graph.nodes if n.op == "placeholder"]
        specs = dict(zip(nodes, exported.graph_signature.input_specs))
        fed = [
            n
            for n, spec in specs.items()
            if spec.kind is InputKind.USER_INPUT and isinstance(meta_of(n), torch.Tensor)
        ]
        self.held = {n: spec.target for n, spec in specs.items() if spec.kind in _ROLES}
        self.weights = {spec.target: self._weight(spec) for spec in specs.values() if spec.kind in _ROLES}
        self.fed = dict(zip(fed, free_names([n.name for n in fed], self.weights)))
        (output,) = [n for n in self.graph.graph.nodes if n.op == "output"]
        outs = list(zip(exported.graph_signature.output_specs, output.args[0]))
        self.written = [(spec.target, node) for spec, node in outs if spec.kind is OutputKind.BUFFER_MUTATION]
        self._refuse_other_effects([spec for spec, _ in outs])
        returned = [node for spec, node in outs if spec.kind is OutputKind.USER_OUTPUT]
        named = zip(_names(exported.call_spec.out_spec, len(returned)), returned)
        kept = [(name, node) for name, node in named if isinstance(node, Node)]
        self.returned = dict(
            zip(free_names([n for n, _ in kept], [*self.weights, *self.fed.values()]), [n for _, n in kept])
        )
        if not self.returned:
            raise VerifyError(
                f"{name}'s forward returns no tensor",
                expected="a tensor, or several ones in tuples, lists or dicts",
            )

    def _refuse_other_effects(self, outs: Sequence[Any]) -> None:
        """A program returns results and writes states: VerifyError if forward writes into anything else."""
        compiled = 'torch.compile(module, backend="aicf") writes it'
        for spec in outs:
            if spec.kind is OutputKind.USER_OUTPUT:
                continue
            if spec.kind is not OutputKind.BUFFER_MUTATION:
                what = _WRITTEN.get(spec.kind.name, f"{spec.kind.name.lower().replace('_', ' ')} of")
                raise VerifyError(
                    f"PyTorch's {self.name}: forward writes into its {what} {spec.target}",
                    expected="a forward that writes into buffers alone",
                    hint=f"{spec.target}.clone() before it is written, returned if it is needed; {compiled}",
                )
            if self.weights[spec.target].role != "state":
                raise VerifyError(
                    f"PyTorch's {self.name}: forward writes into the buffer {spec.target}, which is in no state dict",
                    got="persistent=False", expected="a buffer of the state dict, where it is written",
                    hint=f"register_buffer({spec.target.rpartition('.')[2]!r}, tensor); {compiled}",
                )  # fmt: skip

    def _weight(self, spec: Any) -> Weight:
        tensor = self.exported.constants.get(spec.target, self.exported.state_dict.get(spec.target))
        kept = spec.kind is not InputKind.BUFFER or spec.target in self.exported.state_dict
        role = _ROLES[spec.kind] if kept else "constant"
        frozen = role == "param" and not (tensor.requires_grad and tensor.is_floating_point())
        return Weight.of(_array(tensor, self.copied), "state" if frozen else role)

    def inputs(self, dynamic_shapes: Any) -> tuple[dict[str, TensorSpec], dict[str, int]]:
        """Specs of what is fed, with names for sizes that may change; and the sizes that they were exported with."""
        sizes: dict[str, int] = {}
        specs = {}
        for node, name in self.fed.items():
            shape: list[Any] = []
            for axis, size in enumerate(meta_of(node).shape):
                if isinstance(size, torch.SymInt):
                    if not size.node.expr.is_symbol:
                        raise VerifyError(
                            f"axis {axis} of {name} is {size}",
                            expected="a dimension of its own, such as Dim('batch')",
                        )
                    dim = _dim(dynamic_shapes, node.name, list(self.fed).index(node), axis) or str(size)
                    sizes[dim] = hinted(size)
                    shape.append(dim)
                else:
                    shape.append(size)
            specs[name] = TensorSpec(tuple(shape), DTYPES[meta_of(node).dtype])
        return specs, sizes

    def refuse_unknown(self) -> None:
        """VerifyError for ops without a rule."""
        calls = [
            n for n in self.graph.graph.nodes if n.op == "call_function" and n.target is not operator.getitem
        ]
        unknown = Counter(
            name_of(n)
            for n in calls
            if isinstance(n.target, torch._ops.OpOverload) and name_of(n) not in rules()
        )
        unknown = Counter({op: n for op, n in unknown.items() if not op.startswith("aten.sym_")})
        if unknown:
            raise VerifyError(
                f"PyTorch's {self.name} has ops that aicf lacks", expected="ops with a rule",
                got=", ".join(f"{op} ({count})" for op, count in unknown.most_common()),
                hint='torch.compile(module, backend="aicf") runs those in PyTorch; module.eval() exports without dropout',
            )  # fmt: skip

    def body(
        self, ctx: GraphEmitter, inputs: Mapping[str, Value], weights: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Emit the graph at the sizes of these inputs."""
        found = {node: inputs[name] for node, name in self.fed.items()}
        return self._emit(ctx, {**found, **self._held(weights)}, concrete(self.graph, self._stand_ins(found)))

    def _stand_ins(self, found: Mapping[Node, Value]) -> list[Any]:
        """Tensors without memory, of the sizes that are fed."""
        made = []
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                meta = meta_of(node)
                fed = isinstance(meta, torch.Tensor)
                shape = found[node].shape if node in found else tuple(meta.shape) if fed else ()
                made.append(torch.empty(shape, dtype=meta.dtype, device="meta") if fed else meta)
        return made

    def _held(self, weights: Mapping[str, Value]) -> dict[Node, Value]:
        return {node: weights[name] for node, name in self.held.items()}

    def _emit(self, ctx: GraphEmitter, env: dict[Node, Any], meta: Meta) -> dict[str, Value]:
        try:
            emit_nodes(ctx, self.graph.graph.nodes, env, meta)
        except Unsupported as refused:
            raise VerifyError(f"PyTorch's {self.name}: {refused}", where=ctx.builder.line or None) from None
        for name, node in self.written:
            ctx.update(self.weights_of(ctx, name), env[node])
        return {name: env[node] for name, node in self.returned.items()}

    @staticmethod
    def weights_of(ctx: GraphEmitter, name: str) -> Value:
        found = ctx.builder.find(name)
        assert found is not None, name
        return found

    def recorded(self, specs: Mapping[str, TensorSpec]) -> Recorded:
        """The graph at its one size, emitted now: what is left needs no PyTorch."""
        builder = Builder()
        ctx = _RecordingEmitter(builder, "cpu")
        inputs = {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in specs.items()}
        weights = {name: weight.declared(ctx, name) for name, weight in self.weights.items()}
        found: dict[Node, Any] = {node: inputs[name] for node, name in self.fed.items()}
        results = self._emit(ctx, {**found, **self._held(weights)}, meta_of)
        return Recorded.of(builder.graph, results, ctx.checks)


class _RecordingEmitter(GraphEmitter):
    """Records checks of indices instead of emitting them: whoever emits the record emits them, too."""

    def __init__(self, builder: Builder, device: str) -> None:
        super().__init__(builder, device)
        self.checks: list[IndexCheck] = []

    def check_indices(self, indices: Value, *, size: int, negative: bool = True, of: str = "") -> None:
        asked = {"size": size, "negative": negative, "of": of}
        self.checks.append(IndexCheck(len(self.builder.graph.ops), indices.vid, asked))


def _array(tensor: torch.Tensor, copied: bool) -> np.ndarray:
    host = adopt(tensor.detach().cpu().contiguous()).array
    assert host is not None
    return host.copy() if copied else host


def _names(spec: Any, count: int) -> list[str]:
    """Names of results: of one "output", else the keys of dicts and the fields of classes, and numbers of tuples."""
    tree = pytree.tree_unflatten(list(range(count)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    names = [
        ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
        for path in paths
    ]
    if len(names) == 1 and names[0] in ("", "0"):
        return ["output"]
    return [f"output.{name}" if name[:1].isdigit() else name or "output" for name in names]


def _dim(dynamic: Any, name: str, position: int, axis: int) -> str | None:
    """The name that a dimension was given in dynamic_shapes."""
    if isinstance(dynamic, Mapping):
        dynamic = dynamic.get(name)
    elif isinstance(dynamic, (tuple, list)):
        dynamic = dynamic[position] if position < len(dynamic) else None
    if isinstance(dynamic, Mapping):
        dynamic = dynamic.get(axis)
    elif isinstance(dynamic, (tuple, list)):
        dynamic = dynamic[axis] if axis < len(dynamic) else None
    return getattr(dynamic, "__name__", None)
