"""`aicf cache`: where compiled kernels and loops are kept."""

from __future__ import annotations

import argparse
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "cache", help="where compiled kernels and loops are kept, how many and how large"
    )
    parser.add_argument("--clear", action="store_true", help="remove them")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..code_cache import disk

    folder = disk.folder()
    if folder is None:
        print("AICF_CACHE=off: no compiled code is kept")
        return 0
    counts, size = disk.size(folder)
    kinds = f"{counts[disk.KERNEL]} CUDA kernels, {counts[disk.LOOP]} CPU loops, {counts[disk.FUNCTION]} scalar functions of them"
    print(f"{folder}: {kinds}, {size / 1e6:.1f} MB")
    if refused := disk.refused(folder):
        print(f"{refused[0]}; next: {refused[1]}")
    if args.clear:
        print(f"removed {disk.clear(folder)} files")
        if (made := disk.folder(disk.MADE)) is not None:
            disk.clear(made)  # what they were compiled by
    return 0
