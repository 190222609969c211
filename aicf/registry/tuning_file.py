"""The JSON of a tuning file: written in one form, and read with every field checked before any of it is used.

    format    "aicf tuning"
    version   2
    header    device: its name · kind: cpu or cuda · target: the compiler's name for it · sms: multiprocessors
              text: digest of the text of all kernels and ops (`text_hash`) · versions: {package: version} · date
              kernels: {id: digest} of each that is named below · ops: {name: digest} of the regions'
    regions   [{region: as RegionSpec.to_json has it,
                measured: [{kernel: its id, us: median, spread: interquartile range / median, runs, verified: true}],
                refused:  [{kernel: its id, why: what it did wrong}]}]
    checksum  of all the rest, in canonical JSON

Regions are ordered by their keys and kernels by their ids, each on a line of its own, so that a file can be committed and a
change of it can be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2s
from typing import Any

from ..errors import TuningError
from ..files import COUNT, HEX, TEXT, Bad, list_of, must, parse_json, record, shown
from ..rows.region_file import KIND, REGION, region_of
from .ids import current
from .measured import Header, Measured, Timing
from .tuning import Tuning

FORMAT, VERSION = "aicf tuning", 2

# --- writing ----------------------------------------------------------------------------------------------------------


def text_of(tuning: Tuning) -> str:
    regions = [_region_json(m) for m in tuning.regions.values()]
    data = {"format": FORMAT, "version": VERSION, "header": asdict(tuning.header), "regions": regions}
    lines = [
        "{",
        f' "format": {_line(FORMAT)}, "version": {VERSION},',
        f' "header": {_line(data["header"])},',
        ' "regions": [',
        ",\n".join(map(_region_lines, regions)),
        " ],",
        f' "checksum": {_line(_checksum(data))}',
        "}",
    ]
    return "\n".join(lines) + "\n"


def _region_json(measured: Measured) -> dict[str, Any]:
    times = sorted(measured.timings.items())
    return {
        "region": measured.region.to_json(),
        "measured": [{"kernel": id, **asdict(t), "verified": True} for id, t in times],
        "refused": [{"kernel": id, "why": why} for id, why in sorted(measured.refused.items())],
    }


def _region_lines(region: Mapping[str, Any]) -> str:
    def listed(name: str) -> str:
        return f'   "{name}": [' + ",".join(f"\n    {_line(entry)}" for entry in region[name]) + "]"

    return f'  {{"region": {_line(region["region"])},\n{listed("measured")},\n{listed("refused")}}}'


def _line(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _checksum(data: Mapping[str, Any]) -> str:
    content = {name: value for name, value in data.items() if name != "checksum"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return blake2s(text.encode(), digest_size=16).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


def parse(text: str, name: str) -> Tuning:
    """The tuning; TuningError names the file and the first thing that is wrong with it."""
    try:
        data = parse_json(text)
    except ValueError as error:
        raise TuningError(f"{name} is no tuning file: it is not JSON", got=str(error)) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TuningError(
            f"{name} is no tuning file", expected=f'an object with "format": "{FORMAT}"',
            got=shown(data if not isinstance(data, dict) else data.get("format")),
        )  # fmt: skip
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise TuningError(
            f"{name} has another version of the format", expected=VERSION, got=shown(data.get("version")),
            hint="measure again with this aicf, or read it with the one that wrote it",
        )  # fmt: skip
    try:
        _FILE(data, "")
        if data["checksum"] != (sum := _checksum(data)):
            raise Bad("checksum", f"{sum}, that of the content", data["checksum"])
        regions = [_measured(entry, f"regions[{n}]") for n, entry in enumerate(data["regions"])]
        keys = [m.region.key for m in regions]
        for n, key in enumerate(keys):
            if key in keys[:n]:
                raise Bad(f"regions[{n}].region", "each region once", f"that of regions[{keys.index(key)}]")
    except Bad as bad:
        raise TuningError(
            f"{name} is damaged: {bad.at} is wrong", expected=bad.expected, got=shown(bad.got),
            hint="take it from where it was committed, or measure again",
        ) from None  # fmt: skip
    header = data["header"]
    kernels = {current(id): digest for id, digest in header["kernels"].items()}
    return Tuning(Header(**{**header, "kernels": kernels}), regions)


# --- checks ------------------------------------------------------------------------------------------------------------


def _texts(value: Any, at: str) -> None:
    if not isinstance(value, dict):
        raise Bad(at, "an object of names and texts", value)
    for name, text in value.items():
        TEXT(text, f"{at}.{name}")


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_FILE = record(
    format=TEXT,
    version=COUNT,
    header=record(
        device=TEXT, kind=KIND, target=TEXT, sms=COUNT, text=HEX, versions=_texts, date=TEXT, kernels=_texts, ops=_texts
    ),
    regions=list_of(
        record(
            region=REGION,
            measured=list_of(
                record(
                    kernel=TEXT,
                    us=must("microseconds, more than 0 and finite", lambda v: _number(v) and v > 0),
                    spread=must("a number of 0 or more", lambda v: _number(v) and v >= 0),
                    runs=COUNT,
                    verified=must("true", lambda v: v is True),
                )
            ),
            refused=list_of(record(kernel=TEXT, why=TEXT)),
        )
    ),
    checksum=HEX,
)  # fmt: skip


def _measured(entry: Mapping[str, Any], at: str) -> Measured:
    timings: dict[str, Timing] = {}
    for n, t in enumerate(entry["measured"]):
        id = current(t["kernel"])
        _once(id, timings, f"{at}.measured[{n}]")
        timings[id] = Timing(float(t["us"]), float(t["spread"]), t["runs"])
    refused: dict[str, str] = {}
    for n, r in enumerate(entry["refused"]):
        id = current(r["kernel"])
        _once(id, {**timings, **refused}, f"{at}.refused[{n}]")
        refused[id] = r["why"]
    return Measured(region_of(entry["region"], f"{at}.region"), timings, refused)


def _once(id: str, seen: Iterable[str], at: str) -> None:
    if id in seen:
        raise Bad(f"{at}.kernel", "each kernel once", id)
