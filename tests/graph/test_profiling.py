"""Where the time of a run goes: steps measured where they stand, told beside their predictions, and nothing left behind."""

from __future__ import annotations

import io
import json
import re
import sys
import threading
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from nn.mlp import batch_of, host, mlp, on_each_device, same, trainer
from registry.synthetic import interpret, kernel, registry_of
from rich.console import Console

import aicf
from aicf import nn
from aicf.cli import main
from aicf.device.runtime import runtime
from aicf.errors import AicfError, DeviceError, FeedError, LabelError, VerifyError
from aicf.graph.run import capture
from aicf.graph.run.capture import CapturedCall
from aicf.graph.run.profile import clocks, cupti, session
from aicf.registry.trace import microseconds
from aicf.registry.variant import HostCall

from .chains import model_of
from .profiling_support import CudaStandIn, CuptiStandIn

SLOW_US = 4000.0
UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6}  # in which a profile prints times, with three digits
X = {"x": np.ones((8, 4), np.float32)}


def slow(region, device) -> HostCall:
    inner = interpret(region, device)

    def run(operands, results):
        time.sleep(SLOW_US * 1e-6)
        inner.function(operands, results)

    return HostCall(run)


def chain(*kinds: str) -> nn.Model:
    def emit(ctx, x):
        for kind in kinds:
            x = ctx.op(kind, x)
        return x

    return model_of(emit, rows=8)


@pytest.fixture(scope="module")
def slept():
    """The profile of three kernels, of which the second sleeps; selection takes it for the fastest."""
    sleeps = replace(kernel("cpu.sleeps.v1", "tanh", us=0.5), build=slow)
    program = aicf.compile(
        chain("relu", "tanh", "neg"), device="cpu", registry=registry_of(kernel("cpu.one.v1", us=2.0), sleeps)
    )
    return program.profile(X, runs=3)


def test_a_kernel_that_sleeps_is_the_one_that_takes_the_time(slept):
    assert [s.kernel for s in slept.steps] == ["cpu.one.v1", "cpu.sleeps.v1", "cpu.one.v1"]
    first = slept.slowest[0]
    assert first.kernel == "cpu.sleeps.v1" and first is slept.furthest
    assert SLOW_US <= first.us < 20 * SLOW_US and first.predicted_us == 0.5
    assert all(s.us < SLOW_US for s in slept.steps if s is not first)
    assert slept.share(first) == first.us / sum(s.us for s in slept.steps) > 0.5
    assert slept.replay_us >= SLOW_US and slept.walk_us >= SLOW_US
    assert slept.idle_us == max(slept.replay_us - slept.kernels_us - slept.copies_us, 0)
    assert slept.explanation.to_json()["plan"] == slept.to_json()["plan"]


def test_the_text_says_what_stands_out(slept):
    text = str(slept)
    rows = [line.split() for line in text.splitlines() if "cpu." in line and "·" in line]
    assert rows[0][0] == "1" and rows[0][-1] == "cpu.sleeps.v1"
    assert "furthest over its prediction: region 1, tanh, by cpu.sleeps.v1" in text
    assert (
        f"idle for {microseconds(slept.idle_us)} of a replay" in text and "timed by the host's clock" in text
    )
    assert "of peak" not in text, "the CPU's rates are nobody's peak"


def test_rates_are_bytes_and_flops_by_time():
    """A product of 32x64 and 64x10 with a bias, in f32: each tensor moved once, two flops for each of its terms, one for each sum."""
    model = nn.Model({"x": aicf.TensorSpec((32, 64))}).add(nn.Linear(64, 10))
    (step,) = aicf.compile(model, device="cpu").profile({"x": np.ones((32, 64), np.float32)}, runs=1).steps
    assert step.nbytes == 4 * (32 * 64 + 64 * 10 + 10 + 32 * 10)
    assert step.flops == 2 * 32 * 64 * 10 + 32 * 10
    assert step.gbs == pytest.approx(step.nbytes / (step.us * 1e-6) / 1e9)
    assert step.tflops == pytest.approx(step.flops / (step.us * 1e-6) / 1e12)
    spec = aicf.explain_for(model, "h200").spec
    on_h200 = replace(
        step,
        us=10.0,
        at_least={"memory": step.nbytes / 4.8e6, "compute": step.flops / 66.9e6, "launch": 1.65},
    )
    assert on_h200.bound == "launch" and on_h200.of_peak("memory") == pytest.approx(
        on_h200.gbs / spec.bandwidth
    )
    assert on_h200.of_peak("compute") == pytest.approx(on_h200.tflops / spec.tflops["f32"])


