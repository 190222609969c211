"""Matrix products for the tests of the Hopper GEMM."""

from __future__ import annotations

import itertools

from fused_gemm_cases import Product, batched, biased, two_biases
from kernel_cases import ALL, desc, fused  # noqa: F401  (ALL is looked for here)

from aicf.cuda_kernels.gemm import copied, wgmma_tiling
from aicf.cuda_kernels.gemm import wgmma as gemm_wgmma
from aicf.cuda_kernels.gemm.wgmma_tiling import TILINGS, WgmmaConfig  # noqa: F401  (TILINGS are looked for here)
from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, Precision, TensorDesc, bf16, f8e4m3, f8e5m2, f16, f32

H200 = preset("h200")


def named(tiling, *words):
    """A config's variant: `gemm_wgmma[128x128 pingpong packed]`."""
    return f"gemm_wgmma[{' '.join([str(tiling).replace('_', ' '), *words])}]"


def gemm_launch(tiling, region, device, split=None, path=""):
    """Of a tiling, whichever kernels there are."""
    return gemm_wgmma.gemm_launch(WgmmaConfig(tiling, path), region, device, split)


BY_NAME = {v.name: v for v in gemm_wgmma.WGMMA}
SPLITS = {name: v for name, v in BY_NAME.items() if name.endswith(" split]")}
MIXED_WIDTHS = {named(t): BY_NAME[named(t)] for t in wgmma_tiling.MIXED_WIDTHS}  # for many columns
FEW_ROWS = {named(t): BY_NAME[named(t)] for t in wgmma_tiling.FEW_ROWS}  # and for few rows
HALVED = {
    named(t): BY_NAME[named(t)] for t in wgmma_tiling.HALVED
}  # and for rows with the bits of `cluster split2`
STREAMS = {name: v for name, v in BY_NAME.items() if name.endswith(" stream]")}
VARIANTS = {
    name: v
    for name, v in BY_NAME.items()
    if name not in {*SPLITS, *MIXED_WIDTHS, *FEW_ROWS, *STREAMS, *HALVED}
}
PACKED = {v.name: v for v in copied.PACKED[0]}
CLUSTER_SPLIT = {
    name: v for name, v in VARIANTS.items() if " cluster split" in name
}  # whose blocks share tiles
TRANSPOSES = list(itertools.product((False, True), repeat=2))


def matrix(rows, columns, dtype=f16, pitch=None, alignment=256):
    return desc((rows, columns), dtype, (pitch or columns, 1), alignment)


def product(
    m,
    n,
    k,
    *then,
    dtype=f16,
    b_dtype=None,
    ta=False,
    tb=False,
    pitch=(None, None),
    keep=(),
    alignment=256,
    given=(),
    **attrs,
):
    """y = op(a) op(b), and ops that follow, as for `fused`; `pitch`: elements from row to row of a and b."""
    a, b = (k, m) if ta else (m, k), (n, k) if tb else (k, n)
    operands = {
        "a": matrix(*a, dtype, pitch[0], alignment),
        "b": matrix(*b, b_dtype or dtype, pitch[1]),
        **dict(given),
    }
    c, bias = (name if name in operands else None for name in ("c", "bias"))
    more = {"trans_a": ta, "trans_b": tb, **attrs}
    return fused(operands, (("y", "z") if attrs.get("save_preact") else "y", "gemm", "a", "b", c, bias, more), *then,
                 keep=keep)  # fmt: skip


def residual(m, n, k, dtype=f16, out=None, **more):
    given = {"row": desc((n,), out or dtype), "x": desc((m, n), out or dtype)}
    return product(m, n, k, ("u", "bias_add", "y", "row"), ("r", "relu", "u"), ("d", "add", "x", "r"), dtype=dtype,
                   given=given, **more)  # fmt: skip


def two_rows(m, n, k, dtype=f16):
    """Two operands by column."""
    given = {"row": desc((n,), dtype), "second": desc((n,), dtype)}
    ops = ("u", "bias_add", "y", "row"), ("v", "bias_add", "u", "second")
    return product(m, n, k, *ops, dtype=dtype, tb=True, given=given)


def stashed(m, n, k, dtype=f16, out=None, **more):
    """alpha, beta, c, a bias, an activation and its operand."""
    given = {"c": desc((m, n), out or dtype), "bias": desc((n,), out or dtype)}
    return product(
        m, n, k, dtype=dtype, given=given, act=ActKind.relu, save_preact=True, alpha=2.0, beta=-1.0, **more
    )


# a, b and the results of products of words and of bytes
OTHERS = (
    (f32, f32, f32),
    (f8e4m3, f8e4m3, f16),
    (f8e4m3, f8e5m2, f32),
    (f8e5m2, f8e4m3, bf16),
    (f8e5m2, f8e5m2, f32),
)


def other(m, n, k, types, make=product, **more):
    """`make` of such types, k contiguous, rows padded to 16 bytes."""
    a, b, out = types
    pitch = -(-k * a.itemsize // 16) * 16 // a.itemsize
    attrs = {"precision": Precision.tf32} if a is f32 else {"out_dtype": out.id}
    given = {} if make is product else {"out": out}
    return make(m, n, k, dtype=a, b_dtype=b, tb=True, pitch=(pitch, pitch), **given, **attrs, **more)


def takes(t, types):
    """Whether a tiling is for products of these types."""
    return types[0] is f32 or t.can_promote


def activated(m, n, k, dtype=f16, out=None, act="gelu", keep=("d", "z"), **more):
    """A linear layer: a bias, an activation, and its operand kept."""
    given = {"row": desc((n,), out or dtype)}
    return product(
        m, n, k, ("z", "bias_add", "y", "row"), ("d", act, "z"), dtype=dtype, given=given, keep=keep, **more
    )


def backward(m, n, k, dtype=f16, out=None, act="gelu", keep=("d", "s"), **more):
    """The way back: the activation's gradient, and the sums of its columns, a bias's."""
    sums = ("s", "reduce_sum", "d", {"axes": (0,)})
    given = {"x": desc((m, n), out or dtype)}
    return product(m, n, k, ("d", f"{act}_grad", "y", "x"), sums, dtype=dtype, given=given, keep=keep, **more)


class SharedHeads(Product):
    """b has one matrix for all heads of a."""

    def _factor(self, name: str, rows: int, columns: int, transposed: bool) -> TensorDesc:
        made = super()._factor(name, rows, columns, transposed)
        return desc(made.shape, made.dtype, (made.stride[0], 0, *made.stride[2:])) if name == "b" else made


def batches(m: int, n: int, k: int, dtype: DType = f16) -> dict[str, RegionSpec]:
    """`batched`, but for the empty one; and heads that share."""
    made = {name: r for name, r in batched(m, n, k, dtype).items() if name != "none"}
    heads = SharedHeads(m, n, k, dtype, batch=(2, 3), heads=True, trans_a=True)
    return {**made, "heads of one b": two_biases(heads)}


def divided_batches(m: int, n: int, k: int, dtype: DType = f16) -> dict[str, RegionSpec]:
    """`batches`, and heads with one operand of the map: of two axes, what all divided tiles take."""
    heads = Product(m, n, k, dtype, batch=(2, 3), heads=True)
    rows = {
        name: biased(heads, n, "gelu", keep)
        for name, keep in (("heads, a row", False), ("heads, a row, z", True))
    }
    return {**batches(m, n, k, dtype), **rows}


def assert_refused(variants, r: RegionSpec, reason: str) -> None:
    """By each of them, for this reason."""
    for variant in variants.values():
        reject = variant.supported(r, H200)
        assert reject is not None and reason in str(reject), reject
