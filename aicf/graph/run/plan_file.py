"""A plan in JSON: every field checked, then all that the executor relies on (plan_check.py), before anything is bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import VerifyError
from ...files import COUNT, TEXT, WHOLE, Bad, anything, list_of, must, parse_json, record, shown
from ...ir import Role
from ...registry.ids import current
from ...rows.region_file import DTYPE, REGION, SIZES, region_of
from ...types import DType, TensorSpec
from .plan import PLAN_VERSION, ExecPlan, Slot, Step, Workspace
from .plan_check import PlanCheck, check_numbers, check_setup


def _maybe(check: Any) -> Any:
    return lambda value, at: None if value is None else check(value, at)


_ROLES = tuple(role.value for role in Role)
_PLAN = record(
    ("setup",),
    setup=anything,  # a plan: see `_plan_of`
    version=COUNT,
    mode=must("infer, grad or train", lambda v: v in ("infer", "grad", "train")),
    device=TEXT,
    slots=list_of(
        record(
            ("start", "stride"),
            vid=WHOLE, name=TEXT, shape=SIZES, dtype=DTYPE, role=must("one of " + ", ".join(_ROLES), lambda v: v in _ROLES),
            offset=_maybe(WHOLE), alias_of=_maybe(WHOLE),
            alignment=must("0, or a power of two up to 256", lambda v: type(v) is int and v in (0, *(2**n for n in range(9)))),
            start=WHOLE, stride=SIZES,
        )
    ),
    steps=list_of(
        record(("workspace",), **{
            "anchor": WHOLE, "last": WHOLE, "region": REGION, "kernel": must("text", lambda v: isinstance(v, str)),
            "in": SIZES, "out": SIZES, "workspace": must("an offset and bytes", lambda v: isinstance(v, list) and [type(i) for i in v] == [int, int]),
        })
    ),
    updates=list_of(must("two slots", lambda v: isinstance(v, list) and [type(i) for i in v] == [int, int])),
    arena_bytes=WHOLE,
)  # fmt: skip


def parse(text: str) -> ExecPlan:
    """The plan; VerifyError names the first thing that is wrong with it."""
    hint = "ExecPlan.to_json writes a plan; compile the model again and save its plan"
    try:
        data = parse_json(text)
    except (TypeError, ValueError) as error:
        raise VerifyError("this is no plan: it is not JSON", got=str(error), hint=hint) from None
    if not isinstance(data, dict) or "version" not in data:
        raise VerifyError(
            "this is no plan", expected='an object with a "version"', got=shown(data), hint=hint
        )
    if data["version"] != PLAN_VERSION or type(data["version"]) is not int:
        raise VerifyError(
            "this plan has another version", expected=PLAN_VERSION, got=shown(data["version"]), hint=hint
        )
    try:
        plan = _plan_of(data)
        if plan.setup is not None:
            check_setup(plan, plan.setup)
        check_numbers([*plan.steps, *(plan.setup.steps if plan.setup else ())])
        PlanCheck(plan).run()
    except Bad as bad:
        raise VerifyError(
            f"this is no plan that can be run: {bad.at} is wrong", expected=bad.expected, got=shown(bad.got), hint=hint
        ) from None  # fmt: skip
    return plan


def _plan_of(data: Mapping[str, Any], nested: bool = False) -> ExecPlan:
    """Of data whose fields are checked here, and nothing else."""
    _PLAN(data, "")
    first = None
    if "setup" in data:
        if nested:
            raise Bad("setup", "none of a setup", "a plan")
        try:
            first = _plan_of(data["setup"], nested=True)
        except Bad as bad:
            raise Bad(f"setup.{bad.at}".rstrip("."), bad.expected, bad.got) from None
    device = data["device"]
    kind = "cpu" if device == "cpu" else "cuda"
    slots: dict[int, Slot] = {}
    for n, s in enumerate(data["slots"]):
        if s["vid"] in slots:
            raise Bad(f"slots[{n}].vid", "each slot once", s["vid"])
        spec = TensorSpec(tuple(s["shape"]), DType[s["dtype"]], kind)
        strides = (s["start"], tuple(s["stride"])) if "start" in s and "stride" in s else ()
        place = s["offset"], s["alias_of"], s["alignment"], *strides
        slots[s["vid"]] = Slot(s["vid"], s["name"], spec, Role(s["role"]), *place)
    steps = [
        Step(
            s["anchor"], s["last"], region_of(s["region"], f"steps[{n}].region"), current(s["kernel"]), tuple(s["in"]), tuple(s["out"]),
            workspace=Workspace(*s["workspace"]) if "workspace" in s else None,
        )
        for n, s in enumerate(data["steps"])
    ]  # fmt: skip
    updates = dict(map(tuple, data["updates"]))
    if len(updates) != len(data["updates"]):
        raise Bad("updates", "each state once", data["updates"])
    return ExecPlan(data["mode"], device, slots, tuple(steps), updates, data["arena_bytes"], setup=first)
