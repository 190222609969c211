"""Random graphs of ONNX's ops, read by aicf, against ONNX's own reference. Each op of the default domain may be drawn: inputs and attributes
follow from its schema, and what the reference evaluates is a node."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

NAME, DEVICES = "onnx", ("cpu", "cuda")
OPSET, LARGEST = 20, 3000
EXTENTS = 1, 1, 2, 3, 4, 5, 7, 8, 9, 0
FLOATS = 0.0, 0.5, 1.0, -1.0, 2.0, 1e-3
# random numbers, text, sequences, ops with graphs, and those whose reference is known to differ from the definition or to be slow
LEFT_OUT = (
    "LpNormalization", "Random", "Sequence", "String", "Optional", "Bernoulli", "Multinomial", "Dropout", "Loop", "If",
    "Scan", "Constant", "Regex", "ImageDecoder", "Cast", "QLinear", "Quantize", "Dequantize", "DynamicQuantize",
    "TfIdf", "LabelEncoder", "ConvInteger", "MatMulInteger", "SplitTo", "Unique", "NonMax", "Resize", "Upsample",
    "RoiAlign", "MaxRoi", "Det", "MelWeight", "Window", "STFT", "DFT", "GridSample", "DeformConv", "Col2Im",
    "GlobalMaxPool",  # the reference reduces the last axis and one before the spatial ones, whatever the rank
)  # fmt: skip
# integers that are 0 or 1; what another number means is not defined
FLAGS = {
    "keepdims", "fmod", "select_last_index", "noop_with_empty_axes", "exclusive", "reverse", "ceil_mode", "count_include_pad", "storage_order",
    "transA", "transB", "largest", "sorted", "align_corners", "upper", "allowzero", "detect_negative", "detect_positive", "training_mode",
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One node: names of inputs ("" for one left out), one result that is read, attributes."""

    op: str
    inputs: tuple[str, ...]
    result: str
    attrs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class GraphCase:
    """Nodes on fed arrays and constants; constants as (name, values)."""

    fed: tuple[tuple[str, tuple[int, ...]], ...]
    constants: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    nodes: tuple[Node, ...]
    seed: int

    def feeds(self) -> dict[str, np.ndarray]:
        return {n: self.array(n, s) for n, s in self.fed}

    def array(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, *name.encode()])
        return (np.rint(np.asarray(rng.normal(size=shape)) * 32) / 32).astype(np.float32)

    def model(self, results: tuple[str, ...]) -> onnx.ModelProto:
        constants = [
            numpy_helper.from_array(np.array(v, np.int64).reshape(s), n) for n, s, v in self.constants
        ]
        graph = helper.make_graph(
            [helper.make_node(n.op, n.inputs, [n.result], **dict(n.attrs)) for n in self.nodes], "graph",
            [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in self.fed],
            [onnx.ValueInfoProto(name=r) for r in results], constants,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])

    def evaluated(self) -> dict[str, np.ndarray] | None:
        """Each node's result by ONNX's reference; None where it raises."""
        names = tuple(n.result for n in self.nodes)
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                model = self.model(names)
                onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
                made = ReferenceEvaluator(model).run(None, self.feeds())
        except Exception:
            return None
        return dict(zip(names, made)) if all(isinstance(y, (np.ndarray, np.generic)) for y in made) else None

    def results(self) -> tuple[str, ...]:
        read = {i for n in self.nodes for i in n.inputs}
        return tuple(n.result for n in self.nodes if n.result not in read)

    def __str__(self) -> str:
        return "; ".join(
            f"{n.result} = {n.op}({', '.join(n.inputs)}{''.join(f', {k}={v}' for k, v in n.attrs)})"
            for n in self.nodes
        )


def schemas() -> list[Any]:
    """Of the default domain, the newest that OPSET has, with a float or integer tensor as first input."""
    found = {}
    for s in onnx.defs.get_all_schemas_with_history():
        wanted = (
            s.domain == ""
            and s.since_version <= OPSET
            and s.inputs
            and not s.deprecated
            and not s.name.startswith(LEFT_OUT)
        )
        if wanted and (s.name not in found or found[s.name].since_version < s.since_version):
            found[s.name] = s
    graphs = onnx.defs.OpSchema.AttrType.GRAPH
    return [s for _, s in sorted(found.items()) if all(a.type != graphs for a in s.attributes.values())]


