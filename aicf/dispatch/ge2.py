"""ge2_launch: the launch table of graph_executor_v2, products by name on raw buffers. It calls `gemm`; the kernel is still chosen.

| name | buffers |
|---|---|
| gemm_bias_act_f32, gemm_bias_act_tc_f16 | A, B, D, (bias), params |
| gemm_bias_act_f32_ex | A, B, (C), D, (bias), (Z), params |
| gemm_bias_act_bwd_f32_ex | A, B, (C), gY, Z, gA, gB, (gC), (gBias), params |

Those in parentheses are there if params say so: C and gC with `use_c`, bias and gBias with `bias`, Z with `save_z`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..device import streams
from ..device.foreign import Foreign
from ..device.interop import adopt
from ..device.tensor import Runtime, Tensor
from ..errors import FeedError, RegistryError
from ..ops.schema import schema_of
from ..registry.select import Selection
from ..types import ActKind, DType, TensorSpec, f16, f32, numel
from .call import _runtime as runtime_of
from .call import _work_stream, op_call


@dataclass(frozen=True)
class GemmBiasActParams:
    """D = act(Z), Z = alpha op(A) op(B) + beta C + bias. D, Z, C and their gradients are (m, n); op(A) (m, k); op(B) (k, n).

    ld*       elements from one row of a buffer to the next, as it is stored; 0 for rows without gaps. ldc is also of gC, ldd also of gY,
              lda of gA, ldb of gB
    bias      elements of the bias: 0 for none, 1, n or m
    slope     of leaky_relu
    save_z    also write Z (forward)
    """

    m: int
    n: int
    k: int
    alpha: float = 1.0
    beta: float = 1.0
    act: ActKind = ActKind.none
    slope: float = 0.01
    trans_a: bool = False
    trans_b: bool = False
    bias: int = 0
    use_c: bool = False
    save_z: bool = False
    lda: int = 0
    ldb: int = 0
    ldc: int = 0
    ldd: int = 0
    ldz: int = 0

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of `gemm` that they stand for."""
        beta = self.beta if self.use_c else 1.0
        return {
            "alpha": self.alpha, "beta": beta, "act": self.act, "slope": self.slope, "trans_a": self.trans_a,
            "trans_b": self.trans_b,
        }  # fmt: skip

    def has(self, name: str) -> bool:
        """Whether a buffer is among those given."""
        optional = {
            "C": self.use_c,
            "gC": self.use_c,
            "bias": self.bias > 0,
            "gBias": self.bias > 0,
            "Z": self.save_z,
        }
        return optional.get(name, True)

    def layout(self, name: str) -> tuple[tuple[int, ...], int]:
        """The shape of a buffer as it is stored, and its leading dimension."""
        if name in ("bias", "gBias"):
            return (self.bias,), 1
        rows, columns, ld = {
            "A": (self.m, self.k, self.lda), "B": (self.k, self.n, self.ldb), "C": (self.m, self.n, self.ldc),
            "D": (self.m, self.n, self.ldd), "Z": (self.m, self.n, self.ldz),
        }["D" if name == "gY" else name.removeprefix("g")]  # fmt: skip
        if (name[-1] == "A" and self.trans_a) or (name[-1] == "B" and self.trans_b):
            rows, columns = columns, rows
        if ld and ld < columns:
            raise FeedError(
                f"the leading dimension of {name} is {ld}", expected=f"0, or at least its {columns} columns"
            )
        return (rows, columns), ld or columns


_FORWARD, _FORWARD_EX = ("A", "B", "D", "bias"), ("A", "B", "C", "D", "bias", "Z")
_BACKWARD_EX = ("A", "B", "C", "gY", "Z", "gA", "gB", "gC", "gBias")
TABLE: dict[str, tuple[tuple[str, ...], DType]] = {
    "gemm_bias_act_f32": (_FORWARD, f32),
    "gemm_bias_act_f32_ex": (_FORWARD_EX, f32),
    "gemm_bias_act_tc_f16": (_FORWARD, f16),
    "gemm_bias_act_bwd_f32_ex": (_BACKWARD_EX, f32),
}


