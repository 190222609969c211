"""Reads under a mask in graphs: what they fuse with, what refuses them, what may not be written over. The oracle is NumPy alone."""

from __future__ import annotations

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import OutOfBoundsError
from aicf.graph.emit.autodiff import gradients
from aicf.registry.checks import unmasked
from aicf.registry.select import Selector

from .chains import model_of
from .forming import DEVICES, formed, lowered, story, weight

X = np.arange(16, dtype=np.float32).reshape(4, 4) / 7 - 1


def run(emit, x=X, device="cpu", **more):
    program = aicf.compile(model_of(emit, x.shape[1], x.shape[0]), device=device, **more)
    return program.run({"x": x})["output"].numpy()


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", DEVICES)
def test_maps_around_a_pad_are_one_kernel_with_it(device):
    def emit(ctx, x):
        return ctx.relu(ctx.pad(ctx.tanh(x), value=-1.0, low=(1, 0), high=(0, 2)))

    assert story(formed(emit, device=device)) == [("tanh + pad + relu", "end")]


@pytest.mark.spec("A9", "A12")
@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_whose_loads_have_no_mask_is_no_candidate(device):
    """A product with a map behind it goes on to its last op that its kernel can read."""

    def emit(ctx, x):
        return ctx.add(ctx.gemm(x, weight(ctx)), ctx.pad(x, low=(0, 1), high=(0, -1)))

    regions = formed(emit, device=device)
    assert not any("gemm" in r.spec.signature and "pad" in r.spec.signature for r in regions)
    selector = Selector(aicf.default_registry(), preset(device))
    pad = next(r for r in regions if "pad" in r.spec.signature)
    why = {
        v.id: v.supported(pad.spec.only(pad.spec.ops[0]), selector.device) for v in selector.index.variants
    }
    refused = [r for id, r in why.items() if r is not None and r.condition == "mask"]
    assert refused and "pad reads under a mask, or by index" in refused[0].reason


def test_only_kernels_that_say_so_take_what_is_masked():
    """Of all devices: what `masked` does not say is refused before any of its own checks."""
    for device in DEVICES:
        selector = Selector(aicf.default_registry(), preset(device))
        (region,) = formed(lambda ctx, x: ctx.pad(x, low=(1, 1)), device=device)
        for v in selector.index.variants:
            if not v.masked:
                assert v._lives_with(region.spec) == unmasked(region.spec) is not None
        live = selector.index.reading(region.spec)
        assert {v.masked for v in selector.index.members(live)} == {True}


