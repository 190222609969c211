"""KernelVariant: which regions a kernel accepts (see checks.py), its cost, its launches. Rejection is data.

A variant is written as a class of plain functions under `@variant(...)`; see docs/add-an-op.md. Only `build` may import a
kernel body, so that choosing and explaining need neither numba nor a GPU.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from ..device.spec import DeviceSpec
from ..errors import AicfError, Immovable, RegistryError
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
    first_refusal,
    multiple,
    one_op,
    same_shape,
    unmasked,
)
from .cost import Cost
from .declared import ASKED, answer, functions_of, named_configs, with_value
from .failures import unanswered
from .launch import (
    Arg,
    Built,
    Collective,
    Element,
    HostCall,
    In,
    Launch,
    Num,
    Out,
    Table,
    TensorMap,
    WindowMap,
    Work,
)
from .nearby import corrected, least_factor
from .numerics import UNDECLARED, NumericClass, alone, exact, no_class, of_region

Floor = Callable[[RegionSpec, DeviceSpec], float]

# Fields of KernelVariant that `variant` takes as they are.
FLAGS = {"masked", "strided", "needs", "priority", "capture_safe", "deterministic", "chained", "family"}
_ID = re.compile(r"^(cpu|cuda)\.[a-z0-9_]+\.v[0-9]+(\[[a-z0-9]+( [a-z0-9]+)*\])?$")


@dataclass(frozen=True, repr=False)
class KernelVariant(Immovable):
    """One kernel in one of its configs. `id` is stable and versioned: its version rises when the kernel's numerics change.

    id       `cuda.gemm_wgmma.v1[128x256 pingpong]`: the kernel, and its config where it has several
    kinds    op names, or traits such as `elementwise`, or cores such as `reduce`, or `*`: the ops that may begin a region
    takes    structures of regions (see `structure`), such as `map` or `gemm+map`; () is a region of one op
    dtypes   element types that tensors of a region may have; unless said, all on the CPU, the BASIC ones elsewhere
    alignment   bytes that every pointer must be aligned to
    masked   whether its loads may have bounds (see program.py (Load)); others are not tried for ops that read so, such as a pad
    strided  whether plans try it for operands and results that are views of other tensors (see graph/fuse/strided.py): its `accepts` says
             which ones, of what strides and of what alignment, and its launches go by those of the region's descriptors
    shared   bytes of shared memory of a block
    deterministic  whether equal launches give equal bits; one that is not is chosen with `deterministic=False` alone (docs/determinism.md)
    chained  whether its launches may be some of another variant's, whose tensors lie within others: none of them has a `Table`
    family   checks that all variants of a family share, called first: one function for all of them, once per region
    numerics  what decides the bits of a row, or why other rows do: see numerics.py
    least    a lower bound of `cost` in microseconds, for any region, which spares calls of it; one function for a family
    settings  the config as a value, such as a tiling: what the kernel's functions take as `config`
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
    numerics: Callable[[RegionSpec, DeviceSpec], NumericClass | Reject] | None = None
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
    settings: Any = field(
        default=None, compare=False
    )  # of any type; `id` and the functions distinguish variants

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
        """The words in brackets: a tile, and its other differences from the kernel's other configs; "" for a kernel that has one."""
        return self.id.partition("[")[2].removesuffix("]")

    @property
    def module(self) -> str:
        """The name of the module that defines it."""
        return getattr(self.build, "func", self.build).__module__

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
        """Why not: the first condition that fails, with the value seen. None if the variant accepts the region."""
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
        """The `cost` of a region that the variant accepts, and its microseconds; KernelError if that is no time."""
        try:
            cost = self.cost(region, device)
            if not isinstance(cost, Cost) or math.isnan(cost.us):
                raise TypeError(f"it returned {cost!r}")
            if device.calibration.measured:
                cost = corrected(self.id, region, device, cost)
            return cost, cost.us
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "cost", region, error, self.cost) from error

    def numeric_class(self, region: RegionSpec, device: DeviceSpec) -> NumericClass | Reject:
        """What decides the bits of each row of a region that the variant accepts; a Reject says why nothing but the whole launch does."""
        if self.numerics is None:
            return UNDECLARED
        try:
            return of_region(self.numerics(region, device), region, self.id)
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "numerics", region, error, self.numerics) from error

    def floor(self, region: RegionSpec, device: DeviceSpec) -> float:
        """The lower bound `least` of a region, 0 without one; KernelError if that is no time."""
        if self.least is None:
            return 0.0
        try:
            if math.isnan(us := self.least(region, device)):
                raise ValueError(f"it returned {us!r}")
            return us * least_factor(region, device)
        except AicfError:
            raise
        except Exception as error:
            raise unanswered(self.id, "least", region, error, self.least) from error

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
            available = f"{device.name} has {device.shared_per_block}"
            return Reject("needs", f"needs {self.shared} bytes of shared memory for a block; {available}")
        return None


@dataclass(frozen=True)
class Kernel:
    """A kernel in all of its configs, or in those of one class: iterates over them in order, and finds one by its name.

    id        `cuda.gemm_wgmma.v1`
    variants  one for each config; one alone, whose config is "", where the kernel has no others
    origin    the package that has it
    """

    id: str
    variants: tuple[KernelVariant, ...]

    @property
    def origin(self) -> str:
        return self.variants[0].origin

    @property
    def doc(self) -> str:
        return self.variants[0].doc

    def configs(self, region: RegionSpec, device: DeviceSpec) -> dict[str, KernelVariant | Reject]:
        """Of each config, by name: the variant, if it accepts the region on the device; else why not, with the value seen."""
        return {v.config: v.supported(region, device) or v for v in self.variants}

    def __getitem__(self, config: str) -> KernelVariant:
        """The variant with this config; RegistryError if there is none."""
        for v in self.variants:
            if v.config == config:
                return v
        raise RegistryError(
            f"kernel {self.id} has no config {config!r}", expected=", ".join(v.config for v in self.variants)
        )

    def __iter__(self) -> Iterator[KernelVariant]:
        return iter(self.variants)

    def __len__(self) -> int:
        return len(self.variants)


