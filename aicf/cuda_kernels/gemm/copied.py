"""Configs of matrix products for operands that a kernel can't read as they are: they are copied into the workspace first.

packed  to rows that begin at multiples of 16 bytes, K-major where tensor cores need that. Batches of many axes are then products of one or two, if
        what follows allows
tf32x3  f32 as two terms of TF32, for three products of k on Hopper (3xTF32): what TF32 has of a number, and what that leaves, of which TF32 has
        enough. a is written as rows of [lo | hi | hi] and b as [hi | lo | hi]: their product, of thrice the k, is the one that was wanted,
        but for that of the rests. Its sums begin with the small ones, and are added up in f32 every 32 of k

The product is that of another region, whose operands are the copies, by the very kernel that accepts it; its pointers, and on Hopper its
descriptors, are of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.numerics import UNDECLARED
from ...registry.variant import (
    NEEDLESS,
    Checks,
    In,
    Kernel,
    KernelVariant,
    Launch,
    NumericClass,
    Reject,
    TensorMap,
    Work,
    cdiv,
    variant,
)
from ...rows import RegionOp, RegionSpec
from ...rows.program import Gemm, Map, RegionProgram
from ...rows.read import read
from ...types import AttrPack, Precision, TensorDesc, f32
from . import fma as gemm_fma
from . import mma as gemm_mma
from . import problem, simt
from . import wgmma as gemm_wgmma
from .numerics import COPIED_SIDE
from .operands import pack
from .operands.registers import BOTH
from .operands.tma import each_operand
from .wgmma_tiling import WgmmaConfig, tilings

HALF = 2  # bytes, that tensor cores take in either order; of all others k is contiguous
ALIGNMENT = 256  # of each copy in the workspace
MENDED = frozenset({"aligned", "rows", "batch", "axes of the batch"})  # conditions that copies may meet
HI, LO = 0, 1
A_HI_LO, B_HI_LO = (LO, HI, HI), (HI, LO, HI)
Family = Callable[[RegionSpec], Reject | None]


@dataclass(frozen=True)
class Packed:
    """`region` is the one that was asked for, with those operands that are copied as they will lie."""

    region: RegionSpec
    copies: tuple[pack.Copy, ...]


@lru_cache(maxsize=256)
def packed(region: RegionSpec) -> Packed | Reject:
    """A product with copies of what can't be read as it is; of both operands, if its batch has more axes than kernels take."""
    program = read(region)
    if isinstance(program, Reject):
        return program
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    p, after = program.core, program.after
    if not p.m * p.n * p.k * p.count:
        return Reject("empty", f"nothing to copy of {p.count} products {p.m}x{p.n}x{p.k}")
    indices = p.a, p.b
    both = each_operand(region, _either(p))
    made = with_copies(region, p, {i for i, o in zip(indices, both) if isinstance(o, Reject)})
    if len(problem.read(made.region)[0].batch) > problem.BATCH_AXES:
        made = with_copies(region, p, set(indices))
    return refusal_of(made, p, after) or made


def refusal_of(made: Packed, p: Gemm, after: Map) -> Reject | None:
    """Copies are of the product alone, and no larger than their kernel counts."""
    others = {p.c, *(load.operand for load in after.loads)}
    if again := next((c for c in made.copies if c.index in others), None):
        return Reject("read again", f"operand {again.index} is read after the product as well, as it is")
    return next((r for c in made.copies for r in pack.checks(c) if r is not None), None)


def with_copies(region: RegionSpec, p: Gemm, indices: set[int]) -> Packed:
    """Of these operands."""
    copies = []
    for index in sorted(indices):
        t = region.operands[index]
        row = pack.fastest(t) if _either(p) else k_axis(p, index, t)
        copies.append(pack.copy_of(index, t, row))
    return replaced(region, copies, region.ops)


def _either(p: Gemm) -> bool:
    """Whether an operand may have rows of lines: what ordinary cores multiply, or tensor cores as halves."""
    return p.dtype.itemsize == HALF or (p.dtype is f32 and p.precision is Precision.exact)


