"""Cross entropy as one op in AOTAutograd's graphs: neither the logarithms of probabilities nor their gradient are ever stored.

PyTorch takes it apart: `_log_softmax`, `nll_loss_forward`, and a gradient of each. Where nothing else reads what is between them, two ops stand
in their place, before PyTorch's partitioner decides what is kept for the backward pass: that keeps the logits as they come, be they halves,
and two numbers of each row.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule, Node

aten = torch.ops.aten
MEAN, SUM = 1, 2  # PyTorch's numbers of reductions
HALVES = torch.float16, torch.bfloat16
VIEWS = frozenset(
    [
        aten.view.default,
        aten._unsafe_view.default,
        aten.reshape.default,
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.clone.default,
        aten.slice.Tensor,
    ]
)
PARTS = (
    aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
    aten._log_softmax_backward_data.default,
)
MOVES = VIEWS | {aten.constant_pad_nd.default}  # what views become in a backward pass


# --- the ops, as PyTorch runs them where they are left to it ----------------------------------------------------------


@torch.library.custom_op("aicf::cross_entropy", mutates_args=())
def cross_entropy(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    """(loss, peak, rsum) of each row, in f32: aicf's op of that name."""
    x, kept = logits.float(), labels != ignore_index
    peak = x.amax(1)
    rsum = (x - peak[:, None]).exp().sum(1).reciprocal()
    label = x.gather(1, torch.where(kept, labels, 0)[:, None])[:, 0]
    return torch.where(kept, -rsum.log() - (label - peak), 0.0), peak, rsum