def kernels_of(variants: Iterable[KernelVariant]) -> list[Kernel]:
    """Variants as kernels: those of one id and one origin are its configs."""
    groups: dict[tuple[str, str], list[KernelVariant]] = {}
    for v in variants:
        groups.setdefault((v.kernel, v.origin), []).append(v)
    return [Kernel(id, tuple(configs)) for (id, _), configs in groups.items()]


def variants_in(module: ModuleType) -> tuple[KernelVariant, ...]:
    """The variants that a module binds to names, singly, in kernels or in tuples, lists and dictionaries."""
    named = {name: value for name, value in vars(module).items() if not name.startswith("__")}
    return tuple(dict.fromkeys(_variants(named, set())))


def _variants(value: Any, seen: set[int]) -> Iterator[KernelVariant]:
    """Each container once: one may contain itself."""
    if isinstance(value, KernelVariant):
        yield value
    elif isinstance(value, Kernel | tuple | list | dict) and id(value) not in seen:
        seen.add(id(value))
        for v in value.values() if isinstance(value, dict) else value:
            yield from _variants(v, seen)


# --- the decorator ----------------------------------------------------------------------------------------------------


def variant(
    *kinds: str,
    id: str,
    config: tuple[object, ...] = (),
    configs: Mapping[str, Any] | Iterable[Any] | None = None,
    takes: tuple[str, ...] | Callable[[Any], tuple[str, ...]] = (),
    dtypes: Iterable[DType] | None = None,
    alignment: int | Callable[[Any], int] = 1,
    shared: int | Callable[[Any], int] = 0,
    **flags: Any,
) -> Callable[[type], Any]:
    """Make a KernelVariant of a class whose body is `accepts`, `cost`, `build` and maybe `viable`, `workspace`, `numerics` and `least`.

    The record is returned, and registered by whoever collects the module: see `KernelRegistry.add_module`. Without
    `takes` or a `viable`, a variant takes regions of one op only.

    configs  makes a `Kernel`, with a variant for each of these values, such as tilings: functions of the class with one more parameter,
             `config` or of any name but without a default, get the value there. A value is named by `str`, or by its key in a mapping, with blanks for underscores
    config   words that name one variant, whose kernel has other configs, declared elsewhere
    takes, alignment, shared  values, or with `configs` functions of one
    flags    `masked`, `strided`, `needs`, `priority`, `capture_safe`, `deterministic`, `chained`, `family`: see `KernelVariant`
    """
    if unknown := set(flags) - FLAGS:
        raise RegistryError(
            f"variant {id} has {', '.join(sorted(unknown))}, which mean nothing here",
            expected=", ".join(sorted(FLAGS)),
        )
    several = configs is not None
    if several and config:
        raise RegistryError(
            f"kernel {id} has both `config` and `configs`", hint="put the words into names of `configs`"
        )
    named = named_configs(id, configs) if several else [(" ".join(map(str, config)).replace("_", " "), None)]
    ids = [f"{id}[{name}]" if name else id for name, _ in named]
    for config_id in ids:
        if not _ID.fullmatch(config_id):
            raise RegistryError(
                f"kernel id {config_id!r} is malformed",
                expected="cpu.name.vN or cuda.name.vN, such as 'cuda.add_half2.v1', and words of a to z and 0 to 9 in brackets where a kernel has several configs",
                hint="name each: configs={'64 threads': 64}, or give their class a __str__" if several and _ID.fullmatch(id) else None,
            )  # fmt: skip
    if repeated := [config_id for n, config_id in enumerate(ids) if config_id in ids[:n]]:
        raise RegistryError(f"kernel {id} has two configs of one name", got=", ".join(repeated))

    def make(cls: type) -> Any:
        functions = functions_of(cls, id, several)
        types = frozenset(dtypes or (DType if id.startswith("cpu.") else BASIC))
        variants = tuple(
            KernelVariant(
                each, kinds, each.split(".")[0], dtypes=types, doc=inspect.getdoc(cls) or "", settings=value,
                takes=answer(id, "takes", takes, several, value), alignment=answer(id, "alignment", alignment, several, value),
                shared=answer(id, "shared", shared, several, value),
                **flags, **{name: with_value(f, len(ASKED[name]), value) if several else f for name, f in functions.items()},
            )
            for each, (_, value) in zip(ids, named)
        )  # fmt: skip
        return Kernel(id, variants) if several else variants[0]

    return make


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
    "Kernel",
    "KernelVariant",
    "Launch",
    "Num",
    "NumericClass",
    "OpKind",
    "Out",
    "Reject",
    "Table",
    "TensorMap",
    "WindowMap",
    "Work",
    "aligned",
    "alone",
    "arity",
    "at_least",
    "at_most",
    "cdiv",
    "contiguous",
    "dtype",
    "exact",
    "first_refusal",
    "kernels_of",
    "multiple",
    "no_class",
    "one_op",
    "prefixes",
    "same_shape",
    "structure",
    "variant",
    "variants_in",
]
