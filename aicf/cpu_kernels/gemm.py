"""GEMM on the host: BLAS through NumPy, then whatever follows the product in one loop over it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..ops.schema import schema_of
from ..registry.cost import Cost, roofline
from ..registry.variant import HostCall, NumericClass, Reject, cdiv, no_class, variant
from ..rows.program import Apply, Gemm, Load, Map
from ..rows.read import read
from ..types import DType, OpKind, f32, i32, u8
from .blas import BLOCK_ROWS, blocks_differ, matmul, matmul_in_blocks, threads_for
from .costs import loop_us
from .elementwise import loops_take, program_of
from .reduce import summed_columns, sums_us

TAKES = "gemm", "gemm+map", "gemm+map+reduce", "gemm+reduce"
BLAS_CALL_US = 1.5
# Of blocks of rows: NumPy's calls, once and for each block; an element of b that BLAS packs, for each block, of a transposed b and of
# another; an element of a or of the product that is transposed
BLOCKS_US, BLOCK_US, PACK_US, PACK_ROWS_US, TRANSPOSE_US = 12.0, 4.0, 4e-4, 9e-4, 1e-3


@variant("gemm", id="cpu.gemm_blas.v3", takes=TAKES)
class GemmBlas:
    """map(alpha * op(a) @ op(b) + beta * c): sgemm, then one more pass over the product if anything is left to do.

    That pass adds up columns, too: in f64, like a reduction of its own.
    Parallel inside BLAS, by size (blas.py). Half types are widened first, and so are integers, of which f32 has sums over 256 to 1024 of k. Bytes: operands once, the product once or three times.
    """

    def accepts(region):
        yield from _products(region)

    def cost(region, device):
        return _cost(region, device, _plan(region)[0].flops).plus(call=BLAS_CALL_US)

    def numerics(region, device):
        core, _ = _plan(region)
        if core.dtype.kind == "int":
            return NumericClass("exact in i32", core.k, "in any order")
        return no_class("BLAS adds up the products of one row in another order than those of several")

    def build(region, device):
        core, _ = _plan(region)
        most = threads_for(2 * core.m * core.n * core.k)
        return _call(region, _whole(core) if core.dtype.kind == "int" else matmul, most)


@variant("gemm", id="cpu.gemm_blocks.v1", takes=TAKES)
class GemmBlocks:
    """As gemm_blas, but BLAS multiplies blocks of 16 rows, the last one padded: a row's bits do not depend on how many rows there are, nor on its
    index among them. Products of floats.

    Threads inside BLAS by the size of a block. Bytes: a and the product twice, b once for each block.
    """

    def accepts(region):
        yield from _products(region)
        dtype = program_of(region).core.dtype
        if dtype.kind == "int":
            yield Reject("dtype", f"products of {dtype} are exact in every order: gemm_blas has them")

    def cost(region, device):
        core, _ = _plan(region)
        alone = region.operands[core.b].numel == core.n * core.k  # all matrices of a have one b
        blocks = cdiv(core.count * core.m, BLOCK_ROWS) if alone else core.count * cdiv(core.m, BLOCK_ROWS)
        of_b, transposed = core.n * core.k, core.count * core.m * (core.n + core.k)
        packing = blocks * of_b * (PACK_US if core.trans_b else PACK_ROWS_US)
        cost = _cost(region, device, 2 * blocks * BLOCK_ROWS * of_b)
        return cost.plus(
            call=BLOCKS_US, blocks=blocks * BLOCK_US, packing=packing + transposed * TRANSPOSE_US
        )

    def numerics(region, device):
        if found := blocks_differ():
            return no_class(f"this machine's BLAS gives equal rows of a block different bits: {found}")
        return NumericClass(f"sgemm of blocks of {BLOCK_ROWS} rows", _plan(region)[0].k, "in BLAS' order")

    def build(region, device):
        core, _ = _plan(region)
        return _call(region, matmul_in_blocks, threads_for(2 * BLOCK_ROWS * core.n * core.k))


def _products(region):
    """The checks of both: a product, and what a loop can do after it."""
    program = read(region)
    yield program if isinstance(program, Reject) else None
    yield from loops_take(region)


def _cost(region, device, flops: float) -> Cost:
    """Of so many flops of BLAS, of types that are widened before it, and of what follows the product."""
    core, rest = _plan(region)
    bytes = core.dtype.itemsize * _factors(region, core) + 4 * program_of(region).after.numel
    cost = roofline(device, bytes=bytes, flops=flops, efficiency=0.5)
    if core.dtype is not f32:
        cost = cost.plus(widening=_factors(region, core) * 6 / device.bandwidth * 1e-3)
    if program_of(region).epilogue_reduction is not None:
        cost = cost.plus(sums=sums_us(core.m * core.n, core.n))
    return cost if rest is None else cost.plus(epilogue=sum(loop_us(rest, region, device).values()))


def _call(region, multiply: Callable[..., np.ndarray], most: int | None) -> HostCall:
    """`multiply(a, b, out, most)`, and the loop over its product; `out` is a result of the product's type, if there is one."""
    core, rest = _plan(region)
    stores = program_of(region).after.stores
    loop = None if rest is None else _loop(rest, region)
    place = _place_of_product(region, rest, _made(core)) if rest else stores[0][1]
    read_after = [p for p, t in enumerate(region.operands) if rest and t.numel == rest.numel]
    shape = _shape(region, core)

    def bind(operands, results):
        after = None if loop is None else loop(operands, results)
        out = None if place is None else results[place].reshape(shape)
        if out is not None and any(np.may_share_memory(out, operands[p]) for p in read_after):
            out = None  # in place of something that the loop reads yet

        def run():
            a, b = (np.asarray(operands[p], np.float32) for p in (core.a, core.b))
            a, b = (x.swapaxes(-1, -2) if t else x for x, t in ((a, core.trans_a), (b, core.trans_b)))
            product = multiply(a, b, out, most)
            if after is not None:
                after(product)

        return run

    return HostCall.binding(bind)


