"""`aicf profile`: where the time of a run goes, measured on this machine."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from . import asked
from .arguments import positive


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "profile", help="where the time of a run goes: each kernel measured beside its prediction"
    )
    asked.add_model(parser)
    parser.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    parser.add_argument("--tuning", metavar="FILE", help="as of explain")
    parser.add_argument(
        "--input", action="append", default=[], metavar="[NAME=]FILE",
        help="as of run; what is not given is random: normal floats, integers 0 and 1",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=positive, default=10, help="of which the median counts; 10 if not given"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the timeline there, for https://ui.perfetto.dev"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="all kernels, and where their ops come from"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from .. import run_model
    from ..device.spec import PRESETS
    from ..errors import AicfError
    from ..graph.run.profile import random_feed
    from ..ir import Role
    from ..printing import show

    if args.device in PRESETS and args.device != "cpu":
        raise AicfError(
            f"--device {args.device}: a profile is measured, on a device of this machine", expected="cpu, cuda, cuda:N or auto",
            hint=f"aicf explain {args.model} --device {args.device} predicts it",
        )  # fmt: skip
    program = asked.AskedModel(args).compiled(args.device, args.tuning)
    inputs = {slot.name: slot.spec for slot in program.plan.externals(Role.input)}
    feed = {**random_feed(program.plan, np.random.default_rng(0)), **run_model.read_feed(args.input, inputs)}
    profile = program.profile(feed, args.runs)
    told = profile.verbose() if args.verbose else profile
    if args.json:
        print(json.dumps(profile.to_json(), indent=1))
    else:
        show(told)
    if args.output:
        where = profile.save(args.output)
        print(
            f"wrote {where}: open it at https://ui.perfetto.dev", file=sys.stderr if args.json else sys.stdout
        )
    return 0
