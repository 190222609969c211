"""A region in a file, a plan's or that of tuned times: every field checked, then whether it is a region at all."""

from __future__ import annotations

from typing import Any

from ..errors import AicfError
from ..files import HEX, WHOLE, Bad, Check, list_of, must, record
from ..ops.schema import schema_of
from ..types import DType, TensorSpec
from .region import RegionOp, RegionSpec

KIND = must("cpu or cuda", lambda v: v in ("cpu", "cuda"))
DTYPE = must(
    "one of " + ", ".join(DType.__members__), lambda v: isinstance(v, str) and v in DType.__members__
)
SIZES = list_of(WHOLE)
_INDEX = must("a whole number of -1 or more", lambda v: type(v) is int and -1 <= v < 2**31)
_STRIDE = must("a whole number", lambda v: type(v) is int and abs(v) < 2**63)
_ALIGNMENT = must("a power of two up to 256", lambda v: type(v) is int and v in [2**n for n in range(9)])
_NAME = must(
    "a lower_snake_case identifier", lambda v: isinstance(v, str) and v.isidentifier() and v == v.lower()
)
REGION: Check = record(
    ("strict", "invariant"),
    ops=list_of(record(**{"kind": _NAME, "attrs": HEX, "in": list_of(_INDEX), "out": SIZES})),
    tensors=list_of(
        record(dtype=DTYPE, shape=SIZES, stride=list_of(_STRIDE), device=KIND, alignment=_ALIGNMENT)
    ),
    inputs=SIZES,
    outputs=SIZES,
    strict=must("true", lambda v: v is True),
    invariant=must("true", lambda v: v is True),
)


def region_of(data: dict[str, Any], at: str) -> RegionSpec:
    """The region that REGION has found to be well formed, if it is one: indices within bounds, values made before they are
    read, types that the ops infer, attributes in their normal form. Bad says what is not so."""
    if not data["ops"]:
        raise Bad(f"{at}.ops", "one op at least", "none")
    for n, t in enumerate(data["tensors"]):
        if len(t["shape"]) != len(t["stride"]):
            raise Bad(f"{at}.tensors[{n}].stride", f"{len(t['shape'])} entries", len(t["stride"]))
    if "invariant" in data and "strict" not in data:
        raise Bad(f"{at}.strict", "true, as of each region that is invariant", "none")
    count = len(data["tensors"])
    named = [i for op in data["ops"] for i in (*op["in"], *op["out"])] + data["inputs"] + data["outputs"]
    if bad := [i for i in named if i >= count]:
        raise Bad(at, f"indices of the {count} tensors", bad[0])
    for which in ("inputs", "outputs"):
        if len(set(data[which])) != len(data[which]):
            raise Bad(f"{at}.{which}", "each tensor once", data[which])
    try:
        region = RegionSpec.from_json(data)
        known, made = set(region.inputs), set[int]()
        for n, op in enumerate(region.ops):
            _check_op(region, op, known, f"{at}.ops[{n}]")
            known.update(op.outputs)
            made.update(op.outputs)
        if not set(region.outputs) <= made:
            raise Bad(f"{at}.outputs", "tensors that are made", region.outputs)
    except (AicfError, ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise Bad(at, "a region that this aicf can read", str(error).split("\n")[0]) from None
    return region


def _check_op(region: RegionSpec, op: RegionOp, known: set[int], at: str) -> None:
    if unmade := [i for i in op.inputs if i >= 0 and i not in known]:
        raise Bad(f"{at}.in", "tensors that are given or made before", unmade[0])
    if known.intersection(op.outputs) or len(set(op.outputs)) != len(op.outputs):
        raise Bad(f"{at}.out", "tensors that were not there before", op.outputs)
    schema = schema_of(op.kind)
    specs = [None if i < 0 else _spec(region, i) for i in op.inputs]
    want = schema.infer(specs, op.attrs, region.tensors[op.outputs[0]].device if op.outputs else "")
    if (got := tuple(_spec(region, i) for i in op.outputs)) != want:
        raise Bad(f"{at}.out", ", ".join(map(str, want)), ", ".join(map(str, got)))
    if (normal := schema.pack(schema.normalized(specs, op.attrs))) != op.attrs:
        raise Bad(f"{at}.attrs", f"{normal}", f"{op.attrs}")


def _spec(region: RegionSpec, tensor: int) -> TensorSpec:
    t = region.tensors[tensor]
    return TensorSpec(t.shape, t.dtype, t.device)
