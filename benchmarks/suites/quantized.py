"""Products of 8-bit integers against PyTorch's `_int_mm`, which is cuBLASLt's; and decoding with weights of 8 and 4 bits, of the layers of Llama 1B and
8B, against PyTorch's kernels for such weights, which torchao calls, and against weights of bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from aicf.device.spec import DeviceSpec
from aicf.rows import RegionSpec
from aicf.types import TensorDesc, TensorSpec, bf16, f32, i8, u8

from .. import sides
from ..harness import Bench, Case, NotHere, Suite
from ..results import Row, failed, mean_ratios, row
from .gemm import device_times

WHOLE = "_int_mm"
HALVES = "weights of bf16"
PEERS = {4: "_weight_int4pack_mm", 8: "_weight_int8pack_mm"}  # PyTorch's, of bf16
SQUARES = (1024, 2048, 4096, 8192)
OTHERS = ((8192, 8192, 1024), (4096, 14336, 4096), (32, 4096, 4096), (256, 4096, 4096))
# outputs and inputs: queries, keys and values; the way out; gate and up; down
LAYERS = {
    "Llama 1B": ((3072, 2048), (2048, 2048), (8192, 2048), (2048, 8192)),
    "Llama 8B": ((6144, 4096), (4096, 4096), (14336, 4096), (4096, 14336)),
}
HEAD = (128256, 4096)
ROWS = 1, 4, 16
GROUP = 128
TOLERANCE = 2e-2  # of bf16, whose weights are rounded once more by some


@dataclass(frozen=True)
class Whole:
    """a b' of i8, m x k and n x k, in i32."""

    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"i8 {self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        return self.m * self.k + self.n * self.k + 4 * self.m * self.n

    def region(self) -> RegionSpec:
        operands = [TensorDesc.dense(TensorSpec(s, i8, "cuda")) for s in ((self.m, self.k), (self.n, self.k))]
        return sides.one_op("gemm", operands, trans_b=True)


