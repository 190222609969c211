"""Maps of invariant regions: a function for halves is the same one alone and behind every product (docs/determinism.md)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from draws.seeds import rng
from kernel_cases import VARIANTS, Case, desc, fused, operands_for
from row_places import classes
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_numeric_class import some
from wgmma_cases import H200, product

from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import DeviceSpec
from aicf.dispatch import default_registry
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import DType, bf16, f16, f32

ACTIVATIONS = "gelu", "gelu_erf", "silu", "tanh"
EXACT = {
    "gelu": lambda x: x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * np.vectorize(math.erfc)(-x / math.sqrt(2)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def invariant(region: RegionSpec) -> RegionSpec:
    return replace(region, strict=True, invariant=True)


def alone(kind: str, count: int, n: int, dtype: DType) -> RegionSpec:
    """An op over (count, n), or with a vector along the rows."""
    operands = {"x": desc((count, n), dtype), "row": desc((n,), dtype)}
    op = ("y", kind, "x", "row") if kind == "bias_add" else ("y", kind, "x")
    return invariant(fused({name: operands[name] for name in op[2:]}, op))


def chosen(region: RegionSpec, device: DeviceSpec) -> str:
    return select(region, device, default_registry()).kernel_id


@pytest.mark.sample(2, pool="machine code")
@pytest.mark.spec("A15")
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_invariant_ops_call_functions_for_halves_where_they_make_halves(kind):
    """Other instructions than those of strict numerics; the same ones for f32."""
    for dtype in (bf16, f32):
        region = alone(kind, 64, 96, dtype)
        texts = []
        for each in (region, replace(region, invariant=False)):
            (launch,) = VARIANTS[chosen(each, H200)].build(each, H200)
            texts.append(engine.ptx_of(launch, each, H200.target))
        assert (texts[0] != texts[1]) == (dtype is bf16), dtype


@pytest.mark.gpu
@pytest.mark.spec("A15")
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_product_with_a_map_has_the_bits_of_both_alone(gpu, kind, request):  # noqa: F811
    """Drawn products with a bias and an activation, by kernels of all classes; the activation against float64."""
    draw = rng(request.node.nodeid)
    for dtype in (f16, bf16):
        m, n, k = int(draw.integers(1, 400)), 8 * int(draw.integers(1, 60)), 8 * int(draw.integers(2, 60))
        given = {"row": desc((n,), dtype)}
        ops = ("u", "bias_add", "y", "row"), ("w", kind, "u")
        region = invariant(product(m, n, k, *ops, dtype=dtype, tb=True, given=given))
        operands = operands_for(Case("", region), int(draw.integers(2**32)))
        kernels = some(classes(region, gpu.spec), draw, 6)
        assert kernels
        for id in kernels:
            (got,) = launch_case(gpu, Case(id, region), operands.memory)
            (y,) = launch_case(
                gpu, Case(id, invariant(product(m, n, k, dtype=dtype, tb=True))), operands.memory[:2]
            )
            added, act = alone("bias_add", m, n, dtype), alone(kind, m, n, dtype)
            (u,) = launch_case(gpu, Case(chosen(added, gpu.spec), added), [y.reshape(-1), operands.memory[2]])
            (w,) = launch_case(gpu, Case(chosen(act, gpu.spec), act), [u.reshape(-1)])
            assert got.tobytes() == w.tobytes(), (id, kind, dtype, (m, n, k))
            exact = EXACT[kind](u.astype(np.float64))
            wanted, unit = exact.astype(dtype.numpy), {f16: 2.0**-10, bf16: 2.0**-7}[dtype]
            error = np.abs(w.astype(np.float64) - wanted.astype(np.float64))
            assert (error <= unit * np.abs(exact) + 6e-8).all(), (id, kind, dtype, error.max())
