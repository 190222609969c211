"""Names that people of other libraries look for, each with the sentence that says what to write here instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike, fspath
from types import FunctionType, MethodType

# What `ctx.NAME` and `op_call("NAME", …)` are called here.
OPS: Mapping[str, str] = {
    **dict.fromkeys(("matmul", "mm", "bmm", "dot"), "gemm(a, b) is the matrix product; trans_a, trans_b transpose; a @ b also broadcasts batches"),
    **dict.fromkeys(("linear", "dense", "addmm"), "gemm(x, weight, None, bias, trans_b=True), or the layer nn.Linear"),
    "where": "select(condition, a, b)",
    **dict.fromkeys(("sum", "reduce_add"), "reduce_sum(x, axes=(…), keepdims=False)"),
    **dict.fromkeys(("mean", "avg"), "reduce_mean(x, axes=(…), keepdims=False)"),
    **dict.fromkeys(("max", "amax"), "reduce_max(x, axes=(…), keepdims=False); maximum(a, b) compares element by element"),
    **dict.fromkeys(("min", "amin"), "reduce_min(x, axes=(…), keepdims=False); minimum(a, b) compares element by element"),
    **dict.fromkeys(("cast", "astype", "to", "type"), "convert(x, dtype=aicf.f16)"),
    **dict.fromkeys(("view", "flatten", "squeeze", "unsqueeze"), "reshape(x, shape=(…))"),
    **dict.fromkeys(("expand", "broadcast_to", "broadcast"), "broadcast_in_dim(x, shape=(…), dims=(…)), or x.broadcast_to(shape)"),
    **dict.fromkeys(("permute", "swapaxes", "moveaxis", "t"), "transpose(x, perm=(…))"),
    **dict.fromkeys(("flip", "fliplr", "flipud", "rev"), "reverse(x, dims=(…))"),
    **dict.fromkeys(("narrow", "getitem", "strided_slice"), "slice(x, start=(…), limit=(…))"),
    **dict.fromkeys(("subtract", "minus"), "sub(a, b)"),
    **dict.fromkeys(("multiply", "times"), "mul(a, b)"),
    **dict.fromkeys(("divide", "truediv", "true_divide"), "div(a, b)"),
    **dict.fromkeys(("negative", "negate"), "neg(x)"),
    **dict.fromkeys(("softmax_cross_entropy", "nll_loss", "softmax_cross_entropy_with_logits"), "cross_entropy(logits, labels)"),
    **dict.fromkeys(("fused_linear_cross_entropy", "linear_softmax_cross_entropy"), "linear_cross_entropy(x, weight, labels)"),
    **dict.fromkeys(("scaled_dot_product_attention", "sdpa", "dot_product_attention", "flash_attention"), "attention(q, k, v, mask, causal=True)"),
    "pow": "power(a, b), or x ** 2",
    **dict.fromkeys(("mse", "mse_loss"), "squared_error(x, target), then reduce_mean"),
    **dict.fromkeys(("rand", "uniform"), "random_uniform(shape=(…), low=0.0, high=1.0)"),
    **dict.fromkeys(("randn", "normal", "gauss"), "random_normal(shape=(…), mean=0.0, std=1.0)"),
    **dict.fromkeys(("randint", "random_int"), "random_integers(shape=(…), low=0, high=…)"),
    **dict.fromkeys(("randperm", "shuffle"), "random_permutation(size=…), and gather to shuffle"),
    **dict.fromkeys(("multinomial", "categorical"), "random_categorical(logits, axis=-1)"),
    "bernoulli": "random_bernoulli(p)",
    **dict.fromkeys(("binary_cross_entropy_with_logits", "bce_with_logits"), "softplus(x) - x * t, or nn.BCEWithLogitsLoss()(x, t)"),
    **dict.fromkeys(("huber_loss", "smooth_l1_loss", "l1_loss", "kl_div"), "abs(x - t) and such; in nn are losses by PyTorch's names, nn.HuberLoss()(x, t)"),
    **dict.fromkeys(("zeros", "ones", "full", "constant"), "fill(shape=(…), value=0.0)"),
    **dict.fromkeys(("arange", "range"), "iota(shape=(…), axis=-1, dtype=aicf.i32)"),
    **dict.fromkeys(("normalize", "l2_norm"), "l2_normalize(x, axis=-1)"),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), "equal, not_equal, less, less_equal, greater, greater_equal"),
    **dict.fromkeys(("clone", "identity"), "copy(x)"),
    **dict.fromkeys(("embedding", "take", "index_select"), "gather(x, indices, axis=0)"),
    **dict.fromkeys(("split", "chunk", "unstack"), "slice(x, start=(…), limit=(…)) for each part, or x.split(sizes, axis)"),
    **dict.fromkeys(("prod", "any", "all", "var", "std"), "reduce_prod, reduce_any, reduce_all, reduce_var and reduce_std, with axes=(…), keepdims=False"),
    **dict.fromkeys(("repeat_interleave",), "repeat(x, repeats=(…)), one number for each axis"),
    **dict.fromkeys(("conv", "conv1d", "conv2d", "conv3d"), "convolution(x, w, strides=(…), low=(…), high=(…)), of (N, C, …)"),
    **dict.fromkeys(("conv_transpose2d", "conv_transpose"), "convolution(x, w, input_dilation=(…)), w reversed"),
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), "max_pool(x, window=(…), strides=(…)); avg_pool for means"),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), "avg_pool(x, window=(…), strides=(…))"),
    **dict.fromkeys(("interpolate", "upsample", "upsample_nearest", "upsample_bilinear"), 'resize(x, sizes=(…), mode="linear"), of all axes; coordinates="align_corners", or "asymmetric" with nearest="floor" for PyTorch\'s nearest'),
    **dict.fromkeys(("batch_norm", "batch_norm_inference"), "moments(x, axis=1), then channel_affine(x, mean, scale, bias); or the layer nn.BatchNorm2d"),
    **dict.fromkeys(("detach",), "stop_gradient(x)"),
    "topk": "top_k(x, k=…, axis=-1): values and indices",
    **dict.fromkeys(("index_copy", "scatter_reduce", "index_add"), 'scatter(x, indices, updates, axis=0, how="set"), or add, mul, min, max; along=True is torch.scatter'),
    **dict.fromkeys(("index_put", "scatternd"), "scatter_nd(x, indices, updates), where stack(a, b, axis=-1) are the indices of x[a, b]"),
    "gathernd": "gather_nd(x, indices), where stack(a, b, axis=-1) are the indices of x[a, b]",
    **dict.fromkeys(("cumulative_sum", "prefix_sum"), "cumsum(x, axis=-1); ctx.associative_scan(join, x) for any function"),
    **dict.fromkeys(("clip", "clip_by_value"), "clamp(low, x, high), of numbers or tensors"),
    "relu6": "clamp(0, x, 6)",
    **dict.fromkeys(("logistic", "expit"), "sigmoid(x)"),
    "remainder": "mod(a, b) has the sign of b, as in PyTorch and NumPy; rem(a, b) that of a, as in StableHLO",
    "fmod": "rem(a, b), the remainder that has the sign of a; mod(a, b) has the sign of b",
    **dict.fromkeys(("floordiv", "floor_div"), "floor_divide(a, b); trunc_divide rounds towards 0"),
    **dict.fromkeys(("rint", "round_nearest_even"), "round(x), of two the even one"),
    "round_nearest_afz": "round_half_away(x)",
    "ceiling": "ceil(x)",
    **{f"arc{name}": f"a{name}(x)" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "arctan2": "atan2(a, b)",
    **dict.fromkeys(("erfinv", "ndtri"), "erf_inv(x)"),
    **dict.fromkeys(("isnan", "isfinite", "isinf"), "is_nan(x), is_finite(x) and is_inf(x)"),
    **dict.fromkeys(("and_", "or_", "xor", "not_"), "logical_and, logical_or, logical_xor and logical_not of bools; bitwise_and, … of integers"),
    **dict.fromkeys(("left_shift", "lshift"), "shift_left(a, b)"),
    **dict.fromkeys(("right_shift", "rshift"), "shift_right_arithmetic(a, b) copies the sign; shift_right_logical brings in zeros"),
}  # fmt: skip

# What `aicf.nn.NAME` is called here.
NN: Mapping[str, str] = {
    **dict.fromkeys(("CrossEntropy", "SparseCategoricalCrossentropy"), "nn.SoftmaxCrossEntropy(): logits in, labels as integers; nn.CrossEntropyLoss is PyTorch's"),
    **dict.fromkeys(("FusedLinearCrossEntropy", "LigerFusedLinearCrossEntropyLoss", "LinearCrossEntropyLoss"), "nn.LinearCrossEntropy(), of a model that ends with nn.Linear(..., bias=False)"),
    **dict.fromkeys(("MSE", "L2Loss"), "nn.MeanSquaredError()"),
    **dict.fromkeys(("FrozenBatchNorm2d", "SyncBatchNorm"), "nn.BatchNorm2d(channels); frozen=True keeps its running statistics as they are"),
    "Module": "nn.Layer is the base of layers of your own, class Mine(nn.Layer): def emit(self, ctx, x): …, and nn.Model(inputs, Mine()) a model of one",
    **dict.fromkeys(("ModuleList", "ModuleDict"), "a plain list or dict in an attribute of an nn.Layer"),
    **dict.fromkeys(("Swish",), "nn.SiLU(); nn.Hardswish() is its piecewise form"),
    **dict.fromkeys(("MultiheadAttention", "SelfAttention"), "nn.MultiHeadAttention(size, heads): causal unless causal=False"),
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), "nn.TransformerBlock(size, nn.MultiHeadAttention(size, heads), nn.MLP(size))"),
    **dict.fromkeys(("Dense", "LazyLinear", "FullyConnected"), "nn.Linear(inputs, outputs)"),
    **dict.fromkeys(("Parameter", "functional", "F"), "a layer's `emit` makes parameters with ctx.param(…) and calls ops as ctx.relu(x)"),
    **dict.fromkeys(("Reshape", "View", "Unflatten"), "a layer of your own: class Mine(nn.Layer): def emit(self, ctx, x): return ctx.reshape(x, shape=(…))"),
    **dict.fromkeys(("CosineAnnealingLR", "CosineDecay", "OneCycleLR"), "nn.AdamW(lr=nn.schedules.Cosine(base=1e-3, total=1000, warmup=100))"),
    **dict.fromkeys(("StepLR", "ExponentialLR"), "nn.SGD(lr=nn.schedules.StepDecay(base=0.1, every=100, gamma=0.5))"),
    "AMSGrad": "nn.Adam(amsgrad=True)",
    "optim": "the optimizers are in nn itself: nn.SGD, nn.Adam, nn.AdamW, nn.Lion, nn.LAMB, nn.Muon, nn.RMSprop, nn.Adagrad",
}  # fmt: skip

# What `aicf.models.NAME` is called here.
MODELS: Mapping[str, str] = {
    **dict.fromkeys(("AutoModel", "AutoModelForCausalLM", "GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"), "aicf.models.from_pretrained(folder)"),
    **dict.fromkeys(("AutoConfig", "PretrainedConfig"), "aicf.models.GPT2Config.preset(name) and aicf.models.LlamaConfig.preset(name)"),
    **dict.fromkeys(("AutoTokenizer", "tokenizer"), "tokenizers are your choice: aicf takes and returns ids; `tokenizers` and `transformers` have those of published models"),
    **dict.fromkeys(("Mistral", "Qwen2"), "aicf.models.Llama, with LlamaConfig(model_type=…)"),
}  # fmt: skip

# What `aicf.NAME` is called here.
AICF: Mapping[str, str] = {
    **dict.fromkeys(("Model", "Module", "Sequential"), "aicf.nn.Model"),
    **dict.fromkeys(("optim", "optimizers"), "the optimizers are in aicf.nn: SGD, Adam, AdamW, Lion, LAMB, Muon, RMSprop, Adagrad"),
    **dict.fromkeys(("float32", "float", "fp32"), "aicf.f32"),
    **dict.fromkeys(("float16", "half", "fp16"), "aicf.f16"),
    "bfloat16": "aicf.bf16",
    **dict.fromkeys(("int32", "int"), "aicf.i32"),
    **dict.fromkeys(("int64", "long"), "aicf.i64"),
    "bool": "aicf.bool_",
    **dict.fromkeys(("float64", "double"), "aicf.f64"),
    **{f"{u}int{n}": f"aicf.{u or 'i'}{n}" for u, n in (("", 8), ("u", 8), ("", 16), ("u", 16), ("u", 32), ("u", 64))},
    **dict.fromkeys(("tensor", "array", "from_numpy"), "feeds are arrays of NumPy, PyTorch, CuPy or JAX as they are"),
    "jit": "aicf.compile(model) compiles a model; aicf.op_call(\"add\", [a, b], [c]) runs one op; aicf.jax.jit(f) compiles a function of JAX",
    **dict.fromkeys(("set_logs", "log", "logging", "verbose"), 'aicf.logs("plan,capture")'),
    "explain": "aicf.explain_for(model, \"h200\"), or program.explain()",
}  # fmt: skip


def hint(name: str, table: Mapping[str, str], known: Iterable[str], prefix: str = "") -> str | None:
    """What to write instead of a name that is not there: from the table, else the names that are spelt much like it."""
    if said := table.get(name):
        return said
    folded = {k.lower().replace("_", ""): k for k in known}
    close = difflib.get_close_matches(name.lower().replace("_", ""), folded, n=3)
    return " or ".join(prefix + folded[c] for c in close) or None


def no_attribute(module: str, name: str, table: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error of a module's `__getattr__`."""
    said = None if name.startswith("_") else hint(name, table, known, f"{module.removeprefix('aicf.')}.")
    text = f"module {module!r} has no attribute {name!r}" + (f"; here: {said}" if said else "")
    return AttributeError(text, name=name)


