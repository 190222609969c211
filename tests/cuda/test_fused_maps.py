"""Kernels composed of several ops: what they take, that they compile well, and what they compute."""

from __future__ import annotations

import dataclasses
import os
import random

import numpy as np
import pytest
from drawn_sets import Lazily
from fused_map_cases import (
    FLAT,
    LARGE,
    MULTI,
    REDUCE_COLUMNS,
    REDUCE_NAIVE,
    REDUCE_ROWS,
    ROWS,
    SMALL,
    STRIDED,
    VECTOR,
    bias_gradient,
    chain,
    dropped,
    middle,
    one_by_one,
    optimizer,
    residual,
    scattered,
    several,
    spread,
    strict,
    transposed,
    tree,
)  # fmt: skip
from kernel_cases import (
    VARIANTS,
    Case,
    Operands,
    assert_close,
    desc,
    fused,
    operands_for,
    reference,
    region,
    unaligned,
    with_specials,
)
from machines.on_host import OnHost
from simulated import outcomes_of
from test_compile import DEVICES, compile_case
from test_gpu_kernels import Gpu, gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import DeviceSpec, preset
from aicf.types import bf16, f16, f32

H200 = preset("h200")
TINY = DeviceSpec(
    "tiny", "cuda", (9, 0), frozenset({"sm_90a"}), 2, 1000.0, {"f32": 20.0}
)  # splits reductions early


def fresh_seed() -> int:
    """Another one for each call; the run's seed and the running test draw the same again (conftest.py seeds `random` for each test)."""
    return random.randrange(2**32)


# --- what they take ---------------------------------------------------------------------------------------------------

TAKEN = [(c.variant, c.region) for c in (*SMALL, *LARGE)]

REJECTED = [
    (FLAT, residual((6, 16), 16), "shape", "operand 1 has shape (16,), needs one element or (6, 16)"),
    (FLAT, transposed(6, 5), "contiguous", "operand 0 has strides (1, 6) for shape (6, 5), needs row-major"),
    (FLAT, bias_gradient(4, 5), "structure", "takes map, this is map+reduce"),
    (FLAT, optimizer((3,), (4,)), "structure", "takes map, this is maps"),
    (FLAT, fused({"x": (4,), "y": (5,)}, ("a", "relu", "x"), ("b", "exp", "y"), keep=("a", "b")), "domain",
     "relu makes (4,), the domain is (5,)"),
    (VECTOR, chain(8, f32, alignment=4), "aligned", "operand 0 is aligned to 4 bytes, needs 16"),
    (VECTOR, chain(8, f16, alignment=8), "aligned", "operand 0 is aligned to 8 bytes, needs 16"),
    (ROWS, residual((6, 15), 15), "last dimension after collapsing", "15 is not a multiple of 4"),
    (ROWS, residual((6, 12), 12, f16), "last dimension after collapsing", "12 is not a multiple of 8"),
    (ROWS, transposed(8, 8), "stride", "operand 0 has stride 8 along rows, needs 0 or 1"),
    (STRIDED, several("add", *[(2, 3)] * 22), "loads and results", "loads and results 66 is over 64"),
    (REDUCE_ROWS, bias_gradient(4, 5), "axes", "axes (0,) of (4, 5) are not the last ones"),
    (REDUCE_ROWS, fused({"x": (2, 3, 4), "b": (3, 1)}, ("y", "add", "x", "b"), ("s", "reduce_sum", "y", {"axes": (1, 2)})),
     "access", "an operand is broadcast or strided within axes (3, 4) of (2, 3, 4)"),
    (REDUCE_ROWS, fused({"x": desc((6, 5), stride=(1, 6))}, ("s", "reduce_sum", "x", {"axes": (1,)})), "stride",
     "operand 0 has stride 6 along the last axis, needs 0 or 1"),
    (REDUCE_COLUMNS, spread(4, 5), "axes", "axes (1,) of (4, 5) are not one run before others"),
    (REDUCE_COLUMNS, scattered(), "axes", "axes (0, 2) of (2, 3, 5) are not one run before others"),
    (REDUCE_NAIVE, chain(8), "structure", "takes map+reduce+map, this is map"),
    (REDUCE_NAIVE, fused({"x": (4, 5)}, ("a", "reduce_sum", "x", {"axes": (1,)}), ("b", "reduce_sum", "a", {"axes": (0,)})),
     "structure", "this is rows"),
    (MULTI, chain(8), "parts", "parts 1 is under 2"),
    (MULTI, fused({"x": (4,), "y": (5,)}, ("a", "relu", "x"), ("b", "exp", "y"), keep=("a", "b")), "ops",
     "exp beside relu: takes ops of one kind and equal attributes"),
    (MULTI, several("add", (3,)), "parts", "parts 1 is under 2"),
    (MULTI, several("add", *[(n,) for n in range(17)]), "parts", "parts 17 is over 16"),
    (MULTI, fused({"x": (3,)}, ("a", "relu", "x"), ("b", "relu", "a"), keep=("a", "b")), "parts",
     "parts 1 is under 2"),
    (MULTI, fused({"x": (3,), "y": (1, 3)}, ("a", "relu", "x"), ("b", "relu", "y"), ("c", "add", "a", "b"), keep=("c",)), "ops",
     "add reads another part's result"),
    (MULTI, fused({"x": (3, 4), "b": (4,), "y": (5, 6), "c": (6,)}, ("a", "bias_add", "x", "b"), ("d", "bias_add", "y", "c"),
                  keep=("a", "d")), "access", "an operand of part 0 is not read in the order of its result"),
    (MULTI, fused({"x": (3,), "y": (5,), "s": ()}, ("a", "mul", "x", "x"), ("b", "mul", "y", "s"), keep=("a", "b")), "ops",
     "mul on other element types, or with other results kept"),
    (MULTI, fused({"x": (3,), "z": (3,), "y": (5,), "s": ()}, ("a", "mul", "x", "z"), ("b", "mul", "y", "s"), keep=("a", "b")),
     "access", "repeats an operand that another part walks"),
]  # fmt: skip


