"""Random models of one node, with what they are fed: valid attributes, odd and empty sizes, operands that are fed or constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper, shape_inference

FORMS: dict[str, Callable[[DrawnNode], None]] = {}


class DrawnNode:
    """A model of one node under construction; `feed` has what it is fed by name."""

    def __init__(self, rng: np.random.Generator, opset: int) -> None:
        self.rng, self.opset = rng, opset
        self.inputs: list[Any] = []
        self.arrays: list[Any] = []
        self.feed: dict[str, np.ndarray] = {}
        self.node: Any = None

    def maybe(self, chance: float = 0.5) -> bool:
        return bool(self.rng.random() < chance)

    def one_of(self, *values: Any) -> Any:
        return values[self.rng.integers(len(values))]

    def whole(self, low: int, high: int) -> int:
        """From low to high - 1."""
        return int(self.rng.integers(low, high))

    def shape(self, least: int = 0, most: int = 4, empty: bool = False) -> tuple[int, ...]:
        sizes = [0, 1, 2, 3, 5] if empty and self.maybe(0.2) else [1, 2, 3, 5]
        return tuple(int(d) for d in self.rng.choice(sizes, self.whole(least, most + 1)))

    def part(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that broadcasts to this one."""
        return tuple(1 if self.maybe(0.3) else d for d in shape[self.whole(0, len(shape) + 1) :])

    def axis(self, rank: int) -> int:
        return self.whole(-rank, rank)

    def values(self, shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        if dtype.kind == "f":
            return (self.rng.normal(size=shape) * self.one_of(1, 1, 30)).astype(dtype)
        return self.rng.integers(1 if dtype.kind == "u" else -20, 20, shape).astype(dtype)

    def constant(self, array: Any) -> str:
        name = f"c{len(self.arrays)}"
        self.arrays.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def operand(self, array: Any) -> str:
        """Fed, or a constant."""
        if self.maybe(0.4):
            return self.constant(array)
        array, name = np.asarray(array), f"x{len(self.inputs)}"
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
        self.feed[name] = array
        return name

    def emit(self, op: str, inputs: list[str], results: int = 1, **attrs: Any) -> None:
        self.node = helper.make_node(op, inputs, [f"y{n}" for n in range(results)], **attrs)

    def model(self) -> Any:
        outputs = [helper.make_tensor_value_info(name, 0, None) for name in self.node.output]
        graph = helper.make_graph([self.node], "drawn", self.inputs, outputs, self.arrays)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=9)
        made = shape_inference.infer_shapes(made)
        known = {info.name: info for info in made.graph.value_info}
        for info in made.graph.output:
            info.CopyFrom(known.get(info.name, info))
        return made


def form(function: Callable[[DrawnNode], None]) -> Callable[[DrawnNode], None]:
    FORMS[function.__name__] = function
    return function


@form
def unary(n: DrawnNode) -> None:
    op = n.one_of(
        "Abs",
        "Neg",
        "Relu",
        "Sigmoid",
        "Tanh",
        "Floor",
        "Ceil",
        "Round",
        "Sign",
        "Erf",
        "Softsign",
        "Sin",
        "Atan",
        "HardSwish",
        "Mish",
    )
    least = int(op == "Softsign")  # ONNX's reference raises TypeError where its operand has rank 0
    n.emit(op, [n.operand(n.values(n.shape(least, empty=True)))])


@form
def binary(n: DrawnNode) -> None:
    op = n.one_of("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Less", "GreaterOrEqual", "Mod")
    shape, dtype = n.shape(empty=True), n.one_of(np.float32, np.int64, np.int32)
    both = n.values(shape, dtype), n.values(n.part(shape), dtype)
    a, b = both if n.maybe() else both[::-1]
    attrs = {"fmod": 1 if dtype is np.float32 else n.whole(0, 2)} if op == "Mod" else {}
    n.emit(op, [n.operand(a), n.operand(np.where(b == 0, dtype(3), b))], **attrs)


@form
def reduction(n: DrawnNode) -> None:
    op = n.one_of(
        "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare"
    )
    shape = n.shape()
    axes = n.rng.permutation(len(shape))[: n.whole(0, len(shape) + 1)]
    inputs = [n.operand(n.values(shape))]
    if len(axes) or n.maybe():
        inputs.append(n.constant(np.array([a - len(shape) * n.maybe() for a in axes], np.int64)))
    n.emit(op, inputs, keepdims=n.whole(0, 2), noop_with_empty_axes=n.whole(0, 2))


