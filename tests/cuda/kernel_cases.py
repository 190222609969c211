"""Regions for the CUDA kernels' tests, and the float64 references to hold them to.

This folder has no `__init__.py`: a test package called `cuda` would hide NVIDIA's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from machines.hopper_bodies import to_tf32
from rounding_points import jumps

import aicf.ops  # noqa: F401  (registers the ops)
from aicf.cuda_kernels import MODULES
from aicf.device.spec import preset
from aicf.ops.constraints import OperandDecl
from aicf.ops.draw import draw
from aicf.ops.gemm import round_tf32
from aicf.ops.scan import drawn
from aicf.ops.schema import OpSchema, schema_of
from aicf.registry.variant import variants_in
from aicf.rows import RegionOp, RegionSpec
from aicf.types import (
    BASIC,
    ActKind,
    DType,
    Precision,
    TensorDesc,
    TensorSpec,
    bf16,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i8,
    i32,
    i64,
    row_major,
    u8,
)

VARIANTS = {v.id: v for m in MODULES for v in variants_in(m)}
ALL = bool(os.environ.get("AICF_TEST_ALL"))  # `make test-all` looks at every configuration


@dataclass(frozen=True)
class Case:
    """One region for one variant."""

    variant: str
    region: RegionSpec
    tolerance: float = 1e-5

    def __str__(self) -> str:
        attrs = {k: v for k, v in self.region.attrs.items() if v not in (0, 1, (), False)}
        return f"{self.variant} {self.region} {attrs or ''}".strip()


def desc(shape: Sequence[int], dtype: DType = f32, stride: Sequence[int] | None = None,
         alignment: int = 256) -> TensorDesc:  # fmt: skip
    steps = tuple(stride) if stride is not None else row_major(tuple(shape))
    return TensorDesc(dtype, tuple(shape), steps, "cuda", alignment)


def region(op: str, *operands: Any, **attrs: Any) -> RegionSpec:
    """One op over operands given as descriptors, shapes (f32) or None."""
    schema = schema_of(op)
    descs = [d if d is None or isinstance(d, TensorDesc) else desc(d) for d in operands]
    specs = [d and TensorSpec(d.shape, d.dtype, d.device) for d in descs]
    packed = schema.pack(schema.normalized(specs, attrs))
    results = [desc(s.shape, s.dtype) for s in schema.infer(specs, packed)]
    return RegionSpec.single(schema.kind, packed, descs, results)


def step(op: str, p: Any, gradient: DType | None = None, **attrs: Any) -> RegionSpec:
    """An optimizer's step of a parameter, whose state is f32; so may the gradient be."""
    p = p if isinstance(p, TensorDesc) else desc(p)
    kinds = {
        "f32": desc(()),
        "flag": desc((), DType.bool),
        **dict.fromkeys(("f32 sum", "moment"), replace(p, dtype=f32)),
    }
    given = {"g": replace(p, dtype=gradient or p.dtype)}
    names = [(d.name, d.type.name) for d in schema_of(op).operands]
    return region(op, *(given.get(name, kinds.get(kind, p)) for name, kind in names), **attrs)


def fused(
    operands: dict[str, Any], *ops: tuple[Any, ...], keep: Sequence[str] = (), strict: bool = False
) -> RegionSpec:
    """Ops over named values: (results, op, *operands, attributes), the last left out if empty; results are a name or several.

    operands  name -> descriptor or shape (f32)
    keep      what leaves the region: the last op's results, unless said otherwise
    """
    descs = {name: d if isinstance(d, TensorDesc) else desc(d) for name, d in operands.items()}
    made: list[RegionOp] = []
    names = list(descs)
    for results, op, *args in ops:
        attrs = args.pop() if isinstance(args[-1], dict) else {}
        results = (results,) if isinstance(results, str) else results
        one = region(op, *(descs.get(a) for a in args), **attrs)
        descs.update(zip(results, one.results))
        names += results
        ins = tuple(-1 if a is None else names.index(a) for a in args)
        made.append(RegionOp(one.kind, one.attrs, ins, tuple(map(names.index, results))))
        last = results
    outputs = tuple(map(names.index, keep or last))
    return RegionSpec(
        tuple(made), tuple(descs[n] for n in names), tuple(range(len(operands))), outputs, strict
    )


def unaligned(cases: Iterable[Case]) -> Iterator[Case]:
    """Those whose variants take tensors that are aligned to one element only, so described."""
    for case in cases:
        tensors = tuple(replace(t, alignment=t.dtype.itemsize) for t in case.region.tensors)
        made = replace(case, region=replace(case.region, tensors=tensors))
        if VARIANTS[made.variant].supported(made.region, preset("h200")) is None:
            yield made


def invariant(r: RegionSpec) -> RegionSpec:
    """The region where equal rows have equal bits in every batch."""
    return replace(r, strict=True, invariant=True)


def gemm(m: int, n: int, k: int, *, c: bool = False, bias: int | None = None, trans_a: bool = False,
         trans_b: bool = False, dtype: DType = f32, alignment: int = 256, **attrs: Any) -> RegionSpec:  # fmt: skip
    a, b = (k, m) if trans_a else (m, k), (n, k) if trans_b else (k, n)
    more = {"trans_a": trans_a, "trans_b": trans_b, **attrs}
    shapes = a, b, (m, n) if c else None, None if bias is None else (bias,)
    return region("gemm", *(s and desc(s, dtype, alignment=alignment) for s in shapes), **more)


HALVES = {f16: 2e-3, bf16: 1.6e-2}  # and what their rounding allows, relative
PACKED = [v for v in VARIANTS if v.endswith(" packed]")]  # test_gemm_packed.py has theirs
MMAS = [
    v for v in VARIANTS if ".gemm_mma." in v and " split" not in v and "tf32" not in v and v not in PACKED
]
TURINGS = [v for v in MMAS if "turing" in v]


def halves_of(variant: str) -> tuple[DType, ...]:
    """The types that tensor cores multiply in one of MMAS."""
    return (f16,) if variant in TURINGS else (f16, bf16)


TF32S = {
    v: 2e-5 if "tf32x3" in v else 2e-3 for v in VARIANTS if ".gemm_mma." in v and " tf32" in v
}  # and what they may be off
TF32X3S = [v for v in VARIANTS if "tf32x3" in v]
WGMMAS = [v for v in VARIANTS if ".gemm_wgmma." in v]  # wgmma_cases.py has their cases
CONVOLUTIONS = [v for v in VARIANTS if ".convolution_" in v]  # convolution_cases.py has theirs
GRADIENTS = [
    v
    for v in VARIANTS
    if v.startswith(
        ("cuda.weight_gradient_wgmma.", "cuda.data_gradient_wgmma.", "cuda.data_gradient_strided_wgmma.")
    )
]  # gradient_cases.py has theirs
PARTS = [
    v for v in VARIANTS if v.endswith(" parts]") or ".gemv_in_" in v
]  # strict and invariant regions alone: test_fixed_parts.py has more
FMAS = [v for v in VARIANTS if ".gemm_fma." in v and v not in PARTS]  # test_gemm_fma.py has theirs
SPLITS = [v for v in VARIANTS if v.endswith(" split]") and v not in (*WGMMAS, *FMAS)]
INTEGERS = "cuda.gemm_naive_int8.v1"  # test_gpu_int8.py has its cases
GEMMS = [
    v
    for v in VARIANTS
    if ".gemm_" in v and v not in (*MMAS, *TF32S, *SPLITS, *WGMMAS, *FMAS, *PARTS, *PACKED, INTEGERS)
]

HELD, CLUSTER, STREAMED, SERIAL = (
    f"cuda.rows_{name}" for name in ("resident.v2", "cluster.v1", "streamed.v2", "serial.v2")
)
ROWS = HELD, CLUSTER, STREAMED, SERIAL
STRIDED, TRANSPOSED = "cuda.elementwise_strided.v1", "cuda.elementwise_transposed.v1"


def softmax(shape: Sequence[int], dtype: DType = f32, axis: int = -1) -> RegionSpec:
    """Spelled out."""
    at = {"axes": (axis % len(shape),), "keepdims": True}
    return fused({"x": desc(shape, dtype)}, ("m", "reduce_max", "x", at), ("s", "sub", "x", "m"), ("e", "exp", "s"),
                 ("t", "reduce_sum", "e", at), ("y", "div", "e", "t"))  # fmt: skip


def softmax_grad(shape: Sequence[int], dtype: DType = f32, axis: int = -1) -> RegionSpec:
    return region("softmax_grad", desc(shape, dtype), desc(shape, dtype), axis=axis)


def layer_norm(shape: Sequence[int], dtype: DType = f32, of: DType | None = None) -> RegionSpec:
    """Of a sum that leaves as well, with a scale and a bias of another type: all results."""
    x, w = desc(shape, dtype), desc(shape[-1:], of or dtype)
    return fused({"x": x, "r": x, "w": w, "b": w}, ("h", "add", "x", "r"), (("y", "mean", "rstd"), "layer_norm", "h", "w", "b"),
                 keep=("h", "y", "mean", "rstd"))  # fmt: skip


def layer_norm_grad(shape: Sequence[int], dtype: DType = f32) -> RegionSpec:
    x, column = desc(shape, dtype), desc((*shape[:-1], 1))
    return region("layer_norm_grad", x, x, column, column, desc(shape[-1:], dtype))


