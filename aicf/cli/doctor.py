"""`aicf doctor`: what is missing, and the command that mends it."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor", help="check the installation; each problem comes with the command that mends it"
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="exit 1 unless a kernel can run on this device"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import doctor

    return doctor.run(device=args.device, as_json=args.json)
