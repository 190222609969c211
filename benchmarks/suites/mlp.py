"""Training steps of small networks, where launches weigh as much as arithmetic: against PyTorch in its four ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from aicf.errors import AicfError, NoKernelError
from aicf.graph.run.program import Program

from .. import sides
from ..harness import Bench, Case, NotHere, Suite, WrongResult, verify
from ..mlps import DIGITS, SMALL, WIDE, Mlp
from ..numpy_trainer import BETAS, DECAY, EPS, NumpyTrainer
from ..results import Row, failed, row
from ..stats import enough, wall
from ..torch_trainer import COMPILED_GRAPH, COMPILING, EAGER, GRAPH, OVERHEAD, TorchTrainer

STEPS = 5  # whose losses are compared with the reference
NP = "NumPy"

Params = Sequence[np.ndarray]
Batches = Sequence[tuple[Any, Any]]


def cases(bench: Bench) -> list[Case]:
    if not bench.on_gpu:
        return [_host_case(m) for m in ((SMALL,) if bench.tiny else (DIGITS, WIDE))]
    nets = (SMALL,) if bench.tiny else (DIGITS, WIDE, replace(WIDE, dtype="f16"))
    return [Case(f"{mlp.name}, {mlp.dtype}", _gpu_measure(mlp), seconds=60.0) for mlp in nets]


def trainer_of(torch: Any, mlp: Mlp, params: Params, how: str, device: str) -> TorchTrainer:
    """PyTorch's side: the same network from the same parameters, with fused optimizers, in one of its four ways."""
    layers: list[Any] = []
    for inputs, outputs in pairwise(mlp.widths):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    kind = {"f32": torch.float32, "f16": torch.float16}[mlp.dtype]
    model = torch.nn.Sequential(*layers[:-1]).to(device, kind)
    weights, start = list(model.parameters()), [torch.from_numpy(p).to(device) for p in params]

    def loss(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), y)

    return TorchTrainer(torch, weights, start, loss, _optimizer(torch, mlp, weights, device), how)


def _arrays(trainer: TorchTrainer) -> list[np.ndarray]:
    return [weight.detach().cpu().numpy() for weight in trainer.weights]


def _optimizer(torch: Any, mlp: Mlp, params: list[Any], device: str) -> Any:
    if mlp.optimizer == "sgd":
        return torch.optim.SGD(params, mlp.rate, fused=True)
    return torch.optim.AdamW(
        params, mlp.rate, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True, capturable=device != "cpu"
    )


def _check(what: str, mlp: Mlp, step: Callable[[Any, Any], Any], feeds: Batches, params: Callable[[], Params],
           reference: Reference) -> None:  # fmt: skip
    """A few steps from the start: their losses, and how far the parameters moved; a step that is left out shows."""
    verify(f"{what}: losses", [float(step(x, y)) for x, y in feeds], reference.losses, mlp.tolerance)
    for n, (got, want, start) in enumerate(zip(params(), reference.params, reference.start)):
        moved, error = np.linalg.norm(want - start), np.linalg.norm(got.astype(np.float64) - want)
        if not error <= (0.02 if mlp.dtype == "f32" else 0.5) * moved:
            raise WrongResult(f"{what}: parameter {n} is {error:.3g} off after moving by {moved:.3g}")


class Reference:
    """The losses of some steps in f64, and the parameters before and after them."""

    def __init__(self, mlp: Mlp, start: Params, batches: Batches) -> None:
        trainer = NumpyTrainer(mlp.optimizer, mlp.rate, start)
        self.start, self.losses = start, [trainer.step(x, y) for x, y in batches]
        self.params = trainer.params


def _program(mlp: Mlp, device: str) -> Program:
    try:
        return mlp.program(device)
    except NoKernelError as error:
        raise NotHere(f"aicf has no kernel for it yet: {error.what}") from None
    except AicfError as error:
        if mlp.dtype == "f32":
            raise
        raise NotHere(f"aicf can't train in {mlp.dtype} yet: {error.what}") from None


def _check_ours(mlp: Mlp, program: Program, feeds: Batches, reference: Reference) -> None:
    saved = program.state_dict()
    for name, run in (("replay", program.replay), ("eager", program.run)):
        run({"x": feeds[0][0], "y": feeds[0][1]})  # compiles and captures
        program.load_state_dict(saved)
        _check(
            f"aicf {name}", mlp, lambda x, y, run=run: run({"x": x, "y": y})["loss"], feeds,
            lambda: mlp.params(program), reference,
        )  # fmt: skip
    program.load_state_dict(saved)


