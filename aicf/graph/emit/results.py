"""What a model returns, by name: a Value, or Values in tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import VerifyError
from ...ir import Role, Value
from ...ir.tree import children, leaves
from .builder import Builder, user_line

OUTPUT = "output"  # the name of a result that has none of its own
LOSS = "loss"
GRAD = "grad"  # first part of the names of gradients


def named_results(made: Any, builder: Builder | None = None) -> dict[str, Value]:
    """Values by name, in the order in which they are returned.

    One Value, or a tuple of one, is "output"; several ones "output.0", "output.1", …; those of a dict or a NamedTuple have their keys, and
    what lies in one of them its own name behind that: "hidden.0".

    builder  whose inputs, params and states have names that no result may have
    """
    if isinstance(made, (tuple, list)) and not hasattr(made, "_asdict") and made:
        made = {OUTPUT: made[0] if len(made) == 1 else made}
    elif isinstance(made, Value):
        made = {OUTPUT: made}
    _check_keys(made, ())
    found: dict[str, Value] = {}
    for name, value in leaves(made):
        if not isinstance(value, Value):
            raise VerifyError(
                f"the model's result {name!r} is {_told(value)}" if name else f"the model returned {_told(value)}",
                expected="a Value, or Values in a tuple, a list or a dict", where=user_line(),
            )  # fmt: skip
        if name in found:
            raise VerifyError(f"two results are called {name!r}", where=user_line())
        check_result(name, value, builder)
        found[name] = value
    return found


def main_result(results: Mapping[str, Any]) -> str:
    """The name of what losses and generation read unless they name another: "output", else the first."""
    return OUTPUT if OUTPUT in results else next(iter(results))


def check_result(name: str, value: Value, builder: Builder | None = None) -> None:
    """That nothing else has the name of a result."""
    if name == LOSS or name.partition(".")[0] == GRAD:
        raise VerifyError(
            f"a result can't be called {name!r}", expected=f"a name other than {LOSS}, {GRAD} and {GRAD}.…, which programs return beside it",
            where=value.where, hint="return it under another key",
        )  # fmt: skip
    if builder is not None:
        check_free(name, value, builder)


def check_free(name: str, value: Value, builder: Builder) -> None:
    """That no input, param, state or other result has the name."""
    if (known := builder.find(name)) is not None:
        other = _article("result" if known.role is Role.output else known.role.value)
        raise VerifyError(
            f"a result and {other} are both called {name!r}", got=f"{known!r}", where=value.where, expected="names of their own",
            hint="return it under another key",
        )  # fmt: skip


def _check_keys(made: Any, path: Sequence[str]) -> None:
    for key, part in children(made):
        if isinstance(made, dict) and (not isinstance(key, str) or not key):
            inside = f" in {'.'.join(path)!r}" if path else ""
            raise VerifyError(
                f"{key!r}{inside} can't be the name of a result", expected="text", where=user_line(),
                hint=f"return {{'name': …}}, not {{{key!r}: …}}",
            )  # fmt: skip
        _check_keys(part, (*path, str(key)))


def _article(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def _told(value: Any) -> str:
    if value is None:
        return "nothing"
    kind = type(value).__name__
    return f"an empty {kind}" if isinstance(value, (tuple, list, dict)) else f"a {kind}"
