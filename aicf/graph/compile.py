"""compile: the whole chain as one readable function (C4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

from ..device.runtime import Runtime, runtime
from ..device.spec import DeviceSpec, preset
from ..dispatch import default_registry
from ..errors import DeviceError, VerifyError
from ..registry.registry import KernelRegistry
from ..registry.select import Selector, Tuning, log_choice
from .build.passes import lower, optimize, verify
from .build.trace import LossLike, ModelLike, OptimizerLike, Recipe, trace
from .fuse import form_regions
from .run.explain import Explanation, explain
from .run.frozen import ReplayPolicy
from .run.plan import make_plan
from .run.program import CompiledPlan, Program
from .run.variables import Variables


def compile_graph(
    recipe: Recipe,
    sizes: Mapping[str, int],
    selector: Selector,
    phase: str = "step",
    variables: Variables | None = None,
    renew: bool = False,
    beam: int = 1,
) -> CompiledPlan:
    """A recipe at given sizes, for a device that need not be there: model to graph to lowered ops to regions to plan.

    variables   where params and states are made; `renew` sets those meta-parameters anew that are there already
    beam        hypotheses that region forming keeps at each op
    """
    device = selector.device
    graph = trace(recipe, sizes, device.kind, phase)
    graph = optimize(graph)
    verify(graph)
    if variables is not None:
        variables.declare(graph, renew)
    lowered = lower(graph)
    regions = form_regions(lowered, graph, selector, beam)
    plan = make_plan(graph, lowered, regions, device, recipe.mode, selector.registry)
    return CompiledPlan(plan, tuple(regions))


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
    deterministic: bool = False,
    numerics: str = "fused",
    beam: int = 1,
    variables: Variables | Program | None = None,
    registry: KernelRegistry | None = None,
    tuning: Tuning | None = None,
) -> Program:
    """Compile a model for a device.

    mode        "infer"; "grad" also returns the gradients of all parameters; "train" also steps the optimizer
    device      "cpu", "cuda", "cuda:N" or "auto" (the default: CUDA if there is one)
    loss        needed to train and for gradients; optional when inferring
    optimizer   needed to train; its learning rate and other meta-parameters replace those of an earlier program of the
                model, while the optimizer's state of each parameter goes on
    accumulate  average the gradients of so many runs before each optimizer step
    capture     on CUDA, replay through graphs: "auto" captures what can be, "strict" raises for what can't, "off" nothing
    static_roles, copy_roles   which of input, param, state are used where they are, and which are copied for each replay;
                by default inputs are copied (C10)
    deterministic   admit only variants whose results repeat bit for bit (C12)
    numerics    "fused": a value that stays inside a kernel is kept as it is computed, in f32 for every float; what is stored,
                converted or compared is rounded as in memory. "strict": every op's result is rounded, and nothing is
                contracted, so that fused kernels give the bits of unfused ones (A15)
    beam        1 chooses where regions end greedily, as the ops come; more keeps so many hypotheses (A10); 16 is the optimum
    variables   whose params and states to use. By default all programs of one model on one device share theirs, so an
                inference program sees what a training program learns

    The plan for the model's own sizes is made here, so that whatever is wrong is said here. Plans for other sizes of the
    named dimensions (a last partial batch) are made when such a feed first comes.
    """
    # copies: what is changed in the model, loss or optimizer later is not part of this program
    recipe = Recipe(copy(model), mode, copy(loss), copy(optimizer), accumulate)
    policy = ReplayPolicy.of(mode, static_roles, copy_roles, capture)
    rt = runtime(device)
    required = {"deterministic": deterministic, "capture_safe": capture == "strict" and rt.kind == "cuda"}
    selector = Selector(
        registry or default_registry(),
        rt.spec,
        tuning,
        frozenset(flag for flag, wanted in required.items() if wanted),
        strict=_is_strict(numerics),
    )
    if isinstance(variables, Program):
        variables = variables.variables
    shared = variables if variables is not None else _variables_of(model, rt)
    if shared.runtime is not rt:
        raise DeviceError(
            "these variables live on another device", expected=rt.spec.name, got=shared.runtime.spec.name,
            hint="state_dict() and load_state_dict() carry them over",
        )  # fmt: skip
    starting = True

    def specialise(sizes: Mapping[str, int], phase: str) -> CompiledPlan:
        compiled = compile_graph(recipe, sizes, selector, phase, shared, renew=starting, beam=beam)
        for region in compiled.regions:
            log_choice(region.selection, hex(rt.stream_id))
        return compiled

    program = Program(recipe, rt, selector.registry, shared, specialise, policy)
    for phase in ("step", "accumulate") if accumulate > 1 else ("step",):
        program.compiled(phase=phase)  # both, so that every variable is there from the start
    starting = False
    return program


def explain_for(
    model: ModelLike,
    device: DeviceSpec | str,
    mode: str = "infer",
    *,
    loss: LossLike | None = None,
    optimizer: OptimizerLike | None = None,
    numerics: str = "fused",
    beam: int = 1,
    registry: KernelRegistry | None = None,
) -> Explanation:
    """The choices for a device that need not be there (F6): selection asks no driver and compiles nothing.

    device  a DeviceSpec, or the name of a preset, such as "h200"; the rest as for `compile`
    """
    recipe = Recipe(model, mode, loss, optimizer)
    spec = device if isinstance(device, DeviceSpec) else preset(device)
    selector = Selector(registry or default_registry(), spec, strict=_is_strict(numerics))
    compiled = compile_graph(recipe, model.sizes, selector, beam=beam)
    return explain(compiled.plan, compiled.regions)


def _is_strict(numerics: str) -> bool:
    if numerics not in ("fused", "strict"):
        raise VerifyError(f"numerics {numerics!r} is unknown", expected="fused, strict")
    return numerics == "strict"


def _variables_of(model: Any, rt: Runtime) -> Variables:
    """The model keeps one set of variables for each device."""
    held: dict[int, Variables] = model.__dict__.setdefault("_variables", {})
    return held.setdefault(id(rt), Variables(rt, model.seed))
