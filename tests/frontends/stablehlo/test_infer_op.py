"""`infer_op`: exact types, what breaks each constraint, hostile text. test_infer_op_mlir.py holds it against StableHLO's own."""

import time

import pytest

from aicf.errors import TypeInferenceError
from aicf.frontends.stablehlo import infer_op

ADD = '%0 = "stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>) -> tensor<f32>'
RETURN = '"stablehlo.return"(%0) : (tensor<f32>) -> ()'
SUM = f"^bb0(%a: tensor<f32>, %b: tensor<f32>): {ADD} {RETURN}"
ROWS = {"dimensions": "array<i64: 1>"}
GATHER = {
    "dimension_numbers": "#stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>",
    "slice_sizes": "array<i64: 1, 16>",
}

EXACT = [
    ("add", ["tensor<2x3xf32>"] * 2, {}, "tensor<2x3xf32>"),
    ("stablehlo.add", ["tensor<?x3xf32, #stablehlo.bounds<5, ?>>", "tensor<?x?xf32>"], {}, "tensor<?x3xf32, #stablehlo.bounds<5, ?>>"),
    ("multiply", ["tensor<?x3xf32, #stablehlo.type_extensions<bounds = [5, ?]>>", "tensor<4x3xf32>"], {}, "tensor<4x3xf32>"),
    ("maximum", ["tensor<?xi8, #stablehlo.bounds<5>>", "tensor<?xi8, #stablehlo.bounds<3>>"], {}, "tensor<?xi8, #stablehlo.bounds<3>>"),
    ("real", ["tensor<2xcomplex<f64>>"], {}, "tensor<2xf64>"),
    ("compare", ["tensor<?xbf16>"] * 2, {"comparison_direction": "#stablehlo<comparison_direction GE>"}, "tensor<?xi1>"),
    ("transpose", ["tensor<?x2x3xf32, #stablehlo.bounds<7, ?, ?>>"], {"permutation": "array<i64: 2, 0, 1>"}, "tensor<3x?x2xf32, #stablehlo.bounds<?, 7, ?>>"),
    ("concatenate", ["tensor<2x3xf32>", "tensor<2x?xf32, #stablehlo.bounds<?, 4>>"], {"dimension": "1 : i64"}, "tensor<2x?xf32, #stablehlo.bounds<?, 7>>"),
    ("pad", ["tensor<2xi32>", "tensor<i32>"], {"edge_padding_low": "array<i64: -1>", "edge_padding_high": "array<i64: 3>", "interior_padding": "array<i64: 2>"}, "tensor<6xi32>"),
    ("gather", ["tensor<8x16xf32>", "tensor<?x1xi32>"], GATHER, "tensor<?x16xf32>"),
    ("set_dimension_size", ["tensor<2x3xf32>", "tensor<i32>"], {"dimension": "0 : i64"}, "tensor<?x3xf32, #stablehlo.bounds<2, ?>>"),
    ("dot_general", ["tensor<4x2x3xf32>", "tensor<4x3x5xf32>"], {"dot_dimension_numbers":
        "#stablehlo.dot<lhs_batching_dimensions = [0], rhs_batching_dimensions = [0], lhs_contracting_dimensions = [2], rhs_contracting_dimensions = [1]>"},
     "tensor<4x2x5xf32>"),
    ("constant", [], {"value": "dense<[[1, 2], [3, 4]]> : tensor<2x2xi8>"}, "tensor<2x2xi8>"),
]  # fmt: skip


@pytest.mark.parametrize(
    "name, operands, attributes, expected", EXACT, ids=[f"{n}-{e[0]}" for n, e in enumerate(EXACT)]
)
def test_exact(name, operands, attributes, expected):
    assert infer_op(name, operands, attributes) == [expected]


def test_given_results_are_verified_and_returned():
    assert infer_op("abs", ["tensor<?xf32>"], {}, ["tensor<4xf32>"]) == ["tensor<4xf32>"]
    assert infer_op("reshape", ["tensor<6xf32>"], {}, ["tensor<2x3xf32>"]) == ["tensor<2x3xf32>"]
    with pytest.raises(TypeInferenceError) as refused:
        infer_op("reshape", ["tensor<6xf32>"], {}, ["tensor<2x4xf32>"])
    assert (refused.value.op, refused.value.constraint) == ("reshape", "C2")
    assert (
        refused.value.message == "operand is tensor<6xf32> of 6 elements, and the result tensor<2x4xf32> of 8"
    )
    with pytest.raises(TypeInferenceError, match="give result_types"):
        infer_op("reshape", ["tensor<6xf32>"], {})


def test_bodies():
    given = ["tensor<2x3xf32>", "tensor<f32>"]
    assert infer_op("reduce", given, ROWS) == ["tensor<2xf32>"]
    assert infer_op("reduce", given, ROWS, bodies=[""]) == ["tensor<2xf32>"]  # types don't need it
    wider = SUM.replace("f32", "f64")
    assert infer_op("reduce", given, ROWS, bodies=[f"{{{wider}}}"]) == ["tensor<2xf64>"]
    short = "^bb0(%a: tensor<f32>, %b: tensor<f32>): %0 = stablehlo.add %a, %b : tensor<f32> stablehlo.return %0 : tensor<f32>"
    assert infer_op("reduce", given, ROWS, ["tensor<2xf32>"], [short]) == ["tensor<2xf32>"]
    with pytest.raises(TypeInferenceError) as refused:
        infer_op("map", ["tensor<2xf32>"] * 2, {"dimensions": "array<i64: 0>"})
    assert refused.value.constraint == "I3"
    with pytest.raises(TypeInferenceError) as refused:  # an op inside of a body
        infer_op(
            "reduce",
            given,
            ROWS,
            bodies=[
                SUM.replace(
                    '"stablehlo.add"(%a, %b) : (tensor<f32>, tensor<f32>)',
                    '"stablehlo.add"(%a) : (tensor<f32>)',
                )
            ],
        )
    assert (refused.value.op, refused.value.constraint) == ("stablehlo.add", "operands")


