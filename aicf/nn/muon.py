"""Muon: steps of matrices whose singular values are all about 1."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ..errors import VerifyError
from ..ir import Value
from ..types import DType, bf16, f32
from . import checks
from .groups import ParamGroup
from .optimizers import Optimizer, Rate, betas_of, checked, declared, sum_of_squares
from .schedules import Schedule

A, B, C = 3.4445, -4.7750, 2.0315  # of the quintic whose iteration brings singular values near 1
Which = str | Callable[[Value], bool]


class Muon(Optimizer):
    """m = momentum m + (1 - momentum) g; p = p (1 - lr weight_decay) - lr sqrt(max(1, rows / columns)) O, where O is near the orthogonal
    matrix closest to m, or with Nesterov to momentum m + (1 - momentum) g (Jordan et al. 2024). As torch.optim.Muon.

    O comes from `iterations` of X = a X + (b S + c S^2) X, S = X X^T, in `dtype`, from m divided by its Frobenius norm: products on the
    ordinary GEMM kernels. It is for the matrices of hidden layers. Biases, norms, embeddings, and whatever is no matrix step by AdamW, with
    `adam_lr` and `betas`; so does what `adam_for` names. A head that is not tied to an embedding should be among it.

    adam_lr   where lr is a schedule, times what that makes of lr by now
    adam_for  patterns of parameters' names, such as "head.*", or functions of a parameter
    groups    ParamGroups, whose lr_scale and weight_decay hold for parameters of either kind
    """

    family = "muon"

    def __init__(
        self,
        lr: Rate = 2e-2,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        *,
        iterations: int = 5,
        dtype: Any = bf16,
        adam_lr: float = 3e-4,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        adam_for: Which | Sequence[Which] = (),
        clip_norm: float | None = None,
        groups: Iterable[ParamGroup] = (),
    ) -> None:
        super().__init__(lr, clip_norm, groups)
        self.momentum = checked("momentum", momentum)
        self.nesterov = checks.yes_or_no("nesterov", nesterov)
        self.weight_decay, self.eps = checked("weight_decay", weight_decay), checked("eps", eps)
        self.adam_lr, self.betas = checked("adam_lr", adam_lr), betas_of(betas, "betas=(0.9, 0.95)")
        self.iterations = checks.whole("Muon: iterations", iterations, 1)
        self.dtype = DType.of(dtype)
        if self.dtype not in (f32, bf16):
            raise VerifyError(
                f"Muon: dtype={dtype!r}", expected="aicf.bf16, or aicf.f32: the iteration needs their range"
            )
        some = (adam_for,) if isinstance(adam_for, str) or callable(adam_for) else adam_for
        if not isinstance(some, (list, tuple)) or not all(isinstance(e, str) or callable(e) for e in some):
            raise VerifyError(
                f"Muon: adam_for={adam_for!r}", expected="patterns of names, or functions of a parameter", hint='adam_for="head.*"'
            )  # fmt: skip
        self.adam_for = tuple(some)

    def is_hidden(self, param: Value) -> bool:
        """Whether a parameter is a matrix of a hidden layer."""
        others = (e(param) if callable(e) else fnmatchcase(param.name, e) for e in self.adam_for)
        return param.rank == 2 and param.use not in ("bias", "norm", "embedding") and not any(others)

    def emit(self, ctx: Any, params: list[Value], grads: list[Value]) -> None:
        """Emit a step of all parameters, of which one at least is a matrix of a hidden layer."""
        if not any(map(self.is_hidden, params)):
            raise VerifyError(
                "Muon has no matrix to step", expected="a parameter of two axes that is neither an embedding nor named by adam_for",
                got=", ".join(f"{p.name} {p.shape} ({p.use})" for p in params), hint="nn.AdamW steps the others as Muon would",
            )  # fmt: skip
        super().emit(ctx, params, grads)

    def rates(self, ctx: Any, step: Value, lr: Value, base: Value) -> dict[str, Value]:
        rates = declared(ctx, adam_lr=self.adam_lr)
        if isinstance(self.lr, Schedule):
            start = rates["adam_lr"]
            # a schedule of adam_lr itself would end at a floor that is meant for lr; but there are no parts of 0
            alone = self.lr.emit(ctx, step, start)
            rates["adam_lr"] = ctx.select(base > 0.0, start * (lr / base), alone)
        return rates

    def meta(self, ctx: Any, step: Value) -> dict[str, Value]:
        beta1, beta2 = self.betas
        meta = declared(
            ctx,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            beta1=beta1,
            beta2=beta2,
            eps=self.eps,
        )
        meta["c1"], meta["c2"] = ctx.adam_correction(step, meta["beta1"], meta["beta2"])
        return meta

    def steps(self, ctx: Any, each: list[tuple[Value, Value, Value, dict[str, Value]]]) -> None:
        hidden = [one for one in each if self.is_hidden(one[0])]
        for one in each:
            if not self.is_hidden(one[0]):
                self._adam_step(ctx, *one)
        ahead = [self._ahead(ctx, param, grad, meta) for param, grad, _, meta in hidden]
        near = self._orthogonals(ctx, ahead)
        for (param, _, lr, meta), matrix in zip(hidden, near):
            rows, columns = param.shape
            rate = self._rate(ctx, lr, max(1.0, rows / max(columns, 1)) ** 0.5)
            ctx.update(param, ctx.muon_step(param, matrix, rate, lr, meta["weight_decay"]))

    def _rate(self, ctx: Any, lr: Value, factor: float) -> Value:
        made: Value = lr if factor == 1.0 else ctx.once(("muon", lr.vid, factor), lambda: lr * factor)
        return made

    def _adam_step(self, ctx: Any, param: Value, grad: Value, lr: Value, meta: dict[str, Value]) -> None:
        m, v = (ctx.moment(param, name) for name in ("exp_avg", "exp_avg_sq"))
        names = ("adam_lr", "beta1", "beta2", "eps", "weight_decay", "c1", "c2")
        made = ctx.adam_step(param, grad, m, v, *(meta[name] for name in names), decoupled=True)
        for old, new in zip((param, m, v), made):
            ctx.update(old, new)

    def _ahead(self, ctx: Any, param: Value, grad: Value, meta: dict[str, Value]) -> Value:
        m = ctx.moment(param, "muon_momentum")
        ahead, moved = ctx.muon_momentum(grad, m, meta["momentum"], nesterov=self.nesterov)
        ctx.update(m, moved)
        made: Value = ahead
        return made

    def _orthogonals(self, ctx: Any, matrices: list[Value]) -> list[Value]:
        """Those of one shape as a batch."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for n, matrix in enumerate(matrices):
            shapes.setdefault(matrix.shape, []).append(n)
        unit = [
            ctx.convert(ctx.scale_gradient(m, ctx.muon_norm(sum_of_squares(ctx, m))), dtype=self.dtype)
            for m in matrices
        ]
        made = dict[int, Value]()
        for shape, ns in shapes.items():
            if len(ns) == 1:
                made[ns[0]] = self._iterated(ctx, unit[ns[0]])
                continue
            batch = self._iterated(ctx, ctx.concatenate(*(unit[n].reshape(1, *shape) for n in ns), axis=0))
            made |= {n: batch[i] for i, n in enumerate(ns)}
        return [made[n] for n in range(len(matrices))]

    def _iterated(self, ctx: Any, x: Value) -> Value:
        """Newton and Schulz's iteration, on the side of the smaller square."""
        tall = x.shape[-2] > x.shape[-1]
        for _ in range(self.iterations):
            s = ctx.gemm(x, x, trans_a=tall, trans_b=not tall)
            s = ctx.gemm(s, s, s, alpha=C, beta=B)
            x = ctx.gemm(*((x, s) if tall else (s, x)), x, beta=A)
        return x
