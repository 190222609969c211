"""Regions and graphs as plain data, which `tools/replay.py` asks several trees about: products, tests' cases, ops, and models' regions.

A region is its JSON, with `cuda` as the device of all tensors. A graph is a drawn program, or an example with arguments of its `build`.
"""

from __future__ import annotations

import enum
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from aicf.errors import AicfError
from aicf.ops.schema import OpSchema
from aicf.rows import RegionSpec
from aicf.types import DType, TensorDesc, TensorSpec, bf16, f16, f32

from . import graphs, ops
from .attributes import changed_attributes
from .extents import renamed
from .layouts import poisoned
from .programs import Program
from .seeds import seeded

Json = dict[str, Any]
EXAMPLES: dict[str, Json] = {
    "mlp": {}, "residual": {}, "gpt": {}, "lstm": {}, "bert": {"depth": 2}, "vit": {"depth": 2}, "unet": {}, "resnet": {"depths": [1, 1, 1, 1]},
}  # fmt: skip
POLICIES = "f32", "f16", "bf16"
SIZES = 1, 2, 7, 8, 16, 17, 32, 48, 64, 96, 100, 127, 128, 192, 200, 256, 384, 500, 512, 768, 1000, 1024, 2048, 3072, 4096, 8192, 16384  # fmt: skip
HEAVY = re.compile("attention|convolution|gemm|step|entropy|grad|codes|quant|norm|reduce|softmax")
MOST_BYTES, TRIES = 2**34, 40


def regions(seed: str, count: int, sources: Sequence[str] = (), examples: Mapping[str, Json] = EXAMPLES) -> list[RegionSpec]:  # fmt: skip
    """So many different regions, by the share of each source; a source that runs dry leaves its share to the others."""
    drawn = {name: SOURCES[name](seeded(seed, name), examples) for name in sources or SOURCES}
    shares = [SHARES[name] for name in drawn]
    choose, found = random.Random(f"{seed} sources"), dict[str, RegionSpec]()
    while len(found) < count and drawn:
        (name,) = choose.choices(list(drawn), shares)
        region = next(drawn[name], None)
        if region is None:
            shares.pop(list(drawn).index(name))
            del drawn[name]
        else:
            region = replace(region, tensors=tuple(replace(t, device="cuda") for t in region.tensors))
            found.setdefault(region.key, region)
    return list(found.values())