def rms_norm(shape: Sequence[int], dtype: DType = f32) -> RegionSpec:
    """And an activation of it, scaled by a row vector."""
    return fused({"x": desc(shape, dtype), "w": desc(shape[-1:], dtype)}, (("n", "rstd"), "rms_norm", "x"), ("g", "gelu", "n"),
                 ("y", "mul", "g", "w"))  # fmt: skip


def logsumexp(shape: Sequence[int], dtype: DType = f32, axis: int = -1) -> RegionSpec:
    return region("logsumexp", desc(shape, dtype), axis=axis)


def _masks(q: Sequence[int], mask: Sequence[int] | None, ragged: bool, bias: Sequence[int] | None = None,
           of_bias: DType = f32) -> list[TensorDesc | None]:  # fmt: skip
    """Of attention: its mask, its lengths and its bias."""
    found = [None if mask is None else desc(mask, DType.bool), desc(q[:-3], i32) if ragged else None]
    return [*found, *([] if bias is None else [desc(bias, of_bias)])]


def attention(q: Sequence[int], k: Sequence[int], dv: int | None = None, mask: Sequence[int] | None = None, dtype: DType = f32,
              alignment: int = 256, ragged: bool = False, bias: Sequence[int] | None = None, of_bias: DType = f32, **attrs: Any) -> RegionSpec:  # fmt: skip
    own = [desc(x, dtype, alignment=alignment) for x in (q, k, (*k[:-1], k[-1] if dv is None else dv))]
    return region("attention", *own, *_masks(q, mask, ragged, bias, of_bias), **attrs)


def attention_grad(q: Sequence[int], k: Sequence[int], dv: int | None = None, mask: Sequence[int] | None = None, dtype: DType = f32,
                   alignment: int = 256, ragged: bool = False, bias: Sequence[int] | None = None, of_bias: DType = f32, **attrs: Any) -> RegionSpec:  # fmt: skip
    v = (*k[:-1], k[-1] if dv is None else dv)
    out = (*q[:-1], v[-1])
    own = [desc(x, dtype, alignment=alignment) for x in (out, q, k, v, out)]
    return region("attention_grad", *own, desc(q[:-1]), *_masks(q, mask, ragged, bias, of_bias), **attrs)


def attention_bias_grad(q: Sequence[int], k: Sequence[int], bias: Sequence[int], dv: int | None = None, mask: Sequence[int] | None = None,
                        dtype: DType = f32, ragged: bool = False, of_bias: DType = f32, **attrs: Any) -> RegionSpec:  # fmt: skip
    v = (*k[:-1], k[-1] if dv is None else dv)
    out = (*q[:-1], v[-1])
    own = [desc(x, dtype) for x in (out, q, k, v, out)]
    return region(
        "attention_bias_grad", *own, desc(q[:-1]), desc(bias, of_bias), *_masks(q, mask, ragged), **attrs
    )


def cache_write(
    batch: Sequence[int], heads: int, places: int, rows: int, d: int, dv: int, dtype: DType = f32
) -> RegionSpec:
    shapes = ((places, d), (places, dv), (rows, d), (rows, dv))
    return region("cache_write", *(desc((*batch, heads, *x), dtype) for x in shapes), desc(batch, i32))


def sample_tokens(rows: int, words: int, dtype: DType = f32) -> RegionSpec:
    return region("sample_tokens", desc((rows, words), dtype), desc((rows, words), DType.bool), desc((rows,), i64), desc((rows,), i32),
                  *4 * [()])  # fmt: skip


def mark_tokens(rows: int, words: int, new: int) -> RegionSpec:
    return region(
        "mark_tokens", desc((rows, words), DType.bool), desc((rows, new), i32), *2 * [desc((rows,), i32)]
    )


ATTENTION, ATTENTION_GRAD = "cuda.attention_plain.v1", "cuda.attention_grad_plain.v1"
ATTENTION_BIAS_GRAD = "cuda.attention_bias_grad_plain.v1"
DECODE = "cuda.attention_decode.v1"


def biased_attentions(
    q: Sequence[int], k: Sequence[int], bias: Sequence[int], tolerance: float = 2e-5, **asked: Any
) -> list[Case]:
    """With the bias's gradient, if it goes along queries and keys."""
    made = both_attentions(q, k, tolerance=tolerance, bias=bias, **asked)
    if tuple(bias[-2:]) == (q[-2], k[-2]):
        made.append(Case(ATTENTION_BIAS_GRAD, attention_bias_grad(q, k, bias, **asked), 10 * tolerance))
    return made


def both_attentions(*shapes: Any, tolerance: float = 2e-5, **asked: Any) -> list[Case]:
    return [
        Case(ATTENTION, attention(*shapes, **asked), tolerance),
        Case(ATTENTION_GRAD, attention_grad(*shapes, **asked), 5 * tolerance),
    ]


HOPPER_ATTENTION, HOPPER_ATTENTION_GRAD = "cuda.attention_wgmma.v1", "cuda.attention_grad_wgmma.v1"


def hopper_attentions(*shapes: Any, tolerance: float, **asked: Any) -> list[Case]:
    """Forward, and the gradient, unless there is a softcap."""
    made = [Case(HOPPER_ATTENTION, attention(*shapes, **asked), tolerance)]
    if not asked.get("softcap"):
        made.append(Case(HOPPER_ATTENTION_GRAD, attention_grad(*shapes, **asked), 5 * tolerance))
    return made


# Masks and biases of keys, the same for all queries: (q, k, what is asked), of either head size.
OF_KEYS: tuple[tuple[Any, Any, dict[str, Any]], ...] = (
    ((2, 4, 300, 64), (2, 4, 300, 64), {"mask": (2, 1, 1, 300)}),
    ((2, 3, 384, 64), (2, 3, 384, 64), {"bias": (2, 1, 1, 384), "of_bias": bf16}),
    ((3, 2, 130, 64), (3, 1, 257, 64), {"bias": (1, 1, 1, 257), "causal": True}),
    ((4, 200, 128), (4, 200, 128), {"bias": (4, 1, 200)}),
    ((2, 4, 150, 128), (2, 2, 150, 128), {"mask": (150,), "bias": (2, 1, 1, 150), "causal": True, "window": 70}),
    ((2, 3, 4, 70, 40), (2, 3, 4, 90, 40), {"mask": (2, 1, 1, 1, 90), "dv": 24}),
    ((5, 2, 300, 64), (5, 2, 170, 64), {"bias": (5, 1, 1, 1), "of_bias": f16}),
    ((2, 2, 200, 72), (2, 2, 256, 72), {"bias": (2, 1, 256), "softcap": 5.0}),
    ((3, 4, 1, 64), (3, 4, 500, 64), {"mask": (3, 4, 1, 500)}),
    ((200, 256, 64), (200, 256, 64), {"mask": (200, 1, 256), "causal": True}),
)  # fmt: skip


MMA_ATTENTION, MMA_ATTENTION_GRAD = "cuda.attention_mma.v1", "cuda.attention_grad_mma.v1"
TURING_ATTENTION, TURING_ATTENTION_GRAD = "cuda.attention_turing.v1", "cuda.attention_grad_turing.v1"
FEW_ATTENTION = "cuda.attention_few.v1"


def mma_attentions(*shapes: Any, tolerance: float, **asked: Any) -> list[Case]:
    """Of both architectures' kernels, and of that of few queries, where they accept the region."""
    forward, backward = attention(*shapes, **asked), attention_grad(*shapes, **asked)
    made = [Case(v, forward, tolerance) for v in (MMA_ATTENTION, TURING_ATTENTION, FEW_ATTENTION)]
    made += [Case(v, backward, 5 * tolerance) for v in (MMA_ATTENTION_GRAD, TURING_ATTENTION_GRAD)]
    some = TURING_ATTENTION, TURING_ATTENTION_GRAD, FEW_ATTENTION
    return [
        c
        for c in made
        if c.variant not in some or VARIANTS[c.variant].supported(c.region, preset("h200")) is None
    ]


ROW_TOLERANCE = {f32: 1e-5, f16: 1e-3, bf16: 8e-3}  # results are rounded, sums are not

LINEAR_LOSS, LINEAR_LOSS_GRAD = (f"cuda.linear_cross_entropy{of}_chunks.v1" for of in ("", "_grad"))
LINEAR_LOSS_WGMMA, LINEAR_LOSS_GRAD_WGMMA = (
    f"cuda.linear_cross_entropy{of}_wgmma.v1" for of in ("", "_grad")
)


def linear_loss(
    rows: int, classes: int, k: int, dtype: DType = f32, labels: DType = i64, **attrs: Any
) -> RegionSpec:
    x, weight = desc((rows, k), dtype), desc((classes, k), dtype)
    return region("linear_cross_entropy", x, weight, desc((rows,), labels), **attrs)


def linear_loss_grad(
    rows: int, classes: int, k: int, dtype: DType = f32, labels: DType = i64, **attrs: Any
) -> RegionSpec:
    x, weight, row = desc((rows, k), dtype), desc((classes, k), dtype), (rows,)
    return region("linear_cross_entropy_grad", row, x, weight, desc(row, labels), row, **attrs)


