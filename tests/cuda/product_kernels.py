"""Kernels around wgmma, to run on a GPU and on the model of one, for every sort of element, with what they compute."""

from __future__ import annotations

from typing import Any

import numpy as np
from machines.wgmma_model import NUMPY
from ptx_kernels import BARRIERS, SHARED, aligned

from aicf.cuda_kernels import ptx
from aicf.cuda_kernels.dsl import SIMULATED, cuda, deferred, device, int32, intrinsic, types, uint32
from aicf.cuda_kernels.llvm import const
from aicf.cuda_kernels.ptx.wgmma import NBYTES, ROWS, SWIZZLE_BYTES, Elements, k_tile_bytes, kinds_of
from aicf.cuda_kernels.tiles.layout import Layout
from aicf.cuda_kernels.tiles.tile import each
from aicf.registry.variant import In, Launch, Out, TensorMap
from aicf.types import DType

BOX = k_tile_bytes(64)


def products(
    elements: Elements, n: int, blocks: int, a_k_major: bool | None, b_k_major: bool, twice: bool
) -> Launch:
    """Result 0, 64 `blocks` x n of f32 or i32: a b over 128 bytes of k, or twice that. a and b are lines x k, or k x lines where
    lines are contiguous; where a_k_major is None, a is words, which go to registers."""
    address, init, publish, fence_copies = (
        ptx.shared_address(), ptx.barrier_init(), ptx.publish_barriers(), ptx.fence_async()
    )  # fmt: skip
    expect, load, wait = ptx.expect(), ptx.load_box(), ptx.wait_phase()
    fence, commit, wait_one = ptx.fence_products(), ptx.commit_products(), ptx.wait_products(1)
    left, right = kinds_of(elements)
    count, a_boxes = blocks * n // 2, blocks * (a_k_major is not None)
    b_boxes, b_bytes = (1, k_tile_bytes(n)) if b_k_major else (-(-n // 64), k_tile_bytes(-(-n // 64) * 64))
    multiply, finish = (
        ptx.multiply_k_tiles(elements, n, blocks, a_k_major, b_k_major),
        ptx.finish_products(count),
    )
    bring, left_of = lefts(a_k_major, blocks)
    b_of = ptx.describe(b_k_major)
    start = ((np.int32 if left in ("s8", "u8") else np.float32)(0),) * count

    place = Layout(ROWS * blocks, n, 4).place()

    def put(i, run, env):
        out, member = env
        row, column = place(i, member // 32, member % 32)
        out[np.int64(row) * n + column] = run[0]

    put_all = each(count, 1, put)

    def kernel(a, b, out):
        base = aligned(address(cuda.shared.array(0, types.uint8)))
        barrier = uint32(base + uint32(BARRIERS))
        thread = int32(cuda.threadIdx.x)
        if thread == 0:
            init(barrier, uint32(1))
            publish()
            fence_copies()
        cuda.syncthreads()
        if thread == 0:
            expect(barrier, uint32(a_boxes * BOX + b_bytes))
            bring(base, a, barrier)
            for i in range(b_boxes):
                load(uint32(base + uint32((a_boxes + i) * BOX)), b, barrier, int32(64 * i), int32(0))
        if thread >= 128:
            wait(barrier, uint32(0))
            member = int32(thread - 128)
            left, right = left_of(base, a, member), b_of(uint32(base + uint32(a_boxes * BOX)))
            fence()
            acc = multiply(start, left, right, uint32(0))
            commit()
            if twice:
                wait_one()
                fence()
                acc = multiply(acc, left, right, uint32(1))
                commit()
            acc = finish(acc)
            put_all(acc, (out, member))

    kernel.blocks_per_sm = 1
    a = In(0) if a_k_major is None else k_tile_map(0, left, 64 * blocks, a_k_major, 64)
    return Launch(kernel, (1,), (256,), (a, k_tile_map(1, right, n, b_k_major, n), Out(0)), SHARED)


def k_tile_map(index: int, kind: str, lines: int, k_major: bool, box: int) -> TensorMap:
    """Of an operand: `box` lines at a time as rows of k, or 64 as rows of lines, for each k."""
    dtype: Any = DType[kind] if kind in DType.__members__ else "tf32" if kind == "tf32" else DType.u8
    if k_major:
        extents, shape = (SWIZZLE_BYTES // NBYTES[kind], lines), (SWIZZLE_BYTES // NBYTES[kind], box)
        return TensorMap(In(index), dtype, extents, SWIZZLE_BYTES, shape)
    return TensorMap(In(index), dtype, (lines, 64), lines * NBYTES[kind], (64, 64))


def lefts(a_k_major: bool | None, blocks: int) -> tuple[Any, Any]:
    """(`bring(base, a, barrier)`, `left(base, a, member)`: a's descriptor, or this thread's words of it)."""
    if a_k_major is None:
        layout = Layout(ROWS * blocks, SWIZZLE_BYTES // 4, 4, run=1)
        own, place, line_words = words(layout), layout.place(), layout.columns

        def left(base, a, member):
            row, column = place(0, member // 32, member % 32)
            return own(a, int32(row * line_words + column))

        return device(lambda base, a, barrier: None), device(left)
    load, of, x, y = ptx.load_box(), ptx.describe(a_k_major), 64 * (not a_k_major), 64 * a_k_major

    def bring(base, a, barrier):
        for i in range(blocks):
            load(uint32(base + uint32(i * BOX)), a, barrier, int32(x * i), int32(y * i))

    return device(bring), device(lambda base, a, member: of(base))


@deferred
def words(layout: Layout) -> Any:
    """`own(a, first)`: a thread's words of a, of which the first is given."""
    places = [row * layout.columns + column for row, column in layout.offsets]
    if SIMULATED:
        return lambda a, first: tuple(int(a[first + place]) for place in places)

    @intrinsic
    def own(typing, a, first):
        def codegen(ctx, b, sig, args):
            made = [b.load(b.gep(args[0], [b.add(args[1], const(place))])) for place in places]
            return ctx.make_tuple(b, sig.return_type, made)

        return types.UniTuple(types.uint32, len(places))(a, types.int32), codegen

    return own


def operands(
    elements: Elements, n: int, blocks: int, a_k_major: bool | None, b_k_major: bool
) -> list[np.ndarray]:
    """Halves of a normal distribution; small whole numbers of the others, whose sums are exact."""
    rng, made = np.random.default_rng(), []
    for kind, lines, k_major in zip(
        kinds_of(elements), (64 * blocks, n), (a_k_major is not False, b_k_major)
    ):
        k = SWIZZLE_BYTES // NBYTES[kind]
        values = (
            rng.normal(size=(lines, k))
            if NBYTES[kind] == 2
            else rng.integers(0 if kind == "u8" else -4, 5, (lines, k))
        )
        made.append(np.ascontiguousarray(values if k_major else values.T).astype(NUMPY[kind]))
    return made


def expected_products(
    arrays: list[np.ndarray], a_k_major: bool | None, b_k_major: bool, twice: bool
) -> np.ndarray:
    a, b = (x.astype(np.float64) for x in arrays)
    return ((a if a_k_major is not False else a.T) @ (b.T if b_k_major else b)) * (1 + twice)
