"""`aicf doctor`: what works on this machine, what does not, and the exact command that mends it.

Importing this module takes the standard library alone, so that it can judge a broken install. Whatever could crash or hang
is asked by `probes.py`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .probes import LIBRARIES, Driver, cuda_extra, find_driver, highest_ptx, pci_gpus, probe

if TYPE_CHECKING:
    from rich.console import Console

PYTHONS = ((3, 11), (3, 13))  # first and last that aicf is tested on
PACKAGES = {  # as in pyproject.toml: name -> (at least, below)
    "numpy": ("2.1", None),
    "numba": ("0.61", None),
    "ml_dtypes": ("0.5", None),
}
ROOT = Path(__file__).parents[1]  # the checkout, if this is one
CUDA_PACKAGES = {"numba-cuda": ("0.30", None), "cuda-core": ("1.2", None), "cuda-bindings": ("12.9", None)}
ALL_PACKAGES = PACKAGES | CUDA_PACKAGES
OLDEST_GPU = (7, 5)


@dataclass(frozen=True)
class Check:
    """One row. `status`: ok, warn (missing, but this machine may not need it), fail, or skip (can't be known)."""

    name: str
    status: str
    found: str
    fix: str | None = None
    needed_by: str = "cuda"  # the device that it stops when it fails


# --- the report ---------------------------------------------------------------------------------------------


def run(device: str | None = None, console: Console | None = None, as_json: bool = False) -> int:
    """Print the report. 0 if what was asked for works: `cuda` needs a kernel that ran, `cpu` and None the CPU device,
    and None also that a GPU, where there is one, is usable."""
    checks = diagnose(device)
    code = exit_code(checks, device)
    if as_json:
        report = {
            "device": device,
            "exit_code": code,
            "cpu": works(checks, "cpu"),
            "cuda": works(checks, "cuda"),
        }
        print(json.dumps(report | {"checks": [asdict(check) for check in checks]}, indent=2))
    else:
        _print(checks, console)
    return code


def diagnose(device: str | None = None) -> list[Check]:
    """Every check, in the order of the report."""
    checks = [
        _check_python(),
        *(_check_package(name, "cpu") for name in PACKAGES),
        _check_cpu(),
        _check_cache(),
    ]
    if device == "cpu":
        return checks
    if sys.platform == "darwin":
        return [*checks, Check("CUDA", "skip", "NVIDIA publishes no CUDA for macOS; use the CPU device")]
    driver = find_driver()
    if not driver.gpus and pci_gpus() == 0:  # no driver would help: nothing is said of how to install one
        driver = replace(driver, absent=True, error=None, fix=None)
    extra = cuda_extra(driver) or "cu13"
    checks += _check_gpus(driver, wanted=device == "cuda")
    packages = [_check_package(name, "cuda", extra) for name in CUDA_PACKAGES]
    target = _target(driver.gpus[0]["arch"]) if driver.gpus else "sm_90a"
    compiled = probe("compile", target)
    checks += packages
    checks += _check_libraries(probe("libraries"), extra)
    checks.append(_check_driver(driver, wanted=device == "cuda"))
    checks.append(_check_ptx(compiled.get("ptx"), driver))
    checks.append(_check_compile(compiled, target, extra))
    checks.append(_check_launch(compiled, driver, extra, wanted=device == "cuda"))
    if driver.gpus or device == "cuda":
        return checks
    # Without a GPU nothing here stops anyone from working: what is missing is worth a mention, not an error.
    return [c if c.needed_by == "cpu" or c.status != "fail" else replace(c, status="warn") for c in checks]


def works(checks: list[Check], device: str) -> bool:
    """Whether a device can run: the CPU device if none of its checks failed, CUDA if a kernel ran as well."""
    fine = all(check.status != "fail" for check in checks if check.needed_by == "cpu")
    if device == "cpu":
        return fine
    return fine and any(check.name == "launch" and check.status == "ok" for check in checks)


def exit_code(checks: list[Check], device: str | None) -> int:
    if device == "cuda":
        return 0 if works(checks, "cuda") else 1
    return 1 if any(check.status == "fail" for check in checks) else 0


def _print(checks: list[Check], console: Console | None) -> None:
    show: Callable[[str], None] = print
    try:
        from rich.console import Console as RichConsole
        from rich.markup import escape
        from rich.table import Table

        from .text import visible
    except ImportError:  # rich itself is what is missing
        for check in checks:
            print(f"{check.status:5} {check.name:16} {check.found}")
        print(f"to mend:\n    {_pip('rich')}")
    else:
        console = console or RichConsole()
        marks = {"ok": "[green]ok[/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]", "skip": "[dim]-[/]"}
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("check", no_wrap=True)
        table.add_column("", no_wrap=True)
        table.add_column("found", overflow="fold")
        for check in checks:
            table.add_row(escape(check.name), marks[check.status], escape(visible(check.found)))
        console.print(table)

        # Never wrapped, because commands are copied.
        plain = functools.partial(console.print, soft_wrap=True, markup=False, highlight=False)
        show = lambda text: plain(visible(text))  # noqa: E731

    for fix in dict.fromkeys(check.fix for check in checks if check.fix):
        names = ", ".join(check.name for check in checks if check.fix == fix)
        show(f"\nto mend {names}:\n    {fix}")
    show(f"\n{_summary(checks)}")


def _summary(checks: list[Check]) -> str:
    cpu = "CPU device: works." if works(checks, "cpu") else "CPU device: does not work."
    status = {"GPU": "ok", **{check.name: check.status for check in checks}}
    if "compile" not in status:
        return cpu
    if status["launch"] == "ok":
        return f"{cpu} CUDA device: works."
    if status["compile"] != "ok":
        return f"{cpu} CUDA device: does not work."
    if status["GPU"] == "skip":
        return f"{cpu} CUDA device: kernels compile; there is no GPU here to run them."
    return f"{cpu} CUDA device: kernels compile but do not run."


# --- checks -------------------------------------------------------------------------------------------------


def _check_python() -> Check:
    found = f"{platform.python_version()} at {sys.executable} ({platform.system()} {platform.machine()})"
    if sys.version_info[:2] < PYTHONS[0]:
        source = shlex.quote(str(ROOT)) if (ROOT / "pyproject.toml").exists() else "."
        fix = f"python3.13 -m venv .venv && .venv/bin/python -m pip install {source}"
        return Check("python", "fail", f"{found}; aicf needs 3.11 or newer", fix, "cpu")
    if sys.version_info[:2] > PYTHONS[1]:
        return Check("python", "warn", f"{found}; newer than the 3.13 that aicf is tested on", None, "cpu")
    return Check("python", "ok", found, None, "cpu")


def _check_package(name: str, device: str, extra: str | None = None) -> Check:
    least, below = ALL_PACKAGES[name]
    wanted = f"{name}>={least}" + (f",<{below}" if below else "")
    fix = _pip(*dict.fromkeys((_toolkit(extra), wanted))) if extra else _pip(wanted)
    found = installed(name)
    if found is None:
        return Check(name, "fail", "not installed", fix, device)
    if _version(found) < _version(least) or (below and _version(found) >= _version(below)):
        return Check(name, "fail", f"{found}; aicf needs {wanted.removeprefix(name)}", fix, device)
    return Check(name, "ok", found, None, device)


def _check_cpu() -> Check:
    answer = probe("cpu")
    if "error" in answer:
        fix = _pip("--force-reinstall", "numba", "numpy>=2.1")
        return Check("CPU device", "fail", f"a loop did not compile and run: {answer['error']}", fix, "cpu")
    return Check(
        "CPU device",
        "ok",
        f"compiled a loop with numba and checked it in {answer['seconds']:.1f} s",
        None,
        "cpu",
    )


def _check_cache() -> Check:
    """Whether compiled code may be kept, and what is kept be read: another user may write neither."""
    from .code_cache import disk

    if (folder := disk.folder()) is None:
        return Check("code cache", "skip", "AICF_CACHE=off: no compiled code is kept", None, "cpu")
    if refused := disk.refused(folder):
        return Check("code cache", "warn", refused[0], refused[1], "cpu")
    return Check("code cache", "ok", str(folder), None, "cpu")


def _check_libraries(answer: Mapping[str, Any], extra: str) -> list[Check]:
    fix = _pip(_toolkit(extra))
    if "error" in answer:
        return [Check("CUDA libraries", "fail", answer["error"], fix)]
    checks = []
    for name in LIBRARIES:
        path, via = answer[name]
        if path:
            checks.append(Check(name, "ok", f"{path} ({via})"))
        else:
            checks.append(Check(name, "fail", f"not found: {via}", fix))
    return checks


def _check_driver(driver: Driver, wanted: bool) -> Check:
    if driver.error:
        return Check("driver", "fail", driver.error, driver.fix)
    if driver.absent:
        found = "none, and none is needed" if driver.cuda is None else f"CUDA {_dots(driver.cuda)}"
        return Check("driver", "skip", found)
    if driver.cuda is None:
        if driver.release:
            found = f"{driver.release}, but no libcuda: a container that was started without its GPUs"
            return Check("driver", "fail", found, "docker run --gpus all IMAGE")
        found = "no NVIDIA driver (no libcuda)"
        return Check("driver", "fail", found, _install_driver()) if wanted else Check("driver", "skip", found)
    found = f"{driver.release + ', ' if driver.release else ''}CUDA {_dots(driver.cuda)}"
    if driver.cuda[0] < 12:
        return Check(
            "driver", "fail", f"{found}; aicf needs CUDA 12 (driver 525) or newer", _install_driver()
        )
    return Check("driver", "ok", found)


def _check_ptx(emitted: Sequence[int] | None, driver: Driver) -> Check:
    """The compiler may be newer than the driver. Within a major version that does not matter to aicf, which links
    cubins; across one, the driver refuses those too."""
    if emitted is None:
        return Check("PTX", "skip", "unknown, because nothing compiled")
    emitted = (emitted[0], emitted[1])
    if driver.cuda is None:
        return Check(
            "PTX", "skip", f"the compiler emits {_dots(emitted)}; there is no driver to compare it with"
        )
    highest = highest_ptx(driver.cuda)
    found = f"the compiler emits {_dots(emitted)}, the driver takes up to {_dots(highest)}"
    if emitted <= highest:
        return Check("PTX", "ok", found)
    if emitted[0] == highest[0]:
        note = (
            "aicf links cubins, which load all the same; only PTX left to the driver's JIT would be refused"
        )
        return Check("PTX", "ok", f"{found}: {note}")
    return Check(
        "PTX", "fail", f"{found}: a CUDA {emitted[0] + 4} toolkit needs a newer driver", _switch_to_cu12()
    )


def _check_gpus(driver: Driver, wanted: bool) -> list[Check]:
    if driver.absent:
        found = "there is no NVIDIA GPU in this machine (none on its PCI bus)"
        return [Check("GPU", "fail" if wanted else "skip", found)]
    if not driver.gpus:
        return [Check("GPU", "skip", "none")]
    checks = []
    for i, gpu in enumerate(driver.gpus):
        found = f"{gpu['name']}, {_target(gpu['arch'])}, {gpu['memory_gb']:.0f} GB"
        if tuple(gpu["arch"]) < OLDEST_GPU:
            checks.append(Check(f"GPU {i}", "warn", f"{found}; aicf needs compute capability 7.5 or newer"))
        else:
            checks.append(Check(f"GPU {i}", "ok", found))
    return checks


def _check_compile(answer: Mapping[str, Any], target: str, extra: str) -> Check:
    if "error" in answer:
        return Check("compile", "fail", f"no kernel for {target}: {answer['error']}", _pip(_toolkit(extra)))
    found = f"compiled and linked a kernel for {target} in {answer['seconds']:.1f} s ({answer['cubin_bytes']} bytes)"
    return Check("compile", "ok", found)


def _check_launch(compiled: Mapping[str, Any], driver: Driver, extra: str, wanted: bool) -> Check:
    if not driver.gpus:
        found = "no GPU to run a kernel on"
        fix = None if driver.absent else driver.fix or _install_driver()
        return Check("launch", "fail", found, fix) if wanted else Check("launch", "skip", found)
    if "error" in compiled:
        return Check("launch", "fail", "nothing compiled that could run", _pip(_toolkit(extra)))
    answer = probe("launch", _target(driver.gpus[0]["arch"]))
    if "error" not in answer:
        return Check("launch", "ok", f"ran it on {driver.gpus[0]['name']}; the numbers are right")
    emitted, highest = tuple(compiled["ptx"]), highest_ptx(driver.cuda or (0, 0))
    if emitted[0] > highest[0]:
        fix = _switch_to_cu12()
    elif emitted > highest and driver.cuda:
        release = _dots(driver.cuda)
        fix = _pip(f"cuda-toolkit[cccl,cudart,nvrtc,nvvm]=={release}.*", f"nvidia-nvjitlink<={release}.999")
    else:
        fix = "nvidia-smi -q -d PERFORMANCE,ECC,PAGE_RETIREMENT"
    return Check("launch", "fail", f"the kernel did not run: {answer['error']}", fix)


def _install_driver() -> str:
    """The command that brings a driver, on the distributions whose own packages hold one."""
    try:
        distribution = platform.freedesktop_os_release().get("ID", "")
    except OSError:
        distribution = ""
    return {
        "ubuntu": "sudo ubuntu-drivers install && sudo reboot",
        "debian": "sudo apt-get install -y nvidia-driver && sudo reboot",
        "fedora": "sudo dnf install -y akmod-nvidia && sudo reboot",
        "arch": "sudo pacman -S nvidia-open && sudo reboot",
    }.get(distribution, "sudo sh ./NVIDIA-Linux-*.run   # from nvidia.com/drivers")


# --- small things -------------------------------------------------------------------------------------------


def installed(name: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _toolkit(extra: str) -> str:
    """What the extra brings, by itself: aicf's own name would send pip to an index."""
    return f"numba-cuda[{extra}]>={CUDA_PACKAGES['numba-cuda'][0]}"


def _pip(*arguments: str) -> str:
    """A pip command for this interpreter: plain `pip` where that is the one that `pip` in the shell would run."""
    from shutil import which

    found = which("pip")
    here = found is not None and Path(found).parent == Path(sys.executable).parent
    pip = "pip" if here else f"{shlex.quote(sys.executable)} -m pip"
    return " ".join([pip, "install", *map(shlex.quote, arguments)])


def _switch_to_cu12() -> str:
    """Both toolkits' wheels can be installed side by side, and the newer would be found first: it has to go."""
    install = _pip(_toolkit("cu12"))
    wheels = "nvidia-cuda-cccl nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-nvjitlink nvidia-nvvm"
    return f"{install.partition(' install ')[0]} uninstall -y {wheels} && {install}"


def _target(arch: Sequence[int]) -> str:
    """The compiler's name for an architecture; from Hopper on the one that has all its instructions."""
    return f"sm_{arch[0]}{arch[1]}" + ("a" if tuple(arch) >= (9, 0) else "")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _dots(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
