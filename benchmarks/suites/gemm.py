"""Matrix products against cuBLAS: halves in squares, skinny and ragged, all four transposes, and heads of attention; then fp8; f32,
exact and rounded to tf32; and the kernels that are predicted to be the best, each by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import Any

import aicf
from aicf.device.spec import DeviceSpec
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f8e4m3, f16, f32

from .. import sides
from ..harness import Bench, Case, NotHere, Suite
from ..results import Row, mean_ratios, row
from ..stats import Stats

SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)
OTHERS = (
    (16, 4096, 4096), (128, 4096, 4096), (4096, 11008, 4096), (8192, 1024, 8192), (4096, 128256, 4096), (8192, 8192, 512),
    (1000, 1000, 1000), (4097, 4095, 4096),
)  # fmt: skip
SIZES = (*((n, n, n) for n in SQUARES), *OTHERS)
SHOWN = (
    (256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (128, 4096, 4096),
    (16, 4096, 4096), (1000, 1000, 1000),
)  # fmt: skip
SINGLE = (1024, 1024, 1024), (4096, 4096, 4096)  # of f32
BYTES = (4096, 4096, 4096), (8192, 8192, 8192)  # of fp8
HEADS = (96, 1024, 1024, 64), (96, 1024, 64, 1024)  # batch, m, n, k: scores and values of attention
TOLERANCE = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 5e-5, "tf32x3": 5e-5, "tf32": 4e-3, "fp8": 1.6e-2}
TRIED = 16  # kernels for each shape
APART = 8  # bytes past alignment, where results can't leave in boxes
PEER = "the better of cuBLAS and cuBLASLt"
LIBRARIES = {"cuBLAS": "cublas", "cuBLASLt": "cublaslt"}
SCALED = {"_scaled_mm": False, "_scaled_mm, fast sums": True}  # PyTorch's of fp8, which is cuBLASLt's
TYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
}  # as PyTorch calls them; others are of f32
OURS = {"f16": f16, "bf16": bf16, "fp8": f8e4m3}


@dataclass(frozen=True)
class Problem:
    """op(a) op(b) of an m x k and a k x n matrix. `order`: N or T for each; tf32 and tf32x3 are of f32, so rounded; of fp8,
    which is f8e4m3, results are bf16."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    order: str = "NT"
    batch: tuple[int, ...] = ()

    def __str__(self) -> str:
        batch = "".join(f"{b} of " for b in self.batch)
        return f"{self.dtype} {self.order} {batch}{self.m}x{self.n}x{self.k}"

    @property
    def flops(self) -> float:
        return 2.0 * prod(self.batch) * self.m * self.n * self.k

    @property
    def transposed(self) -> tuple[bool, bool]:
        return self.order[0] == "T", self.order[1] == "T"

    @property
    def precision(self) -> aicf.Precision:
        return aicf.Precision.__members__.get(self.dtype, aicf.Precision.exact)

    @property
    def attrs(self) -> dict[str, Any]:
        trans_a, trans_b = self.transposed
        more = {"alpha": self.alpha, "out_dtype": aicf.bf16.id} if self.dtype == "fp8" else {}
        return {"trans_a": trans_a, "trans_b": trans_b, "precision": self.precision, **more}

    @property
    def alpha(self) -> float:
        """What makes results of order one: of fp8 here, where a scaled operand would have few digits."""
        return self.k**-0.5 if self.dtype == "fp8" else 1.0

    @property
    def nbytes(self) -> int:
        a, b, c = self.region().tensors
        return a.nbytes + b.nbytes + c.nbytes

    def region(self, unaligned: bool = False) -> RegionSpec:
        """The op's region. `unaligned`: results begin a little past alignment."""
        kind, schema, (trans_a, trans_b) = OURS.get(self.dtype, f32), aicf.schema_of("gemm"), self.transposed

        def matrix(rows: int, columns: int, dtype: DType, transposed: bool = False) -> TensorSpec:
            shape = (columns, rows) if transposed else (rows, columns)
            return TensorSpec((*self.batch, *shape), dtype, "cuda")

        operands = matrix(self.m, self.k, kind, trans_a), matrix(self.k, self.n, kind, trans_b)
        result = matrix(self.m, self.n, bf16 if self.dtype == "fp8" else kind)
        packed = schema.pack(schema.normalized(operands, self.attrs))
        descs = [TensorDesc.dense(spec) for spec in operands]
        results = [TensorDesc.dense(result, APART if unaligned else 256)]
        return RegionSpec.single(aicf.OpKind("gemm"), packed, descs, results)

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(SCALED if self.dtype == "fp8" else LIBRARIES)


