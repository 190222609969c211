"""References of ops on a long axis, as the host runs them: the error of a sum grows with the root of its length at most.

Operands are equal along a long axis, so that the errors of a serial f32 sum have one sign, but for its first element, since
exponentials and variances of equal elements are exact. An op enrols by its samples; which of their extents is long is drawn.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from draws.devices import device
from draws.extents import renamed
from draws.layouts import laid, poisoned
from draws.ops import OpCase, enrolled, region_of
from draws.seeds import rng

from aicf.dispatch import default_registry
from aicf.errors import AicfError
from aicf.ops.schema import ELEMENTWISE
from aicf.types import DType

LONG, LARGEST, CASES = 3001, 300_000, 4
BOUND = 2.0**-24 * (4 + LONG**0.5)
UNFIT = {  # exp(score - lse) is a probability only of the lse that belongs to the scores; a rounding jumps
    "attention_grad", "attention_bias_grad", "linear_cross_entropy_grad", "fake_quantize", "quantize",
}  # fmt: skip
OPS = [s for s in enrolled() if ELEMENTWISE not in s.traits and s.name not in UNFIT]


def drawn(draw, schema):
    """A case of f32 where an extent of a sample is long; None if the op refuses it, or it is large."""
    sample = schema.sample_specs[draw.integers(len(schema.sample_specs))]
    known = sorted({d for shape in sample["shapes"] if shape for d in shape})
    if not known:
        return None
    shapes, attrs = renamed(
        sample["shapes"], sample["attrs"], {known[draw.integers(len(known))]: LONG}, False
    )
    types = [None if s is None else DType.f32 if DType.f32 in d.type.dtypes else min(d.type.dtypes, key=lambda t: t.id)
             for s, d in zip(shapes, schema.declared(len(shapes)))]  # fmt: skip
    case = OpCase(schema.name, tuple(types), shapes, tuple(attrs.items()), ("dense",) * len(shapes))
    if max(math.prod(s) for s in shapes if s is not None) > LARGEST:
        return None
    try:
        results = case.inferred()
    except AicfError:
        return None
    return case if max(math.prod(r.shape) for r in results) <= LARGEST else None


def values(shape, dtype):
    """0.1, 0.2 or 0.3, all equal along a long axis but for its first element."""
    if dtype.kind != "float":
        return np.zeros(shape, dtype.numpy)
    places = np.indices(shape)
    short = sum((at for n, at in zip(shape, places) if n != LONG), np.zeros(shape, int))
    made = 0.1 * (1 + short % 3)
    for axis, n in enumerate(shape):
        if n == LONG:
            made[(slice(None),) * axis + (0,)] += 2
    return made.astype(dtype.numpy)


def error(case):
    """Of the host's reference, relative to the greatest element of a result."""
    on, schema = device("cpu"), case.schema
    operands = [None if s is None else laid(values(s, t), "dense") for s, t in zip(case.shapes, case.types)]
    results = [poisoned(r.shape, r.dtype, "dense") for r in case.inferred()]
    region = region_of(case, operands, results, "cpu")
    variant = next(v for v in default_registry().variants(region.kind) if v.id.startswith("cpu.reference."))
    if variant.supported(region, on.spec) is not None:
        return 0.0
    on.run(variant, region, [o for o in operands if o is not None], results)
    arrays = [None if o is None else np.array(o.array) for o in operands]
    wide = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in arrays]
    worst = 0.0
    for found, want in zip(results, schema.call_reference(wide, case.pack())):
        scale = np.abs(want[np.isfinite(want)]).max(initial=0.0) if want.dtype.kind == "f" else 0.0
        if scale:
            finite = np.isfinite(want)
            worst = max(worst, float(np.abs(found.array - want)[finite].max() / scale))
    return worst


@pytest.mark.sample(6)
@pytest.mark.parametrize("letter", sorted({s.name[0] for s in OPS}))
def test_references_add_up_without_growing_errors(letter):
    draw = rng("long sums", letter)
    for schema in (s for s in OPS if s.name[0] == letter):
        for case in filter(None, (drawn(draw, schema) for _ in range(CASES))):
            assert (off := error(case)) <= BOUND, f"{case}: {off:.2g} off, of {BOUND:.2g}"
