"""Where a training run is written down: CSV, JSON lines, TensorBoard."""

from __future__ import annotations

import csv
import importlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import AicfError, StateError

COLUMNS = (
    "step", "epoch", "loss", "validation_loss", "lr", "rate", "seconds", "peak", "loss_scale", "skipped_steps",
)  # fmt: skip
Row = Mapping[str, Any]  # by column; None for what is not known of a step
Log = Callable[[Row], None]


def log_to(target: str | Path | Log, resumed: int, watched: Sequence[str] = ()) -> Log:
    """A function of a row for what `fit(log=...)` names. Rows behind the step that is resumed from are taken back.

    watched  columns behind those that every run has
    """
    columns = (*COLUMNS, *watched)
    if callable(target):
        return target
    path = Path(target)
    if path.suffix in (".csv", ".jsonl"):
        _begin(path, resumed, columns)
        return lambda row: _append(path, _line(path, row, columns))
    if path.suffix:
        raise AicfError(
            f"nothing is known of logs like {path.name}", expected="a name.csv, a name.jsonl, a folder for TensorBoard, or a function",
            got=path.suffix,
        )  # fmt: skip
    return _tensorboard(path, resumed, columns)


def _line(path: Path, row: Row, columns: Sequence[str]) -> str:
    if path.suffix == ".jsonl":
        return json.dumps({name: _in_json(row.get(name)) for name in columns}, allow_nan=False) + "\n"
    return _csv([row.get(name) for name in columns])


def _in_json(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv(cells: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _begin(path: Path, resumed: int, columns: Sequence[str]) -> None:
    head = "" if path.suffix == ".jsonl" else _csv(columns)
    try:
        kept = (
            [line for line in path.read_text(encoding="utf-8").splitlines(True) if 0 < _step(line) <= resumed]
            if resumed and path.exists()
            else []
        )
        path.write_text(head + "".join(kept), encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StateError(
            f"{path} can't be written: {error}", hint="name a file in a folder that is there"
        ) from None


def _step(line: str) -> int:
    """Of a line; 0 of one that is no row, such as CSV's head or one that was cut off."""
    try:
        return int(json.loads(line)["step"] if line.startswith("{") else line.partition(",")[0])
    except (ValueError, KeyError, TypeError, RecursionError):
        return 0


def _append(path: Path, line: str) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write(line)


def _tensorboard(path: Path, resumed: int, columns: Sequence[str]) -> Log:
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            made = importlib.import_module(name).SummaryWriter
        except ImportError:
            continue
        return _writing(made(str(path), purge_step=resumed + 1 if resumed else None), columns)
    raise AicfError(
        f"logs in {path} are TensorBoard's, which is not installed",
        expected="torch with tensorboard, or tensorboardX", hint=f"pip install tensorboardX, or log='{path}.csv'",
    )  # fmt: skip


def _writing(writer: Any, columns: Sequence[str]) -> Log:
    def log(row: Row) -> None:
        _written(writer, row, columns)

    log.close = writer.close  # type: ignore[attr-defined]
    return log


def _written(writer: Any, row: Row, columns: Sequence[str]) -> None:
    for name in columns[2:]:
        if row.get(name) is not None:
            writer.add_scalar(name, row[name], row["step"])
    writer.flush()
