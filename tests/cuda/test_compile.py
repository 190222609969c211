"""Every kernel compiles for every architecture, without spilling, without a stack, without f64. Needs no GPU."""

from __future__ import annotations

import itertools
import os
import re

import pytest
from clean_kernels import are_new, found_clean
from kernel_cases import CONVOLUTIONS, FIRST, FMAS, GRADIENTS, MORE, TURINGS, VARIANTS, WGMMAS, Case, fused

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.keys import kernel_key
from aicf.device.spec import DeviceSpec
from aicf.rows import RegionSpec
from aicf.types import DType

SHARED = {"sm_75": 64, "sm_80": 163, "sm_86": 99, "sm_89": 99, "sm_90": 227, "sm_100": 227}  # KB for a block
DEVICES = [
    DeviceSpec("test", "cuda", (int(t[3:-1]), int(t[-1])), frozenset({t + "a"} if t in ("sm_90", "sm_100") else ()), 100,
               1000.0, {"f32": 20.0, "tf32": 80.0, "f16": 160.0, "bf16": 160.0}, shared_per_block=kb * 1024)
    for t, kb in SHARED.items()
]  # fmt: skip
HOPPER = DEVICES[4]
FLAT = "cuda.elementwise_flat.v1"
UNORDERED = re.compile(r"^.*\b(red|atom|cp\.reduce)\.\S*\.(f16|bf16|f32|f64).*$", re.MULTILINE)
IN_ORDER = {
    "cuda.attention_grad_wgmma.v1"
}  # adds when a flag says that what comes before is there: see test_order.py


def compile_case(case: Case, device: DeviceSpec, look_at_ptx: bool = False) -> None:
    variant = VARIANTS[case.variant]
    reject = variant.supported(case.region, device)
    if reject is not None and reject.condition == "needs":
        pytest.skip(str(reject))
    assert reject is None, f"{case}: {reject}"
    assert variant.cost(case.region, device).us > 0
    for launch in variant.build(case.region, device):
        compiled = engine.compile_launch(launch, case.region, device.target, variant.id)
        assert compiled.registers > 0, f"the log of {compiled.name} can't be read:\n{compiled.log}"
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0), compiled.log
        assert compiled.registers * launch.block[0] <= 65536
        assert compiled.shared_bytes <= engine.STATIC_SHARED_LIMIT
        if look_at_ptx:
            ptx = engine.ptx_of(launch, case.region, device.target)
            assert UNORDERED.search(ptx) is None or case.variant in IN_ORDER, UNORDERED.search(ptx)
            wide = re.findall(r"^\s+\S*\.f64.*$", ptx, re.MULTILINE)
            assert not wide, f"{compiled.name} computes in f64: {wide[:3]}"
        found_clean(launch, case.region, device.target)


def is_new(case: Case, device: DeviceSpec) -> bool:
    """Whether there is no saying how it compiles but by doing so."""
    variant = VARIANTS[case.variant]
    if variant.supported(case.region, device) is not None:
        return False
    return are_new(variant.build(case.region, device), case.region, device.target)


def test_every_variant_has_a_case():
    """NCCL's collectives are launches of its own."""
    known = {v for v in VARIANTS if not v.endswith("_nccl.v1")}
    assert {c.variant for c in FIRST} == known - {*WGMMAS, *FMAS, *CONVOLUTIONS, *GRADIENTS}


EVERYTHING = bool(os.environ.get("AICF_TEST_ALL"))


def _each_for_one(cases: list[Case]) -> list[tuple[Case, DeviceSpec]]:
    """Kernels on tensor cores take seconds each: by default an architecture for each of them, in turn; sm_75 for those that are for it."""
    made, turns = [], itertools.cycle(DEVICES[1:5])
    for case in cases:
        turing = case.variant in TURINGS
        one = ".gemm_mma." in case.variant and not EVERYTHING
        some = DEVICES[:1] if one and turing else [next(turns)] if one else DEVICES
        made += [(case, device) for device in some]
    return made


