"""Gradients of convolutions of channels last on the host: BLAS on the matrix of windows, of so many images that it stays small."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ops.convolution_gradients import scattered
from ..ops.windows import Windows, windows_of
from ..registry.cost import roofline
from ..registry.variant import HostCall, one_op, variant
from .blas import matmul, threads_for
from .convolution import CALL_US, COLUMNS, COPY, IMAGE_US, matrix_of_windows
from .reference import op_operands

STEPS = "strides", "dilation", "low", "high", "input_dilation"


def _cost(region, device, windows: int, places: int, o: int):
    """Of products by the matrix of windows, which has so many rows, and columns of one group."""
    groups = region.anchor.attrs["groups"]
    columns = windows * places * groups
    cost = roofline(device, bytes=region.nbytes, flops=2 * windows * places * o, efficiency=0.5)
    copied = COPY * 4 * columns / device.bandwidth * 1e-3
    return cost.plus(windows=copied, calls=CALL_US + IMAGE_US * groups * -(-columns // COLUMNS))


def _given(region):
    return [region.operands[p] for p in op_operands(region)]


def _windows(region, kernel):
    return windows_of(tuple(kernel), *(tuple(region.anchor.attrs[name]) for name in STEPS))


@variant("convolution_weight_gradient_channels_last", id="cpu.convolution_weight_gradient_blas.v2")
class WeightGradientBlas:
    """im2col and sgemm, a few images and a group of channels at a time, added up in f32. Parallel inside BLAS."""

    def accepts(region):
        yield one_op(region)

    def cost(region, device):
        _, dy = _given(region)
        (dw,) = region.results
        return _cost(region, device, dy.numel // max(1, dy.shape[-1]), prod(dw.shape[1:]), dy.shape[-1])

    def build(region, device):
        x, dy = _given(region)
        (dw,) = region.results
        groups, o, places = region.anchor.attrs["groups"], dy.shape[-1], prod(dw.shape[1:])
        of, windows = _windows(region, dw.shape[1:-1]), prod(dy.shape[1:-1])
        each = max(1, COLUMNS // max(1, windows * places))
        at = op_operands(region)

        def run(operands, results):
            images, above = (operands[p].astype(np.float32, copy=False) for p in at)
            total = np.zeros((groups, o // groups, places), np.float32)
            for first in range(0, x.shape[0], each):
                some = images[first : first + each]
                rows = above[first : first + each].reshape(len(some) * windows, groups, o // groups)
                for group, columns in enumerate(matrix_of_windows(some, of, groups)):
                    left = np.ascontiguousarray(rows[:, group])
                    total[group] += matmul(
                        left.T, columns, None, threads_for(2 * columns.size * left.shape[1])
                    )
            np.copyto(results[0], total.reshape(dw.shape), casting="unsafe")

        return HostCall(run)


def _back(of: Windows, sizes: tuple[int, ...], made: tuple[int, ...]) -> Windows:
    """The windows over dy, of steps of one, in which elements of x find all that they are part of; the kernel is turned around."""
    spans = [(n - 1) * apart for n, apart in zip(of.window, of.dilation)]
    low = tuple(span - before for span, before in zip(spans, of.low))
    step = tuple(n + 1 for n in of.interior)
    width = [(n - 1) * s + 1 for n, s in zip(sizes, step)]
    high = tuple(w + before - m for w, before, m in zip(width, of.low, made))
    return Windows(of.window, step, of.dilation, low, high, (0,) * len(made))


@variant("convolution_data_gradient_channels_last", id="cpu.convolution_data_gradient_blas.v2")
class DataGradientBlas:
    """sgemm, and sums of what windows give each element, a few images at a time. Parallel inside BLAS. Half types are widened first."""

    def accepts(region):
        yield one_op(region)

    def cost(region, device):
        dy, w = _given(region)
        return _cost(region, device, dy.numel // max(1, dy.shape[-1]), prod(w.shape[1:]), w.shape[0])

    def build(region, device):
        dy, w = _given(region)
        (dx,) = region.results
        groups, (o, *kernel, c) = region.anchor.attrs["groups"], w.shape
        of, windows, places = _windows(region, kernel), prod(dy.shape[1:-1]), prod(kernel)
        back = _back(of, dx.shape[1:-1], dy.shape[1:-1])
        each = max(1, COLUMNS // max(1, windows * places * c * groups))
        at = op_operands(region)

        def run(operands, results):
            above, given = (operands[p].astype(np.float32, copy=False) for p in at)
            weights = given.reshape(groups, o // groups, places * c)
            if set(of.strides) == {1}:
                turned = np.flip(given, tuple(range(1, given.ndim - 1))).reshape(
                    groups, o // groups, places, c
                )
                turned = np.moveaxis(turned, 2, 1).reshape(groups, places * (o // groups), c)
                some_at_once = max(1, COLUMNS // max(1, prod(dx.shape[1:-1]) * places * o))
                for first in range(0, dy.shape[0], some_at_once):
                    some = above[first : first + some_at_once]
                    target = results[0][first : first + len(some)]
                    for group, columns in enumerate(matrix_of_windows(some, back, groups)):
                        product = matmul(columns, turned[group], None, threads_for(2 * columns.size * c))
                        own = target[..., group * c : (group + 1) * c]
                        np.copyto(own, product.reshape(own.shape), casting="unsafe")
                return
            for first in range(0, dy.shape[0], each):
                some = above[first : first + each]
                rows = some.reshape(len(some) * windows, groups, o // groups)
                made = np.empty((places, len(some), *dy.shape[1:-1], groups * c), np.float32)
                for group in range(groups):
                    left = np.ascontiguousarray(rows[:, group])
                    product = matmul(left, weights[group], None, threads_for(2 * left.size * places * c))
                    apart = product.reshape(len(some), *dy.shape[1:-1], places, c)
                    made[..., group * c : (group + 1) * c] = np.moveaxis(apart, -2, 0)
                np.copyto(
                    results[0][first : first + each], scattered(made, of, dx.shape[1:-1]), casting="unsafe"
                )

        return HostCall(run)
