"""From a StableHLO module to a model that `aicf.compile` takes, and arrays through it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import FeedError, FrontendError
from ...graph.compile import compile
from ...graph.emit.builder import GraphEmitter
from ...ir import Value
from ..imported import Imported, free_names
from . import rules  # noqa: F401  fills the table
from .emission import Emission, check_size, specs_of
from .mlir import module_of


def read(source: Any) -> Imported:
    """A StableHLO module as a model: `aicf.compile(read(source))`, `aicf.explain_for(read(source), "h200")`.

    source  text, the bytes of a portable artifact, `jax.jit(f).lower(...)`, or what `jax.export.export(...)(...)` returns

    Its inputs are called as the module calls them, or "arg0", "arg1", …; its results "output.0", "output.1", …, in their order. FrontendError
    says what can't be read, and lists all operations that aicf lacks.
    """
    try:
        module = module_of(source)
        check_size(module)
    except RecursionError:
        raise FrontendError(
            "this StableHLO module nests bodies or calls deeper than Python's stack"
        ) from None
    main = module.functions[module.main]
    names = free_names([name or f"arg{n}" for n, name in enumerate(main.arguments)], set())
    inputs = specs_of(main.body.types, names)

    def body(ctx: GraphEmitter, given: Mapping[str, Value], weights: Mapping[str, Value]) -> Any:
        made = Emission(module, ctx).main([given[name] for name in names])
        return {f"output.{n}": value for n, value in enumerate(made)}

    return Imported(inputs, body, source=f"StableHLO {module.main}")


def run_module(source: Any, inputs: Sequence[np.ndarray], device: str = "cpu") -> list[np.ndarray]:
    """Read, compile and run a module once: arrays in the order of its arguments, results in theirs."""
    model = read(source)
    if len(inputs) != len(model.inputs):
        raise FeedError(
            "the module takes another number of inputs", expected=f"{len(model.inputs)}: {', '.join(model.inputs)}", got=len(inputs)
        )  # fmt: skip
    try:
        program = compile(model, device=device)
        return [tensor.numpy() for tensor in program.run(dict(zip(model.inputs, inputs))).values()]
    except MemoryError as error:
        raise FrontendError(
            "the tensors of this StableHLO module do not fit into memory", got=str(error)
        ) from None
