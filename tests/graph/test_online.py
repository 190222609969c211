"""The online loop (A5-A9): each trigger with its values; what is emitted, and what is scanned again; linear time."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nn.mlp import batch_of, on_each_device
from registry.synthetic import kernel, registry_of
from registry.test_index import STRUCTURES, structured

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import NoKernelError
from aicf.graph.build.passes import lower, optimize
from aicf.graph.build.trace import Recipe, trace
from aicf.graph.fuse import compose, form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.ops.schema import elementwise, unregister
from aicf.registry.program import read, read_parts
from aicf.registry.select import Selector
from aicf.registry.variant import Reject, structure
from aicf.rows import LENGTH_LIMIT

from .chains import graph_of
from .dags import dags

CPU = preset("cpu")
DEVICES = ["cpu", "t4", "h200"]
one = kernel("cpu.one.v1")  # any one op, 1 us
anything = structured("cpu.anything.v1", us=0.25)  # any structure


def lowered(emit, device="cpu", shape=(3, 4)):
    graph = graph_of(emit, device, shape)
    return lower(graph), graph


def formed(emit, registry=None, device="cpu", **more):
    spec = preset(device)
    ops, graph = lowered(emit, spec.kind)
    return form_regions(ops, graph, Selector(registry or aicf.default_registry(), spec), **more)


def story(regions) -> list[tuple[str, str]]:
    return [(r.spec.signature, r.ended.trigger) for r in regions]


def weight(ctx, name="w", shape=(4, 4)):
    return ctx.param(name, shape, nn.init.normal())


def chain(*kinds):
    def emit(ctx, x):
        for kind in kinds:
            x = ctx.op(kind, x)
        return x

    return emit


# --- triggers ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A9")
@pytest.mark.parametrize("device", DEVICES)
def test_two_cores_are_a_conflict_with_both(device):
    first, second = formed(lambda ctx, x: ctx.gemm(ctx.gemm(x, weight(ctx)), weight(ctx, "v")), device=device)
    ended = first.ended
    assert (ended.trigger, ended.row, ended.left, ended.right) == ("conflict", "core", "gemm", "gemm")
    assert "gemm" in ended.sentence and second.ended.trigger == "end"


@pytest.mark.spec("A9")
@pytest.mark.parametrize("device", DEVICES)
def test_a_domain_after_the_core_is_a_conflict_with_both_extents(device):
    """What a reduction left over one axis can't grow to the whole again."""
    first, *_ = formed(lambda ctx, x: ctx.sub(x, ctx.reduce_max(x, axes=(1,), keepdims=True)), device=device)
    ended = first.ended
    assert (ended.trigger, ended.row) == ("conflict", "domain")
    assert (ended.left, ended.right) == ("(3, 1)", "(3, 4)")


@pytest.mark.spec("A9")
def test_whole_numbers_meet_floats_only_through_a_convert():
    def emit(ctx, x):
        count = ctx.state("n", (3, 4), 0, aicf.i32)
        return {"y": ctx.relu(x), "z": ctx.neg(count)}

    first, second = formed(emit, registry_of(anything))
    ended = first.ended
    assert (ended.trigger, ended.row, ended.left, ended.right) == (
        "conflict", "dtype", "f32", "i32 without a convert",
    )  # fmt: skip
    assert second.spec.signature == "neg"
    (whole,) = formed(lambda ctx, x: ctx.neg(ctx.convert(ctx.relu(x), dtype=aicf.i32)), registry_of(anything))
    assert whole.spec.signature == "relu + convert + neg"


@pytest.mark.spec("A9")
def test_no_candidates_gives_what_the_last_ones_had_against_it():
    pair = structured("cpu.pair.v1", takes=("map",), us=0.1)
    first, second = formed(lambda ctx, x: ctx.reduce_sum(ctx.relu(x)), registry_of(one, pair))
    assert (first.ended.trigger, first.spec.signature) == ("candidates", "relu")
    assert first.ended.detail == "reduce_sum fits none: " + (
        "pair: takes map; this would be map+reduce · one: takes one op, got 2 (relu + reduce_sum)"
    )
    assert first.steps[0].candidates == 2 and second.kernel_id == "cpu.one.v1"