@on_each_device
@pytest.mark.parametrize("policy", ["f32", "bf16"])
def test_a_training_program_goes_on_as_if_nothing_had_been(device, policy):
    """Parameters and their narrow copies, moments, counters, random states and sums of gradients, bit for bit, and what it makes next."""
    made = []
    for profiled in (False, True):
        model = mlp().add(nn.Dropout(0.5))
        program = trainer(device, model, nn.AdamW(1e-2), accumulate=2, policy=policy)
        for n in range(3):
            program(batch_of(6, seed=n))
        if profiled:
            profile = program.profile(batch_of(6, seed=9), runs=2)
            assert any("adam_step" in s.ops for s in profile.steps), "the next run of this program steps"
            assert program.runs == 3 and program.accumulated == 1 and len(program.executed) > 3
        state = program.state_dict()
        made.append((state, host(program(batch_of(6, seed=4))), program.state_dict()))
    assert all(same(a, b) for a, b in zip(*made, strict=True))


def test_each_run_begins_with_the_counters_of_the_first(monkeypatch):
    """A step counter, and so where sequences stand, moves on by none of the runs."""
    program, batch, seen = trainer("cpu", None, nn.AdamW(1e-2)), batch_of(6), []
    program(batch)
    run = clocks.HostClock.run
    monkeypatch.setattr(
        clocks.HostClock,
        "run",
        lambda clock, feed: (seen.append(int(program.get("step"))), run(clock, feed))[1],
    )
    program.profile(batch, runs=4)
    assert seen == [1] * 5 and int(program.get("step")) == 1


@on_each_device
def test_a_run_that_is_refused_leaves_nothing_behind(device):
    program, batch = trainer(device), batch_of(6)
    before = program.state_dict()
    with pytest.raises(LabelError, match="label 7 at row 2 is no class"):
        program.profile({**batch, "y": np.array([0, 1, 7, 0, 1, 2])})
    assert same(program.state_dict(), before)
    program(batch)["loss"].numpy()


def test_what_is_wrong_with_a_feed_is_said_as_elsewhere():
    program, batch = trainer("cpu"), batch_of(6)
    for feed in ({}, {"x": batch["x"], "z": batch["y"]}, {**batch, "x": batch["x"].astype(np.float64)}):
        said = []
        for run in (program.run, program.profile):
            with pytest.raises(FeedError) as error:
                run(feed)
            said.append(str(error.value))
        assert said[0] == said[1]
    for runs in (0, -1, 1.5, True, "3"):
        with pytest.raises(VerifyError, match="runs="):
            program.profile(batch, runs=runs)


def test_the_data_stand_beside_the_explanation_s():
    """Also of views, which run nothing, and of what is computed once."""

    class Views(nn.Layer):
        def emit(self, ctx, x):
            w = ctx.param("w", (4, 8), nn.init.normal(1.0))
            return ctx.relu(ctx.reshape(x, shape=(4, 8)) + ctx.exp(w)).reshape(32)

    program = aicf.compile(nn.Model({"x": (8, 4)}, Views()), device="cpu")
    profile = program.profile(X, runs=1)
    data, told = json.loads(json.dumps(profile.to_json())), program.explain().to_json()
    assert [r["region"] for r in data["regions"]] == list(range(len(told["regions"])))
    assert [r["ops"] for r in data["regions"]] == [r["region"] for r in told["regions"]]
    for mine, theirs in zip(data["regions"], told["regions"], strict=True):
        nothing = theirs["view"] or theirs.get("once", False)
        assert (mine["measured_us"] is None) == nothing
        if not nothing:
            assert (
                mine["kernel"] == theirs["chosen"] and mine["predicted_us"] == theirs["candidates"][0]["us"]
            )
            assert (
                mine["bytes"] == theirs["bytes"]
                and mine["flops"] == theirs["flops"]
                and mine["measured_us"] > 0
            )
    assert any(r["measured_us"] is None for r in data["regions"])
    assert data["totals"]["kernels_us"] == pytest.approx(sum(r["measured_us"] or 0 for r in data["regions"]))


