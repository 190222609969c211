"""Attention of bf16 heads, forward and backward, against cuDNN and FlashAttention as PyTorch has them; errors against float64 first.

Speeds are of what queries may see: a causal head counts half; but of padded batches, whose mask hides a quarter of the keys, all count, as all are read.
Backward is the gradient alone, from the results of the forward pass.
Without a GPU, small heads of f32 against PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import aicf
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, bool_, f32

from .. import sides
from ..harness import Bench, Case, NotHere, Suite, WrongResult
from ..results import Row, failed, row
from ..stats import Stats, enough, wall
from ..work import attention_flops

BETTER, TORCH = "the better of cuDNN and FlashAttention", "torch eager"
BACKENDS = {"cuDNN": "CUDNN_ATTENTION", "FlashAttention": "FLASH_ATTENTION"}
SIZES = ((16, 12, 1024), (4, 16, 2048), (4, 16, 4096), (2, 16, 8192), (1, 16, 16384))  # batch, heads, length
PADDED = ((32, 12, 384, 64), (32, 12, 512, 64), (16, 16, 512, 64), (8, 16, 1024, 128))
TOLERANCE = {bf16: 1e-2, f32: 1e-5}  # of a head, by norms
SAMPLE_S = 5e-3  # of device time
AHEAD = 2_000_000  # clocks: PyTorch's backward pass takes the host a while
CALLS = 20  # at most, in a sample


@dataclass(frozen=True)
class Heads:
    """`shared` heads of queries share one of keys. `padded`: there is a mask of keys, of each entry of the batch."""

    batch: int
    heads: int
    length: int
    d: int
    causal: bool
    shared: int = 1
    dtype: DType = bf16
    padded: bool = False

    def __str__(self) -> str:
        grouped = f"/{self.heads // self.shared}" if self.shared > 1 else ""
        size = f"{self.batch}x{self.heads}{grouped}x{self.length}x{self.d}"
        return f"{self.dtype} {size} {'causal' if self.causal else 'padded' if self.padded else 'full'}"

    @property
    def queries(self) -> tuple[int, ...]:
        return (self.batch, self.heads, self.length, self.d)

    @property
    def keys(self) -> tuple[int, ...]:
        return (self.batch, self.heads // self.shared, self.length, self.d)

    def region(self, device: str, grad: bool) -> RegionSpec:
        q, k = (TensorDesc.dense(TensorSpec(s, self.dtype, device)) for s in (self.queries, self.keys))
        lse = TensorDesc.dense(TensorSpec(self.queries[:-1], f32, device))
        operands = [q, q, k, k, q, lse] if grad else [q, k, k]
        if self.padded:
            operands.append(TensorDesc.dense(TensorSpec(self.seen.shape, bool_, device)))
        return sides.one_op("attention_grad" if grad else "attention", operands, causal=self.causal)

    @property
    def seen(self) -> np.ndarray:
        """The mask: of entries whose lengths are from half of the longest one's on."""
        lengths = self.length - np.arange(self.batch) * (self.length // 2) // max(self.batch - 1, 1)
        return (np.arange(self.length) < lengths[:, None])[:, None, None, :]

    def flops(self, grad: bool) -> float:
        q, k, *_ = self.region("cuda", False).operands
        return attention_flops(q, k, k, self.causal, grad=grad)


def problems(bench: Bench) -> list[Heads]:
    if bench.tiny or not bench.on_gpu:
        dtype, some = (bf16, (2, 3, 200)) if bench.on_gpu else (f32, (1, 2, 37))
        kinds = ({"causal": True}, {"causal": False}, {"causal": False, "padded": True})
        return [Heads(*some, 64, dtype=dtype, **kind) for kind in kinds]
    made = [Heads(*size, d, causal) for d in (64, 128) for size in SIZES for causal in (True, False)]
    made += [Heads(2, 32, 4096, 128, causal, shared=4) for causal in (True, False)]
    made += [Heads(8, 12, 1000, d, causal) for d in (64, 128) for causal in (True, False)]
    return made + [Heads(*size, False, padded=True) for size in PADDED]


def cases(bench: Bench) -> list[Case]:
    def kernels(heads: Heads, device: aicf.DeviceSpec) -> list[sides.Kernel]:
        regions = [heads.region(device.kind, grad) for grad in (False, True)]
        return [(sides.predicted(region, device)[0][0], region) for region in regions]

    return [
        Case(f"attention {h}", partial(_measure, h), 0.0 if bench.tiny else 5.0, partial(kernels, h))
        for h in problems(bench)
    ]


# --- a reference in float64 ---------------------------------------------------------------------------------------------


def exact(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    dout: np.ndarray,
    causal: bool,
    numpy: Any = np,
    seen: Any = None,
) -> tuple[Any, ...]:
    """(out, dq, dk, dv) of one head of keys and the queries' heads that share it: q and dout (heads, T, d), k and v (T, d), seen (T) if keys
    are masked, of NumPy or of PyTorch."""
    scale, outs, dqs, dk, dv = k.shape[-1] ** -0.5, [], [], 0.0, 0.0
    for one, g in zip(q, dout):
        scores = one @ k.T * scale
        if causal:
            scores[numpy.triu(numpy.ones_like(scores), 1) > 0] = -np.inf
        if seen is not None:
            scores[:, ~seen] = -np.inf
        scores -= scores.max(-1, keepdims=True) if numpy is np else scores.max(-1, keepdim=True).values
        p = numpy.exp(scores)
        del scores
        p /= p.sum(-1)[:, None]
        out = p @ v
        ds = p * (g @ v.T - (out * g).sum(-1)[:, None]) * scale
        outs.append(out)
        dqs.append(ds @ k)
        dk, dv = dk + ds.T @ one, dv + p.T @ g
    return numpy.stack(outs), numpy.stack(dqs), dk, dv


def check(heads: Heads, what: str, tensors: Sequence[Any], outputs: Sequence[Any], numpy: Any = np) -> None:
    """WrongResult unless the first and the last head of keys are near the reference, and all else is finite. tensors: q, k, v, dout, the mask;
    outputs: out, dq, dk, dv. NumPy's, of f64, or PyTorch's on a device."""
    for name, x in zip(("out", "dq", "dk", "dv"), outputs):
        if not bool(numpy.isfinite(x).all()):
            raise WrongResult(f"{what}, {heads}: {name} has elements that are not finite")

    def wide(x: Any) -> Any:
        return x.astype(np.float64) if numpy is np else x.double()

    for b, h in {(0, 0), (heads.batch - 1, heads.heads // heads.shared - 1)}:
        group = slice(h * heads.shared, (h + 1) * heads.shared)
        at = (b, group), (b, h), (b, h), (b, group)
        q, k, v, dout = (wide(x[i]) for x, i in zip(tensors, at))
        want = exact(q, k, v, dout, heads.causal, numpy, tensors[4][b, 0, 0] if heads.padded else None)
        for name, x, i, expected in zip(
            ("out", "dq", "dk", "dv"), outputs, ((b, group), (b, group), (b, h), (b, h)), want
        ):
            error = float(((wide(x[i]) - expected) ** 2).sum() / (expected**2).sum()) ** 0.5
            if not error <= TOLERANCE[heads.dtype]:
                raise WrongResult(
                    f"{what}, {heads}: {name} of head {h} of {b} is off by {error:.2g} of its norm"
                )


# --- the sides ----------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """What it launches, forward and backward, and what that makes: out, dq, dk, dv."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]
    outputs: Callable[[], Sequence[Any]]
    kernels: tuple[str, str] = ("", "")


def ours(
    heads: Heads, runtime: Any, tensors: Sequence[Any], empty: Callable[[tuple[int, ...], DType], Any]
) -> Side:
    """`empty(shape, dtype)` makes memory, of NaN."""
    q, k, v, dout, *mask = tensors
    out, lse = empty(heads.queries, heads.dtype), empty(heads.queries[:-1], f32)
    grads = [empty(s, heads.dtype) for s in (heads.queries, heads.keys, heads.keys)]
    forward = sides.bind_op(runtime, "attention", [q, k, v, *mask], [out, lse], causal=heads.causal)
    backward = sides.bind_op(
        runtime, "attention_grad", [dout, q, k, v, out, lse, *mask], grads, causal=heads.causal
    )
    return Side(forward.call, backward.call, lambda: [out, *grads], (forward.kernel_id, backward.kernel_id))


def theirs(heads: Heads, torch: Any, tensors: Sequence[Any], backend: str | None = None) -> Side:
    """PyTorch's by one of its backends; the backward pass again and again from one forward pass. What keeps the gradient possible is
    computed forward too, as ours does."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    *inputs, dout = tensors[:4]
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    kernel = (
        [getattr(SDPBackend, BACKENDS[backend])] if backend else list(SDPBackend.__members__.values())[1:]
    )
    more: dict[str, Any] = {"enable_gqa": True} if heads.shared > 1 else {}
    more.update({"attn_mask": tensors[4]} if heads.padded else {})

    def forward() -> Any:
        with sdpa_kernel(kernel):
            return torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=heads.causal, **more)

    out = forward()

    def backward() -> Any:
        return torch.autograd.grad(out, inputs, dout, retain_graph=True)

    backward()
    return Side(forward, backward, lambda: [out.detach(), *backward()])


def _measure(heads: Heads, bench: Bench) -> Iterator[Row]:
    yield from (_on_gpu if bench.on_gpu else _on_host)(heads, bench)


def _on_gpu(heads: Heads, bench: Bench) -> Iterator[Row]:
    lab, torch = bench.lab, bench.lab.torch
    types = {bf16: torch.bfloat16, f32: torch.float32}
    shapes = heads.queries, heads.keys, heads.keys, heads.queries
    tensors = [torch.randn(s, device=lab.device).to(types[heads.dtype]) for s in shapes]
    if heads.padded:
        tensors.append(torch.from_numpy(heads.seen).to(lab.device))

    def empty(shape: tuple[int, ...], dtype: DType) -> Any:
        return torch.full(shape, float("nan"), device=lab.device, dtype=types[dtype])

    found = {"aicf": ours(heads, lab.runtime, tensors, empty)}
    found["aicf"].forward()
    found["aicf"].backward()
    check(heads, "aicf", tensors, found["aicf"].outputs(), torch)
    for name in BACKENDS:
        try:
            side = theirs(heads, torch, tensors, name)
            check(heads, name, tensors, side.outputs(), torch)
            found[name] = side
        except WrongResult as error:
            yield failed(f"attention {heads}, against {name}", f"the peer's: {error}")
        except Exception as error:  # it has none for these; the other is still compared
            yield {"case": f"attention {heads}, against {name}", "why": f"{type(error).__name__}: {error}"}
    for n, what in enumerate(("forward", "backward")):
        flops, calls = heads.flops(grad=bool(n)), {name: getattr(side, what) for name, side in found.items()}
        count = {name: enough(call, SAMPLE_S, CALLS, lab.sync) for name, call in calls.items()}
        graph = lab.aicf_graph([calls["aicf"]] * count["aicf"])
        lab.warm(flops, list(calls.values()))
        samples = {
            name: lab.device_time(call, 1, calls=count[name], ahead=AHEAD) for name, call in calls.items()
        }
        samples["aicf"] = lab.device_time(graph, count["aicf"], ahead=AHEAD)
        speed = {name: t.rate(flops / 1e12) for name, t in bench.compare(samples, 9).items()}
        yield _row(f"attention {heads}, {what}", speed, found["aicf"].kernels[n])


def _row(case: str, speed: dict[str, Stats], kernel: str) -> Row:
    peers = {name: s for name, s in speed.items() if name != "aicf"}
    if not peers:
        return row(case, "TFLOP/s", speed["aicf"], note=kernel)
    best = max(peers, key=lambda name: peers[name].median)
    return row(case, "TFLOP/s", speed["aicf"], BETTER, peers[best], f"{kernel}; {best}")


def _on_host(heads: Heads, bench: Bench) -> Iterator[Row]:
    if heads.dtype is not f32:
        raise NotHere("halves are for a GPU")
    shapes = heads.queries, heads.keys, heads.keys, heads.queries
    tensors = [bench.rng.normal(size=s).astype(np.float32) for s in shapes]
    tensors += [heads.seen] if heads.padded else []
    found = {
        "aicf": ours(heads, aicf.runtime("cpu"), tensors, lambda s, dtype: np.full(s, np.nan, dtype.numpy))
    }
    found["aicf"].forward()
    found["aicf"].backward()
    check(heads, "aicf", tensors, found["aicf"].outputs())
    try:
        import torch

        found[TORCH] = theirs(heads, torch, [torch.from_numpy(x) for x in tensors])
        check(heads, TORCH, tensors, [x.numpy() for x in found[TORCH].outputs()])
    except ImportError:
        yield {"case": f"attention {heads}, against {TORCH}", "why": "PyTorch is not installed"}
    for n, what in enumerate(("forward", "backward")):
        calls = {name: getattr(side, what) for name, side in found.items()}
        times = bench.compare({name: wall(call, enough(call, 0.01)) for name, call in calls.items()})
        us, kernel = {name: t.per(1e-6) for name, t in times.items()}, found["aicf"].kernels[n]
        yield row(
            f"attention {heads}, {what}",
            "us",
            us["aicf"],
            *([TORCH, us[TORCH]] if TORCH in us else [None, None]),
            kernel,
        )


SUITE = Suite(
    "attention", "attention forward and backward, 1,000 to 16,384 tokens, d 64 and 128, against cuDNN and FlashAttention", 420, cases,
    headlines=tuple(
        (f"attention {Heads(*size, d, True)}, {what}", BETTER)
        for size, d in ((SIZES[0], 64),) for what in ("forward", "backward")
    ),
)  # fmt: skip
