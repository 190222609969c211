"""What linear_cross_entropy does with rows, beside the kernels of its products: one thread per row.

Limit: latency. Neighbouring threads read neighbouring rows' numbers.
"""

import math

import numpy as np

from ..dsl import cuda, float32, int32

NO_CLASS, IGNORED = -1, -2  # of a label in a block of classes


def finish_rows(labels, partial, peak, rsum, loss, lse, rows, ignored, z_loss):
    """loss and lse of rows, from cross_entropy's results; 0 where the label is ignored."""
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < rows:
        found = peak[i] - float32(math.log(rsum[i]))
        total = partial[i] + z_loss * found * found
        if labels[i] == ignored:
            found, total = float32(0), float32(0)
        lse[i] = found
        loss[i] = total


def begin_rows(labels, lse, own, factor, rows, apart, blocks, wide, classes, ignored, z_loss):
    """Where in each block of `wide` classes a row's label is, and what the exponentials of the row are multiplied by. What is of a
    block lies `apart` elements behind what is of the one before."""
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < rows:
        factor[i] = float32(1) + float32(2) * z_loss * lse[i]
        label = np.int64(labels[i])
        for block in range(blocks):
            place = label - block * wide
            if place < 0 or place >= wide or label >= classes:
                place = np.int64(NO_CLASS)
            if label == ignored:
                place = np.int64(IGNORED)
            own[block * apart + i] = int32(place)
