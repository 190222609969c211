"""The suites, in the order in which they are listed, run and reported."""

from ..harness import Suite
from . import (
    attention,
    bits,
    convolution,
    convolution_gradients,
    cpu,
    decode,
    demo,
    distributed,
    elementwise,
    epilogue,
    frontends,
    gemm,
    gpt,
    lesson,
    linear_loss,
    mlp,
    overhead,
    quantized,
    regret,
    rows,
    selection,
    startup,
    weights,
)

SUITES: dict[str, Suite] = {
    m.SUITE.name: m.SUITE
    for m in (
        overhead,
        elementwise,
        rows,
        gemm,
        weights,
        epilogue,
        attention,
        convolution,
        convolution_gradients,
        linear_loss,
        quantized,
        lesson,
        selection,
        regret,
        bits,
        mlp,
        gpt,
        distributed,
        decode,
        frontends,
        startup,
        demo,
        cpu,
    )
}
