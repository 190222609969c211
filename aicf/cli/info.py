"""`aicf info`: ops, variants and devices; or one op in detail."""

from __future__ import annotations

import argparse
import os
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..text import visible


def add(commands: Any) -> None:
    parser = commands.add_parser("info", help="ops, variants and devices; or one op in detail")
    parser.add_argument("op", nargs="?", help="an op's name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..device.spec import PRESETS
    from ..dispatch import default_registry
    from ..ops.schema import schema_of, schemas
    from ..registry.measured import counted
    from ..registry.variant import kernels_of

    console = Console()
    registry = default_registry()
    if args.op:
        return _info_op(console, schema_of(args.op), registry)
    table = _table("op", "takes, and what it is", "kernels")
    for s in schemas():
        takes = [*map(str, s.operands), *(f"{a.name}=" for a in s.attrs)]
        what = Text(f"({', '.join(takes)})  ", style="dim").append(s.summary, style="not dim")
        table.add_row(Text(s.name), what, str(len(kernels_of(registry.variants(s.kind)))))
    console.print(table)
    kernels = kernels_of(registry)
    foreign = any(v.origin != "aicf" for v in registry)
    table = _table("kernel", "begins with, and how it works", *(["origin"] if foreign else []))
    for kernel in kernels:
        v, *more = kernel
        how = v.doc.split("\n")[0] + (f" Needs {', '.join(v.needs)}." if v.needs else "")
        text = Text(f"{', '.join(v.kinds)}:  ", style="dim").append(visible(how), style="not dim")
        if v.config:
            text.append(visible(f" {counted(1 + len(more), 'config')}, such as {v.config}."), style="dim")
        table.add_row(Text(visible(kernel.id)), text, *([Text(visible(v.origin))] if foreign else []))
    console.print(table)
    table = _table("device", "target", "multiprocessors", "GB/s", "TFLOP/s f32", "f16")
    for d in PRESETS.values():
        table.add_row(
            Text(visible(d.name)),
            Text(visible(d.target)),
            str(d.sms),
            f"{d.bandwidth:g}",
            f"{d.tflops['f32']:g}",
            f"{d.tflops.get('f16', 0):g}",
        )
    console.print(table)
    console.print(Text(visible(f"Calibrated: {_calibrations()}"), style="dim"))
    return 0


def _calibrations() -> str:
    """The GPUs whose constants of predictions were fitted, in the package and by this user."""
    from .. import config
    from ..device.calibration import SHIPPED

    names = [path.stem for path in sorted(SHIPPED.glob("*.json"))]
    folder = config.own_calibration_file("cuda").parent
    own = sorted(folder.glob("*.json")) if os.access(folder, os.R_OK | os.X_OK) else []
    return f"{', '.join(names)} in the package" + "".join(f"; {path.stem} in {path}" for path in own)


def _table(name: str, *columns: str) -> Table:
    """Names are never cut or broken; what else there is folds."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _info_op(console: Console, schema: Any, registry: Any) -> int:
    console.print(Text(schema.signature, style="bold"), soft_wrap=True)
    console.print(schema.doc, markup=False, highlight=False)
    from ..registry.variant import kernels_of

    for kernel in kernels_of(registry.variants(schema.kind)):
        v, *more = kernel
        origin = "" if v.origin == "aicf" else f" [{v.origin}]"  # as traces have it
        configs = f"\n      configs: {', '.join(c.config for c in (v, *more))}" if v.config else ""
        text = visible(f"  {kernel.id}{origin}\n      {v.doc.splitlines()[0] if v.doc else ''}{configs}")
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
