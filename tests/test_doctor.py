"""The doctor: what it says of this machine, of a machine without a toolkit, and of each kind of broken one."""

import functools
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from aicf import doctor, probes
from aicf.doctor import Check, Driver

NO_GPU = Driver()
H200 = {"name": "NVIDIA H200", "arch": [9, 0], "memory_gb": 150.0}
GPU = Driver(cuda=(13, 0), release="580.82", gpus=(H200,))
COMPILED = {"cubin_bytes": 5000, "ptx": [9, 0], "seconds": 0.5}
LIBRARIES = {name: ("/lib/" + name, "site-packages") for name in doctor.LIBRARIES}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True)
def small_cache(cache, monkeypatch):
    """The doctor looks at each file of the cache: those of all tests are thousands."""
    monkeypatch.setenv("AICF_CACHE_DIR", cache)


@pytest.fixture
def machine(monkeypatch):
    """A pretended machine: its driver, and what each probe answers there."""

    def set_up(driver=NO_GPU, pci=None, **answers):
        answers = {
            "cpu": {"seconds": 0.1},
            "compile": COMPILED,
            "libraries": LIBRARIES,
            "launch": {},
            **answers,
        }
        monkeypatch.setattr(doctor, "find_driver", lambda: driver)
        monkeypatch.setattr(doctor, "probe", lambda name, *arguments, **options: answers[name])
        monkeypatch.setattr(doctor, "installed", lambda name: doctor.ALL_PACKAGES[name][0])
        monkeypatch.setattr(doctor, "pci_gpus", lambda: pci)
        monkeypatch.setattr(sys, "platform", "linux")

    return set_up


def row(device, name) -> Check:
    return next(check for check in doctor.diagnose(device) if check.name == name)


def printed(device=None) -> str:
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), width=80)
    doctor.run(device, console)
    return console.file.getvalue()


# --- this machine -------------------------------------------------------------------------------------------


@pytest.fixture
def probed(monkeypatch):
    """Each probe of this machine, which takes seconds in a process of its own, is asked once."""
    monkeypatch.setattr(doctor, "probe", PROBED)


PROBED = functools.cache(doctor.probe)


def has_gpu() -> bool:
    return bool(doctor.find_driver().gpus)


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("F1")
def test_this_machine_works(capsys, probed):
    assert doctor.run(as_json=True) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cpu"] and report["exit_code"] == 0
    assert report["cuda"] == has_gpu()


def test_asking_for_cuda_needs_a_gpu(probed):
    if has_gpu():
        pytest.skip("this machine has a GPU")
    assert doctor.run("cuda") == 1


@pytest.mark.gpu
def test_a_kernel_runs_on_the_gpu():
    if not has_gpu():
        pytest.skip("there is no NVIDIA GPU")
    assert doctor.run("cuda") == 0
    assert row("cuda", "launch").status == "ok"


def test_the_cpu_device_asks_nothing_of_cuda(probed):
    names = {check.name for check in doctor.diagnose("cpu")}
    assert "driver" not in names and "compile" not in names
    assert doctor.run("cpu") == 0


# --- machines that are broken in one way each ---------------------------------------------------------------


def test_all_well(machine):
    machine(GPU)
    assert doctor.run() == doctor.run("cuda") == 0
    assert "CUDA device: works" in printed()
    assert "to mend" not in printed()


@pytest.mark.spec("F1")
def test_without_a_gpu_what_is_missing_is_no_error(machine, monkeypatch):
    gone = dict.fromkeys(doctor.LIBRARIES, (None, "no such library"))
    machine(NO_GPU, compile={"error": "libnvvm not found"}, libraries=gone)
    assert doctor.run() == 0
    assert row(None, "compile").status == "warn"
    assert "'numba-cuda[cu13]>=0.30'" in printed()
    assert doctor.run("cuda") == 1


