"""Matrix products, softmax, norms and attention."""

from __future__ import annotations

from math import prod
from typing import Any

from ....types import DType
from ..operands import Call, Operand
from ..table import rule
from .movement import broadcast

HALVES = (DType.f16, DType.bf16)


@rule("MatMul")
def _matmul(n: Call, a: Operand, b: Operand) -> Any:
    if a.dtype.kind != "float" or a.dtype is DType.f64:
        raise n.refuse(f"aicf has no product of {a.dtype}")
    return n.value(a) @ n.value(b)


@rule("Gemm", since=7)
def _gemm(n: Call, a: Operand, b: Operand, c: Operand | None = None) -> Any:
    alpha, beta = n.attr("alpha"), n.attr("beta")
    turned = {"trans_a": bool(n.attr("transA")), "trans_b": bool(n.attr("transB"))}
    shape = a.shape[::-1][0 if turned["trans_a"] else 1], b.shape[::-1][1 if turned["trans_b"] else 0]
    if c is None or beta == 0:
        return n.op("gemm", a, b, alpha=alpha, **turned)
    if c.rank == 1 and c.shape[0] == shape[1] and beta == 1:
        return n.op("gemm", a, b, None, c, alpha=alpha, **turned)
    if c.rank > 2:
        raise n.wrong(f"C has shape {list(c.shape)}, the product {list(shape)}")
    return n.op("gemm", a, b, broadcast(n, n.value(c), shape), alpha=alpha, beta=beta, **turned)


@rule("Softmax", "LogSoftmax", since=13)
def _softmax(n: Call, x: Operand) -> Any:
    return n.op(
        "softmax" if n.node.op == "Softmax" else "log_softmax", x, axis=n.axis(n.attr("axis"), x.rank)
    )


@rule("Softmax", "LogSoftmax", until=12)
def _softmax_of_rows(n: Call, x: Operand) -> Any:
    """The axes from one on are as one."""
    axis = n.axis(n.attr("axis"), x.rank)
    kind = "softmax" if n.node.op == "Softmax" else "log_softmax"
    return n.op("reshape", n.op(kind, _rows(n, x, axis), axis=axis), shape=x.shape)


# --- norms ------------------------------------------------------------------------------------------------------------


def _rows(n: Call, x: Any, axis: int) -> Any:
    """x with the axes from one on as one."""
    return n.op("reshape", x, shape=(*x.shape[:axis], prod(x.shape[axis:])))


def _wide(n: Call, x: Any) -> Any:
    return n.op("convert", x, dtype=DType.f32) if x.dtype in HALVES else n.value(x)


def _like(n: Call, y: Any, dtype: DType) -> Any:
    return y if y.dtype is dtype else n.op("convert", y, dtype=dtype)


@rule("LayerNormalization", since=17)
def _layer_norm(n: Call, x: Operand, scale: Operand, bias: Operand | None = None) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    if x.dtype is DType.f64:
        raise n.refuse("aicf has no norm of f64")
    normal = x.shape[axis:]
    eps = n.attr("epsilon")
    asked = sum(map(bool, n.node.outputs))
    whole = scale.shape == normal and (bias is None or bias.shape == normal)
    if asked == 1 and whole:
        weight = [None if w is None else n.op("reshape", w, shape=(prod(normal),)) for w in (scale, bias)]
        return n.op(
            "reshape", n.op("layer_norm", _rows(n, n.value(x), axis), *weight, eps=eps), shape=x.shape
        )
    over = tuple(range(axis, x.rank))
    wide = _wide(n, x)
    mean = n.op("reduce_mean", wide, axes=over, keepdims=True)
    centred = n.op("sub", wide, mean)
    variance = n.op("reduce_mean", n.op("square", centred), axes=over, keepdims=True)
    rstd = n.op("div", 1.0, n.op("sqrt", n.op("add", variance, eps)))
    y = n.op("mul", _like(n, n.op("mul", centred, rstd), x.dtype), scale)
    return (y if bias is None else n.op("add", y, bias), mean, rstd)


