"""Values read like mathematics: one expression of Values and of NumPy arrays gives the same numbers (E2, E5)."""

from __future__ import annotations

import copy
import math
import operator

import numpy as np
import pytest

import aicf
from aicf.errors import AicfError, TypeInferenceError, VerifyError
from aicf.graph.emit.builder import Builder, GraphEmitter
from aicf.graph.emit.evaluate import evaluate
from aicf.graph.emit.passes import optimize
from aicf.graph.emit.trace import Recipe, trace
from aicf.ir import Role
from aicf.ops import schemas

from .chains import model_of, rows_of, run

F = np.float32
RNG = np.random.default_rng(7)
ARRAYS = {
    "x": RNG.normal(size=(3, 4)).astype(F),
    "y": RNG.normal(size=(4,)).astype(F),
    "p": RNG.uniform(0.5, 2, size=(3, 4)).astype(F),
    "w": RNG.normal(size=(4, 5)).astype(F),
    "u": RNG.normal(size=(5, 4)).astype(F),
    "t": RNG.normal(size=(2, 3, 4)).astype(F),
    "s": RNG.normal(size=(2, 1, 4, 5)).astype(F),
    "o": RNG.normal(size=(1, 4, 5)).astype(F),
    "e": np.zeros((0, 4), F),
    "i": RNG.integers(-5, 5, size=(3, 4)).astype(np.int32),
    "z": np.array(1.5, F),
}


def emitted(expression, arrays=ARRAYS):
    """The expression of Values, evaluated by the ops' references; and the kinds of the ops that it emits."""
    builder = Builder()
    ctx = GraphEmitter(builder, "cpu")
    values = {name: ctx.input(name, a.shape, a.dtype) for name, a in arrays.items()}
    made = expression(**{n: values[n] for n in expression.__code__.co_varnames})
    fed = {values[n]: a for n, a in arrays.items()}
    faults = builder.graph.externals(Role.fault)
    known = evaluate(builder.graph, fed | {v: np.zeros(v.shape, v.dtype.numpy) for v in faults})
    return known[made], [op.kind for op in builder.graph.ops]