@form
def place_of_the_extreme(n: DrawnNode) -> None:
    shape = n.shape(1, 3)
    x = np.round(n.values(shape))
    n.emit(
        n.one_of("ArgMax", "ArgMin"),
        [n.operand(x)],
        axis=n.axis(len(shape)),
        keepdims=n.whole(0, 2),
        select_last_index=n.whole(0, 2),
    )


@form
def slices(n: DrawnNode) -> None:
    shape = n.shape(1, 3, empty=True)
    axes = n.rng.permutation(len(shape))[: n.whole(1, len(shape) + 1)]
    steps = [n.one_of(1, 1, 2, 3, -1, -2) for _ in axes]
    # a start before the first element, with a negative step, ONNX and its reference read in two ways
    starts = [n.whole(-shape[a] if step < 0 else -8, 8) for a, step in zip(axes, steps)]
    ends = [n.one_of(n.whole(-8, 8), 2**62, -(2**62)) for _ in axes]
    n.emit(
        "Slice",
        [
            n.operand(n.values(shape)),
            *(n.constant(np.array(v, np.int64)) for v in (starts, ends, axes, steps)),
        ],
    )


@form
def gathered(n: DrawnNode) -> None:
    shape = n.shape(1, 3)
    axis = n.axis(len(shape))
    op = n.one_of("Gather", "GatherElements")
    wanted = list(n.shape(0, 2))
    if op == "GatherElements":  # the reference wants the other axes in full, and the axis from 0 on
        axis %= len(shape)
        wanted = [n.whole(1, 6) if a == axis % len(shape) else d for a, d in enumerate(shape)]
    indices = n.rng.integers(-shape[axis], shape[axis], wanted)
    n.emit(op, [n.operand(n.values(shape)), n.operand(indices)], axis=axis)


@form
def scattered(n: DrawnNode) -> None:
    shape = n.shape(1, 3)
    axis = n.axis(len(shape))
    indices = np.argsort(n.rng.random(shape), axis)[tuple(slice(n.whole(1, d + 1)) for d in shape)]
    indices = np.where(n.rng.random(indices.shape) < 0.3, indices - shape[axis], indices)
    how = n.one_of("none", "add", "mul", "max", "min")
    n.emit(
        "ScatterElements",
        [n.operand(n.values(shape)), n.operand(indices), n.operand(n.values(indices.shape))],
        axis=axis,
        reduction=how,
    )


@form
def joined(n: DrawnNode) -> None:
    shape = list(n.shape(1, 3))
    axis, parts = n.axis(len(shape)), []
    for _ in range(n.whole(1, 4)):
        shape[axis] = n.whole(0, 4)
        parts.append(n.operand(n.values(shape)))
    n.emit("Concat", parts, axis=axis)


@form
def divided(n: DrawnNode) -> None:
    shape, sizes = list(n.shape(1, 3)), [n.whole(0, 4) for _ in range(n.whole(1, 4))]
    axis = n.axis(len(shape))
    shape[axis] = sum(sizes)
    n.emit(
        "Split", [n.operand(n.values(shape)), n.constant(np.array(sizes, np.int64))], len(sizes), axis=axis
    )


@form
def padded(n: DrawnNode) -> None:
    shape, mode = n.shape(1, 3), n.one_of("constant", "edge", "reflect", "wrap")
    most = {"constant": 3, "edge": 3, "reflect": 0, "wrap": 1}[mode]
    pads = [n.whole(0, (most if most > 1 else d - 1 + most) + 1) for d in shape * 2]
    value = [n.operand(np.float32(3.5))] if mode == "constant" and n.maybe() else []
    n.emit("Pad", [n.operand(n.values(shape)), n.constant(np.array(pads, np.int64)), *value], mode=mode)


@form
def repeated(n: DrawnNode) -> None:
    shape = n.shape()
    if n.maybe():
        n.emit("Tile", [n.operand(n.values(shape)), n.constant(n.rng.integers(0, 4, len(shape)))])
    else:
        n.emit("Expand", [n.operand(n.values(n.part(shape))), n.constant(np.array(shape, np.int64))])


@form
def normalised(n: DrawnNode) -> None:
    shape = n.shape(1, 4)
    axis = n.axis(len(shape))
    if n.maybe():
        x = np.clip(n.values(shape), -20, 20)  # beyond, the reference's LogSoftmax is the logarithm of 0
        n.emit(n.one_of("Softmax", "LogSoftmax", "Hardmax"), [n.operand(x)], axis=axis)
        return
    weights = [n.operand(n.values(shape[axis % len(shape) :])) for _ in range(n.whole(1, 3))]
    n.emit("LayerNormalization", [n.operand(n.values(shape)), *weights], axis=axis, epsilon=0.1)


