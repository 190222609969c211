"""The cross entropy of a linear layer on Hopper: GEMMs of logits that leave what the loss needs of them, and no logits."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ...device.spec import DeviceSpec
from ...registry.cost import Cost, machine, roofline
from ...registry.variant import (
    Checks,
    Launch,
    Num,
    Out,
    Reject,
    TensorMap,
    at_least,
    cdiv,
    contiguous,
    one_op,
    variant,
)
from ...rows import RegionSpec
from ...types import TensorDesc, bf16, f16, f32, i32
from ..chain import Chain, Place, dense, moved, of_chain, part, region_of
from ..hopper.units import ATOM
from ..maps.elementwise import THREADS
from . import problem, wgmma, wgmma_cost
from .linear_loss import CLASSES, GradientChain, GradientChunk, LossOperands, chunk, chunks_of
from .linear_loss import ROWS as ROW_UNIT
from .operands.tma import from_shared, operands_of
from .schedule.persistent import clusters, mn_extents
from .wgmma_cost import Leaving
from .wgmma_results import GemmResults
from .wgmma_tiling import TILINGS, WgmmaTiling

NAMES = "128x256", "256x128", "128x128_pingpong", "64x128_pingpong", "64x128", "64x64"
LOSS_TILINGS = tuple(t for t in TILINGS if str(t) in NAMES)
STATISTICS = 2**27  # bytes of them at a time, or so
MIDDLE = 128  # columns of tiles, as chunks are made for
GRADIENTS = 2**28  # of logits in a chunk: 512 MB
ROWS = 1024  # chunks of rows are whole numbers of these
# For a consumer to make statistics of 64 x 64 logits, beside powers of two, of which a multiprocessor makes 16 a cycle
STATISTICS_US, POWERS_US = 0.05, 0.15
GRADIENT_US = 0.1  # to make their gradient and send it off, likewise
MORE_CHUNKS = 3  # than there have to be, are tried
WAVE = 128, 256  # tiles that large GEMMs have


def halves_checks(region: RegionSpec) -> Checks:
    """Of both ops."""
    yield one_op(region)
    yield contiguous(region)
    loss = LossOperands(region)
    yield at_least("rows", loss.rows, 1)
    yield at_least("classes", loss.classes, 1)
    if loss.x.dtype not in (f16, bf16):
        yield Reject("dtype", f"x is {loss.x.dtype}, needs f16 or bf16")
    if region.strict:
        yield Reject("strict", "powers of two are approximate, to 2^-22; strict takes those of exp")
    yield wgmma.family(logits_of(loss.x, loss.weight))


def logits_of(x: TensorDesc, weight: TensorDesc) -> RegionSpec:
    """Their GEMM."""
    return region_of({"x": x, "w": weight}, ("y", "gemm", "x w", {"trans_b": True, "out_dtype": f32}))


def logits_launch(
    tiling: WgmmaTiling,
    logits: RegionSpec,
    device: DeviceSpec,
    ins: tuple[Place, Place],
    results: GemmResults,
    more: tuple[int, ...] = (),
) -> Launch:
    """The GEMM with results of its own. more: sizes behind m, n and k."""
    both = operands_of(logits)
    assert not isinstance(both, Reject)
    a, b = (replace(operand, source=at) for operand, at in zip(both, ins))
    (m, n), k = mn_extents(logits), problem.k_of(logits)
    operands, tiles = from_shared(tiling, (a, b)), clusters(tiling, logits)
    return wgmma.launch(tiling, device, operands, results, (m, n, k, *more), tiles)


def statistics_leave(tiling: WgmmaTiling, rows: int, classes: int, summed: bool) -> Leaving:
    each = STATISTICS_US + POWERS_US * tiling.cooperative
    return Leaving(each, 0, (2 + summed) * f32.itemsize * rows * cdiv(classes, tiling.n))


def gradients_leave(tiling: WgmmaTiling, rows: int, classes: int) -> Leaving:
    return Leaving(GRADIENT_US + POWERS_US * tiling.cooperative, 1, f16.itemsize * rows * classes)


@lru_cache(maxsize=256)
def statistics_tiling(logits: RegionSpec, device: DeviceSpec, summed: bool) -> tuple[WgmmaTiling, Cost]:
    """The tiling that is predicted to be fastest, and its cost."""
    rows, classes = mn_extents(logits)
    return _cheapest(logits, device, {t: statistics_leave(t, rows, classes, summed) for t in LOSS_TILINGS})


@lru_cache(maxsize=256)
def gradients_tiling(logits: RegionSpec, device: DeviceSpec) -> tuple[WgmmaTiling, Cost]:
    """The same, where their gradient is made."""
    rows, classes = mn_extents(logits)
    return _cheapest(logits, device, {t: gradients_leave(t, rows, classes) for t in LOSS_TILINGS})


def _cheapest(
    logits: RegionSpec, device: DeviceSpec, leaving: dict[WgmmaTiling, Leaving]
) -> tuple[WgmmaTiling, Cost]:
    costs = [(t, wgmma_cost.cost(t, logits, device, leaving=leaves)) for t, leaves in leaving.items()]
    return min(costs, key=lambda found: found[1].us)


@lru_cache(maxsize=64)
def _losses(region: RegionSpec, device: DeviceSpec) -> Chain:
    """Chunks of rows, as many as statistics have room for: the GEMM, and what puts them together."""
    from .linear_loss_body import ROWS as JOINED
    from .linear_loss_body import TILE_WARPS, finish_tiles
    from .wgmma_loss_body import RowStatistics, statistics_of_rows

    loss, attrs, chain = LossOperands(region), region.attrs, Chain(device)
    x, weight, labels, rows, classes = loss.x, loss.weight, loss.labels, loss.rows, loss.classes
    number, summed = dense((rows,), f32), attrs["label_smoothing"] > 0
    step = chunk(rows, (2 + summed) * f32.itemsize * cdiv(classes, MIDDLE), STATISTICS, ROWS)
    tilings = {
        size: statistics_tiling(logits_of(part(x, size, ROWS), weight), device, summed)
        for _, size in chunks_of(rows, step)
    }
    numbers = max(size * cdiv(classes, t.n) for size, (t, _) in tilings.items())
    found = [chain.reserve(dense((numbers,), f32)) for _ in range(2 + summed)]
    picked = chain.reserve(dense((step,), f32))
    for first, count in chunks_of(rows, step):
        logits = logits_of(part(x, count, ROWS), weight)
        tiling, cost = tilings[count]
        given = moved(loss.at["labels"], labels, first)
        shifts, totals, sums = (*found, found[0])[:3]
        statistics = GemmResults(
            RowStatistics.of(x.dtype, summed),
            (given, shifts, totals, picked, sums),
            (),
            storing=statistics_of_rows,
        )
        ins = moved(loss.at["x"], x, first), loss.at["weight"]
        launch = logits_launch(tiling, logits, device, ins, statistics)
        chain.launch(launch, cost)
        tiles = cdiv(classes, tiling.n)
        results = (moved(Out(i), number, first) for i in range(2))
        scalars = map(Num, (count, tiles, classes, attrs["ignore_index"]))
        floats = (Num(attrs[name], f32) for name in ("label_smoothing", "z_loss"))
        arguments = given, shifts, totals, picked, sums, *results, *scalars, *floats
        blocks = cdiv(count, JOINED)
        join = Launch(finish_tiles, (blocks,), (JOINED * TILE_WARPS,), arguments)
        chain.launch(join, _joining(device, count, tiles, 2 + summed, blocks, TILE_WARPS))
    return chain


def _joining(device: DeviceSpec, rows: int, tiles: int, statistics: int, blocks: int, warps: int) -> Cost:
    """Statistics twice, the maxima from the L2 cache the second time."""
    nbytes = f32.itemsize * rows * tiles
    return roofline(
        device, bytes=nbytes * statistics + 24 * rows, cached=nbytes, blocks=blocks, blocks_per_sm=4,
        chain=2 * cdiv(tiles, warps) * machine(device).cache_trip_us,
    )  # fmt: skip


class HopperGradients(GradientChain):
    """Whose g is the epilogue of the GEMM that makes logits; rows of it are whole numbers of 128 bytes apart."""

    def pitch_of(self, classes: int) -> int:
        return cdiv(classes, ATOM) * ATOM

    def begin(self) -> None:
        from .linear_loss_body import begin_slopes

        numbers, own = dense((self.rows, 4), f32), dense((self.rows,), i32)
        self.numbers, self.own = numbers, own
        self.numbers_at, self.own_at = self.chain.reserve(numbers), self.chain.reserve(own)
        smoothing = self.attrs["label_smoothing"]
        share = smoothing / self.classes
        places = self.at["labels"], self.at["lse"], self.at["dloss"], self.numbers_at, self.own_at
        asked = map(Num, (self.rows, self.classes, self.attrs["ignore_index"]))
        floats = (Num(x, f32) for x in (1 - smoothing + share, share, self.attrs["z_loss"]))
        launch = Launch(begin_slopes, (cdiv(self.rows, THREADS),), (THREADS,), (*places, *asked, *floats))
        nbytes = (28 + self.labels.dtype.itemsize) * self.rows
        self.chain.launch(launch, roofline(self.chain.device, bytes=nbytes))

    def differentiate(
        self, c: GradientChunk, parts: tuple[TensorDesc, TensorDesc], places: tuple[Place, Place]
    ) -> None:
        from .wgmma_loss_body import LogitsGradient, store_gradient

        logits, device, dtype = logits_of(*parts), self.chain.device, self.x.dtype
        tiling, cost = gradients_tiling(logits, device)
        pitch = self.pitch_of(c.classes) * dtype.itemsize
        box = TensorMap(self.g_at, dtype, (c.classes, c.rows), pitch, (ATOM, 64))
        operands = moved(self.numbers_at, self.numbers, c.row), moved(self.own_at, self.own, c.row)
        results = GemmResults(LogitsGradient.of(dtype), operands, (), 1, maps=(box,), storing=store_gradient)
        launch = logits_launch(tiling, logits, device, places, results, (c.first,))
        self.chain.launch(launch, cost)


@lru_cache(maxsize=64)
def _gradients(region: RegionSpec, device: DeviceSpec) -> Chain:
    """By classes or by rows, whichever leaves less to be added up, in the chunks that are predicted to take least."""
    loss = LossOperands(region)
    rows, classes, k = loss.rows, loss.classes, loss.k
    by_rows = rows > classes
    count, others, unit = (rows, classes, ROW_UNIT) if by_rows else (classes, rows, CLASSES)
    chains = [
        HopperGradients(region, device, by_rows, step).chain for step in steps(count, others, k, unit, device)
    ]
    return min(chains, key=lambda chain: (chain.cost.us, chain.workspace))


def steps(count: int, others: int, k: int, unit: int, device: DeviceSpec) -> list[int]:
    """Rows or classes of a chunk that are worth a try: as many in each of a few numbers of chunks; and whole waves of tiles of the
    product that has as many rows as a chunk, and k columns."""
    most = chunk(count, others, GRADIENTS, unit)
    if most == count:
        return [count]
    least = cdiv(count, most)
    found = {min(most, cdiv(cdiv(count, n), unit) * unit) for n in range(least, least + MORE_CHUNKS)}
    down, across = WAVE
    wave = device.sms // cdiv(k, across) * down
    return sorted(found | ({most // wave * wave} if 0 < wave <= most else set()))


@variant("linear_cross_entropy", id="cuda.linear_cross_entropy_wgmma.v1", needs=("sm_90a",))
@of_chain(_losses)
class LinearCrossEntropyWgmma:
    """A GEMM by wgmma whose epilogue makes of each row of a tile the maximum and the sum of exponentials, and stores these and the logit
    of the row's label; then a kernel that puts the tiles of a row together.

    Two launches for each chunk of rows, of which there is one up to 10^5 rows or so. Parallel over tiles. Bytes: x and the weight once per
    tile that uses them, 8 for each row of a tile. Limit: tensor cores; powers of two, 16 a cycle, where k is small.
    """

    accepts = halves_checks


@variant("linear_cross_entropy_grad", id="cuda.linear_cross_entropy_grad_wgmma.v1", needs=("sm_90a",))
@of_chain(_gradients)
class LinearCrossEntropyGradWgmma:
    """A chain of kernels: for each chunk of classes, or of rows where there are more, a GEMM by wgmma whose epilogue makes of logits their
    gradient; then the two products of that.

    Three launches for each chunk of up to 2^28 logits, and one before. Bytes: gradients of logits once written and twice read; of what
    the chunks add up, f32 once written and once read for each. Limit: tensor cores.
    """

    accepts = halves_checks
