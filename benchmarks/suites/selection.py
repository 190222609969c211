"""Is the kernel that selection takes the best there is? Every kernel that takes a region is checked and timed there, but for
those that are predicted to take more than twice what the best one is.

Regret is how much longer the chosen kernel takes than the best one. Untuned, the choice is by prediction alone; tuned, by the
times of a first half of the repetitions, through the same selection. Both are judged on the second half, which has graphs of its own:
two graphs of one kernel of 2 us may differ by more than their samples. What is within the spread of both halves is a tie and no regret;
the note has the difference all the same.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import aicf
from aicf import nn
from aicf.device.runtime import runtime
from aicf.graph.compile import compile_graph
from aicf.graph.emit.passes import lower, optimize, verify
from aicf.graph.emit.trace import Recipe, trace
from aicf.graph.fuse import form_regions
from aicf.graph.fuse.schedule import schedule
from aicf.graph.run.program import Program
from aicf.ir import Graph, LoweredOp
from aicf.registry.select import Selection, Selector, select
from aicf.registry.variant import KernelVariant, one_op
from aicf.rows import LENGTH_LIMIT, RegionSpec

from .. import sides
from ..harness import Bench, Case, Suite, WrongResult
from ..harness import verify as check
from ..instances import Instance, instances, work
from ..kernel_runs import KernelRuns
from ..mlps import DIGITS, SMALL, WIDE, Mlp
from ..results import Row, failed, row
from ..stats import Sample, Stats, enough, wall

UNTUNED, TUNED = "regret of the untuned choice", "regret after tuning"
ALONE = "one kernel per op"
ROUNDS = 7  # in each half
HOPELESS = 5.0  # a kernel whose first run is so many times the best one's is not sampled
ABSURD = 2.0  # one that is predicted to take so many times what the best one is, is not run
HOST_WORK = 2e9  # bytes and flops of the largest region on the CPU
OPTIMUM = LENGTH_LIMIT  # hypotheses that keep every region


def cases(bench: Bench) -> list[Case]:
    all_cases = [
        Case(f"fusion of {mlp.name}, {mlp.dtype}", _fusion(mlp), seconds=5.0) for mlp in _nets(bench)
    ]
    for what, sizes in ((REPEATED, (1000, 10_000)), (DISTINCT, (1000, 3000))):
        for n in (200,) if bench.tiny else sizes:
            all_cases.append(Case(f"selection, {n} ops, {what}", _speed(n, what)))
    for what in (REPEATED, DISTINCT):
        n = 200 if bench.tiny else 10_000
        all_cases.append(Case(f"compilation, {n} mixed ops, {what}", _compiling(n, what), seconds=30.0))
    all_cases.append(Case("greedy against the optimum", _greedy))
    families: dict[str, list[Instance]] = {}
    for instance in _chosen(bench):
        families.setdefault(instance.family, []).append(instance)
    return all_cases + [Case(name, partial(_regrets, name, found)) for name, found in families.items()]


def _nets(bench: Bench) -> tuple[Mlp, ...]:
    if bench.tiny:
        return (SMALL,)
    return (DIGITS, WIDE, replace(WIDE, dtype="f16")) if bench.on_gpu else (DIGITS, WIDE)


def _chosen(bench: Bench) -> list[Instance]:
    """All instances; on the CPU those that it does in a moment."""
    if bench.on_gpu and not bench.tiny:
        return instances()
    limit = 2e5 if bench.tiny else HOST_WORK
    feasible = [i for i in instances() if work(i.region("cpu")) <= limit]
    return feasible[:: len(feasible) // 8] if bench.tiny else feasible


# --- regret -----------------------------------------------------------------------------------------------------------


def _regrets(family: str, wanted: Sequence[Instance], bench: Bench) -> Iterator[Row]:
    """Two rows for a family, with the results of each instance in the first."""
    runs, judged = KernelRuns(bench), []
    chosen = {i: select(i.region(runs.runtime.kind), runs.spec, runs.registry) for i in wanted}
    runs.prepare(
        [(c.variant.id, s.region) for s in chosen.values() for c in s.ranked if not is_absurd(s, c.us)]
    )
    for instance, selection in chosen.items():
        if bench.left <= 0:
            yield {"case": instance.name, "why": f"the budget of {bench.budget:g} s was spent"}
            continue
        try:
            judged.append(regret(instance.name, selection, runs, instance.shift))
        except WrongResult as error:
            yield failed(instance.name, f"WrongResult: {error}")
    if judged:
        for what, key in ((UNTUNED, "regret"), (TUNED, "tuned")):
            values = [i[key] for i in judged]
            worst = max(judged, key=lambda i: i[key])["name"]
            note = f"{_percentile(values)}; worst {worst}, {max(values):.1%}{_ties(judged, key)}"
            stats = Stats(100 * _mean(values), 0.0, len(values))
            total = row(f"{family}: {what}", "%", stats, note=note, kernels=_kernels(judged))
            yield {**total, "instances": judged} if key == "regret" else total


def _kernels(judged: Iterable[Mapping[str, Any]]) -> set[str]:
    return {i[which] for i in judged for which in ("chosen", "best")}


def is_absurd(selection: Selection, us: float) -> bool:
    return us > ABSURD * selection.chosen.us


def regret(name: str, selection: Selection, runs: KernelRuns, shift: int = 0) -> dict[str, Any]:
    """What was chosen, what is best, and the times of all, predicted and measured."""
    bench, region = runs.bench, selection.region
    candidates = [c for c in selection.ranked if not is_absurd(selection, c.us)]
    table = runs.table(region, shift)
    bound = {c.variant.id: table.checked(c.variant.id) for c in candidates}
    best = min(b.seconds for b in bound.values())
    sampled = {id for id, b in bound.items() if b.seconds <= HOPELESS * best} | {selection.kernel_id}
    first, second = (bench.compare({id: runs.sample(bound[id]) for id in sampled}, ROUNDS) for _ in range(2))
    times = {id: b.seconds for id, b in bound.items()} | {id: s.median for id, s in second.items()}
    measured = {(region.key, id): s.median * 1e6 for id, s in first.items()}
    tuned = _tuned(region, selection, measured, runs)
    fastest = min(times, key=times.__getitem__)
    longer = {id: round(times[id] / times[fastest] - 1, 4) for id in (selection.kernel_id, tuned)}
    shown = {id: 0.0 if _tie(id, fastest, first, second) else longer[id] for id in longer}
    texts = [f"{c.variant.id} {times[c.variant.id] * 1e6:.4g} ({c.us:.4g})" for c in candidates]
    return {
        "name": name, "chosen": selection.kernel_id, "best": fastest,
        "regret": shown[selection.kernel_id], "regret_with_ties": longer[selection.kernel_id],
        "tuned": shown[tuned], "tuned_with_ties": longer[tuned],
        "us": ", ".join(texts),
        "times": {id: round(s * 1e6, 3) for id, s in times.items()},
    }  # fmt: skip


def _tuned(
    region: RegionSpec, untuned: Selection, measured: dict[tuple[str, str], float], runs: KernelRuns
) -> str:
    """The choice with these times; kernels that were not worth sampling are out of it."""
    ids = {id for _, id in measured}
    tried = aicf.KernelRegistry(c.variant for c in untuned.ranked if c.variant.id in ids)
    return select(region, runs.spec, tried, measured).kernel_id


def _tie(id: str, best: str, *halves: Mapping[str, Stats]) -> bool:
    """Whether the middle halves of samples, from the lower of two graphs to the higher, meet."""
    lowest = min(half[id].median - half[id].iqr / 2 for half in halves)
    return lowest <= max(half[best].median + half[best].iqr / 2 for half in halves)


def _ties(judged: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [i[f"{key}_with_ties"] for i in judged if f"{key}_with_ties" in i]
    return f"; {_mean(values):.1%} if ties count" if values else ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _percentile(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"95th percentile {ordered[-(-95 * len(ordered) // 100) - 1]:.1%}, of {len(ordered)}"


def summary(rows: Iterable[Row]) -> list[Row]:
    """Over all instances of all families, whatever shards they were measured in."""
    judged = [i for r in rows for i in r.get("instances", ())]
    totals = []
    for what, key in ((UNTUNED, "regret"), (TUNED, "tuned")) if judged else ():
        values = [i[key] for i in judged]
        best = f"{sum(v == 0 for v in values) / len(values):.0%} are the best"
        note = f"{_percentile(values)}; {best}{_ties(judged, key)}"
        stats = Stats(100 * _mean(values), 0.0, len(values))
        totals.append(row(f"all regions: {what}", "%", stats, note=note, kernels=_kernels(judged)))
    return totals


# --- fusion -----------------------------------------------------------------------------------------------------------


CORES = {"map", "gemm", "reduce", "rows"}  # structures that a region of one op may have


def held_to_one_op(device: str) -> aicf.KernelRegistry:
    """The same variants, each for regions of one op."""

    def alone(v: KernelVariant) -> KernelVariant:
        def accepts(region: RegionSpec) -> Iterator[Any]:
            yield one_op(region)
            yield from v.accepts(region)

        def viable(region: RegionSpec) -> Iterator[Any]:
            yield one_op(region)
            yield from v.viable(region) if v.viable else ()

        structures = tuple(t for t in v.takes if t in CORES)
        return replace(v, accepts=accepts, viable=viable if v.viable else None, takes=structures)

    variants = (v for v in aicf.default_registry() if v.device == device)
    return aicf.KernelRegistry(alone(v) for v in variants if not v.takes or CORES.intersection(v.takes))


def _fusion(mlp: Mlp):
    """A training step with and without fusion; both start alike, and their losses are compared first."""
    case = f"train step of {mlp.name}, {mlp.dtype}"

    def measure(bench: Bench) -> Iterator[Row]:
        kind = runtime(bench.device).kind
        capture = "auto" if bench.on_gpu else "off"
        fused = mlp.program(bench.device, capture=capture)
        unfused = mlp.program(bench.device, capture=capture, registry=held_to_one_op(kind))
        batch: dict[str, Any] = dict(zip("xy", mlp.batch_of(bench.rng)))
        if bench.on_gpu:
            batch = {name: bench.lab.torch.from_numpy(a).to(bench.lab.device) for name, a in batch.items()}
        losses = [[float(program(batch)["loss"]) for _ in range(3)] for program in (fused, unfused)]
        check(f"{case}: losses", losses[0], losses[1], mlp.tolerance)
        times = bench.compare(_steps(bench, {"aicf": fused, ALONE: unfused}, batch))
        gain = fused.explain().gain
        note = f"{gain.kernels_before} kernels, {gain.bytes_before:,} B before; {gain.kernels}, {gain.bytes:,} B fused"
        kernels = *fused.plan.kernel_ids, *unfused.plan.kernel_ids
        yield row(case, "us", times["aicf"].per(1e-6), ALONE, times[ALONE].per(1e-6), note, kernels)

    return measure


def _steps(bench: Bench, programs: dict[str, Program], feed: dict[str, Any]) -> dict[str, Sample]:
    """Samples of the kernels of one step: a graph's device time, or a walk on the host."""
    if bench.on_gpu:
        graphs = {name: sides.captured(program, feed)[0] for name, program in programs.items()}
        return {name: bench.lab.device_time(launch, 1, calls=20) for name, launch in graphs.items()}
    walks = {name: sides.walked(program, feed)[0] for name, program in programs.items()}
    calls = max(enough(walk, 1e-3 if bench.tiny else 0.02) for walk in walks.values())  # the same for both
    return {name: wall(walk, calls) for name, walk in walks.items()}


