"""What mixed precision needs of a training step: whether gradients are finite, the next scale of the loss, copies of parameters."""

from __future__ import annotations

import numpy as np

from ..types import DType, TensorSpec
from .optimizers import mostly
from .schema import F32, Bool, FloatOwn, Index, Valid, elementwise, op, require

# --- overflow -----------------------------------------------------------------------------------------------


@op("all_finite")
def all_finite(*xs: FloatOwn):
    """Whether no element of any operand is NaN or infinite, as 0-D bool. Each operand has a shape and a float type of its own."""
    return (TensorSpec((), DType.bool, xs[0].device),)


@all_finite.reference
def _(*xs):
    return np.asarray(all(bool(np.isfinite(x).all()) for x in xs))


@all_finite.counts
def _(*xs):
    return sum(x.numel for x in xs)


def _sometimes(rng, shape, shapes):
    """Numbers, and now and then one that is none."""
    made = rng.normal(size=shape)
    if made.size and rng.integers(3) == 0:
        made.reshape(-1)[rng.integers(made.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return made


all_finite.draws(xs=_sometimes)
all_finite.samples((4, 7))
all_finite.samples((4, 7), (1025,), (), (0, 3), (3, 5))
all_finite.samples((0,))

# --- the scale of the loss ----------------------------------------------------------------------------------

LEAST_SCALE = 2.0**-126  # f32's least normal number: 1 over it is finite, and it is not flushed to zero


@elementwise(
    "loss_scale_step",
    results=("scale2", "good2", "skipped2", "inverse"),
    must={"scale2": "scale", "good2": "good", "skipped2": "skipped"},
    continuous=True,
)
def loss_scale_step(
    scale: F32,
    good: Index,
    skipped: Index,
    finite: Bool,
    valid: Valid,
    *,
    growth: float,
    backoff: float,
    interval: int,
):
    """The next scale of the loss, the steps since it last changed, and those that were not taken: torch.amp.GradScaler's rule.

    Not finite: scale * backoff, 2^-126 at least, and 0 good steps. Else one more; at `interval` of them scale * growth, if that is finite, and 0 again.
    These are written in place, if valid. inverse is 1 / scale: what the gradients of this step, which come scaled, are multiplied by.

    C3  interval is at least 1
    """
    grown = scale * growth
    due = good + 1 >= interval
    larger = grown if due and grown - grown == 0.0 else scale
    lowered = scale * backoff
    smaller = lowered if lowered > LEAST_SCALE else LEAST_SCALE
    scale2 = larger if finite else smaller
    good2 = good + 1 if finite and not due else 0
    skipped2 = skipped if finite else skipped + 1
    return (scale2 if valid else scale, good2 if valid else good, skipped2 if valid else skipped, 1.0 / scale)


@loss_scale_step.checks
def _(scale, good, skipped, finite, valid, growth, backoff, interval):
    require(interval >= 1, "C3", f"interval is {interval}, expected at least 1")


@loss_scale_step.reference
def _(scale, good, skipped, finite, valid, growth, backoff, interval):
    grown, due = scale * scale.dtype.type(growth), good + 1 >= interval
    larger = np.where(due & np.isfinite(grown), grown, scale)
    smaller = np.maximum(scale * scale.dtype.type(backoff), scale.dtype.type(LEAST_SCALE))
    made = (
        np.where(finite, larger, smaller),
        np.where(finite & ~due, good + 1, 0).astype(good.dtype),
        np.where(finite, skipped, skipped + 1).astype(skipped.dtype),
    )
    kept = (np.where(valid, new, old) for new, old in zip(made, (scale, good, skipped)))
    return *kept, 1 / scale


def _few(rng, shape, shapes):
    return rng.integers(0, 5, shape)


loss_scale_step.draws(scale=(1, 2**16), good=_few, skipped=_few, finite=mostly, valid=mostly)
loss_scale_step.samples((), (), (), (), (), growth=2.0, backoff=0.5, interval=3)
loss_scale_step.samples((7,), (7,), (7,), (7,), (7,), growth=2.0, backoff=0.5, interval=3)
loss_scale_step.samples((0,), (0,), (0,), (), (), growth=2.0, backoff=0.5, interval=1)

# --- copies of parameters -----------------------------------------------------------------------------------


@elementwise("refresh_copy", must={"y": "copy"}, continuous=True)
def refresh_copy(p: FloatOwn, copy: FloatOwn):
    """p in the element type of copy, written over it: what the next run reads of a parameter in a narrower type."""
    return p


@refresh_copy.reference
def _(p, copy):
    return p


for _s in [(4, 7), (1025,), (0, 3), ()]:
    refresh_copy.samples(_s, _s)
