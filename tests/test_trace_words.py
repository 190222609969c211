"""docs/trace.md has every word that the trace can print: its labels, rows, triggers and terms of a time."""

import ast
import re
from pathlib import Path

import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.graph.fuse import online
from aicf.registry import trace
from aicf.registry.select import select
from aicf.rows.rows import ROWS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "trace.md"
if not PAGE.exists():
    pytest.skip("no documents here", allow_module_level=True)


def explained(*titles: str) -> set[str]:
    """The words that head the items under these titles."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2]))
    heads = re.findall(r"^- (\*\*.+?\*\*):", "\n".join(sections[t] for t in titles), re.MULTILINE)
    return {word for head in heads for word in re.findall(r"\*\*(.+?)\*\*", head)}


def words_in(source: Path, wanted) -> set[str]:
    return {word for node in ast.walk(ast.parse(source.read_text())) for word in wanted(node)}


def strings(node) -> list[str]:
    return [n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def test_every_row():
    assert explained("The rows of a region") == {row.name for row in ROWS}


def test_every_trigger():
    """As `Ended` and `Conflict` list them."""
    source = Path(online.__file__).read_text()
    listed = re.search(r"trigger: str  # (.+)", source)[1].split(" | ")
    made = re.findall(r'Ended\(\s*"(\w+)"', source)
    assert set(made) <= set(listed)
    assert explained("Why a region ended") == set(listed)


def test_every_label():
    """What stands at the left of a line, as the code has it and as a printed trace does."""

    def labels(node):
        """("chosen", "green", text), whichever way the first and the second come about."""
        if isinstance(node, ast.Tuple) and len(node.elts) == 3 and not isinstance(node.elts[0], ast.Name):
            style = strings(node.elts[1])
            if style and set(style) <= {"dim", "green", "red", "yellow", ""}:
                return [word for word in strings(node.elts[0]) if word]
        return []

    made = words_in(Path(trace.__file__), labels)
    assert {"grew", "chosen", "next", "rejected", "ended"} <= made
    assert made <= explained("The lines of a region")
    model = nn.Model({"x": (64, 64)})
    for _ in range(2):
        model.add(nn.Linear(64, 64)).add(nn.GELU()).add(nn.Linear(64, 64))
    for device in ("h200", "cpu"):
        told = aicf.explain_for(model, device, mode="grad", loss=nn.MeanSquaredError())
        for text in (*(str(told.region(n)) for n in range(len(told.regions))), str(told.verbose())):
            assert set(re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE)) <= explained("The lines of a region")
        heads = str(told).split("\n\n")[1].splitlines()[0].split()
        assert set(heads) <= explained("A line of the table")


def test_every_term_that_a_cost_is_made_of():
    def terms(node):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "plus":
            keywords = [k.arg for k in node.keywords if k.arg]
            return keywords + [s for k in node.keywords if k.arg is None for s in strings(k.value)]
        if isinstance(node, ast.Subscript) and getattr(node.value, "id", "") == "terms":
            return strings(node.slice)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Cost" and node.args:
            keys = node.args[0].keys if isinstance(node.args[0], ast.Dict) else ()
            return [k.value for k in keys if k is not None]
        return []

    known = explained("The terms of a time")
    folders = [ROOT / "aicf" / f for f in ("registry", "cpu_kernels", "cuda_kernels")]
    made = {word for folder in folders for path in folder.rglob("*.py") for word in words_in(path, terms)}
    assert {"compute", "sum of parts", "column sums", "measured"} <= made
    assert made <= known


def test_every_term_of_regions_as_models_have_them():
    instances = pytest.importorskip("benchmarks.instances", reason="a source distribution has no benchmarks")
    registry, known = aicf.default_registry(), explained("The terms of a time")
    seen = set()
    for device in map(preset, ("h200", "a100", "cpu")):
        for instance in instances.instances()[::5]:
            found = select(instance.region(device.kind), device, registry)
            seen |= {term for candidate in found.ranked for term in candidate.cost.terms}
    assert len(seen) > 12 and seen <= known
