"""The one door to MLIR: jaxlib's bindings parse a module, and what they found becomes plain data (`nodes.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import FrontendError
from ...graph.emit.builder import cell_of
from ...types import DType
from .nodes import Body, Function, Operation, StableModule, TensorType

_MAGIC = b"ML\xefR"  # MLIR bytecode, which portable artifacts are
_DEPTH = 256  # brackets within brackets: the parser recurses, and its stack is the process's
_TYPES = {
    "f64": DType.f64, "f32": DType.f32, "f16": DType.f16, "bf16": DType.bf16, "f8E4M3FN": DType.f8e4m3, "f8E5M2": DType.f8e5m2,
    "i1": DType.bool, "i8": DType.i8, "i16": DType.i16, "i32": DType.i32, "i64": DType.i64,
    "ui8": DType.u8, "ui16": DType.u16, "ui32": DType.u32, "ui64": DType.u64,
}  # fmt: skip
_FILE = re.compile(r'"((?:[^"\\]|\\.)*)":(\d+):\d+')
_NAME = re.compile(r'loc\("((?:[^"\\]|\\.)*)"[()]')
MISSING = "pip install jaxlib: its MLIR bindings parse StableHLO"


def _bindings() -> Any:
    """(ir, stablehlo, the dialects that register themselves, what registers the others) of jaxlib."""
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    except ImportError as error:
        raise FrontendError(
            "StableHLO can't be read: jaxlib is not installed", got=str(error), hint=MISSING
        ) from error
    return ir, stablehlo, (stablehlo, chlo, sdy), _jax_mlir_ext


def module_of(source: Any) -> StableModule:
    """A module as plain data.

    source  text, the bytes of a portable artifact, a module of jaxlib's bindings, what `jax.jit(f).lower(...)` returns (anything with
            `compiler_ir`), or what `jax.export` exports (anything with `mlir_module_serialized`)
    """
    if hasattr(source, "mlir_module_serialized"):
        source = source.mlir_module_serialized
    elif hasattr(source, "compiler_ir"):
        source = source.compiler_ir("stablehlo")
    if isinstance(source, (str, bytes, bytearray, memoryview)):
        source = _parsed(source if isinstance(source, str) else bytes(source))
    if not hasattr(source, "operation") or not hasattr(source, "body"):
        raise FrontendError(
            f"a {type(source).__name__} is no StableHLO module",
            expected="text, bytes of a portable artifact, jax.jit(f).lower(...), or what jax.export.export(...)(...) returns",
        )
    with source.context:
        return _Reading(source).module()


def _parsed(source: str | bytes) -> Any:
    ir, stablehlo, dialects, extension = _bindings()
    context = ir.Context()
    registry = ir.DialectRegistry()
    extension.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in dialects:
        dialect.register_dialect(context)
    if isinstance(source, str):
        _check_depth(source)
    elif not source.startswith(_MAGIC):
        raise FrontendError(
            "these bytes are no StableHLO module", expected="a portable artifact, which begins with ML\\xefR",
            got=f"{len(source)} bytes, {source[:8]!r} first", hint="text is given as a str: data.decode()",
        )  # fmt: skip
    try:
        if isinstance(source, str):
            return ir.Module.parse(source, context)
        return stablehlo.deserialize_portable_artifact(context, source)
    except (ir.MLIRError, ValueError) as error:
        first = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise FrontendError(
            "this StableHLO module can't be parsed", details=[line[:300] for line in first[:4]],
            got=f"{len(source)} {'characters' if isinstance(source, str) else 'bytes'}",
            hint="a portable artifact is read by jaxlib of its version or newer" if isinstance(source, bytes) else None,
        ) from None  # fmt: skip


def _check_depth(text: str) -> None:
    """That brackets don't nest so deep that the parser's stack ends."""
    depth = 0
    for mark in re.finditer(r'"(?:[^"\\\n]|\\.)*"|->|//[^\n]*|[(\[{<]|[)\]}>]', text):
        token = mark.group()
        if len(token) == 1:
            depth += 1 if token in "([{<" else -1
            if depth > _DEPTH:
                raise FrontendError(
                    f"this StableHLO module nests brackets more than {_DEPTH} deep",
                    where=f"character {mark.start()}",
                )


class _Reading:
    """Turns one module of jaxlib's into plain data."""

    def __init__(self, module: Any) -> None:
        self.ir, self.stablehlo, _, _ = _bindings()
        self.source = module
        self.values: dict[Any, int] = {}
        self.types: dict[Any, TensorType] = {}
        self.records = (
            self.stablehlo.DotDimensionNumbers,
            self.stablehlo.GatherDimensionNumbers,
            self.stablehlo.ScatterDimensionNumbers,
            self.stablehlo.ConvDimensionNumbers,
        )

    def module(self) -> StableModule:
        if not self.source.operation.verify():
            raise FrontendError("MLIR's verifier refuses this StableHLO module")
        devices = "mhlo.num_partitions", "mhlo.num_replicas"
        given = self.source.operation.attributes
        if more := [name for name in devices if name in given and self.attribute(given[name]) != 1]:
            raise FrontendError(
                "this StableHLO module is for several devices", expected="one", got=f"{more[0]} = {self.attribute(given[more[0]])}"
            )  # fmt: skip
        functions: dict[str, Function] = {}
        for op in self.source.body.operations:
            if op.operation.name == "sdy.mesh":
                continue
            if op.operation.name != "func.func":
                raise FrontendError(
                    f"this StableHLO module has a {op.operation.name} beside its functions", expected="func.func",
                    where=self.where(op.operation),
                )  # fmt: skip
            function = self.function(op)
            functions[function.name] = function
        main = "main" if "main" in functions or len(functions) != 1 else next(iter(functions))
        if main not in functions:
            raise FrontendError(
                "this StableHLO module has no function to run", expected="one called main, or a single one",
                got=", ".join(functions) or "no functions",
            )  # fmt: skip
        return StableModule(functions, main)

    def function(self, op: Any) -> Function:
        name = self.attribute(op.attributes["sym_name"])
        if len(op.regions[0].blocks) != 1:
            raise FrontendError(
                f"the function {name} has {len(op.regions[0].blocks)} blocks", expected="one: control flow by stablehlo.if, case and while",
                where=self.where(op.operation),
            )  # fmt: skip
        body = self.body(op.regions[0])
        given, returned = (self._named(op, key) for key in ("arg_attrs", "res_attrs"))
        names = [self._label(a) for a in op.regions[0].blocks[0].arguments]
        types = tuple(self.type(t) for t in op.type.results)
        arguments = tuple(
            at.get("jax.arg_info") or name for at, name in zip(given or [{}] * len(names), names)
        )
        results = tuple(str(at.get("jax.result_info", "")) for at in returned or [{}] * len(types))
        return Function(str(name), body, arguments, results, types)

    def _named(self, op: Any, key: str) -> list[dict[str, Any]]:
        if key not in op.attributes:
            return []
        return [{entry.name: self.attribute(entry.attr) for entry in each} for each in op.attributes[key]]

    def _label(self, argument: Any) -> str:
        found = re.match(r'loc\("([^"]*)"\)', str(argument.location))
        return found.group(1) if found else ""

    def body(self, region: Any) -> Body:
        if len(region.blocks) == 0:
            return Body((), (), (), ())
        block = region.blocks[0]
        arguments = tuple(self.number(a) for a in block.arguments)
        types = tuple(self.type(a.type) for a in block.arguments)
        nodes: list[Operation] = []
        returned: tuple[int, ...] = ()
        for op in block.operations:
            if op.operation.name in ("func.return", "stablehlo.return"):
                returned = tuple(self.number(v) for v in op.operation.operands)
            else:
                nodes.append(self.node(op.operation))
        return Body(arguments, types, tuple(nodes), returned)

    def node(self, op: Any) -> Operation:
        results = list(op.results)
        attrs = {}
        for named in op.attributes:
            name = named if isinstance(named, str) else named.name
            attrs[name] = self._attribute(op, name)
        return Operation(
            op.name,
            tuple(self.number(v) for v in op.operands),
            tuple(self.number(v) for v in results),
            tuple(self.type(v.type) for v in results),
            attrs,
            tuple(self.body(region) for region in op.regions),
            self.where(op),
        )

    def _attribute(self, op: Any, name: str) -> Any:
        try:
            found = op.attributes[name]
        except TypeError:  # the bindings have no class for elements such as complex numbers
            return f"{name}, which can't be read"
        return self.attribute(found)

    def number(self, value: Any) -> int:
        return self.values.setdefault(value, len(self.values))

    def where(self, op: Any) -> str:
        """The first file and line of a location, and what its name says: a call inside of calls names the innermost first."""
        text = str(op.location)
        file, name = _FILE.search(text), _NAME.match(text)
        if file is None:
            return ""
        line = f"{cell_of(file.group(1)) or file.group(1)}:{file.group(2)}"
        return f"{line} ({name.group(1)})" if name and not name.group(1).startswith(file.group(1)) else line

    # --- types and attributes -------------------------------------------------------------------------------------------

    def type(self, type_: Any) -> TensorType:
        found = self.types.get(type_)
        if found is None:
            found = self.types[type_] = self._type(type_)
        return found

    def _type(self, type_: Any) -> TensorType:
        text = str(type_)
        text = text if len(text) < 200 else f"{text[:200]}…"
        try:
            ranked = self.ir.RankedTensorType(type_)
        except (TypeError, ValueError):
            return TensorType(text, lacking=f"values of type {text}")
        if not ranked.has_static_shape or ranked.encoding is not None:
            return TensorType(text, lacking=f"sizes that are open: {text}")
        element = str(ranked.element_type)
        return TensorType(text, tuple(ranked.shape), _TYPES.get(element), f"the element type {element}")

    def attribute(self, attr: Any) -> Any:
        """An attribute as Python's own: numbers, text, tuples, an array or a `Splat` of elements, a dict of dimension numbers."""
        ir = self.ir
        found = _PLAIN.get(type(attr).__name__)
        if found is not None:
            return found(attr)
        if isinstance(attr, ir.ArrayAttr):
            return tuple(self.attribute(each) for each in attr)
        if isinstance(attr, ir.DictAttr):
            return {named.name: self.attribute(named.attr) for named in attr}
        if isinstance(attr, (ir.DenseElementsAttr, ir.DenseFPElementsAttr, ir.DenseIntElementsAttr)):
            return self.elements(attr)
        for record in self.records:
            if record.isinstance(attr):
                made = record(attr)
                return {n: _fields(getattr(made, n)) for n in dir(made) if n.endswith(_DIMENSIONS)}
        text = str(attr)
        inner = re.fullmatch(r"#(?:stablehlo|chlo)<\w+ ([\w ]+)>", text)
        return inner.group(1) if inner else text

    def elements(self, attr: Any) -> Any:
        """The elements of a constant; those of one value as a `Splat`, which takes no memory however large it is."""
        kind = self.type(attr.type)
        if kind.dtype is None:
            return str(kind)
        if attr.is_splat:
            return Splat(_scalar(attr.get_splat_value()), kind)
        if kind.dtype in (DType.bf16, DType.f8e4m3, DType.f8e5m2):  # the bindings have no buffer of these
            return _elements_of_text(str(attr), kind)
        return np.array(attr).reshape(kind.shape).astype(kind.dtype.numpy, copy=False)


