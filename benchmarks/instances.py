"""Regions as models have them, at many sizes: what the choice among kernels is measured on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.ops.schema import schema_of
from aicf.rows import RegionOp, RegionSpec
from aicf.types import DType, OpKind, TensorDesc, numel

Emit = Callable[[GraphEmitter], Any]


@dataclass(frozen=True)
class Instance:
    """`emit(ctx)` returns the region's results. `shift`: elements that every tensor starts past alignment."""

    family: str
    name: str
    emit: Emit
    shift: int = 0

    def region(self, device: str) -> RegionSpec:
        """All ops as one region, in the order of their emission."""
        builder = Builder()
        results = self.emit(GraphEmitter(builder, device))
        outputs = {v.vid for v in (results if isinstance(results, tuple) else (results,))}
        number: dict[int, int] = {}
        ops, inner = [], set()
        for op in builder.graph.ops:
            if (
                schema_of(op.kind).name == "check_labels"
            ):  # the flag of a loss that holds steps back is a kernel of its own
                continue
            ins, outs = (
                tuple(number.setdefault(v, len(number)) if v >= 0 else -1 for v in vids)
                for vids in (op.inputs, op.outputs)
            )
            ops.append(RegionOp(OpKind(op.kind), schema_of(op.kind).pack(op.attrs), ins, outs))
            inner.update(outs)
        descs = [TensorDesc.dense(builder.graph.values[v].spec) for v in number]
        if self.shift:
            descs = [replace(d, alignment=self.shift * d.dtype.itemsize) for d in descs]
        return RegionSpec(
            tuple(ops), tuple(descs), tuple(n for n in number.values() if n not in inner),
            tuple(n for v, n in number.items() if v in outputs),
        )  # fmt: skip


# --- products ---------------------------------------------------------------------------------------------------------

Shape3 = tuple[int, int, int]

SQUARES = tuple((n, n, n) for n in (64, 128, 256, 512, 768, 1024, 2048, 4096))
SKINNY: tuple[Shape3, ...] = (
    (1, 4096, 4096), (8, 4096, 4096), (16, 1024, 1024), (64, 512, 512), (128, 512, 512), (128, 2048, 512),
    (4096, 64, 4096), (4096, 4096, 64), (64, 64, 4096), (256, 256, 8192), (64, 10, 256), (128, 256, 256),
)  # fmt: skip
RAGGED: tuple[Shape3, ...] = (
    (100, 100, 100), (127, 129, 131), (333, 777, 555), (500, 300, 200), (1000, 1000, 1000), (1023, 1025, 1024),
    (2049, 2049, 256), (1056, 2112, 1000),
)  # fmt: skip
LAYERS: tuple[Shape3, ...] = (
    (64, 256, 64), (128, 512, 512), (1024, 1024, 1024), (4096, 1024, 1024), (200, 3000, 500),
)  # fmt: skip


def _gemm(shape: Shape3, dtype: DType, after: str, trans_a: bool, trans_b: bool, ctx: GraphEmitter) -> Any:
    m, n, k = shape
    a = ctx.input("a", (k, m) if trans_a else (m, k), dtype)
    b = ctx.input("b", (n, k) if trans_b else (k, n), dtype)
    y = ctx.gemm(a, b, trans_a=trans_a, trans_b=trans_b)
    if after in ("relu", "gelu"):
        return ctx.op(after, ctx.bias_add(y, ctx.input("bias", (n,), dtype)))
    if after == "residual":
        return ctx.add(ctx.bias_add(y, ctx.input("bias", (n,), dtype)), ctx.input("r", (m, n), dtype))
    return ctx.relu_grad(y, ctx.input("h", (m, n), dtype)) if after else y


def _products(dtype: DType) -> Iterator[Instance]:
    def of(
        family: str, shape: Shape3, after: str = "", trans_a: bool = False, trans_b: bool = False
    ) -> Instance:
        order = ("T" if trans_a else "N") + ("T" if trans_b else "N")
        name = f"gemm {dtype} {'x'.join(map(str, shape))} {order}{' ' + after if after else ''}"
        return Instance(
            f"GEMM {dtype}, {family}", name, partial(_gemm, shape, dtype, after, trans_a, trans_b)
        )

    larger = () if dtype is DType.f32 else ((8192, 8192, 8192),)
    yield from (of("squares", s) for s in (*SQUARES, *larger))
    yield from (of("skinny", s) for s in SKINNY)
    yield from (of("ragged", s) for s in RAGGED)
    if dtype is DType.bf16:
        return
    for shape in LAYERS:
        yield from (
            of("with an epilogue", shape, after, trans_b=True) for after in ("relu", "gelu", "residual")
        )
        yield of("with an epilogue", shape, "gradient")
    for shape in LAYERS[1:3]:
        yield from (of("transposed", shape, "", *t) for t in ((False, True), (True, False), (True, True)))


# --- maps -------------------------------------------------------------------------------------------------------------


def _map(program: str, shape: tuple[int, ...], dtype: DType, ctx: GraphEmitter) -> Any:
    def tensor(name: str) -> Any:
        return ctx.input(name, shape, dtype)

    if program == "add":
        return ctx.add(tensor("x"), tensor("y"))
    if program == "gelu":
        return ctx.gelu(tensor("x"))
    if program == "mul, add, relu":
        return ctx.relu(ctx.add(ctx.mul(tensor("x"), tensor("y")), tensor("z")))
    if program == "add, tanh, mul, sub":
        x, y = tensor("x"), tensor("y")
        return ctx.sub(ctx.mul(ctx.tanh(ctx.add(x, y)), x), y)
    if program == "bias, relu":
        return ctx.relu(ctx.bias_add(tensor("x"), ctx.input("bias", shape[-1:], dtype)))
    if program == "rows scaled":
        scale = ctx.broadcast_in_dim(ctx.input("s", shape[:1], dtype), shape=shape, dims=(0,))
        return ctx.add(ctx.mul(tensor("x"), scale), tensor("y"))
    assert program == "dropout"
    return ctx.dropout(tensor("x"), ctx.input("rng", (2,), DType.i64), rate=0.3, layer=1)