class Operands:
    """Normal data in as many sets as keep the cache cold; b is scaled so that results are of order one. `unaligned`: these begin
    a little past alignment."""

    def __init__(self, p: Problem, lab: Any, unaligned: bool = False) -> None:
        torch = lab.torch
        self.problem, self.lab = p, lab
        kind = getattr(torch, TYPES.get(p.dtype, "float32"))
        result = torch.bfloat16 if p.dtype == "fp8" else kind
        self.launch_sets = lab.launch_sets(p.flops, p.nbytes)

        def matrix(rows: int, columns: int, transposed: bool, scale: float = 1.0) -> Any:
            shape = (*p.batch, columns, rows) if transposed else (*p.batch, rows, columns)
            return (torch.randn(shape, device=lab.device) * scale).to(kind)

        trans_a, trans_b = p.transposed
        scale = p.k**-0.5 / p.alpha

        def results() -> Any:
            skipped = APART // result.itemsize if unaligned else 0
            memory = torch.empty(prod(p.batch) * p.m * p.n + skipped, device=lab.device, dtype=result)
            return memory[skipped:].view(*p.batch, p.m, p.n)

        self.sets = [
            (matrix(p.m, p.k, trans_a), matrix(p.k, p.n, trans_b, scale), results())
            for _ in set(self.launch_sets)
        ]

    def ours(self, kernel_id: str | None = None) -> tuple[Any, str]:
        """A graph of this kernel, or of the one that is chosen, verified; and its id."""
        ops = [
            sides.bind_op(self.lab.runtime, "gemm", [a, b], [c], kernel_id, **self.problem.attrs)
            for a, b, c in self.sets
        ]
        graph = self.lab.aicf_graph([ops[i].call for i in self.launch_sets])
        self._verify(ops[0].kernel_id, graph)
        return graph, ops[0].kernel_id

    def theirs(self, library: str) -> Any:
        torch = self.lab.torch
        if library in LIBRARIES:
            torch.backends.cuda.preferred_blas_library(LIBRARIES[library])
        torch.backends.cuda.matmul.allow_tf32 = self.problem.precision is aicf.Precision.tf32
        multiply = torch.matmul if library in LIBRARIES else self._scaled(SCALED[library])

        def work() -> None:
            for i in self.launch_sets:
                a, b, c = self.sets[i]
                multiply(*self._factors(a, b), out=c)

        graph = self.lab.torch_graph(work)
        torch.backends.cuda.matmul.allow_tf32 = False
        self._verify(library, graph)
        return graph

    def _scaled(self, fast: bool) -> Any:
        torch = self.lab.torch
        if not hasattr(torch, "_scaled_mm"):
            raise NotHere("the peer, torch._scaled_mm, is not in this PyTorch")
        one, alpha = (torch.tensor(x, device=self.lab.device) for x in (1.0, self.problem.alpha))
        return partial(
            torch._scaled_mm, scale_a=one, scale_b=alpha, out_dtype=torch.bfloat16, use_fast_accum=fast
        )

    def _factors(self, *both: Any) -> list[Any]:
        return [x.mT if transposed else x for x, transposed in zip(both, self.problem.transposed)]

    def _verify(self, what: str, graph: Any) -> None:
        for *_, c in self.sets:
            c.fill_(float("nan"))
        graph()
        want = self._wanted
        got = self.sets[0][2].reshape(-1)
        self.lab.verify(f"{what}: {self.problem}", got, lambda at: want[at], TOLERANCE[self.problem.dtype])

    @cached_property
    def _wanted(self) -> Any:
        """In f64; for the largest in f32, whose rounding is far below that of the results."""
        torch = self.lab.torch
        wide = torch.float64 if self.problem.flops < 1e12 else torch.float32
        product = torch.matmul(*self._factors(*(x.to(wide) for x in self.sets[0][:2]))).reshape(-1)
        return product.mul_(self.problem.alpha)


def cases(bench: Bench) -> list[Case]:
    """The first ones are measured where time is short."""
    sizes = ((256, 256, 256), (1000, 1000, 1000)) if bench.tiny else SIZES
    few = sizes[:1] if bench.tiny else None  # of what has sizes of its own
    problems = [
        Problem(*size, dtype, order)
        for order in ("NT", "NN", "TN", "TT") for dtype in ("bf16", "f16") for size in sizes
    ]  # fmt: skip
    heads = ((3, 100, 72, 64),) if bench.tiny else HEADS
    problems += [Problem(*size, batch=(count,)) for count, *size in heads]
    problems += [Problem(*size, "fp8") for size in few or BYTES]
    problems += [
        Problem(*size, dtype, order)
        for dtype in ("tf32", "f32", "tf32x3") for order in ("NT", "NN") for size in few or SINGLE
    ]  # fmt: skip
    compared = [
        Case(f"gemm {p}", partial(against_cublas, p, "gemm"), 1.0, partial(chosen, p)) for p in problems
    ]
    shown = [Problem(*size) for size in (sizes if bench.tiny else SHOWN)]
    return [*compared, *(Case(f"kernels {p}", partial(_kernels, p), 2.0, partial(_tried, p)) for p in shown)]


def chosen(p: Problem, device: DeviceSpec) -> list[sides.Kernel]:
    return _tried(p, device)[:1]