@pytest.mark.spec("A9", "C6")
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("registry", [registry_of(one, anything), None])
def test_a_write_in_place_beside_a_differently_mapped_read_is_a_barrier(view, registry):
    """The product reads w along rows and columns while its epilogue would write it; through a view of w, too."""

    def emit(ctx, x):
        w, v = ctx.state("w", (4, 4), 1.0), ctx.state("v", (4, 4), 0.0)
        seen = ctx.reshape(ctx.reshape(w, shape=(2, 8)), shape=(4, 4)) if view else w
        product = ctx.gemm(seen, seen)
        new, moved = ctx.sgd_step(w, product, v, 0.1, 0.9, 0.0)
        ctx.update(w, new)
        ctx.update(v, moved)
        return ctx.copy(x)

    regions = formed(emit, registry)
    (gemm,) = [r for r in regions if "gemm" in r.spec.signature]
    assert gemm.spec.signature == "gemm"
    assert (gemm.ended.trigger, gemm.ended.row) == ("barrier", "effects")
    assert gemm.ended.left.startswith("a read of %0") or gemm.ended.right.startswith("a read of %0")
    assert "a write of %0 in place" in (gemm.ended.left, gemm.ended.right)


def steps(ctx, *calls):
    """Steps of states of the named shapes, each (parameter, gradient, momentum)."""
    for p, g, v in calls:
        for old, new in zip((p, v), ctx.sgd_step(p, g, v, 0.1, 0.9, 0.0)):
            ctx.update(old, new)


@pytest.mark.spec("A9", "A13", "C6")
@pytest.mark.parametrize("registry", [registry_of(one, anything), None])
def test_ops_side_by_side_do_not_read_what_another_writes(registry):
    """The second step reads b, which the third writes: one launch runs them in no order."""

    def emit(ctx, x):
        a, b, u, v = (ctx.state(name, (4, 4), 1.0) for name in "abuv")
        c, w = ctx.state("c", (4,), 1.0), ctx.state("w", (4,), 1.0)
        steps(ctx, (c, ctx.state("h", (4,), 1.0), w), (a, b, u), (b, ctx.state("g", (4, 4), 1.0), v))
        return ctx.copy(x)

    regions = formed(emit, registry)
    assert [r.spec.signature for r in regions[:2]] == ["sgd_step + sgd_step", "sgd_step"]
    ended = regions[0].ended
    assert (ended.trigger, ended.left, ended.right) == (
        "barrier", "a write of %9 in place", "a read of %9 side by side",
    )  # fmt: skip


@pytest.mark.spec("A9", "C6")
@pytest.mark.parametrize("registry", [registry_of(one, anything), None])
def test_nothing_is_written_in_place_on_the_way_into_a_reduction(registry):
    def emit(ctx, x):
        p, v = ctx.state("p", (3, 4), 1.0), ctx.state("v", (3, 4), 0.0)
        y = ctx.relu(x)
        steps(ctx, (p, y, v))
        return ctx.reduce_sum(y, axes=(1,))

    first, second = formed(emit, registry)
    assert (first.spec.signature, second.spec.signature) == ("relu + sgd_step", "reduce_sum")
    assert (first.ended.trigger, first.ended.row) == ("barrier", "effects")


@pytest.mark.spec("A9")
def test_a_read_in_the_same_place_is_no_barrier():
    def emit(ctx, x):
        w, v = ctx.state("w", (3, 4), 1.0), ctx.state("v", (3, 4), 0.0)
        new, moved = ctx.sgd_step(w, ctx.mul(w, x), v, 0.1, 0.9, 0.0)
        ctx.update(w, new)
        ctx.update(v, moved)
        return ctx.copy(x)

    assert formed(emit, registry_of(anything))[0].spec.signature.startswith("mul + sgd_step")


