"""Arguments for each ATen op that has a rule, by overload: `SAMPLES["add.Tensor"]` is a list of functions that return (args, kwargs)."""

import torch

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
CPU = torch.device("cpu")


def x(*shape, of=F32, seed=0):
    """Numbers from -2 to 2, none next to 0."""
    draw = torch.Generator().manual_seed(seed + len(shape))
    if of is BOOL:
        return torch.rand(shape, generator=draw) > 0.5
    if not of.is_floating_point:
        return torch.randint(1, 9, shape, generator=draw, dtype=of)
    y = torch.rand(shape, generator=draw) * 4 - 2
    return torch.where(y.abs() < 0.05, 0.3, y).to(of)


def y(*shape, **how):
    return x(*shape, seed=1, **how)


def within(low, high, *shape):
    return (x(*shape) + 2) / 4 * (high - low) + low


def at(below, *shape):
    return torch.randint(0, below, shape, generator=torch.Generator().manual_seed(5))


SAMPLES = {}


def sample(names, *makers, **kwargs):
    """Each maker returns the arguments; `kwargs` are those of all."""
    for name in names.split():
        for make in makers:
            SAMPLES.setdefault(name, []).append(lambda make=make: (make(), kwargs))


# --- elementwise ------------------------------------------------------------------------------------------------------------

sample(
    "abs ceil cos cosh erf erfc exp exp2 expm1 floor hardsigmoid hardswish hardtanh elu mish neg round sgn sign sin sinh tan atan asinh "
    "trunc reciprocal isnan isinf",
    lambda: (x(3, 5),), lambda: (x(4).double() * 3,),
)  # fmt: skip
sample("gelu leaky_relu relu sigmoid silu tanh", lambda: (x(3, 5),), lambda: (x(4).bfloat16() * 3,))
sample("acos asin atanh erfinv", lambda: (within(-0.9, 0.9, 3, 5),))
sample("log log2 log10 rsqrt sqrt acosh", lambda: (within(1.1, 3, 3, 5),))
sample("log1p", lambda: (within(-0.9, 3, 3, 5),))
sample("gelu", lambda: (x(3, 5),), approximate="tanh")
sample("elu", lambda: (x(3, 5), 0.7, 1.5), lambda: (x(3, 5).bfloat16(), 0.7))
sample("hardtanh", lambda: (x(3, 5), -0.5, 1.5))
sample(
    "add.Tensor sub.Tensor mul.Tensor div.Tensor rsub.Tensor maximum minimum atan2 fmod.Tensor remainder.Tensor",
    lambda: (x(3, 5), y(3, 5)), lambda: (x(3, 1), y(5).double()), lambda: (x(2, 3).bfloat16(), y(3).bfloat16()),
)  # fmt: skip
sample("add.Tensor sub.Tensor rsub.Tensor", lambda: (x(3, 5), y(5)), lambda: (x(2, of=I64), y(2)), alpha=0.5)
sample(
    "add.Scalar sub.Scalar mul.Scalar div.Scalar rsub.Scalar fmod.Scalar remainder.Scalar",
    lambda: (x(3, 5), 0.7), lambda: (x(3, of=I64), 3), lambda: (x(3, of=I64), 2.5),
)  # fmt: skip
for _mode in ("floor", "trunc", None):
    sample("div.Tensor_mode", lambda: (x(3, 5), y(3, 5)), rounding_mode=_mode)
    sample("div.Scalar_mode", lambda: (x(3, 5), 0.7), lambda: (x(4, of=I64), 3), rounding_mode=_mode)
