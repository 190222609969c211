"""The kernel index (A8): candidate sets equal what each variant says when asked alone, and cost little however many there are."""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import pytest
from graph.chains import graph_of, planned
from graph.dags import Dag, Step, dags
from hypothesis import example, given
from hypothesis import strategies as st
from pace import least_seconds

from aicf import default_registry
from aicf.device.spec import preset
from aicf.errors import NoKernelError
from aicf.graph.emit.passes import lower
from aicf.graph.fuse import form_regions
from aicf.graph.fuse.compose import Composer, OpSchedule
from aicf.graph.fuse.nodes import Open
from aicf.ops.schema import schema_of, schemas
from aicf.registry.index import KernelIndex
from aicf.registry.select import Selector, select
from aicf.registry.variant import Reject, structure
from aicf.types import DType
from examples import examples

from .synthetic import STRUCTURES, kernel, region, registry_of, structured

DEVICES = ["cpu", "t4", "h200"]
TYPES = (
    frozenset(DType),
    frozenset({DType.f32}),
    frozenset({DType.f32, DType.i32, DType.bool}),
    frozenset({DType.i32}),
)


@cache
def many(device: str, count: int = 20_000) -> tuple[KernelIndex, list]:
    """An index over so many variants of all kinds and structures, and the log of what they were asked."""
    rng, asked = random.Random(7), []
    kinds = [s.name for s in schemas()] + ["map", "elementwise", "reduce", "gemm", "linear"]
    needs = [(), (), ("sm_75",), ("sm_80",), ("sm_90a",)] if device == "cuda" else [()]
    made = [
        structured(
            f"{device}.k{n}.v1", *rng.sample(kinds, rng.randint(1, 3)),
            takes=() if rng.random() < 0.2 else tuple(rng.sample(STRUCTURES, rng.randint(1, 4))),
            dtypes=rng.choice(TYPES), alignment=rng.choice([1, 1, 16, 256, 512]), needs=rng.choice(needs), asked=asked,
            us=rng.uniform(1, 9), deterministic=rng.random() < 0.8,
        )
        for n in range(count)
    ]  # fmt: skip
    made.append(structured(f"{device}.any.v1", us=20.0, asked=asked))
    return registry_of(*made), asked


def members(index: KernelIndex, bits: int) -> set[str]:
    return {v.id for v in index.members(bits)}


def walks(dag, selector: Selector, device: str):
    """From every op of the graph: the region grown until it stops."""
    graph = dag.graph(device)
    ops = lower(graph)
    composer = Composer(selector, OpSchedule.of(ops, graph))
    for i in range(len(ops)):
        opened = composer.start(i)
        while opened.last + 1 < len(ops) and isinstance(following := composer.compose(opened), Open):
            opened = following
        yield opened


@pytest.mark.sample(1)
@pytest.mark.spec("A8")
@pytest.mark.parametrize("device", DEVICES)
@examples(4)
@given(dag=dags(max_ops=6))
def test_candidate_sets_are_those_of_asking_each_variant_alone(device, dag):
    spec = preset(device)
    registry, _ = many(spec.kind)
    selector = Selector(registry, spec)
    for opened in walks(dag, selector, spec.kind):
        first = {v.id for v in registry.variants(opened.node.spec.kind) if v.deterministic}
        expected = None
        for node in opened.steps:
            said = {
                v.id
                for v in registry
                if v.id in first and (expected is None or v.id in expected)
                and v.continues(node.spec, spec) is None
            }  # fmt: skip
            assert members(selector.index, node.state.candidates) == said
            expected = said


ALIKE_THEN_REPEATED = Dag(
    (1, 3), ((3, 3), (3,)),
    (Step("square", (0,)), Step("add", (4, 1.0)), Step("div", (0, 5)),
     Step("square", (0,)), Step("add", (7, 1.0)), Step("div", (2, 8))), (6, 9),
)  # fmt: skip
"""Two parts of the same ops, which are one domain until the last op, whose second operand has fewer rows."""


@pytest.mark.spec("A8")
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("device", DEVICES)
@examples(25)
@given(dag=dags(max_ops=8, halves=True))
@example(dag=ALIKE_THEN_REPEATED)
def test_candidates_only_shrink_and_the_chosen_kernel_was_one_all_along(device, real, dag):
    """viable(v, s + op) implies viable(v, s), of made-up variants and of those there are."""
    spec = preset(device)
    selector = Selector(default_registry() if real else many(spec.kind, 500)[0], spec)
    for opened in walks(dag, selector, spec.kind):
        bits = [node.state.candidates for node in opened.steps]
        assert all(after & ~before == 0 for before, after in pairwise(bits))
        for n, node in enumerate(opened.steps):
            if node.best is None:
                continue
            for candidate in selector(node.spec).ranked:
                variant = candidate.variant
                assert variant.supported(node.spec, spec) is None
                assert all(selector.index.bit(variant) & b for b in bits[: n + 1])
                assert all(variant.continues(p.spec, spec) is None for p in opened.steps[: n + 1])


STEP_BETWEEN = Dag(
    (1, 1), ((1, 1), (1, 1)),
    (Step("relu", (0,)), Step("relu", (0,)), Step("relu", (2,)), Step("sgd_step", (2, 0, 3, 0.1, 0.5, 0.0))), (4, 5, 6),
)  # fmt: skip


