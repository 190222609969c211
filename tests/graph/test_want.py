"""What would it take to get another kernel (F5)? What is advised is done, and the kernel is then chosen."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pytest
from draws.seeds import run_number
from registry.synthetic import kernel, region, registry_of

import aicf
from aicf import nn
from aicf.cli import main
from aicf.device.spec import preset
from aicf.errors import AicfError, MissingKernelError
from aicf.graph.ask.changes import changes, extents
from aicf.graph.ask.want import answer
from aicf.graph.ask.wanted import _enough
from aicf.registry.cost import Cost
from aicf.registry.ids import current
from aicf.registry.naming import lacking, matching
from aicf.registry.nearby import TERM
from aicf.registry.select import Candidate, Selector
from aicf.registry.variant import Reject, multiple
from aicf.types import TensorDesc, bf16, f16, f32

from .test_diff import EXAMPLE, chain_model

H200 = preset("h200")


def linear(k: int = 256, batch: int = 512, n: int = 256, dtype=f32) -> nn.Model:
    return nn.Model({"x": aicf.TensorSpec(("batch", k), dtype)}, batch=batch).add(nn.Linear(k, n, bias=False))


def told(model: nn.Model, wanted: str, **how):
    """(the answer about the first region, the explanation)."""
    explanation = aicf.explain_for(model, how.pop("device", "h200"), **how)
    return explanation.want(wanted, 0).answers[0][1], explanation


def target(way) -> int:
    """The size that an extent is to become."""
    return int(re.search(r"→ (\d+)", way.changes[-1].text)[1])


def fake(wanted, region, *others, device="cpu", required=frozenset()):
    """The answer about a made-up kernel, where `cpu.plain.v1` takes everything."""
    plain = kernel(f"{device}.plain.v1", us=10.0)
    spec = preset(device if device == "cpu" else "h200")
    selector = Selector(registry_of(plain, wanted, *others), spec, required=required)
    return answer(selector(region), [wanted])


# --- advice that is followed ------------------------------------------------------------------------------------------


@pytest.mark.spec("F5")
def test_padding_k_gets_the_kernel_that_is_named():
    """Rows of 100 halves are no multiples of 16 bytes: 104 are the next."""
    wanted = "gemm_wgmma[64x64]"
    said, explanation = told(linear(k=100, dtype=bf16), wanted)
    assert said.reject.condition == "rows" and "multiples of 16 bytes" in said.reject.reason
    (way,) = [w for w in said.to_take if w.changes[0].subject == "extent k"]
    assert [c.text for c in way.changes] == ["k 100 → 104"] and "pad it with zeros" in way.changes[0].how
    padded = aicf.explain_for(linear(k=104, dtype=bf16), "h200").regions[0].selection
    now = {c.variant.name: c.us for c in padded.ranked}
    assert wanted in now and now[wanted] == pytest.approx(way.candidate.us)
    assert wanted not in {c.variant.name for c in explanation.regions[0].selection.ranked}
    assert way.selection.kernel_id == padded.kernel_id


@pytest.mark.spec("F5")
@pytest.mark.parametrize(
    ("subject", "how"), [("precision", {"precision": "tf32"}), ("type", {"policy": "bf16"})]
)
def test_what_compile_is_told_to_say_gets_a_kernel_of_the_family(subject, how):
    said, _ = told(linear(), "gemm_wgmma[*x*")
    ways = {w.changes[0].subject: w for w in (*said.to_take, *said.to_choose) if len(w.changes) == 1}
    ((argument, value),) = how.items()
    assert ways[subject].changes[0].how in (f'{argument}="{value}"', f'{argument}="{value}x3"')
    chosen = {r.kernel_id for r in aicf.explain_for(linear(), "h200", **how).regions}
    assert any(id.startswith("cuda.gemm_wgmma.") for id in chosen)


@pytest.mark.spec("F5")
def test_the_size_at_which_it_wins_is_the_nearest():
    """Chosen from that batch on, and not of one row less."""
    wanted = "cuda.gemm_tiled.v1[64x64]"
    said, _ = told(linear(64, 64, 256), wanted)
    assert said.candidate.variant.id == wanted and not said.chosen
    (way,) = [w for w in said.to_choose if w.changes[0].subject == "extent m"]
    batch = target(way)

    def chosen(rows: int) -> str:
        return aicf.explain_for(linear(64, rows, 256), "h200").regions[0].kernel_id

    assert chosen(batch) == wanted != chosen(batch - 1)


@pytest.mark.spec("F5")
def test_another_device_is_one_that_has_it():
    said, _ = told(linear(dtype=bf16), "gemm_wgmma[128x128]", device="a100")
    (way,) = said.to_take
    assert said.reject.condition == "needs" and way.changes[0].how.startswith("--device ")
    there = aicf.explain_for(linear(dtype=bf16), way.selection.device).regions[0].selection
    assert "gemm_wgmma[128x128]" in {c.variant.name for c in there.ranked}


@pytest.mark.spec("F5")
def test_a_kernel_of_another_kind_of_device_is_asked_there():
    said, _ = told(linear(dtype=bf16), "gemm_wgmma[128x128]", device="cpu")
    assert said.reject.reason == "runs on cuda, not on cpu"
    assert {w.selection.device.target for w in said.to_take} == {"sm_90a"}


# --- made-up kernels: each condition has a change that meets it -------------------------------------------------------


def test_the_first_condition_that_failed_is_met_together_with_all_others():
    """One that wants halves, k in eights and n in fours: three changes, no fewer."""

    def picky(region):
        if region.operands[0].dtype not in (bf16, f16):
            return Reject("dtype", f"operand 0 is {region.operands[0].dtype}, needs f16 or bf16")
        m, n = region.results[0].shape
        return multiple("k", region.operands[0].numel // m, 8) or multiple("n", n, 4)

    said = fake(kernel("cpu.picky.v1", "gemm", reject=picky), region("gemm", (6, 12), (12, 5)))
    way = said.to_take[0]
    assert said.reject.condition == "dtype" and way.chosen
    assert [c.text for c in way.changes] == ["f32 → bf16", "k 12 → 16", "n 5 → 4"]
    assert [t.shape for t in way.selection.region.operands] == [(6, 16), (16, 4)]
    assert picky(way.selection.region) is None


def test_alignment_and_layout():
    strided = TensorDesc(f32, (8, 8), (16, 1), "cpu", 4)
    asked = region("relu", (8, 8))
    asked = type(asked)(asked.ops, (strided, asked.tensors[1]), asked.inputs, asked.outputs)

    def picky(region):
        t = region.operands[0]
        if t.alignment < 16:
            return Reject("aligned", f"operand 0 is aligned to {t.alignment} bytes, needs 16")
        return None if t.contiguous else Reject("contiguous", f"operand 0 has strides {t.stride}")

    said = fake(kernel("cpu.picky.v1", "relu", reject=picky), asked)
    texts = [c.text for c in said.to_take[0].changes]
    assert texts == ["alignment 4 → 16 bytes", "operand 0 row-major"]


def test_a_factor_stored_the_other_way_round():
    def k_major(region):
        return None if region.attrs["trans_b"] else Reject("rows", "b is N-major")

    said = fake(kernel("cpu.picky.v1", "gemm", reject=k_major), region("gemm", (6, 12), (12, 5)))
    (way,) = said.to_take
    assert way.changes[0].how == "trans_b=True" and way.selection.region.operands[1].shape == (5, 12)


def test_numbers_of_a_reason_are_tried_as_sizes():
    """1,000,003 is no multiple and no power of anything: only the reason says it."""

    def picky(region):
        n = region.operands[0].shape[0]
        return None if n >= 1_000_003 else Reject("rows", f"rows {n} is under 1000003")

    said = fake(kernel("cpu.picky.v1", "relu", reject=picky), region("relu", (100, 3)))
    assert target(said.to_take[0]) == 1_000_003


def test_fewer_ops_where_a_kernel_takes_one():
    one, pair = kernel("cpu.one.v1"), kernel("cpu.pair.v1", "relu", us=0.5, signatures=["relu + tanh"])
    explanation = aicf.explain_for(chain_model("relu", "tanh"), "cpu", registry=registry_of(one, pair))
    ((numbers, said),) = explanation.want("one").answers
    assert numbers == (0,) and said.reject.condition == "ops"
    assert [str(c) for c in said.to_take[0].changes] == ["without tanh behind it"]
    assert said.to_take[0].chosen


def test_a_flag_that_was_asked_for():
    loose = kernel("cpu.loose.v1", us=1.0, deterministic=False)
    said = fake(loose, region("relu", (4,)), required=frozenset({"deterministic"}))
    assert said.reject.condition == "deterministic"
    assert said.to_take[0].changes[0].how == "deterministic=False" and said.to_take[0].chosen


def test_where_nothing_helps_the_last_condition_is_told():
    never = kernel("cpu.never.v1", "relu", reject=lambda region: Reject("moon", "the moon is in the way"))
    explanation = aicf.explain_for(
        chain_model("relu"), "cpu", registry=registry_of(kernel("cpu.one.v1"), never)
    )
    wanted = explanation.want("never")
    assert not wanted.answers[0][1].to_take
    assert "the moon is in the way" in str(wanted) and "in the way  no padding" in str(wanted)

    def half(region):
        even = region.operands[0].shape[1] % 2 == 0
        return Reject("moon", "the moon is in the way") if even else Reject("even", "columns are odd")

    odd = kernel("cpu.half.v1", "relu", reject=half)
    said = fake(odd, region("relu", (4, 5)))
    steps, reject = said.furthest
    assert reject.condition == "moon" and not said.to_take and len(steps) == 1


# --- regions, changed -------------------------------------------------------------------------------------------------


def test_extents_are_the_axes_that_move_together():
    """m, n and k are all 64 here, and the bias of 64 goes with n."""
    asked = region("gemm", (64, 64), (64, 64), None, (64,))
    found = {e.name: e.axes for e in extents(asked)}
    assert found == {"m": {(0, 0)}, "k": {(0, 1), (1, 0)}, "n": {(1, 1), (2, 0)}}


def test_every_change_is_typed_as_its_ops_say():
    from aicf.ops.schema import schema_of
    from aicf.types import TensorSpec

    asked = region("gemm", (24, 40), (40, 72), None, (72,), device="cuda")
    count = 0
    for _, made in changes(asked, "k 40 is under 41"):
        tensors = [TensorSpec(t.shape, t.dtype, t.device) for t in made.operands]
        op = made.anchor
        operands = [tensors[made.inputs.index(t)] if t >= 0 else None for t in op.inputs]
        results = schema_of(op.kind).infer(operands, op.attrs)
        assert [(r.shape, r.dtype) for r in results] == [(t.shape, t.dtype) for t in made.results]
        count += 1
    assert count > 50


# --- names, text, JSON, the command -----------------------------------------------------------------------------------


def test_names_patterns_and_what_is_close():
    registry = aicf.default_registry()
    assert [v.id for v in matching(registry, "gemm_wgmma[128x128]")] == ["cuda.gemm_wgmma.v1[128x128]"]
    assert matching(registry, "cuda.gemm_wgmma.v1[128x128]") == matching(registry, "gemm_wgmma[128x128]")
    family = matching(registry, "gemm_wgmma*")
    assert len(family) > 10 and all(v.name.startswith("gemm_wgmma") for v in family)
    with pytest.raises(MissingKernelError, match=r"gemm_wgmma\[128x128\]"):
        matching(registry, "gemm_wgma_128x128")
    with pytest.raises(MissingKernelError, match=r"next: '\*wgmma\*'"):
        matching(registry, "wgma")
    for once, today in (
        ("gemm_wgmma_128x256*", "gemm_wgmma[128x256*"), ("cuda.gemm_wgmma_*.v1", "cuda.gemm_wgmma.v1"), ("gemm_mma_tf32_*", "gemm_mma[* tf32]"),
        ("cuda.gemm_wgmma_128x128.v1", "gemm_wgmma[128x128]"),
    ):  # fmt: skip
        assert set(matching(registry, once)) == set(matching(registry, today)), once
    assert set(matching(registry, "gemm_[wm]*")) == {
        *matching(registry, "gemm_w*"),
        *matching(registry, "gemm_m*"),
    }
    own = dataclasses.replace(registry.by_id("cuda.gemm_naive.v1"), id="cuda.gemm_tiled_8x8.v7")
    more = registry.copy()
    more.add(own)
    assert matching(more, own.id) == matching(more, own.name) == (own,) and current(own.id) == own.id
    left = lacking(registry, ["gemm_wgmma*"])
    assert len(left) == len(registry) - len(family) and "cuda.gemm_wgmma.v1[128x128]" not in left


@pytest.mark.spec("F5")
def test_it_reads_well_and_is_data():
    wanted = aicf.explain_for(linear(64, 64, 256), "h200").want("gemm_tiled[64x64]")
    text = str(wanted)
    assert text.startswith("gemm_tiled[64x64] on h200 · chosen in 0 of 1 region that it could begin")
    for label in ("chosen", "lost", "chosen if"):
        assert re.search(rf"^  {label}  ", text, re.MULTILINE)
    data = json.loads(json.dumps(wanted.to_json()))
    assert data["regions"][0]["to_choose"][0]["kernel"] == "cuda.gemm_tiled.v1[64x64]"
    assert data["regions"][0]["to_choose"][0]["us"] < data["regions"][0]["wanted_us"] * 10


def test_the_command(capsys):
    assert main(["explain", EXAMPLE, "--device", "h200", "--want", "gemv_simt", "--region", "0"]) == 0
    out = capsys.readouterr().out
    assert "smaller of m and n 64 is over 16" in out and "m 64 → 16" in out and "region 1" not in out
    assert main(["explain", EXAMPLE, "--device", "h200", "--want", "gemv_simt", "--json"]) == 0
    assert [r["regions"] for r in json.loads(capsys.readouterr().out)["regions"]] == [[0], [1], [2]]
    for wrong in (["--want", "[red]no"], ["--want", "gemv_simt", "--region", "9"], ["--region", "9"],
                  ["--want", "gemv_simt", "--region", "0", "--region", "1"], ["--batch", "1..2", "--region", "1"]):  # fmt: skip
        assert main(["explain", EXAMPLE, "--device", "h200", *wrong]) == 2
    assert "[red]no" in capsys.readouterr().err


def test_a_region_that_is_not_there():
    with pytest.raises(AicfError, match="region 7 has no kernel"):
        aicf.explain_for(linear(), "h200").want("gemm*", 7)


def test_the_term_that_would_be_enough_is_enough_with_corrections_too():
    """A correction is a share of the other terms, so it shrinks with them."""
    rng, count = np.random.default_rng(run_number()), 0
    for _ in range(100):
        terms = [dict(zip(("launch", "memory", "compute"), rng.uniform(0.5, 9, 3))) for _ in range(2)]
        factors = rng.uniform(0.7, 1.42, 2)
        costs = [Cost(t).plus(**{TERM: (f - 1) * Cost(t).us}) for t, f in zip(terms, factors)]
        best, other = sorted(zip(costs, terms, factors), key=lambda c: c[0].us)
        text = _enough(
            *(Candidate(kernel(f"cpu.k{n}.v1"), c[0], c[0].us) for n, c in enumerate((best, other)))
        )
        if found := re.search(r"with (\w+) under ([\d.e-]+) us", text):
            changed = {**other[1], found[1]: float(found[2])}
            assert other[2] * sum(changed.values()) == pytest.approx(best[0].us, rel=5e-3), (
                run_number(),
                text,
            )
            count += 1
    assert count > 10
