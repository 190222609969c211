"""A valid instance of ops, and for each constraint what breaks it: one change of the instance."""

from __future__ import annotations

from typing import Any

from ..mlir_worker import Instance

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