def k_axis(p: Gemm, index: int, t: TensorDesc) -> int:
    """Of operand `index`, which is a or b, and `t`."""
    transposed = p.trans_a if index == p.a else not p.trans_b
    return len(t.shape) - (2 if transposed else 1)


def replaced(region: RegionSpec, copies: Sequence[pack.Copy], ops: tuple[RegionOp, ...]) -> Packed:
    """Copies in the place of operands."""
    tensors = list(region.tensors)
    for copy in copies:
        tensors[region.inputs[copy.index]] = copy.target
    made = replace(region, ops=ops, tensors=tuple(tensors))
    return Packed(made, tuple(copies))


@lru_cache(maxsize=256)
def one_packed(region: RegionSpec) -> Packed | Reject:
    """A product of which one operand is copied to rows of k, the smaller one; the other goes through registers."""
    p, after = problem.read(region)
    made = with_copies(region, p, {p.a if p.m < p.n else p.b})
    return refusal_of(made, p, after) or made


@lru_cache(maxsize=256)
def two_terms(region: RegionSpec) -> Packed | Reject:
    """The product of both terms, of a region that is one of f32 numbers."""
    program = read(region)
    assert isinstance(program, RegionProgram) and isinstance(program.core, Gemm)
    p, after = program.core, program.after
    if p.a == p.b:
        return Reject("read again", "a and b are the same, and are split in two ways")
    if not p.m * p.n * p.k * p.count:
        return Reject("empty", f"nothing to copy of {p.count} products {p.m}x{p.n}x{p.k}")
    copies = []
    for index, hi_lo in ((p.a, A_HI_LO), (p.b, B_HI_LO)):
        t = region.operands[index]
        copies.append(pack.copy_of(index, t, k_axis(p, index, t), hi_lo))
    product = region.ops[0]._replace(attrs=AttrPack(region.attrs, precision=Precision.tf32))
    made = replaced(region, copies, (product, *region.ops[1:]))
    return refusal_of(made, p, after) or made


@lru_cache(maxsize=256)
def tf32x3_family(region: RegionSpec) -> Reject | None:
    if refused := gemm_mma.FAMILIES[Precision.tf32x3](region):
        return refused
    made = two_terms(region)
    return made if isinstance(made, Reject) else gemm_wgmma.family(made.region)


def mending(
    family: Family, mended: frozenset[str] = MENDED, copied: Callable[[RegionSpec], Packed | Reject] = packed
) -> Family:
    """What is refused of that which `family` refuses for one of these conditions, and which its kernel takes with copies."""

    @lru_cache(maxsize=256)
    def refuses(region: RegionSpec) -> Reject | None:
        refused = family(region)
        if refused is None:
            return Reject(NEEDLESS, "a and b are read where they are")
        if refused.condition not in mended:
            return refused
        made = copied(region)
        return made if isinstance(made, Reject) else family(made.region)

    return refuses


def _refusal(plain: KernelVariant, region: RegionSpec) -> Reject | None:
    return (plain.family and plain.family(region)) or plain.refuses(region)


def places(made: Packed, start: int) -> list[int]:
    """Where copies begin in a workspace of which so many bytes are the product's, and where the last one ends."""
    at = [cdiv(start, ALIGNMENT) * ALIGNMENT]
    for copy in made.copies:
        at.append(at[-1] + cdiv(copy.nbytes, ALIGNMENT) * ALIGNMENT)
    return at


