"""Whose line it was: errors in a kernel's own Python, told with the kernel, the file and the line."""

from __future__ import annotations

import builtins
import dis
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from ..errors import AicfError, KernelError
from ..rows import RegionSpec
from .variant import HostCall, In, KernelVariant, Launch, Num, Out, Table, TensorMap, Work

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = ("numba", "numba_cuda", "llvmlite", "numpy", "ml_dtypes")


def built(variant: KernelVariant, region: RegionSpec, device: Any) -> list[Launch] | HostCall:
    """What a variant's `build` makes; KernelError if it fails."""
    try:
        return variant.build(region, device)
    except AicfError:
        raise
    except Exception as error:
        raise _failed(f"kernel {variant.id} can't be built", region, error, variant.build) from error


def bound(
    kernel_id: str, region: RegionSpec, call: HostCall, operands: list[Any], results: list[Any]
) -> Callable[[], None]:
    """A kernel of the CPU device on these arrays; what is called raises KernelError where it fails."""
    try:
        run = call.bind(operands, results)
    except AicfError:
        raise
    except Exception as error:
        raise _failed(f"kernel {kernel_id} failed", region, error, call.function) from error

    def checked() -> None:
        try:
            run()
        except AicfError:
            raise
        except Exception as error:
            raise _failed(f"kernel {kernel_id} failed", region, error, call.function) from error

    return checked


def run_on_host(
    kernel_id: str, region: RegionSpec, call: HostCall, operands: list[Any], results: list[Any]
) -> None:
    """A kernel of the CPU device; KernelError if it fails."""
    try:
        call.function(operands, results)
    except AicfError:
        raise
    except Exception as error:
        raise _failed(f"kernel {kernel_id} failed", region, error, call.function) from error


def _failed(what: str, region: RegionSpec, error: Exception, function: Any) -> KernelError:
    return KernelError(
        what, where=place(error, function), got=told(error), details=[f"region: {region}"],
        hint="mend that line; docs/add-an-op.md shows how kernels are written",
    )  # fmt: skip


def told(error: BaseException, lines: int = 6) -> str:
    """An error's type and the beginning of its text: numba's list every overload there is."""
    text = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + "\n    ".join(text[:lines] + ["…"] * (len(text) > lines))


def place(error: BaseException, function: Any) -> str:
    """file:line of what went wrong while a function ran or was compiled; where it is defined if nothing is nearer."""
    for code, line, _ in unknown_names(function):
        return f"{code.co_filename}:{line}, in {code.co_name}"
    at: BaseException | None = error
    while at is not None:
        loc = getattr(at, "loc", None)  # numba's
        if loc is not None and _is_source(loc.filename):
            return f"{loc.filename}:{loc.line}"
        at = at.__cause__ or at.__context__
    source = getattr(getattr(function, "__code__", None), "co_filename", "")
    if found := re.search(rf"\b{re.escape(Path(source).name)}:(\d+)", str(error)) if source else None:
        return f"{source}:{found[1]}"  # numba's, inside its message
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    for frame in reversed(frames):
        own = frame.filename == source or not frame.filename.startswith(_PACKAGE)
        if own and _is_source(frame.filename):
            return f"{frame.filename}:{frame.lineno}, in {frame.function}"
    return definition(function)


def definition(function: Any) -> str:
    """file:line where a function is defined."""
    code = getattr(getattr(function, "py_func", function), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}, in {code.co_name}" if code else repr(function)


def _is_source(filename: str) -> bool:
    parts = Path(filename).parts
    return filename.endswith(".py") and not any(library in parts for library in _LIBRARIES)


def unknown_names(function: Any, seen: set[CodeType] | None = None) -> Iterator[tuple[CodeType, int, str]]:
    """(code, line, name) of each name that a kernel's body, or a function it calls, reads and that is nowhere: a NameError of
    the compiler's, which does not say where."""
    seen = set() if seen is None else seen
    if not isinstance(function, FunctionType):
        if "factory" in getattr(
            type(function), "__dataclass_fields__", ()
        ):  # deferred: what it will be made of
            for part in function.args:
                yield from unknown_names(part, seen)
        return
    code = function.__code__
    if code in seen or not _is_source(code.co_filename):
        return
    seen.add(code)
    line = code.co_firstlineno
    value: Any = None
    for i in dis.get_instructions(code):
        line = i.positions.lineno if i.positions and i.positions.lineno else line
        if i.opname == "LOAD_GLOBAL":
            value = function.__globals__.get(i.argval, vars(builtins).get(i.argval, _NOWHERE))
            if value is _NOWHERE:
                yield code, line, i.argval
            yield from unknown_names(value, seen)
        elif i.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            module = value.resolve() if hasattr(type(value), "resolve") else value
            if isinstance(module, ModuleType) and not hasattr(module, i.argval):
                yield code, line, i.argval
            value = None
    for cell in function.__closure__ or ():
        yield from unknown_names(cell.cell_contents, seen)


_NOWHERE = object()


def check_arguments(launch: Launch, region: RegionSpec) -> str | None:
    """What is wrong with a launch's arguments: of no such tensor, of no known sort, or not as many as the body takes."""
    known: dict[type, tuple[str, int]] = {
        In: ("operands", len(region.operands)),
        Out: ("results", len(region.results)),
    }

    def wrong(n: str, arg: Any) -> str | None:
        if isinstance(arg, (tuple, Table)):
            entries = arg.entries if isinstance(arg, Table) else arg
            return next((w for i, a in enumerate(entries) if (w := wrong(f"{n}[{i}]", a))), None)
        tensor: Any = arg.source if isinstance(arg, TensorMap) else arg
        if type(tensor) in known:
            what, count = known[type(tensor)]
            return (
                None
                if 0 <= tensor.index < count
                else f"argument {n} is {tensor}: the region has {count} {what}, counted from 0"
            )
        good = isinstance(tensor, (Num, Work))
        return (
            None
            if good
            else f"argument {n} is {arg!r}: expected In(i), Out(i), Num(x), Work(…), a TensorMap, a Table, or a tuple of them"
        )

    for n, arg in enumerate(launch.args):
        if found := wrong(str(n), arg):
            return found
    try:
        signature = inspect.signature(launch.body)
    except (TypeError, ValueError):
        return None
    takes = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    if len(takes) == len(signature.parameters) and len(takes) != len(launch.args):
        return f"it is launched with {len(launch.args)} arguments, and takes {len(takes)}: {', '.join(takes)}"
    return None
