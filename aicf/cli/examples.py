"""`aicf examples`: models to learn from."""

from __future__ import annotations

import argparse
import ast
import shutil
from pathlib import Path
from typing import Any

from ..errors import AicfError
from ..files import example_folder


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "examples", help="models to learn from: list them, or copy them into a folder"
    )
    parser.add_argument("folder", nargs="?", metavar="FOLDER", help="write them there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    files = sorted(example_folder().glob("*.py"))
    if args.folder is None:
        for file in files:
            doc = ast.get_docstring(ast.parse(file.read_text())) or ""
            print(f"{file}\n    {doc.partition(chr(10))[0]}")
        print("aicf examples FOLDER copies them into a folder")
        return 0
    folder = Path(args.folder)
    if there := [str(folder / file.name) for file in files if (folder / file.name).exists()]:
        raise AicfError(f"{', '.join(there)} would be written over", expected="a folder without them")
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        print(shutil.copy(file, folder))
    return 0