@dataclass(frozen=True)
class Coded:
    """m rows of bf16 by n lines of k codes, with a scale for each group of 128; of 8 bits for each line."""

    m: int
    n: int
    k: int
    bits: int

    def __str__(self) -> str:
        return f"{self.bits} bits {self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def groups(self) -> int:
        return self.k // GROUP if self.bits == 4 else 1

    @property
    def nbytes(self) -> int:
        return self.n * self.k * self.bits // 8 + 4 * self.n * self.groups + 2 * self.m * (self.n + self.k)

    def region(self) -> RegionSpec:
        codes = u8 if self.bits == 4 else i8
        specs = (
            TensorSpec((self.m, self.k), bf16, "cuda"), TensorSpec((self.n, self.k * self.bits // 8), codes, "cuda"),
            TensorSpec((self.n, self.groups), f32, "cuda"),
        )  # fmt: skip
        return sides.one_op("gemm_codes", [TensorDesc.dense(s) for s in specs], bits=self.bits)


def _lab(bench: Bench) -> Any:
    if not bench.on_gpu:
        raise NotHere("the kernels are for a GPU, and so are PyTorch's")
    return bench.lab


# --- products of integers ---------------------------------------------------------------------------------------------


def _whole(p: Whole, bench: Bench) -> Iterator[Row]:
    lab = _lab(bench)
    torch, launch_sets = lab.torch, lab.launch_sets(p.flops / 2, p.nbytes)

    def matrix(*shape: int) -> Any:
        return torch.randint(-128, 128, shape, device=lab.device, dtype=torch.int8)

    sets = [
        (matrix(p.m, p.k), matrix(p.n, p.k), torch.empty(p.m, p.n, device=lab.device, dtype=torch.int32))
        for _ in set(launch_sets)
    ]
    a, b, c = sets[0]
    ops = [sides.bind_op(lab.runtime, "gemm", [a, b], [c], trans_b=True) for a, b, c in sets]
    graph = lab.aicf_graph([ops[i].call for i in launch_sets])

    def work() -> None:
        for i in launch_sets:
            a, b, c = sets[i]
            torch._int_mm(a, b.mT, out=c)

    peer = lab.torch_graph(work)
    wide = (x.to(torch.float64 if p.flops < 1e11 else torch.float32) for x in (a[:256], b))
    left, right = wide
    want = left @ right.mT  # f32 is exact to 2^24, sums are of some 2^20
    for name, launch in ((ops[0].kernel_id, graph), (WHOLE, peer)):
        c.fill_(7)
        launch()
        lab.verify(f"{name}: {p}", c[:256].reshape(-1), lambda at: want.reshape(-1)[at], 1e-6)
    times = device_times(bench, launch_sets, p.flops / 2, {"aicf": graph, WHOLE: peer})
    ours, theirs = (times[n].rate(p.flops / 1e12) for n in ("aicf", WHOLE))
    yield row(f"gemm {p}", "TFLOP/s", ours, WHOLE, theirs, ops[0].kernel_id)


# --- weights of few bits ----------------------------------------------------------------------------------------------


class Weights:
    """Codes and scales as both sides have them, in as many sets as keep the cache cold."""

    def __init__(self, p: Coded, lab: Any) -> None:
        torch = lab.torch
        self.problem, self.lab = p, lab
        self.launch_sets = lab.launch_sets(p.flops * 8, p.nbytes)
        least, most = (-8, 8) if p.bits == 4 else (-128, 128)
        self.sets = []
        for _ in set(self.launch_sets):
            codes = torch.randint(least, most, (p.n, p.k), device=lab.device, dtype=torch.int8)
            # of bf16, so that both sides have the same
            scale = (torch.rand(p.n, p.groups, device=lab.device) + 0.5).bfloat16().float() * 2.0 ** -(
                p.bits - 1
            )
            x = (torch.randn(p.m, p.k, device=lab.device) * p.k**-0.5).bfloat16()
            self.sets.append(
                (x, codes, scale, torch.empty(p.m, p.n, device=lab.device, dtype=torch.bfloat16))
            )
        self.captured: list[Any] = []  # what captured launches point at
        self.stored = [self._packed(codes) for _, codes, _, _ in self.sets]

    def _packed(self, codes: Any) -> Any:
        if self.problem.bits == 8:
            return codes
        above = (codes + 8).to(self.lab.torch.uint8)
        return above[:, ::2] | above[:, 1::2] << 4

    def wide(self, n: int, dtype: Any) -> Any:
        _, codes, scale, _ = self.sets[n]
        p = self.problem
        return (codes.to(dtype).view(p.n, p.groups, -1) * scale.to(dtype)[:, :, None]).view(p.n, p.k)

    def ours(self) -> tuple[Any, str]:
        p = self.problem
        ops = [
            sides.bind_op(self.lab.runtime, "gemm_codes", [x, w, scale], [y], bits=p.bits)
            for (x, _, scale, y), w in zip(self.sets, self.stored)
        ]
        graph = self.lab.aicf_graph([ops[i].call for i in self.launch_sets])
        self.verify(ops[0].kernel_id, graph, self.sets[0][3])
        return graph, ops[0].kernel_id

    def verify(self, what: str, graph: Any, y: Any) -> None:
        y.fill_(float("nan"))
        graph()
        torch = self.lab.torch
        want = (self.sets[0][0].to(torch.float32) @ self.wide(0, torch.float32).mT).reshape(-1)
        self.lab.verify(f"{what}: {self.problem}", y.reshape(-1), lambda at: want[at], TOLERANCE)

    def halves(self) -> Any:
        torch = self.lab.torch
        wide = [self.wide(n, torch.float32).bfloat16() for n in range(len(self.sets))]

        def work() -> None:
            for i in self.launch_sets:
                torch.mm(self.sets[i][0], wide[i].mT, out=self.sets[i][3])

        self.captured.append(wide)
        graph = self.lab.torch_graph(work)
        self.verify(HALVES, graph, self.sets[0][3])
        return graph

    def theirs(self) -> Any:
        """PyTorch's kernel for such weights; it returns a tensor of its own."""
        p = self.problem
        try:
            multiply = [self._prepared(n) for n in range(len(self.sets))]
            multiply[0]()
        except (AttributeError, RuntimeError, NotImplementedError) as error:
            raise NotHere(
                f"the peer, torch.{PEERS[p.bits]}, is not in this PyTorch: {str(error).splitlines()[0]}"
            ) from None
        made: list[Any] = []

        def work() -> None:
            made[:] = [multiply[i]() for i in self.launch_sets]

        self.captured += [multiply, made]
        graph = self.lab.torch_graph(work)
        self.verify(
            PEERS[p.bits], graph, made[0] if self.launch_sets[0] == 0 else made[self.launch_sets.index(0)]
        )
        return graph

    def _prepared(self, n: int) -> Any:
        torch, p = self.lab.torch, self.problem
        x, codes, scale, _ = self.sets[n]
        if p.bits == 8:
            scales = scale.bfloat16().reshape(-1)
            return lambda: torch._weight_int8pack_mm(x, codes, scales)
        above = (codes + 8).to(torch.uint8)
        bytes_ = above[:, ::2] << 4 | above[:, 1::2]  # the first is the upper one there
        packed = torch.ops.aten._convert_weight_to_int4pack(bytes_.contiguous(), 8)
        both = torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous().bfloat16()
        return lambda: torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, both)


def _coded(p: Coded, bench: Bench) -> Iterator[Row]:
    weights = Weights(p, _lab(bench))
    graph, kernel_id = weights.ours()
    graphs = {"aicf": graph, HALVES: weights.halves()}
    missing = ""
    try:
        graphs[PEERS[p.bits]] = weights.theirs()
    except NotHere as error:
        missing = str(error)
    times = device_times(bench, weights.launch_sets, p.flops * 8, graphs)
    speeds = {name: t.rate(p.nbytes / 1e9) for name, t in times.items()}
    for name in (PEERS[p.bits], HALVES):
        if name in speeds:
            note = f"{kernel_id}; {times['aicf'].median * 1e6:.4g} us"
            yield row(f"weights of {p}, beside {name}", "GB/s", speeds["aicf"], name, speeds[name], note)
    if missing:
        yield failed(f"weights of {p}, beside {PEERS[p.bits]}", missing)


# --- the suite --------------------------------------------------------------------------------------------------------


def cases(bench: Bench) -> list[Case]:
    whole = (
        [Whole(256, 256, 256)]
        if bench.tiny
        else [*(Whole(n, n, n) for n in SQUARES), *(Whole(*s) for s in OTHERS)]
    )
    shapes = [(64, 256)] if bench.tiny else [*sum(LAYERS.values(), ()), HEAD]
    coded = [
        Coded(m, n, k, bits) for bits in (4, 8) for m in (ROWS[:1] if bench.tiny else ROWS) for n, k in shapes
    ]
    made = [Case(f"gemm {p}", partial(_whole, p), 0.5, partial(_chosen, p)) for p in whole]
    return [*made, *(Case(f"weights of {p}", partial(_coded, p), 0.5, partial(_chosen, p)) for p in coded)]


def _chosen(p: Whole | Coded, device: DeviceSpec) -> list[sides.Kernel]:
    region = p.region()
    return [(sides.predicted(region, device)[0][0], region)]


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of all cases with each peer."""
    peers = (WHOLE, *PEERS.values(), HALVES)
    return mean_ratios({f"against {peer}": [r for r in rows if r.get("peer_name") == peer] for peer in peers})


SUITE = Suite(
    "quantized", "products of 8-bit integers, and decoding with weights of 8 and 4 bits, against PyTorch's kernels for them", 300, cases,
    headlines=(
        (f"gemm {Whole(4096, 4096, 4096)}", WHOLE), (f"weights of {Coded(1, 14336, 4096, 4)}, beside {PEERS[4]}", PEERS[4]),
    ),
    summary=summary,
)  # fmt: skip
