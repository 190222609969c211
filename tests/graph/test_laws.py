"""Laws of selection on random graphs: fused equals unfused equals NumPy, beams against brute force, one plan in every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from draws.graphs import unfused
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from nn.mlp import on_each_device
from registry.synthetic import kernel, registry_of, structured

import aicf
from aicf.device.spec import preset
from aicf.errors import TypeInferenceError
from aicf.graph.emit.passes import lower, optimize
from aicf.graph.emit.trace import Recipe, trace
from aicf.graph.fuse import form_regions
from aicf.graph.fuse.compose import Composer, OpSchedule
from aicf.graph.fuse.nodes import Open
from aicf.graph.fuse.schedule import schedule
from aicf.graph.run import alias
from aicf.ops.schema import schema_of
from aicf.registry.select import Selector
from aicf.registry.variant import Reject, one_op, structure
from aicf.rows import LENGTH_LIMIT, RegionSpec
from aicf.rows.form import form_of
from aicf.rows.parts import read_parts
from aicf.rows.read import read
from examples import examples

from .dags import RULES, Dag, Model, Step, compiled, dags, exact
from .forming import chain, formed, registries, unreadable
from .interpret import by_ops, by_program

CPU = preset("cpu")

# --- beams ------------------------------------------------------------------------------------------------------------


def interval_costs(ops, graph, selector) -> dict[tuple[int, int], float]:
    """Of every interval that some kernel takes: the time of the best."""
    composer, costs = Composer(selector, OpSchedule.of(ops, graph)), {}
    for i in range(len(ops)):
        for region in (composer.start(i), composer.beside(i)):
            while isinstance(region, Open):
                if region.us is not None:
                    costs[i, region.last] = min(region.us, costs.get((i, region.last), region.us))
                if region.last + 1 == len(ops):
                    break
                region = composer.compose(region)
    return costs


def cheapest(n: int, costs: dict[tuple[int, int], float]) -> float:
    """Over all partitions of n ops into intervals, one by one."""
    best = float("inf")
    for count in range(n):
        for cuts in combinations(range(1, n), count):
            parts = [(a, b - 1) for a, b in pairwise((0, *cuts, n))]
            if all(part in costs for part in parts):
                best = min(best, sum(costs[part] for part in parts))
    return best


def total(regions) -> float:
    return sum(r.selection.chosen.us for r in regions)


@pytest.mark.spec("A10")
@examples(100)
@given(dag=dags(max_ops=8), made=registries())
def test_a_beam_as_wide_as_the_length_limit_is_the_optimum_over_intervals(dag, made):
    graph = dag.graph()
    ops = lower(graph)[:10]
    selector = Selector(registry_of(*made), CPU)
    best = cheapest(len(ops), interval_costs(ops, graph, selector))
    assert total(form_regions(ops, graph, selector, LENGTH_LIMIT)) == pytest.approx(best)
    greedy = total(form_regions(ops, graph, selector))
    assert best - 1e-9 <= greedy <= len(ops) + 1e-9  # one kernel for each op
    for beam in (2, 4):
        assert best - 1e-9 <= total(form_regions(ops, graph, selector, beam)) <= greedy + 1e-9


@pytest.mark.spec("A10")
@pytest.mark.parametrize("at", range(1, 5))
def test_a_beam_keeps_the_cheapest_hypotheses_wherever_they_begin(at):
    """At one op a region begins that is soon worth it, though not at once: the loop goes past it, and it is second best."""
    kinds = ["relu", "tanh", "neg", "abs", "exp", "sigmoid", "square", "gelu"]
    plain = structured("cpu.plain.v1", "map", takes=("map",), us=lambda r: 0.2 + 0.8 * len(r.ops))
    later = structured("cpu.later.v1", kinds[at], takes=("map",), us=lambda r: 0.71 + 0.1 * len(r.ops))
    assert len(formed(chain(*kinds), registry_of(plain, later))) == 1
    regions = formed(chain(*kinds), registry_of(plain, later), beam=2)
    assert [(r.anchor, r.kernel_id) for r in regions] == [(0, plain.id), (at, later.id)]


@pytest.mark.spec("A10")
def test_a_beam_charges_for_ops_that_no_kernel_takes_yet():
    """Regions that none takes as they are would be had for nothing, and crowd out the one that is second best."""
    kinds, at = ["relu", "tanh", "neg", "abs", "exp", "sigmoid", "square", "gelu"], 4
    plain = structured("cpu.plain.v1", "relu", takes=("map",), us=lambda r: 0.2 + 0.8 * len(r.ops))
    later = structured("cpu.later.v1", "exp", takes=("map",), us=lambda r: 0.71 + 0.1 * len(r.ops))
    never = structured("cpu.never.v1", "map", takes=("map",), reject=lambda r: one_op(r))
    regions = formed(chain(*kinds), registry_of(plain, later, never), beam=2)
    assert [(r.anchor, r.kernel_id) for r in regions] == [(0, plain.id), (at, later.id)]


@pytest.mark.spec("A10")
@examples(40)
@given(dag=dags(max_ops=10))
@pytest.mark.parametrize("device", ["cpu", "h200", "t4"])
def test_with_real_kernels_no_beam_is_far_from_the_optimum(device, dag):
    """Small tensors, where a launch is nearly all of a kernel's time: a lost fusion would show."""
    spec = preset(device)
    graph = dag.graph(spec.kind)
    ops = lower(graph)
    selector = Selector(aicf.default_registry(), spec)
    best = total(form_regions(ops, graph, selector, LENGTH_LIMIT))
    assert total(form_regions(ops, graph, selector, 4)) <= 1.1 * best
    assert total(form_regions(ops, graph, selector, 1)) <= 1.7 * best


