"""Whose line it was: errors in a kernel's own Python, told with the kernel, the file and the line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..errors import AicfError, KernelError
from ..ops.whose_line import definition, place, told, unknown_names
from ..rows import RegionSpec
from .failures import failed
from .variant import Built, Collective, HostCall, In, KernelVariant, Launch, Num, Out, Table, TensorMap, Work

__all__ = ["bound", "built", "check_arguments", "definition", "place", "run_on_host", "told", "unknown_names"]


def built(variant: KernelVariant, region: RegionSpec, device: Any) -> Built:
    """What a variant's `build` makes; KernelError if it fails, or makes what its device can't run."""
    try:
        result = variant.build(region, device)
    except AicfError:
        raise
    except Exception as error:
        raise failed(f"kernel {variant.id} can't be built", region, error, variant.build) from error
    on_host = variant.device == "cpu"
    if isinstance(result, Collective) or (isinstance(result, HostCall) if on_host else _launches(result)):
        return result
    raise KernelError(
        f"kernel {variant.id} can't be built: its `build` makes no call of the {variant.device} device",
        expected="a HostCall" if on_host else "a list of Launch", got=repr(result)[:200],
        where=definition(variant.build), details=[f"region: {region}"], hint="return that from `build`",
    )  # fmt: skip


def _launches(result: Any) -> bool:
    return isinstance(result, (list, tuple)) and all(isinstance(launch, Launch) for launch in result)


def bound(
    kernel_id: str, region: RegionSpec, call: HostCall, operands: list[Any], results: list[Any]
) -> Callable[[], None]:
    """A kernel of the CPU device on these arrays; what is called raises KernelError where it fails."""
    try:
        run = call.bind(operands, results)
    except AicfError:
        raise
    except Exception as error:
        raise failed(f"kernel {kernel_id} failed", region, error, call.function) from error

    def checked() -> None:
        try:
            run()
        except AicfError:
            raise
        except Exception as error:
            raise failed(f"kernel {kernel_id} failed", region, error, call.function) from error

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
        raise failed(f"kernel {kernel_id} failed", region, error, call.function) from error


def check_arguments(launch: Launch, region: RegionSpec) -> str | None:
    """What is wrong with a launch's arguments: of no such tensor, of no known sort, or not as many as the body takes."""
    scalars: dict[type, tuple[str, int]] = {
        In: ("operands", len(region.operands)),
        Out: ("results", len(region.results)),
    }

    def wrong(n: str, arg: Any) -> str | None:
        if isinstance(arg, (tuple, Table)):
            entries = arg.entries if isinstance(arg, Table) else arg
            return next((w for i, a in enumerate(entries) if (w := wrong(f"{n}[{i}]", a))), None)
        tensor: Any = arg.source if isinstance(arg, TensorMap) else arg
        if type(tensor) in scalars:
            what, count = scalars[type(tensor)]
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
        if sent := wrong(str(n), arg):
            return sent
    try:
        signature = inspect.signature(launch.body)
    except (TypeError, ValueError):
        return None
    takes = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_POSITIONAL]
    if len(takes) == len(signature.parameters) and len(takes) != len(launch.args):
        return f"it is launched with {len(launch.args)} arguments, and takes {len(takes)}: {', '.join(takes)}"
    return None
