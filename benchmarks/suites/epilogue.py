"""What follows a product, in its kernel: a linear layer with bias and GELU, with and without Z kept, and the way back.

Forward is compared with PyTorch's two ways and with the product alone; the backward step forms gZ = gelu'(Z) * (gY W) and its
column sums, the bias's gradient. The product alone is compared with PyTorch's two ways as well: no kernel that multiplies as it does
can be further ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from aicf.device.spec import DeviceSpec
from aicf.types import TensorSpec

from .. import sides
from ..harness import Bench, Case, NotHere, Suite
from ..results import Row, row
from .gemm import OURS, TOLERANCE, device_times

SIZES = ((1024, 1024, 1024), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 11008, 4096))
PLAIN, PEER = "the product alone, by aicf", "the better of torch eager and torch.compile"
AT_BEST = "if what follows cost nothing"


@dataclass(frozen=True)
class Step:
    """`ours(ctx, **operands)` and `theirs(torch, **operands)` return the same results.

    operands, results  their extents, as a string of m, n and k for each
    """

    name: str
    operands: dict[str, str]
    results: tuple[str, ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]


def _linear(ctx: Any, x: Any, w: Any, bias: Any) -> Any:
    return ctx.bias_add(ctx.gemm(x, w, trans_b=True), bias)


def _gelu_z(ctx: Any, x: Any, w: Any, bias: Any) -> Any:
    z = _linear(ctx, x, w, bias)
    return ctx.gelu(z), z


def _gelu(ctx: Any, x: Any, w: Any, bias: Any) -> Any:
    return _gelu_z(ctx, x, w, bias)[0]


def _torch_gelu_z(torch: Any, x: Any, w: Any, bias: Any) -> Any:
    z = torch.nn.functional.linear(x, w, bias)
    return torch.nn.functional.gelu(z, approximate="tanh"), z


def _back(ctx: Any, dy: Any, w: Any, z: Any) -> Any:
    gz = ctx.gelu_grad(ctx.gemm(dy, w, trans_b=True), z)
    return gz, ctx.reduce_sum(gz, axes=(0,), keepdims=False)


def _torch_back(torch: Any, dy: Any, w: Any, z: Any) -> Any:
    gz = torch.ops.aten.gelu_backward(torch.nn.functional.linear(dy, w), z, approximate="tanh")
    return gz, gz.sum(0)


FORWARD = {"x": "mk", "w": "nk", "bias": "n"}
PRODUCT = Step(
    "product", {"x": "mk", "w": "nk"}, ("mn",), lambda ctx, x, w: ctx.gemm(x, w, trans_b=True),
    lambda torch, x, w: torch.nn.functional.linear(x, w),
)  # fmt: skip
STEPS = (
    Step(
        "linear + bias + GELU",
        FORWARD,
        ("mn",),
        _gelu,
        lambda torch, **given: _torch_gelu_z(torch, **given)[0],
    ),
    Step("linear + bias + GELU, Z kept", FORWARD, ("mn", "mn"), _gelu_z, _torch_gelu_z),
    Step("dGELU + bias gradient", {"dy": "mk", "w": "nk", "z": "mn"}, ("mn", "n"), _back, _torch_back),
)


class Work:
    """A step at a size, in as many sets of operands as keep the cache cold."""

    def __init__(self, step: Step, sizes: tuple[int, int, int], dtype: str, lab: Any) -> None:
        torch = lab.torch
        self.step, self.lab, self.dtype = step, lab, dtype
        self.extents, kind = dict(zip("mnk", sizes)), {"f16": torch.float16, "bf16": torch.bfloat16}[dtype]
        m, n, k = sizes
        self.flops = 2.0 * m * n * k

        def made(name: str, shape: str) -> Any:
            scale = k**-0.5 if name == "w" else 1.0  # results are of order one
            return (torch.randn(self._shape(shape), device=lab.device) * scale).to(kind)

        def one() -> tuple[dict[str, Any], list[Any]]:
            given = {name: made(name, shape) for name, shape in step.operands.items()}
            return given, [torch.empty(self._shape(r), device=lab.device, dtype=kind) for r in step.results]

        nbytes = 2 * (m * k + k * n + m * n * (step.results.count("mn") + ("z" in step.operands)))
        self.launch_sets = lab.launch_sets(self.flops, nbytes)
        self.sets = [one() for _ in set(self.launch_sets)]

    def _shape(self, extents: str) -> tuple[int, ...]:
        return tuple(self.extents[e] for e in extents)

    def ours(self) -> tuple[Any, tuple[str, ...]]:
        """A graph of the step in aicf's kernels, verified; and their ids."""
        bound = [sides.bind_graph(self.lab.runtime, self.step.ours, *one) for one in self.sets]
        graph = self.lab.aicf_graph([call for i in self.launch_sets for call in bound[i].calls])
        for result in self.sets[0][1]:
            result.fill_(float("nan"))
        graph()
        self._verify("aicf", self.sets[0][1])
        return graph, bound[0].kernel_ids

    def theirs(self, compiled: bool) -> Any:
        torch, step = self.lab.torch, partial(self.step.theirs, self.lab.torch)
        if compiled:
            torch._dynamo.reset()
            step = torch.compile(step)
        made = step(**self.sets[0][0])
        self._verify("torch", made if isinstance(made, tuple) else (made,))
        return self.lab.torch_graph(lambda: [step(**self.sets[i][0]) for i in self.launch_sets])

    def _verify(self, who: str, results: Any) -> None:
        """Against PyTorch in f32, whose rounding is far below that of the results; a sum of m of them is off by more."""
        wide = {name: x.float() for name, x in self.sets[0][0].items()}
        made = self.step.theirs(self.lab.torch, **wide)
        for n, (got, want) in enumerate(zip(results, made if isinstance(made, tuple) else (made,))):
            terms = self.extents["m"] if self.step.results[n] == "n" else 1
            flat, tolerance = want.reshape(-1), TOLERANCE[self.dtype] * terms**0.5
            what = f"{who}, {self.step.name}, result {n}"
            self.lab.verify(what, got.reshape(-1), lambda at, flat=flat: flat[at], tolerance)


