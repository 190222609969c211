"""What generation is asked for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import AicfError, FeedError


@dataclass
class Request:
    """The sequences as they grow, and when they end."""

    rows: list[list[int]]
    count: int
    ends: frozenset[int]
    seed: int | tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(
        cls,
        prompts: Sequence[Any],
        count: Any,
        stop: int | Collection[int] | None,
        seed: Any,
        dtype: np.dtype,
    ) -> Request:
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise AicfError(f"count can't be {count!r}", expected="how many tokens, an integer of 0 or more")
        rows = [_prompt(n, prompt, dtype) for n, prompt in enumerate(prompts)]
        ends = _ends(stop)
        return cls(rows, int(count), ends, _seed(seed, len(rows)), dtype)


def window_of(program: Any, length: int | None) -> tuple[str, int, np.dtype]:
    """The input's name, how many tokens it is fed, and their type."""
    recipe = getattr(program, "recipe", None)
    if recipe is None or recipe.mode != "infer" or recipe.loss is not None:
        got = (
            type(program).__name__
            if recipe is None
            else f"mode {recipe.mode!r}{' with a loss' if recipe.loss is not None else ''}"
        )
        raise AicfError(
            "this can't generate", expected='aicf.compile(model), of mode "infer" without a loss', got=got
        )
    model = recipe.model
    name, spec = next(iter(model.inputs.items()))
    if len(model.inputs) != 1 or spec.rank != 2 or spec.dtype.kind != "int":
        raise AicfError(
            "this model's inputs are no token ids", expected="one input of integers (batch, length)",
            got=", ".join(f"{n} {s}" for n, s in model.inputs.items()),
        )  # fmt: skip
    dim = spec.shape[1]
    own = model.sizes[dim] if isinstance(dim, str) else dim
    if length is None or length == own:
        return name, own, spec.dtype.numpy
    if (
        not isinstance(dim, str)
        or isinstance(length, bool)
        or not isinstance(length, int | np.integer)
        or length < 1
    ):
        raise AicfError(
            f"length can't be {length!r}",
            expected="an integer, at least 1" if isinstance(dim, str) else f"{own}",
        )
    return name, int(length), spec.dtype.numpy


def _seed(seed: Any, count: int) -> int | tuple[int, ...]:
    """One seed of all prompts, or one for each of them."""
    single = not isinstance(seed, Sequence | np.ndarray) or isinstance(seed, str) or np.ndim(seed) == 0
    seeds = [seed] if single else list(seed)
    for one in seeds:
        if isinstance(one, bool) or not isinstance(one, int | np.integer) or one < 0:
            where = "" if single else ": each is an integer of 0 or more"
            raise AicfError(
                f"seed can't be {seed!r}", expected=f"an integer of 0 or more, or one for each prompt{where}"
            )
    if single:
        return int(seed)
    if len(seeds) != count:
        raise AicfError(
            f"{len(seeds)} seeds for {count} prompts", expected="one seed, or one for each prompt"
        )
    return tuple(map(int, seeds))


def _ends(stop: Any) -> frozenset[int]:
    if stop is None:
        return frozenset()
    one = not isinstance(stop, Iterable) or isinstance(stop, str) or getattr(stop, "ndim", 1) == 0
    ends = [stop] if one else list(stop)
    for n, end in enumerate(ends):
        if isinstance(end, np.ndarray) and end.ndim == 0:
            end = ends[n] = end[()]
        if isinstance(end, bool) or not isinstance(end, int | np.integer):
            raise AicfError(
                f"stop can't be {stop!r}", expected="a token, an integer, or several", got=f"{end!r}"
            )
    return frozenset(map(int, ends))


def _prompt(n: int, prompt: Any, dtype: np.dtype) -> list[int]:
    try:
        tokens = np.asarray(prompt)
    except ValueError:  # rows of several lengths
        tokens = np.empty(len(prompt), object)
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not tokens.size:
        raise FeedError(
            f"prompt {n} is no sequence of tokens", expected="a list or an array of integers, at least one",
            got=f"{tokens.dtype}{list(tokens.shape)}" if tokens.size else "none", hint="encode text first; a model begins from a token, such as its end-of-text",
        )  # fmt: skip
    most = min(np.iinfo(dtype).max, np.iinfo(np.int32).max)  # the plans read them as i32
    if tokens.min() < 0 or tokens.max() > most:
        raise FeedError(
            f"prompt {n} has a token that is no id",
            expected=f"0 to {most}",
            got=f"{tokens.min()} to {tokens.max()}",
        )
    return tokens.tolist()
