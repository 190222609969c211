"""The command line. Each command is a file here: `add` declares what it takes, `run` does it and returns the exit code."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from os import devnull, dup2
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.text import Text

from .. import __version__, config
from ..errors import AicfError
from ..text import printable_streams, visible
from . import cache, calibrate, demo, doctor, dump, examples, explain, info, profile, report, run, tune

COMMANDS = demo, doctor, info, explain, report, dump, run, profile, tune, calibrate, examples, cache


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run a command, whatever the encoding of what it prints to."""
    with printable_streams():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    """The exit code. Errors that aicf raises on purpose, and files that can't be read or written, become one
    message and exit code 2; Ctrl-C one line and 130."""
    try:
        try:
            args = _parsed(argv)
            config.check_settings()
            return args.run(args) or 0
        finally:
            _flush()
    except BrokenPipeError:  # `aicf info | head`: who read has read enough
        _write_no_more()
        return 1
    except AicfError as error:
        return _failed(type(error).__name__, str(error))
    except OSError as error:
        if error.filename is not None:
            return _failed(
                type(error).__name__,
                f"{error.filename}: {error.strerror}\n  next: {_another(error.filename)}",
            )
        if error.errno not in (EBADF, EDQUOT, EFBIG, EIO, ENOSPC):
            raise
        _write_no_more()
        return _failed("OSError", f"the output can't be written: {error.strerror}")
    except KeyboardInterrupt:
        return _failed("interrupted", "", 130)


def _failed(kind: str, said: str, code: int = 2) -> int:
    text = Text(f"{kind}: " if said else kind, style="bold red").append(visible(said), style="none")
    Console(stderr=True).print(text, soft_wrap=True)
    return code


def _another(path: str) -> str:
    """What to do about a file that can't be read or written."""
    folder = Path(path).absolute().parent
    return "name another path" if folder.is_dir() else f"make the folder {folder}, or name another path"


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """What is left over is the command's to refuse: its usage is what helps."""
    top = parser()
    args, more = top.parse_known_args(argv)
    if more:
        getattr(args, "parser", top).error(f"unrecognized arguments: {' '.join(more)}")
    return args


class _Parser(argparse.ArgumentParser):
    """With what a misspelt command, option or choice comes close to."""

    def error(self, message: str) -> NoReturn:
        known = [
            option for action in self._actions for option in (*action.option_strings, *(action.choices or ()))
        ]
        wrong = re.search(r"invalid choice: '(.*?)'|unrecognized arguments: (-[^\s=]+)", message)
        close = get_close_matches(wrong[1] or wrong[2], map(str, known), n=1) if wrong else []
        super().error(message + (f"\n  next: {close[0]}" if close else ""))


def _flush() -> None:
    if sys.stdout is not None:  # closed by `>&-`
        sys.stdout.flush()


def _write_no_more() -> None:
    """Not even what is buffered yet, at exit."""
    with open(devnull, "w") as nowhere:
        dup2(nowhere.fileno(), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    parser = _Parser("aicf", description="A pure-Python AI compiler framework that says why.")
    parser.add_argument("--version", action="version", version=f"aicf {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands = parser.add_subparsers(metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands)
    for made in commands.choices.values():
        made.set_defaults(parser=made)
    return parser