HOSTILE = "[red]\x1b[31m</td><script>x</script>\u202e"


@pytest.mark.parametrize("width", [60, 80, 160])
def test_it_fits_terminals_and_names_are_shown_not_run(width):
    model = nn.Model({"x": (8, 4)})
    for n in range(20):
        model.add(nn.Linear(4 + n, 5 + n), name=f"{HOSTILE} {n}")
    profile = aicf.compile(model, device="cpu").profile(X, runs=1)
    for told in (profile, profile.verbose()):
        console = Console(file=io.StringIO(), width=width, no_color=True, force_terminal=False)
        console.print(told)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= width
        assert "\x1b" not in text + str(told) and "\u202e" not in text + str(told)
    rows = [line for line in str(profile).splitlines() if "· cpu." in line]
    assert len(rows) == 15 and "and 5 kernels more of" in str(profile)
    said = str(profile.verbose())
    assert (
        "[red]\\x1b[31m</td><script>x</script>\\u202e 3: gemm + bias_add" in said
        and f"at {__file__}:" in said
    )
    assert _Table(profile._repr_html_()).rows == 16
    html = profile.verbose()._repr_html_()
    assert _Table(html).rows == 21 and "<script" not in html


def test_equal_steps_are_one_row_until_everything_is_asked_for():
    model = nn.Model({"x": (8, 4)})
    for _ in range(7):
        model.add(nn.Linear(4, 4))
    profile = aicf.compile(model.add(nn.Linear(4, 5)), device="cpu").profile(X, runs=1)
    (seven,) = [group for group in profile.groups if len(group) > 1]
    assert len(seven) == 7 and len(profile.groups) == 2
    (row,) = [line for line in str(profile).splitlines() if line.strip().startswith("0 ×7")]
    times = [float(n) * UNITS[unit] for n, unit in re.findall(r"([\d.e+]+) (us|ms|s)\b", row)]
    assert times[0] == pytest.approx(sum(s.us for s in seven), rel=0.006), row
    assert f"{sum(map(profile.share, seven)):.1%}" in row
    assert len([line for line in str(profile.verbose()).splitlines() if "· cpu." in line]) == 8


class _Table(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows, self.open = 0, []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


# --- the timeline -----------------------------------------------------------------------------------------------------


def check_trace(trace: dict) -> list[dict]:
    """The rules of the Trace Event Format, and that slices of a track are within each other or apart. The slices."""
    events = trace["traceEvents"]
    for e in events:
        assert {"ph", "name", "pid", "tid"} <= e.keys() and e["ph"] in "XMsf", e
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int)
        if e["ph"] == "M":
            assert e["name"] in ("process_name", "thread_name", "thread_sort_index") and len(e["args"]) == 1
        else:
            assert e["ts"] >= 0 and np.isfinite(e["ts"]) and isinstance(e["cat"], str)
    slices = [e for e in events if e["ph"] == "X"]
    tracks: dict = {}
    for e in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        assert e["dur"] >= 0
        open_until = tracks.setdefault((e["pid"], e["tid"]), [])
        while open_until and open_until[-1] <= e["ts"] + 1e-6:
            open_until.pop()
        end = e["ts"] + e["dur"]
        assert not open_until or end <= open_until[-1] + 1e-6, "a slice ends after the one around it"
        open_until.append(end)
    flows = [e for e in events if e["ph"] in "sf"]
    for begun, ended in zip(flows[::2], flows[1::2], strict=True):
        assert (begun["ph"], ended["ph"], ended["bp"]) == ("s", "f", "e") and begun["ts"] <= ended["ts"]
        assert all(begun[k] == ended[k] for k in ("id", "cat", "name")) and begun["tid"] != ended["tid"]
        for end in (begun, ended):  # each in a slice of its track
            assert any(
                e["tid"] == end["tid"] and e["ts"] <= end["ts"] <= e["ts"] + e["dur"] + 1e-6 for e in slices
            )
    assert len({e["id"] for e in flows}) == len(flows) / 2
    return slices