@pytest.mark.spec("A9")
@pytest.mark.parametrize("n", [LENGTH_LIMIT - 1, LENGTH_LIMIT, LENGTH_LIMIT + 1, 3 * LENGTH_LIMIT])
def test_no_region_is_longer_than_the_limit(n):
    regions = formed(chain(*["relu"] * n), registry_of(anything))
    full, rest = divmod(n, LENGTH_LIMIT)
    assert [len(r.spec.ops) for r in regions] == [LENGTH_LIMIT] * full + [rest] * bool(rest)
    assert [r.ended.trigger for r in regions] == ["limit"] * (len(regions) - 1) + ["end"]
    if len(regions) > 1:
        ended = regions[0].ended
        assert (ended.left, ended.right) == (f"{LENGTH_LIMIT} ops", f"the limit of {LENGTH_LIMIT}")


@pytest.mark.spec("A9")
@settings(max_examples=30, deadline=None)
@given(dag=dags(max_ops=8), data=st.data())
def test_nothing_is_fused_across_an_explicit_sync_point(dag, data):
    graph = dag.graph()
    ops = lower(graph)
    points = data.draw(st.sets(st.integers(0, len(ops) - 1), max_size=3))
    ops = [
        replace(op, constraints={**op.constraints, "sync": True}) if i in points else op
        for i, op in enumerate(ops)
    ]
    regions = form_regions(ops, graph, Selector(registry_of(one, anything), CPU))
    anchors = {r.anchor for r in regions}
    assert points <= anchors
    for before, after in pairwise(regions):
        synced = after.anchor in points and before.ended.trigger == "sync"
        assert synced == (before.ended.right == "an explicit sync point")
    plain = form_regions(lower(graph), graph, Selector(registry_of(one, anything), CPU))
    assert not any(r.ended.trigger == "sync" for r in plain)


@pytest.mark.spec("A9")
def test_cost_ends_a_region_with_both_sums():
    dear = structured("cpu.dear.v1", takes=("map",), us=lambda r: 1.0 if len(r.ops) < 3 else 9.0)
    regions = formed(chain("relu", "tanh", "neg"), registry_of(one, dear))
    assert story(regions) == [("relu + tanh", "cost"), ("neg", "end")]
    assert (regions[0].ended.left, regions[0].ended.right) == ("9 us", "2 us")


@pytest.mark.spec("A9")
def test_cost_counts_what_stood_between_an_accepted_prefix_and_the_next():
    """Three ops at once for 2.5 us beat one and two more; two at once are taken by nobody."""
    long = structured(
        "cpu.long.v1", "relu", us=2.5, reject=lambda r: Reject("ops", "not 3") if len(r.ops) != 3 else None
    )
    assert story(formed(chain("relu", "tanh", "neg"), registry_of(one, long))) == [
        ("relu + tanh + neg", "end")
    ]
    dear = replace(long, cost=structured("cpu.x.v1", us=3.5).cost)
    assert story(formed(chain("relu", "tanh", "neg"), registry_of(one, dear)))[0] == ("relu", "cost")


@pytest.mark.spec("A9")
def test_the_end_of_the_schedule_ends_the_last_region():
    (region,) = formed(chain("relu", "tanh"), registry_of(anything))
    assert (region.ended.trigger, region.ended.sentence) == ("end", "it is the last one")


# --- what is emitted --------------------------------------------------------------------------------------------------


def unreadable(region) -> Reject | None:
    """Why no kernel that is composed from a region's maps could take it."""
    if len(region.ops) == 1:
        return None
    program = read_parts(region) if structure(region) == "maps" else read(region)
    return program if isinstance(program, Reject) else None


