"""The command line: `aicf demo`, `aicf doctor`, `aicf info`, `aicf explain`, `aicf cache`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__
from .errors import AicfError
from .nn import Model


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run a command; errors aicf raises on purpose become one message and exit code 2."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except AicfError as error:
        Console(stderr=True).print(
            Text(f"{type(error).__name__}: ", style="bold red").append(str(error), style="none")
        )
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("aicf", description="A pure-Python AI compiler framework that says why.")
    parser.add_argument("--version", action="version", version=f"aicf {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="train an MLP on handwritten digits and show every kernel choice")
    demo.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    demo.add_argument("--json", metavar="FILE", help="write accuracies, step times and selections there")
    demo.add_argument("--epochs", type=_positive, default=None)
    demo.add_argument(
        "-v", "--verbose", action="store_true", help="every candidate and every rejected variant"
    )
    demo.set_defaults(run=_demo)

    doctor = commands.add_parser(
        "doctor", help="check the installation; each problem comes with the command that mends it"
    )
    doctor.add_argument(
        "--device", choices=("cpu", "cuda"), help="exit 1 unless a kernel can run on this device"
    )
    doctor.add_argument("--json", action="store_true", help="print JSON")
    doctor.set_defaults(run=_doctor)

    info = commands.add_parser("info", help="ops, variants and devices; or one op in detail")
    info.add_argument("op", nargs="?", help="an op's name")
    info.set_defaults(run=_info)

    explain = commands.add_parser(
        "explain", help="what would be chosen for a model on a device, with or without one"
    )
    explain.add_argument(
        "model", metavar="MODEL.py", help="a file that defines build() -> Model, as examples/mlp.py"
    )
    explain.add_argument("--device", default="cpu", help="a preset such as h200, a100, t4 or cpu")
    explain.add_argument("-v", "--verbose", action="store_true")
    explain.add_argument("--json", action="store_true", help="print JSON; equal from run to run")
    explain.set_defaults(run=_explain)

    cache = commands.add_parser("cache", help="where compiled kernels are kept, how many and how large")
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(run=_cache)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    demo.run(args.device, args.json, args.epochs or demo.EPOCHS, args.verbose)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run(device=args.device, as_json=args.json)


def _explain(args: argparse.Namespace) -> int:
    from .device.spec import preset
    from .graph.compile import explain_for

    explanation = explain_for(load_model(args.model), preset(args.device))
    if args.json:
        print(json.dumps(explanation.to_json(), indent=1, sort_keys=True))
    else:
        Console().print(explanation.verbose() if args.verbose else explanation)
    return 0


def _cache(args: argparse.Namespace) -> int:
    from .cuda_kernels import cache

    folder = cache.folder()
    if folder is None:
        print("AICF_CACHE=off: no compiled kernels are kept")
        return 0
    count, size = cache.size(folder)
    print(f"{folder}: {count} kernels, {size / 1e6:.1f} MB")
    if args.clear:
        print(f"removed {cache.clear(folder)} files")
    return 0


def load_model(path: str) -> Any:
    """The MODEL.py convention: a file that defines `build() -> Model`."""
    file = Path(path)
    if not file.is_file():
        raise AicfError(f"there is no file {path!r}", hint="examples/mlp.py is one")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise AicfError(f"{path} is no Python file", expected="a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    _call(path, partial(spec.loader.exec_module, module))
    if not callable(getattr(module, "build", None)):
        raise AicfError(
            f"{path} defines no build()", expected="def build() -> aicf.nn.Model", hint="see examples/mlp.py"
        )
    model = _call(path, module.build)
    if not isinstance(model, Model):
        raise AicfError(f"{path}: build() returned a {type(model).__name__}", expected="an aicf.nn.Model")
    return model


def _call(path: str, function: Callable[[], Any]) -> Any:
    """Run the user's code; what goes wrong in it becomes an error that names its file and line."""
    try:
        return function()
    except AicfError:
        raise
    except Exception as error:
        lines = [
            f.lineno
            for f in traceback.extract_tb(error.__traceback__)
            if Path(f.filename).name == Path(path).name
        ]
        line = getattr(error, "lineno", None) or (lines[-1] if lines else "?")
        raise AicfError(f"{path} failed: {type(error).__name__}: {error}", where=f"{path}:{line}") from error


def _info(args: argparse.Namespace) -> int:
    from .device.spec import PRESETS
    from .dispatch import default_registry
    from .ops.schema import schema_of, schemas

    console = Console()
    registry = default_registry()
    if args.op:
        return _info_op(console, schema_of(args.op), registry)
    table = Table(
        "op", "operands", "attributes", "results", "what", "variants", title="ops", title_justify="left"
    )
    for s in schemas():
        table.add_row(
            s.name,
            ", ".join(d.name + ("?" if d.optional else "") for d in s.operands),
            ", ".join(a.name for a in s.attrs),
            ", ".join(s.results),
            s.summary,
            str(len(registry.variants(s.kind))),
        )
    console.print(table)
    table = Table("id", "begins with", "needs", "what", "origin", title="variants", title_justify="left")
    for v in registry:
        table.add_row(v.id, ", ".join(v.kinds), ", ".join(v.needs), v.doc.split("\n")[0], v.origin)
    console.print(table)
    table = Table("device", "target", "multiprocessors", "GB/s", "TFLOP/s f32", "f16", title="devices")
    for d in PRESETS.values():
        table.add_row(
            d.name,
            d.target,
            str(d.sms),
            f"{d.bandwidth:g}",
            f"{d.tflops['f32']:g}",
            f"{d.tflops.get('f16', 0):g}",
        )
    console.print(table)
    return 0


def _info_op(console: Console, schema: Any, registry: Any) -> int:
    signature = ", ".join(f"{d.name}{'?' if d.optional else ''}: {d.type}" for d in schema.operands)
    attrs = ", ".join(
        f"{a.name}: {a.type.__name__}" + ("" if a.required else f" = {a.default}") for a in schema.attrs
    )
    console.print(Text(f"{schema.name}({signature}; {attrs}) -> {', '.join(schema.results)}", style="bold"))
    console.print(schema.doc, markup=False, highlight=False)
    for v in registry.variants(schema.kind):
        console.print(f"  {v.id}  {v.doc.splitlines()[0] if v.doc else ''}", markup=False, highlight=False)
    return 0