def scan(steps: int, batch: int, width: int, dtype: DType = f32, reverse: bool = False) -> RegionSpec:
    """An LSTM's steps, which show all that they carry."""

    def cell(emit, h, c, x, weight):
        gates = emit.add(emit.gemm(h, weight, trans_b=True), x)
        ends = [(batch, (n + 1) * width) for n in range(4)]
        i, f, g, o = (emit.slice(gates, start=(0, n * width), limit=ends[n], step=(1, 1)) for n in range(4))
        c = emit.add(emit.mul(emit.sigmoid(f), c), emit.mul(emit.sigmoid(i), emit.tanh(g)))
        return [h := emit.mul(emit.sigmoid(o), emit.tanh(c)), c, h]

    state, rows, weight = (
        desc(s, dtype) for s in ((batch, width), (steps, batch, 4 * width), (4 * width, width))
    )
    how = {"body": drawn(4, cell), "carried": 2, "stacked": 1, "length": steps, "reverse": reverse}
    return region("scan", state, state, rows, weight, **how)


def transposes() -> list[Case]:
    """Odd sizes, whole and broken tiles, other axes before, between and behind, types, and what is fused around."""
    t = "transpose"
    plain = [
        ((64, 64), (1, 0)), ((65, 17), (1, 0)), ((16, 200), (1, 0)), ((3, 33, 71), (0, 2, 1)), ((2, 64, 7, 19), (0, 2, 3, 1)), ((2, 9, 8, 48), (0, 3, 1, 2)),
        ((20, 3, 40), (2, 1, 0)), ((5, 0, 20), (0, 2, 1)),
    ]  # fmt: skip
    cases = [Case(TRANSPOSED, region(t, shape, perm=perm)) for shape, perm in plain if 0 not in shape]
    cases += [
        Case(TRANSPOSED, region(t, desc((3, 70, 33), kind), perm=(0, 2, 1)), 0.0)
        for kind in (f16, bf16, i32, i64, DType.bool)
    ]
    x, r, b = desc((3, 70, 40), bf16), desc((3, 40, 70)), desc((70,))
    around = (
        ("t", t, "x", {"perm": (0, 2, 1)}),
        ("w", "convert", "t", {"dtype": f32}),
        ("s", "add", "w", "r"),
        ("y", "add", "s", "b"),
    )
    cases.append(Case(TRANSPOSED, fused({"x": x, "r": r, "b": b}, *around, keep=("w", "y")), 1e-5))
    return cases


# One region for each variant, compiled for every architecture.
FIRST = [
    Case("cuda.elementwise_flat.v1", region("add", (1000,), (1000,))),
    Case("cuda.elementwise_vector.v1", region("div", (1001,), (1001,))),
    Case("cuda.elementwise_vector.v1", region("add", *2 * [desc((1001,), f16)]), tolerance=1e-3),
    Case("cuda.elementwise_vector.v1", step("adam_step", desc((1001,), f16)), 5e-3),
    Case("cuda.elementwise_strided.v1", region("add", (30, 1), (20, 1, 40))),
    Case("cuda.add_f16_half2.v1", region("add", *2 * [desc((1000,), f16)]), tolerance=1e-3),
    Case("cuda.elementwise_rows.v1", region("bias_add", (30, 40), (40,))),
    Case(TRANSPOSED, region("transpose", (70, 130), perm=(1, 0))),
    Case("cuda.multi_map.v1", fused({"x": (1000,), "y": (33, 7)}, ("a", "exp", "x"), ("b", "exp", "y"), keep=("a", "b"))),
    Case("cuda.multi_map_table.v1", fused({"x": (1000,), "y": (33, 7)}, ("a", "exp", "x"), ("b", "exp", "y"), keep=("a", "b"))),
    Case(INTEGERS, region("gemm", desc((33, 50), i8), desc((50, 41), i8), None, None)),
    *(Case(v, gemm(300, 200, 70, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5)) for v in GEMMS),
    *(Case(v, gemm(300, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5, dtype=t), tolerance=e)
      for v in GEMMS for t, e in HALVES.items() if t is f16 or "64x64" in v),
    *(Case(v, gemm(300, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5, dtype=f16), tolerance=2e-3)
      for v in MMAS),
    *(Case(v, gemm(130, 72, 200, c=True, bias=72, act=ActKind.gelu, beta=0.5)) for v in SPLITS),
    *(Case(v, gemm(301, 203, 75, c=True, bias=203, act=ActKind.gelu, beta=0.5, dtype=f16), tolerance=2e-3) for v in PACKED if ".gemm_mma." in v),
    Case("cuda.gemm_tiled.v1[64x64 packed]",
         region("gemm", desc((2, 3, 2, 70, 66), stride=(27720, 4620, 13860, 66, 1)), desc((2, 3, 2, 66, 11)), None, None), 2e-5),
    *(Case(v, invariant(gemm(5, 72, 600, c=True, bias=72, act=ActKind.gelu, beta=0.5, trans_b=True))) for v in PARTS),
    *(Case(v, invariant(gemm(13, 75, 601, bias=75, dtype=f16)), 2e-3) for v in PARTS if ".gemm_fma." not in v),
    Case("cuda.gemv_simt.v2", gemm(5, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5)),
    Case("cuda.gemv_simt.v2", gemm(3, 40, 9000, c=True, bias=40, act=ActKind.gelu, save_preact=True, beta=0.5, trans_b=True,
                                   dtype=f16), tolerance=2e-3),
    Case("cuda.gemv_warps.v1", gemm(3, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5, trans_b=True)),
    Case("cuda.gemv_codes.v1", region("gemm_codes", desc((12, 256), bf16), desc((200, 128), u8), desc((200, 2)), bits=4), 2e-2),
    Case("cuda.gemv_codes.v1", region("gemm_codes", desc((3, 144), f16), desc((40, 144), i8), desc((40, 1)), bits=8), 2e-2),
    Case("cuda.gemv_mma.v1", gemm(12, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5, dtype=f16), 2e-3),
    *(Case(v, gemm(300, 200, 72, c=True, bias=200, act=ActKind.gelu, save_preact=True, beta=0.5, precision=Precision.tf32), e)
      for v, e in TF32S.items()),
    Case("cuda.scan.v1", scan(2, 5, 12)),
    Case(LINEAR_LOSS, linear_loss(300, 1000, 72, f16)),
    Case(LINEAR_LOSS_GRAD, linear_loss_grad(300, 1000, 72, f16), 4e-3),
    Case(LINEAR_LOSS_WGMMA, linear_loss(300, 1000, 72, f16, label_smoothing=0.1)),
    Case(LINEAR_LOSS_GRAD_WGMMA, linear_loss_grad(300, 1000, 72, f16), 4e-3),
    Case("cuda.dropout_philox.v1", region("dropout", (1001,), desc((2,), i64), rate=0.3, layer=2)),
    Case("cuda.rng_advance.v2", region("rng_advance", desc((2,), i64), desc((), DType.bool))),
    Case("cuda.reduce_rows.v2", region("reduce_mean", (30, 1000), axes=(1,))),
    Case("cuda.reduce_columns.v2", region("reduce_sum", (1000, 30), axes=(0,))),
    Case("cuda.reduce_column_vectors.v2", region("reduce_sum", (1000, 36), axes=(0,))),
    Case("cuda.reduce_column_vectors.v2", region("reduce_sum", desc((3000, 768), bf16), axes=(0,)), 2e-2),
    Case("cuda.reduce_column_vectors.v2", region("reduce_mean", desc((3, 100, 40), f16), axes=(1,)), 1e-2),
    Case("cuda.reduce_planes.v2", region("reduce_mean", desc((8, 40, 7, 16), bf16), axes=(0, 2, 3)), 1e-2),
    Case("cuda.reduce_planes.v2", region("reduce_max", (9, 300, 7, 7), axes=(0, 2, 3))),
    Case("cuda.reduce_rows.v2", region("argmax", desc((30, 1000), bf16))),
    Case("cuda.reduce_columns.v2", region("argmin", (1000, 30), axis=0)),
    Case("cuda.reduce_rows.v2", region("reduce_min", (30, 1000), axes=(1,))),
    Case("cuda.reduce_naive.v2", region("reduce_max", (4, 5, 6, 7), axes=(0, 2))),
    *(Case(v, region("cross_entropy", (30, n), desc((30,), i64), label_smoothing=s)) for v in ROWS for n, s in ((10, 0.0), (1000, 0.1))),
    Case("cuda.check_labels.v1", region("check_labels", desc((5000,), i64), desc((5,), i64), classes=10)),
    *(Case("cuda.all_finite.v1", region("all_finite", desc((5001,), t), desc((7,), t), desc((33, 70), t, alignment=a)))
      for t, a in ((f32, 256), (f16, 256), (bf16, 256), (f16, 2))),
    Case("cuda.all_finite.v1", region("all_finite", *[(n * 100,) for n in range(40)], desc((90,), bf16))),
    *(Case("cuda.sum_of_squares.v1", region("sum_of_squares", desc((5001,), t), desc((7,), t), desc((33, 70), t, alignment=a)), 1e-4)
      for t, a in ((f32, 256), (f16, 256), (bf16, 256), (f16, 2))),
    Case("cuda.sum_of_squares.v1", region("sum_of_squares", *[(n * 100,) for n in range(40)], desc((90,), bf16)), 1e-4),
    Case("cuda.sum_of_squares.v1", region("sum_of_squares", (0,), (0, 3))),
    Case(STRIDED, region("cross_entropy_grad", (30, 1000), desc((30,), i32), *[(30,)] * 3)),
    Case("cuda.scatter_add_rows.v2", region("scatter_add", (300, 72), desc((300,), i64), size=50), 1e-4),
    Case("cuda.scatter_add_sorted.v1", region("scatter_add", (3000, 72), desc((3000,), i64), size=500), 1e-4),
    Case("cuda.scatter_add_along.v2", region("scatter_add", (30, 4), desc((30, 4), i64), size=9, axis=1, along=True)),
    Case("cuda.check_indices.v1", region("check_indices", desc((50, 60), i32), desc((5,), i64), size=5)),
    *(Case(v, layer_norm((30, n), t), ROW_TOLERANCE[t]) for v in ROWS for t in (f32, bf16) for n in (1000, 4096) if t is bf16 or n < 4096),
    Case(HELD, softmax((30, 16384), bf16), ROW_TOLERANCE[bf16]),
    Case(CLUSTER, softmax_grad((30, 16385), f16), ROW_TOLERANCE[f16]),
    Case(SERIAL, softmax((30, 40, 50), axis=1)),
    *both_attentions((6, 130, 128), (2, 200, 128), causal=True),
    *both_attentions((6, 130, 64), (2, 200, 64), causal=True, dtype=f16, tolerance=2e-3),
    *hopper_attentions((6, 130, 128), (2, 200, 128), causal=True, dtype=bf16, tolerance=2e-2),
    *hopper_attentions((6, 130, 64), (2, 130, 64), causal=True, dtype=f16, tolerance=2e-3),
    *hopper_attentions((6, 130, 64), (6, 200, 64), mask=(6, 1, 200), dtype=bf16, tolerance=2e-2),
    *hopper_attentions((6, 130, 128), (2, 200, 128), bias=(1, 200), of_bias=bf16, causal=True, window=70, dtype=bf16, tolerance=2e-2),
    *mma_attentions((6, 130, 64), (2, 200, 64), causal=True, dtype=f16, tolerance=2e-3),
    *mma_attentions((6, 130, 128), (2, 200, 128), mask=(6, 1, 200), bias=(6, 130, 200), softcap=20.0, dtype=bf16, tolerance=2e-2),
    *mma_attentions((2, 6, 130, 256), (2, 2, 200, 256), ragged=True, causal=True, bias=(6, 130, 200), dtype=bf16, tolerance=2e-2),
    *(Case(FEW_ATTENTION, attention((b, 4, n, d), (b, 2, 300, d), dtype=t, ragged=True, causal=True, **asked), e)
      for b, n, d, t, e, asked in (
          (2, 1, 64, bf16, 2e-2, {}), (2, 7, 128, f16, 2e-3, {"window": 140}), (40, 20, 80, bf16, 2e-2, {"softcap": 5.0, "dv": 24}), (80, 1, 128, f16, 2e-3, {}))),
    *both_attentions((6, 130, 70), (2, 200, 70), mask=(6, 1, 200), softcap=20.0, window=90, dtype=bf16, tolerance=2e-2),
    *both_attentions((2, 6, 130, 64), (2, 2, 200, 64), ragged=True, causal=True, dtype=bf16, tolerance=2e-2),
    *biased_attentions((2, 6, 130, 70), (2, 2, 200, 70), (6, 130, 200), mask=(2, 1, 1, 200), softcap=20.0, dtype=bf16, tolerance=2e-2),
    *(Case(DECODE, attention((2, 2 * g, 1, d), (2, 2, 3000, d), dtype=t, ragged=True, causal=True), e)
      for g, d, t, e in ((1, 64, bf16, 2e-2), (2, 128, f16, 2e-3), (4, 128, bf16, 2e-2), (8, 128, bf16, 2e-2), (8, 256, f32, 2e-5))),
    Case("cuda.cache_write.v1", cache_write((8,), 4, 200, 3, 64, 64, bf16)),
    Case("cuda.sample_tokens.v1", sample_tokens(3, 50257, bf16)),
    Case("cuda.mark_tokens.v1", mark_tokens(3, 500, 7)),
    *(Case("cuda.weight_gradient_tiled.v1", region("convolution_weight_gradient_channels_last", desc((2, 20, 9, 12), t),
                                                   desc((2, 10, 9, 70), t), kernel=(3, 3), strides=(2, 1), low=(1, 1), high=(1, 1)), e)
      for t, e in ((f32, 2e-5), *HALVES.items())),
    *(Case("cuda.data_gradient_tiled.v1", region("convolution_data_gradient_channels_last", desc((2, 10, 9, 20), t),
                                                 desc((20, 3, 3, 35), t), sizes=(20, 9), strides=(2, 1), low=(1, 1), high=(1, 1), groups=2), e)
      for t, e in ((f32, 2e-5), *HALVES.items())),
    Case("cuda.weight_gradient_columns.v1", region("convolution_weight_gradient_channels_last", (2, 20, 9, 12), (2, 10, 9, 70),
                                                   kernel=(3, 3), strides=(2, 1), low=(1, 1), high=(1, 1)), 2e-5),
    Case("cuda.data_gradient_turned.v1", region("convolution_data_gradient_channels_last", (2, 10, 9, 20), (20, 3, 3, 35),
                                                sizes=(20, 9), strides=(2, 1), low=(1, 1), high=(1, 1)), 2e-5),
    Case("cuda.fill.v1", region("fill", shape=(30, 40), value=1.5, dtype=f32.id)),
    Case("cuda.reshape.v1", region("reshape", (30, 40), shape=(1200,))),
    Case("cuda.copy_strided.v1", region("copy", desc((30, 40), stride=(50, 1)))),
]  # fmt: skip