EXACT = 1 << 24  # up to here f32 has every integer


def _whole(core: Gemm) -> Callable[..., np.ndarray]:
    """Products of integers of 8 bits by sgemm, which is exact over so many of k; these are added up in i32, which wraps around."""
    largest = [255 if dtype is u8 else 128 for dtype in (core.dtype, core.b_dtype)]
    step = EXACT // (largest[0] * largest[1])

    def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray | None, most: int | None) -> np.ndarray:
        total = matmul(a[..., :step], b[..., :step, :], None, most).astype(np.int32)
        for k in range(step, a.shape[-1], step):
            total += matmul(a[..., k : k + step], b[..., k : k + step, :], None, most).astype(np.int32)
        if out is None:
            return total
        out[...] = total
        return out

    return multiply


def _loop(rest: Map, region) -> Callable[..., Callable[..., None]]:
    """`loop(operands, results)` is a call of the product."""
    from .compiler.loops import MapLoop

    reduction = program_of(region).epilogue_reduction
    if reduction is not None:
        return summed_columns(rest, reduction, region)
    return MapLoop(rest, region.operands, region.results).bind


def _plan(region) -> tuple[Gemm, Map | None]:
    """The product, and the map over it with alpha, beta and c; None if the product alone is the result."""
    program = program_of(region)
    core = program.core
    assert isinstance(core, Gemm)
    rest = _scaled(program.after, core, region)
    trivial = (
        rest.dtypes[0] is _made(core)
        and not rest.applies
        and len(rest.stores) == 1
        and rest.core_input is None
    )
    return core, None if trivial else rest


def _factors(region, core: Gemm) -> int:
    """Elements of a and b."""
    return region.operands[core.a].numel + region.operands[core.b].numel


def _shape(region, core: Gemm) -> tuple[int, ...]:
    """Of the product as BLAS makes it; a result may have another one, of as many elements."""
    a, b = region.operands[core.a].shape, region.operands[core.b].shape
    batch = np.broadcast_shapes(a[:-2], b[:-2])
    return (*batch, a[-1 if core.trans_a else -2], b[-2 if core.trans_b else -1])


def _made(core: Gemm) -> DType:
    """What a product is made as."""
    return i32 if core.dtype.kind == "int" else f32


def _place_of_product(region, rest: Map, made: DType) -> int | None:
    """A result that the product can be formed in: the loop reads an element of it before it writes there."""
    for _, position in rest.stores:
        result = region.results[position]
        if result.dtype is made:
            return position
    return None


def _scaled(map: Map, core: Gemm, region) -> Map:
    """The map with alpha * product + beta * c in the place of what it is handed over."""
    if core.alpha == 1.0 and core.c is None:
        return map
    extra = core.c is not None
    first = 1 + len(map.loads)  # where c is put: behind the loads

    def moved(slot: int) -> int:
        return value if slot == 0 else slot + (extra and slot >= first)

    loads, dtypes = list(map.loads), list(map.dtypes)
    if core.c is not None:
        dtype = region.operands[core.c].dtype
        loads.append(Load(core.c, dtype, core.c_steps))
        dtypes.insert(first, dtype)
    made: list[Apply] = []

    def apply(kind: str, *ins: int, **attrs: float) -> int:
        made.append(Apply(OpKind(kind), schema_of(kind).pack(attrs), ins, (len(dtypes),)))
        dtypes.append(f32)
        return len(dtypes) - 1

    value = 0 if core.alpha == 1.0 else apply("scale", 0, factor=core.alpha)
    if core.c is not None:
        value = apply("add", value, first if core.beta == 1.0 else apply("scale", first, factor=core.beta))
    dtypes[0], dtypes[value] = f32, map.dtypes[0]
    applies = [
        Apply(a.kind, a.attrs, tuple(moved(s) for s in a.ins), tuple(moved(s) for s in a.outs))
        for a in map.applies
    ]
    return replace(
        map,
        loads=tuple(loads),
        applies=(*made, *applies),
        dtypes=tuple(dtypes),
        rounded=frozenset(moved(s) for s in map.rounded),
        stores=tuple((moved(s), p) for s, p in map.stores),
        core_input=None if map.core_input is None else moved(map.core_input),
    )
