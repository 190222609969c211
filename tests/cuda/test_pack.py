"""Copies to rows of whole 16 bytes, as LLVM on the host: every way of copying, at every misalignment; and their machine code."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
import pytest
from kernel_cases import desc
from machines.on_host import OnHost
from wgmma_cases import H200

from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.compile import signature_of
from aicf.cuda_kernels.gemm.operands import pack
from aicf.ops.schema import schema_of
from aicf.registry.variant import Launch
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, bf16, f16, f32

F8 = DType.f8e4m3


def region_of(*tensors: TensorDesc) -> RegionSpec:
    """Any that has these operands: a launch asks it for their types."""
    schema = schema_of("copy")
    return RegionSpec.single(schema.kind, schema.pack({}), list(tensors), [tensors[0]])


KNOWN: dict[Any, OnHost] = {}


def on_host(launch: Launch, region: RegionSpec) -> OnHost:
    """Compiled once for all sizes."""
    key = launch.body, signature_of(launch, region)
    if key not in KNOWN:
        KNOWN[key] = OnHost(launch, region)
    KNOWN[key].launch = launch
    return KNOWN[key]


def copied(copies, shifts, seed=0):
    """What the launch writes, as arrays of the targets' shapes; and what should be there. The sources begin `shifts` elements
    behind a multiple of 16 bytes, and are all NaN around."""
    rng, ins, want = np.random.default_rng(seed), [], []
    for c, shift in zip(copies, shifts):
        t, size = c.source, c.source.dtype.itemsize
        raw = np.full(c.extent + 64, 0xFF, np.uint8)
        begin = -raw.ctypes.data % 16 + shift * size
        bits = f"u{size}"
        memory = raw[begin : begin + c.extent].view(bits)
        memory[:] = rng.integers(0, 2 ** (8 * size) - 1, memory.size, endpoint=True, dtype=bits)
        ins.append(memory)
        want.append(np.lib.stride_tricks.as_strided(memory, t.shape, [s * size for s in t.stride]))
    places = np.cumsum([0, *(c.nbytes + 256 for c in copies)])
    workspace = np.full(places[-1] + 16, 0xAB, np.uint8)
    workspace = workspace[-workspace.ctypes.data % 16 :]
    launch = pack.launch(copies, [int(p) for p in places[:-1]])
    on_host(launch, region_of(*(c.source for c in copies)))(ins, [], workspace)
    made = []
    for c, at in zip(copies, places):
        t, size = c.target, c.target.dtype.itemsize
        there = workspace[at : at + c.nbytes].view(f"u{size}")
        made.append(np.lib.stride_tricks.as_strided(there, t.shape, [s * size for s in t.stride]))
        assert (workspace[at + c.nbytes : at + c.nbytes + 256] == 0xAB).all(), "written behind its end"
    return made, want


def check(*tensors_and_rows, shifts=(0, 0)):
    copies = [pack.copy_of(i, t, row) for i, (t, row) in enumerate(tensors_and_rows)]
    made, want = copied(copies, shifts)
    for c, got, expected in zip(copies, made, want):
        np.testing.assert_array_equal(got, expected, err_msg=str(c))
        assert c.pitch % 16 == 0 and c.pitch >= c.source.shape[c.row] * c.source.dtype.itemsize


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("dtype", [F8, bf16, f32], ids=str)
def test_rows_at_every_place(dtype):
    """Units that are aligned where they come from, and 1 to 15 bytes off, at the ends of the tensor too."""
    size = dtype.itemsize
    for shift in range(0, 16 // size, 3):
        check((desc((5, 77), dtype, (81, 1), size), 1), shifts=(shift,))
    check(
        (desc((3, 4, 40), dtype, (401, 43, 1), size), 2),
        (desc((64, 37), dtype, (1, 67), size), 0),
        shifts=(1, 2),
    )


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("t, row, how", [
    (desc((70, 50), f16, (1, 71)), 1, "across"),
    (desc((2, 70, 130), F8, (20000, 1, 71)), 2, "across"),
    (desc((70, 50), f32, (1, 71)), 1, "across"),
    (desc((70, 50), f16, (101, 2)), 1, "along"),  # every second column
    (desc((70, 50), f16, (3, 211)), 1, "across"),
    (desc((70, 50), f32, (0, 3)), 1, "along"),  # one row for all
    (desc((2, 3), f16, (3, 1)), 1, "along"),  # too small to have 16 aligned bytes
    (desc((3, 2, 5, 33), f16, (33, 1000, 200, 1)), 3, "rows"),  # heads
    (desc((3, 2, 5, 33), f16, (0, 1000, 200, 1)), 3, "rows"),  # shared by all of an axis
    (desc((1, 33), f16, (7, 1)), 1, "rows"),
    (desc((33, 1), f16, (1, 5)), 0, "rows"),
    (desc((4, 33), f16, (0, 1)), 1, "rows"),
    (desc((6, 33), f16, (5, 1)), 1, "rows"),  # rows that overlap
])  # fmt: skip
def test_any_strides(t, row, how):
    assert pack.copy_of(0, t, row).how == how
    check((t, row), shifts=(1,))


@pytest.mark.sample(1, pool="on the host")
def test_two_at_once():
    """A grid that divides itself, whichever ways the two are copied in."""
    ways = (desc((40, 41), f16), 1), (desc((70, 50), f16, (1, 71)), 1), (desc((40, 33), f32, (66, 2)), 1)
    for i, first in enumerate(ways):
        check(first, ways[i - 1])


def test_how_rows_lie():
    """Whole lines of the cache where that takes little, whole units elsewhere; what a batch shares is copied once."""
    assert pack.padded(desc((4097, 4095), f16), 1).stride == (4096, 1)
    assert pack.padded(desc((4095, 4097), f16), 1).stride == (4160, 1)
    assert pack.padded(desc((4095, 65), f16), 1).stride == (72, 1)
    assert pack.padded(desc((4095, 65), f16), 0).stride == (1, 4096)
    assert pack.padded(desc((3, 1, 7, 10, 20), f16, (0, 9, 200, 20, 1)), 4).stride == (0, 0, 240, 24, 1)
    assert pack.fastest(desc((40, 50), f16, (1, 41))) == 0
    assert pack.fastest(desc((1, 50), f16, (1, 2))) == 1
    assert pack.fastest(desc((40, 50), f16, (0, 2))) == 1


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("shift", [0, 1, 7])
def test_nothing_outside_is_read(shift):
    """Between pages that can't be: by a process of its own, which would end there."""
    t = desc((3, 676), f16, (677, 1), 2)
    copy = pack.copy_of(0, t, 1)
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 3 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None)
    for guard in (start, start + 2 * page):
        assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
    run = on_host(pack.launch([copy], [0]), region_of(t))
    workspace = np.zeros(copy.nbytes + 16, np.uint8)[: copy.nbytes + 16]
    workspace = workspace[-workspace.ctypes.data % 16 :]
    middle = np.frombuffer(area, np.uint8)[page : 2 * page]
    assert page - copy.extent >= 2 * shift
    for begin in (2 * shift, page - copy.extent - 2 * shift):
        ins = [middle[begin : begin + copy.extent]]
        child = os.fork()
        if child == 0:
            run(ins, [], workspace)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