def activations(variant: str, lengths: Sequence[int]) -> list[tuple[ActKind, int]]:
    """Each with biases of two or three lengths over all tilings, which share their epilogues and take turns; all pairs for each
    with AICF_TEST_ALL."""
    turn = list(VARIANTS).index(variant)
    pairs = [(act, i) for act in ActKind for i in range(len(lengths))]
    taken = [p for p in pairs if ALL or (sum(p) + turn) % len(lengths) == 0]
    return [(act, lengths[i]) for act, i in taken]


def gemm_cases(variant: str, dtype: DType = f32, tolerance: float = 2e-5, **common: Any) -> list[Case]:
    """Every transpose, bias kind, activation and output of one GEMM variant, at ragged sizes and at even ones."""

    def of(*sizes: int, **more: Any) -> RegionSpec:
        return gemm(*sizes, dtype=dtype, **common, **more)

    transposes = [{"trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True)]
    made = [of(*sizes, **t) for t in transposes for sizes in ((37, 53, 29), (36, 52, 28))]
    made += [of(37, 53, 29, bias=length) for length in (1, 53, 37)]
    made += [
        of(20, 24, 20, bias=length, act=act, slope=0.2, save_preact=True)
        for act, length in activations(variant, (1, 24, 20))
    ]
    made += [
        of(1, 1, 1), of(1, 200, 3), of(200, 1, 3), of(5, 6, 0, bias=6, act=ActKind.sigmoid), of(0, 5, 3), of(5, 0, 3),
        of(33, 65, 17, c=True, alpha=0.5, beta=-1.5), of(33, 65, 17, c=True, bias=33, trans_b=True, beta=2.0),
        of(130, 129, 257, trans_a=True), of(257, 300, 100, trans_b=True, act=ActKind.tanh, bias=1),
        of(128, 132, 260), of(128, 132, 260, alignment=dtype.itemsize),
    ]  # fmt: skip
    return [Case(variant, r, tolerance=tolerance) for r in made]


def mma_cases(variant: str, dtype: DType) -> list[Case]:
    """The same for one on tensor cores: copies of 16, 8 and 4 bytes, and by numbers where its threads have registers for them."""

    def of(*sizes: int, **more: Any) -> RegionSpec:
        return gemm(*sizes, dtype=dtype, **more)

    transposes = [{"trans_a": ta, "trans_b": tb} for ta in (False, True) for tb in (False, True)]
    made = [of(*sizes, **t) for t in transposes for sizes in ((40, 56, 24), (264, 136, 520))]
    ragged = [of(*sizes, **t) for t in transposes for sizes in ((36, 52, 28), (38, 54, 70), (37, 53, 29))]
    made += [r for r in ragged if VARIANTS[variant].supported(r, preset("h200")) is None]
    made += [
        of(37, 56, 24),
        of(37, 53, 24, trans_b=True),
        of(40, 56, 29, trans_a=True),
        of(1, 8, 8),
        of(1, 1, 8, trans_b=True),
    ]
    made += [
        of(40, 56, 24, bias=length, act=act, slope=0.2, save_preact=True)
        for act, length in activations(variant, (1, 56, 40))
    ]
    made += [of(8, 8, 0, trans_a=True, bias=8, act=ActKind.sigmoid), of(0, 8, 8), of(8, 0, 8, trans_b=True), of(40, 24, 32, c=True, alpha=0.5, beta=-1.5),
             of(130, 128, 8), of(257, 304, 104, trans_b=True, act=ActKind.tanh, bias=1)]  # fmt: skip
    return [Case(variant, r, tolerance=HALVES[dtype]) for r in made]


def _elementwise() -> list[Case]:
    flat, strided = "cuda.elementwise_flat.v1", "cuda.elementwise_strided.v1"
    unary = [
        "relu",
        "leaky_relu",
        "gelu",
        "gelu_erf",
        "silu",
        "sigmoid",
        "tanh",
        "exp",
        "sqrt",
        "log",
        "neg",
        "square",
        "abs",
        "copy",
    ]
    binary = [
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "greater",
        "equal",
        "relu_grad",
        "leaky_relu_grad",
        "gelu_grad",
        "gelu_erf_grad",
        "silu_grad",
    ]
    cases = [Case(flat, region(op, (1025,))) for op in unary]
    cases += [Case(flat, region(op, (1025,), (1025,))) for op in binary]
    cases += [Case(flat, region("scale", (33, 3), factor=-1.5)), Case(flat, region("mul", (1025,), (1,)))]
    cases += [Case(flat, region("add", *2 * [desc((77,), t)])) for t in (i32, i64)]
    cases += [Case(flat, region("gelu", desc((77,), f16)), tolerance=2e-3)]
    cases += [Case(flat, region("mul", *2 * [desc((77,), bf16)]), tolerance=1e-2)]
    cases += [
        Case(flat, region("convert", desc((77,), a), dtype=b.id), tolerance=1e-2)
        for a, b in ((f32, f16), (f16, f32), (f32, bf16), (bf16, f32), (f32, i32), (i64, f32), (DType.bool, f32),
                     (f32, DType.bool), (i32, i64), (f32, f8e4m3), (f32, f8e5m2), (f8e4m3, bf16), (f8e5m2, f16), (i64, f8e5m2))
    ]  # fmt: skip
    p = (4, 257)
    cases += [
        Case(flat, region("select", desc((77,), DType.bool), (77,), (77,))),
        Case(flat, step("sgd_step", p, nesterov=True)),
        Case(flat, step("adam_step", p, decoupled=True)),
        Case(flat, step("amsgrad_step", p, decoupled=True)),
        *(Case(flat, step(op, p)) for op in ("lamb_update", "lamb_step", "lion_step", "rmsprop_step", "rmsprop_centered_step", "adagrad_step")),
        Case(flat, region("increment", desc((), i64), desc((), DType.bool))),
        Case(flat, region("adam_correction", desc((), i64), (), ())),
        Case(flat, region("schedule_cosine", desc((), i64), (), warmup=4, total=20)),
        Case(flat, region("schedule_linear", desc((3,), i64), (), total=10)),
        Case(flat, region("schedule_step", desc((3,), i64), (), every=2, gamma=0.5)),
        Case(strided, region("add", (5,), (3, 5))), Case(strided, region("mul", (4, 1), (3, 1, 7))),
        Case(strided, region("sub", (2, 1, 3, 1, 2, 1), (1, 2, 1, 3, 1, 2))),
        Case(strided, region("copy", desc((6, 5), f32, (1, 6)))), Case(strided, region("relu", (1025,))),
        Case(strided, region("greater", (4, 1), (1, 7))), Case(strided, region("add", (1, 1), ())),
        Case(strided, region("select", desc((4, 1), DType.bool), (1, 7), ())),
        Case(strided, region("div", desc((40, 50), f32, (200, 3)), (50,))),
    ]  # fmt: skip
    vector, half2 = "cuda.elementwise_vector.v1", "cuda.add_f16_half2.v1"
    for t, tolerance in ((f32, 1e-5), (f16, 5e-3), (bf16, 3e-2)):
        for n in (1, 7, 1024, 1025):
            cases += [
                Case(vector, region("mul", *2 * [desc((n,), t)]), tolerance=tolerance),
                Case(vector, step("sgd_step", desc((n,), t), f32), tolerance),
                Case(vector, step("adam_step", desc((n,), t), decoupled=True), tolerance),
            ]
    for shape in ((2,), (1024,), (4, 7), (3, 0), (2, 3, 5, 7)):
        cases.append(Case(half2, region("add", *2 * [desc(shape, f16)]), tolerance=1e-3))
    return cases


def channel_variance(shape: Sequence[int], dtype: DType) -> RegionSpec:
    """Of what is widened, about means that are given, and its root's inverse; differences leave as well."""
    keep = {"axes": (0, *range(2, len(shape))), "keepdims": True}
    means = desc((1, shape[1], *(1,) * (len(shape) - 2)))
    steps = ("c", "convert", "x", {"dtype": f32}), ("d", "sub", "c", "m"), ("s", "square", "d")
    return fused(
        {"x": desc(shape, dtype), "m": means},
        *steps,
        ("v", "reduce_mean", "s", keep),
        ("y", "rsqrt", "v"),
        keep=("d", "y"),
    )


def _reductions() -> list[Case]:
    rows, columns, naive, planes = (
        f"cuda.reduce_{name}.v2" for name in ("rows", "columns", "naive", "planes")
    )
    cases = []
    for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min"):
        cases += [Case(rows, region(op, shape, axes=axes)) for shape, axes in (
            ((3, 1025), (1,)), ((1000, 7), (1,)), ((5, 1), (1,)), ((3, 0), (1,)), ((), ()), ((2, 3, 5), ()),
            ((2, 100000), (1,)), ((300001,), (0,)), ((3, 7, 1), (2,)))]  # fmt: skip
        cases += [Case(columns, region(op, shape, axes=axes, keepdims=True)) for shape, axes in (
            ((1025, 3), (0,)), ((7, 1000), (0,)), ((2, 33, 5), (1,)), ((0, 3), (0,)), ((50000, 10), (0,)),
            ((3, 20000, 40), (1,)))]  # fmt: skip
        cases += [
            Case(naive, region(op, x, axes=axes))
            for x, axes in (
                ((4, 5, 6, 7), (0, 2)),
                ((4, 5, 6, 7), (1, 3)),
                (desc((30, 20), f32, (1, 30)), (1,)),
                ((3, 0), (1,)),
            )
        ]
    for n, op in enumerate(("reduce_sum", "reduce_mean", "reduce_max", "reduce_prod")):
        shapes = ((3, 5, 4, 8), (9, 3, 7, 7), (2, 700, 2, 2), (70, 2, 16, 16), (5, 2, 1, 3))
        cases += [
            Case(planes, region(op, x, axes=(0, 2, 3), keepdims=bool(n % 2)))
            for x in shapes
            if n < 3 or x[0] < 9
        ]
    cases += [
        Case(planes, channel_variance(x, t), ROW_TOLERANCE[t])
        for x in ((5, 4, 7, 8), (64, 3, 5, 5))
        for t in HALVES
    ]
    cases += [
        Case(planes, region("reduce_sum", desc((6, 3, 40), t), axes=(0, 2)), 1e-2)
        for t in (f16, bf16, i32, i64)
    ]
    cases += [Case(rows, region("reduce_sum", desc((3, 100), t), axes=(1,))) for t in (i32, i64)]
    cases += [Case(columns, region("reduce_max", desc((100, 3), t), axes=(0,))) for t in (i32, i64)]
    cases += [
        Case(rows, region("reduce_sum", desc((3, 100), t), axes=(1,)), tolerance=1e-2) for t in (f16, bf16)
    ]
    return cases


def _places() -> list[Case]:
    """Alone, split, along any axis, of each type, of what a map makes, and into what reads them."""
    rows, columns, naive = (f"cuda.reduce_{name}.v2" for name in ("rows", "columns", "naive"))
    cases = []
    for op in ("argmax", "argmin"):
        cases += [Case(rows, region(op, shape)) for shape in ((3, 1025), (1000, 7), (5, 1), (2, 100000))]
        cases += [Case(rows, region(op, desc((30, 100), t))) for t in (f16, bf16, i32)]
        cases += [
            Case(columns, region(op, x, axis=0, keepdims=True))
            for x in ((1025, 3), (7, 1000), (50000, 10), desc((100, 30), f16), desc((100, 30), i32))
        ]
        cases.append(Case(naive, region(op, desc((30, 20), f32, (1, 30)), axis=1)))
        cases.append(Case(rows, fused(
            {"x": (30, 100), "labels": desc((30,), i64)}, ("s", "scale", "x", {"factor": 0.5}), ("p", op, "s"),
            ("y", "equal", "p", "labels"),
        )))  # fmt: skip
    return cases


def _losses() -> list[Case]:
    cases = []
    for n, c, t in (
        (4, 7, i64),
        (1, 1, i32),
        (5, 1, i64),
        (3, 1025, i32),
        (100, 10, i64),
        (2, 50000, i64),
        (2, 0, i64),
    ):
        labels, row = desc((n,), t), (n,)
        for dtype in (f32, bf16) if c == 1025 else (f32,):
            logits, near = desc((n, c), dtype), ROW_TOLERANCE[dtype]
            for asked in ({}, {"ignore_index": 0, "label_smoothing": 0.1}):
                whole = region("cross_entropy", logits, labels, **asked)
                takes = ROWS if 0 < c < 50000 else (STREAMED, SERIAL)
                cases += [Case(v, whole, near) for v in takes]
            for asked in ({}, {"ignore_index": 0, "label": 0.9, "other": 0.1}):
                grad = region("cross_entropy_grad", logits, labels, row, row, row, **asked)
                cases += [Case(STRIDED, grad, near)]
    for n, t in ((0, i64), (1, i64), (30, i32), (1024, i64), (1025, i32), (300_000, i64)):
        labels = region("check_labels", desc((n,), t), desc((5,), i64), classes=5, ignore_index=-5)
        cases.append(Case("cuda.check_labels.v1", labels))
    deep = region("check_labels", desc((5, 60), i64), desc((5,), i64), classes=5, ignore_index=-5)
    return [*cases, Case("cuda.check_labels.v1", deep)]


def _linear_losses() -> list[Case]:
    """One chunk, and several of rows and of classes; widths that no vector divides; of the gradient, a chunk's c and the last one's type."""
    cases = []
    for rows, classes, k in (
        (4, 7, 5),
        (1, 1, 1),
        (130, 257, 64),
        (700, 50257, 40),
        (700, 50304, 64),
        (40000, 1001, 64),
        (0, 9, 4),
        (5, 9, 0),
    ):
        for t, near in ((f32, 2e-5), (f16, 4e-3), (bf16, 3e-2)):
            for asked in ({}, {"ignore_index": 0, "label_smoothing": 0.1, "z_loss": 0.01}):
                cases += [
                    Case(LINEAR_LOSS, linear_loss(rows, classes, k, t, **asked), 2e-5),
                    Case(LINEAR_LOSS_GRAD, linear_loss_grad(rows, classes, k, t, **asked), near),
                ]
                if t is not f32 and rows and k and k % 8 == 0:
                    cases += [
                        Case(LINEAR_LOSS_WGMMA, linear_loss(rows, classes, k, t, **asked), 2e-5),
                        Case(LINEAR_LOSS_GRAD_WGMMA, linear_loss_grad(rows, classes, k, t, **asked), near),
                    ]
    return cases


def _scans() -> list[Case]:
    """No step, one, many; both ways; rows that no vector divides; halves."""
    sizes = [
        (0, 3, 4, f32, 1e-5),
        (1, 3, 4, f32, 1e-5),
        (7, 3, 5, f32, 1e-5),
        (3, 64, 128, f16, 4e-3),
        (5, 1, 3, bf16, 3e-2),
    ]
    return [
        Case("cuda.scan.v1", scan(*size, reverse), near) for *size, near in sizes for reverse in (False, True)
    ]


def sorted_scatters(t: DType) -> list[RegionSpec]:
    """Of one, two and three passes of the sort; rows that all updates are for, of one and of many tiles; odd widths; unaligned."""
    return [
        region("scatter_add", desc(updates, t, alignment=alignment), desc((many,), i64 if size % 2 else i32), size=size, axis=axis)
        for updates, many, size, axis, alignment in (
            ((3000, 770), 3000, 5000, 0, 256), ((3000, 3), 3000, 50257, 0, 256), ((20000, 1), 20000, 70001, 0, 256),
            ((5000, 768), 5000, 1, 0, 256), ((2000, 72), 2000, 300, 0, t.itemsize), ((5, 1500, 16), 1500, 100, 1, 256),
            ((140000,), 140000, 255, 0, 256), ((1, 8), 1, 9, 0, 256),
        )
    ]  # fmt: skip


def _indexing() -> list[Case]:
    """Sizes that a tile, a block of rows and a pass over the indices do not divide; rows that many updates are for; empty ones."""
    cases = []
    for t, tolerance in ((f32, 1e-4), (f16, 2e-2), (bf16, 0.1), (i32, 0.0), (i64, 0.0)):
        for updates, indices, size, axis in (
            ((1000, 70), (1000,), 50, 0), ((20, 30, 300), (20, 30), 3, 0), ((5, 300, 3), (300,), 2000, 1),
            ((4000,), (4000,), 9000, 0), ((70, 0), (70,), 5, 0), ((0, 7), (0,), 5, 0), ((0, 9, 4), (9,), 5, 1), ((3, 9), (9,), 0, 1),
        ):  # fmt: skip
            case = region(
                "scatter_add", desc(updates, t), desc(indices, i64 if size % 2 else i32), size=size, axis=axis
            )
            cases.append(Case("cuda.scatter_add_rows.v2", case, tolerance))
        cases += [Case("cuda.scatter_add_sorted.v1", r, tolerance) for r in sorted_scatters(t)]
        along = region("scatter_add", desc((7, 30, 5), t), desc((7, 30, 5), i64), size=40, axis=1, along=True)
        cases.append(Case("cuda.scatter_add_along.v2", along, tolerance))
    for shape in ((), (0,), (7, 30), (1025,), (300, 1000)):
        for t in (i32, i64):
            cases.append(
                Case(
                    "cuda.check_indices.v1",
                    region("check_indices", desc(shape, t), desc((5,), i64), size=6, negative=t is i32),
                )
            )
    return cases


def repeated_rows() -> list[RegionSpec]:
    """Rows of which an operand repeats one element along the columns, as expanded tensors do."""
    return [
        region("softmax", desc((20, 100), f16, (1, 0))),
        region("log_softmax", desc((9, 7), f32, (0, 1)), axis=0),
        region("rms_norm", (7, 33), desc((33,), f32, (0,))),
        region("layer_norm", desc((4, 1030), f16), desc((1030,), f16, (0,)), desc((1030,), f16)),
    ]


def _rows() -> list[Case]:
    """Rows of one, of few, of a warp, a block and more, aligned and not, of each variant, in turns over types and regions."""
    made, makes = [], (softmax, softmax_grad, layer_norm, layer_norm_grad, rms_norm, logsumexp)
    shapes = (
        (1, 1),
        (3, 7),
        (5, 128),
        (4, 1000),
        (37, 1024),
        (2, 3, 129),
        (7, 4096),
        (3, 8193),
        (2, 40000),
        (130, 64),
        (0, 3),
    )
    for k, shape in enumerate(shapes):
        for n, make in enumerate(makes):
            t = (f32, f16, bf16)[(k + n) % 3]
            some = ROWS if (k + n) % 4 == 0 else (HELD,)  # which of sizes depends on the kernel
            made += [Case(v, make(shape, t), ROW_TOLERANCE[t]) for v in some]
    for t in (f32, bf16):
        made += [Case(v, softmax((5, 6, 7), t, axis), ROW_TOLERANCE[t]) for v in ROWS for axis in (0, 1)]
        made += [Case(v, logsumexp((33, 40), t, 0), ROW_TOLERANCE[t]) for v in ROWS]
    made += [Case(v, softmax(shape)) for v in (STREAMED, SERIAL) for shape in ((3, 0), (0, 0))]
    made += [Case(v, layer_norm((33, 768), bf16, f32), ROW_TOLERANCE[bf16]) for v in ROWS]
    made += [Case(v, region("softmax", desc((20, 100), f32, (1, 30)))) for v in ROWS]
    made += [Case(v, r, ROW_TOLERANCE[f16]) for v in ROWS for r in repeated_rows()]
    made += [
        Case(STREAMED, softmax((2, 200000), bf16), ROW_TOLERANCE[bf16]),
        *(
            Case(v, make((n, 3 * n + 4099), t), ROW_TOLERANCE[t])
            for v in (HELD, CLUSTER, STREAMED)
            for n, make, t in (
                (7, softmax_grad, f16),
                (131, layer_norm, bf16),
                (9, logsumexp, f32),
                (300, rms_norm, f16),
            )
        ),
        Case(CLUSTER, layer_norm_grad((11, 112885), f16), ROW_TOLERANCE[f16]),
        *(
            Case(
                v,
                replace(region("softmax", desc(shape, t, (shape[1] + gap, 1))), strict=True, invariant=True),
                ROW_TOLERANCE[t],
            )
            for v in (HELD, CLUSTER, STREAMED)
            for shape, gap, t in (
                ((131, 4099), 0, f16),
                ((300, 8192), 0, f32),
                ((9, 304), 7, bf16),
                ((30, 50257), 0, bf16),
            )
        ),
        Case(STREAMED, logsumexp((3, 262144))),
    ]
    return [c for c in made if VARIANTS[c.variant].supported(c.region, preset("h200")) is None]


def _attentions() -> list[Case]:
    """Tiles that are full and not, of one head and of several; head sizes of one block and of more; every mask; nothing at all."""
    made = []
    for q, k, asked in (
        ((1, 1, 1), (1, 1, 1), {}), ((2, 64, 64), (2, 64, 64), {"causal": True}), ((3, 65, 3), (3, 63, 3), {"causal": True}),
        ((2, 4, 1, 64), (2, 1, 300, 64), {"causal": True}), ((4, 37, 8), (2, 129, 8), {"causal": True, "dv": 130}),
        ((8, 50, 80), (2, 50, 80), {"causal": True}), ((2, 300, 256), (1, 300, 256), {"causal": True, "window": 70}),
        ((1, 129, 200), (1, 257, 200), {"window": 5, "scale": 0.1, "dv": 4}), ((2, 200, 64), (2, 70, 64), {"causal": True}),
        ((2, 70, 8), (1, 70, 8), {"scale": 0.0, "causal": True}),
        ((2, 70, 32), (2, 200, 32), {"softcap": 3.0, "causal": True}), ((2, 4, 70, 8), (2, 2, 90, 8), {"mask": (2, 1, 70, 90)}),
        ((2, 3, 4, 70, 8), (2, 3, 2, 90, 8), {"mask": (90,), "causal": True}), ((2, 70, 4), (2, 90, 4), {"mask": (2, 70, 1)}),
        ((2, 0, 8), (2, 5, 8), {}), ((2, 5, 8), (2, 0, 8), {}), ((0, 5, 8), (0, 5, 8), {}), ((2, 5, 0), (2, 7, 0), {"dv": 3}),
        ((5, 4, 70, 8), (5, 2, 150, 8), {"ragged": True, "causal": True}), ((5, 2, 3, 64), (5, 2, 90, 64), {"ragged": True, "window": 30}),
        ((2, 2, 4, 1, 64), (2, 2, 1, 300, 64), {"ragged": True, "mask": (300,)}), ((3, 4, 8), (3, 9, 8), {"ragged": True}),
        ((2, 5, 3), (2, 7, 3), {"dv": 0}), ((2, 70, 64), (2, 70, 64), {"alignment": 2}),
    ):  # fmt: skip
        for t, tolerance in ((f32, 2e-5), (f16, 2e-3), (bf16, 2e-2)):
            if "alignment" not in asked or t is not f32:
                made += both_attentions(q, k, dtype=t, tolerance=tolerance, **asked)
    for q, k, bias, asked in (
        ((2, 4, 70, 64), (2, 2, 90, 64), (4, 70, 90), {"causal": True}), ((3, 4, 70, 8), (3, 4, 90, 8), (3, 1, 70, 90), {"ragged": True}),
        ((2, 3, 4, 65, 8), (2, 3, 2, 65, 8), (2, 1, 4, 65, 65), {"mask": (2, 1, 1, 1, 65), "causal": True}),
        ((4, 70, 64), (4, 90, 64), (4, 1, 90), {"softcap": 3.0}), ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (3, 1, 5, 7), {"window": 3}),
    ):  # fmt: skip
        for t, tolerance in ((f32, 2e-5), (f16, 2e-3), (bf16, 2e-2)):
            made += biased_attentions(
                q, k, bias, dtype=t, tolerance=tolerance, of_bias=t if t is f16 else f32, **asked
            )
    return made


def _caches() -> list[Case]:
    sizes = (
        ((3,), 2, 7, 1, 4, 4),
        ((2, 2), 1, 9, 4, 3, 5),
        ((), 3, 500, 20, 8, 8),
        ((2,), 2, 3, 5, 4, 4),
        ((2,), 1, 4, 0, 4, 4),
        ((0,), 1, 4, 2, 4, 4),
    )
    made = [Case("cuda.cache_write.v1", cache_write(*size, t)) for size in sizes for t in (f32, f16, bf16)]
    made += [
        Case("cuda.sample_tokens.v1", sample_tokens(rows, words, t))
        for rows, words in ((1, 1), (5, 1000), (0, 9), (4, 9000), (1, 60000))
        for t in (f32, f16, bf16)
    ]
    return made + [
        Case("cuda.mark_tokens.v1", mark_tokens(*sizes))
        for sizes in ((3, 7, 4), (2, 70000, 1), (0, 4, 2), (2, 5, 0))
    ]


def _hopper_attentions() -> list[Case]:
    """Tiles that are whole and not; queries that stand before, at and behind the keys; heads that share keys; head sizes of both forms."""
    made = []
    for q, k, asked in (
        ((1, 1, 8), (1, 1, 8), {}), ((2, 128, 64), (2, 128, 64), {}), ((2, 128, 64), (2, 128, 64), {"causal": True}),
        ((3, 200, 64), (3, 200, 64), {"scale": 0.1}), ((4, 1000, 64), (2, 1000, 64), {"causal": True}),
        ((2, 333, 128), (2, 333, 128), {"causal": True}), ((2, 4, 150, 128), (2, 1, 150, 128), {"causal": True}),
        ((3, 2, 77, 72), (3, 1, 300, 72), {"causal": True, "dv": 40}), ((2, 70, 64), (2, 200, 64), {"causal": True}),
        ((2, 300, 64), (2, 170, 64), {"causal": True}), ((2, 500, 128), (2, 500, 128), {"causal": True, "window": 130}),
        ((2, 130, 64), (1, 250, 64), {"window": 7}), ((2, 385, 16), (2, 129, 16), {"causal": True}), ((2, 300, 128), (2, 300, 128), {}),
        ((2, 200, 64), (2, 200, 64), {"softcap": 5.0, "causal": True}), ((140, 256, 64), (140, 256, 64), {"causal": True}),
    ):  # fmt: skip
        for t, tolerance in ((f16, 2e-3), (bf16, 2e-2)):
            made += hopper_attentions(q, k, dtype=t, tolerance=tolerance, **asked)
    for q, k, asked in OF_KEYS:
        for t, tolerance in ((f16, 2e-3), (bf16, 2e-2)):
            made += hopper_attentions(q, k, dtype=t, tolerance=tolerance, **asked)
    return made + [_of_one_projection(c) for c in made if c.region.tensors[0].shape == (2, 128, 64)]


def _mma_attentions() -> list[Case]:
    """Tiles that are whole and not; every head size's form, rows at any multiple of 4 bytes; every mask, and what is added to scores."""
    made = []
    for q, k, asked in (
        ((1, 1, 2), (1, 1, 2), {}), ((2, 64, 64), (2, 64, 64), {}), ((2, 64, 64), (2, 64, 64), {"causal": True}),
        ((3, 200, 64), (3, 200, 64), {"scale": -0.1}), ((2, 90, 64), (1, 90, 64), {"scale": 0.0, "causal": True}), ((4, 1000, 64), (2, 1000, 64), {"causal": True}),
        ((2, 333, 128), (2, 333, 128), {"causal": True}), ((2, 300, 256), (1, 300, 256), {"causal": True, "window": 70}),
        ((2, 4, 150, 192), (2, 1, 150, 192), {"causal": True, "dv": 128}), ((3, 2, 77, 72), (3, 1, 300, 72), {"causal": True, "dv": 40}),
        ((2, 300, 64), (2, 170, 64), {"causal": True}), ((1, 129, 200), (1, 257, 200), {"window": 5, "scale": 0.1, "dv": 4}),
        ((2, 200, 96), (2, 200, 96), {"softcap": 5.0, "causal": True}), ((2, 70, 36), (2, 70, 36), {"alignment": 4}),
        ((2, 90, 34), (2, 130, 34), {"dv": 250}), ((40, 130, 64), (40, 130, 64), {"causal": True}),
        ((2, 4, 70, 8), (2, 2, 90, 8), {"mask": (2, 1, 70, 90)}), ((2, 3, 4, 70, 8), (2, 3, 2, 90, 8), {"mask": (90,), "causal": True}),
        ((2, 70, 4), (2, 90, 4), {"mask": (2, 70, 1)}), ((5, 4, 70, 64), (5, 2, 150, 64), {"ragged": True, "causal": True}),
        ((5, 2, 3, 64), (5, 2, 90, 64), {"ragged": True, "window": 30}), ((3, 4, 8), (3, 9, 8), {"ragged": True}),
        ((2, 4, 70, 64), (2, 2, 90, 64), {"bias": (4, 70, 90), "causal": True}), ((3, 4, 70, 128), (3, 4, 90, 128), {"bias": (3, 1, 70, 90), "ragged": True}),
        ((2, 3, 4, 65, 8), (2, 3, 2, 65, 8), {"bias": (2, 1, 4, 65, 65), "mask": (2, 1, 1, 1, 65), "causal": True}),
        ((4, 8, 1, 64), (4, 2, 1500, 64), {"ragged": True, "causal": True}), ((3, 12, 1, 128), (3, 4, 700, 128), {"causal": True, "window": 300}),
        ((2, 5, 17, 48), (2, 5, 260, 48), {"dv": 100, "softcap": 5.0}), ((70, 8, 1, 128), (70, 8, 256, 128), {"ragged": True}),
        ((4, 70, 256), (4, 90, 256), {"bias": (4, 1, 90), "softcap": 3.0}), ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), {"bias": (3, 1, 5, 7), "window": 3}),
    ):  # fmt: skip
        for t, tolerance in ((f16, 2e-3), (bf16, 2e-2)):
            of_bias = t if t is f16 else f32
            made += mma_attentions(q, k, dtype=t, tolerance=tolerance, of_bias=of_bias, **asked)
    return made + [_of_one_projection(c) for c in made if c.region.tensors[0].shape == (2, 64, 64)]


