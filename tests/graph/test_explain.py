"""The story of a plan (B12, F5, F6): golden texts, JSON, log lines. AICF_ACCEPT=1 writes the golden files anew."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from draws.seeds import rng
from rich.console import Console

import aicf
from aicf import model_file, nn
from aicf.device.calibration import SHIPPED, Calibration
from aicf.device.spec import PRESETS, measured_on, preset
from aicf.errors import AicfError
from aicf.files import Bad
from aicf.pages import story as notebook
from aicf.pages.data import accuracy_in, check_explanation
from aicf.printing import render
from aicf.registry.trace import describe_product

from .chains import rows_of

ROOT = Path(aicf.__file__).parents[1]
GOLDEN = Path(__file__).parent / "golden"


def example(name: str, mode: str) -> tuple:
    made = model_file.load(str(ROOT / "examples" / f"{name}.py"), mode)
    return made.model, made.loss, made.optimizer


def gemm_bias() -> nn.Model:
    """Example 4.1 of the source: GEMM + BiasAdd is canonically GEMM+BIAS."""
    return nn.Model({"x": aicf.TensorSpec(("batch", 256))}, batch=128).add(nn.Linear(256, 512))


def linear_relu() -> nn.Model:
    """Example 4.2: nonlinear absorbs linear."""
    return gemm_bias().add(nn.ReLU())


STORIES = {
    "4.1_gemm_bias": (lambda: (gemm_bias(), None, None), "infer"),
    "4.2_linear_relu": (lambda: (linear_relu(), None, None), "infer"),
    "mlp_infer": (lambda: example("mlp", "infer"), "infer"),
    "mlp_train": (lambda: example("mlp", "train"), "train"),
    "residual_infer": (lambda: example("residual", "infer"), "infer"),
    "residual_train": (lambda: example("residual", "train"), "train"),
}


def told(name: str, device: str) -> aicf.graph.run.explain.Explanation:
    make, mode = STORIES[name]
    model, loss, optimizer = make()
    return aicf.explain_for(model, preset(device), mode, loss=loss, optimizer=optimizer)


def story(device: str, mode: str) -> aicf.graph.run.explain.Explanation:
    return told(f"mlp_{mode}", device)


def accepted(name: str, text: str) -> str:
    """The golden text of a name; AICF_ACCEPT=1 accepts this one."""
    file = GOLDEN / name
    if os.environ.get("AICF_ACCEPT") == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    return file.read_text()


@pytest.mark.spec("A1", "A4", "B12", "F5", "F6")
@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_the_explanation_of_an_example_reads_as_it_did(device, name):
    """The table, and each of its regions in full."""
    explanation = told(name, device)
    text = f"{explanation}\n\n{paragraphs(explanation)}\n"
    assert text == accepted(f"{name}_{device}.txt", text), "AICF_ACCEPT=1 accepts the new text"


@pytest.mark.spec("A7", "B12", "F5", "F6")
@pytest.mark.parametrize("name", STORIES)
def test_the_explanation_of_an_example_holds_what_it_did(name):
    """In short: of each region what ended it, its steps, and the choice."""
    data = told(name, "h200").to_json()
    for region in data["regions"]:
        region["candidates"] = region["candidates"][:2]
        region["rejected"] = len(region["rejected"])
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    assert text == accepted(f"{name}_h200.json", text), "AICF_ACCEPT=1 accepts the new data"


@pytest.mark.spec("A3", "A4")
@pytest.mark.parametrize("device", ["cpu", "h200", "t4"])
def test_the_documents_examples_come_out_as_they_say(device):
    """4.1: linear stays, and a bias is there. 4.2: nonlinear absorbs linear, and an activation is there."""
    (biased,), (active,) = told("4.1_gemm_bias", device).regions, told("4.2_linear_relu", device).regions
    assert biased.spec.signature == "gemm + bias_add"
    assert (biased.state.attrs["linearity"], biased.state.attrs["slot"]) == ("linear", "gemm+map")
    assert active.spec.signature == "gemm + bias_add + relu"
    assert (active.state.attrs["linearity"], active.state.attrs["core"]) == ("nonlinear", "gemm")
    assert (active.state.anchor, active.state.last) == (active.anchor, active.last) == (0, 2)


@pytest.mark.spec("B12", "F5")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_the_verbose_explanation_names_every_variant_that_was_asked(device):
    explanation = story(device, "infer")
    text = " ".join(str(explanation.verbose()).split())
    for region in explanation.regions:
        for candidate in region.selection.ranked:
            assert candidate.variant.id in text
        for rejection in region.selection.rejected:
            assert f"{rejection.variant.id} {rejection.reject.reason}" in text


def paragraphs(explanation) -> str:
    return "\n".join(str(explanation.region(n)) for n in range(len(explanation.regions)))


@pytest.mark.spec("F5")
@pytest.mark.sample(1, each="everything")
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("everything", [False, True], ids=["short", "verbose"])
def test_regions_are_told_in_full_at_any_width(width, everything):
    """No line is too long, nothing is cut, and no line begins in a gutter further right than the labels' column."""
    explanation = replace(story("h200", "train"), everything=everything)
    for told in [explanation.region(n) for n in range(len(explanation.regions))] + [explanation] * everything:
        text = render(told, width)
        for line in text.splitlines():
            assert len(line) <= width, line
            assert len(line) - len(line.lstrip()) <= 12, line
        assert "…" not in text
        assert "".join(text.split()) == "".join(render(told, 1000).split())
        if width >= 80 and told is not explanation:  # an id is never broken where there is room for one
            assert told.step.kernel_id in text