@form
def multiplied(n: DrawnNode) -> None:
    a, b, c = (n.whole(1, 6) for _ in range(3))
    if n.maybe():
        lead = n.shape(0, 2)
        x, y = ((*n.part(lead), *last) if n.maybe(0.85) else (b,) for last in ((a, b), (b, c)))
        n.emit("MatMul", [n.operand(n.values(x)), n.operand(n.values(y))])
        return
    ta, tb = n.whole(0, 2), n.whole(0, 2)
    inputs = [n.operand(n.values((b, a) if ta else (a, b))), n.operand(n.values((c, b) if tb else (b, c)))]
    if n.maybe(0.7):
        inputs.append(n.operand(n.values(n.one_of((a, c), (c,), (1, c), (a, 1), (1,), ()))))
    n.emit("Gemm", inputs, transA=ta, transB=tb, alpha=n.one_of(0.0, 0.5, 1.0), beta=n.one_of(0.0, 0.5, 1.0))


@form
def ordered(n: DrawnNode) -> None:
    shape = n.shape(1, 3)
    axis, x = n.axis(len(shape)), n.operand(np.round(n.values(shape)))
    if n.maybe():
        n.emit(
            "TopK",
            [x, n.constant(np.array([n.whole(0, shape[axis] + 1)]))],
            2,
            axis=axis,
            largest=n.whole(0, 2),
        )
    else:
        n.emit("CumSum", [x, n.constant(np.array(axis))], exclusive=n.whole(0, 2), reverse=n.whole(0, 2))


@form
def convolved(n: DrawnNode) -> None:
    groups, axes = n.one_of(1, 1, 2), n.whole(1, 3)
    inner, outer = groups * n.whole(1, 3), groups * n.whole(1, 3)
    window, sizes = [n.whole(1, 4) for _ in range(axes)], [n.whole(5, 8) for _ in range(axes)]
    pads = [n.whole(0, 3) for _ in range(2 * axes)]
    inputs = [
        n.operand(n.values((2, inner, *sizes)) / 9),
        n.operand(n.values((outer, inner // groups, *window)) / 9),
    ]
    bias = [n.operand(n.values((outer,)))] if n.maybe() else []
    strides, dilations = ([n.whole(1, 3) for _ in range(axes)] for _ in range(2))
    n.emit("Conv", [*inputs, *bias], group=groups, strides=strides, dilations=dilations, pads=pads)


@form
def pooled(n: DrawnNode) -> None:
    """Means alone: the reference's MaxPool is wrong where pads differ."""
    axes = n.whole(1, 3)
    window, sizes = [n.whole(1, 4) for _ in range(axes)], [n.whole(4, 8) for _ in range(axes)]
    strides, pads = [n.whole(1, 4) for _ in range(axes)], [n.whole(0, k) for k in window * 2]
    attrs = {"ceil_mode": n.whole(0, 2), "count_include_pad": n.whole(0, 2)}
    n.emit(
        "AveragePool",
        [n.operand(n.values((2, 2, *sizes)))],
        kernel_shape=window,
        strides=strides,
        pads=pads,
        **attrs,
    )


@form
def resized(n: DrawnNode) -> None:
    sizes, mode = [n.whole(2, 6) for _ in range(n.whole(1, 3))], n.one_of("nearest", "linear", "cubic")
    wanted = n.constant(np.array([1, 1, *(n.whole(2, 8) for _ in sizes)], np.int64))
    attrs = {
        "mode": mode,
        "coordinate_transformation_mode": n.one_of(
            "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"
        ),
    }
    if mode == "nearest":
        attrs["nearest_mode"] = n.one_of("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    n.emit("Resize", [n.operand(n.values((1, 1, *sizes))), "", "", wanted], **attrs)


@form
def chosen(n: DrawnNode) -> None:
    shape = n.shape(empty=True)
    if n.maybe():
        parts = n.values(n.part(shape), np.bool_), n.values(shape), n.values(n.part(shape))
        n.emit("Where", [n.operand(x) for x in parts])
    else:
        bounds = [n.operand(np.float32(v)) if n.maybe(0.7) else "" for v in (-1, 1)]
        n.emit("Clip", [n.operand(n.values(shape)), *bounds])
