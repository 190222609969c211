"""Random models whose constants grow: doubled, tiled, expanded, resized, padded and looped over by sizes from 1 to 2^62."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


class Growing:
    """A model under construction. `tensors` are (name, rank) of constants of f32 that nodes have created."""

    def __init__(self, rng: np.random.Generator, largest: int) -> None:
        self.rng, self.largest = rng, largest
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []
        self.tensors: list[tuple[str, int]] = []
        self.count = 0
        for rank in (0, 1, 1, 2, 4):
            shape = rng.integers(1, 4, rank)
            self.tensors.append((self.array(rng.normal(size=shape).astype(np.float32)), rank))

    def name(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def array(self, array: np.ndarray) -> str:
        name = self.name()
        self.arrays.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def numbers(self, *values: int) -> str:
        return self.array(np.array(values, np.int64))

    def size(self) -> int:
        """As often small as large."""
        return int(2 ** self.rng.uniform(0, self.rng.choice([2, 2, 6, self.largest])))

    def node(self, op: str, inputs: list[str], rank: int, **attrs: Any) -> None:
        self.tensors.append((self.name(), rank))
        self.nodes.append(helper.make_node(op, inputs, [self.tensors[-1][0]], **attrs))

    def grow(self) -> None:
        """One node, or a few, of a tensor that is there."""
        x, rank = self.tensors[self.rng.integers(max(0, len(self.tensors) - 3), len(self.tensors))]
        forms = [f for f in vars(Growing).values() if getattr(f, "least", 99) <= rank]
        forms[self.rng.integers(len(forms))](self, x, rank)

    def model(self) -> Any:
        """The sum of the last constant is part of the result."""
        self.node("ReduceSum", [self.tensors[-1][0]], 0, keepdims=0)
        self.nodes.append(helper.make_node("Add", ["x", self.tensors[-1][0]], ["y"]))
        info = helper.make_tensor_value_info
        graph = helper.make_graph(self.nodes, "g", [info("x", F32, [2])], [info("y", F32, [2])], self.arrays)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def form(least: int) -> Any:
    """Decorates a form of growth for tensors of this rank or more."""

    def mark(function: Any) -> Any:
        function.least = least
        setattr(Growing, function.__name__, function)
        return function

    return mark


@form(1)
def doubled(g: Growing, x: str, rank: int) -> None:
    g.node("Concat", [x] * int(g.rng.integers(2, 5)), rank, axis=int(g.rng.integers(rank)))


@form(1)
def tiled(g: Growing, x: str, rank: int) -> None:
    g.node("Tile", [x, g.numbers(*(g.size() if g.rng.random() < 0.5 else 1 for _ in range(rank)))], rank)


@form(0)
def expanded(g: Growing, x: str, rank: int) -> None:
    new = int(g.rng.integers(1, 3))
    g.node("Expand", [x, g.numbers(*(g.size() for _ in range(new)), *[1] * rank)], new + rank)


@form(0)
def filled(g: Growing, x: str, rank: int) -> None:
    shape = [g.size() for _ in range(g.rng.integers(1, 3))]
    g.node("ConstantOfShape", [g.numbers(*shape)], len(shape))


@form(0)
def counted(g: Growing, x: str, rank: int) -> None:
    ends = [
        g.array(np.array(v, np.float32))
        for v in (0, g.size(), g.rng.choice([1.0, 0.01, 1e-30], p=[0.6, 0.35, 0.05]))
    ]
    g.node("Range", ends, 1)


@form(1)
def outer(g: Growing, x: str, rank: int) -> None:
    flat, row = g.name(), g.name()
    g.nodes.append(helper.make_node("Reshape", [x, g.numbers(-1, 1)], [flat]))
    g.nodes.append(helper.make_node("Reshape", [x, g.numbers(1, -1)], [row]))
    g.node(str(g.rng.choice(["Add", "Mul", "MatMul"])), [flat, row], 2)


@form(1)
def padded(g: Growing, x: str, rank: int) -> None:
    pads = [g.size() if g.rng.random() < 0.5 else 0 for _ in range(2 * rank)]
    g.node(
        "Pad", [x, g.numbers(*pads)], rank, mode=str(g.rng.choice(["constant", "constant", "edge", "wrap"]))
    )


@form(4)
def resized(g: Growing, x: str, rank: int) -> None:
    scales = g.array(np.array([1] * (rank - 1) + [g.size()], np.float32))
    g.node("Resize", [x, "", scales], rank, mode=str(g.rng.choice(["nearest", "linear", "cubic"])))


@form(1)
def one_hot(g: Growing, x: str, rank: int) -> None:
    values = g.array(np.array([0, 1], np.float32))
    g.node("OneHot", [g.numbers(0, 1, 2), g.numbers(g.size()), values], 2)


@form(1)
def places_of(g: Growing, x: str, rank: int) -> None:
    found = g.name()
    g.nodes.append(helper.make_node("NonZero", [x], [found]))
    g.node("Cast", [found], 2, to=F32)


@form(1)
def summed(g: Growing, x: str, rank: int) -> None:
    g.node("CumSum", [x, g.array(np.array(0, np.int64))], rank)


@form(0)
def window(g: Growing, x: str, rank: int) -> None:
    g.node("HannWindow", [g.array(np.array(g.size(), np.int64))], 1)


@form(1)
def looped(g: Growing, x: str, rank: int) -> None:
    """A Loop that doubles what it carries, or shows it in each iteration."""
    info, shows = helper.make_tensor_value_info, g.rng.random() < 0.5
    carried = (
        helper.make_node("Add", ["s", "s"], ["o"])
        if shows
        else helper.make_node("Concat", ["s", "s"], ["o"], axis=0)
    )
    nodes = [
        helper.make_node("Identity", ["c"], ["d"]),
        carried,
        *[helper.make_node("Identity", ["s"], ["row"])] * shows,
    ]
    outputs = [info("d", TensorProto.BOOL, []), info("o", F32, None), *[info("row", F32, None)] * shows]
    inputs = [info("i", I64, []), info("c", TensorProto.BOOL, []), info("s", F32, None)]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    ends = [g.name(), *[g.name()] * shows]
    g.nodes.append(helper.make_node("Loop", [g.array(np.array(g.size(), np.int64)), "", x], ends, body=body))
    g.tensors.append((ends[-1], rank + shows))


def drawn(seed: int) -> Any:
    """The model of a seed."""
    rng = np.random.default_rng(seed)
    growing = Growing(rng, int(rng.choice([6, 12, 20, 30, 62])))
    for _ in range(int(rng.integers(3, 25))):
        growing.grow()
    made: onnx.ModelProto = growing.model()
    return made