@st.composite
def registries(draw, device="cpu"):
    """Some variants with random structures, costs and gaps in what they accept, beside one that takes any op alone."""
    made = [kernel(f"{device}.one.v1", us=1.0)]
    for n in range(draw(st.integers(0, 4))):
        gaps = draw(st.frozensets(st.integers(1, 6), max_size=3))
        base, each = draw(st.sampled_from([0.2, 0.9, 1.7])), draw(st.sampled_from([0.0, 0.1, 0.8, 1.3]))
        jump = draw(st.sampled_from([0.0, 0.0, 3.0]))
        made.append(
            structured(
                f"{device}.k{n}.v1", draw(st.sampled_from(["*", "map", "elementwise", "gemm", "reduce", "relu", "add"])),
                takes=tuple(draw(st.lists(st.sampled_from(STRUCTURES), min_size=1, max_size=4, unique=True))),
                us=lambda r, base=base, each=each, jump=jump: base + each * len(r.ops) + jump * (len(r.ops) % 3 == 2),
                reject=lambda r, gaps=gaps: Reject("ops", "a gap") if len(r.ops) in gaps else unreadable(r),
                priority=draw(st.integers(0, 1)),
            )
        )  # fmt: skip
    return made


@pytest.mark.spec("A5", "A6", "A7")
@settings(max_examples=80, deadline=None)
@given(dag=dags(max_ops=10), made=registries(), beam=st.sampled_from([1, 2, 4, LENGTH_LIMIT]))
def test_regions_partition_the_schedule_and_each_kernel_takes_its_region(dag, made, beam):
    graph = dag.graph()
    ops = lower(graph)
    regions = form_regions(ops, graph, Selector(registry_of(*made), CPU), beam)
    assert [i for r in regions for i in range(r.anchor, r.last + 1)] == list(range(len(ops)))
    known = {v.vid for v in graph.externals()}
    for r in regions:
        inside = ops[r.anchor : r.last + 1]
        assert (r.state.anchor, r.state.last) == (r.anchor, r.last)
        assert [op.kind for op in inside] == [op.kind for op in r.spec.ops]
        assert r.selection.chosen.variant.supported(r.spec, CPU) is None
        order = [c.order for c in r.selection.ranked]
        assert order == sorted(order)
        assert set(r.in_vids) <= known  # in order, and nothing that stayed inside a region is read later
        made_here = {v for op in inside for v in op.out_vids}
        read = {v for op in inside for v in op.in_vids if v >= 0}
        assert set(r.in_vids) == read - made_here and set(r.out_vids) <= made_here
        known |= set(r.out_vids)
    kept = {v.vid for v in graph.outputs} | set(graph.updates.values())
    assert kept <= known


@pytest.mark.spec("A8")
@settings(max_examples=60, deadline=None)
@given(dag=dags(max_ops=10), made=registries())
def test_a_flush_falls_back_to_the_last_accepted_prefix_and_the_rest_is_scanned_again(dag, made):
    """A region's own ops, formed alone, are that region; what follows is what it would be if the schedule began there."""
    graph = dag.graph()
    ops = lower(graph)
    selector = Selector(registry_of(*made), CPU)
    regions = form_regions(ops, graph, selector)
    for region, following in pairwise(regions):
        assert following.anchor == region.last + 1
        best = region.steps[-1]
        assert best.us is not None and best.best == region.kernel_id
        rest = form_regions(ops[following.anchor :], graph, selector)
        shift = following.anchor
        assert [(r.anchor + shift, r.last + shift, r.kernel_id) for r in rest] == [
            (r.anchor, r.last, r.kernel_id) for r in regions if r.anchor >= shift
        ]


@pytest.mark.spec("A7", "B13")
@settings(max_examples=40, deadline=None)
@given(dag=dags(max_ops=10), made=registries(), data=st.data(), beam=st.sampled_from([1, 4]))
def test_plans_do_not_depend_on_the_order_of_registration_or_on_what_was_asked_before(dag, made, data, beam):
    graph = dag.graph()
    ops = lower(graph)
    shuffled = data.draw(st.permutations(made))
    selector, other = Selector(registry_of(*made), CPU), Selector(registry_of(*shuffled), CPU)
    first = form_regions(ops, graph, selector, beam)
    for again in (form_regions(ops, graph, other, beam), form_regions(ops, graph, selector, beam)):
        assert again == first
        assert [r.steps for r in again] == [r.steps for r in first]