def _of_one_projection(case: Case) -> Case:
    """Heads that lie beside each other in the rows of a wider matrix."""
    tensors = [
        replace(t, stride=(64, 64 * 7, 1)) if t.rank == 3 and i in case.region.inputs else t
        for i, t in enumerate(case.region.tensors)
    ]
    return Case(case.variant, replace(case.region, tensors=tuple(tensors)), case.tolerance)


def _memory() -> list[Case]:
    strided = "cuda.elementwise_strided.v1"
    cases = [Case(strided, region("bias_add", shape, (length,)))
             for shape, length in (((4, 7), 7), ((4, 7), 4), ((4, 7), 1), ((5, 5), 5), ((1, 1), 1))]  # fmt: skip
    cases += [Case(strided, region("broadcast_in_dim", x, shape=shape, dims=dims)) for x, shape, dims in (
        ((7,), (4, 7), (1,)), ((4,), (4, 7), (0,)), ((), (2, 3), ()), ((4, 1), (4, 3, 5), (0, 2)))]  # fmt: skip
    cases += [
        Case(strided, region("transpose", desc((33, 70), t), perm=(1, 0)))
        for t in (f32, f16, DType.f8e4m3, DType.bool)
    ]
    cases += [
        Case(strided, region("reverse", (40, 33), dims=(0, 1))),
        Case(strided, region("slice", (5, 90), start=(1, 2), limit=(5, 90), step=(3, 2))),
        Case(
            "cuda.elementwise_vector.v1", region("slice", (6, 64), start=(2, 0), limit=(5, 64), step=(1, 1))
        ),
        Case("cuda.elementwise_flat.v1", region("slice", (301,), start=(2,), limit=(300,), step=(1,))),
        Case("cuda.elementwise_rows.v1", region("slice", (5, 64), start=(0, 4), limit=(5, 60), step=(2, 1))),
        *transposes(),
        Case("cuda.elementwise_rows.v1", region("transpose", (3, 5, 8), perm=(1, 0, 2))),
    ]
    cases += [  # rows of any length, where vectors cross from one to the next
        Case("cuda.elementwise_rows.v1", region("mul", desc(shape, t), desc((shape[0], 1), t)), tolerance=2e-5 if t is f32 else 5e-3)
        for shape, t in (((9, 1031), f32), ((5, 2047), bf16), ((3, 513), f16), ((2, 521), bf16))
    ]  # fmt: skip
    cases += [  # a coordinate along them
        Case(
            strided,
            region("cross_entropy_grad", desc((5, 2047), bf16), desc((5,), i64), *[(5,)] * 3),
            tolerance=5e-3,
        )
    ]
    cases += [Case("cuda.elementwise_rows.v1", region("broadcast_in_dim", (5,), shape=(5, 1027), dims=(0,)))]
    cases += [
        Case("cuda.fill.v1", region("fill", shape=(33, 5), value=1.0 if t is DType.bool else 2.0, dtype=t.id))
        for t in sorted(BASIC, key=lambda t: t.id)
    ]
    cases += [
        Case("cuda.reshape.v1", region("reshape", desc((4, 7), t), shape=(28,))) for t in (f32, f16, i64)
    ]
    return cases


