"""Ops that are defined by other ops: the model's own functions, and those whose definition ONNX gives. Their nodes are emitted in the
caller's place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .graph import OnnxNode, domain_of, nodes_of
from .operands import Operand
from .reading import TYPES, bad, library

NUMBERS = {dtype: number for number, dtype in TYPES.items()}


@dataclass(frozen=True)
class FunctionBody:
    """What a call of a function emits: nodes whose attributes are the call's own."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[OnnxNode, ...]
    opsets: Mapping[str, int]


def body_of(function: Any, node: OnnxNode, schema: Any, place: str) -> FunctionBody:
    """The body of a FunctionProto, for a call of it.

    schema  of an op that ONNX defines, whose defaults the attributes have; None for a function of the model's
    """
    given = dict(node.attrs)
    for proto in function.attribute_proto:
        given.setdefault(proto.name, proto)
    declared = {*function.attribute, *(p.name for p in function.attribute_proto)}
    if schema is None and (unknown := sorted(set(given) - declared)):
        raise bad(f"the function {node.kind} has no attribute {unknown[0]!r}", where=node.where)
    if schema is not None:
        for name, attr in schema.attributes.items():
            if attr.default_value.name:
                given.setdefault(name, attr.default_value)
    nodes = [_bound(proto, given) for proto in function.node]
    inputs, outputs = tuple(function.input), tuple(function.output)
    opsets = {domain_of(entry.domain): entry.version for entry in function.opset_import}
    checked = nodes_of(nodes, inputs, f"{place}{node.kind} › ")
    made = {*inputs, *(name for n in checked for name in n.outputs)}
    if lost := [
        name for name in outputs if name not in made and (schema is None or name in _asked(node, outputs))
    ]:
        raise bad(f"the function {node.kind} makes no {lost[0]!r}", where=node.where)
    if len(node.inputs) > len(inputs) or len(node.outputs) > len(outputs):
        raise bad(f"the function {node.kind} is called with too many inputs or outputs", where=node.where)
    return FunctionBody(inputs, outputs, checked, opsets)


def _asked(node: OnnxNode, outputs: tuple[str, ...]) -> set[str]:
    return {inner for inner, name in zip(outputs, node.outputs) if name}


def _bound(proto: Any, given: Mapping[str, Any]) -> Any:
    """A node of a function's with the call's attributes in the places that refer to them, those of its graphs too."""
    if not _refers(proto):
        return proto
    bound = type(proto)()
    bound.CopyFrom(proto)
    del bound.attribute[:]
    for attr in proto.attribute:
        if attr.ref_attr_name:
            value = given.get(attr.ref_attr_name)
            if value is None:
                continue  # not given: the op's own default
            bound.attribute.append(value)
            bound.attribute[-1].name = attr.name
            continue
        bound.attribute.append(attr)
        if attr.HasField("g"):
            inner = [_bound(p, given) for p in attr.g.node]
            del bound.attribute[-1].g.node[:]
            bound.attribute[-1].g.node.extend(inner)
    return bound


def _refers(proto: Any) -> bool:
    return any(a.ref_attr_name or (a.HasField("g") and any(map(_refers, a.g.node))) for a in proto.attribute)


def defined_by(node: OnnxNode, schema: Any, version: int, operands: list[Operand | None]) -> Any:
    """The FunctionProto by which ONNX defines an op at a version of the ops; None where it is defined in words alone."""
    onnx = library()
    made = None
    if fitting := [v for v in schema.function_opset_versions if v <= version]:
        made = schema.get_function_with_opset_version(max(fitting))
    elif fitting := [v for v in schema.context_dependent_function_opset_versions if v <= version]:
        types = [_type(x) for x in operands]
        try:
            made = schema.get_context_dependent_function_with_opset_version(max(fitting), _plain(node), types)
        except Exception as error:  # the library's own, of types that it does not expect
            raise bad(f"{node.op} can't be expanded: {error}", where=node.where) from None
    if not made:
        return None
    return onnx.FunctionProto.FromString(made) if isinstance(made, bytes) else made


def _plain(node: OnnxNode) -> bytes:
    data: bytes = node.proto.SerializeToString()
    return data


def _type(x: Operand | None) -> bytes:
    onnx = library()
    kind = onnx.TypeProto()
    if x is not None:
        kind.tensor_type.elem_type = NUMBERS[x.dtype]
        kind.tensor_type.shape.SetInParent()
        for size in x.shape:
            kind.tensor_type.shape.dim.add().dim_value = size
    data: bytes = kind.SerializeToString()
    return data
