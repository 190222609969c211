"""Convolution, pooling, and products by their indices."""

from __future__ import annotations

from math import ceil, prod
from typing import Any, NamedTuple

from ....types import DType
from ..operands import Call, Operand
from ..table import rule
from .places import greatest_places

MOST_PLACES = 1024  # of a window that is written out, an op for each


class Spatial(NamedTuple):
    """What slides over the spatial axes, and what is added around them."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        return tuple((n - 1) * apart + 1 for n, apart in zip(self.window, self.dilation))

    @property
    def attrs(self) -> dict[str, tuple[int, ...]]:
        return {"strides": self.strides, "dilation": self.dilation, "low": self.low, "high": self.high}


def _entries(n: Call, name: str, count: int, least: int, default: int) -> tuple[int, ...]:
    given = n.attr(name)
    entries = (default,) * count if given is None else tuple(given)
    if len(entries) != count or min(entries, default=least) < least:
        raise n.wrong(f"{name} is {list(entries)}, expected {count} numbers of {least} or more")
    return entries


def _spatial(n: Call, x: Operand, window: tuple[int, ...]) -> Spatial:
    """By explicit pads, or those that `auto_pad` asks for."""
    axes = x.rank - 2
    if axes < 1 or len(window) != axes or min(window, default=1) < 1:
        raise n.wrong(f"a window {list(window)} does not slide over {list(x.shape)}")
    strides, dilation = _entries(n, "strides", axes, 1, 1), _entries(n, "dilations", axes, 1, 1)
    mode = n.attr("auto_pad", "NOTSET")
    pads = _entries(n, "pads", 2 * axes, 0, 0)
    if mode in ("NOTSET", "VALID", ""):
        zeros = (0,) * axes
        low, high = (zeros, zeros) if mode == "VALID" else (pads[:axes], pads[axes:])
        return Spatial(window, strides, dilation, low, high)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise n.wrong(f"auto_pad is {mode!r}, expected NOTSET, VALID, SAME_UPPER or SAME_LOWER")
    span = Spatial(window, strides, dilation, (), ()).span
    total = [max((ceil(d / s) - 1) * s + w - d, 0) for d, s, w in zip(x.shape[2:], strides, span)]
    less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
    return Spatial(window, strides, dilation, *((less, more) if mode == "SAME_UPPER" else (more, less)))


@rule("Conv")
def _conv(n: Call, x: Operand, w: Operand, bias: Operand | None = None) -> Any:
    s = _spatial(n, x, tuple(n.attr("kernel_shape") or w.shape[2:]))
    if s.window != w.shape[2:]:
        raise n.wrong(f"kernel_shape {list(s.window)} is not that of w, {list(w.shape)}")
    return _biased(n, n.op("convolution", x, w, **s.attrs, groups=n.attr("group", 1)), bias)


def _biased(n: Call, y: Any, bias: Operand | None) -> Any:
    if bias is None:
        return y
    return n.op("add", y, n.op("reshape", bias, shape=(1, bias.shape[0], *[1] * (y.rank - 2))))


@rule("ConvTranspose")
def _conv_transpose(n: Call, x: Operand, w: Operand, bias: Operand | None = None) -> Any:
    """aicf's own; how much is cut off follows from what is asked for."""
    axes, groups = x.rank - 2, n.attr("group", 1)
    if w.rank != x.rank or axes < 1 or groups < 1 or w.shape[0] % groups or x.shape[1] != w.shape[0]:
        raise n.wrong(f"weights {list(w.shape)} of {groups} groups do not fit {list(x.shape)}")
    strides, dilation = _entries(n, "strides", axes, 1, 1), _entries(n, "dilations", axes, 1, 1)
    more, pads = _entries(n, "output_padding", axes, 0, 0), _entries(n, "pads", 2 * axes, 0, 0)
    span = Spatial(w.shape[2:], strides, dilation, (), ()).span
    low, high = list(pads[:axes]), list(pads[axes:])
    wanted, mode = n.attr("output_shape"), n.attr("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER") and wanted is None:
        wanted = [d * s for d, s in zip(x.shape[2:], strides)]
    if wanted is not None:
        sizes = zip(x.shape[2:], strides, more, span, wanted[-axes:])
        total = [s * (d - 1) + m + k - size for d, s, m, k, size in sizes]
        if min(total) < 0 and n.attr("output_shape") is None:
            raise n.refuse(
                f"auto_pad {mode} of a kernel {list(span)} that is smaller than its stride {list(strides)}"
            )
        if min(total) < (0 if mode == "SAME_UPPER" else -1):  # one more at the end is as all have it
            raise n.refuse(f"an output_shape {list(wanted)} beyond all windows: where they begin differs")
        less, rest = [t // 2 for t in total], [t - t // 2 for t in total]
        low, high = (less, rest) if mode == "SAME_UPPER" else (rest, less)
    cut = tuple(p - m for p, m in zip(high, more))
    y = n.op(
        "convolution_transposed",
        x,
        w,
        strides=strides,
        low=tuple(low),
        high=cut,
        dilation=dilation,
        groups=groups,
    )
    return _biased(n, y, bias)


def _check_places(n: Call, count: int) -> None:
    if count > MOST_PLACES:
        raise n.refuse(f"a window of {count} elements, where aicf takes up to {MOST_PLACES}")


def _pooled(n: Call, x: Operand) -> tuple[Spatial, bool]:
    """The windows of a pool, and whether ceil_mode has added one."""
    s = _spatial(n, x, tuple(n.attr("kernel_shape")))
    _check_places(n, prod(s.window))
    if not n.attr("ceil_mode", 0):
        return s, False
    high = list(s.high)
    for a, (size, step, span) in enumerate(zip(x.shape[2:], s.strides, s.span)):
        room = size + s.low[a] + s.high[a] - span
        count = -(-room // step) + 1
        if (count - 1) * step >= size + s.low[a]:
            count -= 1  # it would begin behind the elements
        high[a] += max((count - 1) * step - room, 0)
    return s._replace(high=tuple(high)), tuple(high) != s.high


@rule("MaxPool")
def _max_pool(n: Call, x: Operand) -> Any:
    s, _ = _pooled(n, x)
    if any(n.node.outputs[1:]):
        return greatest_places(n, x, s.window, s.attrs)
    return n.op("max_pool", x, window=s.window, **s.attrs)


@rule("AveragePool", since=7)
def _average_pool(n: Call, x: Operand) -> Any:
    s, added = _pooled(n, x)
    padding = bool(n.attr("count_include_pad", 0))
    if padding and added:  # pads are counted, what ceil_mode adds is not: so they become elements
        given = _spatial(n, x, s.window)
        rest = tuple(more - asked for more, asked in zip(s.high, given.high))
        zeros = (0,) * len(s.window)
        if any(r > (k - 1) * d for r, k, d in zip(rest, s.window, s.dilation)):
            raise n.refuse("a window of what ceil_mode adds alone")
        wide = n.op("pad", x, low=(0, 0, *given.low), high=(0, 0, *given.high))
        attrs = {**s.attrs, "low": zeros, "high": rest}
        return n.op("avg_pool", wide, window=s.window, **attrs, count_padding=False)
    return n.op("avg_pool", x, window=s.window, **s.attrs, count_padding=padding)


@rule("LpPool", since=2)
def _lp_pool(n: Call, x: Operand) -> Any:
    """The p-norm of each window: what is added is 0, so a mean that counts it is the sum by the window's size."""
    s, _ = _pooled(n, x)
    p = n.attr("p", 2)
    if p < 1:
        raise n.wrong(f"p is {p}, expected 1 or more")
    powers = (
        n.op("abs", x) if p == 1 else n.op("square", x) if p == 2 else n.op("power", n.op("abs", x), float(p))
    )
    mean = n.op("avg_pool", powers, window=s.window, **s.attrs, count_padding=True)
    total = n.op("scale", mean, factor=float(prod(s.window)))
    return total if p == 1 else n.op("sqrt", total) if p == 2 else n.op("power", total, 1 / p)


@rule("Einsum", since=12)
def _einsum(n: Call, *xs: Operand) -> Any:
    equation = n.attr("equation").replace(" ", "")
    if "->" not in equation:  # what is there once, in its alphabetical order
        letters = equation.replace(",", "").replace("...", "")
        once = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
        equation += "->" + "..." * ("..." in equation) + once
    operands, made = equation.split("->")
    given = [_diagonal(n, x, labels) for x, labels in zip(xs, operands.split(","), strict=False)]
    if len(given) == len(xs) == operands.count(",") + 1:
        equation = ",".join(labels for _, labels in given) + "->" + made
        return n.op("einsum", *[x for x, _ in given], equation=equation)
    return n.op("einsum", *xs, equation=equation)


def _diagonal(n: Call, x: Any, labels: str) -> tuple[Any, str]:
    """x without the axes whose letter an axis before them has: of these the diagonal."""
    while len(set(labels.replace(".", ""))) < len(labels.replace(".", "")):
        repeated = next(c for c in labels if c != "." and labels.count(c) > 1)
        before, _, behind = labels.partition("...")
        rank = len(x.shape)
        letters = [*before, *[""] * (rank - len(before) - len(behind)), *behind]
        first, second = [a for a, c in enumerate(letters) if c == repeated][:2]
        if len(letters) != rank or x.shape[first] != x.shape[second]:
            raise n.wrong(f"{labels} does not fit {list(x.shape)}")
        size = x.shape[first]
        shapes = [(size, *[1] * (rank - a - 1)) for a in (first, second)]
        hit = n.op("equal", *[n.op("iota", shape=s, axis=0, dtype=DType.i64) for s in shapes])
        full = n.op(
            "broadcast_in_dim", hit, shape=tuple(x.shape), dims=tuple(range(rank - len(hit.shape), rank))
        )
        x = n.op("reduce_sum", n.op("select", full, x, n.number(0, x.dtype)), axes=(second,), keepdims=False)
        at = [k for k, c in enumerate(labels) if c == repeated][1]
        labels = labels[:at] + labels[at + 1 :]
    return x, labels


@rule("LRN")
def _lrn(n: Call, x: Operand) -> Any:
    """x / (bias + alpha / size * sum of squares of the channels beside it) ** beta."""
    size = n.attr("size")
    if size < 1 or x.rank < 2:
        raise n.wrong(f"{size} channels of {list(x.shape)}")
    around, most = [0] * x.rank, max(x.shape[1] - 1, 0)  # what is further away is no channel
    low, high = around.copy(), around.copy()
    low[1], high[1] = min((size - 1) // 2, most), min(size // 2, most)
    _check_places(n, low[1] + high[1] + 1)
    padded = n.op("pad", n.op("square", x), low=tuple(low), high=tuple(high))
    total: Any = None
    for first in range(low[1] + high[1] + 1):
        limit = [first + x.shape[1] if a == 1 else d for a, d in enumerate(x.shape)]
        part = n.op(
            "slice", padded, start=tuple(first if a == 1 else 0 for a in range(x.rank)), limit=tuple(limit)
        )
        total = part if total is None else n.op("add", total, part)
    scaled = n.op("add", n.op("scale", total, factor=n.attr("alpha") / size), n.attr("bias"))
    return n.op("div", x, n.op("power", scaled, n.attr("beta")))
