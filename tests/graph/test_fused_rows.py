"""Softmax, norms and their gradients with what stands around them: one region, one kernel (A9, A12)."""

from __future__ import annotations

import math

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.graph.compile import compile, explain_for
from aicf.graph.emit.passes import lower
from aicf.graph.fuse import form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.ir import EXTERNAL
from aicf.registry.select import Selector
from aicf.registry.variant import structure
from aicf.rows.row_program import RowProgram, read_rows
from aicf.rows.steps import expanded

from .chains import graph_of, model_of, rows_of
from .dags import exact
from .forming import formed, weight

DEVICES = ["cpu", "h200"]
SHAPE = (3, 4)


def spelled_out(ctx, x):
    e = ctx.exp(ctx.sub(x, ctx.reduce_max(x, axes=(1,), keepdims=True)))
    return ctx.div(e, ctx.reduce_sum(e, axes=(1,), keepdims=True))


def scaled(ctx):
    return weight(ctx, "scale", (4,)), weight(ctx, "bias", (4,))


FORWARD = {
    "softmax": lambda ctx, x: ctx.softmax(x),
    "softmax of columns": lambda ctx, x: ctx.softmax(x, axis=0),
    "log_softmax": lambda ctx, x: ctx.log_softmax(x),
    "logsumexp": lambda ctx, x: ctx.logsumexp(x),
    "layer_norm": lambda ctx, x: ctx.layer_norm(x, *scaled(ctx)),
    "layer_norm without weights": lambda ctx, x: ctx.layer_norm(x),
    "rms_norm": lambda ctx, x: ctx.rms_norm(x, scaled(ctx)[0]),
    "l2_normalize": lambda ctx, x: ctx.l2_normalize(x),
    "spelled out": spelled_out,
}
BACKWARD = {
    "softmax": lambda ctx, dy: ctx.softmax_grad(dy, weight(ctx, "y", SHAPE)),
    "log_softmax": lambda ctx, dy: ctx.log_softmax_grad(dy, weight(ctx, "y", SHAPE)),
    "layer_norm": lambda ctx, dy: ctx.layer_norm_grad(
        dy,
        weight(ctx, "stashed", SHAPE),
        weight(ctx, "mean", (3, 1)),
        weight(ctx, "rstd", (3, 1)),
        scaled(ctx)[0],
    ),
    "l2_normalize": lambda ctx, dy: ctx.l2_normalize_grad(
        dy, weight(ctx, "stashed", SHAPE), weight(ctx, "rnorm", (3, 1))
    ),
    "rms_norm": lambda ctx, dy: ctx.rms_norm_grad(
        dy, weight(ctx, "stashed", SHAPE), weight(ctx, "rstd", (3, 1)), scaled(ctx)[0]
    ),
}
AROUND = {
    "alone": lambda ctx, x, core: core(ctx, x),
    "scale before": lambda ctx, x, core: core(ctx, ctx.scale(x, factor=0.5)),
    "residual before": lambda ctx, x, core: core(ctx, ctx.add(x, weight(ctx, "r", SHAPE))),
    "bias before": lambda ctx, x, core: core(ctx, ctx.bias_add(x, weight(ctx, "b", (4,)))),
    "cast before": lambda ctx, x, core: core(
        ctx, ctx.convert(ctx.convert(x, dtype=aicf.f16), dtype=aicf.f32)
    ),
    "scale after": lambda ctx, x, core: ctx.scale(core(ctx, x), factor=0.5),
    "residual after": lambda ctx, x, core: ctx.add(core(ctx, x), weight(ctx, "r", SHAPE)),
    "bias after": lambda ctx, x, core: ctx.add(core(ctx, x), weight(ctx, "b", (4,))),
    "cast after": lambda ctx, x, core: ctx.convert(core(ctx, x), dtype=aicf.bf16),
    "activation after": lambda ctx, x, core: ctx.gelu(core(ctx, x)),
    "both": lambda ctx, x, core: ctx.add(core(ctx, ctx.scale(x, factor=2.0)), x),
}
CORES = {**FORWARD, **{f"gradient of {name}": core for name, core in BACKWARD.items()}}


