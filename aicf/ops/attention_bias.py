"""The gradient of attention's bias: an op of its own, which a graph has only where something asks for that gradient."""

from __future__ import annotations

from .attention import (
    check,
    check_results,
    check_spreads,
    drawn_lengths,
    drawn_lse,
    existing,
    scores_of,
    slopes,
    work,
)
from .schema import ACCUMULATES, F32, I32, Bool, Float, FloatOwn, op, require


@op("attention_bias_grad", results=("dbias",), flops=20, version=2, traits=(ACCUMULATES,))
def attention_bias_grad(
    dout: Float, q: Float, k: Float, v: Float, out: Float, lse: F32, bias: FloatOwn, mask: Bool = None, lengths: I32 = None,
    *, scale: float | None = None, causal: bool = False, window: int = 0, softcap: float = 0.0,
):  # fmt: skip
    """attention's gradient of a bias, p * (dout v^T - sum(dout * out)) with p as in attention_grad, summed over what the bias is repeated along.

    Shapes: as of attention_grad; dbias is as bias, which is (..., T, S), repeated along batches and heads alone. Sums are f32, in one order.

    C1   q has rank 3 or more
    C2   k and v have the rank of q
    C3   k and v have the batch of q
    C4   k has the d of q
    C5   v has the heads and keys of k
    C6   the heads of q are a multiple of those of k
    C7   mask broadcasts to (..., H, T, S)               (NumPy's rule)
    C8   scale is finite
    C9   window is not negative
    C10  softcap is finite and not negative
    C11  dout and out have the shape of attention's result
    C12  lse has the shape of q without d
    C13  lengths has the shape of the batch of q
    C14  bias broadcasts to (..., H, T, S)               (NumPy's rule)
    C15  the last two axes of bias are T and S
    """
    check(q, k, v, mask, scale, window, softcap)
    check_results(dout, q, v, out, lse, lengths)
    check_spreads("bias", bias, q, k, "C14")
    last = (q.shape[-2], k.shape[-2])
    require(
        bias.shape[-2:] == last, "C15", f"bias has shape {bias.shape}, expected (..., {last[0]}, {last[1]})"
    )
    return bias


@attention_bias_grad.reference
def _(dout, q, k, v, out, lse, bias, mask=None, lengths=None, *, scale, causal, window, softcap):
    k, v = existing(k, lengths), existing(v, lengths)
    found = scores_of(q, k, mask, lengths, bias, scale, causal, window, softcap)
    _, ds = slopes(dout, k, v, out, lse, *found)
    ds = ds.reshape(*q.shape[:-1], k.shape[-2])
    lead = ds.ndim - bias.ndim
    repeated = [i for i, n in enumerate(ds.shape) if i < lead or bias.shape[i - lead] != n]
    return ds.sum(tuple(repeated), keepdims=True).reshape(bias.shape)


@attention_bias_grad.counts
def _(dout, q, k, v, *others, **attrs):
    return work(2, q, k, v)


attention_bias_grad.draws(lse=drawn_lse, lengths=drawn_lengths(2))


def _sample(q, k, bias, mask=None, ragged=False, dv=None, **attrs):
    v = k if dv is None else (*k[:-1], dv)
    out, lengths = (*q[:-1], v[-1]), q[:-3] if ragged else None
    attention_bias_grad.samples(out, q, k, v, out, q[:-1], bias, mask, lengths, **attrs)


_sample((2, 3, 5, 4), (2, 3, 7, 4), (3, 5, 7), causal=True)
_sample((2, 4, 3, 5), (2, 2, 6, 5), (2, 1, 3, 6), mask=(2, 4, 1, 6), softcap=1.5, dv=3)
_sample((4, 5, 4), (2, 7, 4), (5, 7), window=3, scale=None)
_sample((2, 2, 3, 4), (2, 1, 6, 4), (2, 2, 3, 6), ragged=True)
_sample((0, 3, 4), (0, 3, 4), (3, 3))
_sample((0, 2, 3, 4), (0, 1, 3, 4), (2, 3, 3))
_sample((2, 3, 4), (2, 0, 4), (2, 3, 0))
