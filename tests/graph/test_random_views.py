"""Random chains of maps, views, reshapes and reductions: what regions are read as, point by point, against NumPy in f64.

Programs are run here as their docstrings say, in Python, so that thousands of shapes cost no compiler.
"""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.ops.schema import schema_of
from aicf.rows.program import Reduction, RegionProgram
from aicf.rows.read import read

from .chains import planned

EXAMPLES = settings(max_examples=1500 if os.environ.get("AICF_TEST_ALL") else 25, deadline=None)
SIZES = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 8])
SHAPES = st.lists(SIZES, min_size=1, max_size=3).filter(lambda s: math.prod(s) <= 96).map(tuple)


def evaluated(map, operands, results, core_result=None):
    """A Map at every point, in f64; what it feeds, over its domain."""
    expression, core_input = map.expression, []
    for number, point in enumerate(np.ndindex(map.shape)):
        values = [] if core_result is None else [core_result.reshape(-1)[number]]
        for load in map.loads:
            assert not load.bounds
            at = load.offset + sum(p * s for p, s in zip(point, load.strides))
            assert load.operand is None or 0 <= at < operands[load.operand].size
            values.append(at if load.operand is None else operands[load.operand].reshape(-1)[at])
        for function, ins, outs in expression.steps:
            made = function(*(values[i] for i in ins))
            for out, value in zip(outs, made if isinstance(made, tuple) else (made,)):
                assert out == len(values)
                values.append(float(value))
        for slot, position in map.stores:
            results[position].reshape(-1)[number] = values[slot]
        core_input.append(values[map.core_input] if map.core_input is not None else 0.0)
    return np.array(core_input, np.float64).reshape(map.shape)


def run(spec, operands):
    results = [np.full(t.shape, np.nan) for t in spec.results]
    program = read(spec)
    if isinstance(program, RegionProgram) and (program.core is None or isinstance(program.core, Reduction)):
        core_result = None
        if program.core is not None:
            core_input, axes = evaluated(program.before, operands, results), program.core.axes
            core_result = core_input.sum(axis=axes)
        evaluated(program.after, operands, results, core_result)
        return results
    values = dict(zip(spec.inputs, operands))
    for op in spec.ops:  # rows have their own tests
        made = schema_of(op.kind).reference_fn(*(values[t] for t in op.inputs), **op.attrs)
        values.update(zip(op.outputs, made if isinstance(made, tuple) else (made,)))
    return [values[t] for t in spec.outputs]


@st.composite
def step(draw, shape):
    """(kind, attributes, the same in NumPy) of an op that takes a value of this shape."""
    rank, kinds = (
        len(shape),
        ["neg", "square", "reverse", "transpose", "slice", "reshape", "reshape", "with", "broadcast"],
    )
    kind = draw(st.sampled_from(kinds + ["reduce_sum"] * (rank > 0)))
    if kind == "reverse":
        dims = tuple(d for d in range(rank) if draw(st.booleans()))
        return kind, {"dims": dims}, lambda v: np.flip(v, dims)
    if kind == "transpose":
        perm = tuple(draw(st.permutations(range(rank))))
        return kind, {"perm": perm}, lambda v: np.transpose(v, perm)
    if kind == "slice":
        starts = tuple(draw(st.integers(0, n)) for n in shape)
        limits = tuple(draw(st.integers(a, n)) for a, n in zip(starts, shape))
        steps = tuple(draw(st.integers(1, 3)) for _ in shape)
        taken = tuple(map(slice, starts, limits, steps))
        return kind, {"start": starts, "limit": limits, "step": steps}, lambda v: v[taken]
    if kind == "reshape":
        left, made = math.prod(shape), []
        while left > 1 and len(made) < 3:
            made.append(draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
            left //= made[-1]
        to = (*made, left) if math.prod(shape) else draw(st.sampled_from([(0,), (0, 3), (2, 0)]))
        return kind, {"shape": to}, lambda v: v.reshape(to)
    if kind == "reduce_sum":
        axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1))))
        return kind, {"axes": axes, "keepdims": draw(st.booleans())}, None
    if kind == "broadcast":
        to = (*shape[:1], 2, *shape[1:])
        dims = (*range(len(shape[:1])), *range(2, rank + 1))
        return (
            "broadcast_in_dim",
            {"shape": to, "dims": dims},
            lambda v: np.broadcast_to(np.expand_dims(v, min(1, rank)), to),
        )
    return kind, {}, {"neg": np.negative, "square": np.square}.get(kind)


@pytest.mark.spec("A3", "A12")
@EXAMPLES
@given(SHAPES, st.data())
def test_chains_with_views_and_reshapes_are_what_numpy_makes_of_them(shape, data):
    rng = np.random.default_rng(0)
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    x = rng.normal(size=shape)
    feeds, values = {"x": x}, [(ctx.input("x", shape), x)]
    for n in range(data.draw(st.integers(1, 7))):
        value, numbers = values[-1]
        if numbers.size > 400:
            break
        kind, attrs, numpy = data.draw(step(tuple(value.shape)))
        if kind == "with":  # an earlier value of the same shape, else a row of the caller's
            others = [(v, a) for v, a in values if v.shape == value.shape]
            other, array = data.draw(st.sampled_from(others))
            if len(others) == 1 and value.shape:
                array = rng.normal(size=value.shape[-1:])
                feeds[f"row{n}"] = array
                other = ctx.input(f"row{n}", array.shape)
            values.append((ctx.add(value, other), numbers + array))
        elif kind == "reduce_sum":
            values.append(
                (ctx.reduce_sum(value, **attrs), numbers.sum(axis=attrs["axes"], keepdims=attrs["keepdims"]))
            )
        else:
            values.append((ctx.op(kind, value, **attrs), numpy(numbers)))
    builder.output("output", values[-1][0])
    if len(values) > 2 and data.draw(st.booleans()):
        builder.output("more", data.draw(st.sampled_from(values[1:-1]))[0])
    _, regions, _ = planned(builder.graph)
    known = {v.vid: feeds[v.name] for v in builder.graph.values if v.name in feeds}
    expected = {v.vid: a for v, a in values}
    for region in regions:
        made = run(region.spec, [known[vid] for vid in region.in_vids])
        for vid, got in zip(region.out_vids, made):
            np.testing.assert_allclose(
                got, expected[vid], rtol=1e-5, atol=1e-5, err_msg=region.spec.signature
            )
            known[vid] = got