sample(
    "eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor",
    lambda: (x(3, 5), y(5)), lambda: (x(4, of=I64), y(4)), lambda: (x(6, of=BOOL), y(6, of=BOOL)), lambda: (x(3), x(3)),
)  # fmt: skip
sample(
    "eq.Scalar ne.Scalar lt.Scalar le.Scalar gt.Scalar ge.Scalar",
    lambda: (x(3, 5), 0.3),
    lambda: (x(5, of=I64), 4),
)
sample("logical_and logical_or logical_xor", lambda: (x(6, of=BOOL), y(6, of=BOOL)), lambda: (at(2, 4), x(4)))
sample("logical_not", lambda: (x(6, of=BOOL),), lambda: (at(2, 4),))
sample(
    "bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor",
    lambda: (x(6, of=BOOL), y(6, of=BOOL)), lambda: (x(6, of=I64), y(6, of=torch.int32)),
)  # fmt: skip
sample(
    "bitwise_and.Scalar bitwise_or.Scalar bitwise_xor.Scalar",
    lambda: (x(6, of=I64), 5),
    lambda: (x(6, of=BOOL), True),
)
sample("bitwise_not", lambda: (x(6, of=BOOL),), lambda: (x(6, of=I64),))
sample("clamp", lambda: (x(3, 5), -0.5, 1.0), lambda: (x(3, of=I64), 2), lambda: (x(3), None, 0.5))
sample("clamp.Tensor", lambda: (x(3, 5), y(3, 1), y(5) + 1), lambda: (x(3), None, y(3)))
sample("clamp_min clamp_max", lambda: (x(3, 5), 0.5), lambda: (x(3, of=I64), 4))
sample("clamp_min.Tensor clamp_max.Tensor", lambda: (x(3, 5), y(5)))
sample(
    "pow.Tensor_Scalar",
    *(lambda n=n: (within(0.5, 2, 3, 5), n) for n in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.7)),
)
sample("pow.Tensor_Scalar", lambda: (x(4, of=I64), 2))
sample("pow.Tensor_Tensor", lambda: (within(0.5, 2, 3, 5), y(5)))
sample("pow.Scalar", lambda: (1.5, y(5)))
sample("where.self", lambda: (x(3, 5, of=BOOL), x(5), y(3, 1)), lambda: (x(3, of=BOOL), x(3, of=I64), y(3)))
sample("masked_fill.Scalar", lambda: (x(3, 5), x(5, of=BOOL), 7))
sample("masked_fill.Tensor", lambda: (x(3, 5), x(5, of=BOOL), torch.tensor(7.0)))
sample("gelu_backward", lambda: (x(3, 5), y(3, 5)))
sample("gelu_backward", lambda: (x(3, 5), y(3, 5)), approximate="tanh")
sample("silu_backward", lambda: (x(3, 5), y(3, 5)))
sample("tanh_backward sigmoid_backward", lambda: (x(3, 5), within(0.1, 0.9, 3, 5)))
sample("threshold_backward", lambda: (x(3, 5), y(3, 5), 0), lambda: (x(3, 5), y(3, 5), 0.5))
sample("leaky_relu_backward", lambda: (x(3, 5), y(3, 5), 0.1, False))
sample("_to_copy", lambda: (x(3, 5),), dtype=torch.float64)
sample("_to_copy", lambda: (x(3, 5) * 5,), dtype=I64)
sample("copy", lambda: (x(3, 5), y(5)), lambda: (x(3, 5), y(3, 5).double()))
sample("clone alias detach lift_fresh_copy", lambda: (x(3, 5),))

# --- constants --------------------------------------------------------------------------------------------------------------

sample("full", lambda: ((2, 3), 1.5), lambda: ((2,), 3))
sample("full_like", lambda: (x(2, 3), 1.5))
sample("new_full", lambda: (x(2), (2, 3), 4))
sample("scalar_tensor", lambda: (2.5,))
sample("fill.Scalar", lambda: (x(2, 3), 2))
sample(
    "prims.fma",
    lambda: (x(2, 3), y(2, 3), x(2, 3)),
    lambda: (y(5).bfloat16(), x(5).bfloat16(), y(5).bfloat16()),
)
sample("fill.Tensor", lambda: (x(2, 3), x(1)[0]), lambda: (x(2, 3), x(1)[0].double()))
sample("zeros ones", lambda: ((2, 3),))
sample("zeros_like ones_like empty_like", lambda: (x(2, 3),))
sample("new_zeros new_ones new_empty", lambda: (x(2), (2, 3)))
sample("new_empty_strided", lambda: (x(2), (2, 3), (1, 2)))
sample("empty.memory_format", lambda: ((2, 3),))
sample("empty_permuted", lambda: ((2, 3), (1, 0)))
sample("arange", lambda: (5,), lambda: (2.5,))
sample("arange.start", lambda: (2, 5), lambda: (0.5, 4))
sample("arange.start_step", lambda: (2, 11, 3), lambda: (0.5, 4, 0.25), lambda: (7, 0, -2))

# --- views ------------------------------------------------------------------------------------------------------------------

