"""Log channels: what aicf decides and does, told through Python's `logging`, as text or as lines of JSON.

Each channel is a logger, `aicf.plan` and so on, and says nothing unless AICF_LOGS, or `logs()`, names it. A record has its
`event` and its `fields` as attributes, so that handlers of the user's own need not read text. If nobody has configured
`logging`, lines go to the standard error. A level that the user sets, `logging.getLogger("aicf.plan").setLevel(...)`, holds.

select   each choice of a kernel: op, kernel, tensors, stream; in detail the other candidates, and the kernels rejected
fusion   each region: its ops and why it ended; in detail each step's rows and how many candidates it left
plan     each plan that is made: sizes, kernels, memory, and why
capture  what is captured, what is not and why, the first replay, and what made it invalid
cache    each kernel compiled, in how many seconds, or read from disk; in detail what is found in memory
tune     each measurement
ranks    connections that rank 0 rejected; where it listens
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from . import config
from .text import visible

ROOT = logging.getLogger("aicf")
_LEVELS: dict[str, int] = {}  # by logger: the level that was set here, not by the user


def logs(channels: str | None = "", json: str | os.PathLike[str] | None = None) -> None:
    """Switch log channels on: `aicf.logs("plan,capture")`, with details `aicf.logs("+plan")`; off again: `aicf.logs("")`.

    json  a file that lines of JSON are added to, in the place of text; "-" is the standard error

    The same as setting AICF_LOGS and AICF_LOGS_JSON, so processes that this one starts follow it.
    """
    config.log_levels(channels or "")  # refuses what is none
    for variable, value in (("AICF_LOGS", channels), ("AICF_LOGS_JSON", json)):
        if value:
            os.environ[variable] = os.fspath(value)
        else:
            os.environ.pop(variable, None)


def enabled(channel: str, level: int = logging.INFO) -> bool:
    """Whether anything of this level is told on a channel: to be asked before fields are put together."""
    return level >= config.log_levels().get(channel, logging.CRITICAL + 1)


def tell(channel: str, event: str, text: str, level: int = logging.INFO, **fields: Any) -> None:
    """One line on a channel, if it is on."""
    wanted = config.log_levels().get(channel)
    if wanted is None or level < wanted:
        return
    log = logging.getLogger(f"aicf.{channel}")
    _open(log, wanted)
    if not log.isEnabledFor(level):
        return
    _arrange(log)
    log.log(level, "%s", text, extra={"event": event, "fields": fields})


def _open(log: logging.Logger, wanted: int) -> None:
    """Let records of the channel's level through, unless the user has set a level of this logger, or of `aicf`: that one holds."""
    if log.level not in (logging.NOTSET, _LEVELS.get(log.name)):
        return
    if ROOT.level != logging.NOTSET:
        log.setLevel(logging.NOTSET)
    elif not log.isEnabledFor(wanted):
        log.setLevel(wanted)
        _LEVELS[log.name] = wanted


def warn(channel: str, event: str, text: str, **fields: Any) -> None:
    """What is told whether the channel is on or not."""
    if channel in config.log_levels():
        tell(channel, event, text, logging.WARNING, **fields)
    else:
        logging.getLogger(f"aicf.{channel}").warning("%s", text, extra={"event": event, "fields": fields})


# --- handlers ---------------------------------------------------------------------------------------------------------


class ChannelHandler(logging.Handler):
    """aicf's own: text on the standard error where the user has no handler, lines of JSON where they are asked for."""

    def emit(self, record: logging.LogRecord) -> None:
        target = config.logs_as_json()
        try:
            if target is not None:
                _add_line(target, as_json(record) + "\n")
            elif sys.stderr is not None and not self._others(record):
                text = visible(record.getMessage(), keep="")
                sys.stderr.write(f"[{record.name}] {text}\n")
        except Exception as error:
            _given_up(target, error)

    def _others(self, record: logging.LogRecord) -> bool:
        """Whether the user has configured handlers since."""
        loggers = logging.getLogger(), ROOT, logging.getLogger(record.name)
        return any(handler is not self for logger in loggers for handler in logger.handlers)


_HANDLER = ChannelHandler()
_GIVEN_UP: set[str | None] = set()


def _arrange(log: logging.Logger) -> None:
    """aicf's handler stands behind all channels if it is needed. It looks at the settings for each record."""
    if _HANDLER in ROOT.handlers:
        return
    if config.logs_as_json() or not log.hasHandlers():
        ROOT.addHandler(_HANDLER)


def as_json(record: logging.LogRecord) -> str:
    """One line: time, channel, level, event and the event's fields; of what was logged without an event, the text."""
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
    event = getattr(record, "event", "message")
    fields: Mapping[str, Any] = getattr(record, "fields", {}) or {"text": record.getMessage()}
    line = {
        "time": time, "pid": record.process, "channel": record.name.removeprefix("aicf."),
        "level": record.levelname.lower(), "event": event, **fields,
    }  # fmt: skip
    return json.dumps(_plain(line), default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    """What JSON can say: numbers that are none become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


def _add_line(target: str, line: str) -> None:
    if target == "-":
        if sys.stderr is not None:
            sys.stderr.write(line)
        return
    # opened for each line and written at once: processes may share the file, and it may be moved away
    handle = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def _given_up(target: str | None, error: Exception) -> None:
    """Logging never stops a program: said once for each target."""
    if target not in _GIVEN_UP and sys.stderr is not None:
        _GIVEN_UP.add(target)
        why = getattr(error, "strerror", None) or error
        sys.stderr.write(f"aicf: AICF_LOGS_JSON={target}: can't be written: {why}; these lines are lost\n")
