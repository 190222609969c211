"""Every variant on a real GPU, launched directly, against the op's NumPy reference in float64.

Results start as NaN (or -1), lie between guard bands that must stay untouched, and operands are fresh random numbers.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from drawn_sets import Lazily
from kernel_cases import (
    FIRST,
    GEMMS,
    MMAS,
    MORE,
    TF32S,
    TF32X3S,
    VARIANTS,
    Case,
    assert_close,
    desc,
    gemm,
    halves_of,
    operands_for,
    reference,
    region,
    step,
    unaligned,
)  # fmt: skip
from wgmma_cases import backward, residual

from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import DeviceSpec, from_properties
from aicf.ops.schema import schema_of
from aicf.rows import RegionSpec
from aicf.types import ActKind, Precision, bf16, bool_, f16, f32, i64

pytestmark = pytest.mark.gpu

GUARD = 512  # bytes before and after each allocation
POISON = 0xFF  # as bytes: NaN in every float type, -1 in the integers


@dataclass
class Gpu:
    """A device, a stream of ours, and copies to and from its memory. Buffers live as long as the test."""

    device: Any
    stream: Any
    spec: DeviceSpec
    buffers: list[Any] = field(default_factory=list)

    def allocate(self, nbytes: int) -> int:
        """Poisoned memory between poisoned guards; the pointer is to what lies between them."""
        buffer = self.device.allocate(nbytes + 2 * GUARD, stream=self.stream)
        self.buffers.append(buffer)
        self.upload(int(buffer.handle), np.full(nbytes + 2 * GUARD, POISON, np.uint8))
        return int(buffer.handle) + GUARD

    def free(self) -> None:
        self.stream.sync()
        for buffer in self.buffers:
            buffer.close()
        self.buffers.clear()

    def upload(self, pointer: int, array: np.ndarray) -> None:
        if array.nbytes:
            host = np.ascontiguousarray(array)
            self._copy(pointer, host.ctypes.data, host.nbytes)

    def download(self, pointer: int, nbytes: int) -> np.ndarray:
        host = np.empty(nbytes, np.uint8)
        if nbytes:
            self._copy(host.ctypes.data, pointer, nbytes)
        return host

    def _copy(self, target: int, source: int, nbytes: int) -> None:
        """On our stream: a copy on the default stream may return before it is done, and ours does not wait for it."""
        from cuda.bindings import driver

        (status,) = driver.cuMemcpyAsync(target, source, nbytes, self.stream.handle)
        assert status == driver.CUresult.CUDA_SUCCESS, str(status)
        self.stream.sync()


def open_gpu() -> Gpu:
    device = engine.current_device()
    p = device.properties
    spec = from_properties(
        device.name, tuple(device.compute_capability), p.multiprocessor_count, p.l2_cache_size,
        p.max_shared_memory_per_block_optin, 2**34, 1.5, 1000.0,
    )  # fmt: skip
    return Gpu(device, device.create_stream(), spec)


@pytest.fixture(scope="module")
def opened() -> Gpu:
    return open_gpu()


@pytest.fixture
def gpu(opened: Gpu):
    yield opened
    opened.free()


def launch_case(gpu: Gpu, case: Case, memory: Sequence[np.ndarray], shift: int = 0,
                onto: dict[int, int] | None = None) -> list[np.ndarray]:  # fmt: skip
    """Run the variant on this memory and return the results; guards of results and workspace are checked.

    shift   elements by which every pointer is moved from its 256-byte boundary
    onto    result -> operand whose memory it takes over
    """
    variant, r = VARIANTS[case.variant], case.region
    reject = variant.supported(r, gpu.spec)
    if reject is not None and reject.condition == "needs":
        pytest.skip(str(reject))
    assert reject is None, reject
    ins = []
    for t, m in zip(r.operands, memory):
        ins.append(gpu.allocate(m.nbytes + shift * t.dtype.itemsize) + shift * t.dtype.itemsize)
        gpu.upload(ins[-1], m)
    outs = []
    for i, t in enumerate(r.results):
        moved = shift * t.dtype.itemsize
        outs.append(ins[onto[i]] if onto and i in onto else gpu.allocate(t.nbytes + moved) + moved)
    scratch = variant.query_workspace(r, gpu.spec)
    workspace = gpu.allocate(scratch)
    for launch in variant.build(r, gpu.spec):
        engine.bind(engine.prepare(launch, r, variant.id), gpu.stream, ins, outs, workspace)()
    gpu.stream.sync()
    for pointer, nbytes in [(p, t.nbytes) for p, t in zip(outs, r.results)] + [(workspace, scratch)]:
        assert (gpu.download(pointer + nbytes, GUARD) == POISON).all(), f"{case}: written behind a buffer"
        assert (gpu.download(pointer - GUARD, GUARD) == POISON).all(), f"{case}: written before a buffer"
    return [gpu.download(p, t.nbytes).view(t.dtype.numpy).reshape(t.shape) for p, t in zip(outs, r.results)]


def check(gpu: Gpu, case: Case, seed: int = 0, shift: int = 0) -> None:
    operands = operands_for(case, seed)
    assert_close(case, launch_case(gpu, case, operands.memory, shift), reference(case, operands.arrays))


# --- every variant, many regions --------------------------------------------------------------------------------------


@pytest.mark.sample(4, each=lambda case: case.variant, gpu=True)
@pytest.mark.spec("F2", "D5")
@pytest.mark.parametrize("case", [*FIRST, *MORE], ids=str)
def test_agrees_with_numpy(gpu, case):
    seed = random.randrange(2**32)  # in the failure's traceback
    check(gpu, case, seed)


@pytest.mark.sample(1, each=lambda case: case.variant, gpu=True)
@pytest.mark.parametrize(
    "case", Lazily(lambda: unaligned(c for c in FIRST if ".gemm_" not in c.variant)), ids=str
)
def test_unaligned_pointers(gpu, case):
    check(gpu, case, shift=1)


@pytest.mark.parametrize("variant", GEMMS)
def test_unaligned_gemm(gpu, variant):
    check(gpu, Case(variant, gemm(37, 53, 29, c=True, bias=37, act=ActKind.relu, save_preact=True)), shift=1)


@pytest.mark.spec("D9")
@pytest.mark.parametrize("variant", GEMMS)
@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_gemm_transposes_at_size(gpu, variant, trans_a, trans_b):
    check(gpu, Case(variant, gemm(515, 389, 267, trans_a=trans_a, trans_b=trans_b), tolerance=2e-5))


@pytest.mark.spec("D10")
@pytest.mark.parametrize("variant", TF32X3S)
def test_long_sums_of_three_products(gpu, variant):
    """Of positive numbers, where all that is cut off of sums is on the same side."""
    for k, trans_a, trans_b in ((16384, False, True), (4097, True, False)):
        case = Case(variant, gemm(200, 264, k, trans_a=trans_a, trans_b=trans_b, precision=Precision.tf32x3))
        ins = [
            np.random.default_rng().uniform(0.5, 1.5, d.shape).astype(np.float32)
            for d in case.region.operands
        ]
        (got,), (want,) = launch_case(gpu, case, ins), reference(case, ins)
        assert np.abs(got / want - 1).max() < 3e-6


@pytest.mark.spec("D9")
@pytest.mark.parametrize("variant", GEMMS)
def test_gemm_leading_dimensions(gpu, variant):
    """Rows of a and b lie further apart than they are long; a column-major a."""
    plain = gemm(37, 53, 29)
    for a, b in (
        (desc((37, 29), f32, (40, 1)), desc((29, 53), f32, (64, 1))),
        (desc((37, 29), f32, (1, 41)), None),
    ):
        tensors = (a, b or plain.tensors[1], plain.tensors[2])
        check(gpu, Case(variant, dataclasses.replace(plain, tensors=tensors)))


@pytest.mark.sample(1, each="variant", gpu=True)
@pytest.mark.spec("D9", "D10")
@pytest.mark.parametrize("variant", MMAS)
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_tensor_cores_with_leading_dimensions_and_special_values(gpu, variant, dtype):
    """Rows further apart than they are long; a NaN in row 3 of a spoils row 3 and nothing else, nor does the padding."""
    if dtype not in halves_of(variant):
        pytest.skip("tensor cores multiply no such numbers")
    plain = gemm(37, 56, 72, dtype=dtype)
    a, b = desc((37, 72), dtype, (80, 1)), desc((72, 56), dtype, (64, 1))
    case = Case(variant, dataclasses.replace(plain, tensors=(a, b, plain.tensors[2])), tolerance=2e-2)
    operands = operands_for(case)
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))
    operands.arrays[0][3, 5], operands.arrays[1][7, 50] = np.nan, np.inf
    (got,), (want,) = launch_case(gpu, case, operands.memory), reference(case, operands.arrays)
    np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got.astype(np.float32)), np.isinf(want))


@pytest.mark.spec("A12", "D5", "D10")
@pytest.mark.parametrize("variant", TF32S)
def test_epilogues_behind_words(gpu, variant):
    """A residual; an activation's gradient and the sums of its columns. Halves are in test_fused_gemm.py."""
    precision = Precision.tf32x3 if "tf32x3" in variant else Precision.tf32
    for make in (residual, backward):
        check(
            gpu, Case(variant, make(261, 133, 77, dtype=f32, precision=precision), tolerance=TF32S[variant])
        )