def _gpu_measure(mlp: Mlp) -> Callable[[Bench], Iterator[Row]]:
    case = f"{mlp.name}, {mlp.dtype}"

    def measure(bench: Bench) -> Iterator[Row]:
        lab = bench.lab
        program = _program(mlp, bench.device)
        batches = [mlp.batch_of(bench.rng) for _ in range(STEPS)]
        feeds = [tuple(lab.torch.from_numpy(a).to(lab.device) for a in batch) for batch in batches]
        reference = Reference(mlp, mlp.params(program), batches)
        _check_ours(mlp, program, feeds, reference)

        x, y = feeds[0]
        feed = {"x": x, "y": y}
        steps: dict[str, Any] = {"aicf": lambda: program(feed), "aicf eager": lambda: program.run(feed)}
        graphs: dict[str, Any] = {}
        for how in (EAGER, GRAPH, OVERHEAD, COMPILED_GRAPH):
            if bench.left < (20 if how in COMPILING else 0):  # to compile
                yield {"case": f"{case}, against {how}", "why": f"the budget of {bench.budget:g} s was spent"}
                continue
            try:
                trainer = trainer_of(lab.torch, mlp, reference.start, how, lab.device)
                step = trainer.prepare(x, y)
                _check(how, mlp, step, feeds, partial(_arrays, trainer), reference)
            except WrongResult as error:
                yield failed(f"{case}, against {how}", f"the peer's: {error}")
                continue
            except Exception as error:  # its compiler is missing here, say; the others are still compared
                why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                yield {"case": f"{case}, against {how}", "why": f"this peer could not be made ready: {why}"}
                continue
            steps[how] = partial(step, x, y)
            if how in (GRAPH, COMPILED_GRAPH):
                graphs[how] = trainer.graph.replay
        calls = {name: enough(step, 0.02, 200, lab.sync) for name, step in steps.items()}
        times = bench.compare({name: wall(step, calls[name], lab.sync) for name, step in steps.items()})
        aicf, eager = times.pop("aicf").per(1e-6), times.pop("aicf eager").per(1e-6)
        kernels = program.plan.kernel_ids
        for how, time in times.items():
            yield row(f"{case}, train step", "us", aicf, how, time.per(1e-6), kernels=kernels)
        if EAGER in times:
            against = times[EAGER].per(1e-6)
            yield row(f"{case}, train step, eager", "us", eager, EAGER, against, kernels=kernels)
        yield from _graph_rows(bench, case, program, feed, graphs)

    return measure


def _graph_rows(
    bench: Bench, case: str, program: Program, feed: dict[str, Any], graphs: dict[str, Any]
) -> Iterator[Row]:
    """The captured graphs alone, without the copies of inputs and outputs around them: device time."""
    name = f"{case}, graph alone"
    try:
        launch, note = sides.captured(program, feed)
    except NotHere as reason:
        yield {"case": name, "why": str(reason)}
        return
    samples = {k: bench.lab.device_time(g, 1, calls=20) for k, g in {"aicf": launch, **graphs}.items()}
    times = bench.compare(samples)
    aicf = times.pop("aicf").per(1e-6)
    for how, time in times.items():
        yield row(name, "us", aicf, how, time.per(1e-6), note, program.plan.kernel_ids)


def _host_case(mlp: Mlp) -> Case:
    case = f"{mlp.name}, {mlp.dtype}"

    def measure(bench: Bench) -> Iterator[Row]:
        program = _program(mlp, bench.device)
        batches = [mlp.batch_of(bench.rng) for _ in range(STEPS)]
        reference, (x, y) = Reference(mlp, mlp.params(program), batches), batches[0]
        _check_ours(mlp, program, batches, reference)
        peer = NumpyTrainer(mlp.optimizer, mlp.rate, reference.start, np.float32)
        _check(NP, mlp, peer.step, batches, lambda: peer.params, reference)
        both = {"aicf": lambda: program({"x": x, "y": y}), NP: lambda: peer.step(x, y)}
        calls = enough(both["aicf"], 0.002 if bench.tiny else 0.05)
        times = bench.compare({name: wall(step, calls) for name, step in both.items()})
        aicf, numpy = times["aicf"].per(1e-6), times[NP].per(1e-6)
        yield row(f"{case}, train step", "us", aicf, NP, numpy, kernels=program.plan.kernel_ids)

    return Case(case, measure, seconds=0.0 if mlp is SMALL else 5.0)


SUITE = Suite(
    "mlp", "training steps of small networks, eager and replayed, against PyTorch's four ways", 420, cases,
    headlines=tuple(
        (f"{mlp.name}, {mlp.dtype}, train step", COMPILED_GRAPH)
        for mlp in (DIGITS, WIDE, replace(WIDE, dtype="f16"))
    ),
)  # fmt: skip
