"""Attribute rows, their joins, and the signature that they index (A1-A4)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aicf
from aicf.rows import AttributeState, Conflict, RegionSpec
from aicf.rows.contribution import contribution
from aicf.rows.rows import HARD, LENGTH_LIMIT, ROWS, CoreName, Domain, Effect, join
from aicf.types import DType
from examples import examples

from .chains import graph_of
from .dags import Dag, Step, dags, random_order, whole_region

ROW = {row.name: row for row in ROWS}
EXAMPLES = examples(60)

# --- each row's join --------------------------------------------------------------------------------------------------

LATTICES = {
    "linearity": st.sampled_from(["linear", "nonlinear"]),
    "access": st.frozensets(st.sampled_from(["in place", "broadcast", "index"])),
    "round": st.sampled_from(["free", "must"]),
    "avail": st.sampled_from([1, 2, 4, 16, 256]),
    "dtype": st.tuples(
        st.sampled_from([DType.bool, DType.i32, DType.i64, DType.f32]), st.just(True)
    ),  # linked
    "effects": st.builds(Effect, st.just(frozenset()), st.frozensets(st.integers(0, 4)), st.booleans()),
}


@pytest.mark.spec("A3")
@pytest.mark.parametrize("name", LATTICES)
@EXAMPLES
@given(st.data())
def test_set_and_numeric_rows_are_semilattices(name, data):
    join = ROW[name].join
    a, b, c = (data.draw(LATTICES[name]) for _ in range(3))
    assert join(a, a) == a
    assert join(a, b) == join(b, a)
    assert join(join(a, b), c) == join(a, join(b, c))


@pytest.mark.spec("A3")
@EXAMPLES
@given(*[st.lists(st.sampled_from("abc"), max_size=8).map(tuple)] * 3)
def test_the_program_is_a_word_that_only_grows_at_its_end(a, b, c):
    word = ROW["program"].join
    joined = word(a, b)
    if len(a) + len(b) > LENGTH_LIMIT:
        assert joined == Conflict("program", f"{len(a)} steps", f"the limit of {LENGTH_LIMIT}", "limit")
        return
    assert joined[: len(a)] == a and joined[len(a) :] == b
    if len(joined) + len(c) <= LENGTH_LIMIT:
        assert word(joined, c) == word(a, word(b, c))


SHAPES = st.sampled_from([(), (4,), (3, 4), (4, 4), (2, 3, 4), (0, 4)])


@pytest.mark.spec("A3")
@EXAMPLES
@given(SHAPES, SHAPES, st.booleans(), st.integers(0, 1))
def test_domains_unify_where_they_are_equal_or_before_a_core(mine, theirs, reads, phase):
    joined = ROW["domain"].join(Domain(mine, phase), Domain(theirs, reads=reads))
    if mine == theirs:
        assert (joined.shape, joined.phase, joined.parts) == (mine, phase, 1)
    elif not isinstance(joined, Conflict):
        assert reads and not phase and joined.shape == theirs
    else:
        left = f"({', '.join(map(str, mine))})" + " after the core" * phase
        assert (joined.row, joined.left, joined.right) == ("domain", left, str(Domain(theirs)))


@pytest.mark.spec("A3", "A12")
def test_the_one_core_that_may_follow_another_adds_up_columns_of_a_product():
    core, product = ROW["core"], CoreName("gemm", "gemm")
    sums = CoreName("reduce_sum", "reduce", True, frozenset({"gemm"}))
    both = core.join(product, sums)
    assert both == "gemm + reduce_sum"
    assert core.join(both, product) == Conflict("core", "gemm + reduce_sum", "gemm")
    assert core.join(both, sums) == Conflict("core", "gemm + reduce_sum", "reduce_sum")
    assert core.join(product, CoreName("reduce_sum", "reduce", True)) == Conflict(
        "core", "gemm", "reduce_sum"
    )
    for first in ("convolution", "check_labels"):
        assert core.join(CoreName(first, first), sums) == Conflict("core", first, "reduce_sum")
    several = core.join(sums, sums)
    assert several == "reduce_sum + reduce_sum" and several.reduces and not several.epilogue_reduction_of


@pytest.mark.spec("A2", "A15")
@pytest.mark.parametrize("kind, strict, attrs, beside", [
    ("reduce_sum", False, {"axes": (0,)}, True), ("reduce_sum", False, {"axes": (-2,), "keepdims": True}, True),
    ("reduce_sum", True, {"axes": (0,)}, False), ("reduce_sum", False, {"axes": (1,)}, False),
    ("reduce_sum", False, {}, False), ("reduce_mean", False, {"axes": (0,)}, False),
])  # fmt: skip
def test_sums_of_columns_are_known_by_their_axes_unless_strict(kind, strict, attrs, beside):
    region = region_of(lambda ctx, x: ctx.op(kind, x, **attrs))
    core = contribution(region.ops[0], region.tensors, (), strict=strict)["core"]
    assert core.epilogue_reduction_of == ({"gemm"} if beside else set())


CONFLICTS = [
    ("core", CoreName("gemm", "gemm"), CoreName("gemm", "gemm"), "conflict", "gemm", "gemm"),
    ("core", CoreName("gemm", "gemm"), CoreName("reduce_sum", "reduce", True), "conflict", "gemm", "reduce_sum"),
    ("dtype", (DType.i32, True), (DType.f32, False), "conflict", "i32", "f32 without a convert"),
    ("domain", Domain((3, 4), 1), Domain((4, 3)), "conflict", "(3, 4) after the core", "(4, 3)"),
    ("domain", Domain((3, 4)), Domain((), source=(4, 3)), "conflict", "(3, 4)", "(4, 3) of the core's operand"),
    ("effects", Effect(writes=frozenset({1})), Effect(scattered=frozenset({1})), "barrier",
     "a write in place", "a read of it from elsewhere"),
    ("effects", Effect(scattered=frozenset({1})), Effect(writes=frozenset({1})), "barrier",
     "a write in place", "a read of it from elsewhere"),
    ("effects", Effect(writes=frozenset({1})), Effect(writes=frozenset({1})), "barrier",
     "a write in place", "another of the same storage"),
    ("effects", Effect(rng=True), Effect(sync=True), "sync", "the ops before", "an explicit sync point"),
]  # fmt: skip


@pytest.mark.spec("A3", "A9")
@pytest.mark.parametrize("row, mine, theirs, trigger, left, right", CONFLICTS)
def test_a_conflict_carries_both_values(row, mine, theirs, trigger, left, right):
    assert ROW[row].join(mine, theirs) == Conflict(row, left, right, trigger)


@pytest.mark.spec("A3")
def test_a_join_keeps_what_could_be_joined_unless_the_conflict_is_hard():
    gemm = {"program": ("gemm",), "core": CoreName("gemm"), "round": "free"}
    joined, conflict = join(
        gemm, {"program": ("reduce_sum",), "core": CoreName("reduce_sum"), "round": "must"}
    )
    assert conflict == Conflict("core", "gemm", "reduce_sum")
    assert joined["program"] == ("gemm", "reduce_sum") and joined["round"] == "must"
    assert joined["core"] == "gemm"
    effects = {"effects": Effect(writes=frozenset({1}))}
    kept, conflict = join(gemm | effects, {"program": ("bias_add",), "effects": Effect(sync=True)})
    assert conflict.row in HARD and kept == gemm | effects
    assert join(gemm, {"effects": Effect(sync=True)})[1].trigger == "sync"  # no row of its own before it


# --- what ops bring ---------------------------------------------------------------------------------------------------


def state_of(region: RegionSpec) -> list[AttributeState]:
    """The states of a region's prefixes."""
    states: list[AttributeState] = []
    made: set[int] = set()
    for op in region.ops:
        rows = contribution(op, region.tensors, made)
        attrs, conflict = join(states[-1].attrs, rows) if states else (rows, None)
        states.append(AttributeState(0, len(states), attrs, invalid_reason=conflict))
        made.update(op.outputs)
    return states