WAYS = [
    [(desc((4097, 4095), f16, alignment=2), 1)],
    [(desc((4097, 4095), f16, alignment=2), 1), (desc((4095, 4096), f16, (1, 4095), 2), 1)],
    [(desc((4, 3, 70, 50), f32, (5, 1, 7000, 100)), 3), (desc((4, 90, 70), F8, (9000, 1, 101)), 2)],
]


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.parametrize("tensors", WAYS)
def test_compiles_without_spills(tensors):
    copies = [pack.copy_of(i, t, row) for i, (t, row) in enumerate(tensors)]
    launch = pack.launch(copies, [0] * len(copies))
    region = region_of(*(t for t, _ in tensors))
    made = engine.compile_launch(launch, region, H200.target)
    assert (made.spill_bytes, made.stack_bytes) == (0, 0) and 0 < made.registers <= 64, made.log
    ptx = engine.ptx_of(launch, region, H200.target)
    assert ptx.count("ld.global.v4") == 8 * sum(c.how == "rows" for c in copies), "two units for each of four"


@pytest.mark.spec("B8")
def test_a_copy_costs_its_bytes():
    """33 MB of halves read and written at 80 % of the bandwidth; one by one, more."""
    rows, turned = (pack.copy_of(0, desc((4097, 4095), f16), row) for row in (1, 0))
    one, both = pack.cost([rows], H200).us, pack.cost([rows, rows], H200).us
    assert 15 < one < 21 and 1.8 < both / one < 2
    assert pack.cost([turned], H200).us > one
