"""Attention as PyTorch's fused kernels have it, forward and backward. What has a dropout of its own is left to PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....ir import Value
from ....types import bool_, f32
from ..rules import UNREAD, Site, Unread, rule
from ..types import Unsupported


def _asked(q: Value, k: Value, dropout: float, causal: bool, scale: float | None) -> dict[str, Any]:
    if dropout:
        raise Unsupported("attention with dropout")
    if causal and q.shape[-2] != k.shape[-2]:  # PyTorch counts positions from the start, aicf from the end
        raise Unsupported("causal attention of fewer queries than keys")
    return {"causal": bool(causal), "scale": None if scale is None else float(scale)}


def _masks(s: Site, mask: Value | None) -> dict[str, Value]:
    if mask is None:
        return {}
    mask = _unrepeated(s, mask)
    return {"mask": mask} if mask.dtype is bool_ else {"bias": mask}


def _unrepeated(s: Site, x: Value) -> Value:
    """Without memory where PyTorch repeats it: its kernels ask for masks of all scores, and expand those of keys alone."""
    while x.producer is not None and x.producer.kind == "broadcast_in_dim":
        dims, shape = x.producer.attrs["dims"], [1] * x.rank
        inner = s.ctx.builder.graph.values[x.producer.inputs[0]]
        for dim, extent in zip(dims, inner.shape):
            shape[dim] = extent
        if list(dims) != sorted(dims) or tuple(shape) == x.shape:
            return x
        x = s.reshape(inner, shape)
    return x


def forward(
    s: Site, q: Value, k: Value, v: Value, dropout: float, causal: bool, mask: Value | None, scale: float | None,
) -> tuple[Value, Value]:  # fmt: skip
    """(out, lse)."""
    asked = _asked(q, k, dropout, causal, scale)
    out, lse = s.results(s.ctx.attention(q, k, v, **_masks(s, mask), **asked))
    return out, s.cast(lse, f32)


@rule("_scaled_dot_product_flash_attention_for_cpu", heavy=True)
def _flash_cpu(
    s: Site, q: Value, k: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, attn_mask: Value | None = None,
    scale: float | None = None,
) -> Any:  # fmt: skip
    out, lse = forward(s, q, k, v, dropout_p, is_causal, attn_mask, scale)
    want = s.outs[1]
    return out, lse if want is None or lse.shape == want.shape else s.reshape(lse, want.shape)


@rule("_scaled_dot_product_flash_attention", heavy=True)
def _flash(
    s: Site, q: Value, k: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, return_debug_mask: bool = False,
    scale: float | None = None,
) -> Any:  # fmt: skip
    # behind out and lse: where sequences begin, their lengths, the random state and a debug mask
    return (*forward(s, q, k, v, dropout_p, is_causal, None, scale), *unread(s, 2))


def unread(s: Site, first: int) -> list[Unread]:
    """Results from `first` on, that only a dropout's backward reads: there is none."""
    return [UNREAD] * len(s.outs[first:])


@rule("_scaled_dot_product_efficient_attention", heavy=True)
def _efficient(
    s: Site, q: Value, k: Value, v: Value, attn_bias: Value | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    out, lse = forward(s, q, k, v, dropout_p, is_causal, attn_bias, scale)
    want = s.outs[1]
    if want is None or lse.shape == want.shape:
        return out, lse, *unread(s, 2)
    if s.reads(1) and want.numel:  # without gradients it is empty
        raise Unsupported("an lse that is padded")
    return out, *unread(s, 1)


@rule("_scaled_dot_product_cudnn_attention", heavy=True)
def _cudnn(
    s: Site, q: Value, k: Value, v: Value, attn_bias: Value | None, compute_log_sumexp: bool, dropout_p: float = 0.0,
    is_causal: bool = False, return_debug_mask: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    out, lse = forward(s, q, k, v, dropout_p, is_causal, attn_bias, scale)
    want = s.outs[1]
    if want is not None and lse.shape != want.shape:
        lse = s.reshape(lse, want.shape)
    return out, lse, *unread(s, 2)


def backward(
    s: Site, dout: Value, q: Value, k: Value, v: Value, out: Value, lse: Value, dropout: float, causal: bool, mask: Value | None,
    scale: float | None,
) -> tuple[Value, Value, Value]:  # fmt: skip
    asked = _asked(q, k, dropout, causal, scale)
    lse = s.reshape(s.cast(lse, f32), q.shape[:-1])
    given = _masks(s, mask)
    return s.ctx.attention_grad(dout, q, k, v, out, lse, given.get("mask"), None, given.get("bias"), **asked)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward", heavy=True)
def _flash_cpu_backward(
    s: Site, dout: Value, q: Value, k: Value, v: Value, out: Value, lse: Value, dropout_p: float, is_causal: bool,
    attn_mask: Value | None = None, scale: float | None = None,
) -> Any:  # fmt: skip
    return backward(s, dout, q, k, v, out, lse, dropout_p, is_causal, attn_mask, scale)


@rule("_scaled_dot_product_flash_attention_backward", heavy=True)
def _flash_backward(
    s: Site, dout: Value, q: Value, k: Value, v: Value, out: Value, lse: Value, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any,
    dropout_p: float, is_causal: bool, philox_seed: Any, philox_offset: Any, scale: float | None = None,
) -> Any:  # fmt: skip
    return backward(s, dout, q, k, v, out, lse, dropout_p, is_causal, None, scale)


@rule("_scaled_dot_product_efficient_attention_backward", heavy=True)
def _efficient_backward(
    s: Site, dout: Value, q: Value, k: Value, v: Value, attn_bias: Value | None, out: Value, lse: Value, philox_seed: Any,
    philox_offset: Any, dropout_p: float, grad_input_mask: Sequence[bool], is_causal: bool = False, scale: float | None = None,
) -> Any:  # fmt: skip
    if len(grad_input_mask) > 3 and grad_input_mask[3]:
        raise Unsupported("the gradient of an attention bias")
    return (*backward(s, dout, q, k, v, out, lse, dropout_p, is_causal, attn_bias, scale), None)


@rule("_scaled_dot_product_cudnn_attention_backward", heavy=True)
def _cudnn_backward(
    s: Site, dout: Value, q: Value, k: Value, v: Value, out: Value, lse: Value, philox_seed: Any, philox_offset: Any,
    attn_bias: Value | None, cum_q: Any, cum_k: Any, max_q: Any, max_k: Any, dropout_p: float, is_causal: bool,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return backward(s, dout, q, k, v, out, lse, dropout_p, is_causal, attn_bias, scale)
