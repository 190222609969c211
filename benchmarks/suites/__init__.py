"""The suites, in the order in which they are listed, run and reported."""

from ..harness import Suite
from . import (
    cpu,
    demo,
    elementwise,
    epilogue,
    gemm,
    gpt,
    lesson,
    mlp,
    overhead,
    regret,
    rows,
    selection,
    startup,
)

SUITES: dict[str, Suite] = {
    m.SUITE.name: m.SUITE
    for m in (
        overhead,
        elementwise,
        rows,
        gemm,
        epilogue,
        lesson,
        selection,
        regret,
        mlp,
        gpt,
        startup,
        demo,
        cpu,
    )
}
