"""Records what selection chooses, how kernels are launched and what plans contain, and compares it between two trees.

    python tools/replay.py record FILE                               this tree: regions for six devices, and plans
    python tools/replay.py compare FILE                              this tree, for the regions and graphs of the record
    python tools/replay.py compare COMMIT --jobs 4                   this tree and that commit, for regions and graphs drawn anew
    python tools/replay.py compare COMMIT --machine-code 20          also compile 20 kernels whose digests differ, in both trees
    python tools/replay.py compare COMMIT '--rename=OLD=NEW' @FILE   arguments, one a line, may come from a file

A refactoring is right when `compare` prints no difference. It needs no GPU. Regions and graphs are drawn by a seed, which is printed and
stored, and are data (tests/draws/questions.py), so that another tree answers for the same ones, in processes of its own
(replay_answers.py).

    for each region and device   the chosen kernel with the terms of its predicted time, the time of every other candidate, every refusal with the
                                 value seen; the launches of the chosen kernel and of one candidate that is drawn: configuration, arguments, and
                                 a digest of the body with the values that it reads, without names of functions, classes and modules
    for each plan                its steps, and where values are stored

Digests are by source, the same for every Python; a function without source, such as an evaluated text, is described by its bytecode.

For each kind `compare` prints how many differ and the first difference; the exit status is 1 if there is one. `--rename` takes a regular
expression and a replacement, as re.sub does, for all texts of the old record:

    '--rename=gemm_wgmma_(\\d+x\\d+)_(\\w+)\\.v1=gemm_wgmma.v1[\\1 \\2]'

A kernel with a config is `id[config]`; a refusal by `id` stands for all of its configs.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gzip
import hashlib
import json
import os
import platform
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = Path(__file__).with_name("replay_answers.py")
DEVICES = "h200", "h100", "a100", "l40s", "t4", "cpu"
Json = dict[str, Any]
Rename = Callable[[str], str]


# --- records ----------------------------------------------------------------------------------------------------------


def draw(seed: str, regions: int, plans: int, devices: Sequence[str], sources: Sequence[str] = (), examples: Json | None = None) -> list[Json]:  # fmt: skip
    """Regions, and graphs with a device each, as data, drawn by the seed; `sources` and `examples` are names in tests/draws/questions.py."""
    folders = [str(ROOT / name) for name in ("", "tests", "tests/cuda", "tools")]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    from draws import questions as drawn

    examples = drawn.EXAMPLES if examples is None else examples
    some = drawn.regions(seed, regions, sources, examples)
    questions = [{"region": r.to_json(), "text": str(r), "devices": devices} for r in some]
    return json.loads(json.dumps([*questions, *drawn.plans(seed, plans, devices, examples)]))


def answers(tree: Path, questions: Sequence[Json], jobs: int, **environment: str) -> list[Json]:
    """The answers of a tree, by so many processes; `environment`: more variables of theirs."""
    with tempfile.TemporaryDirectory(prefix="aicf-replay-") as folder:
        source, targets = Path(folder, "questions.gz"), [Path(folder, f"{n}.gz") for n in range(jobs)]
        write(source, questions)
        env = {**os.environ, "PYTHONPATH": str(tree), "OPENBLAS_NUM_THREADS": "1", **environment}
        commands = [
            [sys.executable, str(TOOLS), str(source), str(target), f"{n}/{jobs}"]
            for n, target in enumerate(targets)
        ]
        running = [subprocess.Popen(command, env=env, cwd=folder) for command in commands]
        try:
            statuses = [process.wait() for process in running]
        finally:
            for process in running:
                process.kill()  # those that still run, where this process is ended
        if any(statuses):
            sys.exit(f"replay: a process that reads {tree} failed; its error is above")
        shares = [read(target) for target in targets]
    for header, *_ in shares:
        if Path(header["tree"]).resolve() != tree.resolve():
            sys.exit(f"replay: imported aicf from {header['tree']}, expected {tree}")
    found: list[Json] = [{}] * len(questions)
    for n, (_, *share) in enumerate(shares):
        found[n::jobs] = share
    return found


def write(path: Path, lines: Sequence[Json]) -> None:
    with gzip.open(path, "wt", compresslevel=5, encoding="utf-8") as file:
        file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def read(path: Path) -> list[Json]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def git(*arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def versions() -> Json:
    """What a record depends on besides the tree: Python, and this tool with the code that digests."""
    parts = [Path(__file__), TOOLS, *sorted((ROOT / "aicf" / "code_cache").glob("*.py"))]
    tool = hashlib.blake2b(b"".join(p.read_bytes() for p in parts), digest_size=8).hexdigest()
    return {"python": platform.python_version(), "tool": tool}


NOTES = {
    "python": "note: the record is of Python {}, this is {}: some ops' arithmetic and functions without source are read as bytecode, so times and digests of these may differ",
    "tool": "note: the record is of version {} of this tool, this is {}: digests may differ for that alone; give the commit instead",
}


@contextlib.contextmanager
def tree_of(commit: str) -> Iterator[Path]:
    """The files of a commit in a temporary worktree."""
    with tempfile.TemporaryDirectory(prefix="aicf-tree-") as folder:
        path = Path(folder, "tree")
        git("worktree", "add", "--detach", "--quiet", str(path), commit)
        try:
            yield path
        finally:
            git("worktree", "remove", "--force", str(path))


# --- differences ------------------------------------------------------------------------------------------------------

Difference = tuple[str, str, Any, Any]  # kind, where, old, new
NOTHING = "(nothing)"


def renamed(value: Any, rename: Rename) -> Any:
    """All texts of an answer under their new names; two kernels must not get the same one."""
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, list):
        return [renamed(v, rename) for v in value]
    if not isinstance(value, dict):
        return value
    found = {rename(k): renamed(v, rename) for k, v in value.items()}
    if len(found) < len(value):
        twice = next(k for k, n in Counter(map(rename, value)).items() if n > 1)
        sys.exit(
            f"replay: --rename gives several names of the old record the new name {twice!r}; mend the expressions"
        )
    return found


def renaming(rules: Sequence[str]) -> Rename:
    """Of texts by PATTERN=REPLACEMENT, one after the other."""
    pairs = [rule.partition("=")[::2] for rule in rules]

    @functools.cache
    def rename(text: str) -> str:
        for pattern, replacement in pairs:
            text = re.sub(pattern, replacement, text)
        return text

    return rename


def differences(question: Json, old: Json, new: Json) -> Iterator[Difference]:
    """Between two answers, the more telling kinds first."""
    where = question.get("text") or f"plan of {str(question.get('graph'))[:100]} on {question.get('device')}"
    if "error" in old or "error" in new:
        if old.get("error") != new.get("error"):
            yield "error", where, old.get("error", "an answer"), new.get("error", "an answer")
    elif "region" in question:
        for device in question["devices"]:
            yield from of_choices(f"{where} on {device}", old[device], new[device])
    else:
        for kind in ("steps", "slots", "arena"):
            yield from of_lists(f"plan: {kind}", where, old[kind], new[kind])


def of_choices(where: str, old: Json, new: Json) -> Iterator[Difference]:
    if old["chosen"] != new["chosen"]:
        yield "choice", where, old["chosen"] or "no kernel", new["chosen"] or "no kernel"
    elif old.get("terms") != new.get("terms"):
        yield (
            "terms of the predicted time",
            f"{old['chosen']} for {where}",
            old.get("terms"),
            new.get("terms"),
        )
    launches = [answer.get("launches", {}) for answer in (old, new)]
    for kernel in [k for k in launches[0] if k in launches[1]]:
        for kind, key in (("body of a kernel", "body"), ("launch", "with")):
            lists = ([launch[key] for launch in some[kernel]] for some in launches)
            yield from of_lists(kind, f"{kernel} for {where}", *lists)
    a, b = old["verdicts"], new["verdicts"]
    families = {kernel.partition("[")[0] for kernel in a if "[" in kernel}
    for kernel in {**a, **b}:
        family = kernel.partition("[")[0]
        was, now = a.get(kernel, a.get(family)), b.get(kernel, b.get(family))
        if was == now or (kernel not in a and kernel in families):
            continue  # the last: refused as one, whose configs are compared one by one
        types = {type(was), type(now)}
        kind = "predicted time" if types == {float} else "refusal" if types == {str} else "candidate"
        yield kind, f"{kernel} for {where}", *(NOTHING if x is None else x for x in (was, now))


def of_lists(kind: str, where: str, old: Sequence[Any], new: Sequence[Any]) -> Iterator[Difference]:
    """The first position at which two lists differ."""
    if old != new:
        n = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        at = f"{where}, {n + 1} of {len(old)} and {len(new)}"
        yield kind, at, *(some[n] if n < len(some) else NOTHING for some in (old, new))


def report(found: Sequence[Difference], shown: int = 1) -> str:
    """Counts and the first differences of each kind; of choices, which kernel became which."""
    lines = []
    for kind, count in Counter(kind for kind, *_ in found).items():
        some = [d for d in found if d[0] == kind]
        lines.append(f"{kind}: {count} differ")
        pairs = (
            Counter((str(old), str(new)) for _, _, old, new in some) if kind in ("choice", "error") else {}
        )
        lines += [
            f"  {n} × {old} -> {new}"
            for (old, new), n in sorted(pairs.items(), key=lambda p: -p[1])[: 5 * shown]
        ]
        for _, where, old, new in some[:shown]:
            lines += [f"  {where}", f"    old  {old}", f"    new  {new}"]
    return "\n".join(lines)


# --- machine code -----------------------------------------------------------------------------------------------------


def bodies_that_differ(questions: Sequence[Json], old: Sequence[Json], new: Sequence[Json]) -> list[Json]:
    """Kernels that both trees launch for a region and a device, with other digests: one for each pair of digests."""
    found: dict[str, Json] = {}
    for question, *pair in zip(questions, old, new):
        for device in question.get("devices", ()) if all("error" not in x for x in pair) else ():
            a, b = (x[device].get("launches", {}) for x in pair)
            for number, kernel in enumerate(a):
                if (
                    list(a) == list(b)
                    and (bodies := [[x["body"] for x in some[kernel]] for some in (a, b)])[0] != bodies[1]
                ):
                    found.setdefault(
                        str(bodies),
                        {
                            "compile": question["region"],
                            "text": question["text"],
                            "device": device,
                            "number": number,
                        },
                    )
    return list(found.values())


def of_machine_code(tree: Path, kernels: Sequence[Json], jobs: int) -> list[Difference]:
    """Compiles these kernels in the old tree and in this one."""
    found = []
    for question, old, new in zip(kernels, answers(tree, kernels, jobs), answers(ROOT, kernels, jobs)):
        if old != new:
            key = next(k for k in {**old, **new} if old.get(k) != new.get(k))
            found.append(
                (
                    "machine code",
                    f"{question['text']} on {question['device']}, {key}",
                    old.get(key),
                    new.get(key),
                )
            )
    return found


# --- commands ---------------------------------------------------------------------------------------------------------


def record(args: argparse.Namespace) -> int:
    begun = time.monotonic()
    print(f"seed {args.seed}", flush=True)
    questions = draw(args.seed, args.regions, args.plans, args.devices)
    found = answers(ROOT, questions, args.jobs)
    write_record(args.file, args.seed, questions, found)
    seconds, size = time.monotonic() - begun, args.file.stat().st_size / 1e6
    print(f"{counted(questions, found)} in {seconds:.0f} s: {args.file}, {size:.1f} MB")
    return 0


def write_record(path: Path, seed: str, questions: Sequence[Json], found: Sequence[Json]) -> None:
    """The seed, the commit and versions, then each question with its answer."""
    tree = {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain", "aicf"))}
    lines = [{"question": q, "answer": a} for q, a in zip(questions, found)]
    write(path, [{"seed": seed, **tree, **versions()}, *lines])


def counted(questions: Sequence[Json], found: Sequence[Json]) -> str:
    regions, errors = (
        sum("region" in q for q in questions),
        Counter(a["error"] for a in found if "error" in a),
    )
    worst = f", {errors.total()} errors such as {errors.most_common(1)[0][0]}" if errors else ""
    return f"{regions} regions, {len(questions) - regions} plans{worst}"


def compare(args: argparse.Namespace) -> int:
    with contextlib.ExitStack() as stack:
        if Path(args.old).is_file():
            header, *lines = read(Path(args.old))
            print(f"seed {header['seed']}, commit {header['commit']}" + " with changes" * header["changed"])
            for name, value in versions().items():
                if header[name] != value:
                    print(NOTES[name].format(header[name], value))
            questions, old = [x["question"] for x in lines], [x["answer"] for x in lines]
            tree = stack.enter_context(tree_of(header["commit"])) if args.machine_code else ROOT
        else:
            print(f"seed {args.seed}", flush=True)
            tree = stack.enter_context(tree_of(args.old))
            questions = draw(args.seed, args.regions, args.plans, args.devices)
            old = answers(tree, questions, args.jobs)
        new, rename = answers(ROOT, questions, args.jobs), renaming(args.rename)
        old = [renamed(a, rename) for a in old]
        found = [d for triple in zip(questions, old, new) for d in differences(*triple)]
        if args.machine_code:
            kernels = bodies_that_differ(questions, old, new)
            some = random.Random(args.seed).sample(kernels, min(args.machine_code, len(kernels)))
            found += of_machine_code(tree, some, args.jobs)
            print(f"machine code: compiled {len(some)} of {len(kernels)} kernels whose digests differ")
    print(counted(questions, new))
    print(report(found, args.shown) or "no difference")
    return int(bool(found))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, fromfile_prefix_chars="@"
    )
    commands = parser.add_subparsers(required=True)
    for command in (record, compare):
        sub = commands.add_parser(command.__name__, fromfile_prefix_chars="@")
        sub.set_defaults(command=command)
        sub.add_argument("--seed", default=secrets.token_hex(4), help="of all draws; a new one is printed")
        sub.add_argument("--regions", type=int, default=2000)
        sub.add_argument("--plans", type=int, default=200)
        sub.add_argument("--devices", nargs="+", default=list(DEVICES), help="presets")
        sub.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
        if command is record:
            sub.add_argument("file", type=Path)
        else:
            sub.add_argument("old", metavar="OLD", help="a record's file, or a commit")
            sub.add_argument("--rename", action="append", default=[], metavar="PATTERN=REPLACEMENT")
            sub.add_argument(
                "--machine-code",
                type=int,
                default=0,
                metavar="N",
                help="compile so many kernels whose digests differ",
            )
            sub.add_argument("--shown", type=int, default=1, help="differences of each kind that are printed")
    args = parser.parse_args(arguments)
    return args.command(args)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the worktree is removed
    sys.exit(main())
