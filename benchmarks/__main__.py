"""`python -m benchmarks`: list, report, kernels-hash, or the names of suites to run."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from . import harness, report, results

COMMANDS = ("list", "report", "kernels-hash")


def _shard(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r}: expected I/N with I from 1 to N, such as 2/4")
    return int(match[1]), int(match[2])


def _seconds(text: str) -> float:
    try:
        if (value := float(text)) > 0:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r}: expected seconds, more than 0")


def parser() -> argparse.ArgumentParser:
    parsing = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Measure aicf against its peers. Each case is verified first; exit code 1 if one fails.",
        epilog="list: the suites · report: write docs/results/ and the tables in other documents · kernels-hash: of today's aicf/cuda_kernels",
    )
    parsing.add_argument(
        "names", nargs="+", metavar="NAME", help="suites, or all; or one of " + ", ".join(COMMANDS)
    )
    parsing.add_argument("--device", default="cuda", help="cuda (the default), cuda:N or cpu")
    parsing.add_argument(
        "--budget", type=_seconds, metavar="SECONDS", help="for each suite, instead of its own"
    )
    parsing.add_argument(
        "--shard", type=_shard, default=(1, 1), metavar="I/N", help="every N-th case, from the I-th"
    )
    parsing.add_argument(
        "--out", type=Path, default=results.RESULTS, metavar="DIR", help="of the results: DIR/<gpu>/NAME.json"
    )
    parsing.add_argument(
        "--only", default="", metavar="TEXT", help="cases with TEXT in their name; printed, not written"
    )
    parsing.add_argument(
        "--draw",
        metavar="WORDS",
        help="seed of the cases that a suite draws: today's date, or that of earlier results, to repeat them",
    )
    parsing.add_argument(
        "--tiny", action="store_true", help="small and quick, to try it out; no report counts it"
    )
    return parsing


def main(argv: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parsing = parser()
    args = parsing.parse_args(argv)
    if args.names[0] in COMMANDS:
        if len(args.names) > 1:
            parsing.error(f"{args.names[0]} stands alone")
        return {"list": _list, "report": lambda: _report(args.out), "kernels-hash": _hash}[args.names[0]]()
    from aicf.device.runtime import cuda_missing

    from .suites import SUITES

    names = list(SUITES) if args.names == ["all"] else args.names
    if unknown := [n for n in names if n not in SUITES]:
        parsing.error(f"no suite is called {unknown[0]!r}; there are {', '.join(SUITES)}")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", args.device):
        parsing.error(f"no device is called {args.device!r}: cpu, cuda or cuda:N")
    if args.device != "cpu" and (missing := cuda_missing()):
        parsing.error(f"{args.device} can't be used: {missing}")
    suites = [SUITES[n] for n in names]
    return harness.run(
        suites, args.device, args.out, args.budget, args.shard, args.tiny, args.only, args.draw
    )


def _list() -> int:
    from .suites import SUITES

    for suite in SUITES.values():
        print(f"{suite.name:<12} {suite.budget:4.0f} s  {suite.about}")
    return 0


def _report(out: Path) -> int:
    for path in sorted(out.glob("*/*.shard-1-of-*.json")):
        if (joined := results.join(path)) != path:
            print(f"parts joined: {joined}")
    documents = report.written(out)
    for path in report.leftovers(documents):
        path.unlink()
        print(f"removed: {path}")
    for path, text in documents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8", newline="\n")
            print(f"written: {path}")
    for line in results.stale(out):
        print(line)
    return 0


def _hash() -> int:
    print(results.kernels_hash())
    return 0


if __name__ == "__main__":
    sys.exit(main())
