"""compile: the whole chain as one readable function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..collection import uncollected
from ..config import check_settings
from ..device.runtime import runtime
from ..device.spec import DeviceSpec, preset
from ..device.tensor import Runtime
from ..dispatch import default_registry
from ..errors import DeviceError, VerifyError
from ..ir import Role, Value
from ..progress import Advance, no_progress
from ..progress import progress as line
from ..registry.index import REQUIRED, required_flags
from ..registry.naming import lacking
from ..registry.registry import KernelRegistry
from ..registry.select import Selector
from ..registry.tuning import Times, Tuning, tuning_of
from ..rows import RegionSpec
from ..rows.rows import LENGTH_LIMIT
from ..types import Precision
from .dump import OFF, Dump, begin
from .emit.builder import GraphEmitter
from .emit.parallel import Parallel
from .emit.passes import lower, makers, optimize, verify, verify_after
from .emit.policy import Policy
from .emit.trace import FED, LossLike, ModelLike, OptimizerLike, Recipe, trace
from .fuse import form_regions
from .fuse.once import Hoisting, fixed_values, split
from .fuse.price import Pricer
from .fuse.schedule import schedule
from .fuse.strided import find_views, is_strided
from .recognise.fed_rows import fed_rows
from .recognise.layout import keep_channels_last
from .recognise.run import recognise
from .run.explain import Explanation
from .run.frozen import ReplayPolicy
from .run.plan import make_plans
from .run.plans import CompiledPlan
from .run.program import Program
from .run.variables import Variables
from .tune import Ask, Question, Report
from .tune import tune as tune_regions


def compile_graph(
    recipe: Recipe,
    sizes: Mapping[str, int],
    selector: Selector,
    phase: str = "step",
    variables: Variables | None = None,
    beam: int = 1,
    hoist: bool = False,
    dump: Dump = OFF,
) -> CompiledPlan:
    """A recipe at given sizes, for a device that need not be there: model to graph to lowered ops to regions to plan.

    variables   where params and states are made
    beam        hypotheses that region forming keeps at each op
    hoist       take what depends on params, states and constants alone out of inference's runs, where that pays
    dump        where the stages are written
    """
    with uncollected():
        return _compiled(recipe, sizes, selector, phase, variables, beam, hoist, dump)


def _compiled(
    recipe: Recipe, sizes: Mapping[str, int], selector: Selector, phase: str, variables: Variables | None, beam: int, hoist: bool,
    dump: Dump,
) -> CompiledPlan:  # fmt: skip
    device, price = selector.device, Pricer(selector)

    def rewrite(ctx: GraphEmitter, results: Iterable[Value], loss: Iterable[Value]) -> None:
        graph, wanted = ctx.builder.graph, [*results, *loss]
        dump.emitted(graph)
        verify_after("emission", graph)
        moved = [] if selector.strict else keep_channels_last(ctx, wanted)
        verify_after("keeping channels last", graph)
        graph.recognised = [*moved, *recognise(ctx, wanted, price, recipe.mode != "infer", selector.strict)]
        dump.recognised(graph)
        verify_after("recognition", graph)
        if selector.invariant:
            fed_rows(ctx, wanted, fixed_values(graph, getattr(recipe.model, "weight_inputs", ())))
            verify_after("exchange of operands", graph)
            states = [
                graph.values[new]
                for old, new in graph.updates.items()
                if graph.values[old].role is not Role.fault
            ]
            forward.update(op.oid for op in makers(graph, [*results, *states]))
            emitted.update(op.oid for op in graph.ops)

    forward, emitted = set[int](), set[int]()
    graph = trace(recipe, sizes, device.kind, phase, rewrite)
    for op in graph.ops if selector.invariant else ():
        if op.oid not in forward and (recipe.mode != "infer" or op.oid in emitted):
            op.constraints = {**op.constraints, "free": True}  # the loss, and what is behind it
    dump.traced(graph)
    verify_after("what follows emission: gradients and the optimizer's step", graph)
    graph = optimize(graph)
    verify(graph)
    dump.optimized(graph)
    if variables is not None:
        variables.declare(graph)
    hoist = hoist and recipe.mode == "infer" and phase != FED
    if hoist:
        graph.fixed = frozenset(fixed_values(graph))
    lowered = find_views(lower(graph), graph, selector)
    dump.lowered(lowered, graph)
    lowered = schedule(lowered, graph)
    dump.scheduled(lowered)
    regions = form_regions(lowered, graph, selector, _checked_beam(beam))
    dump.formed(regions, selector)
    parts = split(graph, lowered, regions, device) if hoist else Hoisting(tuple(regions), ())
    plan = make_plans(graph, lowered, parts, device, recipe.mode, selector.registry)
    if variables is not None:
        variables.declare_derived(plan)
    made = CompiledPlan(plan, parts.run, tuple(graph.recognised), parts.once, parts.told, dump.watch)
    dump.planned(plan, made.explained(), selector)
    return made


def compile(
    model: ModelLike,
    mode: str = "infer",
    *,
    device: str | None = None,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    accumulate: int = 1,
    capture: str = "auto",
    static_roles: Iterable[str] | None = None,
    copy_roles: Iterable[str] | None = None,
    deterministic: bool = True,
    numerics: str | None = None,
    precision: Precision | str = Precision.exact,
    policy: Policy | str = "f32",
    beam: int = 1,
    hoist: bool = True,
    variables: Variables | Program | None = None,
    registry: KernelRegistry | None = None,
    tuning: Times | str | Path | None = None,
    tune: float | None = None,
    parallel: Parallel | None = None,
    invariant: bool = False,
) -> Program:
    """Compile a model for a device.

    mode        "infer"; "grad" also returns the gradients of all parameters; "train" also steps the optimizer
    device      "cpu", "cuda", "cuda:N" or "auto" (the default: CUDA if there is one)
    loss        needed to train and for gradients; optional when inferring. An nn.Loss, or a function of what the model returns and of inputs
    optimizer   needed to train; its learning rate and other meta-parameters are this program's own, while the optimizer's
                state of each parameter is the model's, and goes on
    accumulate  average the gradients of so many runs before each optimizer step
    capture     on CUDA, replay through graphs: "auto" captures what can be, "strict" raises for what can't, "off" nothing
    static_roles, copy_roles   which of input, param, state are used where they are, and which are copied for each replay;
                by default inputs are copied
    deterministic   equal runs give equal bits: kernels that add in an order of chance are refused. False admits them; no kernel of aicf's is one
    numerics    "fused", the default: a value that stays inside a kernel is kept as it is computed, in f32 for every float; what is stored,
                converted or compared is rounded as in memory. "strict": every op's result is rounded, and nothing is
                contracted, so that fused kernels give the bits of unfused ones
    invariant   a row's bits do not depend on how many rows there are, nor on its index: strict numerics, and for each op that adds up
                kernels of one numeric class for any number of rows. So for what the model computes, in all modes; the loss,
                gradients and the optimizer are free. `explain` shows what it costs (docs/determinism.md)
    precision   "exact"; "tf32x3" and "tf32" let products of f32 round their operands, for the sake of tensor cores
    policy      "bf16": the model computes in bf16 from parameters and inputs of f32, which are converted where they are used;
                parameters, gradients, the optimizer's state, the loss and results stay in f32. "f16": the same in f16, with a scale of
                the loss that follows the gradients. "f32" converts nothing. An aicf.Policy says it for each role
    beam        1 chooses where regions end greedily, as the ops come; more keeps so many hypotheses; 64 (LENGTH_LIMIT) is the optimum
    hoist       when inferring, compute what depends on params, states and constants alone once, not in each run, and again when these
                have changed, where the time that it saves is worth the memory. The bits of results are the same
    variables   whose params and states to use. By default all programs of one model on one device share theirs, so an
                inference program sees what a training program learns
    tuning      measured times that override predictions: a file that `aicf tune` wrote, or a `Tuning`. A file that is
                damaged, stale or of another device is refused by name
    tune        seconds in which to measure what `tuning` lacks; `program.tuning` is then all that is known
    parallel    how gradients are shared by several processes: aicf.distributed.DataParallel() or ZeRO1(). All of them compile the same
                model here, and wait for each other

    The plan for the model's own sizes is made here, so that whatever is wrong is said here. Plans for other sizes of the
    named dimensions (a last partial batch) are made when such a feed first comes.
    """
    check_settings()
    # copies: what is changed in the loss or optimizer later is not part of this program; a changed model is refused by the next run
    shared = None if mode == "infer" else parallel
    recipe = Recipe(copy(model), mode, copy(loss), copy(optimizer), accumulate, precision, policy, shared)
    replay = ReplayPolicy.of(mode, static_roles, copy_roles, capture)
    rt = runtime(device if parallel is None else parallel.place(device))
    if shared is not None:
        shared.join(rt)
        if shared.ranks > 1:
            shared.prepare(
                recipe,
                rt,
                numerics="invariant" if invariant else numerics or "fused",
                deterministic=deterministic,
                beam=beam,
            )
    required = required_flags(deterministic, capture == "strict" and rt.kind == "cuda")
    rounding = rounding_of(numerics, invariant)
    registry = default_registry() if registry is None else registry
    tuning = tuning_of(tuning, rt.spec, registry)
    if tune is not None:
        ask = _asking(recipe, rt.spec, registry, required, rounding, beam, hoist=hoist)
        with line("tuning") as advance:
            report = tune_regions(ask, rt, registry, tune, tuning, advance)
        tuning = report.usable()
    selector = Selector(registry, rt.spec, tuning, required, *rounding)
    if isinstance(variables, Program):
        variables = variables.variables
    own = (variables if variables is not None else _variables_of(model, rt)).of_program()
    if own.runtime is not rt:
        raise DeviceError(
            "these variables live on another device", expected=rt.spec.name, got=own.runtime.spec.name,
            hint="state_dict() and load_state_dict() carry them over",
        )  # fmt: skip

    def specialise(sizes: Mapping[str, int], phase: str) -> CompiledPlan:
        dump = begin(recipe, sizes, phase, selector, beam=beam, hoist=hoist)
        compiled = compile_graph(recipe, sizes, selector, phase, own, beam, hoist, dump)
        selector.trim()
        return compiled

    def in_mode(mode: str, other: ModelLike | None = None, session: Variables | None = None) -> Program:
        return compile(
            recipe.model if other is None else other, mode, device=rt.place, loss=recipe.loss if other is None else None,
            optimizer=recipe.optimizer if mode == "train" else None, capture=capture, deterministic=deterministic,
            numerics=numerics, precision=precision, policy=policy, beam=beam, hoist=hoist,
            variables=own if session is None else session, registry=registry, tuning=tuning,
            invariant=invariant,
        )  # fmt: skip

    program = Program(recipe, rt, selector.registry, own, specialise, replay, in_mode)
    program.tuning, program.model = tuning, model
    for phase in _phases(recipe) if mode == "train" else (None,):
        made = program.compiled(phase=phase)  # both, so that every variable is there from the start
        if shared is not None:
            shared.compiled(made.plan)
    return program


def tune_for(
    model: ModelLike | None,
    seconds: float,
    mode: str = "infer",
    *,
    device: str | None = None,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    accumulate: int = 1,
    numerics: str | None = None,
    precision: Precision | str = Precision.exact,
    policy: Policy | str = "f32",
    beam: int = 1,
    registry: KernelRegistry | None = None,
    tuning: Tuning | None = None,
    again: Iterable[RegionSpec] = (),
    progress: Advance = no_progress,
    invariant: bool = False,
) -> Report:
    """Measure the kernels of a model's regions; `report.tuning` has them, and `report.stopped` what broke it off.

    tuning  is taken over: what it has is not measured again
    again   regions to measure beside those of the model
    """
    rt, registry = runtime(device), default_registry() if registry is None else registry
    recipe = (
        Recipe(model, mode, loss, optimizer, accumulate, precision, policy) if model is not None else None
    )
    rounding = rounding_of(numerics, invariant)
    ask = _asking(recipe, rt.spec, registry, REQUIRED, rounding, beam, tuple(again))
    return tune_regions(ask, rt, registry, seconds, tuning, progress)


def _asking(
    recipe: Recipe | None, device: DeviceSpec, registry: KernelRegistry, required: frozenset[str], rounding: tuple[bool, bool], beam: int,
    again: Iterable[RegionSpec] = (), hoist: bool = True,
) -> Ask:  # fmt: skip
    """What tuning asks again and again: which regions are formed and weighed, given what was measured so far."""

    def ask(tuning: Times | None) -> Question:
        selector = Selector(registry, device, tuning, required, *rounding)
        plan = []
        if recipe is not None:
            for phase in _phases(recipe):
                made = compile_graph(recipe, recipe.model.sizes, selector, phase, beam=beam, hoist=hoist)
                plan += [r.selection for r, step in zip(made.regions, made.plan.steps) if step.kernel_id]
        for region in again:
            selector.ask(region)
        measurable = [[s for s in asked if not is_strided(s.region)] for asked in (plan, selector.asked)]
        return Question(*map(tuple, measurable))

    return ask


def _phases(recipe: Recipe) -> tuple[str, ...]:
    return ("step", "accumulate") if recipe.accumulate > 1 else ("step",)


def explain_for(
    model: ModelLike,
    device: DeviceSpec | str,
    mode: str = "infer",
    *,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    accumulate: int = 1,
    numerics: str | None = None,
    precision: Precision | str = Precision.exact,
    policy: Policy | str = "f32",
    beam: int = 1,
    hoist: bool = True,
    registry: KernelRegistry | None = None,
    tuning: Times | str | Path | None = None,
    without: Iterable[str] = (),
    parallel: Parallel | None = None,
    deterministic: bool = True,
    invariant: bool = False,
) -> Explanation:
    """The choices for a device that need not be there: selection asks no driver and compiles nothing.

    device   a DeviceSpec, or the name of a preset, such as "h200"; the rest as for `compile`
    without  kernels that are to be as if they did not exist: ids, names or patterns such as "gemm_wgmma*"
    parallel how gradients are shared, by ranks that need not be there: DataParallel(world=World(size=64))
    """
    registry = lacking(default_registry() if registry is None else registry, without)
    how = loss, optimizer, accumulate, numerics, precision, policy, beam, hoist, registry, tuning
    more: dict[str, Any] = {"parallel": parallel, "deterministic": deterministic}
    made, _ = _compiled_for(model, device, mode, *how, **more, invariant=invariant)
    if not invariant:
        return made.explained()
    free, _ = _compiled_for(model, device, mode, *how, **more)
    return replace(made.explained(), free_us=free.explained().predicted_us)


def dump_for(
    model: ModelLike,
    device: DeviceSpec | str,
    into: str | Path,
    mode: str = "infer",
    *,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    accumulate: int = 1,
    numerics: str | None = None,
    precision: Precision | str = Precision.exact,
    policy: Policy | str = "f32",
    beam: int = 1,
    hoist: bool = True,
    registry: KernelRegistry | None = None,
    tuning: Times | str | Path | None = None,
    without: Iterable[str] = (),
    name: str = "",
    deterministic: bool = True,
    invariant: bool = False,
) -> Path | None:
    """The stages and kernels of a model for a device that need not be there, as files in a fresh folder of `into`: as AICF_DUMP
    has programs write them, but for the first run. The folder; None if it can't be written, which is told of.

    name     of the model, for that of the folder
    without  as of `explain_for`: the way to the code of a kernel that is not chosen
    """
    registry = lacking(default_registry() if registry is None else registry, without)
    how = loss, optimizer, accumulate, numerics, precision, policy, beam, hoist, registry, tuning
    more: dict[str, Any] = {"deterministic": deterministic, "invariant": invariant}
    return _compiled_for(model, device, mode, *how, Path(into), name, **more)[1].path


def _compiled_for(
    model: ModelLike, device: DeviceSpec | str, mode: str, loss: LossLike | None, optimizer: OptimizerLike | None,
    accumulate: int, numerics: str | None, precision: Precision | str, policy: Policy | str, beam: int, hoist: bool,
    registry: KernelRegistry | None, tuning: Times | str | Path | None, into: Path | None = None, name: str = "", parallel: Parallel | None = None,
    deterministic: bool = True, invariant: bool = False,
) -> tuple[CompiledPlan, Dump]:  # fmt: skip
    recipe = Recipe(
        model, mode, loss, optimizer, accumulate, precision, policy, None if mode == "infer" else parallel
    )
    spec = device if isinstance(device, DeviceSpec) else preset(device)
    registry = default_registry() if registry is None else registry
    required = required_flags(deterministic)
    rounding = rounding_of(numerics, invariant)
    selector = Selector(registry, spec, tuning_of(tuning, spec, registry), required, *rounding)
    dump = OFF
    if into is not None:
        dump = begin(recipe, model.sizes, "step", selector, into=into, name=name, beam=beam, hoist=hoist)
    return compile_graph(recipe, model.sizes, selector, beam=beam, hoist=hoist, dump=dump), dump


def _checked_beam(beam: Any) -> int:
    if type(beam) is not int or beam < 1:
        raise VerifyError(
            f"beam={beam!r}", expected=f"a whole number of 1 or more; 1 is greedy, {LENGTH_LIMIT} the optimum"
        )
    return beam


def rounding_of(numerics: str | None, invariant: bool) -> tuple[bool, bool]:
    """(strict, invariant), as a Selector takes them; VerifyError where they contradict each other."""
    if numerics not in (None, "fused", "strict"):
        raise VerifyError(f"numerics {numerics!r} is unknown", expected="fused, strict")
    if not isinstance(invariant, bool):
        raise VerifyError(f"invariant={invariant!r}", expected="True or False")
    if invariant and numerics == "fused":
        raise VerifyError(
            'invariant=True with numerics="fused"', expected="strict numerics, which invariant rows imply",
            hint="leave numerics out, or invariant",
        )  # fmt: skip
    return invariant or numerics == "strict", invariant


def _variables_of(model: Any, rt: Runtime) -> Variables:
    """The model keeps one set of variables for each device."""
    held: dict[int, Variables] = model.__dict__.setdefault("_variables", {})
    return held.setdefault(id(rt), Variables(rt, model.seed, initial=getattr(model, "initial", None)))
