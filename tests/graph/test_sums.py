"""Sums of many positive numbers, drawn: what each device computes, compared with NumPy's in float64.

Numbers that are equal, or all positive, make the rounding errors of a serial f32 sum add up: 0.1 added 10^7 times is 9 % off. A sum whose
error grows with log n, or with √n, stays within `bound`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.cuda_kernels.rows import reduce
from aicf.device.spec import preset
from aicf.ops.scattering import Scatter
from examples import EVERYTHING

HALF_EPS = 2.0**-24  # the relative error of one rounding to f32
MANY, LONG = 500_000, 10_000_000  # terms
EQUAL = 0.1, 0.7, 1 / 3, 1.1  # numbers that f32 has not exactly


def bound(terms: int) -> float:
    """The relative error that a sum of so many positive terms may have, and of what is computed from it."""
    return HALF_EPS * (4 + terms**0.5)


@dataclass
class Sum:
    """One op on drawn operands. `terms`: how many elements each result adds up at most."""

    name: str
    operands: dict[str, np.ndarray]
    emit: Callable[..., Any]
    want: np.ndarray
    terms: int

    def error(self, device: str) -> float:
        """The greatest relative error of a result."""
        emit = self.emit

        class Layer(nn.Layer):
            def emit(self, ctx, *one, **several):
                return emit(ctx, *one, *several.values())

        inputs = {n: aicf.TensorSpec(a.shape, str(a.dtype)) for n, a in self.operands.items()}
        program = aicf.compile(nn.Model(inputs, Layer()), device=device)
        (got,) = (t.numpy() for t in program.run(self.operands).values())
        want = np.asarray(self.want, np.float64)
        assert got.shape == want.shape, (self.name, got.shape, want.shape)
        return float(np.max(np.abs(got - want) / np.maximum(np.abs(want), 1e-30)))


def numbers(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Positive: all equal, or each drawn."""
    if draw.random() < 0.5:
        return equal(draw, shape)
    return draw.gamma(2.0, size=shape).astype(np.float32)