sample("view _unsafe_view reshape", lambda: (x(2, 6), (3, 4)))
sample("broadcast_to expand", lambda: (x(2, 1), (3, 2, 4)))
sample("diagonal", lambda: (x(3, 5),), lambda: (x(2, 4, 3), -1, 2, 0), lambda: (x(3, 5), 5))
sample(
    "diagonal_scatter",
    lambda: (x(3, 5), y(3)),
    lambda: (x(2, 4, 3), y(4, 2), -1, 2, 0),
    lambda: (x(3, 5), y(2), 3),
)
sample("permute", lambda: (x(2, 3, 4), (2, 0, 1)))
sample("t", lambda: (x(2, 3),), lambda: (x(4),))
sample("transpose.int", lambda: (x(2, 3, 4), 0, -1))
sample("squeeze", lambda: (x(1, 3, 1),))
sample("squeeze.dim", lambda: (x(1, 3, 1), -1), lambda: (x(1, 3), 1))
sample("squeeze.dims", lambda: (x(1, 3, 1), (0, 2)))
sample("unsqueeze", lambda: (x(2, 3), 1), lambda: (x(2, 3), -1))
sample("flatten.using_ints", lambda: (x(2, 3, 4), 1))
sample("unflatten.int", lambda: (x(2, 6), 1, (2, 3)))
sample("slice.Tensor", lambda: (x(7, 3), 0, 1, 6, 2), lambda: (x(7, 3), 1, -2, 9))
sample("select.int", lambda: (x(4, 3), 0, -1))
sample("split_with_sizes", lambda: (x(6, 3), (1, 2, 3)))
sample("split.Tensor", lambda: (x(7, 3), 3), lambda: (x(2, 6), 2, -1))
sample("unbind.int", lambda: (x(3, 4), 1))
sample(
    "cat", lambda: ([x(2, 3), y(1, 3)],), lambda: ([x(2, 3), y(2, 1).double()], 1), lambda: ([x(0), y(2, 3)],)
)
sample("stack", lambda: ([x(2, 3), y(2, 3)], 1))
sample("constant_pad_nd", lambda: (x(2, 3), (1, 2, 0, 1), 0.5), lambda: (x(2, 5), (-1, -2)))
sample("flip", lambda: (x(3, 4), (0, 1)), lambda: (x(3, 4), ()))
sample("repeat", lambda: (x(3), (2, 2)), lambda: (x(2, 3), (1, 2)))
sample("slice_backward", lambda: (x(3, 3), (7, 3), 0, 1, 6, 2))
sample("slice_scatter", lambda: (x(7, 3), y(4, 3), 0, 2, 6))
sample("select_scatter", lambda: (x(4, 3), y(3), 0, -1))
sample("select_backward", lambda: (x(3), (4, 3), 0, 1))
sample(
    "as_strided",
    lambda: (x(3, 4), (4, 3), (1, 4)), lambda: (x(4, 3).t(), (4, 3), (3, 1)), lambda: (x(12), (2, 3), (3, 1), 4), lambda: (x(6), (), (), 2),
    lambda: (x(12), (4, 3), (2, 1), 1), lambda: (x(5), (3, 5), (0, 1)), lambda: (x(2, 5, 1, 1), (2, 5, 1, 1), (5, 1, 5, 5)),
)  # fmt: skip
sample(
    "as_strided_scatter",
    lambda: (x(12), y(3, 4), (3, 4), (4, 1)), lambda: (x(12), y(2, 3), (2, 3), (1, 2), 4), lambda: (x(4, 3).t(), y(4), (4,), (3,), 1),
    lambda: (x(12), y(2, 3), (2, 3), (6, 2), 1), lambda: (x(3, 4), y(), (), (), 11),
)  # fmt: skip

# --- indices ----------------------------------------------------------------------------------------------------------------