def cases(bench: Bench) -> list[Case]:
    sizes = ((256, 512, 128),) if bench.tiny else SIZES
    return [
        Case(
            f"{step.name}, {dtype} {m}x{n}x{k}", partial(_measure, step, (m, n, k), dtype), 10.0,
            partial(_kernels, step, (m, n, k), dtype),
        )
        for dtype in ("bf16", "f16") for step in STEPS for m, n, k in sizes
    ]  # fmt: skip


def _kernels(step: Step, sizes: tuple[int, int, int], dtype: str, device: DeviceSpec) -> list[sides.Kernel]:
    extents, made = dict(zip("mnk", sizes)), []
    for one in (step, PRODUCT):
        given = {
            name: TensorSpec(tuple(extents[e] for e in shape), OURS[dtype], device.kind)
            for name, shape in one.operands.items()
        }
        made += sides.graph_kernels(one.ours, given, device)
    return made


def _measure(step: Step, sizes: tuple[int, int, int], dtype: str, bench: Bench) -> Iterator[Row]:
    if not bench.on_gpu:
        raise NotHere("the kernels are for Hopper, and so is torch.compile's side")
    lab = bench.lab
    work, plain = Work(step, sizes, dtype, lab), Work(PRODUCT, sizes, dtype, lab)
    (ours, kernels), (product, products) = work.ours(), plain.ours()
    graphs = {"aicf": ours, "plain": product, "eager": work.theirs(False), "compile": work.theirs(True)}
    times = device_times(bench, work.launch_sets, work.flops, graphs)
    speed = {name: time.rate(work.flops / 1e12) for name, time in times.items()}
    best = min(("eager", "compile"), key=lambda name: times[name].median)
    case = f"{step.name}, {dtype} {'x'.join(map(str, sizes))}"
    yield row(case, "TFLOP/s", speed["aicf"], PEER, speed[best], f"{' + '.join(kernels)}; torch {best}")
    both = *kernels, *products
    yield row(f"{case}, over the product", "TFLOP/s", speed["aicf"], PLAIN, speed["plain"], kernels=both)
    yield row(f"{case}, {AT_BEST}", "TFLOP/s", speed["plain"], PEER, speed[best], f"torch {best}", products)


SUITE = Suite(
    "epilogue", "linear + bias + GELU, with Z kept, and its backward step, against PyTorch and the product alone", 420, cases,
    headlines=tuple((f"{step.name}, bf16 4096x4096x4096", PEER) for step in STEPS),
    compared=lambda row: row["peer_name"] == PEER and not row["case"].endswith(AT_BEST),
)  # fmt: skip