def _dropouts() -> list[Case]:
    """Bit for bit the reference's masks: anything else would differ by far more than the tolerance."""
    cases = []
    for t in (f32, f16, bf16):
        for n in (0, 1, 3, 4, 1026):
            for alignment in (256, t.itemsize):
                r = region("dropout", desc((n,), t, alignment=alignment), desc((2,), i64), rate=0.4, layer=1)
                cases.append(
                    Case("cuda.dropout_philox.v1", r, tolerance={f32: 1e-6, f16: 1e-3, bf16: 8e-3}[t])
                )
    for rate in (0.0, 1.0):
        r = region("dropout", (4, 7), desc((2,), i64), rate=rate, layer=2**32 - 1)
        cases.append(Case("cuda.dropout_philox.v1", r))
    return cases


MORE = (
    [c for v in GEMMS for c in gemm_cases(v)]
    # what a half type changes, it changes alike in all tiles
    + [c for v in GEMMS for t, e in HALVES.items() for c in gemm_cases(v, t, e)[:: 1 if "64x64" in v else 5]]
    + [c for v, e in TF32S.items() for c in gemm_cases(v, tolerance=e, precision=Precision.tf32)]
    + [c for v in MMAS for t in halves_of(v) for c in mma_cases(v, t)[:: 1 if t is f16 else 5]]
    + _elementwise()
    + _dropouts()
    + _reductions()
    + _places()
    + _losses()
    + _linear_losses()
    + _scans()
    + _indexing()
    + _rows()
    + _attentions()
    + _caches()
    + _hopper_attentions()
    + _mma_attentions()
    + _memory()
)

