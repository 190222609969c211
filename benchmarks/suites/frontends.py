"""PyTorch's models as users have them, through `torch.compile(model, backend="aicf")`: GPT-2, BERT, Llama and ViT of transformers, inference
and training steps, against PyTorch eager, torch.compile, max-autotune for two of them, and onnxruntime; and how long the first call takes.

A case for each model and each of the three; with `--shard I/12 --budget 480` each is a process of its own.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from ..harness import Bench, Case, NotHere, Suite, WrongResult
from ..results import Row, failed, mean_ratios, row
from ..stats import enough, nothing, wall
from ..torch_models import GPT2, LLAMA, MODELS, SMALL, Brought, inference, training
from ..torch_trainer import COMPILED, EAGER
from . import startup
from .startup import TUNED

ORT = "onnxruntime"
TO_TUNE = 150.0  # seconds that max-autotune takes at least
BAND, ROUNDING = 1.5, 2e-3  # of errors against f32: so many times eager's own, and so much more
INFERENCE, TRAINING, FIRST = "inference", "training step", "first step"

Step = Callable[[], Any]


def cases(bench: Bench) -> list[Case]:
    models = SMALL if bench.tiny else MODELS
    least = 0.0 if bench.tiny else 90.0
    made = []
    for what, measure in ((INFERENCE, _inference), (TRAINING, _training)):
        made += [Case(f"{m.name}, {what}", partial(measure, m), least) for m in models.values()]
    return made + [Case(f"{m.name}, {FIRST}", partial(_first_step, key), least) for key, m in models.items()]


def _libraries(bench: Bench) -> Any:
    """PyTorch, with transformers."""
    try:
        import torch
        import transformers  # noqa: F401
    except ImportError as error:
        raise NotHere(f"{error.name} is not installed") from None
    if bench.on_gpu:
        _ = bench.lab  # its stream is the current one
    torch._dynamo.reset()
    gc.collect()
    if bench.on_gpu:
        torch.cuda.empty_cache()
    return torch


def _compiled(
    torch: Any, bench: Bench, m: Brought, call: Callable[[Any], Any]
) -> dict[str, Callable[[Any], Any]]:
    """A model by each side that is here, not yet called. On the host without TorchInductor, which needs a C++ compiler."""
    from aicf.frontends.torch import reset

    reset()
    found = {EAGER: call, "aicf": torch.compile(call, backend="aicf")}
    if bench.on_gpu:
        found[COMPILED] = torch.compile(call)
    if bench.on_gpu and m.autotuned:
        tuned = torch.compile(call, mode="max-autotune")

        def marked(batch: Any) -> Any:
            torch.compiler.cudagraph_mark_step_begin()  # results of the call before are its to write over
            return tuned(batch)

        found[TUNED] = marked
    return found


def _left_out(bench: Bench, case: str, side: str) -> Row | None:
    if side == TUNED and bench.left < TO_TUNE and not bench.tiny:
        return {"case": f"{case}, against {side}", "why": f"the budget of {bench.budget:g} s was spent"}
    return None


def _checked(
    bench: Bench, case: str, sides: Mapping[str, Any], check: Callable[[str, Any], None]
) -> Iterator[tuple[str, Row | None]]:
    """The sides that compute what they should; why another does not. aicf's errors are the case's."""
    for name, side in sides.items():
        if reason := _left_out(bench, case, name):
            yield name, reason
            continue
        try:
            check(name, side)
            yield name, None
        except WrongResult as error:
            if name == "aicf":
                raise
            yield name, failed(f"{case}, against {name}", f"the peer's: {error}")
        except Exception as error:  # its compiler is missing here, say; the others are still compared
            if name in ("aicf", EAGER):
                raise
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            yield (
                name,
                {"case": f"{case}, against {name}", "why": f"this peer could not be made ready: {why}"},
            )


# --- inference --------------------------------------------------------------------------------------------------------


def _inference(m: Brought, bench: Bench) -> Iterator[Row]:
    torch = _libraries(bench)
    place, half = (bench.lab.device, torch.bfloat16) if bench.on_gpu else ("cpu", torch.float32)
    case = f"{m.name}, {INFERENCE}, {_type(bench)}, {m.feed}"
    torch.manual_seed(bench.seed)
    module = m.build(place)
    inputs, _ = m.data(torch, place)
    with torch.no_grad():
        want = inference(torch, module)(inputs)
        module.to(half)
        given = {name: x.to(half) if x.is_floating_point() else x for name, x in inputs.items()}
        calls = _compiled(torch, bench, m, inference(torch, module))
        band = [0.0]

        def check(name: str, call: Callable[[Any], Any]) -> None:
            error = _distance(call(given), want)
            if name == EAGER:
                band[0] = BAND * error + ROUNDING
            _within(name, "logits", error, band[0])

        ready = {}
        for name, reason in _checked(bench, case, calls, check):
            if reason:
                yield reason
            else:
                ready[name] = partial(calls[name], given)
        try:
            runtime = _onnxruntime(torch, bench, module, given)
            _within(ORT, "logits", _distance(runtime(), want), band[0])
            ready[ORT] = runtime
        except NotHere as reason:
            yield {"case": f"{case}, against {ORT}", "why": str(reason)}
        except WrongResult as error:
            yield failed(f"{case}, against {ORT}", f"the peer's: {error}")
        yield from _timed(bench, case, ready, m.products(module))


def _distance(got: Any, want: Any) -> float:
    """The norm of what they differ by, as a share of the reference's; NaN is as far as can be."""
    off = float((got.float() - want).norm() / want.norm())
    return off if off == off else float("inf")


