"""`fit`: the training loop. Steps, validation, checkpoints, early stop, logs and a progress bar around a compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import AicfError, FeedError, StateError
from ..pages.curves import Curve, live
from ..progress import Advance, no_progress
from ..progress import progress as line
from ..whole import Uninterrupted
from .batches import Feed, check_batches, once, passes
from .call import check_names, check_targets
from .checkpoints import Checkpoints, Progress
from .history import History
from .logs import Log, log_to
from .pace import TrainingPace
from .ranks import Ranks
from .watch import Watch


class Trained(Protocol):
    """What `fit` needs of an aicf.Program."""

    @property
    def mode(self) -> str: ...
    @property
    def accumulate(self) -> int: ...
    @property
    def accumulated(self) -> int: ...
    @property
    def outputs(self) -> Mapping[str, Any]: ...
    def __call__(self, feed: Feed, /) -> Mapping[str, Any]: ...
    def in_mode(self, mode: str, /) -> Callable[[Feed], Mapping[str, Any]]: ...
    def state_dict(self) -> Mapping[str, np.ndarray]: ...
    def load_state_dict(self, state: Mapping[str, Any], /) -> Any: ...
    def get_last_lr(self) -> float: ...
    def get(self, name: str, /) -> Any: ...
    @property
    def peak_seconds(self) -> float | None: ...
    @property
    def parallel(self) -> Any: ...


def fit(
    program: Trained,
    batches: Any = None,
    *more: Any,
    steps: int | None = None,
    epochs: int | None = None,
    validation: Any = None,
    validate_every: int | None = None,
    checkpoints: str | Path | None = None,
    checkpoint_every: int | None = None,
    keep: int = 1,
    resume: bool = False,
    patience: int | None = None,
    log: str | Path | Log | Iterable[str | Path | Log] = (),
    log_every: int = 10,
    progress: bool | None = None,
    on_step: Callable[[Any, Progress], Any] | None = None,
    **unknown: Any,
) -> History:
    """Train a program of mode "train".

    batches      feeds, inputs and targets together: `Batches`, `Tokens`, any iterable, or a function of the epoch that returns one
    steps        optimizer steps to be done, of which each takes as many batches as `accumulate` says
    epochs       passes over the batches; 1 if neither is given. With both, whatever ends first
    validation   batches whose mean loss is taken, by the same weights, without dropout
    validate_every    steps between validations; by default at each epoch's end
    checkpoints  a folder: safetensors files, each written whole or not at all. Those of the `keep` least validation losses stay (without
                 validation: training losses), and the newest
    checkpoint_every  steps between them; by default after each validation, and at the end
    resume       go on from the newest checkpoint of the folder, if there is one: parameters, optimizer, random state, place in the batches.
                 What follows is bit for bit what it would have been. `steps` and `epochs` count from the start of all
    patience     stop after so many validations without a new least loss
    log          files (name.csv, name.jsonl), a folder for TensorBoard, or functions of a row. What runs return beside the loss as 0-D floats,
                 such as an accuracy, has columns of its own: means of the runs since the last row, and of validation
    log_every    steps between rows. Losses are fetched then, so that a GPU is not waited for at each step
    progress     a bar on stderr, in a notebook loss over steps; by default where that is a terminal or a notebook
    on_step      called after each step with the program and its place, which it must not change; what it returns is ignored

    A program of several ranks is trained by all of them at once: each takes its rows of every batch, losses are means of all, and rank 0
    alone writes checkpoints, logs and the bar. Another number of ranks can resume.

    Ctrl-C ends it behind a whole step, writes a checkpoint if there is a folder, and is raised again.
    """
    _check_trained(program)
    check_names(program, more, unknown)
    check_batches("batches", batches)
    logged = check_targets(checkpoints, log)
    _at_least(0, steps=steps, epochs=epochs, keep=keep)
    _at_least(
        1,
        validate_every=validate_every,
        checkpoint_every=checkpoint_every,
        patience=patience,
        log_every=log_every,
    )
    if resume and checkpoints is None:
        raise StateError(
            "there is nothing to resume from",
            expected="a folder",
            hint="fit(..., checkpoints='runs/first', resume=True)",
        )
    if patience is not None and validation is None:
        raise StateError(
            f"patience={patience} waits for validations, and there are none", expected="validation=...",
            hint="fit(..., validation=aicf.training.Batches({'x': x, 'y': y}, size=64, shuffle=False))",
        )  # fmt: skip
    if once(batches) and epochs is not None and epochs > 1:
        raise FeedError(
            f"an iterator can't be gone through {epochs} times", expected="an iterable that begins anew", got=type(batches).__name__,
            hint="a list, aicf.training.Batches, or a function of the epoch that returns an iterator",
        )  # fmt: skip
    folder = None if checkpoints is None else Checkpoints(checkpoints, keep)
    history = History()
    ranks = Ranks(program.parallel)
    if folder is not None and resume and (found := folder.load()):
        ranks.agree("checkpoint to resume from", [found[0].name])
        history.checkpoint, state, history.place = found
        program.load_state_dict(state)
    elif folder is not None and resume:
        ranks.agree("checkpoint to resume from", ["none"])
    elif folder is not None and not resume and folder.steps():
        raise StateError(
            f"{checkpoints} has the checkpoints of another run", expected="an empty folder", got=f"{max(folder.steps().values())}",
            hint="resume=True goes on with it; another folder, or deleting these files, begins anew",
        )  # fmt: skip
    watch = Watch(program.outputs, validation is not None)
    judge = None if validation is None else _judge(program, validation, watch)
    if ranks.rank:
        logged, progress = (), False
    logs = [log_to(one, history.place.step, watch.columns) for one in logged]
    if once(batches) or (steps is None and epochs is None):
        epochs = 1
    run = _Training(
        program,
        history,
        folder,
        judge,
        watch,
        logs,
        validate_every,
        checkpoint_every,
        patience,
        log_every,
        on_step,
        live(progress is not False),
        ranks,
    )
    total = steps if steps is not None else _steps_of(program, batches, epochs)
    with line("step", total, wanted=progress, kept=True, remaining=True) as run.show:
        try:
            run.whole(batches, steps, epochs)
        except KeyboardInterrupt:
            history.stopped = "interrupted"
            raise
        finally:
            if history.stopped:  # else something went wrong, and is said
                run.end()
            for one in logs:
                getattr(one, "close", lambda: None)()
    return history


@dataclass
class _Training:
    program: Trained
    history: History
    folder: Checkpoints | None
    judge: Callable[[], tuple[float, dict[str, float]]] | None
    watch: Watch
    logs: list[Log]
    validate_every: int | None
    checkpoint_every: int | None
    patience: int | None
    log_every: int
    on_step: Callable[[Any, Progress], Any] | None
    draw: Callable[..., None]
    ranks: Ranks
    show: Advance = no_progress
    group: list[Any] = field(default_factory=list)  # losses of the runs since the last step
    pending: list[list[Any]] = field(default_factory=list)  # those of steps that are still on the device
    unlogged: list[float] = field(default_factory=list)  # of steps since the last row
    unsaved: list[float] = field(default_factory=list)  # of steps since the last checkpoint
    pace: TrainingPace = field(default_factory=TrainingPace)
    started: float = 0.0
    saved: int = -1  # the step of the newest checkpoint

    def lr(self) -> float | None:
        """None where the optimizer has none."""
        try:
            return self.program.get_last_lr()
        except StateError:
            return None

    def number(self, name: str, kind: Callable[[Any], float]) -> float | None:
        """What the optimizer keeps under a name; None where it keeps no such thing, as without a loss scale."""
        try:
            return kind(self.program.get(name))
        except StateError:
            return None

    def whole(self, batches: Any, steps: int | None, epochs: int | None) -> None:
        place = self.history.place
        self.started = self.pace.since = time.perf_counter()
        self.saved = place.step if self.history.checkpoint else -1
        self.group, place.partial = [*place.partial], []
        if self._validated_late() or self._out_of_patience():
            self.history.stopped = "early"
            return
        while (epochs is None or place.epoch < epochs) and not self._reached(steps):
            first, feeds = place.batch, passes(batches, place.epoch, place.batch)
            while not self._reached(steps):
                feed = next(feeds, None)
                if feed is None:
                    break
                if self._stepped(feed) and self._after_step():
                    self.history.stopped = "early"
                    return
            else:  # the epoch may have more
                break
            if place.batch == first == 0:
                raise FeedError(f"there are no batches in epoch {place.epoch}", expected="feeds")
            if (
                self.judge
                and self.validate_every is None
                and place.validated != place.step
                and self._validate()
            ):
                self.history.stopped = "early"
                return
            place.epoch, place.batch = place.epoch + 1, 0
        self.history.stopped = "steps" if self._reached(steps) else "epochs"

    def _reached(self, steps: int | None) -> bool:
        return steps is not None and self.history.place.step >= steps

    def _out_of_patience(self) -> bool:
        return self.patience is not None and self.history.place.waited >= self.patience

    def _validated_late(self) -> bool:
        """The validation of a step behind which the run was cut off; whether to stop then."""
        place, every = self.history.place, self.validate_every
        due = (
            self.judge and every and place.step and place.step % every == 0 and place.validated != place.step
        )
        return bool(due and self._validate())

    def _stepped(self, feed: Feed) -> bool:
        """One run, and where it leaves the place; Ctrl-C comes before or after both. Whether it was a step."""
        with Uninterrupted():
            results = self.program(self.ranks.rows(feed))
            self.group.append(results["loss"])
            self.watch.ran(results)
            least = self.program.peak_seconds
            self.history.place.batch += 1
            stepped = not self.program.accumulated
            if stepped:
                self.pending.append(self.group)
                self.group = []
                self.history.place.step += 1
        self.pace.ran(_items(feed), least)
        return stepped

    def _after_step(self) -> bool:
        """Whether to stop."""
        place = self.history.place
        if place.step % self.log_every == 0:
            self._row()
        stop = bool(
            self.judge and self.validate_every and place.step % self.validate_every == 0 and self._validate()
        )
        if self.checkpoint_every and place.step % self.checkpoint_every == 0:
            self._save()
        if self.on_step is not None:
            self.on_step(self.program, replace(place))
        return stop

    def _fetch(self) -> None:
        """The losses of steps since the last time. Waits for the device."""
        found = self.ranks.mean([float(np.mean([float(loss) for loss in group])) for group in self.pending])
        self.pending.clear()
        for losses in (self.history.losses, self.unlogged, self.unsaved):
            losses += found

    def _row(
        self, validation_loss: float | None = None, validated: Mapping[str, float] | None = None
    ) -> None:
        self._fetch()
        place, losses, self.unlogged = self.history.place, self.unlogged, []
        now = time.perf_counter()
        self.pace.tell(now)
        loss = float(np.mean(losses)) if losses else None
        row = {
            "step": place.step, "epoch": place.epoch, "loss": loss, "validation_loss": validation_loss,
            "lr": self.lr(), "rate": self.pace.rate, "seconds": now - self.started,
            "peak": self.pace.peak, "loss_scale": self.number("loss_scale", float), "skipped_steps": self.number("skipped_steps", int),
            **self.watch.row(validated or {}),
        }  # fmt: skip
        self.history.rows.append(row)
        for log in self.logs:
            log(row)
        shown = loss if loss is not None else (self.history.losses or [float("nan")])[-1]
        valid = f" · validation {self.history.validation[-1][1]:.4f}" if self.history.validation else ""
        skipped = f" · {row['skipped_steps']} skipped" if row["skipped_steps"] else ""
        text = f"loss {shown:.4f}{valid} · {self.pace}{skipped}"
        self.show(place.step, None, text)
        self.draw(lambda: Curve(f"step {place.step:,} · {text}", self.history.curve().lines))

    def _validate(self) -> bool:
        """Whether patience is at its end."""
        assert self.judge is not None
        place = self.history.place
        begun = time.perf_counter()
        loss, watched = self.judge()
        (loss,) = self.ranks.mean([loss])
        place.loss, place.validated = loss, place.step
        self.pace.since += time.perf_counter() - begun  # no part of the rate
        self.history.validation.append((place.step, loss))
        better = loss == loss and (place.best is None or loss < place.best)
        place.best, place.waited = (loss, 0) if better else (place.best, place.waited + 1)
        self._row(loss, watched)
        if self.checkpoint_every is None or self.saved == place.step:  # now it has a loss
            self._save()
        return self._out_of_patience()

    def _save(self) -> None:
        if self.folder is None:
            return
        self._fetch()  # a run that went wrong is said before anything is written
        place = self.history.place
        if self.judge is None:
            place.loss = float(np.mean(self.unsaved)) if self.unsaved else place.loss
        elif place.validated != place.step:
            place.loss = None
        partial = self.ranks.mean([float(loss) for loss in self.group])
        state, to = self.ranks.whole(self.program), self.folder
        self.ranks.alone("checkpoint", lambda: to.save(state, replace(place, partial=partial)))
        self.history.checkpoint = to.path(place.step)
        self.saved, self.unsaved = place.step, []

    def end(self) -> None:
        if self.pending or self.unlogged:
            self._row()
        self.draw(self.history.curve, last=True)
        if self.saved != self.history.place.step:
            self._save()


def _check_trained(program: Any) -> None:
    mode = getattr(program, "mode", None)
    if mode != "train" or not hasattr(program, "in_mode"):
        raise AicfError(
            "fit trains a program that was compiled to train", expected='aicf.compile(model, "train", loss=..., optimizer=...)',
            got=f"{type(program).__name__}, of mode {mode!r}" if mode else type(program).__name__,
        )  # fmt: skip


def _at_least(least: int, **given: Any) -> None:
    for name, value in given.items():
        whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
        if value is not None and (not whole or value < least):
            raise AicfError(f"{name} can't be {value!r}", expected=f"an integer, at least {least}")


def _judge(program: Trained, validation: Any, watch: Watch) -> Callable[[], tuple[float, dict[str, float]]]:
    """The mean loss of the validation batches, and the means of what is watched, by the weights of now."""
    check_batches("validation", validation)
    if once(validation):
        raise FeedError(
            "validation goes through its batches many times",
            expected="an iterable that begins anew",
            got=type(validation).__name__,
        )
    judge = program.in_mode("infer")

    def mean() -> tuple[float, dict[str, float]]:
        losses, runs = [], []
        for results in map(judge, passes(validation, 0, 0)):
            losses.append(results["loss"])
            runs.append(watch.of(results))
        if not losses:
            raise FeedError("there are no batches to validate by", expected="feeds")
        return float(np.mean([float(loss) for loss in losses])), watch.means(runs)

    return mean


def _items(feed: Feed) -> int:
    """What a rate counts: tokens where the first input is integers of two axes or more, else rows."""
    first: Any = next(iter(feed.values()))
    shape = tuple(getattr(first, "shape", ()))
    whole = str(getattr(first, "dtype", "")).rpartition(".")[2].startswith(("int", "uint", "i", "u"))
    return int(np.prod(shape)) if whole and len(shape) > 1 else int(shape[0]) if shape else 1


def _steps_of(program: Trained, batches: Any, epochs: int | None) -> int | None:
    """All of them, where the batches know how many they are."""
    try:
        return len(batches) * (1 if epochs is None else epochs) // program.accumulate
    except TypeError:
        return None
