"""PTX intrinsics: that each assembles to its instruction, and what it does: on a model of the machine, and on a GPU."""

from __future__ import annotations

import inspect
import itertools
import json
import re
from typing import Any

import numpy as np
import pytest
from kernel_cases import desc
from machines.hopper_bodies import Tensor
from ptx_kernels import moved, moved_bytes, set_aside, shared_boxes
from ptx_support import PLACES, Instructions, assembles, code, computer, groups, regions_of
from test_gpu_kernels import gpu, opened  # noqa: F401  (fixtures)
from test_ptx_memory import INSTRUCTIONS as OTHERS

import aicf.cuda_kernels.ptx as ptx
from aicf.cuda_kernels.dsl import int32, uint32
from aicf.registry.variant import In, Out, TensorMap
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32, u8

HALVES = f16, bf16
MAJORS = list(itertools.product((False, True), repeat=2))


# --- one by one -------------------------------------------------------------------------------------------------------

INSTRUCTIONS: Instructions = {
    "mbarrier.init.shared::cta.b64": (ptx.barrier_init(), lambda f: lambda a, m, x: f(a, uint32(3))),
    "fence.mbarrier_init.release.cluster": (ptx.publish_barriers(), lambda f: lambda a, m, x: f()),
    "mbarrier.arrive.expect_tx.shared::cta.b64": (ptx.expect(), lambda f: lambda a, m, x: f(a, uint32(64))),
    "mbarrier.arrive.shared::cta.b64": (ptx.arrive(), lambda f: lambda a, m, x: f(a)),
    "mbarrier.arrive.shared::cluster.b64": (ptx.arrive_remote(), lambda f: lambda a, m, x: f(a)),
    "mapa.shared::cluster.u32": (ptx.in_block(), lambda f: lambda a, m, x: int32(f(a, uint32(1)))),
    "mbarrier.try_wait.parity.shared::cta.b64": (ptx.wait_phase(), lambda f: lambda a, m, x: f(a, uint32(1))),
    "bar.sync 3, 128": (ptx.sync_threads(3, 128), lambda f: lambda a, m, x: f()),
    "bar.arrive 4, 256": (ptx.arrive_threads(4, 256), lambda f: lambda a, m, x: f()),
    "bar.sync %r": (ptx.sync_at(128), lambda f: lambda a, m, x: f(a)),
    "bar.arrive %r": (ptx.arrive_at(256), lambda f: lambda a, m, x: f(a)),
    "mov.u32": (ptx.read_thread(), lambda f: lambda a, m, x: int32(f())),
    "%cluster_ctarank": (ptx.cluster_rank(), lambda f: lambda a, m, x: int32(f())),
    "barrier.cluster.arrive.release.aligned": (ptx.cluster_arrive(), lambda f: lambda a, m, x: f()),
    "barrier.cluster.wait.acquire.aligned": (ptx.cluster_wait(), lambda f: lambda a, m, x: f()),
    "prefetch.tensormap": (ptx.prefetch_map(), lambda f: lambda a, m, x: f(m)),
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [": (
        ptx.load_box(), lambda f: lambda a, m, x: f(a, m, a, x, x)),
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster": (
        ptx.multicast_box(2), lambda f: lambda a, m, x: f(a, m, a, x, x)),
    "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group": (ptx.store_box(), lambda f: lambda a, m, x: f(m, a, x, x)),
    "cp.async.bulk.tensor.1d.shared::cluster.global.tile": (
        ptx.load_box(1), lambda f: lambda a, m, x: f(a, m, a, x)),
    "cp.async.bulk.tensor.4d.shared::cluster.global.tile": (
        ptx.load_box(4), lambda f: lambda a, m, x: f(a, m, a, x, x, x, x)),
    "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster": (
        ptx.multicast_box(2, 3), lambda f: lambda a, m, x: f(a, m, a, x, x, x)),
    "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group": (
        ptx.store_box(5), lambda f: lambda a, m, x: f(m, a, x, x, x, x, x)),
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes": (
        ptx.load_windows(2), lambda f: lambda a, m, x: f(a, m, a, x, x, x, x, x, x)),
    "cp.async.bulk.prefetch.tensor.3d.L2.global.tile": (ptx.prefetch_box(3), lambda f: lambda a, m, x: f(m, x, x, x)),
    "cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.bulk_group": (
        ptx.add_box(3), lambda f: lambda a, m, x: f(m, a, x, x, x)),
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes": (
        ptx.load_bytes(), lambda f: lambda a, m, x: f(a, m, uint32(64), a)),
    "cp.async.bulk.global.shared::cta.bulk_group": (ptx.store_bytes(), lambda f: lambda a, m, x: f(m, a, uint32(64))),
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32": (
        ptx.add_bytes(), lambda f: lambda a, m, x: f(m, a, uint32(64))),
    "cp.async.bulk.commit_group": (ptx.commit_stores(), lambda f: lambda a, m, x: f()),
    "cp.async.bulk.wait_group.read 1": (ptx.wait_stores_read(1), lambda f: lambda a, m, x: f()),
    "cp.async.bulk.wait_group 0": (ptx.wait_stores(), lambda f: lambda a, m, x: f()),
    "fence.proxy.async.shared::cta": (ptx.fence_async(), lambda f: lambda a, m, x: f()),
    "wgmma.fence.sync.aligned": (ptx.fence_products(), lambda f: lambda a, m, x: f()),
    "wgmma.commit_group.sync.aligned": (ptx.commit_products(), lambda f: lambda a, m, x: f()),
    "wgmma.wait_group.sync.aligned 1": (ptx.wait_products(1), lambda f: lambda a, m, x: f()),
    "setmaxnreg.dec.sync.aligned.u32 40": (ptx.setmaxnreg_dec(40), lambda f: lambda a, m, x: f()),
    "setmaxnreg.inc.sync.aligned.u32 232": (ptx.setmaxnreg_inc(232), lambda f: lambda a, m, x: f()),
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16": (ptx.load_matrices(), lambda f: lambda a, m, x: int32(f(a)[0])),
    "stmatrix.sync.aligned.m8n8.x4.shared.b16": (ptx.store_matrices(), lambda f: lambda a, m, x: f(a, a, a, a, a)),
    "ex2.approx.ftz.f32": (ptx.tanh_for_halves(), lambda f: lambda a, m, x: int32(f(x))),
    "rcp.approx.ftz.f32": (ptx.erfc_for_halves(), lambda f: lambda a, m, x: int32(f(x))),
    "mov.b32": (ptx.opaque(), lambda f: lambda a, m, x: f(x)),
    "cvt.rn.f16x2.f32": (ptx.pack_halves(f16), lambda f: lambda a, m, x: int32(f(x, x))),
    "cvt.rn.bf16x2.f32": (ptx.pack_halves(bf16), lambda f: lambda a, m, x: int32(f(x, x))),
}  # fmt: skip
VALUES = {
    "ex2.approx.ftz.f32",
    "rcp.approx.ftz.f32",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
    "mov.b32",
    "mapa.shared::cluster.u32",
    "%cluster_ctarank",
    "mov.u32",
    "cvt.rn.f16x2.f32",
    "cvt.rn.bf16x2.f32",
}


