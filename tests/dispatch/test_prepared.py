"""What a call on CUDA is prepared to, without a GPU: pointers in their places, copies around what takes no strides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import aicf
from aicf.device import streams
from aicf.device.spec import preset
from aicf.dispatch import overlap, prepared
from aicf.dispatch.prepared import StagedSelection, prepare
from aicf.types import TensorDesc, TensorSpec, f32, pointer_alignment

SIZE = 1 << 20


class Gpu:
    kind, spec, ordinal = "cuda", preset("h200"), 0


@dataclass
class Recorded:
    """A launch: the region it serves, and where its operands, results and workspace are."""

    region: object
    ins: list
    outs: list
    work: tuple


@pytest.fixture
def recording(monkeypatch):
    monkeypatch.setattr(
        prepared,
        "start_of",
        lambda launch, region, id, ins, outs, work: Recorded(region, [*ins], [*outs], work),
    )


def desc(shape, stride=None, dtype=f32, pointer=256):
    dense = TensorDesc.dense(TensorSpec(shape, dtype, "cuda"))
    return TensorDesc(dtype, dense.shape, stride or dense.stride, "cuda", pointer_alignment(pointer))


def ready(op, operands, results, **attrs):
    return prepare(aicf.schema_of(op), attrs, operands, results, Gpu(), aicf.default_registry())


def view(memory, d, pointer):
    size = d.dtype.itemsize
    return np.ndarray(d.shape, d.dtype.numpy, memory, pointer, tuple(s * size for s in d.stride))


def execute(made, memory, pointers, scratch):
    """Each launch by its op's reference, on host memory."""
    for start in made.starts:
        at = [*pointers, scratch]
        ins = [
            view(memory, d, at[which] + offset)
            for d, (which, offset) in zip(start.region.operands, start.ins)
        ]
        schema = aicf.schema_of(start.region.kind)
        values = schema.call_reference([x.copy() for x in ins], start.region.attrs)
        for d, (which, offset), value in zip(start.region.results, start.outs, values):
            view(memory, d, at[which] + offset)[...] = value


@pytest.mark.spec("B1", "B12")
def test_tensors_whose_strides_no_kernel_takes_are_staged(recording):
    """A product of a strided matrix into another: in and out through dense copies."""
    a, b, d = desc((6, 5), (16, 2)), desc((5, 4)), desc((6, 4), (8, 2))
    made = ready("gemm", [a, b], [d])
    assert isinstance(made.selection, StagedSelection)
    assert [s.region.signature for s in made.starts] == ["copy", "gemm", "copy"]
    text = str(made.selection)
    assert "a f32[6x5] strides (16, 2) in a dense copy" in text
    assert "cuda.gemm_fma.v1[128x128]: result 0 is f32[6x4] strides (8, 2), needs row-major" in text
    assert made.selection.to_json()["staged"]
    memory, pointers = np.zeros(SIZE, np.uint8), [4096, 8192, 16384]
    rng = np.random.default_rng(2)
    view(memory, a, 4096)[...] = rng.normal(size=(6, 5))
    view(memory, b, 8192)[...] = rng.normal(size=(5, 4))
    want = view(memory, a, 4096).astype(np.float64) @ view(memory, b, 8192)
    execute(made, memory, pointers, 65536)
    np.testing.assert_allclose(view(memory, d, 16384), want, rtol=1e-5, atol=1e-6)
    ends = [
        offset + d.nbytes
        for s in made.starts
        for d, (which, offset) in zip(s.region.results, s.outs)
        if which == 3
    ]
    assert max(ends) <= made.scratch and all(end % 4 == 0 for end in ends)


@pytest.mark.spec("B10")
def test_a_workspace_lies_in_scratch_of_its_own(recording):
    made = ready("reduce_sum", [desc((2, 100000))], [desc((2,))], axes=(1,))
    assert [s.work for s in made.starts] == [(2, 0)] * 2 and made.scratch % 256 == 0 and made.scratch > 0
    plain = ready("relu", [desc((100,))], [desc((100,))])
    assert plain.scratch == 0 and not isinstance(plain.selection, StagedSelection)


