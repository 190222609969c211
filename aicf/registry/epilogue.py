"""What follows the product in a GEMM region: bias, activation, and which values leave the region.

A region that begins with a gemm is read into one GemmProgram, which the GEMM variants of every device share: what the
gemm op carries as attributes (bias, act, save_preact) and what fused ops brought (bias_add, one elementwise op) mean the
same thing here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ops.gemm import bias_kind
from ..ops.schema import ELEMENTWISE, schema_of
from ..rows import RegionSpec
from ..types import ActKind
from .variant import Reject


@dataclass(frozen=True)
class GemmProgram:
    """z = alpha * op(a) @ op(b) + beta * c + bias; d = act(z). Operand positions index `region.operands`.

    d and z are positions in `region.results`, or None for a value that stays inside the region.
    """

    m: int
    n: int
    k: int
    a: int
    b: int
    c: int | None
    bias: int | None
    bias_kind: str | None
    alpha: float
    beta: float
    trans_a: bool
    trans_b: bool
    act: str | None
    act_attrs: tuple[tuple[str, Any], ...]
    d: int | None
    z: int | None

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def scalar(self) -> Callable[..., Any] | None:
        """The activation as a scalar function, or None."""
        return schema_of(self.act).scalar if self.act else None


def gemm_program(region: RegionSpec) -> GemmProgram | Reject:
    """Read the region, or say at which op it stops being a GEMM with an epilogue."""
    head, attrs = region.anchor, region.anchor.attrs
    if head.kind.name != "gemm":
        return Reject("ops", f"begins with {head.kind}, not with gemm")
    a, b, c, bias = (*head.inputs, -1, -1)[:4]
    act = None if attrs["act"] == ActKind.none else ActKind(attrs["act"]).name
    act_attrs: dict[str, Any] = {"slope": attrs["slope"]} if act == "leaky_relu" else {}
    (m, n), k = region.tensors[head.outputs[0]].shape, region.tensors[a].shape[0 if attrs["trans_a"] else 1]
    d = head.outputs[0]
    z = head.outputs[1] if attrs["save_preact"] else d if act is None else None
    for op in region.ops[1:]:
        if not op.inputs or op.inputs[0] != d:
            return Reject("ops", f"{op.kind} does not continue the product")
        if op.kind.name == "bias_add":
            if bias != -1 or act is not None:
                return Reject(
                    "epilogue", f"bias_add comes after {'an activation' if act else 'another bias'}"
                )
            if d in region.outputs or attrs["save_preact"]:
                return Reject("epilogue", "the product without its bias is read outside the region")
            bias = op.inputs[1]
            d = z = op.outputs[0]
            continue
        schema = schema_of(op.kind)
        if op.kind.name == "gemm":
            return Reject("ops", "another product begins")
        if ELEMENTWISE not in schema.traits or len(op.inputs) != 1 or len(op.outputs) != 1:
            return Reject("epilogue", f"{op.kind} is no elementwise op of one operand")
        if act is not None:
            return Reject(
                "epilogue", f"{op.kind} comes after {act}; the epilogue has room for one activation"
            )
        if region.tensors[op.outputs[0]].dtype is not region.tensors[d].dtype:
            return Reject("epilogue", f"{op.kind} changes the element type")
        act, act_attrs, d = op.kind.name, dict(op.attrs), op.outputs[0]
    where: dict[int | None, int] = {v: i for i, v in enumerate(region.inputs)}
    out: dict[int | None, int] = {v: i for i, v in enumerate(region.outputs)}
    kind = None if bias == -1 else bias_kind(region.tensors[bias].shape[0], m, n)
    return GemmProgram(
        m,
        n,
        k,
        where[a],
        where[b],
        where.get(c),
        where.get(bias),
        kind,
        attrs["alpha"],
        attrs["beta"],
        attrs["trans_a"],
        attrs["trans_b"],
        act,
        tuple(act_attrs.items()),
        out.get(d),
        out.get(z) if z != d else None,
    )
