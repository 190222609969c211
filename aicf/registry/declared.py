"""What `@variant` reads of a class and of its configs, and what is wrong with them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from ..errors import RegistryError
from ..ops.whose_line import definition, place, told

# Parameters of each function of a variant's class; of a kernel with several configs, `config` may follow them.
ASKED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("accepts", "viable"), ("region",)),
    **dict.fromkeys(("cost", "build", "workspace", "least", "numerics"), ("region", "device")),
}


def named_configs(id: str, configs: Any) -> list[tuple[str, Any]]:
    """(name, value) of each config; RegistryError if they are no list."""
    if isinstance(configs, str) or not isinstance(configs, Iterable):
        raise RegistryError(
            f"kernel {id}: `configs` can't be listed", expected="values, or names and their values",
            got=repr(configs), hint="write a list, such as configs=[64, 128]",
        )  # fmt: skip
    pairs = configs.items() if isinstance(configs, Mapping) else [(value, value) for value in configs]
    named = [(str(name).replace("_", " "), value) for name, value in pairs]
    if not named:
        raise RegistryError(f"kernel {id} has no configs", hint="name one at least, or leave `configs` out")
    if len(named) > 1 and any(not name for name, _ in named):
        raise RegistryError(f"kernel {id} has a config without a name", got=repr([name for name, _ in named]))
    return named


def answer(id: str, what: str, value: Any, several: bool, config: Any) -> Any:
    """A value, or a function's answer for a config; RegistryError if it has none, or one of another type."""
    function = value if callable(value) else None
    where = definition(function) if function else None
    if function is not None and not several:
        raise RegistryError(
            f"kernel {id}: `{what}` is a function, and there are no configs", where=where,
            hint="list them, as configs=[…], or write the value",
        )  # fmt: skip
    try:
        value = function(config) if function else value
    except Exception as error:
        raise RegistryError(
            f"kernel {id}: its `{what}` failed for the config {config}", got=told(error),
            where=place(error, function), hint="mend that line; docs/add-an-op.md shows how kernels are written",
        ) from error  # fmt: skip
    if not isinstance(value, (tuple, list) if what == "takes" else int):
        expected = (
            "a tuple of structures, such as ('map', 'gemm+map')" if what == "takes" else "bytes, an int"
        )
        raise RegistryError(
            f"kernel {id} has a wrong `{what}`", expected=expected, got=repr(value), where=where
        )
    return tuple(value) if isinstance(value, list) else value


def functions_of(cls: type, id: str, has_configs: bool) -> dict[str, Any]:
    """The functions of a variant's class; RegistryError if one is missing, unknown, or has other parameters than it is called with."""
    functions = {name: f for name, f in vars(cls).items() if inspect.isfunction(f)}
    for name in ("accepts", "cost", "build"):
        if name not in functions:
            raise RegistryError(
                f"variant {id} has no `{name}`", expected=f"a plain function {name}({', '.join(ASKED[name])})",
                got=repr(vars(cls).get(name)), where=cls.__qualname__,
            )  # fmt: skip
    if unknown := set(functions) - set(ASKED):
        raise RegistryError(
            f"variant {id} defines {', '.join(sorted(unknown))}, which mean nothing here", expected=", ".join(ASKED),
            where=definition(functions[min(unknown)]), hint="define other functions outside of the class",
        )  # fmt: skip
    for name, f in functions.items():
        counts = len(ASKED[name]), len(ASKED[name]) + has_configs
        names = f.__code__.co_varnames[: f.__code__.co_argcount]
        moved = any(n in names and names.index(n) != i for i, n in enumerate(ASKED[name]))
        if moved or not any(_takes_positional(f, count) for count in counts):
            raise RegistryError(
                f"variant {id}: its `{name}` takes {len(names)} arguments, {', '.join(names)}",
                expected=f"{name}({', '.join(ASKED[name])}{'[, config]' * has_configs}): a plain function, without self", where=definition(f),
            )  # fmt: skip
    return functions


def with_value(function: Any, count: int, value: Any) -> Any:
    """A function of a variant's class, with the config as its last argument if it has a parameter for one."""
    code, required = function.__code__, function.__code__.co_argcount - len(function.__defaults__ or ())
    if code.co_argcount <= count or (required <= count and code.co_varnames[count] != "config"):
        return function
    return partial(function, **{code.co_varnames[count]: value})


def _takes_positional(function: Any, count: int) -> bool:
    code, defaults = function.__code__, len(function.__defaults__ or ())
    varied = bool(code.co_flags & inspect.CO_VARARGS)
    named = code.co_kwonlyargcount - len(function.__kwdefaults__ or ())  # nothing is passed by name
    return not named and code.co_argcount - defaults <= count and (varied or count <= code.co_argcount)
