"""`aicf calibrate`: constants are fitted to times of half of a draw, judged by the other half, and kept in files that later runs find."""

from __future__ import annotations

import gzip
import json
import logging
import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from draws.seeds import run_number, run_seed
from registry.synthetic import region

import aicf
from aicf import config
from aicf.calibrate import command
from aicf.calibrate.fit import judge
from aicf.calibrate.measure import ColdBench
from aicf.calibrate.result import ALL, calibrated
from aicf.calibrate.session import candidates
from aicf.calibrate.times import Line, append, halves, read, samples, times_file
from aicf.cli import main
from aicf.device import own_calibration
from aicf.device.calibration import DEFAULT, FAMILIES, SHIPPED, Calibration, names
from aicf.device.runtime import cuda_missing, runtime
from aicf.device.spec import PRESETS, constants, preset
from aicf.errors import DeviceError, TuningError
from aicf.graph.tune.measure import Bench as WarmBench
from aicf.registry.measured import Measured, Timing
from aicf.registry.nearby import FEATURES, shares
from aicf.registry.registry import KernelRegistry

H200 = replace(preset("h200"), calibration=DEFAULT)
FITTED = "machine", "gemm."


@pytest.fixture(autouse=True)
def user_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(config, "own_calibration_file", lambda gpu: tmp_path / "data" / f"{gpu}.json")
    monkeypatch.setenv("AICF_CALIBRATION", "")
    monkeypatch.setenv("COLUMNS", "200")
    own_calibration._read.cache_clear()
    yield
    own_calibration._read.cache_clear()


@pytest.fixture(scope="module")
def registry() -> KernelRegistry:
    """Kernels of products whose predictions take microseconds."""
    taken = "cuda.gemm_mma", "cuda.gemm_simt"
    return KernelRegistry(v for v in aicf.default_registry() if v.id.startswith(taken))


def products(rng: np.random.Generator, count: int, registry: KernelRegistry) -> list:
    """Drawn products in bf16 with a choice among kernels."""
    found = {}
    for _ in range(100 * count):
        if len(found) == count:
            break
        m, n, k = (8 * int(2 ** rng.uniform(0, 9)) for _ in range(3))
        r = region("gemm", (m, k), (k, n), device="cuda", dtype="bf16")
        if len(candidates(r, H200, registry)) > 1:
            found[r.key] = SimpleNamespace(region=r, step="a drawn product")
    return list(found.values())


def hidden(rng: np.random.Generator) -> Calibration:
    """A GPU whose constants are others: each by up to three times or a third."""
    values = {n: v * math.exp(rng.uniform(-1.2, 1.2)) for n, v in names() if n.startswith(FITTED)}
    return Calibration("h200", values)


class Machine:
    """A bench whose times are the predictions with hidden constants, and whose clock is one second further after each region."""

    def __init__(self, registry: KernelRegistry, calibration: Calibration, breaks_at: int = -1) -> None:
        self.registry, self.device = registry, replace(H200, calibration=calibration)
        self.measured, self.breaks_at, self.now = [], breaks_at, 0.0

    def clock(self) -> float:
        return self.now

    def prepare(self, kernels) -> None:
        pass

    def region(self, region, ids, deadline) -> Measured:
        self.now += 1.0
        if len(self.measured) == self.breaks_at:
            raise TuningError("a kernel broke the device, nothing more can be measured in this process")
        self.measured.append(region)
        return Measured(
            region, {id: Timing(self.registry.by_id(id).predicted(region, self.device)[1]) for id in ids}
        )


def session(tmp_path: Path, registry, regions, monkeypatch, draw: str = "words") -> command.Session:
    monkeypatch.setattr(command, "drawn", lambda *asked: iter(regions))
    return command.Session(H200, registry, draw, tmp_path / "out" / "h200.json")


def lines_of(regions, machine: Machine) -> list[Line]:
    rows = [
        (n, r.region, machine.region(r.region, candidates(r.region, H200, machine.registry), 0.0))
        for n, r in enumerate(regions)
    ]
    return [Line("words", n, "a step", r, {id: t.us for id, t in m.timings.items()}) for n, r, m in rows]


