"""The command line: `aicf demo`, `doctor`, `info`, `explain`, `run`, `tune`, `examples`, `cache`."""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from errno import EBADF, EDQUOT, EFBIG, EIO, ENOSPC
from os import devnull, dup2, sep
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from . import __version__, config
from .arguments import positive, seconds, sized
from .errors import AicfError
from .files import Bad, parse_json, read_text, shown
from .types import Precision

MODES = ("infer", "grad", "train")


def main(argv: Sequence[str] | None = None) -> int:
    """Parse and run a command. Errors that aicf raises on purpose, and files that can't be read or written, become one
    message and exit code 2; Ctrl-C one line and 130."""
    try:
        try:
            args = _parser().parse_args(argv)
            config.check_settings()
            return args.run(args) or 0
        finally:
            _flush()
    except BrokenPipeError:  # `aicf info | head`: who read has read enough
        _write_no_more()
        return 1
    except AicfError as error:
        return _failed(type(error).__name__, str(error))
    except OSError as error:
        if error.filename is not None:
            return _failed(type(error).__name__, f"{error.filename}: {error.strerror}")
        if error.errno not in (EBADF, EDQUOT, EFBIG, EIO, ENOSPC):
            raise
        _write_no_more()
        return _failed("OSError", f"the output can't be written: {error.strerror}")
    except KeyboardInterrupt:
        return _failed("interrupted", "", 130)


def _failed(kind: str, said: str, code: int = 2) -> int:
    text = Text(f"{kind}: " if said else kind, style="bold red").append(said, style="none")
    Console(stderr=True).print(text, soft_wrap=True)
    return code


def _flush() -> None:
    if sys.stdout is not None:  # closed by `>&-`
        sys.stdout.flush()


def _write_no_more() -> None:
    """Not even what is buffered yet, at exit."""
    with open(devnull, "w") as nowhere:
        dup2(nowhere.fileno(), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("aicf", description="A pure-Python AI compiler framework that says why.")
    parser.add_argument("--version", action="version", version=f"aicf {__version__}")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands = parser.add_subparsers(metavar="COMMAND")

    demo = commands.add_parser("demo", help="train an MLP on handwritten digits and show every kernel choice")
    demo.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    demo.add_argument("--json", metavar="FILE", help="write accuracies, step times and selections there")
    demo.add_argument("--epochs", type=positive, default=None)
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
    _add_model(explain)
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
        "--diff", metavar="OTHER", help="compare with another device, or with what --json wrote into a file"
    )
    explain.add_argument("--tuning", metavar="FILE", help="times of the device, as aicf tune writes them")
    explain.set_defaults(run=_explain)

    report = commands.add_parser("report", help="what explain knows, as one HTML file that needs no network")
    _add_model(report, more=", or what explain --json wrote")
    report.add_argument("--device", default="cpu", help="as of explain")
    report.add_argument("--tuning", metavar="FILE", help="as of explain")
    report.add_argument(
        "-o", "--output", metavar="FILE", default="report.html", help="report.html if not given"
    )
    report.set_defaults(run=_report)

    run = commands.add_parser("run", help="feed an ONNX model arrays, and write or tell what it returns")
    run.add_argument("model", metavar="FILE", help="FILE.onnx")
    what = "an array in a .npy file, by the input's name if there are several; or all of them in a .npz file"
    run.add_argument("--input", action="append", default=[], metavar="[NAME=]FILE", help=what)
    run.add_argument("--output", metavar="FILE", help="write the results there, as .npz, by their names")
    run.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    run.set_defaults(run=_run)

    tune = commands.add_parser(
        "tune", help="measure the kernels of a model's regions; the file then overrides predictions"
    )
    _add_model(tune, nargs="?")
    tune.add_argument("--device", help="cpu, cuda, cuda:N or auto (the default)")
    tune.add_argument("--budget", type=seconds, default=60.0, metavar="SECONDS", help="60 if not given")
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

    examples = commands.add_parser(
        "examples", help="models to learn from: list them, or copy them into a folder"
    )
    examples.add_argument("folder", nargs="?", metavar="FOLDER", help="write them there")
    examples.set_defaults(run=_examples)

    cache = commands.add_parser(
        "cache", help="where compiled kernels and loops are kept, how many and how large"
    )
    cache.add_argument("--clear", action="store_true", help="remove them")
    cache.set_defaults(run=_cache)
    return parser