# --- selection itself -------------------------------------------------------------------------------------------------

REPEATED, DISTINCT = "layers alike", "no two layers alike"
OPS_PER_LAYER = 8.0  # of a layer of the MLP in a training step


def _scheduled(model: Any, device: str, **more: Any) -> tuple[list[LoweredOp], Graph]:
    graph = verify(optimize(trace(Recipe(model, "train", **more), model.sizes, device)))
    return schedule(lower(graph), graph), graph


def _deep(layers: int, distinct: bool, batch: int = 4) -> nn.Model:
    """Linear and ReLU again and again, of one width or of no two alike."""
    widths = [8 + n if distinct else 8 for n in range(layers + 1)]
    model = nn.Model({"x": aicf.TensorSpec(("batch", widths[0]))}, batch=batch)
    for width_in, width_out in pairwise(widths):
        model.add(nn.Linear(width_in, width_out)).add(nn.ReLU())
    return model


def _speed(n: int, what: str):
    """Regions of a training step of about n ops, none of them selected before: time for each op."""

    def measure(bench: Bench) -> Iterator[Row]:
        spec, registry = runtime(bench.device).spec, aicf.default_registry()
        layers = max(2, round(n / OPS_PER_LAYER))
        batches = count(4)  # each sample has products of its own: what is remembered of others is no use

        def sample() -> float:
            model = _deep(layers, what == DISTINCT, next(batches))
            ops, graph = _scheduled(model, spec.kind, loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.1))
            sizes.append(len(ops))
            gc.enable()  # as it is for whoever compiles
            start = time.process_time()  # of this process: other programs don't count
            form_regions(ops, graph, Selector(registry, spec))
            seconds = time.process_time() - start
            gc.disable()
            return seconds / len(ops)

        sizes: list[int] = []
        found = bench.compare({"aicf": sample}, 3)["aicf"]
        yield row(
            f"selection, {n} ops, {what}: each op",
            "us",
            found.per(1e-6),
            note=f"{sizes[-1]} ops, {layers} layers",
            kernels=(),
        )

    return measure


