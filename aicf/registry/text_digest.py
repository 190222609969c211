"""What kernels consist of, as digests: which times belong to today's text of a kernel, and which to an earlier one.

A variant's digest covers the source of all that its `build` reaches within the kernels' packages, and within its own if it is another
package's: bodies, device functions, intrinsics, launch constants, and the values of its config, such as a tiling. It does not
cover its predicted cost (`cost`), what it accepts, or what compiles it; compilers' versions stand beside times. The ops'
scalar functions that a kernel inlines have digests of their own. Source and not bytecode, since times are taken with one Python and
used with another. Comments, docstrings and layout don't count, nor do names of functions, classes and modules.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ..code_cache.digest import Portable, Undescribable, pack
from ..code_cache.digest import digest as digest_of_bytes
from ..code_cache.source import ImportedName
from ..ops import record
from ..ops.schema import schema_of
from ..rows import RegionSpec
from ..rows.steps import expanded
from ..types import OpKind
from .variant import KernelVariant

PACKAGES = ("aicf.cuda_kernels", "aicf.cpu_kernels")
# The way from a body to machine code: recorded as versions, and no part of a kernel. And a prediction that `build` reads, for the number of splits.
ROUTE = tuple(
    f"aicf.cuda_kernels.{name}"
    for name in (
        "dsl",
        *(f"compiler.{n}" for n in ("cache", "compile", "engine", "keys", "simulate", "workers")),
        "gemm.wgmma_cost",
    )
)

NOT_BUILT = frozenset(
    {"accepts", "cost", "family", "least", "viable", "workspace"}
)  # methods of a variant's class


def variant_digest(variant: KernelVariant) -> str:
    return digest(variant.build)


def inlined(region: RegionSpec) -> set[str]:
    """Names of the ops that a kernel for the region may inline: its own, and the steps of those that expand."""
    return {op.kind.name for op in (*region.ops, *expanded(region).ops)}


def op_digest(name: str) -> str:
    """Of what kernels inline of an op."""
    return _op_digest(schema_of(name).kind, record.schema_epoch)


@functools.cache
def _op_digest(kind: OpKind, schema_epoch: int) -> str:
    schema = schema_of(kind)
    parts = (schema.scalar, schema.access_fn, schema.constants_fn, schema.special_fn, schema.expand_fn)
    return _hex(pack("op", *(digest(part).encode() if part else b"" for part in parts)))


@functools.cache
def digest(start: Callable[..., Any]) -> str:
    """Of a function and what it reaches: in the kernels' packages and in its own module's."""
    bare = _bare(start)
    bound = isinstance(start, functools.partial)  # to a config, which counts
    try:
        return _hex(_reach(_package(bare.__module__)).another().of(start if bound else bare))
    except Undescribable:
        return ""


def _hex(data: bytes) -> str:
    return digest_of_bytes(data).hex()[:12]


class _Reach(Portable):
    """Reads functions and classes of the kernels' packages and of one more; all others count by their names alone."""

    without = NOT_BUILT

    def __init__(self, own: str) -> None:
        super().__init__()
        self.own = own

    def of(self, value: Any) -> bytes:
        if isinstance(value, KernelVariant):  # one that is built in the place of another
            return pack("variant", self.of(value.build))
        return super().of(value)

    def callable(self, value: Any) -> bytes:
        if isinstance(value, functools.partial):
            objects = [self.object(v) for v in value.keywords.values() if _is_object(v)]
            return pack("config", super().callable(value), *objects) if objects else super().callable(value)
        bare = _bare(value)
        if isinstance(bare, FunctionType | type):
            return self.function(bare)
        return pack("value", self.name(type(bare)))

    def object(self, value: Any) -> bytes:
        """A config of a class that is no record: what it does, and what it has."""
        return pack("object", self.function(type(value)), self.of(vars(value)))

    def function(self, fn: Any) -> bytes:
        inside = any(f"{fn.__module__}.".startswith(f"{p}.") for p in (*PACKAGES, self.own) if p)
        return (
            super().function(fn)
            if inside and fn.__module__ not in ROUTE
            else pack("outside", fn.__name__.encode())
        )

    def imported(self, what: ImportedName, names: Sequence[str], fn: Any) -> bytes:
        """Followed: a body is imported where it is built."""
        value = import_module("." * what.level + what.module, sys.modules[fn.__module__].__package__)
        if what.attribute is None:
            return self.attribute(value, names)
        if not hasattr(value, what.attribute):
            import_module(f"{value.__name__}.{what.attribute}")
        return self.attribute(getattr(value, what.attribute), names)

    def name(self, kind: type) -> bytes:
        """Of a record: what its class does, too."""
        return self.function(kind) if dataclasses.is_dataclass(kind) else super().name(kind)


@functools.cache
def _reach(own: str) -> _Reach:
    return _Reach(own)


def _is_object(value: Any) -> bool:
    """Whether a value would be described by the name of its class alone."""
    named = isinstance(value, FunctionType | MethodType | ModuleType | type | functools.partial)
    return hasattr(value, "__dict__") and not named and not dataclasses.is_dataclass(value)


def _bare(value: Any) -> Any:
    """What a cache, a partial or a decorator stands before."""
    while True:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            return value


def _package(module: str) -> str:
    """Where what a function reaches is its own: a package that brings kernels, as a whole; of aicf, the module; nothing where that is
    among the kernels' packages, so that what their kernels share is read once."""
    if any(f"{module}.".startswith(f"{p}.") for p in PACKAGES):
        return ""
    return module if module.startswith("aicf.") else module.partition(".")[0]
