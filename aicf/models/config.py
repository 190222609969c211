"""What config.json may say: fields by their published names, checked where they are read."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from ..errors import VerifyError
from ..nn import checks

_Config = TypeVar("_Config")
_NEEDED: Any = object()
MOST = 2**31 - 1  # of a whole number: sizes are counted in i32


def preset(presets: Mapping[str, _Config], name: str) -> _Config:
    if name not in presets:
        raise VerifyError(f"no published model is called {name!r} here", expected=", ".join(presets))
    return presets[name]


class Fields:
    """Reads a config. A field that is null counts as left out; VerifyError names one that is wrong."""

    def __init__(self, config: Mapping[str, Any], name: str = "config.json") -> None:
        self.config, self.name = config, name

    def get(self, field: str, default: Any = _NEEDED) -> Any:
        value = self.config.get(field)
        if value is not None:
            return value
        if default is _NEEDED:
            raise VerifyError(f"{self.name} has no {field}", got=", ".join(sorted(self.config)) or "nothing")
        return default

    def whole(self, field: str, default: Any = _NEEDED) -> Any:
        value = self.get(field, default)
        return value if value is None else checks.whole(f"{self.name}: {field}", value, 1, MOST)

    def number(self, field: str, default: Any = _NEEDED) -> float:
        return checks.positive(f"{self.name}: {field}", self.get(field, default))

    def yes_or_no(self, field: str, default: bool) -> bool:
        return checks.yes_or_no(f"{self.name}: {field}", self.get(field, default))

    def one_of(self, field: str, known: Collection[str], default: Any = _NEEDED) -> str:
        value = self.get(field, default)
        if not isinstance(value, str) or value not in known:
            raise VerifyError(f"{self.name}: {field}={value!r}", expected=" or ".join(map(repr, known)))
        return value

    def part(self, field: str) -> Fields | None:
        """A config in a field of this one."""
        value = self.get(field, None)
        if value is not None and not isinstance(value, Mapping):
            raise VerifyError(f"{self.name}: {field}={value!r}", expected="an object, or null")
        return None if value is None else Fields(value, f"{self.name}: {field}")

    def must_be(self, **only: Any) -> None:
        """Fields that are built here with one value alone."""
        for field, value in only.items():
            if (got := self.get(field, value)) != value:
                raise VerifyError(
                    f"{self.name}: {field}={got!r}", expected=f"{value!r}: no other is built here"
                )
