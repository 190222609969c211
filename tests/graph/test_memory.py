"""The arena (D14): values whose lives meet never overlap, and little is wasted, however many they are."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nn.mlp import mlp
from pace import least_ratio, least_seconds

from aicf import nn
from aicf.device.spec import preset
from aicf.device.tensor import ALIGNMENT
from aicf.dispatch import default_registry
from aicf.graph.compile import compile_graph
from aicf.graph.emit.trace import Recipe
from aicf.graph.run import memory
from aicf.graph.run.memory import Life, arrange
from aicf.registry.select import Selector
from examples import examples


@st.composite
def lives(draw, at_most: int = 40):
    made = []
    for vid in range(draw(st.integers(0, at_most))):
        first, steps = draw(st.integers(0, 20)), draw(st.integers(0, 20))
        made.append(Life(vid, first, first + steps, ALIGNMENT * draw(st.integers(1, 9))))
    return made


def most_alive(values) -> int:
    """The most bytes that live at one step: no arena is smaller."""
    return max((sum(v.size for v in values if v.first <= s.first <= v.last) for s in values), default=0)


def check(values, offsets, extent) -> None:
    assert set(offsets) == {v.vid for v in values}
    for v in values:
        assert 0 <= offsets[v.vid] <= extent - v.size
        assert offsets[v.vid] % ALIGNMENT == 0
    for a, b in combinations(values, 2):
        if a.first <= b.last and b.first <= a.last:
            apart = offsets[a.vid] + a.size <= offsets[b.vid] or offsets[b.vid] + b.size <= offsets[a.vid]
            assert apart, f"{a} and {b} overlap: at {offsets[a.vid]} and {offsets[b.vid]}"


@pytest.mark.spec("D14")
@examples(300)
@given(lives(), st.booleans())
def test_what_lives_at_the_same_time_never_overlaps(values, many):
    few, memory.FEW = memory.FEW, 0 if many else memory.FEW
    try:
        offsets, extent = arrange(values)
        assert (offsets, extent) == arrange(values)
    finally:
        memory.FEW = few
    check(values, offsets, extent)
    assert most_alive(values) <= extent <= sum(v.size for v in values)


@pytest.mark.spec("D14")
def test_neighbouring_holes_become_one():
    """Two values of one unit die; one of two units takes their place."""
    unit = ALIGNMENT
    values = [Life(0, 0, 1, unit), Life(1, 0, 2, unit), Life(2, 0, 5, unit), Life(3, 3, 5, 2 * unit)]
    for layout in (memory._walked, memory._largest_first):
        assert memory._extent(values, layout(values)) == 3 * unit


@pytest.mark.spec("D14")
@pytest.mark.parametrize("few", [memory.FEW, 0], ids=["few", "many"])
@pytest.mark.parametrize("sizes", [(784, 256, 128, 10), (64,) * 9, (784, 512, 256, 128, 64, 10)], ids=str)
def test_arenas_of_train_steps_are_hardly_larger_than_what_lives_at_once(sizes, few, monkeypatch):
    monkeypatch.setattr(memory, "FEW", few)
    seen = []
    monkeypatch.setattr(memory, "arrange", lambda values: seen.append(values) or arrange(values))
    recipe = Recipe(mlp("gelu", sizes, 64), "train", nn.SoftmaxCrossEntropy(), nn.Adam(clip_norm=1.0))
    plan = compile_graph(recipe, recipe.model.sizes, Selector(default_registry(), preset("h200"))).plan
    assert plan.arena_bytes <= 1.1 * most_alive(seen[0])


@pytest.mark.spec("D14", "B10")
def test_workspaces_lie_in_what_is_free_at_their_step():
    """Of a step in bf16 with products that are split along k: each apart from all values that live then, and most of it in their holes."""
    layers = nn.Model({"x": ("batch", 512)}, batch=64)
    for n, m in ((512, 2048), (2048, 512), (512, 64)):
        layers.add(nn.Linear(n, m)).add(nn.LayerNorm(m))
    recipe = Recipe(layers, "train", nn.MeanSquaredError(), nn.AdamW(1e-3, clip_norm=1.0), policy="bf16")
    plan = compile_graph(recipe, recipe.model.sizes, Selector(default_registry(), preset("h200"))).plan
    uses = [(n, s.workspace) for n, s in enumerate(plan.steps) if s.workspace]
    assert len(uses) >= 3
    owner = {v: plan.slots[v].alias_of if plan.slots[v].alias_of is not None else v for v in plan.slots}
    seen = {}
    for n, step in enumerate(plan.steps):
        for v in (*step.in_vids, *step.out_vids):
            seen.setdefault(owner[v], []).append(n)
    for new in plan.updates.values():
        seen[owner[new]].append(len(plan.steps))
    held = [plan.slots[v] for v in seen if plan.slots[v].offset is not None]
    for n, used in uses:
        assert used.offset % ALIGNMENT == 0 and used.offset + used.nbytes <= plan.arena_bytes
        for slot in held:
            if seen[slot.vid][0] <= n <= seen[slot.vid][-1]:
                end = used.offset + used.nbytes
                assert end <= slot.offset or slot.offset + slot.spec.nbytes <= used.offset, (n, slot)
    values = max(s.offset + s.spec.nbytes for s in held)
    assert plan.arena_bytes < values + plan.workspace_bytes
    assert type(plan).from_json(plan.to_json()) == plan


def train_like(n: int) -> list[Life]:
    """A forward pass whose values wait for the backward pass, with short-lived ones between; all sizes mixed."""
    pick = random.Random(n)
    values = []
    for vid in range(n):
        first = pick.randrange(n)
        last = 2 * n - first if vid % 2 else first + pick.randrange(1, 8)
        values.append(Life(vid, first, last, ALIGNMENT * 2 ** pick.randrange(12)))
    return values


@pytest.mark.spec("D14")
def test_ten_thousand_values_are_placed_in_near_linear_time():
    few, many = train_like(1000), train_like(10_000)
    for values in (few, many):
        _, extent = arrange(values)
        assert extent <= 1.3 * sum(v.size for v in values if v.last >= len(values))
    assert least_ratio(lambda: arrange(many), lambda: arrange(few), 40) < 40  # 10 would be linear
    assert least_seconds(lambda: arrange(many), 5) < 5  # 0.1
