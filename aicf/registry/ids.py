"""Ids of kernels as they were once, when a tile was part of the name: `cuda.gemm_wgmma_128x256_pingpong.v1`."""

from __future__ import annotations

import re

_TILE_IN_NAME = re.compile(
    r"(?<![\w.])(?P<kernel>(?:cuda\.)?(?:gemm_(?:fma|mma|tiled|wgmma)|(?:convolution|(?:data|weight)_gradient|data_gradient_strided)_wgmma))"
    r"_(?P<precision>tf32x3_|tf32_)?(?P<config>\d+x\d+[a-z0-9_]*?)(?P<version>\.v\d+)?(?!\w)"
)


def current(text: str) -> str:
    """The id, or name, that what was called so has today: `cuda.gemm_wgmma.v1[128x256 pingpong]`; so for each that a text has."""
    return _TILE_IN_NAME.sub(_current, text)


def _current(found: re.Match[str]) -> str:
    words = f"{found['config']}_{found['precision'] or ''}".strip("_").replace("_", " ")
    return f"{found['kernel']}{found['version'] or ''}[{words}]"
