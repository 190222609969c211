"""Invariant rows of convolutions: an image has equal bits in every batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draws.seeds import rng
from kernel_cases import desc, invariant, region
from row_places import OverRows, classes, declaring, differing
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_numeric_class import Host

import aicf
from aicf.calibrate.published import ModelStep
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.registry.invariant import row_class
from aicf.registry.numerics import NumericClass
from aicf.registry.select import Selector
from aicf.types import bf16, f16, f32

H200 = preset("h200")
DIRECT = "cuda.convolution_direct.v1"


def drawn(draw: np.random.Generator, most: int, dtypes=(f16, bf16, f32)) -> OverRows:
    """A convolution of images, with edges, steps and groups; half of the channels are whole eights."""
    groups = int(draw.choice([1, 1, 1, 2, 4]))
    c, o = (groups * int(draw.integers(1, most)) for _ in range(2))
    if draw.random() < 0.5:
        c, o = groups * 8 * (c // (8 * groups) or 1), groups * 8 * (o // (8 * groups) or 1)
    window, steps, low = (tuple(int(x) for x in draw.integers(a, b, 2)) for a, b in ((1, 4), (1, 3), (0, 2)))
    size = tuple(int(x) for x in draw.integers(3, 12, 2))
    dtype = dtypes[draw.integers(len(dtypes))]

    def make(images: int):
        x, w = desc((images, *size, c), dtype), desc((o, *window, c // groups), dtype)
        return invariant(
            region("convolution_channels_last", x, w, groups=groups, strides=steps, low=low, high=low)
        )

    return OverRows(make, {0: 0}, f"{dtype} {size} {c} to {o} in {groups} by {window} steps {steps} {low}")


@pytest.mark.spec("A15", "B14")
def test_convolutions_have_one_class_whatever_the_number_of_images(request):
    """Of drawn convolutions: each kernel's class, and the class that is chosen, at drawn numbers of images and multiprocessors."""
    draw, kernels = rng(request.node.nodeid), set()
    for _ in range(30):
        rows, found = drawn(draw, 40), dict[str, set]()
        for images in (1, 2, 9, int(draw.integers(10, 300))):
            r = rows.make(images)
            for device in (H200, replace(H200, sms=int(draw.integers(20, 200))), preset("l4")):
                for v in declaring(r, device):
                    found.setdefault(f"{v.id} {device.arch}", set()).add(v.numeric_class(r, device))
            for name in ("h200", "l4"):
                wanted = row_class(r, Selector(default_registry(), preset(name), invariant=True))
                assert isinstance(wanted, NumericClass), (rows.name, wanted)
                found.setdefault(name, set()).add(wanted)
        assert all(len(answers) == 1 for answers in found.values()), (rows.name, found)
        kernels |= {id.partition("[")[0].partition(" ")[0] for id in found}
    assert {DIRECT, "cuda.convolution_wgmma.v1"} <= kernels


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14")
def test_images_have_equal_bits_on_the_host(request):
    """A drawn convolution on CUDA cores, by the LLVM that the GPU gets: reordered, alone, and twice."""
    draw = rng(request.node.nodeid)
    rows = drawn(draw, 5, (f32,))
    kernels = {id: c for id, c in classes(rows.make(3), H200).items() if id == DIRECT}
    assert kernels and not differing(rows, kernels, H200, Host(H200), draw, 3), rows.name


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("number", range(8))
def test_images_have_equal_bits(gpu, number, request):  # noqa: F811
    """All kernels that have a class, of drawn convolutions: alone, among others, at any index, and by every tile."""
    draw = rng(request.node.nodeid)
    rows, count = drawn(draw, 100), int(draw.integers(2, 40))
    kernels = classes(rows.make(count), gpu.spec)
    run = lambda case, operands: launch_case(gpu, case, operands.memory)  # noqa: E731
    assert kernels and not differing(rows, kernels, gpu.spec, run, draw, count), rows.name


@pytest.mark.spec("A15", "B13")
@pytest.mark.parametrize(("device", "policy"), [("h200", "bf16"), ("l4", "f16")])
def test_each_sum_of_a_resnet_has_one_class_in_all_batches(device, policy, request):
    """ResNet-50 with one block of each width: nothing is refused, and the price is shown."""
    seen = set()
    for batch in (1, int(rng(request.node.nodeid).integers(2, 80))):
        layers = ModelStep("ResNet-50", "infer", policy, batch, 0)._built()[0]
        made = aicf.explain_for(layers, device, policy=policy, invariant=True)
        found = [r.selection.chosen.variant.numeric_class(r.spec, preset(device)) for r in made.regions]
        assert all(isinstance(c, NumericClass) for c in found) and made.price is not None
        seen.add(tuple(str(c) for c in found if c.order))
    assert len(seen) == 1, seen
