"""Operations that are composed of others, beside NumPy, and those whose sizes are operands."""

import numpy as np
import pytest

pytest.importorskip("jaxlib")
from aicf.errors import FrontendError
from aicf.frontends.stablehlo import run_module

RNG = np.random.default_rng(0)


def run(body, arguments, results, inputs):
    return run_module(f"module {{ func.func @main({arguments}) -> {results} {{ {body} }} }}", inputs)


@pytest.mark.parametrize(
    "name, type",
    [
        ("i8", np.int8),
        ("ui8", np.uint8),
        ("i16", np.int16),
        ("i32", np.int32),
        ("ui32", np.uint32),
        ("i64", np.int64),
        ("ui64", np.uint64),
    ],
)
def test_bits(name, type):
    info = np.iinfo(type)
    edges = np.array([0, 1, info.min, info.max], type)
    x = np.concatenate([edges, RNG.integers(info.min, info.max, 40, type, endpoint=True)])
    width = 8 * x.itemsize
    text = [np.binary_repr(int(n) % 2**width, width) for n in x]
    kind = f"tensor<44x{name}>"
    body = f"%0 = stablehlo.popcnt %x : {kind} %1 = stablehlo.count_leading_zeros %x : {kind} return %0, %1 : {kind}, {kind}"
    ones, zeros = run(body, f"%x: {kind}", f"({kind}, {kind})", [x])
    np.testing.assert_array_equal(ones, [each.count("1") for each in text])
    np.testing.assert_array_equal(zeros, [len(each) - len(each.lstrip("0")) for each in text])


@pytest.mark.parametrize(
    "direction, wanted",
    [("LT", np.less), ("LE", np.less_equal), ("GT", np.greater), ("GE", np.greater_equal)],
)
def test_the_order_of_bools(direction, wanted):
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    kind = "tensor<4xi1>"
    (made,) = run(
        f"%0 = stablehlo.compare {direction}, %a, %b, UNSIGNED : ({kind}, {kind}) -> {kind} return %0 : {kind}",
        f"%a: {kind}, %b: {kind}",
        kind,
        [a, b],
    )
    np.testing.assert_array_equal(made, wanted(a, b))


