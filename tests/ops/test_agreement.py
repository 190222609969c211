"""A reference that disagrees with its op's scalar function is noticed where the op is first used; `from math import exp` works."""

from __future__ import annotations

import math
from math import exp, log, tanh

import numpy as np
import pytest
from nn.mlp import on_each_device

import aicf
from aicf import nn
from aicf.cuda_kernels.dsl import with_functions
from aicf.errors import MismatchError
from aicf.ops import agreement
from aicf.ops.agreement import check_op
from aicf.ops.constraints import Float, Int
from aicf.ops.scalar import in_python
from aicf.ops.schema import MAP, elementwise, schemas, unregister


@pytest.fixture
def op(monkeypatch):
    """Makes ops that the test forgets afterwards."""
    made = []
    monkeypatch.setenv("AICF_CHECK", "ops")

    def make(name, scalar, reference, **more):
        schema = elementwise(name, **more)(scalar)
        schema.reference(reference)
        made.append(name)
        return schema

    yield make
    for name in made:
        unregister(name)


class Layer(nn.Layer):
    def __init__(self, op, **attrs):
        self.op, self.attrs = op, attrs

    def emit(self, ctx, x):
        return ctx.op(self.op, x, **self.attrs)


def call(name, **attrs):
    x = np.array([0.5, 2.0], np.float32)
    return aicf.op_call(name, [x], [x.copy()], attrs)


def emit(name, **attrs):
    return nn.Model({"x": aicf.TensorSpec((2, 3))}).add(Layer(name, **attrs))


def wrong(x, *, slope: float = 1.0):
    return x * slope + 0.001


@pytest.mark.parametrize("use", [call, emit])
def test_a_reference_that_is_another_function_is_refused_at_the_first_use(op, use):
    op("almost", wrong, lambda x, slope: x * x.dtype.type(slope))
    for _ in range(1):
        with pytest.raises(MismatchError) as caught:
            use("almost", slope=3.0)
    what, x, slope, expected, got, at, _ = str(caught.value).split("\n")
    assert what == "almost: its reference and its scalar function disagree on y"
    x = float(x.removeprefix("  x = "))
    assert slope == "  slope = 3.0"
    assert float(expected.split()[1].rstrip(",")) == pytest.approx(3 * x)
    assert float(got.split()[1].rstrip(",")) == pytest.approx(3 * x + 0.001)
    assert at.startswith("  at: ") and f"test_agreement.py:{wrong.__code__.co_firstlineno}" in at


def test_only_where_it_is_asked_for(op, monkeypatch):
    op("almost", wrong, lambda x, slope: x * x.dtype.type(slope))
    monkeypatch.delenv("AICF_CHECK")
    assert call("almost").kernel_id
    with pytest.raises(MismatchError):
        check_op("almost")


def test_attributes_that_are_new_are_looked_at(op, monkeypatch):
    """Equal at the default, and nowhere else."""

    def scaled(x, *, factor: float = 1.0):
        return x * factor

    looked = []
    op("sometimes", scaled, lambda x, factor: x)
    monkeypatch.setattr(
        agreement, "check_op", lambda s, **attrs: (looked.append(attrs), check_op(s, **attrs))
    )
    call("sometimes")
    call("sometimes")
    with pytest.raises(MismatchError, match=r"factor = 2\.0"):
        call("sometimes", factor=2.0)
    assert [a["factor"] for a in looked] == [1.0, 2.0]


def test_an_op_that_is_compared_on_its_samples_is_looked_at_once(monkeypatch):
    looked = []
    monkeypatch.setattr(agreement, "check_op", lambda s, **attrs: looked.append(s.name))
    monkeypatch.setattr(agreement, "_looked_at", set())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for perm in ((0, 1), (1, 0)):
        aicf.op_call("transpose", [x], [np.empty(x.transpose(perm).shape, np.float32)], {"perm": perm})
    assert looked == ["transpose"]


@pytest.mark.parametrize("place", [0, 17, 59])
@pytest.mark.parametrize("other, types", [(math.nan, Float), (77, Int)])
def test_the_element_that_disagrees_is_named_wherever_it_is(op, place, other, types):
    """In the reference one is changed; a NaN agrees with a NaN alone."""

    def reference(x):
        made = x + x
        made[place] = other
        return made

    op("doubles", lambda x: x + x, reference, types=types)
    with pytest.raises(MismatchError, match=rf"expected: {other}, the reference's"):
        check_op("doubles")


@pytest.mark.parametrize("schema", [s for s in schemas() if MAP in s.traits], ids=lambda s: s.name)
def test_aicfs_own_ops_agree(schema):
    check_op(schema, **schema.sample_specs[0]["attrs"])


# --- functions of math, however they are imported ---------------------------------------------------------------------


def swish(x):
    return x / (1.0 + exp(-x))


def through_a_helper(x):
    return swish(x) + 0.0


EXTREMES = np.array([[-1000.0, -100.0, -3.0, 0.0, 1.0, 100.0, np.inf, np.nan]], np.float32)


@on_each_device
@pytest.mark.parametrize("scalar", [swish, through_a_helper])
def test_exp_by_its_own_name_is_what_math_exp_is(op, scalar, device):
    """In a kernel, in NumPy and in Python: where Python's overflows it is an infinity."""
    want = lambda x: x / (1 + np.exp(-x))  # noqa: E731
    op("own_swish", scalar, want)
    program = aicf.compile(nn.Model({"x": aicf.TensorSpec((1, 8))}).add(Layer("own_swish")), device=device)
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(
            program.run({"x": EXTREMES})["output"].numpy(), want(EXTREMES), rtol=1e-5, atol=1e-30
        )
        got = [in_python(scalar, np.float32)(x) for x in EXTREMES.ravel()]
        np.testing.assert_allclose(got, want(EXTREMES).ravel(), rtol=1e-5, atol=1e-30)


def test_loops_of_the_host_use_the_vectorised_functions_under_either_name():
    from aicf.cpu_kernels.compiler import vector_math
    from aicf.cpu_kernels.compiler.numba_functions import jitted

    own = jitted(vector_math.exp, False)
    helper = jitted(through_a_helper, False).py_func.__globals__["swish"]
    assert jitted(swish, False).py_func.__globals__["exp"] is own is helper.py_func.__globals__["exp"]


def test_kernels_of_halves_use_their_own_tanh_under_either_name():
    twice = lambda x: 2.0  # noqa: E731
    assert with_functions(lambda x: tanh(x) + math.tanh(x), {"tanh": twice})(0.0) == 4.0


@pytest.mark.parametrize(
    "function, x, want",
    [(lambda x: exp(x), 1e4, math.inf), (lambda x: math.expm1(x), 1e4, math.inf), (lambda x: log(x), -1.0, math.nan),
     (lambda x: log(x), 0.0, -math.inf), (lambda x: math.sqrt(x), -1.0, math.nan), (lambda x: math.pow(x, 1000.0), 10.0, math.inf),
     (lambda x: math.gamma(x), 1000.0, math.inf), (lambda x: math.cosh(x), 1e4, math.inf), (lambda x: 1.0 / x, 0.0, math.inf),
     (lambda x: math.log(x, 2.0), 8.0, 3.0), (lambda x: math.atan2(x, x), 1.0, math.pi / 4), (lambda x: math.remainder(x, 3.0), 5.0, -1.0),
     (lambda x: math.erf(x), 0.5, math.erf(0.5))],
)  # fmt: skip
def test_in_python_functions_have_infinities_where_pythons_raise(function, x, want):
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(in_python(function, np.float64)(np.float64(x)), want, rtol=1e-14)
