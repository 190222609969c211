"""The command line: `aicf demo`, `aicf doctor`, `aicf info`, `aicf explain`, `aicf tune`, `aicf cache`."""

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
from types import ModuleType
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__
from .errors import AicfError
from .nn import Model
from .types import Precision

MODES = ("infer", "grad", "train")


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
    explain.add_argument(
        "--mode",
        choices=MODES,
        default="infer",
        help="grad and train need a loss() and an optimizer() in the file",
    )
    explain.add_argument(
        "--numerics", choices=("fused", "strict"), default="fused", help="as of aicf.compile"
    )
    explain.add_argument(
        "--precision", choices=tuple(Precision.__members__), default="exact", help="as of aicf.compile"
    )
    explain.add_argument("--beam", type=_positive, default=1, help="as of aicf.compile")
    explain.add_argument(
        "--diff", metavar="OTHER", help="compare with another device, or with what --json wrote into a file"
    )
    explain.add_argument("--tuning", metavar="FILE", help="times of the device, as aicf tune writes them")
    explain.set_defaults(run=_explain)

    tune = commands.add_parser(
        "tune", help="measure the kernels of a model's regions; the file then overrides predictions"
    )
    tune.add_argument("model", nargs="?", metavar="MODEL.py", help="as for explain")
    tune.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    tune.add_argument("--mode", choices=MODES, default="infer", help="as for explain")
    tune.add_argument("--numerics", choices=("fused", "strict"), default="fused", help="as of aicf.compile")
    tune.add_argument(
        "--precision", choices=tuple(Precision.__members__), default="exact", help="as of aicf.compile"
    )
    tune.add_argument("--beam", type=_positive, default=1, help="as of aicf.compile")
    tune.add_argument("--budget", type=_seconds, default=60.0, metavar="SECONDS", help="60 if not given")
    tune.add_argument(
        "--output",
        metavar="FILE",
        default="tuning.json",
        help="tuning.json if not given; what it has is kept",
    )
    tune.add_argument(
        "--update",
        action="store_true",
        help="measure again what the output has, also if kernels have changed since",
    )
    tune.add_argument(
        "--merge", nargs="+", default=[], metavar="FILE", help="take these over; without a model that is all"
    )
    tune.add_argument(
        "--check", nargs="+", metavar="FILE", help="say what is in these, and whether they are good"
    )
    tune.add_argument("--json", action="store_true", help="print JSON")
    tune.set_defaults(run=_tune)

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


def _seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def _tune(args: argparse.Namespace) -> int:
    from . import tune

    return tune.run(args, load_recipe)


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    demo.run(args.device, args.json, args.epochs or demo.EPOCHS, args.verbose)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run(device=args.device, as_json=args.json)


def _explain(args: argparse.Namespace) -> int:
    from .graph.compile import explain_for
    from .graph.run.diff import Diff
    from .graph.run.explain import Explanation

    model, loss, optimizer = load_recipe(args.model, args.mode)

    def explained(device: str, tuning: str | None = None) -> Explanation:
        return explain_for(
            model,
            _spec(device),
            args.mode,
            loss=loss,
            optimizer=optimizer,
            numerics=args.numerics,
            precision=args.precision,
            beam=args.beam,
            tuning=tuning,
        )

    explanation: Explanation | Diff = explained(args.device, args.tuning)
    if args.diff:
        other = (
            _saved(args.diff)
            if args.diff.endswith(".json") or Path(args.diff).is_file()
            else explained(args.diff).to_json()
        )
        explanation = Diff(explanation.to_json(), other)
    if args.verbose and isinstance(explanation, Explanation):
        explanation = explanation.verbose()
    if args.json:
        print(json.dumps(explanation.to_json(), indent=1, sort_keys=True))
    elif sys.stdout.isatty():
        Console().print(explanation)
    else:
        print(explanation)  # into a file or a pipe: the same everywhere
    return 0


def _saved(path: str) -> dict[str, Any]:
    """What `aicf explain --json` wrote."""
    try:
        data = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise AicfError(f"{path} can't be read: {why}", expected="what aicf explain --json wrote") from None
    regions = data.get("regions") if isinstance(data, dict) else None
    needed = {"anchor", "last", "region", "chosen", "candidates", "rejected", "ended", "steps", "view"}
    if "device" not in (data or ()) or not isinstance(regions, list) or any(needed - {*r} for r in regions):
        raise AicfError(
            f"{path} is no explanation",
            expected="what aicf explain --json wrote",
            hint="write it again with this version",
        )
    return data


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


def load_recipe(path: str, mode: str) -> tuple[Any, Any, Any]:
    """(model, loss, optimizer) of a MODEL.py; the last two are None where the mode needs none, and named if they lack."""
    module = _load(path)
    needed = {"infer": (), "grad": ("loss",), "train": ("loss", "optimizer")}[mode]
    for name in needed:
        if not callable(getattr(module, name, None)):
            example = {"loss": "nn.SoftmaxCrossEntropy()", "optimizer": "nn.AdamW(lr=1e-3)"}[name]
            raise AicfError(
                f"{path} defines no {name}(), which mode {mode} needs", expected=f"def {name}(): return {example}",
                hint="see examples/mlp.py",
            )  # fmt: skip
    loss, optimizer = (
        _call(path, getattr(module, name)) if name in needed else None for name in ("loss", "optimizer")
    )
    return _build(path, module), loss, optimizer


def load_model(path: str) -> Any:
    """The MODEL.py convention: a file that defines `build() -> Model`."""
    return _build(path, _load(path))


def _load(path: str) -> ModuleType:
    file = Path(path)
    if not file.is_file():
        raise AicfError(f"there is no file {path!r}", hint="examples/mlp.py is one")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise AicfError(f"{path} is no Python file", expected="a name that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    _call(path, partial(spec.loader.exec_module, module))
    return module


def _build(path: str, module: ModuleType) -> Any:
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
