"""Adds of two vectors, long and short, of f16 and f32, and such as don't fit the vector kernels."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aicf.device.runtime import runtime

from .. import sides
from ..gpu import LAUNCHES
from ..harness import Bench, Case, Suite, verify
from ..results import Row, row
from ..stats import Stats, enough, wall

TOLERANCE = {"f16": 1e-3, "f32": 1e-6}
NUMPY = {"f16": np.float16, "f32": np.float32}
LONG = 2**20  # from here on bandwidth says more than time
COPY, TORCH, NP = "device copy of as many bytes", "torch.add(out=)", "numpy.add(out=)"


def cases(bench: Bench) -> list[Case]:
    if not bench.on_gpu:
        powers = (10, 12) if bench.tiny else (10, 14, 18, 22)
        return [_host_case(dtype, 2**p) for dtype in ("f32", "f16") for p in powers]
    lengths = [2**p for p in ((10, 20) if bench.tiny else (10, 12, 14, 16, 18, 20, 22, 24, 26, 28))]
    all_cases = [_gpu_case(dtype, n) for dtype in ("f16", "f32") for n in lengths]
    for dtype in ("f16", "f32"):
        all_cases += [
            _gpu_case(dtype, 2**24 + 1),
            _gpu_case(dtype, 2**24, shift=1),
            _gpu_case(dtype, 2**12 + 1),
        ]
    return all_cases


def _name(dtype: str, n: int, shift: int = 0) -> str:
    power = n.bit_length() - 1
    length = f"2^{power}" if n == 2**power else f"2^{power} + {n - 2**power}"
    return f"add {dtype}, {length} elements" + (f", {shift} past alignment" if shift else "")


def _rows(case: str, n: int, nbytes: int, aicf: Stats, peers: dict[str, Stats], note: str) -> Iterator[Row]:
    def convert(time: Stats) -> Stats:
        return time.rate(nbytes / 1e9) if n >= LONG else time.per(1e-6)

    for name, time in peers.items():
        yield row(case, "GB/s" if n >= LONG else "us", convert(aicf), name, convert(time), note)


def _gpu_case(dtype: str, n: int, shift: int = 0) -> Case:
    """Graphs of 20 launches on alternating sets of buffers, which begin with a cold cache."""
    case = _name(dtype, n, shift)

    def measure(bench: Bench) -> Iterator[Row]:
        lab, torch = bench.lab, bench.lab.torch
        kind = {"f16": torch.float16, "f32": torch.float32}[dtype]
        nbytes, pitch = 3 * n * kind.itemsize, -(-(n + shift) // 256) * 256 + 256
        blocks = [torch.randn(3 * pitch, device=lab.device, dtype=kind) for _ in range(lab.sets(nbytes))]
        views = [[b[k * pitch + shift : k * pitch + shift + n] for k in range(3)] for b in blocks]
        ops = [sides.bind_op(lab.runtime, "add", [a, b], [c]) for a, b, c in views]
        launch_sets = [i % len(blocks) for i in range(LAUNCHES)]

        def add() -> None:
            for i in launch_sets:
                torch.add(views[i][0], views[i][1], out=views[i][2])

        graphs = {"aicf": lab.aicf_graph([ops[i].call for i in launch_sets]), TORCH: lab.torch_graph(add)}
        wide = torch.float32 if dtype == "f16" else torch.float64
        for name, replay in graphs.items():
            for block in blocks:
                block[2 * pitch :].fill_(float("nan"))
            replay()
            for block, (a, b, c) in zip(blocks, views):
                lab.verify(
                    f"{name}: {case}",
                    c,
                    lambda at, a=a, b=b: a[at].to(wide) + b[at].to(wide),
                    TOLERANCE[dtype],
                )
                lab.untouched(f"{name}: {case}", block[2 * pitch : 2 * pitch + shift])
                lab.untouched(f"{name}: {case}", block[2 * pitch + shift + n :])
        if n % 2 == 0 and not shift:
            half = 3 * n // 2  # read and written: as many bytes as the add moves

            def copy() -> None:
                for i in launch_sets:
                    blocks[i][-half:].copy_(blocks[i][:half])

            graphs[COPY] = lab.torch_graph(copy)
        times = bench.compare({k: lab.device_time(g, LAUNCHES, cold=True) for k, g in graphs.items()}, 25)
        yield from _rows(case, n, nbytes, times.pop("aicf"), times, ops[0].kernel_id)

    return Case(case, measure, seconds=2.0)


def _host_case(dtype: str, n: int) -> Case:
    case = _name(dtype, n)

    def measure(bench: Bench) -> Iterator[Row]:
        a, b = (bench.rng.normal(size=n).astype(NUMPY[dtype]) for _ in range(2))
        out = np.full(n, np.nan, NUMPY[dtype])
        op = sides.bind_op(runtime("cpu"), "add", [a, b], [out])
        op.call()
        verify(case, out, a.astype(np.float64) + b, TOLERANCE[dtype])
        both = {"aicf": op.call, NP: lambda: np.add(a, b, out=out)}
        calls = enough(op.call, 1e-3 if bench.tiny else 1e-2)
        times = bench.compare({name: wall(call, calls) for name, call in both.items()})
        yield from _rows(case, n, 3 * a.nbytes, times.pop("aicf"), times, op.kernel_id)

    return Case(case, measure)


SUITE = Suite(
    "elementwise", "add of f16 and f32, 2^10 to 2^28 elements, odd lengths and unaligned", 240, cases,
    headlines=(("add f16, 2^28 elements", TORCH), ("add f16, 2^10 elements", TORCH)),
)  # fmt: skip
