"""Operands for an op's samples: random values within the op's domain, in any of its types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from aicf.dispatch import default_registry
from aicf.ops.draw import draw
from aicf.ops.schema import ELEMENTWISE, OperandDecl, OpSchema, schemas
from aicf.types import BASIC, AttrPack, DType, TensorSpec

from .cases import admitted


def types_of(schema: OpSchema) -> list[DType]:
    """The element types an op is tested in: the basic ones of its shared operands, or of one with any type; else just f32. For the
    others there is tests/cpu/test_element_types.py."""
    for decl in schema.operands:
        if decl.type.shared or len(decl.type.dtypes) == len(DType):
            return sorted(decl.type.dtypes & BASIC, key=lambda t: t.id)
    return [DType.f32]


def operand_type(decl: OperandDecl, dtype: DType) -> DType:
    return dtype if dtype in decl.type.dtypes and decl.type.name != "f32" else admitted(decl.type)


def cases() -> Iterator[tuple[OpSchema, dict[str, Any], DType]]:
    """(op, sample, element type) for all of them."""
    for schema in schemas():
        for sample in schema.sample_specs:
            for dtype in types_of(schema):
                yield schema, sample, dtype


def runs_on(schema: OpSchema, device: str) -> bool:
    """Whether the device has kernels for the op, or for the ops that it consists of."""
    kernels = default_registry().variants(schema.kind)
    return schema.instead_fn is not None or any(v.device == device for v in kernels)


def names_on(device: str) -> list[str]:
    """The ops that a single process can call on the device."""
    return sorted({s.name for s, _, _ in cases() if s.core != "collective" and runs_on(s, device)})


def name(value: Any) -> str | None:
    """Test ids: `add-(4, 7) (7,)-bf16`."""
    if isinstance(value, OpSchema):
        return value.name
    if isinstance(value, dict):
        return " ".join(map(str, [*value["shapes"], *value["attrs"].items()])).replace("'", "")
    return str(value) if isinstance(value, DType) else None


def arity(schema: OpSchema) -> int:
    """How many operands tests give an elementwise op: three where it takes any number."""
    return len(schema.operands) + 2 * schema.variadic


def operands(
    schema: OpSchema, sample: dict[str, Any], dtype: DType = DType.f32, *, exact: bool = False, seed: int = 0
) -> list[np.ndarray | None]:
    """Random operands of a sample's shapes; f64 where a float is asked for, if exact."""
    rng = np.random.default_rng([seed, *schema.name.encode()])
    return [
        None
        if shape is None
        else _values(schema, decl, operand_type(decl, dtype), sample["shapes"], rng, exact)
        for decl, shape in zip(schema.declared(len(sample["shapes"])), sample["shapes"])
    ]


def _values(schema, decl, dtype, shapes, rng, exact) -> np.ndarray:
    made = draw(schema, decl, dtype, shapes, rng)
    return made.astype(np.float64 if exact and dtype.kind == "float" else dtype.numpy)


def spec(array: np.ndarray | None) -> TensorSpec | None:
    """An array's spec. f64 stands for f32, with more digits."""
    if array is None:
        return None
    return TensorSpec(array.shape, DType.f32 if array.dtype == np.float64 else DType.of(array.dtype))


def packed(schema: OpSchema, arrays: list[np.ndarray | None], attrs: dict[str, Any]) -> AttrPack:
    return schema.pack(schema.normalized([spec(a) for a in arrays], attrs))


def elementwise_ops() -> list[OpSchema]:
    return [s for s in schemas() if ELEMENTWISE in s.traits]
