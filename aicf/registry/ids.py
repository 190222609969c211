"""Former ids of kernels, with the tile in the name: `cuda.gemm_wgmma_128x256_pingpong.v1`. Plans, tuning files and patterns may have them."""

from __future__ import annotations

import re

_EXTENT = "(?:32|64|128|192|256)"
_WORDS = (
    r"pingpong|cluster\d?|split\d?|int8|tf32x3|packed|stream|rs|120|deep|sliced4|turing|flat|halved|parts"
)
_TILE_IN_NAME = re.compile(
    r"(?<![\w.])(?P<kernel>(?:cuda\.)?(?:gemm_(?:fma|mma|tiled|wgmma)|(?:convolution|(?:data|weight)_gradient|data_gradient_strided)_wgmma))"
    rf"_(?P<precision>tf32x3_|tf32_)?(?P<config>{_EXTENT}x{_EXTENT}(?:_(?:{_WORDS}))*)(?P<version>\.v1)?(?!\w|\.v\d)"
)


def current(text: str) -> str:
    """Replace each former id or name in a text by the present one, such as `cuda.gemm_wgmma.v1[128x256 pingpong]`."""
    return _TILE_IN_NAME.sub(_current, text)


def _current(found: re.Match[str]) -> str:
    words = f"{found['config']}_{found['precision'] or ''}".strip("_").replace("_", " ")
    return f"{found['kernel']}{found['version'] or ''}[{words}]"


def former(id: str) -> str:
    """The id that a config had when its tile was part of the name; of all others the id itself."""
    kernel, _, config = id.removesuffix("]").partition("[")
    name, dot, version = kernel.rpartition(".")
    words = config.split()
    for order in (words, words[-1:] + words[:-1]):  # the precision of `gemm_mma` came first
        if current(old := f"{name}_{'_'.join(order)}{dot}{version}") == id:
            return old
    return id