def copying(
    plains: Mapping[str, KernelVariant],
    family: Family,
    copied: Callable[[RegionSpec], Packed | Reject] = packed,
) -> Kernel:
    """Configs of a kernel, by their names, that make the copies that `copied` says, and hand the product of these to a variant without."""

    def known(region: RegionSpec) -> Packed:
        """Of a region that is taken."""
        made = copied(region)
        assert isinstance(made, Packed)
        return made

    first = next(iter(plains.values()))

    @variant(
        "gemm", id=first.kernel, configs=plains, takes=lambda plain: plain.takes, shared=lambda plain: plain.shared, needs=first.needs,
        dtypes=first.dtypes, family=family,
    )  # fmt: skip
    class Copying:
        """As the config without `packed` or `tf32x3`, of operands that are first copied: to rows that begin at multiples of 16 bytes; or f32, split in
        two of TF32, for three products of k.

        A launch more, parallel over 16 bytes of what it writes. Bytes: each such operand once more, read, and written, thrice if it is split;
        then those of the product. Limit: memory for the copies; that of the config without for the product.
        """

        def accepts(region: RegionSpec, plain: KernelVariant) -> Checks:
            yield plain.refuses(known(region).region)

        def cost(region: RegionSpec, device: DeviceSpec, plain: KernelVariant) -> Cost:
            made = known(region)
            copies = pack.cost(made.copies, device).us
            return plain.cost(made.region, device).plus(**{"copies of operands": copies})

        def workspace(region: RegionSpec, device: DeviceSpec, plain: KernelVariant) -> int:
            made = known(region)
            return places(made, plain.query_workspace(made.region, device))[-1]

        def numerics(region: RegionSpec, device: DeviceSpec, plain: KernelVariant) -> NumericClass | Reject:
            made = known(region).region
            found = UNDECLARED if plain.numerics is None else plain.numerics(made, device)
            if copied is one_packed:
                return COPIED_SIDE
            if copied is not two_terms or isinstance(found, Reject):
                return found
            return replace(found, compute="wgmma 3 x tf32 in f32", length=problem.read(region)[0].k)

        def build(region: RegionSpec, device: DeviceSpec, plain: KernelVariant) -> list[Launch]:
            made = known(region)
            at = places(made, plain.query_workspace(made.region, device))[:-1]
            launches = plain.build(made.region, device)
            assert isinstance(launches, list)
            works = {In(c.index): Work(start, c.source.dtype) for c, start in zip(made.copies, at)}
            return [pack.launch(made.copies, at), *(_reading(launch, works) for launch in launches)]

    return Copying  # type: ignore[return-value]  # `variant` has made a record of the class


def _reading(launch: Launch, copied: dict[In, Work]) -> Launch:
    """With copies in the place of operands, by themselves and in descriptors."""

    def of(arg):
        if isinstance(arg, tuple):
            return tuple(map(of, arg))
        if isinstance(arg, TensorMap):
            return replace(arg, source=of(arg.source))
        return copied.get(arg, arg)

    return replace(launch, args=of(launch.args))


def _packed(kernel: Any, *configs: str, family: Family | None = None, copied: Any = packed) -> Kernel:
    """These configs with `packed`; of one config, what it refuses for where operands are, if no `family` is said."""
    plains = {f"{config} packed": kernel[config] for config in configs}
    return copying(plains, family or mending(partial(_refusal, kernel[configs[0]])), copied)


def tf32x3_configs(names: str) -> Kernel:
    """Of tilings whose accumulators are promoted, so that sums are as exact as those of f32."""
    promoted = [WgmmaConfig(replace(t, promoted=True)) for t in tilings(names)]
    plains = gemm_wgmma.kernel(promoted, gemm_wgmma.family)
    named = {f"{replace(v.settings.tiling, promoted=False)}_tf32x3": v for v in plains}
    return copying(named, tf32x3_family, two_terms)


TF32X3 = tf32x3_configs("256x128_cluster2 128x128_cluster2")
# The tiled kernel reads any layout as it is, but for batches of many axes.
PACKED = (
    _packed(
        gemm_wgmma.WGMMA, "192x128", "128x256", "128x128 pingpong", "64x128 pingpong", "64x64", "128x128 split",
        family=mending(gemm_wgmma.family),
    ),
    _packed(
        gemm_wgmma.INT8, "128x256 int8", "128x128 pingpong int8", "64x128 pingpong int8", "64x64 int8",
        family=mending(gemm_wgmma.int8_family),
    ),
    _packed(
        gemm_wgmma.RS, "128x256 rs", "128x128 rs", "64x64 rs", "128x128 rs split",
        family=mending(gemm_wgmma.rs_family, frozenset({BOTH}), one_packed), copied=one_packed,
    ),
    _packed(gemm_mma.EXACT, "128x128"), _packed(gemm_mma.EXACT, "128x256 deep"), _packed(gemm_mma.TURING, "256x128 turing"), _packed(gemm_fma.Fma, "128x128"), _packed(simt.Tiled, "64x64"),
)  # fmt: skip