@cross_entropy.register_fake
def _(logits: Tensor, labels: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    number = torch.empty_like(labels, dtype=torch.float32)
    return number, torch.empty_like(number), torch.empty_like(number)


@torch.library.custom_op("aicf::cross_entropy_grad", mutates_args=())
def cross_entropy_grad(
    logits: Tensor, labels: Tensor, dloss: Tensor, peak: Tensor, rsum: Tensor, ignore_index: int
) -> Tensor:
    """(softmax(logits) - the label's one) * dloss, in the type of the logits."""
    kept = labels != ignore_index
    probabilities = (logits.float() - peak[:, None]).exp() * rsum[:, None]
    label = torch.where(kept, labels, 0)[:, None]
    grad = probabilities.scatter_add(1, label, -torch.ones_like(label, dtype=torch.float32)) * dloss[:, None]
    return torch.where(kept[:, None], grad, 0.0).to(logits.dtype)


@cross_entropy_grad.register_fake
def _(logits: Tensor, labels: Tensor, dloss: Tensor, peak: Tensor, rsum: Tensor, ignore_index: int) -> Tensor:
    return torch.empty_like(logits, memory_format=torch.contiguous_format)


# --- in the place of PyTorch's ----------------------------------------------------------------------------------------


def partition(
    joint: GraphModule, inputs: Any, *, joins: bool = True, **how: Any
) -> tuple[GraphModule, GraphModule]:
    """PyTorch's partitioner, behind this: what AOTAutograd takes as its `partition_fn`."""
    if joins:
        join_cross_entropy(joint)
    with functorch_config.patch(recompute_views=True):  # what views show is kept: they cost nothing here
        return min_cut_rematerialization_partition(joint, inputs, **how)


def join_cross_entropy(graph: GraphModule) -> int:
    """Put the ops above in the place of each cross entropy of the graph. How many there are."""
    found = [
        loss for node in graph.graph.nodes if node.target is aten._log_softmax.default for loss in _of(node)
    ]
    for loss in found:
        loss.replace()
    if found:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return len(found)


def _of(log_softmax: Node) -> Iterator[_CrossEntropy]:
    """The cross entropy that a log_softmax is part of, if it is in no other use."""
    x, dim, _ = log_softmax.args
    made, read = log_softmax.meta["val"], list(_readers(log_softmax))
    by_target = {user.target: (user, seen) for user, seen in read}
    parts = [by_target.pop(op, (None, None)) for op in PARTS]
    if by_target or len(read) > len(PARTS) or parts[0][0] is None:
        return
    (forward, _), (backward, of), (gradient, result) = parts
    if (
        (backward is None) != (gradient is None)
        or made.dtype is not torch.float32
        or made.dim() != 2
        or dim not in (1, -1)
    ):
        return
    _, labels, weight, reduction, ignore_index = forward.args
    if weight is not None or labels.meta["val"].dtype is not torch.int64:
        return
    if backward is not None:
        asked, same = backward.args[1:6], (of, labels, weight, reduction, ignore_index)
        if asked != same or list(backward.users) != [gradient] or gradient.args[:2] != (backward, result):
            return
    yield _CrossEntropy(x, labels, reduction, ignore_index, forward, backward, gradient)


def _readers(node: Node) -> Iterator[tuple[Node, Node]]:
    """Who reads it, and by which name: PyTorch detaches what it keeps for the backward pass."""
    for user in node.users:
        if user.target is aten.detach.default:
            yield from _readers(user)
        else:
            yield user, node


class _CrossEntropy:
    """One of them: its nodes, and what becomes of them."""

    def __init__(
        self, x: Node, labels: Node, reduction: int, ignore_index: int, forward: Node, backward: Node | None, gradient: Node | None,
    ) -> None:  # fmt: skip
        self.x, self.labels, self.reduction, self.ignore_index = x, labels, reduction, ignore_index
        self.forward, self.backward, self.gradient = forward, backward, gradient
        self.graph = forward.graph

    def replace(self) -> None:
        with self.graph.inserting_before(self.forward):
            logits = self._as_they_come()
            found = self._call(torch.ops.aicf.cross_entropy.default, logits, self.labels, self.ignore_index)
            rows, peak, rsum = (self._result(found, n) for n in range(3))
            kept = self._call(aten.ne.Scalar, self.labels, self.ignore_index)
            each = self._call(aten._to_copy.default, kept, dtype=torch.float32)
            count = self._call(aten.sum.default, each)
            loss = rows
            if self.reduction in (MEAN, SUM):
                loss = self._call(aten.sum.default, rows)
            if self.reduction == MEAN:
                loss = self._call(aten.div.Tensor, loss, count)
        for user in list(self.forward.users):
            user.replace_all_uses_with((loss, count)[user.args[1]])
        if self.gradient is not None:
            self._replace_gradient(self.gradient, logits, kept, count, peak, rsum)

    def _replace_gradient(
        self, gradient: Node, logits: Node, kept: Node, count: Node, peak: Node, rsum: Node
    ) -> None:
        assert self.backward is not None
        dloss = self.backward.args[0]
        assert isinstance(dloss, Node)
        with self.graph.inserting_before(gradient):
            if self.reduction == MEAN:
                dloss = self._call(aten.div.Tensor, dloss, count)
            zero = self._call(aten.full.default, [], 0.0, dtype=torch.float32, device=_value(dloss).device)
            dloss = self._call(aten.where.self, kept, dloss, zero)
            wanted = _value(gradient).dtype
            if _value(logits).dtype is not wanted and not _becomes(gradient, _value(logits).dtype):
                logits = self.x
            op = torch.ops.aicf.cross_entropy_grad.default
            made = self._call(op, logits, self.labels, dloss, peak, rsum, self.ignore_index)
            if _value(made).dtype is not wanted:  # whose readers convert it back
                made = self._call(aten._to_copy.default, made, dtype=wanted)
        gradient.replace_all_uses_with(made)

    def _as_they_come(self) -> Node:
        """The logits before they were converted to f32, where views alone stand behind that."""
        views: list[Node] = []
        source = self.x
        while source.target in VIEWS:
            views.append(source)
            source = source.args[0]
        before = source.args[0] if source.target is aten._to_copy.default else source
        if _value(before).dtype not in HALVES or _value(before).stride() != _value(source).stride():
            return self.x
        made: Any = before
        for view in reversed(views):
            made = self._call(view.target, made, *view.args[1:], **view.kwargs)
        return made

    def _call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        given = torch.fx.node.map_arg((args, kwargs), _value)
        node.meta["val"] = _faked(target, *given[0], **given[1])
        return node

    def _result(self, whole: Node, n: int) -> Node:
        node = self.graph.call_function(operator.getitem, (whole, n))
        node.meta["val"] = _value(whole)[n]
        return node


def _value(node: Any) -> Any:
    return node.meta["val"]


def _faked(target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an op makes of stand-ins."""
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode([a for a in args if isinstance(a, Tensor)])
    if mode is None:
        return target(*args, **kwargs)
    with mode:
        return target(*args, **kwargs)


def _becomes(node: Node, dtype: torch.dtype) -> bool:
    """Whether all that reads it, behind what only moves elements, converts it to a type."""

    def converts(user: Node) -> bool:
        if user.target in MOVES:
            return _becomes(user, dtype)
        return user.target is aten._to_copy.default and _value(user).dtype is dtype

    return bool(node.users) and all(converts(user) for user in node.users)
