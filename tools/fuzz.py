"""Checks drawn cases until the time is up: ops by every kernel that accepts them, graphs, gradients, front ends.

    python tools/fuzz.py --minutes 10                              all kinds, on the CPU
    python tools/fuzz.py --minutes 10 --device cuda --jobs 8       kernels of the GPU, in eight processes
    python tools/fuzz.py --minutes 10 --only ops --op gemm         one kind, one op
    python tools/fuzz.py --case ops:8f3c2a1b:17                    one case again
    python tools/fuzz.py --minutes 2 --device cuda --dry-run       without a GPU: select, build, start nothing

The cases are those of tests/draws. The seed comes first: the same seed draws the same cases. Each runs in a process that may crash or
hang. A failure is one line and a script of its own in --out, shrunk while it fails in the same way. At the end there is a table of
cases, failures, refused draws and seconds; the exit status is 1 after a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "cuda")]
SHRINK_SECONDS, SHRUNK_EACH, RENEWED = 60, 3, 1000


# --- a process that checks cases --------------------------------------------------------------------------------------


def serve(pipe: Connection, device: str, log: str) -> None:
    """Answers requests (function, arguments) until the pipe closes; what libraries print goes into a log."""
    import faulthandler

    descriptor = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable()
    from draws import kinds

    known = kinds()
    while True:
        try:
            what, kind, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((True, REQUESTS[what](known[kind], device, *args)))
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"))


def _draw(kind: Any, device: str, seed: str, number: int, op: str | None) -> Any:
    from draws.seeds import seeded

    more = {"op": op} if op else {}
    return kind.draw(seeded(seed, kind.NAME, number), device, **more)


REQUESTS = {
    "draw": _draw,
    "check": lambda kind, device, case: kind.check(case, device),
    "smaller": lambda kind, device, case: list(kind.smaller(case))[:300],
    "script": lambda kind, device, case: kind.script(case, device),
    "text": lambda kind, device, case: str(case),
}  # fmt: skip


class Died(Exception):
    """The process crashed, or did not answer in time."""


class Worker:
    """A process for cases, which is started again after it died."""

    def __init__(self, device: str, log: str, timeout: float) -> None:
        self.device, self.log, self.timeout = device, log, timeout
        self.process: Any = None
        self.requests = 0

    def __call__(self, what: str, kind: str, *args: Any) -> tuple[bool, Any]:
        if self.process is None or self.requests >= RENEWED:
            self.stop()
            context = multiprocessing.get_context("spawn")
            self.pipe, other = context.Pipe()
            self.process = context.Process(target=serve, args=(other, self.device, self.log), daemon=True)
            self.process.start()
            other.close()
            self.requests = 0
        self.requests += 1
        try:
            self.pipe.send((what, kind, args))
            if self.pipe.poll(self.timeout):
                return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode
            self.stop()
            raise Died(f"crash: the process ended with status {code}") from None
        self.stop()
        raise Died(f"hang: no answer in {self.timeout:.0f} s")

    def stop(self) -> None:
        if self.process is not None:
            self.pipe.close()
            self.process.kill()
            self.process.join()
            self.process = None


# --- a run ------------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What all threads of a run share: what to draw, and what was found."""

    seed: str
    kinds: list[str]
    device: str
    op: str | None
    out: Path
    until: float
    timeout: float
    numbers: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    cases: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    lock: Any = field(default_factory=threading.Lock)

    def next(self) -> tuple[str, int]:
        """A case of the kind that has had the least time."""
        with self.lock:
            kind = min(self.kinds, key=lambda k: (self.seconds[k], self.numbers[k]))
            self.numbers[kind] += 1
            self.seconds[kind] += 0.05  # so that other threads draw from other kinds meanwhile
            return kind, self.numbers[kind]

    def work(self, thread: int) -> None:
        """Draws and checks until the time is up."""
        worker = Worker(self.device, str(self.out / f"worker-{thread}.log"), self.timeout)
        while time.monotonic() < self.until:
            kind, number = self.next()
            begun = time.monotonic()
            self.one(worker, kind, number)
            with self.lock:
                self.seconds[kind] += time.monotonic() - begun
        worker.stop()

    def one(self, worker: Worker, kind: str, number: int) -> str | None:
        """One case; what is wrong with it."""
        case, said = None, None
        try:
            fine, case = worker("draw", kind, self.seed, number, self.op)
            if not fine:
                said, case = f"draw: {case}", None
            elif case is None:
                with self.lock:
                    self.refused[kind] += 1
                return None
            else:
                said = checked(worker, kind, case)
        except Died as died:
            said = str(died)
        with self.lock:
            self.cases[kind] += 1
        if said:
            self.failed(worker, kind, number, case, said)
        return said

    def failed(self, worker: Worker, kind: str, number: int, case: Any, said: str) -> None:
        """Print the failure, and write its script, shrunk."""
        name = f"{self.seed}:{number}"
        if case is None:
            text, sort = "", sort_of(said)
        else:
            text, sort = worker("text", kind, case)[1], f"{case_name(case)} {sort_of(said)}"
        with self.lock:
            self.failures[kind] += 1
            self.seen[kind, sort] += 1
            again = self.seen[kind, sort] > SHRUNK_EACH
            line = f"failed: {kind} {name}: {text.splitlines()[0] if text else ''}: {said}"
            print(line, flush=True)
        if case is None or again:
            return
        small, said = shrunk(worker, kind, case, said)
        path = self.out / f"{kind.replace(' ', '_')}-{re.sub(r'[^A-Za-z0-9]+', '_', name)}.py"
        try:
            fine, script = worker("script", kind, small)
            script = script if fine else f"# no script: {script}\n{small}"
        except Died as died:
            script = f"# no script: {died}\n"
        why = "\n".join(f"# {line}" for line in f"{kind} {name}\n{said}".splitlines())
        path.write_text(f"{why}\n{script}")
        print(f"    {path}", flush=True)

    def table(self) -> str:
        """Counts of each kind."""
        rows = [("kind", "cases", "failures", "refused", "seconds")]
        rows += [
            (k, str(self.cases[k]), str(self.failures[k]), str(self.refused[k]), f"{self.seconds[k]:.0f}")
            for k in self.kinds
        ]
        widths = [max(map(len, column)) for column in zip(*rows)]
        return "\n".join(
            "  ".join(c.rjust(w) if n else c.ljust(w) for n, (c, w) in enumerate(zip(r, widths)))
            for r in rows
        )


