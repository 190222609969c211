"""`aicf tune`: measure the kernels of a model's regions into a file."""

from __future__ import annotations

import argparse
from typing import Any

from . import asked
from .arguments import seconds


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "tune", help="measure the kernels of a model's regions; the file then overrides predictions"
    )
    asked.add_model(parser, nargs="?")
    parser.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    parser.add_argument("--budget", type=seconds, default=60.0, metavar="SECONDS", help="60 if not given")
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="tuning.json",
        help="tuning.json if not given; what it has is kept",
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help="measure again what the output has, also if kernels have changed since",
    )
    parser.add_argument(
        "--merge", nargs="+", default=[], metavar="FILE", help="take these over; without a model that is all"
    )
    parser.add_argument(
        "--check", nargs="+", metavar="FILE", help="say what is in these, and whether they are good"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import tune

    return tune.run(args)
