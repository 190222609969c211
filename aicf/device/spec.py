"""DeviceSpec: all that selection may know of a device. Pure data with presets; nothing here asks a driver.

Rates are the vendors' published dense figures with f32 sums (NVIDIA's datasheets of T4, A10, A40, A100, L4, L40S, H20, H100, H200,
GH200 and B200; the Ampere GA102, Ada and RTX Blackwell white papers for RTX 3090, 4090 and 5090; for the A10G, its datasheet as
AWS prints it), bandwidths in GB/s, rates in TFLOP/s. `launch_us` is what one more kernel costs in a replayed graph, about 1 us
on Hopper.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ..errors import DeviceError
from ..lazy import deferred
from .calibration import DEFAULT, Calibration, shipped

T = TypeVar("T")


@dataclass(frozen=True)
class DeviceSpec:
    """One device. `tflops` maps a kind of arithmetic ("f32", "tf32", "f16", "f8") to its dense rate.

    link     GB/s that a collective moves between devices of one node, one way: what NVLink or PCIe leaves of its rate
    peers    devices of a node
    network  the same between nodes, of one device's share: a 400 Gbit/s adapter for each, unless said
    calibration  constants of predictions that were fitted for it: see `calibration.py`
    """

    name: str
    kind: str  # "cpu" or "cuda"
    arch: tuple[int, int] = (0, 0)
    features: frozenset[str] = frozenset()  # architecture-specific targets, such as "sm_90a"
    sms: int = 1
    bandwidth: float = 20.0
    tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    l2_bytes: int = 0
    shared_per_block: int = 0
    memory_bytes: int = 0
    launch_us: float = 1.0
    link: float = 10.0
    peers: int = 8
    network: float = 40.0
    calibration: Calibration = field(default=DEFAULT, repr=False)

    @property
    def target(self) -> str:
        """The compiler's name for it: `sm_80`, `sm_90a`, or `host`."""
        if self.kind == "cpu":
            return "host"
        plain = f"sm_{self.arch[0]}{self.arch[1]}"
        return plain + "a" if plain + "a" in self.features else plain

    def missing(self, need: str) -> str | None:
        """None if the device meets a need such as `sm_80` (at least) or `sm_90a` (exactly); else why not."""
        if self.kind != "cuda":
            return f"needs {need}; {self.name} is no CUDA device"
        if need.endswith("a"):
            return None if need in self.features else f"needs {need}; {self.name} is {self.target}"
        wanted = divmod(int(need.removeprefix("sm_")), 10)
        return None if self.arch >= wanted else f"needs {need} or newer; {self.name} is {self.target}"


def _cuda(
    name: str,
    arch: tuple[int, int],
    sms: int,
    bandwidth: float,
    f32: float,
    tf32: float,
    f16: float,
    l2_mb: float,
    shared_kb: int,
    memory_gb: int,
    launch_us: float = 1.0,
    link: float = 10.0,
) -> DeviceSpec:
    target = f"sm_{arch[0]}{arch[1]}"
    f8 = 2 * f16 if arch >= (8, 9) else 0.0  # with f32 sums, as all; datasheets say the same to a rounding
    rates = {"f32": f32, "tf32": tf32, "f16": f16, "bf16": f16 if arch >= (8, 0) else 0.0, "f8": f8}
    return DeviceSpec(
        name,
        "cuda",
        arch,
        frozenset({target + "a"} if arch >= (9, 0) else ()),
        sms,
        bandwidth,
        rates,
        int(l2_mb * 2**20),
        shared_kb * 1024,
        memory_gb * 2**30,
        launch_us,
        link,
        calibration=shipped(name, _FITTED.get(arch, "")),
    )


_FITTED = {(9, 0): "h200"}  # whose constants other GPUs of an architecture take

