"""`aicf run`: an ONNX model fed arrays from files."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser("run", help="feed an ONNX model arrays, and write or tell what it returns")
    parser.add_argument("model", metavar="FILE", help="FILE.onnx")
    what = "an array in a .npy file, by the input's name if there are several; or all of them in a .npz file"
    parser.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE", help=what)
    parser.add_argument("--output", metavar="FILE", help="write the results there, as .npz, by their names")
    parser.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import run_model

    return run_model.run(args.model, args.input, args.output, args.device)
