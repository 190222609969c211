"""The cross entropy of a linear layer, forward and backward, against F.linear and F.cross_entropy, eager and compiled: time and memory."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import aicf
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f32, i64

from .. import sides
from ..harness import Bench, Case, Suite, WrongResult
from ..results import Row, failed, row
from ..stats import Stats, enough, wall

EAGER, COMPILED = "torch eager", "torch.compile"
TOLERANCE = {bf16: 2e-2, f32: 1e-4}  # of the loss and of gradients, by norms
GIB = 2**30


@dataclass(frozen=True)
class Head:
    """So many rows of `size` into `classes`."""

    rows: int
    size: int
    classes: int
    dtype: DType = bf16

    def __str__(self) -> str:
        return f"linear cross entropy {self.dtype} {self.rows}x{self.size}x{self.classes}, forward + backward"

    @property
    def flops(self) -> float:
        """Of three products: what is computed again does not count."""
        return 6.0 * self.rows * self.size * self.classes

    def regions(self, device: str) -> tuple[RegionSpec, RegionSpec]:
        """Of the loss and of its gradient."""
        x, weight = (
            TensorDesc.dense(TensorSpec((n, self.size), self.dtype, device))
            for n in (self.rows, self.classes)
        )
        labels, number = (TensorDesc.dense(TensorSpec((self.rows,), dtype, device)) for dtype in (i64, f32))
        forward = sides.one_op("linear_cross_entropy", [x, weight, labels])
        return forward, sides.one_op("linear_cross_entropy_grad", [number, x, weight, labels, number])


HEAD, GPT2_HEAD = Head(4096, 4096, 128256), Head(16384, 768, 50257)


def cases(bench: Bench) -> list[Case]:
    if bench.tiny or not bench.on_gpu:
        some = [Head(64, 32, 1000, bf16 if bench.on_gpu else f32)]
    else:
        some = [HEAD, GPT2_HEAD]

    def kernels(head: Head, device: aicf.DeviceSpec) -> list[sides.Kernel]:
        return [(sides.predicted(region, device)[0][0], region) for region in head.regions(device.kind)]

    return [
        Case(
            str(h), partial(_measure, h), 0.0 if bench.tiny or not bench.on_gpu else 60.0, partial(kernels, h)
        )
        for h in some
    ]


@dataclass
class Side:
    """The call; its outputs: loss, dx, dweight; and its bytes besides x and the weight."""

    call: Callable[[], Any]
    outputs: Callable[[], Sequence[Any]]
    nbytes: int = 0
    kernels: tuple[str, ...] = ()


def ours(runtime: Any, tensors: dict[str, Any], results: Sequence[Any]) -> Side:
    """`tensors`: x, weight, labels, and dloss, what the gradient of the mean is; `results`: memory for loss, lse, dx and dweight."""
    x, weight, labels, dloss = tensors.values()
    loss, lse, *grads = results
    forward = sides.bind_op(runtime, "linear_cross_entropy", [x, weight, labels], [loss, lse])
    backward = sides.bind_op(runtime, "linear_cross_entropy_grad", [dloss, x, weight, labels, lse], grads)

    def call(*on: Any) -> None:
        forward.call(*on)
        backward.call(*on)

    temporaries = [
        t for _, made, work in (forward.keep, backward.keep) for t in (*made, work) if t is not None
    ]
    kernels = forward.kernel_id, backward.kernel_id
    return Side(call, lambda: [loss.mean(), *grads], sum(t.spec.nbytes for t in temporaries), kernels)


def check(head: Head, what: str, outputs: Sequence[Any], want: Sequence[Any]) -> None:
    """Loss and gradients are near the reference's, by norms; NumPy's or PyTorch's."""
    for name, got, expected in zip(("loss", "dx", "dweight"), outputs, want):
        got = got.float() if hasattr(got, "float") else got
        error = float(((got - expected) ** 2).sum() / (expected**2).sum()) ** 0.5
        if not error <= TOLERANCE[head.dtype]:
            raise WrongResult(f"{what}, {head}: {name} is off by {error:.2g} of its norm")


def _measure(head: Head, bench: Bench) -> Iterator[Row]:
    yield from (_on_gpu if bench.on_gpu else _on_host)(head, bench)


def _loss(torch: Any, x: Any, weight: Any, labels: Any) -> Any:
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), labels)


def theirs(torch: Any, tensors: dict[str, Any], compiled: bool) -> Callable[[], Any]:
    """(loss, dx, dweight) by autograd."""
    x, weight = (tensors[name].detach().clone().requires_grad_() for name in ("x", "weight"))
    loss = partial(_loss, torch)
    if compiled:
        torch._dynamo.reset()
        loss = torch.compile(loss)

    def call() -> Any:
        mean = loss(x, weight, tensors["labels"])
        return mean.detach(), *torch.autograd.grad(mean, (x, weight))

    return call


