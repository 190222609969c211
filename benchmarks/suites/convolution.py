"""Convolutions of bf16, channels last, against cuDNN as PyTorch calls it: the layers of ResNet-50 and of a diffusion UNet. Errors against float64
first. Without a GPU, small ones of f32 against PyTorch's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import aicf
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f32

from .. import sides
from ..harness import Bench, Case, Suite, WrongResult
from ..results import Row, mean_ratios, row
from ..stats import enough, wall

PEER = "cuDNN, channels last"
TOLERANCE = {bf16: 1e-2, f32: 1e-5}  # of an image, by norms
SAMPLE_S, CALLS = 5e-3, 20


@dataclass(frozen=True)
class Layer:
    """A square image, a square kernel, and padding that keeps the size where the stride is 1."""

    size: int
    channels: int
    results: int
    kernel: int
    stride: int = 1
    batch: int = 32
    dtype: DType = bf16

    def __str__(self) -> str:
        stride = f"/{self.stride}" if self.stride > 1 else ""
        return f"{self.dtype} {self.batch}x{self.size}x{self.size}x{self.channels}, {self.kernel}x{self.kernel}{stride}, {self.results}"

    @property
    def attrs(self) -> dict[str, Any]:
        edge = (self.kernel // 2,) * 2
        return {"strides": (self.stride,) * 2, "low": edge, "high": edge}

    @property
    def x(self) -> tuple[int, ...]:
        return (self.batch, self.size, self.size, self.channels)

    @property
    def w(self) -> tuple[int, ...]:
        return (self.results, self.kernel, self.kernel, self.channels)

    def region(self, device: str) -> RegionSpec:
        operands = [TensorDesc.dense(TensorSpec(s, self.dtype, device)) for s in (self.x, self.w)]
        return sides.one_op("convolution_channels_last", operands, **self.attrs)

    @property
    def y(self) -> tuple[int, ...]:
        return self.region("cuda").results[0].shape

    @property
    def flops(self) -> float:
        return 2.0 * np.prod(self.y, dtype=float) * self.kernel**2 * self.channels


RESNET = [
    (56, 64, 64, 1), (56, 64, 64, 3), (56, 64, 256, 1), (56, 256, 64, 1), (56, 256, 128, 1), (56, 128, 128, 3, 2),
    (28, 128, 512, 1), (56, 256, 512, 1, 2), (28, 512, 128, 1), (28, 128, 128, 3), (28, 512, 256, 1), (28, 256, 256, 3, 2),
    (14, 256, 1024, 1), (28, 512, 1024, 1, 2), (14, 1024, 256, 1), (14, 256, 256, 3), (14, 1024, 512, 1), (14, 512, 512, 3, 2),
    (7, 512, 2048, 1), (14, 1024, 2048, 1, 2), (7, 2048, 512, 1), (7, 512, 512, 3),
]  # fmt: skip
UNET = [
    (64, 320, 320, 3),
    (32, 640, 640, 3),
    (16, 1280, 1280, 3),
    (32, 320, 640, 3),
    (64, 640, 320, 3),
    (64, 320, 320, 3, 2),
]
SETS = {"ResNet-50": RESNET, "UNet": UNET}


def layers(bench: Bench) -> dict[str, list[Layer]]:
    if bench.tiny or not bench.on_gpu:
        dtype = bf16 if bench.on_gpu else f32
        return {"small": [Layer(9, 16, 24, 3, batch=2, dtype=dtype), Layer(8, 16, 8, 1, 2, 2, dtype)]}
    return {
        f"{name}, batch {batch}": [Layer(*made, batch=batch) for made in sizes]
        for name, sizes, batch in (("ResNet-50", RESNET, 32), ("ResNet-50", RESNET, 256), ("UNet", UNET, 8))
    }


def cases(bench: Bench) -> list[Case]:
    def kernels(of: list[Layer], device: aicf.DeviceSpec) -> list[sides.Kernel]:
        regions = [layer.region(device.kind) for layer in of]
        return [(sides.predicted(region, device)[0][0], region) for region in regions]

    least = 0.0 if bench.tiny else 20.0
    return [
        Case(f"convolutions, {name}", partial(_measure, name, of), least, partial(kernels, of))
        for name, of in layers(bench).items()
    ]


def exact(layer: Layer, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of images, in float64."""
    reference = schema_of("convolution").reference_fn
    assert reference is not None
    attrs = {**layer.attrs, "dilation": (1, 1), "input_dilation": (1, 1), "groups": 1}
    return np.moveaxis(reference(np.moveaxis(x, -1, 1), np.moveaxis(w, -1, 1), **attrs), 1, -1)