@pytest.mark.sample(40, each="device")
@pytest.mark.spec("A9", "A12")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("core", CORES)
def test_one_region_and_one_kernel(core, around, device):
    regions = formed(lambda ctx, x: AROUND[around](ctx, x, CORES[core]), device=device)
    if (core, device) == ("spelled out", "cpu"):  # loops are predicted to gain from a value that is stored
        assert {r.ended.trigger for r in regions[:-1]} <= {"cost"}
        return
    assert [r.spec.signature for r in regions[1:]] == []
    assert structure(regions[0].spec) == "rows"
    assert regions[0].kernel_id.startswith("cuda.rows_" if device == "h200" else "cpu.rows_loop")


def entropy(ctx, x, **attrs):
    return ctx.cross_entropy(x, ctx.state("labels", SHAPE[:1], 1, aicf.i64), **attrs)


def dropped(ctx, x):
    return ctx.dropout(x, ctx.random()[0], rate=0.5, layer=0)


ENTROPIES = {
    "plain": lambda ctx, x: entropy(ctx, x),
    "smoothed": lambda ctx, x: entropy(ctx, x, label_smoothing=0.1, ignore_index=2),
    "of halves": lambda ctx, x: entropy(ctx, ctx.convert(x, dtype=aicf.bf16)),
    "scaled": lambda ctx, x: ctx.scale(entropy(ctx, ctx.scale(x, factor=0.5)), factor=2.0),
    "bias, dropout and residual": lambda ctx, x: entropy(
        ctx, ctx.add(dropped(ctx, ctx.bias_add(x, weight(ctx, "b", (4,)))), weight(ctx, "r", SHAPE))
    ),
    "cast": lambda ctx, x: ctx.convert(entropy(ctx, x), dtype=aicf.bf16),
}


@pytest.mark.spec("A9", "A12", "D13")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ENTROPIES)
def test_cross_entropy_with_what_stands_around_it_is_one_region(form, device):
    spec = preset(device)
    graph = graph_of(ENTROPIES[form], spec.kind, SHAPE)
    found = form_regions(schedule(lower(graph), graph), graph, Selector(aicf.default_registry(), spec))
    (only,) = [r for r in found if r.spec.signature != "check_labels"]
    assert structure(only.spec) == "rows"
    assert only.kernel_id.startswith("cuda.rows_" if device == "h200" else "cpu.rows_loop")


@pytest.mark.spec("A9", "A12", "D13")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [aicf.f32, aicf.bf16], ids=str)
def test_the_gradient_of_cross_entropy_is_one_map_with_what_stands_around_it(dtype, device):
    """With the sums of a bias behind it, one reduction; no statistics are found again."""

    def emit(ctx, x):
        rows = [weight(ctx, n, SHAPE[:1]) for n in ("d", "peak", "rsum")]
        labels = ctx.state("labels", SHAPE[:1], 1, aicf.i64)
        slope = ctx.cross_entropy_grad(ctx.convert(ctx.scale(x, factor=0.5), dtype=dtype), labels, *rows)
        return ctx.scale(ctx.convert(slope, dtype=aicf.f32), factor=0.5)

    (only,) = formed(emit, device=device)
    assert structure(only.spec) == "map" and "elementwise" in only.kernel_id
    (only,) = formed(lambda ctx, x: ctx.reduce_sum(emit(ctx, x), axes=(0,)), device=device)
    assert structure(only.spec) == "map+reduce" and "reduce" in only.kernel_id


@pytest.mark.spec("A9", "A12")
@pytest.mark.parametrize("shape", [(1024, 1024), (8192, 4096)], ids=str)
def test_a_softmax_is_one_region_on_a_gpu_however_it_is_written(shape):
    for emit in (spelled_out, FORWARD["softmax"]):
        graph = graph_of(emit, "cuda", shape)
        (only,) = form_regions(lower(graph), graph, Selector(aicf.default_registry(), preset("h200")))
        assert only.kernel_id in ("cuda.rows_resident.v2", "cuda.rows_cluster.v1")


