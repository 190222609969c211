"""from_onnx: an ONNX model as a Program; `load`: as a model that `aicf.compile`, `explain_for` and training take."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedOpsError
from ...graph.compile import compile
from ...graph.emit.builder import Builder, GraphEmitter
from ...graph.run.program import Program
from ...ir import Value
from ...registry.measured import counted
from ..imported import Imported, free_names, runtime_of
from .graph import Document
from .reading import bad, read
from .walk import OnnxWalk, RefusedNode

SHOWN = 4  # nodes of an op that an error names
LARGER = 2, 16, 128, 1024  # sizes of named dimensions in the first plan, where a node does not fit 1


def from_onnx(
    source: Any,
    device: str | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
    **options: Any,
) -> Program:
    """Compile an ONNX model: a path, its bytes or an onnx.ModelProto, of versions 7 to 28 of the ops.

    The program is fed the model's inputs by their names and returns its outputs by theirs. Weights keep their names: `load_state_dict` takes them.

    device     as for `aicf.compile`, or the name of the GPU that is here; `aicf.explain_for(aicf.frontends.onnx.load(source), "l4")` needs none
    sizes      of dimensions that have names, for the first plan; where none is given 1, or the least of a few sizes that every node fits. Others
               follow each feed. A dimension without a name is called `<input>.<axis>`
    constants  inputs that are fixed, by name: those on whose values shapes depend must be
    folder     where files of external data lie; the model's own if it is a path
    options    of `aicf.compile`, such as mode, loss, optimizer, policy

    FrontendError for a model that is damaged; UnsupportedOpsError lists everything that aicf can't express, before anything is compiled.
    """
    model = load(source, sizes=sizes, constants=constants, folder=folder)
    return compile(model, device=runtime_of(device, "aicf.frontends.onnx.load(source)"), **options)


def load(
    source: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    constants: Mapping[str, Any] | None = None,
    folder: str | Path | None = None,
) -> Imported:
    """An ONNX model, for `aicf.compile(model)` and `aicf.explain_for(model, "l4")`; the rest as for `from_onnx`."""
    document = Document.of(read(source, folder))
    fixed = _fixed(document, constants or {})
    inputs = {name: spec for name, spec in document.inputs.items() if name not in fixed}
    named = {dim for spec in inputs.values() for dim in spec.dims}
    if unknown := sorted(set(sizes or {}) - named):
        raise bad(
            f"no input has a dimension called {unknown[0]!r}", expected=", ".join(sorted(named)) or "no sizes"
        )
    for dim, size in (sizes or {}).items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise bad(f"sizes[{dim!r}] is {size!r}", expected="a whole number", hint=f"sizes={{{dim!r}: 64}}")
    first, sizes = _first_walk(document, inputs, named, sizes or {}, fixed)
    weights = first.asked
    names = free_names([*document.outputs], {*inputs, *weights})
    body = OnnxBody(document, fixed, names)
    return Imported(inputs, body, weights, sizes=sizes, source=f"onnx {document.source.name}")


@dataclass
class OnnxBody:
    """Emits a model: what an Imported calls for each size."""

    document: Document
    constants: Mapping[str, np.ndarray]
    names: Sequence[str] = field(default_factory=list)

    def __call__(
        self, ctx: GraphEmitter, inputs: Mapping[str, Value], weights: Mapping[str, Value]
    ) -> dict[str, Value]:
        walk = OnnxWalk(self.document, ctx, weights)
        made = walk.run(inputs, self.constants)
        if made is None:
            raise refusal_of(walk.refused, self.document.source.name)
        return dict(zip(self.names, made.values()))


def _first_walk(
    document: Document, inputs: Mapping[str, Any], named: Collection[str], given: Mapping[str, int], fixed: Mapping[str, np.ndarray]
) -> tuple[OnnxWalk, dict[str, int]]:  # fmt: skip
    """Emitted once for nothing: says what can't be, and which weights are read as they are; and at which sizes of named dimensions.

    Those that have no size have 1, unless a node does not fit that, such as a TopK of more: then each has the least of some sizes that fits.
    """

    def walked(sizes: Mapping[str, int]) -> OnnxWalk:
        return _walked(document, inputs, {**sizes, **given}, fixed)

    sizes, open_dims = dict.fromkeys(named, 1), sorted(set(named) - set(given))
    walk = walked(sizes)
    for size in LARGER if open_dims and any(r.of_sizes for r in walk.refused) else ():
        larger = dict.fromkeys(named, size)
        if not (found := walked(larger)).refused:
            walk, sizes = found, larger
            break
    for dim in open_dims if sizes.get(open_dims[0] if open_dims else "", 1) > 1 else ():
        if not (found := walked({**sizes, dim: 1})).refused:
            walk, sizes = found, {**sizes, dim: 1}
    if walk.refused:
        error = refusal_of(walk.refused, document.source.name)
        if open_dims and any(r.of_sizes for r in walk.refused):
            error.hint = (
                f"sizes={{{open_dims[0]!r}: 64}} says how large named dimensions are in the first plan"
            )
        raise error
    return walk, {**sizes, **given}


def _walked(
    document: Document, inputs: Mapping[str, Any], sizes: Mapping[str, int], fixed: Mapping[str, np.ndarray]
) -> OnnxWalk:
    ctx = GraphEmitter(Builder(), "cpu")
    given = {}
    for name, spec in inputs.items():
        bound = spec.bind(sizes)
        given[name] = ctx.input(name, bound.shape, bound.dtype)
    walk = OnnxWalk(document, ctx, None)
    walk.run(given, fixed)
    return walk


def refusal_of(refused: Sequence[RefusedNode], source: str) -> UnsupportedOpsError:
    """One error that lists every op that can't be expressed, how often and where."""
    counts = Counter(r.op for r in refused)
    reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
    for r in refused:
        reasons[r.op, r.reason].append(r.where)
    details = []
    for (op, reason), where in sorted(reasons.items(), key=lambda item: (-counts[item[0][0]], item[0])):
        more = f" and {len(where) - SHOWN} more" if len(where) > SHOWN else ""
        details.append(f"{op} × {len(where)}: {reason}  at {', '.join(where[:SHOWN])}{more}")
    needs = frozenset[str]().union(*(r.needs for r in refused))
    limited = any("AICF_FOLD_MB" in r.reason for r in refused)
    other = (
        "AICF_FOLD_MB=4096, say, in the environment lets 4 GiB of constants be computed"
        if limited
        else "aicf info lists the ops there are"
    )
    fixes = ", ".join(f"{name!r}: array" for name in sorted(needs))
    error = UnsupportedOpsError(
        f"{source} has {counted(counts.total(), 'node')} of {counted(len(counts), 'op')} that aicf can't express", details=details,
        hint=f"constants={{{fixes}}} fixes the inputs on which shapes depend" if needs else other,
    )  # fmt: skip
    error.ops, error.needs = counts, needs
    return error


def _fixed(document: Document, constants: Mapping[str, Any]) -> dict[str, np.ndarray]:
    fixed = {}
    for name, value in constants.items():
        if name not in document.inputs:
            raise bad(f"no input is called {name!r}", expected=", ".join(document.inputs) or "no inputs")
        spec, array = document.inputs[name], np.asarray(value)
        sizes = len(spec.shape) == array.ndim and all(
            isinstance(d, str) or d == size for d, size in zip(spec.shape, array.shape)
        )
        if array.dtype != spec.dtype.numpy or not sizes:
            raise bad(
                f"the constant {name!r} does not fit",
                expected=str(spec),
                got=f"{array.dtype}{list(array.shape)}",
            )
        fixed[name] = array
    return fixed
