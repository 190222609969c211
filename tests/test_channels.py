"""Log channels: what each tells, at which level, as text and as JSON, and that telling never stops a program."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graph.tuning_support import RELU, error, spoiled, tuned
from registry.synthetic import kernel, registry_of

import aicf
from aicf import channels, config, nn
from aicf.cpu_kernels.compiler import code
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.compile import CompiledKernel
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.errors import SettingError
from aicf.graph.compile import tune_for
from aicf.graph.run import capture as capturing
from aicf.rows import RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, TensorSpec

ROOT = Path(__file__).parents[1]
X = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)


@pytest.fixture(autouse=True)
def as_before():
    """aicf's handler and levels as they were."""
    levels = {name: logging.getLogger(f"aicf.{name}").level for name in config.CHANNELS}
    yield
    channels.ROOT.removeHandler(channels._HANDLER)
    channels._GIVEN_UP.clear()
    for name, level in levels.items():
        logging.getLogger(f"aicf.{name}").setLevel(level)


def program(**how) -> aicf.Program:
    model = nn.Model({"x": aicf.TensorSpec(("batch", 8))}, batch=6).add(nn.Linear(8, 5)).add(nn.ReLU())
    return aicf.compile(model.add(nn.Linear(5, 3)), device="cpu", **how)


def told(caplog, channel: str, event: str | None = None) -> list[dict]:
    """The fields of a channel's records, of one event."""
    found = [r for r in caplog.records if r.name == f"aicf.{channel}"]
    return [r.fields for r in found if event in (None, r.event)]


# --- which ------------------------------------------------------------------------------------------------------------


def test_nothing_is_told_unless_it_is_asked_for(monkeypatch, caplog):
    monkeypatch.delenv("AICF_LOGS", raising=False)
    with caplog.at_level(logging.DEBUG):
        program()({"x": X})
    assert not [r for r in caplog.records if r.name.startswith("aicf.")]


def test_signs_are_levels_and_later_items_win():
    assert config.log_levels("+select, fusion ,-plan") == {
        "select": logging.DEBUG, "fusion": logging.INFO, "plan": logging.WARNING,
    }  # fmt: skip
    assert config.log_levels("all,-select") == {
        **dict.fromkeys(config.CHANNELS, logging.INFO), "select": logging.WARNING,
    }  # fmt: skip
    assert config.log_levels("") == config.log_levels(" , ") == {}


@pytest.mark.parametrize(
    "text, meant", [("plam", "plan"), ("+selct", "select"), ("plan,-cach", "cache"), ("ALL", "all")]
)
def test_an_unknown_channel_is_refused_with_the_nearest_one(text, meant, monkeypatch):
    monkeypatch.setenv("AICF_LOGS", text)
    with pytest.raises(SettingError) as refused:
        program()
    assert f"next: export AICF_LOGS={meant}," in str(refused.value)
    assert "expected: select or fusion or plan or capture or cache or tune or ranks or all" in str(
        refused.value
    )


def test_logs_is_the_setting_as_a_function(monkeypatch, tmp_path):
    for name in ("AICF_LOGS", "AICF_LOGS_JSON"):
        monkeypatch.setenv(name, "")
    aicf.logs("plan,capture", json=tmp_path / "lines")
    assert os.environ["AICF_LOGS"] == "plan,capture"
    assert os.environ["AICF_LOGS_JSON"] == str(tmp_path / "lines")
    with pytest.raises(SettingError, match="'plam'"):
        aicf.logs("plam")
    assert channels.enabled("plan") and not channels.enabled("plan", logging.DEBUG)
    aicf.logs("-plan")
    assert not channels.enabled("plan") and channels.enabled("plan", logging.WARNING)
    aicf.logs()
    assert not {"AICF_LOGS", "AICF_LOGS_JSON"} & set(os.environ)


