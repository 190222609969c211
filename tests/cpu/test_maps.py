"""Maps on the host: chains and trees of ops as one loop, every way to broadcast, every element type (A12, A13, A15)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dispatch.layouts import LAYOUTS

from aicf.device.spec import host
from aicf.ops.schema import ELEMENTWISE, schema_of, schemas
from aicf.types import BASIC, bf16, bool_, f16, f32, i32, i64

from .regions import VARIANTS, Graph, chain, normal, with_specials

SHAPES = [(), (1,), (5,), (0, 3), (4, 7), (1025,), (2, 3, 5), (3, 513)]
LOOP = "elementwise_loop"
BASIC_TYPES = sorted(BASIC, key=lambda t: t.id)


# --- chains and trees -------------------------------------------------------------------------------------------------


def residual_gelu(x, y):
    return Graph(
        {"x": x, "y": y}, ("add", "x y", "s", {}), ("gelu", "s", "g", {}), ("mul", "g x", "m", {}),
        ("sub", "m y", "out", {}),
    )  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_tree_of_ops_is_one_loop(shape):
    residual_gelu(normal(*shape), normal(*shape)).check(LOOP)


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_a_chain_keeps_what_is_read_outside(dtype):
    chain(["square", "exp", "neg", "tanh"])(normal(3, 111, dtype=dtype) * dtype.numpy.type(0.5)).check(
        LOOP, 2e-2 if dtype is bf16 else 3e-3 if dtype is f16 else None
    )


@pytest.mark.sample(2)
@pytest.mark.spec("A12")
@pytest.mark.parametrize(
    "kind", sorted(s.name for s in schemas() if ELEMENTWISE in s.traits and s.name.endswith("grad"))
)
def test_gradients_of_activations_chain(kind):
    x, dy = normal(517), normal(517)
    graph = Graph(
        {"x": x, "dy": dy}, (kind, "dy x", "g", {}), ("scale", "g", "out", {"factor": 0.37}), keep="g out"
    )
    graph.check(LOOP, 1e-5)


@pytest.mark.spec("A12")
def test_an_op_that_the_kernels_never_heard_of_fuses():
    from aicf.ops.record import unregister
    from aicf.ops.schema import elementwise

    @elementwise("softshift")
    def op(a, b, *, by: float):
        """a / (1 + |a|) + by * b."""
        return a / (1.0 + abs(a)) + by * b

    op.reference(lambda a, b, by: a / (1 + np.abs(a)) + by * b)
    try:
        x, y = normal(33, 9), normal(9)
        Graph(
            {"x": x, "y": y},
            ("relu", "x", "r", {}),
            ("softshift", "r y", "s", {"by": 0.5}),
            ("tanh", "s", "t", {}),
        ).check(LOOP)
    finally:
        unregister("softshift")


@pytest.mark.sample(1)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", [f32, i32, i64], ids=str)
def test_compares_and_selects_in_the_middle(dtype):
    x, y = normal(6, 50, dtype=dtype), normal(50, dtype=dtype)
    Graph(
        {"x": x, "y": y}, ("greater", "x y", "c", {}), ("select", "c x y", "s", {}), ("square", "s", "q", {}),
        ("less_equal", "q x", "d", {}), keep="c s q d",
    ).check(LOOP)  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", BASIC_TYPES, ids=str)
@pytest.mark.parametrize("to", BASIC_TYPES, ids=str)
def test_converts_between_all_types(dtype, to):
    x = normal(4, 67, dtype=dtype)
    graph = Graph({"x": x}, ("convert", "x", "y", {"dtype": to.id}), ("copy", "y", "z", {}), keep="y z")
    got = graph.run(LOOP)
    np.testing.assert_array_equal(got[0], x.astype(to.numpy))
    np.testing.assert_array_equal(got[1], got[0])


@pytest.mark.spec("A12")
@pytest.mark.parametrize("dtype", [i32, i64], ids=str)
def test_integers_wrap(dtype):
    most = np.iinfo(dtype.numpy).max
    x = np.array([most, -most - 1, 3, -1], dtype.numpy)
    (got,) = Graph({"x": x}, ("square", "x", "s", {}), ("add", "s x", "y", {})).run(LOOP)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, x * x + x)


@pytest.mark.sample(1)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_what_is_kept_is_what_later_ops_read(dtype):
    """y is stored, so it is rounded; z must be made of what is in memory."""
    x = normal(999, dtype=dtype)
    exp, square = Graph({"x": x}, ("exp", "x", "y", {}), ("square", "y", "z", {}), keep="y z").run(LOOP)
    (again,) = Graph({"y": exp}, ("square", "y", "z", {})).run(LOOP)
    assert square.tobytes() == again.tobytes()


@pytest.mark.sample(1)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("dtype", [f32, f16, bf16], ids=str)
def test_strict_numbers_are_those_of_the_ops_apart_bit_for_bit(dtype):
    x, y, b = normal(7, 301, dtype=dtype), normal(7, 301, dtype=dtype), normal(301, dtype=dtype)
    steps = [
        ("mul", "x y", "m", {}),
        ("add", "m b", "a", {}),
        ("gelu", "a", "g", {}),
        ("sub", "g m", "out", {}),
    ]
    (fused,) = Graph({"x": x, "y": y, "b": b}, *steps, strict=True).run(LOOP)
    known = {"x": x, "y": y, "b": b}
    for step in steps:
        _, ins, out, _ = step
        (known[out],) = Graph({n: known[n] for n in ins.split()}, step, strict=True).run(LOOP)
    assert fused.tobytes() == known["out"].tobytes()


@pytest.mark.spec("A12")
def test_not_a_number_and_the_infinities_go_through():
    x = with_specials(normal(67))
    graph = Graph(
        {"x": x, "y": normal(67)}, ("relu", "x", "r", {}), ("maximum", "r y", "m", {}), ("exp", "m", "e", {}),
        ("div", "y e", "d", {}), ("sigmoid", "x", "s", {}), ("tanh", "x", "t", {}), ("log", "x", "l", {}),
        keep="r m e d s t l",
    )  # fmt: skip
    graph.check(LOOP)


# --- how operands are walked ------------------------------------------------------------------------------------------

BROADCASTS = [
    ((4, 7), (7,)), ((4, 7), (4, 1)), ((4, 7), ()), ((4, 1), (3, 1, 7)), ((5, 1, 3, 1), (4, 1, 2)), ((1, 1), (1,)),
    ((3, 600), (3, 1)), ((0, 3), (3,)), ((2, 0, 3), (1, 3)), ((300, 1), (1, 300)),
]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("a, b", BROADCASTS, ids=str)
def test_operands_broadcast(a, b):
    x, y = normal(*a), normal(*b)
    whole = np.broadcast_shapes(a, b)
    Graph(
        {"x": x, "y": y, "z": normal(*whole)}, ("mul", "x y", "p", {}), ("add", "p z", "s", {}), ("relu", "s", "r", {}),
        keep="s r",
    ).check(LOOP)  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.spec("A12", "D4")
@pytest.mark.parametrize("length", [1, 5, 9])
def test_two_biases_and_a_repeated_row(length):
    x, b, row = normal(9, 5), normal(length), normal(5)
    Graph(
        {"x": x, "b": b, "row": row}, ("bias_add", "x b", "y", {}),
        ("broadcast_in_dim", "row", "w", {"shape": (9, 5), "dims": (1,)}), ("mul", "y w", "out", {}),
    ).check(LOOP)  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.spec("A12")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [f32, f16, i64, bool_], ids=str)
def test_operands_of_every_layout(layout, dtype):
    for shape in ((4, 7), (2, 3, 65), (300,), (1,), ()):
        x, y = LAYOUTS[layout](normal(*shape, dtype=dtype)), normal(*shape, dtype=dtype)
        Graph({"x": x, "y": y}, ("equal", "x y", "c", {}), ("select", "c x y", "s", {}), keep="c s").check(
            LOOP
        )


@pytest.mark.spec("A12")
def test_a_result_may_lie_over_an_operand():
    x, y = normal(3, 700), normal(3, 700)
    graph = Graph({"x": x, "y": y}, ("mul", "x y", "m", {}), ("add", "m x", "out", {}), keep="m out")
    graph.check(LOOP, alias={"out": "x", "m": "y"})


@pytest.mark.spec("A12")
def test_a_result_with_gaps_is_refused():
    graph = residual_gelu(normal(4, 7), normal(4, 7))
    region = graph.region
    gaps = type(region.tensors[-1])(f32, (4, 7), (14, 2))
    region = type(region)(region.ops, (*region.tensors[:-1], gaps), region.inputs, region.outputs)
    assert "has strides (14, 2)" in str(VARIANTS[LOOP].supported(region, host()))


# --- dropout ----------------------------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.spec("C15")
@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 1026])
@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_dropout_equals_the_reference_bit_for_bit(n, rate):
    x, rng = normal(n), np.array([2**62 + 12345, 2**31 + 7])
    attrs = {"rate": rate, "layer": 3}
    (got,) = Graph({"x": x, "rng": rng}, ("dropout", "x rng", "y", attrs)).run(LOOP)
    assert got.tobytes() == schema_of("dropout").call_reference([x, rng], attrs)[0].tobytes()


@pytest.mark.spec("C15", "A12")
def test_dropout_between_other_ops_over_two_axes():
    x, b, rng = normal(37, 19), normal(19), np.array([11, 5])
    Graph(
        {"x": x, "b": b, "rng": rng}, ("bias_add", "x b", "y", {}), ("relu", "y", "r", {}),
        ("dropout", "r rng", "d", {"rate": 0.4, "layer": 1}), ("scale", "d", "out", {"factor": -2.0}), keep="y out",
    ).check(LOOP)  # fmt: skip


# --- many domains at once ---------------------------------------------------------------------------------------------

RATES = {
    n: np.float32(v)
    for n, v in zip(("lr", "b1", "b2", "eps", "wd", "c1", "c2"), (0.1, 0.9, 0.99, 1e-8, 0.01, 0.2, 0.3))
} | {"valid": np.bool_(True)}


def adam(n, shape, dtype=f32):
    state = {f"{k}{n}": normal(*shape, dtype=dtype) for k in "pgm"} | {
        f"v{n}": abs(normal(*shape, dtype=dtype))
    }
    step = ("adam_step", f"p{n} g{n} m{n} v{n} lr b1 b2 eps wd c1 c2 valid", f"P{n} M{n} V{n}", {})
    return state, step, f"P{n} M{n} V{n}", {f"{k.upper()}{n}": f"{k}{n}" for k in "pmv"}


@pytest.mark.sample(1)
@pytest.mark.spec("A13")
@pytest.mark.parametrize(
    "shapes", [[(300, 20), (17,), (3, 5, 7)], [(5,), (0, 3), (1,)], [(4, 7), (4, 7)]], ids=str
)
def test_optimizer_steps_of_many_parameters_at_once_in_place(shapes):
    parts = [adam(n, shape) for n, shape in enumerate(shapes)]
    operands = {k: v for state, *_ in parts for k, v in state.items()}
    operands |= {n: np.asarray(v) for n, v in RATES.items()}
    graph = Graph(operands, *(p[1] for p in parts), keep=" ".join(p[2] for p in parts))
    graph.check("multi_map", 1e-5)
    graph.check("multi_map", 1e-5, alias={k: v for p in parts for k, v in p[3].items()})


@pytest.mark.spec("A13")
def test_what_is_no_group_is_refused():
    x = normal(5)
    one = Graph({"x": x}, ("relu", "x", "y", {}))
    mixed = Graph({"x": x, "z": normal(6)}, ("relu", "x", "y", {}), ("neg", "z", "w", {}), keep="y w")
    linked = Graph({"x": x}, ("relu", "x", "y", {}), ("relu", "y", "w", {}), keep="y w")
    for graph, reason in (
        (one, "one op is no group"),
        (mixed, "neg beside relu"),
        (linked, "one part is no group"),
    ):
        assert reason in str(VARIANTS["multi_map"].supported(graph.region, host()))


# --- the functions themselves -----------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.spec("F2")
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf"])
def test_functions_are_exact_to_the_last_digit(name):
    import numba

    from aicf.cpu_kernels.compiler import vector_math
    from aicf.cpu_kernels.compiler.numba_functions import jitted

    function = jitted(getattr(vector_math, name), False)
    every = numba.vectorize(["f4(f4)"])(lambda x: function(x))
    rng = np.random.default_rng()
    x = np.concatenate([
        rng.normal(size=200_000) * 10.0 ** rng.uniform(-12, 3, 200_000), rng.uniform(-110, 95, 50_000),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 88.72283, 88.72284, -103.97, -104.0, 1e-45, 1.17e-38, 3.4e38],
    ]).astype(np.float32)  # fmt: skip
    with np.errstate(all="ignore"):
        exact = (
            np.vectorize(math.erf)(x.astype(float)) if name == "erf" else getattr(np, name)(x.astype(float))
        )
        rounded, got = exact.astype(np.float32), every(x)
        apart = np.abs(got - exact) / np.spacing(np.abs(rounded)).astype(float)
    finite = np.isfinite(rounded)
    assert apart[finite].max() < 0.6
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(rounded[finite]))


@pytest.mark.sample(1)
@pytest.mark.spec("F2")
@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_every_half_there_is_comes_and_goes_as_it_should(dtype):
    bits = np.arange(2**16, dtype=np.uint16)
    wide = np.concatenate([
        bits.view(dtype.numpy).astype(np.float32),
        np.random.default_rng().integers(0, 2**32, 300_000, dtype=np.uint32).view(np.float32),
        (bits.view(dtype.numpy).astype(np.float32).view(np.uint32) + 0x0FFF).view(np.float32),
    ])  # fmt: skip
    (narrow,) = Graph({"x": wide}, ("convert", "x", "y", {"dtype": dtype.id})).run(LOOP)
    (back,) = Graph({"x": narrow}, ("convert", "x", "y", {"dtype": f32.id})).run(LOOP)
    with np.errstate(all="ignore"):
        want = wide.astype(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(narrow.astype(np.float32), want)
    np.testing.assert_array_equal(back, want)
    np.testing.assert_array_equal(np.signbit(back[want == 0]), np.signbit(want[want == 0]))