@pytest.mark.sample(4, always=is_new)
@pytest.mark.spec("F2")
@pytest.mark.parametrize(
    "case, device", _each_for_one(FIRST), ids=lambda x: getattr(x, "target", None) or x.variant
)
def test_compiles_for_every_architecture(case, device):
    compile_case(case, device)


def _largest(case: Case) -> bool:
    return "tiled.v1[128x128" in case.variant and case.region.results[0].dtype is DType.f32


# The largest tile stands for all GEMMs: it is the one that is short of registers. Its f32 stands for the half types.
ON_HOPPER = [
    c for c in FIRST if EVERYTHING or ".gemm_mma." not in c.variant or c.variant.endswith("[128x256]")
]
ON_HOPPER += [*(c for c in MORE if ".gemm_" not in c.variant or _largest(c))]


@pytest.mark.sample(3, pool="machine code")
@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", ON_HOPPER, ids=str)
def test_compiles_for_hopper_without_f64(case):
    compile_case(case, HOPPER, look_at_ptx=_floats_only(case))


def _floats_only(case: Case) -> bool:
    """i64 operands may well make f64 of their own accord, and reduce_naive adds up in it; the kernels that must not have only f32
    and bytes."""
    return "reduce_naive" not in case.variant and all(t.dtype.kind != "int" for t in case.region.tensors)


# --- strict numerics --------------------------------------------------------------------------------------------------

CONTRACTION = [d for d in DEVICES if d.target in ("sm_75", "sm_80", "sm_90a")]


def arithmetic(region: RegionSpec, device: DeviceSpec, variant: str) -> list[str]:
    """The kernel's f32 instructions by name, in order."""
    (launch,) = VARIANTS[variant].build(region, device)
    ptx = engine.ptx_of(launch, region, device.target)
    return re.findall(r"^\s+(fma|mul|add)\.\S*f32", ptx, re.MULTILINE)


def product_and_sum(strict: bool, n: int = 1001) -> RegionSpec:
    operands = {"a": (n,), "b": (n,), "c": (n,)}
    return fused(operands, ("p", "mul", "a", "b"), ("y", "add", "p", "c"), strict=strict)


@pytest.mark.spec("A15")
@pytest.mark.parametrize("device", CONTRACTION, ids=lambda d: d.target)
def test_strict_kernels_round_a_product_before_it_is_added(device):
    assert set(arithmetic(product_and_sum(False), device, FLAT)) == {"fma"}
    assert set(arithmetic(product_and_sum(True), device, FLAT)) == {"mul", "add"}


@pytest.mark.spec("A15")
@pytest.mark.parametrize("device", CONTRACTION, ids=lambda d: d.target)
def test_strict_kernels_are_kept_apart_from_the_others(device):
    """By their keys; and their machine code is other code, not only other text on the way to it."""
    made = []
    for strict in (False, True):
        region = product_and_sum(strict)
        (launch,) = VARIANTS[FLAT].build(region, device)
        key = kernel_key(launch, engine.signature_of(launch, region), device.target, strict)
        made.append((key, engine.compile_launch(launch, region, device.target).cubin))
    (key, code), (strict_key, strict_code) = made
    assert key != strict_key
    assert code != strict_code


@pytest.mark.spec("A15")
def test_what_a_library_function_contracts_by_name_stays_as_it_is():
    """erf and exp are written with explicit fma: their rounding is the same fused or alone, strict or not."""
    strict = fused({"x": (1001,)}, ("y", "exp", "x"), strict=True)
    free = fused({"x": (1001,)}, ("y", "exp", "x"))
    assert "fma" in arithmetic(strict, HOPPER, FLAT)
    assert arithmetic(strict, HOPPER, FLAT).count("fma") == arithmetic(free, HOPPER, FLAT).count("fma")