@on_each_device
@pytest.mark.spec("C6")
@pytest.mark.parametrize("numerics", ["fused", "strict"])
def test_what_is_read_under_a_mask_is_not_written_over(numerics, device):
    """A pad that shifts has its operand's shape, and reads it elsewhere than it is written."""

    def emit(ctx, x):
        y = ctx.gemm(x, x)  # its own region: what follows reads it from storage
        return ctx.gemm(ctx.add(ctx.pad(y, low=(1, 0), high=(-1, 0)), y), x)

    y = X @ X
    expected = (np.vstack([np.zeros((1, 4)), y[:-1]]) + y) @ X
    np.testing.assert_allclose(run(emit, device=device, numerics=numerics), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.spec("D13")
@on_each_device
def test_the_gradient_of_a_pad_is_zero_where_it_cut_and_skips_what_it_put_between(device):
    amounts = {"low": (2, -1), "high": (-1, 3), "interior": (1, 0)}

    def emit(ctx, x):
        y = ctx.pad(ctx.scale(x, factor=2.0), value=0.5, **amounts)
        (dx,) = gradients(ctx, ctx.reduce_sum(ctx.square(y), axes=()), [x])
        return dx

    want = np.zeros_like(X)
    want[:3, 1:] = 8 * X[:3, 1:]  # row 3 would be at place 2 + 3 * 2 of 8
    np.testing.assert_allclose(run(emit, device=device), want, rtol=1e-6)


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", DEVICES)
def test_a_concatenate_is_one_kernel_with_maps_around_it(device):
    """As a rotation of halves is written; and of as many operands as there may be."""

    def emit(ctx, x):
        low, high = (ctx.slice(x, start=(0, n), limit=(3, n + 2)) for n in (0, 2))
        return ctx.mul(ctx.concatenate(ctx.neg(high), low, axis=-1), x)

    assert [r.ended.trigger for r in formed(emit, device=device)] == ["end"]
    (many,) = formed(
        lambda ctx, x: ctx.concatenate(
            *[x] * 2, *[ctx.param(f"w{n}", (n, 4), nn.init.ones) for n in range(24)]
        ),
        device=device,
    )
    assert len(many.spec.operands) == 25


@pytest.mark.spec("D13")
@on_each_device
def test_a_concatenate_and_its_gradient(device):
    def emit(ctx, x):
        y = ctx.concatenate(ctx.neg(x), x, ctx.square(x), axis=1)
        weights = ctx.param("w", (4, 12), lambda *_: np.arange(48, dtype=np.float32).reshape(4, 12))
        (dx,) = gradients(ctx, ctx.reduce_sum(ctx.mul(y, weights), axes=()), [x])
        return ctx.concatenate(y, dx, axis=1)

    w = np.arange(48).reshape(4, 12)
    want = np.hstack([-X, X, X * X, w[:, 4:8] - w[:, :4] + 2 * X * w[:, 8:]])
    np.testing.assert_allclose(run(emit, device=device), want, rtol=1e-5, atol=1e-5)


IDS = np.array([[0, 6, 2], [-1, 3, 3]], np.int32)
TABLE = np.arange(28, dtype=np.float32).reshape(7, 4) / 9 - 1


def embedding(ids, **more):
    """A table's rows, scaled, and a position's: ids come as floats, since the model's input is one."""

    def emit(ctx, x):
        table = ctx.param("table", (7, 4), lambda *_: TABLE)
        positions = ctx.param("positions", (ids.shape[-1], 4), lambda *_: TABLE[: ids.shape[-1]] + 0.5)
        tokens = ctx.param("ids", ids.shape, lambda *_: ids, aicf.i32)
        return ctx.add(ctx.scale(ctx.gather(table, tokens), factor=2.0), positions)

    return emit


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", DEVICES)
def test_an_embedding_is_one_kernel(device):
    regions = formed(embedding(IDS), device=device)
    assert [s for s, _ in story(regions) if s != "check_indices"] == ["gather + scale + add"]
    assert "elementwise_" in next(r for r in regions if "gather" in r.spec.signature).kernel_id


@on_each_device
@pytest.mark.spec("A12")
def test_an_embedding_and_its_gradient(device):
    def emit(ctx, x):
        table = ctx.param("table", (7, 4), lambda *_: TABLE)
        tokens = ctx.param("ids", IDS.shape, lambda *_: IDS, aicf.i32)
        loss = ctx.reduce_sum(ctx.square(ctx.gather(table, tokens)), axes=())
        (dtable,) = gradients(ctx, loss, [table])
        return dtable

    want = np.zeros_like(TABLE)
    np.add.at(want, IDS, 2 * TABLE[IDS])
    np.testing.assert_allclose(run(emit, device=device), want, rtol=1e-6)


@on_each_device
@pytest.mark.parametrize("bad", [7, -8, 2**31 - 1, -(2**31)])
def test_an_index_beyond_its_axis_is_named(device, bad):
    ids = IDS.copy()
    ids[1, 1] = bad
    with pytest.raises(OutOfBoundsError) as error:
        run(embedding(ids), device=device)
    assert (
        str(error.value).splitlines()[0]
        == f"gather: index {bad} at [1, 1] is out of range for an axis of size 7 (valid: -7 to 6)."
    )


@on_each_device
@pytest.mark.parametrize("kind", ["gather", "take_along_axis", "scatter_add"])
def test_no_memory_is_read_or_written_at_an_index_that_is_none(device, kind):
    """Called by itself, an op has nobody to tell: there is NaN, or nothing is added."""
    bad = np.array([7, -8, 2**40, -(2**62), 3, -7], np.int64)
    if kind == "scatter_add":
        y = np.full((7, 4), 5, np.float32)
        aicf.op_call(kind, [np.ones((6, 4), np.float32), bad], [y], {"size": 7})
        want = np.zeros((7, 4))
        want[3] = want[0] = 1
    else:
        y, index = np.zeros((6, 4), np.float32), bad if kind == "gather" else np.repeat(bad[:, None], 4, 1)
        aicf.op_call(kind, [TABLE, index], [y], {"axis": 0})
        want = np.full((6, 4), np.nan)
        want[4:] = TABLE[[3, 0]]
    np.testing.assert_array_equal(y, want)


def test_one_check_of_the_same_indices_is_enough():
    def emit(ctx, x):
        tokens = ctx.param("ids", (3,), lambda *_: IDS[0], aicf.i32)
        one = ctx.param("one", (7, 4), lambda *_: TABLE)
        loss = ctx.reduce_sum(ctx.mul(ctx.gather(one, tokens), ctx.gather(x, tokens)), axes=())
        return gradients(ctx, loss, [one])[0]

    kinds = [op.kind.name for op in lowered(emit)[0]]
    assert kinds.count("check_indices") == 2  # x has rows of its own number


# --- indices that count up ----------------------------------------------------------------------------------------------


def table(ctx):
    return ctx.param("table", (6, 4), lambda shape, rng: rng.standard_normal(shape))


def kinds_of(emit):
    return [op.kind for op in model_of(emit, 4, 4).graph.ops]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("count", [1, 4])
def test_a_gather_by_indices_that_count_up_is_a_slice(first, count):
    def emit(ctx, x):
        steps = ctx.iota(shape=(count,), axis=0, dtype=aicf.i32)
        return ctx.gather(table(ctx), ctx.add(steps, first) if first else steps).sum(axis=0) + x

    assert "gather" not in (kinds := kinds_of(emit)) and "check_indices" not in kinds and "slice" in kinds
    rng = np.random.default_rng()
    model, x = model_of(emit, 4, 4), rng.standard_normal((4, 4)).astype(np.float32)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    got = program.run({"x": x, "y": x * 0, "0.table": weight})
    y = weight[first : first + count].sum(0, dtype=np.float64) + x
    wanted = np.zeros((6, 4))
    wanted[first : first + count] = (2 * y / y.size).sum(0)
    np.testing.assert_allclose(got["grad.0.table"].numpy(), wanted, rtol=1e-5, atol=1e-6)
    said = str(aicf.explain_for(model, "h200").verbose())
    assert "slice for gather" in said


def test_a_gather_whose_indices_are_not_all_inside_stays_one_and_tells():
    def emit(ctx, x):
        return ctx.gather(table(ctx), ctx.iota(shape=(7,), axis=0, dtype=aicf.i32)).sum(axis=0) + x

    assert "gather" in kinds_of(emit)
    with pytest.raises(OutOfBoundsError, match="6"):
        aicf.compile(model_of(emit, 4, 4), device="cpu").run({"x": X})["output"].numpy()


@pytest.mark.parametrize(
    "indices",
    [
        lambda ctx: ctx.iota(shape=(2, 3), axis=1, dtype=aicf.i32),
        lambda ctx: ctx.add(ctx.iota(shape=(3,), axis=0, dtype=aicf.i32), ctx.iota(shape=(3,), axis=0, dtype=aicf.i32)),
        lambda ctx: ctx.add(ctx.iota(shape=(3,), axis=0, dtype=aicf.i32), -1),
        lambda ctx: ctx.mul(ctx.iota(shape=(3,), axis=0, dtype=aicf.i32), 2),
    ],
    ids=["two axes", "by two", "from the end", "a product"],
)  # fmt: skip
def test_other_indices_stay_a_gather(indices):
    kinds = kinds_of(lambda ctx, x: ctx.gather(table(ctx), indices(ctx)).sum() + x)
    assert "gather" in kinds and "slice" not in kinds