def test_a_kernel_of_the_timeline_says_where_it_comes_from(tmp_path):
    model = nn.Model({"x": aicf.TensorSpec((6, 5))})
    model.add(nn.Linear(5, 7), name="first")
    model.add(nn.ReLU())
    line = f"{__file__}:{sys._getframe().f_lineno - 2}"
    program = trainer("cpu", model.add(nn.Linear(7, 3), name="head"))
    profile = program.profile(batch_of(6), runs=2)
    path = profile.save(tmp_path / "trace.json")
    trace = json.loads(path.read_text())
    slices = check_trace(trace)
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    assert names == {"host", "cpu"} and trace["otherData"]["plan"] == program.plan.key
    assert [e["name"] for e in slices if e["cat"] == "host"][:2] == ["run", "feed"]
    assert slices[0]["dur"] == pytest.approx(profile.timeline.wall, abs=1e-3)
    kernels = [e for e in slices if e["cat"] == "kernel"]
    assert [e["args"]["region"] for e in kernels] == [s.region for s in profile.steps]
    assert [e["args"]["kernel"] for e in kernels] == list(program.plan.kernel_ids)
    (forward,) = [e for e in kernels if "first: bias_add" in e["args"]["ops"]]
    assert forward["args"]["ops"] == ["first: gemm", "first: bias_add", "1: relu"]
    assert [at.rpartition(":")[0] for at in forward["args"]["at"]] == [__file__] * 2
    backward = [e for e in kernels if "1: relu_grad" in e["args"]["ops"]]
    assert backward and line in backward[0]["args"]["at"], "a gradient comes from where its op does"
    step = profile.steps[0]
    shown = kernels[0]["args"]
    assert shown["measured us"] == round(step.us, 3) and shown["predicted us"] == round(step.predicted_us, 3)
    assert (shown["bytes"], shown["flops"], shown["bound"]) == (step.nbytes, step.flops, step.bound)
    assert sum(e["ph"] == "s" for e in trace["traceEvents"]) == len([e for e in slices if e["tid"] == 2])


# --- CUPTI and CUDA's events, by what stands in for them --------------------------------------------------------------


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """The CPU device is measured as a GPU is. (cupti-python, or None) -> a program of three kernels and what may be fed to it."""

    def made(stand_in) -> aicf.Program:
        package = ModuleType("cupti")
        if stand_in is not None:
            package.cupti = stand_in
        monkeypatch.setitem(sys.modules, "cupti", package)
        monkeypatch.setattr(cupti, "_registered", False)
        monkeypatch.setattr(session, "CudaRuntime", type(runtime("cpu")))
        registry = registry_of(kernel("cpu.one.v1", us=2.0))
        return aicf.compile(chain("relu", "tanh", "neg"), device="cpu", registry=registry)

    return made


LATER = 100_000_000  # than the clock's moment, so that a host which is held up begins its walk before
LAUNCHES = [
    [(LATER + start, LATER + end) for start, end in launches]
    for launches in (
        [(10_000, 14_000)], [(14_500, 20_500), (21_000, 22_000)], [(30_000, 32_500)], [(33_000, 33_250)],
    )
]  # fmt: skip


def test_cupti_s_records_are_told_by_the_calls_that_they_are_of(as_on_a_gpu):
    stand_in = CuptiStandIn(
        LAUNCHES
    )  # three kernels, of which the second are two launches, and the copy of the result
    profile = as_on_a_gpu(stand_in).profile(X, runs=3)
    assert profile.clock == "CUPTI" and profile.why == "" and not stand_in.enabled
    assert [s.us for s in profile.steps] == pytest.approx(
        [4.0, 7.0, 2.5]
    ) and profile.copies_us == pytest.approx(0.25)
    assert profile.kernels_us == pytest.approx(13.5) and profile.furthest.region == 1
    assert [s.host_us > 0 for s in profile.steps] == [True] * 3
    spans = profile.timeline.device
    assert [s.call for s in spans] == [0, 1, 1, 2, 3] and [s.symbol for s in spans][:2] == [
        "kernel_1_0",
        "kernel_2_0",
    ]
    assert (spans[0].grid, spans[0].cluster, spans[0].registers, spans[0].shared) == (
        (1, 2, 3),
        (1, 2, 3),
        40,
        48,
    )
    assert np.diff([s.start for s in spans]) == pytest.approx([4.5, 6.5, 9.0, 3.0])
    trace = session_trace(profile)
    slices = check_trace(trace)
    on_device = [e for e in slices if e["tid"] == 2]
    assert [e["dur"] for e in on_device] == pytest.approx([4.0, 6.0, 1.0, 2.5, 0.25])
    assert on_device[1]["args"]["symbol"] == "kernel_2_0" and on_device[1]["args"]["grid"] == [1, 2, 3]
    assert on_device[4]["cat"] == "copy" and on_device[4]["name"] == "result"
    said = str(profile.verbose())
    assert "6 us  kernel_2_0" in said and "1 us  kernel_2_1" in said


