"""What a program keeps, by name: a variable's short name, and whether a state dict that is to be loaded fits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ...errors import StateError
from ...ir import Role
from ...weights import StoredArrays
from ..emit.step import ACCUMULATED, with_scale
from ..emit.trace import Recipe, declared_names
from .variables import Variables

OPTIMIZER = "optimizer."  # scope of the optimizer's counters and meta-parameters
RUNS = "program.runs"


def full_name(variables: Variables, used: Collection[str], name: str) -> str:
    """Of a variable, or by its short name of what the optimizer keeps among those used."""
    if name in variables:
        return name
    names = [n for n in sorted(used) if n.startswith(OPTIMIZER) and n.endswith(f".{name}")]
    if len(names) != 1:
        raise StateError(
            f"{name!r} is short for {' and '.join(names)}" if names else f"no variable is called {name!r}",
            expected=", ".join(variables.names()),
        )
    return names[0]


def checked_state(
    recipe: Recipe,
    variables: Variables,
    used: Collection[str],
    state: Mapping[str, Any],
    strict: bool,
    runs: int,
) -> tuple[int, dict[str, Any]]:
    """(runs, arrays by name) of a state dict, for a program that uses these variables; `runs` is what there were so far."""
    if not isinstance(state, Mapping):
        raise StateError(
            f"a state dict can't be {state!r}", expected="arrays by name", hint="load_state_dict(aicf.load('model.safetensors'))"
        )  # fmt: skip
    runs = _checked_runs(state[RUNS]) if RUNS in state else runs
    given = {k: state.unread(k) if isinstance(state, StoredArrays) else state[k] for k in state if k != RUNS}
    named = with_scale(given, used, recipe.types, strict)
    extra = set(named) - set(used)
    for name in _of_others(recipe, variables, extra) if extra else ():
        del named[name]
    if RUNS in state and ACCUMULATED in used:  # older checkpoints say it by the number of runs alone
        named.setdefault(ACCUMULATED, np.int32(runs % recipe.accumulate))
    return runs, named


def _of_others(recipe: Recipe, variables: Variables, names: Collection[str]) -> Collection[str]:
    """Of names that a program does not have those that another program of the model may have, or another rank."""
    if recipe.mode != "train":
        return _of_training(recipe, variables, names)
    if recipe.parallel is None or not recipe.parallel.shards:
        return ()
    return [
        n for n in names if n.startswith((OPTIMIZER, *(f"{param}." for param in variables.names(Role.param))))
    ]


def _of_training(recipe: Recipe, variables: Variables, names: Collection[str]) -> Collection[str]:
    """Of names that a program does not have those that a training program of the model may: its optimizer's, such as
    `optimizer.lr` and `0.weight.momentum`, the random state, and what layers keep while they train."""
    prefixes = OPTIMIZER, *(f"{param}." for param in variables.names(Role.param))
    known = {"rng", *declared_names(recipe, variables.runtime.kind, training=True)}
    return [name for name in names if name in known or name.startswith(prefixes)]


def _checked_runs(value: Any) -> int:
    """A number of runs that was saved: an integer that 64 bits hold."""
    array = np.asarray(value)
    if array.ndim or array.dtype.kind not in "iu" or not 0 <= int(array) < 2**63:
        raise StateError(
            f"{RUNS} can't be loaded", expected="a 0-D integer, 0 or more, that i64 holds",
            got=array.tolist() if array.size < 8 else f"an array of shape {array.shape}",
        )  # fmt: skip
    return int(array)