def test_kernels_that_move_things_compile():
    """What is run below, for a GPU."""
    for dtype, shape, box, at, to, swizzle in BOXES[4::3]:
        maps = [dense(tensor, dtype, shape, box, swizzle) for tensor in (In(0), Out(0))]
        kind = i32 if dtype is u8 else dtype
        code(moved(*maps, at, to, adds=1), regions_of([desc((64,), kind)], desc((64,), kind)))
    code(moved_bytes(64), regions_of([desc((64,), i32)], desc((64,), i32)))


@pytest.mark.spec("F2")
@pytest.mark.parametrize("group", groups(INSTRUCTIONS))
def test_assembles_to_its_instruction(group):
    assembles(INSTRUCTIONS, VALUES, group)


def test_every_intrinsic_is_assembled_somewhere():
    """Those that are in no table are in kernels of their own, in the files of tests beside this one."""
    elsewhere = {"add_half2", "approximate", "larger", "copy_async", "load_units", "load_unit_words", "store_unit_words", "commit_copies", "wait_copies",
                 "shared_address", "read_fragments", "multiply_steps", "multiply_fragments", "multiply_words", "describe", "multiply_k_tiles",
                 "finish_products", "global_address", "line_offset", "scatter_sums", "optimization_barrier", "load_front", "multiply_quad", "transpose_runs", "load_register_operand",
                 "read_operand", "multiply_words_steps", "multiply_codes", "load_shared_words", "store_shared_words", "store_shared_number"}  # fmt: skip
    here = {intrinsic.factory.__name__ for intrinsic, _ in [*INSTRUCTIONS.values(), *OTHERS.values()]}
    assert here | elsewhere == set(ptx.__all__) - {"Place", "Places", "Words", "assemble", "instruction"}


