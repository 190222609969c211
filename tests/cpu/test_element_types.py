"""The element types beyond the basic ones, on the CPU against NumPy: what they compute in is their own type, wrapping around."""

import ml_dtypes
import numpy as np
import pytest

import aicf
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.errors import NoKernelError, TypeInferenceError
from aicf.ops.schema import Any_, Number, schema_of, schemas
from aicf.registry.select import select
from aicf.rows import RegionSpec
from aicf.types import BASIC, DType, TensorDesc, TensorSpec, f64, rounded, u64

from .regions import Graph

NEW = sorted(set(DType) - BASIC, key=lambda t: t.id)
LOOP = "elementwise_loop"
rng = np.random.default_rng(11)


def values(dtype, shape):
    """All of an integer type's range, and every size of numbers of f64."""
    if dtype.kind == "int":
        least, most = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
        made = rng.integers(least, most, shape, dtype.numpy, endpoint=True)
        made.flat[:2] = least, most
        return made
    return rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 3, shape)


NUMPY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "neg": np.negative,
    "square": np.square, "abs": np.abs, "equal": np.equal, "not_equal": np.not_equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "less": np.less, "less_equal": np.less_equal, "copy": np.copy, "sign": np.sign,
}  # fmt: skip
OF_FLOATS = {"div": np.divide, "exp": np.exp, "log": np.log, "sqrt": np.sqrt}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_ops_of_numbers_are_numpy_s(dtype):
    """All of them in one loop: two of equal shapes."""
    a, b = values(dtype, (5, 9)), values(dtype, (9,))
    b[::2] = a[0, ::2]  # some are equal
    ops = {**NUMPY, **(OF_FLOATS if dtype is f64 else {})}
    takes = {op: ["x", "y"][: len(schema_of(op).operands)] for op in ops}
    steps = [(op, " ".join(ins), op, {}) for op, ins in takes.items()]
    got = Graph(
        {"x": a, "y": b}, *steps, ("select", "equal x y", "select", {}), keep=" ".join([*ops, "select"])
    ).run(LOOP)
    for op, made in zip(ops, got):
        with np.errstate(all="ignore"):
            want = np.broadcast_to(ops[op](*[a, b][: len(takes[op])]), a.shape)
        assert made.dtype == want.dtype
        np.testing.assert_allclose(made, want, rtol=1e-15 if op in ("exp", "log") else 0, atol=0, err_msg=op)
    assert np.array_equal(got[-1], np.where(a == b, a, b))


def test_every_op_that_takes_them_is_tested():
    takes = {
        s.name
        for s in schemas()
        if s.operands and s.operands[0].type in (Any_, Number) and "elementwise" in s.traits
    }
    elsewhere = {"clamp", "mod", "rem", "floor_divide", "trunc_divide"}  # test_functions.py
    assert takes - {"select"} - elsewhere <= set(NUMPY)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_reductions_are_numpy_s_and_sums_wrap(dtype):
    x = values(dtype, (70, 90))
    for how, want in (
        ("reduce_sum", np.sum(x, axis=1, dtype=dtype.numpy)),
        ("reduce_max", np.max(x, axis=1)),
    ):
        (got,) = Graph({"x": x}, (how, "x", "y", {"axes": (1,)})).run("reduce_loop")
        np.testing.assert_allclose(got, want, rtol=1e-11 if dtype is f64 else 0)


def test_a_mean_of_f64():
    x, y = values(f64, (70, 90)), np.empty(90)
    aicf.op_call("reduce_mean", [x], [y], {"axes": (0,)})
    np.testing.assert_allclose(y, np.mean(x, axis=0), rtol=1e-11)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_conversions_are_numpy_s(dtype):
    """From it to all and from all to it, each in one loop: what fits of floats, and all of integers, which wrap."""
    x = values(dtype, 400)
    if dtype is f64:
        x = rng.integers(0, 100, 400) + 0.25
    steps = [("convert", "x", f"y{t}", {"dtype": t}) for t in DType]
    for to, got in zip(DType, Graph({"x": x}, *steps, keep=" ".join(f"y{t}" for t in DType)).run(LOOP)):
        want = rounded(x, to)
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=str(to))
    given = {f"x{t}": rounded(rng.uniform(0, 100, 99) - (t.kind != "float"), t) for t in DType}
    steps = [("convert", f"x{t}", f"y{t}", {"dtype": dtype}) for t in DType]
    got = Graph(given, *steps, keep=" ".join(f"y{t}" for t in DType)).run(LOOP)
    for made, array in zip(got, given.values()):
        np.testing.assert_array_equal(made, rounded(array, dtype), err_msg=str(array.dtype))


