"""GEMM on the host: BLAS through NumPy, then bias and activation in one numba pass over the product."""

from __future__ import annotations

import numpy as np

from ..registry.cost import roofline
from ..registry.epilogue import gemm_program
from ..registry.variant import HostCall, Reject, contiguous, dtype, variant
from ..types import DType


@variant("gemm", id="cpu.gemm_blas.v1")
class GemmBlas:
    """d = act(alpha * op(a) @ op(b) + beta * c + bias): sgemm, then one more pass over d if anything follows.

    Parallel inside BLAS. Bytes: operands once, d once or three times. Flops: 2 M N K.
    """

    def viable(region):
        program = gemm_program(region)
        yield program if isinstance(program, Reject) else None
        yield dtype(region, DType.f32)

    def accepts(region):
        program = gemm_program(region)
        yield program if isinstance(program, Reject) else None
        yield dtype(region, DType.f32)
        yield contiguous(region)
        yield (
            Reject("results", "the region's last value is not read outside it") if program.d is None else None
        )
        yield _no_stray_results(region, program)

    def cost(region, device):
        p = gemm_program(region)
        cost = roofline(device, bytes=region.nbytes, flops=p.flops, efficiency=0.5).plus(call=1.5)
        steps = (p.bias is not None or p.act is not None) + (p.alpha != 1.0) + (p.c is not None)
        return cost.plus(epilogue=steps * (2.0 + 8 * p.m * p.n / device.bandwidth * 1e-3)) if steps else cost

    def build(region, device):
        p = gemm_program(region)
        finish = _epilogue(p)
        alpha, beta = np.float32(p.alpha), np.float32(p.beta)

        def run(operands, results):
            a, b, d = operands[p.a], operands[p.b], results[p.d]
            with np.errstate(all="ignore"):
                np.matmul(a.T if p.trans_a else a, b.T if p.trans_b else b, out=d)
                if p.alpha != 1.0:
                    np.multiply(d, alpha, out=d)
                if p.c is not None:
                    np.add(d, beta * operands[p.c], out=d)
            if finish is not None:
                finish(
                    d,
                    operands[p.bias] if p.bias is not None else _NO_BIAS,
                    results[p.z] if p.z is not None else d,
                )

        return HostCall(run)


_NO_BIAS = np.zeros(1, np.float32)


def _no_stray_results(region, program):
    extra = len(region.results) - (program.d is not None) - (program.z is not None)
    return (
        Reject("results", f"{extra} values other than d and z are read outside the region") if extra else None
    )


def _epilogue(p):
    if p.bias is None and p.act is None and p.z is None:
        return None
    from ..ops.scalar import typed_scalar
    from .loops import gemm_epilogue

    scalar, constants = typed_scalar(p.scalar, DType.f32, dict(p.act_attrs)) if p.act else (None, ())
    return gemm_epilogue(scalar, constants, p.z is not None, p.bias_kind == "PerM")
