"""`aicf demo`: it learns, it fits a screen, and its JSON has what it promises."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest
from nn.mlp import on_each_device
from rich.console import Console

import aicf
from aicf import demo
from aicf.cli import main
from aicf.printing import render


@on_each_device
@pytest.mark.spec("D16", "F5")
def test_it_learns_the_digits_and_writes_its_json(device, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = tmp_path / "demo.json"
    assert main(["demo", "--device", device, "--json", str(file)]) == 0
    data = json.loads(file.read_text())
    assert {"test_accuracy", "train_accuracy", "step_us", "device", "selections"} <= set(data)
    assert data["test_accuracy"] >= 0.97
    assert 0.97 <= data["train_accuracy"] <= 1
    assert set(data["step_us"]) == {"eager", "replay"}
    assert all(us > 0 for us in data["step_us"].values())
    assert data["device"] == ("cpu" if device == "cpu" else data["device"])
    assert all(s["chosen"].startswith(f"{device}.") for s in data["selections"])
    out, err = capsys.readouterr()
    assert out.startswith(f"{data['test_accuracy']:.1%} of 360 digits") and err == ""
    assert_a_screen(out)


def assert_a_screen(out: str) -> None:
    lines = out.splitlines()
    assert len(lines) <= 25 and max(map(len, lines)) <= 80, out
    assert not any(line.endswith(" ") for line in lines)
    for label in (r"\d+ ops", "kernels", "fused", "chosen", "next"):
        assert re.search(rf"^(\d+ )?{label}  ", out, re.MULTILINE), label


def story(device: str, other: str, wrong: int) -> demo.Story:
    _, _, images, labels = demo.digits()
    told = labels.copy()
    told[:wrong] = 9
    model, how = demo.build_model(), demo.recipe(690)
    explained = [aicf.explain_for(model, name, "train", **how) for name in (device, other)]
    return demo.Story(*explained, {"eager": 300.0, "replay": 287.0}, 30, 2.3, images, labels, told)


@pytest.mark.spec("F5", "F6")
@pytest.mark.parametrize(
    "device, other", [("cpu", "h200"), ("h200", "a100"), ("t4", "h200"), ("b200", "h200")]
)
@pytest.mark.parametrize("wrong", [0, 5])
def test_what_it_tells_is_a_screen_of_80_columns_on_any_device(device, other, wrong):
    told = render(made := story(device, other, wrong), width=80)
    assert_a_screen(told)
    assert ("a 9, not 0" in told) == (wrong > 0)
    assert f"on {other.upper()}" in told
    for explanation, kernels in ((made.explanation, "kernels"), (made.other, f"on {other.upper()}")):
        row = next(line for line in told.splitlines() if re.match(rf"\d+ {kernels}", line))
        marks = row.split(kernels)[1].split()
        assert [len(m.split("━")) for m in marks] == [len(r.spec.ops) for r in explanation.regions]
    chosen = demo.choosing(made.explanation).selection
    assert chosen.kernel_id in told and chosen.ranked[1].variant.id in told
    assert len(render(made, width=160).splitlines()) <= len(told.splitlines())


def test_the_choices_that_are_told_matter_most():
    explanation = story("h200", "a100", 0).explanation
    most = demo.fusing(explanation)
    saved = [
        sum(s.alone_us for s in r.steps) - r.selection.chosen.us
        for r in explanation.regions
        if len(r.steps) > 1
    ]
    assert sum(s.alone_us for s in most.steps) - most.selection.chosen.us == max(saved)
    longest = max(r.selection.chosen.us for r in explanation.regions if len(r.selection.ranked) > 1)
    assert demo.choosing(explanation).selection.chosen.us == longest


def test_digits_are_drawn_in_shades_where_the_terminal_has_them():
    image = np.zeros(64, np.float32)
    image[0], image[8], image[63] = 1.0, 1.0, 0.5
    assert [line.plain for line in demo.drawn(image, shaded=False)] == [
        "█       ",
        " " * 8,
        " " * 8,
        "       ▄",
    ]
    shaded = demo.drawn(image, shaded=True)
    assert shaded[0].spans[0].style == "rgb(255,255,255) on rgb(255,255,255)"
    assert shaded[3].spans[-1].style == "rgb(0,0,0) on rgb(128,128,128)"
    for options, expected in (
        ({"color_system": "truecolor"}, True),
        ({"no_color": True}, False),
        ({}, False),
    ):
        console = Console(
            file=io.StringIO(), force_terminal=True, width=80, **{"color_system": "truecolor", **options}
        )
        if not options:
            console = Console(file=io.StringIO(), width=80)
        console.print(story("cpu", "h200", 0))
        assert ("\x1b[38;2;" in console.file.getvalue()) == expected


def test_the_data_are_split_without_overlap_by_class_and_seeded():
    x, y, x_test, y_test = demo.digits()
    assert (len(x), len(x_test)) == (1437, 360)
    assert x.dtype == x_test.dtype == np.float32 and (x.min(), x.max()) == (0, 1)
    assert y.dtype == np.int64
    assert all(np.array_equal(a, b) for a, b in zip((x, y, x_test, y_test), demo.digits()))
    assert not np.array_equal(x_test, demo.digits(seed=1)[2])
    assert set(map(bytes, x)).isdisjoint(map(bytes, x_test))
    both = np.bincount(y) + np.bincount(y_test)
    assert np.abs(np.bincount(y_test) - both / 5).max() <= 1


def test_the_data_are_those_that_their_file_names():
    notice = demo.DATA.with_name("README.md").read_text()
    assert "Creative Commons Attribution 4.0" in notice and "UCI Machine Learning Repository" in notice
    with np.load(demo.DATA) as data:
        images, labels = data["images"], data["labels"]
    assert images.shape == (1797, 8, 8) and images.max() == 16
    assert np.bincount(labels).tolist() == [
        178,
        182,
        177,
        183,
        181,
        182,
        181,
        179,
        174,
        180,
    ]  # as UCI counts them
    assert demo.DATA.stat().st_size < 60_000


PROGRESS = """
import aicf
from aicf import demo, progress
progress.AFTER = 0.0
aicf.compile(demo.build_model(), device="cpu").capture({"x": demo.digits()[0][:64]})
"""


def whole(terminal: int) -> str:
    """All that is written to it: a read may end anywhere, in the middle of a character too."""
    parts = []
    with contextlib.suppress(OSError):  # EIO: whoever wrote has closed it
        while part := os.read(terminal, 1 << 16):
            parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()


@pytest.mark.sample(1, pool="processes")
def test_progress_is_for_terminals_only():
    command = [sys.executable, "-c", PROGRESS]
    there = {**os.environ, "AICF_CACHE": "off"}
    quiet = subprocess.run(command, capture_output=True, text=True, check=True, env=there)
    assert quiet.stdout.strip() == "" and quiet.stderr == ""
    leader, follower = pty.openpty()
    env = {
        **os.environ,
        "TERM": "xterm",
        "COLUMNS": "80",
        "AICF_CACHE": "off",
    }  # so that there is something to compile
    with subprocess.Popen(
        [sys.executable, "-c", PROGRESS], stdout=follower, stderr=follower, env=env
    ) as told:
        os.close(follower)
        shown = whole(leader)
    assert told.returncode == 0, shown
    # which of them, and how many, depends on when the line was drawn last: a loop takes milliseconds
    assert (
        "compiling kernels" in shown
        and re.search("[0-3]/3", shown)
        and re.search("relu|bias_add|gemm", shown)
    )


def test_timing_steps_leaves_the_weights_as_they_were():
    from nn.mlp import batch_of, same, trainer

    program = trainer("cpu")
    before = program.state_dict()
    times = demo.step_times(program, batch_of(6), runs=3)
    assert times["eager"] > 0
    assert same(program.state_dict(), before)


def test_everything_is_told_when_asked_for(capsys):
    assert main(["demo", "--device", "cpu", "--epochs", "1", "-v"]) == 0
    out = capsys.readouterr().out
    assert "it never saw. 1 epoch in " in out
    assert "167,178" in out and "region 0 " in out and "rejected" in out
    assert len(out.splitlines()) > 100


@pytest.mark.parametrize(
    "called, shown",
    [("/somewhere/aicf/__main__.py", "python -m aicf"), ("/nowhere/bin/aicf", "/nowhere/bin/aicf")],
)
def test_the_commands_are_those_that_work_here(called, shown, monkeypatch):
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setenv("PATH", "/nowhere/else")
    assert demo.command() == shown


def test_the_command_is_short_where_the_path_has_it(tmp_path, monkeypatch):
    script = tmp_path / "aicf"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", str(tmp_path))
    assert demo.command() == "aicf"
