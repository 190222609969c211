"""KernelIndex: the variants that may run on a device, found by what they declare. Candidate sets are bitsets.

Bit i stands for `variants[i]`, in the order of ids, so no set depends on the order of registration. Masks say which variants may
begin with an op, hold a structure, have an element type, live with an alignment, read as ops do. Those that may begin with a region's
first op are its candidates; each step intersects them with the other masks, and nothing ever adds one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from ..device.spec import DeviceSpec
from ..ops.schema import OpSchema
from ..rows import RegionSpec
from ..types import DType, TensorDesc
from .checks import unmasked
from .variant import Floor, KernelVariant, Reject, prefixes

Bits = int


def required_flags(deterministic: bool = True, capture_safe: bool = False) -> frozenset[str]:
    """The flags of KernelVariant that a choice must have: one without `deterministic` may give other bits in each run."""
    wanted = {"deterministic": deterministic, "capture_safe": capture_safe}
    return frozenset(flag for flag, is_wanted in wanted.items() if is_wanted)


REQUIRED = required_flags()


class KernelIndex:
    """Variants of one device, without those it can't run or that lack a flag asked for."""

    def __init__(
        self, variants: Iterable[KernelVariant], device: DeviceSpec, required: frozenset[str] = REQUIRED
    ) -> None:
        self.device, self.required = device, required
        self.variants: tuple[KernelVariant, ...] = tuple(
            sorted((v for v in variants if self.refuses(v) is None), key=lambda v: v.order)
        )
        self.all: Bits = (1 << len(self.variants)) - 1
        begins, viable, accepting = (defaultdict[str, list[int]](list) for _ in range(3))
        without, needing = defaultdict[DType, list[int]](list), defaultdict[int, list[int]](list)
        one, custom = [], []
        for i, v in enumerate(self.variants):
            for name in v.kinds:
                begins[name].append(i)
            if v.viable is not None:
                custom.append(i)
            elif not v.takes:
                one.append(i)
            for taken in v.takes:
                accepting[taken].append(i)
            for prefix in {p for taken in v.takes for p in prefixes(taken)}:
                viable[prefix].append(i)
            for dtype in set(DType) - v.dtypes:
                without[dtype].append(i)
            if v.alignment > 1:
                needing[v.alignment].append(i)
        self._masked = self._bits([i for i, v in enumerate(self.variants) if v.masked])
        self._strided = self._bits([i for i, v in enumerate(self.variants) if v.strided])
        families = defaultdict[Any, list[int]](list)
        for i, v in enumerate(self.variants):
            if v.family is not None:
                families[v.family].append(i)
        self.families = [(family, self._bits(members)) for family, members in families.items()]
        self.one, self.custom = self._bits(one), self._bits(custom)
        self._begins, self._viable, self._accepting = map(self._masks, (begins, viable, accepting))
        self._without, self._needing = self._masks(without), self._masks(needing)
        self._kinds: dict[OpSchema, Bits] = {}
        self._floors: dict[Bits, tuple[Floor, ...]] = {}
        self._place = {v.id: i for i, v in enumerate(self.variants)}

    def refuses(self, variant: KernelVariant) -> Reject | None:
        """Why a variant is in no candidate set of this device."""
        return variant.admits(self.device) or lacks(variant, self.required)

    # --- masks ------------------------------------------------------------------------------------------------------------

    def begins(self, schema: OpSchema) -> Bits:
        """Variants whose regions may begin with the op: by its name, core, a trait, or `*`."""
        if schema not in self._kinds:
            names = {schema.name, "*", schema.core, *schema.traits}
            mask = 0
            for name in names:
                mask |= self._begins.get(name, 0)
            self._kinds[schema] = mask
        return self._kinds[schema]

    def viable(self, structure: str, length: int) -> Bits:
        """Variants that take this structure, or one that it can grow into."""
        return self._viable.get(structure, 0) | self.custom | (self.one if length == 1 else 0)

    def accepting(self, structure: str, length: int) -> Bits:
        """Variants that take this very structure; `accepts` still tests them exactly."""
        return self._accepting.get(structure, 0) | self.custom | (self.one if length == 1 else 0)

    def dtype(self, dtype: DType) -> Bits:
        return self.all & ~self._without.get(dtype, 0)

    def alignment(self, nbytes: int) -> Bits:
        """Variants that live with pointers aligned to so many bytes."""
        mask = self.all
        for needed, variants in self._needing.items():
            if needed > nbytes:
                mask &= ~variants
        return mask

    def tensors(self, tensors: Collection[TensorDesc]) -> Bits:
        """Variants that live with these element types and alignments."""
        mask = self.alignment(min((t.alignment for t in tensors), default=256))
        for dtype in {t.dtype for t in tensors}:
            mask &= self.dtype(dtype)
        return mask

    def living_with(self, region: RegionSpec) -> Bits:
        """Variants that live with a region's tensors, and with how its ops read them."""
        return self.tensors(region.tensors) & self.reading(region)

    def reading(self, region: RegionSpec) -> Bits:
        """Variants that read as the region's ops do."""
        return self.all if unmasked(region) is None else self._masked

    def takes_strides(self, schema: OpSchema) -> bool:
        """Whether some kernel of the op is to be asked of operands and results that are views of others."""
        return bool(self.begins(schema) & self._strided)

    def bit(self, variant: KernelVariant) -> Bits:
        return 1 << self._place[variant.id]

    def floors(self, bits: Bits) -> tuple[Floor, ...]:
        """What these variants take at least; none if one of them does not say."""
        if bits not in self._floors:
            found = {v.least for v in self.members(bits)}
            self._floors[bits] = () if None in found else tuple([f for f in found if f is not None])
        return self._floors[bits]

    def members(self, bits: Bits, first: KernelVariant | None = None) -> Iterator[KernelVariant]:
        """In the order of ids, but for one that comes before all others."""
        if first is not None and bits & self.bit(first):
            yield first
            bits ^= self.bit(first)
        while bits:
            lowest = bits & -bits
            yield self.variants[lowest.bit_length() - 1]
            bits ^= lowest

    def _masks(self, groups: dict) -> dict:
        return {key: self._bits(members) for key, members in groups.items()}

    def _bits(self, members: list[int]) -> Bits:
        digits = bytearray(b"0" * max(len(self.variants), 1))
        for i in members:
            digits[-1 - i] = 49  # "1"
        return int(digits, 2)


def lacks(variant: KernelVariant, required: frozenset[str]) -> Reject | None:
    """The first of the required flags that the variant has not set."""
    for flag in sorted(required):
        if not getattr(variant, flag):
            return Reject(flag, f"is not {flag.replace('_', '-')}, which is required")
    return None
