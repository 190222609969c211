"""What each rank of a test runs: `python ranks.py CASE FOLDER`. Rank r writes what it found into FOLDER/r.json."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

import aicf
from aicf import nn
from aicf.distributed import DataParallel, ZeRO1, world
from aicf.training import Batches

RANK, FOLDER, DEVICE = world().rank, Path(sys.argv[2]), os.environ.get("AICF_RANKS_DEVICE", "cpu")
HANG = 5.0 if DEVICE == "cpu" else 20.0  # seconds; runs may take 2
rng = np.random.default_rng(3)
X = rng.normal(size=(96, 20)).astype(np.float32)
Y = rng.integers(0, 5, 96)


def model(dropout=0.0, width=32):
    made = nn.Model({"x": aicf.TensorSpec(("batch", 20))}, batch=8)
    made.add(nn.Linear(20, width)).add(nn.ReLU()).add(nn.Dropout(dropout)).add(nn.Linear(width, 5))
    return made


def compiled(parallel, dropout=0.0, width=32, **how):
    optimizer = nn.AdamW(lr=1e-2, clip_norm=0.5)
    return aicf.compile(
        model(dropout, width),
        "train",
        loss=nn.SoftmaxCrossEntropy(),
        optimizer=optimizer,
        device=DEVICE,
        parallel=parallel,
        **how,
    )


def digests(state):
    kept = {n: a for n, a in state.items() if n.endswith((".weight", ".bias", ".exp_avg", ".exp_avg_sq"))}
    return {n: hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest() for n, a in sorted(kept.items())}


def stepped(parallel, steps=5, **how):
    """Losses and state of some steps on this rank's rows."""
    program, ranks = compiled(parallel, **how), parallel.ranks
    losses = []
    for n in range(steps):
        rows = slice(8 * ranks * n % 48 + 8 * RANK, 8 * ranks * n % 48 + 8 * RANK + 8)
        losses += parallel.mean([float(program({"x": X[rows], "y": Y[rows]})["loss"])])
    return {
        "losses": losses,
        "state": digests(parallel.whole_state(program.state_dict())),
        "own": len(program.state_dict()),
    }


def trained(folder, parallel, steps, resume=False):
    """`fit` on batches of all ranks."""
    program = compiled(parallel, dropout=0.0)
    history = program.fit(
        Batches({"x": X, "y": Y}, 24, seed=1), steps=steps, checkpoints=folder, resume=resume, log=folder / "log.csv", log_every=2,
        validation=Batches({"x": X[:12], "y": Y[:12]}, 6), validate_every=2,
    )  # fmt: skip
    return {"losses": history.losses, "validation": history.validation, "checkpoint": history.checkpoint.name}


WORLDS = iter(range(10, 99))


def fresh(**how):
    """Ranks that have not met before: after an error they don't speak to each other again."""
    now = world()
    return DataParallel(world=replace(now, port=now.port + next(WORLDS)), **how)


def everything():
    """In few processes: starting them takes longer than what they do."""
    return {**train(), "uneven": uneven(), "graphs": graphs(), "disk": full_disk(), "hangs": hangs()}


def train():
    found = {
        "data": stepped(DataParallel(timeout=60)),
        "zero": stepped(ZeRO1(timeout=60)),
        "buckets": stepped(DataParallel(timeout=60, bucket_mb=1e-5)),
        "bf16": stepped(DataParallel(timeout=60, dtype="bf16")),
        "drawn": stepped(DataParallel(timeout=60), dropout=0.5),
    }
    for name, parallel in (("fit", DataParallel(timeout=60)), ("fit_zero", ZeRO1(timeout=60))):
        found[name] = trained(FOLDER / name, parallel, 4)
        found[name + "_on"] = trained(FOLDER / name, parallel, 6, resume=True)
    found["shown"] = str(compiled(DataParallel(timeout=60)).explain())
    return found


def captured():
    program = compiled(DataParallel(timeout=20))
    report = program.capture({"x": X[:8], "y": Y[:8]})
    program({"x": X[:8], "y": Y[:8]})
    graphs = sum(1 for s in report.segments if s.nodes)
    return {"graphs": graphs, "captured": report.captured, "total": report.total, "text": str(report)}


def long():
    """A thousand steps of all ranks, and the same by each alone."""
    parallel = DataParallel(timeout=60)
    together, alone = compiled(parallel), compiled(None, accumulate=parallel.ranks)
    for n in range(1000):
        parts = [
            slice(at, at + 8) for at in ((8 * parallel.ranks * n + 8 * r) % 88 for r in range(parallel.ranks))
        ]
        together({"x": X[parts[RANK]], "y": Y[parts[RANK]]})
        for part in parts:
            alone({"x": X[part], "y": Y[part]})
    return {"together": digests(together.state_dict()), "alone": digests(alone.state_dict())}


def resume():
    """Of another number of ranks."""
    return trained(FOLDER.parent / "two" / "fit_zero", DataParallel(timeout=60), 8, resume=True)


def refused(work):
    try:
        work()
    except aicf.AicfError as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None, "text": ""}


def graphs():
    """Ranks whose models differ."""
    return refused(lambda: compiled(fresh(timeout=20), width=32 if RANK == 0 else 48))


def killed():
    program = compiled(fresh(timeout=20))

    def work():
        for n in range(4):
            if n == 2 and RANK == 1:
                os._exit(7)
            float(program({"x": X[:8], "y": Y[:8]})["loss"])

    return refused(work)


def hangs():
    program = compiled(fresh(timeout=2))

    def work():
        for n in range(4):
            if n == 2 and RANK == 1:
                time.sleep(HANG)
            float(program({"x": X[:8], "y": Y[:8]})["loss"])

    return refused(work)


def full_disk():
    """A checkpoint that can't be written: all ranks stop, and no half of one is there."""
    import aicf.weights

    real = aicf.weights.save

    def save(path, arrays, metadata=None):
        Path(str(path) + ".part").write_bytes(b"half")
        Path(str(path) + ".part").unlink()
        raise aicf.errors.StateError(f"{path} can't be written: No space left on device")

    aicf.weights.save = save
    try:
        told = refused(lambda: trained(FOLDER / "disk", fresh(timeout=20), 4))
    finally:
        aicf.weights.save = real
    return {**told, "files": sorted(p.name for p in (FOLDER / "disk").glob("step-*"))}


def uneven():
    """A batch that does not divide."""
    program = compiled(fresh(timeout=20))
    return refused(lambda: program.fit(Batches({"x": X, "y": Y}, 25), steps=1))


if __name__ == "__main__":
    if DEVICE != "cpu":  # where a rank hangs is said
        faulthandler.dump_traceback_later(15)
    made = globals()[sys.argv[1]]()
    (FOLDER / f"{RANK}.json").write_text(json.dumps(made, default=float))
