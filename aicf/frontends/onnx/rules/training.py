"""Steps of optimizers, as ONNX's preview of training has them: a learning rate, the number of updates before this one, then tensors."""

from __future__ import annotations

from typing import Any

from ....types import DType
from ..operands import Call, Operand
from ..table import rule

DOMAIN = "ai.onnx.preview.training"


def _groups(n: Call, tensors: tuple[Operand, ...], kinds: int) -> list[tuple[Any, ...]]:
    """The tensors of each variable: itself, its gradient, what is kept of it."""
    if len(tensors) % kinds:
        raise n.wrong(f"{len(tensors)} tensors are not {kinds} for each variable")
    many = len(tensors) // kinds
    return [tuple(n.value(tensors[k * many + i]) for k in range(kinds)) for i in range(many)]


def _results(groups: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(made for kind in zip(*groups) for made in kind)


def _regular(n: Call, x: Any, g: Any) -> Any:
    """The gradient of the loss and of norm_coefficient / 2 * |x|^2."""
    factor = n.attr("norm_coefficient")
    return n.op("add", g, n.op("scale", x, factor=factor)) if factor else g


def _number(n: Call, x: Operand, dtype: DType) -> Any:
    v = n.op("reshape", x, shape=())
    return v if v.dtype is dtype else n.op("convert", v, dtype=dtype)


def _mixed(n: Call, a: Any, b: Any, share: float) -> Any:
    return n.op("add", n.op("scale", a, factor=share), n.op("scale", b, factor=1 - share))


@rule("Adam", domain=DOMAIN)
def _adam(n: Call, rate: Operand, count: Operand, *tensors: Operand) -> Any:
    alpha, beta, eps = n.attr("alpha"), n.attr("beta"), n.attr("epsilon")
    groups = []
    for x, g, v, h in _groups(n, tensors, 4):
        g, t = _regular(n, x, g), _number(n, count, x.dtype)
        v, h = _mixed(n, v, g, alpha), _mixed(n, h, n.op("square", g), beta)
        left = [n.op("sub", 1.0, n.op("power", n.number(b, x.dtype), t)) for b in (alpha, beta)]
        step = _number(n, rate, x.dtype)
        adjusted = n.op("div", n.op("mul", step, n.op("sqrt", left[1])), left[0])
        step = n.op("select", n.op("greater", t, 0.0), adjusted, step)
        y = n.op("sub", x, n.op("div", n.op("mul", step, v), n.op("add", n.op("sqrt", h), eps)))
        if after := n.attr("norm_coefficient_post"):
            y = n.op("scale", y, factor=1 - after)
        groups.append((y, v, h))
    return _results(groups)


@rule("Momentum", domain=DOMAIN)
def _momentum(n: Call, rate: Operand, count: Operand, *tensors: Operand) -> Any:
    mode = n.attr("mode")
    if mode not in ("standard", "nesterov"):
        raise n.wrong(f"mode is {mode!r}, expected standard or nesterov")
    groups = []
    for x, g, v in _groups(n, tensors, 3):
        g, t = _regular(n, x, g), _number(n, count, x.dtype)
        share = n.op("select", n.op("greater", t, 0.0), n.number(n.attr("beta"), x.dtype), 1.0)
        v = n.op("add", n.op("scale", v, factor=n.attr("alpha")), n.op("mul", share, g))
        way = v if mode == "standard" else n.op("add", g, n.op("scale", v, factor=n.attr("alpha")))
        groups.append((n.op("sub", x, n.op("mul", _number(n, rate, x.dtype), way)), v))
    return _results(groups)


@rule("Adagrad", domain=DOMAIN)
def _adagrad(n: Call, rate: Operand, count: Operand, *tensors: Operand) -> Any:
    groups = []
    for x, g, h in _groups(n, tensors, 3):
        g, t = _regular(n, x, g), _number(n, count, x.dtype)
        slower = n.op("add", n.op("scale", t, factor=n.attr("decay_factor")), 1.0)
        step = n.op("div", _number(n, rate, x.dtype), slower)
        h = n.op("add", h, n.op("square", g))
        way = n.op("div", n.op("mul", step, g), n.op("add", n.op("sqrt", h), n.attr("epsilon")))
        groups.append((n.op("sub", x, way), h))
    return _results(groups)