def test_f64():
    x = np.concatenate(
        [
            [0.0, -0.0, 1e-300, -1e-9, 1e-3, 40.0, -40.0, 800.0, np.inf, -np.inf, np.nan],
            RNG.normal(size=20) * 5,
        ]
    )
    kind = f"tensor<{len(x)}xf64>"
    body = (
        f"%0 = stablehlo.tanh %x : {kind} %1 = stablehlo.logistic %x : {kind} return %0, %1 : {kind}, {kind}"
    )
    tanh, logistic = run(body, f"%x: {kind}", f"({kind}, {kind})", [x])
    np.testing.assert_allclose(tanh, np.tanh(x), rtol=1e-14)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(logistic, 1 / (1 + np.exp(-x)), rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("kind", ["f64", "bf16", "f16"])
def test_iota_of_other_floats(kind):
    (made,) = run(
        f"%0 = stablehlo.iota dim = 1 : tensor<2x300x{kind}> return %0 : tensor<2x300x{kind}>",
        "",
        f"tensor<2x300x{kind}>",
        [],
    )
    np.testing.assert_array_equal(made, np.broadcast_to(np.arange(300), (2, 300)).astype(made.dtype))


def test_sizes_that_operands_say():
    x = RNG.normal(size=(2, 3)).astype(np.float32)
    body = """
      %s = stablehlo.constant dense<[3, 2]> : tensor<2xi64>
      %0 = stablehlo.dynamic_reshape %x, %s : (tensor<2x3xf32>, tensor<2xi64>) -> tensor<3x2xf32>
      %t = stablehlo.constant dense<[3, 4, 2]> : tensor<3xi64>
      %1 = "stablehlo.dynamic_broadcast_in_dim"(%x, %t) {broadcast_dimensions = array<i64: 2, 0>} : (tensor<2x3xf32>, tensor<3xi64>) -> tensor<3x4x2xf32>
      %2 = stablehlo.dynamic_iota %s, dim = 0 : (tensor<2xi64>) -> tensor<3x2xf32>
      %3 = stablehlo.get_dimension_size %x, dim = 1 : (tensor<2x3xf32>) -> tensor<i32>
      %p = stablehlo.constant dense<[1, -1]> : tensor<2xi64>
      %q = stablehlo.constant dense<[0, 2]> : tensor<2xi64>
      %v = stablehlo.constant dense<7.0> : tensor<f32>
      %4 = stablehlo.dynamic_pad %x, %v, %p, %q, %q : (tensor<2x3xf32>, tensor<f32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>) -> tensor<3x8xf32>
      %5 = stablehlo.real %x : tensor<2x3xf32>
      %6 = stablehlo.imag %x : tensor<2x3xf32>
      return %0, %1, %2, %3, %4, %5, %6 :
        tensor<3x2xf32>, tensor<3x4x2xf32>, tensor<3x2xf32>, tensor<i32>, tensor<3x8xf32>, tensor<2x3xf32>, tensor<2x3xf32>
    """
    results = "(tensor<3x2xf32>, tensor<3x4x2xf32>, tensor<3x2xf32>, tensor<i32>, tensor<3x8xf32>, tensor<2x3xf32>, tensor<2x3xf32>)"
    made = run(body, "%x: tensor<2x3xf32>", results, [x])
    padded = np.full((3, 8), 7, np.float32)
    padded[1:, [2, 5]] = x[:, 1:]
    wanted = [
        x.reshape(3, 2),
        np.broadcast_to(x.T[:, None], (3, 4, 2)),
        np.arange(3.0).repeat(2).reshape(3, 2),
        3,
        padded,
        x,
        x * 0,
    ]
    for got, array in zip(made, wanted):
        np.testing.assert_array_equal(got, array)


def test_padding_that_data_say_is_refused():
    kind = "tensor<1xi64>"
    body = f"%v = stablehlo.constant dense<0.0> : tensor<f32> %0 = stablehlo.dynamic_pad %x, %v, %p, %p, %p : (tensor<2xf32>, tensor<f32>, {kind}, {kind}, {kind}) -> tensor<5xf32> return %0 : tensor<5xf32>"
    with pytest.raises(FrontendError, match="depend on data"):
        run(
            body,
            f"%x: tensor<2xf32>, %p: {kind}",
            "tensor<5xf32>",
            [np.ones(2, np.float32), np.ones(1, np.int64)],
        )


@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize(
    "left, lower, unit",
    [(True, True, False), (True, False, True), (False, True, True), (False, False, False)],
)
def test_triangular_systems(transpose, left, lower, unit):
    rows, columns = 5, 3
    whole = RNG.normal(size=(2, rows, rows)) + 3 * np.eye(rows)  # the other triangle is not to be read
    triangle = np.tril(whole) if lower else np.triu(whole)
    if unit:
        triangle = triangle - triangle * np.eye(rows) + np.eye(rows)
    matrix = triangle if transpose == "NO_TRANSPOSE" else triangle.swapaxes(1, 2)
    b = RNG.normal(size=(2, rows, columns) if left else (2, columns, rows))
    a_type, b_type = f"tensor<2x{rows}x{rows}xf64>", f"tensor<{'x'.join(map(str, b.shape))}xf64>"
    body = (
        f'%0 = "stablehlo.triangular_solve"(%a, %b) <{{left_side = {str(left).lower()}, lower = {str(lower).lower()}, '
        f"transpose_a = #stablehlo<transpose {transpose}>, unit_diagonal = {str(unit).lower()}}}> : ({a_type}, {b_type}) -> {b_type} "
        f"return %0 : {b_type}"
    )
    (made,) = run(body, f"%a: {a_type}, %b: {b_type}", b_type, [whole, b])
    wanted = (
        np.linalg.solve(matrix, b)
        if left
        else np.linalg.solve(matrix.swapaxes(1, 2), b.swapaxes(1, 2)).swapaxes(1, 2)
    )
    np.testing.assert_allclose(made, wanted, rtol=1e-10, atol=1e-12)


def test_large_triangular_systems_are_refused():
    kind = "tensor<200x200xf32>"
    body = (
        '%0 = "stablehlo.triangular_solve"(%a, %a) <{left_side = true, lower = true, transpose_a = #stablehlo<transpose NO_TRANSPOSE>, '
        f"unit_diagonal = true}}> : ({kind}, {kind}) -> {kind} return %0 : {kind}"
    )
    with pytest.raises(FrontendError, match="200 rows, more than 128"):
        run(body, f"%a: {kind}", kind, [np.eye(200, dtype=np.float32)])
