"""Few rows of a transposed a of halves, on Hopper: where all rows of a k follow those of the k before, 64 of k are one piece of memory, of any
number of rows.

As a matrix for TMA such an a has rows of 2 to 128 bytes, one for each k: those that are no multiple of 16 bytes it does not take, and of the others
each is a request of its own, which all blocks make of the same few lines of L2. 8x4096x14336 took 9 us longer so than with k contiguous, of 31; and
with rows copied to aligned ones first 10 of 26. As one piece, 8 rows x 64 k are eight lines. Threads then transpose it on its way from shared
memory to registers (RS wgmma), by `ldmatrix` where rows are whole eights, else half by half.

Prediction: bytes are those of b, k-major a's time to 2 %. A K-tile of 64 columns comes in 8 KB / 31 GB/s = 0.26 us, 450 cycles; in which a warp loads
its words in 4 `ldmatrix`, or 32 `ld.shared` and 16 PRMT, some 150 cycles, beside the products of the K-tile before.
"""

from __future__ import annotations

from functools import lru_cache

from ....registry.variant import NEEDLESS, In, Reject, TensorMap, cdiv
from ....rows import RegionSpec
from ...hopper.units import FLAT_BOX, TMA_ALIGNMENT
from .. import problem
from ..problem import GemmOperand
from ..wgmma_tiling import EIGHTS, FLAT, WgmmaTiling, k_tile
from .tma import GemmOperands, TmaOperand, each_operand, walks_of

ROWS = 64  # of one tile
GREATEST = 2**31 - 1  # TMA's coordinates, of which one is that of any element of a


@lru_cache(maxsize=256)
def flat_operands(region: RegionSpec) -> tuple[GemmOperand, TmaOperand] | Reject:
    """a and b, of a region that is a product, or why a is no such piece, or b not for TMA."""
    a, _ = problem.operands(region)
    b = each_operand(region)[1]
    if a.mn.extent > ROWS:
        return Reject("m", f"m is {a.mn.extent}, at most {ROWS} rows are one tile's")
    if a.mn.extent == 1 or (a.k.step == 1 and a.k.extent > 1):
        return Reject(NEEDLESS, "k is contiguous in a, which TMA loads as it is")
    if a.mn.step != 1 or a.k.step != a.mn.extent:
        return Reject("rows", f"a is {a.matrix}, needs all rows of a k right behind those of the k before")
    if (last := a.mn.extent * (a.k.extent + k_tile(a.matrix.dtype))) > GREATEST:
        return Reject("elements", f"a K-tile ends {last} elements from the first of a, at most {GREATEST}")
    if a.matrix.alignment < TMA_ALIGNMENT:
        return Reject("aligned", f"a is aligned to {a.matrix.alignment} bytes, needs {TMA_ALIGNMENT}")
    walks = walks_of(a)
    if isinstance(walks, Reject):
        return walks
    return b if isinstance(b, Reject) else (a, b)


def from_flat(tiling: WgmmaTiling, region: RegionSpec) -> GemmOperands:
    """Both operands of a region that is taken: a as one line of all its numbers, b as elsewhere."""
    both = flat_operands(region)
    assert not isinstance(both, Reject)
    a, b = both
    walks = walks_of(a)
    assert not isinstance(walks, Reject)
    axes, batch = walks
    size, count = a.matrix.dtype.itemsize, a.mn.extent * a.k.extent
    line = cdiv(count * size, TMA_ALIGNMENT) * TMA_ALIGNMENT
    extents, pitches = (count, 1, *(extent for extent, _ in batch)), (line, *(pitch for _, pitch in batch))
    boxes = TensorMap(
        In(a.operand), a.matrix.dtype, extents, pitches, (FLAT_BOX, 1, *(1 for _ in batch)), swizzle=0
    )
    last = (b.map(tiling.n, last=True),) * b.k_major
    return GemmOperands(
        (boxes, b.map(tiling.n)), (False, axes), b.order, last, EIGHTS if a.mn.extent % 8 == 0 else FLAT
    )
