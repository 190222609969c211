"""One token of one sequence with a KV cache, near the end of 1024 places: GPT-2 124M and a Llama of 1B in bf16, against PyTorch with a static
cache, compiled and captured; and the share of what memory allows: weights and cache read once, at the speed of a device's copy.

A step reads a token's id on the device and writes the next one's there, the likeliest, which the next step reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import aicf
from aicf import nn
from aicf.ir import Role
from aicf.models import GPT2, GPT2Config, Llama, LlamaConfig
from aicf.types import bf16, f32

from ..harness import Bench, Case, Suite, WrongResult
from ..results import Row, failed, row
from ..stats import Sample, Stats
from ..torch_decoder import Shape, decoder, greedy

OVERHEAD, EAGER, BOUND = (
    "torch.compile, reduce-overhead",
    "torch eager",
    "weights and cache at the speed of a copy",
)
STEPS, CHECKED = 32, 3  # of a sample, up to the last place; whose tokens are checked
TOLERANCE = {bf16: 0.1, f32: 1e-4}  # of a choice's logit under the greatest, by their standard deviation
COPIED = 2**30  # bytes


@dataclass(frozen=True)
class Model:
    name: str
    config: GPT2Config | LlamaConfig
    dtype: aicf.DType = bf16
    length: int = 1024

    @property
    def shape(self) -> Shape:
        c = self.config
        if isinstance(c, LlamaConfig):
            return Shape(c.depth, c.heads, c.shared, c.head, self.length, c.theta, c.eps)
        return Shape(c.depth, c.heads, c.heads, c.size // c.heads, self.length, None, c.eps)

    def model(self) -> nn.Model:
        layer: Any = (Llama if isinstance(self.config, LlamaConfig) else GPT2)(self.config, self.dtype)
        return nn.Model(
            {"tokens": aicf.TensorSpec(("batch", "seq"), aicf.i32)}, layer, batch=1, seq=self.length
        )

    def nbytes(self, params: Mapping[str, np.ndarray]) -> int:
        """That a step reads: all weights, of the table of places one row, and all keys and values."""
        s = self.shape
        cache = 2 * s.depth * s.kv_heads * s.length * s.head_size * self.dtype.itemsize
        return cache + sum(x.nbytes for name, x in params.items() if name != "place.weight")


_1B = replace(LlamaConfig.preset("llama-3.2-1b"), scaling=None, places=1024)
MODELS = (Model("GPT-2 124M", GPT2Config.preset("gpt2")), Model("Llama 1B", _1B))
SMALL = (
    Model("small GPT-2", GPT2Config(61, 64, 32, 2, 2), f32, 64),
    Model("small Llama", LlamaConfig(61, 64, 32, 96, 2, 4, 2, tied=True), f32, 64),
)

DECODERS = {  # that profile.py knows
    "gpt2-decode": MODELS[0], "llama-1b-decode": MODELS[1],
    "small-decode": Model("small GPT-2", GPT2Config(61, 512, 32, 2, 2), f32, 512),
}  # fmt: skip


def cases(bench: Bench) -> list[Case]:
    some = (
        MODELS
        if bench.on_gpu and not bench.tiny
        else [replace(m, dtype=bf16) for m in SMALL]
        if bench.on_gpu
        else SMALL
    )
    return [Case(_name(m), partial(_measure, m), 120.0 if some is MODELS else 0.0) for m in some]


def _name(m: Model) -> str:
    return f"{m.name}, {m.dtype}, batch 1, context {m.length}: token"


@dataclass
class Side:
    """`fill()` processes the prompt; `step()` computes the next token from its last one, or from the last step's: `token` reads it."""

    fill: Callable[[], Any]
    step: Callable[[], Any]
    token: Callable[[Any], int]
    kernels: tuple[str, ...] = ()


def _measure(m: Model, bench: Bench) -> Iterator[Row]:
    torch = bench.lab.torch if bench.on_gpu else _torch()
    program = aicf.compile(m.model(), device=bench.device)
    params = {name: program.get(name) for name in program.variables.names(Role.param)}
    prompt = bench.rng.integers(0, m.config.words, m.length - STEPS)
    sides = {"aicf": _ours(m, program, prompt)}
    reference = _reference(m, program, params, torch, bench)
    _check(m, "aicf", sides["aicf"], prompt, reference)
    peer = OVERHEAD if bench.on_gpu else EAGER
    try:
        if torch is None:
            raise ImportError("PyTorch is not installed")
        sides[peer] = _theirs(m, params, prompt, torch, bench)
        _check(m, peer, sides[peer], prompt, reference)
    except WrongResult as error:
        sides.pop(peer)
        yield failed(f"{_name(m)}, against {peer}", f"the peer's: {error}")
    except Exception as error:  # its compiler is missing here, say
        sides.pop(peer, None)
        yield {
            "case": f"{_name(m)}, against {peer}",
            "why": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}",
        }
    del reference  # of as many bytes as the weights, twice
    yield from _rows(m, bench, sides, m.nbytes(params))


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _ours(m: Model, program: Any, prompt: np.ndarray) -> Side:
    generator = aicf.Generator(program, 1, m.length)
    return Side(
        lambda: generator.start([prompt], temperature=0),
        lambda: generator.decode({})["output"],
        lambda made: int(made.numpy()[0]),
        generator.decode.plan.kernel_ids,
    )


