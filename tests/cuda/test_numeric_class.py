"""Numeric classes (docs/determinism.md): a class does not depend on the number of rows, and kernels of one class give equal bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from draws.seeds import rng
from kernel_cases import VARIANTS, Case, Operands, desc, gemm, region
from machines.on_host import OnHost
from row_places import (
    OverRows,
    classes,
    declaring,
    differing,
    drawn_gemm,
    drawn_norm,
    drawn_op_of_rows,
    drawn_rows,
    invariant,
    strict,
)
from test_fused_maps import TINY
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

import aicf
from aicf import nn
from aicf.device.spec import DeviceSpec, preset
from aicf.errors import KernelError
from aicf.registry.numerics import NumericClass
from aicf.registry.variant import Reject
from aicf.types import f16, f32

H200 = preset("h200")
KINDS = "f32", "f16", "tf32", "tf32x3", "fp8", "int8"
NAIVE = "cuda.gemm_naive.v1"
TILED, LARGER, SPLIT = (f"cuda.gemm_tiled.v1[{config}]" for config in ("32x32", "64x64", "32x32 split"))


class Host:
    """Runs cases by the LLVM that the GPU gets; a body is compiled once, whatever the number of rows."""

    def __init__(self, device: DeviceSpec = TINY) -> None:
        self.device, self.compiled = device, dict[object, OnHost]()

    def __call__(self, case: Case, operands: Operands) -> list[np.ndarray]:
        variant, r = VARIANTS[case.variant], case.region
        results = [np.zeros(t.shape, t.dtype.numpy) for t in r.results]
        workspace = np.zeros(variant.query_workspace(r, self.device), np.uint8)
        for launch in variant.build(r, self.device):
            if launch.body not in self.compiled:
                self.compiled[launch.body] = OnHost(launch, r)
            self.compiled[launch.body].launch = launch
            self.compiled[launch.body](operands.memory, results, workspace)
        return results


def some(kernels: dict[str, NumericClass], draw: np.random.Generator, most: int) -> dict[str, NumericClass]:
    """Of the kernels at most so many, those of one class after the other."""
    names = sorted(draw.permutation(sorted(kernels))[:most], key=lambda id: str(kernels[id]))
    return {id: kernels[id] for id in names}


@pytest.mark.spec("A15", "B14")
def test_a_class_does_not_depend_on_the_number_of_rows_or_multiprocessors(request):
    """Of every kernel that has one, for drawn regions; those that have none say why, whatever the rows."""
    draw, seen, none = rng(request.node.nodeid), set(), set()
    for n in range(60):
        rows = drawn_gemm(draw, KINDS[n % 6]) if n % 3 else (drawn_rows, drawn_norm)[n % 2](draw)
        rows = (invariant, strict, lambda rows: rows, lambda rows: rows)[draw.integers(4)](rows)
        rows = invariant(drawn_op_of_rows(draw)) if n % 5 == 4 else rows
        found: dict[str, set] = {}
        for count in (1, 2, 5, 64, 300, 4096):
            region = rows.make(count)
            for device in (H200, replace(H200, sms=int(draw.integers(20, 200))), preset("l4")):
                for v in declaring(region, device):
                    found.setdefault(f"{v.id} {device.arch}", set()).add(v.numeric_class(region, device))
        for id, answers in found.items():
            assert len(answers) == 1, f"{rows.name}: {id} has {answers}"
            (answer,) = answers
            (none if isinstance(answer, Reject) else seen).add(id.partition(" ")[0].partition("[")[0])
    assert {"cuda.gemm_wgmma.v1", "cuda.gemm_mma.v1", "cuda.gemm_fma.v1", "cuda.gemm_tiled.v1", NAIVE} <= seen
    assert {"cuda.gemv_simt.v2", "cuda.gemv_mma.v1", "cuda.gemm_tiled.v1", "cuda.gemm_wgmma.v1"} <= none


def test_kernels_without_a_class_say_why():
    for name, part in (
        (SPLIT, "number of tiles"), ("cuda.gemm_wgmma.v1[128x256 stream]", "stream-K"), ("cuda.gemm_wgmma.v1[64x64 split]", "number of tiles"),
        ("cuda.gemv_simt.v2", "number of rows"),
    ):  # fmt: skip
        region = drawn_gemm(rng("any"), "f16").make(7)
        answer = VARIANTS[name].numeric_class(region, H200)
        assert isinstance(answer, Reject) and answer.condition == "numerics" and part in answer.reason, name


# --- equal bits ---------------------------------------------------------------------------------------------------------


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14")
def test_kernels_of_cuda_cores_of_one_class_give_equal_bits_on_the_host(request):
    """By the LLVM that the GPU gets: two drawn products, without contraction, by kernels of one class, alone and among others."""
    draw = rng(request.node.nodeid)
    rows = strict(drawn_gemm(draw, ("f32", "simt f16")[draw.integers(2)], 40))
    one = {id: c for id, c in classes(rows.make(5), TINY).items() if id in (TILED, LARGER)}
    assert len(one) == 2 and len(set(one.values())) == 1
    assert not differing(rows, one, TINY, Host(), draw, 5), rows.name


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14")
def test_a_class_that_lies_is_found(request):
    """A kernel that divides k, as if it had the class of one that adds up in order."""
    draw = rng(request.node.nodeid)
    region = gemm(9, 24, 32 * int(draw.integers(5, 9)))
    rows = OverRows(lambda m: region, {0: 0}, "long k")
    honest = VARIANTS[TILED].numeric_class(region, TINY)
    assert VARIANTS[SPLIT].supported(region, TINY) is None and isinstance(honest, NumericClass)
    found = differing(rows, {TILED: honest, SPLIT: honest}, TINY, Host(), draw, 9, lambda draw, count: ())
    assert found == [f"{SPLIT} with 9 rows"]


INVARIANT = "cuda.rows_resident.v2", "cuda.rows_cluster.v1", "cuda.rows_streamed.v2", "cuda.reduce_rows.v2"


@pytest.mark.spec("A15", "B14")
def test_invariant_rows_of_any_length_have_classes(request):
    """Of 80 drawn ops, many of odd length: each kernel that takes the rows has one class for all numbers of rows and devices, and some kernel takes all."""
    draw = rng(request.node.nodeid)
    for _ in range(80):
        rows, of = invariant(drawn_norm(draw, 150_000)), dict[str, list]()
        counts = (1, 2, 9, 300, 5000)
        for count in counts:
            for device in (H200, replace(H200, sms=int(draw.integers(20, 200))), preset("l4")):
                for id, numeric in classes(rows.make(count), device).items():
                    of.setdefault(id, []).append(numeric)
        assert all(len(set(found)) == 1 for found in of.values()), (rows.name, of)
        assert {found[0].length for found in of.values()} == {int(rows.name.split()[-1])}, rows.name
        assert any(len(of.get(id, ())) == 3 * len(counts) for id in INVARIANT), (rows.name, of)


@pytest.mark.spec("A15", "B14")
def test_a_vector_has_the_class_of_a_row(request):
    """Of 40 drawn norms: a vector alone, one row, and rows along two axes, with weights that all share."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        kind, dtype = str(draw.choice(["layer_norm", "rms_norm"])), (f16, f32)[draw.integers(2)]
        length = int(2 ** draw.uniform(0, 14))
        weights = [desc((length,), dtype)] * (2 if kind == "layer_norm" else 1)
        made = [region(kind, desc((*rows, length), dtype), *weights) for rows in ((), (1,), (300,), (2, 5))]
        of = [classes(replace(r, strict=True, invariant=True), H200) for r in made]
        for id in INVARIANT[:3]:
            assert len({found.get(id) for found in of}) == 1, (id, kind, length, dtype)


