"""The documentation site's pages as they are generated, and what its check notices. `make docs` builds and checks the whole."""

import ast
import re
import sys
from pathlib import Path

import pytest

import aicf
from aicf import cli, nn
from aicf.ops.schema import schema_of, schemas

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools").exists():
    pytest.skip("a source distribution has no tools", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from tools.docs_site import check, house_style, ops, reference, stage, tutorials  # noqa: E402

DOCSTRING = """Sum of x*y_ for |rows|: `f(x)` of a `Value`s, "a:b".

axis      along which it sums; it may
          be negative
dtypes,   f32
keep_dims whether it stays

    code = x ** 2
    more_()

- not a list
"""
IN_RST = r"""Sum of x\*y\_ for \|rows\|: ``f(x)`` of a ``Value``\ s, "a\:b".

.. rst-class:: terms

``axis``
    along which it sums; it may be negative
``dtypes,``
    f32
``keep_dims``
    whether it stays

::

    code = x ** 2
    more_()

\- not a list
"""


def test_a_docstring_stays_what_it_says():
    assert "\n".join(house_style.to_rst(DOCSTRING)) == IN_RST
    assert house_style.inline("a ` alone, and a_b") == r"a \` alone, and a\_b"


# --- pages ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_ops() -> dict[str, str]:
    return dict(ops.pages())


def test_there_is_a_page_for_each_op_with_its_constraints_and_kernels(of_ops):
    found = list(schemas())
    assert of_ops.keys() == {"ops/index", *(f"ops/{s.name}" for s in found)} and len(found) > 150
    for schema in found:
        page = of_ops[f"ops/{schema.name}"]
        for number in re.findall(r"^(C\d+) ", schema.doc, re.MULTILINE):
            assert f"``{number}``" in page, (schema.name, number)
        for variant in aicf.default_registry().variants(schema.kind):
            assert f"<kernel-{variant.kernel}>" in page
        assert (":Gradient: none" in page) is (schema.gradient_fn is None and schema.instead_fn is None)
        assert f":doc:`{schema.name}`" in of_ops["ops/index"]
    assert "chosen    cuda.rows_resident" in of_ops["ops/softmax"]
    assert "On h200 it is other ops, in these kernels:" in of_ops["ops/tril"]


def test_a_page_of_an_op_says_what_is_written_here_by_hand(of_ops):
    page = of_ops["ops/softmax_grad"]
    assert "    softmax_grad(dy: float, y: float, *, axis: int = -1) -> dx\n" in page
    assert "``C2``\n    dy has the shape of y" in page
    assert "   * - ``y``\n     - ``f32``, ``f16``, ``bf16``\n" in page
    assert "    return (dy - (dy * y).sum(axis, keepdims=True)) * y\n" in page, "the reference"
    assert (
        ":Gradient: none" in page and ":Gradient: a rule of ``dy``, ``y``, ``axis``" in of_ops["ops/softmax"]
    )
    assert (
        "simpler ops may stand in its place" in of_ops["ops/einsum"]
        and "emit.transpose(" in of_ops["ops/einsum"]
    )


def test_a_notebook_s_page_has_its_text_its_code_and_its_outputs():
    shown = {"data": {"text/plain": ["<SVG>"], "image/svg+xml": ["<svg>\n</svg>"]}}
    cells = [
        {"cell_type": "markdown", "source": ["See [02](02-x.ipynb#a) and\n", "[it](../docs/trace.md)."]},
        {"cell_type": "code", "source": ["1 ```"], "outputs": [{"text": ["\x1b[32mgreen\x1b[0m\n"]}, shown]},
        {"cell_type": "code", "source": ["%pip list"], "outputs": []},
    ]
    assert tutorials.page({"cells": cells}).split("\n\n") == [
        "See [02](02-x.md#a) and\n[it](../docs/trace.md).",
        "````python\n1 ```\n````",
        "```text\ngreen\n```",
        '```{raw} html\n<div style="overflow-x:auto">\n<svg>\n</svg>\n</div>\n```',
        "```ipython\n%pip list\n```\n",
    ]


def test_every_notebook_has_a_page_that_the_index_leads_to():
    names = [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]
    made = tutorials.pages(ROOT / "notebooks")
    assert list(made) == ["README", *names] and len(names) >= 9
    for name in names:
        assert f"]({name}.md)" in made["README"] and f"\n{name}\n" in made["README"]
        assert made[name].startswith("# ") and ".ipynb)" not in made[name]


@pytest.mark.parametrize("device", ["h200", "cpu"])
def test_the_kernel_of_an_example_is_the_one_that_a_model_gets(device, of_ops):
    (shape,) = schema_of("softmax").sample_specs[0]["shapes"]

    class Alone(nn.Layer):
        def emit(self, ctx, x):
            return ctx.softmax(x)

    model = nn.Model({"x": aicf.TensorSpec(shape)}, Alone())
    (region,) = aicf.explain_for(model, device).to_json()["regions"]
    row = (
        of_ops["ops/softmax"].partition("   * - device\n     - chosen")[2].partition(f"   * - {device}\n")[2]
    )
    assert row.startswith(f"     - :ref:`{region['chosen']} <")


def test_the_reference_has_every_public_name_command_and_setting():
    pages = dict(reference.pages())
    shown = "\n".join(pages.values())
    for module in (aicf, nn, aicf.models, aicf.training, nn.init, nn.schedules):
        for name in set(module.__all__) - {
            "__version__",
            "errors",
            "models",
            "nn",
            "training",
            "init",
            "schedules",
            "AicfError",
        }:
            assert re.search(rf"[ .]{re.escape(module.__name__)}\.{name}\b", shown), (
                f"{module.__name__}.{name}"
            )
    for framework in ("torch", "jax"):
        source = (ROOT / "aicf" / "frontends" / framework / "__init__.py").read_text()
        for name in ast.literal_eval(re.search(r"^__all__ = (.*)$", source, re.MULTILINE)[1]):
            assert re.search(rf" aicf\.({framework}\.)?{name}\b", shown), f"aicf.{framework}.{name}"
    for command in cli.COMMANDS:
        assert f"\naicf {command.__name__.rpartition('.')[2]}\n---" in pages["reference/commands"]
    assert ".. option:: --diff OTHER\n" in pages["reference/commands"]
    listed = re.findall(r"^\| `(AICF_\w+)`", (ROOT / "docs" / "guide.md").read_text(), re.MULTILINE)
    assert sorted(re.findall(r"envvar:: (\w+)", pages["reference/settings"])) == sorted(listed)
    assert "aicf.from_torch(module" in shown, "read from its source: torch is not imported"
    for variant in aicf.default_registry():
        assert f".. _kernel-{variant.kernel}:\n" in pages["reference/kernels"]


def test_a_public_name_without_a_page_stops_the_build(monkeypatch):
    monkeypatch.setattr(nn, "__all__", [*nn.__all__, "Untold"])
    with pytest.raises(SystemExit, match=r"aicf\.nn no page has \['Untold'\]"):
        list(reference.pages())


def test_the_copy_has_every_document_in_some_table_of_contents(tmp_path, monkeypatch):
    monkeypatch.setattr(ops, "pages", list)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "gone.md").write_text("# of an earlier build\n")
    stage.stage(tmp_path)
    documents = {p.relative_to(ROOT).with_suffix("").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    copied = {p.relative_to(tmp_path).with_suffix("").as_posix() for p in tmp_path.rglob("*.md")}
    assert (
        documents | {"README", "README.ko", "CONTRIBUTING", "CHANGELOG"} <= copied
        and "docs/gone" not in copied
    )
    listed = set()
    for path in tmp_path.rglob("*.md"):
        for inside in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(), re.DOTALL):
            lines = [line for line in inside.split("\n") if line and not line.startswith(":")]
            names = [line.rpartition("<")[2].rstrip(">") for line in lines]  # Title <name>
            listed |= {(path.parent / name).relative_to(tmp_path).as_posix() for name in names}
    assert listed >= copied - {"index"}
    assert "](../examples/gpt.md)" in (tmp_path / "docs" / "guide.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}
    stage.stage(tmp_path)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.md")}, (
        "what is the same is not read again"
    )


