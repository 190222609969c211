"""Variants of products for operands that a kernel can't read as they are: they are copied into the workspace first.

A copy has rows that begin at multiples of 16 bytes (pack.py). The product is then that of another region, whose operands lie so, by
the very kernel that takes it; its pointers, and on Hopper its descriptors, are of the copies. So batches of many axes are products
of one or two, if what follows allows, and types that need k contiguous have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial

from ...device.spec import DeviceSpec
from ...registry.cost import Cost
from ...registry.variant import (
    NEEDLESS,
    Checks,
    In,
    KernelVariant,
    Launch,
    Reject,
    TensorMap,
    Work,
    cdiv,
    variant,
    with_config,
)
from ...rows import RegionOp, RegionSpec
from ...rows.program import Gemm, Map, RegionProgram
from ...rows.read import read
from ...types import Precision, TensorDesc, f32
from . import fma as gemm_fma
from . import mma as gemm_mma
from . import pack, problem, simt
from . import wgmma as gemm_wgmma
from .operands.tma import each_operand

HALF = 2  # bytes, that tensor cores take in either order; of all others k is contiguous
ALIGNMENT = 256  # of each copy in the workspace
MENDED = frozenset({"aligned", "rows", "batch", "axes of the batch"})  # conditions that copies may meet
TILINGS = "192x128", "128x256", "128x128 pingpong", "64x128 pingpong", "64x64", "128x128 split"


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
    made = RegionSpec(ops, tuple(tensors), region.inputs, region.outputs, region.strict)
    return Packed(made, tuple(copies))


def family(plain: KernelVariant) -> Callable[[RegionSpec], Reject | None]:
    """What a variant refuses of what `plain` does not read as it is; one function for all of Hopper's."""
    return _refusing(gemm_wgmma.family if plain.family is gemm_wgmma.family else partial(_refusal, plain))


def _refusal(plain: KernelVariant, region: RegionSpec) -> Reject | None:
    return (plain.family and plain.family(region)) or plain.refuses(region)


@cache
def _refusing(of: Callable[[RegionSpec], Reject | None]) -> Callable[[RegionSpec], Reject | None]:
    def refuses(region: RegionSpec) -> Reject | None:
        refused = of(region)
        if refused is None:
            return Reject(NEEDLESS, "a and b are read where they are")
        if refused.condition not in MENDED:
            return refused
        made = packed(region)
        return made if isinstance(made, Reject) else of(made.region)

    return refuses


def places(made: Packed, start: int) -> list[int]:
    """Where copies begin in a workspace of which so many bytes are the product's, and where the last one ends."""
    at = [cdiv(start, ALIGNMENT) * ALIGNMENT]
    for copy in made.copies:
        at.append(at[-1] + cdiv(copy.nbytes, ALIGNMENT) * ALIGNMENT)
    return at


def _packed(plain: KernelVariant) -> KernelVariant:
    """A variant that copies what `plain` can't read."""
    return copying(
        plain, (plain.config, "packed"), packed, family(plain), "that are first copied to rows that begin at multiples of 16 bytes",
        "each such operand once more, read and written",
    )  # fmt: skip


def copying(
    plain: KernelVariant, config: tuple[object, ...], copied: Callable[[RegionSpec], Packed | Reject],
    family: Callable[[RegionSpec], Reject | None], what: str, nbytes: str,
) -> KernelVariant:  # fmt: skip
    """A variant that makes the copies that `copied` says, and hands the product of these to `plain`.

    what, nbytes  for its description: what is done with operands, and the bytes that it takes
    """

    def known(region: RegionSpec) -> Packed:
        """Of a region that is taken."""
        made = copied(region)
        assert isinstance(made, Packed)
        return made

    @variant(
        "gemm",
        id=plain.kernel,
        config=config,
        takes=plain.takes,
        needs=plain.needs,
        shared=plain.shared,
        dtypes=plain.dtypes,
        family=family,
    )
    class Copying:
        __doc__ = f"""As {plain.name}, of operands {what}.

        A launch more, parallel over 16 bytes of what it writes. Bytes: {nbytes}; then those
        of {plain.name}. Limit: memory for the copies; that of {plain.name} for the product.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield plain.refuses(known(region).region)

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            made = known(region)
            copies = pack.cost(made.copies, device).us
            return plain.cost(made.region, device).plus(**{"copies of operands": copies})

        def workspace(region: RegionSpec, device: DeviceSpec) -> int:
            made = known(region)
            return places(made, plain.query_workspace(made.region, device))[-1]

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
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


# The tiled kernel reads any layout as it is, but for batches of many axes.
VARIANTS = tuple(
    _packed(with_config(config, kernels))
    for kernels, configs in (
        (gemm_wgmma.VARIANTS, TILINGS),
        (gemm_mma.EXACT, ("128x128", "128x256 deep")),
        (gemm_fma.Fma, ("128x128",)),
        (simt.Tiled, ("64x64",)),
    )
    for config in configs
)
