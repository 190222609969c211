"""How public objects print (F5, F6): in colour and without, at 80 and 160 columns, in a terminal, piped, and as HTML."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from registry.synthetic import kernel, registry_of
from rich.console import Console

import aicf
from aicf import nn, printing, progress
from aicf.cli import info
from aicf.device.spec import preset
from aicf.graph.run.capture import CaptureReport, Segment
from aicf.graph.run.diff import Diff
from aicf.graph.run.region_text import ROWS, RegionTable
from aicf.printing import Printed, render
from aicf.text import visible

ROOT = Path(aicf.__file__).parents[1]
GOLDEN = Path(__file__).parent / "printed"
EVIL = "[bold]x[/] \x1b[31mred\x1b[0m <script>alert(1)</script>\r\u202e"
COLOUR = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")


class Named(nn.Layer):
    """Nothing but a name."""

    def emit(self, ctx, x):
        return {f"{EVIL} y": ctx.tanh(ctx.relu(x))}

    def __repr__(self) -> str:
        return EVIL


KINDS = (
    "explanation", "verbose", "region", "selection", "diff", "wanted", "picture", "plan", "summary", "captured",
)  # fmt: skip


@cache
def objects(evil: bool) -> dict[str, Printed]:
    """One of each kind, of a small model or of one whose names are hostile."""
    if evil:
        model = nn.Model({EVIL: aicf.TensorSpec((4, 8))}).add(Named())
        variants = [kernel(f"cpu.{EVIL}.v1", origin=EVIL), kernel("cpu.two.v1", us=2.0)]
        told = aicf.explain_for(model, replace(preset("cpu"), name=EVIL), registry=registry_of(*variants))
        other = aicf.explain_for(model, "cpu", registry=registry_of(variants[1]))
    else:
        model = nn.Model({"x": aicf.TensorSpec(("batch", 64))}, batch=32)
        model.add(nn.Linear(64, 128)).add(nn.ReLU()).add(nn.Linear(128, 10))
        told, other = (aicf.explain_for(model, name) for name in ("h200", "t4"))
    name = EVIL if evil else "gemm"
    made = {
        "explanation": told,
        "verbose": told.verbose(),
        "region": told.region(0),
        "selection": told.regions[0].selection,
        "diff": Diff(told.to_json(), other.to_json()),
        "wanted": told.want("cpu.two.v1" if evil else "gemm_tiled[64x64]"),
        "picture": told.picture(),
        "plan": told.plan,
        "summary": model.summary(),
        "captured": CaptureReport("h200", (Segment(0, 1, 2), Segment(2, 2, 0, name)), 4096, (name,)),
    }
    assert tuple(made) == KINDS
    return made


def printed(told: Printed, width: int, colour: bool) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="truecolor" if colour else None,
        legacy_windows=False, highlight=False, _environ={},
    )  # fmt: skip
    console.print(told)
    return console.file.getvalue()


@pytest.mark.spec("F5")
@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("width", [80, 160])
def test_they_read_as_they_did(width, colour):
    told = {name: one for name, one in objects(False).items() if name != "verbose"}
    text = "".join(f"=== {name}\n{printed(one, width, colour)}" for name, one in told.items())
    text = re.sub(" +$", "", text.replace("\x1b", "␛"), flags=re.MULTILINE)
    file = GOLDEN / f"{width}{'_colour' * colour}.txt"
    if os.environ.get("AICF_ACCEPT") == "1":
        file.write_text(text)
    assert text == file.read_text(), "AICF_ACCEPT=1 accepts the new text"


@pytest.mark.sample(1, each="name")
@pytest.mark.spec("F5")
@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("evil", [False, True], ids=["usual", "hostile"])
@pytest.mark.parametrize("name", KINDS)
def test_names_are_shown_and_colour_changes_nothing_but_colour(name, evil, width):
    told = objects(evil)[name]
    plain, coloured = printed(told, width, False), printed(told, width, True)
    assert COLOUR.sub("", coloured) == plain
    assert ("\x1b[" in coloured) or name in ("summary",)
    for text in (plain, str(told)):
        assert visible(text) == text, "nothing in it that a terminal obeys"
        assert max(map(len, text.splitlines())) <= (width if text is plain else printing.WIDTH)
    if evil:
        said = "".join(str(told).split()) + repr(told)
        assert "[bold]x[/]" in said or "[bold]x[" in said or name == "explanation"
    bundle = told._repr_mimebundle_(include=None, exclude=None)  # as IPython calls it
    html = bundle.get("text/html") or getattr(told, "_repr_svg_", lambda: "")() or told._repr_html_()
    assert html and "<script" not in html and bundle["text/plain"] == str(told)


@pytest.mark.spec("F5")
def test_whatever_has_a_rendering_has_them_all():
    """By the source: what rich draws is `Printed`, which gives text and notebooks the same; what a notebook draws has a text, too."""
    # these, what stands in others, and the demo's end
    make = {"Printed", "Visible", "ByWidth", "RegionTable", "Story", "InNotebook"}
    printed, wrong = [], []
    named = re.compile("__rich|JupyterMixin|_repr_(html|svg|mimebundle)_|InNotebook|_rendering")
    texts = (path.read_text(encoding="utf-8") for path in Path(aicf.__file__).parent.rglob("*.py"))
    for text in filter(named.search, texts):
        for node in ast.walk(ast.parse(text)):
            if not isinstance(node, ast.ClassDef) or node.name in make:
                continue
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef)}
            bases = {ast.unparse(base) for base in node.bases}
            rich = methods & {"__rich__", "__rich_console__"} or "JupyterMixin" in bases
            notebook = methods & {"_repr_html_", "_repr_svg_", "_repr_mimebundle_"} or "InNotebook" in bases
            if rich or (notebook and not methods & {"__str__", "__repr__"}):
                wrong += [] if "Printed" in bases else [node.name]
            printed += [node.name] if "_rendering" in methods else []
    assert wrong == []
    assert {
        "Explanation",
        "RegionStory",
        "Selection",
        "Diff",
        "Picture",
        "Summary",
        "Report",
        "ExecPlan",
    } <= set(printed)


@pytest.mark.spec("F5")
def test_many_regions_are_counted_and_the_longest_shown():
    story = objects(False)["explanation"].region(0)
    slow = replace(story, region=objects(False)["explanation"].regions[1])
    groups = [[replace(story if n % 100 else slow, number=n)] for n in range(10_000)]
    lines = render(RegionTable(groups)).splitlines()
    assert len(lines) == 1 + ROWS + 1 and f"and {10_000 - ROWS} more regions" in lines[-1]
    longest = max(story.us, slow.us)
    shown = [int(line.split()[0]) for line in lines[1:-1]]
    assert shown == sorted(shown)
    of_longest = [n for n in range(10_000) if (story if n % 100 else slow).us == longest]
    assert set(shown) <= set(of_longest) or set(of_longest) <= set(shown)


def whole(terminal: int) -> str:
    parts = []
    with contextlib.suppress(OSError):  # EIO: whoever wrote has closed it
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("F5")
def test_a_terminal_gets_colour_and_its_width_and_a_pipe_neither():
    command = [sys.executable, "-m", "aicf", "explain", str(ROOT / "examples" / "mlp.py"), "--device", "h200"]
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    env |= {"TERM": "xterm-256color", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    piped = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert "\x1b" not in piped.stdout + piped.stderr
    assert max(map(len, piped.stdout.splitlines())) > 80, "as wide as everywhere"
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdout=follower, stderr=follower, env=env) as told:
        os.close(follower)
        shown = whole(leader).replace("\r\n", "\n")
    assert told.returncode == 0 and "\x1b[1m" in shown
    lines = COLOUR.sub("", shown).splitlines()
    assert visible("\n".join(lines)) == "\n".join(lines) and max(map(len, lines)) <= 80
    assert any(line.startswith("0 ") and "gemm+bias_add+relu" in line for line in lines)


def test_names_that_commands_print_are_shown(capsys, monkeypatch):
    monkeypatch.setattr(
        "aicf.dispatch.default_registry", lambda: registry_of(kernel(f"cpu.{EVIL}.v1", origin=EVIL))
    )
    from argparse import Namespace

    assert info.run(Namespace(op=None)) == 0
    assert info.run(Namespace(op="relu")) == 0
    assert aicf.cli.main(["explain", f"/nowhere/{EVIL}.py"]) == 2
    for text in capsys.readouterr():
        assert visible(text) == text and "[bold]x[/]" in text


def test_what_a_terminal_obeys_is_spelt_out():
    assert visible("a\x1b[1mb\n") == r"a\x1b[1mb" + "\n"
    assert visible("\x00\t\r\x7f\x9b\u202e\u2028\udc80") == r"\x00\t\r\x7f\x9b\u202e\u2028\udc80"
    assert visible("a\u200bb\u2060c\ufeff") == r"a\u200bb\u2060c\ufeff"  # without width
    assert visible("a\n\tb", keep="") == r"a\n\tb" and visible("a\n\tb", keep="\n\t") == "a\n\tb"
    assert visible("naïve ×12 · 漢字 [bold]") == "naïve ×12 · 漢字 [bold]"


# --- lines for what takes long ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def terminal(monkeypatch):
    """stderr as a terminal of 80 columns."""
    screen = io.StringIO()
    screen.isatty = lambda: True
    for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stderr(screen):
        yield screen


def test_lines_that_are_open_at_once_stand_below_each_other(monkeypatch):
    monkeypatch.setattr(progress, "AFTER", 0.0)
    with terminal(monkeypatch) as screen, progress.progress("step", 9, kept=True) as step:
        step(3, None, EVIL)
        with progress.kernels(40) as ready:
            ready.done = 7
            with progress.compiling("cuda.gemm.v1"):
                progress._shown.refresh()
                assert len(progress._shown.tasks) == 2
        assert len(progress._shown.tasks) == 1
        step(9, None, "done")
    assert progress._shown is None and progress._open == 0
    shown = screen.getvalue()
    for said in ("step", "3/9", "7/40", "compiling kernels", "cuda.gemm.v1", "9/9"):
        assert said in shown
    assert "\x1b[31m" not in shown and "[bold]x[/]" in shown


def test_a_line_comes_when_something_takes_a_while(monkeypatch):
    with terminal(monkeypatch) as screen, progress.progress("compiling kernels", after=0.01) as advance:
        advance(0, 1, "cuda.gemm.v1")
        deadline = time.monotonic() + 20
        while "cuda.gemm.v1" not in screen.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
    with terminal(monkeypatch) as screen, progress.progress("compiling kernels", after=60.0) as advance:
        advance(0, 1, "cuda.gemm.v1")
    assert screen.getvalue() == "" and progress._shown is None


def test_nothing_is_said_where_nothing_is_compiled_or_nobody_reads(monkeypatch):
    with terminal(monkeypatch) as screen:
        with progress.kernels(3) as ready:
            pass
        assert ready._advance is None and screen.getvalue() == ""
        screen.isatty = lambda: False
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setattr(progress, "AFTER", 0.0)
        with progress.progress("tuning") as advance, progress.compiling("cuda.gemm.v1"):
            assert advance is progress.no_progress and progress._shown is None
        assert screen.getvalue() == ""