def _within(name: str, what: str, error: float, band: float) -> None:
    if not error <= band:
        raise WrongResult(f"{name}: {what} are off by {error:.3g} of f32's norm, expected {band:.3g} at most")


def _onnxruntime(torch: Any, bench: Bench, module: Any, inputs: Mapping[str, Any]) -> Step:
    """The module, exported by PyTorch, in onnxruntime, on PyTorch's memory and stream."""
    try:
        import onnxruntime
    except ImportError:
        raise NotHere("onnxruntime is not installed") from None
    provider = "CUDAExecutionProvider" if bench.on_gpu else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise NotHere(f"this onnxruntime has no {provider}")

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *given: Any) -> Any:
            return self.inner(**dict(zip(inputs, given))).logits

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                Logits().eval(), tuple(inputs.values()), path, input_names=list(inputs), output_names=["logits"], dynamo=True, verbose=False,
                external_data=True,
            )  # fmt: skip
            options = {"user_compute_stream": str(bench.lab.stream.cuda_stream)} if bench.on_gpu else {}
            quiet = onnxruntime.SessionOptions()  # threads that spin would slow the others down
            quiet.add_session_config_entry("session.intra_op.allow_spinning", "0")
            session = onnxruntime.InferenceSession(path, quiet, providers=[(provider, options)])
        except Exception as error:
            why = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            raise NotHere(f"the model was not exported, or not taken: {why}") from error
    out = session.get_outputs()[0]
    made = torch.empty(inference(torch, module)(inputs).shape, dtype=module.dtype, device=module.device)
    binding = session.io_binding()
    where = (module.device.type, module.device.index or 0)
    for name, x in [*inputs.items(), (out.name, made)]:
        bind = binding.bind_output if x is made else binding.bind_input
        bind(name, *where, _ORT_TYPES[str(x.dtype)], tuple(x.shape), x.data_ptr())

    def run() -> Any:
        session.run_with_iobinding(binding)
        return made

    return run


_ORT_TYPES = {
    "torch.int64": 7,
    "torch.float32": 1,
    "torch.float16": 10,
    "torch.bfloat16": 16,
}  # onnx's numbers


# --- training ---------------------------------------------------------------------------------------------------------


