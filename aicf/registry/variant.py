"""KernelVariant: what a kernel takes (see checks.py), what it costs, how it starts. Rejection is data.

A variant is written as a class of plain functions under `@variant(...)`; see docs/add-an-op.md. Only `build` may import a
kernel body, so that choosing and explaining need neither numba nor a GPU.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from types import ModuleType
from typing import Any, ClassVar, Literal

from ..device.spec import DeviceSpec
from ..errors import AicfError, Immovable, RegistryError
from ..ops.whose_line import definition
from ..rows import RegionSpec
from ..rows.reject import Reject
from ..rows.structure import prefixes, structure
from ..types import BASIC, DType, OpKind
from .checks import (
    NEEDLESS,
    Checks,
    aligned,
    arity,
    at_least,
    at_most,
    contiguous,
    dtype,
    first_failure,
    multiple,
    one_op,
    same_shape,
    unmasked,
)
from .cost import Cost
from .failures import unanswered

Floor = Callable[[RegionSpec, DeviceSpec], float]

# --- how a kernel starts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class In:
    """Pointer to the region's i-th operand, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Out:
    """Pointer to the region's i-th result, `offset` bytes from its start."""

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Work:
    """Pointer into the workspace, `offset` bytes from its start."""

    offset: int = 0
    dtype: DType = DType.f32


@dataclass(frozen=True)
class Num:
    """A number passed by value. `dtype` is f32, i32 or i64."""

    value: float
    dtype: DType = DType.i64


# tf32: f32, rounded to it (nearest even) as it is brought. Bytes that have a type of their own, such as fp8, are u8.
Element = DType | Literal["tf32"]


@dataclass(frozen=True)
class TensorMap:
    """Pointer to a descriptor of a tensor, for copies by the tensor memory accelerator (sm_90): 128 bytes in device memory.

    source   the tensor, at a 16-byte aligned place: 1 to 5 dimensions, the contiguous one first; it may be a copy in the workspace
    extents  elements along each dimension
    pitch    bytes from one to the next along each dimension but the first, multiples of 16; a number is a matrix's
    box      elements along each dimension of what one copy moves, at most 256; the first's take a multiple of 16 bytes
    swizzle  128, 64 or 32: rows of a box take so many bytes, and 16-byte pieces change places among neighbouring rows, so
             that a column of them lies in banks of its own; or 0: rows of any length, as they are
    """

    source: In | Out | Work
    dtype: Element
    extents: tuple[int, ...]
    pitch: int | tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128

    def __post_init__(self) -> None:
        row = self.box[0] * self.itemsize
        assert 1 <= len(self.extents) == len(self.box) == len(self.pitches) + 1 <= 5, self
        assert all(0 <= e <= 2**32 for e in self.extents) and all(1 <= e <= 256 for e in self.box), self
        assert all(p % 16 == 0 and 0 < p < 2**40 for p in self.pitches) and row % 16 == 0, self
        assert self.swizzle in (0, 32, 64, 128) and row == (self.swizzle or row), self

    @property
    def pitches(self) -> tuple[int, ...]:
        return (self.pitch,) if isinstance(self.pitch, int) else self.pitch

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize if isinstance(self.dtype, DType) else 4

    @property
    def nbytes(self) -> int:
        """Of a box: what a copy brings, wherever it lies."""
        return prod(self.box) * self.itemsize


@dataclass(frozen=True)
class WindowMap(TensorMap):
    """Of (N, …, C), for copies of a run of channels of windows, one after the other: see `load_windows` in ptx/tma.py.

    extents, pitch  of C, the spatial axes from the last one on, N
    box             channels, and windows: at most 1024 of them
    first           of each spatial axis, from the last one on: where the first window begins
    last            and where the last one does, from the axis' last element on
    steps           from window to window, at most 8
    """

    first: tuple[int, ...] = ()
    last: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()

    CORNERS: ClassVar = {
        1: 2**15,
        2: 2**7,
        3: 2**4,
    }  # that `first` and `last` are within, by the number of axes

    def __post_init__(self) -> None:
        axes = len(self.first)
        assert 3 <= len(self.extents) == len(self.pitches) + 1 == axes + 2 <= 5 and len(self.box) == 2, self
        assert len(self.last) == len(self.steps) == axes and all(1 <= n <= 8 for n in self.steps), self
        assert all(-self.CORNERS[axes] <= n < self.CORNERS[axes] for n in (*self.first, *self.last)), self
        assert (
            all(1 <= e <= 2**32 for e in self.extents)
            and 1 <= self.box[0] <= 256
            and 1 <= self.box[1] <= 1024
        ), self
        assert all(p % 16 == 0 and 0 < p < 2**40 for p in self.pitches), self
        assert self.swizzle in (32, 64, 128) and self.box[0] * self.itemsize == self.swizzle, self


