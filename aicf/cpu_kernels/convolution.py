"""Convolution of channels last on the host: windows side by side as a matrix, of so many images that it stays small, and BLAS."""

from __future__ import annotations

import itertools
import threading
from math import prod

import numpy as np

from ..ops.windows import Windows, windows_of
from ..registry.cost import roofline
from ..registry.variant import HostCall, one_op, variant
from .blas import matmul, threads_for
from .reference import op_operands

COLUMNS = 2**19  # elements of the matrix of windows, that it stays in the second cache for
CALL_US, IMAGE_US = 8.0, 5.0  # NumPy's calls, apart from their work
COPY = 2.0  # passes over memory for each element of a window, which is copied in runs of channels


@variant("convolution_channels_last", id="cpu.convolution_blas.v2")
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
                some, target = images[first : first + each], results[0][first : first + each]
                rows = matrix_of_windows(some, of, groups)
                threads = threads_for(2 * rows[0].size * kernel.shape[1])
                if groups == 1 and target.dtype == np.float32 and target.flags.c_contiguous:
                    matmul(rows[0], kernel[0].T, target.reshape(-1, o), threads)
                    continue
                for group in range(groups):
                    product = matmul(rows[group], kernel[group].T, None, threads)
                    own = target[..., group * o // groups : (group + 1) * o // groups]
                    np.copyto(own, product.reshape(own.shape), casting="unsafe")

        return HostCall(run)


class _Kept(threading.local):
    """Memory that each thread uses again: fresh pages cost as much as what is written there."""

    rows = np.empty(0, np.uint8)


_kept = _Kept()


def _scratch(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    nbytes = prod(shape) * dtype.itemsize
    if nbytes > 8 * COLUMNS:
        return np.empty(shape, dtype)
    if _kept.rows.nbytes < nbytes:
        _kept.rows = np.empty(nbytes, np.uint8)
    return _kept.rows[:nbytes].view(dtype).reshape(shape)


def matrix_of_windows(images: np.ndarray, of: Windows, groups: int = 1) -> np.ndarray:
    """Of each group the windows of (N, …, C) in rows, places by channels: (groups, N and windows, places and channels of a group). It lies
    where this thread's next one will."""
    n, *sizes, c = images.shape
    made, wide = of.made(tuple(sizes)), _padded(images, of)
    rows = _scratch((groups, n, *made, prod(of.window), c // groups), images.dtype)
    if not rows.size:
        return rows.reshape(groups, n * prod(made), prod(of.window) * (c // groups))
    # neighbours along the last axis are one run, unless places lie apart, or a group has some of their channels
    run = of.window[-1] if groups == 1 and of.dilation[-1] == 1 else 1
    window = (*of.window[:-1], of.window[-1] // run)
    by_run = np.moveaxis(rows, 0, -2).reshape(n, *made, prod(window), groups, run * c // groups)
    for number, place in enumerate(itertools.product(*map(range, window))):
        start = tuple(at * apart for at, apart in zip(place, of.dilation))
        strides = [s * step for s, step in zip(wide.strides[1:-1], of.strides)]
        item = wide.itemsize
        seen = np.lib.stride_tricks.as_strided(
            wide[(slice(None), *(slice(at, None) for at in start))],
            (n, *made, groups, run * c // groups),
            (wide.strides[0], *strides, item * c // groups, item),
            writeable=False,
        )
        by_run[..., number, :, :] = seen
    return rows.reshape(groups, n * prod(made), prod(of.window) * (c // groups))


def _padded(images: np.ndarray, of: Windows) -> np.ndarray:
    """With what is added before, behind and between; itself where nothing is."""
    if not any((*of.low, *of.high, *of.interior)):
        return images
    n, *sizes, c = images.shape
    wide = np.zeros((n, *[max(size, 0) for size in of.padded(tuple(sizes))], c), images.dtype)
    into, some = [slice(None)], [slice(None)]
    for size, low, between, width in zip(sizes, of.low, of.interior, wide.shape[1:-1]):
        step = between + 1
        first = max(0, -(low // step))  # the first element that is not cut off
        count = max(0, min(size, (width - 1 - low) // step + 1) - first)
        start = low + first * step
        into.append(slice(start, start + max(count - 1, 0) * step + 1 if count else start, step))
        some.append(slice(first, first + count))
    wide[tuple(into)] = images[tuple(some)]
    return wide


def _given(region):
    return [region.operands[p] for p in op_operands(region)]
