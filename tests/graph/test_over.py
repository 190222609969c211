"""Where the choice changes with a size: against plans made at every size (F6)."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from registry.synthetic import kernel, registry_of

import aicf
from aicf import nn
from aicf.cli import main
from aicf.errors import AicfError, MissingKernelError
from aicf.graph.ask.sizes import differing, parsed

from .chains import model_of
from .test_diff import EXAMPLE, ONE, PAIR, chain_model


def rows_of(region) -> int:
    return region.operands[0].shape[0]


def made_up(*variants):
    """A registry, and the kernels chosen for one relu at each of these sizes, by explaining each."""
    registry = registry_of(kernel("cpu.slow.v1", us=lambda r: 10.0 + rows_of(r)), *variants)

    def chosen(size: int) -> list[str]:
        model = model_of(lambda ctx, x: ctx.relu(x), rows=size)
        return [r.kernel_id for r in aicf.explain_for(model, "cpu", registry=registry).regions]

    return registry, chosen


def over(registry, sizes, model=None):
    return aicf.explain_over(model or chain_model("relu"), "cpu", sizes, registry=registry)


@pytest.mark.spec("F6")
@pytest.mark.parametrize("at", [2, 37, 64, 65, 100])
def test_each_switching_point_is_found_exactly(at):
    """Against every size, one by one: `flat` is as slow as `slow` at one size, then faster."""
    registry, chosen = made_up(kernel("cpu.flat.v1", us=9.5 + at))
    swept = over(registry, "1..128")
    assert swept.switches == [at]
    assert [r.first.regions[0].kernel for r in swept.ranges] == ["cpu.slow.v1", "cpu.flat.v1"]
    for r in swept.ranges:
        assert all(chosen(size) == [r.first.regions[0].kernel] for size in range(r.first.size, r.end + 1))


def test_a_plan_that_is_only_that_of_round_sizes_is_told_as_such():
    """A kernel for multiples of 8: no switch at every size, and the sizes between are named."""
    from aicf.registry.variant import multiple

    fast = kernel(
        "cpu.fast.v1", us=1.0, reject=lambda r: multiple("rows", rows_of(r), 8) if rows_of(r) > 20 else None
    )
    registry, chosen = made_up(fast)
    swept = over(registry, "1..256")
    assert len(swept.points) < 60 and swept.switches == []
    (only,) = swept.ranges
    assert only.every == 8 and only.between.size % 8 and chosen(only.between.size) == ["cpu.slow.v1"]
    assert f"but not at sizes that are no multiples of 8, such as {only.between.size}" in str(swept)


@pytest.mark.spec("F6")
def test_what_is_said_of_a_gpu_holds_there():
    """On both sides of each switching point of a real model."""

    def build(batch: int) -> nn.Model:
        return (
            nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=batch)
            .add(nn.Linear(64, 256))
            .add(nn.ReLU())
        )

    swept = aicf.explain_over(build(64), "h200", "1..2048")
    assert len(swept.switches) >= 2
    for before, r in zip(swept.ranges, swept.ranges[1:]):
        at = r.first.size
        kernels = [
            [x.kernel_id for x in aicf.explain_for(build(size), "h200").regions] for size in (at - 1, at)
        ]
        assert (
            kernels == [[c.kernel for c in p.first.regions] for p in (before, r)] and kernels[0] != kernels[1]
        )
        assert aicf.explain_for(build(at), "h200").predicted_us == pytest.approx(r.first.us)


def test_listed_sizes_are_those_and_no_others():
    registry, _ = made_up(kernel("cpu.flat.v1", us=50.0))
    swept = over(registry, [64, 1, 8])
    assert [p.size for p in swept.points] == [1, 8, 64] and swept.switches == [64]
    assert [(r.first.size, r.end) for r in swept.ranges] == [(1, 1), (8, 8), (64, 64)]


def test_regions_are_compared_by_their_ops():
    fused = over(registry_of(ONE, PAIR), [3], chain_model("relu", "tanh", "neg")).ranges[0].first.regions
    apart = over(registry_of(ONE), [3], chain_model("relu", "tanh", "neg")).ranges[0].first.regions
    assert differing(apart, fused) == ["relu + tanh: cpu.one.v1, cpu.one.v1 → cpu.pair.v1"]
    assert differing(fused, fused) == []
    assert differing(apart, apart[:2]) == ["without cpu.one.v1"]


@pytest.mark.spec("F6")
def test_it_is_a_table_a_plot_and_a_drawing():
    registry, _ = made_up(kernel("cpu.flat.v1", us=50.0))
    swept = over(registry, "1..128")
    text = str(swept)
    assert "batch 1 to 128 on cpu · 2 plans, 1 switching point" in text and "\x1b" not in text
    assert "relu: cpu.slow.v1 → cpu.flat.v1" in text
    plot = [line.partition("┤")[2] for line in text.splitlines() if "┤" in line]
    assert len(plot) == 10 and sum(line.count("▄") + line.count("▀") for line in plot) >= 64
    columns = {line.index("┆") for line in plot if "┆" in line}
    assert len(columns) == 1 and abs(columns.pop() / 63 - 0.76) < 0.05  # log 41 / log 128
    html = swept._repr_html_()
    drawing = ElementTree.fromstring(re.search(r"<svg.*</svg>", html)[0])
    assert len(list(drawing.iter("circle"))) == len(swept.points)
    assert len(html) < 40_000 and "<script" not in html and "http" not in html
    assert json.loads(json.dumps(swept.to_json()))["ranges"][1]["first"] == swept.switches[0]


def test_names_are_shown_and_never_run():
    model = nn.Model({"x": aicf.TensorSpec(("<script>", 4))}, **{"<script>": 3}).add(nn.ReLU())
    html = aicf.explain_over(model, "cpu", "1..4")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html


@pytest.mark.parametrize("text", ["", "0..4", "4..1", "1..2..3", "a", "1,x", "=1..4", "1..99999999999"])
def test_sizes_that_are_none(text):
    with pytest.raises(AicfError, match="--batch"):
        parsed(text)


def test_which_dimension():
    two = nn.Model({"x": aicf.TensorSpec(("rows", "cols"))}, rows=2, cols=3).add(nn.ReLU())
    with pytest.raises(AicfError, match="which of the dimensions") as error:
        aicf.explain_over(two, "cpu", "1..4")
    assert "--batch cols=1..4096" in str(error.value)
    assert aicf.explain_over(two, "cpu", "cols=1..4").dimension == "cols"
    with pytest.raises(AicfError, match="a model with a named dimension"):
        aicf.explain_over(nn.Model({"x": (2, 3)}).add(nn.ReLU()), "cpu", "1..4")


# --- without --------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("F6")
def test_as_if_a_kernel_did_not_exist():
    model = nn.Model({"x": aicf.TensorSpec((64, 64))}).add(nn.Linear(64, 256))
    first = aicf.explain_for(model, "h200").regions[0].selection
    second = aicf.explain_for(model, "h200", without=[first.kernel_id]).regions[0].selection
    assert [c.variant.id for c in second.ranked] == [c.variant.id for c in first.ranked[1:]]
    assert first.kernel_id not in {r.variant.id for r in second.rejected}
    with pytest.raises(MissingKernelError, match="no kernel is called 'gone'"):
        aicf.explain_for(model, "h200", without=["gone"])


@pytest.mark.spec("F6")
def test_the_commands(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    base = ["explain", EXAMPLE, "--device", "h200"]
    assert main([*base, "--without", "gemm_tiled*", "--without", "gemv_*"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "h200 against without gemm_tiled*, gemv_*" in out and "times as long" in out
    assert "cuda.gemm_tiled.v1[32x32]: there is no such kernel on this side" in out
    assert main([*base, "--batch", "1,8", "--json"]) == 0
    assert [p["size"] for p in json.loads(capsys.readouterr().out)["points"]] == [1, 8]
    assert main([*base, "--batch", "1,8", "--want", "gemv_simt"]) == 2
    assert main([*base, "--batch", "seq=1..8"]) == 2
    assert "no input has a dimension called 'seq'" in capsys.readouterr().err
