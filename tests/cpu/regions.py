"""Regions of several ops, run by one variant of the CPU and held to the ops' references in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import aicf.ops  # noqa: F401  (registers the ops)
from aicf.cpu_kernels import MODULES
from aicf.device.spec import host
from aicf.ops.schema import schema_of
from aicf.registry.variant import variants_in
from aicf.rows import RegionOp, RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f16, f32

VARIANTS = {v.name: v for m in MODULES for v in variants_in(m)}
TOLERANCE = {f32: 2e-6, f16: 1e-3, bf16: 8e-3}

Step = tuple[Any, ...]  # (kind, names of operands, names of results, attributes)


class Graph:
    """Ops between named arrays, as a region. Operands are the arrays themselves, in whatever layout they have."""

    def __init__(
        self, operands: Mapping[str, np.ndarray], *steps: Step, keep: str = "", strict: bool = False
    ) -> None:
        self.operands, self.steps = dict(operands), [(k, i.split(), o.split(), a) for k, i, o, a in steps]
        self.keep = keep.split() or self.steps[-1][2]
        index = {name: n for n, name in enumerate(self.operands)}
        tensors = [described(a) for a in self.operands.values()]
        self.ops = []
        for kind, ins, outs, attrs in self.steps:
            schema, at = schema_of(kind), [index.get(n, -1) for n in ins]
            specs = [TensorSpec(tensors[t].shape, tensors[t].dtype) if t >= 0 else None for t in at]
            packed = schema.pack(schema.normalized(specs, attrs))
            for name, spec in zip(outs, schema.infer(specs, packed), strict=True):
                index[name] = len(tensors)
                tensors.append(TensorDesc.dense(spec))
            self.ops.append(RegionOp(schema.kind, packed, tuple(at), tuple(index[n] for n in outs)))
        places = tuple(range(len(self.operands)))
        self.region = RegionSpec(
            tuple(self.ops), tuple(tensors), places, tuple(index[n] for n in self.keep), strict
        )

    def wanted(self) -> list[np.ndarray]:
        """The kept values in float64, or exactly where they are no floats."""
        known = {n: a.astype(np.float64) if is_float(a) else a for n, a in self.operands.items()}
        for (kind, ins, outs, _), op in zip(self.steps, self.ops):
            values = schema_of(kind).call_reference([known.get(n) for n in ins], op.attrs)
            known.update(zip(outs, values))
        return [known[name] for name in self.keep]

    def run(self, variant: str, alias: Mapping[str, str] | None = None) -> list[np.ndarray]:
        """The kept values as a kernel makes them. `alias`: result -> operand it is written over."""
        kernel = VARIANTS[variant]
        reason = kernel.supported(self.region, host())
        assert reason is None, reason
        operands = {
            name: a.copy() if name in (alias or {}).values() else a for name, a in self.operands.items()
        }
        results = [
            operands[alias[name]] if alias and name in alias else poisoned(t)
            for name, t in zip(self.keep, self.region.results)
        ]
        kernel.build(self.region, host()).function(list(operands.values()), results)
        return results

    def check(
        self, variant: str, tolerance: float | None = None, alias: Mapping[str, str] | None = None
    ) -> None:
        for name, got, want, desc in zip(
            self.keep, self.run(variant, alias), self.wanted(), self.region.results
        ):
            assert got.shape == want.shape
            if desc.dtype.kind != "float":
                np.testing.assert_array_equal(got, want, err_msg=name)
                continue
            finite = want[np.isfinite(want)]
            scale = max(1.0, float(np.abs(finite).max())) if finite.size else 1.0
            allowed = tolerance or TOLERANCE[desc.dtype]
            np.testing.assert_allclose(
                got.astype(np.float64), want, rtol=allowed, atol=allowed * scale, err_msg=name
            )


def described(array: np.ndarray) -> TensorDesc:
    itemsize = array.itemsize
    return TensorDesc(DType.of(array.dtype), array.shape, tuple(s // itemsize for s in array.strides))


def is_float(array: np.ndarray) -> bool:
    return DType.of(array.dtype).kind == "float"


def poisoned(desc: TensorDesc) -> np.ndarray:
    """Memory in which an element that was never written shows."""
    return np.full(desc.shape, np.nan if desc.dtype.kind == "float" else 77, desc.dtype.numpy)


def normal(*shape: int, dtype: DType = f32, seed: int | None = None) -> np.ndarray:
    """Random values, new in every run; f32 values of few digits where the type is narrower."""
    values = np.random.default_rng(seed).normal(size=shape)
    if dtype is DType.bool:
        return np.asarray(values > 0)
    return np.asarray(np.rint(5 * values) if dtype.kind == "int" else values).astype(dtype.numpy)


def with_specials(a: np.ndarray) -> np.ndarray:
    """NaN, infinities and zeros of both signs among the elements."""
    flat = a.reshape(-1).copy()
    for at, value in zip(range(0, flat.size, 3), [np.nan, np.inf, -np.inf, 0.0, -0.0] * flat.size):
        flat[at] = value
    return flat.reshape(a.shape)


def random_rows(seed: int, dtype: DType = f32) -> Graph:
    """Maps, reductions over one axis that are met by whole rows again, softmax and norms: up to nine ops and up to three results."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.choice([1, 2, 3, 5, 8], rng.integers(1, 4)))
    axis = int(rng.integers(len(shape)))
    column = tuple(1 if a == axis else n for a, n in enumerate(shape))
    operands = {
        "x": normal(*shape, dtype=dtype, seed=seed), "v": normal(shape[-1], dtype=dtype, seed=seed + 1),
        "c": normal(*column, dtype=dtype, seed=seed + 2),
    }  # fmt: skip
    steps: list[Step] = [("mul", "x v", "h", {}), ("add", "h c", "g", {})]
    whole, rows = ["g"], list[str]()
    of_rows = ["softmax", "log_softmax", *(["rms_norm", "layer_norm"] if axis == len(shape) - 1 else [])]
    for n in range(int(rng.integers(2, 8))):
        name, sort = f"t{n}", rng.choice(["unary", "binary", "again", "row", "reduce", "norm"])
        one = str(rng.choice(whole[-3:]))
        if n == 0 or sort == "reduce":
            how = {"axes": (axis,), "keepdims": True}
            steps.append((str(rng.choice(["reduce_mean", "reduce_max"])), one, name, how))
        elif sort == "norm":
            kind = str(rng.choice(of_rows))
            more = (
                " ".join([f"{name}m", f"{name}r"][-1 if kind == "rms_norm" else 0 :])
                if "norm" in kind
                else ""
            )
            attrs = {"eps": 0.5} if more else {"axis": axis}
            steps.append((kind, one, f"{name} {more}".strip(), attrs))
        elif sort == "row":
            steps.append((str(rng.choice(["tanh", "sigmoid", "square"])), str(rng.choice(rows)), name, {}))
        elif sort == "unary":
            steps.append((str(rng.choice(["tanh", "sigmoid", "gelu", "abs", "relu"])), one, name, {}))
        else:
            other = str(rng.choice(rows if sort == "again" else whole))
            steps.append((str(rng.choice(["add", "sub", "maximum"])), f"{one} {other}", name, {}))
        (rows if n == 0 or sort in ("row", "reduce") else whole).append(name)
    last = (rows if whole[-1] == "g" else whole)[-1]
    inner = [str(n) for n in rng.choice([*whole, *rows], rng.integers(0, 3))]
    return Graph(operands, *steps, keep=" ".join(dict.fromkeys([last, *inner])))


def chain(kinds: Sequence[str], **attrs: Any) -> Callable[[np.ndarray], Graph]:
    """Ops of one operand, one after the other, all results kept."""

    def of(x: np.ndarray) -> Graph:
        names = ["x", *(f"v{n}" for n in range(len(kinds)))]
        steps = [(k, names[n], names[n + 1], attrs.get(k, {})) for n, k in enumerate(kinds)]
        return Graph({"x": x}, *steps, keep=" ".join(names[1:]))

    return of
