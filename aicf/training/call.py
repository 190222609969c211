"""How `fit` is called: what other libraries take, and aicf's `fit` does not, is refused with what to write."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from .. import near
from ..errors import AicfError, FeedError

BATCHES = "fit(aicf.training.Batches({feed}, size=32), epochs=1)"
ELSEWHERE = {  # what the arguments of other libraries are called here
    **dict.fromkeys(("x", "y", "X", "Y", "inputs", "labels", "targets", "data", "batch_size", "shuffle", "drop_last", "sample_weight"), BATCHES),
    **dict.fromkeys(("lr", "learning_rate", "optimizer", "loss", "metrics"), 'aicf.compile(model, "train", loss=..., optimizer=nn.Adam(lr=1e-3))'),
    **dict.fromkeys(("validation_data", "val", "valid", "eval_set", "validation_split"), "validation=aicf.training.Batches({feed}, size=32, shuffle=False)"),
    **dict.fromkeys(("callbacks", "callback", "on_epoch_end"), "on_step=lambda program, place: ..."),
    **dict.fromkeys(("checkpoint", "checkpoint_dir", "save_dir", "output_dir", "ckpt_path"), "checkpoints='runs/first'"),
    "verbose": "progress=False", "initial_epoch": "resume=True", "logger": "log='runs/first.csv'",
}  # fmt: skip


def check_names(program: Any, more: Sequence[Any], unknown: Mapping[str, Any]) -> None:
    """AicfError for arguments that `fit` does not have; it says which one is meant."""
    feed = "{" + ", ".join(f"{name!r}: {name}" for name in _fed(program)) + "}"
    if more:
        raise FeedError(
            f"fit takes inputs and targets together, and {len(more) + 1} arguments came", expected=f"batches of {feed}",
            got=", ".join(type(one).__name__ for one in more) + " after the batches", hint=BATCHES.format(feed=feed),
        )  # fmt: skip
    if unknown:
        from .fit import fit

        kind = inspect.Parameter.KEYWORD_ONLY
        known = [name for name, one in inspect.signature(fit).parameters.items() if one.kind is kind]
        name = next(iter(unknown))
        meant = near.hint(name, ELSEWHERE, known)
        raise AicfError(
            f"fit has no {name}", expected=", ".join(known), got=f"{name}={type(unknown[name]).__name__}",
            hint=meant and meant.replace("{feed}", feed),
        )  # fmt: skip


def check_targets(checkpoints: Any, log: Any) -> Sequence[Any]:
    """The logs, one by one; AicfError for a folder or a log that can't be one."""
    if checkpoints is not None and not isinstance(checkpoints, str | PathLike):
        raise AicfError(
            f"checkpoints={checkpoints!r}", expected="a folder, as text or a Path", got=type(checkpoints).__name__,
            hint="fit(..., checkpoints='runs/first', checkpoint_every=100, keep=3)",
        )  # fmt: skip
    alone = isinstance(log, str | PathLike) or callable(log) or not isinstance(log, Iterable)
    logs: list[str | PathLike[str] | Callable[..., Any]] = [log] if alone else list(log)
    for one in logs:
        if not isinstance(one, str | PathLike) and not callable(one):
            raise AicfError(
                f"log={log!r}", expected="a file (name.csv, name.jsonl), a folder for TensorBoard, a function of a row, or a list of them",
                got=type(one).__name__, hint="fit(..., log='runs/first.csv')",
            )  # fmt: skip
    return logs


def _fed(program: Any) -> list[str]:
    """The names of what a training program is fed."""
    try:
        slots = program.plan.externals()
        return [slot.name for slot in slots if str(slot.role) == "input"] or ["x", "y"]
    except Exception:  # a program of another kind
        return ["x", "y"]