@dataclass(frozen=True)
class Table:
    """Pointer to numbers in device memory, 64 bits each, pointers among them: for what does not fit a kernel's parameters.

    Filled when a launch is bound, and kept as long as it is. For regions of several ops only: a call of one op binds nothing.
    Its pointers are to where tensors start.
    """

    entries: tuple[In | Out | Num, ...]


Arg = (
    In | Out | Work | Num | TensorMap | Table | tuple
)  # a tuple of Args becomes a tuple argument of the kernel


@dataclass(frozen=True)
class Launch:
    """One kernel launch. `body` is a Python function that numba.cuda compiles for the arguments' types.

    grid     of blocks
    shared   dynamic shared memory in bytes
    cluster  blocks that run together and share memory, neighbours in the grid, whose first extent is a multiple (sm_90)
    """

    body: Callable[..., None]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    args: tuple[Arg, ...]
    shared: int = 0
    cluster: int = 1


@dataclass(frozen=True)
class HostCall:
    """Work of the CPU device: `function(operands, results)` over NumPy arrays, filling the results.

    bind  `bind(operands, results)` is the same as a call that can be made many times, on the same arrays: what is found out
          of them once, such as their pointers, is not found out in each run
    """

    function: Callable[[list[Any], list[Any]], None]
    bind: Callable[[list[Any], list[Any]], Callable[[], None]] = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.bind is None:
            object.__setattr__(self, "bind", partial(partial, self.function))

    @classmethod
    def binding(cls, bind: Callable[[list[Any], list[Any]], Callable[[], None]]) -> HostCall:
        """By `bind` alone."""
        return cls(lambda operands, results: bind(operands, results)(), bind)


@dataclass(frozen=True)
class Collective:
    """What all ranks do together with the result's memory, where the operand is: see device/collectives.py (Exchanged)."""

    kind: str
    ranks: int
    mean: bool = False
    root: int = 0


Built = list[Launch] | HostCall | Collective


# --- the record -------------------------------------------------------------------------------------------------------

# What each function of a variant's class is asked with.
ASKED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("accepts", "viable"), ("region",)),
    **dict.fromkeys(("cost", "build", "workspace", "least"), ("region", "device")),
}

_ID = re.compile(r"^[a-z0-9_]+\.[a-z0-9_]+\.v[0-9]+(\[[a-z0-9]+( [a-z0-9]+)*\])?$")