def ge2_launch(name: str, bufs: Sequence[Any], stream: Any = None) -> Selection:
    """Run a product of the launch table; returns the choice of its kernel (for a gradient, that of gA's).

    name    one of TABLE
    bufs    buffers in the order of the table, then a `GemmBiasActParams`. A buffer is any tensor whose memory is dense: its bytes are
            taken as params say, whatever its shape
    stream  any library's stream, or its handle. By default PyTorch's current one if a buffer is PyTorch's, CuPy's, else aicf's own;
            ordering it with other streams is the caller's
    """
    if name not in TABLE:
        raise RegistryError(f"ge2_launch knows no {name!r}", expected=", ".join(TABLE))
    order, dtype = TABLE[name]
    *given, params = bufs if bufs else [None]
    if not isinstance(params, GemmBiasActParams):
        raise FeedError(
            f"{name}: the last of bufs is a {type(params).__name__}", expected="a GemmBiasActParams"
        )
    names = [n for n in order if params.has(n) or (n == "Z" and "gY" in order)]
    if len(given) != len(names):
        raise FeedError(
            f"{name} was given {len(given)} buffers", expected=", ".join([*names, "params"]),
            hint="use_c, bias and save_z of the params say which of them are there",
        )  # fmt: skip
    found = [adopt(buffer, n) for n, buffer in zip(names, given)]
    b = {n: _view(n, buffer, dtype, params) for n, buffer in zip(names, found)}
    if stream is None and found[0].device == "cuda":
        stream = _work_stream(found, found[0].ordinal)
    if "gY" in b:
        return _backward(b, params, stream)
    results = [b["D"], b["Z"]] if params.save_z else [b["D"]]
    attrs = {**params.attrs, "save_preact": params.save_z}
    return op_call("gemm", [b["A"], b["B"], b.get("C"), b.get("bias")], results, attrs, stream)


def _view(name: str, found: Foreign, dtype: DType, params: GemmBiasActParams) -> Tensor:
    """The memory of a buffer as a matrix (or the bias) with its leading dimension."""
    shape, ld = params.layout(name)
    stride = (ld, 1)[-len(shape) :]
    needed = 1 + sum((d - 1) * step for d, step in zip(shape, stride)) if numel(shape) else 0
    if not found.contiguous or found.desc.dtype is not dtype or found.desc.numel < needed:
        raise FeedError(
            f"buffer {name} does not hold {'x'.join(map(str, shape))} with rows {ld} apart",
            expected=f"dense memory of {needed} elements of {dtype} or more", got=str(found.desc),
        )  # fmt: skip
    if found.readonly and name in ("D", "Z", "gA", "gB", "gC", "gBias"):
        raise FeedError(f"buffer {name} can't be written: {found.readonly}")
    array = None
    if found.array is not None:
        steps = tuple(s * dtype.itemsize for s in stride)
        array = np.lib.stride_tricks.as_strided(found.array.reshape(-1), shape, steps)
    spec = TensorSpec(shape, dtype, found.device)
    return Tensor(spec, found.ptr, runtime_of(found.place), found.owner, stride, array)


# --- gradients --------------------------------------------------------------------------------------------------------


class _Eager:
    """An emitter that runs each op at once, for a gradient rule. Its results live until `release`."""

    def __init__(self, runtime: Runtime, stream: Any) -> None:
        self.runtime, self.stream = runtime, stream
        self.held: list[int] = []
        self.selections: list[Selection] = []

    def __getattr__(self, kind: str) -> Any:
        return functools.partial(self.op, kind)

    def op(self, kind: str, *operands: Any, **attrs: Any) -> Any:
        schema = schema_of(kind)
        specs = [None if t is None else t.spec for t in operands]
        inferred = schema.infer(specs, schema.pack(schema.normalized(specs, attrs)), self.runtime.kind)
        results = [self.empty(spec) for spec in inferred]
        self.selections.append(op_call(kind, operands, results, attrs, self.stream))
        return results[0]

    def empty(self, spec: TensorSpec) -> Tensor:
        if self.runtime.kind == "cpu":
            return self.runtime.empty(spec)
        self.held.append(streams.allocate(streams.handle_of(self.stream), max(spec.nbytes, 1)))
        return Tensor(spec, self.held[-1], self.runtime)

    def release(self) -> None:
        """Memory is freed in the stream's order: after what was started."""
        for pointer in self.held:
            streams.free(streams.handle_of(self.stream), pointer)


def _backward(b: dict[str, Tensor], params: GemmBiasActParams, stream: Any) -> Selection:
    """The gradient rule of gemm, and a copy of each of its results into its buffer."""
    a, z = b["A"], b["Z"]
    with a.runtime.current():
        emit = _Eager(a.runtime, stream)
        try:
            slope = {"slope": params.slope} if params.act == ActKind.leaky_relu else {}
            d = z if params.act == ActKind.none else emit.op(ActKind(params.act).name, z, **slope)
            bias = emit.empty(TensorSpec((params.bias,), a.dtype, a.device)) if params.bias else None
            rule = schema_of("gemm").gradient_fn
            assert rule is not None
            gradients = rule(
                emit,
                a,
                b["B"],
                b.get("C"),
                bias,
                d,
                z,
                b["gY"],
                None,
                **schema_of("gemm").values({**params.attrs, "precision": 0, "out_dtype": None}),
            )
            for name, gradient in zip(("gA", "gB", "gC", "gBias"), gradients):
                if name in b:
                    op_call("copy", [gradient], [b[name]], {}, stream)
        finally:
            emit.release()
    return next(s for s in emit.selections if s.region.ops[0].kind.name == "gemm")