@pytest.mark.sample(2, each="name")
@pytest.mark.spec("F5")
@pytest.mark.parametrize("width", [40, 60, 80, 100, 118, 160, 250])
@pytest.mark.parametrize("name", ["mlp_train", "residual_train", "residual_infer"])
def test_each_region_is_a_line_of_a_table_that_fits(name, width):
    explanation = told(name, "h200")
    text = render(explanation, width)
    assert max(map(len, text.splitlines())) <= width
    _, table, _ = text.split("\n\n")
    names, *rows = table.splitlines()
    assert names.split()[:4] == ["region", "ops", "kernel", "time"]
    assert [int(row.split()[0]) for row in rows] == sorted(first_of_its_kind(explanation))
    counts = [int(found[1]) if (found := re.match(r"\d+ ×(\d+)", row)) else 1 for row in rows]
    assert sum(counts) == len(explanation.regions)
    for row in rows if width >= 118 else []:
        n = int(row.split()[0])
        region, others = explanation.regions[n], explanation.regions[n].selection.ranked[1:]
        assert region.selection.chosen.variant.name in row
        if others:
            gap = others[0].us - region.selection.chosen.us
            assert "equal: " in row or (f"+{gap:.2f} us: " in row if gap < 10 else f"+{gap:.3g} us: " in row)
        ended = region.ended
        begins = (
            f"{ended.row}: {ended.left[:4]}" if ended.trigger in ("conflict", "barrier") else ended.trigger
        )
        assert f"  {begins}" in row


def first_of_its_kind(explanation) -> dict[int, list[int]]:
    """By the first of each kind of region all of that kind."""
    kinds: dict[tuple, list[int]] = {}
    for n, r in enumerate(explanation.regions):
        like = (
            tuple((op.kind, op.attrs) for op in r.spec.ops), tuple(t.dtype for t in r.spec.operands), len(r.spec.outputs),
            r.kernel_id, describe_product(r.selection), r.ended.trigger, r.ended.row,
        )  # fmt: skip
        kinds.setdefault(like, []).append(n)
    return {numbers[0]: numbers for numbers in kinds.values()}


@pytest.mark.spec("F5")
def test_regions_that_are_alike_but_for_their_shapes_are_one_line_with_the_time_of_all():
    explanation = told("residual_train", "h200")
    text, kinds = str(explanation), first_of_its_kind(explanation)
    assert any(len(numbers) > 1 for numbers in kinds.values())
    for first, numbers in kinds.items():
        if len(numbers) > 1:
            us = sum(explanation.regions[n].selection.chosen.us for n in numbers)
            assert re.search(rf"^{first} ×{len(numbers)} .* {us:.3g} us  ", text, re.MULTILINE)
            others = ", ".join(map(str, numbers[1:]))
            assert f"like it   {others}\n" in str(explanation.region(first))
    verbose = str(explanation.verbose())
    assert len(re.findall(r"^region \d+ .* ops? \d", verbose, re.MULTILINE)) == len(explanation.regions)
    assert "like it" not in verbose


@pytest.mark.spec("F5")
def test_a_region_that_is_not_there_is_refused():
    explanation = story("cpu", "infer")
    for wrong in (-1, 3, "0", 1.0):
        with pytest.raises(AicfError, match=f"no region {wrong}") as error:
            explanation.region(wrong)
        assert "0 to 2" in str(error.value)


@pytest.mark.spec("A13", "F5")
def test_optimizer_steps_side_by_side_are_counted_in_their_title():
    assert "adam_step ×6   ops 27..32" in str(story("h200", "train").region(13))


