"""Invariant rows of sums and softmaxes whose samples are along any axis: batches of 1, 2 and more get one class."""

from __future__ import annotations

import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import NoKernelError, VerifyError


class Summed(nn.Layer):
    """An op along some axes, of an input whose axes are transposed first."""

    def __init__(self, kind: str, perm: tuple[int, ...], axes: tuple[int, ...]) -> None:
        self.kind, self.perm, self.axes = kind, perm, axes

    def emit(self, ctx, x):
        attrs = {"axis": self.axes[0]} if self.kind == "softmax" else {"axes": self.axes}
        return getattr(ctx, self.kind)(ctx.transpose(x, perm=self.perm), **attrs)


@pytest.mark.spec("A15", "B14")
def test_samples_along_any_axis_have_one_class(request):
    """24 drawn ops on drawn devices; samples are before, between or behind the axes that are added up."""
    draw = rng(request.node.nodeid)
    for _ in range(24):
        perm = tuple(int(axis) for axis in draw.permutation(3))
        summed = [n for n, axis in enumerate(perm) if axis != 0]  # the samples are never added up
        kind = str(draw.choice(["reduce_sum", "reduce_mean", "reduce_max", "softmax"]))
        axes = tuple(summed) if kind != "softmax" and draw.random() < 0.3 else (int(draw.choice(summed)),)
        device = preset(str(draw.choice(["h200", "a100", "t4"])))
        shape = ("batch", *(int(draw.integers(2, 400)) for _ in range(2)))
        found = {}
        for batch in (1, 2, int(draw.integers(3, 400))):
            model = nn.Model({"x": aicf.TensorSpec(shape)}, Summed(kind, perm, axes), batch=batch)
            regions = aicf.explain_for(model, device, invariant=True).regions
            core = [r for r in regions if any(op.kind.name == kind for op in r.spec.ops)]
            found[batch] = {str(r.selection.chosen.variant.numeric_class(r.spec, device)) for r in core}
        assert len({frozenset(one) for one in found.values()}) == 1, (
            kind,
            perm,
            axes,
            shape,
            device.name,
            found,
        )


@pytest.mark.parametrize("wrong", ("no", 1, None))
def test_invariant_is_true_or_false(wrong):
    model = nn.Model({"x": aicf.TensorSpec((4, 5))}, nn.Linear(5, 3))
    with pytest.raises(VerifyError, match="True or False"):
        aicf.compile(model, device="cpu", invariant=wrong)


def test_the_advice_for_sums_over_distant_axes_works(request):
    """A transpose makes the axes neighbours, and samples alone have the bits that they have among others."""
    draw = rng(request.node.nodeid)
    shape = ("batch", *(int(n) for n in draw.integers(2, 9, 3)))
    x = draw.standard_normal((7, *shape[1:])).astype("float32")
    refused, taken = (
        nn.Model({"x": aicf.TensorSpec(shape)}, Summed("reduce_mean", perm, axes), batch=7)
        for perm, axes in (((0, 1, 2, 3), (1, 3)), ((0, 2, 1, 3), (2, 3)))
    )
    with pytest.raises(NoKernelError, match="neighbours, after a transpose"):
        aicf.compile(refused, device="cpu", invariant=True)
    program = aicf.compile(taken, device="cpu", invariant=True)
    every = program({"x": x})["output"].numpy().copy()
    assert program({"x": x[3:4]})["output"].numpy().tobytes() == every[3:4].tobytes()