# --- operands and references ------------------------------------------------------------------------------------------


@dataclass
class Operands:
    """Arrays as the op sees them, and the contiguous memory behind each (they differ for strided operands)."""

    arrays: list[np.ndarray] = field(default_factory=list)
    memory: list[np.ndarray] = field(default_factory=list)


def operands_for(case: Case, seed: int = 0) -> Operands:
    """Fresh random operands, in the domain of the first op that reads each."""
    rng, made, r = np.random.default_rng(seed), Operands(), case.region
    for tensor, t in zip(r.inputs, r.operands):
        op, schema, decl = _first_reader(r, tensor)
        shapes = [None if i < 0 else r.tensors[i].shape for i in op.inputs]
        values = draw(schema, decl, t.dtype, shapes, rng)
        extent = 1 + sum((d - 1) * s for d, s in zip(t.shape, t.stride)) if t.numel else 0
        memory = np.zeros(extent, t.dtype.numpy)
        array = np.ndarray(t.shape, t.dtype.numpy, memory, strides=[s * t.dtype.itemsize for s in t.stride])
        array[...] = np.asarray(values).astype(t.dtype.numpy)
        made.memory.append(memory)
        made.arrays.append(array)
    return made


def with_specials(case: Case, operands: Operands, seed: int = 0) -> Operands:
    """The same with NaN, infinities and zeros of both signs here and there, in float operands that may be anything."""
    rng, special = np.random.default_rng(seed), np.array([np.nan, np.inf, -np.inf, 0.0, -0.0])
    for tensor, array in zip(case.region.inputs, operands.arrays):
        _, schema, decl = _first_reader(case.region, tensor)
        if (
            array.size > 2 * special.size
            and array.dtype.kind not in "iub"
            and decl.name not in schema.domains
        ):
            at = rng.choice(array.size, special.size, replace=False)
            array[np.unravel_index(at, array.shape)] = special.astype(array.dtype)
    return operands


