"""Mixed precision: which element type each role has, what is left out of it, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Any

from ...errors import VerifyError
from ...ops.mixed import LEAST_SCALE
from ...types import DType, f32

LARGEST_SCALE = 2.0**128 - 2.0**104  # of f32
HALVES = DType.f16, DType.bf16
Exempt = str | Callable[[str, Any], bool]


def checked_scale(name: str, value: Any) -> float:
    """What a scale of the loss may be set to, and a state dict may bring."""
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not LEAST_SCALE <= value <= LARGEST_SCALE
    ):
        raise VerifyError(
            f"{name}={value!r}",
            expected="a number of f32, 2**-126 or more",
            hint="GradScaler starts at 2**16",
        )
    return float(value)


@dataclass(frozen=True)
class LossScale:
    """A scale of the loss that follows the gradients, by the rule of torch.amp.GradScaler.

    init      the first scale of the model's training programs, 2**-126 or more; they share it. Where gradients are returned it is 1
    growth    what it is multiplied by after `interval` steps without an overflow
    backoff   what it is multiplied by after a step with one, which is not taken; the scale stays at 2**-126 or above
    interval  steps
    """

    init: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        checked_scale("LossScale: init", self.init)
        for name, low, high in (("growth", 1.0, 2.0**63), ("backoff", 0.0, 1.0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value <= high:
                raise VerifyError(
                    f"LossScale: {name}={value!r}", expected=f"a number above {low:g}, and {high:g} at most"
                )
        if self.backoff == 1.0:
            raise VerifyError(
                "LossScale: backoff=1.0", expected="less than 1: an overflow must lower the scale"
            )
        if type(self.interval) is not int or not 1 <= self.interval < 2**31:
            raise VerifyError(
                f"LossScale: interval={self.interval!r}", expected="a whole number of 1 or more"
            )


def _dtype(role: str, asked: Any, allowed: tuple[DType, ...]) -> DType:
    try:
        dtype = DType.of(asked)
    except Exception:
        dtype = None
    if dtype not in allowed:
        raise VerifyError(
            f"Policy: {role}={asked if isinstance(asked, str) else str(asked)!r}", expected=", ".join(map(str, allowed)),
            hint="f16 has no room for moments: squares of small gradients are 0 there" if role == "optimizer" else None,
        )  # fmt: skip
    assert dtype is not None
    return dtype


@dataclass(frozen=True)
class Policy:
    """The element type of each role. A type is given as aicf.bf16 or "bf16"; it is f32, f16 or bf16.

    compute     activations and products: what params and inputs of f32 are converted to where they are used
    parameters  what is kept of params that the model declares in f32. Of halves there are no f32 masters: small steps are lost
    gradients   what the optimizer is given, and what is stored until then; sums of several runs are f32
    optimizer   moments, f32 or bf16; a bf16 average of squares stops following gradients that shrink slowly
    exempt      layers that compute in f32: patterns of their names or classes ("head", "blocks.*.norm1", "LayerNorm"), or functions
                (name, layer) -> bool. What comes in is widened, what goes out narrowed
    loss_scale  a LossScale, or None. By default there is one where activations or gradients are f16

    Whatever the policy, sums inside products, statistics of norms, softmax, the loss and results are f32.
    """

    compute: DType | str = "f32"
    parameters: DType | str = "f32"
    gradients: DType | str = "f32"
    optimizer: DType | str = "f32"
    exempt: Exempt | Sequence[Exempt] = ()
    loss_scale: LossScale | str | None = "auto"

    def __post_init__(self) -> None:
        for role in ("compute", "parameters", "gradients", "optimizer"):
            allowed = (f32, DType.bf16) if role == "optimizer" else (f32, *HALVES)
            object.__setattr__(self, role, _dtype(role, getattr(self, role), allowed))
        some = (self.exempt,) if isinstance(self.exempt, str) or callable(self.exempt) else self.exempt
        if not isinstance(some, (list, tuple)) or not all(isinstance(e, str) or callable(e) for e in some):
            raise VerifyError(
                f"Policy: exempt={self.exempt!r}", expected="patterns of layers' names or classes, or functions of (name, layer)",
                hint='exempt=("head", "LayerNorm")',
            )  # fmt: skip
        object.__setattr__(self, "exempt", tuple(some))
        if self.loss_scale == "auto":
            object.__setattr__(
                self, "loss_scale", LossScale() if DType.f16 in (self.compute, self.gradients) else None
            )
        if not isinstance(self.loss_scale, LossScale | None):
            raise VerifyError(
                f"Policy: loss_scale={self.loss_scale!r}", expected="an aicf.LossScale, or None",
                hint="loss_scale=aicf.LossScale(init=1024.0)",
            )  # fmt: skip

    @property
    def narrow(self) -> DType | None:
        """What f32 is converted to where it is used; None if it stays."""
        return None if self.compute is f32 else DType.of(self.compute)

    def exempts(self, name: str, layer: Any) -> bool:
        """Whether a layer of this name computes in f32."""
        classes = {kind.__name__ for kind in type(layer).__mro__}
        return any(
            bool(e(name, layer)) if callable(e) else fnmatchcase(name, e) or e in classes
            for e in (self.exempt if isinstance(self.exempt, tuple) else ())
        )

    def __str__(self) -> str:
        """The preset's name, if it is one."""
        return next((name for name, preset in PRESETS.items() if preset == self), repr(self))

    def __repr__(self) -> str:
        shown = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"Policy({', '.join(f'{k}={str(v)!r}' if isinstance(v, DType) else f'{k}={v!r}' for k, v in shown)})"


PRESETS = {name: Policy(name) for name in ("f32", "bf16", "f16")}


def policy_of(asked: Any) -> Policy:
    """What `compile(policy=…)` was given."""
    if isinstance(asked, Policy):
        return asked
    if isinstance(asked, str) and asked in PRESETS:
        return PRESETS[asked]
    raise VerifyError(
        f"policy {asked!r} is unknown", expected=f"{', '.join(PRESETS)}, or an aicf.Policy",
        hint='parameters stay in f32, and policy says what the model computes in; aicf.Policy(compute="bf16", …) says it for each role',
    )  # fmt: skip
