"""Images stay channels last between convolutions: what is between them computes the same, and no more bytes are transposed."""

from __future__ import annotations

import random

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.graph.emit.autodiff import pulled_back
from aicf.graph.emit.evaluate import evaluate
from aicf.graph.emit.passes import optimize, verify
from aicf.graph.recognise.layout import first, keep_channels_last, last

from .spelt import Spelt


class Images(Spelt):
    """A graph of images with their channels first."""

    def kept(self, *results, wrt=()):
        """What the pass says; results, and gradients of them, must be what they were, in double precision. `kinds` and `moves` are of what
        stays."""
        ctx, graph = self.ctx, self.builder.graph
        values = [r if r.role == "tmp" else ctx.copy(r) for r in results]
        wanted = [evaluate(graph, self.fed)[v] for v in values]
        mark = self.builder.mark()
        before, _ = _gradients(self, values, wrt)
        self.builder.rewind(mark)
        notes = keep_channels_last(ctx, values)
        after, made = _gradients(self, values, wrt)
        got = evaluate(graph, self.fed)
        for n, value in enumerate(values):
            np.testing.assert_allclose(got[value], wanted[n], rtol=1e-9, atol=1e-12)
            self.builder.output(f"y{n}", value)
        for x, y in zip(before, after):
            np.testing.assert_allclose(x, y, rtol=1e-8, atol=1e-10)
        for n, value in enumerate(made):
            self.builder.output(f"g{n}", value if value.role == "tmp" else ctx.copy(value))
        verify(optimize(graph))
        return notes

    @property
    def moves(self):
        """Axes of each transpose of more than one axis of many elements."""
        values = self.builder.graph.values
        return [
            op.attrs["perm"]
            for op in self.builder.graph.ops
            if op.kind == "transpose" and sum(n > 1 for n in values[op.inputs[0]].shape) > 1
        ]


def _gradients(spelt, results, wrt):
    """Of the sum of results' squares: numbers, and the values that they are of. The graph stays as it is but for these ops."""
    if not wrt:
        return [], []
    ctx, made = spelt.ctx, []
    for y in results:
        loss = ctx.reduce_sum(ctx.square(y), axes=tuple(range(y.rank)))
        made += pulled_back(ctx, loss, None, wrt)
    known = evaluate(spelt.builder.graph, spelt.fed)
    return [known[v] for v in made], made


