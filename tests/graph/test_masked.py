"""Reads under a mask in graphs: what they fuse with, what refuses them, what may not be written over. The oracle is NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf
from aicf.device.spec import preset
from aicf.graph.build.autodiff import gradients
from aicf.registry.checks import unmasked
from aicf.registry.select import Selector

from .chains import model_of
from .forming import DEVICES, formed, story, weight

X = np.arange(16, dtype=np.float32).reshape(4, 4) / 7 - 1


def run(emit, x=X, device="cpu", **more):
    program = aicf.compile(model_of(emit, x.shape[1], x.shape[0]), device=device, **more)
    return program.run({"x": x})["output"].numpy()


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", DEVICES)
def test_maps_around_a_pad_are_one_kernel_with_it(device):
    def emit(ctx, x):
        return ctx.relu(ctx.pad(ctx.tanh(x), value=-1.0, low=(1, 0), high=(0, 2)))

    assert story(formed(emit, device=device)) == [("tanh + pad + relu", "end")]


@pytest.mark.spec("A9", "A12")
@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_whose_loads_have_no_mask_is_no_candidate(device):
    """A product with a map behind it goes on to its last op that its kernel can read."""

    def emit(ctx, x):
        return ctx.add(ctx.gemm(x, weight(ctx)), ctx.pad(x, low=(0, 1), high=(0, -1)))

    regions = formed(emit, device=device)
    assert not any("gemm" in r.spec.signature and "pad" in r.spec.signature for r in regions)
    selector = Selector(aicf.default_registry(), preset(device))
    pad = next(r for r in regions if "pad" in r.spec.signature)
    why = {
        v.id: v.supported(pad.spec.only(pad.spec.ops[0]), selector.device) for v in selector.index.variants
    }
    refused = [r for id, r in why.items() if r is not None and r.condition == "mask"]
    assert refused and "pad reads under a mask, or by index" in refused[0].reason


def test_only_kernels_that_say_so_take_what_is_masked():
    """Of all devices: what `masked` does not say is refused before any of its own checks."""
    for device in DEVICES:
        selector = Selector(aicf.default_registry(), preset(device))
        (region,) = formed(lambda ctx, x: ctx.pad(x, low=(1, 1)), device=device)
        for v in selector.index.variants:
            if not v.masked:
                assert v._lives_with(region.spec) == unmasked(region.spec) is not None
        live = selector.index.reading(region.spec)
        assert {v.masked for v in selector.index.members(live)} == {True}


@on_each_device
@pytest.mark.spec("C6")
@pytest.mark.parametrize("numerics", ["fused", "strict"])
def test_what_is_read_under_a_mask_is_not_written_over(numerics, device):
    """A pad that shifts has its operand's shape, and reads it elsewhere than it is written."""

    def emit(ctx, x):
        y = ctx.gemm(x, x)  # its own region: what follows reads it from storage
        return ctx.gemm(ctx.add(ctx.pad(y, low=(1, 0), high=(-1, 0)), y), x)

    y = X @ X
    expected = (np.vstack([np.zeros((1, 4)), y[:-1]]) + y) @ X
    np.testing.assert_allclose(run(emit, device=device, numerics=numerics), expected, rtol=1e-4, atol=1e-4)


@on_each_device
def test_the_gradient_of_a_pad_is_zero_where_it_cut_and_skips_what_it_put_between(device):
    amounts = {"low": (2, -1), "high": (-1, 3), "interior": (1, 0)}

    def emit(ctx, x):
        y = ctx.pad(ctx.scale(x, factor=2.0), value=0.5, **amounts)
        (dx,) = gradients(ctx, ctx.reduce_sum(ctx.square(y), axes=()), [x])
        return dx

    want = np.zeros_like(X)
    want[:3, 1:] = 8 * X[:3, 1:]  # row 3 would be at place 2 + 3 * 2 of 8
    np.testing.assert_allclose(run(emit, device=device), want, rtol=1e-6)