# --- fitting ------------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1)
@pytest.mark.spec("A7", "B8")
@pytest.mark.parametrize("badly", [False, True])
def test_fitted_constants_are_better_on_regions_that_were_not_fitted(badly, registry):
    """On a drawn GPU predictions come nearer; on one for which the constants in use choose badly, choices are better."""
    machine, regions = of_seed(chosen_badly(registry) if badly else run_number(), registry)
    result = calibrated(lines_of(regions, machine), H200, registry)
    check_result(result, badly)


def of_seed(seed: int, registry: KernelRegistry) -> tuple[Machine, list]:
    rng = np.random.default_rng(seed)
    return Machine(registry, hidden(rng)), products(rng, 20, registry)


def chosen_badly(registry: KernelRegistry) -> int:
    """The first seed whose regions that are not fitted have a regret of more than 5 %."""
    for seed in range(7, 50):
        machine, regions = of_seed(seed, registry)
        _, held = halves(lines_of(regions, machine))
        if judge(samples(held), H200, registry).regret > 0.05:
            return seed
    raise AssertionError("no drawn GPU is chosen for badly")


def check_result(result, badly: bool) -> None:
    was, now = result.before[ALL], result.after[ALL]
    assert now.off < was.off, f"seed {run_seed()}: predictions are off by {was.off}, then {now.off}"
    if badly:
        assert now.regret < was.regret, f"seed {run_seed()}: regret {was.regret}, then {now.regret}"
    assert result.improved == (now.regret <= was.regret), (
        "no other constants are written where choices are worse"
    )
    assert bool(result.calibration.values) == result.improved
    assert result.fitted + result.held == 20
    assert result.calibration.gpu == "h200"
    written = result.after if result.improved else result.before
    assert result.calibration.errors["products"]["off"] == round(written["products"].off, 4)


def test_constants_that_are_right_stay(registry, tmp_path, capsys):
    """Times are the predictions, so no other constants can do better."""
    machine = Machine(registry, DEFAULT)
    result = calibrated(lines_of(products(np.random.default_rng(3), 4, registry), machine), H200, registry)
    assert not result.improved and result.calibration.values == {}
    run = command.Session(H200, registry, "x", tmp_path / "h200.json")
    run._report(result, as_json=False)
    text = capsys.readouterr().out
    assert (
        "predictions off by" in text
        and "the file has the old ones" in text
        and f"AICF_CALIBRATION={run.output}" in text
    )
    assert result.before[ALL].regret == result.before[ALL].off == 0.0


def test_a_region_is_in_the_same_half_whatever_else_was_measured():
    """Else a later run would be judged by regions that the calibration in use was fitted to."""
    rng = np.random.default_rng(run_number())
    sizes = rng.choice(4000, 60, replace=False) + 1
    lines = [
        Line(f"draw {n % 3}", n, "", region("relu", (8, int(size)), device="cuda"), {"a": 1.0, "b": 2.0})
        for n, size in enumerate(sizes)
    ]
    one_time = Line("d", 99, "", region("relu", (7, 7), device="cuda"), {"a": 1.0})
    fitted, held = halves([*lines, one_time])
    assert len(fitted) + len(held) == len(lines) and min(len(fitted), len(held)) > 10
    for _ in range(5):
        some = [lines[i] for i in rng.permutation(len(lines))[: rng.integers(1, 60)]]
        others = [Line("another draw", n, "", x.region, x.times) for n, x in enumerate(some)]
        again, out = halves(others)
        assert {x.region.key for x in again} <= {x.region.key for x in fitted}
        assert {x.region.key for x in out} <= {x.region.key for x in held}


# --- the command --------------------------------------------------------------------------------------------------------