@rule("RMSNormalization", since=23)
def _rms_norm(n: Call, x: Operand, scale: Operand) -> Any:
    axis = n.axis(n.attr("axis"), x.rank)
    normal = x.shape[axis:]
    if scale.shape != normal or x.dtype is DType.f64:
        raise n.refuse(f"a scale of shape {list(scale.shape)}")
    rows, weight = _rows(n, n.value(x), axis), n.op("reshape", scale, shape=(prod(normal),))
    return n.op("reshape", n.op("rms_norm", rows, weight, eps=n.attr("epsilon")), shape=x.shape)


def _channels(n: Call, v: Any, rank: int) -> Any:
    """One for each channel, which are axis 1."""
    return n.op("reshape", v, shape=(1, v.shape[0], *[1] * (rank - 2)))


@rule("BatchNormalization", since=7)
def _batch_norm(n: Call, x: Operand, scale: Operand, bias: Operand, mean: Operand, variance: Operand) -> Any:
    """In inference: of the statistics that the model has."""
    if not n.attr("spatial", 1):
        raise n.refuse("statistics of each element, not of each channel")
    if n.attr("training_mode", 0):
        return _trained_batch_norm(n, x, scale, bias, mean, variance)
    rank = max(x.rank, 2)
    spread = n.op("sqrt", n.op("add", variance, n.attr("epsilon")))
    factor = n.op("div", _like(n, n.value(scale), spread.dtype), spread)
    wide = _like(n, n.value(x), spread.dtype)
    centred = n.op("sub", wide, _channels(n, n.value(mean), rank))
    y = n.op("mul", centred, _channels(n, factor, rank))
    y = n.op("add", y, _channels(n, _like(n, n.value(bias), y.dtype), rank))
    return _like(n, y, x.dtype)


def _trained_batch_norm(
    n: Call, x: Operand, scale: Operand, bias: Operand, mean: Operand, variance: Operand
) -> Any:
    """By the statistics of this batch, with the running ones moved towards them."""
    wide, axes = _wide(n, n.value(x)), (0, *range(2, x.rank))
    now = n.op("reduce_mean", wide, axes=axes, keepdims=True)
    spread = n.op("reduce_mean", n.op("square", n.op("sub", wide, now)), axes=axes, keepdims=True)
    y = n.op("div", n.op("sub", wide, now), n.op("sqrt", n.op("add", spread, n.attr("epsilon"))))
    for kind, factor in (("mul", scale), ("add", bias)):
        y = n.op(kind, y, _channels(n, _like(n, n.value(factor), y.dtype), max(x.rank, 2)))
    kept, results = n.attr("momentum"), [_like(n, y, x.dtype)]
    for old, new in ((mean, now), (variance, spread)):
        new = _like(n, n.op("reshape", new, shape=old.shape), old.dtype)
        results.append(
            n.op("add", n.op("scale", n.value(old), factor=kept), n.op("scale", new, factor=1 - kept))
        )
    return tuple(results)


def _normalised(n: Call, x: Any, axes: tuple[int, ...], eps: float) -> Any:
    mean = n.op("reduce_mean", x, axes=axes, keepdims=True)
    centred = n.op("sub", x, mean)
    variance = n.op("reduce_mean", n.op("square", centred), axes=axes, keepdims=True)
    return n.op("div", centred, n.op("sqrt", n.op("add", variance, eps)))


@rule("InstanceNormalization", since=6)
def _instance_norm(n: Call, x: Operand, scale: Operand, bias: Operand) -> Any:
    if x.rank < 3:
        raise n.wrong(
            f"the input has rank {x.rank}, expected 3 or more: batch, channels and what is normalised"
        )
    y = _normalised(n, n.value(x), tuple(range(2, x.rank)), n.attr("epsilon"))
    return n.op("add", n.op("mul", y, _channels(n, scale, x.rank)), _channels(n, bias, x.rank))


