"""The documents say what is so: their code runs, their traces are what the tool prints, their paths and links exist."""

import ast
import os
import re
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import cli, config

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
KOREAN = ROOT / "README.ko.md"
GUIDE = ROOT / "docs" / "guide.md"
DOCUMENTS = [README, KOREAN, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRACE = re.compile(r"^\$ aicf (explain [^\n]*)\n(.*?)(?=^```|^\n\$)", re.DOTALL | re.MULTILINE)


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("mode", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_readmes_example_runs(mode, tmp_path, monkeypatch, capsys):
    (code,) = blocks(README, "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AICF_DEVICE", mode)
    names: dict = {"__name__": "readme"}
    exec(compile(code, str(README), "exec"), names)
    printed = capsys.readouterr().out
    assert float(names["loss"]) < 0.2
    assert names["logits"].shape == (5, 10)
    assert (names["logits"].argmax(1) == names["y"][:5]).all()
    assert names["train"].device == names["infer"].device == mode
    assert "gemm + bias_add + relu" in printed
    assert len(code.split("\n\n")[1].splitlines()) == 10, "ten lines"


FENCED = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)


def test_the_readme_in_korean_has_the_same_code_headings_links_and_figures():
    """AICF_ACCEPT=1 copies the code, the trace among it."""
    english, korean = README.read_text(), KOREAN.read_text()
    code = FENCED.findall(english)
    if os.environ.get("AICF_ACCEPT") == "1":
        known = iter(code)
        korean = FENCED.sub(lambda _: next(known), korean)
        KOREAN.write_text(korean)
    assert FENCED.findall(korean) == code, "copy them: AICF_ACCEPT=1 pytest tests/test_docs.py"

    def structure(text: str) -> tuple:
        prose = FENCED.sub("", text)
        headings = [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)]
        links = sorted(re.findall(r"\]\(([^)]+)\)", prose))
        names = sorted(set(re.findall(r"`([^`\n]+)`", prose)))
        return headings, links, names, re.findall("<!-- measured -->.*?<!-- /measured -->", prose, re.DOTALL)

    (headings, links, names, tables), of_korean = structure(english), structure(korean)
    assert of_korean[0] == headings and of_korean[2:] == (names, tables) and len(tables) == 1
    assert "README.ko.md" in links and of_korean[1] == sorted(
        {"README.ko.md": "README.md"}.get(u, u) for u in links
    )
    words = FENCED.sub("", korean.partition("<!-- measured -->")[0])
    assert len(re.findall("[가-힣]{2,}", words)) > 80, "it is in Korean"