sample("embedding", lambda: (x(5, 3), at(5, 2, 4)), lambda: (x(5, 3), at(5, 4), 2))
sample(
    "embedding_dense_backward",
    lambda: (x(2, 4, 3), at(5, 2, 4), 5, -1, False),
    lambda: (x(4, 3), at(5, 4), 5, 2, False),
)
sample("index_select", lambda: (x(5, 3), 0, at(5, 4)), lambda: (x(2, 3), -1, at(3, 2)))
sample("index_add", lambda: (x(5, 3), 0, at(5, 4), y(4, 3)), lambda: (x(2, 3), -1, at(3, 2), y(2, 2)))
sample("index_copy", lambda: (x(5, 3), 0, torch.tensor([4, 0]), y(2, 3)))
sample("index_fill.int_Scalar", lambda: (x(5, 3), 0, torch.tensor([1, -1]), 2.5))
sample("index_fill.int_Tensor", lambda: (x(2, 3), 1, torch.tensor([2]), torch.tensor(-1.0)))
sample("gather", lambda: (x(4, 3), 1, at(3, 4, 2)), lambda: (x(4, 3), 0, at(4, 2, 3)))
sample(
    "index.Tensor",
    lambda: (x(4, 3), [at(4, 5)]),
    lambda: (x(4, 3, 2), [at(4, 2), None, at(2, 2)]),
    lambda: (x(4, 3), [None, at(3, 2, 2)]),
)
sample(
    "index_put _unsafe_index_put",
    lambda: (x(4, 3), [at(4, 5)], y(5, 3), True),
    lambda: (x(4, 3), [torch.tensor([2, 0])], y(2, 3)),
)
sample("index_put index_put_", lambda: (x(4, 3), [x(4, 3, of=BOOL)], torch.tensor(2.0)))
sample("scatter.src", lambda: (x(4, 3), 0, torch.tensor([[3, 0, 1]]), y(1, 3)))
sample("scatter.value", lambda: (x(4, 3), 1, at(3, 4, 1), 5))
sample("scatter_add", lambda: (x(4, 3), 0, at(4, 6, 3), y(6, 3)))
sample(
    "histc",
    lambda: (within(-0.2, 1.2, 40), 7, 0, 1),
    lambda: (torch.tensor([0.0, 1, 1, 3, 3, 3, float("nan")]), 4, 0, 3),
)
sample("cumsum", lambda: (x(3, 5), 1), lambda: (x(3, of=BOOL), 0), lambda: (x(), 0))
sample("cumprod", lambda: (x(3, 5), 1), lambda: (x(3, of=I64), 0), lambda: (x(), 0))
sample("sort", lambda: (x(3, 7),), lambda: (x(3, 7), 0, True))
sample("sort.stable", lambda: (at(3, 9).float(),), stable=True)
sample("topk", lambda: (x(3, 7), 2), lambda: (x(3, 7), 3, 0, False))

# --- reductions -------------------------------------------------------------------------------------------------------------

sample("sum mean amax amin max min prod", lambda: (x(3, 5),), lambda: (x(4, 2).double(),))
sample("argmax argmin", lambda: (x(3, 5),))
sample("max.dim min.dim", lambda: (x(3, 5), 1), lambda: (at(2, 4, 6).float(), -2, True), lambda: (x(), 0))
sample("sum prod", lambda: (x(3, 2, of=BOOL),), lambda: (x(3, 2, of=I64),))
sample("any all", lambda: (x(3, 5, of=BOOL),), lambda: (at(2, 4),))
sample("sum.dim_IntList mean.dim amax amin", lambda: (x(3, 5, 2), (0, 2)), lambda: (x(3, 5), (1,), True))
sample("any.dims all.dims", lambda: (x(3, 5, 2, of=BOOL), (0, 2)))
sample("any.dim all.dim", lambda: (x(3, 5, of=BOOL), 1), lambda: (x(3, 5, of=BOOL), 0, True))
sample("prod.dim_int argmax argmin", lambda: (x(3, 5), 1), lambda: (x(3, 5), 0, True))
sample("var.correction std.correction var_mean.correction", lambda: (x(3, 5), (1,)), lambda: (x(3, 5),))
sample(
    "var.correction std.correction var_mean.correction", lambda: (x(3, 5), (0,)), correction=0, keepdim=True
)
for _ord in (2, 0, 1, 3, float("inf"), float("-inf")):
    sample("linalg_vector_norm", lambda n=_ord: (x(3, 5), n), lambda n=_ord: (x(3, 5), n, (1,), True))
sample("linalg_vector_norm", lambda: (x(3, 5).bfloat16(), 2, (0,)))
sample("linalg_vector_norm", lambda: (x(3, 5), 2), dtype=torch.float64)
sample("_softmax _log_softmax", lambda: (x(3, 5), -1, False), lambda: (x(3, 5), 0, False))
sample("_softmax_backward_data _log_softmax_backward_data", lambda: (x(3, 5), y(3, 5).softmax(1), 1, F32))
sample("logsumexp", lambda: (x(3, 5), (1,)), lambda: (x(3, 5), (0,), True))

