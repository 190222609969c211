"""How PyTorch's ops are decomposed before aicf's rules see them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from .rules import rules

aten = torch.ops.aten
HALVES = torch.float16, torch.bfloat16
BATCH_NORMS = (
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten._native_batch_norm_legit_no_training.default,
)
NOT_CORE = (  # PyTorch decomposes these, though not to core ops
    aten._batch_norm_with_update_functional.default,
    aten._batch_norm_no_update.default,
    aten.batch_norm_backward.default,
)


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions to core ops, but for ops that have a rule. A transpose is a permute: that its partitioner knows as a view."""
    found = {**core_aten_decompositions(), **get_decompositions(NOT_CORE)}
    return {
        **{op: how for op, how in found.items() if str(op) not in rules()},
        aten.transpose.int: _transpose, aten.t.default: lambda x: _transpose(x, 0, -1),
        **{op: partial(_statistics_in_f32, op) for op in BATCH_NORMS},
    }  # fmt: skip


def _transpose(x: torch.Tensor, a: int, b: int) -> torch.Tensor:
    axes = list(range(x.dim()))
    if axes:
        axes[a], axes[b] = axes[b], axes[a]
    return aten.permute.default(x, axes)


def _statistics_in_f32(op: Any, x: torch.Tensor, *args: Any, **named: Any) -> Any:
    """A batch norm of halves with parameters in f32, on the CPU: the backward pass reads statistics in f32, as in eager PyTorch.

    PyTorch's trace rounds them to x's type, which has few digits of a mean far from 0. On CUDA it does not.
    """
    others = [t for t in (*args, *named.values()) if isinstance(t, torch.Tensor)]
    if x.device.type != "cpu" or x.dtype not in HALVES or all(t.dtype in HALVES for t in others):
        return NotImplemented
    y, *statistics = op(x.float(), *args, **named)
    return y.to(x.dtype), *statistics
