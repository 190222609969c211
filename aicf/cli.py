"""The command line: `aicf demo`, `aicf doctor`, `aicf info`, `aicf explain`, `aicf cache`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from os import devnull, dup2
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
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
        code = args.run(args)
        sys.stdout.flush()
        return code
    except (
        BrokenPipeError
    ):  # `aicf info | head`: who read has read enough; nothing more is written, not even at exit
        with open(devnull, "w") as nowhere:
            dup2(nowhere.fileno(), sys.stdout.fileno())
        return 1
    except AicfError as error:
        Console(stderr=True).print(
            Text(f"{type(error).__name__}: ", style="bold red").append(str(error), style="none"),
            soft_wrap=True,
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
    explain.add_argument(
        "--device",
        default="cpu",
        help="a preset such as h200, a100, t4 or cpu; or cuda, the GPU that is here",
    )
    explain.add_argument(
        "-v", "--verbose", action="store_true", help="all regions and candidates, and each rejected kernel"
    )
    explain.add_argument("--json", action="store_true", help="print JSON; equal from run to run")
    explain.set_defaults(run=_explain)

    cache = commands.add_parser("cache", help="where compiled kernels are kept, how many and how large")
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(run=_cache)
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    demo.run(args.device, args.json, args.epochs or demo.EPOCHS, args.verbose)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run(device=args.device, as_json=args.json)


def _explain(args: argparse.Namespace) -> int:
    from .graph.compile import explain_for

    explanation = explain_for(load_model(args.model), _spec(args.device))
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


def _spec(name: str) -> Any:
    """A preset, or by `cuda`, `cuda:N` or `auto` a device of this machine."""
    from .device.runtime import cuda_missing, runtime
    from .device.spec import PRESETS, preset

    if name.partition(":")[0] not in ("cuda", "auto"):
        return preset(name)
    if name != "auto" and (missing := cuda_missing()):
        gpus = ", ".join(sorted(n for n, spec in PRESETS.items() if spec.kind == "cuda"))
        raise AicfError(
            f"--device {name} stands for a GPU of this machine, and {missing}",
            expected=f"a preset, which needs no GPU: {gpus}", hint="--device h200",
        )  # fmt: skip
    return runtime(name).spec


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
    table = _table("op", "takes, and what it is", "kernels")
    for s in schemas():
        takes = [
            *(d.name + ("?" if d.optional else "") for d in s.operands),
            *(f"{a.name}=" for a in s.attrs),
        ]
        what = Text(f"({', '.join(takes)})  ", style="dim").append(s.summary, style="not dim")
        table.add_row(s.name, what, str(len(registry.variants(s.kind))))
    console.print(table)
    variants = list(registry)
    foreign = any(v.origin != "aicf" for v in variants)
    table = _table("variant", "begins with, and how it works", *(["origin"] if foreign else []))
    for v in variants:
        how = v.doc.split("\n")[0] + (f" Needs {', '.join(v.needs)}." if v.needs else "")
        text = Text(f"{', '.join(v.kinds)}:  ", style="dim").append(how, style="not dim")
        table.add_row(v.id, text, *([v.origin] if foreign else []))
    console.print(table)
    table = _table("device", "target", "multiprocessors", "GB/s", "TFLOP/s f32", "f16")
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


def _table(name: str, *columns: str) -> Table:
    """Names are never cut or broken; what else there is folds."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column(name, no_wrap=True)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _info_op(console: Console, schema: Any, registry: Any) -> int:
    takes = [f"{d.name}{'?' if d.optional else ''}: {d.type}" for d in schema.operands]
    takes += ["*"] if schema.attrs else []  # as in Python: attributes are given by name
    takes += [
        f"{a.name}: {a.type.__name__}" + ("" if a.required else f" = {a.default}") for a in schema.attrs
    ]
    signature = f"{schema.name}({', '.join(takes)}) -> {', '.join(schema.results)}"
    console.print(Text(signature, style="bold"), soft_wrap=True)
    console.print(schema.doc, markup=False, highlight=False)
    for v in registry.variants(schema.kind):
        text = f"  {v.id}\n      {v.doc.splitlines()[0] if v.doc else ''}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
