"""Made-up tuning data: times and refusals of kernels that are nowhere, on small regions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from aicf.device.spec import preset
from aicf.registry.measured import Header, Measured, Timing
from aicf.registry.tuning import Tuning
from aicf.rows import RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, f32
from examples import examples

from .synthetic import region

CPU = preset("cpu")
HEADER = replace(Header.here(CPU), date="2030-01-02T03:04:05+00:00")
FILL = AttrPack(shape=(2, 3), value=1.5, dtype=1)
REGIONS = [
    region("relu", (4, 7)), region("add", (1025,), (1025,)), region("gemm", (4, 7), (7, 5), None, (5,)),
    region("leaky_relu", (3,), slope=0.25), RegionSpec.single(OpKind("fill"), FILL, [], [TensorDesc(f32, (2, 3), (3, 1))]),
]  # fmt: skip
# keys of regions are found once, which takes its time
PATIENT = settings(examples(50), suppress_health_check=[HealthCheck.too_slow])
IDS = ["cpu.a.v1", "cpu.b.v1", "cpu.c.v2"]
TIMINGS = st.builds(Timing, st.floats(1e-3, 1e7), st.floats(0, 10), st.integers(1, 10**6))


@st.composite
def measured(draw, r):
    timings = draw(st.dictionaries(st.sampled_from(IDS), TIMINGS, max_size=3))
    others = [id for id in IDS if id not in timings]
    why = st.text(min_size=1, max_size=20)
    return Measured(r, timings, draw(st.dictionaries(st.sampled_from(others), why)) if others else {})


@st.composite
def tunings(draw):
    chosen = draw(st.lists(st.sampled_from(REGIONS), unique_by=lambda r: r.key, max_size=4))
    header = replace(HEADER, date=draw(st.sampled_from(["2030-01-01", "2030-01-02"])))
    return Tuning(header, [draw(measured(r)) for r in chosen])


def one_of(*kernels: str, us: float = 2.0, r=REGIONS[0], **refused: str) -> Tuning:
    return Tuning(HEADER, [Measured(r, {id: Timing(us, 0.1, 30) for id in kernels}, refused)])