@pytest.mark.spec("B10", "B13")
def test_scratch_comes_and_goes_in_the_order_of_the_stream(recording, monkeypatch):
    """By the driver's own calls, which a capture takes as nodes; it is given back when a launch fails, too."""
    made = ready("reduce_sum", [desc((2, 100000))], [desc((2,))], axes=(1,))
    made.starts = (prepared.KernelStart("kernel", "config", [0, 0], ((0, 0, 0), (1, 2, 8))),)
    log = []

    def launch(stream, config, kernel, *args):
        log.append((stream, *args))
        if args[0] < 0:
            raise RuntimeError("no launch")

    monkeypatch.setattr(prepared, "_launcher", lambda: launch)
    monkeypatch.setattr(streams, "stream_object", lambda ordinal, handle: handle)
    monkeypatch.setattr(streams, "enter", lambda ordinal: None)
    monkeypatch.setattr(streams, "allocate", lambda handle, nbytes: log.append((handle, nbytes)) or 4096)
    monkeypatch.setattr(streams, "free", lambda handle, pointer: log.append((handle, "free", pointer)))
    made.run([256, 512], 7)
    assert log == [(7, made.scratch), (7, 256, 4104), (7, "free", 4096)]
    with pytest.raises(RuntimeError, match="no launch"):
        made.run([-1, 512], 7)
    assert log[-1] == (7, "free", 4096)


def test_an_operand_that_is_left_out_shifts_no_pointer(recording):
    a, b, bias, d = desc((4, 8)), desc((8, 4)), desc((4,)), desc((4, 4))
    made = ready("gemm", [a, b, None, bias], [d])
    (start,) = made.starts
    assert start.ins == [(0, 0), (1, 0), (3, 0)] and start.outs == [(4, 0)]


def test_nothing_is_launched_for_nothing(recording):
    assert not ready("relu", [desc((0, 3))], [desc((0, 3))]).starts
    assert len(ready("reduce_sum", [desc((0, 3))], [desc((3,))], axes=(0,)).starts) == 1


@pytest.mark.spec("B3", "B8", "B12")
@pytest.mark.parametrize(
    "pointer, shape, stride, chosen, why",
    [
        (256, (1 << 22,), None, "elementwise_vector", None),
        (260, (1 << 22,), None, "elementwise_flat", "operand 0 is aligned to 4 bytes, needs 16"),
        (264, ((1 << 22) + 1,), None, "elementwise_flat", "operand 0 is aligned to 8 bytes, needs 16"),
        (256, ((1 << 22) + 1,), None, "elementwise_vector", None),
        (
            256,
            (2048, 2048),
            (4096, 1),
            "elementwise_rows",
            "operand 0 has strides (4096, 1) for shape (2048, 2048)",
        ),
        (
            256,
            (2048, 2048),
            (1, 2048),
            "elementwise_transposed",
            "operand 0 has strides (1, 2048) for shape (2048, 2048)",
        ),
        (
            256,
            (2048, 512),
            (3, 6144),
            "elementwise_strided",
            "operand 0 has strides (3, 6144) for shape (2048, 512)",
        ),
        (258, (0,), None, "elementwise_flat", None),
    ],
)
def test_layout_decides_and_the_reason_is_told(recording, pointer, shape, stride, chosen, why):
    made = ready("relu", [desc(shape, stride, pointer=pointer)], [desc(shape)])
    if 0 not in shape:
        assert made.selection.kernel_id == f"cuda.{chosen}.v1"
    reasons = " ".join(r.reject.reason for r in made.selection.rejected)
    assert why is None or why in reasons


# --- overlaps ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(30))
def test_sharing_is_exact(seed):
    """Against every byte, for random strides and distances."""
    rng = np.random.default_rng(seed)

    def some():
        shape = tuple(int(d) for d in rng.integers(0, 4, rng.integers(1, 4)))
        return desc(shape, tuple(int(s) for s in rng.integers(-6, 7, len(shape))))

    def bytes_of(d, pointer):
        at = {pointer}
        for size, step in zip(d.shape, d.stride):
            at = {a + 4 * k * step for a in at for k in range(size)}
        return {a + i for a in at for i in range(4)}

    a, b, distance = some(), some(), int(rng.integers(-60, 60))
    both = bytes_of(a, distance) & bytes_of(b, 0)
    assert overlap.share(a, b, distance) == bool(both)
    low, high = overlap.distances(a, b)
    assert not both or low < distance < high
    own = [distance for d in (a,) for distance in sorted(bytes_of(d, 0))]
    if len(own) < 4 * a.numel:
        assert overlap.overlaps_itself(a)
