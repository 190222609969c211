"""Whatever is public says what it is: names, and what classes have that a base class has not told of already."""

import re
import types

import pytest

import aicf
from aicf import models, nn, training

MODULES = (aicf, nn, models, training, nn.init, nn.schedules)
PUBLIC = {f"{module.__name__}.{name}": getattr(module, name) for module in MODULES for name in module.__all__}
CODES = re.compile(r"\bissue \d|#\d|\bTODO\b|\bFIXME\b|\bXXX\b")


def own_doc(found: object) -> str:
    """Not that of a base class, nor what `dataclass` writes where there is none."""
    doc = (vars(found) if isinstance(found, type) else {"__doc__": found.__doc__}).get("__doc__") or ""
    return "" if isinstance(found, type) and doc.startswith(f"{found.__name__}(") else doc


def undocumented(cls: type) -> list[str]:
    """Public functions and properties of a class without a docstring, but for those that stand in for a base class's."""
    missing = []
    for name, value in vars(cls).items():
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        if name.startswith("_") or not isinstance(function, types.FunctionType):
            continue
        told = any(getattr(vars(base).get(name), "__doc__", None) for base in cls.__mro__[1:])
        if not (function.__doc__ or told):
            missing.append(f"{cls.__name__}.{name}")
    return missing


def needs_doc(found: object) -> bool:
    return isinstance(found, type) or callable(found) or isinstance(found, types.ModuleType)


@pytest.mark.parametrize("name", [n for n, found in PUBLIC.items() if needs_doc(found)])
def test_a_public_name_has_a_docstring_that_begins_with_what_it_is(name):
    found = PUBLIC[name]
    if type(found).__module__.startswith("aicf.") and not isinstance(found, type):
        found = type(found)  # a value, such as nn.init.ones: its class says what it is
    first, *rest = own_doc(found).strip().split("\n")
    assert len(first) > 8, "one sentence at least"
    assert first[-1] in ".:" or (rest and rest[0].strip()), f"the first paragraph has an end: {first}"
    assert not CODES.search(own_doc(found))
    if isinstance(found, type):
        assert undocumented(found) == []


def test_what_is_missing_is_noticed():
    class Told:
        """A base."""

        def emit(self) -> None:
            """What it emits."""

    class Bare(Told):
        def emit(self) -> None: ...

        def other(self) -> None: ...

        @property
        def size(self) -> int: ...

    assert own_doc(Bare) == "" and own_doc(Told)
    assert undocumented(Bare) == ["Bare.other", "Bare.size"]