def _add_model(command: argparse.ArgumentParser, more: str = "", **options: Any) -> None:
    """A model and how it is compiled; what is not given is as the file has it."""
    command.add_argument(
        "model", metavar="FILE", **options,
        help="a Python file with a Model or a compiled Program at module level, or build() -> Model; FILE:NAME picks one of several; or FILE.onnx" + more,
    )  # fmt: skip
    size = "of an ONNX model's dimension; 1 if not given"
    command.add_argument("--size", action="append", default=[], type=sized, metavar="NAME=N", help=size)
    command.add_argument(
        "--mode", choices=MODES,
        help="if not given, that of the file's program, or infer; grad and train need a loss and an optimizer in the file",
    )  # fmt: skip
    command.add_argument("--numerics", choices=("fused", "strict"), help="as of aicf.compile")
    command.add_argument("--precision", choices=tuple(Precision.__members__), help="as of aicf.compile")
    command.add_argument("--policy", choices=("f32", "bf16", "f16"), help="as of aicf.compile")
    command.add_argument("--beam", type=positive, default=1, help="as of aicf.compile")


def _tune(args: argparse.Namespace) -> int:
    from . import tune

    return tune.run(args)


def _run(args: argparse.Namespace) -> int:
    from . import run_model

    return run_model.run(args.model, args.input, args.output, args.device)


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    demo.run(args.device, args.json, args.epochs or demo.EPOCHS, args.verbose)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from . import doctor

    return doctor.run(device=args.device, as_json=args.json)


def _report(args: argparse.Namespace) -> int:
    from .pages.data import check_drawn
    from .pages.page import write

    made = args.model.endswith(".json")
    data = _saved(args.model, check_drawn) if made else _explainer(args)(args.device, args.tuning).to_json()
    print(f"wrote {write(data, args.output, Path(args.model).name)}")
    return 0


def _explainer(args: argparse.Namespace) -> Callable[..., Any]:
    """(device, tuning) -> the Explanation of the model that was asked for."""
    from . import model_file
    from .graph.compile import explain_for
    from .graph.run.explain import Explanation

    asked = model_file.load(
        args.model,
        args.mode,
        dict(args.size),
        precision=args.precision,
        numerics=args.numerics,
        policy=args.policy,
    )

    def explained(device: str, tuning: str | None = None) -> Explanation:
        return explain_for(
            asked.model, _spec(device), asked.mode, loss=asked.loss, optimizer=asked.optimizer,
            accumulate=asked.accumulate, numerics=asked.numerics, precision=asked.precision, policy=asked.policy,
            beam=args.beam, tuning=tuning,
        )  # fmt: skip

    return explained


def _explain(args: argparse.Namespace) -> int:
    from .graph.run.diff import Diff
    from .graph.run.explain import Explanation
    from .pages.data import check_explanation

    explained = _explainer(args)
    explanation: Explanation | Diff = explained(args.device, args.tuning)
    if args.diff:
        other = (
            _saved(args.diff, check_explanation)
            if args.diff.endswith(".json") or sep in args.diff or Path(args.diff).is_file()
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


def _saved(path: str, check: Callable[[Any], None]) -> dict[str, Any]:
    """What `aicf explain --json` wrote, if it passes the check."""
    wrote = "what aicf explain --json wrote"
    text = read_text(path, wrote, "aicf explain FILE --json > EXPLANATION.json writes one")
    try:
        data = parse_json(text)
        check(data)
    except ValueError as error:
        raise AicfError(f"{path} can't be read: {error}", expected=wrote) from None
    except Bad as bad:
        raise AicfError(
            f"{path} is no explanation: {bad.at} is wrong", expected=bad.expected, got=shown(bad.got),
            hint="write it again with this version: aicf explain FILE --json > EXPLANATION.json",
        ) from None  # fmt: skip
    return data


def _cache(args: argparse.Namespace) -> int:
    from .code_cache import disk

    folder = disk.folder()
    if folder is None:
        print("AICF_CACHE=off: no compiled code is kept")
        return 0
    counts, size = disk.size(folder)
    print(f"{folder}: {counts[disk.KERNEL]} CUDA kernels, {counts[disk.LOOP]} CPU loops, {size / 1e6:.1f} MB")
    if args.clear:
        print(f"removed {disk.clear(folder)} files")
    return 0


def _examples(args: argparse.Namespace) -> int:
    """Those of the wheel, or of the checkout."""
    places = (Path(__file__).parent / "examples", Path(__file__).parents[1] / "examples")
    files = sorted(next(filter(Path.is_dir, places)).glob("*.py"))
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
        takes = [*map(str, s.operands), *(f"{a.name}=" for a in s.attrs)]
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
    takes = [f"{d}: {d.type}" for d in schema.operands]
    takes += (
        ["*"] if schema.attrs and not schema.variadic else []
    )  # as in Python: attributes are given by name
    takes += [str(a) for a in schema.attrs]
    signature = f"{schema.name}({', '.join(takes)}) -> {', '.join(schema.results)}"
    console.print(Text(signature, style="bold"), soft_wrap=True)
    console.print(schema.doc, markup=False, highlight=False)
    for v in registry.variants(schema.kind):
        text = f"  {v.id}\n      {v.doc.splitlines()[0] if v.doc else ''}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    return 0
