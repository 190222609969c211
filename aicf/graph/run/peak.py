"""How long a plan takes at the least: its products at the peak of the device, each in the type that it multiplies."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...ops.schema import schema_of
from ...rows import RegionOp, RegionSpec
from ...types import DType, Precision
from .plan import ExecPlan

UNITS = {
    DType.f16: ("f16", 1), DType.bf16: ("bf16", 1), **dict.fromkeys((DType.f8e4m3, DType.f8e5m2, DType.i8, DType.u8), ("f8", 1)),
}  # fmt: skip
PRECISIONS = {
    Precision.tf32: ("tf32", 1),
    Precision.tf32x3: ("tf32", 3),
}  # of f32: the unit, and how many products it takes


def counted_flops(plan: ExecPlan) -> int:
    """Of what counts its flops: products, attention, linear cross entropy with the logits it makes again."""
    return sum(_flops(step.region, op) for step in plan.steps for op in step.region.ops)


def peak_seconds(plan: ExecPlan, device: DeviceSpec) -> float:
    """What these take at the device's peak of their types."""
    return sum(
        flops / (_rate(step.region, op, device) * 1e12)
        for step in plan.steps
        for op in step.region.ops
        if (flops := _flops(step.region, op))
    )


def arithmetic_seconds(region: RegionSpec, device: DeviceSpec) -> float:
    """What the flops of `region_flops` take at the device's peak of their types."""
    return sum(
        (_flops(region, op) or _of_elements(region, op)) / (_rate(region, op, device) * 1e12)
        for op in region.ops
    )


def region_flops(region: RegionSpec) -> int:
    """Of all ops: those that are counted as above, of the others what their schemas say for each element of a result."""
    return sum(_flops(region, op) or _of_elements(region, op) for op in region.ops)


def unit_of(region: RegionSpec) -> str:
    """The arithmetic that bounds the region, as DeviceSpec.tflops names it: its products', else f32."""
    counted = (op for op in region.ops if schema_of(op.kind).count_fn is not None)
    return next((_unit(region, op)[0] for op in counted), "f32")


def _of_elements(region: RegionSpec, op: RegionOp) -> int:
    return schema_of(op.kind).flops * max((region.tensors[t].numel for t in op.outputs), default=0)


def _flops(region: RegionSpec, op: RegionOp) -> int:
    schema = schema_of(op.kind)
    if schema.count_fn is None:
        return 0
    operands = [region.tensors[t] if t >= 0 else None for t in op.inputs]
    return int(schema.count_fn(*operands, **schema.values(op.attrs)))


def _rate(region: RegionSpec, op: RegionOp, device: DeviceSpec) -> float:
    """TFLOP/s of an op; that of f32 where the device has no rate for its type."""
    unit, times = _unit(region, op)
    return (device.tflops.get(unit, 0.0) or device.tflops["f32"]) / times


def _unit(region: RegionSpec, op: RegionOp) -> tuple[str, int]:
    """What multiplies, and how many products one takes there."""
    halves = [region.tensors[t].dtype for t in op.inputs if t >= 0 and region.tensors[t].dtype in UNITS]
    precision = schema_of(op.kind).values(op.attrs).get("precision", Precision.exact)
    return UNITS[halves[0]] if halves else PRECISIONS.get(precision, ("f32", 1))
