"""ONNX's own tests of nodes through `aicf.onnx_backend`: how many pass and what is refused, by op, into docs/results/coverage.md.

    .venv/bin/python tools/onnx_coverage.py [-k PART_OF_A_NAME] [-j PROCESSES] [--device CUDA] [--write]

A result counts as passed within ONNX's own tolerances; for f16 within two units in the last place, as ONNX itself allows bf16, since its expected
numbers were rounded after each step; NOISE has the tests whose expected numbers are rounding errors. Exit code 1 if any result is wrong, or anything but a refusal is raised.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import sys
import time
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "results" / "coverage.md"
BEGIN, END = "<!-- onnx -->", "<!-- /onnx -->"
HALF = 2.0**-9  # two units in the last place of f16
# Zeros that are expected as the rounding errors of an FFT of f32: within two units in the last place of the greatest number of the result, 99
NOISE = dict.fromkeys(("test_dft_inverse", "test_dft_inverse_opset19"), 99 * 2.0**-22)
SHOWN = 70

Outcome = tuple[
    str, str, tuple[str, ...], str
]  # name, passed | refused | without kernel | wrong | error, ops, why


def _cases() -> dict[str, object]:
    from onnx.backend.test.loader import load_model_tests

    warnings.simplefilter("ignore")
    return {case.name: case for case in load_model_tests(kind="node")}


CASES: dict[str, object] = {}


def _start() -> None:
    CASES.update(_cases())


def outcome(name: str, device: str = "CPU") -> Outcome:
    import onnx.backend.test.runner as runner

    import aicf
    from aicf.errors import FrontendError, NoKernelError

    case = CASES[name]
    try:
        ready = aicf.onnx_backend.prepare(case.model, device)
        for inputs, wanted in case.data_sets:
            fed, wanted = ([runner._normalize_tensor(x) for x in xs] for xs in (inputs, wanted))
            half = any(getattr(x, "dtype", None) == "float16" for x in wanted)
            rtol = max(case.rtol, HALF) if half else case.rtol
            atol = max(case.atol, NOISE.get(name, 0.0))
            runner.Runner.assert_similar_outputs(wanted, ready.run(fed), rtol, atol)
    except FrontendError as error:
        ops = tuple(sorted(getattr(error, "ops", ())))
        return name, "refused", ops or (_type(error.what),), error.what
    except NoKernelError as error:
        return name, "without kernel", (), error.what
    except AssertionError as error:
        return name, "wrong", (), " ".join(str(error).split())[:300]
    except Exception as error:
        return name, "error", (), f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return name, "passed", (), ""


def _type(what: str) -> str:
    """What a refusal before any op is about: an element type, a kind of input, a version."""
    found = re.search(r"elements of (\w+)|is an? (sequence|optional|map)|version (\d+)", what)
    words = [word for word in (found.groups() if found else ()) if word]
    return f"({words[0]})" if words else "(other)"


def table(outcomes: list[Outcome], version: str) -> str:
    counts = Counter(kind for _, kind, _, _ in outcomes)
    refused = Counter(op for _, kind, ops, _ in outcomes if kind == "refused" for op in ops)
    lines = [
        BEGIN, "", "## ONNX's tests of nodes", "",
        f"`tools/onnx_coverage.py --write` runs all {len(outcomes)} tests of nodes of onnx {version} through `aicf.onnx_backend` on the CPU.", "",
        "| passed | refused by name | wrong | other errors |", "|---|---|---|---|",
        f"| {counts['passed']} | {counts['refused']} | {counts['wrong']} | {counts['error']} |", "",
        "What is refused, with the number of tests. In brackets: an element type, a kind of value or a version of the ops that aicf lacks.", "",
        ", ".join(f"{op} {count}" for op, count in refused.most_common(SHOWN))
        + (f", and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""), "", END,
    ]  # fmt: skip
    return "\n".join(lines)


def write(section: str) -> None:
    """The section in its page, in the place of the last one."""
    head = "# What of other frameworks aicf takes\n\nWritten by scripts; each section says by which.\n"
    text = PAGE.read_text() if PAGE.exists() else head
    start, end = text.find(BEGIN), text.find(END)
    if start >= 0:
        text = text[:start] + section + text[end + len(END) :]
    else:
        text = text.rstrip("\n") + "\n\n" + section + "\n"
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-k", default="", metavar="PART", help="tests with this in their names")
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, metavar="N", help="processes")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    parser.add_argument("--device", default="CPU", help="CUDA runs them on a GPU; the page is the CPU's")
    args = parser.parse_args()
    if args.write and args.device != "CPU":
        parser.error("--write is for the CPU: the page has one device")
    import onnx

    names = [name for name in _cases() if args.k in name]
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(args.j, _start) as pool:
        outcomes = []
        for made in pool.imap_unordered(partial(outcome, device=args.device), names, chunksize=4):
            outcomes.append(made)
            if made[1] in ("wrong", "error"):
                print(f"{made[1]}: {made[0]}: {made[3]}", flush=True)
    counts = Counter(kind for _, kind, _, _ in outcomes)
    lacking = Counter(why for _, kind, _, why in outcomes if kind == "without kernel")
    for why, count in lacking.most_common():
        print(f"{count:4} without kernel: {why}")
    print(f"{dict(counts)} in {time.perf_counter() - began:.0f} s")
    if args.write:
        write(table(sorted(outcomes), onnx.__version__))
    else:
        print(table(sorted(outcomes), onnx.__version__))
    return 1 if counts["wrong"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