@pytest.mark.spec("F1")
@pytest.mark.parametrize("device", [None, "cuda"])
@pytest.mark.parametrize(
    "driver",
    [NO_GPU, Driver(cuda=(13, 0), error="the driver sees no GPU", fix="nvidia-smi -L")],
    ids=["none", "idle"],
)
def test_a_machine_without_a_gpu_on_its_bus_is_told_that_first_and_to_install_no_driver(
    machine, driver, device
):
    machine(driver, pci=0)
    checks = doctor.diagnose(device)
    cuda = [check for check in checks if check.needed_by == "cuda"]
    assert cuda[0].name == "GPU" and "no NVIDIA GPU in this machine" in cuda[0].found
    assert not any(check.fix for check in checks)
    assert "to mend" not in printed(device)
    assert doctor.run(device) == (1 if device else 0)


def test_where_the_bus_has_a_gpu_or_can_t_be_seen_a_driver_is_advised(machine):
    for pci in (None, 1):
        machine(NO_GPU, pci=pci)
        assert row("cuda", "driver").status == "fail" and row("cuda", "driver").fix


def test_the_pci_bus_is_read(tmp_path):
    assert doctor.pci_gpus(str(tmp_path / "nothing")) is None
    for n, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000"), ("0x10de", "0x030000")]
    ):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "vendor").write_text(vendor + "\n")
        (tmp_path / str(n) / "class").write_text(kind + "\n")
    (tmp_path / "unreadable").mkdir()
    assert doctor.pci_gpus(str(tmp_path)) == (None if Path("/dev/dxg").exists() else 2)


def test_a_gpu_that_can_not_be_used_is_an_error(machine):
    machine(GPU, launch={"error": "CUDA_ERROR_LAUNCH_FAILED"})
    assert doctor.run() == doctor.run("cuda") == 1
    assert "CUDA_ERROR_LAUNCH_FAILED" in row(None, "launch").found
    assert doctor.run("cpu") == 0


@pytest.mark.parametrize("cuda, extra", [((12, 4), "cu12"), ((13, 0), "cu13"), ((14, 1), "cu13")])
def test_the_extra_follows_the_driver(machine, cuda, extra):
    driver = Driver(cuda=cuda, gpus=(H200,))
    assert doctor.cuda_extra(driver) == extra
    machine(driver, compile={"error": "libnvvm not found"})
    assert row(None, "compile").fix.endswith(f"install 'numba-cuda[{extra}]>=0.30'")


def test_no_extra_without_a_driver_or_for_an_old_one(machine):
    assert doctor.cuda_extra(NO_GPU) is None
    old = Driver(cuda=(11, 8), gpus=(H200,))
    assert doctor.cuda_extra(old) is None
    machine(old)
    assert row(None, "driver").status == "fail" and row(None, "driver").fix


@pytest.mark.spec("F1")
def test_a_missing_package_is_reported_with_its_command(machine, monkeypatch):
    machine()
    monkeypatch.setattr(doctor, "installed", lambda name: None if name == "numba" else "99")
    check = row(None, "numba")
    assert (check.status, check.needed_by) == ("fail", "cpu")
    assert check.fix.endswith("install 'numba>=0.61'")
    assert doctor.run() == 1


@pytest.mark.parametrize("version, bounds, fix", [
    ("2.0.2", ("2.1", None), "install 'numpy>=2.1'"), ("3.0.0", ("2.1", "3"), "install 'numpy>=2.1,<3'"),
])  # fmt: skip
def test_a_numpy_out_of_bounds_is_reported_with_its_command(machine, monkeypatch, version, bounds, fix):
    machine()
    monkeypatch.setattr(doctor, "installed", lambda name: version)
    monkeypatch.setitem(doctor.ALL_PACKAGES, "numpy", bounds)
    assert row(None, "numpy").status == "fail"
    assert row(None, "numpy").fix.endswith(fix)


def test_a_failing_cpu_compiler_is_an_error_everywhere(machine):
    machine(GPU, cpu={"error": "crashed with SIGILL"})
    assert doctor.run() == doctor.run("cpu") == doctor.run("cuda") == 1
    assert "SIGILL" in printed("cpu") and "to mend CPU device" in printed("cpu")


