"""Where the time of a program of the suites goes: `aicf profile` for models that are no files.

    python -m benchmarks.profile gpt2                       one of gpts.py, trained
    python -m benchmarks.profile gpt2-decode                a token with a KV cache: one of suites/decode.py
    python -m benchmarks.profile gpt2 --device cpu -v --out p.json --trace t.json

Feeds are on the device. docs/guide.md says how it is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aicf
from aicf.graph.run.program import Program

from . import results
from .gpts import GPTS
from .harness import Bench
from .suites.decode import DECODERS


def _prepared(name: str, bench: Bench) -> tuple[Program, dict[str, Any]]:
    """A program and what it is fed."""
    if name in DECODERS:
        model = DECODERS[name]
        generator = aicf.Generator(aicf.compile(model.model(), device=bench.device), 1, model.length)
        generator.start([bench.rng.integers(0, model.config.words, model.length // 2)], temperature=0)
        return generator.decode, {}
    gpt = GPTS[name]
    feed = dict(zip("xy", gpt.batch_of(bench.rng)))
    if bench.on_gpu:
        feed = {name: bench.lab.torch.from_numpy(a).to(bench.lab.device) for name, a in feed.items()}
    return gpt.program(bench.device), feed


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.profile", description=__doc__.splitlines()[0])
    parser.add_argument("program", choices=[*GPTS, *DECODERS])
    parser.add_argument("--device", default="cuda", help="cuda (the default), cuda:N or cpu")
    parser.add_argument("--runs", type=int, default=10, help="of which the median counts")
    parser.add_argument("-v", "--verbose", action="store_true", help="every step")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all of it as JSON")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the timeline for https://ui.perfetto.dev"
    )
    args = parser.parse_args(argv)
    program, feed = _prepared(args.program, Bench(args.device))
    profile = program.profile(feed, args.runs)
    print(profile.verbose() if args.verbose else profile)
    if args.trace:
        print(f"written: {profile.save(args.trace)}")
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        data = {"meta": results.make_meta(args.device), "program": args.program, **profile.to_json()}
        args.out.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        print(f"written: {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