MIXED_PER_LAYER = 16.8  # ops of a layer of `_mixed` in a training step


class _Around(nn.Layer):
    """Maps, a reduction and views around each other: what no GEMM takes along."""

    def emit(self, ctx: Any, x: Any) -> Any:
        kept = ctx.transpose(ctx.tanh(ctx.transpose(x, perm=(1, 0))), perm=(1, 0))
        return ctx.add(ctx.softmax(x), ctx.mul(kept, ctx.exp(ctx.neg(ctx.abs(x)))))


def _mixed(layers: int, distinct: bool, batch: int) -> nn.Model:
    """GEMMs with several activations; every third layer a norm, every fifth softmax, maps and views."""
    widths = [64 + (4 * n if distinct else 0) for n in range(layers + 1)]
    model = nn.Model({"x": aicf.TensorSpec(("batch", widths[0]))}, batch=batch)
    activations = nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh
    for n, (width_in, width_out) in enumerate(pairwise(widths)):
        model.add(nn.Linear(width_in, width_out)).add(activations[n % len(activations)]())
        if n % 3 == 0:
            model.add(nn.LayerNorm(width_out))
        if n % 5 == 0:
            model.add(_Around())
    return model


def _compiling(n: int, what: str):
    """A training step of about n ops, from the model to the plan: CPU time of selection for each op, and of everything else."""

    def measure(bench: Bench) -> Iterator[Row]:
        spec, registry = runtime(bench.device).spec, aicf.default_registry()
        layers, batches = max(2, round(n / MIXED_PER_LAYER)), count(4)
        how: dict[str, Any] = {"loss": nn.MeanSquaredError(), "optimizer": nn.AdamW(1e-3)}

        def sample() -> tuple[float, float, int]:
            recipe = Recipe(_mixed(layers, what == DISTINCT, next(batches)), "train", **how)
            selector, began = Selector(registry, spec), time.process_time()
            with watched(form_regions) as selecting:
                made = compile_graph(recipe, recipe.model.sizes, selector)
            seconds = time.process_time() - began
            ops = sum(len(step.ops) for step in made.plan.steps)
            return selecting[0], seconds - selecting[0], ops

        gc.enable()  # as it is for whoever compiles
        taken = [sample() for _ in range(1 if bench.tiny else 3)]
        gc.disable()
        ops = taken[-1][2]
        for name, unit, values in (
            ("selection, each op", "us", [1e6 * selecting / ops for selecting, _, _ in taken]),
            ("everything else", "s", [rest for _, rest, _ in taken]),
        ):
            stats = Stats(sorted(values)[len(values) // 2], max(values) - min(values), len(values))
            note = f"{ops} ops, {layers} layers"
            yield row(f"compilation, {n} mixed ops, {what}: {name}", unit, stats, note=note, kernels=())

    return measure


@contextmanager
def watched(stage: Callable[..., Any]) -> Iterator[list[float]]:
    """CPU seconds that `compile_graph` spends in one of its stages."""
    seconds = [0.0]

    def timed(*args: Any) -> Any:
        began = time.process_time()
        made = stage(*args)
        seconds[0] += time.process_time() - began
        return made

    chain = vars(sys.modules[compile_graph.__module__])
    chain[stage.__name__] = timed
    try:
        yield seconds
    finally:
        chain[stage.__name__] = stage


def _greedy(bench: Bench) -> Iterator[Row]:
    """What the models' regions are predicted to take in all: one hypothesis, four, and the optimum over intervals."""
    spec, registry = runtime(bench.device).spec, aicf.default_registry()
    for mlp in _nets(bench):
        model = mlp.model()
        ops, graph = _scheduled(
            model, spec.kind, loss=nn.SoftmaxCrossEntropy(),
            optimizer=nn.SGD(0.1) if mlp.optimizer == "sgd" else nn.AdamW(),
        )  # fmt: skip
        us = {
            k: sum(r.selection.chosen.us for r in form_regions(ops, graph, Selector(registry, spec), k))
            for k in (1, 4, OPTIMUM)
        }
        for k in (1, 4):
            over = 100 * (us[k] / us[OPTIMUM] - 1)
            note = f"predicted {us[k]:.4g} us, optimum {us[OPTIMUM]:.4g} us"
            yield row(
                f"{mlp.name}, {mlp.dtype}: beam {k} over the optimum", "%", Stats(over), note=note, kernels=()
            )


SUITE = Suite(
    "selection", "regret of the choice among kernels against the best one, fusion's gain, time of selection itself", 460,
    cases, summary=summary, compared=lambda row: False,
    headlines=(
        ("all regions: " + UNTUNED, None), ("all regions: " + TUNED, None),
    ),
)  # fmt: skip
