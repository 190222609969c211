"""`aicf dump`: the stages and kernels of a model as files, for a device that need not be here."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ..errors import AicfError
from . import asked


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "dump", help="the stages of a compilation and its kernels as files: graph, regions, plan, PTX, SASS"
    )
    asked.add_model(parser)
    parser.add_argument("--device", default="cpu", help="as of explain; kernels are compiled without a GPU")
    parser.add_argument("--tuning", metavar="FILE", help="as of explain")
    parser.add_argument(
        "--without", metavar="KERNEL", action="append", default=[],
        help="as of explain: dump what is chosen where there is no such kernel; repeatable",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--output", metavar="DIR", default="dump",
        help="a folder, in which each dump has a fresh one; dump if not given",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..graph.dump import FAILED

    model = asked.AskedModel(args)
    Path(args.output).mkdir(parents=True, exist_ok=True)  # what is wrong with it is an error here
    name = Path(args.model.partition(":")[0]).stem
    made = model.dumped(args.device, args.output, name, args.tuning, args.without)
    if made is None:
        raise AicfError(
            f"{args.output} can't be written to the end", hint="aicf dump -o DIR names another folder"
        )
    files = sorted(file for file in made.rglob("*") if file.is_file())
    for file in files:
        print(f"{file.stat().st_size:>10,}  {file}")
    failed = [file for file in files if file.name == FAILED]
    for file in failed:
        print(f"{file.parent.name} has no machine code: see {file}", file=sys.stderr)
    if failed:
        print("next: aicf doctor says what the compiler of kernels lacks", file=sys.stderr)
    return 1 if failed else 0
