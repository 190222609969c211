"""A valid instance of ops, and for each constraint what breaks it: one change of the instance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .mlir_worker import Instance

F = "tensor<2x3xf32>"
SUM = "^bb0(%a: tensor<f32>, %b: tensor<f32>): %0 = stablehlo.add %a, %b : tensor<f32> stablehlo.return %0 : tensor<f32>"
LESS = (
    "^bb0(%a: tensor<f32>, %b: tensor<f32>): %0 = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1> "
    "stablehlo.return %0 : tensor<i1>"
)
RETURN = "stablehlo.return %x : tensor<f32>"


def ints(*values: int) -> str:
    return f"array<i64: {', '.join(map(str, values))}>" if values else "array<i64>"


def i64(value: int) -> str:
    return f"{value} : i64"


def dims(kind: str, **fields: Any) -> str:
    return f"#stablehlo.{kind}<{', '.join(f'{name} = {value}' for name, value in fields.items())}>"


DOT = {
    "lhs_batching_dimensions": [0], "rhs_batching_dimensions": [0], "lhs_contracting_dimensions": [2], "rhs_contracting_dimensions": [1],
}  # fmt: skip
ALGORITHM = {
    "lhs_precision_type": "f16", "rhs_precision_type": "f16", "accumulation_type": "f32", "lhs_component_count": 1, "rhs_component_count": 1,
    "num_primitive_operations": 1, "allow_imprecise_accumulation": "false",
}  # fmt: skip
GATHER = {
    "offset_dims": [1], "collapsed_slice_dims": [1], "operand_batching_dims": [0], "start_indices_batching_dims": [0], "start_index_map": [1],
    "index_vector_dim": 2,
}  # fmt: skip
SCATTER = {
    "update_window_dims": [1], "inserted_window_dims": [1], "input_batching_dims": [0], "scatter_indices_batching_dims": [0],
    "scatter_dims_to_operand_dims": [1], "index_vector_dim": 1,
}  # fmt: skip
CONV = {
    "input_batch_dimension": 0, "input_feature_dimension": 1, "input_spatial_dimensions": [2], "kernel_input_feature_dimension": 1,
    "kernel_output_feature_dimension": 0, "kernel_spatial_dimensions": [2], "output_batch_dimension": 0, "output_feature_dimension": 1,
    "output_spatial_dimensions": [2],
}  # fmt: skip


def conv(**fields: Any) -> str:
    return f"#stablehlo.conv<raw {', '.join(f'{name} = {value}' for name, value in (CONV | fields).items())}>"


def gather(**fields: Any) -> dict[str, str]:
    return {"dimension_numbers": dims("gather", **(GATHER | fields))}


def scatter(**fields: Any) -> dict[str, str]:
    return {"scatter_dimension_numbers": dims("scatter", **(SCATTER | fields))}


def dot(**fields: Any) -> dict[str, str]:
    return {"dot_dimension_numbers": dims("dot", **(DOT | fields))}


GROUPS = "dense<[[0, 1]]> : tensor<1x2xi64>"
WINDOW = {
    "window_dimensions": ints(1, 2),
    "window_strides": ints(1, 1),
    "padding": "dense<0> : tensor<2x2xi64>",
}
_CONVOLVED = {
    "window_strides": ints(1), "lhs_dilation": ints(1), "rhs_dilation": ints(1), "window_reversal": "array<i1: false>",
    "dimension_numbers": conv(), "feature_group_count": i64(1), "batch_group_count": i64(1), "precision_config": "[]",
}  # fmt: skip
_ROW = "tensor<3xf32>"
_NORM = {"epsilon": "0.1 : f32", "feature_index": i64(1)}
_SOLVE = {
    "left_side": "true",
    "lower": "true",
    "unit_diagonal": "false",
    "transpose_a": "#stablehlo<transpose ADJOINT>",
}

BASES: dict[str, Instance] = {
    "abs": Instance("abs", [F]),
    "add": Instance("add", [F, F], {}, [F]),
    "multiply": Instance("multiply", [F, F], {}, [F]),
    "tanh": Instance("tanh", [F], {"result_accuracy": "#stablehlo.result_accuracy<ulps = 1, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>"}),
    "convert": Instance("convert", [F], {}, ["tensor<2x3xi32>"]),
    "reduce_precision": Instance("reduce_precision", [F], {"exponent_bits": "5 : i32", "mantissa_bits": "2 : i32"}),
    "complex": Instance("complex", [F, F]),
    "compare": Instance("compare", [F, F], {"comparison_direction": "#stablehlo<comparison_direction LT>"}),
    "select": Instance("select", ["tensor<2x3xi1>", F, F]),
    "clamp": Instance("clamp", ["tensor<f32>", F, F]),
    "bitcast_convert": Instance("bitcast_convert", [F], {}, ["tensor<2x3x4xi8>"]),
    "constant": Instance("constant", [], {"value": f"dense<1.0> : {F}"}, [F]),
    "iota": Instance("iota", [], {"iota_dimension": i64(1)}, [F]),
    "reshape": Instance("reshape", [F], {}, ["tensor<6xf32>"]),
    "broadcast": Instance("broadcast", [F], {"broadcast_sizes": ints(4)}),
    "broadcast_in_dim": Instance("broadcast_in_dim", [F], {"broadcast_dimensions": ints(2, 0)}, ["tensor<3x5x2xf32>"]),
    "transpose": Instance("transpose", [F], {"permutation": ints(1, 0)}),
    "slice": Instance("slice", [F], {"start_indices": ints(0, 1), "limit_indices": ints(2, 3), "strides": ints(1, 2)}),
    "pad": Instance("pad", [F, "tensor<f32>"], {"edge_padding_low": ints(0, 1), "edge_padding_high": ints(0, -1), "interior_padding": ints(0, 2)}),
    "concatenate": Instance("concatenate", [F, F], {"dimension": i64(0)}),
    "reverse": Instance("reverse", [F], {"dimensions": ints(0, 1)}),
    "dynamic_broadcast_in_dim": Instance(
        "dynamic_broadcast_in_dim", [F, "tensor<3xi32>"],
        {"broadcast_dimensions": ints(2, 0), "known_expanding_dimensions": ints(0), "known_nonexpanding_dimensions": ints(1)}, ["tensor<3x?x2xf32>"],
    ),
    "dynamic_iota": Instance("dynamic_iota", ["tensor<2xi32>"], {"iota_dimension": i64(1)}, [F]),
    "dynamic_reshape": Instance("dynamic_reshape", [F, "tensor<1xi32>"], {}, ["tensor<6xf32>"]),
    "dynamic_pad": Instance("dynamic_pad", [F, "tensor<f32>", *["tensor<2xi32>"] * 3], {}, ["tensor<?x?xf32>"]),
    "real_dynamic_slice": Instance("real_dynamic_slice", [F, *["tensor<2xi32>"] * 3], {}, ["tensor<?x?xf32>"]),
    "dynamic_slice": Instance("dynamic_slice", [F, "tensor<i32>", "tensor<i32>"], {"slice_sizes": ints(1, 3)}),
    "dynamic_update_slice": Instance("dynamic_update_slice", [F, "tensor<1x3xf32>", "tensor<i32>", "tensor<i32>"]),
    "get_dimension_size": Instance("get_dimension_size", [F], {"dimension": i64(1)}),
    "set_dimension_size": Instance("set_dimension_size", [F, "tensor<i32>"], {"dimension": i64(1)}),
    "torch_index_select": Instance("torch_index_select", [F, "tensor<2xi32>"], {"dim": i64(0), "batch_dims": i64(0)}, [F]),
    "einsum": Instance("einsum", [F, F], {"einsum_config": '"ab,ab->ab"'}, [F]),
    "unary_einsum": Instance("unary_einsum", [F], {"einsum_config": '"ab->ab"'}, [F]),
    "gather": Instance("gather", ["tensor<4x8x16xf32>", "tensor<4x5x1xi32>"], {**gather(), "slice_sizes": ints(1, 1, 16)}),
    "dynamic_gather": Instance("dynamic_gather", ["tensor<4x8x16xf32>", "tensor<4x5x1xi32>", "tensor<3xi32>"], gather()),
    "dot": Instance("dot", [F, "tensor<3x4xf32>"], {"precision_config": "[]"}),
    "dot_general": Instance("dot_general", ["tensor<4x2x3xf32>", "tensor<4x3x5xf32>"], dot(), ["tensor<4x2x5xf32>"]),
    "reduce": Instance("reduce", [F, "tensor<f32>"], {"dimensions": ints(0)}, [_ROW], [SUM]),
    "map": Instance("map", [F, F], {"dimensions": ints(0, 1)}, [F], [SUM]),
    "sort": Instance("sort", [F], {"dimension": i64(-2)}, [F], [LESS]),
    "convolution": Instance("convolution", ["tensor<2x4x8xf32>", "tensor<6x4x3xf32>"], {**_CONVOLVED, "padding": "dense<0> : tensor<1x2xi64>"}, ["tensor<2x6x6xf32>"]),
    "dynamic_conv": Instance("dynamic_conv", ["tensor<2x4x8xf32>", "tensor<6x4x3xf32>", "tensor<1x2xi32>"], _CONVOLVED, ["tensor<2x6x?xf32>"]),
    "reduce_window": Instance(
        "reduce_window", [F, "tensor<f32>"], {**WINDOW, "base_dilations": ints(1, 1), "window_dilations": ints(1, 1)}, ["tensor<2x2xf32>"], [SUM]
    ),
    "select_and_scatter": Instance("select_and_scatter", [F, "tensor<2x2xf32>", "tensor<f32>"], WINDOW, [F], [LESS, SUM]),
    "scatter": Instance("scatter", ["tensor<4x8x16xf32>", "tensor<4x1xi32>", "tensor<4x16xf32>"], scatter(), ["tensor<4x8x16xf32>"], [SUM]),
    "while": Instance(
        "while", ["tensor<f32>"], {}, ["tensor<f32>"],
        ["^bb0(%x: tensor<f32>): stablehlo.return %p : tensor<i1>", f"^bb0(%x: tensor<f32>): {RETURN}"],
    ),
    "if": Instance("if", ["tensor<i1>"], {}, ["tensor<f32>"], [RETURN, RETURN]),
    "case": Instance("case", ["tensor<i32>"], {}, ["tensor<f32>"], [RETURN, RETURN, RETURN]),
    "get_tuple_element": Instance("get_tuple_element", [f"tuple<{F}, {_ROW}>"], {"index": "1 : i32"}),
    "optimization_barrier": Instance("optimization_barrier", [F, _ROW], {}, [F, _ROW]),
    "batch_norm_grad": Instance("batch_norm_grad", [F, _ROW, _ROW, _ROW, F], _NORM),
    "batch_norm_inference": Instance("batch_norm_inference", [F, _ROW, _ROW, _ROW, _ROW], _NORM),
    "batch_norm_training": Instance("batch_norm_training", [F, _ROW, _ROW], _NORM),
    "cholesky": Instance("cholesky", ["tensor<2x3x3xf32>"]),
    "triangular_solve": Instance("triangular_solve", ["tensor<2x3x3xf32>", "tensor<2x3x4xf32>"], _SOLVE),
    "fft": Instance("fft", ["tensor<2x8xf32>"], {"fft_type": "#stablehlo<fft_type RFFT>", "fft_length": ints(8)}),
    "irfft": Instance("fft", ["tensor<4x5xcomplex<f32>>"], {"fft_type": "#stablehlo<fft_type IRFFT>", "fft_length": ints(4, 8)}),
    "rng": Instance("rng", ["tensor<f32>", "tensor<f32>", "tensor<2xi64>"], {"rng_distribution": "#stablehlo<rng_distribution NORMAL>"}),
    "rng_bit_generator": Instance(
        "rng_bit_generator", ["tensor<2xui64>"], {"rng_algorithm": "#stablehlo<rng_algorithm PHILOX>"}, ["tensor<2xui64>", "tensor<4xui32>"]
    ),
    "all_gather": Instance("all_gather", [F], {"all_gather_dim": i64(0), "replica_groups": GROUPS}, ["tensor<4x3xf32>"]),
    "all_to_all": Instance("all_to_all", [F], {"split_dimension": i64(0), "concat_dimension": i64(1), "split_count": i64(2), "replica_groups": GROUPS}),
    "reduce_scatter": Instance("reduce_scatter", [F], {"scatter_dimension": i64(0), "replica_groups": GROUPS}, ["tensor<1x3xf32>"], [SUM]),
    "all_reduce": Instance("all_reduce", [F], {"replica_groups": GROUPS}, [F], [SUM]),
    "collective_permute": Instance("collective_permute", [F], {"source_target_pairs": "dense<[[0, 1], [1, 0]]> : tensor<2x2xi64>"}),
    "collective_broadcast": Instance("collective_broadcast", [F], {"replica_groups": GROUPS}),
}  # fmt: skip

Change = tuple[
    str, str, dict[str, Any]
]  # base, constraint, what to put where: 0 the first operand, "strides" an attribute


def _body(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


_ALGORITHM = ["lhs_component_count", "rhs_component_count", "num_primitive_operations"]
_HUGE = "tensor<4611686018427387904xf32>"
_MODE = "mode = #stablehlo.result_accuracy_mode"
_REDUCER: list[tuple[dict[str, str], str]] = [  # what breaks a body that joins two values
    ({"(%a: tensor<f32>, %b: tensor<f32>)": "(%a: tensor<f32>)", "%a, %b": "%a, %a"}, "arguments"),
    ({"stablehlo.return %0 : tensor<f32>": '"stablehlo.return"() : () -> ()'}, "nothing returned"),
    ({"stablehlo.return %0 : tensor<f32>": "stablehlo.return %t : !stablehlo.token"}, "no tensor"),
    ({"stablehlo.return %0 : tensor<f32>": "stablehlo.return %t : tensor<f64>"}, "the first argument"),
    ({"%b: tensor<f32>": "%b: tensor<i32>", "%a, %b": "%a, %a"}, "the second argument"),
    ({"tensor<f32>": "tensor<1xf32>"}, "another shape"),
    ({"tensor<f32>": "tensor<i32>"}, "not promotable"),
]


def _reducers(base: str, constraint: str, place: int = 0) -> list[Change]:
    made: list[Change] = []
    for changes, _ in _REDUCER:
        text = SUM
        for old, new in changes.items():
            text = _body(text, old, new)
        bodies = list(BASES[base].bodies or ())
        bodies[place] = text
        made.append((base, constraint, {"bodies": bodies, "results": None}))
    return made


CHANGES: list[Change] = [
    ("abs", "I1", {0: "tensor<2xi1>"}),
    ("abs", "operands", {"operands": [F, F]}),
    ("abs", "result", {"results": [F, F]}),
    ("abs", "C1", {"results": ["tensor<3xf32>"]}),
    ("abs", "result", {"results": ["tensor<2x3xcomplex<f32>>"]}),
    ("abs", "bodies", {"bodies": [SUM]}),
    ("add", "C1", {1: "tensor<2xf32>"}),
    ("add", "C1", {1: "tensor<2x3xf16>"}),
    ("add", "", {0: "tensor<?x3xf32, #stablehlo.bounds<1, ?>>", "results": None}),
    ("multiply", "C1", {1: "tensor<3x3xf32>"}),
    ("multiply", "C1", {"results": ["tensor<2x3xi32>"]}),
    ("multiply", "C1", {0: "tensor<?x?xf32>", 1: F, "results": ["tensor<3x3xf32>"]}),
    ("tanh", "I2", {"result_accuracy": f"#stablehlo.result_accuracy<ulps = -1, {_MODE}<TOLERANCE>>"}),
    ("tanh", "I2", {"result_accuracy": f"#stablehlo.result_accuracy<ulps = 1, {_MODE}<HIGHEST>>"}),
    ("tanh", "I2", {"result_accuracy": "#stablehlo.result_accuracy<ulps = 1>"}),
    ("convert", "result", {"results": None}),
    ("convert", "C1", {"results": ["tensor<2x4xi32>"]}),
    ("reduce_precision", "C2", {"exponent_bits": "0 : i32"}),
    ("reduce_precision", "C3", {"mantissa_bits": "-1 : i32"}),
    ("reduce_precision", "I2", {"exponent_bits": "5 : i64"}),
    ("reduce_precision", "I3", {"mantissa_bits": None}),
    ("complex", "C1", {1: "tensor<2x3xf64>"}),
    ("complex", "C2", {1: "tensor<2x2xf32>"}),
    ("complex", "I1", {0: "tensor<2x3xf16>"}),
    ("compare", "C1", {1: "tensor<2x3xi32>"}),
    ("compare", "C2", {1: "tensor<2x2xf32>"}),
    ("compare", "I3", {"comparison_direction": "#stablehlo<comparison_direction LESS>"}),
    ("select", "C1", {0: "tensor<3x3xi1>"}),
    ("select", "C2", {1: "tensor<2x3xf64>"}),
    ("select", "C2", {2: "tensor<2x2xf32>"}),
    ("select", "I1", {0: "tensor<i8>"}),
    ("clamp", "C1", {0: _ROW}),
    ("clamp", "C2", {2: _ROW}),
    ("clamp", "C3", {0: "tensor<f64>"}),
    ("bitcast_convert", "C1", {"results": ["tensor<2x3x3xi8>"]}),
    ("bitcast_convert", "C1", {"results": ["tensor<2x3xi8>"]}),
    ("bitcast_convert", "C1", {"results": ["tensor<2x2x4xi8>"]}),
    ("bitcast_convert", "C2", {"results": ["tensor<2xcomplex<f32>>"]}),
    ("bitcast_convert", "result", {"results": None}),
    ("iota", "result", {"results": None}),
    ("reshape", "result", {"results": None}),
    ("broadcast_in_dim", "result", {"results": None}),
    ("slice", "C5", {"results": ["tensor<2x2xf32>"]}),
    ("constant", "C1", {"results": ["tensor<2x4xf32>"]}),
    ("constant", "I1", {"value": "1.0 : f32"}),
    ("iota", "C1", {"iota_dimension": i64(2)}),
    ("iota", "C1", {"iota_dimension": i64(-1)}),
    ("reshape", "C2", {"results": ["tensor<5xf32>"]}),
    ("reshape", "C1", {"results": ["tensor<6xf64>"]}),
    ("reshape", "result", {"results": ["tensor<?xf32>"]}),
    ("broadcast", "I2", {"broadcast_sizes": ints(-1)}),
    ("broadcast", "result", {0: _HUGE}),
    ("broadcast_in_dim", "C2", {"broadcast_dimensions": ints(2)}),
    ("broadcast_in_dim", "C3", {"broadcast_dimensions": ints(3, 0)}),
    ("broadcast_in_dim", "C4", {"broadcast_dimensions": ints(0, 0)}),
    ("broadcast_in_dim", "C5", {"broadcast_dimensions": ints(1, 0)}),
    ("broadcast_in_dim", "C1", {"results": ["tensor<3x5x2xf64>"]}),
    ("transpose", "C2", {"permutation": ints(0, 0)}),
    ("transpose", "C2", {"permutation": ints(0)}),
    ("slice", "C2", {"strides": ints(1)}),
    ("slice", "C3", {"start_indices": ints(-1, 1)}),
    ("slice", "C3", {"limit_indices": ints(2, 4)}),
    ("slice", "C3", {"start_indices": ints(2, 3), "limit_indices": ints(1, 3)}),
    ("slice", "C4", {"strides": ints(0, 1)}),
    ("pad", "C1", {1: "tensor<i32>"}),
    ("pad", "C2", {"edge_padding_low": ints(0)}),
    ("pad", "C3", {"interior_padding": ints(0, -1)}),
    ("pad", "C4", {"edge_padding_low": ints(-3, 1)}),
    ("pad", "C4", {"edge_padding_low": ints(2**63 - 1, 1)}),
    ("pad", "I2", {1: _ROW}),
    ("concatenate", "C1", {1: "tensor<2x3xf64>"}),
    ("concatenate", "C2", {1: "tensor<2x4xf32>"}),
    ("concatenate", "C3", {"operands": []}),
    ("concatenate", "C4", {"dimension": i64(2)}),
    ("concatenate", "C6", {"operands": [f"tensor<{2**62}x0xf32>", f"tensor<{2**62}x0xf32>"]}),
    ("concatenate", "C6", {"operands": [f"tensor<?x0xf32, #stablehlo.bounds<{2**62}, ?>>"] * 2}),
    ("reverse", "C2", {"dimensions": ints(1, 1)}),
    ("reverse", "C3", {"dimensions": ints(2)}),
    ("dynamic_broadcast_in_dim", "C1", {0: "tensor<2x3xf64>"}),
    ("dynamic_broadcast_in_dim", "C2", {"broadcast_dimensions": ints(2)}),
    ("dynamic_broadcast_in_dim", "C3", {"broadcast_dimensions": ints(3, 0)}),
    ("dynamic_broadcast_in_dim", "C3", {"results": ["tensor<3xf32>"]}),
    ("dynamic_broadcast_in_dim", "C4", {"broadcast_dimensions": ints(0, 0)}),
    ("dynamic_broadcast_in_dim", "C5", {"broadcast_dimensions": ints(0, 2)}),
    ("dynamic_broadcast_in_dim", "C8", {"known_expanding_dimensions": ints(1)}),
    ("dynamic_broadcast_in_dim", "C9", {"known_expanding_dimensions": ints(2)}),
    ("dynamic_broadcast_in_dim", "C10", {"known_nonexpanding_dimensions": ints(2)}),
    ("dynamic_broadcast_in_dim", "I2", {1: "tensor<?xi32>"}),
    ("dynamic_broadcast_in_dim", "result", {"results": None}),
    ("dynamic_iota", "C1", {"iota_dimension": i64(2)}),
    ("dynamic_iota", "result", {"results": None}),
    ("dynamic_reshape", "C1", {"results": ["tensor<6xf64>"]}),
    ("dynamic_reshape", "C2", {"results": ["tensor<7xf32>"]}),
    ("dynamic_reshape", "C4", {"results": ["tensor<6x1xf32>"]}),
    ("dynamic_reshape", "result", {1: "tensor<65xi32>", "results": None}),
    ("dynamic_pad", "C1", {1: "tensor<i32>"}),
    ("dynamic_pad", "C2", {2: "tensor<2xi64>"}),
    ("dynamic_pad", "C2", {0: _ROW}),
    ("dynamic_pad", "C4", {"results": ["tensor<?xf32>"]}),
    ("real_dynamic_slice", "C1", {1: "tensor<2xi64>"}),
    ("real_dynamic_slice", "C2", {0: _ROW}),
    ("real_dynamic_slice", "C3", {"results": ["tensor<?x?xf64>"]}),
    ("real_dynamic_slice", "result", {"results": None}),
    ("dynamic_slice", "C2", {"slice_sizes": ints(1)}),
    ("dynamic_slice", "C3", {1: "tensor<i64>"}),
    ("dynamic_slice", "C4", {"slice_sizes": ints(1, 4)}),
    ("dynamic_slice", "C1", {"results": ["tensor<1x3xf64>"]}),
    ("dynamic_update_slice", "C1", {"results": ["tensor<2x3xf64>"]}),
    ("dynamic_update_slice", "C2", {1: "tensor<1x3xf64>"}),
    ("dynamic_update_slice", "C3", {1: _ROW}),
    ("dynamic_update_slice", "C4", {"operands": [F, F, "tensor<i32>"]}),
    ("dynamic_update_slice", "C5", {3: "tensor<i64>"}),
    ("dynamic_update_slice", "C6", {1: "tensor<3x3xf32>"}),
    ("get_dimension_size", "C1", {"dimension": i64(2)}),
    ("get_dimension_size", "C1", {"dimension": i64(-1)}),
    ("set_dimension_size", "C1", {"dimension": i64(2)}),
    ("set_dimension_size", "I2", {1: "tensor<1xi32>"}),
    ("torch_index_select", "result", {"results": None}),
    ("einsum", "result", {"results": None}),
    ("unary_einsum", "result", {"results": None}),
    ("gather", "C1", gather(offset_dims=[])),
    ("gather", "C2", gather(index_vector_dim=4)),
    ("gather", "C3", gather(start_index_map=[1, 2])),
    ("gather", "C4", {0: "tensor<4x8x16x2xf32>", "slice_sizes": ints(1, 1, 16, 2), **gather(offset_dims=[2, 1])}),
    ("gather", "C4", {0: "tensor<4x8x16x2xf32>", "slice_sizes": ints(1, 1, 16, 2), **gather(offset_dims=[1, 1])}),
    ("gather", "C5", gather(offset_dims=[3])),
    ("gather", "C6", gather(collapsed_slice_dims=[0])),
    ("gather", "C7", {0: "tensor<4x8x2x16xf32>", "slice_sizes": ints(1, 1, 1, 16), **gather(collapsed_slice_dims=[2, 1])}),
    ("gather", "C8", gather(collapsed_slice_dims=[3])),
    ("gather", "C9", {"slice_sizes": ints(1, 2, 16)}),
    ("gather", "C10", {0: "tensor<4x5x8x16xf32>", "slice_sizes": ints(1, 1, 1, 16), **gather(operand_batching_dims=[2, 0], collapsed_slice_dims=[1])}),
    ("gather", "C11", gather(operand_batching_dims=[3])),
    ("gather", "C12", {"slice_sizes": ints(2, 1, 16)}),
    ("gather", "C13", gather(start_indices_batching_dims=[0, 0])),
    ("gather", "C14", gather(start_indices_batching_dims=[3])),
    ("gather", "C15", gather(start_indices_batching_dims=[2])),
    ("gather", "C16", gather(start_indices_batching_dims=[0, 1])),
    ("gather", "C17", gather(start_indices_batching_dims=[1])),
    ("gather", "C18", gather(start_index_map=[0])),
    ("gather", "C19", gather(start_index_map=[3])),
    ("gather", "C20", {"slice_sizes": ints(1, 1)}),
    ("gather", "C21", {"slice_sizes": ints(1, 1, 17)}),
    ("gather", "C23", {"results": ["tensor<4x16x5xf64>"]}),
    ("gather", "I1", {0: "tensor<4x8x16xsi32>"}),
    ("gather", "I10", {"indices_are_sorted": "1 : i64"}),
    ("dynamic_gather", "C11", {2: "tensor<2xi32>"}),
    ("dynamic_gather", "C10", gather(start_index_map=[3])),
    ("dynamic_gather", "C7", gather(collapsed_slice_dims=[3])),
    ("dot", "C1", {1: "tensor<4x4xf32>"}),
    ("dot", "C2", {"results": ["tensor<2x5xf32>"]}),
    ("dot", "I3", {"precision_config": f"[{', '.join(['#stablehlo<precision HIGH>'] * 3)}]"}),
    ("dot_general", "C1", dot(lhs_batching_dimensions=[])),
    ("dot_general", "C2", dot(lhs_contracting_dimensions=[])),
    ("dot_general", "C3", dot(lhs_contracting_dimensions=[0])),
    ("dot_general", "C4", dot(rhs_contracting_dimensions=[0])),
    ("dot_general", "C5", dot(lhs_batching_dimensions=[3])),
    ("dot_general", "C6", dot(lhs_contracting_dimensions=[3])),
    ("dot_general", "C7", dot(rhs_batching_dimensions=[3])),
    ("dot_general", "C8", dot(rhs_contracting_dimensions=[3])),
    ("dot_general", "C9", {1: "tensor<5x3x5xf32>"}),
    ("dot_general", "C10", {1: "tensor<4x4x5xf32>"}),
    ("dot_general", "C11", {"precision_config": f"[{', '.join(['#stablehlo<precision HIGH>'] * 3)}]"}),
    ("dot_general", "C12", {"results": ["tensor<4x2x3xf32>"]}),
    ("dot_general", "C21", {"precision_config": "[#stablehlo<precision HIGH>]", "algorithm": dims("dot_algorithm", **ALGORITHM)}),
    *[
        ("dot_general", f"C{22 + n}", {"algorithm": dims("dot_algorithm", **(ALGORITHM | {name: 0}))})
        for n, name in enumerate(_ALGORITHM)
    ],
    ("dot_general", "I8", {"algorithm": dims("dot_algorithm", **(ALGORITHM | {"num_primitive_operations": 5}))}),
    ("reduce", "C1", {"operands": [F, "tensor<2x2xf32>", "tensor<f32>", "tensor<f32>"], "bodies": None, "results": None}),
    ("reduce", "C3", {"operands": [], "bodies": None, "results": None}),
    ("reduce", "operands", {"operands": [F, F, "tensor<f32>"]}),
    ("reduce", "C4", {"dimensions": ints(2)}),
    ("reduce", "C5", {"dimensions": ints(0, 0)}),
    ("reduce", "bodies", {"bodies": [""]}),
    ("reduce", "C6", {1: "tensor<f64>", "results": None, "bodies": [SUM.replace("f32", "i32")]}),
    ("reduce", "C6", {1: "tensor<i32>", "results": None, "bodies": [SUM.replace("f32", "i32")]}),
    ("reduce", "C6", {0: "tensor<2x3xi32>", "results": None}),
    ("reduce", "C6", {1: "tensor<1xf32>", "bodies": [SUM.replace("tensor<f32>", "tensor<1xf32>")], "results": None}),
    *_reducers("reduce", "C6"),
    ("map", "C1", {0: "tensor<2x4xf32>"}),
    ("map", "C2", {"operands": [], "bodies": ["stablehlo.return %0 : tensor<f32>"]}),
    ("map", "C3", {"dimensions": ints(1, 0)}),
    ("map", "C3", {"dimensions": ints(0)}),
    ("map", "C4", {"operands": [F]}),
    ("map", "C4", {1: "tensor<2x3xf64>"}),
    ("map", "C4", {"bodies": [SUM.replace("return %0 : tensor<f32>", "return %0, %0 : tensor<f32>, tensor<f32>")]}),
    ("map", "I3", {"bodies": [""], "results": None}),
    ("sort", "C1", {"operands": [], "results": None, "bodies": None}),
    ("sort", "C3", {"operands": [F, "tensor<2x2xf32>"], "results": None, "bodies": None}),
    ("sort", "C4", {"dimension": i64(2)}),
    ("sort", "C5", {"operands": [F, F], "results": [F, F]}),
    ("sort", "C5", {0: "tensor<2x3xf64>", "results": ["tensor<2x3xf64>"]}),
    ("sort", "C5", {"bodies": [SUM]}),
    ("convolution", "C1", {1: "tensor<6x4xf32>"}),
    ("convolution", "C2", {"window_strides": ints(1, 1)}),
    ("convolution", "C3", {"window_strides": ints(0)}),
    ("convolution", "C4", {"padding": "dense<0> : tensor<2x2xi64>"}),
    ("convolution", "C4", {"padding": "dense<0> : tensor<2xi64>"}),
    ("convolution", "C4", {"padding": "dense<0> : tensor<1x3xi64>"}),
    ("convolution", "C5", {"lhs_dilation": ints(1, 1)}),
    ("convolution", "C6", {"lhs_dilation": ints(0)}),
    ("convolution", "C7", {"rhs_dilation": ints(1, 1)}),
    ("convolution", "C8", {"rhs_dilation": ints(0)}),
    ("convolution", "C9", {"window_reversal": "array<i1: false, true>"}),
    ("convolution", "C10", {"batch_group_count": i64(3)}),
    ("convolution", "C11", {"feature_group_count": i64(3)}),
    ("convolution", "C12", {0: "tensor<2x4x8x8xf32>", 1: "tensor<6x4x3x3xf32>"}),
    ("convolution", "C13", {"dimension_numbers": conv(input_batch_dimension=1)}),
    ("convolution", "C13", {"dimension_numbers": conv(input_batch_dimension=3)}),
    ("convolution", "C13", {0: "tensor<2xf32>"}),
    ("convolution", "C14", {1: "tensor<6x3x3xf32>"}),
    ("convolution", "C15", {0: "tensor<4x4x8xf32>", "batch_group_count": i64(4)}),
    ("convolution", "C16", {1: "tensor<6x1x3xf32>", "feature_group_count": i64(4)}),
    ("convolution", "C17", {"dimension_numbers": conv(kernel_spatial_dimensions=[])}),
    ("convolution", "C18", {"dimension_numbers": conv(kernel_input_feature_dimension=0)}),
    ("convolution", "C19", {"dimension_numbers": conv(output_spatial_dimensions=[])}),
    ("convolution", "C20", {"dimension_numbers": conv(output_batch_dimension=1)}),
    ("convolution", "C21", {"feature_group_count": i64(0)}),
    ("convolution", "C22", {"batch_group_count": i64(0)}),
    ("convolution", "C23", {"feature_group_count": i64(2), "batch_group_count": i64(2)}),
    ("convolution", "C24", {"precision_config": f"[{', '.join(['#stablehlo<precision HIGH>'] * 3)}]"}),
    ("convolution", "C25", {"results": ["tensor<2x6x7xf32>"]}),
    ("convolution", "C25", {1: "tensor<6x4x0xf32>"}),
    ("convolution", "C25", {"padding": f"dense<{2**62}> : tensor<1x2xi64>"}),
    ("convolution", "C25", {"rhs_dilation": ints(2**63 - 1)}),
    ("convolution", "C27", {1: "tensor<6x4x3xf64>"}),
    ("dynamic_conv", "C4", {2: "tensor<2x2xi32>"}),
    ("dynamic_conv", "C1", {1: "tensor<6x4xf32>"}),
    ("dynamic_conv", "result", {"results": None}),
    ("reduce_window", "C1", {"operands": [], "results": None, "bodies": None}),
    ("reduce_window", "C2", {"operands": [F, "tensor<2x2xf32>", "tensor<f32>", "tensor<f32>"], "results": None, "bodies": None}),
    ("reduce_window", "C4", {"window_dimensions": ints(2)}),
    ("reduce_window", "C5", {"window_dimensions": ints(0, 1)}),
    ("reduce_window", "C6", {"window_strides": ints(1)}),
    ("reduce_window", "C7", {"window_strides": ints(1, 0)}),
    ("reduce_window", "C8", {"base_dilations": ints(1)}),
    ("reduce_window", "C9", {"base_dilations": ints(1, 0)}),
    ("reduce_window", "C10", {"window_dilations": ints(1)}),
    ("reduce_window", "C11", {"window_dilations": ints(1, 0)}),
    ("reduce_window", "C12", {"padding": "dense<0> : tensor<1x2xi64>"}),
    *_reducers("reduce_window", "C13")[:6],
    ("reduce_window", "C15", {"results": ["tensor<2x3xf32>"]}),
    ("select_and_scatter", "C1", {1: "tensor<2x2xi32>", "bodies": None, "results": None}),
    ("select_and_scatter", "C2", {1: "tensor<2x3xf32>"}),
    ("select_and_scatter", "C4", {"window_dimensions": ints(1)}),
    ("select_and_scatter", "C5", {"window_dimensions": ints(1, 0)}),
    ("select_and_scatter", "C6", {"window_strides": ints(1)}),
    ("select_and_scatter", "C7", {"window_strides": ints(1, -1)}),
    ("select_and_scatter", "C8", {"padding": "dense<0> : tensor<3x2xi64>"}),
    ("select_and_scatter", "C9", {"bodies": [_body(LESS, "%b: tensor<f32>)", "%b: tensor<f32>, %c: tensor<f32>)"), SUM]}),
    ("select_and_scatter", "C9", {"bodies": [LESS.replace("f32", "i32"), SUM]}),
    ("select_and_scatter", "C9", {"bodies": [SUM, SUM]}),
    *_reducers("select_and_scatter", "C10", 1),
    ("scatter", "C1", {"operands": ["tensor<4x8x16xf32>", "tensor<4x8x17xf32>", "tensor<4x1xi32>", *["tensor<4x16xf32>"] * 2], "bodies": None, "results": None}),
    ("scatter", "C2", scatter(inserted_window_dims=[])),
    ("scatter", "C3", {"operands": [*["tensor<4x8x16xf32>"] * 2, "tensor<4x1xi32>", "tensor<4x16xf32>", "tensor<4x17xf32>"], "bodies": None, "results": None}),
    ("scatter", "C4", {2: "tensor<4x17xf32>"}),
    ("scatter", "C4", {2: "tensor<3x16xf32>"}),
    ("scatter", "C4", {2: "tensor<4x16x1xf32>"}),
    ("scatter", "C5", {"operands": ["tensor<4x1xi32>"], "bodies": None, "results": None}),
    ("scatter", "C7", {0: "tensor<4x8x16x2xf32>", 2: "tensor<4x16x2xf32>", "results": None, **scatter(update_window_dims=[2, 1])}),
    ("scatter", "C7", {0: "tensor<4x8x16x2xf32>", 2: "tensor<4x16x2xf32>", "results": None, **scatter(update_window_dims=[1, 1])}),
    ("scatter", "C8", scatter(update_window_dims=[2])),
    ("scatter", "C9", scatter(inserted_window_dims=[0])),
    ("scatter", "C10", {0: "tensor<4x8x2x16xf32>", "results": None, **scatter(inserted_window_dims=[2, 1])}),
    ("scatter", "C11", scatter(inserted_window_dims=[3])),
    ("scatter", "C12", {0: "tensor<4x5x8x16xf32>", "results": None, **scatter(input_batching_dims=[2, 0])}),
    ("scatter", "C13", scatter(input_batching_dims=[3])),
    ("scatter", "C14", scatter(scatter_indices_batching_dims=[0, 0])),
    ("scatter", "C15", scatter(scatter_indices_batching_dims=[2])),
    ("scatter", "C16", scatter(scatter_indices_batching_dims=[1])),
    ("scatter", "C17", scatter(scatter_indices_batching_dims=[])),
    ("scatter", "C18", {0: "tensor<3x8x16xf32>", "results": None}),
    ("scatter", "C19", scatter(scatter_dims_to_operand_dims=[1, 2])),
    ("scatter", "C20", scatter(scatter_dims_to_operand_dims=[0])),
    ("scatter", "C21", scatter(scatter_dims_to_operand_dims=[3])),
    ("scatter", "C22", scatter(index_vector_dim=3)),
    *_reducers("scatter", "C23"),
    ("while", "C1", {"bodies": ["^bb0(%x: tensor<i32>): stablehlo.return %p : tensor<i1>", f"^bb0(%x: tensor<f32>): {RETURN}"]}),
    ("while", "C1", {"bodies": [f"^bb0(%x: tensor<f32>): {RETURN}"] * 2}),
    ("while", "C2", {"bodies": ["^bb0(%x: tensor<f32>): stablehlo.return %p : tensor<i1>", f"^bb0(%y: tensor<i32>): {RETURN}"]}),
    ("while", "C2", {"bodies": ["^bb0(%x: tensor<f32>): stablehlo.return %p : tensor<i1>", "^bb0(%x: tensor<f32>): stablehlo.return %y : tensor<i32>"]}),
    ("if", "I1", {0: "tensor<1xi1>"}),
    ("if", "C1", {"bodies": [f"^bb0(%x: tensor<f32>): {RETURN}", RETURN]}),
    ("if", "C2", {"bodies": [RETURN, "stablehlo.return %x : tensor<i32>"]}),
    ("if", "C3", {"results": ["tensor<i32>"]}),
    ("if", "bodies", {"bodies": None}),
    ("if", "bodies", {"bodies": ["", RETURN], "results": None}),
    ("case", "C1", {"bodies": []}),
    ("case", "C2", {"bodies": [f"^bb0(%x: tensor<f32>): {RETURN}"]}),
    ("case", "C3", {"bodies": [RETURN, "stablehlo.return %x : tensor<i32>"]}),
    ("case", "C4", {"results": ["tensor<2xf32>"]}),
    ("get_tuple_element", "C1", {"index": "2 : i32"}),
    ("get_tuple_element", "I1", {0: F}),
    ("optimization_barrier", "C1", {"results": [F, F]}),
    ("batch_norm_grad", "C1", {"feature_index": i64(2)}),
    ("batch_norm_grad", "C2", {1: "tensor<3xf64>"}),
    ("batch_norm_grad", "C3", {4: "tensor<3x3xf32>"}),
    ("batch_norm_grad", "C4", {2: "tensor<4xf32>"}),
    ("batch_norm_grad", "C5", {1: "tensor<2xf32>"}),
    ("batch_norm_inference", "C3", {1: "tensor<2xf32>"}),
    ("batch_norm_inference", "C4", {2: "tensor<2xf32>"}),
    ("batch_norm_inference", "C5", {3: "tensor<2xf32>"}),
    ("batch_norm_inference", "C6", {4: "tensor<2xf32>"}),
    ("batch_norm_training", "C1", {"feature_index": i64(-1)}),
    ("batch_norm_training", "I4", {"epsilon": "0.1 : f64"}),
    ("cholesky", "C2", {0: _ROW}),
    ("cholesky", "C3", {0: F}),
    ("triangular_solve", "C1", {1: "tensor<2x3x4xf64>"}),
    ("triangular_solve", "C2", {0: _ROW}),
    ("triangular_solve", "C2", {1: "tensor<3x4xf32>"}),
    ("triangular_solve", "C3", {0: "tensor<2x3x4xf32>"}),
    ("triangular_solve", "C3", {1: "tensor<2x4x4xf32>"}),
    ("triangular_solve", "C3", {1: "tensor<3x3x4xf32>"}),
    ("triangular_solve", "I6", {"transpose_a": "#stablehlo<transpose TRANSPOSE_INVALID>"}),
    ("fft", "C1", {0: "tensor<8xf32>", "fft_length": ints(8, 8)}),
    ("fft", "C2", {0: "tensor<2x8xf16>"}),
    ("fft", "C2", {"fft_type": "#stablehlo<fft_type FFT>"}),
    ("fft", "C3", {"fft_length": ints()}),
    ("fft", "C4", {"fft_length": ints(9)}),
    ("irfft", "C4", {"fft_length": ints(5, 8)}),
    ("irfft", "C5", {"fft_length": ints(4, 10)}),
    ("irfft", "C4", {0: "tensor<4x?xcomplex<f32>>", "fft_length": ints(4, -3)}),
    ("rng", "C1", {1: "tensor<f64>"}),
    ("rng", "C2", {0: "tensor<i32>", 1: "tensor<i32>"}),
    ("rng", "C3", {2: "tensor<5000xi64>"}),
    ("rng_bit_generator", "C1", {"results": ["tensor<3xui64>", "tensor<4xui32>"]}),
    ("rng_bit_generator", "result", {"results": None}),
    ("rng_bit_generator", "result", {"results": ["tensor<2xui64>"]}),
]  # fmt: skip


def _groups(text: str, shape: str = "1x2") -> dict[str, str]:
    return {"replica_groups": f"dense<{text}> : tensor<{shape}xi64>"}


_TWICE, _FAR, _ROW_OF, _NONE = (
    _groups("[[0, 0]]"),
    _groups("[[0, 2]]"),
    _groups("[0, 1]", "2"),
    _groups("", "0x2"),
)
_GLOBAL = {"use_global_device_ids": "unit"}
_NEGATIVE = {**_GLOBAL, "channel_handle": "#stablehlo.channel_handle<handle = -1, type = 0>"}
CHANGES += [
    ("all_gather", "I3", _ROW_OF),
    ("all_gather", "I3", {**_NONE, **_GLOBAL}),
    ("all_gather", "C1", {"all_gather_dim": i64(2)}),
    ("all_gather", "C1", {"all_gather_dim": i64(-1)}),
    ("all_gather", "C2", _TWICE),
    ("all_gather", "C4", _FAR),
    ("all_gather", "C4", _groups("[[0, -1]]")),
    ("all_gather", "C5", _NEGATIVE),
    ("all_gather", "C6", {"results": ["tensor<5x3xf32>"]}),
    ("all_gather", "C6", {"results": ["tensor<4x4xf32>"]}),
    ("all_gather", "C6", {0: "tensor<0x3xf32>"}),
    ("all_gather", "C6", {"results": ["tensor<4x3xf32>"] * 2}),
    ("all_gather", "result", {"results": None}),
    ("all_to_all", "C1", {"split_dimension": i64(2)}),
    ("all_to_all", "C2", {0: "tensor<3x3xf32>"}),
    ("all_to_all", "C3", {"concat_dimension": i64(2)}),
    ("all_to_all", "C4", {"split_count": i64(0)}),
    ("all_to_all", "C5", _TWICE),
    ("all_to_all", "C7", _FAR),
    ("all_to_all", "C8", _groups("[[0, 1, 2]]", "1x3")),
    ("all_to_all", "C9", {"results": [F]}),
    ("all_to_all", "C9", {0: f"tensor<0x{2**62}xf32>"}),
    ("reduce_scatter", "C2", {"scatter_dimension": i64(2)}),
    ("reduce_scatter", "C3", _TWICE),
    ("reduce_scatter", "C6", _GLOBAL),
    *_reducers("reduce_scatter", "C7"),
    ("reduce_scatter", "C8", {"results": ["tensor<3xf32>"]}),
    ("reduce_scatter", "C8", {"results": ["tensor<3x3xf32>"]}),
    ("reduce_scatter", "C8", {"results": ["tensor<1x2xf32>"]}),
    ("reduce_scatter", "C9", {"results": ["tensor<1x3xf64>"]}),
    ("reduce_scatter", "result", {"results": None}),
    ("all_reduce", "C1", _TWICE),
    ("all_reduce", "C3", _FAR),
    ("all_reduce", "C4", _GLOBAL),
    *_reducers("all_reduce", "C5"),
    ("all_reduce", "C6", {"results": [_ROW]}),
    ("collective_permute", "C1", {"source_target_pairs": "dense<0> : tensor<1x3xi64>"}),
    ("collective_permute", "C2", {"source_target_pairs": "dense<[[0, 1], [0, 0]]> : tensor<2x2xi64>"}),
    ("collective_permute", "C3", {"source_target_pairs": "dense<[[0, 1], [1, 1]]> : tensor<2x2xi64>"}),
    ("collective_permute", "C4", {"source_target_pairs": "dense<[[0, -1]]> : tensor<1x2xi64>"}),
    ("collective_permute", "C5", {"results": [_ROW]}),
    ("collective_permute", "I2", {"source_target_pairs": "dense<[0, 1]> : tensor<2xi64>"}),
    ("collective_broadcast", "C1", _TWICE),
    ("collective_broadcast", "C2", _groups("[[0, -1]]")),
    ("collective_broadcast", "C3", {"operands": []}),
    ("collective_broadcast", "C3", {"results": [_ROW]}),
    ("collective_broadcast", "C4", {"operands": [F, "tensor<1xi64>"], "has_dynamic_root": "unit"}),
    ("collective_broadcast", "C4", {"has_dynamic_root": "unit"}),
    ("collective_broadcast", "I2", _ROW_OF),
]  # fmt: skip


def changed(change: Change) -> Instance:
    base, _, what = change
    given = BASES[base]
    made = replace(given, operands=list(given.operands), attributes=dict(given.attributes))
    for key, value in what.items():
        if isinstance(key, int):
            made.operands[key] = value
        elif key in ("operands", "results", "bodies"):
            setattr(made, key, value)
        elif value is None:
            del made.attributes[key]
        else:
            made.attributes[key] = value
    return made