@pytest.mark.spec("A6")
def test_no_kernel_at_all_is_named_with_where_it_was_written():
    with pytest.raises(NoKernelError, match="no kernel takes relu"):
        formed(
            chain("relu", "tanh"), registry_of(kernel("cpu.a.v1", "relu", reject=lambda r: Reject("x", "no")))
        )


# --- ops nobody heard of, and ops side by side ------------------------------------------------------------------------


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_an_op_registered_here_fuses_in_chains_products_and_reductions(device):
    @elementwise("swish_of_test")
    def swish(x):
        """x^3 / (1 + x^2)."""
        return x * x * x / (1.0 + x * x)

    swish.reference(lambda x: x**3 / (1 + x * x))
    try:
        for emit, signature in [
            (chain("relu", "swish_of_test", "neg"), "relu + swish_of_test + neg"),
            (lambda ctx, x: ctx.swish_of_test(ctx.gemm(x, weight(ctx))), "gemm + swish_of_test"),
            (lambda ctx, x: ctx.reduce_sum(ctx.swish_of_test(x), axes=(1,)), "swish_of_test + reduce_sum"),
        ]:
            (region,) = formed(emit, device=device)
            assert region.spec.signature == signature
        if device == "cpu":
            x = np.random.default_rng(5).normal(size=(3, 4)).astype(np.float32)
            model = nn.Model({"x": aicf.TensorSpec((3, 4))}).add(_Fn(chain("neg", "swish_of_test", "square")))
            program = aicf.compile(model, device="cpu")
            assert [s.region.signature for s in program.plan.steps] == ["neg + swish_of_test + square"]
            wide = -x.astype(float)
            want = (wide**3 / (1 + wide * wide)) ** 2
            np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), want, rtol=1e-5, atol=1e-6)
    finally:
        unregister("swish_of_test")


class _Fn(nn.Layer):
    def __init__(self, function):
        self.emit = function


@pytest.mark.spec("A13")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_optimizer_steps_of_parameters_of_different_sizes_are_one_region(device):
    explained = aicf.explain_for(
        mlp((5, 7, 3)), device, "train", loss=nn.MeanSquaredError(), optimizer=nn.Adam(1e-2)
    )
    steps = [r for r in explained.regions if "adam_step" in r.spec.signature]
    assert [r.spec.signature for r in steps] == ["adam_step + adam_step + adam_step + adam_step"]
    shapes = {r.shape for r in steps[0].spec.results}
    assert shapes == {(7, 5), (7,), (3, 7), (3,)}


@on_each_device
@pytest.mark.spec("A13")
@pytest.mark.parametrize("optimizer", [nn.Adam(1e-2, weight_decay=0.1), nn.SGD(1e-2, momentum=0.9)])
def test_such_a_region_steps_each_parameter_right(device, optimizer):
    """Against float64: one step of every parameter, from the gradients that another program gives."""
    feed = batch_of(6, loss="mse")
    grads = aicf.compile(mlp((5, 7, 3)), "grad", device=device, loss=nn.MeanSquaredError())
    start = {name: grads.get(name).astype(float) for name in grads.variables.names()}
    grad = {name: grads.run(feed)[f"grad.{name}"].numpy().astype(float) for name in start}
    program = aicf.compile(
        mlp((5, 7, 3)), "train", device=device, loss=nn.MeanSquaredError(), optimizer=optimizer
    )
    step = next(s for s in program.plan.steps if s.region.signature.count("_step") == 4)
    assert len(step.region.ops) == 4
    program.run(feed)
    for name, p in start.items():
        g = grad[name]
        if isinstance(optimizer, nn.Adam):
            g = g + 0.1 * p
            want = p - 1e-2 * g / (np.abs(g) + 1e-8)  # the first step: m / c1 is g, v / c2 its square
        else:
            want = p - 1e-2 * g
        np.testing.assert_allclose(program.get(name), want, rtol=1e-4, atol=2e-5, err_msg=name)