@pytest.mark.spec("A15", "B14")
def test_invariant_rows_with_gaps_have_the_class_of_dense_rows(request):
    """Of 30 drawn softmaxes whose rows begin at any address: what is loaded element by element has the order of vectors."""
    draw = rng(request.node.nodeid)
    for _ in range(30):
        length, gap, dtype = (
            int(draw.integers(1, 20000)),
            int(draw.integers(1, 9)),
            (f16, f32)[draw.integers(2)],
        )
        made = [
            region("softmax", desc((n, length), dtype, (length + k, 1)))
            for k in (0, gap)
            for n in (1, 2, 300)
        ]
        of = [classes(replace(r, strict=True, invariant=True), H200) for r in made]
        for id in INVARIANT[:3]:
            assert len({found.get(id) for found in of}) == 1, (id, length, gap, dtype)


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("even", [False, True])
def test_invariant_rows_have_equal_bits_on_the_host(even, request):
    """By the LLVM that the GPU gets: a drawn op over odd rows, or over vectors, by one of the kernels that take it, alone and among others."""
    draw, length = rng(request.node.nodeid), 0
    while length < 65 or (length % 8 != 0 if even else length % 2 == 0):
        rows = invariant(drawn_norm(draw, 900))
        length = int(rows.name.split()[-1])
    kernels = {id: c for id, c in classes(rows.make(5), H200).items() if id in INVARIANT}
    kernels = some(kernels, draw, 1)
    assert kernels and not differing(rows, kernels, H200, Host(H200), draw, 5), rows.name