@pytest.mark.sample(1)
@pytest.mark.spec("A1", "A7", "B13")
@examples(40)
@given(first=dags(max_ops=10), dag=dags(max_ops=10), strict=st.booleans())
@pytest.mark.parametrize("device", ["cpu", "h200", "t4"])
def test_what_was_asked_of_other_sizes_before_changes_nothing(device, first, dag, strict):
    """Regions of one form share what was found, and the kernel that won there is asked first here."""
    spec = preset(device)
    asked = Selector(aicf.default_registry(), spec, strict=strict)
    (before, ops), (graph, wanted) = ((g, lower(g)) for g in (first.graph(spec.kind), dag.graph(spec.kind)))
    form_regions(ops, before, asked)
    form_regions(*_wider(dag, spec.kind), asked)
    found = form_regions(wanted, graph, asked)
    form_of.cache_clear()
    fresh = form_regions(wanted, graph, Selector(aicf.default_registry(), spec, strict=strict))
    assert found == fresh and [r.steps for r in found] == [r.steps for r in fresh]
    for region, again in zip(found, fresh):
        assert region.selection.ranked == again.selection.ranked
        assert region.selection.chosen == region.selection.ranked[0]
        for candidate in region.selection.ranked:
            least = candidate.variant.least
            assert least is None or least(region.spec, spec) <= candidate.us * (1 + 1e-9)


def _wider(dag: Dag, kind: str):
    """The same ops over greater tensors, if sizes are no attributes of theirs."""
    taller = replace(dag, shape=(dag.shape[0] + 7, dag.shape[1] + 9))
    grown = {dag.shape[0]: taller.shape[0], dag.shape[1]: taller.shape[1]}
    states = tuple(tuple(grown.get(d, d) if d > 1 else d for d in shape) for shape in dag.states)
    try:
        graph = replace(taller, states=states).graph(kind)
    except TypeInferenceError:
        graph = dag.graph(kind)
    return lower(graph), graph


# --- what a region means ----------------------------------------------------------------------------------------------


CORES = [*RULES, *["reduce"] * 4, *["gemm"] * 3]


def regions_in(dag: Dag, strict: bool) -> Iterator[RegionSpec]:
    """Every interval of the schedule that the rows let through."""
    graph = dag.graph()
    ops = schedule(lower(graph), graph)
    selector = Selector(registry_of(structured("cpu.any.v1"), kernel("cpu.one.v1")), CPU, strict=strict)
    composer = Composer(selector, OpSchedule.of(ops, graph))
    for i in range(len(ops)):
        for region in (composer.start(i), composer.beside(i)):
            while isinstance(region, Open):
                yield region.node.spec
                if region.last + 1 == len(ops):
                    break
                region = composer.compose(region)


@pytest.mark.spec("A4", "A12", "A13", "A15")
@examples(120)
@given(dag=dags(8, CORES, halves=True, rows=(1, 2, 3), columns=(1, 2, 3)), strict=st.booleans())
def test_a_region_read_as_maps_around_a_core_computes_what_its_ops_do(dag, strict):
    """Strict: bit for bit on half types, whose every value is rounded; f32 to the order of its sums."""
    for region in regions_in(dag, strict):
        program = read(region) if structure(region) != "maps" else read_parts(region)
        assert read(region) == read(RegionSpec.from_json(region.to_json()))  # of another form
        if isinstance(program, Reject):
            assert program.condition in {"core", "results", "access", "domain", "ops"}
            continue
        rng = np.random.default_rng(len(region.ops))
        operands = [
            rng.normal(size=t.shape).astype(t.dtype.numpy)
            if t.dtype.kind == "float"
            else rng.integers(0, 2, t.shape).astype(t.dtype.numpy)
            for t in region.operands
        ]
        half = any(t.dtype.compute is not t.dtype for t in region.tensors)
        tolerance = 2e-2 if half and not strict else 1e-5
        for got, want in zip(by_program(program, region, operands), by_ops(region, operands)):
            np.testing.assert_allclose(
                got.astype(float), want.astype(float), rtol=tolerance, atol=tolerance, err_msg=str(region)
            )