@rule("GroupNormalization", since=21)
def _group_norm(n: Call, x: Operand, scale: Operand, bias: Operand) -> Any:
    groups = n.attr("num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise n.wrong(f"{x.shape[1]} channels can't be {groups} groups")
    split = n.op("reshape", x, shape=(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
    y = _like(n, _normalised(n, _wide(n, split), tuple(range(2, x.rank + 1)), n.attr("epsilon")), x.dtype)
    y = n.op("reshape", y, shape=x.shape)
    return n.op("add", n.op("mul", y, _channels(n, scale, x.rank)), _channels(n, bias, x.rank))


@rule("LpNormalization")
def _lp_norm(n: Call, x: Operand) -> Any:
    axis, p = n.axis(n.attr("axis"), x.rank), n.attr("p")
    if p not in (1, 2):
        raise n.refuse(f"p is {p}, where ONNX defines 1 and 2")
    size = n.op("abs", x) if p == 1 else n.op("square", x)
    total = n.op("reduce_sum", size, axes=(axis,), keepdims=True)
    norm = total if p == 1 else n.op("sqrt", total)
    return n.op("select", n.op("equal", norm, 0), 0, n.op("div", x, norm))


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(n: Call, x: Operand) -> Any:
    if x.rank <= 2:
        return x
    if n.node.op == "GlobalMaxPool" and x.rank <= 5 and x.dtype.kind == "float" and all(x.shape):
        return n.op("adaptive_max_pool", x, sizes=(1,) * (x.rank - 2))
    kind = "reduce_mean" if n.node.op == "GlobalAveragePool" else "reduce_max"
    return n.op(kind, x, axes=tuple(range(2, x.rank)), keepdims=True)


# --- attention --------------------------------------------------------------------------------------------------------


@rule("Attention", since=23)
def _attention(
    n: Call, q: Operand, k: Operand, v: Operand, mask: Operand | None, past_k: Operand | None, past_v: Operand | None,
    lengths: Operand | None = None,
) -> Any:  # fmt: skip
    """What attention's own masks say; the rest is left to the op's definition."""
    windows = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    if windows != (-1, -1) or lengths is not None or any(n.node.outputs[3:]):
        raise n.refuse("a window, lengths, or a result of scores")
    capped, causal = n.attr("softcap", 0.0), bool(n.attr("is_causal"))
    if n.since < 25 and (mask is not None or causal) and capped:
        raise n.refuse("before version 25 the mask came before the cap")
    if n.since < 25 and mask is not None:
        raise n.refuse("before version 25 a query without keys was left open")
    query, key, value = (n.value(x) for x in (q, k, v))
    merged = query.rank == 3
    if merged:
        counts = n.attr("q_num_heads", 0), n.attr("kv_num_heads", 0)
        if min(counts) < 1:
            raise n.wrong("operands of rank 3 need q_num_heads and kv_num_heads")
        query, key, value = (
            _heads(n, x, c) for x, c in ((query, counts[0]), (key, counts[1]), (value, counts[1]))
        )
    if past_k is not None and past_v is not None:
        key, value = (n.op("concatenate", p, x, axis=2) for p, x in ((past_k, key), (past_v, value)))
    if query.rank != 4 or key.rank != 4:
        raise n.refuse(f"operands of rank {query.rank}")
    if causal and key.shape[2] - query.shape[2] != (0 if past_k is None else past_k.shape[2]):
        raise n.refuse("queries that stand before the first key")
    added: dict[str, Any] = {}
    if mask is not None:
        if mask.shape[-1] != key.shape[2]:
            raise n.refuse("a mask of fewer keys than there are")
        added = {"mask" if mask.dtype is DType.bool else "bias": n.value(mask)}
    scale = n.attr("scale")
    y = n.op("attention", query, key, value, **added, scale=scale, causal=causal, softcap=capped)
    if merged:
        turned = n.op("transpose", y, perm=(0, 2, 1, 3))
        y = n.op("reshape", turned, shape=(*turned.shape[:2], turned.shape[2] * turned.shape[3]))
    return y, key, value


def _heads(n: Call, x: Any, count: int) -> Any:
    b, t, width = x.shape
    if width % count:
        raise n.wrong(f"rows of {width} can't be {count} heads")
    return n.op("transpose", n.op("reshape", x, shape=(b, t, count, width // count)), perm=(0, 2, 1, 3))