def _training(m: Brought, bench: Bench) -> Iterator[Row]:
    """Steps of all sides on the same weights with the same optimizer: nothing depends on what they are."""
    torch = _libraries(bench)
    place = bench.lab.device if bench.on_gpu else "cpu"
    case = f"{m.name}, {TRAINING}, {_type(bench)}, {m.feed}"
    torch.manual_seed(bench.seed)
    module = m.build(place).train()
    inputs, labels = m.data(torch, place)
    batch, weights = {**inputs, **labels}, list(module.parameters())
    want = _gradients(training(torch, module, half=False), batch, weights)
    calls = _compiled(torch, bench, m, training(torch, module, half=bench.on_gpu))
    scale = float(sum(g.norm() ** 2 for g in want[1])) ** 0.5
    eager: list[float] = []

    def check(name: str, call: Callable[[Any], Any]) -> None:
        got = _gradients(call, batch, weights)
        off = [abs(float(got[0] - want[0]) / float(want[0]))]
        off += [float((a - b).norm()) / scale for a, b in zip(got[1], want[1], strict=True)]
        if name == EAGER:
            eager[:] = off
        for n, (error, own) in enumerate(zip(off, eager, strict=True)):
            what = "the loss" if n == 0 else f"gradients of parameter {n - 1}"
            share = 1.0 if n == 0 else float(want[1][n - 1].norm()) / scale
            _within(name, what, error, BAND * own + 10 * ROUNDING * share + ROUNDING / 10)

    ready = {}
    for name, reason in _checked(bench, case, calls, check):
        if reason:
            yield reason
        else:
            ready[name] = calls[name]
    want[1].clear()  # as much memory as the weights
    optimizer = torch.optim.AdamW(weights, lr=1e-5, fused=True)

    def step(call: Callable[[Any], Any]) -> None:
        optimizer.zero_grad(set_to_none=True)
        call(batch).backward()
        optimizer.step()

    steps = {name: partial(step, call) for name, call in ready.items()}
    yield from _timed(bench, case, steps, 3 * m.products(module))


def _gradients(call: Callable[[Any], Any], batch: Any, weights: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The loss, and gradients that stay."""
    for w in weights:
        w.grad = None
    loss = call(batch)
    loss.backward()
    made = loss.detach().clone(), [w.grad.detach().clone() for w in weights]
    for w in weights:
        w.grad = None
    return made


# --- the rows ---------------------------------------------------------------------------------------------------------


def _type(bench: Bench) -> str:
    return "bf16" if bench.on_gpu else "f32"


def _timed(bench: Bench, case: str, steps: Mapping[str, Step], flops: float) -> Iterator[Row]:
    from aicf.frontends.torch import graphs

    compiled = graphs()
    kernels = sorted({k for g in compiled for k in g.kernels})
    taken, left = (
        sum(c.total() for c in counts) for counts in ([g.taken for g in compiled], [g.left for g in compiled])
    )
    note = f"aicf took {taken} of {taken + left} op calls, in {sum(g.parts for g in compiled)} parts"
    sync = bench.lab.sync if bench.on_gpu else nothing
    if bench.on_gpu:
        bench.lab.warm(flops, list(steps.values()))
    calls = {name: enough(step, 0.002 if bench.tiny else 0.2, 200, sync) for name, step in steps.items()}
    times = bench.compare({name: wall(step, calls[name], sync) for name, step in steps.items()})
    ours = times["aicf"]
    note += f"; {flops / ours.median / 1e12:.4g} TFLOP/s of products with weights"
    for peer, theirs in times.items():
        if peer != "aicf":
            yield row(case, "ms", ours.per(1e-3), peer, theirs.per(1e-3), note, kernels)


def _first_step(key: str, bench: Bench) -> Iterator[Row]:
    """Processes that train a step, with nothing compiled yet, and with what the last one left."""
    _libraries(bench)
    m = {**MODELS, **SMALL}[key]
    peers = [COMPILED, *([TUNED] if m.autotuned else [])] if bench.on_gpu else [EAGER]

    def check(what: str, engine: str, loss: float) -> None:
        startup.near_chance(what, loss, m.classes or m.words)

    yield from startup.starts(
        bench, f"{m.name}, {FIRST}, {_type(bench)}, {m.feed}", f"brought:{key}", peers, check, None, 1, 2
    )


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of each kind of case, for each peer."""
    pairs = product((INFERENCE, TRAINING), (EAGER, COMPILED, TUNED, ORT))
    return mean_ratios({
        f"{what}, against {peer}": [r for r in rows if f", {what}, " in r["case"] and r["peer_name"] == peer]
        for what, peer in pairs
    })  # fmt: skip


SUITE = Suite(
    "frontends", "transformers' GPT-2, BERT, Llama and ViT through torch.compile(backend=\"aicf\"), against PyTorch: steps, first step", 1800, cases,
    headlines=tuple((f"{m.name}, {what}, bf16, {m.feed}", COMPILED) for m in (GPT2, LLAMA) for what in (INFERENCE, TRAINING)),
    summary=summary,
)  # fmt: skip