def test_a_run_that_is_broken_off_goes_on_and_its_file_is_found(tmp_path, monkeypatch, registry, capsys):
    rng = np.random.default_rng(run_number())
    regions, constants_ = products(rng, 24, registry), hidden(rng)
    run = session(tmp_path, registry, regions, monkeypatch)
    first = Machine(registry, constants_, breaks_at=5)
    with pytest.raises(TuningError, match="broke the device"):
        run.measure(first, 100.0)
    assert len(run.times.read_text().splitlines()) == 6
    with run.times.open("a") as file:
        file.write('{"gpu": "h2')  # a process that was killed
    second = Machine(registry, constants_)
    assert run.measure(second, 100.0) == 18
    assert [r.key for r in second.measured] == [d.region.key for d in regions[6:]]
    assert run.measure(Machine(registry, constants_), 100.0) == 0
    capsys.readouterr()
    assert run.finish([], as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["regions"]["fitted"] + said["regions"]["held_out"] == 23
    found = Calibration.load(run.output)
    assert json.loads(run.output.read_text())["draw"] == "words" and found.gpu == "h200"
    assert bool(found.values) == said["improved"] and set(found.errors) == {ALL, "products"}
    monkeypatch.setenv("AICF_CALIBRATION", str(run.output))
    assert own_calibration.calibrated(H200).calibration == found


def test_measuring_ends_when_the_time_is_up(tmp_path, monkeypatch, registry):
    from aicf.calibrate.session import measure

    machine, kept = Machine(registry, DEFAULT), []
    regions = products(np.random.default_rng(5), 9, registry)
    count = measure(
        iter(regions), "w", frozenset(), H200, registry, machine, 3.0, kept.append, clock=machine.clock
    )
    assert count == len(kept) == 3 and [k.number for k in kept] == [0, 1, 2]


def test_too_few_regions_are_refused_with_what_goes_on(tmp_path, monkeypatch, registry):
    run = session(tmp_path, registry, products(np.random.default_rng(7), 4, registry), monkeypatch)
    run.measure(Machine(registry, DEFAULT), 100.0)
    with pytest.raises(TuningError, match="too few regions are measured: 4 regions") as caught:
        run.finish([])
    assert "--draw" in str(caught.value) and not run.output.exists()


def test_times_of_other_files_are_fitted_too_and_those_of_another_gpu_refused(tmp_path, registry):
    regions = products(np.random.default_rng(9), 3, registry)
    lines = lines_of(regions, Machine(registry, DEFAULT))
    path = tmp_path / "t.times.jsonl"
    for line in lines:
        append(path, line, H200, registry)
    assert {x.region.key: x.times for x in read(path, H200, registry)} == {
        x.region.key: x.times for x in lines
    }
    run = command.Session(H200, registry, "other", tmp_path / "o.json")
    assert len(run.lines([path])) == 3
    with pytest.raises(TuningError, match="line 1 is of another GPU"):
        read(path, preset("h100"), registry)
    changed = path.read_text().splitlines()
    data = json.loads(changed[1])
    data["kernels"] = dict.fromkeys(data["kernels"], "0" * 16)
    path.write_text("\n".join([changed[0], json.dumps(data), changed[2]]) + "\n")
    assert len(read(path, H200, registry)) == 2, "times of a kernel with another text are measured again"
    path.write_text(changed[0] + "\n{}\n")
    with pytest.raises(TuningError, match="line 2 is no time"):
        read(path, H200, registry)


def test_times_of_a_preset_are_fitted_without_a_gpu(tmp_path, registry, capsys):
    """Twice the predictions on drawn regions come out as such; a first look does not count; times of another text are counted."""
    rng = np.random.default_rng(run_number())
    package = Machine(registry, Calibration("h200", preset("h200").calibration.values))
    lines = lines_of(products(rng, 24, registry), package)
    plain, changed, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl", tmp_path / "c.jsonl.gz"
    odd = next(iter(lines[0].times))
    for line in lines:
        times = {id: us * (20.0 if id == odd and line is lines[0] else 1.2) for id, us in line.times.items()}
        append(plain, replace(line, times=times), H200, registry)
    stale = json.loads(plain.read_text().splitlines()[1])
    stale["kernels"][next(iter(stale["kernels"]))] = "0" * 12
    changed.write_text("\n".join([*plain.read_text().splitlines()[2:], json.dumps(stale), ""]))
    packed.write_bytes(gzip.compress(plain.read_bytes().splitlines(keepends=True)[0]))
    out = tmp_path / "h200.json"
    assert (
        main(["calibrate", "--device", "h200", "--from", str(changed), str(packed), "--output", str(out)])
        == 0
    )
    found = Calibration.load(out)
    assert found.values == preset("h200").calibration.values and found.gpu == "h200"
    text = capsys.readouterr().out
    assert "24 regions" in text and "1 of " in text and "times are of another text" in text
    kernels = found.measured["gemm"]["kernels"]
    number, every = sum(len(at) for at, *_ in kernels.values()), sum(len(line.times) for line in lines)
    assert 0.9 * every < number < every, "kernels far from the best are not fitted, nor is the first look"
    device = replace(H200, calibration=found)
    alone = replace(H200, calibration=Calibration("h200", found.values))
    for line in lines[2:]:
        for id in line.times:
            known, corrected = (registry.by_id(id).predicted(line.region, d)[1] for d in (alone, device))
            assert 1.0 < corrected / known < 1.25, f"seed {run_seed()}: {id} on {line.region}"
    assert main(["calibrate", "--device", "h200", "--from", str(changed)]) == 2
    assert "--output FILE" in capsys.readouterr().err
    packed.write_bytes(packed.read_bytes()[:-9])
    assert main(["calibrate", "--device", "h200", "--from", str(packed), "--output", str(out)]) == 2
    assert "no file of times that can be read" in capsys.readouterr().err


def test_regions_run_on_the_bench_without_references():
    cpu = runtime("cpu")
    bench = ColdBench(cpu, aicf.default_registry(), np.random.default_rng(0))
    r = region("add", (64, 33), (64, 33))
    ids = [c.variant.id for c in aicf.registry.select.select(r, cpu.spec, bench.registry).ranked]
    found = bench.region(r, ids, 0.0)
    assert set(found.timings) == set(ids) and not found.refused


@pytest.mark.gpu
def test_on_a_gpu_kernels_start_with_cold_caches():
    """A map whose tensors fit in half of the second-level cache takes longer than by `aicf tune`, which has them there."""
    cuda, registry, rng = runtime("cuda"), aicf.default_registry(), np.random.default_rng(run_number())
    rows = cuda.spec.l2_bytes // 2 // (3 * 4 * 1024)
    r = region("add", (rows, 1024), (rows, 1024), device="cuda")
    id = aicf.registry.select.select(r, cuda.spec, registry).chosen.variant.id
    cold, warm = (b(cuda, registry, rng).region(r, [id], 0.0).timings[id].us for b in (ColdBench, WarmBench))
    assert cold > 1.1 * warm, f"cold {cold} us, warm {warm} us"


@pytest.mark.gpu
def test_on_a_gpu_every_kernel_of_drawn_regions_has_a_time():
    """Of published models: strided operands of attention, labels, codes and states of optimizers among them."""
    cuda, registry = runtime("cuda"), aicf.default_registry()
    bench = ColdBench(cuda, registry, np.random.default_rng(run_number()))
    for d in islice(command.drawn(run_seed(), cuda.spec, registry), 8):
        ids = candidates(d.region, cuda.spec, registry)
        bench.prepare([(id, d.region) for id in ids])
        found = bench.region(d.region, ids, 0.0)
        assert set(found.timings) == set(ids), f"seed {run_seed()}, {d}: {found.refused}"


@pytest.mark.skipif(not cuda_missing(), reason="there is a GPU here")
@pytest.mark.parametrize(
    "device, said", [((), "a CUDA device"), (("--device", "cpu"), "cpu is no CUDA device")]
)
def test_without_a_gpu_the_command_says_what_it_needs(device, said, capsys):
    assert main(["calibrate", *device]) == 2
    err = capsys.readouterr().err
    assert said in err and "aicf doctor" in err


# --- files --------------------------------------------------------------------------------------------------------------


def test_a_calibration_is_read_back_as_it_was_written(tmp_path):
    rng = np.random.default_rng(run_number())
    made = replace_errors(hidden(rng))
    made.save(tmp_path / "deep" / "x.json", draw="words")
    back = Calibration.load(tmp_path / "deep" / "x.json")
    assert (back.gpu, back.values, back.errors) == (made.gpu, made.values, made.errors) and back == made


def replace_errors(calibration: Calibration) -> Calibration:
    return Calibration(calibration.gpu, calibration.values, {ALL: {"regions": 3, "off": 0.1}})


def test_every_constant_of_every_family_can_be_calibrated():
    """A value by its name changes that constant and no other."""
    list(aicf.default_registry())  # loads all kernels
    usual = dict(names())
    assert len(usual) > 50
    for name, value in usual.items():
        other = Calibration("x", {name: 2 * value + 1})
        family = max((f for f in FAMILIES if name.startswith(f + ".")), key=len)
        now = {
            f"{family}.{k}": v
            for k, v in flattened(constants(FAMILIES[family], replace(H200, calibration=other)))
        }
        was = {n: v for n, v in usual.items() if n in now}
        assert {n for n in now if now[n] != was[n]} == {name}


def flattened(record):
    for name, value in vars(record).items():
        if hasattr(value, "items"):
            yield from ((f"{name}.{key}", v) for key, v in value.items())
        else:
            yield name, value


def test_calibrations_of_the_package_name_constants_that_exist():
    list(aicf.default_registry())
    known = {name for name, _ in names()}
    found = sorted(SHIPPED.glob("*.json"))
    assert {path.stem for path in found} == {"h100", "h200"}
    for path in found:
        shipped = Calibration.load(path)
        assert shipped.gpu == path.stem and shipped.gpu in PRESETS
        assert shipped.values.keys() <= known, f"{path.name}: {sorted(shipped.values.keys() - known)}"


def test_the_file_of_the_user_s_folder_is_found_and_off_uses_the_package_s(tmp_path, monkeypatch):
    own = Calibration("h200", {"machine.trip_us": 0.5})
    assert own_calibration.calibrated(H200) == H200, "there is no file"
    own_calibration._read.cache_clear()
    own.save(config.own_calibration_file("h200"))
    assert own_calibration.calibrated(H200).calibration == own
    assert own_calibration.calibrated(preset("h100")) == preset("h100")
    monkeypatch.setenv("AICF_CALIBRATION", "off")
    assert own_calibration.calibrated(H200) == H200


def test_a_folder_that_may_not_be_read_has_no_calibration(monkeypatch, capsys):
    """Where the system refuses to look, as in a home of another user. A name that is too long is refused to root, too."""
    path = Path("/") / ("x" * 300) / "h200.json"
    monkeypatch.setattr(config, "own_calibration_file", lambda gpu: path)
    assert own_calibration.calibrated(H200) == H200
    assert main(["info"]) == 0
    assert "h100, h200 in the package" in capsys.readouterr().out


def test_a_calibration_of_a_board_with_other_multiprocessors_is_refused(tmp_path, monkeypatch, caplog):
    """An H100 PCIe and an H100 SXM have one name, and may share a home."""
    own = Calibration("h200", {"machine.trip_us": 0.5})
    for sms, used in ((H200.sms, True), (H200.sms - 18, False)):
        own.save(path := tmp_path / f"{sms}.json", sms=sms)
        monkeypatch.setenv("AICF_CALIBRATION", str(path))
        with caplog.at_level(logging.WARNING, logger="aicf.select"):
            assert (own_calibration.calibrated(H200).calibration == own) == used
    (record,) = caplog.records
    assert "another board" in record.message and f"got {H200.sms - 18}" in record.message


def test_constants_are_equal_however_their_numbers_are_written():
    one, other = Calibration("x", {"machine.trip_us": 1}), Calibration("x", {"machine.trip_us": 1.0})
    assert one == other and one.digest == other.digest


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"format": "other"}', '{"format": "aicf-calibration", "gpu": "h200", "errors": {}, "values": {"machine.trip_us": "1"}}',
    '{"format": "aicf-calibration", "gpu": "h200", "errors": {}, "values": {"machine.trip_us": -1}}',
    '{"format": "aicf-calibration", "gpu": "h200", "errors": {}, "values": {"machine.trip_us": NaN}}',
    *('{"format": "aicf-calibration", "gpu": "h200", "errors": {}, "values": {"machine.l2_per_sm": ' + v + "}}" for v in ("0", "1e300", "1" + "0" * 400)),
    *('{"format": "aicf-calibration", "gpu": "h200", "errors": {}, "values": {}, "measured": {"gemm": ' + broken + "}}" for broken in (
        '{"points": [[1, 2], [3]], "kernels": {}}', '{"points": [[1, 2]], "kernels": {"a": [[1], [0.5]]}}', '{"points": [1], "kernels": {}}',
        '{"points": [[1, 2]], "kernels": {"a": [[0], [0.5, 1]]}}', '{"points": [[1, NaN]], "kernels": {}}', '{"points": [[1, 1e200]], "kernels": {}}',
    )),
    '{"format": "aicf-calibration", "gpu": "h100", "errors": {}, "values": {}}', None,
])  # fmt: skip
def test_a_broken_file_is_ignored_with_one_warning(tmp_path, monkeypatch, caplog, text):
    path = tmp_path / "broken.json"
    if text is not None:
        path.write_text(text)
        with pytest.raises(DeviceError) if "h100" not in text else pytest.MonkeyPatch.context():
            Calibration.load(path)
    monkeypatch.setenv("AICF_CALIBRATION", str(path))
    with caplog.at_level(logging.WARNING, logger="aicf.select"):
        assert own_calibration.calibrated(H200) == own_calibration.calibrated(H200) == H200
    (record,) = caplog.records
    assert "the calibration is ignored" in record.message and "aicf calibrate" in record.message