LABELS = torch.tensor([2, -100, 0, 4])  # the second row does not count
for _reduction in (0, 1, 2):
    sample(
        "nll_loss_forward",
        lambda r=_reduction: (x(4, 5), LABELS, None, r, -100),
        lambda r=_reduction: (x(4, 5), LABELS, within(0.1, 1, 5), r, -100),
    )
for _reduction in (0, 1):  # a row alone: the sum of weights is its weight, whatever the reduction
    sample("nll_loss_forward", lambda r=_reduction: (x(5), torch.tensor(3), None, r, -100))


def _of_nll(reduction, weight=None):
    _, total = torch.ops.aten.nll_loss_forward(x(4, 5), LABELS, weight, reduction, -100)
    return x(*[4] * (reduction == 0)), x(4, 5), LABELS, weight, reduction, -100, total


sample(
    "nll_loss_backward",
    lambda: _of_nll(0),
    lambda: _of_nll(1),
    lambda: _of_nll(2),
    lambda: _of_nll(1, within(0.1, 1, 5)),
)
sample(
    "aicf.cross_entropy", lambda: (x(4, 5), LABELS, -100), lambda: (x(4, 5).bfloat16(), LABELS.clamp(0), 2)
)
sample(
    "aicf.cross_entropy_grad",
    lambda: (x(4, 5), LABELS, y(4), *torch.ops.aicf.cross_entropy(x(4, 5), LABELS, -100)[1:], -100),
)

# --- products ---------------------------------------------------------------------------------------------------------------

sample("mm", lambda: (x(3, 5), y(5, 4)), lambda: (x(5, 3).t(), y(4, 5).t()))
sample("bmm", lambda: (x(2, 3, 5), y(2, 5, 4)))
sample(
    "_int_mm",
    lambda: ((x(17, 32) * 40).to(torch.int8), (y(32, 8) * 40).to(torch.int8)),
    lambda: ((x(17, 32) * 40).to(torch.int8), (y(8, 32) * 40).to(torch.int8).t()),
)
sample("mv", lambda: (x(3, 5), y(5)))
sample("dot", lambda: (x(5), y(5)))
sample(
    "addmm",
    lambda: (x(4), x(3, 5), y(5, 4)),
    lambda: (x(3, 4), x(3, 5), y(5, 4)),
    lambda: (x(3, 1), x(3, 5), y(5, 4)),
)
sample("addmm", lambda: (x(3, 4), x(3, 5), y(5, 4)), beta=0.5, alpha=2)
sample("baddbmm", lambda: (x(2, 3, 4), x(2, 3, 5), y(2, 5, 4)))
ENDS = torch.tensor([2, 2, 5], dtype=torch.int32)  # the second group is empty
sample(
    "transformers.grouped_mm_fallback",
    lambda: (x(5, 4), x(3, 4, 6), ENDS),
    lambda: (x(7, 4), x(3, 4, 6), ENDS.long()),
)
sample("transformers.grouped_mm_fallback_backward", lambda: (x(5, 4), x(3, 4, 6), ENDS, y(5, 6)))
sample("_grouped_mm", lambda: (x(5, 8).bfloat16(), x(3, 8, 8).bfloat16(), ENDS))

# --- norms, windows ---------------------------------------------------------------------------------------------------------

sample(
    "native_layer_norm",
    lambda: (x(3, 2, 5), (5,), y(5), x(5), 1e-5),
    lambda: (x(3, 2, 5), (2, 5), None, None, 1e-5),
)


def _of_layer_norm():
    a = x(3, 2, 5)
    _, mean, rstd = torch.ops.aten.native_layer_norm(a, (5,), None, None, 1e-5)
    return y(3, 2, 5), a, (5,), mean, rstd, y(5), x(5), [True] * 3


