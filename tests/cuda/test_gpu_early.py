"""Kernels of a captured graph begin while the one before still runs, and nobody can tell by the results. On a GPU.

What is wrong only now and then is looked for by many replays, by kernels that take their time before they read or write, and by
memory that is used again and again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import wgmma_cases
from kernel_cases import GEMMS, MMAS, SPLITS, TF32S, VARIANTS, desc, fused, gemm, region
from ptx_support import ALL, regions_of

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.dsl import cuda, int32
from aicf.cuda_kernels.ptx import fence_memory, launch_dependents
from aicf.device.runtime import runtime
from aicf.graph.run.capture import capture
from aicf.registry.variant import In, Launch, Out
from aicf.rows import RegionSpec
from aicf.types import ActKind, DType, Precision, TensorSpec, f16, f32, i32, i64

pytestmark = pytest.mark.gpu

REPLAYS, LOOKS = 200, 10


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setenv("AICF_PDL", "graph")
    return runtime("cuda")


# --- every kind of kernel, one after another --------------------------------------------------------------------------

TANH = {"act": ActKind.tanh}  # keeps what is computed over and over within bounds


def products() -> list[tuple[str, RegionSpec]]:
    """Each GEMM variant with a region that it takes."""
    made = [(v, gemm(130, 72, 200, c=True, bias=72, beta=0.5, **TANH)) for v in (*GEMMS, *SPLITS)]
    made += [(v, gemm(130, 72, 200, c=True, bias=72, beta=0.5, dtype=f16, **TANH)) for v in MMAS]
    made += [
        (v, gemm(130, 72, 200, c=True, bias=72, beta=0.5, precision=Precision.tf32, **TANH)) for v in TF32S
    ]
    made += [(v.id, wgmma_cases.product(264, 136, 520, **TANH)) for v in wgmma_cases.BY_NAME.values()]
    made += [("cuda.gemv_simt.v2", gemm(3, 40, 3000, trans_b=True, dtype=f16, **TANH)),
             ("cuda.gemv_mma.v1", gemm(12, 200, 72, bias=200, dtype=f16, **TANH))]  # fmt: skip
    return made


OTHERS = [
    ("cuda.elementwise_flat.v1", region("add", (1000,), (1000,))),
    ("cuda.elementwise_vector.v1", region("tanh", desc((4096,), f16))),
    ("cuda.elementwise_strided.v1", region("add", (30, 1), (20, 1, 40))),
    ("cuda.add_f16_half2.v1", region("add", *2 * [desc((1000,), f16)])),
    ("cuda.elementwise_rows.v1", region("bias_add", (30, 40), (40,))),
    ("cuda.multi_map.v1", fused({"x": (1000,), "y": (33, 7)}, ("a", "tanh", "x"), ("b", "tanh", "y"), keep=("a", "b"))),
    ("cuda.multi_map_table.v1", fused({"x": (1000,), "y": (33, 7)}, ("a", "tanh", "x"), ("b", "tanh", "y"), keep=("a", "b"))),
    ("cuda.reduce_rows.v2", region("reduce_mean", (30, 1000), axes=(1,))),
    ("cuda.reduce_columns.v2", region("reduce_mean", (20000, 30), axes=(0,))),
    ("cuda.reduce_naive.v2", region("reduce_max", (4, 5, 6, 7), axes=(0, 2))),
    ("cuda.rows_resident.v2", region("cross_entropy", (30, 10), desc((30,), i64))),
    ("cuda.rows_resident.v2", region("softmax", (30, 1000))),
    ("cuda.check_labels.v1", region("check_labels", desc((5000,), i64), desc((5,), i64), classes=10)),
    ("cuda.dropout_philox.v1", region("dropout", (1001,), desc((2,), i64), rate=0.3, layer=2)),
    ("cuda.rng_advance.v2", region("rng_advance", desc((2,), i64), desc((), DType.bool))),
    ("cuda.fill.v1", region("fill", shape=(30, 40), value=0.5, dtype=f32.id)),
    ("cuda.reshape.v1", region("reshape", (30, 40), shape=(1200,))),
    ("cuda.copy_strided.v1", region("copy", desc((30, 40), stride=(50, 1)))),
]  # fmt: skip


class Tape:
    """Memory of one element type. A kernel writes behind what the last one wrote, and reads what was written last; where the tape
    ends it goes on at its `FIRST` element, over what others have read."""

    FIRST, LENGTH = 2**20, 2**20 + 2**18

    def __init__(self, device: Any, dtype: DType, rng: np.random.Generator) -> None:
        self.device, self.itemsize, self.head = device, dtype.itemsize, self.FIRST
        self.tensor = device.empty(TensorSpec((self.LENGTH,), dtype, "cuda"))
        self.start = rng.normal(size=self.LENGTH).astype(dtype.numpy)

    def reset(self) -> None:
        self.device.write(self.tensor, self.start)

    def read(self, elements: int) -> int:
        """A place in front of the head, so that the newest is among what is read; at a multiple of 256 bytes."""
        assert elements <= self.FIRST
        return self.tensor.ptr + (self.head - elements) * self.itemsize // 256 * 256

    def write(self, elements: int) -> int:
        taken = -(-elements * self.itemsize // 256) * 256 // self.itemsize
        if self.head + taken > self.LENGTH:
            self.head = self.FIRST
        at, self.head = self.head, self.head + taken
        return self.tensor.ptr + at * self.itemsize


def span(t: Any) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride)) if t.numel else 0


class Chain:
    """Kernels one after another on two tapes, and on a state of a random number generator that is advanced back and forth."""

    def __init__(self, device: Any, kernels: Sequence[tuple[str, RegionSpec]]) -> None:
        rng = np.random.default_rng(len(kernels))
        self.device = device
        self.tapes = {t: Tape(device, t, rng) for t in (f32, f16)}
        self.states = [
            device.upload(np.array([7, n], np.int64), TensorSpec((2,), i64, "cuda")) for n in (1, 2)
        ]
        self.labels = device.upload(rng.integers(0, 10, 5000), TensorSpec((5000,), i64, "cuda"))
        self.fault = device.upload(np.zeros(5, np.int64), TensorSpec((5,), i64, "cuda"))
        self.valid = device.upload(np.array(True), TensorSpec((), DType.bool, "cuda"))
        self.workspace = device.empty(TensorSpec((2**22,), f32, "cuda"))
        self.calls = [call for kernel_id, r in kernels for call in self.bound(kernel_id, r)]

    def bound(self, kernel_id: str, r: RegionSpec) -> list[Callable[..., None]]:
        variant = VARIANTS[kernel_id]
        if (reject := variant.supported(r, self.device.spec)) is not None:
            assert reject.condition in ("needs", "tiles", "m", "invariant") or " 120 " in kernel_id, (
                f"{kernel_id}: {reject}"
            )  # of large products
            return []
        assert variant.query_workspace(r, self.device.spec) <= self.workspace.spec.nbytes
        ins = [self.operand(t) for t in r.operands]
        outs = [self.result(t) for t in r.results]
        stream = self.device.stream
        return [
            engine.bind(engine.prepare(launch, r, kernel_id), stream, ins, outs, self.workspace.ptr)
            for launch in variant.build(r, self.device.spec)
        ]

    def operand(self, t: Any) -> int:
        if t.dtype is i64:
            return {(2,): self.states[0], (5,): self.fault}.get(t.shape, self.labels).ptr
        if t.dtype is DType.bool:
            return self.valid.ptr
        return self.tapes[t.dtype].read(span(t))

    def result(self, t: Any) -> int:
        if t.dtype is DType.bool:
            return self.valid.ptr
        if t.shape == (5,):
            return self.fault.ptr
        if t.dtype is i64:
            self.states.reverse()  # the next one reads what this one writes
            return self.states[0].ptr
        return self.tapes[t.dtype].write(t.numel)

    def looks(self, run: Callable[[], None]) -> list[list[np.ndarray]]:
        """What memory holds, from time to time, from the same beginning."""
        for tape in self.tapes.values():
            tape.reset()
        for n, state in enumerate(sorted(self.states, key=lambda s: s.ptr)):
            self.device.write(state, np.array([7, n], np.int64))
        self.device.write(self.valid, np.array(True))
        self.device.write(self.fault, np.zeros(5, np.int64))
        seen = []
        for replay in range(REPLAYS):
            run()
            if (replay + 1) % (REPLAYS // LOOKS) == 0:
                seen.append(
                    [t.numpy() for t in (*(tape.tensor for tape in self.tapes.values()), *self.states)]
                )
        return seen


@pytest.mark.spec("F3", "C12")
@pytest.mark.parametrize("part", range(4 if ALL else 2))
def test_a_chain_of_kernels_of_all_kinds_replayed_is_as_eager_bit_for_bit(device, part):
    """Every other GEMM variant by default: they take seconds to compile."""
    mixed = random.Random(part)
    some = products()[part::4] if ALL else products()[2 * part :: 4]
    kernels = [*some, *itertools.islice(itertools.cycle(OTHERS), max(0, 50 - len(some)))]
    mixed.shuffle(kernels)
    chain = Chain(device, kernels)
    graph = capture(device, chain.calls)
    assert graph.nodes == len(chain.calls) >= 30

    def eager() -> None:
        for call in chain.calls:
            call()

    want, got = chain.looks(eager), chain.looks(graph.launch)
    for n, (ours, theirs) in enumerate(zip(got, want)):
        for a, b in zip(ours, theirs):
            np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), err_msg=f"look {n}")
    assert all(np.isfinite(a.astype(np.float32)).all() for a in want[-1])
    assert not np.array_equal(want[0][0], want[-1][0])  # or nothing is told apart


# --- hazards ----------------------------------------------------------------------------------------------------------


def step(slow: str, factor: int) -> Launch:
    """y = factor x + 1; after a while, before it reads ("read") or before it writes ("write"), or at once (""). The next kernel may
    begin long before."""
    fence, early = fence_memory("gpu"), launch_dependents()
    reads, writes = (64 if slow == what else 0 for what in ("read", "write"))

    def kernel(x, y):
        i = cuda.grid(1)
        early()
        for _ in range(reads):
            fence()
        value = x[i]
        for _ in range(writes):
            fence()
        y[i] = value * int32(factor) + int32(1)

    kernel.__name__ = f"step_{slow or 'now'}_{factor}"
    return Launch(kernel, (4,), (64,), (In(0), Out(0)))


@pytest.mark.spec("F3")
@pytest.mark.parametrize("seed", range(3))
def test_memory_that_is_used_again(device, seed):
    """Read after write, write after read, write after write, between slow kernels and fast ones, over three buffers."""
    n, draw = 256, random.Random(seed)
    r = regions_of([desc((n,), i32)], desc((n,), i32))
    buffers = [device.empty(TensorSpec((n,), i32, "cuda")) for _ in range(3)]
    starts = {
        (slow, factor): engine.prepare(step(slow, factor), r)
        for slow in ("", "read", "write")
        for factor in (3, 5)
    }
    calls, program = [], []
    for _ in range(60):
        kind, (x, y) = draw.choice(list(starts)), draw.sample(range(3), 2)
        if draw.random() < 0.2:
            y = x
        program.append((kind[1], x, y))
        calls.append(engine.bind(starts[kind], device.stream, [buffers[x].ptr], [buffers[y].ptr]))
    # a copy in between, which is no kernel
    calls.insert(30, lambda *on: device.write(buffers[0], buffers[1], *on))
    program.insert(30, (None, 1, 0))
    graph = capture(device, calls)
    want = np.random.default_rng(seed).integers(0, 2**31, (3, n)).astype(np.int32)
    for buffer, value in zip(buffers, want):
        device.write(buffer, value)
    with np.errstate(over="ignore"):
        for _ in range(20):
            graph.launch()
            for factor, x, y in program:
                want[y] = want[x] if factor is None else want[x] * np.int32(factor) + np.int32(1)
    for buffer, value in zip(buffers, want):
        np.testing.assert_array_equal(buffer.numpy(), value)


@pytest.mark.spec("F3")
def test_kernels_do_begin_early(device):
    """One that says that it waits, and does not, sees what was there before: the tests above look at something. CUDA does not
    promise it for any one launch."""
    if "sm_90a" not in device.spec.features:
        pytest.skip(f"needs sm_90a; this is {device.spec.target}")

    def hasty(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)]

    hasty.waits = True
    n = 256
    r = regions_of([desc((n,), i32)], desc((n,), i32))
    a, b, c = (device.empty(TensorSpec((n,), i32, "cuda")) for _ in range(3))
    launches = step("write", 3), Launch(hasty, (4,), (64,), (In(0), Out(0)))
    calls = [
        engine.bind(engine.prepare(launch, r), device.stream, [x.ptr], [y.ptr])
        for launch, x, y in zip(launches, (a, b), (b, c))
    ]
    graph, seen = capture(device, calls), set()
    for _ in range(20):
        for buffer, value in ((a, 1), (b, 0)):
            device.write(buffer, np.full(n, value, np.int32))
        graph.launch()
        seen |= set(c.numpy().tolist())
    assert 0 in seen and seen <= {0, 4}
