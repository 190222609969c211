"""An explanation as data, which may come from a file made elsewhere: every field is checked before something is drawn of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from ..files import COUNT, WHOLE, Bad, has, list_of, must
from ..registry.trace import errors_of_predictions, microseconds, not_measured

Json = Mapping[str, Any]

_WORDS = must("text", lambda v: isinstance(v, str))
_MAYBE = must("text, or null", lambda v: v is None or isinstance(v, str))
_US = must("a number of microseconds", lambda v: type(v) in (int, float) and math.isfinite(v))
_FLAG = must("true or false", lambda v: isinstance(v, bool))
_FIRST = has(
    id=_WORDS,
    us=_US,
    terms=must(
        "numbers by name", lambda v: isinstance(v, dict) and all(type(n) in (int, float) for n in v.values())
    ),
)


def _is_judged(errors: Any) -> bool:
    """Of one family: what is stored for it may be more than is drawn."""
    return isinstance(errors, dict) and type(errors.get("off")) in (int, float)


_EXPLANATION = has(
    ("numerics", "measured_on", "prediction_errors"),
    prediction_errors=must("families of ops", lambda v: isinstance(v, dict) and all(_is_judged(e) for e in v.values())),
    device=_WORDS,
    measured_on=_MAYBE,
    numerics=_MAYBE,
    regions=list_of(
        has(
            ("once", "view", "rejected"), anchor=WHOLE, last=WHOLE, region=_WORDS, chosen=_WORDS, view=_FLAG, once=_FLAG,
            candidates=list_of(_FIRST), rejected=list_of(has(id=_WORDS, reason=_WORDS)),
            ended=has(("trigger", "detail"), trigger=_MAYBE, detail=_MAYBE), steps=list_of(has(("count",), op=_WORDS, count=COUNT)),
        )
    ),
)  # fmt: skip


def check_explanation(data: Any) -> None:
    """Bad, unless this is what `Explanation.to_json()` makes, in all that a comparison reads; of an older version, too, which lacked
    some of it."""
    _EXPLANATION(data, "")
    next_op = 0
    for n, region in enumerate(data["regions"]):
        if not region["candidates"]:
            raise Bad(f"regions[{n}].candidates", "the chosen kernel at least", "none")
        last = next_op + sum(step.get("count", 1) for step in region["steps"]) - 1
        if (region["anchor"], region["last"]) != (next_op, last) or not region["steps"]:
            raise Bad(f"regions[{n}]", f"ops {next_op}..{last}", f"{region['anchor']}..{region['last']}")
        next_op = last + 1


def not_measured_in(data: Json) -> str:
    """The sentence for a device whose predictions were never measured; nothing for others, and for files of versions that did not say."""
    if data.get("measured_on", "") is not None or not data["target"]:
        return ""
    return not_measured(data["device"], data["target"].get("kind", ""))


def accuracy_in(data: Json) -> str:
    """The sentence about predictions: that they were never measured, or how far off they are; nothing where the data does not say."""
    return not_measured_in(data) or errors_of_predictions(data.get("prediction_errors", {}))


_NUMBER = must("a number of 0 or more", lambda v: type(v) in (int, float) and math.isfinite(v) and v >= 0)
_WHOLES = list_of(WHOLE)
_PAIR = must(
    "two whole numbers",
    lambda v: isinstance(v, list) and len(v) == 2 and all(type(n) is int and n >= 0 for n in v),
)


def _or_none(check: Any) -> Any:
    return lambda value, at: None if value is None else check(value, at)


_DRAWN = has(
    ("recognised",),
    mode=_WORDS, plan=_WORDS, recognised=list_of(has(what=_WORDS, where=_WORDS, told=_WORDS, ops=WHOLE)),
    target=_or_none(
        has(target=_WORDS, sms=WHOLE, bandwidth=_NUMBER, l2_bytes=WHOLE, memory_bytes=WHOLE, launch_us=_NUMBER,
            tflops=must("rates by name", lambda v: isinstance(v, dict) and all(type(n) in (int, float) and 0 <= n < math.inf for n in v.values())))
    ),
    memory=has(arena=WHOLE, workspace=WHOLE, peak=WHOLE),
    fusion=has(kernels_before=WHOLE, kernels=WHOLE, bytes_before=WHOLE, bytes=WHOLE, us_before=_or_none(_NUMBER), us=_NUMBER),
    values=list_of(has(("alias_of", "offset", "life"), vid=WHOLE, name=_WORDS, type=_WORDS, role=_WORDS, bytes=WHOLE,
                       alias_of=WHOLE, offset=WHOLE, life=_PAIR)),
    regions=list_of(
        has(
            view=_FLAG, ended=has(trigger=_MAYBE, detail=_MAYBE, sentence=_WORDS), steps=list_of(has(("near", "changed"), candidates=WHOLE)), links=list_of(_PAIR), reads=_WHOLES,
            writes=_WHOLES, bytes=WHOLE, flops=WHOLE, unit=_WORDS, workspace=_or_none(_PAIR), next=_or_none(_WORDS),
            operands=list_of(_WORDS), results=list_of(_WORDS), candidates=list_of(has(us=_NUMBER, score=_NUMBER)),
            rejected=list_of(has(condition=_WORDS)),
        )
    ),
)  # fmt: skip


def check_drawn(data: Any) -> None:
    """Bad, unless it also has all that a page draws."""
    check_explanation(data)
    _DRAWN(data, "")
    known = {value["vid"] for value in data["values"]}
    for n, region in enumerate(data["regions"]):
        for what in ("reads", "writes"):
            if lost := sorted(set(region[what]) - known):
                raise Bad(f"regions[{n}].{what}", "values that are listed", lost[0])
        if any(not i < j < len(region["steps"]) for i, j in region["links"]):
            raise Bad(
                f"regions[{n}].links",
                f"pairs of steps in order, below {len(region['steps'])}",
                region["links"],
            )


_PROFILE = has(plan=_WORDS, regions=list_of(has(measured_us=_or_none(_NUMBER))))


def check_profile(profile: Any, data: Json) -> None:
    """Bad, unless this is what a profile's `to_json()` makes, in what is drawn of it, and of the same plan."""
    _PROFILE(profile, "")
    if profile["plan"] != data["plan"]:
        raise Bad("plan", f"{data['plan']}, as of the explanation", profile["plan"])
    if len(profile["regions"]) != len(data["regions"]):
        raise Bad(
            "regions", f"{len(data['regions'])} of them, as in the explanation", len(profile["regions"])
        )