def mlp(sizes, batch=6):
    model = nn.Model({"x": aicf.TensorSpec(("batch", sizes[0]))}, batch=batch)
    for i, o in pairwise(sizes):
        model.add(nn.Linear(i, o)).add(nn.ReLU())
    return model


# --- linear time ------------------------------------------------------------------------------------------------------


def deep(layers: int, device="cpu"):
    """The schedule of an MLP's train step: some 30 ops a layer."""
    recipe = Recipe(mlp((8,) * (layers + 1)), "train", nn.MeanSquaredError(), nn.Adam(1e-2))
    graph = optimize(trace(recipe, {"batch": 6}, preset(device).kind))
    return schedule(lower(graph), graph), graph


@pytest.mark.spec("A6")
@pytest.mark.parametrize("beam", [1, 4])
def test_an_op_is_composed_a_bounded_number_of_times(beam, monkeypatch):
    """Counted, not timed; with a kernel that keeps every region viable and accepts none of more than one op."""
    calls = []
    extended = compose.Composer._extended
    monkeypatch.setattr(compose.Composer, "_extended", lambda *args: calls.append(1) or extended(*args))
    never = structured("cpu.never.v1", reject=lambda r: Reject("ops", "never"))
    counts = []
    for n in (100, 200, 400):
        calls.clear()
        formed(chain(*["relu"] * n), registry_of(one, never), beam=beam)
        counts.append(len(calls))
    assert counts[2] - counts[1] == 2 * (counts[1] - counts[0])
    assert counts[2] <= 400 * 3 * LENGTH_LIMIT


@pytest.mark.spec("A6")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_a_graph_of_10000_ops_is_selected_in_linear_time(device):
    """At most 0.1 ms an op on the machine of the benchmark; five times that here, where tests run side by side."""
    spec, registry, taken = preset(device), aicf.default_registry(), {}
    ops, graph = deep(1150, device)
    assert len(ops) > 10_000
    for n in (len(ops) // 2, len(ops)):
        began = time.process_time()
        regions = form_regions(ops[:n], graph, Selector(registry, spec))
        taken[n] = (time.process_time() - began) / n
        assert regions[-1].last == n - 1
    half, whole = taken.values()
    assert whole < 0.5e-3
    assert whole < 2 * half + 0.02e-3


@pytest.mark.spec("A6", "A9")
@pytest.mark.parametrize("beam", [1, 4])
def test_an_op_that_no_kernel_begins_with_may_still_join_a_region(beam):
    """tanh is taken behind relu alone; where relu is not before it, it is named."""
    pair = kernel("cpu.pair.v1", "relu", us=0.5, signatures=["relu", "relu + tanh"])
    (region,) = formed(chain("relu", "tanh"), registry_of(pair), beam=beam)
    assert region.spec.signature == "relu + tanh"
    assert [step.alone_us for step in region.steps] == [0.5, None]
    with pytest.raises(NoKernelError, match="no variant for tanh on cpu"):
        formed(chain("relu", "tanh", "tanh"), registry_of(pair), beam=beam)


@pytest.mark.spec("A10")
def test_a_beam_finds_kernels_where_the_greedy_loop_has_none_left():
    """Greedily relu + tanh is taken, and nobody takes neg alone."""
    pair = kernel("cpu.pair.v1", "relu", "tanh", us=0.5, signatures=["relu", "relu + tanh", "tanh + neg"])
    with pytest.raises(NoKernelError, match="no variant for neg on cpu"):
        formed(chain("relu", "tanh", "neg"), registry_of(pair))
    regions = formed(chain("relu", "tanh", "neg"), registry_of(pair), beam=2)
    assert story(regions) == [("relu", "beam"), ("tanh + neg", "end")]