def _adam(n: int, ctx: GraphEmitter) -> Any:
    tensors = [ctx.input(name, (n,)) for name in "pgmv"]
    numbers = [ctx.input(name, ()) for name in ("lr", "beta1", "beta2", "eps", "decay", "c1", "c2")]
    return ctx.adam_step(*tensors, *numbers, decoupled=True)


PROGRAMS = (
    ("add", DType.f32), ("add", DType.f16), ("mul, add, relu", DType.f32), ("gelu", DType.f16),
    ("add, tanh, mul, sub", DType.f32),
)  # fmt: skip
MATRICES = ((64, 64), (256, 1000), (1024, 1024), (4096, 4096), (8192, 1023), (100_000, 8))


def length(n: int) -> str:
    power = n.bit_length() - 1
    return f"2^{power}" if n == 2**power else f"2^{power}+{n - 2**power}"


def _maps() -> Iterator[Instance]:
    def of(family: str, program: str, dtype: DType, shape: tuple[int, ...], shift: int = 0) -> Instance:
        size = length(shape[0]) if len(shape) == 1 else "x".join(map(str, shape))
        name = f"{program} {dtype} {size}{' unaligned' if shift else ''}"
        return Instance(f"maps, {family}", name, partial(_map, program, shape, dtype), shift)

    for program, dtype in PROGRAMS:
        yield from (of(f"{program} {dtype}", program, dtype, (2**p,)) for p in range(4, 29, 2))
    for dtype in (DType.f32, DType.f16):
        yield from (of("ragged", "add", dtype, (2**p + 1,)) for p in (8, 12, 16, 20, 24))
        yield from (of("ragged", "add", dtype, (2**p,), shift=1) for p in (8, 12, 16, 20, 24))
        for program in ("bias, relu", "rows scaled"):
            yield from (of(f"broadcast {dtype}", program, dtype, shape) for shape in MATRICES)
        yield from (of("dropout, adam", "dropout", dtype, (2**p,)) for p in (8, 12, 16, 20, 24))
    for p in (8, 12, 16, 20, 24):
        yield Instance("maps, dropout, adam", f"adam f32 {length(2**p)}", partial(_adam, 2**p))


# --- reductions -------------------------------------------------------------------------------------------------------

REDUCED = (
    (16, 16), (128, 10), (64, 512), (1024, 1024), (8192, 128), (128, 8192), (4096, 4096), (65536, 64), (8, 2**20),
    (2**20, 8), (33, 10_001),
)  # fmt: skip
AXES = (("rows", (1,)), ("columns", (0,)), ("all", ()))


def _reduction(
    kind: str, shape: tuple[int, int], axes: tuple[int, ...], around: bool, dtype: DType, ctx: GraphEmitter
) -> Any:
    x = ctx.input("x", shape, dtype)
    if not around:
        return ctx.op(kind, x, axes=axes)
    return ctx.scale(ctx.op(kind, ctx.mul(ctx.relu(x), ctx.input("y", shape, dtype)), axes=axes), factor=0.5)


def _cross_entropy(shape: tuple[int, int], ctx: GraphEmitter) -> Any:
    return ctx.cross_entropy(ctx.input("x", shape), ctx.input("labels", shape[:1], DType.i64))


def _reductions() -> Iterator[Instance]:
    for kind, dtype, shapes in (
        ("reduce_sum", DType.f32, REDUCED), ("reduce_mean", DType.f16, REDUCED[:8]), ("reduce_max", DType.f32, REDUCED[2:6]),
    ):  # fmt: skip
        for (what, axes), around in ((a, around) for a in AXES for around in (False, True)):
            if around and kind != "reduce_sum":
                continue
            for shape in shapes:
                size = f"{shape[0]}x{shape[1]}"
                name = f"{'relu, mul, ' if around else ''}{kind} {what}{', scale' if around else ''} {dtype} {size}"
                family = f"reductions of {what}{' with maps' if around else ''}, {dtype}"
                yield Instance(family, name, partial(_reduction, kind, shape, axes, around, dtype))
    for shape in ((64, 10), (1024, 1000), (8192, 128), (256, 50_000)):
        name = f"cross_entropy {shape[0]}x{shape[1]}"
        yield Instance("reductions of rows, losses", name, partial(_cross_entropy, shape))


def instances() -> list[Instance]:
    """All of them, those of a family together."""
    products = [i for dtype in (DType.f32, DType.f16, DType.bf16) for i in _products(dtype)]
    return [*products, *_maps(), *_reductions()]


def work(region: RegionSpec) -> float:
    """Bytes and flops together, for a machine that can't do the large ones in time."""
    flops = 0.0
    for op in region.ops:
        shape = region.tensors[op.outputs[0]].shape
        a = region.tensors[op.inputs[0]].shape
        depth = a[-2 if op.attrs["trans_a"] else -1] if op.kind.name == "gemm" else 1
        flops += 2.0 * depth * numel(shape)
    return region.nbytes + flops
