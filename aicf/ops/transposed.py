"""Transposed convolution: what a convolution's gradient does with images, as an op of its own."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np

from ..types import TensorSpec
from .schema import ACCUMULATES, Float, op, require
from .windows import STEPS, check_windows, filled


def _sizes(x, w, strides, low, high, dilation) -> tuple[int, ...]:
    """Of what is made along each spatial axis; of nothing nothing."""
    return tuple([
        (n - 1) * step + (k - 1) * apart + 1 - before - behind if n else 0
        for n, k, step, before, behind, apart in zip(x[2:], w[2:], strides, low, high, dilation)
    ])  # fmt: skip


@op("convolution_transposed", traits=(ACCUMULATES,))
def convolution_transposed(
    x: Float, w: Float, *, strides: tuple = (), low: tuple = (), high: tuple = (), dilation: tuple = (), groups: int = 1
):  # fmt: skip
    """Each element of x times a kernel, added up where they overlap: as torch.nn.functional.conv_transpose1d to conv_transpose3d.

    Shapes: x (N, C, …), w (C, O / groups, …), y (N, O, …), of (n - 1) * stride + (k - 1) * dilation + 1 - low - high elements along an
    axis. low and high are cut off at its ends; a negative high adds zeros, as PyTorch's output_padding does.

    C1  x has one to three spatial axes, w as many
    C2  strides and dilation are integers from 1 on, one for each of them
    C3  low and high are integers, one for each of them
    C4  groups >= 1, and divides C
    C5  w has C kernels
    C6  the kernel is not empty
    C7  no axis is cut to less than nothing
    """
    ones, zeros = (1,) * (x.rank - 2), (0,) * (x.rank - 2)
    strides, dilation, low, high = strides or ones, dilation or ones, low or zeros, high or zeros
    check_windows(x, {"strides": strides, "dilation": dilation}, {"low": low, "high": high})
    require(w.rank == x.rank, "C1", f"w has rank {w.rank}, x has rank {x.rank}")
    require(groups >= 1, "C4", f"groups is {groups}, expected 1 or more")
    require(
        x.shape[1] % groups == 0,
        "C4",
        f"groups is {groups}, which doesn't divide the {x.shape[1]} channels of x",
    )
    require(w.shape[0] == x.shape[1], "C5", f"w has {w.shape[0]} kernels, x has {x.shape[1]} channels")
    require(all(n > 0 for n in w.shape[2:]), "C6", f"the kernel is empty: w has shape {w.shape}")
    made = _sizes(x.shape, w.shape, strides, low, high, dilation)
    require(all(n >= 0 for n in made), "C7", f"low {low} and high {high} leave {made} elements")
    return TensorSpec((x.shape[0], w.shape[1] * groups, *made), x.dtype, x.device)


convolution_transposed.normalizer(filled(STEPS))


@convolution_transposed.counts
def _(x, w, strides, low, high, dilation, groups):
    return 2 * prod(x.shape) * prod(w.shape[1:])


@convolution_transposed.replaced_by
def _(emit, x, w, strides, low, high, dilation, groups):
    """A convolution of x with zeros between its elements, by w backwards."""
    (c, o, *kernel), axes = w.shape, x.rank - 2
    made = _sizes(x.shape, w.shape, strides, low, high, dilation)
    if 0 in (*x.shape, o, *made):
        return emit.fill(shape=(x.shape[0], o * groups, *made), value=0.0, dtype=x.dtype)
    turned = emit.reverse(w, dims=tuple(range(2, w.rank)))
    turned = emit.reshape(turned, shape=(groups, c // groups, o, *kernel))
    turned = emit.transpose(turned, perm=(0, 2, 1, *range(3, 3 + axes)))
    turned = emit.reshape(turned, shape=(groups * o, c // groups, *kernel))
    span = [(k - 1) * apart for k, apart in zip(kernel, dilation)]
    return emit.convolution(
        x, turned, low=tuple([n - cut for n, cut in zip(span, low)]), high=tuple([n - cut for n, cut in zip(span, high)]),
        dilation=dilation, input_dilation=strides, groups=groups,
    )  # fmt: skip


@convolution_transposed.reference
def _(x, w, strides, low, high, dilation, groups):
    (n, c, *sizes), (_, o, *kernel) = x.shape, w.shape
    made = _sizes(x.shape, w.shape, strides, low, high, dilation)
    if 0 in sizes:
        return np.zeros((n, o * groups, *made), x.dtype)
    wide = [max(m + a + max(b, 0), a + m) + max(-a, 0) for m, a, b in zip(made, low, high)]
    y = np.zeros((n, groups, o, *wide), x.dtype)
    grouped, kernels = x.reshape(n, groups, c // groups, *sizes), w.reshape(groups, c // groups, o, *kernel)
    for at in itertools.product(*map(range, kernel)):
        part = np.einsum("ngc...,gco->ngo...", grouped, kernels[(..., *at)])
        places = tuple([
            slice(max(-a, 0) + k * apart, max(-a, 0) + k * apart + (size - 1) * step + 1, step)
            for k, apart, size, step, a in zip(at, dilation, sizes, strides, low)
        ])  # fmt: skip
        y[(..., *places)] += part
    kept = tuple([slice(max(a, 0), max(a, 0) + m) for a, m in zip(low, made)])
    return y.reshape(n, groups * o, *wide)[(..., *kept)]


convolution_transposed.samples((2, 3, 4), (3, 2, 3))
convolution_transposed.samples((2, 4, 3, 2), (4, 3, 3, 2), strides=(2, 3), low=(1, 0), high=(0, -1))
convolution_transposed.samples((1, 4, 3, 3), (4, 1, 2, 2), strides=(2, 2), groups=2)
convolution_transposed.samples((1, 2, 4), (2, 2, 3), dilation=(2,), low=(2,), high=(1,), strides=(2,))
convolution_transposed.samples((1, 2, 2, 3, 2), (2, 1, 2, 1, 2), strides=(1, 2, 1))
convolution_transposed.samples((0, 2, 4), (2, 3, 2))
convolution_transposed.samples((2, 2, 0), (2, 3, 2))