def _first_reader(r: RegionSpec, tensor: int) -> tuple[RegionOp, OpSchema, OperandDecl]:
    op = next(op for op in r.ops if tensor in op.inputs)
    schema = schema_of(op.kind)
    return op, schema, schema.declared(len(op.inputs))[op.inputs.index(tensor)]


# How kernels round what they multiply as TF32; others multiply f32, or three parts of it (3xTF32). Of 8192 numbers one lies half
# way: the accelerator takes the even neighbour, `cvt.rna` the one away from zero.
TF32_ROUNDING = {".gemm_wgmma.": to_tf32, ".gemm_mma.": round_tf32}


def tf32_rounding(variant: str) -> Callable[[np.ndarray], np.ndarray] | None:
    if "tf32x3" in variant or (".gemm_mma." in variant and "tf32" not in variant):
        return None
    return next((rounding for family, rounding in TF32_ROUNDING.items() if family in variant), None)


def reference(case: Case, arrays: Sequence[np.ndarray], exact: bool = True) -> list[np.ndarray]:
    """The ops in NumPy, one after another; values inside the region are rounded to their types where kernels have to (A15).

    Floats are float64 unless the values are special ones, which overflow elsewhere there. What a kernel multiplies as TF32 is
    rounded first as it does: of a few products, that makes as much of a difference as sums of many may be off.
    """
    r = case.region
    rounding = tf32_rounding(case.variant) if exact else None
    rounded = set(r.outputs) | {t for op in r.ops if jumps(op, r.tensors) for t in op.inputs}
    rounded |= {t for op in r.ops if r.strict or op.kind.name == "convert" for t in op.outputs}
    values = {i: _wide(x, exact) for i, x in zip(r.inputs, arrays)}
    made = dict(values)
    for op in r.ops:
        given = [None if i < 0 else values[i] for i in op.inputs]
        if rounding and op.kind.name == "gemm" and op.attrs["precision"] == Precision.tf32:
            given[:2] = [rounding(x.astype(np.float32)).astype(np.float64) for x in given[:2]]
        with np.errstate(all="ignore"):
            results = schema_of(op.kind).call_reference(given, op.attrs)
            for i, result in zip(op.outputs, results):
                made[i] = result
                dtype = r.tensors[i].dtype
                narrow = dtype.compute is not dtype and i in rounded
                values[i] = _wide(result.astype(dtype.numpy) if narrow else result, exact)
    return [made[i] for i in r.outputs]


def _wide(x: np.ndarray, exact: bool) -> np.ndarray:
    real = x.dtype == np.float64 or DType.of(x.dtype).kind == "float"
    return x.astype(np.float64 if exact else np.float32) if real else x


def assert_close(case: Case, got: Sequence[np.ndarray], want: Sequence[np.ndarray]) -> None:
    """Within the case's tolerance, relative and absolute; absolute grows with the root of what was summed."""
    fewest = max(1, min(t.numel for t in case.region.results))
    summed = max([1.0, *(t.numel / fewest for t in case.region.operands)])
    if case.region.kind.name == "gemm":
        summed = max(1, case.region.operands[0].shape[-2 if case.region.attrs["trans_a"] else -1])
    if case.region.kind.name == "convolution_channels_last":
        summed = max(1, *(np.prod(case.region.tensors[t].shape[1:]) for t in case.region.anchor.inputs[1:]))
    last, beside = case.region.ops[-1], 1
    if case.region.kind.name == "gemm" and last.kind.name == "reduce_sum":
        beside = max(1, case.region.tensors[last.inputs[0]].shape[0])
    for i, (g, w, t) in enumerate(zip(got, want, case.region.results)):
        near = case.tolerance if case.variant not in ROWS else 1e-5  # they add up in f32, and round but once
        many = summed * (beside if case.region.outputs[i] in last.outputs else 1)
        assert g.shape == t.shape and w.shape == t.shape, (
            f"result {i}: {g.shape} and {w.shape}, expected {t.shape}"
        )
        if t.dtype.kind != "float":
            want_whole = w.astype(t.dtype.numpy)
            if case.region.kind.name == "gemm" and t.dtype.kind == "int":
                # a sum that lies between two numbers of its type may be rounded to either, and is then cut off
                off = np.abs(g.astype(np.int64) - want_whole)
                assert off.max(initial=0) <= 1 and np.count_nonzero(off) <= 1 + off.size // 1000, (
                    f"{case}, result {i}"
                )
                continue
            np.testing.assert_array_equal(g, want_whole, err_msg=f"{case}, result {i}")
            continue
        np.testing.assert_allclose(
            g.astype(np.float64), w.astype(np.float64), rtol=case.tolerance, atol=max(case.tolerance, near * many**0.5),
            err_msg=f"{case}, result {i}",
        )  # fmt: skip
