"""Which tiles the blocks of a Hopper GEMM compute: the scheduler of `hopper`, by its tiling and its epilogue."""

from __future__ import annotations

from typing import Any

from ..hopper import scheduler, stream_k
from ..hopper.scheduler import BatchCoords, WorkTiles
from .epilogue import Epilogue
from .wgmma_tiling import WgmmaTiling, k_tile


def coords_of(epilogue: Epilogue) -> BatchCoords:
    return scheduler.batch_coords(epilogue.batch, k_tile(epilogue.dtype) if epilogue.split else 0)


def work_tiles_of(tiling: WgmmaTiling, epilogue: Epilogue) -> WorkTiles:
    coords = coords_of(epilogue)
    return stream_k.work_units(coords) if tiling.stream else scheduler.tiles_in_turn(coords)


def placer_of(tiling: WgmmaTiling, batched: bool) -> Any:
    return scheduler.placer(tiling.group_m, tiling.n, batched, tiling.narrow_n)


def counter_of(tiling: WgmmaTiling) -> Any:
    return scheduler.counter(tiling.n, tiling.narrow_n, tiling.narrow_group)
