"""Variants for matrix products and what follows them: C, bias, one activation, and the saved pre-activation.

Tensors are f32, f16 or bf16, all alike; arithmetic is exact f32 on the ordinary cores, on every architecture. Half types
are widened when loaded and rounded once when stored. Regions are read by registry/epilogue.py.
"""

from __future__ import annotations

from ..device.spec import DeviceSpec
from ..registry.cost import Cost, roofline
from ..registry.epilogue import GemmProgram, gemm_program
from ..registry.variant import (
    Checks,
    In,
    KernelVariant,
    Launch,
    Num,
    Out,
    Reject,
    at_most,
    cdiv,
    dtype,
    variant,
)
from ..rows import RegionSpec
from ..types import TensorDesc, bf16, f16, f32, i32
from .elementwise import THREADS

GRID_Y_LIMIT = 65535
STORED = f32, f16, bf16
RUN = 4  # elements per load of a tiled kernel where the layout allows: 16 bytes of f32, 8 of a half type


def takes(region: RegionSpec) -> Checks:
    """What every GEMM here takes: floats, an epilogue that can be read, and row-major c, bias and results."""
    program = gemm_program(region)
    if isinstance(program, Reject):
        yield program
        return
    yield dtype(region, *STORED)
    yield at_most("greatest extent", max(program.m, program.n, program.k), 2**31 - 1)
    for what, i in (("c", program.c), ("bias", program.bias)):
        if i is not None and not region.operands[i].contiguous:
            yield Reject("contiguous", f"{what} is {region.operands[i]}, needs row-major")
    for i, t in enumerate(region.results):
        if not t.contiguous:
            yield Reject("contiguous", f"result {i} is {t}, needs row-major")
    if program.d is None and program.z is None:
        yield Reject("results", "neither the product nor its activation leaves the region")


def continues(region: RegionSpec) -> Checks:
    """A prefix is viable as long as it reads as a product with an epilogue: bias, then at most one activation."""
    program = gemm_program(region)
    if isinstance(program, Reject):
        yield program
        return
    yield dtype(region, *STORED)


def program(region: RegionSpec) -> GemmProgram:
    program = gemm_program(region)
    assert isinstance(program, GemmProgram)
    return program


def epilogue(region: RegionSpec, program: GemmProgram):
    from .bodies.gemm import Epilogue
    from .engine import typed_scalar

    act = typed_scalar(program.scalar, f32, **dict(program.act_attrs)) if program.scalar else None
    return Epilogue(
        program.act or "", act, program.bias_kind, program.c is not None, program.d is not None, program.z is not None,
        region.results[0].dtype,
    )  # fmt: skip


def steps(matrix: TensorDesc, transposed: bool) -> tuple[int, int]:
    """Strides of op(matrix): a transpose is the strides swapped."""
    outer, inner = matrix.stride
    return (inner, outer) if transposed else (outer, inner)


def _slices(region: RegionSpec, p: GemmProgram):
    """How each operand comes in: along its contiguous index, in vector loads if every run of it is whole and aligned."""
    from .bodies.gemm import Slices

    def of(matrix: TensorDesc, line_step: int, k_step: int, lines: int, lines_fast: bool) -> Slices:
        fast, slow, extent = (line_step, k_step, lines) if lines_fast else (k_step, line_step, p.k)
        whole = fast == 1 and slow % RUN == 0 and extent % RUN == 0
        aligned = matrix.alignment >= RUN * matrix.dtype.itemsize
        return Slices(lines_fast, RUN if whole and aligned else 1)

    a, b = region.operands[p.a], region.operands[p.b]
    (a_m, a_k), (b_k, b_n) = steps(a, p.trans_a), steps(b, p.trans_b)
    return of(a, a_m, a_k, p.m, a_m < a_k), of(b, b_n, b_k, p.n, b_n <= b_k)


def arguments(region: RegionSpec, p: GemmProgram) -> tuple:
    def maybe(kind, index):
        return () if index is None else (kind(index),)

    operands = (maybe(In, p.c), maybe(In, p.bias), maybe(Out, p.d), maybe(Out, p.z))
    walks = steps(region.operands[p.a], p.trans_a), steps(region.operands[p.b], p.trans_b)
    scales = (Num(p.alpha, f32), Num(p.beta, f32))
    sizes = tuple(Num(size, i32) for size in (p.m, p.n, p.k))
    return (In(p.a), In(p.b), operands, sizes, *(tuple(map(Num, pair)) for pair in walks), scales)


@variant("gemm", id="cuda.gemm_naive.v1")
class GemmNaive:
    """One thread per element of the result. Parallel over elements; limit: 2 loads per multiply-add, from L1 and L2.

    A smoke test, and the comparison for the others: 2MNK flops, at best some 5 % of the arithmetic rate.
    """

    def accepts(region: RegionSpec) -> Checks:
        yield from takes(region)
        yield at_most("rows", program(region).m, GRID_Y_LIMIT * 16)

    viable = continues

    def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
        p = program(region)
        blocks = cdiv(p.m, 16) * cdiv(p.n, 16)
        return roofline(
            device, bytes=region.nbytes, flops=p.flops, efficiency=0.04, blocks=blocks, blocks_per_sm=8
        )

    def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
        from .bodies.gemm import naive

        p = program(region)
        grid = max(1, cdiv(p.n, 16)), max(1, cdiv(p.m, 16))
        return [Launch(naive(epilogue(region, p)), grid, (16, 16), arguments(region, p))]


def _tiled(m: int, n: int, k: int, efficiency: float, blocks_per_sm: int) -> KernelVariant:
    """A tile size as a variant. `efficiency`: share of the f32 rate its inner loop reaches with the chip full."""

    @variant("gemm", id=f"cuda.gemm_tiled_{m}x{n}.v1")
    class Tiled:
        __doc__ = f"""A block of 256 threads per {m} x {n} tile, {k} deep slices of both operands in shared memory.

        Parallel over tiles; a thread holds {m // 16} x {n // 16} of one in registers. 2MNK flops, edges padded to whole tiles.
        Bytes: both operands once per tile they meet, four neighbours per load where runs of four are whole and aligned.
        Limit: the f32 rate, and reads of shared memory beside it.
        """

        def accepts(region: RegionSpec) -> Checks:
            yield from takes(region)

        viable = continues

        def cost(region: RegionSpec, device: DeviceSpec) -> Cost:
            p = program(region)
            blocks = max(1, cdiv(p.m, m) * cdiv(p.n, n))
            padded = 2.0 * blocks * m * n * p.k  # a ragged edge costs as much as a full tile
            return roofline(
                device, bytes=region.nbytes, flops=padded, efficiency=efficiency, blocks=blocks,
                blocks_per_sm=blocks_per_sm,
            )  # fmt: skip

        def build(region: RegionSpec, device: DeviceSpec) -> list[Launch]:
            from .bodies.gemm import Tiling, tiled

            p = program(region)
            body = tiled(Tiling(m, n, k, blocks_per_sm), *_slices(region, p), epilogue(region, p))
            blocks = max(1, cdiv(p.m, m) * cdiv(p.n, n))
            return [Launch(body, (blocks,), (THREADS,), arguments(region, p))]

    return Tiled  # type: ignore[return-value]  # `variant` has made a record of the class


gemm_tiled_32x32 = _tiled(32, 32, 32, 0.3, 3)
gemm_tiled_64x64 = _tiled(64, 64, 16, 0.5, 3)
gemm_tiled_128x128 = _tiled(128, 128, 8, 0.7, 2)
