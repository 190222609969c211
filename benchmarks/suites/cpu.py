"""The CPU device against NumPy and PyTorch's CPU.

With OMP_NUM_THREADS=1 all sides have one thread, and its CPU time is measured: that can be compared on a host whose cores are
busy with something else. Else each side takes the threads that it chooses, and the host's clock is read.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np

import aicf

from ..harness import Bench, Case, NotHere, Suite, verify
from ..mlps import DIGITS, WIDE, Mlp
from ..results import Row, row
from ..stats import Sample

NUMPY, TORCH = "NumPy", "torch eager"
Call = Callable[[], Any]


def cases(bench: Bench) -> list[Case]:
    if bench.on_gpu:
        return [Case("the CPU device", _not_here)]
    n, rows = (2**12, 64) if bench.tiny else (2**20, 4096)
    sizes = [(64, 512, 64), (64, 256, 512), (512, 512, 512)] + ([] if bench.tiny else [(1024, 1024, 1024)])
    all_cases = [Case(f"inference, {net.name}", _inference(net)) for net in (DIGITS, WIDE)]
    all_cases += [Case(f"train step, {net.name}", _training(net)) for net in (DIGITS, WIDE)]
    all_cases += [Case(f"gemm {m} x {n} x {k} f32", _gemm(m, n, k)) for m, n, k in sizes]
    all_cases += [Case(f"{kind} of {n} f32", _elementwise(kind, n)) for kind in ELEMENTWISE]
    all_cases += [Case(f"{kind} of {rows} x 1024, axes {axes}", _reduction(kind, rows, axes))
              for kind in ("reduce_sum", "reduce_max") for axes in ((1,), (0,), (0, 1))]  # fmt: skip
    return all_cases


def _not_here(bench: Bench) -> Iterator[Row]:
    raise NotHere("this suite is of the CPU: --device cpu")


def _torch() -> Any:
    """PyTorch, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    return torch


def _rows(
    bench: Bench, name: str, calls: dict[str, Call], want: Any, tolerance: float, rounds: int = 15
) -> Iterator[Row]:
    """Each side is verified, then all are sampled alternately. A call returns what it computed, for `np.asarray`."""
    for side, call in calls.items():
        verify(f"{name}: {side}", np.asarray(call()), want, tolerance)
    yield from _timed(bench, name, calls, rounds)


def _timed(bench: Bench, name: str, calls: dict[str, Call], rounds: int) -> Iterator[Row]:
    alone = os.environ.get("OMP_NUM_THREADS") == "1"
    clock, note = (time.process_time, "CPU time of one thread") if alone else (time.perf_counter, "")
    count = 1 if bench.tiny else 5
    times = bench.compare({side: _sample(call, count, clock) for side, call in calls.items()}, rounds)
    us = {side: stats.per(1e-6) for side, stats in times.items()}
    for peer in (NUMPY, TORCH):
        if peer in us:
            yield row(name, "us", us["aicf"], peer, us[peer], note)
        elif peer == TORCH and _torch() is None:
            yield {"case": f"{name}, against {TORCH}", "why": "PyTorch is not installed"}


def _sample(call: Call, calls: int, clock: Callable[[], float]) -> Sample:
    def sample() -> float:
        start = clock()
        for _ in range(calls):
            call()
        return (clock() - start) / calls

    return sample


# --- single ops, into memory that is there ----------------------------------------------------------------------------

ELEMENTWISE: dict[str, tuple[Callable[..., Any], str]] = {
    "add": (np.add, "add"), "relu": (lambda x, out: np.maximum(x, np.float32(0), out=out), "clamp"), "exp": (np.exp, "exp"),
    "tanh": (np.tanh, "tanh"),
}  # fmt: skip


def _elementwise(kind: str, n: int) -> Callable[[Bench], Iterator[Row]]:
    def measure(bench: Bench) -> Iterator[Row]:
        inputs = [bench.rng.normal(size=n).astype(np.float32) for _ in range(1 + (kind == "add"))]
        outs = {side: np.empty(n, np.float32) for side in ("aicf", NUMPY, TORCH)}
        function, theirs = ELEMENTWISE[kind]
        calls: dict[str, Call] = {
            "aicf": lambda: (aicf.op_call(kind, inputs, [outs["aicf"]]), outs["aicf"])[1],
            NUMPY: lambda: function(*inputs, out=outs[NUMPY]),
        }
        if torch := _torch():
            xs, out = [torch.from_numpy(x) for x in inputs], torch.from_numpy(outs[TORCH])
            more = {"min": 0.0} if theirs == "clamp" else {}
            calls[TORCH] = lambda: getattr(torch, theirs)(*xs, out=out, **more)
        want = function(*[x.astype(np.float64) for x in inputs], out=np.empty(n))
        yield from _rows(bench, f"{kind} of {n} f32", calls, want, 1e-6)

    return measure


