"""The JSON of a tuning file: written in one form, and read with every field checked before any of it is used.

    format    "aicf tuning"
    version   1
    header    device: its name · kind: cpu or cuda · target: the compiler's name for it · sms: multiprocessors
              kernels: digest of the text of the kernels (`kernels_hash`) · versions: {package: version} · date
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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from hashlib import blake2s
from typing import Any, NoReturn

from ..errors import AicfError, TuningError
from ..ops.schema import schema_of
from ..rows import RegionSpec
from ..types import DType, TensorSpec
from .tuning import Header, Measured, Timing, Tuning

FORMAT, VERSION = "aicf tuning", 1

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
    kept = {name: value for name, value in data.items() if name != "checksum"}
    text = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    return blake2s(text.encode(), digest_size=16).hexdigest()


# --- reading ----------------------------------------------------------------------------------------------------------


class _Bad(Exception):
    """What is wrong at a place of the file."""

    def __init__(self, at: str, expected: str, got: Any) -> None:
        self.at, self.expected, self.got = at, expected, got


def parse(text: str, name: str) -> Tuning:
    """The tuning; TuningError names the file and the first thing that is wrong with it."""
    try:
        data = json.loads(text, parse_constant=_no_number, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TuningError(f"{name} is no tuning file: it is not JSON", got=str(error)) from None
    except _Bad as bad:
        raise TuningError(f"{name} is damaged: {bad.got} is there twice", expected=bad.expected) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise TuningError(
            f"{name} is no tuning file", expected=f'an object with "format": "{FORMAT}"',
            got=_shown(data if not isinstance(data, dict) else data.get("format")),
        )  # fmt: skip
    if data.get("version") != VERSION or type(data["version"]) is not int:
        raise TuningError(
            f"{name} has another version of the format", expected=VERSION, got=_shown(data.get("version")),
            hint="measure again with this aicf, or read it with the one that wrote it",
        )  # fmt: skip
    try:
        _FILE(data, "")
        if data["checksum"] != (sum := _checksum(data)):
            raise _Bad("checksum", f"{sum}, that of the content", data["checksum"])
        regions = [_measured(entry, f"regions[{n}]") for n, entry in enumerate(data["regions"])]
        keys = [m.region.key for m in regions]
        for n, key in enumerate(keys):
            if key in keys[:n]:
                raise _Bad(f"regions[{n}].region", "each region once", f"that of regions[{keys.index(key)}]")
    except _Bad as bad:
        raise TuningError(
            f"{name} is damaged: {bad.at} is wrong", expected=bad.expected, got=_shown(bad.got),
            hint="take it from where it was committed, or measure again",
        ) from None  # fmt: skip
    return Tuning(Header(**data["header"]), regions)


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Bad("", "each name once", next(repr(n) for n in names if names.count(n) > 1))
    return made


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"


# --- checks: (value, where) -> None, or _Bad ----------------------------------------------------------------------------

Check = Callable[[Any, str], None]


def _is(expected: str, test: Callable[[Any], bool]) -> Check:
    def check(value: Any, at: str) -> None:
        if not test(value):
            raise _Bad(at, expected, value)

    return check


def _record(**fields: Check) -> Check:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise _Bad(at or "the file", f"an object with {', '.join(fields)}", value)
        for name, inner in fields.items():
            if name not in value:
                raise _Bad(f"{at}.{name}".lstrip("."), "a value", "nothing")
            inner(value[name], f"{at}.{name}".lstrip("."))
        if unknown := sorted(value.keys() - fields.keys()):
            raise _Bad(f"{at}.{unknown[0]}".lstrip("."), f"only {', '.join(fields)}", unknown[0])

    return check


def _list(inner: Check) -> Check:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, list):
            raise _Bad(at, "a list", value)
        for n, item in enumerate(value):
            inner(item, f"{at}[{n}]")

    return check


def _versions(value: Any, at: str) -> None:
    if not isinstance(value, dict):
        raise _Bad(at, "an object of packages and versions", value)
    for package, text in value.items():
        _TEXT(text, f"{at}.{package}")


def _region(value: Any, at: str) -> None:
    """With `strict` or without."""
    fields = _REGION if not isinstance(value, dict) or "strict" not in value else {**_REGION, "strict": _TRUE}
    _record(**fields)(value, at)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


_TEXT = _is("some text", lambda v: isinstance(v, str) and v != "")
_TRUE = _is("true", lambda v: v is True)
_WHOLE = _is("a whole number from 0 to 2^63 - 1", lambda v: type(v) is int and 0 <= v < 2**63)
_COUNT = _is("a whole number of 1 or more", lambda v: type(v) is int and 1 <= v < 2**63)
_INDEX = _is("a whole number of -1 or more", lambda v: type(v) is int and -1 <= v < 2**31)
_STRIDE = _is("a whole number", lambda v: type(v) is int and abs(v) < 2**63)
_SIZES, _INDICES = _list(_WHOLE), _list(_INDEX)
_DTYPE = _is(
    "one of " + ", ".join(DType.__members__), lambda v: isinstance(v, str) and v in DType.__members__
)
_KIND = _is("cpu or cuda", lambda v: v in ("cpu", "cuda"))
_ALIGNMENT = _is("a power of two up to 256", lambda v: type(v) is int and v in [2**n for n in range(9)])
_NAME = _is(
    "a lower_snake_case identifier", lambda v: isinstance(v, str) and v.isidentifier() and v == v.lower()
)
_HEX = _is(
    "hexadecimal digits",
    lambda v: isinstance(v, str) and v == v.strip() and set(v) <= set("0123456789abcdef"),
)
_REGION: dict[str, Check] = {
    "ops": _list(_record(**{"kind": _NAME, "attrs": _HEX, "in": _INDICES, "out": _SIZES})),
    "tensors": _list(
        _record(dtype=_DTYPE, shape=_SIZES, stride=_list(_STRIDE), device=_KIND, alignment=_ALIGNMENT)
    ),
    "inputs": _SIZES,
    "outputs": _SIZES,
}
_FILE = _record(
    format=_TEXT,
    version=_COUNT,
    header=_record(
        device=_TEXT, kind=_KIND, target=_TEXT, sms=_COUNT, kernels=_HEX, versions=_versions, date=_TEXT
    ),
    regions=_list(
        _record(
            region=_region,
            measured=_list(
                _record(
                    kernel=_TEXT,
                    us=_is("microseconds, more than 0 and finite", lambda v: _number(v) and v > 0),
                    spread=_is("a number of 0 or more", lambda v: _number(v) and v >= 0),
                    runs=_COUNT,
                    verified=_TRUE,
                )
            ),
            refused=_list(_record(kernel=_TEXT, why=_TEXT)),
        )
    ),
    checksum=_HEX,
)  # fmt: skip


def _measured(entry: Mapping[str, Any], at: str) -> Measured:
    timings: dict[str, Timing] = {}
    for n, t in enumerate(entry["measured"]):
        _once(t["kernel"], timings, f"{at}.measured[{n}]")
        timings[t["kernel"]] = Timing(float(t["us"]), float(t["spread"]), t["runs"])
    refused: dict[str, str] = {}
    for n, r in enumerate(entry["refused"]):
        _once(r["kernel"], {**timings, **refused}, f"{at}.refused[{n}]")
        refused[r["kernel"]] = r["why"]
    return Measured(_checked_region(entry["region"], f"{at}.region"), timings, refused)


def _once(id: str, seen: Iterable[str], at: str) -> None:
    if id in seen:
        raise _Bad(f"{at}.kernel", "each kernel once", id)


def _checked_region(data: dict[str, Any], at: str) -> RegionSpec:
    """The region, if it is one: indices within bounds, values made before they are read, types that the ops infer."""
    if not data["ops"]:
        raise _Bad(f"{at}.ops", "one op at least", "none")
    for n, t in enumerate(data["tensors"]):
        if len(t["shape"]) != len(t["stride"]):
            raise _Bad(f"{at}.tensors[{n}].stride", f"{len(t['shape'])} entries", len(t["stride"]))
    count = len(data["tensors"])
    named = [i for op in data["ops"] for i in (*op["in"], *op["out"])] + data["inputs"] + data["outputs"]
    if bad := [i for i in named if i >= count]:
        raise _Bad(at, f"indices of the {count} tensors", bad[0])
    try:
        region = RegionSpec.from_json(data)
        known = set(region.inputs)
        for n, op in enumerate(region.ops):
            here = f"{at}.ops[{n}]"
            if unmade := [i for i in op.inputs if i >= 0 and i not in known]:
                raise _Bad(f"{here}.in", "tensors that are given or made before", unmade[0])
            specs = [None if i < 0 else _spec(region, i) for i in op.inputs]
            want = schema_of(op.kind).infer(
                specs, op.attrs, region.tensors[op.outputs[0]].device if op.outputs else ""
            )
            if (got := tuple(_spec(region, i) for i in op.outputs)) != want:
                raise _Bad(f"{here}.out", ", ".join(map(str, want)), ", ".join(map(str, got)))
            if known.intersection(op.outputs):
                raise _Bad(f"{here}.out", "tensors that were not there before", op.outputs)
            known.update(op.outputs)
        if not set(region.outputs) <= known:
            raise _Bad(f"{at}.outputs", "tensors that are given or made", region.outputs)
    except (AicfError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise _Bad(at, "a region that this aicf can read", str(error).split("\n")[0]) from None
    return region


def _spec(region: RegionSpec, tensor: int) -> TensorSpec:
    t = region.tensors[tensor]
    return TensorSpec(t.shape, t.dtype, t.device)