@pytest.mark.spec("A13")
@examples(30)
@given(dag=dags(14, ["step"] * 8 + ["unary", "unary", "binary"]), strict=st.booleans())
def test_a_region_that_grew_is_what_it_would_be_made_at_once(dag, strict):
    """What is kept of the region before spares work, and nothing else: the same parts, and the same hash."""
    for region in regions_in(dag, strict):
        at_once = RegionSpec.from_json(region.to_json())
        assert region == at_once and hash(region) == hash(at_once)
        assert at_once.before is None and read_parts(region) == read_parts(at_once)


# --- numbers ----------------------------------------------------------------------------------------------------------


def traced(dag: Dag, device: str):
    return trace(Recipe(Model(dag), "infer"), {}, device)


def outcome(program: aicf.Program, feed: dict, replay: bool = False) -> dict[str, np.ndarray]:
    """Results and what became of the states."""
    found = {name: t.numpy() for name, t in (program.replay if replay else program.run)(feed).items()}
    return found | {name: program.get(name) for name in program.variables.names()}


def start(program: aicf.Program, feed: dict) -> dict[str, np.ndarray]:
    return feed | {name: program.get(name) for name in program.variables.names()}


def close(got: dict, want: dict, tolerance: float, what: str) -> None:
    for name, array in want.items():
        assert got[name].shape == array.shape, f"{what}: {name}"
        scale = float(np.max(np.abs(array), initial=1.0))
        np.testing.assert_allclose(
            got[name].astype(float), np.asarray(array, float), rtol=tolerance, atol=tolerance * scale,
            err_msg=f"{what}: {name}",
        )  # fmt: skip


STEPS = [*RULES, *["step"] * 8]


def check_regions_and_storage(dag: Dag, made: list, beam: int = 1, replay: bool = False) -> None:
    registry = registry_of(*made, structured("cpu.any.v1", us=0.5, reject=unreadable))
    program = compiled(dag, registry=registry, beam=beam)  # nor is there a region that the plan refuses
    feed = dag.feed()
    want = exact(traced(dag, "cpu"), start(program, feed))
    close(outcome(program, feed, replay), want, 2e-4, "regions and NumPy")


@pytest.mark.spec("A5", "A7", "C6")
@examples(80)
@given(dag=dags(14, STEPS), made=registries(), beam=st.sampled_from([1, 3]), replay=st.booleans())
def test_whatever_regions_are_formed_in_place_steps_and_storage_change_no_result(dag, made, beam, replay):
    """Made-up kernels that run their ops' references, and write early: what schedule, regions and plan make of values."""
    check_regions_and_storage(dag, made, beam, replay)


def fails(check: Callable, *args) -> bool:
    try:
        check(*args)
    except AssertionError:
        return True
    return False


@pytest.mark.sample(1)
@pytest.mark.parametrize("what", ["a product over its operand", "sums over what they read"])
def test_a_result_written_over_what_is_still_read_is_noticed(monkeypatch, what):
    """The law above fails where a plan is made unsafe."""
    monkeypatch.setattr(alias, "why_not_in_place", lambda spec, result, operands: "")
    if what == "a product over its operand":
        monkeypatch.setattr(schema_of("gemm"), "alias", {0: (0, "may")})
        rules = ["gemm", "unary", "gemm", "bias"]
    else:
        monkeypatch.setattr(alias, "_elementwise", lambda spec: True)
        rules = [*["gemm", "reduce"] * 4, *RULES]
    few = settings(max_examples=600, deadline=None, phases=[Phase.generate], derandomize=True, database=None)
    find(
        dags(14, rules, rows=(3,), columns=(3,)),
        lambda dag: fails(check_regions_and_storage, dag, [kernel("cpu.one.v1")]),
        settings=few,
    )


@on_each_device
@pytest.mark.spec("A6", "A15", "C6")
@examples(6)
@given(dag=dags(max_ops=9), replay=st.booleans())
def test_fused_equals_unfused_equals_numpy(device, dag, replay):
    feed = dag.feed()
    program, split = compiled(dag, device), compiled(dag, device, registry=unfused(device))
    assert len(program.plan.steps) <= len(split.plan.steps)
    before = start(program, feed)
    want = exact(traced(dag, device), before)
    got, apart = outcome(program, feed, replay), outcome(split, feed, replay)
    close(got, want, 2e-4, "fused and NumPy")
    close(got, apart, 2e-4, "fused and unfused")


