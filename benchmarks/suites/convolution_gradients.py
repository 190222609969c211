"""Gradients of the suite `convolution`'s layers, of bf16, channels last, against cuDNN as PyTorch calls it. Errors against float64 first: products
by places of the kernel. Without a GPU, small ones of f32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

import aicf
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec

from .. import sides
from ..harness import Bench, Case, Suite
from ..results import Row, row
from ..stats import enough, wall
from .convolution import PEER, RESNET, UNET, Layer, check, compared, summary
from .convolution import layers as forward_layers

WEIGHT, DATA = "weight", "data"
KINDS = {kind: f"convolution_{kind}_gradient_channels_last" for kind in (WEIGHT, DATA)}
ONES = {"dilation": (1, 1), "input_dilation": (1, 1), "groups": 1}


def attrs_of(layer: Layer, kind: str) -> dict[str, Any]:
    sizes = {"kernel": layer.w[1:-1]} if kind == WEIGHT else {"sizes": layer.x[1:-1]}
    return {**layer.attrs, **sizes}


def shapes_of(layer: Layer, kind: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Of both operands and the result."""
    y = layer.y
    return (layer.x, y, layer.w) if kind == WEIGHT else (y, layer.w, layer.x)


def region(layer: Layer, kind: str, device: str) -> RegionSpec:
    first, second, _ = shapes_of(layer, kind)
    operands = [TensorDesc.dense(TensorSpec(s, layer.dtype, device)) for s in (first, second)]
    return sides.one_op(KINDS[kind], operands, **attrs_of(layer, kind))


def layers(bench: Bench) -> dict[str, list[Layer]]:
    if bench.tiny or not bench.on_gpu:
        return forward_layers(bench)
    sets = (("ResNet-50", RESNET, 32), ("ResNet-50", RESNET, 256), ("UNet", UNET, 8), ("UNet", UNET, 32))
    return {
        f"{name}, batch {batch}": [Layer(*made, batch=batch) for made in sizes] for name, sizes, batch in sets
    }


def cases(bench: Bench) -> list[Case]:
    def kernels(kind: str, of: list[Layer], device: aicf.DeviceSpec) -> list[sides.Kernel]:
        regions = [region(layer, kind, device.kind) for layer in of]
        return [(sides.predicted(r, device)[0][0], r) for r in regions]

    least = 0.0 if bench.tiny else 20.0
    return [
        Case(f"{kind} gradients, {name}", partial(_measure, kind, name, of), least, partial(kernels, kind, of))
        for name, of in layers(bench).items() for kind in KINDS
    ]  # fmt: skip


def _measure(kind: str, name: str, of: list[Layer], bench: Bench) -> Iterator[Row]:
    for layer in of:
        made = _on_gpu(layer, kind, bench) if bench.on_gpu else _on_host(layer, kind, bench)
        yield {**made, "case": f"{kind} gradients, {name}: {made['case']}"}


def exact(layer: Layer, kind: str, first: Any, second: Any, torch: Any) -> Any:
    """In float64, by the library that the operands are of: a product for each place of the kernel."""
    edge, s = layer.kernel // 2, layer.stride
    _, height, width, o = layer.y
    n, size, c = layer.batch, layer.size, layer.channels
    wide = (n, size + 2 * edge, size + 2 * edge, c)
    padded = torch.zeros(wide, dtype=torch.float64, device=first.device)
    inside = (slice(None), slice(edge, edge + size), slice(edge, edge + size))
    result = torch.zeros(layer.w, dtype=torch.float64, device=first.device)
    if kind == WEIGHT:
        padded[inside] = first.double()
    rows = (second if kind == WEIGHT else first).double().reshape(-1, o)
    for y, x in product(range(layer.kernel), repeat=2):
        at = (slice(None), slice(y, y + (height - 1) * s + 1, s), slice(x, x + (width - 1) * s + 1, s))
        if kind == WEIGHT:
            result[:, y, x] = rows.T @ padded[at].reshape(-1, c)
        else:
            padded[at] += (rows @ second[:, y, x].double()).reshape(n, height, width, c)
    return result if kind == WEIGHT else padded[inside]


def _on_gpu(layer: Layer, kind: str, bench: Bench) -> Row:
    lab, torch = bench.lab, bench.lab.torch
    torch.backends.cudnn.benchmark = True  # it tries its kernels first
    *given, made = shapes_of(layer, kind)
    first, second = (torch.randn(s, device=lab.device).to(torch.bfloat16) for s in given)
    result = torch.full(made, float("nan"), device=lab.device, dtype=torch.bfloat16)
    bound = sides.bind_op(lab.runtime, KINDS[kind], [first, second], [result], **attrs_of(layer, kind))
    x, dy = (
        (first, second)
        if kind == WEIGHT
        else (torch.empty(layer.x, device=lab.device, dtype=torch.bfloat16), first)
    )
    w = second if kind == DATA else torch.empty(layer.w, device=lab.device, dtype=torch.bfloat16)
    views = [t.permute(0, 3, 1, 2) for t in (dy, x, w)]  # their memory is channels last
    steps, edge, mask = [layer.stride] * 2, [layer.kernel // 2] * 2, [kind == DATA, kind == WEIGHT, False]

    def theirs() -> Any:
        made = torch.ops.aten.convolution_backward(*views, None, steps, edge, [1, 1], False, [0, 0], 1, mask)
        return made[1 if kind == WEIGHT else 0]

    bound.call()
    lab.sync()
    want = exact(layer, kind, first, second, torch).cpu().numpy()
    for what, got in (("aicf", result), (PEER, theirs().permute(0, 2, 3, 1))):
        check(layer, f"{what}, {kind} gradient", got.double().cpu().numpy(), want)
    del want
    return compared(layer, bench, bound, theirs)


def _on_host(layer: Layer, kind: str, bench: Bench) -> Row:
    *given, made = shapes_of(layer, kind)
    first, second = (bench.rng.normal(size=s).astype(np.float32) for s in given)
    result = np.full(made, np.nan, np.float32)
    bound = sides.bind_op(
        aicf.runtime("cpu"), KINDS[kind], [first, second], [result], **attrs_of(layer, kind)
    )
    bound.call()
    reference = schema_of(KINDS[kind]).reference_fn
    assert reference is not None
    want = reference(*(t.astype(np.float64) for t in (first, second)), **attrs_of(layer, kind), **ONES)
    check(layer, f"aicf, {kind} gradient", result, want)
    times = bench.compare({"aicf": wall(bound.call, enough(bound.call, 0.01))})
    return row(str(layer), "us", times["aicf"].per(1e-6), None, None, bound.kernel_id)


SUITE = Suite(
    "convolution_gradients",
    "weight and data gradients of convolutions of ResNet-50's and a UNet's layers, batches of 8, 32 and 256, against cuDNN", 400, cases,
    headlines=((f"weight gradients, ResNet-50, batch 32: {Layer(*RESNET[9])}", PEER),), summary=summary,
)  # fmt: skip