class _Drawer:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.extents = rng, [int(n) for n in rng.choice(EXTENTS, 3)]
        self.case = GraphCase((), (), (), int(rng.integers(2**31)))
        self.values: dict[str, np.ndarray] = {}

    def of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def fresh(self, shape: tuple[int, ...]) -> str:
        name = f"x{len(self.case.fed)}"
        self.case = replace(self.case, fed=(*self.case.fed, (name, shape)))
        self.values[name] = self.case.array(name, shape)
        return name

    def constant(self, like: np.ndarray) -> str:
        """Small integers: axes, indices, sizes, pads."""
        rank, name = like.ndim, f"c{len(self.case.constants)}"
        shape = self.of([(), (1,), (rank,), (2 * rank,), (2,)])
        values = self.rng.integers(self.of([-1, 0, 0]), self.of([1, 2, max(like.size, 1) + 1, 4]) + 1, shape)
        if self.rng.random() < 0.2:
            shape, values = (rank,), np.array(like.shape, np.int64)
        self.case = replace(
            self.case, constants=(*self.case.constants, (name, shape, tuple(values.reshape(-1).tolist())))
        )
        self.values[name] = np.asarray(values, np.int64)
        return name

    def step(self) -> None:
        schema, known = self.of(SCHEMAS), self.case
        floats = [n for n, v in self.values.items() if v.dtype == np.float32]
        x = self.of(floats[-3:])
        inputs = []
        count = max(
            schema.min_input, min(schema.max_input, 3) if self.rng.random() < 0.4 else schema.min_input
        )
        for n in range(min(count, 6)):
            kinds = schema.inputs[min(n, len(schema.inputs) - 1)].types
            if n == 0 and "tensor(float)" in kinds:
                inputs.append(x)
            elif "tensor(float)" in kinds:
                like = [m for m in floats if self.values[m].shape == self.values[x].shape]
                inputs.append(
                    self.of(like)
                    if self.rng.random() < 0.4
                    else self.fresh(self.shape_near(self.values[x].shape))
                )
            elif "tensor(int64)" in kinds:
                inputs.append(self.constant(self.values[x]))
            else:
                masks = [m for m, v in self.values.items() if v.dtype == np.bool_]
                if "tensor(bool)" not in kinds or not masks:
                    self.case = known
                    return
                inputs.append(self.of(masks))
        attrs = tuple(
            (name, self.attribute(a, self.values[x]))
            for name, a in schema.attributes.items()
            if a.required or self.rng.random() < 0.3
        )
        node = Node(
            schema.name,
            tuple(inputs),
            f"t{len(known.nodes)}",
            tuple((k, v) for k, v in attrs if v is not None),
        )
        tried = replace(self.case, nodes=(*known.nodes, node))
        made = tried.evaluated()
        if made is None or made[node.result].size > LARGEST or made[node.result].dtype.kind not in "fib":
            self.case = known
            self.values = {
                n: v
                for n, v in self.values.items()
                if n in {*dict(known.fed), *(c[0] for c in known.constants), *(m.result for m in known.nodes)}
            }
            return
        self.case = tried
        self.values[node.result] = np.asarray(made[node.result])

    def shape_near(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        n = self.of(self.extents)
        return self.of([shape, shape[-1:], tuple(1 if self.rng.random() < 0.4 else d for d in shape), (*shape[:-2], *shape[-1:], n) if len(shape) > 1 else shape,
                        shape[1:2], (n, *shape[1:2], *[2] * max(len(shape) - 2, 0))])  # fmt: skip

    def attribute(self, a: Any, x: np.ndarray) -> Any:
        kinds = onnx.defs.OpSchema.AttrType
        if a.name == "clip":
            return None  # the reference of recurrent ops ignores it
        if a.type == kinds.INT:
            return int(self.of([0, 1] if a.name in FLAGS else [0, 1, -1, 2, 3]))
        if a.type == kinds.FLOAT:
            return float(self.of(FLOATS))
        if a.type == kinds.INTS:
            return (
                [int(v) for v in self.rng.permutation(x.ndim)]
                if self.rng.random() < 0.5
                else [
                    int(self.of([1, 2, 0, 3]))
                    for _ in range(self.of([1, max(x.ndim - 2, 1), x.ndim, 2 * max(x.ndim - 2, 1)]))
                ]
            )
        return None


SCHEMAS = schemas()


def draw(rng: np.random.Generator, where: str = "cpu") -> GraphCase | None:
    """A graph of up to eight nodes."""
    drawer, count = _Drawer(rng), int(rng.integers(1, 9))
    drawer.fresh(tuple(drawer.of(drawer.extents) for _ in range(int(rng.integers(1, 5)))))
    for _ in range(20 * count):
        if len(drawer.case.nodes) >= count:
            break
        drawer.step()
    return needed(drawer.case) if drawer.case.nodes else None


def needed(case: GraphCase) -> GraphCase:
    """Without what no node reads."""
    read = {i for n in case.nodes for i in n.inputs}
    return replace(
        case, fed=tuple(f for f in case.fed if f[0] in read), constants=tuple(c for c in case.constants if c[0] in read)
    )  # fmt: skip


def check(case: GraphCase, where: str = "cpu") -> str | None:
    """What differs from ONNX's reference. A model that aicf refuses with its own error is no failure: the reference accepts more than the
    definitions do."""
    import aicf

    want = case.evaluated()
    assert want is not None
    try:
        model = aicf.from_onnx(case.model(case.results()), where)
    except aicf.AicfError:
        return None
    except Exception as error:
        return f"read: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    try:
        got = model(case.feeds())
    except Exception as error:
        return f"run: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    for name in case.results():
        if said := difference(got[name].numpy(), np.asarray(want[name])):
            return f"{name}: {said}"
    return None


def difference(got: np.ndarray, want: np.ndarray) -> str | None:
    """Of one array."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype} {got.shape}, expected {want.dtype} {want.shape}"
    a, b = got.astype(np.float64), want.astype(np.float64)
    allowed = (
        0.0 if want.dtype.kind != "f" else 1e-5 * float(np.abs(b[np.isfinite(b)]).max(initial=0.0)) + 1e-7
    )
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(a - b) <= allowed) & ~((a == b) | np.isnan(a) & np.isnan(b))
    if not bad.any():
        return None
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{list(at)} is {a[at]:.9g}, expected {b[at]:.9g} within {allowed:.3g}; {int(bad.sum())} of {bad.size} differ"


def smaller(case: GraphCase) -> Iterator[GraphCase]:
    """With fewer nodes, a result as an input, smaller inputs."""
    made = case.evaluated() or {}
    for n in range(len(case.nodes) - 1, -1, -1):
        gone, kept = {case.nodes[n].result}, []
        for node in case.nodes:
            if node.result in gone or gone & set(node.inputs):
                gone.add(node.result)
            else:
                kept.append(node)
        options = [replace(case, nodes=tuple(kept))] if kept else []
        value = made.get(case.nodes[n].result)
        if value is not None and value.dtype == np.float32 and len(case.nodes) > 1:
            fed = (*case.fed, (case.nodes[n].result, value.shape))
            options.append(replace(case, fed=fed, nodes=(*case.nodes[:n], *case.nodes[n + 1 :])))
        yield from (c for o in options if (c := needed(o)).nodes and c.evaluated() is not None)
    for n, (name, shape) in enumerate(case.fed):
        for axis, d in enumerate(shape):
            for value in {1, 2, d // 2} - {0, d}:
                own = (*shape[:axis], value, *shape[axis + 1 :])
                other = replace(case, fed=(*case.fed[:n], (name, own), *case.fed[n + 1 :]))
                if value < d and other.evaluated() is not None:
                    yield other


def script(case: GraphCase, where: str = "cpu") -> str:
    """The model as text, and its inputs."""
    feeds = "".join(
        f"    {n!r}: np.array({x.tolist()!r}, np.float32).reshape({x.shape}),\n"
        for n, x in case.feeds().items()
    )
    return f"""import base64

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import aicf

# {case}
model = onnx.load_from_string(base64.b64decode({__import__("base64").b64encode(case.model(case.results()).SerializeToString()).decode()!r}))
feeds = {{
{feeds}}}
want = ReferenceEvaluator(model).run(None, feeds)
got = aicf.from_onnx(model, {where!r})(feeds)
for name, array in zip({case.results()!r}, want):
    print(name, "got", got[name].numpy(), "expected", array)
"""
