"""Selection (B6-B8, B13): reasons, scores, order, purity, tuning."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aicf import default_registry, select
from aicf.device.spec import PRESETS, preset
from aicf.errors import NoKernelError
from aicf.registry.select import Selector
from aicf.registry.variant import Reject

from .synthetic import kernel, region, registry_of

CPU = preset("cpu")
GPUS = sorted(name for name, spec in PRESETS.items() if spec.kind == "cuda")
# A region for each family of kernels, odd and even, empty and large
REGIONS = [
    ("relu", [(4, 7)]), ("relu", [(0, 3)]), ("add", [(1025,), (1025,)]), ("add", [(4, 1), (3, 1, 7)]),
    ("gemm", [(4, 7), (7, 5)]), ("gemm", [(1, 1), (1, 1)]), ("gemm", [(512, 512), (512, 512)]),
    ("gemm", [(64, 0), (0, 3), None, (3,)]), ("bias_add", [(4, 7), (7,)]), ("reduce_sum", [(33, 65)]),
    ("cross_entropy", [(8, 10), (8,)]), ("cross_entropy_grad", [(8, 10), *[(8,)] * 4]), ("adam_correction", [(), (), ()]),
]  # fmt: skip


def regions(device):
    for kind, shapes in REGIONS:
        integers = {"cross_entropy": 1, "cross_entropy_grad": 1, "adam_correction": 0}
        yield _typed(region, kind, shapes, integers.get(kind), device)


def _typed(make, kind, shapes, integer, device):
    if integer is None:
        return make(kind, *shapes, device=device)
    from aicf.ops.schema import schema_of
    from aicf.rows import RegionSpec
    from aicf.types import OpKind, TensorDesc, TensorSpec

    specs = [TensorSpec(s, "i64" if i == integer else "f32", device) for i, s in enumerate(shapes)]
    schema = schema_of(kind)
    results = schema.infer(specs, schema.pack({}))
    descs = [TensorDesc.dense(s) for s in specs]
    return RegionSpec.single(OpKind(kind), schema.pack({}), descs, [TensorDesc.dense(s) for s in results])


# --- supported and score ----------------------------------------------------------------------------------------------


def odd_length(r):
    return Reject("even", f"length {r.results[0].numel} is odd") if r.results[0].numel % 2 else None


@pytest.mark.spec("B7")
def test_supported_answers_no_with_the_condition_and_the_value_seen():
    paired = kernel("cpu.paired.v1", "relu", reject=odd_length)
    assert paired.supported(region("relu", (1024,)), CPU) is None
    reject = paired.supported(region("relu", (1025,)), CPU)
    assert (reject.condition, str(reject)) == ("even", "length 1025 is odd")


@pytest.mark.spec("B7")
def test_a_variant_of_another_device_or_architecture_says_so():
    hopper = kernel("cuda.wide.v1", "relu", needs=("sm_90a",))
    r = region("relu", (8,), device="cuda")
    assert hopper.supported(r, preset("h200")) is None
    assert str(hopper.supported(r, preset("a100"))) == "needs sm_90a; a100 is sm_80"
    assert str(hopper.supported(r, preset("b200"))) == "needs sm_90a; b200 is sm_100a"
    assert str(hopper.supported(r, CPU)) == "runs on cuda, not on cpu"
    ampere = kernel("cuda.async.v1", "relu", needs=("sm_80",))
    assert ampere.supported(r, preset("b200")) is None
    assert str(ampere.supported(r, preset("t4"))) == "needs sm_80 or newer; t4 is sm_75"


@pytest.mark.spec("B8")
@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_a_score_is_negative_exactly_where_the_variant_is_unsupported(device):
    spec, registry, seen = preset(device), default_registry(), set()
    for r in regions(spec.kind):
        for variant in registry.variants(r.kind):
            unsupported = variant.supported(r, spec) is not None
            assert (variant.score(r, spec) < 0) == unsupported, (variant.id, str(r))
            seen.add(unsupported)
    assert seen == {True, False}


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B8")
def test_the_highest_score_wins():
    slow, fast = kernel("cpu.slow.v1", us=3.0, priority=9), kernel("cpu.fast.v1", us=2.0)
    chosen = select(region("relu", (4, 7)), CPU, registry_of(slow, fast))
    assert [c.variant for c in chosen.ranked] == [fast, slow]
    assert chosen.kernel_id == "cpu.fast.v1"
    assert [c.score for c in chosen.ranked] == [v.score(chosen.region, CPU) for v in (fast, slow)]


@pytest.mark.spec("B8")
def test_ties_go_to_priority_then_to_the_name():
    ids = ["cpu.b.v1", "cpu.a.v1", "cpu.c.v1"]
    equal = [kernel(id) for id in ids]
    assert select(region("relu", (4,)), CPU, registry_of(*equal)).kernel_id == "cpu.a.v1"
    preferred = [*equal[:2], kernel("cpu.c.v1", priority=1)]
    assert select(region("relu", (4,)), CPU, registry_of(*preferred)).kernel_id == "cpu.c.v1"


@pytest.mark.spec("B8")
@given(order=st.permutations(range(6)), data=st.data())
def test_the_order_of_registration_never_matters(order, data):
    costs = data.draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=6, max_size=6))
    priorities = data.draw(st.lists(st.integers(0, 1), min_size=6, max_size=6))
    no = data.draw(st.lists(st.booleans(), min_size=6, max_size=6).filter(lambda x: not all(x)))
    made = [
        kernel(
            f"cpu.k{i}.v1",
            us=costs[i],
            priority=priorities[i],
            reject=odd_length if no[i] else lambda r: None,
        )
        for i in range(6)
    ]
    r = region("relu", (7,))
    straight, permuted = (
        select(r, CPU, registry_of(*made)),
        select(r, CPU, registry_of(*(made[i] for i in order))),
    )
    assert straight == permuted
    takers = [i for i in range(6) if not no[i]]
    best = min(takers, key=lambda i: (costs[i], -priorities[i], i))
    assert straight.kernel_id == f"cpu.k{best}.v1"


@pytest.mark.spec("B8")
@pytest.mark.parametrize("device", ["cpu", "t4", "h200"])
def test_the_real_registry_permuted_gives_identical_selections(device):
    spec, variants = preset(device), list(default_registry())
    shuffled = variants.copy()
    random.Random(1).shuffle(shuffled)
    assert [v.id for v in shuffled] != [v.id for v in variants]
    for r in regions(spec.kind):
        assert select(r, spec, registry_of(*shuffled)) == select(r, spec, registry_of(*variants))


@pytest.mark.spec("B8")
def test_a_small_n_chooses_the_plain_kernel_over_the_vectorised_one():
    """The vectorised kernel starts later and runs four times faster: they meet where n / 1000 = 2 + n / 4000."""
    plain = kernel("cpu.plain.v1", "relu", us=lambda r: 1 + r.results[0].numel / 1000)
    vectorised = kernel("cpu.vectorised.v1", "relu", us=lambda r: 3 + r.results[0].numel / 4000, priority=10)
    registry = registry_of(plain, vectorised)
    chosen = {
        n: select(region("relu", (n,)), CPU, registry).kernel_id for n in (1, 1000, 2666, 2667, 100_000)
    }
    assert [id.split(".")[1] for id in chosen.values()] == ["plain"] * 3 + ["vectorised"] * 2


@pytest.mark.spec("B7")
def test_no_kernel_lists_each_variant_with_its_reason():
    registry = registry_of(
        kernel("cpu.paired.v1", "relu", reject=odd_length),
        kernel("cpu.small.v1", "relu", reject=lambda r: Reject("size", "7 is over 4")),
        kernel("cpu.other.v1", "tanh"),
    )
    with pytest.raises(NoKernelError, match=r"no kernel takes relu\(f32\[7\]\) -> f32\[7\] on cpu") as error:
        select(region("relu", (7,)), CPU, registry)
    assert error.value.details == ("cpu.paired.v1: length 7 is odd", "cpu.small.v1: 7 is over 4")
    with pytest.raises(NoKernelError, match="no variant for sigmoid on cpu is registered"):
        select(region("sigmoid", (7,)), CPU, registry)


@pytest.mark.spec("B8")
def test_a_kernel_for_a_unit_that_the_device_lacks_is_never_the_best():
    from aicf.registry.cost import roofline

    assert roofline(preset("t4"), bytes=1, flops=1e6, rate="tf32", blocks=7).us == float("inf")
    never = kernel("cuda.a.v1", us=float("inf"), priority=5)
    chosen = select(
        region("relu", (7,), device="cuda"), preset("t4"), registry_of(never, kernel("cuda.b.v1"))
    )
    assert chosen.kernel_id == "cuda.b.v1"
    assert chosen.ranked[1].score == 0.0


# --- purity and tuning ------------------------------------------------------------------------------------------------


@pytest.mark.spec("B13", "F6")
@pytest.mark.parametrize("device", ["cpu", *GPUS])
def test_the_same_question_has_the_same_answer_for_a_device_that_is_not_here(device):
    spec, registry = preset(device), default_registry()
    for r in regions(spec.kind):
        once = select(r, spec, registry)
        assert select(r, spec, registry) == once == Selector(registry, spec)(r)
        assert {c.variant.device for c in once.ranked} == {spec.kind}


@pytest.mark.spec("A7")
def test_a_measured_time_replaces_the_prediction():
    r = region("relu", (4, 7))
    registry = registry_of(kernel("cpu.a.v1", us=1.0), kernel("cpu.b.v1", us=2.0))
    assert select(r, CPU, registry, {(r.key, "cpu.a.v1"): 5.0}).kernel_id == "cpu.b.v1"
    assert select(r, CPU, registry, {(r.key, "cpu.b.v1"): 0.5}).kernel_id == "cpu.b.v1"
    other = region("relu", (4, 8))
    assert select(other, CPU, registry, {(r.key, "cpu.b.v1"): 0.5}).kernel_id == "cpu.a.v1"
    tuned = select(r, CPU, registry, {(r.key, "cpu.b.v1"): 0.5})
    assert dict(tuned.chosen.cost.terms) == {"measured": 0.5}


@pytest.mark.spec("A7")
def test_tuning_data_never_makes_an_unsupported_variant_eligible():
    r = region("relu", (7,))
    registry = registry_of(kernel("cpu.a.v1"), kernel("cpu.paired.v1", reject=odd_length))
    chosen = select(r, CPU, registry, {(r.key, "cpu.paired.v1"): 1e-3})
    assert chosen.kernel_id == "cpu.a.v1"
    assert [str(x.reject) for x in chosen.rejected] == ["length 7 is odd"]


@pytest.mark.spec("B12")
def test_the_trace_names_the_runner_up_and_why_it_lost():
    registry = registry_of(
        kernel("cpu.a.v1", us=1.0), kernel("cpu.b.v1", us=2.0), kernel("cpu.c.v1", reject=odd_length)
    )
    chosen = select(region("relu", (7,)), CPU, registry)
    text = str(chosen)
    for said in ("cpu.a.v1", "cpu.b.v1", "+1 us: made up +1", "length 7 is odd", "score 1,000,000"):
        assert said in text
    data = chosen.to_json()
    assert (data["chosen"], data["score"]) == ("cpu.a.v1", 1e6)
    assert [c["id"] for c in data["candidates"]] == ["cpu.a.v1", "cpu.b.v1"]
    assert data["rejected"] == [
        {"id": "cpu.c.v1", "condition": "even", "reason": "length 7 is odd", "origin": "aicf"}
    ]
    tied = select(region("relu", (7,)), CPU, registry_of(kernel("cpu.a.v1"), kernel("cpu.b.v1")))
    assert "equal time; decided by name" in str(tied)
