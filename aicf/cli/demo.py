"""`aicf demo`: train an MLP on handwritten digits and show every kernel choice."""

from __future__ import annotations

import argparse
from typing import Any

from .arguments import positive


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "demo", help="train an MLP on handwritten digits and show every kernel choice"
    )
    parser.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    parser.add_argument("--json", metavar="FILE", help="write accuracies, step times and selections there")
    parser.add_argument("--epochs", type=positive, default=None, help="passes over the training images")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="every candidate and every rejected variant"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from .. import demo

    demo.run(args.device, args.json, args.epochs or demo.EPOCHS, args.verbose)
    return 0
