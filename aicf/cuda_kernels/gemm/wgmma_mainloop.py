"""The main loop of a Hopper GEMM, by its tiling and its types."""

from __future__ import annotations

from ...types import DType, f8e4m3, f8e5m2, f32, i8, u8
from ..hopper.accumulators import Accumulators, accumulated, promoted
from ..hopper.mainloop import Mainloop, Stages, from_registers, from_shared
from .epilogue import Epilogue
from .wgmma_tiling import WgmmaTiling, promotes

KINDS = {f32: "tf32", f8e4m3: "e4m3", f8e5m2: "e5m2", i8: "s8", u8: "u8"}  # that wgmma multiplies elements as


def mainloop_of(
    tiling: WgmmaTiling,
    epilogue: Epilogue,
    a_k_major: bool,
    b_k_major: bool,
    staged: int,
    register_operand: bool,
) -> Mainloop:
    stages = Stages(tiling.stages(staged), tiling.stage_bytes, tiling.a_bytes, tiling.own_bytes)
    if register_operand:
        assert tiling.row_blocks == tiling.together == 1, f"{tiling}: a thread has two rows"
        return from_registers(stages, tiling.n)
    accumulators = accumulators_of(tiling, epilogue, a_k_major, b_k_major)
    return from_shared(stages, accumulators, a_k_major, b_k_major, tiling.cluster, tiling.cluster_split)


def accumulators_of(
    tiling: WgmmaTiling, epilogue: Epilogue, a_k_major: bool, b_k_major: bool
) -> Accumulators:
    both = kind(epilogue.dtype), kind(epilogue.b_dtype)
    if tiling.promoted or promotes(epilogue.dtype):
        return promoted(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major)
    return accumulated(both, tiling.n, tiling.row_blocks, a_k_major, b_k_major, tiling.narrow_n)


def kind(dtype: DType) -> str:
    return KINDS.get(dtype, dtype.name)