def plans(seed: str, count: int, devices: Sequence[str], examples: Mapping[str, Json] = EXAMPLES) -> list[Json]:  # fmt: skip
    """So many graphs with the device, the mode and the numerics that they are planned for: drawn programs, and every fourth an example."""
    choose, names, found = random.Random(f"{seed} plans"), list(examples), list[Json]()
    for n in range(count):
        device = choose.choice(devices)
        if n % 4 == 1:
            graph = _example(names[n // 4 % len(names)], examples, choose)
        else:
            program = graphs.draw(seeded(seed, "plans", n))
            graph = {
                "graph": {"program": program_json(program)},
                "numerics": choose.choice(["fused", "fused", "strict"]),
            }
        found.append({"device": device, **graph})
    return found


def _example(name: str, examples: Mapping[str, Json], choose: random.Random) -> Json:
    mode, policy = choose.choice(["infer", "train", "train"]), choose.choice(POLICIES)
    return {
        "graph": {"example": name, "build": examples[name]},
        "mode": mode,
        "policy": policy,
        "numerics": "fused",
    }


# --- graphs -----------------------------------------------------------------------------------------------------------


def program_json(program: Program) -> Json:
    """A drawn program without its numbers."""
    fed = [[[f.name, f.spec.shape, f.spec.dtype.name] for f in all] for all in (program.fed, program.states)]
    return {
        "inputs": fed[0], "states": fed[1], "outputs": program.outputs, "writes": [s.name for s in program.steps if s.kind in graphs.IN_PLACE],
        "steps": [[s.name, s.kind, s.operands, {k: _plain(v) for k, v in dict(s.attrs).items()}] for s in program.steps],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """An attribute as JSON has it: types and members of enumerations by their names, which ops take too."""
    return value.name if isinstance(value, DType | enum.Enum) else value


# --- sources of regions -----------------------------------------------------------------------------------------------


def _products(rng: np.random.Generator, examples: Mapping[str, Json]) -> Iterator[RegionSpec]:
    """GEMMs of all types, layouts, batches, alignments and epilogues, of sizes from one row to thousands."""
    import random_products as p

    draw = random.Random(int(rng.integers(2**31)))
    while True:
        types, precision = draw.choice(p.TYPES)
        rows = [r for r in (p.ROW, p.ROW, p.ROW, 8, 4, 2, 1) if r >= max(t.itemsize for t in types[:2])]
        form = p.Form(
            types, precision, draw.random() < 0.5, draw.random() < 0.5, draw.choice(p.EPILOGUES), draw.choice((8, *p.COLUMNS)), draw.choice(rows),
            draw.choice(["", "", "", *p.BATCHES]),
        )  # fmt: skip
        m, n, k = (draw.choice(SIZES) + draw.choice([0, 0, 0, 8, 1]) for _ in range(3))
        batch = tuple(draw.randint(2, 16) for _ in range(p.BATCHES[form.batch]))
        apart = (draw.choice([0, 0, 1]), draw.choice([0, 0, 1]))
        try:
            yield p.Problem(form, m, p.columns(n, form.columns), k, batch, apart).region()
        except AicfError:  # an epilogue that there is not for a batch
            continue


def _cases(rng: np.random.Generator, examples: Mapping[str, Json]) -> Iterator[RegionSpec]:
    """The regions that kernels' tests have: one for each kernel first."""
    import convolution_cases as conv
    import fused_gemm_cases as gemms
    import fused_map_cases as maps
    import gradient_cases as gradients
    import kernel_cases as kernels

    cases = [*kernels.MORE, *gemms.small(), *gemms.large(), *maps.SMALL, *maps.LARGE]
    for dtype in (f32, f16, bf16):
        cases += [*gradients.tiled_cases(dtype, 0.0), *gradients.chain_cases(dtype, 0.0)]
    cases += [c for variant in kernels.GRADIENTS for c in gradients.hopper_cases(variant, large=True)]
    more = [c.region for c in cases]
    for x, w, attrs in conv.FORMS.values():
        more += [
            make(x, w, dtype=t, **attrs) for t in (f32, f16, bf16) for make in (conv.convolution, conv.biased)
        ]
    for some in ([c.region for c in kernels.FIRST], more):
        yield from (some[i] for i in rng.permutation(len(some)))


def _ops(rng: np.random.Generator, examples: Mapping[str, Json]) -> Iterator[RegionSpec]:
    """Any op with drawn types, layouts and attributes, of a few elements."""
    while True:
        if case := ops.draw(rng, "dry"):
            results = [poisoned(s.shape, s.dtype, case.results) for s in case.inferred()]
            yield ops.region_of(case, case.operands(), results, "cuda")


def _large(rng: np.random.Generator, examples: Mapping[str, Json]) -> Iterator[RegionSpec]:
    """Samples of ops with other types and sizes, up to those of large models; half of them ops that do much arithmetic."""
    every = ops.enrolled()
    heavy = [s for s in every if HEAVY.search(s.name)]
    while True:
        some = heavy if rng.random() < 0.6 else every
        if region := _enlarged(some[rng.integers(len(some))], rng):
            yield region


def _enlarged(schema: OpSchema, rng: np.random.Generator) -> RegionSpec | None:
    """A sample of the op with other extents, dense; None if its rule refuses all that were tried."""
    sample = schema.sample_specs[rng.integers(len(schema.sample_specs))]
    for _ in range(TRIES):
        extents = sorted({d for shape in sample["shapes"] if shape for d in shape})
        instead = {d: int(rng.choice(SIZES)) for d in extents if rng.random() < (0.3 if d < 4 else 0.9)}
        shapes, attrs = renamed(sample["shapes"], sample["attrs"], instead, rng.random() < 0.8)
        if rng.random() < 0.3:
            attrs = changed_attributes(schema, attrs, shapes, rng)
        types = ops.types(schema, shapes, rng)
        specs = [None if s is None or t is None else TensorSpec(s, t, "cuda") for s, t in zip(shapes, types)]
        try:
            pack = schema.pack(schema.normalized(specs, attrs))
            results = schema.infer(specs, pack, "cuda")
        except (AicfError, OverflowError):
            continue
        if 0 < sum(s.nbytes for s in (*specs, *results) if s) <= MOST_BYTES:
            dense = [s and TensorDesc.dense(s) for s in specs]
            return RegionSpec.single(schema.kind, pack, dense, [TensorDesc.dense(s) for s in results])
    return None


def _planned(rng: np.random.Generator, examples: Mapping[str, Json]) -> Iterator[RegionSpec]:
    """Regions of drawn programs and of the examples' steps, each once: those of several ops first."""
    choose, found = random.Random(int(rng.integers(2**31))), dict[str, RegionSpec]()
    graphs_ = [
        {**_example(name, examples, choose), "device": d, "mode": m}
        for name in examples
        for d, m in (("h200", "train"), ("a100", "infer"))
    ]
    graphs_ += [
        {"graph": {"program": program_json(graphs.draw(rng))}, "numerics": "fused", "device": "h200"}
        for _ in range(40)
    ]
    from replay_answers import explanation

    for graph in graphs_:
        with suppress(AicfError):  # a drawn program may have an op whose expansion is refused
            for step in explanation(graph).plan.steps:
                found.setdefault(step.region.key, step.region)
    order = list(found.values())
    choose.shuffle(order)
    yield from sorted(order, key=lambda region: len(region.ops) == 1)


SOURCES: dict[str, Callable[[np.random.Generator, Mapping[str, Json]], Iterator[RegionSpec]]] = {
    "products": _products, "cases": _cases, "ops": _ops, "large": _large, "plans": _planned,
}  # fmt: skip
SHARES = {"products": 0.35, "cases": 0.2, "ops": 0.12, "large": 0.18, "plans": 0.15}