def test_a_calibration_s_times_lie_next_to_it():
    assert times_file(Path("a/h200.json")) == Path("a/h200.times.jsonl")


def test_measured_regions_with_other_features_are_not_used():
    """A file of an earlier version may compare regions by fewer numbers."""
    r = region("gemm", (64, 64), (64, 64), device="cuda", dtype="bf16")
    v = next(v for v in aicf.default_registry().variants(r.kind) if v.supported(r, H200) is None)
    count = len(FEATURES["gemm"](r))
    for length, used in ((count, True), (count - 1, False)):
        point = list(FEATURES["gemm"](r))[:length]
        measured = {"gemm": {"points": [point], "kernels": {v.id: [[0], [0.3], [shares(v.cost(r, H200))]]}}}
        other = replace(H200, calibration=Calibration("h200", {}, {}, measured))
        assert (v.predicted(r, other)[1] != v.predicted(r, H200)[1]) == used


# --- plans that were saved ----------------------------------------------------------------------------------------------


@pytest.mark.spec("A7")
def test_a_product_that_is_split_otherwise_under_another_calibration_has_another_workspace():
    """A plan is refused where a kernel's workspace is not the plan's: that finds each kernel that is launched otherwise than when it was saved."""
    rng, registry, split = np.random.default_rng(run_number()), aicf.default_registry(), 0
    for n in range(16):  # few tiles with a long k, which are split
        m, columns = (8 * int(2 ** rng.uniform(0, 5)) for _ in range(2))
        k = 8 * int(2 ** rng.uniform(5, 10))
        r = region("gemm", (m, k), (k, columns), device="cuda", dtype=("bf16", "f32")[n % 2])
        other = replace(H200, calibration=hidden(rng))
        for v in registry.variants(r.kind):
            if v.supported(r, H200) is None and v.supported(r, other) is None:
                launches = [[(x.grid, x.block, x.cluster) for x in v.build(r, d)] for d in (H200, other)]
                workspaces = [v.query_workspace(r, d) for d in (H200, other)]
                if launches[0] != launches[1]:
                    split += 1
                    assert workspaces[0] != workspaces[1], f"seed {run_seed()}: {v.id} on {r}"
    assert split, f"seed {run_seed()}: no kernel is launched otherwise"
