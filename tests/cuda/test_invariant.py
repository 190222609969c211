"""Invariant rows (docs/determinism.md): each op that adds up has one numeric class, whatever the number of rows; its price; what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from batched_models import bert, gpt2, llama
from draws.seeds import rng
from kernel_cases import VARIANTS, attention, desc, fused, gemm, region

import aicf
from aicf import nn
from aicf.cpu_kernels import blas
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.errors import AicfError, NoKernelError, VerifyError
from aicf.files import Bad
from aicf.registry import invariant
from aicf.registry.checks import at_most
from aicf.registry.numerics import NumericClass
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector
from aicf.registry.variant import Reject
from aicf.rows import RegionSpec
from aicf.rows.region_file import REGION, region_of
from aicf.types import DType, bf16, f16, f32

DEVICES = "h200", "a100", "l4"
Make = Callable[[int], RegionSpec]


def selector(device: str = "h200", registry: KernelRegistry | None = None) -> Selector:
    return Selector(registry or default_registry(), preset(device), invariant=True)


def as_invariant(r: RegionSpec) -> RegionSpec:
    return replace(r, strict=True, invariant=True)


def drawn(draw: np.random.Generator) -> Make:
    """One op that adds up, or a product with maps behind it, by its number of rows."""
    which, dtype = int(draw.integers(8)), (bf16, f16, f32)[draw.integers(3)]
    n, k = (8 * int(draw.integers(2, 200)) for _ in range(2))
    if which <= 1:
        k += int(draw.integers(8)) * (draw.random() < 0.2)
        how = {"trans_b": bool(draw.random() < 0.5), "bias": n if draw.random() < 0.5 else None}
        return lambda m: gemm(m, n, k, dtype=dtype, **how)
    if which == 2:
        b = desc((n,), dtype)

        def mapped(m: int) -> RegionSpec:
            given = {"x": desc((m, k), dtype), "w": desc((k, n), dtype), "b": b}
            return fused(given, ("y", "gemm", "x", "w"), ("z", "bias_add", "y", "b"), ("g", "gelu", "z"))

        return mapped
    if which == 3:
        return lambda m: region("gemm", desc((m, 3, 16, k), dtype), desc((m, 3, k, 32), dtype))
    if which == 4:
        return lambda m: region("softmax", desc((m, 2, n), dtype), axis=2)
    if which == 5:
        w = desc((n,), dtype)
        return lambda m: region("layer_norm", desc((m, n), dtype), w, w)
    if which == 6:
        return lambda m: region("reduce_mean", desc((m, n), dtype), axes=(1,))
    heads, queries, d = int(draw.integers(1, 9)), int(draw.integers(1, 100)), 8 * int(draw.integers(2, 16))
    q = (heads, queries, d)
    return lambda m: region("attention", *(desc((m, *q), dtype) for _ in range(3)), causal=queries % 2 == 0)


def core_of(r: RegionSpec) -> RegionSpec:
    return r.only(r.ops[0])


@pytest.mark.spec("A15", "B13")
def test_an_op_has_one_class_whatever_the_number_of_rows(request):
    """Of drawn ops at drawn numbers of rows: the class is one, and whatever kernel is chosen has it."""
    draw, chosen = rng(request.node.nodeid), set()
    for _ in range(40):
        make, device = drawn(draw), str(draw.choice(DEVICES))
        counts = [1, *(int(2 ** draw.uniform(0, 12)) for _ in range(3))]
        classes = set()
        for count in counts:
            choose, r = selector(device), as_invariant(make(count))
            wanted = invariant.row_class(core_of(r), choose)
            assert isinstance(wanted, NumericClass), f"{r} on {device}: {wanted}"
            kernel = choose(r).chosen.variant
            assert kernel.numeric_class(r, preset(device)) == wanted, f"{r} on {device}: {kernel.id}"
            classes.add(wanted)
            chosen.add(kernel.kernel)
        assert len(classes) == 1, f"{make(counts[0])} on {device} at {counts} rows: {classes}"
    assert {
        "cuda.gemm_wgmma.v1",
        "cuda.gemm_mma.v1",
        "cuda.rows_resident.v2",
        "cuda.reduce_rows.v2",
    } <= chosen


@pytest.mark.spec("A15", "B13")
def test_attention_has_one_class_whatever_the_numbers_of_queries_and_keys(request):
    """Of 12 drawn attentions, causal or not: prompts, whole sequences, and one query and several over a cache of any length."""
    draw = rng(request.node.nodeid)
    for _ in range(12):
        heads, group, d = (int(draw.choice(sizes)) for sizes in ([1, 2, 8, 12], [1, 1, 4], [16, 64, 72, 128]))
        dtype, device, causal = (
            (bf16, f16, f32)[draw.integers(3)],
            str(draw.choice(DEVICES)),
            draw.random() < 0.7,
        )
        attrs = {
            "causal": bool(causal),
            "window": int(draw.choice([0, 0, 100])),
            "softcap": float(draw.choice([0, 0, 20])),
        }
        choose, classes = selector(device), set()
        for queries in (1, 1, int(draw.integers(2, 9)), int(2 ** draw.uniform(0, 12))):
            batch, keys = int(2 ** draw.uniform(0, 8)), queries + int(draw.choice([0, 1, 300, 5000]))
            q, k = desc((batch, heads * group, queries, d), dtype), desc((batch, heads, keys, d), dtype)
            ragged = [None, desc((batch,), DType.i32)] if causal and keys > queries else []
            r = as_invariant(region("attention", q, k, k, *ragged, **attrs))
            wanted = invariant.row_class(r, selector(device) if draw.random() < 0.3 else choose)
            assert isinstance(wanted, NumericClass), f"{r} on {device}: {wanted}"
            assert choose(r).chosen.variant.numeric_class(r, preset(device)) == wanted, f"{r} on {device}"
            classes.add(wanted)
        assert len(classes) == 1, f"{r} on {device}: {classes}"


@pytest.mark.spec("A15", "B13")
def test_the_class_is_that_of_least_greatest_price(request):
    """Recomputed from all kernels that take the op: no class that reaches all numbers of rows has a smaller greatest ratio."""
    draw = rng(request.node.nodeid)
    for _ in range(6):
        n, k = (64 * int(draw.integers(2, 60)) for _ in range(2))
        asked = [as_invariant(gemm(m, n, k, dtype=bf16, trans_b=True)) for m in invariant.ROWS]
        free = [Selector(default_registry(), preset("h200"))(gemm(m, n, k, dtype=bf16, trans_b=True)).chosen.us for m in invariant.ROWS]  # fmt: skip
        greatest: dict[str, list[float]] = {}
        for r, least in zip(asked, free):
            best: dict[str, float] = {}
            for v in default_registry().variants(r.kind):
                if v.supported(r, preset("h200")) is None:
                    numeric = v.numeric_class(r, preset("h200"))
                    if isinstance(numeric, NumericClass):
                        us = v.predicted(r, preset("h200"))[1]
                        best[str(numeric)] = min(us, best.get(str(numeric), math.inf))
            for name, us in best.items():
                greatest.setdefault(name, []).append(us / least)
        ratios = {name: max(each) for name, each in greatest.items() if len(each) == len(asked)}
        found = str(invariant.row_class(asked[2], selector()))
        assert ratios[found] == pytest.approx(min(ratios.values())), f"{asked[0]}: {found} of {ratios}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", (gpt2, llama, bert))
@pytest.mark.spec("A15", "B13", "C12")
def test_each_sum_of_a_model_has_one_class_in_all_batches(make, request):
    """Of every batch, by the order of the ops, on drawn devices: what is fused may differ, the classes of sums may not."""
    draw = rng(request.node.nodeid)
    device, policy = str(draw.choice(DEVICES)), str(draw.choice(["bf16", "f16", "f32"]))
    seen: dict[int, list[str]] = {}
    for batch in (1, 3, int(draw.integers(4, 300))):
        made = aicf.explain_for(make(batch), device, policy=policy, invariant=True)
        seen[batch] = []
        for r in made.regions:
            numeric = r.selection.chosen.variant.numeric_class(r.spec, preset(device))
            assert not isinstance(numeric, Reject), f"{r.spec}: {numeric}"
            seen[batch] += [str(numeric)] if numeric.order else []
    assert len(set(map(tuple, seen.values()))) == 1, f"{make.__name__} on {device} in {policy}: {seen}"


# --- rows of a region -----------------------------------------------------------------------------------------------------


def test_regions_have_the_number_of_rows_that_is_asked_for():
    """By hand: which axes are rows of each op."""
    i64, mask = DType.i64, desc((4, 1, 1, 7), DType.bool)
    q = desc((4, 2, 5, 8), f16)
    k, lengths = desc((4, 2, 7, 8), f16), desc((4,), DType.i32)
    for r, shapes in (
        (gemm(6, 8, 16, c=True, bias=8), [(9, 16), (16, 8), (9, 8), (8,)]),
        (gemm(6, 8, 16, trans_a=True, bias=6), [(16, 9), (16, 8), (9,)]),
        (region("gemm", desc((2, 6, 16)), desc((16, 8))), [(9, 16), (16, 8)]),
        (region("gemm", desc((2, 6, 16)), desc((2, 16, 8))), [(8, 9, 16), (8, 16, 8)]),
        (region("gemm", desc((6, 16)), desc((2, 16, 8))), [(9, 16), (8, 16, 8)]),
        (region("softmax", desc((2, 3, 8)), axis=2), [(9, 1, 8)]),
        (region("softmax", desc((2, 3, 8)), axis=1), [(9, 3, 8)]),
        (region("layer_norm", desc((2, 3, 8)), desc((8,)), desc((8,))), [(9, 1, 8), (8,), (8,)]),
        (region("cross_entropy", desc((8, 8)), desc((8,), i64)), [(9, 8), (9,)]),
        (region("reduce_sum", desc((2, 3, 8)), axes=(0, 1)), [(2, 3, 8)]),
        (region("attention", q, k, k, mask), [(1, 2, 9, 8), (1, 2, 9, 8), (1, 2, 9, 8), (1, 1, 1, 9)]),
        (region("attention", q, k, k, None, lengths), [*[(1, 2, 9, 8)] * 3, (1,)]),
        (region("attention", q, k, k, None, lengths, causal=True), [(1, 2, 9, 8)] * 3),
    ):  # fmt: skip
        made = invariant.resized(as_invariant(r), 9)
        assert isinstance(made, RegionSpec), f"{r}: {made}"
        assert [t.shape for t in made.operands] == shapes, str(r)
        assert made.invariant and made.strict and made.attrs == r.attrs
    unknown = invariant.resized(region("cumsum", desc((4, 8)), axis=1), 9)
    assert isinstance(unknown, Reject) and "rows is not known" in unknown.reason


def test_strides_and_alignment_have_no_part_in_the_class(request):
    """A view of a greater tensor gets the class of a dense one, or no kernel."""
    draw = rng(request.node.nodeid)
    for _ in range(5):
        n = 8 * int(draw.integers(8, 100))
        dense = as_invariant(region("softmax", desc((5, n), f16), axis=1))
        x = replace(dense.tensors[0], stride=(n + int(draw.integers(1, 9)), 1), alignment=2)
        strided, choose = replace(dense, tensors=(x, dense.tensors[1])), selector()
        assert invariant.row_class(strided, choose) == invariant.row_class(dense, choose)


# --- what is refused ------------------------------------------------------------------------------------------------------


def limited(most: int) -> KernelRegistry:
    """A registry with two kernels for products: one for so many rows at most, and a slower one without a class."""
    naive = VARIANTS["cuda.gemm_naive.v1"]

    def accepts(r: RegionSpec):
        yield at_most("rows", r.tensors[0].shape[0], most)
        yield from naive.accepts(r)

    registry = KernelRegistry()
    registry.add(replace(naive, id="cuda.gemm_few.v1", accepts=accepts, priority=1))
    registry.add(replace(naive, id="cuda.gemm_many.v1", numerics=None))
    return registry


@pytest.mark.spec("B12")
def test_a_refusal_names_the_op_the_classes_and_where_they_end(request):
    draw = rng(request.node.nodeid)
    for most, first in ((3, 17), (64, 257), (int(draw.integers(300, 1000)), 1024)):
        r = as_invariant(gemm(2, 32, int(draw.integers(8, 40))))
        with pytest.raises(NoKernelError) as error:
            selector(registry=limited(most))(r)
        told = str(error.value)
        for part in ("no numeric class of gemm", "1 to 4096 rows", f"no kernel for {first}", "fma in f32", "invariant=True"):  # fmt: skip
            assert part in told, told
        assert Selector(limited(most), preset("h200"))(gemm(2, 32, 16)).kernel_id == "cuda.gemm_few.v1"


def test_kernels_without_a_class_are_refused_with_their_reason():
    plain = replace(VARIANTS["cuda.gemm_naive.v1"], numerics=None)
    registry = KernelRegistry()
    registry.add(plain)
    with pytest.raises(NoKernelError, match="declares no numeric class"):
        selector(registry=registry)(as_invariant(gemm(4, 32, 16)))
    told = aicf.explain_for(gpt2(64), "h200", policy="bf16", invariant=True).verbose()
    rejected = [r for one in told.regions for r in one.selection.rejected]
    assert any("is of class" in r.reject.reason for r in rejected)
    assert any("divided" in r.reject.reason or "number of rows" in r.reject.reason for r in rejected)


@pytest.mark.sample(1)
@pytest.mark.parametrize("how", ({"invariant": True}, {"numerics": "strict"}))
def test_answers_say_which_class_a_kernel_would_need(how, request):
    """Of a drawn kernel that accepts a region, but is not of its class, or not the variant that the op alone runs."""
    draw = rng(request.node.nodeid)
    model = nn.Model({"x": aicf.TensorSpec(("batch", 256))}, batch=int(draw.integers(1, 300)))
    model.add(nn.Linear(256, 128)).add(nn.GELU())
    made = aicf.explain_for(model, "h200", policy="bf16", **how)
    chosen = {r.kernel_id for r in made.regions}
    other = draw.choice(
        [v for v in VARIANTS if v.startswith("cuda.gemm_wgmma.") and v not in chosen and " " not in v]
    )
    ((_, answer),) = made.want(str(other)).answers
    if answer.reject is not None and "invariant" in how:
        assert answer.reject.condition in ("numerics", "m", "n")
    elif answer.reject is not None:
        assert answer.reject.condition in ("strict", "m", "n")


@pytest.mark.parametrize(("how", "part"), (({"numerics": "fused"}, 'numerics="fused"'),))
def test_what_contradicts_invariant_rows_is_an_error(how, part):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 8))}, batch=2).add(nn.Linear(8, 4))
    for ask in (
        lambda: aicf.compile(model, device="cpu", invariant=True, **how),
        lambda: aicf.explain_for(model, "h200", invariant=True, **how),
        lambda: aicf.explain_over(model, "h200", "1..4", invariant=True, **how),
    ):
        with pytest.raises(VerifyError, match=part):
            ask()


# --- the price ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12")
def test_the_price_is_the_ratio_of_predictions(request):
    """Of each region, and of the plan: against the free choice, asked of other selectors."""
    draw = rng(request.node.nodeid)
    make, batch = (gpt2, llama, bert)[draw.integers(3)], int(draw.integers(1, 200))
    made = aicf.explain_for(make(batch), "h200", policy="bf16", invariant=True)
    other = aicf.explain_for(make(batch), "h200", policy="bf16")
    data, free = made.to_json(), Selector(default_registry(), preset("h200"))
    assert data["numerics"] == "invariant" and other.price is None and "price" not in other.to_json()
    for r, told in zip(made.regions, data["regions"]):
        if not r.spec.invariant:
            assert "free" not in told and r.spec.signature == "check_indices"
            continue
        best = free(replace(r.spec, strict=False, invariant=False)).chosen
        assert told["free"]["kernel"] == best.variant.id
        assert told["free"]["ratio"] == pytest.approx(r.selection.chosen.us / best.us)
    assert data["price"]["free_us"] == pytest.approx(other.predicted_us)
    assert data["price"]["ratio"] == pytest.approx(made.predicted_us / other.predicted_us)
    percent = f"{round(100 * (data['price']['ratio'] - 1)) + 0:+d} %"
    assert f"invariant rows: {percent} against" in str(made)
    priced = [n for n, told in enumerate(data["regions"]) if "free" in told]
    dearest = max(priced, key=lambda n: data["regions"][n]["free"]["ratio"])
    assert "price     +" in str(made.region(dearest)) and "numerics  " in str(made.region(dearest))


def test_sweeps_have_both_times(request):
    """At each size that was made: the time, and that without invariant rows, as explanations have them."""
    size = int(rng(request.node.nodeid).integers(2, 60))
    swept = aicf.explain_over(gpt2(1), "h200", [1, size], policy="bf16", invariant=True)
    for point in swept.to_json()["points"]:
        one = aicf.explain_for(gpt2(point["size"]), "h200", policy="bf16", invariant=True).to_json()["price"]
        assert [point["us"], point["free_us"]] == pytest.approx([one["us"], one["free_us"]])
    told = str(swept)
    assert "price" in told and "· without invariant rows" in told and "without invariant rows" in swept.svg()
    plain = aicf.explain_over(gpt2(1), "h200", [size], policy="bf16")
    assert "invariant" not in str(plain) and "free_us" not in plain.to_json()["points"][0]


def test_the_loss_is_free_and_the_model_is_not(request):
    """In every mode, of drawn devices: what the results need is invariant, the loss and gradients are not."""
    draw = rng(request.node.nodeid)
    device, batch = str(draw.choice([*DEVICES, "cpu"])), int(draw.integers(1, 40))
    loss, optimizer = nn.SoftmaxCrossEntropy(), nn.SGD(0.1)
    for mode, more in (("infer", {}), ("grad", {}), ("train", {"optimizer": optimizer})):
        made = aicf.explain_for(gpt2(batch), device, mode, loss=loss, invariant=True, **more)
        kinds = {flag: {op.kind.name for r in made.regions if r.spec.invariant is flag for op in r.spec.ops} for flag in (True, False)}  # fmt: skip
        assert {"layer_norm", "attention"} <= kinds[True] and "attention" not in kinds[False], mode
        assert not any("grad" in kind or "cross_entropy" in kind for kind in kinds[True]), mode
        assert all(r.spec.strict is r.spec.invariant for r in made.regions)


# --- where it is said -----------------------------------------------------------------------------------------------------


def test_regions_in_files_say_that_they_are_invariant():
    r = as_invariant(gemm(4, 8, 16))
    data = r.to_json()
    REGION(data, "region")
    assert region_of(data, "region") == r != region_of(gemm(4, 8, 16).to_json(), "region")
    assert r.canonical.invariant and r.key != replace(r, invariant=False).key
    with pytest.raises(Bad):
        region_of({name: value for name, value in data.items() if name != "strict"}, "region")


@pytest.mark.spec("A15")
def test_a_class_does_not_depend_on_what_was_asked_before(request):
    """Drawn masks and biases, by key and by query, of one query and of several: each has one class in every order of questions."""
    draw = rng(request.node.nodeid)
    for _ in range(3):
        heads, d, n = int(draw.integers(1, 9)), 8 * int(draw.integers(2, 17)), int(draw.integers(2, 300))
        causal, kind = bool(draw.random() < 0.5), str(draw.choice(["mask", "bias"]))
        of_scores = {"by key": (2, 1, 1, n), "by query": (1, 1, n, n), "of one query": (1, 1, 1, n)}
        asked = []
        for name, shape in of_scores.items():
            queries = (2, heads, 1 if name == "of one query" else n, d)
            r = attention(queries, (2, heads, n, d), dtype=bf16, causal=causal, **{kind: shape})
            asked.append((name, replace(r, strict=True, invariant=True)))
        found: dict[str, set[str]] = {}
        for order in (asked, asked[::-1], *([one] for one in asked)):
            selector = Selector(default_registry(), preset("h200"), invariant=True, strict=True)
            for name, r in order:
                found.setdefault(name, set()).add(str(invariant.row_class(r, selector)))
        assert all(len(classes) == 1 for classes in found.values()), (heads, d, n, causal, kind, found)
        assert found["by query"] == found["of one query"], (heads, d, n, causal, kind, found)


@pytest.mark.spec("A15")
def test_calls_of_ops_take_it_on_the_cpu(request):
    """Rows of drawn softmaxes, alone and among others; what has no class is an error, and not without it."""
    draw = rng(request.node.nodeid)
    for _ in range(5):
        x = draw.normal(size=(int(draw.integers(2, 30)), int(draw.integers(2, 300)))).astype(np.float32)
        every, one, at = np.empty_like(x), np.empty_like(x[:1]), int(draw.integers(len(x)))
        found = aicf.op_call("softmax", [x], [every], {"axis": 1}, invariant=True)
        aicf.op_call("softmax", [x[at : at + 1].copy()], [one], {"axis": 1}, invariant=True)
        assert every[at].tobytes() == one.tobytes() and found.region.invariant
        assert not aicf.op_call("softmax", [x], [every], {"axis": 1}).region.invariant


def test_options_of_jax_follow():
    jax = pytest.importorskip("jax")
    from aicf.jax import jit

    with pytest.raises(AicfError, match="fallback"):
        jit(lambda x: x, invariant=True, fallback="jax")
    softmax = jit(lambda x: jax.nn.softmax(x, axis=-1), invariant=True, device="cpu")
    x = np.random.default_rng(1).normal(size=(9, 40)).astype(np.float32)
    assert np.asarray(softmax(x))[4].tobytes() == np.asarray(softmax(x[4:5]))[0].tobytes()
    assert all(r.spec.invariant for r in softmax.explain(x).regions)


@pytest.mark.spec("A15")
def test_weights_of_jax_may_be_arguments(request):
    """Samples as columns of a product with an argument that is said to be weights: drawn sizes, static arguments and trees before it."""
    pytest.importorskip("jax")
    from aicf.jax import jit

    if blas.blocks_differ():
        pytest.skip(blas.blocks_differ())
    draw = rng(request.node.nodeid)
    for n in range(4):
        k, out, most = (int(x) for x in draw.integers(3, 90, 3))
        params = {
            "w": draw.normal(size=(k, out)).astype(np.float32),
            "b": draw.normal(size=out).astype(np.float32),
        }
        x = draw.normal(size=(most, k)).astype(np.float32)

        def layer(scale, x, params):
            return (params["w"].T @ x.T + scale * params["b"][:, None]).T

        f = jit(layer, static_argnums=0, weights_argnums=(2, -1)[n % 2], invariant=True, device="cpu")
        rows, at = np.asarray(f(0.5, x, params)), int(draw.integers(most))
        np.testing.assert_allclose(rows, x @ params["w"] + 0.5 * params["b"], rtol=1e-4, atol=1e-4)
        assert rows[at].tobytes() == np.asarray(f(0.5, x[at : at + 1], params))[0].tobytes(), (
            k,
            out,
            most,
            at,
        )
