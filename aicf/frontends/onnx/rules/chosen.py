"""Results whose size depends on values: made on the host while the graph is read, of operands that are known. An input that is read so is fixed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..operands import Call, Operand
from ..table import rule


def _number(n: Call, x: Operand | None, name: str, default: float) -> float:
    return default if x is None else float(n.number_of(x, name))


@rule("NonMaxSuppression", since=10)
def _suppressed(
    n: Call, boxes: Operand, scores: Operand, most: Operand | None = None, overlap: Operand | None = None, least: Operand | None = None
) -> Any:  # fmt: skip
    """(image, class, box) of boxes by their scores, without those that lie over one that was taken."""
    if boxes.rank != 3 or boxes.shape[2] != 4 or scores.rank != 3 or scores.shape[::2] != boxes.shape[:2]:
        raise n.wrong(f"scores {list(scores.shape)} are not those of boxes {list(boxes.shape)}")
    corners, score = n.known(boxes, "boxes").astype(np.float64), n.known(scores, "scores")
    count, limit = (
        int(_number(n, most, "max_output_boxes_per_class", 0)),
        _number(n, overlap, "iou_threshold", 0.0),
    )
    lowest = None if least is None else _number(n, least, "score_threshold", 0.0)
    if n.attr("center_point_box"):
        middle, half = corners[..., :2], corners[..., 2:] / 2
        low, high = middle - half, middle + half
    else:
        low, high = (
            np.minimum(corners[..., :2], corners[..., 2:]),
            np.maximum(corners[..., :2], corners[..., 2:]),
        )
    found: list[tuple[int, int, int]] = []
    for image, kind in np.ndindex(*score.shape[:2]):
        row = score[image, kind]
        taken: list[int] = []
        for box in np.argsort(-row, kind="stable").tolist():
            if len(taken) >= count or (lowest is not None and row[box] <= lowest):
                break
            if all(_overlap(low[image], high[image], box, other) <= limit for other in taken):
                taken.append(box)
        found += [(image, kind, box) for box in taken]
    return np.array(found, np.int64).reshape(-1, 3)


def _overlap(low: np.ndarray, high: np.ndarray, a: int, b: int) -> float:
    """What two boxes share, of what both have."""
    sides = np.maximum(np.minimum(high[a], high[b]) - np.maximum(low[a], low[b]), 0)
    shared, areas = float(np.prod(sides)), [float(np.prod(high[k] - low[k])) for k in (a, b)]
    whole = sum(areas) - shared
    return shared / whole if min(areas) > 0 and whole > 0 else 0.0


@rule("Unique", since=11, folds=False)
def _unique(n: Call, x: Operand) -> Any:
    """In order, or as they first come; with where they first are, which one each element is, and how many there are."""
    axis, array = n.attr("axis"), n.known(x, "x")
    at = None if axis is None else n.axis(axis, x.rank)
    n.reserve(4, array.size)
    plain = array if array.dtype.kind in "iubf" else array.astype(np.float32)  # NumPy knows no order of bf16
    made, first, inverse, counts = np.unique(
        plain, return_index=True, return_inverse=True, return_counts=True, axis=at
    )
    inverse = inverse.reshape(-1)
    if not n.attr("sorted"):
        order = np.argsort(first, kind="stable")
        made, first, counts = np.take(made, order, 0 if at is None else at), first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return made.astype(array.dtype), *(v.astype(np.int64) for v in (first, inverse, counts))


@rule("TfIdfVectorizer", since=9, folds=False)
def _tf_idf(n: Call, x: Operand) -> Any:
    """How often each n-gram of a pool is in a row, with up to so many elements skipped between those of one."""
    least, most, skips, mode = (
        n.attr(name) for name in ("min_gram_length", "max_gram_length", "max_skip_count", "mode")
    )
    starts, places, pool = n.attr("ngram_counts"), n.attr("ngram_indexes"), n.attr("pool_int64s")
    weights = n.attr("weights")
    if pool is None or mode not in ("TF", "IDF", "TFIDF") or not 1 <= least <= most <= len(starts):
        raise (
            n.refuse("a pool of strings")
            if pool is None
            else n.wrong(f"grams of {least} to {most}, mode {mode!r}")
        )
    grams: dict[tuple[int, ...], int] = {}
    ends = [*starts[1:], len(pool)]
    for size, (a, b) in enumerate(zip(starts, ends), 1):
        for k in range(a, b, size):
            grams[tuple(pool[k : k + size])] = len(grams)
    rows = np.atleast_2d(n.known(x, "x"))
    if not places or min(places) < 0 or len(places) != len(grams):
        raise n.wrong(f"ngram_indexes {places[:8]} are not one for each of {len(grams)} grams")
    n.reserve(len(rows), max(places) + 1)
    counts = np.zeros((len(rows), max(places) + 1))
    for row, out in zip(rows.tolist(), counts):
        for size in range(least, most + 1):
            for skip in range(skips + 1 if size > 1 else 1):
                for first in range(len(row) - (size - 1) * (skip + 1)):
                    found = grams.get(tuple(row[first : first + (size - 1) * (skip + 1) + 1 : skip + 1]))
                    if found is not None:
                        out[places[found]] += 1
    factor = np.ones(counts.shape[1])
    if weights is not None and mode != "TF":
        factor[places] = weights
    made = counts if mode == "TF" else (counts > 0) * factor if mode == "IDF" else counts * factor
    return (made if x.rank == 2 else made[0]).astype(np.float32)