# --- what -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12")
def test_select_tells_each_choice_and_in_detail_who_lost(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "select")
    made = program()
    regions = made.explain().to_json()["regions"]
    chosen = told(caplog, "select", "chosen")
    assert [c["kernel"] for c in chosen] == [r["chosen"] for r in regions] == list(made.plan.kernel_ids)
    assert [c["operands"] for c in chosen] == [r["operands"] for r in regions]
    assert [c["results"] for c in chosen] == [["f32[6x5]"], ["f32[6x3]"]]
    assert {c["stream"] for c in chosen} == {"0x0"} and chosen[0]["ops"] == ["gemm", "bias_add", "relu"]
    assert not told(caplog, "select", "rejected")
    caplog.clear()
    monkeypatch.setenv("AICF_LOGS", "+select")
    program()
    rejected = {(r["kernel"], r["reason"]) for r in told(caplog, "select", "rejected")}
    assert rejected == {(r["id"], r["reason"]) for region in regions for r in region["rejected"]}
    others = [(c["kernel"], c["us"]) for c in told(caplog, "select", "candidate")]
    assert others == [(c["id"], c["us"]) for region in regions for c in region["candidates"][1:]]


def test_fusion_tells_why_each_region_ended_and_in_detail_its_rows(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "+fusion")
    regions = program().explain().to_json()["regions"]
    ended = told(caplog, "fusion", "region")
    for name in ("trigger", "sentence", "row", "left", "right"):
        assert [e[name] for e in ended] == [r["ended"][name] for r in regions]
    steps = [(s["op"], s["changed"], s["candidates"]) for s in told(caplog, "fusion", "step")]
    assert steps == [(s["op"], s["changed"], s["candidates"]) for r in regions for s in r["steps"]]
    assert "ops 0..2 gemm + bias_add + relu" in caplog.text and "gemm meets gemm" in caplog.text


def test_plan_tells_of_each_plan_and_why_it_was_made(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "plan")
    made = program()
    made({"x": X})
    made({"x": X[:4]})
    made({"x": X})
    first, second = told(caplog, "plan", "made")
    assert first["plan"] == made.plan.key and first["arena_bytes"] == made.plan.arena_bytes
    assert first["peak_bytes"] == made.plan.peak_bytes and first["kernels"] == 2
    assert first["predicted_us"] == pytest.approx(made.explain().predicted_us)
    assert (first["sizes"], second["sizes"]) == ({"batch": 6}, {"batch": 4})
    assert first["why"] == "the first" and second["why"] == "batch 6 → 4"
    assert second["seconds"] > 0 and second["plan"] == made.compiled({"batch": 4}).plan.key


def test_capture_tells_what_was_captured_and_the_first_replay(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "capture")
    made = program()
    for _ in range(3):
        made({"x": X})
    report = made.capture({"x": X})
    (captured,), (replayed,) = told(caplog, "capture", "captured"), told(caplog, "capture", "replayed")
    assert (captured["captured"], captured["calls"]) == (report.captured, report.total) == (0, 3)
    assert captured["pinned_bytes"] == report.pinned_bytes and captured["plan"] == made.plan.key
    assert replayed == {"plan": made.plan.key, "kernels": len(made.executed)}
    (left,) = told(caplog, "capture", "not captured")
    assert left["reason"] == report.segments[0].reason and "CPU device has no graphs" in left["reason"]


def test_capture_tells_of_a_static_input_that_moved(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "-capture")
    made = program(static_roles={"input", "param", "state"})
    aligned = np.empty(2 * X.nbytes + 512, np.uint8)
    start = -aligned.ctypes.data % 256
    places = [aligned[at : at + X.nbytes].view(np.float32).reshape(X.shape) for at in (start, start + 256)]
    made({"x": places[0]})
    assert not told(caplog, "capture")
    made({"x": places[1]})
    (moved,) = told(caplog, "capture")
    assert f"{places[1].ctypes.data:#x}" in moved["why"]


def test_what_is_not_captured_on_a_gpu_is_a_warning(monkeypatch, caplog):
    from aicf.graph.run.tell import tell_capture

    monkeypatch.setenv("AICF_LOGS", "-capture")
    segments = (
        capturing.Segment(0, 3, list, nodes=4),
        capturing.Segment(4, 4, list, reason="the variant is not capture-safe"),
    )
    tell_capture(program().plan, capturing.CaptureReport("cuda", segments), 0.1)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    (left,) = told(caplog, "capture")
    assert (left["first"], left["last"], left["reason"]) == (4, 4, "the variant is not capture-safe")