def from_torch(value: object) -> bool:
    """Whether an object is of a class of PyTorch's, or of one derived from it. Never imports torch."""
    kind = value if isinstance(value, type) else type(value)
    return any(c.__module__.partition(".")[0] == "torch" for c in kind.__mro__)


# What a loss or an optimizer that is given by a name, a class or another library's object may mean, the first that fits.
PARTS: Mapping[str, Mapping[str, str]] = {
    "loss": {
        r"binary|bce": "loss=nn.BCEWithLogitsLoss()",
        r"cross_?entropy|\bs?ce\b|nll|log_?loss|softmax": "loss=nn.SoftmaxCrossEntropy()",
        r"mse|squared|\bl2": "loss=nn.MeanSquaredError()",
        r"huber|smooth_?l1": "loss=nn.HuberLoss()", r"\bl1|\bmae|absolute": "loss=nn.L1Loss()", r"\bkl": "loss=nn.KLDivLoss()",
    },
    "optimizer": {
        "lion": "optimizer=nn.Lion(lr=1e-4)", "muon": "optimizer=nn.Muon(lr=2e-2)", "lamb(?!da)": "optimizer=nn.LAMB(lr=1e-3)", "rms_?prop": "optimizer=nn.RMSprop(lr=1e-2)", "adagrad": "optimizer=nn.Adagrad(lr=1e-2)",
        "amsgrad": "optimizer=nn.Adam(lr=1e-3, amsgrad=True)",
        "adamw": "optimizer=nn.AdamW(lr=1e-3)", "adam": "optimizer=nn.Adam(lr=1e-3)", "sgd|momentum": "optimizer=nn.SGD(lr=0.1)",
    },
}  # fmt: skip


