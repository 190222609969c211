"""What objects show in a notebook (F5): whole, without scripts, both forms beside each other, small however long the graph, names never run."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.files import Bad
from aicf.graph.run.diff import Diff
from aicf.pages import curves, objects, story
from aicf.pages.data import check_profile, measured_by
from aicf.pages.page import page
from aicf.training import History

from .support import HOSTILE, explained, hostile, many, spoilt, trained
from .test_page import Reader

FORBIDDEN = {"script", "style", "iframe", "object", "embed", "link", "form", "img", "base", "meta"}
TUNED = {
    "device": "h200", "seconds": 2.5, "measured": ["a", "b"], "left": ["c"], "gain": 1.5, "us_before": 30.0, "us_after": 20.0,
    "skipped": [{"region": "d", "why": "it has no reference"}], "wrong": [{"region": "a", "kernel": "k1", "why": "3 is not 4"}],
    "changed": [{"region": "a", "before": "k1", "after": "k2", "us_before": None, "us_after": 7.0}],
    "regions": [{"region": "a", "kernel": "k1", "predicted_us": 5.0, "measured_us": 10.0}],
}  # fmt: skip


def checked(html: str) -> Reader:
    """Well-formed, and nothing in it runs, loads, or has an influence on the rest of the notebook."""
    read = Reader(html)
    tags = {tag for tag, _ in read.tags}
    assert not tags & FORBIDDEN
    for _, attributes in read.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("href", "src", "id")]
        assert "url(" not in (attributes.get("style") or "")
    assert "http" not in html
    return read


def program():
    model = nn.Model({"x": aicf.TensorSpec((8, 6))}).add(nn.Linear(6, 4)).add(nn.ReLU()).add(nn.Linear(4, 3))
    made = aicf.compile(model, device="cpu")
    _ = made.plan
    return made


def compiled_over():
    return nn.Model({"x": aicf.TensorSpec(("<b>batch", 6))}, **{"<b>batch": 8}).add(nn.Linear(6, 4))


def history() -> History:
    made = History(losses=[2.0, 1.0, 0.5], validation=[(2, 1.5)], stopped="steps")
    made.place.step = 3
    return made


def shown():
    other = json.loads(json.dumps(explained("a100").to_json()))
    compiled = program()
    return {
        "explanation": explained(), "plan": compiled.plan, "program": compiled, "diff": Diff(trained(), other),
        "wanted": explained().want("gemm*"), "sweep": aicf.explain_over(compiled_over(), "h200", "1..64"), "compilations": compiled.compilations,
        "summary": compiled.recipe.model.summary(), "history": history(), "curve": history().curve(),
    }  # fmt: skip


@pytest.mark.spec("F5")
def test_every_object_has_both_forms_and_nothing_in_them_runs():
    for name, thing in shown().items():
        bundle = thing._repr_mimebundle_()
        assert bundle["text/plain"] == str(thing) and "\x1b" not in bundle["text/plain"], name
        read = checked(bundle["text/html"])
        assert len(read.texts) > 3, name
    checked(objects.tuning(TUNED))


@pytest.mark.spec("F5")
def test_an_explanation_draws_each_region_and_its_time():
    data = trained()
    read = checked(story.explanation(data))
    boxes = [a["data-n"] for tag, a in read.tags if tag == "g" and a.get("class") == "region"]
    assert boxes == [str(n) for n in range(len(data["regions"]))]
    summaries = "".join(read.texts)
    for region in data["regions"]:
        assert region["chosen"] in summaries and region["ended"]["sentence"] in summaries
    assert (
        "candidates" in summaries and "rejected, with reasons" in summaries and "Arena over time" in summaries
    )
    widths = [float(w) for w in re.findall(r"width:([\d.]+)%", story.explanation(data))]
    by_kind: dict[tuple, float] = {}
    for r in data["regions"]:
        key = r["region"], r["chosen"], r["ended"]["trigger"]
        by_kind[key] = by_kind.get(key, 0.0) + r["candidates"][0]["us"]
    longest = max(by_kind.values())
    np.testing.assert_allclose(widths, [max(100 * us / longest, 0.5) for us in by_kind.values()], atol=0.06)


@pytest.mark.spec("F5")
def test_measured_times_stand_beside_the_predicted_ones():
    data = trained()
    times = [None if r["view"] else 1000.0 + n for n, r in enumerate(data["regions"])]
    profile = {"plan": data["plan"], "regions": [{"measured_us": us} for us in times]}
    check_profile(profile, data)
    told = "".join(checked(story.explanation(data, measured_by(profile))).texts)
    sheet = Reader(page(data, "", profile))
    assert "measured 14.1 ms" in told and "14.1 ms" in sheet.texts, "14 × 1 ms, and 0 to 13 us"
    assert sum("measured 1.01 ms" in text for text in sheet.texts) >= 2 * 8, (
        "5 us and more: in the graph and in the list"
    )
    assert "measured" not in "".join(checked(story.explanation(data)).texts)
    for wrong, at in (({**profile, "plan": "other"}, "plan"), ({**profile, "regions": profile["regions"][1:]}, "regions"),
                      ({**profile, "regions": [{"measured_us": -1.0}, *profile["regions"][1:]]}, "regions[0].measured_us")):  # fmt: skip
        with pytest.raises(Bad) as bad:
            check_profile(wrong, data)
        assert bad.value.at == at


@pytest.mark.spec("F5")
def test_a_graph_of_thousands_of_ops_is_a_small_output():
    html = story.explanation(many(2_500))
    assert html.count('class="region"') == story.DRAWN and len(html) < 7e5
    assert "×76" in html and "are not drawn here" in html


@pytest.mark.spec("F5")
def test_names_are_shown_and_never_run_in_any_of_them():
    worst = hostile(trained())
    outline = sorted(tag for tag, _ in checked(story.explanation(trained())).tags)
    assert sorted(tag for tag, _ in Reader(story.explanation(worst)).tags) == outline
    comparison = Diff(worst, worst).to_json()
    comparison["differences"] = [
        {"anchor": 0, "last": 1, "left": [worst["regions"][0] | {"us": 1.0}], "right": []}
    ]
    fragments = [
        story.explanation(worst), objects.difference(comparison), objects.tuning(spoilt(TUNED)),
        objects.layers(("name",), [(HOSTILE,)], ("total",)), curves.Curve(HOSTILE, {HOSTILE: [(1, 2.0)]})._repr_html_(),
        objects.program([(HOSTILE, HOSTILE)], HOSTILE, None),
    ]  # fmt: skip
    for html in fragments:
        read = Reader(html)
        assert not {tag for tag, _ in read.tags} & FORBIDDEN
        assert not [a for _, a in read.tags if any(name.startswith("on") for name in a)]
        assert "\x1b" not in html and "\u202e" not in html and "onerror=" in "".join(read.texts)


def test_what_jupyterlab_leaves_of_a_drawing_is_a_sentence():
    """It takes SVG away and keeps the words in it: all of them stand where text has no size."""
    html = story.explanation(trained())
    drawings = re.findall(r'<div style="font-size:0;[^"]*">(.*?)</div>', html, re.S)
    assert len(drawings) == 2 and all(d.startswith("<svg") and d.endswith("</svg>") for d in drawings)
    assert html.count("<svg") == sum(d.count("<svg") for d in drawings)
    assert html.count("content-visibility:hidden") == len(drawings)


def path_of(svg: str, name: str) -> list[tuple[float, float]]:
    colour = curves.LINES[name]
    found = re.search(rf'<path d="([^"]*)" fill="none" stroke="{colour}"', svg)
    return [tuple(map(float, p.split())) for p in re.split("[ML]", found[1])[1:]]


def test_a_curve_is_drawn_to_scale_and_what_is_no_number_leaves_a_gap():
    svg = curves.losses({"loss": [(1, 4.0), (2, float("nan")), (3, 2.0), (5, 1.0)], "validation": [(3, 3.0)]})
    (x1, y1), (x3, y3), (x5, y5) = path_of(svg, "loss")
    assert (x3 - x1) / (x5 - x1) == pytest.approx(0.5, abs=0.01)
    assert (y3 - y1) / (y5 - y1) == pytest.approx(2 / 3, abs=0.01) and y5 > y1
    assert path_of(svg, "validation")[0] == pytest.approx((x3, (y1 + y3) / 2), abs=0.2)
    assert svg.count("M") >= 2 and "nan" not in svg
    logarithmic = curves.losses({"loss": [(1, 1000.0), (2, 10.0), (3, 0.1)]})
    (_, a), (_, b), (_, c) = path_of(logarithmic, "loss")
    assert b - a == pytest.approx(c - b, abs=0.2)
    for odd in ([(1, 3.0)], [(1, 3.0), (2, 3.0)], [(1, 0.0)], [(1, -5.0), (2, 5.0)], [(1, float("inf"))], []):
        drawn = curves.losses({"loss": odd})
        assert "nan" not in drawn and "inf" not in drawn


def test_long_runs_are_drawn_by_means_of_neighbours():
    points = [(n, float(n % 2)) for n in range(1, 10_001)]
    thin = curves.thinned(points, 100)
    assert len(thin) == 100 and thin[-1][0] == 10_000 and all(y == 0.5 for _, y in thin)
    assert curves.thinned(points[:100], 100) == points[:100]


def test_a_run_says_what_it_was():
    assert str(history()) == "3 steps, ended by steps · loss 0.5 · validation 1.5, the least 1.5 at step 2"
    assert history().curve().lines["loss"] == [(1, 2.0), (2, 1.0), (3, 0.5)]
    assert str(History()) == "0 steps" and "No loss is known yet" in History()._repr_html_()
