"""Measured times in a file of JSON lines, one for each region, added as they come: a run that is broken off loses nothing.

A line says which GPU it is of, and of each kernel the digest of its source: a kernel that has changed since is measured again.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..device.spec import DeviceSpec
from ..errors import TuningError
from ..files import Bad, parse_json, read_text
from ..registry.ids import current
from ..registry.measured import Measured, place_of
from ..registry.registry import KernelRegistry
from ..registry.text_digest import variant_digest
from ..rows import RegionSpec
from ..rows.region_file import REGION, region_of
from .families import family
from .fit import Sample

NEXT = "aicf calibrate --output FILE writes its times into FILE's folder, as FILE.times.jsonl"


@dataclass(frozen=True)
class Line:
    """A region of a draw, with the microseconds of each kernel, and why others have none.

    earlier  the number of times whose kernels have another text today
    """

    draw: str
    number: int
    step: str
    region: RegionSpec
    times: Mapping[str, float] = field(hash=False)
    refused: Mapping[str, str] = field(default_factory=dict, hash=False)
    earlier: int = 0

    @property
    def family(self) -> str:
        return family(op.kind.name for op in self.region.ops)


def times_file(output: Path) -> Path:
    """The file of times that belongs to a calibration."""
    return output.with_suffix(".times.jsonl")


def line_of(draw: str, number: int, step: str, measured: Measured) -> Line:
    times = {id: t.us for id, t in measured.timings.items()}
    return Line(draw, number, step, measured.region, times, dict(measured.refused))


def append(path: Path, line: Line, device: DeviceSpec, registry: KernelRegistry) -> None:
    """Adds a line; what a process that was killed has left of its last one is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {
        "gpu": _place(device), "draw": line.draw, "number": line.number, "step": line.step, "times": line.times,
        "refused": line.refused, "kernels": {id: variant_digest(registry.by_id(id)) for id in line.times},
        "region": line.region.to_json(),
    }  # fmt: skip
    with open(path, "a+b") as file:
        file.seek(0)
        known = file.read()
        file.truncate(known.rfind(b"\n") + 1)
        file.write(json.dumps(data).encode() + b"\n")


def read(path: Path, device: DeviceSpec, registry: KernelRegistry, any_text: bool = False) -> list[Line]:
    """The lines whose kernels are today's; TuningError for a line that is none or is of another GPU. A last line without its end is left out.

    any_text  of every line the times of kernels that are registered, whatever their text was: `Line.earlier` counts those of another one
    """
    text = current(_text(path))
    found = dict[str, Line]()
    for number, row in enumerate(text[: text.rfind("\n") + 1].splitlines(), 1):
        at = f"{path}, line {number}"
        try:
            data = parse_json(row)
            line = _line_of(data)
        except (ValueError, KeyError, TypeError, AttributeError, Bad) as error:
            raise TuningError(f"{at} is no time of aicf calibrate", got=str(error), hint=NEXT) from None
        if data["gpu"] != _place(device):
            raise TuningError(f"{at} is of another GPU", expected=_place(device), got=data["gpu"], hint="name another --output, or other files with --from")  # fmt: skip
        good = {id for id, d in data["kernels"].items() if id in registry and variant_digest(registry.by_id(id)) == d}  # fmt: skip
        if any_text:
            times = {id: us for id, us in line.times.items() if id in registry}
            found[line.region.key] = replace(line, times=times, earlier=len(times.keys() - good))
        elif len(good) == len(line.times):
            found[line.region.key] = line
    return list(found.values())


def _text(path: Path) -> str:
    """Of a file, or of one that gzip packed."""
    if path.suffix != ".gz":
        return read_text(path, "a file of times", NEXT, TuningError)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TuningError(f"{path} is no file of times that can be read: {error}", hint=NEXT) from None


def _line_of(data: Any) -> Line:
    REGION(data["region"], "region")
    times = {str(id): float(us) for id, us in data["times"].items()}
    if not all(0 < us < float("inf") for us in times.values()) or times.keys() != data["kernels"].keys():
        raise ValueError("times are microseconds above 0, each of a kernel with a digest")
    region = region_of(data["region"], "region")
    return Line(
        str(data["draw"]), int(data["number"]), str(data["step"]), region, times, dict(data["refused"])
    )


def _place(device: DeviceSpec) -> str:
    return place_of(device.name, device.target, device.sms)


def is_fitted(region: RegionSpec) -> bool:
    """Which half a region is in, by its key alone. So it is in the same half in each run, whatever else was measured: what a calibration in use was
    fitted to is never held out later."""
    return hashlib.blake2s(f"half {region.key}".encode(), digest_size=1).digest()[0] % 2 == 0


def halves(lines: Iterable[Line]) -> tuple[list[Line], list[Line]]:
    """(what is fitted, what is held out), of the regions on which several kernels were timed."""
    timed = [line for line in lines if len(line.times) > 1]
    timed.sort(key=lambda line: (line.draw, line.number, line.region.key))
    return [x for x in timed if is_fitted(x.region)], [x for x in timed if not is_fitted(x.region)]


def samples(lines: Sequence[Line]) -> list[Sample]:
    return [Sample(line.region, line.times) for line in lines]