def _tried(p: Problem, device: DeviceSpec) -> list[sides.Kernel]:
    """The kernels that are predicted to be best."""
    region = p.region()
    return [(kernel_id, region) for kernel_id, _ in sides.predicted(region, device)[:TRIED]]


def _lab(bench: Bench) -> Any:
    if not bench.on_gpu:
        raise NotHere("the kernels are for Hopper, and so is cuBLAS")
    return bench.lab


def against_cublas(p: Problem, suite: str, bench: Bench) -> Iterator[Row]:
    """The chosen kernel and the peers, alternately."""
    lab, name = _lab(bench), f"{suite} {p}"
    operands = Operands(p, lab)
    graph, kernel_id = operands.ours()
    graphs = {"aicf": graph} | {peer: operands.theirs(peer) for peer in p.peers}
    times = device_times(bench, operands.launch_sets, p.flops, graphs)
    speeds = {side: t.rate(p.flops / 1e12) for side, t in times.items()}
    if p.dtype == "fp8":  # whose peers don't compute the same
        for peer in p.peers:
            yield row(name, "TFLOP/s", speeds["aicf"], peer, speeds[peer], kernel_id)
    else:
        best = max(p.peers, key=lambda peer: speeds[peer].median)
        yield row(name, "TFLOP/s", speeds["aicf"], PEER, speeds[best], f"{kernel_id}; {best}")


def _kernels(p: Problem, bench: Bench) -> Iterator[Row]:
    """Those that are predicted to be best, against the one that is chosen."""
    lab = _lab(bench)
    operands = Operands(p, lab)
    best = sides.predicted(p.region(), lab.runtime.spec)[:TRIED]
    graphs = {kernel_id: operands.ours(kernel_id)[0] for kernel_id, _ in best}
    times = device_times(bench, operands.launch_sets, p.flops, graphs)
    chosen = best[0][0]
    for kernel_id, us in best[1:]:
        mine, choice = (times[k].rate(p.flops / 1e12) for k in (kernel_id, chosen))
        note = (
            f"{times[kernel_id].median * 1e6:.4g} us, predicted {us:.4g}; chosen {best[0][1]:.4g} predicted"
        )
        yield row(f"{p} by {kernel_id}", "TFLOP/s", mine, f"chosen: {chosen}", choice, note)


def device_times(
    bench: Bench, launch_sets: Sequence[int], flops: float, graphs: dict[str, Any]
) -> dict[str, Stats]:
    """Of one product of `flops`, by graphs with a launch for each of `launch_sets`."""
    lab, each = bench.lab, len(launch_sets)
    lab.warm(flops, list(graphs.values()))
    return bench.compare({name: lab.device_time(g, each, cold=True) for name, g in graphs.items()})


def summary(rows: Sequence[Row]) -> list[Row]:
    """Of halves and of the rest."""
    compared = [r for r in rows if r["case"].startswith("gemm ")]
    halves = [r for r in compared if r["case"].split()[1] in ("f16", "bf16") and " of " not in r["case"]]
    others = [r for r in compared if r not in halves]
    return mean_ratios({"gemm of halves": halves, "gemm of batches, words and bytes": others})


def tables(rows: Sequence[Row]) -> dict[str, list[str]]:
    """The lesson's table "standing": for each element type how many shapes are compared, and the one that loses most."""
    by_type: dict[str, list[Row]] = {}
    for r in rows:
        if r["case"].startswith("gemm ") and r.get("ratio"):
            by_type.setdefault(r["case"].split()[1], []).append(r)
    lines = [
        "| type | shapes | not slower | geometric mean | worst ratio | shape: ours | cuBLAS |",
        "|---|--:|--:|--:|--:|---|--:|",
    ]
    for name, compared in by_type.items():
        ratios, worst = [r["ratio"] for r in compared], min(compared, key=lambda r: r["ratio"])
        cells = (
            name + " †" * any(r.get("old") for r in compared), str(len(compared)), str(sum(x >= 1 for x in ratios)), f"{prod(ratios) ** (1 / len(ratios)):.2f}", f"{worst['ratio']:.2f}",
            f"{worst['case'].removeprefix(f'gemm {name} ')}: {worst['aicf']:.4g}", f"{worst['peer']:.4g}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return {"standing": lines} if by_type else {}


HEADLINES = (
    Problem(1024, 1024, 1024), Problem(4096, 4096, 4096), Problem(8192, 8192, 8192), Problem(4097, 4095, 4096), Problem(*SINGLE[1], "f32"),
    Problem(*SINGLE[1], "tf32x3"),
)  # fmt: skip

SUITE = Suite(
    "gemm", "products against cuBLAS, all transposes, 256 to 16384, f16, bf16, f32, tf32, fp8; and kernels by themselves", 600, cases,
    headlines=tuple((f"gemm {p}", PEER) for p in HEADLINES), summary=summary, tables=tables,
    compared=lambda row: row["case"].startswith("gemm "),
)  # fmt: skip