def _theirs(m: Model, params: Mapping[str, np.ndarray], prompt: np.ndarray, torch: Any, bench: Bench) -> Side:
    place = bench.lab.device if bench.on_gpu else "cpu"
    module = decoder(torch, m.shape, {name: _tensor(torch, x).to(place) for name, x in params.items()})
    following = greedy(torch, module)
    for kept in following.buffers():  # else what is written in place keeps a step from being captured
        torch._dynamo.mark_static_address(kept)
    compiled = torch.compile(following, mode="reduce-overhead", dynamic=False) if bench.on_gpu else following
    given = torch.from_numpy(prompt).to(place)[None]

    def fill() -> None:
        module.position.zero_()
        with torch.no_grad():
            module(given[:, :-1])
        following.token.copy_(given[:, -1:])

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return compiled()

    for _ in range(2):  # compiles, and captures
        fill()
        for _ in range(CHECKED):
            step()
    return Side(fill, step, lambda made: int(made.item()))


def _tensor(torch: Any, x: np.ndarray) -> Any:
    """bf16 travels as its bits."""
    if x.dtype == bf16.numpy:
        return torch.from_numpy(np.array(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


# --- the check, and the times -------------------------------------------------------------------------------------------


def _reference(
    m: Model, program: Any, params: Mapping[str, np.ndarray], torch: Any, bench: Bench
) -> Callable[[np.ndarray], np.ndarray]:
    """Of tokens, logits of the last CHECKED, without a cache: by PyTorch in f32; where it is not installed by aicf, of all at once."""
    if torch is None:
        return lambda seen: program({"tokens": seen[None].astype(np.int32)})["output"].numpy()[0, -CHECKED:]
    place = bench.lab.device if bench.on_gpu else "cpu"
    module = decoder(
        torch, m.shape, {name: _tensor(torch, x).float().to(place) for name, x in params.items()}
    )

    def logits(seen: np.ndarray) -> Any:
        module.position.zero_()
        with torch.no_grad():
            return module(torch.from_numpy(seen[None]).to(place))[0, -CHECKED:].cpu().numpy()

    return logits


def _check(
    m: Model, what: str, side: Side, prompt: np.ndarray, reference: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Rounding may change the choice between words that are nearly as likely: each is judged by the logits after the side's own tokens."""
    side.fill()
    chosen = [side.token(side.step()) for _ in range(CHECKED)]
    if not all(0 <= token < m.config.words for token in chosen):
        raise WrongResult(f"{what}, {_name(m)}: tokens {chosen} are not among {m.config.words} words")
    want = np.asarray(reference(np.append(prompt, chosen[:-1]).astype(np.int64)), np.float64)
    for n, (token, logits) in enumerate(zip(chosen, want, strict=True)):
        short = float((logits.max() - logits[token]) / logits.std())
        if not short <= TOLERANCE[m.dtype]:
            raise WrongResult(
                f"{what}, {_name(m)}: the logit of token {token} of step {n} is {short:.2g} of their deviation under the greatest"
            )


def _sample(side: Side, sync: Callable[[], Any]) -> Sample:
    def sample() -> float:
        side.fill()
        sync()
        start = time.perf_counter()
        for _ in range(STEPS):
            side.step()
        sync()
        return (time.perf_counter() - start) / STEPS

    return sample


def _rows(m: Model, bench: Bench, sides: Mapping[str, Side], nbytes: int) -> Iterator[Row]:
    samples = {
        name: _sample(side, bench.lab.sync if bench.on_gpu else lambda: None) for name, side in sides.items()
    }
    if bench.on_gpu:
        torch, size = bench.lab.torch, COPIED // (64 if bench.tiny else 1)
        a, b = (torch.empty(size, dtype=torch.uint8, device=bench.lab.device) for _ in range(2))
        copy = bench.lab.device_time(lambda: a.copy_(b), 1, calls=5)
        samples[BOUND] = lambda: copy() * nbytes / (2 * size)  # a copy reads and writes
    times = bench.compare(samples)
    us, kernels = {name: t.per(1e-6) for name, t in times.items()}, sides["aicf"].kernels
    peers = [name for name in sides if name != "aicf"]
    for peer in peers:
        yield row(_name(m), "us", us["aicf"], peer, us[peer], kernels=kernels)
    if not peers:
        yield row(_name(m), "us", us["aicf"], kernels=kernels)
    if not bench.on_gpu:
        return
    bound = us[BOUND].median
    share = {name: Stats(100 * bound / us[name].median) for name in sides}
    note = f"{nbytes / 1e6:.5g} MB in {bound:.4g} us at {nbytes / bound * 1e-6:.4g} TB/s"
    for peer in peers or [None]:
        other = [None, None] if peer is None else [peer, share[peer]]
        yield row(f"{_name(m)}, of the bandwidth bound", "%", share["aicf"], *other, note, kernels)


SUITE = Suite(
    "decode", "a token of one sequence with a KV cache, GPT-2 124M and a Llama of 1B, against PyTorch's static cache, compiled", 420, cases,
    headlines=tuple((_name(m), OVERHEAD) for m in MODELS),
)  # fmt: skip