@dataclass(frozen=True, repr=False)
class KernelVariant(Immovable):
    """One kernel in one of its configs. `id` is stable and versioned: its version rises when the kernel's numerics change.

    id       `cuda.gemm_wgmma.v1[128x256 pingpong]`: the kernel, and its config where it has several
    kinds    op names, or traits such as `elementwise`, or cores such as `reduce`, or `*`: the ops that may begin a region
    takes    structures of regions (see `structure`), such as `map` or `gemm+map`; () is a region of one op
    dtypes   element types that tensors of a region may have; unless said, all on the CPU, the BASIC ones elsewhere
    alignment   bytes that every pointer must be aligned to
    masked   whether its loads may have bounds (see program.py (Load)); others are not asked of ops that read so, such as a pad
    strided  whether plans ask it of operands and results that are views of other tensors (see graph/fuse/strided.py): its `accepts` says
             which ones, of what strides and of what alignment, and its launches go by those of the region's descriptors
    shared   bytes of shared memory that a block takes
    chained  whether its launches may be some of another variant's, whose tensors lie within others: none of them has a `Table`
    family   what its relatives refuse as well, first of all: one function for all of them, asked once of a region
    least    microseconds that `cost` never goes below, of any region: what spares asking for it; one function for relatives
    viable   for what `takes` can't say: checks that hold for a region as long as some continuation of it can be taken
    """

    instead = "its id says which it is: registry.by_id(id)"

    id: str
    kinds: tuple[str, ...]
    device: str
    accepts: Callable[[RegionSpec], Checks]
    cost: Callable[[RegionSpec, DeviceSpec], Cost]
    build: Callable[[RegionSpec, DeviceSpec], Built]
    viable: Callable[[RegionSpec], Checks] | None = None
    family: Callable[[RegionSpec], Reject | None] | None = None
    least: Floor | None = None
    takes: tuple[str, ...] = ()
    dtypes: frozenset[DType] = frozenset(DType)
    alignment: int = 1
    masked: bool = False
    strided: bool = False
    workspace: Callable[[RegionSpec, DeviceSpec], int] = field(default=lambda region, device: 0)
    needs: tuple[str, ...] = ()
    shared: int = 0
    priority: int = 0
    capture_safe: bool = True
    deterministic: bool = True
    chained: bool = True
    origin: str = "aicf"
    doc: str = ""

    def __repr__(self) -> str:
        return f"<kernel {self.id}>"

    def __copy__(self) -> KernelVariant:
        return self

    def __deepcopy__(self, memo: Any) -> KernelVariant:
        return self

    @property
    def kernel(self) -> str:
        """The id without the config."""
        return self.id.partition("[")[0]

    @property
    def config(self) -> str:
        """The words in brackets: a tile, and what else tells it from the kernel's other configs; "" for a kernel that has one."""
        return self.id.partition("[")[2].removesuffix("]")

    @property
    def name(self) -> str:
        """The id without device and version: `gemm_wgmma[128x256 pingpong]`, `gemm_naive`."""
        config = self.id.partition("[")[2]
        return self.id.split(".")[1] + (config and f"[{config}")

    @property
    def order(self) -> tuple[str, str]:
        """What variants are sorted by: kernels by id, and the configs of each."""
        return self.kernel, self.config

    def supported(self, region: RegionSpec, device: DeviceSpec) -> Reject | None:
        """Why not: the first condition that fails, with the value seen. None if the variant takes the region."""
        refused = self.admits(device) or self._takes(region) or (self.family and self.family(region))
        return refused or self.refuses(region)

    def continues(self, region: RegionSpec, device: DeviceSpec) -> Reject | None:
        """Why not: what rules out this region and all its continuations. None while one of them may be taken."""
        if self.viable is not None:
            refused = self.admits(device) or (None if self.masked else unmasked(region))
            try:
                return refused or first_failure(self.viable(region))
            except AicfError:
                raise
            except Exception as error:
                raise unanswered(self.id, "viable", region, error, self.viable) from error
        return self.admits(device) or self._continues(region)

    def refuses(self, region: RegionSpec) -> Reject | None:
        """Why not, as `supported`, of a region whose device, structure and element types an index has found right, and its family."""
        try:
            return first_failure(self.accepts(region))
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "accepts", region, error, self.accepts) from error

    def predicted(self, region: RegionSpec, device: DeviceSpec) -> tuple[Cost, float]:
        """What `cost` says of a region that the variant takes, and its microseconds; KernelError if that is no time."""
        try:
            cost = self.cost(region, device)
            if not isinstance(cost, Cost) or math.isnan(us := cost.us):
                raise TypeError(f"it returned {cost!r}")
            return cost, us
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "cost", region, error, self.cost) from error

    def score(self, region: RegionSpec, device: DeviceSpec) -> float:
        """Negative if unsupported; else runs per second, as predicted: the higher the better."""
        return -1.0 if self.supported(region, device) else 1e6 / self.predicted(region, device)[1]

    def query_workspace(self, region: RegionSpec, device: DeviceSpec) -> int:
        """Bytes of scratch memory that `build`'s launches use; the plan reserves them, 256-byte aligned."""
        try:
            return self.workspace(region, device)
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "workspace", region, error, self.workspace) from error

    def _takes(self, region: RegionSpec) -> Reject | None:
        """Whether structure and element types are right for this very region."""
        if not self.takes and self.viable is None:
            return one_op(region) or self._lives_with(region)
        if self.takes and (shape := structure(region)) not in self.takes:
            return Reject("structure", f"takes {max(self.takes, key=len)}, this is {shape}")
        return self._lives_with(region)

    def _continues(self, region: RegionSpec) -> Reject | None:
        if not self.takes:
            return one_op(region) or self._lives_with(region)
        shape = structure(region)
        if not any(shape in prefixes(taken) for taken in self.takes):
            return Reject("structure", f"takes {max(self.takes, key=len)}, this is {shape}")
        return self._lives_with(region)

    def _lives_with(self, region: RegionSpec) -> Reject | None:
        if any(t.dtype not in self.dtypes for t in region.tensors):
            return dtype(region, *sorted(self.dtypes, key=lambda d: d.id))
        return aligned(region, self.alignment) or (None if self.masked else unmasked(region))

    def admits(self, device: DeviceSpec) -> Reject | None:
        """Why it can't run on a device, whatever the region. None if it can."""
        if device.kind != self.device:
            return Reject("device", f"runs on {self.device}, not on {device.kind}")
        for need in self.needs:
            if reason := device.missing(need):
                return Reject("needs", reason)
        if self.shared > device.shared_per_block:
            found = f"{device.name} has {device.shared_per_block}"
            return Reject("needs", f"needs {self.shared} bytes of shared memory for a block; {found}")
        return None