def session_trace(profile) -> dict:
    from aicf.graph.run.profile.timeline import trace_events

    return json.loads(json.dumps(trace_events(profile)))


class ByEvents(clocks.HostClock):
    name = "CUDA events, let us say"

    def __init__(self, runtime, work, mode):
        super().__init__(runtime, work)
        type(self).mode = mode


def test_where_cupti_does_not_work_events_do_and_it_says_why(as_on_a_gpu, monkeypatch):
    monkeypatch.setattr(session, "EventClock", ByEvents)
    profile = as_on_a_gpu(None).profile(X, runs=1)
    assert profile.clock == ByEvents.name and ByEvents.mode == "auto"
    assert "cupti-python can't be imported" in profile.why and "pip install cupti-python" in str(
        profile
    ).replace("\n", " ")
    lossy = CuptiStandIn(LAUNCHES)
    lossy.drop = 2
    profile = as_on_a_gpu(lossy).profile(X, runs=1)
    assert profile.clock == ByEvents.name and not lossy.enabled
    assert "of 3 kernels it told of 2; none of cpu.one.v1" in profile.why

    def forbidden(kind):
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    barred = CuptiStandIn(LAUNCHES)
    barred.activity_enable = forbidden
    assert "INSUFFICIENT_PRIVILEGES" in as_on_a_gpu(barred).profile(X, runs=1).to_json()["why"]


def test_events_of_a_graph_that_can_t_be_timed_are_put_on_the_stream(as_on_a_gpu, monkeypatch):
    class NoneInGraphs(ByEvents):
        def run(self, feed):
            if self.mode == "auto":
                raise DeviceError(
                    "the CUDA driver answered CUDA_ERROR_INVALID_HANDLE: invalid resource handle"
                )
            return super().run(feed)

    monkeypatch.setattr(session, "EventClock", NoneInGraphs)
    profile = as_on_a_gpu(None).profile(X, runs=1)
    assert NoneInGraphs.mode == "off" and "INVALID_HANDLE" in profile.why and len(profile.steps) == 3


def test_a_process_has_one_cupti_and_threads_take_turns_at_it(as_on_a_gpu):
    """Else one's records would be told of the other's calls: both number them from 1."""
    program = as_on_a_gpu(CuptiStandIn(LAUNCHES))
    profiles = []
    mine = cupti.CuptiClock(program.runtime, [])
    other = threading.Thread(target=lambda: profiles.append(program.profile(X, runs=1)))
    other.start()
    other.join(0.3)
    assert other.is_alive() and not profiles
    mine.close()
    other.join(30)
    assert [p.clock for p in profiles] == ["CUPTI"] and not sys.modules["cupti"].cupti.enabled