def equal(draw: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """All one number, so that the errors of a serial sum have one sign."""
    return np.full(shape, draw.choice(EQUAL), np.float32)


def split(draw: np.random.Generator, terms: int, axes: int) -> tuple[tuple[int, ...], int]:
    """(a shape of so many axes, one of which has `terms` elements, the others few; which one that is)."""
    wide = 3 if terms < LONG else 1
    shape, axis = [int(n) for n in draw.integers(1, wide + 1, axes)], int(draw.integers(axes))
    shape[axis] = terms
    return tuple(shape), axis


def cumulated(draw: np.random.Generator, terms: int) -> Sum:
    shape, axis = split(draw, terms, 3)
    x, reverse = numbers(draw, shape), bool(draw.integers(2))
    want = np.flip(x, axis) if reverse else x
    want = np.cumsum(want, axis, dtype=np.float64)
    want = np.flip(want, axis) if reverse else want
    return Sum(
        f"cumsum {shape} axis={axis} reverse={reverse}", {"x": x},
        lambda ctx, x: ctx.cumsum(x, axis=axis, reverse=reverse), want, terms,
    )  # fmt: skip


def reduced(draw: np.random.Generator, terms: int) -> Sum:
    """Over any axes, neighbours or not."""
    shape, axis = split(draw, terms, 4)
    axes = tuple(sorted({axis, *(int(n) for n in draw.integers(0, 4, 2))}))
    x, how = numbers(draw, shape), str(draw.choice(["reduce_sum", "reduce_mean"]))
    want = getattr(np, how[7:])(x, axis=axes, dtype=np.float64)
    return Sum(
        f"{how} {shape} axes={axes}", {"x": x}, lambda ctx, x: getattr(ctx, how)(x, axes=axes), want,
        prod(shape[a] for a in axes),
    )  # fmt: skip


def spread(draw: np.random.Generator, terms: int) -> Sum:
    """A variance, of what is not all equal."""
    shape, axis = split(draw, terms, 2)
    x = draw.gamma(2.0, size=shape).astype(np.float32)
    return Sum(
        f"reduce_var {shape} axis={axis}", {"x": x}, lambda ctx, x: ctx.reduce_var(x, axes=(axis,)),
        np.var(x, axis, dtype=np.float64), terms,
    )  # fmt: skip


def scattered(draw: np.random.Generator, terms: int) -> Sum:
    """Updates for a few rows: a histogram with weights. As rows, each with an index of its own, or joined with what is there."""
    size, columns, how = int(draw.integers(1, 4)), int(draw.integers(1, 4)), int(draw.integers(3))
    updates, indices = numbers(draw, (terms, columns)), draw.integers(0, size, terms).astype(np.int32)
    want = np.stack([np.bincount(indices, updates[:, c].astype(np.float64), size) for c in range(columns)], 1)
    name, i = f"{columns} columns to {size} rows", indices
    if how == 0:
        emit, name = (lambda ctx, u, i: ctx.scatter_add(u, i, size=size)), f"scatter_add of {name}"
    elif how == 1:
        i = np.repeat(indices[:, None], columns, 1)
        emit, name = (
            (lambda ctx, u, i: ctx.scatter_add(u, i, size=size, along=True)),
            f"scatter_add along, {name}",
        )
    else:
        start, want = numbers(draw, (size, columns)), want
        want = want + start
        return Sum(
            f"scatter of {name}", {"x": start, "u": updates, "i": i},
            lambda ctx, x, u, i: ctx.scatter(x, i, u, how=Scatter.add), want, terms,
        )  # fmt: skip
    return Sum(name, {"u": updates, "i": i}, emit, want, terms)


def multiplied(draw: np.random.Generator, terms: int) -> Sum:
    """A product of a vector with few rows or columns; the longest of two vectors."""
    m, n = (int(x) for x in draw.permutation([1, 1 if terms == LONG else draw.integers(1, 4)]))
    trans_a, trans_b = (bool(x) for x in draw.integers(0, 2, 2))
    a = equal(draw, (terms, m) if trans_a else (m, terms))
    b = equal(draw, (n, terms) if trans_b else (terms, n))
    left, right = (
        x.T if t else x for x, t in ((a.astype(np.float64), trans_a), (b.astype(np.float64), trans_b))
    )
    return Sum(
        f"gemm {m}x{n} trans_a={trans_a} trans_b={trans_b}", {"a": a, "b": b},
        lambda ctx, a, b: ctx.gemm(a, b, trans_a=trans_a, trans_b=trans_b), left @ right, terms,
    )  # fmt: skip


def normalised(draw: np.random.Generator, terms: int) -> Sum:
    """Rows divided by a sum, or its logarithm."""
    x = numbers(draw, (int(draw.integers(1, 4)), terms))
    how = str(draw.choice(["softmax", "logsumexp", "l2_normalize", "rms_norm"]))
    if how != "rms_norm":
        return divided(how, x, 1)
    wide, weight = x.astype(np.float64), np.ones(terms, np.float32)
    want = wide / np.sqrt(np.mean(wide * wide, -1, keepdims=True) + 1e-5)
    return Sum(
        f"rms_norm {x.shape}", {"x": x, "w": weight}, lambda ctx, x, w: ctx.rms_norm(x, w, eps=1e-5), want, terms
    )  # fmt: skip


def normalised_columns(draw: np.random.Generator, terms: int) -> Sum:
    """Columns divided by a sum of equal terms, whose rounding errors all have one sign."""
    x = equal(draw, (terms, int(draw.integers(2, 4))))
    return divided(str(draw.choice(["softmax", "logsumexp", "l2_normalize"])), x, 0)


def divided(how: str, x: np.ndarray, axis: int) -> Sum:
    """An op whose sum runs along the axis. One element is greater by 2, so that exponentials are not all 1, which f32 adds exactly."""
    x[(slice(None),) * axis + (0,)] += 2
    wide = x.astype(np.float64)
    most = wide.max(axis, keepdims=True)
    total = np.exp(wide - most).sum(axis, keepdims=True)
    if how == "softmax":
        want = np.exp(wide - most) / total
    elif how == "logsumexp":
        want = most + np.log(total)
    else:
        want = wide / np.sqrt((wide * wide).sum(axis, keepdims=True))
    return Sum(
        f"{how} {x.shape} axis={axis}", {"x": x}, lambda ctx, x: getattr(ctx, how)(x, axis=axis), want, x.shape[axis]
    )  # fmt: skip


def convolved(draw: np.random.Generator, terms: int) -> Sum:
    """The gradient of a kernel: a sum over all windows."""
    images = int(draw.choice([1, 2, 8]))
    x, dy = numbers(draw, (images, terms // images, 1)), numbers(draw, (images, terms // images, 1))
    want = (x.astype(np.float64) * dy).sum().reshape(1, 1, 1)
    return Sum(
        f"weight gradient of {images} images", {"x": x, "dy": dy},
        lambda ctx, x, dy: ctx.convolution_weight_gradient_channels_last(x, dy, kernel=(1,)), want, terms,
    )  # fmt: skip


def pooled(draw: np.random.Generator, terms: int) -> Sum:
    x = numbers(draw, (1, int(draw.integers(1, 4)), terms))
    return Sum(
        f"adaptive_avg_pool {x.shape}", {"x": x}, lambda ctx, x: ctx.adaptive_avg_pool(x, sizes=(1,)),
        x.mean(-1, keepdims=True, dtype=np.float64), terms,
    )  # fmt: skip


def squared(draw: np.random.Generator, terms: int) -> Sum:
    """The norm that clips gradients."""
    x, y = numbers(draw, (terms,)), numbers(draw, (int(draw.integers(1, 100)),))
    want = sum((a.astype(np.float64) ** 2).sum() for a in (x, y))
    return Sum(
        "sum_of_squares",
        {"x": x, "y": y},
        lambda ctx, x, y: ctx.sum_of_squares(x, y),
        np.asarray(want),
        terms,
    )


KINDS = [
    cumulated,
    reduced,
    multiplied,
    pooled,
    squared,
    spread,
    scattered,
    normalised,
    normalised_columns,
    convolved,
]
SLOW = {  # more than a second for ten million
    "cpu": {spread, scattered, normalised, normalised_columns, convolved},
    "cuda": {normalised_columns},
}
SERIAL_COLUMNS = "cuda.rows_serial: a thread adds all elements of a column one after the other, in f32"


def cases() -> list[Any]:
    """Each kind on each device; what the kernels of a device lack is an expected failure."""
    lacks = pytest.mark.xfail(raises=AssertionError, strict=True, reason=SERIAL_COLUMNS)
    return [
        pytest.param(
            kind, device, id=f"{kind.__name__}-{device}",
            marks=[pytest.mark.gpu] * (device == "cuda") + [lacks] * (device == "cuda" and kind is normalised_columns),
        )
        for kind in KINDS for device in ("cpu", "cuda")
    ]  # fmt: skip


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind, device", cases())
def test_errors_do_not_grow_with_the_length(kind, device):
    """Three draws of up to half a million terms, or one, and one of ten million where that takes no more than a second."""
    draw = rng("sums", kind.__name__)
    longest = [] if kind in SLOW[device] else [LONG]
    for terms in (*draw.integers(MANY // 10, MANY + 1, 3 if EVERYTHING else 1), *longest):
        drawn = kind(draw, int(terms))
        error, most = drawn.error(device), bound(drawn.terms)
        assert error <= most, f"{drawn.name}, {drawn.terms} terms: {error:.2g} off, of {most:.2g}"


def test_no_thread_of_a_long_reduction_adds_very_many_elements():
    """On CUDA, where a thread's sum is f32: long rows are split however many there are."""
    draw = rng("splits")
    for name in ("t4", "a100", "h100"):
        device = preset(name)
        for _ in range(200):
            length, blocks, per_block = (int(2 ** draw.uniform(0, most)) for most in (32, 14, 8))
            parts, chunk = reduce.split(length, blocks, per_block, device)
            assert parts * chunk >= length > (parts - 1) * chunk, (length, blocks, per_block)
            assert chunk <= reduce.SERIAL * per_block, (length, blocks, per_block)