def oracle(number, dtype):
    """The nearest number of a narrow type, by a table of all of them; of two, the one with an even last digit."""
    from fractions import Fraction

    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=f"u{dtype.itemsize}")
    table = bits.view(dtype.numpy).astype(np.float64)
    fine = np.isfinite(table) & ~np.signbit(table)
    bits, table = bits[fine], table[fine]
    order = np.argsort(table)
    bits, table = bits[order], table[order]
    at = np.searchsorted(table, float(number))
    near = [n for n in range(at - 2, at + 3) if 0 <= n < len(table)]
    return table[min(near, key=lambda n: (abs(Fraction(table[n]) - number), int(bits[n]) & 1))]


@pytest.mark.sample(2)
@pytest.mark.parametrize("to", ["f16", "bf16", "f8e4m3", "f8e5m2"])
def test_what_is_converted_is_rounded_once(to):
    """Halfway between two numbers of the type, and a little beside that: f32 does not tell these apart."""
    from fractions import Fraction

    to = DType[to]
    base = rng.uniform(1, 2, 20)
    low = rounded(base, to).astype(np.float64)
    ulp = 2.0 ** -ml_dtypes.finfo(to.numpy).nmant
    x = np.concatenate([low + ulp / 2, (low + ulp / 2) * (1 + 2.0**-40), (low + ulp / 2) * (1 - 2.0**-40)])
    if to is DType.bf16:
        x = np.concatenate([x, x * 2.0**-127, x * 2.0**-132])  # subnormals of bf16 and of f32
    got = Graph({"x": x}, ("convert", "x", "y", {"dtype": to})).run(LOOP)[0].astype(np.float64)
    assert got.tolist() == [oracle(Fraction(v), to) for v in x]


def test_u64_is_rounded_once():
    x = np.array([2**63 + 2**55 + d for d in (-1, 0, 1)] + [2**64 - 1, 1, 2**63 + 3 * 2**55], np.uint64)
    (got,) = Graph({"x": x}, ("convert", "x", "y", {"dtype": "bf16"})).run(LOOP)
    assert got.astype(np.float64).tolist() == [
        2.0**63,
        2.0**63,
        2.0**63 + 2**56,
        2.0**64,
        1.0,
        2.0**63 + 2**57,
    ]


@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", [DType.u8, u64, f64], ids=str)
def test_a_model_computes_in_them(dtype):
    class Chain(aicf.nn.Layer):
        def emit(self, ctx, x):
            return ctx.sub(ctx.mul(x, x), ctx.maximum(x, 3))

    x = values(dtype, (6, 5))
    program = aicf.compile(aicf.nn.Model({"x": aicf.TensorSpec((6, 5), dtype)}).add(Chain()), device="cpu")
    assert [s.region.signature for s in program.plan.steps] == ["mul + maximum + sub"]
    with np.errstate(all="ignore"):
        want = x * x - np.maximum(x, dtype.numpy.type(3))
    np.testing.assert_allclose(program.run({"x": x})["output"].numpy(), want, rtol=1e-15)


def test_f64_keeps_its_digits_through_a_chain():
    x = np.array([1.0 + 1e-12, 3.0])
    y = np.empty(2)
    for op, want in (("log", np.log(x)), ("scale", x * 0.1), ("power", x**x)):
        aicf.op_call(
            op, [x, x][: len(aicf.schema_of(op).operands)], [y], {"factor": 0.1} if op == "scale" else {}
        )
        np.testing.assert_allclose(y, want, rtol=1e-15)


def test_kernels_that_lack_a_type_say_so():
    x = TensorDesc.dense(TensorSpec((8, 8), f64, "cuda"))
    region = RegionSpec.single(aicf.OpKind.add, aicf.schema_of("add").pack({}), [x, x], [x])
    with pytest.raises(NoKernelError, match="operand 0 is f64, needs f32 or f16 or bf16 or"):
        select(region, preset("h200"), default_registry())
    for op in ("relu", "softmax"):
        with pytest.raises(TypeInferenceError, match=r"x is f64; expected float \(bf16, f16, f32\)"):
            aicf.schema_of(op).infer([TensorSpec((4, 4), f64)], {})


def test_numbers_beside_them_must_fit():
    with pytest.raises(TypeInferenceError, match="u8 reaches from 0 to 255"):
        aicf.schema_of("fill").infer(
            [], aicf.schema_of("fill").pack({"shape": (2,), "value": -1, "dtype": "u8"})
        )
    x, y = np.array([2**64 - 1], np.uint64), np.empty(1, np.uint64)
    aicf.op_call("add", [x, np.array([2], np.uint64)], [y])
    assert y == 1 and DType.of(y.dtype) is u64


def test_f64_has_numbers_that_f32_has_not():
    class Large(aicf.nn.Layer):
        def emit(self, ctx, x):
            return ctx.mul(x, 1e300)

    x = np.array([1 / 3, -2.0])
    model = aicf.nn.Model({"x": aicf.TensorSpec((2,), f64)}).add(Large())
    assert np.array_equal(aicf.compile(model, device="cpu").run({"x": x})["output"].numpy(), x * 1e300)
