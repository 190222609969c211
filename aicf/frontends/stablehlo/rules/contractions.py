"""dot_general as a GEMM: axes brought into the order batch, rows, contracted by transposes, which are left out where a flag says them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from ....ir import Value
from ....types import DType, Precision
from ..emission import Emission
from ..nodes import Operation
from ..table import UnsupportedForm, rule
from .movement import permuted

_GEMM = frozenset({DType.f32, DType.f16, DType.bf16})


@rule("stablehlo.dot_general")
def _(e: Emission, node: Operation, a: Value, b: Value) -> Value:
    numbers, kind = node.attrs["dot_dimension_numbers"], node.types[0]
    if node.attrs.get("algorithm") is not None:
        a, b = _as_algorithm(e, str(node.attrs["algorithm"]), a, b)
    left, right = (
        _Side(x, numbers[f"{side}_batching_dimensions"], numbers[f"{side}_contracting_dimensions"])
        for side, x in (("lhs", a), ("rhs", b))
    )
    exact = {"precision": Precision.exact} if "HIGHEST" in node.attrs.get("precision_config", ()) else {}
    product = _product(e, left, right, kind.dtype, exact)
    return product if product.shape == kind.shape else e.ctx.reshape(product, shape=kind.shape)


def _as_algorithm(e: Emission, told: str, a: Value, b: Value) -> tuple[Value, Value]:
    """The operands in the types that an algorithm multiplies: of those that a GEMM has, with sums in f32."""
    said = dict(part.split(" = ") for part in told.partition("<")[2].rstrip(">").split(", "))
    types = [said.get(f"{side}_precision_type") for side in ("lhs", "rhs")]
    parts = [
        said.get(name) for name in ("lhs_component_count", "rhs_component_count", "num_primitive_operations")
    ]
    plain = parts == ["1"] * 3 and said.get("accumulation_type") == "f32" and types[0] == types[1]
    dtype = next((t for t in _GEMM if t.name == types[0]), None)
    if not plain or dtype is None:
        raise UnsupportedForm(f"by the algorithm {told.partition('<')[2].rstrip('>')}")
    return tuple(x if x.dtype is dtype else e.ctx.convert(x, dtype=dtype) for x in (a, b))  # type: ignore[return-value]


class _Side:
    """An operand of a dot_general, with its axes by what they are for."""

    def __init__(self, x: Value, batch: tuple[int, ...], contracted: tuple[int, ...]) -> None:
        self.x, self.batch, self.contracted = x, tuple(batch), tuple(contracted)
        self.free = tuple(a for a in range(x.rank) if a not in (*batch, *contracted))

    def sizes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.x.shape[a] for a in axes)

    def matrix(self, e: Emission, contracted_last: bool) -> tuple[Value, bool]:
        """(x as batch, matrix; whether the matrix is the other way round than asked for): a transpose that the GEMM does costs nothing."""
        last, first = (*self.batch, *self.free, *self.contracted), (*self.batch, *self.contracted, *self.free)
        wanted, other = (last, first) if contracted_last else (first, last)
        swapped = wanted != tuple(range(self.x.rank)) and other == tuple(range(self.x.rank))
        order = other if swapped else wanted
        free, contracted = prod(self.sizes(self.free)), prod(self.sizes(self.contracted))
        pair = (free, contracted) if contracted_last is not swapped else (contracted, free)
        x, shape = permuted(e, self.x, order), (*self.sizes(self.batch), *pair)
        return (x if x.shape == shape else e.ctx.reshape(x, shape=shape)), swapped


def _product(e: Emission, a: _Side, b: _Side, dtype: DType | None, more: Mapping[str, Precision]) -> Value:
    if a.x.dtype is b.x.dtype and a.x.dtype in _GEMM and dtype in _GEMM:
        (x, trans_a), (y, trans_b) = a.matrix(e, True), b.matrix(e, False)
        return e.ctx.gemm(x, y, trans_a=trans_a, trans_b=trans_b, out_dtype=dtype, **more)
    return _summed(e, a, b, dtype)


def _summed(e: Emission, a: _Side, b: _Side, dtype: DType | None) -> Value:
    """What no GEMM takes, such as integers and f64: products and their sums, one kernel that keeps no product."""
    assert dtype is not None
    pair = []
    for side, at in ((a, -2), (b, -3)):
        x = permuted(e, side.x, (*side.batch, *side.free, *side.contracted))
        shape = [*side.sizes(side.batch), prod(side.sizes(side.free)), prod(side.sizes(side.contracted))]
        shape.insert(len(shape) + 1 + at, 1)
        x = e.ctx.reshape(x, shape=tuple(shape))
        pair.append(x if x.dtype is dtype else e.ctx.convert(x, dtype=dtype))
    if dtype is DType.bool:
        raise UnsupportedForm("of bools")
    return e.ctx.reduce_sum(e.ctx.mul(*pair), axes=(-1,))
