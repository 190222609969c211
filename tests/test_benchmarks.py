"""The benchmark harness: what it writes, what it refuses, when it stops. The numbers themselves are nobody's oracle."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from draws.seeds import rng, run_seed

import aicf
from aicf.calibrate import published
from aicf.device.runtime import cuda_missing
from aicf.device.spec import preset
from aicf.generation.decoding import Decode
from aicf.graph.compile import explain_for
from aicf.ir import Role

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from benchmarks import harness, report, results, sides
from benchmarks.__main__ import main
from benchmarks.gpts import GPT2, GPTS
from benchmarks.harness import Bench, Case, NotHere, Suite, WrongResult, verify
from benchmarks.stats import Stats, host, interleave
from benchmarks.suites import SUITES, attention, bits, decode, gemm, lesson, regret, startup, weights
from benchmarks.suites import gpt as gpt_suite
from benchmarks.suites.gemm import Problem

ROOT = Path(__file__).parents[1]


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def suite(cases: list[Case], budget: float = 10.0) -> Suite:
    return Suite("fake", "cases made up for a test", budget, lambda bench: cases)


def good(name: str, seconds: float = 0.0, clock: Clock | None = None, takes: float = 0.0) -> Case:
    def measure(bench):
        if clock:
            clock.time += takes
        return [results.row(name, "us", Stats(2.0), "peer", Stats(3.0))]

    return Case(name, measure, seconds)


def bad(name: str, error: Exception) -> Case:
    def measure(bench):
        raise error
        yield

    return Case(name, measure)


def silent(text: str) -> None:
    pass


# --- statistics -------------------------------------------------------------------------------------------------------


def test_median_and_quartiles():
    found = Stats.of([9.0, 1.0, 2.0, 3.0, 4.0])
    assert (found.median, found.iqr, found.n) == (3.0, 2.0, 5)
    assert found.spread == pytest.approx(2 / 3)
    assert Stats.of([7.0]) == Stats(7.0, 0.0, 1)
    assert Stats(2e-6, 1e-6).per(1e-6) == Stats(2.0, 1.0)
    assert Stats(0.5, 0.1).rate(10.0).median == 20.0
    assert Stats(0.5, 0.1).rate(10.0).spread == pytest.approx(0.2)


def test_sides_are_taken_in_turn_and_warmed():
    order: list[str] = []

    def side(name: str, values: list[float]):
        def sample() -> float:
            order.append(name)
            return values.pop(0)

        return sample

    found = interleave({"a": side("a", [50, 1, 2, 3]), "b": side("b", [50, 5, 6, 7])}, rounds=3)
    assert "".join(order) == "ababbaab", "there and back"
    assert (found["a"].median, found["b"].median) == (2, 6), "the first of each does not count"


def test_a_comparison_stops_at_its_deadline_with_a_few_samples_of_each():
    clock = Clock()

    def sample() -> float:
        clock.time += 1
        return 1.0

    found = interleave({"a": sample, "b": sample}, rounds=100, deadline=clock() + 12, now=clock)
    assert found["a"].n == found["b"].n == 5
    found = interleave({"a": sample, "b": sample}, rounds=100, deadline=clock() - 1, now=clock)
    assert found["a"].n == found["b"].n == 3


def test_host_time_leaves_the_wait_out():
    waits = []
    assert host(lambda: None, 10, lambda: waits.append(1))() < 0.1
    assert len(waits) == 2, "before the clock starts and after it stops"


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit, aicf, peer, want", [
    ("us", 2.0, 3.0, 1.5), ("us", 3.0, 1.5, 0.5), ("s", 1.0, 4.0, 4.0),
    ("GB/s", 3.0, 2.0, 1.5), ("GB/s", 1.0, 2.0, 0.5), ("TFLOP/s", 6.0, 2.0, 3.0), ("%", 98.0, 49.0, 2.0),
])  # fmt: skip
def test_a_ratio_above_one_is_better_whatever_the_unit(unit, aicf, peer, want):
    row = results.row("c", unit, Stats(aicf), "p", Stats(peer))
    assert row["ratio"] == want
    assert (row["aicf"], row["peer"], row["peer_name"]) == (aicf, peer, "p")


def test_verify():
    verify("x", [1.0, np.nan, -2.0], [1.0, np.nan, -2.0001], 1e-3)
    for got, want in (
        ([1.0], [1.1]),
        ([np.nan], [1.0]),
        ([1.0], [np.nan]),
        ([[1.0]], [1.0]),
        ([np.inf], [1.0]),
    ):
        with pytest.raises(WrongResult, match="x: "):
            verify("x", got, want, 1e-3)


# --- running ----------------------------------------------------------------------------------------------------------


def check_schema(data: dict) -> None:
    assert set(data) == {"meta", "cases", "left_out"}
    assert {"gpu", "driver", "versions", "kernels_hash", "commit", "date"} <= set(data["meta"])
    assert {"python", "aicf", "numpy"} <= set(data["meta"]["versions"])
    for row in data["cases"]:
        more = {"spread", "n", "note", "instances", "failed", "predicted", "bound", "limit", "kernels"}
        assert set(results.KEYS) <= set(row) <= {*results.KEYS, *more}
        if "failed" in row:
            continue
        assert isinstance(row["case"], str) and isinstance(row["unit"], str)
        assert row["aicf"] > 0 or (row["unit"] == "%" and row["aicf"] == 0)
        with_peer = row["peer_name"] is not None
        assert (row["peer"] is not None) == (row["ratio"] is not None) == with_peer
        assert set(row["spread"]) == ({"aicf", "peer"} if with_peer else {"aicf"})
        assert set(row.get("kernels", ())) <= set(data["meta"]["digests"])
    for left in data["left_out"]:
        assert set(left) == {"case", "why"}


@pytest.mark.parametrize(
    "name, peer", [("elementwise", "numpy.add(out=)"), ("mlp", "NumPy"), ("overhead", "numpy.add(out=)")]
)
def test_a_tiny_run_on_the_cpu(name, peer, tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_COMMIT", "abc123")
    assert main([name, "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("cpu-*/*.json")
    assert path.name == f"{name}.json"
    data = json.loads(path.read_text())
    check_schema(data)
    assert data["cases"] and all(row["peer_name"] == peer for row in data["cases"])
    assert data["meta"]["commit"] == "abc123"
    assert data["meta"]["tiny"] is True
    assert data["meta"]["driver"] is None
    assert data["meta"]["kernels_hash"] == results.kernels_hash("cpu")
    assert all(row["kernels"] for row in data["cases"]), "every row tells which kernels ran"


def test_a_tiny_gpt_on_the_cpu(tmp_path):
    assert main(["gpt", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    data = json.loads(next(tmp_path.glob("cpu-*/gpt.json")).read_text())
    check_schema(data)
    assert {row["unit"] for row in data["cases"]} == {"ms", "tokens/s"}
    assert {row["peer_name"] for row in data["cases"]} <= {None, "torch eager"}, "where PyTorch is installed"
    assert all(row["kernels"] for row in data["cases"])


@pytest.mark.spec("A15")
def test_rows_of_an_invariant_model_have_the_bits_that_they_have_alone(tmp_path, monkeypatch):
    """On the CPU; and a row with other bits fails."""
    assert main(["bits", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    data = json.loads(next(tmp_path.glob("cpu-*/bits.json")).read_text())
    check_schema(data)
    assert [row["note"].split(" ")[0] for row in data["cases"]] == ["3", "6", "51", "1"]
    bits_of = bits._bits

    def last_differs(program, feed, replay=False):
        found = bits_of(program, feed, replay)
        return [*found[:-1], found[-1][::-1]] if len(found) > 1 else found

    monkeypatch.setattr(bits, "_bits", last_differs)
    case, _ = SUITES["bits"].cases(Bench("cpu", tiny=True))
    with pytest.raises(WrongResult, match="rows have other bits than alone, first index"):
        [*case.measure(Bench("cpu", tiny=True))]


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["attention", "linear_loss", "decode"])
def test_a_tiny_run_beside_pytorch_if_it_is_there(name, tmp_path):
    assert main([name, "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 0
    data = json.loads(next(tmp_path.glob(f"cpu-*/{name}.json")).read_text())
    check_schema(data)
    assert data["cases"] and {row["peer_name"] for row in data["cases"]} <= {None, "torch eager"}
    assert all(row["kernels"] for row in data["cases"])


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "model, weights, cache",
    [(decode.MODELS[0], 123.6e6, 37.7e6), (decode.MODELS[1], 1235.8e6, 33.6e6)],
    ids=["GPT-2", "Llama"],
)
def test_what_a_token_reads(model, weights, cache):
    """bf16 weights, but for the table of places, and keys and values of 1024 places."""
    plan = explain_for(Decode(model.model(), 1, model.length), "h200").plan
    params = {s.name: np.empty(s.spec.shape, np.int16) for s in plan.externals(Role.param)}
    assert all(s.spec.dtype.itemsize == 2 for s in plan.externals(Role.param))
    assert model.nbytes(params) == pytest.approx(2 * weights + cache, rel=1e-3)
    kept = sum(
        s.spec.nbytes
        for s in plan.externals(Role.state)
        if s.name.startswith(("sequences.keys", "sequences.values"))
    )
    assert kept == pytest.approx(cache, rel=2e-3)


def test_a_token_is_checked_by_the_logits_behind_the_tokens_before_it():
    model, prompt = decode.SMALL[0], np.arange(5)
    logits = np.random.default_rng(3).normal(size=(decode.CHECKED, model.config.words))
    best = logits.argmax(-1).tolist()

    def check(chosen):
        def reference(seen):
            assert seen.tolist() == [*prompt, *chosen[:-1]]
            return logits

        tokens = iter(chosen)
        decode._check(model, "a side", decode.Side(list, lambda: next(tokens), int), prompt, reference)

    check(best)
    logits[1, 7] = logits[1].max() * (1 - 1e-6)  # nearly as likely
    check([best[0], 7, best[2]])
    for wrong in (int(logits[2].argmin()), -1, model.config.words):
        with pytest.raises(WrongResult, match="a side"):
            check([*best[:2], wrong])
    logits[0, 0] = np.nan
    with pytest.raises(WrongResult, match="a side"):
        check(best)


@pytest.mark.parametrize("causal, padded", [(True, False), (False, False), (False, True)])
def test_heads_of_attention_are_checked_beside_a_reference(causal, padded):
    rng = np.random.default_rng(5)
    heads = attention.Heads(2, 4, 6, 8, causal, shared=2, dtype=aicf.f32, padded=padded)
    shapes = heads.queries, heads.keys, heads.keys, heads.queries
    q, k, v, dout = (rng.normal(size=s) for s in shapes)
    forward, backward = aicf.schema_of("attention"), aicf.schema_of("attention_grad")
    attrs = forward.pack(forward.normalized([], {"causal": causal}))
    mask = heads.seen if padded else None
    assert not padded or (heads.seen[0].all() and heads.seen[1].sum() == 3)
    out, lse = forward.call_reference([q, k, v, mask, None], attrs)
    made = [out, *backward.call_reference([dout, q, k, v, out, lse, mask, None], attrs)]
    attention.check(heads, "a side", [q, k, v, dout, mask], made)
    for n in range(4):
        for wrong in (1.001, np.nan):
            some = [x.copy() for x in made]
            some[n][1, -1, 2] *= wrong
            with pytest.raises(WrongResult, match="a side"):
                attention.check(heads, "a side", [q, k, v, dout, mask], some)


@pytest.mark.sample(1)
@pytest.mark.parametrize("gpt", GPTS.values(), ids=GPTS)
def test_both_sides_of_a_gpt_have_the_same_weights_and_a_gpu_takes_it(gpt):
    model = gpt.model()
    plan = explain_for(model, "h200", "train", **gpt.training()).plan
    params = {s.name: s.spec.shape for s in plan.externals(Role.param)}
    assert params == gpt.shapes()
    assert gpt is not GPT2 or 124e6 < sum(map(math.prod, params.values())) < 125e6
    account = sides.plan_bytes(plan)
    assert account["state"] >= 12 * sum(map(math.prod, params.values())), "weights and two moments"
    x, y = gpt.batch_of(np.random.default_rng(1))
    assert x.shape == y.shape == (gpt.batch, gpt.length) and (x[:, 1:] == y[:, :-1]).all()
    assert y.max() < gpt.words and (x.dtype, y.dtype) == (np.int32, np.int64)


@pytest.mark.parametrize("policy", ["f32", "bf16"])
def test_a_gpt_whose_losses_are_others_is_a_failure(policy):
    gpt, small = gpt_suite, replace(GPTS["small"], policy=policy)
    want = [4.0, 3.9, 3.8, 3.7, 3.6, 3.5]
    off = 1 + 1.2 * gpt.TOLERANCE[policy]
    gpt._check("a side", small, [1 + (x - 1) for x in want], want)
    for wrong in ([x * off for x in want], want[:1] * 6, [*want[:5], np.nan]):
        with pytest.raises(WrongResult, match="a side"):
            gpt._check("a side", small, wrong, want)
    with pytest.raises(WrongResult, match="a side"):
        gpt._check("a side", small, [4.0] * 6, None)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name",
    ["overhead", "gpt", "attention", "linear_loss", "decode", "elementwise", "lesson", "selection", "regret"],
)
def test_a_tiny_run_on_a_gpu(name, tmp_path):
    """In a process of its own: it changes PyTorch's current stream."""
    pytest.importorskip("torch", reason="the peer is PyTorch")
    command = [sys.executable, "-m", "benchmarks", name, "--device", "cuda", "--tiny", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(next(tmp_path.glob(f"*/{name}.json")).read_text())
    check_schema(data)
    assert data["cases"] and all(
        ", against " in left["case"] for left in data["left_out"]
    )  # a peer that does not run here
    assert all("kernels" in row for row in data["cases"])
    assert data["meta"]["kernels_hash"] == results.kernels_hash("cuda")


def test_what_fails_is_in_the_file_and_in_the_exit_code(tmp_path, capsys):
    cases = [
        bad("wrong", WrongResult("3 of 4 elements differ")),
        bad("broken", ValueError("oh")),
        good("fine"),
    ]
    assert harness.run([suite(cases)], "cpu", tmp_path) == 1
    (path,) = tmp_path.glob("*/fake.json")
    data = json.loads(path.read_text())
    check_schema(data)
    assert [row.get("failed") for row in data["cases"]] == [
        "WrongResult: 3 of 4 elements differ",
        "ValueError: oh",
        None,
    ]
    assert data["cases"][0]["ratio"] is None
    assert "wrong: FAILED" in capsys.readouterr().out


def test_what_is_not_here_is_left_out_with_the_reason(tmp_path):
    partly = Case(
        "partly",
        lambda bench: [{"case": "partly, f16", "why": "no f16"}, results.row("partly", "us", Stats(1.0))],
    )
    assert (
        harness.run([suite([bad("absent", NotHere("no such thing")), partly])], "cpu", tmp_path, say=silent)
        == 0
    )
    data = json.loads(next(tmp_path.glob("*/fake.json")).read_text())
    check_schema(data)
    assert [row["case"] for row in data["cases"]] == ["partly"]
    assert data["left_out"] == [
        {"case": "absent", "why": "no such thing"}, {"case": "partly, f16", "why": "no f16"},
    ]  # fmt: skip


def test_a_suite_stops_at_its_budget_and_says_what_it_left_out():
    clock = Clock()
    cases = [good(str(n), clock=clock, takes=4.0) for n in range(5)]
    saved: list[harness.Outcome] = []
    outcome = harness.run_suite(
        suite(cases), Bench("cpu", budget=10.0, now=clock), save=saved.append, say=silent
    )
    assert [row["case"] for row in outcome.cases] == ["0", "1", "2"]
    assert [left["case"] for left in outcome.left_out] == ["3", "4"]
    assert all("10 s" in left["why"] for left in outcome.left_out)
    assert len(saved) == 4, "after each case, so that a run that is killed leaves a file"
    for state in saved:
        assert len(state.cases) + len(state.left_out) == 5


def test_a_long_case_is_not_begun_with_too_little_left_and_a_short_one_is():
    clock = Clock()
    cases = [good("first", clock=clock, takes=4.0), good("long", seconds=60.0), good("short")]
    outcome = harness.run_suite(suite(cases), Bench("cpu", budget=10.0, now=clock), say=silent)
    assert [row["case"] for row in outcome.cases] == ["first", "short"]
    assert outcome.left_out == [{"case": "long", "why": "6 s were left of the budget of 10 s, it needs 60"}]


@pytest.mark.parametrize("works", [True, False])
def test_kernels_of_many_cases_are_compiled_at_once_before_the_first(works, monkeypatch, capsys):
    """On a GPU; what can't be compiled is left to its case."""
    done: list[object] = []

    def prepare(device, kernels):
        done.append([kernel for kernel, _ in kernels])
        if not works:
            raise RuntimeError("no compiler")

    monkeypatch.setattr("aicf.device.runtime.runtime", lambda device: SimpleNamespace(spec=device))
    monkeypatch.setattr(sides, "prepare", prepare)

    def case(n: int) -> Case:
        def measure(bench):
            done.append(n)
            return [results.row(str(n), "us", Stats(2.0))]

        return Case(str(n), measure, kernels=lambda device: [(f"{n} on {device}", None)])

    outcome = harness.run_suite(suite(list(map(case, range(70)))), Bench("cuda"), say=silent)
    assert len(outcome.cases) == 70
    assert [len(x) for x in done if isinstance(x, list)] == [32, 32, 6]
    assert done[:2] == [[f"{n} on cuda" for n in range(32)], 0] and done[33][0] == "32 on cuda"
    assert ("no compiler" in capsys.readouterr().err) == (not works)
    harness.run_suite(suite([case(1)]), Bench("cpu"), say=silent)
    assert done[-1] == 1 and done[-2] == 69


@pytest.mark.parametrize("name", ["gemm", "weights", "epilogue", "attention", "linear_loss", "lesson"])
def test_what_is_compiled_beforehand_takes_what_is_measured(name):
    h200, registry = preset("h200"), aicf.default_registry()
    for case in SUITES[name].cases(Bench("cuda", tiny=name in ("gemm", "weights"))):
        kernels = case.kernels(h200)
        assert kernels, case.name
        assert all(registry.by_id(k).supported(region, h200) is None for k, region in kernels)


def test_a_cut_off_run_of_weights_is_a_fair_sample():
    """Each round has all numbers of rows and all layouts, each four rounds all pairs; a seed repeats them, another has others."""
    found = weights.sampled(run_seed())
    assert found == weights.sampled(run_seed()) and len(set(found)) == len(found) >= 100
    assert len(set(found) & set(weights.sampled(f"not {run_seed()}"))) < len(found) / 2
    rounds = [found[n : n + 7] for n in range(0, len(found), 7)]
    for some in rounds:
        assert sorted(p.m for p in some) == list(weights.ROWS) and {p.order for p in some} == set(
            weights.LAYOUTS
        )
    for n in range(0, len(rounds), 4):
        assert len({(p.m, p.order) for some in rounds[n : n + 4] for p in some}) == 28


def test_weights_are_summed_up_by_rows(request):
    """Of random ratios; a failed case does not count, and numbers of rows that were not measured are left out."""
    draw = rng(request.node.nodeid)
    of = {m: draw.uniform(0.5, 2.0, draw.integers(1, 5)) for m in (1, 8, 16384)}
    rows = [results.failed("weights bf16 NT 33x7x7", "WrongResult: 1")] + [
        results.row(f"weights bf16 NT {m}x{n + 8}x1", "TFLOP/s", Stats(x), "cuBLAS", Stats(1.0))
        for m, ratios in of.items() for n, x in enumerate(ratios)
    ]  # fmt: skip
    groups = [np.concatenate(list(of.values())), *of.values()]
    found = weights.summary(rows)
    assert [r["case"] for r in found] == [
        f"{weights.GROUPS[n]}: geometric mean of ratios" for n in (0, 1, 2, 7)
    ]
    for made, ratios in zip(found, groups):
        assert made["aicf"] == pytest.approx(np.exp(np.log(ratios).mean()), rel=1e-3)
        assert made["note"].startswith(
            f"{len(ratios)} cases, {(ratios < 0.95).sum()} under 0.95, least {min(ratios):.4g}"
        )
    assert weights.summary([]) == []


def test_drawn_regions_are_the_same_again_and_when_more_are_drawn():
    """By the draw's words alone; other words draw others. All come from steps of published models, and kernels have a choice."""
    h200 = preset("h200")
    few, more = (regret.questions(run_seed(), n, h200) for n in (6, 12))
    assert more[:6] == few and len({q.drawn.region.key for q in more}) == 12
    assert {q.name for q in more}.isdisjoint(q.name for q in regret.questions(f"not {run_seed()}", 6, h200))
    assert all(q.drawn.step.model in published.MODELS for q in more)
    assert all(len(regret.candidates(q.selection(h200))) > 1 for q in more)
    of_hopper = [
        any("sm_90a" in aicf.default_registry().by_id(k).needs for k, _ in regret._kernels(q, h200))
        for q in more
    ]
    assert not any(of_hopper[2::3])


def test_steps_are_of_all_models_modes_and_types():
    drawn = list(islice(published.steps(run_seed()), 400))
    assert {s.model for s in drawn} == set(published.MODELS)
    assert {s.mode for s in drawn} == {"infer", "train"} and {s.policy for s in drawn} == set(
        published.POLICIES
    )
    assert {s.quantized for s in drawn} == {"", "int8", "int4"}
    rows = {s.batch * s.length for s in drawn if s.length}
    assert min(rows) == 1 and max(rows) == published.TOKENS[-1]
    assert not any(s.quantized and s.mode == "train" for s in drawn)


def test_regret_is_summed_up_by_family_with_the_error_of_predictions():
    def instance(kind, regret_, times, predicted):
        return {
            "regret": regret_,
            "times": times,
            "predicted": predicted,
            "region": {"ops": [{"kind": kind}]},
        }

    found = [
        instance("gemm", 0.0, {"a": 1.0, "b": 5.0}, {"a": 2.0, "b": 500.0}),
        instance("gemm_codes", 0.2, {"a": 1.0, "b": 1.2}, {"a": 1.0, "b": 1.2}),
        instance("softmax", 0.0, {"a": 1.0}, {}),
    ]
    rows = {r["case"]: r for r in regret.summary([{"instances": found}])}
    assert set(rows) == {
        "regions of published models: regret",
        "products",
        "products of codes",
        "rows, maps and others",
    }
    assert rows["regions of published models: regret"]["aicf"] == pytest.approx(100 * 0.2 / 3, abs=0.01)
    assert rows["products"]["note"].startswith("1 regions, 0 over 10 %; predictions are off by 100%")
    assert rows["products of codes"]["note"].startswith("1 regions, 1 over 10 %; predictions are off by 0%")


def test_a_kernel_is_best_alone_where_no_other_comes_within_a_percent():
    assert regret.alone({"a": 1.0, "b": 1.02, "c": 3.0}) == "a"
    assert regret.alone({"a": 1.005, "b": 1.0}) is None
    assert regret.alone({"b": 1.0}) == "b"
    found = [{"times": {"a": 1.0, "b": 2.0}, "regret": 0.0}, {"times": {"a": 2.0, "b": 1.0}, "regret": 1.0}]
    row, _ = regret.summary([{"instances": [i]} for i in [*found, found[1]]])
    assert row["aicf"] == pytest.approx(66.67, abs=0.01) and row["note"].endswith("best: b 2, a 1")
    assert regret.summary([]) == []


@pytest.mark.sample(10)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SUITES)
def test_shards_are_a_partition(name, device):
    """Every case in exactly one shard; names are distinct. No GPU is needed to list cases."""
    made = SUITES[name].cases(Bench(device, tiny=name == "regret"))  # which draws many
    cases = [case.name for case in made]
    assert len(set(cases)) == len(cases) > 0
    for n in (1, 2, 3, 7):
        parts = [[c.name for c in harness.part(made, (i + 1, n))] for i in range(n)]
        assert sorted(name for part in parts for name in part) == sorted(cases)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_of_a_run_become_one_file_and_a_new_cut_replaces_an_old_one(tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_COMMIT", "abc123")

    def run(shard):
        harness.run([suite([good("a"), good("b"), good("c")])], "cpu", tmp_path, shard=shard, say=silent)
        return sorted(path.name for path in tmp_path.glob("*/*"))

    run((1, 1))
    assert run((1, 2)) == ["fake.shard-1-of-2.json"]
    assert run((2, 2)) == ["fake.json"]
    (whole,) = results.all_files(tmp_path)
    assert [row["case"] for row in whole.cases] == ["a", "c", "b"] and len(whole.meta["parts"]) == 2
    run((2, 2))
    monkeypatch.setenv("AICF_COMMIT", "def456")
    assert run((1, 2)) == ["fake.shard-1-of-2.json", "fake.shard-2-of-2.json"], "of different commits"
    (both,) = report.devices(results.all_files(tmp_path)).values()
    assert sorted(row["case"] for file in both["fake"] for row in file.cases) == ["a", "b", "c"]
    assert run((1, 1)) == ["fake.json"]


def test_only_prints(tmp_path, capsys):
    assert harness.run([suite([good("aa"), good("ab"), good("c")])], "cpu", tmp_path, only="a") == 0
    out = capsys.readouterr().out
    assert "aa: 2 us, peer 3, ratio 1.5" in out and "ab: " in out and "c: " not in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("argv, said", [
    (["nothing"], "no suite is called 'nothing'"), (["mlp", "--shard", "3/2"], "expected I/N"),
    (["mlp", "--budget", "0"], "more than 0"), (["mlp", "--device", "tpu"], "no device is called"),
    (["list", "mlp"], "stands alone"),
])  # fmt: skip
def test_wrong_arguments(argv, said, capsys):
    with pytest.raises(SystemExit) as done:
        main(argv)
    assert done.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.skipif(cuda_missing() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit):
        main(["mlp"])
    assert "cuda can't be used" in capsys.readouterr().err


def test_no_peer_is_imported_before_a_suite_runs():
    code = "import sys; sys.modules['torch'] = None; from benchmarks import suites, __main__; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_the_list_and_the_hash_are_printed(capsys):
    assert main(["list"]) == main(["kernels-hash"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out[:-1]] == list(SUITES)
    assert out[-1] == results.kernels_hash("cuda")


# --- which kernels ----------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    """A small repository with kernels and documents."""
    kernels = tmp_path / "aicf" / "cuda_kernels"
    (kernels / "tiles").mkdir(parents=True)
    (kernels / "gemm.py").write_bytes(b"A = 1\nB = 2\n")
    (kernels / "tiles" / "tile.py").write_bytes(b"C = 3\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"# x\n\n{report.BEGIN}\n{report.END}\n\nmore\n")
    return tmp_path


def test_the_hash_depends_on_paths_and_text_and_on_nothing_else(tree):
    kernels, before = tree / "aicf" / "cuda_kernels", results.kernels_hash(root=tree)
    assert before == results.kernels_hash(root=tree)
    (kernels / "gemm.py").write_bytes(b"A = 1\r\nB = 2\r\n")
    (kernels / "notes.txt").write_text("no kernel")
    (tree / "aicf" / "other.py").write_text("D = 4\n")
    assert results.kernels_hash(root=tree) == before
    shutil.copytree(tree / "aicf", tree / "elsewhere" / "aicf")
    assert results.kernels_hash(root=tree / "elsewhere") == before
    changes = [
        lambda: (kernels / "gemm.py").write_text("A = 1\nB = 3\n"),
        lambda: (kernels / "tiles" / "tile.py").rename(kernels / "tile.py"),
        lambda: (kernels / "empty.py").write_text(""),
        lambda: (kernels / "gemm.py").unlink(),
    ]
    seen = {before}
    for change in changes:
        change()
        assert results.kernels_hash(root=tree) not in seen
        seen.add(results.kernels_hash(root=tree))


def fake_results(tree: Path) -> Path:
    """Of today's kernels, but for one row of a CPU."""
    folder = tree / "benchmarks" / "results"
    meta = {"gpu": "NVIDIA H200", "device": "cuda", "driver": "580.1, CUDA 13.0", "versions": {"python": "3.12.0", "torch": "2.11.0"},
            "kernels_hash": results.kernels_hash(), "commit": "abc123", "date": "2030-01-02T03:04:05+00:00"}  # fmt: skip
    fast = results.row(
        "add, long", "GB/s", Stats(4400.0, 44.0, 9), "torch", Stats(4000.0, 200.0, 9), "cuda.add_f16_half2.v1"
    )
    slow = results.row("add, short", "us", Stats(2.5), "torch", Stats(2.0))
    alone = results.row("accuracy", "%", Stats(98.25))
    wrong = results.failed("add, odd", "WrongResult: 1 of 3\nelements differ")
    gpu, cpu = folder / "nvidia-h200", folder / "cpu-x"
    results.write(gpu / "elementwise.shard-1-of-2.json", meta, [fast], [])
    results.write(
        gpu / "elementwise.shard-2-of-2.json", meta, [slow, wrong], [{"case": "add, huge", "why": "no time"}]
    )
    on_cpu = {
        **meta,
        "gpu": "cpu x",
        "device": "cpu",
        "driver": None,
        "kernels_hash": results.kernels_hash("cpu"),
    }
    results.write(cpu / "elementwise.json", {**on_cpu, "kernels_hash": "of 2029"}, [slow], [])
    results.write(cpu / "demo.json", on_cpu, [alone], [])
    results.write(cpu / "mlp.json", {**on_cpu, "tiny": True}, [alone], [])
    return folder


FAKES = {
    "elementwise": Suite(
        "elementwise", "adds", 9, lambda bench: [], headlines=(("add, short", "torch"), ("gone", "torch"))
    ),
    "demo": Suite("demo", "the demo", 9, lambda bench: [], headlines=(("accuracy", ""),)),
}

SECTIONS = {
    "elementwise": """
## NVIDIA H200

| case | aicf | peer | | unit | ratio | spread | |
|---|--:|--:|---|---|--:|--:|---|
| add, long | 4,400 | 4,000 | torch | GB/s | 1.10 | 5% | cuda.add_f16_half2.v1 |
| add, short | 2.5 | 2 | torch | us | 0.80 **slower** | 0% |  |

- **Failed**: add, odd: WrongResult: 1 of 3 elements differ
- Left out: add, huge: no time

Measured 2030-01-02 at commit abc123, driver 580.1, CUDA 13.0, python 3.12.0, torch 2.11.0.

## cpu x

| case | aicf | peer | | unit | ratio | spread | |
|---|--:|--:|---|---|--:|--:|---|
| add, short † | 2.5 | 2 | torch | us | 0.80 **slower** | 0% |  |

† Measured with an earlier text of its kernels.

Measured 2030-01-02 at commit abc123, python 3.12.0, torch 2.11.0.
""",
    "demo": """
## cpu x

| case | aicf | peer | | unit | ratio | spread | |
|---|--:|--:|---|---|--:|--:|---|
| accuracy | 98.25 | – |  | % | – | 0% |  |

Measured 2030-01-02 at commit abc123, python 3.12.0, torch 2.11.0.
""",
}

INDEX = """
| suite | what | measured on |
|---|---|---|
| [elementwise](elementwise.md) | Adds | NVIDIA H200, 2030-01-02; cpu x, 2030-01-02 |
| [demo](demo.md) | The demo | cpu x, 2030-01-02 |
"""

FIGURES = f"""# x

{report.BEGIN}

On an NVIDIA H200:

| what | aicf | peer | | ratio |
|---|--:|--:|---|--:|
| add, short | 2.5 us | 2 us | torch | 0.80 **slower** |

On cpu x:

| what | aicf | peer | | ratio |
|---|--:|--:|---|--:|
| accuracy | 98.25 % |  |  |  |
{report.END}

more
"""

SHORT = """# Performance

<!-- measured standing -->

| suite | on | compared | not slower | geometric mean | least |
|---|---|--:|--:|--:|---|
| [elementwise](results/elementwise.md) | NVIDIA H200 | 2 | 1 | 0.94 | 0.80: add, short, torch |
| [elementwise](results/elementwise.md) | cpu x | 1 | 0 | 0.80 | 0.80: add, short, torch |
<!-- /measured -->

<!-- measured headlines -->

On an NVIDIA H200:

| what | aicf | peer | | ratio |
|---|--:|--:|---|--:|
| add, short | 2.5 us | 2 us | torch | 0.80 **slower** |

On cpu x:

| what | aicf | peer | | ratio |
|---|--:|--:|---|--:|
| add, short † | 2.5 us | 2 us | torch | 0.80 **slower** |

† Measured with an earlier text of its kernels.
<!-- /measured -->
"""


def test_the_report(tree, monkeypatch):
    """Losses stand there as wins do; tries, and what nobody named beforehand, don't reach the README."""
    monkeypatch.setattr(report, "FIGURES", (("add, short", "torch"), ("accuracy", None), ("gone", "torch")))
    folder, short = fake_results(tree), tree / "docs" / "performance.md"
    short.write_text(re.sub("(<!-- measured [a-z]+ -->).*?(<!-- /)", r"\1\n\2", SHORT, flags=re.DOTALL))
    documents = report.written(folder, tree, FAKES)
    of_suites = {
        path.name: text for path, text in documents.items() if path.parent == tree / "docs" / "results"
    }
    assert set(of_suites) == {"README.md", "demo.md", "elementwise.md"}
    for name, section in SECTIONS.items():
        head, mark, rest = of_suites[f"{name}.md"].partition("\n## ")
        assert mark + rest == section
        assert head.startswith(f"# Results: {name}\n\n{FAKES[name].about.capitalize()}. Written by")
    assert of_suites["README.md"].endswith(INDEX)
    assert documents[tree / "README.md"] == FIGURES
    assert documents[short] == SHORT
    for path, text in documents.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert report.written(folder, tree, FAKES) == documents, "written twice is written once"
    assert report.leftovers(documents, tree) == []
    (gone := tree / "docs" / "results" / "gone.md").write_text("of a suite that was")
    assert report.leftovers(documents, tree) == [gone]


def test_an_edited_kernel_changes_marks_and_nothing_else(tree, monkeypatch):
    folder = fake_results(tree)
    before = report.written(folder, tree, FAKES)
    monkeypatch.setattr(results, "digest_of", lambda id: "another")
    after = report.written(folder, tree, FAKES)
    page = tree / "docs" / "results" / "elementwise.md"
    assert "| add, long † |" in after[page] and "| add, long |" in before[page]
    assert "| add, short |" in after[page], "it does not name its kernels, and has the text of all"
    assert [report.unmarked(text) for text in before.values()] == [report.unmarked(t) for t in after.values()]
    assert report.OLD not in "".join(map(report.unmarked, after.values()))


def test_the_report_of_nothing(tree):
    documents = report.written(tree / "benchmarks" / "results", tree, FAKES)
    assert set(documents) == {tree / "README.md", tree / "docs" / "results" / "README.md"}
    assert all("Nothing has been measured yet." in text for text in documents.values())
    assert report.between_marks("no marks\n", "content") == "no marks\n"


LESSON = """# x

<!-- measured few tiles -->
{}<!-- /measured -->

<!-- measured one row -->

Nothing has been measured yet.
<!-- /measured -->
"""

STEPS = """
NVIDIA H200, TFLOP/s:

| kernel | what it changes | bound | limited by | predicted | measured | of bound | of cuBLAS |
|---|---|--:|---|--:|--:|--:|--:|
| gemm_wgmma[128x256] | the best tile of large products | 119.9 | whole tiles | 92 | 60 | 50% | 20% |
| gemm_wgmma[128x128] | twice the tiles | – | | – | not measured | – | – |
| gemm_wgmma[128x64] | and again | – | | – | not measured | – | – |
| gemm_wgmma[64x64] | and again | – | | – | not measured | – | – |
| gemm_wgmma[128x64 cluster split2] | cluster split-K: two blocks share a tile | – | | – | not measured | – | – |
| gemm_later | | 480 | memory | 400 | 330 | 69% | 110% |
| cuBLAS | | | | | 300 | | |

Measured 2030-01-02 at commit abc123. All of it: [lesson](../results/lesson.md).

"""


def test_the_tables_of_the_lesson(tree):
    """What was not measured is said; so is a kernel that the story does not know yet."""
    folder, page = fake_results(tree), tree / "docs" / "kernels" / "gemm.md"
    page.parent.mkdir()
    page.write_text(LESSON.format("by hand\n"))
    assert report.written(folder, tree, SUITES)[page] == LESSON.format(report.NOTHING)
    meta = results.read(folder / "nvidia-h200" / "elementwise.shard-1-of-2.json").meta
    rows = [
        {**results.row(f"lesson, bf16 NT 128x4096x4096 by {name}", "TFLOP/s", Stats(ours), "cuBLAS", Stats(300.0)), **more}
        for name, ours, more in (
            ("gemm_later", 330.0, {"predicted": 400.0, "bound": 480.0, "limit": "memory"}),
            ("gemm_wgmma[128x256]", 60.0, {"predicted": 92.0, "bound": 119.9, "limit": "whole tiles"}),
        )
    ]  # fmt: skip
    wrong = results.failed("lesson, bf16 NT 128x4096x4096 by gemm_wgmma[128x128]", "WrongResult: 1")
    results.write(folder / "nvidia-h200" / "lesson.json", meta, [*rows, wrong], [])
    text = LESSON.format(STEPS)
    assert report.written(folder, tree, SUITES)[page] == text
    page.write_text(text)
    assert report.written(folder, tree, SUITES)[page] == text, "written twice is written once"


@pytest.mark.parametrize("story", lesson.STORIES, ids=lambda s: s.name)
def test_every_step_of_the_lesson_is_a_kernel_that_takes_its_problem(story):
    h200 = preset("h200")
    for step in story.steps:
        variant = aicf.default_registry().by_id(step.id)
        assert variant.supported(story.problem.region(step.unaligned), h200) is None
    assert len(set(map(str, story.steps))) == len(story.steps)
    marks = report.names_of_marks((ROOT / "docs" / "kernels" / "gemm.md").read_text(encoding="utf-8"))
    assert sorted(marks) == sorted(["standing", *(s.name for s in lesson.STORIES)])


def test_the_lessons_table_of_where_gemms_stand():
    def compared(case, ours, peer):
        return results.row(f"gemm {case}", "TFLOP/s", Stats(ours), "cuBLAS", Stats(peer))

    rows = [
        compared("bf16 NT 1x2x3", 400.0, 100.0),
        compared("f32 NN 8x8x8", 30.0, 60.0),
        compared("bf16 TT 4x5x6", 90.0, 90.0),
        results.failed("gemm bf16 NN 7x7x7", "WrongResult: 1"),
        results.row("bf16 NT 1x2x3 by cuda.x.v1", "TFLOP/s", Stats(1.0), "chosen: cuda.y.v1", Stats(9.0)),
    ]
    assert gemm.tables(rows)["standing"][2:] == [
        "| bf16 | 2 | 2 | 2.00 | 1.00 | TT 4x5x6: 90 | 90 |",
        "| f32 | 1 | 0 | 0.50 | 0.50 | NN 8x8x8: 30 | 60 |",
    ]
    assert gemm.tables([]) == {}


def test_what_bounds_a_step():
    """By hand: an H200 has 66.9 TFLOP/s of f32 and 989 of halves; 13.2 TB/s from L2, 4.8 from memory; and 132 multiprocessors."""
    p, device = Problem(4096, 4096, 4096), preset("h200")

    def bound(tile, each, problem=p, kernel="gemm_wgmma", **more):
        most, limit = lesson.Step(kernel, "", tile, each, **more).bound(problem, device)
        return float(f"{most:.3g}"), limit

    assert bound((16, 16), (1, 1), kernel="gemm_naive") == (
        8.36,
        "L1",
    )  # an eighth of the rate: two loads for each
    assert bound((32, 32), (2, 2), kernel="gemm_tiled") == (16.7, "shared memory")
    assert bound((64, 64), (64, 64)) == (422, "L2")  # 32 flops a byte
    assert bound((128, 256), (64, 256)) == (959, "whole tiles")  # 512 in four waves of 132
    assert bound((128, 64), (64, 64), Problem(128, 4096, 4096), parts=1) == (480, "whole tiles")  # 64 of 132
    assert bound((128, 64), (64, 64), Problem(128, 4096, 4096), parts=2) == (563, "L2")
    assert bound((1, 32), (64, 64), Problem(1, 4096, 4096))[1] == "memory"


def test_stale_results_are_named(tree):
    folder, gpu = fake_results(tree), tree / "benchmarks" / "results" / "nvidia-h200"
    assert results.stale(folder) == [
        "cpu-x/elementwise.json: 1 of 1 rows (2030-01-02) are of an earlier text of some of all kernels"
    ]
    path = gpu / "elementwise.shard-1-of-2.json"
    data = json.loads(path.read_text())
    assert data["cases"][0]["kernels"] == ["cuda.add_f16_half2.v1"] == list(data["meta"]["digests"])
    data["meta"]["kernels_hash"] = "other"  # something has changed since, but not this kernel
    path.write_text(json.dumps(data))
    assert len(results.stale(folder)) == 1
    data["meta"]["digests"]["cuda.add_f16_half2.v1"] = "other"
    path.write_text(json.dumps(data))
    (gpu / "broken.json").write_text("{")
    lines = results.stale(folder)
    assert "can't be read" in lines[1]
    assert lines[2].startswith("nvidia-h200/elementwise.shard-1-of-2.json: 1 of 1 rows")
    assert lines[2].endswith("an earlier text of cuda.add_f16_half2.v1")


def test_a_row_of_a_kernel_that_is_no_more_is_of_an_earlier_text(tree):
    meta = {"device": "cuda", "kernels_hash": results.kernels_hash(), "digests": {"cuda.gone.v1": "1234"}}
    row = results.row("add", "us", Stats(1.0), note="cuda.gone.v1")
    assert results.earlier(results.ResultFile(tree, meta, (row,))) == ["cuda.gone.v1"]
    assert results.earlier(results.ResultFile(tree, {**meta, "digests": {}}, (row,))) == [""], (
        "all are as they were"
    )
    told = results.row("add", "us", Stats(1.0), kernels=())
    assert results.earlier(results.ResultFile(tree, {**meta, "kernels_hash": "other"}, (told,))) == [""]


def test_the_documents_are_what_the_result_files_say():
    """But for the marks of rows that an edited kernel made old: the next report sets them."""
    found = report.written()
    again = "run `python -m benchmarks report`"
    for path, text in found.items():
        assert path.exists(), f"{path.name} is missing: {again}"
        assert report.unmarked(path.read_text(encoding="utf-8")) == report.unmarked(text), (
            f"{path.name}: {again}"
        )
    assert not report.leftovers(found), again


def test_the_readme_shows_ten_figures_wins_and_losses():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"{report.BEGIN}(.*?){report.END}", text, re.DOTALL)
    lines = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| what")]
    assert len(lines) == len(report.FIGURES) == 10
    assert any("**slower**" in line for line in lines) and any("slower" not in line for line in lines)


@pytest.mark.parametrize("rounds, made", [(1, 3), (2, 2), (9, 1)])
def test_starts_are_begun_in_rounds_that_there_is_time_for(rounds, made):
    """Of 30 s each in 100 s, with time kept for as many as that."""
    bench = SimpleNamespace(left=100.0)
    numbers = []
    for n in startup._while_there_is_time(bench, 9, rounds):
        numbers.append(n)
        bench.left -= 30.0
    assert numbers == list(range(made))


@pytest.mark.parametrize("name", ["README.md", "README.ko.md"])
def test_the_readmes_name_the_cards_that_were_measured(name):
    """Each card with results, and no other: GPUs have names such as H200 and RTX 4090."""
    results = ROOT / "benchmarks" / "results"
    cards = {
        json.loads(file.read_text(encoding="utf-8"))["meta"]["gpu"]
        for file in results.glob("nvidia-*/*.json")
    }
    text = (ROOT / name).read_text(encoding="utf-8")
    (said,) = re.findall(r"(?:cards were measured|측정한 GPU).*?(?=\n\n)", text, re.DOTALL)
    named = set(re.findall(r"NVIDIA [A-Z]+\d+(?: \d+GB \w*\d)?", " ".join(said.split())))
    assert named == cards