def test_what_aicf_lacks():
    with pytest.raises(NotImplementedError, match="did you mean"):
        infer_op("ad", ["tensor<2xf32>"] * 2, {})
    with pytest.raises(NotImplementedError, match="quantized"):
        infer_op("add", ["tensor<2x!quant.uniform<i8:f32, 0.1>>"] * 2, {})


DEEP = 100_000
HOSTILE = {
    "no type": ("tensor<2x3xf32", "is no type"),
    "a control character": ("tensor<2x\x013xf32>", "is no type"),
    "tuples in tuples": ("tuple<" * DEEP, "deep"),
    "brackets": ("[" * DEEP, "is no type"),
    "a product beyond 64 bits": ("tensor<4294967296x4294967296x4294967296xf32>", "more elements"),
    "a size beyond 64 bits": (f"tensor<{2**63}xf32>", "64 bits"),
    "a size of many digits": (f"tensor<{'9' * 1_000_000}xf32>", "64 bits"),
    "many dimensions": ("tensor<" + "2x" * DEEP + "f32>", "more elements"),
    "another rank of bounds": ("tensor<?xf32, #stablehlo.bounds<1, 2>>", "bounds"),
}


@pytest.mark.parametrize("text, said", HOSTILE.values(), ids=HOSTILE)
def test_hostile_types(text, said):
    began = time.process_time()
    with pytest.raises(TypeInferenceError, match=said) as refused:
        infer_op("abs", [text], {})
    assert time.process_time() - began < 1
    assert len(str(refused.value)) < 2000 and refused.value.constraint == "I1"


HOSTILE_ATTRIBUTES = {
    "lists in lists": "[" * DEEP,
    "dictionaries in dictionaries": "{a = " * DEEP,
    "another kind": "dense<0> : tensor<2xi64>",
    "not closed": "array<i64: 0, 1",
    "too large": f"array<i64: {2**64}>",
    "an enormous number": f"array<i64: {'1' * 1_000_000}>",
    "a record without end": "#stablehlo.gather<" * DEEP,
    "two types": "array<i64: 0> : i64 : i64",
}


@pytest.mark.parametrize("text", HOSTILE_ATTRIBUTES.values(), ids=HOSTILE_ATTRIBUTES)
def test_hostile_attributes(text):
    began = time.process_time()
    with pytest.raises(TypeInferenceError) as refused:
        infer_op("transpose", ["tensor<2x3xf32>"], {"permutation": text})
    assert time.process_time() - began < 1
    assert len(str(refused.value)) < 2000 and refused.value.constraint == "I2"


def test_elements_that_would_fill_memory():
    with pytest.raises(TypeInferenceError, match="64 bits"):
        infer_op("constant", [], {"value": "dense<0> : tensor<4294967296x4294967296xi64>"})
    assert infer_op("constant", [], {"value": "dense<0> : tensor<1099511627776xi64>"}) == [
        "tensor<1099511627776xi64>"
    ]  # 2^40, as one number
    with pytest.raises(TypeInferenceError, match="64 bits"):
        infer_op("concatenate", [f"tensor<{2**62}xi8>"] * 3, {"dimension": "0 : i64"})
    with pytest.raises(TypeInferenceError, match="64 bits"):
        infer_op("broadcast", [f"tensor<{2**40}xi8>"], {"broadcast_sizes": f"array<i64: {2**40}>"})


HOSTILE_BODIES = {
    "bodies in bodies": '%0 = "stablehlo.if"(%p) ({' * 10_000,
    "no end": "^bb0(%a: tensor<f32>, %b: tensor<f32>):",
    "two blocks": f"{SUM} ^bb1: {RETURN}",
    "no value": "^bb0(%a: tensor<f32>, %b: tensor<f32>): " + RETURN.replace("%0", "%a").replace("f32", "f64"),
    "defined twice": f"^bb0(%a: tensor<f32>, %a: tensor<f32>): {ADD} {RETURN}",
    "text": "return the sum",
    "a function's end": SUM.replace("stablehlo.return", "func.return"),
    "ops without end": "^bb0(%a: tensor<f32>, %b: tensor<f32>): "
    + " ".join(ADD.replace("%0", f"%{n}") for n in range(1000)),
}


@pytest.mark.parametrize("text", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
def test_hostile_bodies(text):
    began = time.process_time()
    with pytest.raises(TypeInferenceError) as refused:
        infer_op("reduce", ["tensor<2x3xf32>", "tensor<f32>"], ROWS, bodies=[text])
    assert time.process_time() - began < 1.5
    assert len(str(refused.value)) < 2000 and refused.value.constraint == "bodies"