_DIMENSIONS = ("dims", "dim", "dimensions", "dimension", "map")
_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "BoolAttr": lambda a: bool(a.value),
    "IntegerAttr": lambda a: int(a.value),
    "FloatAttr": lambda a: float(a.value),
    "StringAttr": lambda a: str(a.value),
    "FlatSymbolRefAttr": lambda a: str(a.value),
    "DenseI64ArrayAttr": lambda a: tuple(map(int, a)),
    "DenseBoolArrayAttr": lambda a: tuple(map(bool, a)),
}


class Splat:
    """A constant whose elements are all the same."""

    def __init__(self, value: Any, type: TensorType) -> None:
        self.value, self.type = value, type


def _fields(value: Any) -> Any:
    return int(value) if isinstance(value, int) else tuple(map(int, value))


def _scalar(value: Any) -> Any:
    """The number of an attribute: MLIR's integers are signless or unsigned, its bools are attributes of their own."""
    return value if isinstance(value, (bool, int, float)) else value.value


def _elements_of_text(text: str, kind: TensorType) -> np.ndarray:
    assert kind.dtype is not None
    numpy = kind.dtype.numpy
    literal = text[: text.rindex(":")]
    if packed := re.fullmatch(r'\s*dense<"0x([0-9A-Fa-f]*)">\s*', literal):
        return np.frombuffer(bytes.fromhex(packed.group(1)), numpy).reshape(kind.shape).copy()
    bits = np.dtype(f"u{numpy.itemsize}")
    found = re.findall(r"0x[0-9A-Fa-f]+|-?\d[\d.]*(?:[eE][+-]?\d+)?", literal)
    values = [
        np.array(int(n, 16), bits).view(numpy) if n.startswith("0x") else np.array(float(n)).astype(numpy)
        for n in found
    ]
    return np.array(values, numpy).reshape(kind.shape)