def test_cache_tells_what_was_compiled_found_on_disk_or_in_memory(monkeypatch, caplog, tmp_path):
    dense = TensorDesc.dense(TensorSpec((8,), device="cuda"))
    region = RegionSpec.single(OpKind("relu"), AttrPack(), [dense], [dense])
    (launch,) = default_registry().by_id("cuda.elementwise_flat.v1").build(region, preset("h200"))
    fake = CompiledKernel("aicf_x", "sm_90a", b"\x7fELF", "", registers=8, spill_bytes=4)
    monkeypatch.setattr(engine, "compile_kernel", lambda *of: dataclasses.replace(fake))
    monkeypatch.setattr(engine, "_COMPILED", {})
    monkeypatch.setenv("AICF_CACHE", "on")
    monkeypatch.setenv("AICF_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("AICF_LOGS", "+cache")

    def compiled() -> None:
        engine.compile_launch(launch, region, "sm_90a", "cuda.elementwise_flat.v1")

    compiled()
    (made,) = told(caplog, "cache", "compiled")
    key = engine.key_of(launch, region, "sm_90a")
    assert (made["kernel"], made["key"]) == ("cuda.elementwise_flat.v1", key)
    assert (made["registers"], made["spill_bytes"]) == (8, 4) and made["seconds"] >= 0
    assert made["why"] == "never compiled before"
    assert made["toolchain"] == engine.cache.toolchain().hex() and len(made["body"]) == 32
    compiled()
    engine._COMPILED.clear()
    compiled()
    assert [h["where"] for h in told(caplog, "cache", "hit")] == ["memory", "disk"]
    assert [r.levelname for r in caplog.records] == ["INFO", "DEBUG", "INFO"]
    engine._COMPILED.clear()
    (tmp_path / "kernels" / f"{key}.kernel").write_bytes(b"half of it")
    monkeypatch.delenv("AICF_LOGS")
    caplog.clear()
    compiled()
    (damaged,) = told(caplog, "cache")  # told though the channel is off, as always
    assert damaged["why"] == "it does not begin as an entry does" and key in damaged["path"]


def test_cache_tells_of_loops_of_the_host(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "cache")
    aicf.compile(nn.Model({"x": aicf.TensorSpec((64,))}).add(nn.ReLU()), device="cpu")(
        {"x": np.ones(64, np.float32)}
    )
    code.code_of.cache_clear()  # as in a new process
    caplog.clear()
    aicf.compile(nn.Model({"x": aicf.TensorSpec((64,))}).add(nn.ReLU()), device="cpu")(
        {"x": np.ones(64, np.float32)}
    )
    (hit,) = told(caplog, "cache")
    assert (hit["symbol"], hit["where"], hit["target"]) == ("relu", "disk", "cpu")


def test_tune_tells_each_measurement(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "tune")
    model = nn.Model({"x": aicf.TensorSpec((256,))}).add(nn.ReLU())
    report = tune_for(model, 0.5, device="cpu")
    (measured,) = report.tuning.regions.values()
    found = {m["kernel"]: m for m in told(caplog, "tune", "measured")}
    assert set(found) == set(measured.timings) and len(found) >= 2
    for id, timing in measured.timings.items():
        assert found[id]["region"] == "relu" and found[id]["operands"] == ["f32[256]"]
        assert found[id]["predicted_us"] > 0 and found[id]["us"] >= timing.us


def test_tune_tells_of_kernels_that_are_wrong(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "-tune")
    registry = registry_of(kernel("cpu.right.v1", us=9.0), spoiled("cpu.off.v1", error))
    tuned(registry, RELU, seconds=0.2)
    (wrong,) = told(caplog, "tune")
    assert (wrong["kernel"], wrong["region"]) == ("cpu.off.v1", "relu") and wrong["why"]


@pytest.mark.gpu
def test_a_capture_on_a_gpu(monkeypatch, caplog):
    monkeypatch.setenv("AICF_LOGS", "capture")
    model = nn.Model({"x": aicf.TensorSpec((6, 8))}).add(nn.Linear(8, 5))
    made = aicf.compile(model, device="cuda")
    made({"x": X})
    (captured,) = told(caplog, "capture", "captured")
    assert captured["captured"] == captured["calls"] == made.capture({"x": X}).total
    assert captured["graphs"] == 1 and captured["nodes"] >= 1 and not told(caplog, "capture", "not captured")


# --- how --------------------------------------------------------------------------------------------------------------


def test_json_lines_have_the_fields_with_their_types(monkeypatch, tmp_path, capfd):
    file = tmp_path / "lines.jsonl"
    monkeypatch.setenv("AICF_LOGS", "plan,-select")
    monkeypatch.setenv("AICF_LOGS_JSON", str(file))
    made = program()
    (line,) = map(json.loads, file.read_text().splitlines())
    assert {"channel": "plan", "level": "info", "event": "made", "pid": os.getpid()}.items() <= line.items()
    assert line["time"].endswith("+00:00") and line["sizes"] == {"batch": 6}
    assert type(line["arena_bytes"]) is int and type(line["seconds"]) is float
    assert line["plan"] == made.plan.key
    assert capfd.readouterr().err == "", "in the place of text"


def test_numbers_that_json_has_not_are_null_and_text_stays_on_its_line(monkeypatch, tmp_path):
    monkeypatch.setenv("AICF_LOGS", "plan")
    monkeypatch.setenv("AICF_LOGS_JSON", str(tmp_path / "lines"))
    name = "a\nb\x1b[31m"
    channels.tell("plan", "made", name, us=float("inf"), each=[float("nan"), 1.5], path=Path("x"), name=name)
    channels.warn("plan", "odd", name)
    first, second = map(json.loads, (tmp_path / "lines").read_text().splitlines())
    assert (first["us"], first["each"], first["path"], first["name"]) == (None, [None, 1.5], "x", name)
    assert (second["level"], second["event"], second["text"]) == ("warning", "odd", name)


def test_lines_that_can_t_be_written_are_lost_and_it_is_said_once(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("AICF_LOGS", "all")
    monkeypatch.setenv("AICF_LOGS_JSON", str(tmp_path))
    assert program()({"x": X})["output"].shape == (6, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert f"AICF_LOGS_JSON={tmp_path}: can't be written: Is a directory" in line


def test_text_goes_to_the_standard_error_without_escape_codes():
    code = """
import aicf
from aicf import channels, nn
aicf.logs("plan")
aicf.compile(nn.Model({"x": aicf.TensorSpec((3, 4))}).add(nn.ReLU()), device="cpu")
channels.tell("plan", "made", "layer \\x1b[31mred\\nnext")
aicf.logs("plan", json="-")
channels.tell("plan", "made", "text", size=3)
import logging; logging.basicConfig(format="USER %(message)s", level="INFO")
aicf.logs("plan")
channels.tell("plan", "made", "mine")
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("AICF_LOGS")} | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    plan, hostile, line, mine = ran.stderr.splitlines()
    assert plan.startswith("[aicf.plan] infer plan ")
    assert hostile == r"[aicf.plan] layer \x1b[31mred\nnext"
    assert json.loads(line)["size"] == 3
    assert mine == "USER mine", "the user's handler alone"
    assert ran.stdout == ""


# --- levels of the user's -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_levels_that_the_user_sets_hold(monkeypatch, seed):
    """A drawn order of settings, levels and records; a record is heard if AICF_LOGS asks for it and the user's level lets it through."""
    rng, heard = np.random.default_rng(seed), []
    monkeypatch.setenv("AICF_LOGS", "")
    levels = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
    loggers = {name: logging.getLogger(name) for name in ("aicf", "aicf.plan", "aicf.fusion")}
    listener = logging.Handler()
    listener.emit = lambda record: heard.append(record.getMessage())
    loggers["aicf"].addHandler(listener)
    own = dict.fromkeys(loggers, logging.NOTSET)
    wanted: dict[str, int] = {}
    try:
        for n in range(30):
            match rng.integers(4):
                case 0:
                    signs = {
                        name: ("+", "", "-")[rng.integers(3)]
                        for name in ("plan", "fusion")
                        if rng.integers(3)
                    }
                    monkeypatch.setenv("AICF_LOGS", ",".join(f"{sign}{name}" for name, sign in signs.items()))
                    wanted = {f"aicf.{name}": config.LEVELS[sign] for name, sign in signs.items()}
                case 1:
                    name = list(loggers)[rng.integers(3)]
                    own[name] = (*levels, logging.NOTSET)[rng.integers(5)]
                    loggers[name].setLevel(own[name])
                case _:
                    channel, level = ("plan", "fusion")[rng.integers(2)], levels[rng.integers(4)]
                    channels.tell(channel, "drawn", str(n), level)
                    name = f"aicf.{channel}"
                    expected = name in wanted and level >= max(wanted[name], own[name] or own["aicf"])
                    assert (str(n) in heard) == expected, (seed, n, name, level, wanted, own)
    finally:
        loggers["aicf"].removeHandler(listener)
        loggers["aicf"].setLevel(logging.NOTSET)