def case_name(case: Any) -> str:
    """What failures are grouped by, beside what is said: the op of a case that has one."""
    return getattr(case, "op", "")


def sort_of(said: str) -> str:
    """The part of a failure that stays while it is shrunk: which kernel or mode, and which error."""
    parts = said.split(": ")
    return ": ".join(parts[: 2 if len(parts) > 2 and parts[1].endswith(("Error", "Exception")) else 1])


def checked(worker: Worker, kind: str, case: Any) -> str | None:
    """What is wrong with a case; an error of the check itself counts."""
    try:
        fine, said = worker("check", kind, case)
        if said and "CUDA" in said:
            worker.stop()  # after an illegal access nothing runs any more in its process
        return said if fine else f"check: {said}"
    except Died as died:
        return str(died)


def shrunk(worker: Worker, kind: str, case: Any, said: str) -> tuple[Any, str]:
    """The simplest case that was found to fail in the same way, and what it says."""
    until = time.monotonic() + SHRINK_SECONDS
    found = True
    while found and time.monotonic() < until:
        found = False
        try:
            fine, candidates = worker("smaller", kind, case)
        except Died:
            break
        for other in candidates if fine else ():
            if time.monotonic() > until:
                break
            now = checked(worker, kind, other)
            if now and sort_of(now) == sort_of(said):
                case, said, found = other, now, True
                break
    return case, said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--dry-run", action="store_true", help="with --device cuda: build launches, start none"
    )
    parser.add_argument("--seed", help="of all draws; a new one is printed")
    parser.add_argument("--only", action="append", metavar="KIND", help="a kind of cases; may be repeated")
    parser.add_argument("--op", help="with --only ops: this op")
    parser.add_argument("--jobs", type=int, default=1, help="processes that check cases")
    parser.add_argument(
        "--timeout", type=float, default=300.0, help="seconds after which a case counts as a hang"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-failures"), help="folder for scripts of failures"
    )
    parser.add_argument("--case", metavar="KIND:SEED:NUMBER", help="check one case again, and shrink it")
    args = parser.parse_args()
    from draws import kinds

    device = "dry" if args.dry_run else args.device
    known = [
        name for name, kind in kinds().items() if device in getattr(kind, "DEVICES", ("cpu", "cuda", "dry"))
    ]
    only = args.only or known
    if args.case:
        only = [args.case.split(":")[0]]
        args.seed = args.case.split(":")[1]
    if unknown := [k for k in only if k not in known]:
        parser.error(f"no kind {', '.join(unknown)} on {device} here; there are {', '.join(known)}")
    seed = args.seed or secrets.token_hex(4)
    print(f"seed {seed}: python tools/fuzz.py --device {args.device} --seed {seed}", flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="aicf-fuzz-") as cache:
        os.environ.setdefault("AICF_CACHE_DIR", os.environ.get("AICF_TEST_CACHE", cache))
        until = time.monotonic() + args.minutes * 60
        run = Run(seed, only, device, args.op, args.out, until, args.timeout)
        if args.case:
            worker = Worker(device, str(args.out / "worker.log"), args.timeout)
            said = run.one(worker, only[0], int(args.case.split(":")[2]))
            print(said or "passed")
            worker.stop()
            return int(said is not None)
        threads = [threading.Thread(target=run.work, args=(n,)) for n in range(args.jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for log in args.out.glob("worker-*.log"):
        if not log.stat().st_size:
            log.unlink()
    print(run.table(), flush=True)
    return int(run.failures.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
