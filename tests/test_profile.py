"""The profile of a program: every step timed where it stands, on copies, and how much arithmetic it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from benchmarks import profile, sides
from benchmarks.gpts import GPTS
from benchmarks.harness import Bench
from benchmarks.kernel_runs import KernelRuns
from benchmarks.work import product_flops


@pytest.fixture
def bench():
    return Bench("cpu", tiny=True)


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def trained():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5), aicf.f32)}, batch=4)
    for layer in (nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3)):
        model.add(layer)
    return aicf.compile(model, "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.AdamW())


def test_every_step_is_timed_in_order_and_the_program_goes_on(bench, rng):
    gpt = GPTS["small"]
    program = gpt.program("cpu")
    x, y = gpt.batch_of(rng)
    made = profile.profile(program, {"x": x, "y": y}, bench, rounds=2)
    assert [s.kernel for s in made.steps] == list(program.plan.kernel_ids)
    assert [s.number for s in made.steps] == list(range(len(made.steps)))
    assert all(s.us is not None and not s.note for s in made.steps)
    assert sum(s.predicted_us for s in made.steps) == pytest.approx(program.explain().predicted_us)
    products = 6 * sum(np.prod(s) for n, s in gpt.shapes().items() if len(s) == 2 and n != "place.weight")
    logits = 2 * gpt.words * gpt.size  # computed again by the gradient of the loss
    seen = gpt.length * (gpt.length + 1) / 2 * gpt.size * gpt.depth * 2 * (2 + 5) * gpt.batch
    assert sum(s.flops for s in made.steps) == gpt.tokens * (products + logits) + seen
    assert made.whole_us > 0 and made.call_us > 0
    loss = float(program({"x": x, "y": y})["loss"])
    assert np.isfinite(loss) and loss < np.log(gpt.words)


def test_steps_are_timed_on_copies_that_share_memory_as_the_tensors_do(bench, rng):
    program = trained()
    feed = {"x": rng.normal(size=(4, 5)).astype(np.float32), "y": rng.integers(0, 3, 4)}
    program.replay(feed)
    bound = sides.bound_plan(program, feed)
    before = {vid: np.array(t.array) for vid, t in bound.tensors.items()}
    for step, _ in bound.calls:
        profile._timed(program, bound, step, KernelRuns(bench), 1)
        ins, outs = profile._copied(bound, step)
        vids = (*step.in_vids, *step.out_vids)
        for v, copied in zip(vids, (*ins, *outs), strict=True):
            np.testing.assert_array_equal(copied.array, bound.tensors[v].array)
            for w, other in zip(vids, (*ins, *outs), strict=True):
                shared = bound.tensors[v].ptr == bound.tensors[w].ptr
                assert (copied.ptr == other.ptr) == shared
    for vid, tensor in bound.tensors.items():
        np.testing.assert_array_equal(tensor.array, before[vid])


def test_a_step_that_fails_is_told_and_the_others_are_timed(bench, rng, monkeypatch):
    program = trained()
    feed = {"x": rng.normal(size=(4, 5)).astype(np.float32), "y": rng.integers(0, 3, 4)}
    rebound, made = sides.rebound, []

    def fails(program, step, *memory):
        made.append(step)
        if len(made) == 2:
            raise ValueError("no such luck")
        return rebound(program, step, *memory)

    monkeypatch.setattr(sides, "rebound", fails)
    found = profile.profile(program, feed, bench, rounds=1)
    assert [s.number for s in found.steps if s.us is None] == [1]
    said = "\n".join(profile.lines(found, every_step=True))
    assert "step 1 was not timed" in said and "ValueError: no such luck" in said
    assert len(profile.grouped(found.steps)) < len(found.steps)


def test_the_command_prints_tables_and_writes_json(tmp_path, capsys):
    model = tmp_path / "model.py"
    model.write_text(
        "import aicf\nfrom aicf import nn\n"
        'model = nn.Model({"x": aicf.TensorSpec((4, 6), aicf.f32)})\nmodel.add(nn.Linear(6, 3))\nmodel.add(nn.ReLU())\n'
    )
    out = tmp_path / "there" / "profile.json"
    assert profile.main([str(model), "--device", "cpu", "--rounds", "1", "--steps", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert (
        "by kernel:" in said and "gemm + bias_add + relu · cpu." in said and "every step, in order:" in said
    )
    data = json.loads(out.read_text())
    assert data["program"] == str(model) and {"gpu", "versions", "commit"} <= set(data["meta"])
    (step,) = data["steps"]
    assert step["flops"] == 2 * 4 * 3 * 6 and step["us"] > 0
    assert data["groups"][0]["count"] == 1


def test_a_token_with_a_cache_is_a_program_too(capsys):
    assert profile.main(["small-decode", "--device", "cpu", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert "cache_write · cpu." in said and "not timed" not in said


@pytest.mark.parametrize(
    "q, k, attrs",
    [
        ((2, 3, 5, 4), (2, 3, 5, 4), {}), ((2, 4, 5, 4), (2, 2, 5, 4), {"causal": True}), ((1, 3, 4), (1, 7, 4), {"causal": True}),
        ((1, 7, 4), (1, 3, 4), {"causal": True}), ((1, 9, 4), (1, 9, 4), {"causal": True, "window": 3}), ((1, 5, 4), (1, 9, 4), {"window": 2}),
    ],
)  # fmt: skip
def test_attention_counts_what_queries_see(q, k, attrs):
    from aicf.ops.attention import visible

    schema = aicf.schema_of("attention")
    seen = visible(
        range(q[-2]), range(k[-2]), k[-2] - q[-2], attrs.get("causal", False), attrs.get("window", 0)
    )
    pairs = int(seen.sum()) * int(np.prod(q[:-2]))
    region = _region(schema, [q, k, k], attrs)
    assert product_flops(region) == 2 * pairs * 2 * q[-1]
    grad = _region(aicf.schema_of("attention_grad"), [q, q, k, k, q, q[:-1]], attrs)
    assert product_flops(grad) == 2 * pairs * 5 * q[-1]


def _region(schema, shapes, attrs):
    f32s = [TensorSpec(s, DType.f32) for s in shapes]
    operands = [*f32s, *[None] * (len(schema.operands) - len(f32s))]
    pack = schema.pack(schema.normalized(operands, attrs))
    results = [TensorDesc.dense(s) for s in schema.infer(operands, pack)]
    return RegionSpec.single(schema.kind, pack, [s and TensorDesc.dense(s) for s in operands], results)