def _on_gpu(head: Head, bench: Bench) -> Iterator[Row]:
    lab, torch = bench.lab, bench.lab.torch
    kind = {bf16: torch.bfloat16, f32: torch.float32}[head.dtype]
    tensors = {
        "x": torch.randn(head.rows, head.size, device=lab.device).to(kind),
        "weight": (torch.randn(head.classes, head.size, device=lab.device) * head.size**-0.5).to(kind),
        "labels": torch.randint(head.classes, (head.rows,), device=lab.device),
        "dloss": torch.full((head.rows,), 1 / head.rows, device=lab.device),
    }
    wide = {name: x.float() if x.is_floating_point() else x for name, x in tensors.items()}
    want = theirs(torch, wide, False)()  # in f32
    nan = float("nan")
    results = [torch.full_like(tensors[name], nan) for name in ("dloss", "dloss", "x", "weight")]
    found = {"aicf": ours(lab.runtime, tensors, results)}
    found["aicf"].call()
    check(head, "aicf", found["aicf"].outputs(), want)
    for name in (EAGER, COMPILED):
        try:
            side = _peer(lab, tensors, name == COMPILED)
            check(head, name, side.outputs(), want)
            found[name] = side
        except WrongResult as error:
            yield failed(f"{head}, against {name}", f"the peer's: {error}")
        except Exception as error:  # its compiler is missing here, say
            yield {
                "case": f"{head}, against {name}",
                "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
            }
    del want, wide
    graphs = {
        name: (lab.aicf_graph([s.call]) if name == "aicf" else lab.torch_graph(s.call))
        for name, s in found.items()
    }
    lab.warm(head.flops, list(graphs.values()))
    times = bench.compare({name: lab.device_time(g, 1, calls=2) for name, g in graphs.items()}, 9)
    memory = {name: Stats(side.nbytes / GIB) for name, side in found.items()}
    kernels = found["aicf"].kernels
    note = f"{head.flops / times['aicf'].median / 1e12:.4g} TFLOP/s without what is computed again"
    for peer in [name for name in found if name != "aicf"] or [None]:
        other = [None, None] if peer is None else [peer, times[peer].per(1e-3)]
        yield row(str(head), "ms", times["aicf"].per(1e-3), *other, note, kernels)
        other = [None, None] if peer is None else [peer, memory[peer]]
        yield row(f"{head}, memory beside x and weight", "GiB", memory["aicf"], *other, kernels=kernels)


def _peer(lab: Any, tensors: dict[str, Any], compiled: bool) -> Side:
    torch, call = lab.torch, theirs(lab.torch, tensors, compiled)
    call()
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    return Side(call, call, torch.cuda.max_memory_allocated() - before)


def _on_host(head: Head, bench: Bench) -> Iterator[Row]:
    rng = bench.rng
    tensors = {
        "x": rng.normal(size=(head.rows, head.size)).astype(np.float32),
        "weight": (rng.normal(size=(head.classes, head.size)) * head.size**-0.5).astype(np.float32),
        "labels": rng.integers(0, head.classes, head.rows), "dloss": np.full(head.rows, 1 / head.rows, np.float32),
    }  # fmt: skip
    want = exact(tensors["x"].astype(np.float64), tensors["weight"].astype(np.float64), tensors["labels"])
    results = [np.full_like(tensors[name], np.nan) for name in ("dloss", "dloss", "x", "weight")]
    found = {"aicf": ours(aicf.runtime("cpu"), tensors, results)}
    found["aicf"].call()
    check(head, "aicf", found["aicf"].outputs(), want)
    try:
        import torch

        call = theirs(torch, {name: torch.from_numpy(x) for name, x in tensors.items()}, False)
        check(head, EAGER, [t.numpy() for t in call()], want)
        found[EAGER] = Side(call, call)
    except ImportError:
        yield {"case": f"{head}, against {EAGER}", "why": "PyTorch is not installed"}
    times = bench.compare({name: wall(s.call, enough(s.call, 0.01)) for name, s in found.items()})
    us, kernels = {name: t.per(1e-6) for name, t in times.items()}, found["aicf"].kernels
    peer = [EAGER, us[EAGER]] if EAGER in us else [None, None]
    yield row(str(head), "us", us["aicf"], *peer, kernels=kernels)


def exact(x: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean loss and its gradients in float64."""
    logits, at = x @ weight.T, np.arange(len(labels))
    logits -= logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits).sum(-1))
    grad = np.exp(logits - lse[:, None])
    grad[at, labels] -= 1
    grad /= len(labels)
    return np.mean(lse - logits[at, labels]), grad @ weight, grad.T @ x


SUITE = Suite(
    "linear_loss", "the cross entropy of a linear layer, forward and backward, against PyTorch eager and compiled", 180, cases,
    headlines=((str(HEAD), COMPILED),),
)  # fmt: skip