def _reduction(kind: str, rows: int, axes: tuple[int, ...]) -> Callable[[Bench], Iterator[Row]]:
    def measure(bench: Bench) -> Iterator[Row]:
        x = bench.rng.normal(size=(rows, 1024)).astype(np.float32)
        function = np.sum if kind == "reduce_sum" else np.max
        want = function(x.astype(np.float64), axis=axes)
        mine, other = np.empty(want.shape, np.float32), np.empty(want.shape, np.float32)
        calls: dict[str, Call] = {
            "aicf": lambda: (aicf.op_call(kind, [x], [mine], {"axes": axes}), mine)[1],
            NUMPY: lambda: function(x, axis=axes, out=other),
        }
        if torch := _torch():
            t, name = torch.from_numpy(x), "sum" if kind == "reduce_sum" else "amax"
            calls[TORCH] = lambda: getattr(torch, name)(t, dim=axes)
        yield from _rows(bench, f"{kind} of {rows} x 1024, axes {axes}", calls, want, 1e-3)

    return measure


def _gemm(m: int, n: int, k: int) -> Callable[[Bench], Iterator[Row]]:
    def measure(bench: Bench) -> Iterator[Row]:
        a, b = (bench.rng.normal(size=s).astype(np.float32) for s in ((m, k), (k, n)))
        outs = {side: np.empty((m, n), np.float32) for side in ("aicf", NUMPY, TORCH)}
        calls: dict[str, Call] = {
            "aicf": lambda: (aicf.op_call("gemm", [a, b], [outs["aicf"]]), outs["aicf"])[1],
            NUMPY: lambda: np.matmul(a, b, out=outs[NUMPY]),
        }
        if torch := _torch():
            ta, tb, out = (torch.from_numpy(x) for x in (a, b, outs[TORCH]))
            calls[TORCH] = lambda: torch.matmul(ta, tb, out=out)
        want = a.astype(np.float64) @ b.astype(np.float64)
        yield from _rows(bench, f"gemm {m} x {n} x {k} f32", calls, want, 1e-5 * math.sqrt(k))

    return measure


# --- networks ---------------------------------------------------------------------------------------------------------


def _inference(net: Mlp) -> Callable[[Bench], Iterator[Row]]:
    def measure(bench: Bench) -> Iterator[Row]:
        program = aicf.compile(net.model(), device="cpu")
        params, (x, _) = net.params(program), net.batch_of(bench.rng)
        pairs = list(zip(params[::2], params[1::2]))

        def plain(x: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
            for n, (weight, bias) in enumerate(pairs):
                x = (np.maximum(x, 0) if n else x) @ weight.T + bias
            return x

        calls: dict[str, Call] = {
            "aicf": lambda: program({"x": x})["output"].numpy(),
            NUMPY: lambda: plain(x, pairs),
        }
        if torch := _torch():
            model, t = _torch_model(torch, net, params), torch.from_numpy(x)

            def infer() -> Any:
                with torch.inference_mode():
                    return model(t)

            calls[TORCH] = infer
        want = plain(x.astype(np.float64), [(w.astype(np.float64), b.astype(np.float64)) for w, b in pairs])
        yield from _rows(bench, f"inference, {net.name}", calls, want, 1e-4)

    return measure


def _training(net: Mlp) -> Callable[[Bench], Iterator[Row]]:
    """Steps on one batch. The losses of the first three are those of aicf and PyTorch alike."""

    def measure(bench: Bench) -> Iterator[Row]:
        program = net.program("cpu")
        params, (x, y) = net.params(program), net.batch_of(bench.rng)
        calls: dict[str, Call] = {"aicf": lambda: float(program({"x": x, "y": y})["loss"])}
        if torch := _torch():
            model, tx, ty = _torch_model(torch, net, params), torch.from_numpy(x), torch.from_numpy(y)
            optimizer = _torch_optimizer(torch, net, model)

            def step() -> float:
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(tx), ty)
                loss.backward()
                optimizer.step()
                return float(loss.detach())

            calls[TORCH] = step
            losses = {side: [call() for _ in range(3)] for side, call in calls.items()}
            verify(f"train step, {net.name}: the losses", losses["aicf"], losses[TORCH], net.tolerance)
        yield from _timed(bench, f"train step, {net.name}", calls, 15)

    return measure


def _torch_model(torch: Any, net: Mlp, params: list[np.ndarray]) -> Any:
    layers: list[Any] = []
    for n, (inputs, outputs) in enumerate(pairwise(net.widths)):
        layers += [torch.nn.ReLU()] * bool(n) + [torch.nn.Linear(inputs, outputs)]
    model = torch.nn.Sequential(*layers)
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), params):
            parameter.copy_(torch.from_numpy(np.array(value)))
    return model


def _torch_optimizer(torch: Any, net: Mlp, model: Any) -> Any:
    from ..numpy_trainer import BETAS, DECAY, EPS

    if net.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=net.rate)
    return torch.optim.AdamW(model.parameters(), lr=net.rate, betas=BETAS, eps=EPS, weight_decay=DECAY)


SUITE = Suite(
    "cpu", "the CPU device against NumPy and PyTorch: elementwise ops, reductions, GEMM, inference, training", 240, cases,
    headlines=tuple((f"{what}, {net.name}", TORCH) for net in (DIGITS, WIDE) for what in ("inference", "train step")),
)  # fmt: skip