EXPRESSIONS = {
    "x + y": (lambda x, y: x + y, ["add"]),
    "x - 1": (lambda x: x - 1, ["sub"]),
    "1 - x": (lambda x: 1 - x, ["sub"]),
    "2 * x": (lambda x: 2 * x, ["mul"]),
    "x * NumPy's": (lambda x: np.float32(2.5) * x, ["mul"]),
    "x / y": (lambda x, y: x / y, ["div"]),
    "2 / x": (lambda x: 2 / x, ["div"]),
    "-x": (lambda x: -x, ["neg"]),
    "+x": (lambda x: +x, []),
    "abs": (lambda x: abs(x), ["abs"]),
    "integers": (lambda i: 3 - i * i, ["mul", "sub"]),
    "x ** 1": (lambda x: x**1, []),
    "x ** 2": (lambda x: x**2, ["square"]),
    "x ** 2.0": (lambda x: x**2.0, ["square"]),
    "x ** 3": (lambda x: x**3, ["square", "mul"]),
    "x ** 7": (lambda x: x**7, ["square", "mul", "square", "mul"]),
    "x ** -2": (lambda x: x**-2.0, ["square", "div"]),
    "x ** 0": (lambda x: x**0, ["power"]),
    "x ** 0.5": (lambda p: p**0.5, ["sqrt"]),
    "x ** 1.7": (lambda p: p**1.7, ["power"]),
    "x ** y": (lambda p, y: p**y, ["power"]),
    "2 ** x": (lambda x: 2**x, ["power"]),
    "i ** 3": (lambda i: i**3, ["square", "mul"]),
    "x > 0": (lambda x: x > 0, ["greater"]),
    "0 > x": (lambda x: x < 0, ["less"]),
    "x >= y": (lambda x, y: x >= y, ["greater_equal"]),
    "x < y": (lambda x, y: x < y, ["less"]),
    "x <= y": (lambda x, y: x <= y, ["less_equal"]),
    "i == 2": (lambda i: i == 2, ["equal"]),
    "2 != i": (lambda i: i != 2, ["not_equal"]),
    "and": (lambda x, y: (x > 0) & (y > 0), ["greater", "greater", "select"]),
    "and False": (lambda x: False & (x > 0), ["greater", "select"]),
    "or": (lambda x, y: (x > 0) | (y > 0), ["greater", "greater", "select"]),
    "or True": (lambda x: (x > 0) | True, ["greater", "select"]),
    "xor": (lambda x, y: (x > 0) ^ (y > 0), ["greater", "greater", "not_equal"]),
    "not": (lambda x: ~(x > 0), ["greater", "not_equal"]),
    "matrix @ matrix": (lambda x, w: x @ w, ["gemm"]),
    "matrix @ transpose": (lambda x, u: x @ u.T, ["transpose", "gemm"]),
    "batch @ matrix": (lambda t, w: t @ w, ["gemm"]),
    "transpose @ batch": (lambda x, t: x.T @ t, ["transpose", "gemm"]),
    "matrix @ vector": (lambda x, y: x @ y, ["reshape", "gemm", "reshape"]),
    "vector @ matrix": (lambda y, w: y @ w, ["reshape", "gemm", "reshape"]),
    "vector @ vector": (lambda y: y @ y, ["reshape", "reshape", "gemm", "reshape"]),
    "batch @ vector": (lambda t, y: t @ y, ["reshape", "gemm", "reshape"]),
    "vector @ batch": (lambda y, s: y @ s, ["reshape", "gemm", "reshape"]),
    "batch of one @ matrix": (lambda w, u, o: o @ u @ w, ["gemm", "gemm"]),
    "batch @ batch of one": (lambda t, o: t @ o, ["reshape", "gemm"]),
    "batches that broadcast": (lambda t, s: t @ s, ["broadcast_in_dim", "broadcast_in_dim", "gemm"]),
    "nothing @ matrix": (lambda e, w: e @ w, ["gemm"]),
    "matrix @ nothing": (lambda e, x: x @ e.T, ["transpose", "gemm"]),
    "reshape": (lambda x: x.reshape(2, 6), ["reshape"]),
    "reshape to a tuple": (lambda x: x.reshape((6, 2)), ["reshape"]),
    "reshape with -1": (lambda t: t.reshape(3, -1, 4), ["reshape"]),
    "reshape of nothing": (lambda e: e.reshape(-1, 2), ["reshape"]),
    "transpose": (lambda t: t.transpose(1, 0, 2), ["transpose"]),
    "transpose from the end": (lambda t: t.transpose((-1, 0, 1)), ["transpose"]),
    "T": (lambda t: t.T, ["transpose"]),
    "sum": (lambda x: x.sum(), ["reduce_sum"]),
    "sum over an axis": (lambda t: t.sum(-1), ["reduce_sum"]),
    "sum over two": (lambda t: t.sum((0, 2), keepdims=True), ["reduce_sum"]),
    "mean": (lambda t: t.mean(axis=1), ["reduce_mean"]),
    "max": (lambda t: t.max(axis=1, keepdims=True), ["reduce_max"]),
    "min": (lambda t: t.min(axis=1), ["reduce_min"]),
    "argmax": (lambda t: t.argmax(-1), ["argmax"]),
    "argmax among all": (lambda t: t.argmax(), ["reshape", "argmax"]),
    "argmin among all": (lambda t: t.argmin(keepdims=True), ["reshape", "argmin", "reshape"]),
    "astype": (lambda x: x.astype(np.int32), ["convert"]),
    "astype of its own type": (lambda x: x.astype(F), []),
    "squeeze": (lambda s: s.squeeze(), ["reshape"]),
    "squeeze an axis": (lambda o: o.squeeze(0), ["reshape"]),
    "a softmax": (
        lambda x: (2 ** (x - x.max(-1, keepdims=True))) / (2 ** (x - x.max(-1, keepdims=True))).sum(-1, keepdims=True),
        ["reduce_max", "sub", "power", "reduce_max", "sub", "power", "reduce_sum", "div"],
    ),
    "x[1]": (lambda t: t[1], ["slice", "reshape"]),
    "x[-1, 2]": (lambda t: t[-1, 2], ["slice", "reshape"]),
    "x[1, 2, 3]": (lambda t: t[1, 2, 3], ["slice", "reshape"]),
    "x[1:]": (lambda x: x[1:], ["slice"]),
    "x[:, 1:-1]": (lambda x: x[:, 1:-1], ["slice"]),
    "x[::2, 1]": (lambda x: x[::2, 1], ["slice", "reshape"]),
    "x[::-1]": (lambda x: x[::-1], ["reverse"]),
    "x[::-2, ..., -2::-2]": (lambda t: t[::-2, ..., -2::-2], ["slice", "reverse"]),
    "x[5:1]": (lambda x: x[5:1], ["slice"]),
    "x[2:0:-1]": (lambda x: x[2:0:-1], ["slice", "reverse"]),
    "x[..., -1]": (lambda t: t[..., -1], ["slice", "reshape"]),
    "x[None]": (lambda x: x[None], ["reshape"]),
    "x[:, None, 1]": (lambda x: x[:, None, 1], ["slice"]),
    "x[...]": (lambda x: x[...], []),
    "0-D[None]": (lambda z: z[None, ..., None], ["reshape"]),
    "of nothing": (lambda e: e[::-1, 1:], ["slice"]),
}  # fmt: skip


