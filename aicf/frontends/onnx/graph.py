"""What a model says, checked before anything is emitted: nodes in their order, names that are defined once and before they are read,
attributes of the types that their ops declare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...types import TensorSpec
from ...weights import UnreadArray
from .reading import Source, bad, dtype_of, library, unread

NEWEST = 28  # opset whose ops the rules know
OLDEST = 7
MOST_NODES = (
    200_000  # behind the expansion of functions: what calls another twice at each of many levels has no end
)
MOST_DEPTH = 40
DOMAINS = {"": NEWEST, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}


def domain_of(name: str) -> str:
    """The default domain has two names."""
    return "" if name == "ai.onnx" else name


@dataclass(frozen=True, eq=False)
class OnnxNode:
    """A node: `attrs` are AttributeProtos by name, `where` says in messages which one it is."""

    proto: Any
    op: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    where: str

    @property
    def kind(self) -> str:
        return f"{self.domain}.{self.op}" if self.domain else self.op


def check_text(*names: Any) -> None:
    """Damaged text comes as bytes."""
    for name in names:
        if not isinstance(name, str):
            raise bad("the model is damaged: a name is not UTF-8", got=name[:40])


def node_of(proto: Any, place: str) -> OnnxNode:
    attrs: dict[str, Any] = {}
    check_text(
        proto.op_type,
        proto.domain,
        proto.name,
        *proto.input,
        *proto.output,
        *(a.name for a in proto.attribute),
    )
    where = f"{place}node {proto.name!r}" if proto.name else f"{place}the node of {list(proto.output)[:1]}"
    for attr in proto.attribute:
        if attr.name in attrs:
            raise bad(f"{proto.op_type} has the attribute {attr.name!r} twice", where=where)
        attrs[attr.name] = attr
    return OnnxNode(
        proto, proto.op_type, domain_of(proto.domain), tuple(proto.input), tuple(proto.output), attrs, where
    )


def nodes_of(protos: Iterable[Any], known: Iterable[str], place: str = "") -> tuple[OnnxNode, ...]:
    """Nodes in their order; each name is defined once, and before it is read.

    known  names that are defined before the first of them
    """
    nodes = tuple(node_of(proto, place) for proto in protos)
    defined = set(known)
    later = {name for node in nodes for name in node.outputs if name}
    for node in nodes:
        for name in node.inputs:
            if name and name not in defined:
                if name in later:
                    raise bad(
                        f"{node.op} reads {name!r} before it is made", where=node.where,
                        expected="nodes in the order of their data, without a cycle",
                    )  # fmt: skip
                raise bad(f"{node.op} reads {name!r}, which nothing makes", where=node.where)
        for name in filter(None, node.outputs):
            if name in defined:
                raise bad(f"{name!r} is made twice", where=node.where, expected="names that are defined once")
            defined.add(name)
    return nodes


def function_key(domain: str, name: str) -> tuple[str, str]:
    return domain_of(domain), name


@dataclass(eq=False)
class Document:
    """A checked model.

    inputs    specs of what is fed, by name; a dimension without a size has the name it is given, or `<input>.<axis>`
    arrays    initializers by name, not read yet
    outputs   names in their order, with the number of the element type that each declares, 0 for none
    opsets    versions of the ops, by domain
    functions the model's own, by (domain, name)
    folded    what was computed of constants: see fold.py
    """

    source: Source
    inputs: dict[str, TensorSpec]
    arrays: dict[str, UnreadArray]
    nodes: tuple[OnnxNode, ...]
    outputs: dict[str, int]
    opsets: dict[str, int]
    functions: dict[tuple[str, str], Any]
    folded: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source) -> Document:
        model, graph = source.proto, source.proto.graph
        for entries in (graph.input, graph.output, graph.initializer):
            check_text(*(entry.name for entry in entries))
        for function in model.functions:
            check_text(function.name, function.domain, *function.input, *function.output, *function.attribute)
        opsets = _opsets(model.opset_import)
        if "" not in opsets:
            opsets[""] = min(NEWEST, library().defs.onnx_opset_version())  # a model of other domains alone
        arrays: dict[str, UnreadArray] = {}
        for n, tensor in enumerate(graph.initializer):
            if not tensor.name or tensor.name in arrays:
                raise bad(
                    f"two initializers are called {tensor.name!r}"
                    if tensor.name
                    else "an initializer has no name"
                )
            what = f"initializer {tensor.name!r}"
            arrays[tensor.name] = unread(tensor, source, what, source.spans.get(n))
        if graph.sparse_initializer:
            raise bad(
                "the model has sparse initializers, which aicf lacks", got=len(graph.sparse_initializer)
            )
        inputs: dict[str, TensorSpec] = {}
        for info in graph.input:
            if not info.name or info.name in inputs:
                raise bad(f"two inputs are called {info.name!r}" if info.name else "an input has no name")
            inputs[info.name] = _spec(info)
        for name in set(inputs) & set(arrays):  # what older versions gave a first value, and let be fed
            _check_declared(name, inputs.pop(name), arrays[name].spec)
        functions: dict[tuple[str, str], Any] = {}
        for function in model.functions:
            key = function_key(function.domain, function.name)
            if key in functions:
                raise bad(f"two functions are called {'.'.join(filter(None, key))}")
            functions[key] = function
        check_calls(graph.node, functions)
        nodes = nodes_of(graph.node, [*inputs, *arrays])
        made = {*inputs, *arrays, *(name for node in nodes for name in node.outputs)}
        outputs: dict[str, int] = {}
        for info in graph.output:
            if info.name in outputs:
                raise bad(f"two outputs are called {info.name!r}")
            if info.name not in made:
                raise bad(f"the output {info.name!r} is made by no node")
            outputs[info.name] = info.type.tensor_type.elem_type if info.HasField("type") else 0
        if not outputs:
            raise bad("the model has no outputs", got=f"{len(nodes)} nodes")
        return cls(source, inputs, arrays, nodes, outputs, opsets, functions)


def check_calls(nodes: Iterable[Any], functions: Mapping[tuple[str, str], Any]) -> None:
    """That functions do not call themselves, nor each other without end: how many nodes there are when all are expanded."""
    sizes: dict[tuple[str, str], int] = {}

    def count(protos: Iterable[Any], inside: tuple[tuple[str, str], ...]) -> int:
        total = 0
        for proto in protos:
            total += 1 + sum(count(attr.g.node, inside) for attr in proto.attribute if attr.HasField("g"))
            check_text(proto.domain, proto.op_type)
            key = function_key(proto.domain, proto.op_type)
            if key not in functions:
                continue
            if key in inside:
                raise bad(
                    f"the function {'.'.join(filter(None, key))} calls itself", got=f"{len(inside)} calls"
                )
            if len(inside) >= MOST_DEPTH:
                raise bad(f"functions call each other {MOST_DEPTH} deep")
            if key not in sizes:
                sizes[key] = count(functions[key].node, (*inside, key))
            total += sizes[key]
        return total

    if count(nodes, ()) > MOST_NODES:
        raise bad(f"the model has more than {MOST_NODES} nodes when its functions are expanded")


def _opsets(imports: Iterable[Any]) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in imports:
        check_text(entry.domain)
        domain = domain_of(entry.domain)
        if opsets.get(domain, entry.version) != entry.version:
            raise bad(f"the model names two versions of the ops of {entry.domain or 'ai.onnx'!r}")
        newest = DOMAINS.get(domain)
        if newest is not None and not (OLDEST if not domain else 1) <= entry.version <= newest:
            oldest = f"{OLDEST} to " if not domain else "1 to "
            raise bad(
                f"the model is of version {entry.version} of the ops of {domain or 'ai.onnx'}", expected=oldest + str(newest),
                hint="onnx.version_converter.convert_version(model, 17)" if not domain else None,
            )  # fmt: skip
        opsets[domain] = entry.version
    return opsets


def _spec(info: Any) -> TensorSpec:
    """The type of an input; a dimension that has no size has a name."""
    kind = info.type.WhichOneof("value")
    if kind != "tensor_type":
        what = (
            "no type"
            if kind is None
            else f"a {kind.removesuffix('_type').replace('_', ' ')}, which aicf lacks"
        )
        raise bad(f"input {info.name!r} is {what}", expected="a tensor")
    dtype = dtype_of(info.type.tensor_type.elem_type, f"input {info.name!r}")
    if not info.type.tensor_type.HasField("shape"):
        raise bad(f"input {info.name!r} has no rank", expected="a shape; its sizes may have names")
    shape: list[int | str] = []
    for axis, dim in enumerate(info.type.tensor_type.shape.dim):
        if dim.HasField("dim_value"):
            if dim.dim_value < 0:
                raise bad(f"input {info.name!r} has a negative size", got=dim.dim_value)
            shape.append(dim.dim_value)
        else:
            check_text(dim.dim_param)
            shape.append(dim.dim_param or f"{info.name}.{axis}")
    return TensorSpec(tuple(shape), dtype)


def _check_declared(name: str, spec: TensorSpec, held: TensorSpec) -> None:
    sizes = all(isinstance(d, str) or d == n for d, n in zip(spec.shape, held.shape))
    if spec.dtype is not held.dtype or spec.rank != held.rank or not sizes:
        raise bad(
            f"{name!r} is an input and an initializer of another type", expected=str(spec), got=f"{held.dtype}{list(held.shape)}"
        )  # fmt: skip