def region_of(emit, shape=(3, 4)) -> RegionSpec:
    return whole_region(graph_of(emit, shape=shape))


def weight(ctx, name="w", shape=(4, 4)):
    return ctx.param(name, shape, aicf.nn.init.normal())


def bias(ctx, name="b"):
    return weight(ctx, name, (4,))


@pytest.mark.spec("A2", "A4")
def test_gemm_and_bias_is_the_documents_example_4_1():
    """GEMM: core gemm, linear. BIAS: adds no core, stays linear, keeps the domain; the order is the program's."""
    gemm, both = state_of(region_of(lambda ctx, x: ctx.bias_add(ctx.gemm(x, weight(ctx)), bias(ctx))))
    assert gemm.attrs["core"] == both.attrs["core"] == "gemm"
    assert (gemm.attrs["program"], both.attrs["program"]) == (("gemm",), ("gemm", "bias_add"))
    assert (gemm.attrs["linearity"], both.attrs["linearity"]) == ("linear", "linear")
    assert (gemm.attrs["slot"], both.attrs["slot"]) == ("gemm", "gemm+map")
    assert both.attrs["domain"] == Domain((3, 4), 1) and both.invalid_reason is None
    assert both.changed(gemm) == {
        "program": "gemm + bias_add", "slot": "gemm+map", "access": "broadcast gemm in place",
        "epilogue": "bias",
    }  # fmt: skip