def test_ptx_newer_than_the_driver_within_a_major_version_is_fine(machine):
    machine(GPU, compile=COMPILED | {"ptx": [9, 4]})
    check = row(None, "PTX")
    assert check.status == "ok" and "9.4" in check.found and "9.0" in check.found and "cubins" in check.found


def test_a_toolkit_of_a_newer_major_version_than_the_driver_is_not(machine):
    machine(
        Driver(cuda=(12, 8), gpus=(H200,)), compile=COMPILED | {"ptx": [9, 4]}, launch={"error": "no image"}
    )
    for name in ("PTX", "launch"):
        assert row(None, name).status == "fail"
        assert "numba-cuda[cu12]" in row(None, name).fix and "uninstall" in row(None, name).fix


def test_a_driver_that_hangs_is_reported(machine, monkeypatch):
    monkeypatch.setattr(probes, "probe", lambda *arguments, **options: {"error": "no answer within 30 s"})
    driver = doctor.find_driver()
    machine(driver)
    assert row("cuda", "driver").found == "no answer within 30 s" and row("cuda", "driver").fix
    assert doctor.run() == 0


def test_a_gpu_that_is_too_old_is_named(machine):
    machine(Driver(cuda=(12, 8), gpus=({"name": "Tesla V100", "arch": [7, 0], "memory_gb": 16.0},)))
    assert "7.5 or newer" in row(None, "GPU 0").found


def test_macos_has_no_cuda(machine, monkeypatch):
    machine()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert doctor.diagnose(None)[-1].status == "skip"
    assert doctor.run() == 0


def test_commands_are_not_wrapped(machine):
    machine(Driver(cuda=(12, 8), gpus=(H200,)), compile=COMPILED | {"ptx": [9, 4]})
    fix = row(None, "PTX").fix
    assert len(fix) > 80 and f"\n    {fix}\n" in printed()


# --- probes -------------------------------------------------------------------------------------------------


def test_a_probe_that_raises_crashes_or_hangs_is_an_answer(monkeypatch):
    assert "KeyError" in doctor.probe("no_such_probe")["error"]

    def fake(command, **options):
        if options["timeout"] < 1:
            raise subprocess.TimeoutExpired(command, options["timeout"])
        return subprocess.CompletedProcess(command, -11, "", "")

    monkeypatch.setattr(subprocess, "run", fake)
    assert doctor.probe("cpu")["error"] == "crashed with SIGSEGV"
    assert "no answer" in doctor.probe("cpu", timeout=0.1)["error"]


@pytest.mark.parametrize(
    "cuda, ptx",
    [((12, 0), (8, 0)), ((12, 6), (8, 5)), ((12, 9), (8, 8)), ((13, 0), (9, 0)), ((13, 4), (9, 4))],
)
def test_highest_ptx(cuda, ptx):
    assert doctor.highest_ptx(cuda) == ptx


def test_it_asks_for_the_packages_that_pyproject_asks_for():
    project = tomllib.loads(Path(__file__).parent.with_name("pyproject.toml").read_text())["project"]
    bounds = {}
    for requirement in project["dependencies"]:
        name, spec = re.match(r"([\w-]+)([^;]*)", requirement).groups()
        least = re.search(r">=([\d.]+)", spec)
        below = re.search(r"<([\d.]+)", spec)
        bounds[name] = (least and least[1], below and below[1])
    for name, wanted in doctor.ALL_PACKAGES.items():
        if name != "cuda-bindings":  # comes with cuda-python
            assert bounds[name] == wanted, name


def test_a_python_that_is_too_old_is_told_how_to_install_this_checkout(monkeypatch):
    monkeypatch.setattr(doctor, "PYTHONS", ((3, 99), (3, 99)))
    check = doctor._check_python()
    assert check.status == "fail"
    source = Path(check.fix.split(" install ")[1])
    assert (source / "pyproject.toml").exists()
