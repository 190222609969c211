"""Dump: the stages of one compilation, written as they are reached. It only looks on: what goes wrong with it is one warning."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from ... import channels, config
from ...ir import Graph, LoweredOp
from ...registry.select import Selector
from ...text import text_of_files
from ..emit.trace import Recipe
from ..fuse import Region
from ..run.explain import Explanation
from ..run.plan import ExecPlan
from ..run.ran import RunTrace
from . import texts
from .folder import DumpFolder
from .kernels import write_kernels

P = ParamSpec("P")


def _looking_on(method: Callable[Concatenate[Dump, P], None]) -> Callable[Concatenate[Dump, P], None]:
    """A stage that can't be written is told of; a folder that can't be written is given up. The compilation goes on."""

    @functools.wraps(method)
    def tried(self: Dump, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.folder is None:
            return
        try:
            with text_of_files():
                method(self, *args, **kwargs)
        except OSError as error:
            _given_up(self.folder.path, error)
            self.folder = None
        except Exception as error:
            _warn_once(
                str(self.folder.path),
                f"{method.__name__.strip('_')} can't be written: {type(error).__name__}: {error}",
            )

    return tried


class Dump:
    """`folder` is None where nothing is dumped: then every method returns at once."""

    def __init__(self, folder: DumpFolder | None) -> None:
        self.folder = folder
        self._lines: list[str] = []  # ops of the stage before
        self._ops: Sequence[LoweredOp] = ()

    def _write(self, name: str, text: str) -> None:
        assert self.folder is not None
        self.folder.write(name, text)

    @_looking_on
    def about(self, *given: Any, **how: Any) -> None:
        self._write("00-about.txt", texts.about(*given, **how))

    @_looking_on
    def emitted(self, graph: Graph) -> None:
        """What the model and its loss have emitted, before gradients are."""
        self._lines = texts.op_lines(graph)
        self._write("01-ir.txt", texts.graph_text(graph))

    @_looking_on
    def recognised(self, graph: Graph) -> None:
        self._write("01-recognised.txt", texts.recognised_text(graph, self._lines))

    @_looking_on
    def traced(self, graph: Graph) -> None:
        """With gradients and the optimizer's steps."""
        self._lines = texts.op_lines(graph)

    @_looking_on
    def optimized(self, graph: Graph) -> None:
        self._write("02-optimized.txt", texts.optimized_text(graph, self._lines))

    @_looking_on
    def lowered(self, ops: Sequence[LoweredOp], graph: Graph) -> None:
        self._ops = ops
        self._write("03-lowered.txt", texts.lowered_text(ops, graph))

    @_looking_on
    def scheduled(self, ops: Sequence[LoweredOp]) -> None:
        self._write("04-schedule.txt", texts.schedule_text(ops, self._ops))

    @_looking_on
    def formed(self, regions: Sequence[Region], selector: Selector) -> None:
        self._write("05-states.txt", texts.states_text(regions, selector))

    @property
    def watch(self) -> Dump | None:
        return None if self.folder is None else self

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder.path

    def planned(self, plan: ExecPlan, explanation: Explanation, selector: Selector) -> None:
        """Kernels come last: they take longest, and one may fail."""
        self._planned(plan)
        self._explained(explanation)
        self._kernels(plan, selector)
        self._lines, self._ops = [], ()

    @_looking_on
    def _planned(self, plan: ExecPlan) -> None:
        self._write("07-plan.txt", plan.text())
        self._write("07-plan.json", plan.to_json())

    @_looking_on
    def _explained(self, explanation: Explanation) -> None:
        self._write("06-regions.txt", str(explanation.verbose()))
        self._write("06-regions.json", json.dumps(explanation.to_json(), indent=1, sort_keys=True))

    @_looking_on
    def _kernels(self, plan: ExecPlan, selector: Selector) -> None:
        assert self.folder is not None
        write_kernels(self.folder, plan, selector.registry, selector.device)

    @_looking_on
    def ran(self, trace: RunTrace) -> None:
        """What the first run of the plan did."""
        self._write("08-trace.txt", str(trace))
        self._write("08-trace.json", json.dumps(trace.to_json(), indent=1))


OFF = Dump(None)


def begin(
    recipe: Recipe, sizes: Mapping[str, int], phase: str, selector: Selector, *, name: str = "", into: Path | None = None,
    **how: Any,
) -> Dump:  # fmt: skip
    """A folder of its own for the compilation that begins, in `into`, or the one that AICF_DUMP names; OFF if there is none.

    name  of the model, for the folder's; its class's if it has none
    how   more of how it is compiled
    """
    base = into or config.dump_dir()
    if base is None:
        return OFF
    name = name or _name(recipe.model)
    title = "-".join([recipe.mode, *([phase] if phase != "step" else []), name, *map(str, sizes.values())])
    try:
        dump = Dump(DumpFolder.claim(base, title))
    except OSError as error:
        _given_up(base, error)
        return OFF
    dump.about(recipe, sizes, phase, selector, **how)
    return dump


def _name(model: Any) -> str:
    """A model that is one layer is called as that; one of another framework as its file."""
    layer, source = getattr(model, "layer", None), getattr(model, "source", "")
    if source and isinstance(source, str):
        return Path(source).stem
    return type(model if layer is None else layer).__name__.lower()


def _given_up(path: Path, error: OSError) -> None:
    what = f"{path} can't be written: {error.strerror or error}; AICF_DUMP names another folder"
    _warn_once(str(path if path == config.dump_dir() else path.parent), what)


@functools.cache
def _warn_once(place: str, what: str) -> None:
    channels.warn("dump", "unwritable", f"dump: {what}", path=place)
