"""What PyTorch's own convolutions take on a GPU, estimated, beside what aicf's kernels are predicted to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import AicfError
from ...ops.schema import schema_of
from ...registry.cost import memory_us
from ...registry.select import Selector
from ...rows import RegionSpec
from ...types import DType, TensorDesc, TensorSpec, bf16, f16

HALVES = (f16, bf16)
ARCHITECTURE = "sm_90a"
# Of cuDNN with channels last, bf16, over ResNet-50's and a UNet's layers on an H200 (docs/results/convolution.md): a launch, the rate of
# its inner loops, memory's, and what is lost beside them. Half of those 50 layers are within 12 % of it.
LAUNCH_US, RATE, MEMORY, REST = 2.5, 0.7, 0.8, 1.1

OPS = (
    "convolution_channels_last",
    "convolution_data_gradient_channels_last",
    "convolution_weight_gradient_channels_last",
)


def regions_of(
    x: Sequence[int], w: Sequence[int], dtype: DType, attrs: Mapping[str, Any], asked: Sequence[str]
) -> list[RegionSpec]:
    """Of a convolution, its gradient by x and that by w: those that are asked for. x is (N, C, …), w (O, C / groups, …)."""
    device, (image, kernel) = "cuda", ((t[0], *t[2:], t[1]) for t in (x, w))
    specs = [TensorSpec(shape, dtype, device) for shape in (image, kernel)]
    forward = schema_of(OPS[0])
    (y,) = forward.infer(specs, forward.normalized(specs, attrs), device)
    given = {
        OPS[0]: (specs, {}), OPS[1]: ([y, specs[1]], {"sizes": image[1:-1]}), OPS[2]: ([specs[0], y], {"kernel": kernel[1:-1]}),
    }  # fmt: skip
    made = []
    for name in asked:
        operands, more = given[name]
        schema = schema_of(name)
        packed = schema.pack(schema.normalized(operands, {**attrs, **more}))
        results = schema.infer(operands, packed, device)
        ins: list[TensorDesc | None] = [TensorDesc.dense(spec) for spec in operands]
        made.append(RegionSpec.single(schema.kind, packed, ins, [TensorDesc.dense(spec) for spec in results]))
    return made


def peer_us(region: RegionSpec, selector: Selector) -> float:
    """PyTorch's time for one of them."""
    op, device = region.anchor, selector.device
    specs = [TensorSpec(t.shape, t.dtype, "cuda") for t in region.operands]
    count = schema_of(op.kind).count_fn
    assert count is not None
    flops = float(count(*specs, **schema_of(op.kind).values(op.attrs)))
    rate = device.tflops[specs[0].dtype.name] * RATE * 1e6
    return REST * (LAUNCH_US + max(flops / rate, memory_us(device, region.nbytes, MEMORY)))


def is_faster(
    selector: Selector, x: Sequence[int], w: Sequence[int], dtype: DType | None, attrs: Mapping[str, Any], asked: Sequence[str]
) -> bool:  # fmt: skip
    """Whether aicf's kernels take no longer than PyTorch's: on Hopper, for halves; elsewhere PyTorch's are the faster ones.

    What follows is in aicf's kernel; PyTorch reads the result for it once more.
    """
    if dtype not in HALVES or selector.device.missing(ARCHITECTURE) is not None:
        return False
    try:
        regions = regions_of(x, w, dtype, attrs, asked)
        if any(t.numel == 0 for region in regions for t in region.tensors):
            return False
        ours = sum(selector(region).chosen.us for region in regions)
    except AicfError:  # no kernel takes it, or it is no convolution
        return False
    again = sum(memory_us(selector.device, t.nbytes, MEMORY) for region in regions for t in region.results)
    return ours <= again + sum(peer_us(region, selector) for region in regions)
