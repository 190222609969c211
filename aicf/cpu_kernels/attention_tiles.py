"""Attention on the host whose queries have equal bits whatever the numbers of queries and of keys: tiles of keys by blocks of rows."""

from __future__ import annotations

import numpy as np

from ..ops.attention import visible
from ..registry.cost import one_launch
from ..registry.variant import NumericClass, no_class, one_op, variant
from .attention import BLOCK_US, CALL_US, _Block, _call, _each, _Heads, _ranges, _shapes, _Sizes, _sizes
from .blas import BLOCK_ROWS, blocks_differ, matmul, threads_for

KEYS = 64  # of a tile; tile n has keys from 64 n on, whatever the number of keys
QUERIES = 64  # that pass over the tiles at a time
BLOCKS = 128  # blocks of rows at a time, of all heads: their scores have the size of a core's L2 cache
TILE_US, SCORE_US = 40.0, 3.5e-3  # NumPy's calls for a tile; a score through maximum, exp and both products


@variant("attention", id="cpu.attention_tiles.v1", strided=True)
class AttentionTiles:
    """A running softmax over tiles of 64 keys, from the first on. BLAS multiplies each tile by blocks of 16 rows, the last one padded.

    Both products have one shape, and rows are elements of BLAS' vectors, as in cpu.gemm_blocks. Rows are the queries of all heads that
    share keys. A tile that a query does not see leaves its bits as they are. So the numbers of queries and of keys change no bit.
    """

    def accepts(region):
        yield one_op(region)

    least = one_launch

    def cost(region, device):
        q, k, v = _shapes(region)[:3]
        sizes = _sizes(region, q, k, v)
        tiles = [
            (sizes.group * len(rows), len(_tiles(sizes, rows))) for rows in _ranges(sizes.queries, QUERIES)
        ]
        blocks = sum(-(-rows // BLOCK_ROWS) * count for rows, count in tiles)
        scores = sizes.heads * blocks * BLOCK_ROWS * KEYS
        calls = -(-sizes.heads // max(1, BLOCKS // max(1, sizes.group * QUERIES // BLOCK_ROWS)))
        passes = calls * sum(count for _, count in tiles)
        cost = sizes.cost(region, device, 2)
        more = SCORE_US * (scores - sizes.scores()) + (TILE_US + BLOCK_US) * passes
        return cost.plus(call=CALL_US, blocks=more)

    def numerics(region, device):
        if found := blocks_differ():
            return no_class(f"this machine's BLAS gives equal rows of a block different bits: {found}")
        by = "keys at a time, from the first on"
        return NumericClass(f"attention, sgemm of blocks of {BLOCK_ROWS} rows", KEYS, by)

    def build(region, device):
        return _call(region, _attend)


def _attend(region, attrs, q, k, v, mask=None, lengths=None, bias=None, *, results):
    out, lse = results
    for sizes, *given, rows, _ in _each(region, q, k, v, mask, lengths, bias, [out, lse[..., None]], []):
        queries, out_of, lse_of = (_Heads(x, sizes, True) for x in (given[0], *rows))
        keys_of, values_of = (_Heads(x, sizes, False) for x in given[1:3])
        block = _Block(sizes, attrs, *given[3:])
        for rows in _ranges(sizes.queries, QUERIES):
            blocks = -(-sizes.group * len(rows) // BLOCK_ROWS)
            for heads in _ranges(sizes.heads, max(1, BLOCKS // blocks)):
                q32 = _in_blocks(block.scaled(queries.read(heads, rows)), max(2, sizes.d))
                o, log_sum = _over_tiles(block, q32, keys_of, values_of, heads, rows)
                out_of.write(_from_blocks(o, sizes.group * len(rows)), heads, rows)
                lse_of.write(_from_blocks(log_sum, sizes.group * len(rows)), heads, rows)


def _tiles(sizes: _Sizes, rows: range) -> range:
    """Tiles with the keys that some of these queries may attend to."""
    low = max(0, rows.start + sizes.offset - sizes.window + 1) if sizes.window else 0
    high = min(sizes.keys, rows.stop + sizes.offset) if sizes.causal else sizes.keys
    return range(min(low, sizes.keys) // KEYS, -(-max(high, 0) // KEYS))


def _over_tiles(
    block: _Block, q32: np.ndarray, keys_of: _Heads, values_of: _Heads, heads: range, rows: range
):
    """Results and logarithms of sums, as (heads, blocks, columns, 16). A column of ones next to the values adds up the weights."""
    sizes = block.sizes
    columns = max(2, sizes.dv + 1)
    most = threads_for(2 * BLOCK_ROWS * KEYS * max(q32.shape[-2], columns))
    k32, v32 = (np.zeros((len(heads), 1, KEYS, n), np.float32) for n in (q32.shape[-2], columns))
    o = np.zeros((*q32.shape[:2], columns, BLOCK_ROWS), np.float32)
    peak = np.full((*q32.shape[:2], 1, BLOCK_ROWS), -np.inf, np.float32)
    shift = np.zeros_like(peak)
    for tile in _tiles(sizes, rows):
        keys = range(tile * KEYS, min((tile + 1) * KEYS, sizes.keys))
        k32[:, 0, : len(keys), : sizes.d] = keys_of.read(heads, keys)
        v32[:, 0, : len(keys), : sizes.dv] = values_of.read(heads, keys)
        v32[..., : len(keys), sizes.dv] = 1
        k32[:, :, len(keys) :], v32[:, :, len(keys) :] = 0, 0  # of the tile before
        s = matmul(k32, q32, None, most)
        if block.softcap:
            s /= block.softcap
            np.tanh(s, out=s)
            s *= block.softcap
        _mask_and_bias(block, s, heads, rows, keys)
        before, peak = peak, np.maximum(peak, s.max(-2, keepdims=True))
        shift = np.where(peak == -np.inf, np.float32(0), peak)
        s -= shift
        np.exp(s, out=s)
        o *= np.exp(before - shift)
        o += matmul(v32.swapaxes(-1, -2), s, None, most)
    sums = o[..., sizes.dv : sizes.dv + 1, :]
    made = np.where(sums == 0, np.float32(0), o[..., : sizes.dv, :] / sums)
    return made + np.float32(0), shift + np.log(sums)  # -0 becomes 0: only there hidden tiles could differ


def _mask_and_bias(block: _Block, s: np.ndarray, heads: range, rows: range, keys: range) -> None:
    """Adds a bias to scores (heads, blocks, 64, 16), and puts -inf where a query may not attend to a key."""
    sizes, absent = block.sizes, KEYS - len(keys)
    span = slice(rows.start, rows.stop), slice(keys.start, keys.stop)

    def of_scores(x: np.ndarray) -> np.ndarray:
        """(G or 1, queries, keys) as scores of a head are stored; zero, or false, where there is no key."""
        x = np.broadcast_to(x, (sizes.group, *x.shape[-2:]))
        return _in_blocks(np.pad(x, ((0, 0), (0, 0), (0, absent))).reshape(1, -1, KEYS), KEYS)[0]

    if block.bias is not None:
        for n, head in enumerate(heads):
            s[n] += of_scores(block.bias[np.unravel_index(head, sizes.lead)][:, *span].astype(np.float32))
    seen = visible(rows, keys, sizes.offset, sizes.causal, sizes.window)
    if absent or not seen.all():
        np.copyto(s, -np.inf, where=~of_scores(seen[None]))
    if block.mask is not None:
        for n, head in enumerate(heads):
            np.copyto(
                s[n], -np.inf, where=~of_scores(block.mask[np.unravel_index(head, sizes.lead)][:, *span])
            )


def _in_blocks(x: np.ndarray, columns: int) -> np.ndarray:
    """(heads, rows, d) as (heads, blocks, columns, 16), with zeros for rows and columns that do not exist."""
    heads, rows, d = x.shape
    padded = np.zeros((heads, -(-rows // BLOCK_ROWS) * BLOCK_ROWS, columns), x.dtype)
    padded[:, :rows, :d] = x
    blocks = padded.reshape(heads, -1, BLOCK_ROWS, columns)
    return np.ascontiguousarray(blocks.swapaxes(-1, -2))


def _from_blocks(x: np.ndarray, rows: int) -> np.ndarray:
    """The reverse, for all columns: (heads, rows, columns)."""
    return x.swapaxes(-1, -2).reshape(x.shape[0], -1, x.shape[-2])[:, :rows]