@pytest.mark.sample(60)
@pytest.mark.spec("A12", "A13")
@pytest.mark.parametrize("variant, r", TAKEN, ids=str)
def test_takes(variant, r):
    found = VARIANTS[variant]
    assert found.supported(r, H200) is None
    assert found.cost(r, H200).us > 0


@pytest.mark.spec("A12", "B7")
@pytest.mark.parametrize("variant, r, condition, reason", REJECTED)
def test_rejects_with_the_value_seen(variant, r, condition, reason):
    reject = VARIANTS[variant].supported(r, H200)
    assert reject is not None and reject.condition == condition and reason in str(reject), reject


@pytest.mark.sample(60)
@pytest.mark.spec("A9")
@pytest.mark.parametrize("variant, r", TAKEN, ids=str)
def test_every_prefix_of_what_is_taken_may_go_on(variant, r):
    for n in range(1, len(r.ops) + 1):
        assert VARIANTS[variant].continues(dataclasses.replace(r, ops=r.ops[:n]), H200) is None


@pytest.mark.spec("A12")
def test_a_repeated_bias_costs_no_arithmetic():
    """What an operand does not walk, or walks one by one, is known when the kernel is made: no stride is passed."""
    for variant in (ROWS, STRIDED):
        for length in (16, 6):
            (launch,) = VARIANTS[variant].build(residual((6, 16), length), H200)
            assert launch.args[3] == ()
    (launch,) = VARIANTS[STRIDED].build(transposed(6, 5), H200)
    assert [n.value for n in launch.args[3]] == [6]


def test_lanes_of_a_vector_share_a_counter():
    """Four neighbours need one Philox counter: the compiler sees that, so a fused dropout costs a quarter."""
    r = dropped((4096,))
    multiplications = []
    for variant in (FLAT, VECTOR):
        (launch,) = VARIANTS[variant].build(r, H200)
        multiplications.append(engine.ptx_of(launch, r, H200.target).count("mul."))
    flat, vector = multiplications  # the latter has a loop for the vectors, and its own for what is left over
    assert vector < 3 * flat


def test_a_reduction_that_is_split_runs_its_maps_once():
    r = bias_gradient(50000, 10)
    first, second = VARIANTS[REDUCE_COLUMNS].build(r, H200)
    assert "relu_grad" in first.body.__name__ and "relu_grad" not in second.body.__name__
    r = middle(length=300000)
    first, second = VARIANTS[REDUCE_COLUMNS].build(r, H200)
    assert "mul_sum" in first.body.__name__ and second.body.__name__.endswith("_sum_add_mul_f32")


