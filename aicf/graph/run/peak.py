"""How long a plan takes at the least: its products at the peak of the device, each in the type that it multiplies."""

from __future__ import annotations

from ...device.spec import DeviceSpec
from ...ops.schema import schema_of
from ...rows import RegionOp, RegionSpec
from ...types import DType, Precision
from .plan import ExecPlan

UNITS = {DType.f16: ("f16", 1), DType.bf16: ("bf16", 1), DType.f8e4m3: ("f8", 1), DType.f8e5m2: ("f8", 1)}
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


def _flops(region: RegionSpec, op: RegionOp) -> int:
    schema = schema_of(op.kind)
    if schema.count_fn is None:
        return 0
    operands = [region.tensors[t] if t >= 0 else None for t in op.inputs]
    return int(schema.count_fn(*operands, **schema.values(op.attrs)))


def _rate(region: RegionSpec, op: RegionOp, device: DeviceSpec) -> float:
    """TFLOP/s of an op; that of f32 where the device has no rate for its type."""
    halves = [region.tensors[t].dtype for t in op.inputs if t >= 0 and region.tensors[t].dtype in UNITS]
    precision = schema_of(op.kind).values(op.attrs).get("precision", Precision.exact)
    unit, times = UNITS[halves[0]] if halves else PRECISIONS.get(precision, ("f32", 1))
    return (device.tflops.get(unit, 0.0) or device.tflops["f32"]) / times
