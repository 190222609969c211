"""StableHLO's tests of its interpreter through `run_module`: how many pass and what is refused, by op, into docs/results/coverage.md.

    git clone --depth 1 https://github.com/openxla/stablehlo
    .venv/bin/python tools/stablehlo_coverage.py stablehlo/stablehlo/tests/interpret [-k PART_OF_A_NAME] [--device cuda] [--write]

A test is one function; what it checks becomes its results, which are compared as its checks say: equal, or within the tolerance (StableHLO's
is 1e-4). Exit code 1 if any result is wrong, or anything but a refusal is raised.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "results" / "coverage.md"
BEGIN, END = "<!-- stablehlo -->", "<!-- /stablehlo -->"
SHOWN = 70
TOLERANCE = 1e-4

_CHECK = re.compile(r"check\.(\w+)\s+(%[\w#]+)")
_ANOTHER = re.compile(r"%[\w#]+")
_SIGNATURE = re.compile(r"func\.func\s+(?:public\s+)?@[\w.]+\s*\(\s*\)\s*\{")
_TYPE = re.compile(r"\s*:?\s*(tensor<(?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*>)")


@dataclass
class Check:
    value: str
    type: str
    expected: str  # a constant's text, or the name of another value
    how: str
    tolerance: float


@dataclass
class Outcome:
    name: str
    kind: str  # passed, refused, wrong, error, or without checks
    why: str = ""


def tests_of(folder: Path) -> list[tuple[str, str]]:
    """(name, text) of each part of each file."""
    found = []
    for path in sorted(folder.rglob("*.mlir")):
        for n, part in enumerate(re.split(r"^//\s*-----.*$", path.read_text(), flags=re.MULTILINE)):
            text = re.sub(r"//[^\n]*", "", part).strip()
            if text:
                found.append((f"{path.stem}[{n}]", text))
    return found


def _constant(text: str, at: int) -> tuple[str, int]:
    """The `dense<…> : tensor<…>` that begins at a place, and where it ends."""
    depth = 0
    for place in range(at, len(text)):
        depth += (text[place] == "<") - (text[place] == ">")
        if depth == 0 and text[place] == ">":
            found = _TYPE.match(text, place + 1)
            if found is None:
                raise ValueError(f"no type behind {text[at : place + 1][:60]!r}")
            return text[at : found.end()], found.end()
    raise ValueError("a constant without end")


def rewritten(text: str) -> tuple[str, list[Check]]:
    """The module, whose main function returns what is checked, and the checks."""
    checks: list[Check] = []
    kept, end = [], 0
    while (found := _CHECK.search(text, end)) is not None:
        kept.append(text[end : found.start()])
        how, value, at = found.group(1), found.group(2), found.end()
        if how == "expect_serialized_eq":
            raise NotImplementedError("interpreter.probe")
        at = re.compile(r"\s*,?\s*").match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("dense", at):
            expected, at = _constant(text, at)
            type = expected[expected.rindex("tensor<") :]
        else:
            other = _ANOTHER.match(text, at)
            if other is None:
                raise ValueError(f"a check of {value} that is not understood")
            expected, at = other.group(), other.end()
            type = ""
        settings = re.compile(r"(?:\s*,\s*\w+\s*=\s*[\d.e+-]+(?:\s*:\s*f64)?)*").match(text, at)
        said = settings.group() if settings else ""
        at = settings.end() if settings else at
        if not type:
            typed = _TYPE.match(text, at)
            if typed is None:
                raise ValueError(f"a check of {value} without a type")
            type, at = typed.group(1), typed.end()
            more = re.compile(r"\s*,\s*" + _TYPE.pattern).match(text, at)
            at = more.end() if more else at
        tolerance = re.search(r"tolerance\s*=\s*([\d.e+-]+)", said)
        ulps = re.search(r"max_ulp_difference\s*=\s*(\d+)", said)
        checks.append(Check(value, type, expected, how, float((tolerance or ulps or [0, TOLERANCE])[1])))
        end = at
    kept.append(text[end:])
    if not checks:
        return text, []
    head = "".join(kept[:-1])
    signature = list(_SIGNATURE.finditer(head))
    if not signature:
        raise NotImplementedError("functions with arguments")
    values = [(c.value, c.type) for c in checks] + [
        (c.expected, c.type) for c in checks if c.expected.startswith("%")
    ]
    types = ", ".join(type for _, type in values)
    start = signature[-1]
    made = f"{head[: start.start()]}func.func @main() -> ({types}) {{{head[start.end() :]}"
    returned = f"func.return {', '.join(name for name, _ in values)} : {types}"
    tail = re.sub(r"(?:func\.)?return(?=\s*\})", lambda _: returned, kept[-1], count=1)
    return made + tail, checks


def expected_of(checks: list[Check]) -> list[np.ndarray]:
    """The constants that are expected, as arrays."""
    from aicf.frontends.stablehlo.mlir import Splat, module_of

    constants = [c for c in checks if not c.expected.startswith("%")]
    lines = "\n".join(f"%c{n} = stablehlo.constant {c.expected}" for n, c in enumerate(constants))
    types = ", ".join(c.type for c in constants)
    names = ", ".join(f"%c{n}" for n in range(len(constants)))
    module = (
        module_of(f"module {{ func.func @main() -> ({types}) {{\n{lines}\nreturn {names} : {types}\n}} }}")
        if constants
        else None
    )
    found = []
    for node in module.functions["main"].body.nodes if module else ():
        value, type = node.attrs["value"], node.types[0]
        if type.dtype is None:
            raise NotImplementedError(f"aicf lacks {type.lacking}")
        found.append(
            np.full(type.shape, value.value, type.dtype.numpy) if isinstance(value, Splat) else value
        )
    made = iter(found)
    return [next(made) if not c.expected.startswith("%") else np.empty(0) for c in checks]


def same(check: Check, got: np.ndarray, wanted: np.ndarray) -> bool:
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return False
    if check.how.startswith("expect_eq"):
        return bool(np.array_equal(got, wanted))
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    if check.how == "expect_close":
        bits = f"i{got.dtype.itemsize}"
        return bool(
            (
                np.abs(got.view(bits).astype(np.int64) - wanted.view(bits).astype(np.int64))
                <= check.tolerance
            ).all()
        )
    with np.errstate(invalid="ignore"):
        near = (
            (a == b)
            | (np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= check.tolerance))
            | (np.isnan(a) & np.isnan(b))
        )
    return bool(near.all())


def outcome(name: str, text: str, device: str) -> Outcome:
    from aicf.errors import FrontendError, NoKernelError
    from aicf.frontends.stablehlo import run_module

    if found := re.search(r"interpreter\.\w+", text):
        return Outcome(name, "refused", found.group())
    try:
        module, checks = rewritten(text)
        if not checks:
            return Outcome(name, "without checks")
        made = run_module(module, [], device)
        more = iter(made[len(checks) :])
        wanted = [
            next(more) if c.expected.startswith("%") else array
            for c, array in zip(checks, expected_of(checks))
        ]
    except FrontendError as error:
        if error.details and error.what.startswith("aicf lacks"):
            first = min(error.details, key=lambda line: "element type" not in line)
            return Outcome(name, "refused", _short(first))
        return Outcome(name, "refused", _short(" ".join([error.what, *error.details[:1]])))
    except (NoKernelError, NotImplementedError) as error:
        return Outcome(name, "refused", _short(str(error).splitlines()[0]))
    except Exception as error:
        return Outcome(name, "error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    wrong = [
        n for n, (check, got, array) in enumerate(zip(checks, made, wanted)) if not same(check, got, array)
    ]
    if wrong:
        n = wrong[0]
        return Outcome(
            name,
            "wrong",
            f"{checks[n].how}: got {np.array2string(made[n])[:150]}, expected {np.array2string(wanted[n])[:150]}",
        )
    return Outcome(name, "passed")


def _short(reason: str) -> str:
    """An op or a type, without counts and lines."""
    reason = re.sub(r"^\d+ x ", "", reason).partition("   at ")[0]
    if (found := re.search(r"element type (\S+)", reason)) is not None:
        return f"({found.group(1)})"
    if (found := re.search(r"dialect `(\w+)'|'(\w+)' dialect|Dialect `(\w+)'", reason)) is not None:
        return f"(dialect {next(filter(None, found.groups()))})"
    if "quant" in reason:
        return "(quantized)"
    if "can't be parsed" in reason:
        return "(not parsed by jaxlib)"
    return reason.removeprefix("stablehlo.")[:80]


def table(outcomes: list[Outcome], version: str) -> str:
    counts = Counter(o.kind for o in outcomes)
    refused = Counter(o.why for o in outcomes if o.kind == "refused")
    tests = [o for o in outcomes if o.kind != "without checks"]
    lines = [
        BEGIN, "", "## StableHLO's tests of its interpreter", "",
        f"`tools/stablehlo_coverage.py stablehlo/stablehlo/tests/interpret --write` runs {len(tests)} tests {version}through `run_module` on the CPU. Each checks one "
        "op on numbers written by hand.", "",
        "| passed | refused by name | wrong | other errors |", "|---|---|---|---|",
        f"| {counts['passed']} | {counts['refused']} | {counts['wrong']} | {counts['error']} |", "",
        "What is refused, with the number of tests. In brackets: an element type that aicf lacks.", "",
        ", ".join(f"{why} {count}" for why, count in refused.most_common(SHOWN))
        + (f", and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""), "", END,
    ]  # fmt: skip
    return "\n".join(lines)


def write(section: str) -> None:
    """The section in its page, in the place of the last one."""
    text = PAGE.read_text()
    start, end = text.find(BEGIN), text.find(END)
    if start >= 0:
        text = text[:start] + section + text[end + len(END) :]
    else:
        text = text.rstrip("\n") + "\n\n" + section + "\n"
    PAGE.write_text(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "folder", type=Path, help="stablehlo/tests/interpret of a checkout of openxla/stablehlo"
    )
    parser.add_argument("-k", default="", metavar="PART", help="tests with this in their names")
    parser.add_argument("--write", action="store_true", help="write docs/results/coverage.md")
    parser.add_argument("--device", default="cpu", help="cuda runs them on a GPU; the page is the CPU's")
    args = parser.parse_args()
    if args.write and args.device != "cpu":
        parser.error("--write is for the CPU: the page has one device")
    tests = [(name, text) for name, text in tests_of(args.folder) if args.k in name]
    if not tests:
        parser.error(
            f"{args.folder} has no tests; it is to be stablehlo/tests/interpret of https://github.com/openxla/stablehlo"
        )
    began = time.perf_counter()
    outcomes = []
    for name, text in tests:
        made = outcome(name, text, args.device)
        outcomes.append(made)
        if made.kind in ("wrong", "error"):
            print(f"{made.kind}: {name}: {made.why}", flush=True)
    counts = Counter(o.kind for o in outcomes)
    print(f"{dict(counts)} in {time.perf_counter() - began:.0f} s")
    section = table(outcomes, "")
    if args.write:
        write(section)
    else:
        print(section)
    return 1 if counts["wrong"] or counts["error"] else 0


if __name__ == "__main__":
    sys.exit(main())
