"""What drivers, compilers and libraries of this machine answer: asked in processes of their own, under a time limit.

Importing this module takes the standard library alone, and it runs as a plain script before anything is installed:
`python -P aicf/probes.py extra` prints the extra (cu12 or cu13) that the driver takes, which is what the Makefile asks. Whatever
could crash or hang, as drivers and compilers in a bad state do, is tried by `probe`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# CUDA release -> the PTX version it brings; from 13.0 on the two count alike.
PTX = {
    (12, 0): (8, 0),
    (12, 1): (8, 1),
    (12, 2): (8, 2),
    (12, 3): (8, 3),
    (12, 4): (8, 4),
    (12, 5): (8, 5),
    (12, 6): (8, 5),
    (12, 7): (8, 6),
    (12, 8): (8, 7),
    (12, 9): (8, 8),
}

# What cuInit can say, and what helps.
CUDA_ERRORS = {
    34: ("the libcuda found is the toolkit's stub", "unset LD_LIBRARY_PATH"),
    100: ("the driver sees no GPU", 'nvidia-smi -L; echo "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"'),
    802: (
        "the GPUs are not initialised (NVLink machines need the fabric manager)",
        "sudo systemctl start nvidia-fabricmanager",
    ),
    803: ("the driver's library and its kernel module have different versions", "sudo reboot"),
    804: ("a forward-compatibility libcuda is loaded, which this GPU does not take", "unset LD_LIBRARY_PATH"),
    999: ("the driver answers 'unknown error'", "sudo modprobe -r nvidia_uvm && sudo modprobe nvidia_uvm"),
}

LIBRARIES = ("nvvm", "libdevice", "nvJitLink", "cudart", "nvrtc")


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver. `cuda` is the newest CUDA release it runs; `gpus` hold name, arch and memory_gb."""

    cuda: tuple[int, int] | None = None
    release: str | None = None
    gpus: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None
    fix: str | None = None
    absent: bool = False  # the PCI bus was looked at, and there is no NVIDIA GPU on it


def find_driver() -> Driver:
    """What the driver says of itself, asked in another process: with a broken one the asking itself can hang."""
    answer = dict(probe("driver", timeout=30))
    if "error" in answer and "fix" not in answer:
        return Driver(error=answer["error"], fix="nvidia-smi")
    if answer.get("cuda"):
        answer["cuda"] = tuple(answer["cuda"])
    return Driver(release=_driver_release(), **answer | {"gpus": tuple(answer.get("gpus", ()))})


def cuda_extra(driver: Driver) -> str | None:
    """The extra of aicf that a driver takes; None without a driver, or with one from before CUDA 12."""
    if driver.cuda is None or driver.cuda[0] < 12:
        return None
    return "cu12" if driver.cuda[0] == 12 else "cu13"


def highest_ptx(cuda: tuple[int, int]) -> tuple[int, int]:
    """The newest PTX a driver takes, from the newest CUDA release it runs."""
    if cuda >= (13, 0):
        return cuda[0] - 4, cuda[1]
    return PTX.get(cuda, (7, 8))


def pci_gpus(devices: str = "/sys/bus/pci/devices") -> int | None:
    """How many display controllers of NVIDIA's the PCI bus has; None where it can't be looked at, as under WSL."""
    if not os.path.isdir(devices) or os.path.exists("/dev/dxg"):
        return None
    count = 0
    for device in Path(devices).iterdir():
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue
        count += vendor.strip() == "0x10de" and kind.startswith("0x03")
    return count


