"""What `model.summary()` returns: a table of layers, the shapes they make, and their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from ..errors import AicfError
from ..graph.emit.builder import Builder, GraphEmitter
from ..graph.emit.results import named_results
from ..ir import Role, Value
from ..ir.tree import children, leaves
from ..pages import objects
from ..pages.notebook import InNotebook
from ..printing import Printed
from ..text import visible
from ..types import DType, f32

PROBES = (
    7919,
    7927,
    7933,
    7937,
    7949,
    7951,
)  # sizes that no layer has, to see which dimensions follow a named one
COLUMNS = "name", "layer", "output", "dtype", "parameters"


@dataclass(frozen=True)
class LayerRow:
    """One layer, an input, or one of several results.

    name        of its weights' scope: `2.0` is the first layer inside the model's third; of a model with several results, also those
    shape       of its output, the first if it has several; a dimension that follows a named one has its name
    parameters  of its own, without those of layers inside it
    shared      it has weights that were counted where they came first
    """

    name: str
    layer: str
    shape: tuple[int | str, ...]
    dtype: DType
    parameters: int = 0
    shared: bool = False

    def cells(self) -> tuple[str, ...]:
        count = "shared" if self.shared else f"{self.parameters:,}" if self.parameters else ""
        return self.name, self.layer, _shape(self.shape), str(self.dtype), count


@dataclass(frozen=True, repr=False)
class Summary(InNotebook, Printed):
    """`print(s)` is plain text, `rich.print(s)` a table, and a notebook shows one; `rows` are data."""

    rows: tuple[LayerRow, ...]

    @property
    def parameters(self) -> int:
        return sum(row.parameters for row in self.rows)

    def _rendering(self) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", show_footer=True)
        footers = ("total", "", "", "", f"{self.parameters:,}")
        for column, footer in zip(COLUMNS, footers):
            right = column == "parameters"
            table.add_column(
                column, footer, justify="right" if right else "left", no_wrap=column in ("name", "parameters"),
                footer_style="bold",
            )  # fmt: skip
        for row in self.rows:
            table.add_row(*(Text(visible(cell)) for cell in row.cells()))
        return table

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        total = ("total", "", "", "", f"{self.parameters:,}")
        return objects.layers(COLUMNS, [row.cells() for row in self.rows], total)


def summary(model: Any) -> Summary:
    own = _emit(model, model.sizes)
    probe = dict(zip(model.sizes, PROBES))
    try:
        other = _emit(model, probe) if len(probe) == len(model.sizes) else own
    except AicfError:  # some layer takes no such size: numbers, then
        other = own
    names = {(model.sizes[name], size): name for name, size in probe.items()}
    rows = [
        LayerRow(
            n, layer, tuple(names.get((a, b), a) for a, b in zip(y.shape, z.shape)), y.dtype, count, shared
        )
        for (n, layer, y, count, shared), (_, _, z, _, _) in zip(own, other)
    ]
    inputs = [LayerRow(name, "input", spec.shape, spec.dtype) for name, spec in model.inputs.items()]
    return Summary((*inputs, *rows))


class _Recorder(GraphEmitter):
    """Notes each layer as it is emitted, those inside others after the one they are in."""

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder, "cpu")
        self.seen: list[Any] = []
        self._inner = 0  # parameters of layers inside the one that is emitted
        self._tied: set[int] = set()  # layers with a weight of another one

    def emit_layer(
        self, layer: Any, name: str, values: Sequence[Any], named: Mapping[str, Any], line: str = ""
    ) -> Any:
        place, first, outside = len(self.seen), len(self.builder.graph.values), self._inner
        known = id(layer) in self.builder.layers
        self.seen.append(None)
        self._inner = 0
        y = super().emit_layer(layer, name, values, named, line)
        made = sum(v.spec.numel for v in _params(self.builder.graph.values[first:]))
        text = type(layer).__name__ if len(self.seen) > place + 1 else repr(layer)
        own = ".".join((*self.builder.layers[id(layer)][1], ""))
        shared = known and any(v.name.startswith(own) for v in _params(self.builder.graph.values))
        spec = next(leaves(y))[1].spec
        path = ".".join((*self._scope, name)) if name else own[:-1]
        self.seen[place] = path, text, spec, made - self._inner, shared or id(layer) in self._tied
        self._inner = outside + made
        return y

    def param_of(self, layer: Any, name: str, shape: tuple[int, ...], dtype: Any = f32) -> Value:
        self._tied.add(id(self.owner))
        return super().param_of(layer, name, shape, dtype)


def _params(values: Iterable[Value]) -> list[Value]:
    return [v for v in values if v.role is Role.param]


def _emit(model: Any, sizes: Mapping[str, int]) -> list[tuple[str, str, Any, int, bool]]:
    ctx = _Recorder(Builder())
    bound = {name: spec.bind(sizes) for name, spec in model.inputs.items()}
    made = model.emit(ctx, {name: ctx.input(name, spec.shape, spec.dtype) for name, spec in bound.items()})
    results = [(name, "result", value.spec, 0, False) for name, value in named_results(made).items()]
    return [*ctx.seen, *(results if children(made) else ())]


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