@on_each_device
@pytest.mark.spec("A15")
@examples(3)
@given(dag=dags(max_ops=8, halves=True, rules=["convert", "convert", "convert", *RULES]))
def test_and_so_it_does_with_half_types_on_the_way(device, dag):
    feed = dag.feed()
    program, split = compiled(dag, device), compiled(dag, device, registry=unfused(device))
    want = exact(traced(dag, device), start(program, feed))
    got, apart = outcome(program, feed), outcome(split, feed)
    close(got, apart, 2e-2, "fused and unfused")
    close(apart, want, 5e-2, "unfused and NumPy")


@on_each_device
@pytest.mark.spec("A15")
@examples(6)
@given(dag=dags(max_ops=8, halves=True))
def test_strict_fused_equals_unfused_bit_for_bit(device, dag):
    feed = dag.feed()
    fused = compiled(dag, device, numerics="strict")
    split = compiled(dag, device, numerics="strict", registry=unfused(device))
    got, want = outcome(fused, feed), outcome(split, feed)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].tobytes() == want[name].tobytes(), name


@on_each_device
@pytest.mark.spec("A7", "C6")
@examples(6)
@given(dag=dags(6, STEPS), replay=st.booleans())
def test_steps_in_place_leave_no_other_numbers_wherever_they_run(device, dag, replay):
    """Twice, since what the first run leaves is what the second begins with."""
    feed, program = dag.feed(), compiled(dag, device)
    for _ in range(2):
        want = exact(traced(dag, device), start(program, feed))
        close(outcome(program, feed, replay), want, 2e-4, "in place and NumPy")


@on_each_device
@pytest.mark.spec("A9", "A15")
@examples(4)
@given(dag=dags(max_ops=6), data=st.data())
def test_sync_points_change_no_bit(device, dag, data):
    """Strict, as a value that leaves its kernel is rounded. No kernel has ops of both sides."""
    points = data.draw(st.sets(st.integers(0, len(dag.steps) - 1), min_size=1, max_size=3))
    fenced = replace(dag, fences=frozenset(points))
    feed = dag.feed()
    plain, cut = (compiled(d, device, numerics="strict") for d in (dag, fenced))
    graph = optimize(traced(fenced, device))
    ops = schedule(lower(graph), graph)
    fences = [i for i, op in enumerate(ops) if op.constraints.get("sync")]
    assert not any(s.anchor < i <= s.last for s in cut.plan.steps for i in fences)
    got, want = outcome(cut, feed), outcome(plain, feed)
    assert got.keys() == want.keys()
    for name in want:
        assert got[name].tobytes() == want[name].tobytes(), name


@on_each_device
@pytest.mark.spec("A9")
def test_a_chain_beyond_the_limit_goes_on_in_another_kernel(device):
    kinds = ["tanh", "square", "neg", "sigmoid"]
    steps = tuple(Step(kinds[n % 4], (n and n + 1,)) for n in range(LENGTH_LIMIT + 3))
    dag = Dag((5, 33), (), steps, (LENGTH_LIMIT + 4,))
    program, feed = compiled(dag, device), dag.feed()
    assert [len(s.region.ops) for s in program.plan.steps] == [LENGTH_LIMIT, 3]
    close(outcome(program, feed), exact(traced(dag, device), feed), 1e-5, "two kernels and NumPy")


@on_each_device
@pytest.mark.spec("A6")
@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (4, 33), (5, 1)])
def test_nan_and_infinities_take_the_same_way_through_a_fused_kernel(device, shape):
    steps = (
        Step("relu", (0,)), Step("add", (4, 1)), Step("tanh", (5,)), Step("maximum", (6, 0)), Step("bias_add", (7, 2)),
        Step("reduce_max", (8,), (("axes", (1,)), ("keepdims", True))), Step("mul", (9, 3)),
    )  # fmt: skip
    dag = Dag(shape, ((shape[1],), (shape[0], 1)), steps, (8, 10))
    feed = dag.feed()
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 3e38], np.float32)
    for n, array in enumerate(feed.values()):
        array.reshape(-1)[n :: max(array.size // 5, 1)] = np.resize(
            special, array.reshape(-1)[n :: max(array.size // 5, 1)].size
        )
    program, split = compiled(dag, device), compiled(dag, device, registry=unfused(device))
    got, apart = outcome(program, feed), outcome(split, feed)
    for name in got:
        np.testing.assert_allclose(got[name], apart[name], rtol=1e-5, atol=1e-6, equal_nan=True)


# --- one plan everywhere ----------------------------------------------------------------------------------------------