@pytest.mark.spec("E2")
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_means_what_it_means_in_numpy(name):
    expression, kinds = EXPRESSIONS[name]
    got, emitted_kinds = emitted(expression)
    want = expression(**{n: ARRAYS[n] for n in expression.__code__.co_varnames})
    assert got.shape == np.shape(want) and got.dtype == np.asarray(want).dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6)
    assert emitted_kinds == kinds


def test_new_axes_of_size_1():
    got, _ = emitted(lambda x: x.expand_dims(-1).expand_dims(0))
    np.testing.assert_array_equal(got, ARRAYS["x"][None, :, :, None])
    got, _ = emitted(lambda t: t.mT)
    np.testing.assert_array_equal(got, np.swapaxes(ARRAYS["t"], 1, 2))


@pytest.mark.parametrize(
    "index", ["[:]", "[1:2]", "[-3:]", "[::-3]", "[9:-9:-2]", "[0]", "[-1]", "[4:4]", "[2::5]"]
)
@pytest.mark.parametrize("size", [1, 5, 7])
def test_every_slice_takes_what_numpy_s_takes(index, size):
    if size == 1 and index in ("[1]",):
        return
    take = eval(f"lambda x: x{index}")
    x = np.arange(size * 3, dtype=F).reshape(size, 3)
    got, _ = emitted(take, {"x": x})
    np.testing.assert_array_equal(got, take(x))


@pytest.mark.skipif("gather" not in {s.name for s in schemas()}, reason="no op gathers")
@pytest.mark.parametrize("shape", [(2,), (2, 3), ()], ids=str)
@pytest.mark.parametrize(
    "take", ["x[:, i]", "x[:, i, ::2]", "x[None, 1:, i, ..., ::-1]", "x[..., i, None, :]"]
)
def test_integers_choose_along_one_axis(take, shape):
    expression = eval(f"lambda x, i: {take}")
    x, i = RNG.normal(size=(3, 4, 5)).astype(F), RNG.integers(-4, 4, shape).astype(np.int32)
    got, kinds = emitted(expression, {"x": x, "i": i})
    np.testing.assert_array_equal(got, expression(x, i))
    assert kinds.count("gather") == 1


