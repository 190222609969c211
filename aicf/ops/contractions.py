"""Sums of products along any axes: dot_general and einsum. A graph has transposes, reshapes and a gemm in their place; of element types
that gemm doesn't take, a product and a sum."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from ..types import DType, TensorSpec
from .schema import ACCUMULATES, Number, is_integer, op, require

_MULTIPLIED = (DType.f32, DType.f16, DType.bf16)  # by gemm


def _free(rank: int, *taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([axis for axis in range(rank) if axis not in sum(taken, ())])


@op("dot_general", traits=(ACCUMULATES,))
def dot_general(
    a: Number,
    b: Number,
    *,
    contract_a: tuple = (),
    contract_b: tuple = (),
    batch_a: tuple = (),
    batch_b: tuple = (),
):
    """The sums of products of a and b along axes contract_a[i] of a and contract_b[i] of b, for each place along batch_a[i] and batch_b[i].

    Shapes: y has the axes of the batch, then the other axes of a, then those of b. Products of floats are summed in f32 at least.

    C1  batch_a and batch_b are as many                      (StableHLO dot_general C1)
    C2  contract_a and contract_b are as many                (StableHLO dot_general C2)
    C3  the axes of a are integers in [0, rank(a)), each once (StableHLO dot_general C3, C5, C6)
    C4  the axes of b are integers in [0, rank(b)), each once (StableHLO dot_general C4, C7, C8)
    C5  axes of the batch have equal sizes                   (StableHLO dot_general C9)
    C6  contracted axes have equal sizes                     (StableHLO dot_general C10)
    """
    require(len(batch_a) == len(batch_b), "C1", f"batch_a {batch_a} and batch_b {batch_b} differ in length")
    require(
        len(contract_a) == len(contract_b),
        "C2",
        f"contract_a {contract_a} and contract_b {contract_b} differ in length",
    )
    a_axes, b_axes = (*batch_a, *contract_a), (*batch_b, *contract_b)
    require(
        all(is_integer(n) and 0 <= n < a.rank for n in a_axes) and len(set(a_axes)) == len(a_axes),
        "C3",
        f"axes {a_axes} of a: expected integers in [0, {a.rank}), each once",
    )
    require(
        all(is_integer(n) and 0 <= n < b.rank for n in b_axes) and len(set(b_axes)) == len(b_axes),
        "C4",
        f"axes {b_axes} of b: expected integers in [0, {b.rank}), each once",
    )
    for p, q in zip(batch_a, batch_b):
        require(
            a.shape[p] == b.shape[q], "C5", f"axis {p} of a has size {a.shape[p]}, axis {q} of b {b.shape[q]}"
        )
    for p, q in zip(contract_a, contract_b):
        require(
            a.shape[p] == b.shape[q], "C6", f"axis {p} of a has size {a.shape[p]}, axis {q} of b {b.shape[q]}"
        )
    return TensorSpec(
        (
            *[a.shape[n] for n in batch_a],
            *[a.shape[n] for n in _free(a.rank, a_axes)],
            *[b.shape[n] for n in _free(b.rank, b_axes)],
        ),
        a.dtype,
        a.device,
    )


def _ordered(emit, x, *groups: tuple[int, ...]):
    """x with its axes in the order of the groups, each of them made one axis."""
    perm = sum(groups, ())
    if perm != tuple(range(x.rank)):
        x = emit.transpose(x, perm=perm)
    sizes = iter(x.shape)
    return emit.reshape(x, shape=tuple([prod([next(sizes) for _ in group]) for group in groups]))


@dot_general.replaced_by
def _(emit, a, b, contract_a, contract_b, batch_a, batch_b):
    free_a, free_b = _free(a.rank, batch_a, contract_a), _free(b.rank, batch_b, contract_b)
    shape = tuple([a.shape[n] for n in (*batch_a, *free_a)] + [b.shape[n] for n in free_b])
    if a.dtype in _MULTIPLIED and contract_a:
        trans_b = (*batch_b, *free_b, *contract_b) == tuple(range(b.rank))
        left = _ordered(emit, a, *[batch_a] * bool(batch_a), free_a, contract_a)
        right = _ordered(
            emit, b, *[batch_b] * bool(batch_b), *((free_b, contract_b) if trans_b else (contract_b, free_b))
        )
        return emit.reshape(emit.gemm(left, right, trans_b=trans_b), shape=shape)
    left = _ordered(emit, a, batch_a, free_a, (), contract_a)
    right = _ordered(emit, b, batch_b, (), free_b, contract_b)
    return emit.reshape(emit.reduce_sum(emit.mul(left, right), axes=(3,)), shape=shape)


@dot_general.reference
def _(a, b, contract_a, contract_b, batch_a, batch_b):
    names = list(range(a.ndim + b.ndim))
    of_b = names[a.ndim :]
    for p, q in zip((*batch_a, *contract_a), (*batch_b, *contract_b)):
        of_b[q] = names[p]
    free_a, free_b = _free(a.ndim, batch_a, contract_a), _free(b.ndim, batch_b, contract_b)
    made = [*batch_a, *free_a, *[of_b[n] for n in free_b]]
    return np.einsum(a, names[: a.ndim], b, of_b, made)


dot_general.samples((4, 7), (7, 3), contract_a=(1,), contract_b=(0,))
dot_general.samples((4, 2, 5), (3, 5, 4), contract_a=(2,), contract_b=(1,), batch_a=(0,), batch_b=(2,))
dot_general.samples((2, 3, 4), (4, 3, 2), contract_a=(0, 1), contract_b=(2, 1))
dot_general.samples((3,), (4,))
dot_general.samples((3, 4), (3, 4), batch_a=(0, 1), batch_b=(0, 1))
dot_general.samples((2, 0), (0, 3), contract_a=(1,), contract_b=(0,))


# --- einsum -----------------------------------------------------------------------------------------------------------


class Subscripts(NamedTuple):
    """Of each operand and of the result, a letter for each axis; those of an ellipsis are numbers as text, so that all are apart."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]


