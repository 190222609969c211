"""Convolution of channels last on the host: windows side by side as a matrix, of so many images that it stays small, and BLAS."""

from __future__ import annotations

from math import prod

import numpy as np

from ..ops.windows import views, windows_of
from ..registry.cost import roofline
from ..registry.variant import HostCall, one_op, variant
from .blas import matmul, threads_for
from .reference import op_operands

COLUMNS = 2**22  # elements of the matrix of windows
CALL_US, IMAGE_US = 8.0, 5.0  # NumPy's calls, apart from their work
COPY = 2.0  # passes over memory for each element of a window, which is copied in runs of channels


@variant("convolution_channels_last", id="cpu.convolution_blas.v1")
class ConvolutionBlas:
    """im2col and sgemm, a few images and a group of channels at a time. Parallel inside BLAS. Half types are widened first."""

    def accepts(region):
        yield one_op(region)

    def cost(region, device):
        _, w = _given(region)
        (y,) = region.results
        windows, places = y.numel // max(1, y.shape[-1]), prod(w.shape[1:])
        groups = region.anchor.attrs["groups"]
        columns = windows * places * groups
        chunks = -(-columns // COLUMNS)
        cost = roofline(device, bytes=region.nbytes, flops=2 * windows * places * w.shape[0], efficiency=0.5)
        copied = COPY * 4 * columns / device.bandwidth * 1e-3
        return cost.plus(windows=copied, calls=CALL_US + IMAGE_US * groups * chunks)

    def build(region, device):
        attrs = region.anchor.attrs
        x, w = _given(region)
        groups, o = attrs["groups"], w.shape[0]
        of = windows_of(
            w.shape[1:-1],
            *(tuple(attrs[n]) for n in ("strides", "dilation", "low", "high", "input_dilation")),
        )
        made, places = of.made(x.shape[1:-1]), prod(w.shape[1:])
        each = max(1, COLUMNS // max(1, prod(made) * places))
        at = op_operands(region)

        def run(operands, results):
            images, kernel = (operands[p].astype(np.float32, copy=False) for p in at)
            kernel = kernel.reshape(groups, o // groups, places)
            for first in range(0, x.shape[0], each):
                some = images[first : first + each]
                for group in range(groups):
                    channels = np.moveaxis(np.split(some, groups, axis=-1)[group], -1, 1)
                    seen = views(channels, of, 0)  # (N, C, windows, places)
                    rows = np.moveaxis(seen, 1, -1).reshape(len(some) * prod(made), places)
                    product = matmul(
                        rows, kernel[group].T, None, threads_for(2 * rows.size * kernel.shape[1])
                    )
                    target = results[0][
                        first : first + each, ..., group * o // groups : (group + 1) * o // groups
                    ]
                    np.copyto(target, product.reshape(target.shape), casting="unsafe")

        return HostCall(run)


def _given(region):
    return [region.operands[p] for p in op_operands(region)]
