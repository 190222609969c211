"""What was measured: kernels' times on a region, and what times belong to: a device, and the text of kernels and ops."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2s
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from ..device.spec import DeviceSpec
from ..rows import RegionSpec
from .text_digest import inlined, op_digest, variant_digest

if TYPE_CHECKING:
    from .registry import KernelRegistry


# What compiles and computes; told in the header, so that a change of speed can be explained.
PACKAGES = (
    "aicf", "numpy", "numba", "llvmlite", "numba-cuda", "cuda-core", "nvidia-nvvm", "nvidia-nvjitlink",
    "nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12",
)  # fmt: skip


def kernels_hash(kind: str = "cuda", root: Path = Path(__file__).parents[2]) -> str:
    """A digest of the text of aicf's kernels for a kind of device: paths and contents, whatever the line ends."""
    return _hash_of([f"{kind}_kernels"], root)


def text_hash(kind: str, root: Path = Path(__file__).parents[2]) -> str:
    """As `kernels_hash`, with the ops that kernels inline: where it is the same, no single digest is another."""
    return _hash_of([f"{kind}_kernels", "ops"], root)


def _hash_of(folders: Iterable[str], root: Path) -> str:
    digest = blake2s(digest_size=8)
    paths = [path for folder in folders for path in (root / "aicf" / folder).rglob("*.py")]
    for path in sorted(paths, key=lambda p: p.as_posix()):
        text = path.read_text(encoding="utf-8")  # universal newlines: \r\n is read as \n
        digest.update(f"{path.relative_to(root).as_posix()}\0{text}\0".encode())
    return digest.hexdigest()


def counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def place_of(name: str, target: str, sms: int) -> str:
    """A device in words: what of it times depend on."""
    return f"{name} ({target}, {sms} multiprocessors)"


@dataclass(frozen=True)
class Header:
    """What the times belong to. Device, kernels and ops decide whether they may be used; the rest is told.

    kernels, ops  digests of each that there are times of, or that such a kernel inlines (text_digest.py)
    text          of all of aicf's together (`text_hash`): where it is today's, aicf's own need not be looked at one by one
    """

    device: str
    kind: str
    target: str
    sms: int
    text: str
    versions: Mapping[str, str] = field(hash=False)
    date: str
    kernels: Mapping[str, str] = field(default_factory=dict, hash=False)
    ops: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def here(
        cls, device: DeviceSpec, registry: KernelRegistry | None = None, measured: Iterable[Measured] = ()
    ) -> Header:
        """Of what is measured now, with today's kernels of the registry."""
        versions = {"python": platform.python_version()}
        for package in PACKAGES:
            with suppress(PackageNotFoundError):
                versions[package] = version(package)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        measured = list(measured)
        ids = {id for m in measured for id in (*m.timings, *m.refused)}
        kernels = {
            id: variant_digest(registry.by_id(id)) for id in sorted(ids) if registry and id in registry
        }
        ops = {name: op_digest(name) for name in sorted({n for m in measured for n in inlined(m.region)})}
        text = text_hash(device.kind)
        return cls(device.name, device.kind, device.target, device.sms, text, versions, now, kernels, ops)

    @property
    def place(self) -> str:
        return place_of(self.device, self.target, self.sms)

    def stands_for(self, device: DeviceSpec) -> bool:
        return (self.device, self.target, self.sms) == (device.name, device.target, device.sms)


@dataclass(frozen=True)
class Timing:
    """One kernel on one region, whose results were verified first. `spread`: interquartile range over median."""

    us: float
    spread: float = 0.0
    runs: int = 1

    @property
    def order(self) -> tuple[int, float, float]:
        """Greatest is the most telling: of more runs, of less spread, faster. The same whoever merges with whom."""
        return (self.runs, -self.spread, -self.us)


@dataclass(frozen=True)
class Measured:
    """What is known of one region: kernels with their times, and kernels that gave a wrong result or failed, and how."""

    region: RegionSpec
    timings: Mapping[str, Timing] = field(hash=False)
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)


def joined(a: Measured, b: Measured) -> Measured:
    refused = {**a.refused, **b.refused}
    for id in a.refused.keys() & b.refused.keys():
        refused[id] = min(a.refused[id], b.refused[id])
    timings = {**a.timings, **b.timings}
    for id in a.timings.keys() & b.timings.keys():
        timings[id] = max(a.timings[id], b.timings[id], key=lambda t: t.order)
    region = min(
        a.region, b.region, key=lambda r: json.dumps(r.to_json(), sort_keys=True)
    )  # equal but for its order
    return Measured(region, {id: t for id, t in timings.items() if id not in refused}, refused)
