"""AICF_DUMP: each file of a dump against what it is of, and that dumping changes nothing and never stops a compilation."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import aicf
from aicf import cli, nn
from aicf.cpu_kernels.compiler import shown as host
from aicf.dispatch import default_registry
from aicf.graph.compile import dump_for
from aicf.graph.dump import dump as dumping
from aicf.graph.dump import texts
from aicf.graph.dump.folder import DumpFolder, slug
from aicf.types import AttrPack, OpKind

from . import dump_support
from .dump_support import HOSTILE, X, Y, model, read, tiny, training

pytestmark = pytest.mark.spec("F8")


@pytest.fixture(autouse=True)
def forget_warnings():
    dumping._warn_once.cache_clear()


@pytest.fixture(scope="module")
def dumped(tmp_path_factory):
    """(the folder, the program that was dumped there and has run once)"""
    base = tmp_path_factory.mktemp("dumps") / "not" / "there yet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AICF_DUMP", str(base))
        patch.setattr(
            host, "code_texts", lambda spec: ("", "")
        )  # seconds: one kernel's are enough: test_dump_kernels.py
        program = training()
        program({"x": X, "y": Y})
    (folder,) = base.iterdir()
    return folder, program


def explained(program: aicf.Program) -> dict:
    return json.loads(json.dumps(program.explain().to_json()))


def test_the_folder_says_what_was_compiled(dumped):
    folder, _ = dumped
    assert folder.name == "0001-train-classifier-6"
    about = read(folder, "00-about.txt")
    assert re.search(r"^  aicf +" + re.escape(aicf.__version__), about, re.MULTILINE)
    assert re.search(r"^  name +cpu$", about, re.MULTILINE)
    assert re.search(r"^  optimizer +SGD$", about, re.MULTILINE)
    assert re.search(r"^  sizes +batch=6$", about, re.MULTILINE)
    assert str(folder.parent) in about, "the setting"


def test_the_graph_has_types_and_the_lines_that_it_came_from(dumped):
    folder, _ = dumped
    ir, optimized = read(folder, "01-ir.txt"), read(folder, "02-optimized.txt")
    line = 1 + next(
        n
        for n, text in enumerate(Path(dump_support.__file__).read_text().splitlines())
        if "ctx.relu(h))" in text
    )
    assert re.search(rf"= relu\(.*: tensor<6x5xf32>   # .*dump_support\.py:{line}", ir)
    assert "cross_entropy" in ir and "sgd_step" not in ir
    kept, dropped = optimized.split("dropped, since nothing needs them")
    assert "sgd_step" in kept
    count, *lines = dropped.splitlines()
    assert int(count.removeprefix(": ")) == len(lines) >= 1
    assert any(" = sigmoid(" in line for line in lines)
    assert not any(line.strip() in kept for line in lines)


def test_lowered_ops_are_what_is_launched(dumped):
    """Kind ids and blobs are read back, and are the names and the attributes beside them."""
    folder, program = dumped
    lowered = read(folder, "03-lowered.txt")
    found = re.findall(r"^ *\d+ %.* = (\w+)\(.*\n +op \d+, kind (0x\w+), schema (\w+)/\S+, blob (\w+): (.*)$", lowered, re.MULTILINE)  # fmt: skip
    ops = [op for step in program.plan.steps for op in step.region.ops]
    assert len(found) == len(ops) == len(re.findall(r"^ +op \d+, ", lowered, re.MULTILINE))
    for name, kind, schema, blob, attrs in found:
        assert OpKind.from_id(int(kind, 16)).name == name == schema
        assert str(AttrPack.from_blob(bytes.fromhex(blob))) == attrs
    assert sorted(name for name, *_ in found) == sorted(op.kind.name for op in ops)


def test_the_schedule_has_the_lowered_ops_in_the_order_of_the_plan(dumped):
    folder, program = dumped
    rows = re.findall(r"^ *(\d+) +(\d+)  .* = (\w+)\(", read(folder, "04-schedule.txt"), re.MULTILINE)
    lowered = re.findall(r"^ *\d+ %.* = (\w+)\(", read(folder, "03-lowered.txt"), re.MULTILINE)
    assert [int(place) for place, *_ in rows] == list(range(len(lowered)))
    assert sorted(int(was) for _, was, _ in rows) == list(range(len(lowered)))
    assert [lowered[int(was)] for _, was, _ in rows] == [name for *_, name in rows]
    assert [name for *_, name in rows] == [
        op.kind.name for step in program.plan.steps for op in step.region.ops
    ]


def test_the_states_end_with_the_candidates_of_the_explanation(dumped):
    folder, program = dumped
    told, known = read(folder, "05-states.txt").split("\n\n"), explained(program)["regions"]
    assert len(told) == len(known)
    for text, region in zip(told, known):
        left = [int(n) for n in re.findall(r"^  op .*: (\d+) candidates", text, re.MULTILINE)]
        assert left == [step["candidates"] for step in region["steps"]]
        names = re.search(r"^  candidates left: (.*)", text, re.MULTILINE)[1].split(", ")
        assert len(names) == left[-1] and region["chosen"] in names
        assert f"ended, {region['ended']['trigger']}: {region['ended']['sentence']}" in text
        rows = [row for step in region["steps"] for row in step["changed"]]
        assert re.findall(r"^ {6}(\w+): .*$", text.split("  ended")[0], re.MULTILINE) == rows


def test_regions_and_plan_are_those_of_the_program(dumped):
    folder, program = dumped
    assert json.loads(read(folder, "06-regions.json")) == explained(program)
    assert read(folder, "06-regions.txt").rstrip() == str(program.explain().verbose()).rstrip()
    loaded = aicf.ExecPlan.from_json(read(folder, "07-plan.json"), default_registry())
    assert loaded == program.plan and loaded.key == program.plan.key
    assert read(folder, "07-plan.txt").rstrip() == program.plan.text()


def test_each_kernel_of_the_plan_has_a_folder(dumped):
    folder, program = dumped
    found = {}
    for kernel in (folder / "kernels").iterdir():
        steps = re.search(r"^steps +(.*)", read(kernel, "kernel.txt"), re.MULTILINE)[1]
        found |= {int(n): kernel.name.split("-", 1)[1] for n in steps.split(", ")}
        region = program.plan.steps[int(steps.split(", ")[0])].region
        assert json.loads(read(kernel, "region.json")) == region.to_json()
    assert found == {n: step.kernel_id for n, step in enumerate(program.plan.steps) if step.kernel_id}


def test_the_trace_is_of_the_first_run(dumped):
    folder, program = dumped
    trace = json.loads(read(folder, "08-trace.json"))
    assert trace["plan"] == program.plan.key and trace["how"] == "replay"
    assert trace["launched"] == [step["kernel"] for step in trace["steps"] if step["kernel"]]
    assert [s["kernel"] for s in trace["steps"]] == [s.kernel_id for s in program.plan.steps]
    where = {t["name"]: t for step in trace["steps"] for t in (*step["reads"], *step["writes"])}
    weight = program.variables["first.weight"]
    assert where["first.weight"]["pointer"] == weight.ptr
    assert where["first.weight"]["stride"] == [8, 1]
    text = read(folder, "08-trace.txt")
    assert f"first.weight tensor<5x8xf32> strides (8, 1) at {weight.ptr:#x}" in text
    assert "calls 0.." in text, "what was captured"


def test_each_size_is_a_compilation_of_its_own_and_only_its_first_run_is_traced(tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_DUMP", str(tmp_path))
    program = aicf.compile(model(), device="cpu")
    program.run({"x": X})
    first = read(tmp_path / "0001-infer-classifier-6", "08-trace.json")
    program({"x": X})
    program.run({"x": X[:4]})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "0001-infer-classifier-6",
        "0002-infer-classifier-4",
    ]
    assert read(tmp_path / "0001-infer-classifier-6", "08-trace.json") == first
    second = json.loads(read(tmp_path / "0002-infer-classifier-4", "08-trace.json"))
    assert second["how"] == "run"
    assert {"tensor<4x8xf32>"} == {t["type"] for t in second["steps"][0]["reads"] if t["name"] == "x"}


def test_what_recognition_changed_is_a_diff(tmp_path, monkeypatch):
    class Spelt(nn.Layer):
        def emit(self, ctx, q, k, v):
            scores = ctx.gemm(q, k, trans_b=True) * 0.25
            e = ctx.exp(scores - ctx.reduce_max(scores, axes=(-1,), keepdims=True))
            return ctx.gemm(e / ctx.reduce_sum(e, axes=(-1,), keepdims=True), v)

    monkeypatch.setattr(dumping, "write_kernels", lambda *of: None)  # seconds
    spec = aicf.TensorSpec((64, 512, 64), aicf.bf16)
    folder = dump_for(nn.Model({"q": spec, "k": spec, "v": spec}, Spelt()), "h200", tmp_path)
    told = read(folder, "01-recognised.txt")
    assert re.search(r"^recognised attention: .*scale 0\.25.*\(from \d+ ops\)   # .*test_dump\.py:\d+", told)
    added = [line for line in told.splitlines() if re.match(r"\+%", line)]
    assert any(" = attention(" in line for line in added)
    assert "attention(" not in read(folder, "01-ir.txt") and "attention(" in read(folder, "02-optimized.txt")


# --- nothing is changed, nothing is stopped ---------------------------------------------------------------------------


def test_a_dump_changes_nothing(dumped):
    _, watched = dumped
    program = training()
    assert program.plan.key == watched.plan.key
    assert explained(program) == explained(watched)
    got, want = program({"x": X, "y": Y}), watched({"x": X, "y": Y})
    assert watched.runs == 2
    fresh = training()
    np.testing.assert_array_equal(fresh({"x": X, "y": Y})["loss"].numpy(), got["loss"].numpy())
    assert want["loss"].numpy() < got["loss"].numpy(), "a step further"


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_folder_that_can_t_be_written_is_one_warning(tmp_path, monkeypatch, caplog):
    file = tmp_path / "a file"
    file.write_text("")
    monkeypatch.setenv("AICF_DUMP", str(file / "x"))
    for _ in range(2):
        assert aicf.compile(model(), device="cpu")({"x": X})["output"].shape == (6, 3)
    (told,) = warnings(caplog)
    assert str(file) in told and "AICF_DUMP" in told and "Not a directory" in told


def test_a_full_disk_is_one_warning_and_leaves_no_half_files(tmp_path, monkeypatch, caplog):
    whole, count = os.replace, []

    def replace(old, new):
        count.append(new)
        if len(count) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(new))
        whole(old, new)

    monkeypatch.setattr("aicf.graph.dump.folder.os.replace", replace)
    monkeypatch.setenv("AICF_DUMP", str(tmp_path))
    assert aicf.compile(model(), device="cpu")({"x": X})["output"].shape == (6, 3)
    (told,) = warnings(caplog)
    assert "No space left" in told and "AICF_DUMP" in told
    (folder,) = tmp_path.iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["00-about.txt", "01-ir.txt", "01-recognised.txt"]


@pytest.mark.parametrize("text, file", [("about", "00-about.txt"), ("lowered_text", "03-lowered.txt")])
def test_a_stage_that_can_t_be_told_costs_its_file_alone(text, file, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(texts, text, lambda *of, **how: 1 / 0)
    monkeypatch.setenv("AICF_DUMP", str(tmp_path))
    aicf.compile(model(), device="cpu")
    (told,) = warnings(caplog)
    assert file[3:-4] in told and "ZeroDivisionError" in told
    (folder,) = tmp_path.iterdir()
    names = {p.name for p in folder.iterdir()}
    assert file not in names and {"02-optimized.txt", "04-schedule.txt", "07-plan.json"} <= names


def test_numbers_are_given_once(tmp_path):
    """Nothing but the file system keeps the claims apart, so threads stand for processes."""
    claimed: list[str] = []

    def claim(who: int) -> None:
        claimed.extend(DumpFolder.claim(tmp_path, f"model-{who}").path.name for _ in range(12))

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [int(name.split("-")[0]) for name in claimed]
    assert len(set(numbers)) == len(numbers) == 72
    assert {p.name for p in tmp_path.iterdir()} == set(claimed), "and nothing is left behind"


@pytest.mark.parametrize("name", ["../../etc/passwd", "/", "", ".", "a\x1b[2Jb", "\x00", "ä/ö", "x" * 500])
def test_names_stay_inside_the_folder(name, tmp_path):
    path = DumpFolder.claim(tmp_path, name).path
    assert path.parent == tmp_path and path.is_dir()
    assert re.fullmatch(r"0001-[A-Za-z0-9][A-Za-z0-9._-]*", path.name) and len(path.name) < 100
    assert slug(slug(name)) == slug(name)


def test_escape_codes_in_names_are_shown(tmp_path):
    hostile = nn.Model({"x": aicf.TensorSpec((2, 4))}).add(nn.Linear(4, 3), name=HOSTILE)
    folder = dump_for(hostile, "cpu", tmp_path)
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert len(files) > 12
    for path in files:
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", path.read_text()), path
    assert r"\x1b[31m\u202e.weight" in read(folder, "01-ir.txt")
    assert {s["name"] for s in json.loads(read(folder, "07-plan.json"))["slots"]} >= {f"{HOSTILE}.weight"}


# --- the command ------------------------------------------------------------------------------------------------------


def test_without_a_kernel_the_next_one_is_dumped(tmp_path):
    file, dumped = tiny(tmp_path), {}
    for name, without in [("with", []), ("without", ["--without", "elementwise_loop"])]:
        assert cli.main(["dump", str(file), "-o", str(tmp_path / name), *without]) == 0
        dumped[name] = [p.name for p in (tmp_path / name / "0001-infer-tiny" / "kernels").iterdir()]
    assert dumped == {"with": ["00-cpu.elementwise_loop.v2"], "without": ["00-cpu.reference.v1"]}


def test_the_command_lists_what_it_wrote(tmp_path, capsys):
    file = tiny(tmp_path)
    assert cli.main(["dump", str(file), "-o", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out" / "0001-infer-tiny"
    printed = {line.split(maxsplit=1)[1]: line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert set(printed) == {str(p) for p in folder.rglob("*") if p.is_file()}
    plan = folder / "07-plan.json"
    assert printed[str(plan)] == f"{plan.stat().st_size:,}"
    assert cli.main(["dump", str(file), "-o", str(file / "out")]) == 2
    assert "Not a directory" in capsys.readouterr().err


# --- a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_the_first_replay_on_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("AICF_DUMP", str(tmp_path))
    program = aicf.compile(model(), device="cuda")
    got = program({"x": X})["output"].numpy()
    (folder,) = tmp_path.iterdir()
    trace = json.loads(read(folder, "08-trace.json"))
    assert trace["stream"] == program.runtime.stream_id and trace["how"] == "replay"
    assert trace["launched"] == program.executed == [k for k in (s["kernel"] for s in trace["steps"]) if k]
    assert any("graph of" in line for line in trace["graphs"])
    where = {t["name"]: t["pointer"] for step in trace["steps"] for t in step["reads"]}
    assert where["first.weight"] == program.variables["first.weight"].ptr
    for kernel in (folder / "kernels").iterdir():
        assert ".visible .entry aicf_" in read(kernel, "kernel.ptx")
    monkeypatch.delenv("AICF_DUMP")
    plain = aicf.compile(model(), device="cuda")
    np.testing.assert_array_equal(plain({"x": X})["output"].numpy(), got)
