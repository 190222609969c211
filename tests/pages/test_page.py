"""The page of an explanation (F5): whole, closed, escaped, the same from a file; in a browser where there is one."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest

import aicf
from aicf.cli import main
from aicf.errors import StateError
from aicf.files import Bad
from aicf.pages.data import check_drawn
from aicf.pages.graph import drawings
from aicf.pages.page import page

from .support import EXAMPLE, HOSTILE, hostile, many, trained

VOID = {"br", "input", "meta", "link", "img"}


class Reader(HTMLParser):
    """The elements that a page has, each closed in its turn, and the text in them."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(name="trained", scope="module")
def _trained():
    return trained()


@pytest.mark.spec("F5")
def test_the_page_has_every_region_with_its_kernel_and_is_whole(trained):
    source = page(trained, "mlp.py")
    read = Reader(source)
    regions = [a for tag, a in read.tags if tag == "details" and a.get("class") == "region"]
    assert [a["id"] for a in regions] == [f"r{n}" for n in range(len(trained["regions"]))]
    boxes = [a["data-n"] for tag, a in read.tags if tag == "g" and a.get("class") == "region"]
    assert boxes == [str(n) for n in range(len(trained["regions"]))]
    waiting = {a["id"] for tag, a in read.tags if tag == "script" and a.get("type") == "text/plain"}
    later = {a["data-later"] for tag, a in read.tags if "data-later" in a}
    assert later <= waiting
    ids = [a["id"] for _, a in read.tags if "id" in a]
    assert len(ids) == len(set(ids))
    for region in trained["regions"]:
        for rejected in region["rejected"]:
            assert rejected["id"] in source
        for candidate in region["candidates"]:
            assert candidate["id"] in source


@pytest.mark.spec("F5")
def test_the_page_asks_nothing_of_the_network(trained):
    source = page(trained)
    assert not re.search(r'(src|href)="(?!#)', source)
    assert not re.search(r"https?:|//cdn|@import|url\(", source)
    assert "default-src 'none'" in source


@pytest.mark.spec("F5")
def test_names_are_shown_and_never_run(trained):
    """Elements are those of harmless names, wherever the markup stands; the texts that wait are read as pages of their own."""

    def outline(source: str) -> list[str]:
        read = Reader(source)
        inside = [t for t in read.texts if t.startswith(("<dl>", "<table>"))]
        return sorted([tag for tag, _ in read.tags] + [tag for t in inside for tag, _ in Reader(t).tags])

    spoilt = hostile(trained)
    check_drawn(spoilt)
    source = page(spoilt, HOSTILE)
    tags = set(outline(source))
    assert "img" not in tags and tags == set(outline(page(trained)))
    assert not [a for _, a in Reader(source).tags if any(key.startswith("on") for key in a)]
    assert "\x1b" not in source and "\u202e" not in source and "\\x1b[31m" in source
    assert source.count("<script") == page(trained).count("<script") + len(set(re.findall(r'id="(w\d+)"', source))) - len(
        set(re.findall(r'id="(w\d+)"', page(trained)))
    )  # fmt: skip


@pytest.mark.spec("F5")
def test_the_command_writes_the_same_page_from_a_model_and_from_its_json(tmp_path, capsys):
    assert main(["explain", EXAMPLE, "--device", "h200", "--json"]) == 0
    saved = tmp_path / "told.json"
    saved.write_text(capsys.readouterr().out)
    assert main(["report", str(saved), "-o", str(tmp_path / "a.html")]) == 0
    assert main(["report", EXAMPLE, "--device", "h200", "-o", str(tmp_path / "b.html")]) == 0
    a, b = ((tmp_path / name).read_text() for name in ("a.html", "b.html"))
    words = [
        sorted(re.findall(r"[\w.+-]+", re.sub(r"sha256-[^']+", "", s)))
        for s in (a.replace("told.json", "mlp.py"), b)
    ]
    assert words[0] == words[1]  # a file's objects are in order of their names


@pytest.mark.spec("F5")
def test_a_file_that_is_no_explanation_is_refused_with_its_place(tmp_path, capsys, trained):
    broken = json.loads(json.dumps(trained))
    broken["regions"][2]["reads"] = [10**6]
    with pytest.raises(Bad):
        check_drawn(broken)
    (tmp_path / "x.json").write_text(json.dumps(broken))
    assert main(["report", str(tmp_path / "x.json"), "-o", str(tmp_path / "x.html")]) == 2
    assert "regions[2].reads" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()


@pytest.mark.sample(1, pool="long graphs")
@pytest.mark.spec("F5")
def test_the_page_of_thousands_of_ops_is_a_few_megabytes_drawn_in_parts():
    data = many(2_500)
    source = page(data)
    assert len(source) < 4e6
    assert max(drawn.count("<rect") for _, drawn in drawings(data)) < 1_000
    assert source.count('class="region"') == 2 * len(data["regions"])


@pytest.mark.spec("F5")
def test_the_command_takes_a_profile_and_refuses_that_of_another_plan(tmp_path, capsys, trained):
    (tmp_path / "told.json").write_text(json.dumps(trained))
    times = [{"measured_us": None if r["view"] else 4321.0} for r in trained["regions"]]
    (tmp_path / "mine.json").write_text(json.dumps({"plan": trained["plan"], "regions": times}))
    (tmp_path / "other.json").write_text(json.dumps({"plan": "other", "regions": times}))
    report = ["report", str(tmp_path / "told.json"), "-o", str(tmp_path / "r.html"), "--profile"]
    assert main([*report, str(tmp_path / "other.json")]) == 2
    said = capsys.readouterr().err
    assert (
        "no profile of this plan: plan is wrong" in said and "aicf profile FILE --json > PROFILE.json" in said
    )
    assert not (tmp_path / "r.html").exists()
    assert main([*report, str(tmp_path / "mine.json")]) == 0
    assert "measured 4.32 ms" in (tmp_path / "r.html").read_text()


def test_a_program_s_page_has_the_measured_times_of_its_plan(tmp_path):
    program = aicf.compile(
        aicf.nn.Model({"x": aicf.TensorSpec((4, 8))}).add(aicf.nn.Linear(8, 4)), device="cpu"
    )
    profile = {
        "plan": program.plan.key,
        "regions": [{"measured_us": 4321.0} for _ in program.explain().regions],
    }
    assert "measured 4.32 ms" in program.report(tmp_path / "r.html", profile=profile).read_text()
    with pytest.raises(StateError, match=r"no profile of the plan: plan is wrong(.|\n)*got(.|\n)*other"):
        program.report(tmp_path / "r.html", profile={**profile, "plan": "other"})


def test_a_program_writes_its_page(tmp_path):
    model = aicf.nn.Model({"x": aicf.TensorSpec((4, 8))}).add(aicf.nn.Linear(8, 4))
    path = aicf.compile(model, device="cpu").report(tmp_path / "r.html")
    assert "gemm" in path.read_text()