@pytest.mark.spec("A15", "B14")
def test_maps_of_the_cpu_give_a_row_equal_bits(request):
    """Called with all rows, with some in another order, with one: lengths of whole vectors, and ends of them."""
    draw = rng(request.node.nodeid)
    for _ in range(20):
        kind, count = str(draw.choice(["gelu", "sigmoid", "exp", "silu"])), int(draw.integers(2, 40))
        x = draw.normal(size=(count, int(draw.integers(1, 100)))).astype(np.float32)
        rows = [*draw.permutation(count)[: int(draw.integers(1, count + 1))]]
        whole, part = np.empty_like(x), np.empty_like(x[rows])
        aicf.op_call(kind, [x], [whole])
        aicf.op_call(kind, [np.ascontiguousarray(x[rows])], [part])
        assert whole[rows].tobytes() == part.tobytes(), (kind, x.shape, rows)


@pytest.mark.spec("A15", "B14")
def test_rows_of_the_cpu_have_equal_bits_among_any_others(request):
    """Short rows that are fed together, rows of whole vectors and of ends, rows longer than a block."""
    draw = rng(request.node.nodeid)
    for _ in range(40):
        length = int(
            draw.choice([int(2 ** draw.uniform(0, 12)), 16384 + int(draw.integers(2000))], p=[0.95, 0.05])
        )
        count = int(draw.integers(2, 60)) if length < 5000 else 3
        x = draw.normal(size=(count, length)).astype(np.float32)
        rows = [*draw.permutation(count)[: int(draw.integers(1, count + 1))]]
        kind = str(draw.choice(["softmax", "reduce_sum", "reduce_mean"]))
        attrs = {"axis": 1} if kind == "softmax" else {"axes": (1,)}

        def run(x: np.ndarray) -> np.ndarray:
            out = np.empty_like(x) if kind == "softmax" else np.empty(len(x), np.float32)  # noqa: B023
            aicf.op_call(kind, [x], [out], attrs)  # noqa: B023
            return out

        assert run(x)[rows].tobytes() == run(np.ascontiguousarray(x[rows])).tobytes(), (kind, x.shape, rows)
    softmax = nn.Model({"x": aicf.TensorSpec(("batch", 100))}, batch=3).add(nn.Softmax())
    (region,) = aicf.explain_for(softmax, "cpu").to_json()["regions"]
    assert region["numeric_class"]["order"] == "by 32 lanes" and region["numeric_class"]["length"] == 100


def _on(gpu):  # noqa: F811
    return lambda case, operands: launch_case(gpu, case, operands.memory)


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
@pytest.mark.parametrize("kind", KINDS)
def test_gemm_kernels_of_one_class_give_equal_bits(gpu, kind, request):  # noqa: F811
    """Drawn products, as they are and without contraction: up to ten kernels of each, alone and among others."""
    draw = rng(request.node.nodeid)
    for number in range(3):
        rows = drawn_gemm(draw, kind, 900, (1, 3, 3)[number])
        rows = strict(rows) if number == 1 and kind != "fp8" else rows  # the first has nothing to contract
        count = int(draw.integers(65, 400))
        kernels = some(classes(rows.make(count), gpu.spec), draw, 10)
        assert kernels, rows.name
        assert not differing(rows, kernels, gpu.spec, _on(gpu), draw, count), rows.name


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
def test_rows_maps_and_attention_of_one_class_give_equal_bits(gpu, request):  # noqa: F811
    draw = rng(request.node.nodeid)
    for n in range(24):
        rows = (drawn_rows(draw), invariant(drawn_norm(draw)))[n % 2]
        count = int(draw.integers(3, 40))
        kernels = classes(rows.make(count), gpu.spec)
        assert not differing(rows, kernels, gpu.spec, _on(gpu), draw, count), rows.name


# --- where it is shown --------------------------------------------------------------------------------------------------


@pytest.mark.spec("B12")
def test_explanations_show_the_class_of_each_region():
    model = nn.Model({"x": aicf.TensorSpec(("batch", 1024))}, batch=4096).add(
        nn.Linear(1024, 4096, bias=False)
    )
    told = aicf.explain_for(model, "h200", precision="tf32")
    (region,) = told.to_json()["regions"]
    assert region["numeric_class"] == {
        "compute": "wgmma tf32 in f32",
        "length": 1024,
        "order": "in order",
        "operands": "",
        "maps": "",
    }
    assert "numerics  wgmma tf32 in f32, 1024 terms in order" in str(told.verbose())
    narrow = aicf.explain_for(nn.Model({"x": aicf.TensorSpec((1, 64))}).add(nn.Linear(64, 256)), "h200")
    assert "number of rows" in narrow.to_json()["regions"][0]["numeric_class"]["refused"]
    assert "numerics  no class: how k is divided" in " ".join(str(narrow.verbose()).split("\n"))


def test_a_class_that_can_not_be_computed_is_an_error_of_its_kernel():
    broken = replace(VARIANTS[NAIVE], numerics=lambda region, device: 1 // 0)
    with pytest.raises(KernelError, match="numerics"):
        broken.numeric_class(drawn_gemm(rng("any"), "f32").make(3), H200)