REFUSED = {
    "if x > 0": (lambda x: 1 if x > 0 else 0, VerifyError, "a Value has no truth", "ctx.select(x > 0, a, b)"),
    "and": (lambda x: x > 0 and x < 1, VerifyError, "joined by &"),
    "0 < x < 1": (lambda x: 0 < x < 1, VerifyError, "a Value has no truth"),
    "for": (lambda x: list(x), VerifyError, "can't be iterated over", "range(x.shape[0])"),
    "unpacking": (lambda x: operator.add(*x), VerifyError, "can't be iterated over"),
    "in": (lambda x: 1 in x, VerifyError, "`y in x`"),
    "float": (lambda x: float(x), VerifyError, "no number or array"),
    "math": (lambda x: math.exp(x), VerifyError, "ctx.exp(x)"),
    "asarray": (lambda x: np.asarray(x), VerifyError, "no number or array"),
    "a ufunc": (lambda x: np.exp(x), TypeError, "ufunc"),
    "floor division": (lambda x: x // 2, VerifyError, "no //, % or divmod", "aicf.i32"),
    "modulo": (lambda x: 7 % x, VerifyError, "no //, % or divmod"),
    "assignment": (lambda x: operator.setitem(x, 0, 1), VerifyError, "can't be assigned to", "ctx.select(mask, new, x)"),
    "None": (lambda x: x + None, VerifyError, "x + None", "`x is None`"),
    "== None": (lambda x: x == None, VerifyError, "`x is None`"),  # noqa: E711
    "text": (lambda x: x * "2", VerifyError, "ctx.mul: b is a str"),
    "& of floats": (lambda x: x & x, VerifyError, "& joins bools", "(x > 0) & (y > 0)"),
    "~ of integers": (lambda i: ~i, VerifyError, "~ joins bools"),
    "i / 2": (lambda i: i / 2, TypeInferenceError, "div"),
    "i ** -1": (lambda i: i**-1, TypeInferenceError, "power"),
    "x + i": (lambda x, i: x + i, TypeInferenceError, "never promote"),
    "shapes": (lambda x, u: x + u, TypeInferenceError, "C1: shapes do not broadcast: a (3, 4), b (5, 4)"),
    "2.5 beside integers": (lambda i: i + 2.5, TypeInferenceError, "2.5 where i32 is needed"),
    "inner extents": (lambda x, u: x @ u, TypeInferenceError, "4 meets 5"),
    "@ 0-D": (lambda x, z: x @ z, VerifyError, "@ of a 0-D Value", "x * y scales"),
    "@ number": (lambda x: x @ 2, VerifyError, "@ beside a int"),
    "@ batches": (lambda t, x: t @ t.reshape(3, 4, 2).transpose(0, 1, 2), VerifyError, "(2,) of", "(3,) of"),
    "-1 twice": (lambda x: x.reshape(-1, -1), TypeInferenceError, "has -1 2 times"),
    "-1 that is no size": (lambda x: x.reshape(-1, 5), TypeInferenceError, "12 elements of x leave no one size for -1 beside 5"),
    "reshape to a Value": (lambda x, i: x.reshape(i, 2), VerifyError, "x.shape[0]"),
    "squeeze": (lambda x: x.squeeze(1), VerifyError, "axis 1 has size 4"),
    "an axis": (lambda x: x.sum(2), TypeInferenceError, "axis 2 is not an integer in [-2, 2)"),
    "no axes": (lambda x: x.sum(()), VerifyError, "axis=None is all of them"),
    "mT of a vector": (lambda y: y.mT, VerifyError, "rank 2 or more"),
    "transpose": (lambda x: x.transpose(0, 2), VerifyError, "axis 2 is not in [-2, 2)"),
    "axes twice": (lambda x: x.transpose(0, 0), TypeInferenceError, "names an axis twice"),
    "an element type": (lambda x: x.astype("float128x"), AicfError, "is not an aicf element type"),
    "an op as method": (lambda x: x.exp(), AttributeError, "ctx.exp(x) emits the op"),
    "a name from elsewhere": (lambda x: x.flatten(), AttributeError, "reshape(x, shape=(…))"),
    "no name at all": (lambda x: x.qwertyuiop, AttributeError, "a Value has no attribute 'qwertyuiop'"),
    "x[3]": (lambda x: x[3], VerifyError, "index 3 is out of range for axis 0 of size 3", "from -3 to 2"),
    "e[0]": (lambda e: e[0], VerifyError, "the axis is empty"),
    "x[0, 0, 0]": (lambda x: x[0, 0, 0], VerifyError, "an index of 3 axes where there are 2"),
    "x[..., ...]": (lambda x: x[..., ...], VerifyError, "`...` twice"),
    "x[1.5]": (lambda x: x[1.5], VerifyError, "1.5 as index"),
    "x[True]": (lambda x: x[True], VerifyError, "a mask as index"),
    "x[x > 0]": (lambda x: x[x > 0], VerifyError, "a mask as index", "ctx.select(mask, x, 0)"),
    "x[::0]": (lambda x: x[::0], VerifyError, "a slice by 0"),
    "x[: x]": (lambda x: x[:x], VerifyError, "known while a graph is built"),
    "x[i, i]": (lambda x, i: x[i, i], VerifyError, "indices of several axes at once", "x[i][:, j]"),
    "x[0, i]": (lambda x, i: x[0, i], VerifyError, "x[0][:, i]"),
    "x[i] = 1": (lambda x: operator.setitem(x, 0, 1), VerifyError, "can't be assigned to"),
}  # fmt: skip


@pytest.mark.spec("E5")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_meaning_says_what_to_write(name):
    expression, kind, *said = REFUSED[name]
    with pytest.raises(kind) as refused:
        emitted(expression)
    for text in said:
        assert text in str(refused.value)
    if isinstance(refused.value, AicfError):
        assert f"{__file__}:" in str(refused.value) or name == "an element type", "the user's line"


def test_a_value_is_a_key_and_equal_to_itself_alone_in_collections():
    """`==` emits an op; dicts and sets go by identity."""
    ctx = GraphEmitter(Builder(), "cpu")
    x, y = ctx.input("x", (3,)), ctx.input("y", (3,))
    assert {x: 1, y: 2}[y] == 2 and len({x, y, x}) == 2 and x in {x} and y not in {x}
    assert len(x) == 3 and x.ndim == 1 and x.T.shape == (3,)
    assert not hasattr(x, "numpy") and copy.copy(x).name == "x"


class Mathematics:
    """A network written both ways."""

    @staticmethod
    def operators(ctx, x):
        w, b = ctx.param("w", (5, 4), aicf.nn.init.ones), ctx.param("b", (5,), aicf.nn.init.ones)
        h = (x @ w.T + b) * 0.5
        h = ctx.select((h > 0) & (h < 2), h, -h)
        return (h - h.mean(-1, keepdims=True)) ** 2 / (1 + abs(h))

    @staticmethod
    def ops(ctx, x):
        w, b = ctx.param("w", (5, 4), aicf.nn.init.ones), ctx.param("b", (5,), aicf.nn.init.ones)
        h = ctx.mul(ctx.add(ctx.gemm(x, w, trans_b=True), b), 0.5)
        inside = ctx.select(ctx.greater(h, 0), ctx.less(h, 2), False)
        h = ctx.select(inside, h, ctx.neg(h))
        centred = ctx.square(ctx.sub(h, ctx.reduce_mean(h, axes=(-1,), keepdims=True)))
        return ctx.div(centred, ctx.add(1, ctx.abs(h)))


@pytest.mark.spec("E2")
def test_a_network_with_operators_is_the_one_with_ops():
    """Forward and backward: the same ops, attributes and types in the same order."""
    told = []
    for emit in (Mathematics.operators, Mathematics.ops):
        recipe = Recipe(model_of(emit, rows=6), "grad", aicf.nn.MeanSquaredError())
        graph = optimize(trace(recipe, {"batch": 6}, "cpu"))
        told.append(
            [(op.kind, dict(op.attrs), [graph.values[v].spec for v in op.outputs]) for op in graph.ops]
        )
    assert told[0] == told[1] and len(told[0]) > 20


def test_views_run_in_kernels():
    x = rows_of(6, 8)
    emit = lambda ctx, x: x[::-2, 1:7].reshape(-1, 3).T @ (x[:3].reshape(6, 4) ** 2)  # noqa: E731
    want = x.astype(np.float64)[::-2, 1:7].reshape(-1, 3).T @ (x.astype(np.float64)[:3].reshape(6, 4) ** 2)
    np.testing.assert_allclose(run(emit, x), want, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_a_power_of_0_is_0_at_0_as_well():
    x = np.array([0.0, 1.0, -2.0], np.float32)

    class Powers(aicf.nn.Layer):
        def emit(self, ctx, one):
            p = ctx.param("p", x.shape, lambda shape, rng: x)
            return (p**0 + p**3.0) * one

    model = aicf.nn.Model({"one": aicf.TensorSpec(())}).add(Powers())
    grad = aicf.compile(model, "grad", loss=aicf.nn.MeanSquaredError(), device="cpu")
    made = grad({"one": np.ones((), np.float32), "y": np.zeros(3, np.float32)})
    np.testing.assert_allclose(made["grad.0.p"].numpy(), 2 / 3 * (1 + x**3) * 3 * x**2, rtol=1e-6)
