"""`aicf explain`: what would be chosen for a model on a device, with or without one."""

from __future__ import annotations

import argparse
import json
from os import sep
from pathlib import Path
from typing import Any

from ..errors import AicfError
from . import asked
from .arguments import numbered, positive


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
    parser.add_argument(
        "--want", metavar="KERNEL",
        help="why this kernel, an id, a name or a pattern such as gemm_wgmma*, was not chosen, and what it would take",
    )  # fmt: skip
    parser.add_argument(
        "--without", metavar="KERNEL", action="append", default=[],
        help="as if this kernel, an id, a name or a pattern, did not exist, beside what is chosen with it; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--batch", metavar="SIZES",
        help="where the choice changes with the batch: 1..4096, or 1,8,64; with another dimension's name, seq=1..4096",
    )  # fmt: skip
    parser.add_argument(
        "--region", type=numbered, action="append", default=[], metavar="N",
        help="this region in full, repeatable; with --want the one to ask about",
    )  # fmt: skip
    parser.add_argument(
        "--gpus", type=positive, metavar="N",
        help="a step of N ranks, each with such a device and the model's batch: what they exchange, and how long that takes",
    )  # fmt: skip
    parser.add_argument("--tuning", metavar="FILE", help="times of the device, as aicf tune writes them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..printing import show

    shown = _shown(args)
    alone = args.region and not args.want  # regions of an explanation
    told = [shown.region(n) for n in args.region] if alone else [shown]
    if args.json:
        data = shown.to_json()
        if alone:
            data["regions"] = [data["regions"][n] for n in args.region]
        print(json.dumps(data, indent=1, sort_keys=True))
    else:
        show(*told)
    return 0


def _shown(args: argparse.Namespace) -> Any:
    """The explanation, or the answer to what was asked about it."""
    from ..graph.run.diff import Diff
    from ..pages.data import check_explanation

    _refuse_pairs(args)
    model = asked.AskedModel(args, args.gpus)
    if args.batch:
        return model.swept(args.device, args.batch, args.tuning, args.without)
    explanation = model.explained(args.device, args.tuning, args.without)
    if args.want:
        return explanation.want(args.want, *args.region)
    if args.diff:
        other = (
            asked.saved(args.diff, check_explanation)
            if args.diff.endswith(".json") or sep in args.diff or Path(args.diff).is_file()
            else model.explained(args.diff).to_json()
        )
        return Diff(explanation.to_json(), other)
    if args.without and not args.region:
        names = args.device, f"without {', '.join(args.without)}"
        return Diff(model.explained(args.device, args.tuning).to_json(), explanation.to_json(), names)
    return explanation.verbose() if args.verbose else explanation


QUESTIONS = "want", "batch", "diff"  # each has an answer of its own


def _refuse_pairs(args: argparse.Namespace) -> None:
    given = [f"--{name}" for name in QUESTIONS if getattr(args, name)]
    if len(given) > 1:
        raise AicfError(
            f"{' and '.join(given)} are questions of their own",
            expected="one of them",
            hint=f"leave out {given[1]}",
        )
    if args.region and (args.batch or args.diff):
        raise AicfError(f"--region is not for {given[0]}", hint=f"leave out {given[0]}, or --region")
    if args.want and len(args.region) > 1:
        raise AicfError(
            "--want takes one --region", got=", ".join(map(str, args.region)), hint="--want KERNEL --region N"
        )
