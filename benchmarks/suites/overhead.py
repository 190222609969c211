"""What a launch costs the host, and what a node of a graph costs the device; the kernels themselves are tiny adds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from aicf.device.runtime import runtime

from .. import sides
from ..harness import Bench, Case, Suite, verify
from ..mlps import SMALL
from ..numpy_trainer import NumpyTrainer
from ..results import Row, row
from ..stats import Stats, host
from . import mlp

ELEMENTS = 1024
CALLS = 200  # in one sample: fewer than the driver queues before a launch waits
TORCH, NP, BARE = "torch.add(out=)", "numpy.add(out=)", "cuLaunchKernel, parameters packed"
GRAPH = "torch.cuda.CUDAGraph"


def cases(bench: Bench) -> list[Case]:
    all_cases = [
        Case("op_call, host", _op_call),
        Case("bound kernel, host", _bound),
        Case("plan step, host", _plan_step),
    ]
    if bench.on_gpu:
        all_cases.append(Case("replayed step, host", _replayed_step))
        sizes = (10,) if bench.tiny else (10, 100, 1000)
        all_cases += [_graph_case(n) for n in sizes]
    return all_cases


def _operands(bench: Bench) -> tuple[Any, Any, Any]:
    """Two operands and a poisoned result, of PyTorch on a GPU, else of NumPy."""
    if bench.on_gpu:
        torch = bench.lab.torch
        a, b = (torch.randn(ELEMENTS, device=bench.lab.device) for _ in range(2))
        return a, b, torch.full_like(a, float("nan"))
    a, b = (bench.rng.normal(size=ELEMENTS).astype(np.float32) for _ in range(2))
    return a, b, np.full_like(a, np.nan)


def _array(tensor: Any) -> np.ndarray:
    return tensor.cpu().numpy() if hasattr(tensor, "cpu") else tensor


def _peers(bench: Bench, a: Any, b: Any, out: Any) -> dict[str, Callable[[], Any]]:
    """The same add by others: through PyTorch and through the driver alone, or by NumPy."""
    if not bench.on_gpu:
        return {NP: lambda: np.add(a, b, out=out)}
    lab = bench.lab
    bare = sides.bare_launch(lab.runtime, sides.bind_op(lab.runtime, "add", [a, b], [out]))
    add, want = lab.torch.add, _array(a).astype(np.float64) + _array(b)
    out.fill_(float("nan"))
    bare()
    lab.sync()
    verify(BARE, _array(out), want, 1e-6)
    return {TORCH: lambda: add(a, b, out=out), BARE: bare}


def _compare(
    bench: Bench, case: str, ours: Callable[[], Any], per: int, kernels: Sequence[str], note: str = ""
) -> Iterator[Row]:
    """Host time of `ours`, for each of its `per` launches, against that of the peers' single launches."""
    sync = bench.lab.sync if bench.on_gpu else lambda: None
    calls = 20 if bench.tiny else CALLS
    for _ in range(3):
        ours()
    peers = _peers(bench, *_operands(bench))
    samples = {name: host(call, calls, sync) for name, call in peers.items()}
    times = bench.compare({"aicf": host(ours, max(1, calls // per), sync), **samples}, 50)
    aicf = times.pop("aicf").per(1e-6 * per)
    for name, time in times.items():
        yield row(case, "us", aicf, name, time.per(1e-6), note, kernels)


def _op_call(bench: Bench) -> Iterator[Row]:
    """All of `aicf.op_call`: adopting tensors, choosing, launching."""
    op_call = sides.op_call()
    a, b, out = _operands(bench)
    chosen = op_call("add", [a, b], [out])
    if bench.on_gpu:
        bench.lab.sync()
    verify("op_call", _array(out), _array(a).astype(np.float64) + _array(b), 1e-6)
    yield from _compare(bench, "op_call, host", lambda: op_call("add", [a, b], [out]), 1, [chosen.kernel_id])


def _bound(bench: Bench) -> Iterator[Row]:
    """A kernel that is chosen and bound already: the launch alone."""
    a, b, out = _operands(bench)
    op = sides.bind_op(bench.lab.runtime if bench.on_gpu else runtime("cpu"), "add", [a, b], [out])
    op.call()
    if bench.on_gpu:
        bench.lab.sync()
    verify("bound kernel", _array(out), _array(a).astype(np.float64) + _array(b), 1e-6)
    yield from _compare(bench, "bound kernel, host", op.call, 1, [op.kernel_id], op.kernel_id)


def _plan_step(bench: Bench) -> Iterator[Row]:
    """A training plan with bound slots, walked eagerly: for each kernel of it."""
    program = SMALL.program(bench.device, capture="off")
    reference = NumpyTrainer(SMALL.optimizer, SMALL.rate, SMALL.params(program))
    x, y = SMALL.batch_of(bench.rng)
    feed = {"x": x, "y": y}
    verify("the plan's loss", float(program(feed)["loss"]), reference.step(x, y), SMALL.tolerance)
    walk, steps = sides.walked(program, feed)
    walk()
    reference.step(x, y)
    for got, want in zip(SMALL.params(program), reference.params):
        verify("a parameter after two steps", got, want, SMALL.tolerance)
    kernels = program.plan.kernel_ids
    yield from _compare(bench, "plan step, host", walk, steps, kernels, f"{steps} kernels in the plan")


def _replayed_step(bench: Bench) -> Iterator[Row]:
    """A small network's training step with all that is around its graph: feeds looked at and copied in, results copied out."""
    lab, program = bench.lab, SMALL.program(bench.device)
    start, batch = SMALL.params(program), SMALL.batch_of(bench.rng)
    want = NumpyTrainer(SMALL.optimizer, SMALL.rate, start).step(*batch)
    x, y = (lab.torch.from_numpy(a).to(lab.device) for a in batch)
    step = mlp.trainer_of(lab.torch, SMALL, start, mlp.GRAPH, lab.device).prepare(x, y)
    sides: dict[str, Callable[[], Any]] = {
        "aicf": lambda: program({"x": x, "y": y}),
        GRAPH: lambda: step(x, y),
    }
    verify("the program's loss", float(sides["aicf"]()["loss"]), want, SMALL.tolerance)
    verify(f"{GRAPH}: the loss", float(sides[GRAPH]()), want, SMALL.tolerance)
    times = bench.compare({name: host(call, 20, lab.sync) for name, call in sides.items()}, 50)
    yield _row("replayed step, host", times, 1e-6, program.plan.kernel_ids)


def _graph_case(nodes: int) -> Case:
    case = f"graph of {nodes} adds"

    def measure(bench: Bench) -> Iterator[Row]:
        lab, torch = bench.lab, bench.lab.torch
        a, b, out = _operands(bench)
        op = sides.bind_op(lab.runtime, "add", [a, b], [out])

        def adds() -> None:
            for _ in range(nodes):
                torch.add(a, b, out=out)

        graphs = {"aicf": lab.aicf_graph([op.call] * nodes), GRAPH: lab.torch_graph(adds)}
        want = _array(a).astype(np.float64) + _array(b)
        for name, replay in graphs.items():
            out.fill_(float("nan"))
            replay()
            verify(f"{name}: {case}", _array(out), want, 1e-6)
        on_host = bench.compare({k: host(g, 10, lab.sync) for k, g in graphs.items()}, 50)
        yield _row(f"{case}, host time of a replay", on_host, 1e-6, [op.kernel_id])
        on_device = bench.compare({k: lab.device_time(g, nodes, calls=10) for k, g in graphs.items()}, 25)
        yield _row(f"{case}, device time of a node", on_device, 1e-6, [op.kernel_id])

    return Case(case, measure, seconds=1.0)


def _row(case: str, times: dict[str, Stats], unit: float, kernels: Sequence[str]) -> Row:
    return row(case, "us", times["aicf"].per(unit), GRAPH, times[GRAPH].per(unit), kernels=kernels)


SUITE = Suite(
    "overhead", "host time of op_call, of a bound kernel and of a plan's step; graph replays by host and by node", 120,
    cases,
    headlines=(
        ("op_call, host", TORCH), ("graph of 100 adds, host time of a replay", GRAPH),
    ),
)  # fmt: skip