def test_every_intrinsic_says_what_it_is():
    """The instruction, the architecture, and where the manual has it; of a package, or of a module of it at once."""
    for name in set(ptx.__all__) - {"Place", "Places", "Words", "assemble", "instruction"}:
        factory = inspect.unwrap(getattr(ptx, name))
        own, module = factory.__doc__, inspect.getmodule(factory).__doc__
        assert re.search(r"`%?[a-z]\w*[._][\w.:%]+`|No instruction", own), f"{name} names no instruction"
        assert re.search(r"PTX\s+ISA,\s+chapter", module), name
        assert re.search(r"sm_\d\d", own + module) or "No instruction" in own, f"{name} names no architecture"


# --- what they do -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=PLACES)
def compute(request):
    return computer(request)


def boxed(x: np.ndarray, box: tuple[int, ...], at: tuple[int, ...]) -> np.ndarray:
    """The box at a corner, contiguous dimension last; zeros outside. `box` and `at` have it first."""
    places = np.indices(box[::-1]) + np.reshape(at[::-1], (-1, *[1] * len(box)))
    extents = np.reshape(x.shape, (-1, *[1] * len(box)))
    inside = ((places >= 0) & (places < extents)).all(axis=0)
    return np.where(inside, x[tuple(np.clip(places, 0, extents - 1))], 0)


def dense(
    source: In | Out, dtype: Any, shape: tuple[int, ...], box: tuple[int, ...], swizzle: int
) -> TensorMap:
    itemsize = TensorMap(source, dtype, (1,), (), (16,), 0).itemsize
    pitches = np.cumprod(shape[:0:-1]) * itemsize
    return TensorMap(source, dtype, shape[::-1], tuple(map(int, pitches)), box, swizzle)


BOXES = [
    (f16, (100, 120), (64, 64), (0, 0), (0, 0), 128),
    (bf16, (100, 120), (64, 64), (64, 8), (0, 40), 128),
    (f16, (100, 120), (64, 64), (-8, -3), (56, 70), 128),
    (f16, (100, 120), (64, 64), (304, 0), (0, 0), 128),
    (u8, (1024,), (256,), (-16,), (896,), 0),
    (u8, (40, 256), (128, 32), (-32, 20), (160, 20), 128),
    (f32, (40, 32), (16, 32), (8, -8), (24, 20), 64),
    (f32, (5, 16, 16), (8, 4, 3), (4, -2, 4), (12, 13, 3), 32),
    (i32, (5, 16, 16), (32, 4, 3), (4, -2, 1), (0, 0, 0), 128),
    (f16, (3, 5, 4, 64), (64, 2, 2, 2), (0, 3, 4, 2), (0, 0, 0, 0), 128),
    (bf16, (2, 3, 4, 5, 16), (16, 2, 2, 2, 2), (8, 1, 1, -1, 1), (0, 4, 0, 0, 1), 32),
    (f16, (100, 120), (64, 64), (0, 0), (128, 100), 128),
]


@pytest.mark.parametrize("dtype, shape, box, at, to, swizzle", BOXES, ids=str)
def test_a_box_is_brought_and_stored(compute, dtype, shape, box, at, to, swizzle):
    """Of one to five dimensions: zeros come from outside, nothing goes there. Stores begin at no negative coordinate."""
    kind = i32 if dtype is u8 else dtype
    itemsize = dtype.itemsize
    x = np.random.default_rng().integers(1, 99, shape).astype(dtype.numpy)
    maps = [dense(tensor, dtype, shape, box, swizzle) for tensor in (In(0), Out(0))]
    words = x.size * itemsize // kind.itemsize
    r = regions_of([desc((words,), kind)], desc((words,), kind))
    got = compute(moved(*maps, at, to), r, [x]).view(x.dtype).reshape(shape)
    want = np.full(got.nbytes, 0xFF, np.uint8).view(x.dtype).reshape(shape)
    target = tuple(slice(c, c + e) for c, e in zip(to[::-1], box[::-1]))
    want[target] = boxed(x, box, at)[tuple(slice(len(range(n)[t])) for n, t in zip(shape, target))]
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("corner", [(4, 0), (-8, 0), (0, -1)], ids=str)
def test_the_model_refuses_illegal_instructions(corner):
    """As an H200 does: of all that are no multiple of 16 bytes, of stores those that are negative. Its context is dead then."""
    tensor, values = Tensor(dense(Out(0), f16, (8, 64), (64, 8), 128), np.zeros(512)), np.zeros((8, 64))
    uses = [lambda: tensor.put(corner, values), lambda: tensor.add(corner, values)]
    if min(corner) >= 0:
        uses += [lambda: tensor.box(corner), lambda: tensor.check(corner)]
    for use in uses:
        with pytest.raises(AssertionError, match="an illegal instruction"):
            use()