sample("native_layer_norm_backward", _of_layer_norm)
sample("_fused_rms_norm", lambda: (x(3, 2, 5), (5,), y(5), 1e-5), lambda: (x(3, 2, 5), (5,), None, 1e-5))
sample("native_group_norm", lambda: (x(2, 4, 3), y(4), x(4), 2, 4, 3, 2, 1e-5))
NORM = (x(3, 4, 5), y(4), x(4))
sample("_native_batch_norm_legit_no_training", lambda: (*NORM, y(4), within(0.5, 2, 4), 0.1, 1e-5))
sample(
    "_native_batch_norm_legit_functional",
    lambda: (*NORM, y(4), within(0.5, 2, 4), True, 0.1, 1e-5),
)  # fmt: skip
sample("_native_batch_norm_legit.no_stats", lambda: (*NORM, True, 0.1, 1e-5))
WINDOW = (
    (1, 1),
    (1, 0),
    (1, 1),
    False,
    (0, 0),
    1,
)  # stride, padding, dilation, transposed, output padding, groups
sample("convolution", lambda: (x(2, 3, 6, 5), y(4, 3, 3, 2), x(4), *WINDOW))
sample(
    "convolution_backward", lambda: (x(2, 4, 6, 4), x(2, 3, 6, 5), y(4, 3, 3, 2), [4], *WINDOW, [True] * 3)
)
sample("max_pool2d_with_indices", lambda: (x(2, 3, 6, 7), (2, 3), (2, 2), (0, 1)))


def _of_max_pool():
    a = x(2, 3, 6, 7)
    places = torch.ops.aten.max_pool2d_with_indices(a, (2, 2), (2, 2))[1]
    return y(2, 3, 3, 3), a, (2, 2), (2, 2), (0, 0), (1, 1), False, places


sample("max_pool2d_with_indices_backward", _of_max_pool)
sample("avg_pool2d", lambda: (x(2, 3, 6, 7), (2, 3), (2, 2), (1, 1)))
sample(
    "avg_pool2d_backward", lambda: (y(2, 3, 3, 3), x(2, 3, 6, 7), (2, 2), (2, 2), (0, 0), False, True, None)
)
sample(
    "_adaptive_avg_pool2d",
    *(lambda n=n: (x(2, 3, 6, 8), n) for n in ((3, 2), (1, 1), (4, 5), (7, 9), (6, 8))),
)
sample(
    "_adaptive_avg_pool2d_backward",
    *(lambda n=n: (y(2, 3, *n), x(2, 3, 6, 8)) for n in ((3, 2), (4, 5), (7, 9))),
)

# --- attention: queries (batch, heads, 5, 8), masks and gradients as PyTorch's kernel for the CPU has them ---------------------

Q, K, V = x(2, 2, 5, 8), y(2, 2, 7, 8), x(2, 2, 7, 8, seed=3)
sample("_scaled_dot_product_flash_attention_for_cpu", lambda: (Q, K, V), lambda: (Q, K, V, 0.0, False))
sample("_scaled_dot_product_flash_attention_for_cpu", lambda: (Q, K, V), attn_mask=y(2, 2, 5, 7), scale=0.3)
sample("_scaled_dot_product_flash_attention_for_cpu", lambda: (Q, Q, Q, 0.0, True))


def _of_attention():
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(Q, K, V)
    return y(2, 2, 5, 8), Q, K, V, out, lse, 0.0, False


sample("_scaled_dot_product_flash_attention_for_cpu_backward", _of_attention)

# --- interpolation --------------------------------------------------------------------------------------------------------------

for _n in (1, 2, 3):
    _small, _large = (2, 3, 4, 3, 5)[: 2 + _n], (7, 3, 10)[:_n]
    for _name in ("upsample_nearest", "_upsample_nearest_exact"):
        sample(f"{_name}{_n}d", lambda a=_small, b=_large: (x(*a), b))
        sample(f"{_name}{_n}d.vec", lambda a=_small, n=_n: (x(*a), None, [1.5] * n))
        sample(f"{_name}{_n}d_backward", lambda a=_small, b=_large: (y(2, 3, *b), b, a))
for _name, _n in (
    ("upsample_linear1d", 1),
    ("upsample_bilinear2d", 2),
    ("upsample_trilinear3d", 3),
    ("upsample_bicubic2d", 2),
):
    _small, _large = (2, 3, 4, 3, 5)[: 2 + _n], (7, 3, 10)[:_n]
    for _corners in (False, True):
        sample(_name, lambda a=_small, b=_large, c=_corners: (x(*a), b, c))
        sample(f"{_name}_backward", lambda a=_small, b=_large, c=_corners: (y(2, 3, *b), b, a, c))
    sample(f"{_name}.vec", lambda a=_small, n=_n: (x(*a), None, False, [1.7] * n))
