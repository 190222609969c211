"""Groups of parameters that an optimizer steps in their own way, such as biases and norms that do not decay."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from . import checks

SCALE, DECAY = "lr_scale", "weight_decay"


@dataclass(frozen=True)
class ParamGroup:
    """Parameters with a learning rate or a weight decay of their own. A parameter is in the first group that names it.

    use           what parameters are for: "bias", "norm", "embedding", "weight" in the layers of nn, or what `ctx.param(use=…)` said
    names         patterns of their names: "head.*", "blocks.0.*"
    where         a function of the parameter, which has a name, a shape, a dtype and a use, that says whether it is in the group
    lr_scale      what the optimizer's learning rate is multiplied by
    weight_decay  in place of the optimizer's
    name          `program.set` calls these two `<name>_lr_scale` and `<name>_weight_decay`; group0, group1, … if it is not given

        nn.AdamW(3e-4, weight_decay=0.1, groups=[nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)])
    """

    use: str | Sequence[str] = ()
    names: str | Sequence[str] = ()
    where: Callable[[Value], bool] | None = None
    lr_scale: float | None = None
    weight_decay: float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for what in ("use", "names"):
            object.__setattr__(self, what, _texts(what, getattr(self, what)))
        if self.where is not None and not callable(self.where):
            raise VerifyError(
                f"ParamGroup: where={self.where!r}", expected="a function of a parameter", hint="where=lambda p: p.rank < 2"
            )  # fmt: skip
        if not self.use and not self.names and self.where is None:
            raise VerifyError(
                "a ParamGroup of no parameters", expected="use, names or where", hint='nn.ParamGroup(use=("bias", "norm"), weight_decay=0.0)'
            )  # fmt: skip
        if self.lr_scale is None and self.weight_decay is None:
            raise VerifyError(f"{self!r} changes nothing", expected="lr_scale or weight_decay")
        for what in (SCALE, DECAY):
            if (value := getattr(self, what)) is not None:
                object.__setattr__(self, what, checks.not_negative(f"ParamGroup: {what}", value))
        if self.name is not None and not (isinstance(self.name, str) and self.name.isidentifier()):
            raise VerifyError(f"ParamGroup: name={self.name!r}", expected="an identifier, such as 'head'")

    def __contains__(self, param: Value) -> bool:
        return (
            param.use in self.use
            or any(fnmatchcase(param.name, pattern) for pattern in self.names)
            or (self.where is not None and bool(self.where(param)))
        )

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if v is not None and v != ())
        return f"ParamGroup({shown})"


def _texts(what: str, value: Any) -> tuple[str, ...]:
    texts = (
        (value,)
        if isinstance(value, str)
        else tuple(value)
        if isinstance(value, (list, tuple, set, frozenset))
        else None
    )
    if texts is None or not all(isinstance(text, str) and text for text in texts):
        raise VerifyError(
            f"ParamGroup: {what}={value!r}",
            expected="text, or several",
            hint='use="bias", names=("head.*", "*.gate.weight")',
        )
    return texts


def named(groups: Iterable[ParamGroup]) -> tuple[tuple[str, ParamGroup], ...]:
    """Groups, each with the name that its meta-parameters have."""
    if isinstance(groups, ParamGroup) or not isinstance(groups, Iterable):
        raise VerifyError(
            f"groups={groups!r}", expected="a list of nn.ParamGroup", hint=f"groups=[{groups!r}]"
        )
    made: dict[str, ParamGroup] = {}
    for n, group in enumerate(groups):
        if not isinstance(group, ParamGroup):
            raise VerifyError(
                f"groups has {group!r}", expected="an nn.ParamGroup", hint='nn.ParamGroup(use=("bias", "norm"), weight_decay=0.0)'
            )  # fmt: skip
        name = group.name or f"group{n}"
        if name in made:
            raise VerifyError(
                f"two groups of parameters are called {name!r}", got=f"{made[name]!r} and {group!r}"
            )
        made[name] = group
    return tuple(made.items())


def divided(groups: Sequence[tuple[str, ParamGroup]], params: Sequence[Value]) -> list[str | None]:
    """For each parameter the name of its group; None is the optimizer itself. Every group has some."""
    found = [next((name for name, group in groups if param in group), None) for param in params]
    for name, group in groups:
        if name not in found:
            raise VerifyError(
                f"no parameter is in the group {name}: {group!r}",
                expected="groups that have parameters; one is in the first group that names it",
                got=", ".join(f"{p.name} ({p.use})" for p in params),
            )
    return found