@pytest.mark.spec("E2")
@pytest.mark.parametrize("kind, weights", [("layer_norm", 2), ("rms_norm", 1)])
def test_a_norm_is_one_value_whose_statistics_are_for_the_gradient(kind, weights):
    seen = []

    def emit(ctx, x):
        seen.append(getattr(ctx, kind)(ctx.exp(x), *scaled(ctx)[:weights]))
        return seen[-1]

    (region,) = formed(emit)
    assert not isinstance(seen[0], tuple) and seen[0].shape == SHAPE
    assert len(region.spec.outputs) == 1  # nobody reads them


@pytest.mark.spec("A12")
@pytest.mark.parametrize("kind, weights", [("layer_norm", 2), ("rms_norm", 1)])
def test_a_norm_over_rows_of_one_element(kind, weights):
    """Its sums are no loops, and so it is read as a map, or as a reduction with maps around it."""
    x = np.array([[3.0], [-0.5], [0.0]], np.float32)

    class Norm(nn.Layer):
        def emit(self, ctx, x):
            given = [ctx.param(n, (1,), lambda shape, rng: np.full(shape, 2.0)) for n in "wb"][:weights]
            return getattr(ctx, kind)(x, *given, eps=0.5)

    made = aicf.compile(nn.Model({"x": aicf.TensorSpec((3, 1))}).add(Norm()), device="cpu").run({"x": x})
    want = np.full((3, 1), 2.0) if kind == "layer_norm" else 2 * x / np.sqrt(x * x + 0.5)
    np.testing.assert_allclose(made["output"].numpy(), want, rtol=1e-6)


class Normed(nn.Layer):
    """A norm of x beside weights of f32, then a product: trained, its gradients are those of all weights."""

    def __init__(self, kind: str, dtype: aicf.DType) -> None:
        self.kind, self.dtype = kind, dtype

    def emit(self, ctx, x):
        given = [ctx.param(n, (6,), nn.init.normal()) for n in "wb"][: 2 if self.kind == "layer_norm" else 1]
        v = ctx.param("v", (6,), nn.init.normal())
        x = ctx.convert(ctx.mul(x, v), dtype=self.dtype)
        return ctx.convert(getattr(ctx, self.kind)(x, *given), dtype=aicf.f32)


@pytest.mark.sample(1)
@pytest.mark.spec("D16")
@pytest.mark.parametrize("dtype", [aicf.f32, aicf.bf16], ids=str)
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_gradients_of_norms_with_f32_weights_over_x_of_any_float(kind, dtype):
    """Against central differences of the loss in float64, of f32; those of halves against them."""
    model = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=5).add(Normed(kind, dtype))
    program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
    rng = np.random.default_rng(5)
    feed = {n: rng.normal(size=(5, 6)).astype(np.float32) for n in "xy"}
    got = {n: t.numpy() for n, t in program.run(feed).items()}
    known = {n: program.get(f"0.{n}").astype(np.float64) for n in ("wbv" if kind == "layer_norm" else "wv")}
    near = {aicf.f32: 1e-4, aicf.bf16: 3e-2}[dtype]

    def loss(p):
        x = feed["x"] * p["v"]
        if kind == "layer_norm":
            h = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
        else:
            h = x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6)
        return np.mean((h * p["w"] + p.get("b", 0) - feed["y"]) ** 2)

    np.testing.assert_allclose(got["loss"], loss(known), rtol=near)
    for name, value in known.items():
        assert got[f"grad.0.{name}"].dtype == np.float32
        for i in range(6):
            step = np.eye(6)[i] * 1e-5
            want = (loss(known | {name: value + step}) - loss(known | {name: value - step})) / 2e-5
            assert got[f"grad.0.{name}"][i] == pytest.approx(want, rel=near, abs=near)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("core", FORWARD)
def test_whole_programs_agree_with_the_references(core):
    x = rows_of(3, 4)
    graph = graph_of(FORWARD[core], shape=x.shape)
    program = compile(model_of(FORWARD[core]), device="cpu")
    known = {
        v.name: program.get(f"0.{v.name}")
        for v in graph.externals(*EXTERNAL)
        if v.name != "x" and not v.constant
    }
    (want,) = exact(graph, known | {"x": x}).values()
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), want, rtol=1e-5, atol=1e-5)


