"""`aicf run`: an ONNX model fed arrays from files, or a Python file as several processes that train together."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import AicfError
from .arguments import positive


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "run",
        help="feed an ONNX model arrays, and write or tell what it returns; or run a Python file as several ranks",
    )
    parser.add_argument("model", metavar="FILE", help="FILE.onnx, or FILE.py with --processes")
    what = "an array in a .npy file, by the input's name if there are several; or all of them in a .npz file"
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE", help=what)
    parser.add_argument("--output", metavar="FILE", help="write the results there, as .npz, by their names")
    parser.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    ranks = "run FILE.py as so many processes of this machine, whose programs are compiled with parallel=; on GPUs each has its own"
    parser.add_argument("--processes", "--gpus", type=positive, metavar="N", help=ranks)
    parser.add_argument("arguments", nargs="*", metavar="-- ARG", help="what FILE.py is given")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.processes is not None:
        return _ranks(args)
    if args.arguments:
        raise AicfError(
            f"{args.model} takes no arguments",
            got=" ".join(args.arguments),
            hint="--input FILE feeds it an array",
        )
    from .. import run_model

    return run_model.run(args.model, args.input, args.output, args.device)


def _ranks(args: argparse.Namespace) -> int:
    if not args.model.endswith(".py") or not Path(args.model).is_file():
        raise AicfError(
            f"{args.model} is no Python file", expected="FILE.py", hint="--processes runs a file that trains"
        )
    if given := [name for name in ("input", "output", "device") if getattr(args, name)]:
        raise AicfError(
            f"--{given[0]} is for an ONNX model", hint=f"what {args.model} is given stands behind --"
        )
    from ..distributed.launch import launch

    return launch([sys.executable, args.model, *args.arguments], args.processes)