def check(layer: Layer, what: str, got: np.ndarray, want: np.ndarray) -> None:
    error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
    if not error <= TOLERANCE[layer.dtype]:
        raise WrongResult(f"{what}, {layer}: off by {error:.2g} of the norm")


def _measure(name: str, of: list[Layer], bench: Bench) -> Iterator[Row]:
    for layer in of:
        made = _on_gpu(layer, bench) if bench.on_gpu else _on_host(layer, bench)
        yield {**made, "case": f"{name}: {made['case']}"}


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of each set of layers."""
    groups = defaultdict[str, list[Row]](list)
    for one in rows:
        groups[one["case"].partition(":")[0]].append(one)
    return mean_ratios(groups)


def _on_gpu(layer: Layer, bench: Bench) -> Row:
    lab, torch = bench.lab, bench.lab.torch
    torch.backends.cudnn.benchmark = True  # it tries its kernels first
    x, w = (torch.randn(s, device=lab.device).to(torch.bfloat16) for s in (layer.x, layer.w))
    y = torch.full(layer.y, float("nan"), device=lab.device, dtype=torch.bfloat16)
    bound = sides.bind_op(lab.runtime, "convolution_channels_last", [x, w], [y], **layer.attrs)
    first, theirs_w = (t.permute(0, 3, 1, 2) for t in (x, w))  # views: their memory is channels last

    def theirs() -> Any:
        return torch.nn.functional.conv2d(first, theirs_w, stride=layer.stride, padding=layer.kernel // 2)

    bound.call()
    lab.sync()
    want = exact(layer, *(t.double().cpu().numpy() for t in (x[-1:], w)))
    for what, made in (("aicf", y), (PEER, theirs().permute(0, 2, 3, 1))):
        check(layer, what, made[-1:].double().cpu().numpy(), want)
        if not bool(torch.isfinite(made).all()):
            raise WrongResult(f"{what}, {layer}: elements are not finite")
    return compared(layer, bench, bound, theirs)


def compared(layer: Layer, bench: Bench, bound: sides.BoundOp, theirs: Callable[[], Any]) -> Row:
    """Graphs of aicf's kernel and of PyTorch's, alternately."""
    lab = bench.lab
    sides_of = {"aicf": bound.call, PEER: theirs}
    count = {side: enough(call, SAMPLE_S, CALLS, lab.sync) for side, call in sides_of.items()}
    graph = lab.aicf_graph([bound.call] * count["aicf"])
    captured = lab.torch_graph(lambda: [theirs() for _ in range(count[PEER])])
    lab.warm(layer.flops, [bound.call, theirs])
    samples = {"aicf": lab.device_time(graph, count["aicf"]), PEER: lab.device_time(captured, count[PEER])}
    speed = {side: t.rate(layer.flops / 1e12) for side, t in bench.compare(samples, 9).items()}
    return row(str(layer), "TFLOP/s", speed["aicf"], PEER, speed[PEER], bound.kernel_id)


def _on_host(layer: Layer, bench: Bench) -> Row:
    x, w = (bench.rng.normal(size=s).astype(np.float32) for s in (layer.x, layer.w))
    y = np.full(layer.y, np.nan, np.float32)
    bound = sides.bind_op(aicf.runtime("cpu"), "convolution_channels_last", [x, w], [y], **layer.attrs)
    bound.call()
    check(layer, "aicf", y, exact(layer, x.astype(np.float64), w.astype(np.float64)))
    sides_of = {"aicf": bound.call}
    try:
        import torch

        first, other = (torch.from_numpy(t).permute(0, 3, 1, 2) for t in (x, w))
        sides_of[PEER] = lambda: torch.nn.functional.conv2d(
            first, other, stride=layer.stride, padding=layer.kernel // 2
        )
    except ImportError:
        pass
    times = bench.compare({side: wall(call, enough(call, 0.01)) for side, call in sides_of.items()})
    us = {side: t.per(1e-6) for side, t in times.items()}
    return row(
        str(layer), "us", us["aicf"], *([PEER, us[PEER]] if PEER in us else [None, None]), bound.kernel_id
    )


SUITE = Suite(
    "convolution", "convolutions of ResNet-50's and a UNet's layers, batches of 8, 32 and 256, forward, against cuDNN", 240, cases,
    headlines=((f"ResNet-50, batch 32: {Layer(*RESNET[9])}", PEER),), summary=summary,
)  # fmt: skip