@pytest.mark.spec("A9", "F5")
def test_why_a_region_ended_is_said_in_a_sentence_and_kept_as_data():
    regions = story("h200", "train").regions
    said = {r.ended.sentence for r in regions}
    assert "the next op, gemm, conflicts in core: gemm meets gemm" in said
    assert "the next op, cross_entropy, conflicts in core: gemm meets cross_entropy" in said
    assert regions[-1].ended.sentence == "it is the last one"
    first = regions[0].ended
    assert (first.trigger, first.row, first.left, first.right) == ("conflict", "core", "gemm", "gemm")
    assert first.detail == "gemm: core: gemm meets gemm"


@pytest.mark.spec("A8", "F5")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_how_a_region_grew_is_told_step_by_step(device):
    explanation = story(device, "train")
    for region in explanation.regions:
        left = [step.candidates for step in region.steps]
        assert left == sorted(left, reverse=True), "candidates only shrink"
        told = [step.op.partition(" ×")[0] for step in region.steps for _ in range(step.count)]
        assert told == [op.kind.name for op in region.spec.ops]
    first = explanation.regions[0].steps
    assert f"gemm {first[0].candidates} candidate" in str(explanation.region(0))
    assert f"bias_add {first[1].candidates}" in str(explanation.region(0))
    assert "slot gemm+map" in " ".join(str(explanation.verbose()).split())


@pytest.mark.spec("A9")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_the_summary_counts_kernels_and_bytes_before_and_after_fusion(device):
    explanation = story(device, "train")
    gain = explanation.gain
    run = [r for r, s in zip(explanation.regions, explanation.plan.steps) if s.kernel_id]
    assert gain.kernels == len(run) < gain.kernels_before == sum(len(r.spec.ops) for r in run)
    assert gain.bytes == sum(r.spec.nbytes for r in run) < gain.bytes_before
    assert gain.us == explanation.predicted_us < gain.us_before
    assert str(gain) in " ".join(str(explanation).split("\n"))


@pytest.mark.spec("F5")
def test_it_renders_itself_in_colour_and_as_html():
    console = Console(file=io.StringIO(), force_terminal=True, width=118, record=True)
    console.print(story("h200", "infer"))
    assert "\x1b[" in console.file.getvalue()
    assert "gemm_tiled[32x32]" in console.export_html()
    assert "\x1b[" not in str(story("h200", "infer"))


@pytest.mark.spec("F5")
def test_the_json_holds_regions_choices_and_reasons_and_is_the_same_each_time():
    data = story("h200", "train").to_json()
    assert json.dumps(data, sort_keys=True) == json.dumps(story("h200", "train").to_json(), sort_keys=True)
    assert (data["mode"], data["device"]) == ("train", "h200")
    position = 0
    for region in data["regions"]:
        assert region["anchor"] == position
        position = region["last"] + 1
        assert region["ended"]["trigger"] in (
            "end",
            "conflict",
            "candidates",
            "barrier",
            "sync",
            "cost",
            "limit",
        )
        assert region["chosen"] == region["candidates"][0]["id"]
        scores = [c["score"] for c in region["candidates"]]
        assert scores == sorted(scores, reverse=True)
        assert all(c["us"] == pytest.approx(sum(c["terms"].values())) for c in region["candidates"])
        assert all(r["reason"] for r in region["rejected"])
    text = json.dumps(data)
    assert str(ROOT) not in text
    assert not re.search(r"20\d\d-\d\d", text)


@pytest.mark.sample(6)
@pytest.mark.spec("F6")
@pytest.mark.parametrize("device", sorted(PRESETS))
def test_every_preset_is_explained_without_its_device_and_without_compiling(device):
    data = story(device, "train").to_json()
    assert data["device"] == device
    assert {r["chosen"].split(".")[0] for r in data["regions"]} == {preset(device).kind}


@pytest.mark.spec("B12")
def test_a_program_explains_the_plan_it_runs():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3).add(nn.Linear(4, 2)).add(nn.ReLU())
    program = aicf.compile(model, device="cpu")
    assert program.plan.key in str(program.explain())
    assert program.compiled({"batch": 7}).plan.key in str(program.explain({"batch": 7}))


# --- log lines --------------------------------------------------------------------------------------------------------

LINE = re.compile(
    r"^gemm \+ bias_add \+ relu -> cpu\.gemm_blas\.v3 \S+ us f32\[3x4\], f32\[2x4\], f32\[2\] stream=0x0$"
)