# --- special values ---------------------------------------------------------------------------------------------------

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, -1e30, 1.0, -2.5], np.float32)
UNARY = [
    "relu",
    "leaky_relu",
    "gelu",
    "gelu_erf",
    "silu",
    "sigmoid",
    "tanh",
    "exp",
    "log",
    "sqrt",
    "neg",
    "abs",
    "square",
    "copy",
]
BINARY = [
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "equal",
    "not_equal",
    "greater",
    "less",
    "relu_grad",
    "leaky_relu_grad",
]


@pytest.mark.parametrize("op", UNARY)
def test_special_values_one_operand(gpu, op):
    case = Case("cuda.elementwise_flat.v1", region(op, SPECIAL.shape), tolerance=1e-6)
    assert_close(case, launch_case(gpu, case, [SPECIAL]), reference(case, [SPECIAL], exact=False))


@pytest.mark.parametrize("op", BINARY)
def test_special_values_two_operands(gpu, op):
    x, y = (np.ascontiguousarray(v).reshape(-1) for v in np.meshgrid(SPECIAL, SPECIAL))
    case = Case("cuda.elementwise_flat.v1", region(op, x.shape, x.shape), tolerance=1e-6)
    assert_close(case, launch_case(gpu, case, [x, y]), reference(case, [x, y], exact=False))


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_halves_round_to_nearest_even(gpu, dtype):
    """Every pattern of 16 bits through f32 and back is itself; f32 is rounded as NumPy and ml_dtypes do."""
    patterns = np.arange(2**16, dtype=np.uint16).view(dtype.numpy)
    there = Case("cuda.elementwise_flat.v1", region("convert", desc(patterns.shape, dtype), dtype=f32.id))
    (wide,) = launch_case(gpu, there, [patterns])
    np.testing.assert_array_equal(wide, patterns.astype(np.float32))
    rng = np.random.default_rng()
    x = np.concatenate(
        [wide, rng.normal(size=5000).astype(np.float32), SPECIAL, np.float32([65519, 65520, 3.3e38])]
    )
    back = Case("cuda.elementwise_flat.v1", region("convert", x.shape, dtype=dtype.id))
    (narrow,) = launch_case(gpu, back, [x])
    with np.errstate(over="ignore", invalid="ignore"):
        want = x.astype(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(narrow.astype(np.float32), want)


@pytest.mark.parametrize("variant", GEMMS)
def test_gemm_keeps_nan_and_inf_where_they_belong(gpu, variant):
    """A NaN in row 3 of a spoils row 3 and nothing else; the padding of edge tiles spoils nothing."""
    case = Case(variant, gemm(37, 53, 29))
    a, b = operands_for(case).arrays
    a[3, 5], b[7, 50] = np.nan, np.inf
    (got,) = launch_case(gpu, case, [a, b])
    (want,) = reference(case, [a, b])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@pytest.mark.sample(4, each="name", gpu=True)
@pytest.mark.parametrize(
    "name, shape, axes",
    [
        ("rows", (3, 1000), (1,)),
        ("rows", (2, 100000), (1,)),
        ("columns", (1000, 3), (0,)),
        ("columns", (50000, 3), (0,)),
        ("naive", (30, 4, 3), (0, 2)),
    ],
)
@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean", "reduce_max", "reduce_min"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_reductions_propagate(gpu, name, shape, axes, op, value):
    case = Case(f"cuda.reduce_{name}.v2", region(op, shape, axes=axes))
    operands = operands_for(case)
    operands.memory[0].reshape(-1)[operands.memory[0].size // 2] = value
    assert_close(case, launch_case(gpu, case, operands.memory), reference(case, operands.arrays))


@pytest.mark.parametrize("classes", [1, 10, 1000])
def test_labels_out_of_range_and_extreme_logits(gpu, classes):
    """A label outside [0, classes) gives NaN in its own row; logits of 1e4 do not overflow."""
    labels = np.array([0, -1, classes, classes - 1, 2**40, 0], np.int64)
    n = len(labels)
    rng = np.random.default_rng()
    x, dloss = (rng.normal(size=(n, classes)) * 1e4).astype(np.float32), rng.normal(size=n).astype(np.float32)
    bad = np.array([False, True, True, False, True, False])
    for variant in ("cuda.rows_resident.v2", "cuda.rows_streamed.v2", "cuda.rows_serial.v2"):
        forward = Case(variant, region("cross_entropy", x.shape, desc((n,), i64)))
        (loss, peak, rsum) = got = launch_case(gpu, forward, [x, labels])
        assert_close(forward, got, reference(forward, [x, labels]))
        np.testing.assert_array_equal(np.isnan(loss), bad)
    one = desc((n,))
    grad = Case(
        "cuda.elementwise_strided.v1", region("cross_entropy_grad", x.shape, desc((n,), i64), one, one, one)
    )
    (dlogits,) = got = launch_case(gpu, grad, [x, labels, dloss, peak, rsum])
    assert_close(grad, got, reference(grad, [x, labels, dloss, peak, rsum]))
    np.testing.assert_array_equal(np.isnan(dlogits).all(1), bad)


# --- in place, repeats, sizes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [f"cuda.elementwise_{name}.v1" for name in ("flat", "vector", "strided")])
def test_a_result_may_take_over_an_operand(gpu, variant):
    p = (37, 53)
    case = Case(variant, step("adam_step", p))
    operands = operands_for(case)
    want = reference(case, operands.arrays)
    assert_close(case, launch_case(gpu, case, operands.memory, onto={0: 0, 1: 2, 2: 3}), want)


@pytest.mark.spec("C15")
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
@pytest.mark.parametrize("n", [1, 1023, 1_000_002])
def test_dropout_is_the_reference_bit_for_bit(gpu, dtype, n):
    """The mask and the product; a NaN that is dropped is 0; the state goes on in place; y may take over x's memory."""
    for alignment in (256, dtype.itemsize):
        x = desc((n,), dtype, alignment=alignment)
        case = Case("cuda.dropout_philox.v1", region("dropout", x, desc((2,), i64), rate=0.3, layer=5))
        values = operands_for(case).memory[0]
        values[::7] = np.nan
        memory = [values, np.array([2**62 + 99, 2**31 + 3])]
        (want,) = schema_of("dropout").call_reference(memory, case.region.attrs)
        for onto in (None, {0: 0}):
            (got,) = launch_case(gpu, case, memory, onto=onto)
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))
    advance = Case("cuda.rng_advance.v2", region("rng_advance", desc((2,), i64), desc((), bool_)))
    for valid in (True, False):
        (next_,) = launch_case(gpu, advance, [memory[1], np.array(valid)], onto={0: 0})
        np.testing.assert_array_equal(next_, memory[1] + [0, valid])