def measured_by(profile: Json | None) -> list[float | None]:
    """Of each region the measured microseconds; empty without a profile."""
    return [] if profile is None else [region["measured_us"] for region in profile["regions"]]


def used_by(data: Json) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Which region makes a value, and which ones read it, in order."""
    makers: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for n, region in enumerate(data["regions"]):
        for vid in dict.fromkeys(region["reads"]):
            if vid in makers:
                readers.setdefault(vid, []).append(n)
        for vid in region["writes"]:
            makers.setdefault(vid, n)
    return makers, readers


def ops_of(region: Json) -> str:
    """`gemm + bias_add`; `reshape ×2` for one op again. A step of many ops side by side says so itself: `adam_step ×148`."""
    found = groupby(region["steps"], key=lambda step: step["op"])
    runs = [(op, len(list(steps))) for op, steps in found]
    return " + ".join(op if count == 1 else f"{op} ×{count}" for op, count in runs)


def us_of(region: Json) -> float:
    """Predicted microseconds of each run; 0 of a view, which runs nothing, and of what is computed once."""
    return 0.0 if region.get("view") or is_once(region) else float(region["candidates"][0]["us"])


def is_once(region: Json) -> bool:
    """Whether it is computed before the runs that read it, and not in each."""
    return bool(region.get("once"))


def told_time(region: Json) -> str:
    """`1.2 us`, of a region that has a kernel."""
    return microseconds(float(region["candidates"][0]["us"])) + (", once" if is_once(region) else "")


def family_of(region: Json) -> str:
    """What its kernel is built around, as the drawings colour it."""
    ops = region["region"]
    if region["view"]:
        return "view"
    if "gemm" in ops or "attention" in ops or "linear_cross_entropy" in ops:
        return "product"
    return (
        "rows"
        if any(word in ops for word in ("reduce", "softmax", "norm", "cross_entropy", "arg"))
        else "map"
    )