@pytest.mark.spec("A8")
@examples(20)
@given(dag=dags(max_ops=8))
@example(dag=STEP_BETWEEN)
def test_only_what_the_masks_leave_is_asked(dag):
    """`accepts` once and `cost` once, of those candidates that take the structure as it is."""
    registry, asked = many("cuda")
    selector = Selector(registry, preset("h200"))
    asked.clear()
    # equal regions are asked again where other values share their storage, but for those of one op
    found = [node for opened in walks(dag, selector, "cuda") for node in opened.steps]
    nodes = {node.spec if len(node.spec.ops) == 1 else node.id: node for node in found}
    left = [
        node.state.candidates & selector.index.accepting(_structure(node), len(node.spec.ops))
        for node in nodes.values()
    ]
    assert len(asked) == 2 * sum(bits.bit_count() for bits in left)
    assert sum(bits.bit_count() for bits in left) < 0.2 * len(registry) * len(nodes)


@pytest.mark.spec("A8")
def test_composing_stays_cheap_with_20000_variants():
    """Beside asking those that are left: under 5 ms an op, all different."""
    registry, asked = many("cuda")

    def emit(ctx, x):
        for kind in ("relu", "tanh", "neg", "exp", "square", "sqrt", "abs", "sigmoid", "gelu", "copy"):
            x = (
                ctx.reduce_sum(ctx.op(kind, x), axes=(1,), keepdims=True)
                if kind == "exp"
                else ctx.op(kind, x)
            )
        return x

    graph = graph_of(emit, "cuda")
    ops = lower(graph)
    asked.clear()  # by other tests
    form_regions(ops, graph, Selector(registry, preset("h200")))
    limit = 0.005 * len(ops) + 2e-5 * len(asked)
    assert least_seconds(lambda: form_regions(ops, graph, Selector(registry, preset("h200"))), limit) < limit


def _structure(node) -> str:
    return "maps" if node.state.attrs["domain"].parts > 1 else node.state.attrs["slot"]


@pytest.mark.spec("A8")
@examples(60)
@given(dag=dags(max_ops=9))
@example(dag=ALIKE_THEN_REPEATED)
def test_the_rows_know_the_structure_that_the_region_has(dag):
    """The slot row says without looking at the ops what `structure` reads off them."""
    selector = Selector(registry_of(structured("cpu.any.v1")), preset("cpu"))
    for opened in walks(dag, selector, "cpu"):
        for node in opened.steps:
            assert _structure(node) == structure(node.spec)


@pytest.mark.spec("A8", "B8")
def test_a_single_region_is_asked_with_the_same_masks():
    """Element types, alignment, device and flags count where a region is selected by itself, too."""
    r = region("relu", (8,))
    wrong = [
        structured("cpu.a.v1", dtypes=frozenset({DType.i32})),
        structured("cpu.b.v1", alignment=512),
        structured("cpu.c.v1", takes=("gemm",)),
        structured("cpu.d.v1", "tanh"),
        structured("cpu.e.v1", deterministic=False),
    ]
    right = structured("cpu.z.v1", us=9.0)
    chosen = select(r, preset("cpu"), registry_of(*wrong, right), required=frozenset({"deterministic"}))
    assert [c.variant.id for c in chosen.ranked] == ["cpu.z.v1"]
    assert {x.variant.name: x.reject.condition for x in chosen.rejected} == {
        "a": "dtype", "b": "aligned", "c": "structure", "e": "deterministic",
    }  # fmt: skip
    with pytest.raises(NoKernelError, match="no kernel takes"):
        select(r, preset("cpu"), registry_of(*wrong), required=frozenset({"deterministic"}))
    for v in wrong[:3]:
        assert v.supported(r, preset("cpu")) is not None
        assert v.continues(r, preset("cpu")) is not None


@pytest.mark.spec("A8")
@given(order=st.permutations(range(8)))
@examples(20)
def test_bits_do_not_depend_on_the_order_of_registration(order):
    made = [
        structured(f"cpu.k{n}.v1", "relu" if n % 2 else "map", alignment=16 * (n % 3) or 1) for n in range(8)
    ]
    one = KernelIndex(made, preset("cpu"))
    other = KernelIndex([made[n] for n in order], preset("cpu"))
    relu = schema_of("relu")
    assert one.begins(relu) == other.begins(relu) == 0b11111111
    assert one.alignment(16) == other.alignment(16)
    assert members(one, one.alignment(16)) == {v.id for v in made if v.alignment <= 16}
    assert members(one, one.begins(schema_of("tanh"))) == {v.id for v in made[::2]}


@pytest.mark.spec("A8")
def test_what_a_row_can_not_know_is_tested_at_the_flush():
    """A kernel that is viable for `relu + tanh`, and then refuses it, leaves the op to be scanned again."""
    picky = structured(
        "cpu.picky.v1", us=0.1, reject=lambda r: Reject("ops", "two") if len(r.ops) == 2 else None
    )
    graph = graph_of(lambda ctx, x: ctx.tanh(ctx.relu(x)))
    regions = planned(graph, registry_of(picky, kernel("cpu.one.v1")), preset("cpu"))[1]
    assert [len(r.spec.ops) for r in regions] == [1, 1]
    assert regions[0].steps[0].candidates == 2