def variant(
    *kinds: str,
    id: str,
    config: tuple[object, ...] = (),
    takes: tuple[str, ...] = (),
    dtypes: Iterable[DType] | None = None,
    alignment: int = 1,
    masked: bool = False,
    strided: bool = False,
    needs: tuple[str, ...] = (),
    shared: int = 0,
    priority: int = 0,
    capture_safe: bool = True,
    deterministic: bool = True,
    chained: bool = True,
    family: Callable[[RegionSpec], Reject | None] | None = None,
) -> Callable[[type], KernelVariant]:
    """Make a KernelVariant of a class whose body is `accepts`, `cost`, `build` and maybe `viable`, `workspace` and `least`.

    The record is returned, and registered by whoever collects the module: see `KernelRegistry.add_module`. Without
    `takes` or a `viable`, a variant takes regions of one op only.

    config  of a kernel that has several: what tells this one from the others, such as a tiling, and words; see `KernelVariant.config`
    """
    if config:
        id = f"{id}[{' '.join(str(part).replace('_', ' ') for part in config)}]"
    if not _ID.match(id):
        raise RegistryError(
            f"kernel id {id!r} is malformed",
            expected="device.name.vN, such as 'cuda.add_half2.v1', and words in brackets where a kernel has several configs",
        )

    def make(cls: type) -> KernelVariant:
        functions: dict[str, Any] = {name: f for name, f in vars(cls).items() if inspect.isfunction(f)}
        for name in ("accepts", "cost", "build"):
            if name not in functions:
                raise RegistryError(f"variant {id} has no `{name}`", where=cls.__qualname__)
        unknown = set(functions) - set(ASKED)
        if unknown:
            raise RegistryError(f"variant {id} defines {', '.join(sorted(unknown))}, which mean nothing here")
        for name, f in functions.items():
            if not _takes_positional(f, len(ASKED[name])):
                raise RegistryError(
                    f"variant {id}: its `{name}` takes {f.__code__.co_argcount} arguments, {', '.join(f.__code__.co_varnames[: f.__code__.co_argcount])}",
                    expected=f"{name}({', '.join(ASKED[name])}): a plain function, without self", where=definition(f),
                )  # fmt: skip
        return KernelVariant(
            id,
            kinds,
            id.split(".")[0],
            takes=takes,
            dtypes=frozenset(dtypes or (DType if id.startswith("cpu.") else BASIC)),
            alignment=alignment,
            masked=masked,
            strided=strided,
            needs=needs,
            shared=shared,
            priority=priority,
            capture_safe=capture_safe,
            deterministic=deterministic,
            chained=chained,
            family=family,
            doc=inspect.getdoc(cls) or "",
            **functions,
        )

    return make


def by_kernel(variants: Iterable[KernelVariant]) -> dict[tuple[str, str], list[KernelVariant]]:
    """The configs of each kernel, by its id and by who brings them."""
    found: dict[tuple[str, str], list[KernelVariant]] = {}
    for v in variants:
        found.setdefault((v.kernel, v.origin), []).append(v)
    return found


def with_config(config: str, variants: Iterable[KernelVariant]) -> KernelVariant:
    """The variant with this config; StopIteration if there is none."""
    return next(v for v in variants if v.config == config)


def variants_in(module: ModuleType) -> tuple[KernelVariant, ...]:
    """The variants that a module binds to names, singly or in tuples."""
    values = [v for value in vars(module).values() for v in (value if isinstance(value, tuple) else (value,))]
    return tuple(dict.fromkeys(v for v in values if isinstance(v, KernelVariant)))


def _takes_positional(function: Any, count: int) -> bool:
    code, defaults = function.__code__, len(function.__defaults__ or ())
    varied = bool(code.co_flags & inspect.CO_VARARGS)
    return code.co_argcount - defaults <= count and (varied or count <= code.co_argcount)


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


__all__ = [
    "NEEDLESS",
    "Arg",
    "Built",
    "Checks",
    "Collective",
    "Element",
    "Floor",
    "HostCall",
    "In",
    "KernelVariant",
    "Launch",
    "Num",
    "OpKind",
    "Out",
    "Reject",
    "Table",
    "TensorMap",
    "Work",
    "aligned",
    "arity",
    "at_least",
    "at_most",
    "by_kernel",
    "cdiv",
    "contiguous",
    "dtype",
    "multiple",
    "one_op",
    "prefixes",
    "same_shape",
    "structure",
    "variant",
    "variants_in",
    "with_config",
]
