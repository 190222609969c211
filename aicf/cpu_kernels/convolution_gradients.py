"""Gradients of convolutions of channels last on the host: BLAS on the matrix of windows, of so many images that it stays small."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ops.convolution_gradients import scattered
from ..ops.windows import views, windows_of
from ..registry.cost import roofline
from ..registry.variant import HostCall, one_op, variant
from .blas import matmul, threads_for
from .convolution import CALL_US, COLUMNS, COPY, IMAGE_US
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


@variant("convolution_weight_gradient_channels_last", id="cpu.convolution_weight_gradient_blas.v1")
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
                for group in range(groups):
                    seen = views(np.moveaxis(np.split(some, groups, axis=-1)[group], -1, 1), of, 0)
                    columns = np.moveaxis(seen, 1, -1).reshape(len(some) * windows, places)
                    left = np.ascontiguousarray(rows[:, group])
                    total[group] += matmul(
                        left.T, columns, None, threads_for(2 * columns.size * left.shape[1])
                    )
            np.copyto(results[0], total.reshape(dw.shape), casting="unsafe")

        return HostCall(run)


@variant("convolution_data_gradient_channels_last", id="cpu.convolution_data_gradient_blas.v1")
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
        each = max(1, COLUMNS // max(1, windows * places * c * groups))
        at = op_operands(region)

        def run(operands, results):
            above, given = (operands[p].astype(np.float32, copy=False) for p in at)
            weights = given.reshape(groups, o // groups, places * c)
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