@pytest.mark.spec("A2", "A3", "A4")
def test_linear_and_relu_is_the_documents_example_4_2():
    """Nonlinear dominates, and never goes away again; the bias that the product had already stays its own."""
    *_, biased, relu, last = state_of(
        region_of(
            lambda ctx, x: ctx.bias_add(
                ctx.relu(ctx.bias_add(ctx.gemm(x, weight(ctx)), bias(ctx))), bias(ctx, "c")
            )
        )
    )
    assert [s.attrs["linearity"] for s in (biased, relu, last)] == ["linear", "nonlinear", "nonlinear"]
    assert last.attrs["program"] == ("gemm", "bias_add", "relu", "bias_add")


@pytest.mark.spec("A3")
@EXAMPLES
@given(st.lists(st.sampled_from(["bias", "other bias", "relu", "tanh"]), min_size=1, max_size=8))
def test_no_bias_is_merged_and_no_activation_lost(kinds):
    def emit(ctx, x):
        x = ctx.gemm(x, weight(ctx))
        b, c = bias(ctx), bias(ctx, "c")
        for kind in kinds:
            x = ctx.bias_add(x, c if "other" in kind else b) if "bias" in kind else ctx.op(kind, x)
        return x

    region = region_of(emit)
    last = state_of(region)[-1]
    names = ["bias_add" if "bias" in kind else kind for kind in kinds]
    assert last.attrs["program"] == ("gemm", *names) and last.invalid_reason is None
    activations = tuple(name for name in names if name != "bias_add")
    around = last.attrs["epilogue"]
    assert (around.activations, around.flags) == (activations, {"bias"} if "bias_add" in names else set())
    assert [op.kind.name for op in region.canonical.ops] == ["gemm", *names]


@pytest.mark.spec("A1", "A5")
@EXAMPLES
@given(dags())
def test_a_state_is_never_changed_and_rows_follow_from_the_prefix(dag):
    """The state of a prefix is the same whatever comes after it, and only the program's length tells how far it goes."""
    region = whole_region(dag.graph())
    states = state_of(region)
    texts = [str(s) for s in states]
    again = state_of(RegionSpec(region.ops[:1], region.tensors, region.inputs, region.outputs))
    assert again[0] == states[0]
    assert [str(s) for s in states] == texts
    for before, after in pairwise(states):
        assert (after.anchor, after.last) == (0, before.last + 1)
        if after.attrs["linearity"] == "linear":
            assert before.attrs["linearity"] == "linear"
        assert after.attrs["round"] == "must" or before.attrs["round"] == "free"
        assert after.attrs["avail"] <= before.attrs["avail"]


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("A4")
@examples(150)
@given(dags(), st.randoms(use_true_random=False))
def test_all_linear_extensions_of_a_region_have_one_signature(dag, rng):
    graph = dag.graph()
    region = whole_region(graph)
    other = whole_region(graph, random_order(graph, rng.choice))
    assert other.canonical == region.canonical
    assert other.key == region.key
    assert region.canonical.canonical == region.canonical


@pytest.mark.spec("A4")
@examples(150)
@given(st.lists(st.tuples(*[st.sampled_from(["relu", "tanh", "add"])], *[st.integers(0, 20)] * 2), min_size=2, max_size=9),
       st.randoms(use_true_random=False))  # fmt: skip
