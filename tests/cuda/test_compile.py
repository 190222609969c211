"""Every kernel compiles for every architecture, without spilling, without a stack, without f64. Needs no GPU."""

from __future__ import annotations

import re

import pytest
from kernel_cases import FIRST, MORE, VARIANTS, Case

from aicf.cuda_kernels import engine
from aicf.device.spec import DeviceSpec
from aicf.types import DType

DEVICES = [
    DeviceSpec("test", "cuda", (int(t[3:-1]), int(t[-1])), frozenset({t + "a"} if t in ("sm_90", "sm_100") else ()), 100,
               1000.0, {"f32": 20.0})
    for t in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100")
]  # fmt: skip
HOPPER = DEVICES[4]

# Kernel name -> why it may use a stack, spill or compute in f64.
EXEMPT: dict[str, str] = {
    f"aicf_elementwise_{shape}_schedule_cosine": "cos reduces great arguments on the stack, in f64; a 0-D op's one thread"
    for shape in ("flat", "vector4", "strided1")
}


def compile_case(case: Case, device: DeviceSpec, look_at_ptx: bool = False) -> None:
    variant = VARIANTS[case.variant]
    reject = variant.supported(case.region, device)
    if reject is not None and reject.condition == "needs":
        pytest.skip(str(reject))
    assert reject is None, f"{case}: {reject}"
    assert variant.cost(case.region, device).us > 0
    for launch in variant.build(case.region, device):
        compiled = engine.compile_launch(launch, case.region, device.target, variant.id)
        if compiled.name in EXEMPT:
            continue
        assert compiled.registers > 0, f"the log of {compiled.name} can't be read:\n{compiled.log}"
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0), compiled.log
        assert compiled.registers * launch.block[0] <= 65536
        assert compiled.shared_bytes <= engine.STATIC_SHARED_LIMIT
        if look_at_ptx:
            wide = re.findall(
                r"^\s+\S*\.f64.*$", engine.ptx_of(launch, case.region, device.target), re.MULTILINE
            )
            assert not wide, f"{compiled.name} computes in f64: {wide[:3]}"


def test_every_variant_has_a_case():
    assert {c.variant for c in FIRST} == set(VARIANTS)


@pytest.mark.spec("F2")
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.target)
@pytest.mark.parametrize("case", FIRST, ids=lambda c: c.variant)
def test_compiles_for_every_architecture(case, device):
    compile_case(case, device)


def _largest(case: Case) -> bool:
    return "128x128" in case.variant and case.region.results[0].dtype is DType.f32


# The largest tile stands for all GEMMs: it is the one that is short of registers. Its f32 stands for the half types.
ON_HOPPER = [*FIRST, *(c for c in MORE if ".gemm_" not in c.variant or _largest(c))]


@pytest.mark.spec("F2")
@pytest.mark.parametrize("case", ON_HOPPER, ids=str)
def test_compiles_for_hopper_without_f64(case):
    compile_case(case, HOPPER, look_at_ptx=_floats_only(case))


def _floats_only(case: Case) -> bool:
    """i64 operands may well make f64 of their own accord; the kernels that must not have only f32 and bytes."""
    return all(t.dtype in (DType.f32, DType.f16, DType.bf16, DType.bool) for t in case.region.tensors)
