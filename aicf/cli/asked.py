"""The model that a command asks about, how it is compiled, and for which device."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..errors import AicfError
from ..files import Bad, parse_json, read_text, shown
from ..registry.ids import current
from ..types import Precision
from .arguments import positive, sized

MODES = ("infer", "grad", "train")


def add_model(command: argparse.ArgumentParser, more: str = "", **options: Any) -> None:
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
    command.add_argument(
        "--invariant", action="store_true", default=None,
        help="as of aicf.compile: equal rows get equal bits whatever their number; shows the price",
    )  # fmt: skip
    command.add_argument("--precision", choices=tuple(Precision.__members__), help="as of aicf.compile")
    command.add_argument("--policy", choices=("f32", "bf16", "f16"), help="as of aicf.compile")
    command.add_argument("--beam", type=positive, default=1, help="as of aicf.compile")


class AskedModel:
    """The model that was asked for, with how it is compiled, for whatever device."""

    def __init__(self, args: argparse.Namespace, ranks: int | None = None) -> None:
        from .. import model_file

        how = {
            "precision": args.precision,
            "numerics": args.numerics,
            "policy": args.policy,
            "invariant": args.invariant,
        }
        wanted = model_file.load(args.model, args.mode, dict(args.size), **how)
        self._model, self._mode, self._ranks = wanted.model, wanted.mode, ranks
        self._how = {
            "loss": wanted.loss, "optimizer": wanted.optimizer, "accumulate": wanted.accumulate, "numerics": wanted.numerics,
            "precision": wanted.precision, "policy": wanted.policy, "beam": args.beam, "invariant": wanted.invariant,
        }  # fmt: skip

    def explained(self, device: str, tuning: str | None = None, without: Sequence[str] = ()) -> Any:
        """An Explanation."""
        from ..graph.compile import explain_for

        how = {"tuning": tuning, "without": without, "parallel": self._parallel(), **self._how}
        return explain_for(self._model, spec_of(device), self._mode, **how)

    def _parallel(self) -> Any:
        """Ranks that need not be there."""
        if self._ranks is None:
            return None
        from ..distributed import DataParallel, World

        if self._mode == "infer":
            raise AicfError(
                f"--gpus {self._ranks} is of a step",
                got="mode infer",
                hint="--mode train, with a loss and an optimizer in the file",
            )
        return DataParallel(world=World(size=self._ranks))

    def swept(self, device: str, sizes: str, tuning: str | None = None, without: Sequence[str] = ()) -> Any:
        """A Sweep over the sizes of a dimension."""
        from ..graph.over import explain_over

        how = {"tuning": tuning, "without": without, **self._how}
        return explain_over(self._model, spec_of(device), sizes, self._mode, **how)

    def dumped(
        self, device: str, into: str, name: str, tuning: str | None = None, without: Sequence[str] = ()
    ) -> Path | None:
        """The folder of its dump; None if it can't be written."""
        from ..graph.compile import dump_for

        how = {"tuning": tuning, "without": without, **self._how}
        return dump_for(self._model, spec_of(device), into, self._mode, name=name, **how)

    def compiled(self, device: str | None, tuning: str | None = None) -> Any:
        """A Program, for a device that is here."""
        from ..graph.compile import compile

        return compile(self._model, self._mode, device=device, tuning=tuning, **self._how)


def saved(
    path: str, check: Callable[[Any], None], what: str = "explanation", command: str = "explain FILE --json"
) -> dict[str, Any]:
    """What `aicf explain --json` wrote, or another command, if it passes the check."""
    name = command.split()[0]
    wrote, again = f"what aicf {name} --json wrote", f"aicf {command} > {what.split()[0].upper()}.json"
    text = current(read_text(path, wrote, f"{again} writes one"))
    try:
        data = parse_json(text)
        check(data)
    except ValueError as error:
        raise AicfError(f"{path} can't be read: {error}", expected=wrote) from None
    except Bad as bad:
        raise AicfError(
            f"{path} is no {what}: {bad.at} is wrong", expected=bad.expected, got=shown(bad.got),
            hint=f"write it again with this version: {again}",
        ) from None  # fmt: skip
    return data


def spec_of(name: str) -> Any:
    """A preset, or by `cuda`, `cuda:N` or `auto` a device of this machine."""
    from ..device.runtime import cuda_missing, runtime
    from ..device.spec import PRESETS, preset

    if name.partition(":")[0] not in ("cuda", "auto"):
        return preset(name)
    if name != "auto" and (missing := cuda_missing()):
        gpus = ", ".join(sorted(n for n, spec in PRESETS.items() if spec.kind == "cuda"))
        raise AicfError(
            f"--device {name} stands for a GPU of this machine, and {missing}",
            expected=f"a preset, which needs no GPU: {gpus}", hint="--device h200",
        )  # fmt: skip
    return runtime(name).spec
