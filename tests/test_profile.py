"""Programs of the suites are profiled, and how much arithmetic attention is."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import aicf
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from benchmarks import profile
from benchmarks.gpts import GPTS
from benchmarks.suites.decode import DECODERS
from benchmarks.work import product_flops


def test_a_gpt_is_profiled_as_it_trains(tmp_path, capsys):
    """All its products are counted: six flops a parameter and token, logits made again, and what queries see."""
    gpt, out, trace = GPTS["small"], tmp_path / "there" / "profile.json", tmp_path / "trace.json"
    command = ["small", "--device", "cpu", "--runs", "1", "-v", "--out", str(out), "--trace", str(trace)]
    assert profile.main(command) == 0
    said, data = capsys.readouterr().out, json.loads(out.read_text())
    assert "blocks.0.attn: attention" in said
    assert data["program"] == "small" and {"gpu", "versions", "commit"} <= set(data["meta"])
    products = 6 * sum(np.prod(s) for n, s in gpt.shapes().items() if len(s) == 2 and n != "place.weight")
    logits = 2 * gpt.words * gpt.size  # computed again by the gradient of the loss
    seen = gpt.length * (gpt.length + 1) / 2 * gpt.size * gpt.depth * 2 * (2 + 5) * gpt.batch
    least = gpt.tokens * (products + logits) + seen
    assert least <= sum(r.get("flops", 0) for r in data["regions"]) < 1.5 * least, (
        "the rest are maps and reductions"
    )
    assert any(e["ph"] == "X" for e in json.loads(trace.read_text())["traceEvents"])


def test_a_token_with_a_cache_takes_no_place_when_it_is_profiled(capsys):
    assert profile.main(["small-decode", "--device", "cpu", "--runs", "3"]) == 0
    assert "cache_write" in capsys.readouterr().out
    made = []
    for profiled in (False, True):
        small = replace(DECODERS["small-decode"], length=8)
        generator = aicf.Generator(aicf.compile(small.model(), device="cpu"), 1, small.length)
        generator.start([np.array([3, 1, 2, 5, 4])], temperature=0)
        if profiled:
            generator.decode.profile({}, runs=20)  # three places are left
        made.append([generator.decode({})["output"].numpy().tolist() for _ in range(3)])
    assert made[0] == made[1]


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
