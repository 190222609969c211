"""aicf as an ONNX backend: some of ONNX's own tests of nodes. tools/onnx_coverage.py runs all of them."""

import unittest
from importlib import import_module

import numpy as np
import onnx
import onnx.backend.test.runner as runner
import pytest
from onnx import helper
from onnx.backend.test.case import node

import aicf
from aicf.errors import FrontendError

from .models import mlp, model

# One of each family: the module of ONNX's cases, and the test's name in it.
SOME = {
    "attention_3d_gqa_expanded": "attention",
    "attention_4d_softcap": "attention",
    "batchnorm_epsilon": "batch_normalization",
    "bitshift_right_int8_negative_input": "bitshift",
    "celu_expanded": "celu",
    "averagepool_2d_ceil": "averagepool",
    "basic_conv_with_padding": "conv",
    "convtranspose_output_shape": "convtranspose",
    "cumsum_1d_reverse_exclusive": "cumsum",
    "dequantizelinear_axis": "dequantizelinear",
    "div_int32_trunc": "div",
    "einsum_inner_prod": "einsum",
    "gather_elements_negative_indices": "gatherelements",
    "gathernd_example_int32_batch_dim1": "gathernd",
    "gemm_default_vector_bias": "gemm",
    "layer_normalization_4d_axis1": "layernormalization",
    "layer_normalization_2d_axis0_expanded": "layernormalization",
    "lppool_2d_pads": "lppool",
    "matmul_bcast": "matmul",
    "maxpool_2d_dilations": "maxpool",
    "mod_mixed_sign_float64": "mod",
    "nllloss_NCd1_weight_ii_expanded": "negativeloglikelihoodloss",
    "onehot_with_axis": "onehot",
    "quantizelinear_axis": "quantizelinear",
    "adam_multiple": "adam",
    "basic_deform_conv_with_padding": "deformconv",
    "batchnorm_epsilon_training_mode": "batch_normalization",
    "col2im_pads": "col2im",
    "convinteger_with_padding": "convinteger",
    "det_nd": "det",
    "dft": "dft",
    "einsum_batch_diagonal": "einsum",
    "gridsample_bicubic_align_corners_1_additional_1": "gridsample",
    "gridsample_reflection_padding": "gridsample",
    "maxpool_with_argmax_2d_precomputed_strides": "maxpool",
    "maxunpool_export_with_output_shape": "maxunpool",
    "nesterov_momentum": "momentum",
    "nonmaxsuppression_two_batches": "nonmaxsuppression",
    "pow_types_int32_int32": "pow",
    "qlinearconv": "qlinearconv",
    "resize_downsample_scales_cubic_antialias": "resize",
    "resize_tf_crop_and_resize_extrapolation_value": "resize",
    "resize_upsample_scales_linear_half_pixel_symmetric": "resize",
    "reversesequence_time": "reversesequence",
    "roialign_mode_max": "roialign",
    "stft_with_window": "stft",
    "tensorscatter_circular": "tensorscatter",
    "tfidfvectorizer_tf_batch_uniandbigrams_skip5": "tfidfvectorizer",
    "unique_not_sorted_without_axis": "unique",
    "reduce_max_bool_inputs": "reducemax",
    "reduce_prod_keepdims_random": "reduceprod",
    "reflect_pad": "pad",
    "reshape_zero_and_negative_dim": "reshape",
    "rms_normalization_2d_axis0": "rmsnormalization",
    "sce_mean_weight_ii_3d_log_prob": "softmax_cross_entropy_loss",
    "scatternd_add": "scatternd",
    "slice_neg_steps": "slice",
    "softmax_large_number": "softmax",
    "split_variable_parts_2d_opset18": "split",
    "top_k_negative_axis": "topk",
    "tril_neg": "trilu",
    "where_long_example": "where",
}


@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the cases, which compute infinities
@pytest.mark.parametrize("name", SOME)
def test_of_onnx_s_own(name):
    """Within ONNX's own tolerance."""
    import_module(f"{node.__name__}.{SOME[name]}")  # makes its cases; all of them take seconds
    (case,) = (case for case in node._NodeTestCases if case.name == f"test_{name}")
    ready = aicf.onnx_backend.prepare(case.model)
    for inputs, wanted in case.data_sets:
        fed, expected = ([runner._normalize_tensor(x) for x in xs] for xs in (inputs, wanted))
        runner.Runner.assert_similar_outputs(expected, ready.run(fed), case.rtol, case.atol)


def test_one_node_and_a_model_run_at_once():
    x = np.array([-1, 2], np.float32)
    (y,) = aicf.onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [x])
    assert np.array_equal(y, [0, 2])
    proto, _ = mlp()
    (y,) = aicf.onnx_backend.run_model(proto, [np.zeros((2, 8), np.float32)])
    assert y.shape == (2, 4)


def test_a_shape_that_is_fed_has_a_program_for_each_value():
    reshape = helper.make_node("Reshape", ["x", "s"], ["y"])
    ready = aicf.onnx_backend.prepare(model([reshape], [("x", [12]), ("s", [2], 7)], [("y", None)]))
    x = np.arange(12, dtype=np.float32)
    for shape in ([3, 4], [2, -1], [3, 4]):
        assert ready.run([x, np.array(shape)]).y.shape == x.reshape(shape).shape
    assert len(ready.programs) == 2
    with pytest.raises(FrontendError):
        ready.run([x, np.array([5, 4])])


def test_what_is_refused_counts_as_skipped_in_onnx_s_runner():
    made = model([helper.make_node("RandomNormalLike", ["x"], ["y"])], [("x", [2, 2])], [("y", [])])
    with pytest.raises(unittest.SkipTest, match="RandomNormalLike"):
        aicf.onnx_backend.prepare(made)
    assert not aicf.onnx_backend.is_compatible(made) and aicf.onnx_backend.is_compatible(mlp()[0])
    assert aicf.onnx_backend.supports_device("CPU") and not aicf.onnx_backend.supports_device("TPU")
    with pytest.raises(FrontendError, match="3 inputs"):
        aicf.onnx_backend.prepare(mlp()[0]).run([np.zeros((1, 8), np.float32)] * 3)
    assert issubclass(aicf.frontends.onnx.OnnxBackend, onnx.backend.base.Backend)
