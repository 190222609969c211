"""A program as HTML: the report that `program.report` writes, and what a notebook shows of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import StateError
from ...files import Bad
from ...ir import Role
from ...pages import objects, story
from ...pages.data import check_profile
from ...pages.page import write
from ...types import TensorSpec
from .explain import Explanation
from .plans import ProgramPlans


def written(explanation: Explanation, path: str | Path, profile: Mapping[str, Any] | None) -> Path:
    data = explanation.to_json()
    if profile is not None:
        try:
            check_profile(profile, data)
        except Bad as bad:
            raise StateError(
                f"this is no profile of the plan: {bad.at} is wrong", expected=bad.expected, got=bad.got,
                hint="profile a run with the sizes that are reported",
            ) from None  # fmt: skip
    return write(data, path, profile=profile)


def drawn(title: str, inputs: Mapping[str, TensorSpec], plans: ProgramPlans, frozen: int, runs: int) -> str:
    newest = plans.newest
    params = [slot.spec for slot in newest.plan.externals(Role.param)] if newest else []
    facts = [
        ("inputs", "; ".join(f"{name}: {spec}" for name, spec in inputs.items())),
        ("params", f"{sum(p.numel for p in params):,} in {len(params)}, {sum(p.nbytes for p in params):,} B" if params else ""),
        ("plans", f"{len(plans)}, {frozen} of them frozen for replays"),
        ("runs", f"{runs:,}"),
    ]  # fmt: skip
    return objects.program(facts, title, story.explanation(newest.explained().to_json()) if newest else None)