@pytest.mark.spec("B9")
def test_half2_sums_are_the_rounded_sums(gpu):
    """Every sum of these pairs, infinities and NaN among them, as f32 would round it; and from a pointer on 4 bytes."""
    rng = np.random.default_rng()
    x, y = (rng.integers(0, 2**16, 200_000, dtype=np.uint16).view(np.float16) for _ in range(2))
    case = Case("cuda.add_f16_half2.v1", region("add", desc(x.shape, f16), desc(y.shape, f16)))
    with np.errstate(all="ignore"):
        want = (x.astype(np.float32) + y.astype(np.float32)).astype(np.float16)
    for shift in (0, 2):
        (got,) = launch_case(gpu, case, [x, y], shift)
        np.testing.assert_array_equal(got, want)


def test_a_tensor_taken_twice(gpu):
    """The region lists a tensor once that the op takes as both operands."""
    r = region("mul", (77,), (77,))
    op = r.anchor._replace(inputs=(0, 0), outputs=(1,))
    r = RegionSpec((op,), (r.tensors[0], r.tensors[2]), (0,), (1,))
    for variant in (f"cuda.elementwise_{name}.v1" for name in ("flat", "vector", "strided")):
        check(gpu, Case(variant, r))


@pytest.mark.spec("C12")
@pytest.mark.parametrize("case", [
    *(Case(v, gemm(300, 200, 500)) for v in GEMMS),
    *(Case(v, gemm(300, 200, 504, dtype=f16)) for v in MMAS),
    Case("cuda.dropout_philox.v1", region("dropout", (100_001,), desc((2,), i64), rate=0.5, layer=1)),
    Case("cuda.reduce_rows.v2", region("reduce_sum", (300001,), axes=(0,))),
    Case("cuda.reduce_columns.v2", region("reduce_sum", (50000, 10), axes=(0,))),
    Case("cuda.rows_resident.v2", region("cross_entropy", (100, 1000), desc((100,), i64))),
], ids=str)  # fmt: skip
def test_repeats_bit_for_bit(gpu, case):
    memory = operands_for(case).memory
    first, second = (launch_case(gpu, case, memory) for _ in range(2))
    assert [a.tobytes() for a in first] == [b.tobytes() for b in second]


