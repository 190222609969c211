"""The page of an explanation (F5): whole, closed, escaped, the same from a file; in a browser where there is one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

import aicf
from aicf import model_file
from aicf.cli import main
from aicf.files import Bad
from aicf.pages.data import check_drawn
from aicf.pages.graph import drawings
from aicf.pages.page import page, write

EXAMPLE = str(Path(aicf.__file__).parents[1] / "examples" / "mlp.py")
HOSTILE = '</script><script>document.title="run"</script><img src=x onerror=\'document.title="run"\'>\x1b[31m\u202e"&amp;'
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


@pytest.fixture(scope="module")
def trained():
    made = model_file.load(EXAMPLE, "train")
    told = aicf.explain_for(made.model, "h200", "train", loss=made.loss, optimizer=made.optimizer)
    return json.loads(json.dumps(told.to_json()))


def repeated(data: dict, times: int) -> dict:
    """The same schedule again and again, each value another one."""
    more = max(v["vid"] for v in data["values"]) + 1
    ops = data["regions"][-1]["last"] + 1
    count = len(data["regions"])
    values = [
        {
            **v,
            "vid": v["vid"] + more * i,
            **({"life": [n + count * i for n in v["life"]]} if "life" in v else {}),
        }
        for i in range(times)
        for v in data["values"]
    ]
    regions = [
        {**r, "anchor": r["anchor"] + ops * i, "last": r["last"] + ops * i, "reads": [v + more * i for v in r["reads"]], "writes": [v + more * i for v in r["writes"]]}
        for i in range(times)
        for r in data["regions"]
    ]  # fmt: skip
    return {**data, "values": values, "regions": regions}


def hostile(data: dict) -> dict:
    """The same with the worst of names in each place that text has."""

    def spoilt(value, key=""):
        if isinstance(value, dict):
            return {k: spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoilt(v, key) for v in value]
        return value + HOSTILE if isinstance(value, str) else value

    made = spoilt(data)
    made["regions"][0]["candidates"][0]["terms"] = {HOSTILE: 3.0}
    return made


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


@pytest.mark.spec("F5")
def test_ten_thousand_ops_make_a_page_of_a_few_megabytes_drawn_in_parts(trained):
    ops = trained["regions"][-1]["last"] + 1
    many = repeated(trained, -(-10_000 // ops))
    source = page(many)
    assert len(source) < 16e6
    assert max(drawn.count("<rect") for _, drawn in drawings(many)) < 1_000
    assert source.count('class="region"') == 2 * len(many["regions"])


def test_a_program_writes_its_page(tmp_path):
    model = aicf.nn.Model({"x": aicf.TensorSpec((4, 8))}).add(aicf.nn.Linear(8, 4))
    path = aicf.compile(model, device="cpu").report(tmp_path / "r.html")
    assert "gemm" in path.read_text()


@pytest.mark.spec("F5")
def test_a_browser_fills_what_is_opened_and_runs_no_name(tmp_path, trained):
    """The page is asked for a region by its address: its details are drawn, and the title is the page's own."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    path = write(hostile(trained), tmp_path / "r.html")
    command = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--dump-dom",
        f"--user-data-dir={tmp_path}",
        f"file://{path}#r1",
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    opened = dom[dom.index('id="r1"') :].partition('id="r2"')[0]
    assert "<dt>chosen</dt>" in opened and "<img" not in dom and "<title>run" not in dom