@pytest.mark.parametrize("mode", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_guide_runs_from_top_to_bottom_and_prints_what_it_shows(mode, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AICF_DEVICE", mode)
    names: dict = {"__name__": "guide"}
    for n, code in enumerate(blocks(GUIDE, "python")):
        exec(compile(code, f"docs/guide.md, block {n}", "exec"), names)
    assert names["train"].device == mode
    printed = capsys.readouterr().out
    for shown in blocks(GUIDE, "text"):
        assert shown in printed
    assert "NaN" in printed, "AICF_CHECK named the op"
    with pytest.MonkeyPatch.context() as patch:  # an empty batch, as the guide says
        patch.setenv("AICF_DEVICE", mode)
        model, nn, aicf = names["model"], names["nn"], names["aicf"]
        grad = aicf.compile(model, "grad", loss=nn.SoftmaxCrossEntropy())
        got = grad({"x": names["x"][:0], "y": names["y"][:0]})
    assert np.isnan(got["loss"].numpy())
    assert not any(t.numpy().any() for name, t in got.items() if name.startswith("grad."))


def test_the_guide_names_every_environment_variable_that_there_is():
    named = set(re.findall(r"^\| `(AICF_\w+)`", GUIDE.read_text(), re.MULTILINE))
    assert named == set(re.findall(r"^(AICF_\w+)", config.__doc__, re.MULTILINE))


@pytest.mark.spec("F5", "F6")
def test_the_readmes_traces_are_what_the_tool_prints(monkeypatch, capsys):
    """Of a whole explanation the table. AICF_ACCEPT=1 writes what the tool prints now into the README."""
    text = README.read_text()
    commands = TRACE.findall(text)
    assert len(commands) == 2
    monkeypatch.chdir(ROOT)
    for command, shown in commands:
        assert cli.main(command.split()) == 0
        stanzas = capsys.readouterr().out.rstrip().split("\n\n")
        printed = stanzas[1 if len(stanzas) > 1 else 0] + "\n"
        if os.environ.get("AICF_ACCEPT") == "1":
            text = text.replace(f"{command}\n{shown}", f"{command}\n{printed}")
        else:
            assert shown == printed, (
                "the trace has changed; if it should have: AICF_ACCEPT=1 pytest tests/test_docs.py"
            )
    if os.environ.get("AICF_ACCEPT") == "1":
        README.write_text(text)


@pytest.mark.parametrize(
    "name, most", [("README.md", 1000), ("docs/performance.md", 1600), ("docs/kernels/gemm.md", 3000)]
)
def test_pages_that_are_to_be_read_whole_stay_short(name, most):
    """Words, with those of their tables."""
    text = (ROOT / name).read_text()
    assert sum(any(c.isalnum() for c in word) for word in text.split()) <= most


def test_links_lead_somewhere():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
            assert target.startswith("https://") or (path.parent / target).exists(), (path.name, target)


def test_files_that_are_named_exist():
    for path in DOCUMENTS:
        prose = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        for name in re.findall(r"`((?:aicf|tests|docs|tools|examples|\.ci)/[\w./*-]*)`", prose):
            assert any(ROOT.glob(name)), (path.name, name)


@pytest.mark.parametrize("page, least", [("architecture.md", 20), ("kernels/gemm.md", 20)])
def test_functions_that_are_named_with_their_files_are_there(page, least):
    """`module.py` is followed by the names it holds: `aicf/graph/compile.py` (`compile_graph`)."""
    text = (ROOT / "docs" / page).read_text()
    named = re.findall(r"`(aicf/[\w/]+\.py)`\s+\(([^)]*)\)", text)
    assert len(named) >= least
    for file, names in named:
        source = (ROOT / file).read_text()
        for name in re.findall(r"`([A-Za-z_][\w.]*)`", names):
            last = name.split(".")[-1]
            assert re.search(rf"^\s*(?:def|class) {last}\b|^\s*{last}\b.*=", source, re.MULTILINE), (
                file,
                name,
            )


def test_commands_that_are_named_exist(capsys):
    named = {}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for path in DOCUMENTS:
        text, shell = path.read_text(), "".join(blocks(path, "sh"))
        found = re.findall(r"(?:`|\$ |bin/)aicf ([a-z]+)", text)
        found += re.findall(r"^aicf ([a-z]+)", shell, re.MULTILINE)
        named |= dict.fromkeys(found, path.name)
        for target in re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE):
            assert target in targets, f"{path.name}: make {target}"
    for command, where in named.items():
        with pytest.raises(SystemExit) as done:
            cli.main([command, "--help"])
        assert done.value.code == 0, f"{where}: aicf {command}"


def test_docstrings_have_no_ids_of_the_specification():
    """They are read by people who have never seen it; the tests carry the ids."""
    row_of = re.compile(r"\([A-F]\d{1,2}\b[^)]*\)")
    texts = {path: path.read_text() for path in Path(aicf.__file__).parent.rglob("*.py")}
    trees = {path: ast.parse(text) for path, text in texts.items() if row_of.search(text)}
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = [
        f"{path.name}: {row.group()}"
        for path, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        for row in row_of.finditer(ast.get_docstring(node, clean=False) or "")
    ]
    assert not found