PRESETS: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _cuda("t4", (7, 5), 40, 320, 8.1, 0.0, 65, 4, 64, 16, launch_us=1.6),
        _cuda("a100", (8, 0), 108, 2039, 19.5, 156, 312, 40, 163, 80, launch_us=1.3, link=230.0),
        _cuda("a10", (8, 6), 72, 600, 31.2, 62.5, 125, 6, 99, 24, launch_us=1.3, link=18.0),
        _cuda("a10g", (8, 6), 80, 600, 35, 35, 70, 6, 99, 24, launch_us=1.3, link=18.0),
        _cuda("a40", (8, 6), 84, 696, 37.4, 74.8, 149.7, 6, 99, 48, launch_us=1.3, link=18.0),
        _cuda("rtx3090", (8, 6), 82, 936, 35.6, 35.6, 71, 6, 99, 24, launch_us=1.3, link=18.0),
        _cuda("rtx4090", (8, 9), 128, 1008, 82.6, 82.6, 165, 72, 99, 24, launch_us=1.2, link=18.0),
        _cuda("l4", (8, 9), 58, 300, 30.3, 60, 121, 48, 99, 24, launch_us=1.3, link=18.0),
        _cuda("l40s", (8, 9), 142, 864, 91.6, 183, 362, 96, 99, 48, launch_us=1.2, link=18.0),
        _cuda("h20", (9, 0), 78, 4000, 44, 74, 148, 60, 227, 96, link=360.0),
        _cuda("h100", (9, 0), 132, 3350, 66.9, 494, 989, 50, 227, 80, link=360.0),
        _cuda("h200", (9, 0), 132, 4800, 66.9, 494, 989, 60, 227, 141, link=360.0),
        _cuda("gh200", (9, 0), 132, 4000, 66.9, 494, 989, 60, 227, 96, link=360.0),
        _cuda("b200", (10, 0), 148, 8000, 75, 1100, 2250, 126, 227, 180, link=680.0),
        _cuda("rtx5090", (12, 0), 170, 1792, 104.8, 104.8, 209.5, 96, 99, 32, launch_us=1.2, link=18.0),
        DeviceSpec(
            "cpu",
            "cpu",
            sms=4,
            bandwidth=20.0,
            tflops={"f32": 0.15},
            l2_bytes=2**21,
            launch_us=1.0,
            link=1.0,
            peers=1,
            network=1.0,
        ),
    )
}


load_more = deferred("aicf.dispatch.extensions", "load_devices")  # those of other packages


def preset(name: str) -> DeviceSpec:
    """A preset by name, however it is spelled: `h200`, `RTX 4090`, or as the driver reports it: `NVIDIA H100 80GB HBM3`."""
    folded = "".join(_words(name)) if isinstance(name, str) else ""
    board, form = _named(name) if isinstance(name, str) else (None, "")
    if board is not None:
        return _board(board, board.sms, _FORM_BANDWIDTH.get((board.name, form), board.bandwidth))
    if folded not in PRESETS:
        load_more()
    if folded not in PRESETS:
        raise DeviceError(
            f"no device preset is called {name!r}", expected="one of " + ", ".join(sorted(PRESETS))
        )
    return PRESETS[folded]


def constants(kind: type[T], device: DeviceSpec) -> T:
    """A family's constants for a device: see `calibration.py`."""
    return device.calibration.record(kind)


def by_architecture(values: Mapping[str, float], device: DeviceSpec) -> float:
    """Of values by compute capability: its own, "8.6", or that of its first number, "8"; else that of "later"."""
    major, minor = device.arch
    return values.get(f"{major}.{minor}", values.get(f"{major}", values["later"]))


def measured_on(spec: DeviceSpec) -> str | None:
    """The device on which the constants of predictions for this one were measured; None if it was another."""
    return spec.name if spec.kind == "cpu" or spec.calibration.gpu == spec.name else None


def host() -> DeviceSpec:
    """The preset of the CPU. The same on every host, so that a plan does not depend on where it was made."""
    return PRESETS["cpu"]


