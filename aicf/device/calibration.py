"""Constants of predictions, fitted for a GPU: a frozen record for each family of kernels, and the values of one GPU.

A family declares its constants where its cost is, as fields of a frozen dataclass under `@family(name)`, with what was measured on an H200 as
defaults, and reads them by `constants(Record, device)`. A Calibration replaces some of them: `aicf calibrate` fits one for the GPU that it
runs on, those of H200 and H100 are in the package. A field that is a mapping, such as efficiencies of tiles, has a value for each key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np

from ..errors import DeviceError

T = TypeVar("T")
FORMAT = "aicf-calibration"
SHIPPED = Path(__file__).parent / "calibrations"
SMALLEST, LARGEST = 1e-9, 1e9  # bounds of constants, so that no cost divides by 0 or is infinite
FAMILIES: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def family(name: str) -> Callable[[type[T]], type[T]]:
    """Registers a frozen dataclass of constants under a name that calibrations use."""

    def add(record: type[T]) -> type[T]:
        FAMILIES[name], _NAMES[record] = record, name
        return record

    return add


class Nearby:
    """Measured regions of an op.

    points   features of each region
    kernels  for each kernel the regions it was timed on, their weights, and the causes of its predicted times, in hundredths of these
    """

    def __init__(
        self,
        points: Sequence[Sequence[float]],
        kernels: Mapping[str, tuple[Sequence[int], Sequence[float], Sequence[Sequence[int]]]],
    ) -> None:
        self.points = np.array(points, np.float64)
        self.kernels = {
            id: (np.array(at, np.intp), np.array(weights, np.float64), np.array(shares, np.float64))
            for id, (at, weights, shares) in kernels.items()
        }
        whole = all(
            at.ndim == 1
            and at.shape == weights.shape == shares.shape[:1]
            and shares.ndim == 2
            and ((at >= 0) & (at < len(self.points))).all()
            for at, weights, shares in self.kernels.values()
        )
        numbers = [
            self.points,
            *(x for _, weights, shares in self.kernels.values() for x in (weights, shares)),
        ]
        if self.points.ndim != 2 or not whole or not all((abs(x) < LARGEST).all() for x in numbers):
            raise ValueError(
                f"measured regions are points of equal length, and for each kernel some of them with weights, all below {LARGEST:g}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "points": [[round(float(x), 3) for x in p] for p in self.points],
            "kernels": {
                id: [at.tolist(), [round(float(w), 4) for w in ws], shares.astype(int).tolist()]
                for id, (at, ws, shares) in self.kernels.items()
            },
        }


class Calibration:
    """Values by "family.field", or "family.field.key" of a mapping. Equal and hashed by content, as part of a DeviceSpec.

    gpu     the GPU that was measured, "" where constants are the defaults
    errors  of predictions on the half of the draw that was not fitted, by family of ops: see `aicf calibrate`
    measured  regions by op, as `Nearby.to_json` gives them: see registry/nearby.py
    """

    def __init__(
        self,
        gpu: str = "",
        values: Mapping[str, float] = MappingProxyType({}),
        errors: Mapping[str, Any] = MappingProxyType({}),
        measured: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.gpu, self.values = gpu, {name: float(value) for name, value in values.items()}
        self.errors, self.measured = dict(errors), dict(measured)
        self._key = gpu, tuple(sorted(self.values.items())), json.dumps(self.measured, sort_keys=True)
        self._hash = hash(self._key)
        self._records: dict[type, Any] = {}

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Calibration) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def digest(self) -> str:
        """Equal for equal constants, in every process."""
        return hashlib.blake2s(repr(self._key).encode(), digest_size=8).hexdigest()

    def __repr__(self) -> str:
        return f"Calibration({self.gpu!r}, {len(self.values)} values, measured {sorted(self.measured)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Calibration, (self.gpu, self.values, self.errors, self.measured)

    @cached_property
    def nearby(self) -> dict[str, Nearby]:
        """Measured regions, by the name of their op."""
        return {kind: Nearby(found["points"], found["kernels"]) for kind, found in self.measured.items()}

    def record(self, kind: type[T]) -> T:
        """The constants of a family, with this calibration's values in the place of defaults."""
        found = self._records.get(kind)
        if found is None:
            found = self._records[kind] = self._made(kind)
        return cast(T, found)

    def _made(self, kind: type[T]) -> T:
        start, made = _NAMES[kind] + ".", kind()
        own = {
            name.removeprefix(start): value for name, value in self.values.items() if name.startswith(start)
        }
        changed: dict[str, Any] = {}
        for f in fields(made):  # type: ignore[arg-type]
            usual = getattr(made, f.name)
            if isinstance(usual, Mapping):
                inside = f.name + "."
                news = {k.removeprefix(inside): v for k, v in own.items() if k.startswith(inside)}
                changed[f.name] = MappingProxyType({**usual, **news})
            elif f.name in own:
                changed[f.name] = own[f.name]
        return replace(made, **changed)  # type: ignore[type-var]

    def with_values(self, values: Mapping[str, float]) -> Calibration:
        return Calibration(self.gpu, {**self.values, **values}, self.errors, self.measured)

    def with_measured(self, measured: Mapping[str, Any]) -> Calibration:
        """With other measured regions; what predictions by constants are fitted for."""
        return Calibration(self.gpu, self.values, self.errors, measured)

    def of_another(self) -> Calibration:
        """What holds of a GPU that is like the one that was measured: the constants. Measured regions and errors are those of that one alone,
        of as many multiprocessors and with its memory."""
        return Calibration("", self.values)

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: Path, **more: Any) -> None:
        """Write a file that `load` reads. more: what else is to be kept of how it was fitted, such as the draw."""
        data = {"format": FORMAT, "gpu": self.gpu, **more, "errors": self.errors, "values": self.values}
        text = json.dumps(data, indent=1)[:-2] + ',\n "measured": ' + json.dumps(self.measured) + "\n}\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(path)

    @staticmethod
    def load(path: Path, sms: int | None = None) -> Calibration:
        """Read a file of `save`; DeviceError if it is not one. sms: multiprocessors of the GPU that it is for; boards of one name may differ."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            values, errors = data["values"].values(), [e["off"] for e in data["errors"].values()]
            good = data["format"] == FORMAT and all(type(v) in (int, float) for v in (*values, *errors))
            good &= all(SMALLEST < v < LARGEST for v in values) and all(0 <= v < math.inf for v in errors)
            made = Calibration(data["gpu"], data["values"], data["errors"], data.get("measured", {}))
            _ = made.nearby
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise DeviceError(f"{path} is no calibration that can be read: {error}", expected="a file of `aicf calibrate`, or none") from error  # fmt: skip
        if not good:
            raise DeviceError(
                f"{path} is no calibration, or one with numbers that are no constants",
                expected="a file of `aicf calibrate`, or none",
            )
        if sms is not None and (found := data.get("sms", sms)) != sms:
            raise DeviceError(
                f"{path} is a calibration of another board",
                expected=f"{sms} multiprocessors",
                got=f"{found} multiprocessors",
            )
        return made


DEFAULT = Calibration()


@cache
def shipped(*gpus: str) -> Calibration:
    """What the package has for the first of these GPUs, by its preset's name, or what holds of it by one of the others; else the defaults."""
    for gpu in gpus:
        if (path := SHIPPED / f"{gpu}.json").is_file():
            found = Calibration.load(path)
            return found if gpu == gpus[0] else found.of_another()
    return DEFAULT


def names() -> Iterator[tuple[str, float]]:
    """Of every family that was imported: each constant, as calibrations call it, and its default."""
    for start, kind in FAMILIES.items():
        made = kind()
        for f in fields(made):
            usual = getattr(made, f.name)
            if isinstance(usual, Mapping):
                yield from ((f"{start}.{f.name}.{key}", value) for key, value in usual.items())
            else:
                yield f"{start}.{f.name}", usual