def part(name: str, value: object) -> str | None:
    """What to write instead of a loss or an optimizer that is none."""
    text = value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
    found = (said for known, said in PARTS.get(name, {}).items() if re.search(known, text, re.IGNORECASE))
    return next(found, None)


# What to call with a model of another framework, by the first parts of its classes' modules.
MODELS_OF: Mapping[str, tuple[str, str]] = {
    "torch": ("PyTorch's", 'torch.compile(module, backend="aicf") runs it in PyTorch, trained or not; aicf.from_torch(module, (x,)) compiles it '
              "without; single ops take torch's tensors: aicf.op_call('add', [a, b], [c])"),
    "onnx": ("ONNX's", "aicf.from_onnx(model) compiles it; aicf.frontends.onnx.load(model) is a model that aicf.compile takes"),
    "jax": ("JAX's", "aicf.jax.jit(f) compiles a function of JAX's arrays, jax.grad inside of it; aicf.jax.jit(f).model(x) is a model that aicf.compile takes"),
    "flax": ("Flax's", "aicf.jax.jit(lambda params, x: module.apply(params, x)) compiles what it computes; a flax.nnx module is called instead: lambda x: module(x)"),
    "keras": ("Keras'", 'with the backend of JAX aicf.jax.jit(lambda x: model(x)) compiles it; else model.export("model.onnx", format="onnx"), then aicf.from_onnx("model.onnx")'),
    "tensorflow": ("TensorFlow's", 'tf2onnx makes a file of it: aicf.from_onnx("model.onnx")'),
}  # fmt: skip
FUNCTION_HINT = (
    "aicf.jax.jit(f) compiles a function of JAX's arrays; one that emits aicf's ops is a layer of a model: "
    "class Mine(nn.Layer): def emit(self, ctx, x): …"
)


def foreign_model(value: object) -> tuple[str, str] | None:
    """(what it is, what to call with it) of a model that is another framework's, a file or a function; None of all else.
    Imports no framework."""
    if isinstance(value, (str, PathLike)):
        path = fspath(value)
        if path.endswith(".onnx"):
            return f"the file {path!r}", f"aicf.from_onnx({path!r})"
        return None
    kind = value if isinstance(value, type) else type(value)
    for cls in kind.__mro__:
        package = cls.__module__.partition(".")[0]
        package = {"jaxlib": "jax", "tf_keras": "keras"}.get(package, package)
        if package in MODELS_OF:
            whose, hint = MODELS_OF[package]
            return f"{whose} {kind.__name__}", hint
    if isinstance(value, (FunctionType, MethodType, partial)):
        return f"the function {getattr(value, '__name__', 'partial')}", FUNCTION_HINT
    return None