_VENDOR = {"nvidia", "geforce", "tesla"}
# What may follow the chip in a board's name without making it another chip: the way it is mounted, and its memory.
_BOARD = re.compile(r"(pcie|sxm\d?|nvl|hbm\d\w?|\d+gb?)")
# Boards whose memory is not that of the preset (GB/s), by the first word that tells.
_FORM_BANDWIDTH = {
    ("h100", "pcie"): 2000.0,
    ("h100", "nvl"): 3900.0,
    ("a100", "40gb"): 1555.0,
    ("gh200", "144g"): 4900.0,
}


def _words(name: str) -> list[str]:
    """A device's name in lower case, in words, without the vendor's."""
    return [word for word in re.split(r"[\s_-]+", name.lower()) if word and word not in _VENDOR]


def _named(name: str, arch: tuple[int, int] | None = None) -> tuple[DeviceSpec | None, str]:
    """The preset that a driver's name stands for, and the word that says which board it is on.

    "RTX 4090" is one chip, "RTX 4090 Laptop GPU" and "RTX 3090 Ti" others, and a MIG slice is no whole one: no preset is theirs.
    """
    words = _words(name)
    for known in PRESETS.values():
        for n in (1, 2):  # "h100", "rtx 4090"
            board = words[n:]
            same = known.kind == "cuda" and arch in (None, known.arch) and "".join(words[:n]) == known.name
            if same and all(_BOARD.fullmatch(word) for word in board):
                return known, next((w for w in board if (known.name, w) in _FORM_BANDWIDTH), "")
    return None, ""


def _board(known: DeviceSpec, sms: int, bandwidth: float) -> DeviceSpec:
    """A chip on a board that may have fewer multiprocessors than its preset, and another memory; the preset's own was measured."""
    if (sms, bandwidth) == (known.sms, known.bandwidth):
        return known
    share = sms / known.sms
    rates = {unit: rate * share for unit, rate in known.tflops.items()}
    return replace(
        known, sms=sms, tflops=rates, bandwidth=bandwidth, calibration=known.calibration.of_another()
    )


def from_properties(
    name: str,
    arch: tuple[int, int],
    sms: int,
    l2_bytes: int,
    shared_per_block: int,
    memory_bytes: int,
    clock_ghz: float,
    bandwidth: float,
) -> DeviceSpec:
    """The spec of a GPU that was found: the preset that its name says, else rates from its properties.

    name  as the driver reports it: "NVIDIA H100 80GB HBM3", "NVIDIA A100-PCIE-40GB", "NVIDIA GeForce RTX 4090"
    """
    known, form = _named(name, arch)
    if known is not None:
        # an H100 PCIe is an H100 with fewer multiprocessors, and like every board with another memory it has its own bandwidth
        board = _board(known, sms, _FORM_BANDWIDTH.get((known.name, form), known.bandwidth))
        return replace(board, l2_bytes=l2_bytes, shared_per_block=shared_per_block)
    folded = "".join(_words(name)) or "cuda"
    lanes = 64 if arch in ((7, 5), (8, 0)) else 128  # f32 lanes of one multiprocessor
    f32 = sms * lanes * 2 * clock_ghz / 1e3
    tensor = 4.0 if arch < (8, 0) else 8.0  # dense f16 over f32, a cautious guess
    return DeviceSpec(
        folded,
        "cuda",
        arch,
        frozenset({f"sm_{arch[0]}{arch[1]}a"} if arch >= (9, 0) else ()),
        sms,
        bandwidth,
        {
            "f32": f32,
            "tf32": f32 * tensor / 2,
            "f16": f32 * tensor,
            "bf16": f32 * tensor,
            "f8": f32 * tensor * 2 if arch >= (8, 9) else 0.0,
        },
        l2_bytes,
        shared_per_block,
        memory_bytes,
    )