def both_ways(ctx, x):
    return ctx.add(ctx.reduce_sum(x, axes=(1,)), ctx.reduce_sum(x, axes=(0,)))


def one_after_the_other(ctx, x):
    return ctx.reduce_sum(ctx.tanh(ctx.reduce_max(x, axes=(1,))), axes=(0,))


@pytest.mark.parametrize(
    "emit, expected",
    [(both_ways, lambda x: x.sum(1) + x.sum(0)), (one_after_the_other, lambda x: np.tanh(x.max(1)).sum())],
)
def test_rows_and_columns_of_a_square_are_told_apart(emit, expected):
    """Equal sizes are no reason to walk both axes at once, which would be the diagonal."""
    x = rows_of(4, 4)
    program = compile(model_of(emit, rows=4), device="cpu")
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), expected(x), rtol=1e-5)


def stepped_and_read(ctx, x):
    total, step = ctx.state("acc", (4, 4), 2.0), ctx.state("g", (4, 4), 1.0)
    y = ctx.sub(x, ctx.reduce_max(x, axes=(1,), keepdims=True))
    stepped = ctx.add_gradient(total, step)
    ctx.update(total, stepped)
    return ctx.mul(y, stepped)


def read_and_stepped(ctx, x):
    total = ctx.state("acc", (4, 4), 2.0)
    y = ctx.sub(x, ctx.reduce_max(x, axes=(1,), keepdims=True))
    read = ctx.mul(y, total)
    ctx.update(total, ctx.add_gradient(total, y))
    return read


@pytest.mark.spec("A3")
@pytest.mark.parametrize("beam", [1, 16])
@pytest.mark.parametrize("emit, factor", [(stepped_and_read, 3.0), (read_and_stepped, 2.0)])
def test_what_is_written_in_place_is_no_part_of_rows(emit, factor, beam):
    """A later pass over the row would read it after the write."""
    x = rows_of(4, 4)
    program = compile(model_of(emit, rows=4), device="cpu", beam=beam)
    expected = (x - x.max(1, keepdims=True)) * factor
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), expected, rtol=1e-5)


@pytest.mark.spec("A12")
def test_a_norm_of_one_element_reads_as_a_reduction_and_still_has_two_operands():
    x = np.full((1, 1), 3.0, np.float32)

    def emit(ctx, x):
        return ctx.rms_norm(x, ctx.param("w", (1,), lambda shape, rng: np.full(shape, 2.0)), eps=0.0)

    program = compile(model_of(emit, columns=1, rows=1), device="cpu")
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), [[2.0]], rtol=1e-6)


def part_of_columns(ctx, x):
    y = ctx.add(x, 1.0)
    return ctx.mul(y[:, :3], (y * y).sum(-1, keepdims=True))


def part_of_rows(ctx, x):
    y = x - x.max(-1, keepdims=True)
    return y[:2]


@pytest.mark.spec("A12")
@pytest.mark.parametrize("device", ["cpu", "h200"])
@pytest.mark.parametrize(
    "emit, expected",
    [
        (part_of_columns, lambda x: (x + 1)[:, :3] * ((x + 1) ** 2).sum(1, keepdims=True)),
        (part_of_rows, lambda x: (x - x.max(1, keepdims=True))[:2]),
    ],
)
def test_the_first_part_of_a_value_of_the_rows_is_not_the_value(emit, expected, device):
    """A slice from the start reads elements where they were made, but its result has no room for whole rows."""
    model = model_of(emit, rows=4)
    for region in explain_for(model, device).regions:
        if isinstance(rows := read_rows(expanded(region.spec)), RowProgram):
            made = {math.prod(region.spec.results[s.position].shape) for s in rows.stores}
            assert made <= {rows.count * rows.length, rows.count}
    if device == "cpu":
        x = rows_of(4, 4)
        got = compile(model, device=device).run({"x": x})["output"].numpy()
        np.testing.assert_allclose(got, expected(x), rtol=1e-5)