def convolved(g, x, o, places=3, **attrs):
    """By a kernel of its own, with its edges as they were."""
    c = x.shape[1] // attrs.get("groups", 1)
    w = g.input(f"w{len(g.fed)}", o, c, *(places,) * (x.rank - 2))
    pads = (places // 2,) * (x.rank - 2)
    return g.ctx.convolution(x, w, **{"low": pads, "high": pads, **attrs})


def channel(g, c, rank=4):
    return g.input(
        f"c{len(g.fed)}", 1, c, *(1,) * (rank - 2), draw=lambda rng, shape: rng.uniform(0.5, 2, shape)
    )


def batch_norm(g, x, c):
    """Spelt out, over all axes but the channels'."""
    ctx, axes = g.ctx, (0, *range(2, x.rank))
    mean = ctx.reduce_mean(x, axes=axes, keepdims=True)
    d = ctx.sub(x, mean)
    v = ctx.reduce_mean(ctx.square(d), axes=axes, keepdims=True)
    h = ctx.mul(d, ctx.rsqrt(ctx.add(v, 1e-5)))
    return ctx.add(ctx.mul(h, channel(g, c, x.rank)), channel(g, c, x.rank))


def test_maps_between_two_convolutions_are_of_channels_last():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    y = convolved(g, g.ctx.relu(g.ctx.mul(convolved(g, x, 4), 2.0)), 5)
    (note,) = g.kept(y)
    assert note.what == "channels last" and note.ops == 2 and "2 convolutions and 2 ops" in note.told
    assert g.moves == [last(4)] * 2 + [last(4), first(4)]  # of x and kernels, and back


BETWEEN = {
    "a norm": lambda g, x: g.ctx.relu(batch_norm(g, x, x.shape[1])),
    "a residual": lambda g, x: g.ctx.relu(g.ctx.add(x, convolved(g, x, x.shape[1]))),
    "a bias along channels": lambda g, x: g.ctx.add(x, g.ctx.broadcast_in_dim(g.input("b", x.shape[1]), shape=x.shape, dims=(1,))),
    "a row": lambda g, x: g.ctx.add(x, g.input("row", x.shape[-1])),
    "a bias of its own axes": lambda g, x: g.ctx.mul(x, g.input("b", x.shape[1], 1, 1)),
    "maxima": lambda g, x: g.ctx.max_pool(x, window=(2, 2), strides=(2, 2), low=(1, 0), high=(0, 1)),
    "means": lambda g, x: g.ctx.avg_pool(x, window=(3, 2), strides=(1, 2), low=(1, 1), high=(1, 0), count_padding=False),
    "edges": lambda g, x: g.ctx.pad(x, low=(0, 0, 1, 2), high=(0, 0, 0, 1), interior=(0, 0, 1, 0), value=0.5),
    "a part": lambda g, x: g.ctx.slice(x, start=(0, 1, 0, 1), limit=(2, 3, 5, 5), step=(1, 1, 2, 1)),
    "backwards": lambda g, x: g.ctx.reverse(x, dims=(3, 2)),
    "two beside each other": lambda g, x: g.ctx.concatenate(x, g.ctx.relu(convolved(g, x, 2)), axis=1),
    "larger": lambda g, x: g.ctx.reshape(
        g.ctx.broadcast_in_dim(
            g.ctx.reshape(x, shape=(*x.shape[:3], 1, x.shape[3], 1)), shape=(*x.shape[:3], 2, x.shape[3], 3), dims=(0, 1, 2, 3, 4, 5)
        ),
        shape=(*x.shape[:2], x.shape[2] * 2, x.shape[3] * 3),
    ),
    "a gate of its means": lambda g, x: g.ctx.mul(
        x, g.ctx.sigmoid(convolved(g, g.ctx.reduce_mean(x, axes=(2, 3), keepdims=True), x.shape[1], places=1))
    ),
    "another type": lambda g, x: g.ctx.convert(g.ctx.tanh(g.ctx.convert(x, dtype="bf16")), dtype="f32"),
    "a norm of running statistics": lambda g, x: g.ctx.relu(
        g.ctx.channel_affine(x, *[g.input(f"{n}{x.vid}", x.shape[1]) for n in "abc"])
    ),
    "moments": lambda g, x: g.ctx.channel_affine(x, *g.ctx.moments(x), g.input("shift", x.shape[1])),
    "a choice": lambda g, x: g.ctx.select(g.ctx.greater_equal(x, 0.0), x, g.ctx.fill(shape=x.shape, value=0.25, dtype=x.dtype)),
}  # fmt: skip


def between(name):
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    return g, x, convolved(g, BETWEEN[name](g, convolved(g, x, 4)), 6)


@pytest.mark.parametrize("name", BETWEEN)
def test_what_may_be_between_convolutions(name):
    """What is returned alone is brought back."""
    g, _, y = between(name)
    (note,) = g.kept(y)
    assert note.ops >= 1 and g.moves.count(first(4)) == 1


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", [name for name in BETWEEN if name != "another type"])
def test_gradients_of_what_is_between_convolutions(name):
    g, x, y = between(name)
    g.kept(y, wrt=[x])


@pytest.mark.parametrize("axes, shape", [(1, (2, 3, 9)), (3, (2, 3, 4, 5, 3))])
def test_one_axis_and_three(axes, shape):
    g = Images()
    x = g.input("x", *shape)
    h = batch_norm(g, convolved(g, x, 4), 4)
    y = convolved(g, g.ctx.max_pool(h, window=(2,) * axes), 5)
    (note,) = g.kept(y, wrt=[x])
    assert note.ops > 5


def test_a_head_reads_means_and_a_matrix_of_channels():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    h = g.ctx.relu(convolved(g, g.ctx.relu(convolved(g, x, 4)), 8))
    means = g.ctx.reduce_mean(h, axes=(2, 3), keepdims=False)
    matrix = g.ctx.reshape(g.ctx.avg_pool(h, window=(6, 5)), shape=(2, 8))
    g.kept(g.ctx.gemm(g.ctx.add(means, matrix), g.input("m", 8, 3)))
    assert first(4) not in g.moves


def test_a_reader_of_places_gets_the_value_itself():
    """Flattened, channels are first; they are brought back once, however many read them."""
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    h = g.ctx.relu(convolved(g, g.ctx.relu(convolved(g, x, 4)), 4))
    flat = g.ctx.reshape(h, shape=(2, 120))
    y, z = g.ctx.gemm(flat, g.input("m", 120, 3)), g.ctx.cumsum(h, axis=1)
    g.kept(y, z, h)
    assert g.moves.count(first(4)) == 1


def test_what_is_returned_stays_what_it_is():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    h = convolved(g, x, 4)
    r = g.ctx.relu(h)
    y = convolved(g, r, 4)
    g.kept(
        h,
        r,
        y,
        g.ctx.transpose(y, perm=last(4)),
        g.ctx.transpose(y, perm=(3, 2, 1, 0)),
        g.ctx.transpose(x, perm=last(4)),
    )


def test_models_that_have_channels_last_already_lose_the_way_there_and_back():
    """As a front end of such a framework emits them: around an op of channels first."""
    g = Images()
    x = g.input("x", 2, 6, 5, 3)
    for n, o in enumerate((4, 5)):
        w = g.input(f"w{n}", o, x.shape[-1], 3, 3)
        y = g.ctx.convolution(g.ctx.transpose(x, perm=first(4)), w)
        x = g.ctx.relu(g.ctx.transpose(y, perm=last(4)))
    g.kept(x)
    values = g.builder.graph.values
    assert all(values[op.inputs[0]].role != "tmp" for op in g.builder.graph.ops if op.kind == "transpose"), (
        g.moves
    )


def test_ops_that_nothing_needs_go_with_what_they_read():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    h = g.ctx.relu(convolved(g, x, 4))
    g.ctx.cumsum(g.ctx.cumsum(h, axis=1), axis=2)
    y = convolved(g, h, 4)
    assert g.kept(y) and "cumsum" not in g.kinds


def test_without_convolutions_nothing_is_looked_at():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    y = g.ctx.relu(g.ctx.transpose(g.ctx.relu(g.ctx.transpose(x, perm=first(4))), perm=last(4)))
    assert g.kept(y) == []


def test_where_nothing_is_saved_all_stays_as_it_was():
    g = Images()
    x = g.input("x", 2, 3, 6, 5)
    y = g.ctx.cumsum(convolved(g, g.ctx.cumsum(x, axis=2), 4), axis=2)
    before = g.kinds
    assert g.kept(y) == []
    assert g.kinds[: len(before)] == before


def random_graph(seed):
    rng, g = random.Random(seed), Images(seed)
    x = g.input("x", 2, 3, 6, 5)
    values = [convolved(g, x, 4)]
    for _ in range(rng.randint(3, 9)):
        h = rng.choice(values[-3:])
        kind = rng.choice(["relu", "conv", "conv", "add", "norm", "pool", "sum", "cumsum", "turn", "scale"])
        if kind == "conv":
            h = convolved(g, h, rng.choice((3, 4)), rng.choice((1, 3)))
        elif kind == "add":
            others = [v for v in values if v.shape == h.shape]
            h = g.ctx.add(h, rng.choice(others))
        elif kind == "norm":
            h = batch_norm(g, h, h.shape[1])
        elif kind == "pool":
            h = g.ctx.avg_pool(h, window=(2, 2), low=(1, 0), high=(0, 1))
        elif kind == "sum":
            h = g.ctx.sub(h, g.ctx.reduce_sum(h, axes=rng.choice([(1,), (2,), (1, 3), (0,)]), keepdims=True))
        elif kind == "cumsum":
            h = g.ctx.cumsum(h, axis=rng.choice((1, 2)))
        elif kind == "turn":
            h = g.ctx.transpose(g.ctx.relu(g.ctx.transpose(h, perm=(1, 0, 3, 2))), perm=(1, 0, 3, 2))
        elif kind == "scale":
            h = g.ctx.scale(h, factor=0.5)
        else:
            h = g.ctx.relu(h)
        values.append(h)
    chosen = {v.vid: v for v in [values[-1], *rng.sample(values, min(2, len(values)))]}
    return g, x, list(chosen.values())


@pytest.mark.parametrize("seed", [*range(12), 115, 121, 152])
def test_random_graphs_compute_the_same(seed):
    g, x, results = random_graph(seed)
    g.kept(*results, wrt=[x] if seed % 3 == 0 else [])


class Block(nn.Layer):
    def __init__(self, c):
        self.c = c

    def emit(self, ctx, x):
        w = ctx.param("w", (self.c, x.shape[1], 3, 3), nn.init.normal(std=0.1))
        y = ctx.convolution(x, w, low=(1, 1), high=(1, 1))
        return ctx.max_pool(ctx.relu(y), window=(2, 2), strides=(2, 2))


class Means(nn.Layer):
    def emit(self, ctx, x):
        return ctx.reduce_mean(x, axes=(2, 3))


def model(c=16):
    made = nn.Model({"x": aicf.TensorSpec((4, 3, 16, 16))})
    return made.add(Block(c)).add(Block(2 * c)).add(Means()).add(nn.Linear(2 * c, 5))


def test_an_explanation_says_it():
    told = aicf.explain_for(model(), "h200")
    assert "channels last" in str(told)
    strict = aicf.explain_for(model(), "h200", numerics="strict")
    assert "channels last" not in str(strict)


def test_a_model_of_channels_first_trains():
    program = aicf.compile(
        model(), "train", device="cpu", loss=nn.SoftmaxCrossEntropy(), optimizer=nn.SGD(0.2)
    )
    rng = np.random.default_rng(0)
    feed = {"x": rng.normal(size=(4, 3, 16, 16)).astype(np.float32), "y": np.arange(4)}
    losses = [float(program(feed)["loss"]) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]