def test_an_error_of_the_program_is_not_taken_for_one_of_the_clock(as_on_a_gpu):
    as_on_a_gpu(CuptiStandIn([[]] * 30))
    with pytest.raises(LabelError):
        trainer("cpu").profile({**batch_of(6), "y": np.array([0, 1, 7, 0, 1, 2])})
    assert not sys.modules["cupti"].cupti.enabled


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_events_stand_between_the_calls(mode, monkeypatch):
    """In a graph as its nodes; on the stream where a call can't be part of one, or nothing is captured."""
    there = CudaStandIn(runtime("cpu"))

    class Graph:
        nodes = 9

        def __init__(self, runtime, calls):
            self.calls = calls

        def launch(self):
            there.us += 50.0  # until the device begins
            return [call(CapturedStream) for call in self.calls]

    class CapturedStream:
        handle = 5

    monkeypatch.setattr(capture, "capture", Graph)
    takes = [30.0, 4.0, 0.0, 2.5]

    def call(n):
        def go(*on):
            there.us += takes[n]
            return f"kernel {n}"

        return go

    work = [CapturedCall(f"kernel {n}", call(n), "not capture-safe" if n == 1 else None) for n in range(4)]
    clock = clocks.EventClock(there, work, mode)
    timed = clock.run(lambda: None)
    assert timed.device_us(4) == pytest.approx([30.0, 4.0, 0.0, 2.5])
    gaps = np.diff([s.start for s in timed.device]) - [30.0, 4.0, 0.0]
    assert gaps == pytest.approx([0.0, 50.0, 0.0] if mode == "auto" else [0.0] * 3), (
        "the second graph is waited for"
    )
    assert set(there.flags) == ({0, clocks.EXTERNAL} if mode == "auto" else {0})
    launched = [s for s in timed.host if s.last >= s.first]
    assert [n for s in launched for n in range(s.first, s.last + 1)] == [0, 1, 2, 3]
    assert clock.name == ("CUDA events in 2 graphs" if mode == "auto" else "CUDA events on the stream")


@pytest.mark.gpu
def test_on_a_gpu_steps_are_the_device_s_time():
    """A product of 4096³ in f32 can't take less than its flops at the peak, nor a replay less than its kernels; events and CUPTI agree."""
    model = nn.Model({"x": (4096, 4096)}).add(nn.Linear(4096, 4096)).add(nn.ReLU())
    program = aicf.compile(model, device="cuda")
    feed = {"x": np.random.default_rng(0).normal(size=(4096, 4096)).astype(np.float32)}
    profile = program.profile(feed)
    slices = check_trace(session_trace(profile))
    (step, *others) = profile.slowest
    assert step.flops >= 2 * 4096**3 and 0.1 < step.of_peak("compute") <= 1.05 and step.bound == "compute"
    assert not others or others[0].us < step.us
    assert profile.replay_us > profile.kernels_us > 0 and 0 <= profile.idle < 1
    assert any(e["args"].get("grid") for e in slices if e["cat"] == "kernel")
    by_events = _by_events(program, feed)
    assert by_events.clock.startswith("CUDA events in 1 graph")
    assert by_events.slowest[0].us == pytest.approx(step.us, rel=0.15)


def _by_events(program, feed):
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cupti", "cupti.cupti"):  # one that was imported before is found by either
            patch.setitem(sys.modules, name, None)
        return program.profile(feed)


# --- the command ------------------------------------------------------------------------------------------------------

EXAMPLE = str(Path(aicf.__file__).parents[1] / "examples" / "mlp.py")


def test_the_command_tells_and_writes(tmp_path, capsys):
    out = tmp_path / "trace.json"
    assert (
        main(["profile", EXAMPLE, "--mode", "train", "--device", "cpu", "--runs", "1", "-o", str(out)]) == 0
    )
    said = capsys.readouterr().out
    assert (
        "train plan" in said
        and "median of 1 run\n" in said
        and f"wrote {out}: open it at https://ui.perfetto.dev" in said
    )
    assert check_trace(json.loads(out.read_text()))
    assert main(["profile", EXAMPLE, "--device", "cpu", "--runs", "1", "--json", "-o", str(out)]) == 0
    shown = capsys.readouterr()
    data = json.loads(shown.out)
    assert data["mode"] == "infer" and data["runs"] == 1 and "wrote" in shown.err
    np.save(tmp_path / "x.npy", np.ones((2, 2), np.float32))
    assert main(["profile", EXAMPLE, "--device", "cpu", "--input", f"x={tmp_path / 'x.npy'}"]) == 2
    assert "x" in capsys.readouterr().err
    assert main(["profile", EXAMPLE, "--device", "h200"]) == 2
    assert "a profile is measured, on a device of this machine" in capsys.readouterr().err
    with pytest.raises(AicfError):
        aicf.runtime("h200")
