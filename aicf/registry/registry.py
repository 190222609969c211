"""KernelRegistry: the variants there are, found by op kind, by id, and by OpKey."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TypeVar

from .. import near
from ..device.spec import DeviceSpec
from ..errors import MissingKernelError, NoKernelError, RegistryError
from ..ops.record import MAIN
from ..ops.schema import ELEMENTWISE, OpSchema, schema_of, schemas
from ..rows import RegionSpec
from ..types import ActKind, DType, OpKind, TensorDesc, TensorSpec
from .ids import current
from .index import REQUIRED, KernelIndex
from .variant import Kernel, KernelVariant, variants_in


@dataclass(frozen=True)
class OpKey:
    """The look-up key of graph_executor_v2: a projection of a region, not a registry of its own."""

    kind: OpKind
    device: str
    dtype: DType
    layout: str = "row_major"
    act: ActKind = ActKind.none
    with_bias: bool = False
    trans_a: bool = False
    trans_b: bool = False
    save_z: bool = False

    @classmethod
    def of(cls, region: RegionSpec, device: str) -> OpKey:
        """The key of a region. Layout is `row_major` when every tensor is, else `strided`."""
        attrs, kinds = region.attrs, [op.kind.name for op in region.ops]
        gemm = region.kind.name == "gemm"
        act = next((ActKind[k] for k in kinds[1:] if k in ActKind.__members__), ActKind(attrs.get("act", 0)))
        return cls(
            region.kind,
            device,
            region.results[0].dtype,
            "row_major" if all(t.contiguous for t in (*region.operands, *region.results)) else "strided",
            act,
            gemm and (region.anchor.inputs[3:4] not in ((), (-1,)) or "bias_add" in kinds),
            bool(attrs.get("trans_a", False)),
            bool(attrs.get("trans_b", False)),
            bool(attrs.get("save_preact", False)),
        )

    def region(self, m: int, n: int, k: int) -> RegionSpec:
        """A region that has this key: a gemm of (m, n, k), or an elementwise op over (m, n) operands.

        Other ops need more than a key says (axes, labels, shapes): RegistryError.
        """

        def desc(*shape: int, dtype: DType = self.dtype) -> TensorDesc:
            dense = TensorDesc.dense(TensorSpec(shape, dtype, self.device))
            return (
                dense
                if self.layout == "row_major"
                else replace(dense, stride=tuple(2 * s for s in dense.stride))
            )

        if self.kind.name != "gemm":
            schema = schema_of(self.kind)
            if ELEMENTWISE not in schema.traits or schema.variadic or any(a.required for a in schema.attrs):
                raise RegistryError(
                    f"an OpKey says too little of {self.kind}",
                    expected="gemm, or an elementwise op of so many operands, without required attributes",
                    hint="select(RegionSpec.single(...), device, registry) takes the whole question",
                )
            attrs = schema.pack({})
            shapes = [
                self.dtype if d.type.shared else min(d.type.dtypes, key=lambda t: t.id)
                for d in schema.operands
            ]
            operands = [desc(m, n, dtype=t) for t in shapes]
            results = schema.infer([TensorSpec((m, n), t, self.device) for t in shapes], attrs, self.device)
            return RegionSpec.single(
                self.kind, attrs, [*operands], [desc(m, n, dtype=r.dtype) for r in results]
            )
        attrs = schema_of(self.kind).pack(
            {
                "act": int(self.act),
                "trans_a": self.trans_a,
                "trans_b": self.trans_b,
                "save_preact": self.save_z,
            }
        )
        a, b = desc(*((k, m) if self.trans_a else (m, k))), desc(*((n, k) if self.trans_b else (k, n)))
        bias = desc(n) if self.with_bias else None
        return RegionSpec.single(
            self.kind, attrs, [a, b, None, bias], [desc(m, n)] * (2 if self.save_z else 1)
        )


def _again(known: KernelVariant, new: KernelVariant) -> bool:
    """Whether both are of one class of a script or notebook, before and after its lines were run again."""
    if known.kernel != new.kernel or not known.module == new.module == MAIN:
        return False
    old, again = (getattr(v.build, "func", v.build) for v in (known, new))
    names = {getattr(f, "__qualname__", None) for f in (old, again)}
    compiled = getattr(old, "__code__", None) is not getattr(
        again, "__code__", None
    )  # anew, and not a call of one function
    return len(names) == 1 and compiled


_Added = TypeVar("_Added", KernelVariant, Kernel)
_LOADING = threading.RLock()  # a thread waits for what another loads


def _check_kinds(variant: KernelVariant) -> None:
    """RegistryError if one is neither an op nor a trait or core of any."""
    if all(str(OpKind.known(kind)) == kind for kind in variant.kinds):
        return
    names = {"*"}.union(*((s.name, s.core, *s.traits) for s in schemas()))
    if unknown := [kind for kind in variant.kinds if kind not in names]:
        raise RegistryError(
            f"kernel {variant.id} is for {unknown[0]!r}, which is no op, and no trait or core of one",
            expected="one of the ops that `aicf info` lists, declared before the kernel is added",
            hint=near.hint(unknown[0], near.OPS, sorted(filter(None, names))),
        )


class KernelRegistry:
    """A set of variants. Iteration and look-ups are ordered by id, never by registration.

    `generation` rises with every change, so that caches of choices can be keyed by it. Variants that are deferred were there from the
    beginning: loading them changes nothing.
    """

    def __init__(self, variants: Iterable[KernelVariant] = ()) -> None:
        self._by_id: dict[str, KernelVariant] = {}
        self._by_op: dict[OpSchema, tuple[KernelVariant, ...]] = {}
        self._indices: dict[tuple[DeviceSpec, frozenset[str]], KernelIndex] = {}
        self._deferred: dict[str, Callable[[], Iterable[ModuleType]]] = {}
        self.generation = 0
        for variant in variants:
            self.add(variant)

    def add(self, variant: _Added) -> _Added:
        """Register a variant, or a kernel in all of its configs; RegistryError if another has its id, and nothing is registered then.

        A cell of a notebook that is run again replaces its kernel: configs that it no longer lists are gone.
        """
        if not isinstance(variant, KernelVariant | Kernel):
            raise RegistryError(
                "what is added is no kernel", got=repr(variant)[:200],
                hint="@variant(...) above a class makes one; docs/add-an-op.md shows how",
            )  # fmt: skip
        added = tuple(variant) if isinstance(variant, Kernel) else (variant,)
        for v in added:
            self._load(v.device)
            self._check_free(v)
            _check_kinds(v)
        complete = isinstance(variant, Kernel) or not variant.config
        if complete and added[0].module == MAIN:
            for v in [v for v in self._by_id.values() if _again(v, added[0])]:
                del self._by_id[v.id]
        for v in added:
            self._by_id[v.id] = v
        self._changed()
        return variant

    def _insert(self, variant: KernelVariant) -> None:
        self._check_free(variant)
        self._by_id[variant.id] = variant

    def _check_free(self, variant: KernelVariant) -> None:
        registered = self._by_id.get(variant.id)
        again = registered is not None and registered.module == variant.module == MAIN
        if registered is not None and registered is not variant and not again:
            raise RegistryError(
                f"kernel id {variant.id!r} is taken by {registered.origin}",
                hint="raise the version: ids are never reused",
            )

    def _changed(self) -> None:
        self._by_op.clear()
        self._indices.clear()
        self.generation += 1

    def add_module(self, module: ModuleType, origin: str = "aicf") -> None:
        """Register every KernelVariant that a module holds, but for those it imported from a registered one."""
        for device in {v.device for v in variants_in(module)}:
            self._load(device)
        for value in self._new_in(module):
            self.add(value if value.origin == origin else replace(value, origin=origin))

    def _new_in(self, module: ModuleType) -> Iterator[KernelVariant]:
        for value in variants_in(module):
            registered = self._by_id.get(value.id)
            if registered is None or replace(registered, origin=value.origin) != value:
                yield value

    def defer(self, device: str, modules: Callable[[], Iterable[ModuleType]]) -> None:
        """Register the variants of modules, all of one kind of device, when that device or all variants are first looked at."""
        self._deferred[device] = modules

    def _load(self, device: str | None = None) -> None:
        """Load what is deferred: of a device, or all."""
        if not self._deferred or (device is not None and device not in self._deferred):
            return
        with _LOADING:
            for kind in [device] if device is not None else list(self._deferred):
                if kind in self._deferred:
                    for module in self._deferred[kind]():
                        for variant in self._new_in(module):
                            self._insert(variant)
                    del self._deferred[kind]

    def remove(self, id: str) -> None:
        """Forget a variant, or a kernel in all of its configs; nothing if none has this id."""
        self._load()
        for v in [v for v in self._by_id.values() if id in (v.id, v.kernel)]:
            del self._by_id[v.id]
        self._changed()

    def variants(self, op: OpKind | str) -> tuple[KernelVariant, ...]:
        """The variants that may begin with this op: by its name, core, one of its traits, or `*`."""
        schema = schema_of(op)
        if schema not in self._by_op:
            names = {schema.name, "*", schema.core, *schema.traits}
            self._by_op[schema] = tuple(v for v in self if names.intersection(v.kinds))
        return self._by_op[schema]

    def by_id(self, id: str) -> KernelVariant:
        """The variant of an id, or of one that it once had; MissingKernelError if there is none."""
        try:
            if id not in self._by_id:
                self._load()
            return self._by_id[id if id in self._by_id else current(id)]
        except KeyError:
            if configs := [v.config for v in self if v.kernel == id]:
                raise MissingKernelError(
                    f"kernel {id!r} has several configs", expected=f"one of them, such as {f'{id}[{configs[0]}]'!r}",
                    hint="registry.kernel(id) has them all",
                ) from None  # fmt: skip
            raise MissingKernelError(
                f"no kernel {id!r} is registered",
                expected="a variant that `aicf info` lists",
                hint="install the package that brings it, or compile the model again",
            ) from None

    def kernel(self, id: str) -> Kernel:
        """The kernel of an id without a config, such as `cuda.gemm_wgmma.v1`, in all configs that are registered, whoever brings them;
        MissingKernelError if there is none."""
        configs = tuple(v for v in self if v.kernel == id)
        if not configs:
            hint = "registry.by_id(id) finds a variant by the id with its config" if "[" in id else None
            raise MissingKernelError(
                f"no kernel {id!r} is registered", expected="a kernel that `aicf info` lists", hint=hint
            )
        return Kernel(id, configs)

    def find_best(
        self, key: OpKey, device: DeviceSpec, m: int = 1024, n: int = 1024, k: int = 1024
    ) -> KernelVariant:
        """The best variant for a key at a problem size; NoKernelError if none takes it."""
        from .select import select

        if key.device != device.kind:
            raise NoKernelError(f"the key asks for {key.device}, {device.name} is a {device.kind} device")
        return select(key.region(m, n, k), device, self).chosen.variant

    def index(self, device: DeviceSpec, required: frozenset[str] = REQUIRED) -> KernelIndex:
        """The variants of a device, by what they declare; kept until the registry changes."""
        key = (device, required)
        if key not in self._indices:
            self._load(device.kind)
            self._indices[key] = KernelIndex(list(self._by_id.values()), device, required)
        return self._indices[key]

    def copy(self) -> KernelRegistry:
        """Another registry with the same variants, which changes by itself."""
        return KernelRegistry(self)

    def __iter__(self) -> Iterator[KernelVariant]:
        self._load()
        return iter(sorted(self._by_id.values(), key=lambda v: v.order))

    def __len__(self) -> int:
        self._load()
        return len(self._by_id)

    def __repr__(self) -> str:
        return f"<{len(self)} kernels; registry.variants(op) are those of an op>"

    def __contains__(self, id: object) -> bool:
        if id not in self._by_id:
            self._load()
        return id in self._by_id or (isinstance(id, str) and current(id) in self._by_id)
