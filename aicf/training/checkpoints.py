"""Checkpoints of a training run: a folder of safetensors files, one for each step that was saved."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from .. import weights
from ..errors import StateError
from ..files import parse_json

NAME = re.compile(r"step-(\d{8,})\.safetensors")
KEY = "aicf.training"  # of what is kept in the file's metadata


@dataclass
class Progress:
    """How far a training run has come.

    step      optimizer steps done
    epoch     the epoch it is in, from 0
    batch     batches of that epoch that are done
    best      the least validation loss so far; None before there is one
    waited    validations since then
    validated the step of the newest validation
    loss      the validation loss at this step, None if there was none; without validation the mean loss of the steps since the last
              checkpoint
    partial   losses of the runs since the last step, where a step takes several
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    best: float | None = None
    waited: int = 0
    validated: int = -1
    loss: float | None = None
    partial: list[float] = field(default_factory=list)


class Checkpoints:
    """A folder. `keep` files stay: those of the least loss; and beside them the newest, from which training goes on."""

    def __init__(self, folder: str | Path, keep: int) -> None:
        self.folder, self.keep = Path(folder), keep
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StateError(
                f"{folder} can't be made: {error.strerror}", hint="name a folder for checkpoints"
            ) from None

    def steps(self) -> dict[int, Path]:
        """The files there are, by step, the newest last."""
        found = {int(m[1]): path for path in self.folder.iterdir() if (m := NAME.fullmatch(path.name))}
        return dict(sorted(found.items()))

    def path(self, step: int) -> Path:
        """Of the checkpoint of a step."""
        return self.folder / f"step-{step:08d}.safetensors"

    def save(self, state: Mapping[str, np.ndarray], place: Progress) -> Path:
        path = self.path(place.step)
        weights.save(path, state, {KEY: json.dumps(asdict(place))})
        self._prune(path)
        return path

    def load(self, step: int | None = None) -> tuple[Path, Mapping[str, np.ndarray], Progress] | None:
        """The newest, or that of a step; None if there is none."""
        found = self.steps()
        if not found or (step is not None and step not in found):
            return None
        step = max(found) if step is None else step
        path, place = found[step], place_of(found[step])
        if place.step != step:
            raise StateError(
                f"{path} is not the checkpoint of step {step}", expected=f"a file saved at step {step}", got=f"one saved at step {place.step}",
                hint=f"rename it to {self.path(place.step).name}, or program.load_state_dict(aicf.load(path)) takes its weights",
            )  # fmt: skip
        return path, weights.load(path), place

    def _prune(self, newest: Path) -> None:
        losses = {}
        for step, path in self.steps().items():
            try:
                loss = place_of(path).loss
            except StateError:
                continue  # it is none of ours
            losses[path] = (np.inf if loss is None or loss != loss else loss, -step)
        best = sorted(losses, key=losses.__getitem__)[: self.keep]
        for path in set(losses) - {*best, newest}:
            path.unlink(missing_ok=True)


def place_of(path: str | Path) -> Progress:
    """How far the run was that wrote a checkpoint; StateError if another wrote the file."""
    told: Any = weights.metadata(path).get(KEY)
    try:
        found = parse_json(told)
        place = Progress(**found)
    except (TypeError, ValueError):
        raise StateError(
            f"{path} is no checkpoint of a training run", expected=f"{', '.join(f.name for f in fields(Progress))} in its metadata",
            hint="program.load_state_dict(aicf.load(path)) takes weights alone",
        ) from None  # fmt: skip
    counts = (place.step, place.epoch, place.batch, place.waited)
    numbers = [n for n in (place.best, place.loss) if n is not None]
    if not (
        all(type(n) is int and n >= 0 for n in counts)
        and type(place.validated) is int
        and isinstance(place.partial, list)
        and all(type(n) in (int, float) for n in (*numbers, *place.partial))
    ):
        raise StateError(f"{path} says of its training run what can't be", got=str(found))
    return place
