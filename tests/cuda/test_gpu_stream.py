"""Stream-K products on a Hopper GPU: against float64, launch after launch on a workspace, and two at once."""

from __future__ import annotations

import itertools

import pytest
from kernel_cases import Case, operands_for
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)
from test_gpu_wgmma import _known, check  # noqa: F401  (a fixture)
from wgmma_cases import (
    H200,
    STREAMS,
    TRANSPOSES,
    activated,
    divided_batches,
    other,
    product,
    residual,
    stashed,
)

from aicf.cuda_kernels.compiler import engine
from aicf.types import bf16, f16, f32

pytestmark = pytest.mark.gpu

BY_ID = {v.id: v for v in STREAMS.values()}
IDS = sorted(BY_ID)


@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("ta, tb", TRANSPOSES)
def test_transposes(gpu, variant, ta, tb):  # noqa: F811
    check(gpu, variant, product(2056, 4104, 1000, dtype=bf16 if ta else f16, ta=ta, tb=tb))


@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("m, n", [(1544, 2568), (2056, 4104), (17000, 130), (120, 65000)])
@pytest.mark.parametrize("k", [1, 64, 72, 328])
def test_shares(gpu, variant, m, n, k):  # noqa: F811
    """Of one slice, two, and six; one round and more."""
    if BY_ID[variant].supported(product(m, n, 8), gpu.spec) is None:
        check(gpu, variant, product(m, n, k, tb=True, pitch=(-(-k // 8) * 8,) * 2))


@pytest.mark.sample(2, each="variant", gpu=True)
@pytest.mark.parametrize("variant", IDS)
@pytest.mark.parametrize("make", [residual, stashed, activated])
@pytest.mark.parametrize("n", [4104, 4101])
def test_epilogues(gpu, variant, make, n):  # noqa: F811
    check(gpu, variant, make(2056, n, 136, tb=True))


@pytest.mark.parametrize("variant", IDS)
def test_words(gpu, variant):  # noqa: F811
    check(gpu, variant, other(2056, 4104, 200, (f32, f32, f32)), tolerance=2e-3)


# test_wgmma_stream.py has those that are not for divided tiles
BATCHES = divided_batches(1160, 1544, 200)
TAKEN = [(n, v.id) for n, r in BATCHES.items() for v in STREAMS.values() if v.supported(r, H200) is None]


@pytest.mark.sample(4, each="variant", gpu=True)
@pytest.mark.parametrize("name, variant", TAKEN)
def test_batches(gpu, variant, name):  # noqa: F811
    check(gpu, variant, BATCHES[name])


@pytest.mark.parametrize("variant", IDS)
def test_launch_after_launch_and_two_at_once(gpu, variant):  # noqa: F811
    """The same numbers in each, on workspaces that held anything before."""
    r, known = activated(2056, 4104, 328, tb=True), BY_ID[variant]
    if reject := known.supported(r, gpu.spec):
        pytest.skip(str(reject))
    operands = operands_for(Case(variant, r), 0)
    ins = [gpu.allocate(m.nbytes) for m in operands.memory]
    for pointer, m in zip(ins, operands.memory):
        gpu.upload(pointer, m)
    (launch,), scratch = known.build(r, gpu.spec), known.query_workspace(r, gpu.spec)
    start, calls, outs = engine.prepare(launch, r, variant), [], []
    streams = [gpu.stream, gpu.device.create_stream()]
    for stream in streams:
        outs.append([gpu.allocate(t.nbytes) for t in r.results])
        calls.append(engine.bind(start, stream, ins, outs[-1], gpu.allocate(scratch)))
    found = set()
    for _ in range(20):
        for call in itertools.chain(*[calls] * 5):
            call()
        for stream in streams:
            stream.sync()
        found |= {tuple(gpu.download(p, t.nbytes).tobytes() for p, t in zip(o, r.results)) for o in outs}
    assert len(found) == 1