# --- the check --------------------------------------------------------------------------------------------------------------

WHOLE = """<html><head><link rel="stylesheet" href="s.css?v=1"><link rel="canonical" href="https://example.org/"></head>
<body id="top"><a href="sub/other.html#here">x</a><a href="https://example.org">out</a><a href="#top"></a>
<img src="data:image/png;base64,AA=="><form action="sub/other.html"></form></body></html>"""


@pytest.fixture
def site(tmp_path) -> Path:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(WHOLE)
    (tmp_path / "sub" / "other.html").write_text('<p id="here"><a href="../index.html">back</a></p>')
    (tmp_path / "s.css").write_text("a { background: url('dot.svg') } /* http://www.w3.org */")
    return tmp_path


def test_a_site_that_is_whole_passes(site, tmp_path_factory):
    assert check.faults(site) == []
    assert check.faults(tmp_path_factory.mktemp("empty")) != []


@pytest.mark.parametrize(
    "file, more, said",
    [
        (
            "index.html",
            '<script src="https://cdn.example.org/x.js"></script>',
            "loads https://cdn.example.org/x.js",
        ),
        ("index.html", '<img src="//cdn.example.org/x.png">', "loads //cdn.example.org/x.png"),
        (
            "index.html",
            '<link rel="preconnect" href="https://fonts.example.org">',
            "loads https://fonts.example.org",
        ),
        ("sub/other.html", "<style>@import 'https://x.org/a.css';</style>", "loads https://x.org/a.css"),
        ("s.css", "@font-face { src: url(https://x.org/a.woff2) }", "loads https://x.org/a.woff2"),
        ("index.html", '<a href="gone.html">', "no file for the link gone.html"),
        ("index.html", '<script src="gone.js"></script>', "no file for the link gone.js"),
        ("sub/other.html", '<a href="../index.html#gone">', "no anchor for the link ../index.html#gone"),
        ("index.html", '<a href="#gone">', "no anchor for the link #gone"),
    ],
)
def test_what_is_wrong_is_one_line(site, file, more, said):
    (site / file).write_text((site / file).read_text() + more)
    assert check.faults(site) == [f"{file}: {said}"]
