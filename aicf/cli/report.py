"""`aicf report`: what explain knows, as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from . import asked


def add(commands: Any) -> None:
    parser = commands.add_parser("report", help="what explain knows, as one HTML file that needs no network")
    asked.add_model(parser, more=", or what explain --json wrote")
    parser.add_argument("--device", default="cpu", help="as of explain")
    parser.add_argument("--tuning", metavar="FILE", help="as of explain")
    parser.add_argument(
        "--profile",
        metavar="FILE",
        help="what aicf profile --json wrote: measured times beside the predicted ones",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="report.html if not given"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..pages.data import check_drawn, check_profile
    from ..pages.page import write

    made = args.model.endswith(".json")
    data = (
        asked.saved(args.model, check_drawn)
        if made
        else asked.AskedModel(args).explained(args.device, args.tuning).to_json()
    )
    profile = None
    if args.profile:
        profile = asked.saved(
            args.profile,
            lambda found: check_profile(found, data),
            "profile of this plan",
            "profile FILE --json",
        )
    print(f"wrote {write(data, args.output, Path(args.model).name, profile)}")
    return 0