def test_parts_share_blocks_by_their_length():
    (launch,) = VARIANTS[MULTI].build(optimizer((2**24,), (2**22,), (0,), (100,)), H200)
    lengths, firsts, ends = ([n.value for n in column] for column in launch.args[2:])
    blocks = [end - first for first, end in zip(firsts, ends)]
    assert lengths == [2**24, 2**22, 0, 100] and firsts == [0, *ends[:-1]] and launch.grid == (ends[-1],)
    assert blocks[2:] == [0, 1] and 3.9 < blocks[0] / blocks[1] < 4.1


# --- the compiler -----------------------------------------------------------------------------------------------------

TARGETS = [d for d in DEVICES if d.target in ("sm_75", "sm_80", "sm_90a")]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F2", "A12")
@pytest.mark.parametrize("device", TARGETS, ids=lambda d: d.target)
@pytest.mark.parametrize("variant", sorted({c.variant for c in SMALL}))
def test_compiles_without_spills_stack_or_f64(variant, device):
    """All for Hopper, every third for the older ones. A thread of `reduce_naive` adds up its result's elements in f64."""
    hopper = device.target == "sm_90a"
    for case in [c for c in SMALL if c.variant == variant][:: 1 if hopper else 3]:
        compile_case(case, device, look_at_ptx=hopper and "reduce_naive" not in variant)


@pytest.mark.sample(2, pool="machine code")
@pytest.mark.spec("A12")
@pytest.mark.parametrize("variant", [FLAT, VECTOR, STRIDED, ROWS, REDUCE_ROWS, REDUCE_COLUMNS])
@pytest.mark.parametrize("keep_all", [False, True])
def test_many_operands_find_registers(variant, keep_all):
    names = [f"x{i}" for i in range(24)]
    given = {
        **{name: desc((64, 64), f16) for name in names},
        "b": desc((64,) if variant in (STRIDED, ROWS) else (), f16),
    }
    ops = [
        (f"y{i}", ("add", "mul", "maximum")[i % 3], f"y{i - 1}" if i else "b", name)
        for i, name in enumerate(names)
    ]
    keep = [f"y{i}" for i in range(0, 23, 2)] if keep_all else []
    last = "y23"
    if variant in (REDUCE_ROWS, REDUCE_COLUMNS):
        ops.append(("s", "reduce_sum", "y23", {"axes": (0 if variant == REDUCE_COLUMNS else 1,)}))
        last = "s"
    compile_case(Case(variant, fused(given, *ops, keep=[*keep, last])), TARGETS[-1])


# --- what they compute ------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="simulated")
@pytest.mark.spec("A12", "A13", "A15")
def test_simulated_kernels_agree_with_numpy_and_with_one_op_at_a_time():
    outcomes = outcomes_of("simulate_fused_maps.py")
    assert len(outcomes) == len(SMALL if os.environ.get("AICF_TEST_ALL") else SMALL[::6])


def run_on_host(case: Case, *many: Operands) -> list[list[np.ndarray]]:
    """Results for each set of operands; the very LLVM that goes to NVIDIA's compiler, which the simulator never sees."""
    variant, made = VARIANTS[case.variant], []
    assert variant.supported(case.region, TINY) is None
    launches = [OnHost(launch, case.region) for launch in variant.build(case.region, TINY)]
    for operands in many:
        made.append(
            [
                np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy).reshape(t.shape)
                for t in case.region.results
            ]
        )
        workspace = np.full(variant.query_workspace(case.region, TINY), 255, np.uint8)
        for launch in launches:
            launch(operands.memory, made[-1], workspace)
    return made


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A12", "A13", "F2")
@pytest.mark.parametrize("variant", sorted({c.variant for c in SMALL}))
def test_code_run_on_the_host_agrees_with_numpy(variant):
    for case in (c for c in SMALL if c.variant == variant):
        given = operands_for(case, fresh_seed()), with_specials(case, operands_for(case))
        for operands, results in zip(given, run_on_host(case, *given)):
            assert_close(case, results, reference(case, operands.arrays))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15")