def test_tf32_is_rounded_as_it_is_brought(compute):
    """To nearest even, up into the next power of two as well; what stores know is f32."""
    x = np.random.default_rng().normal(size=(8, 32)).astype(np.float32)
    x[0, :8] = np.array([0x3F801000, 0x3F803000, 0x3F801001, 0x3FFFF000, 0x7F800000, 0xFF800000, 1, 0x80000000],
                        np.uint32).view(np.float32)  # fmt: skip
    maps = dense(In(0), "tf32", x.shape, (32, 8), 128), dense(Out(0), f32, x.shape, (32, 8), 128)
    got = compute(moved(*maps, (0, 0), (0, 0)), regions_of([desc(x.shape, f32)], desc(x.shape, f32)), [x])
    want = [0x3F800000, 0x3F804000, 0x3F802000, 0x40000000, 0x7F800000, 0xFF800000, 0, 0x80000000]
    np.testing.assert_array_equal(got.view(np.uint32)[0, :8], np.array(want, np.uint32))
    assert not (got.view(np.uint32) & np.uint32(0x1FFF)).any()
    np.testing.assert_allclose(got[1:], x[1:], rtol=2.0**-11)


@pytest.mark.parametrize("dtype", [f32, f16, bf16, i32], ids=str)
def test_a_box_is_added(compute, dtype):
    """Twice, to what was stored: where the tensor is, and nowhere else."""
    shape, box = (3, 9, 32), (16, 8, 2)
    x = np.random.default_rng().integers(-30, 30, shape).astype(dtype.numpy)
    maps = [dense(tensor, dtype, shape, box, 16 * dtype.itemsize) for tensor in (In(0), Out(0))]
    r = regions_of([desc(shape, dtype)], desc(shape, dtype))
    got = compute(moved(*maps, (8, 2, 0), (16, 1, 1), adds=2), r, [x])
    want = np.full(got.nbytes, 0xFF, np.uint8).view(got.dtype).reshape(shape)
    want[1:, 1:, 16:] = 3 * boxed(x, box, (8, 2, 0))
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_bytes_are_brought_and_stored(compute):
    x = np.random.default_rng().integers(0, 99, 1000).astype(np.int32)
    got = compute(moved_bytes(3984), regions_of([desc((1000,), i32)], desc((1000,), i32)), [x])
    np.testing.assert_array_equal(got[:996], x[:996])
    assert (got[996:] == -1).all()


def test_blocks_of_a_cluster_share_boxes_and_tell_each_other(compute):
    x = np.random.default_rng().normal(size=(128, 64)).astype(np.float16)
    got = compute(shared_boxes(f16, (128, 64)), regions_of([desc((128, 64), f16)], desc((256, 64), f16)), [x])
    np.testing.assert_array_equal(got, np.concatenate([x, x]))


@pytest.mark.parametrize("count", range(4))
def test_regions_of_launches_are_written_and_read_and_have_a_key(count):
    """A compiled kernel is stored under the key of its region: on a GPU each of these regions is asked for it."""
    r = regions_of([desc((7,), f32)] * count, desc((256,), i32))
    again = RegionSpec.from_json(json.loads(json.dumps(r.to_json())))
    assert again == r and again.key == r.key and len(r.operands) == count and len(r.results) == 1


def test_registers_change_hands(compute):
    got = compute(set_aside(), regions_of([], desc((256,), i32)), [])
    assert set(got[128:]) == set(range(128, 256)) and got[0] == 0
