"""Softmax, norms and sums of rows, forward and backward: 60 cases drawn by a rule, against torch.compile, and the speed of memory.

Sizes are drawn with a fixed seed, so that they are nobody's choice: rows of 128 to 262,144, powers of two, multiples of 64 and odd ones;
1 to 65,536 of them; f32, bf16 and f16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import aicf
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f16, f32

from .. import sides
from ..gpu import LAUNCHES
from ..harness import Bench, Case, NotHere, Suite
from ..results import Row, row

PEER, COPY = "torch.compile", "device copy of as many bytes"
COUNT, SEED = 60, 2026
TOLERANCE = {f32: 2e-5, f16: 4e-3, bf16: 3e-2}
LARGEST = 2**28  # elements of a case, at most


@dataclass(frozen=True)
class Op:
    """operands: "x" for rows, "n" for a vector as long as a row, "1" for a number of each row, in f32."""

    kind: str
    operands: str
    theirs: Callable[..., Any]


def _wide(x: Any) -> Any:
    """Statistics are f32; of the reference, f64."""
    return x if x.element_size() == 8 else x.float()


def _layer_norm_grad(torch: Any, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    h, g = (_wide(x) - mean) * rstd, _wide(dy) * _wide(weight)
    return ((g - g.mean(-1, True) - h * (g * h).mean(-1, True)) * rstd).to(x.dtype)


def _rms_norm(torch: Any, x: Any, weight: Any) -> Any:
    wide = _wide(x)
    rstd = torch.rsqrt(wide.square().mean(-1, True) + 1e-6)
    return (wide * rstd * _wide(weight)).to(x.dtype), rstd


def _rms_norm_grad(torch: Any, dy: Any, x: Any, rstd: Any, weight: Any) -> Any:
    h, g = _wide(x) * rstd, _wide(dy) * _wide(weight)
    return ((g - h * (g * h).mean(-1, True)) * rstd).to(x.dtype)


def _layer_norm(torch: Any, x: Any, weight: Any, bias: Any) -> Any:
    wide = _wide(x)
    mean = wide.mean(-1, True)
    rstd = torch.rsqrt((wide - mean).square().mean(-1, True) + 1e-5)
    return ((wide - mean) * rstd * _wide(weight) + _wide(bias)).to(x.dtype), mean, rstd


def _softmax_grad(torch: Any, dy: Any, y: Any) -> Any:
    g, p = _wide(dy), _wide(y)
    return ((g - (g * p).sum(-1, True)) * p).to(y.dtype)


OPS = (
    Op("softmax", "x", lambda torch, x: torch.softmax(x, -1)),
    Op("softmax_grad", "xx", _softmax_grad),
    Op("log_softmax", "x", lambda torch, x: torch.log_softmax(x, -1)),
    Op("logsumexp", "x", lambda torch, x: torch.logsumexp(x, -1, True)),
    Op("layer_norm", "xnn", _layer_norm),
    Op("layer_norm_grad", "xx11n", _layer_norm_grad),
    Op("rms_norm", "xn", _rms_norm),
    Op("rms_norm_grad", "xx1n", _rms_norm_grad),
)


def drawn() -> list[tuple[Op, int, int, DType]]:
    """(op, rows, length, dtype), the same each time."""
    rng, made = np.random.default_rng(SEED), []
    while len(made) < COUNT:
        op, dtype = OPS[len(made) % len(OPS)], (bf16, f32, f16)[len(made) % 3]
        length = round(2 ** rng.uniform(7, 18))
        length = (1 << (length.bit_length() - 1), -(-length // 64) * 64, length | 1)[rng.integers(3)]
        rows = round(2 ** rng.uniform(0, 16))
        if rows * length * len(op.operands) <= LARGEST:
            made.append((op, rows, length, dtype))
    return made


def cases(bench: Bench) -> list[Case]:
    some = drawn()[:3] if bench.tiny else drawn()
    return [_case(*one) for one in some]


def _region(op: Op, rows: int, length: int, dtype: DType, device: str) -> RegionSpec:
    shapes = {"x": (rows, length), "n": (length,), "1": (rows, 1)}
    descs = [TensorDesc.dense(TensorSpec(shapes[o], f32 if o == "1" else dtype, device)) for o in op.operands]
    return sides.one_op(op.kind, descs)


def _case(op: Op, rows: int, length: int, dtype: DType) -> Case:
    name = f"{op.kind} {dtype} {rows}x{length}"

    def kernels(device: aicf.DeviceSpec) -> list[tuple[str, RegionSpec]]:
        region = _region(op, rows, length, dtype, device.kind)
        return [(sides.predicted(region, device)[0][0], region)]

    def measure(bench: Bench) -> Iterator[Row]:
        if not bench.on_gpu:
            raise NotHere("the peer is PyTorch's compiler on a GPU")
        lab, torch = bench.lab, bench.lab.torch
        region = _region(op, rows, length, dtype, "cuda")
        types = {f32: torch.float32, f16: torch.float16, bf16: torch.bfloat16}

        def given(n: int, desc: TensorDesc) -> Any:
            """Rows as they come: a softmax for the result of one; positive numbers for deviations."""
            made = torch.randn(desc.shape, device=lab.device)
            if n == 1 and op.operands == "xx":
                made = torch.softmax(made, -1)
            elif desc.shape[-1] == 1:
                made = made.abs() + 0.5
            return made.to(types[desc.dtype])

        count = lab.sets(region.nbytes)
        operands = [[given(n, d) for n, d in enumerate(region.operands)] for _ in range(count)]
        results = [
            [
                torch.full(d.shape, float("nan"), device=lab.device, dtype=types[d.dtype])
                for d in region.results
            ]
            for _ in range(count)
        ]
        bound = [sides.bind_op(lab.runtime, op.kind, a, b) for a, b in zip(operands, results)]
        launch_sets = [i % count for i in range(LAUNCHES)]
        torch._dynamo.reset()
        compiled = torch.compile(lambda *a: op.theirs(torch, *a), dynamic=False)
        graphs = {
            "aicf": lab.aicf_graph([bound[i].call for i in launch_sets]),
            PEER: lab.torch_graph(lambda: [compiled(*operands[i]) for i in launch_sets]),
        }
        half = (
            -(-region.nbytes // 32) * 4
        )  # numbers of f32, read and written: as many bytes as the case moves
        flat = [torch.empty(2, half, device=lab.device) for _ in range(count)]
        graphs[COPY] = lab.torch_graph(lambda: [flat[i][0].copy_(flat[i][1]) for i in launch_sets])
        graphs["aicf"]()
        wide = op.theirs(torch, *(x.double() for x in operands[0]))
        for got, want in zip(results[0], wide if isinstance(wide, tuple) else (wide,)):
            lab.verify(name, got.reshape(-1), lambda at, want=want: want.reshape(-1)[at], TOLERANCE[dtype])
        times = bench.compare({k: lab.device_time(g, LAUNCHES, cold=True) for k, g in graphs.items()}, 15)
        speed = {k: t.rate(region.nbytes / 1e9) for k, t in times.items()}
        note, ids = bound[0].kernel_id, [bound[0].kernel_id]
        yield row(name, "GB/s", speed["aicf"], PEER, speed[PEER], note, ids)
        if region.nbytes > lab.l2_bytes:
            yield row(name, "GB/s", speed["aicf"], COPY, speed[COPY], note, ids)

    return Case(name, measure, seconds=3.0, kernels=kernels)


SUITE = Suite(
    "rows", "softmax and norms, forward and backward: 60 cases drawn by a rule", 420, cases,
    headlines=(("softmax bf16 22777x256", PEER), ("layer_norm bf16 4893x2048", PEER)), compared=lambda r: r.get("peer_name") == PEER,
)  # fmt: skip
