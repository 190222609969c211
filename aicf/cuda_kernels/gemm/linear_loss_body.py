"""What linear_cross_entropy does with rows, beside the kernels of its products: one thread per row.

Limit: latency. Neighbouring threads read neighbouring rows' numbers.
"""

import math

import numpy as np

from ..dsl import cuda, float32, int32
from ..ptx import approximate, larger

NO_CLASS, IGNORED = -1, -2  # of a label in a block of classes
ROWS, TILE_WARPS = 32, 16  # of a block of `finish_tiles`
TOTALS, SUMS, KEPT = (i * TILE_WARPS * ROWS for i in (1, 2, 3))  # in its shared memory, behind maxima
LN2, LOG2E = np.float32(math.log(2)), np.float32(math.log2(math.e))
exp2_of, larger_of = approximate("exp2"), larger()


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


def begin_slopes(labels, lse, dloss, numbers, own, rows, classes, ignored, at_label, other, z_loss):
    """What a GEMM of logits makes of its accumulators their gradient with (wgmma_loss_body.py): four numbers for each row, and its label."""
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.x + cuda.threadIdx.x
    if i < rows:
        label, slope, found = np.int64(labels[i]), dloss[i], lse[i]
        shift, factor = found * LOG2E, (float32(1) + float32(2) * z_loss * found) * slope
        place = label if label >= 0 and label < classes else np.int64(NO_CLASS)
        if label == ignored:
            shift, factor, slope = float32(math.inf), float32(0), float32(0)
            place = np.int64(IGNORED)
        numbers[4 * i] = shift
        numbers[4 * i + 1] = factor
        numbers[4 * i + 2] = slope * other
        numbers[4 * i + 3] = slope * at_label
        own[i] = int32(place)


def finish_tiles(
    labels, shifts, totals, picked, sums, loss, lse, rows, tiles, classes, ignored, smoothing, z_loss
):
    """loss and lse of rows, from statistics of their tiles (wgmma_loss_body.py): a block for 32 rows, of which each warp adds up one tile of
    TILE_WARPS; then the first one what all have. 0 where the label is ignored, NaN where it is no class."""
    shared = cuda.shared.array(KEPT, float32)
    lane, warp = int32(cuda.threadIdx.x) & 31, int32(cuda.threadIdx.x) >> 5
    i, here = np.int64(cuda.blockIdx.x) * ROWS + lane, warp * ROWS + lane
    most, total, added = float32(-math.inf), float32(0), float32(0)
    if i < rows:
        for tile in range(warp, tiles, TILE_WARPS):
            most = larger_of(most, shifts[np.int64(tile) * rows + i])
    shared[here] = most
    cuda.syncthreads()
    for w in range(TILE_WARPS):
        most = larger_of(most, shared[w * ROWS + lane])
    if i < rows:
        for tile in range(warp, tiles, TILE_WARPS):
            at = np.int64(tile) * rows + i
            total += totals[at] * exp2_of(shifts[at] - most)
            if smoothing != float32(0):
                added += sums[at]
    shared[TOTALS + here] = total
    shared[SUMS + here] = added
    cuda.syncthreads()
    if warp == 0 and i < rows:
        total, added = float32(0), float32(0)
        for w in range(TILE_WARPS):
            total += shared[TOTALS + w * ROWS + lane]
            added += shared[SUMS + w * ROWS + lane]
        label = np.int64(labels[i])
        found, expected = float32(math.log(total)) + most * LN2, float32(math.nan)
        if label >= 0 and label < classes:
            expected = picked[i]
        if smoothing != float32(0):
            mean = added / float32(classes)
            expected = (float32(1) - smoothing) * expected + smoothing * mean
        partial = float32(math.log(total)) + (most * LN2 - expected) + z_loss * found * found
        if label < 0 or label >= classes:
            found = float32(math.nan)
        if label == ignored:
            found, partial = float32(0), float32(0)
        lse[i] = found
        loss[i] = partial
