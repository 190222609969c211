"""`aicf explain`: what would be chosen for a model on a device, with or without one."""

from __future__ import annotations

import argparse
import json
import sys
from os import sep
from pathlib import Path
from typing import Any

from rich.console import Console

from . import asked


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "explain", help="what would be chosen for a model on a device, with or without one"
    )
    asked.add_model(parser)
    parser.add_argument(
        "--device",
        default="cpu",
        help="a preset such as h200, a100, t4 or cpu; or cuda, the GPU that is here",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="all regions and candidates, and each rejected kernel"
    )
    parser.add_argument("--json", action="store_true", help="print JSON; equal from run to run")
    parser.add_argument(
        "--diff", metavar="OTHER", help="compare with another device, or with what --json wrote into a file"
    )
    parser.add_argument("--tuning", metavar="FILE", help="times of the device, as aicf tune writes them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..graph.run.diff import Diff
    from ..graph.run.explain import Explanation
    from ..pages.data import check_explanation

    explained = asked.explainer(args)
    explanation: Explanation | Diff = explained(args.device, args.tuning)
    if args.diff:
        other = (
            asked.saved(args.diff, check_explanation)
            if args.diff.endswith(".json") or sep in args.diff or Path(args.diff).is_file()
            else explained(args.diff).to_json()
        )
        explanation = Diff(explanation.to_json(), other)
    if args.verbose and isinstance(explanation, Explanation):
        explanation = explanation.verbose()
    if args.json:
        print(json.dumps(explanation.to_json(), indent=1, sort_keys=True))
    elif sys.stdout.isatty():
        Console().print(explanation)
    else:
        print(explanation)  # into a file or a pipe: the same everywhere
    return 0