def test_lengths_around_a_block(gpu):
    for n in (1, 2, 31, 32, 33, 255, 256, 257, 1_000_003):
        check(gpu, Case("cuda.elementwise_flat.v1", region("add", (n,), (n,))))
        check(gpu, Case("cuda.elementwise_vector.v1", region("add", (n,), (n,))))
        check(gpu, Case("cuda.elementwise_strided.v1", region("add", (n, 1), (3,))))


def test_a_bound_launch_can_be_captured(gpu):
    """The same call launches into a graph builder; a replay computes with what the memory then holds."""
    case = Case("cuda.elementwise_flat.v1", region("add", (1000,), (1000,)))
    memory = operands_for(case).memory
    ins, out = [gpu.allocate(m.nbytes) for m in memory], gpu.allocate(memory[0].nbytes)
    (launch,) = VARIANTS[case.variant].build(case.region, gpu.spec)
    run = engine.bind(engine.prepare(launch, case.region), gpu.stream, ins, [out])
    builder = gpu.stream.create_graph_builder()
    builder.begin_building()
    run(builder)
    graph = builder.end_building().complete()
    for pointer, m in zip(ins, memory):
        gpu.upload(pointer, m)
    graph.launch(gpu.stream)
    gpu.stream.sync()
    got = gpu.download(out, memory[0].nbytes).view(np.float32)
    np.testing.assert_array_equal(got, memory[0] + memory[1])