def _driver_release() -> str | None:
    """The driver's own number, such as 580.82.07; Linux tells."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    return match[1] if match else None


def probe(name: str, *arguments: str, timeout: float = 120) -> dict[str, Any]:
    """The answer of `_probe_<name>`, run in a fresh interpreter; {"error": …} if it raised, crashed or hung."""
    command = [sys.executable, "-P", os.path.abspath(__file__), "probe", name, *arguments]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout:.0f} s"}
    except OSError as error:
        return {"error": f"{sys.executable} did not start: {error}"}
    lines = done.stdout.splitlines()
    if done.returncode == 0 and lines:
        answer: dict[str, Any] = json.loads(lines[-1])
        return answer
    if done.returncode < 0:
        return {"error": f"crashed with {signal.Signals(-done.returncode).name}"}
    said = [line for line in done.stderr.splitlines() if line.strip()]
    return {"error": said[-1] if said else f"exit status {done.returncode}"}


def _probe_cpu() -> dict[str, Any]:
    """Compile a loop with numba and compare it with NumPy."""
    import time

    import numba
    import numpy as np

    start = time.perf_counter()

    @numba.njit
    def scale_and_add(x, y, out):  # type: ignore[no-untyped-def]
        for i in range(out.size):
            out[i] = 2 * x[i] + y[i]

    x, y = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
    out = np.empty_like(x)
    scale_and_add(x, y, out)
    if not np.array_equal(out, 2 * x + y):
        raise ArithmeticError("the compiled loop gives other numbers than NumPy")
    return {"seconds": time.perf_counter() - start}


def _probe_libraries() -> dict[str, Any]:
    """Where each library of the toolkit was found, and how."""
    from cuda import pathfinder

    found: dict[str, Any] = {}
    for name in LIBRARIES:
        try:
            if name == "libdevice":
                at = pathfinder.locate_bitcode_lib("device")
            else:
                at = pathfinder.load_nvidia_dynamic_lib(name)
            found[name] = (at.abs_path, at.found_via)
        except Exception as error:  # reported as this library's reason
            found[name] = (None, str(error).strip().splitlines()[0])
    return found


def _probe_driver() -> dict[str, Any]:
    """Ask libcuda directly; no package is needed for that."""
    name = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
    try:
        cuda = ctypes.CDLL(name)
    except OSError:
        return {}
    number = ctypes.c_int()
    answer: dict[str, Any] = {}
    if cuda.cuDriverGetVersion(ctypes.byref(number)) == 0 and number.value:
        answer["cuda"] = (number.value // 1000, number.value % 1000 // 10)
    code = cuda.cuInit(0)
    if code:
        meaning, fix = CUDA_ERRORS.get(code, (f"cuInit fails with code {code}", "nvidia-smi"))
        return {**answer, "error": meaning, "fix": fix}
    cuda.cuDeviceGetCount(ctypes.byref(number))
    gpus = []
    for ordinal in range(number.value):
        device, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
        text = ctypes.create_string_buffer(100)
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(text, len(text), device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        arch = []
        for attribute in (75, 76):  # compute capability, major and minor
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            arch.append(value.value)
        gpus.append({"name": text.value.decode(), "arch": arch, "memory_gb": size.value / 1e9})
    return {**answer, "gpus": gpus}


def _compile(target: str) -> tuple[bytes, str]:
    """A small kernel as a cubin, by the route that aicf's engine takes (LTO-IR, linked by nvJitLink), and as PTX."""
    import math

    import numpy as np
    from cuda.core import Linker, LinkerOptions, ObjectCode

    vars(np).setdefault("row_stack", np.vstack)  # numba-cuda 0.30 names it, NumPy 2.5 has it no more
    from numba import cuda, types

    def kernel(out, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            out[i] = math.exp(types.float32(i) / types.float32(n))  # exp comes from libdevice

    number, suffix = re.fullmatch(r"sm_(\d+)(a?)", target).groups()  # type: ignore[union-attr]
    arch = (*divmod(int(number), 10), *([suffix] if suffix else []))
    signature = types.void(types.CPointer(types.float32), types.int32)
    options = {"device": False, "abi": "numba", "abi_info": {"abi_name": "doctor"}, "cc": arch}
    ptx, _ = cuda.compile(kernel, signature, output="ptx", **options)
    ltoir, _ = cuda.compile(kernel, signature, output="ltoir", **options)
    linker = Linker(
        ObjectCode.from_ltoir(ltoir), options=LinkerOptions(arch=target, link_time_optimization=True)
    )
    return bytes(linker.link("cubin").code), ptx


def _probe_compile(target: str) -> dict[str, Any]:
    import time

    start = time.perf_counter()
    cubin, ptx = _compile(target)
    version = re.search(r"^\.version (\d+)\.(\d+)", ptx, re.MULTILINE)
    return {
        "cubin_bytes": len(cubin),
        "ptx": [int(version[1]), int(version[2])] if version else None,
        "seconds": time.perf_counter() - start,
    }


def _probe_launch(target: str) -> dict[str, Any]:
    """Run the kernel on the first GPU, writing to pinned memory, and compare with NumPy."""
    import numpy as np
    from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, ObjectCode, launch

    device = Device(0)  # first: without a working driver later calls of cuda.core hang instead of raising
    device.set_current()
    cubin, _ = _compile(target)
    n = 1000
    stream = device.create_stream()
    buffer = LegacyPinnedMemoryResource().allocate(4 * n)
    out = np.from_dlpack(buffer).view(np.float32)
    out[:] = 0
    config = LaunchConfig(grid=-(-n // 256), block=256)
    launch(stream, config, ObjectCode.from_cubin(cubin).get_kernel("doctor"), buffer, np.int32(n))
    stream.sync()
    if not np.allclose(out, np.exp(np.arange(n) / n), rtol=1e-5):
        raise ArithmeticError("the kernel gives other numbers than NumPy")
    return {}


def _main(arguments: list[str]) -> int:
    """`probe NAME …` answers in JSON; `extra` prints cu12, cu13 or nothing."""
    command, *rest = arguments
    if command == "probe":
        print(json.dumps(globals()[f"_probe_{rest[0]}"](*rest[1:])))
    elif command == "extra":
        print(cuda_extra(find_driver()) or "")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
