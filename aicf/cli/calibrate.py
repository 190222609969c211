"""`aicf calibrate`: fit the constants of predictions to a GPU."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import minutes


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "calibrate", help="fit the constants of predictions to a GPU, by times of kernels on regions of published models"
    )  # fmt: skip
    parser.add_argument(
        "--device",
        help="cuda (the default) or cuda:N; with --from and --output a preset, such as h200: fits those times alone, without a GPU",
    )
    parser.add_argument(
        "--draw",
        metavar="WORDS",
        help="any words: the same words draw the same regions; today's date by default",
    )
    parser.add_argument(
        "--minutes",
        type=minutes,
        default=10.0,
        metavar="N",
        help="of measuring, 10 by default; 0 fits what is measured",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="by default the file of this GPU in the user's data folder, which is found without a flag",
    )
    parser.add_argument(
        "--from", nargs="+", default=[], metavar="FILE", dest="others", help="times of earlier runs, FILE.times.jsonl, that are fitted too"
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..calibrate import command

    return command.run(args)