@pytest.mark.spec("B12")
def test_aicf_logs_select_logs_each_choice_once(caplog, monkeypatch):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 4))}, batch=3).add(nn.Linear(4, 2)).add(nn.ReLU())
    aicf.compile(model, device="cpu")
    assert not caplog.records
    monkeypatch.setenv("AICF_LOGS", " select,")
    program = aicf.compile(model, device="cpu")
    (line,) = [r.getMessage() for r in caplog.records if r.name == "aicf.select"]
    assert LINE.match(line), line
    program.run({"x": rows_of()})
    program.replay({"x": rows_of()})
    assert len(caplog.records) == 1, "running chooses nothing"
    program.replay({"x": rows_of(5)})
    assert "f32[5x4]" in caplog.records[1].getMessage()


@pytest.mark.spec("B12")
def test_aicf_logs_select_writes_to_stderr_where_nothing_is_configured():
    code = """
import aicf
from aicf import nn
aicf.compile(nn.Model({"x": aicf.TensorSpec((3, 4))}).add(nn.Linear(4, 2)).add(nn.ReLU()), device="cpu")
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "AICF_LOGS": "select"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    (line,) = ran.stderr.splitlines()
    assert LINE.match(line.removeprefix("[aicf.select] ")), line


def test_logging_s_own_level_is_left_alone_when_it_is_low_enough(caplog, monkeypatch):
    monkeypatch.setenv("AICF_LOGS", "select")
    with caplog.at_level(logging.DEBUG, "aicf.select"):
        aicf.compile(nn.Model({"x": aicf.TensorSpec((3, 4))}).add(nn.ReLU()), device="cpu")
        assert logging.getLogger("aicf.select").level == logging.DEBUG
    assert len(caplog.records) == 1


def test_the_predicted_total_is_the_sum_of_what_runs():
    explanation = story("h200", "infer")
    total = sum(r.selection.chosen.us for r in explanation.regions)
    assert f"predicted {total:.3g} us in {len(explanation.regions)} kernels" in str(explanation)
    assert np.isfinite(total)


RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.spec("F6")
def test_a_device_whose_predictions_were_never_measured_is_named(request):
    """Measured are the cards with results, and the CPU: drawn presets, and a card that has no preset."""
    cards = {json.loads(file.read_text())["meta"]["gpu"] for file in RESULTS.glob("nvidia-*/*.json")}
    fitted = {"cpu", *(file.stem for file in SHIPPED.glob("*.json"))}
    measured = {"cpu", *(preset(card).name for card in cards)} if cards else fitted
    assert measured == fitted
    draws = rng(request.node.nodeid)
    others = [str(name) for name in draws.choice(sorted(set(PRESETS) - measured), 3, replace=False)]
    unknown = replace(preset(others[0]), name="quadro")
    for spec in (*map(preset, (*sorted(measured), *others)), unknown):
        explanation = aicf.explain_for(gemm_bias(), spec)
        data = explanation.to_json()
        want = spec.name if spec.name in measured else None
        assert data["measured_on"] == want == measured_on(spec)
        line = f"predictions for {spec.name} are not measured: their constants were fitted on an h200"
        for text in (str(explanation), str(explanation.verbose()), notebook.explanation(data)):
            assert text.count(line) == (want is None), spec.name
        assert str(explanation.region(0)).count(line) == (want is None), spec.name
        del data["measured_on"]
        assert "not measured" not in notebook.explanation(data), "an older file does not say"


@pytest.mark.spec("F6")
def test_errors_of_predictions_are_in_the_verbose_text_the_data_and_the_page():
    errors = {
        "all regions": {"regions": 40, "regret": 0.01, "over": 0.0, "off": 0.123},
        "products": {"regions": 9, "off": 0.08},
    }
    spec = preset("h200")
    values = spec.calibration.values
    known, unknown = (
        aicf.explain_for(gemm_bias(), replace(spec, calibration=Calibration("h200", values, e)))
        for e in (errors, {})
    )
    line = "predictions are off by 12% for all regions, 8% for products"
    assert line in str(known.verbose()) and line not in str(known) and line not in str(unknown.verbose())
    data = json.loads(json.dumps(known.to_json()))
    check_explanation(data)
    assert data["prediction_errors"] == errors and "prediction_errors" not in unknown.to_json()
    assert (line in accuracy_in(data), accuracy_in(unknown.to_json())) == (True, "")
    data["prediction_errors"]["products"] = "few"
    with pytest.raises(Bad):
        check_explanation(data)


def test_measured_times_need_no_such_line():
    explanation = aicf.explain_for(gemm_bias(), "t4")
    chosen = explanation.regions[0].selection.chosen
    timed = chosen._replace(cost=chosen.cost.measured(3.0))
    selection = replace(explanation.regions[0].selection, chosen=timed)
    region = replace(explanation.regions[0], selection=selection)
    assert "not measured" in str(explanation)
    timed = replace(explanation, regions=(region,))
    assert "not measured" not in str(timed) + str(timed.region(0))
