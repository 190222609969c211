"""Results of a Hopper GEMM of tf32 of which one operand is MN-major, and comes from registers: see `from_registers` of hopper/mainloop.py.

That is the operand whose k is not contiguous, whichever it is: if it is b, the product is that of the transposed ones, b' a', and rows
of accumulators are columns of results.
"""

from __future__ import annotations

from typing import Any

from ...dsl import device, int32
from ...ptx import opaque
from ...ptx.register_operand import register_operand_mn
from ...tiles.tile import each, permute
from ..epilogue import Epilogue, finisher
from ..wgmma_tiling import WgmmaTiling


def rs_results(tiling: WgmmaTiling, epilogue: Epilogue, swap_ab: bool) -> tuple[Any, Any, Any]:
    """As `runs_of_results` of wgmma_store.py: each thread stores two neighbouring columns, or one. swap_ab: b is the operand in registers; then
    a tile's coordinate is of accumulators, whose rows are columns of results."""
    finish, apart, mn_of = finisher(epilogue), opaque(), register_operand_mn()
    # of accumulators 4 i to 4 i + 3 the upper two are of one row and the lower two of the next
    order = tuple(
        4 * i + e for i in range(tiling.accumulators // 4) for e in ((0, 2, 1, 3) if swap_ab else range(4))
    )
    sort = permute(order)

    def write_run(i, products, given):
        mn, across, m, n, scales, operands = given
        upper, lower = i // 2 % 2, i % 2
        if swap_ab:
            r, q = apart(across) + i // 4 * 8 + upper, apart(mn) + lower
        else:
            r, q = apart(mn) + upper, apart(across) + i // 4 * 8 + lower
        if r < m and q < n:
            finish(r, q, products, n, scales, operands)

    write_each = each(tiling.accumulators, epilogue.width, write_run)

    def write(acc, words, base, maps, group, member, tile_coord, sizes, scales, operands, parity):
        lane = member & 31
        own = int32(tile_coord[0] + mn_of(member >> 5, lane))
        env = own, int32(tile_coord[1] + (lane & 3) * 2), sizes[0], sizes[1], scales, operands
        write_each(sort(acc), env)

    nothing = device(lambda base, maps, group, member, tile_coord, sizes, operands: ())
    return nothing, device(write), device(lambda member: None)