@lru_cache(maxsize=1024)
def _subscripts(equation: str, ranks: tuple[int, ...]) -> Subscripts | str:
    """What an equation says of operands of these ranks; or what is wrong with it."""
    text = equation.replace(" ", "")
    given, arrow, after = text.partition("->")
    terms = given.split(",")
    if len(terms) != len(ranks):
        return f"it has {len(terms)} operands, {len(ranks)} are given"
    operands = []
    for term, rank in zip(terms, ranks):
        axes = _axes_of(term, rank)
        if isinstance(axes, str):
            return axes
        if len(axes) != rank:
            return f"{term!r} has {len(axes)} axes, its operand {rank}"
        if len(set(axes)) < len(axes):
            return f"{term!r} names an axis twice: a diagonal is taken by eye, mul and reduce_sum"
        operands.append(axes)
    known = [n for axes in operands for n in axes]
    dots = tuple(sorted({n for n in known if not n.isalpha()}, key=int))
    if not arrow:
        return Subscripts(
            tuple(operands), (*dots, *sorted(n for n in set(known) if n.isalpha() and known.count(n) == 1))
        )
    made = _axes_of(after, len(after) - 3 + len(dots) if "..." in after else len(after))
    if isinstance(made, str):
        return made
    if len(set(made)) < len(made):
        return f"{after!r} names an axis twice"
    if missing := [n for n in made if n not in known]:
        return f"{after!r} has {missing[0]}, which no operand has"
    return Subscripts(tuple(operands), made)


def _axes_of(term: str, rank: int) -> tuple[str, ...] | str:
    """Letters, and for an ellipsis the numbers of its axes, counted from the last."""
    before, dots, after = term.partition("...")
    letters = before + after
    if letters and not (letters.isalpha() and letters.isascii()):
        return f"{term!r} is not of letters and one ellipsis"
    more = max(rank - len(letters), 0) if dots else 0
    return (*before, *[str(more - n) for n in range(more)], *after)


@op("einsum", traits=(ACCUMULATES,))
def einsum(*xs: Number, equation: str):
    """Sums of products by an equation, such as "bij,bjk->bik": each letter is an axis, and what the result doesn't name is summed over.

    As numpy.einsum and torch.einsum. "..." stands for all axes that a term doesn't name. Operands are contracted from the left to the right.

    C1  the equation has a term of letters for each operand, each axis in it once
    C2  axes of one letter have one size
    """
    found = _subscripts(equation, tuple([x.rank for x in xs]))
    require(not isinstance(found, str), "C1", f"equation {equation!r}: {found}")
    assert isinstance(found, Subscripts)
    sizes: dict[str, int] = {}
    for n, (x, axes) in enumerate(zip(xs, found.operands)):
        for letter, size in zip(axes, x.shape):
            require(
                sizes.setdefault(letter, size) == size,
                "C2",
                f"axis {letter} has size {size} in xs[{n}], {sizes[letter]} before",
            )
    return TensorSpec(tuple([sizes[n] for n in found.result]), xs[0].dtype, xs[0].device)


def _summed(emit, x, axes, kept):
    """x summed over the axes that nobody asks for."""
    gone = tuple([n for n, letter in enumerate(axes) if letter not in kept])
    return (emit.reduce_sum(x, axes=gone) if gone else x), tuple([n for n in axes if n in kept])


@einsum.replaced_by
def _(emit, *xs, equation):
    found = _subscripts(equation, tuple([x.rank for x in xs]))
    assert isinstance(found, Subscripts)
    terms = list(zip(xs, found.operands))
    made, axes = terms.pop(0)
    while terms:
        wanted = set(found.result).union(*[term for _, term in terms[1:]])
        right, of_right = terms.pop(0)
        made, axes = _summed(emit, made, axes, wanted | set(of_right))
        right, of_right = _summed(emit, right, of_right, wanted | set(axes))
        both = [n for n in axes if n in of_right]
        batch, over = [n for n in both if n in wanted], [n for n in both if n not in wanted]
        made = emit.dot_general(
            made,
            right,
            contract_a=tuple(map(axes.index, over)),
            contract_b=tuple(map(of_right.index, over)),
            batch_a=tuple(map(axes.index, batch)),
            batch_b=tuple(map(of_right.index, batch)),
        )
        axes = (*batch, *[n for n in axes if n not in both], *[n for n in of_right if n not in both])
    made, axes = _summed(emit, made, axes, set(found.result))
    perm = tuple(map(axes.index, found.result))
    return emit.transpose(made, perm=perm) if perm != tuple(range(len(perm))) else emit.copy(made)


@einsum.reference
def _(*xs, equation):
    return np.einsum(equation, *xs)


einsum.samples((4, 7), (7, 3), equation="ij,jk")
einsum.samples((2, 3, 5), (2, 4, 5), equation="bid,bjd->bij")
einsum.samples((3, 4, 2), (3, 4), (4, 5), equation="ijk,ij,jl->lk")
einsum.samples((2, 3, 4), equation="ijk->kj")
einsum.samples((4, 7), equation="ij->")
einsum.samples((5, 2, 3), (3, 5), equation="...ij,j...->i...")
einsum.samples((3,), (4,), equation="i,j->ij")
einsum.samples((0, 3), (3, 2), equation="ij,jk->ik")
