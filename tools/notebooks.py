"""Runs the notebooks in a Jupyter kernel and writes their outputs back: `python tools/notebooks.py [NAME…]`.

What is committed are outputs of the CPU device. With a GPU, `--device cuda --output FOLDER` writes copies elsewhere. A cell that begins
with `%%needs PACKAGE` keeps its outputs where the package is not installed. The exit code is 1 if a cell raised.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parents[1] / "notebooks"
SECONDS = 300  # for one cell


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def execute(stored: Any, device: str) -> Any:
    """The notebook with the outputs of a run; CellExecutionError names the cell that raised."""
    notebook = deepcopy(stored)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(FOLDER)}},
    )
    environment = {"AICF_DEVICE": device, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    client.execute(env={**os.environ, **environment})
    notebook.metadata = stored.metadata  # not which Python it was
    for cell, before in zip(notebook.cells, stored.cells):
        if absent(cell):
            cell.outputs = before.outputs
    return notebook


def absent(cell: Any) -> list[str]:
    """The packages that a cell asks for and that are not here."""
    needs = re.match(r"%%needs (.*)", cell.source)
    return [p for p in needs[1].split() if importlib.util.find_spec(p) is None] if needs else []


def text_of(notebook: Any) -> str:
    """All that its outputs say."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "\n".join(o.get("text", "") or "\n".join(map(str, o.get("data", {}).values())) for o in outputs)


def paths_in(notebook: Any) -> list[str]:
    """What its outputs say of the machine that they were made on."""
    places = (
        re.escape(str(Path.home())),
        re.escape(str(FOLDER.parent)),
        r"/tmp/",
        "ipykernel_",
        r"\.py\d*/lib",
    )
    return re.findall("|".join(places), text_of(notebook))


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument(
        "names", nargs="*", metavar="NAME", help="such as 07-tuning, or its beginning; all, if none is given"
    )
    ask.add_argument("--device", default="cpu", help="what AICF_DEVICE is set to")
    ask.add_argument("--output", type=Path, metavar="FOLDER", help="write copies there")
    args = ask.parse_args()
    if args.device != "cpu" and args.output is None:
        ask.error("what is committed are outputs of the CPU device: name a folder, --output FOLDER")
    chosen = [name for name in names() if not args.names or name.startswith(tuple(args.names))]
    if not chosen:
        ask.error(f"no notebook begins with {' or '.join(args.names)}; there are {', '.join(names())}")
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in chosen:
        began = time.perf_counter()
        try:
            made = execute(read(name), args.device)
        except CellExecutionError as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = 1
            continue
        path = (args.output or FOLDER) / f"{name}.ipynb"
        nbformat.write(made, path)
        print(
            f"{name}: {time.perf_counter() - began:.1f} s, {path.stat().st_size:,} bytes",
            *set(paths_in(made)),
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