@pytest.mark.parametrize("variant", [FLAT, VECTOR, STRIDED, ROWS, REDUCE_NAIVE])
def test_strict_code_run_on_the_host_is_bit_for_bit_one_op_at_a_time(variant):
    halves = [c for c in SMALL if c.variant == variant and c.region.results[0].dtype in (f16, bf16)]
    for case in halves:
        operands = with_specials(case, operands_for(case))
        (got,) = run_on_host(strict(case), operands)
        want = one_by_one(case, operands, lambda one, given: run_on_host(one, given)[0])
        for g, w in zip(got, want):
            assert g.tobytes() == w.tobytes(), str(case)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("variant", [FLAT, VECTOR])
def test_halves_round_to_nearest_even_on_the_host(dtype, variant):
    x = np.random.default_rng().normal(size=4000).astype(np.float32)
    ties = (np.arange(1, 2049) / 2048 + 1).astype(np.float32)  # half a step of bf16 and f16 are among them
    x = np.concatenate([x, ties, 1 + ties / 256, np.float32([65519, 65520, 3.4e38, 1e-8, 0.0, -0.0, np.inf])])
    case = Case(variant, region("convert", x.shape, dtype=dtype.id))
    (((got),),) = run_on_host(case, Operands([x], [x]))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got.view(np.uint16), x.astype(dtype.numpy).view(np.uint16))


def run(gpu: Gpu, case: Case, operands: Operands) -> list[np.ndarray]:  # noqa: F811
    return launch_case(gpu, case, operands.memory)


@pytest.mark.gpu
@pytest.mark.sample(10, each=lambda case: case.variant, like="fused maps", gpu=True)
@pytest.mark.spec("A12", "A13", "D5")
@pytest.mark.parametrize("case", [*SMALL, *LARGE], ids=str)
def test_agrees_with_numpy(gpu, case):  # noqa: F811
    operands = operands_for(case, fresh_seed())
    assert_close(case, run(gpu, case, operands), reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.sample(5, each=lambda case: case.variant, like="fused maps", gpu=True)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("case", [*SMALL, *LARGE], ids=str)
def test_strict_is_bit_for_bit_one_op_at_a_time(gpu, case):  # noqa: F811
    operands = with_specials(case, operands_for(case))
    want = one_by_one(case, operands, lambda one, given: run(gpu, one, given))
    for got, expected in zip(run(gpu, strict(case), operands), want):
        assert bits(got) == bits(expected)


def bits(x: np.ndarray) -> bytes:
    """Of all numbers, and of one NaN for all: which of them an instruction makes, and whether neg has turned it, is up to it."""
    return (
        np.where(np.isnan(x), np.array(np.nan, x.dtype), x).tobytes() if x.dtype.kind in "fV" else x.tobytes()
    )


@pytest.mark.gpu
@pytest.mark.sample(10, each=lambda case: case.variant, like="fused maps", gpu=True)
@pytest.mark.parametrize("case", SMALL, ids=str)
def test_special_values(gpu, case):  # noqa: F811
    operands = with_specials(case, operands_for(case))
    assert_close(case, run(gpu, case, operands), reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.sample(5, each=lambda case: case.variant, like="fused maps", gpu=True)
@pytest.mark.parametrize("case", Lazily(lambda: unaligned(SMALL)), ids=str)
def test_unaligned_pointers(gpu, case):  # noqa: F811
    operands = operands_for(case)
    assert_close(case, launch_case(gpu, case, operands.memory, shift=1), reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", [FLAT, VECTOR])
def test_a_result_may_take_over_an_operand(gpu, variant):  # noqa: F811
    case = Case(variant, tree(1001))
    operands = operands_for(case)
    got = launch_case(gpu, case, operands.memory, onto={0: 0, 1: 1, 2: 2})
    assert_close(case, got, reference(case, operands.arrays))


@pytest.mark.gpu
@pytest.mark.spec("A13")
def test_optimizer_steps_in_place(gpu):  # noqa: F811
    """Each part writes over its own parameter and moments."""
    case = Case(MULTI, optimizer((1000,), (33, 7), (5,)))
    operands = operands_for(case)
    onto = {3 * part + k: 8 + 4 * part + at for part in range(3) for k, at in enumerate((0, 2, 3))}
    got = launch_case(gpu, case, operands.memory, onto=onto)
    assert_close(case, got, reference(case, operands.arrays))
