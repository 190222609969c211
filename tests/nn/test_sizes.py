"""Other sizes of a named dimension need no other code: of train programs, the kernels of each size by their keys."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import aicf
from aicf import nn
from aicf.code_cache.digest import Description
from aicf.cpu_kernels.compiler import loops
from aicf.cpu_kernels.compiler.code import loop_key
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.keys import kernel_digest
from aicf.device.spec import DeviceSpec, host, preset
from aicf.graph.compile import compile_graph
from aicf.graph.emit.trace import Recipe
from aicf.registry.select import Selector
from aicf.registry.variant import HostCall
from aicf.types import DType, TensorSpec, bf16, f16, f32

from .decoder import decoder

ONCE = Description()  # describes what kernels share once

SIZES = (48, 33, 32, 57, 64, 80, 96, 1000)


def perceptron(*layers: Any, dtype: DType = f32, rows: tuple[int, ...] = (), out: int = 16) -> nn.Model:
    model = nn.Model({"x": TensorSpec(("batch", *rows, 64), dtype)}, batch=32, seed=0).add(nn.Linear(64, 96))
    for layer in layers:
        model.add(layer)
    return model.add(nn.Linear(96, out))


def recipe(model: nn.Model, loss: Any, optimizer: Any, **how: Any) -> Recipe:
    return Recipe(model, "train", loss, optimizer, **how)


MODELS = {
    "classes": lambda: recipe(perceptron(nn.ReLU()), nn.SoftmaxCrossEntropy(), nn.AdamW(1e-3)),
    "dropout": lambda: recipe(perceptron(nn.GELU(), nn.Dropout(0.3)), nn.SoftmaxCrossEntropy(), nn.SGD(1e-2)),
    "bf16": lambda: recipe(perceptron(nn.ReLU(), dtype=bf16), nn.MeanSquaredError(), nn.AdamW(1e-3)),
    "f16": lambda: recipe(perceptron(nn.Tanh(), dtype=f16, out=64), nn.MeanSquaredError(), nn.SGD(1e-3)),
    "rows": lambda: recipe(perceptron(nn.GELU(), rows=(12,)), nn.MeanSquaredError(), nn.SGD(1e-3)),
    "accumulated": lambda: recipe(
        perceptron(nn.Sigmoid()), nn.MeanSquaredError(), nn.AdamW(1e-3), accumulate=4
    ),
    "lengths": lambda: recipe(decoder(batch=4, seq=32, mix=False), nn.SoftmaxCrossEntropy(), nn.AdamW(1e-3)),
    "lengths of bf16": lambda: recipe(
        decoder(batch=4, seq=32, dtype=bf16, mix=False), nn.SoftmaxCrossEntropy(), nn.AdamW(1e-3)
    ),
}

MOST = 8  # forms of a kernel by size: lanes of a row (a power of 2), whole or ragged ends, split or not
LENGTHS = [name for name in MODELS if name.startswith("lengths")]


def kernels(
    what: Recipe, size: int, device: DeviceSpec, described: list[Any]
) -> Iterator[tuple[str, str, str]]:
    """(variant, ops, key) of all that is compiled for a train step."""
    registry = aicf.default_registry()
    sizes = {**what.model.sizes, [*what.model.sizes][-1]: size}  # of a sequence, where there is one
    for step in compile_graph(what, sizes, Selector(registry, device)).plan.steps:
        if not step.kernel_id:
            continue
        described.clear()
        built = registry.by_id(step.kernel_id).build(step.region, device)
        if isinstance(built, HostCall):
            keys = [loop_key(spec) for spec in described]
        else:
            digests = [
                kernel_digest(
                    launch, engine.signature_of(launch, step.region), device.target, step.region.strict, ONCE
                )
                for launch in built
            ]
            keys = [digest and digest.hex() for digest in digests]
        for key in keys:
            assert key is not None
            yield step.kernel_id, str(step.region.signature), key


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The loops that are described from now on."""
    found: list[Any] = []
    for kind in (loops.MapLoop, loops.FoldLoop):  # the map before a fold is described by itself

        def told(self: Any, *args: Any, init: Any = kind.__init__, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            found.append(self.spec)

        monkeypatch.setattr(kind, "__init__", told)
    return found


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in LENGTHS])
def test_on_the_cpu_nothing_is_compiled_after_the_second_size(name, described):
    what = MODELS[name]()
    first = {key for size in SIZES[:2] for *_, key in kernels(what, size, host(), described)}
    assert len(first) > 4
    for size in SIZES[2:]:
        new = [(v, ops) for v, ops, key in kernels(what, size, host(), described) if key not in first]
        assert new == [], f"for a batch of {size}"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", LENGTHS)
def test_on_the_cpu_a_kernel_is_compiled_for_all_lengths(name, described):
    """Where regions end depends on sizes, by cost; what is compiled for a region does not."""
    what = MODELS[name]()
    compiled: dict[tuple[str, str], set[frozenset[str]]] = defaultdict(set)
    for size in (1, *SIZES, *random.sample(range(130, 1000, 97), 4)):
        of_size: dict[tuple[str, str], set[str]] = defaultdict(set)
        for variant, ops, key in kernels(what, size, host(), described):
            of_size[variant, ops].add(key)
        for kernel, keys in of_size.items():
            compiled[kernel].add(frozenset(keys))
    assert compiled
    for kernel, sets in compiled.items():
        assert len(sets) <= 3, (
            f"{kernel} is compiled in {len(sets)} ways"
        )  # by which regions of these ops there are


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", MODELS)
def test_on_cuda_a_kernel_has_a_bounded_number_of_forms(name, described):
    """Other sizes may choose other kernels, and forms of one by alignment and by powers of two; no form is of one size alone."""
    what, device = MODELS[name](), preset("h200")
    sizes = [*SIZES, *random.sample([*range(128, 1024, 64), *range(130, 1000, 97)], 8)]
    forms: dict[tuple[str, str], set[str]] = defaultdict(set)
    for size in sizes:
        for variant, ops, key in kernels(what, size, device, described):
            forms[variant, ops].add(key)
    assert forms
    for kernel, keys in forms.items():
        assert len(keys) <= MOST, f"{kernel} has {len(keys)} forms for {len(sizes)} sizes"