def test_and_so_have_those_with_much_symmetry(calls, rng):
    """Few kinds, one shape: ops that only their neighbours' neighbours tell apart."""
    steps, pool = [], 4
    for kind, a, b in calls:
        operands = (a % pool, b % pool) if kind == "add" else (a % pool,)
        steps.append(Step(kind, operands))
        pool += 1
    graph = Dag((4, 4), ((4, 4), (4, 4)), tuple(steps), tuple(range(4, pool))).graph()
    region = whole_region(graph)
    assert whole_region(graph, random_order(graph, rng.choice)).key == region.key


ANOTHER = {
    "bias after the activation": (
        lambda ctx, x: ctx.relu(ctx.bias_add(ctx.gemm(x, weight(ctx)), bias(ctx))),
        lambda ctx, x: ctx.bias_add(ctx.relu(ctx.gemm(x, weight(ctx))), bias(ctx)),
    ),
    "once or twice": (lambda ctx, x: ctx.relu(x), lambda ctx, x: ctx.relu(ctx.relu(x))),
    "x - y or y - x": (
        lambda ctx, x: ctx.sub(ctx.relu(x), ctx.tanh(x)), lambda ctx, x: ctx.sub(ctx.tanh(x), ctx.relu(x)),
    ),
    "which operand is used twice": (
        lambda ctx, x: ctx.mul(ctx.sub(x, weight(ctx, "w", (3, 4))), x),
        lambda ctx, x: ctx.mul(ctx.sub(weight(ctx, "w", (3, 4)), x), x),
    ),
    "one operand or two of one type": (
        lambda ctx, x: ctx.add(x, x), lambda ctx, x: ctx.add(x, weight(ctx, "w", (3, 4))),
    ),
    "one bias twice or two": (
        lambda ctx, x: (lambda b: ctx.bias_add(ctx.bias_add(x, b), b))(bias(ctx)),
        lambda ctx, x: ctx.bias_add(ctx.bias_add(x, bias(ctx)), bias(ctx, "c")),
    ),
    "an attribute": (lambda ctx, x: ctx.scale(x, factor=0.5), lambda ctx, x: ctx.scale(x, factor=0.25)),
    "what is read elsewhere": (
        lambda ctx, x: ctx.tanh(ctx.relu(x)),
        lambda ctx, x: (lambda r: {"r": r, "t": ctx.tanh(r)})(ctx.relu(x)),
    ),
    "a transpose": (
        lambda ctx, x: ctx.gemm(weight(ctx), weight(ctx, "v"), trans_a=True),
        lambda ctx, x: ctx.gemm(weight(ctx), weight(ctx, "v"), trans_b=True),
    ),
}  # fmt: skip


@pytest.mark.spec("A4")
@pytest.mark.parametrize("name", ANOTHER)
def test_what_computes_something_else_has_another_signature(name):
    one, other = (region_of(emit) for emit in ANOTHER[name])
    assert one.key != other.key
    assert one.canonical != other.canonical


@pytest.mark.spec("A4")
@EXAMPLES
@given(dags(rules=["unary", "binary", "bias", "constant", "reduce"]), st.data())
def test_another_op_in_any_place_makes_another_signature(dag, data):
    """One op of the graph is exchanged for another kind, or one more is put at the end."""
    key = whole_region(dag.graph()).key
    n = data.draw(st.sampled_from(range(len(dag.steps))))
    step, end = dag.steps[n], 2 + len(dag.states) + len(dag.steps)
    others = {
        "add": "sub",
        "sub": "add",
        "mul": "maximum",
        "relu": "tanh",
        "neg": "abs",
        "reduce_sum": "reduce_mean",
    }
    changed = Step(others.get(step.kind, step.kind), step.operands, step.attrs)
    steps = (*dag.steps[:n], changed, *dag.steps[n + 1 :])
    assert (whole_region(replace(dag, steps=steps).graph()).key != key) == (changed != step)
    place = end - len(dag.steps) + n
    longer = replace(dag, steps=(*dag.steps, Step("tanh", (place,))), outputs=(*dag.outputs, end))
    assert whole_region(longer.graph()).key != key
