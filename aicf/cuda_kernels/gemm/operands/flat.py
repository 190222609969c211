"""Few rows of a transposed a of halves, on Hopper: where all rows of a k follow those of the k before, 64 of k are one piece of memory, of any
number of rows.

As a matrix for TMA such an a has rows of 2 to 128 bytes, one for each k: those that are no multiple of 16 bytes it does not take, and of the others
each is a request of its own, which all blocks make of the same few lines of L2. 8x4096x14336 took 9 us longer so than with k contiguous, of 31; and
with rows copied to aligned ones first 10 of 26. As one piece, 8 rows x 64 k are eight lines. Threads then transpose it on its way from shared
memory to registers (RS wgmma), by `ldmatrix` where rows are whole eights, else half by half. The piece comes as one box of lines of 128 bytes: boxes
of one long line, four rows each, took 45 ns apiece, so that 64 rows took four times as long as these.

Prediction: bytes are those of b, k-major a's time to 2 %. A K-tile of 64 columns comes in 8 KB / 31 GB/s = 0.26 us, 450 cycles; in which a warp loads
its words in 4 `ldmatrix`, or 32 `ld.shared` and 16 PRMT, some 150 cycles, beside the products of the K-tile before.
"""

from __future__ import annotations

from functools import lru_cache

from ....registry.variant import NEEDLESS, In, Reject, TensorMap
from ....rows import RegionSpec
from ...hopper.units import ATOM, TMA_ALIGNMENT
from .. import problem
from ..problem import GemmOperand
from ..wgmma_tiling import EIGHTS, FLAT, WgmmaTiling
from .tma import GemmOperands, TmaOperand, each_operand, walks_of

ROWS = 64  # of one tile


@lru_cache(maxsize=256)
def flat_operands(region: RegionSpec) -> tuple[GemmOperand, TmaOperand] | Reject:
    """a and b, of a region that is a product, or why a is no such piece, or b not for TMA."""
    a, _ = problem.operands(region)
    b = each_operand(region)[1]
    if a.mn.extent > ROWS:
        return Reject("m", f"m is {a.mn.extent}, at most {ROWS} rows are one tile's")
    if a.mn.extent == ROWS and a.mn.step == 1:
        return Reject(NEEDLESS, f"{ROWS} rows of a are lines of 128 bytes, which TMA loads as they are")
    if a.mn.extent == 1 or (a.k.step == 1 and a.k.extent > 1):
        return Reject(NEEDLESS, "k is contiguous in a, which TMA loads as it is")
    if a.mn.step != 1 or a.k.step != a.mn.extent:
        return Reject("rows", f"a is {a.matrix}, needs all rows of a k right behind those of the k before")
    if a.mn.extent * a.k.extent % ATOM:
        return Reject("lines", f"a is {a.matrix}, needs whole lines of {ATOM} numbers altogether")
    if a.matrix.alignment < TMA_ALIGNMENT:
        return Reject("aligned", f"a is aligned to {a.matrix.alignment} bytes, needs {TMA_ALIGNMENT}")
    walks = walks_of(a)
    if isinstance(walks, Reject):
        return walks
    return b if isinstance(b, Reject) else (a, b)


def from_flat(tiling: WgmmaTiling, region: RegionSpec) -> GemmOperands:
    """Both operands of a region that is taken: a as lines of 64 numbers, as many of which as it has rows are 64 of k; b as elsewhere."""
    both = flat_operands(region)
    assert not isinstance(both, Reject)
    a, b = both
    walks = walks_of(a)
    assert not isinstance(walks, Reject)
    axes, batch = walks
    extents = ATOM, a.mn.extent * a.k.extent // ATOM, *(extent for extent, _ in batch)
    pitches = ATOM * a.matrix.dtype.itemsize, *(pitch for _, pitch in batch)
    boxes = TensorMap(
        In(a.operand), a.matrix.dtype, extents, pitches, (ATOM, a.mn.extent, *(1 for _ in batch))
    )
    last = (b.map(tiling.n, last=True),) * b.k_major
    return GemmOperands(
        (boxes, b.map(tiling.n)), (False, axes), b.order, last, EIGHTS if a.mn.extent % 8 == 0 else FLAT
    )
