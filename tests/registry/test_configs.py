"""A kernel in several configs: its functions get the config, each config is ranked or refused, and none is dropped (A8, B7)."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np
import pytest
from draws.questions import regions
from draws.seeds import run_seed, seeded

import aicf
from aicf.cuda_kernels.gemm.wgmma_tiling import TILINGS, tilings
from aicf.errors import KernelError, MissingKernelError, NoKernelError, RegistryError
from aicf.ops.whose_line import definition
from aicf.registry.cost import Cost
from aicf.registry.naming import lacking, matching
from aicf.registry.registry import KernelRegistry
from aicf.registry.select import Selector, select
from aicf.registry.text_digest import variant_digest
from aicf.registry.variant import HostCall, Kernel, Reject, kernels_of, one_op, variant
from aicf.rows import RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, TensorSpec

CPU = aicf.device.spec.preset("cpu")
DEVICES = "h200", "a100", "t4"


@dataclass(frozen=True)
class Tile:
    """Of at most `rows` rows; `us` is what it takes."""

    rows: int
    us: float

    def __str__(self) -> str:
        return f"{self.rows}_rows"


def kernel(tiles, **changed) -> Kernel:
    """A kernel of relu that refuses tensors with more rows than the tile has."""

    class Mine:
        """In tiles."""

        def accepts(region, config):
            yield one_op(region)
            rows = region.operands[0].shape[0]
            yield Reject("rows", f"{rows} rows, this tile has {config.rows}") if rows > config.rows else None

        def cost(region, device, config):
            return Cost({"made up": config.us})

        def build(region, device, config):
            return HostCall(lambda operands, results: config.rows)

        def least(region, device):
            return 0.0

    for name, function in changed.items():
        setattr(Mine, name, function)
    return variant("relu", id="cpu.mine.v1", configs=tiles)(Mine)


def region(rows: int) -> RegionSpec:
    desc = TensorDesc.dense(TensorSpec((rows, 8), aicf.f32))
    return RegionSpec.single(OpKind("relu"), AttrPack({}), [desc], [desc])


@pytest.mark.spec("A8")
@pytest.mark.spec("B7")
@pytest.mark.parametrize("draw", range(8))
def test_each_config_is_ranked_or_refused_with_the_value_seen(draw):
    rng = seeded(run_seed(), "configs", draw)
    sizes = rng.choice(np.arange(1, 200), rng.integers(1, 7), replace=False).tolist()
    tiles = [Tile(n, float(us)) for n, us in zip(sizes, rng.permutation(len(sizes)) + 1.0)]
    made, rows = kernel(tiles), int(rng.integers(1, 200))
    taken = {f"{t.rows} rows": t.us for t in tiles if rows <= t.rows}
    answers = made.configs(region(rows), CPU)
    assert {name for name, answer in answers.items() if not isinstance(answer, Reject)} == set(taken)
    for t in tiles:
        if rows > t.rows:
            assert answers[f"{t.rows} rows"] == Reject("rows", f"{rows} rows, this tile has {t.rows}")
    registry = KernelRegistry(made)
    assert registry.kernel("cpu.mine.v1").configs(region(rows), CPU) == answers
    if taken:
        ranked = select(region(rows), CPU, registry).ranked
        assert [c.variant.config for c in ranked] == sorted(taken, key=taken.__getitem__)
        assert [c.us for c in ranked] == sorted(taken.values())


def test_configs_of_registered_kernels_are_those_that_selection_ranks_and_refuses():
    registry, compared = aicf.default_registry(), 0
    for drawn in regions(run_seed(), 12, ("ops", "large"), {}):
        for device in map(aicf.device.spec.preset, DEVICES):
            selection = Selector(registry, device).ask(drawn)
            if isinstance(selection, NoKernelError):
                continue  # such as f64's: no kernel is ranked
            compared += 1
            ranked = {c.variant.id for c in selection.ranked}
            refused = {r.variant.id: r.reject for r in selection.rejected}
            for k in kernels_of(v for v in registry.variants(drawn.kind) if v.device == "cuda"):
                for config, answer in registry.kernel(k.id).configs(drawn, device).items():
                    id = k[config].id
                    assert (id in ranked) != isinstance(answer, Reject) or id in refused, (drawn, id)
                    if isinstance(answer, Reject):
                        assert refused[id] == answer, (drawn, id)
    assert compared


def test_a_config_is_named_by_its_text_or_by_its_key():
    assert [v.id for v in kernel([Tile(3, 1.0), Tile(40, 1.0)])] == [
        "cpu.mine.v1[3 rows]",
        "cpu.mine.v1[40 rows]",
    ]
    made = kernel({"small": Tile(3, 1.0), "large_one": Tile(40, 1.0)})
    assert [v.config for v in made] == ["small", "large one"] and made["large one"].settings == Tile(40, 1.0)
    assert made["small"].kernel == made.id and made.doc == "In tiles."
    with pytest.raises(RegistryError, match="no config 'medium'") as e:
        made["medium"]
    assert "small, large one" in str(e.value)
    with pytest.raises(MissingKernelError, match=r"no kernel 'cpu\.other\.v1'"):
        KernelRegistry(made).kernel("cpu.other.v1")


def test_functions_without_a_config_are_shared():
    first, second = kernel([Tile(3, 1.0), Tile(40, 1.0)])
    assert first.least is second.least and first.cost is not second.cost
    assert __file__ in definition(first.cost) and "in cost" in definition(first.cost)
    assert first.module == __name__


def test_what_depends_on_the_config_may_be_a_function_of_it():
    class Mine:
        def accepts(region): ...
        def cost(region, device): ...
        def build(region, device): ...

    made = variant(
        "relu", id="cuda.mine.v1", configs=[Tile(3, 1.0), Tile(40, 1.0)], shared=lambda t: 16 * t.rows,
        takes=lambda t: ("map",) if t.rows > 9 else ("map", "maps"), alignment=lambda t: 4 if t.rows % 2 else 16, needs=("sm_90a",),
    )(Mine)  # fmt: skip
    assert [(v.shared, v.takes, v.alignment) for v in made] == [(48, ("map", "maps"), 4), (640, ("map",), 16)]
    h200 = aicf.device.spec.preset("h200")
    assert {v.needs for v in made} == {("sm_90a",)} and made.variants[0].admits(h200) is None
    large = variant("relu", id="cuda.mine.v1", configs=[10**6], shared=lambda n: n)(Mine)
    assert "needs 1000000 bytes of shared memory" in large.configs(region(1), h200)["1000000"].reason


@pytest.mark.parametrize(
    "tiles, changed, message",
    [
        ([], {}, "kernel cpu.mine.v1 has no configs"),
        ([Tile(3, 1.0), Tile(3, 2.0)], {}, "two configs of one name"),
        ([Tile(3, 1.0)], {"cost": lambda region: None}, "its `cost` takes 1 arguments"),
        ([Tile(3, 1.0)], {"cost": lambda region, device, config, more: None}, "its `cost` takes 4 arguments"),
        (["Wide"], {}, r"'cpu\.mine\.v1\[Wide\]' is malformed"),
    ],
)
def test_mistakes_name_the_kernel(tiles, changed, message):
    with pytest.raises(RegistryError, match=message):
        kernel(tiles, **changed)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"cost": staticmethod(lambda region, device: None)}, "a plain function cost(region, device)"),
        ({"halved": lambda region: None}, "define other functions outside of the class"),
    ],
)
def test_what_is_no_function_of_a_kernel_is_named_with_what_is_expected(changed, said):
    with pytest.raises(RegistryError, match=next(iter(changed))) as e:
        kernel([Tile(3, 1.0)], **changed)
    assert said in str(e.value)


def _by_name(region, device, *, config): ...
def _of_an_object(self, region, device): ...
def _in_another_order(region, config, device): ...


@pytest.mark.parametrize("name", ["cost", "build", "workspace", "least"])
@pytest.mark.parametrize("function", [_by_name, _of_an_object, _in_another_order])
def test_functions_that_would_get_the_config_as_something_else_are_refused(name, function):
    with pytest.raises(RegistryError, match=f"its `{name}` takes") as e:
        kernel([Tile(3, 1.0)], **{name: function})
    assert f"{name}(region, device[, config])" in str(e.value) and f"{__file__}:" in str(e.value)


def test_a_parameter_with_a_default_is_not_the_config_unless_it_is_called_so():
    def cost(region, device, us=7.0):
        return Cost({"made up": us})

    def build(region, device, config=None):
        return HostCall(lambda operands, results: config)

    (made,) = kernel([Tile(3, 1.0)], cost=cost, build=build)
    assert made.cost(region(1), CPU).us == 7.0
    assert made.build(region(1), CPU).function([], []) == Tile(3, 1.0)


@pytest.mark.parametrize("value", [None, {"rows": 3}, [1, 2], np.zeros(3)])
def test_a_config_is_any_value(value):
    def build(region, device, config):
        return HostCall(lambda operands, results: config)

    made = kernel({1: value}, build=build, accepts=lambda region: iter(()))
    assert made["1"].build(region(1), CPU).function([], []) is value
    module = ModuleType("brings")
    module.KERNEL, module.AGAIN = made, made.variants
    registry = KernelRegistry()
    registry.add_module(module, origin="acme")
    assert [v.origin for v in registry] == ["acme"] and variant_digest(made["1"])


@pytest.mark.parametrize(
    "said, message",
    [
        ({"configs": "128x64"}, "`configs` can't be listed"),
        ({"configs": 3}, "`configs` can't be listed"),
        ({"configs": {"": 1, "a": 2}}, "a config without a name"),
        ({"configs": [1], "config": ("a",)}, "both `config` and `configs`"),
        ({"configs": [1], "takes": "map"}, "wrong `takes`"),
        ({"configs": [1], "takes": lambda config: "map"}, "wrong `takes`"),
        ({"configs": [1], "shared": lambda config: None}, "wrong `shared`"),
        ({"configs": [1], "alignment": lambda config: config.bytes}, "its `alignment` failed for the config 1"),
        ({"takes": lambda config: ("map",)}, "`takes` is a function, and there are no configs"),
    ],
)  # fmt: skip
def test_mistakes_of_configs_and_of_what_depends_on_them(said, message):
    class Mine:
        def accepts(region): ...
        def cost(region, device): ...
        def build(region, device): ...

    with pytest.raises(RegistryError, match=message) as e:
        variant("relu", id="cpu.mine.v1", **said)(Mine)
    assert "cpu.mine.v1" in str(e.value)


def test_a_registry_takes_and_forgets_a_kernel_in_all_of_its_configs():
    made, registry = kernel([Tile(3, 1.0), Tile(40, 1.0)]), KernelRegistry()
    assert registry.add(made) is made and [*registry] == [made["3 rows"], made["40 rows"]]
    with pytest.raises(MissingKernelError, match="has several configs") as e:
        registry.by_id(made.id)
    assert "'cpu.mine.v1[3 rows]'" in str(e.value)
    copy = registry.copy()
    registry.remove(made.id)
    assert not [*registry] and [*copy] == [*made]
    registry.add(made["40 rows"])
    with pytest.raises(RegistryError, match="is taken"):
        registry.add(kernel([Tile(5, 1.0), Tile(40, 1.0)]))
    assert [*registry] == [made["40 rows"]]  # nothing of what was refused
    with pytest.raises(RegistryError, match="no kernel") as e:
        registry.add(Tile)
    assert "@variant" in str(e.value)


def test_a_package_may_bring_a_config_of_a_kernel_of_another():
    rng, registry = seeded(run_seed(), "packages"), KernelRegistry()
    names = [f"{n:03} rows" for n in rng.choice(1000, 6, replace=False)]
    for origin, part in (("aicf", names[:4]), ("acme", names[4:])):
        module = ModuleType(origin)
        module.KERNEL = kernel(dict.fromkeys(part, Tile(1, 1.0)))
        registry.add_module(module, origin)
    assert {v.config: v.origin for v in registry.kernel("cpu.mine.v1")} == dict(
        zip(names, ["aicf"] * 4 + ["acme"] * 2)
    )


@pytest.mark.parametrize("draw", range(6))
def test_every_config_is_found_by_what_the_trace_calls_it(draw):
    """Words that begin with letters too, which are not classes of characters."""
    rng, letters = seeded(run_seed(), "words", draw), list("abmin0123")
    words = {"".join(rng.choice(letters, rng.integers(1, 6))) for _ in range(7)}
    made = kernel(dict.fromkeys([*words, "large one"], Tile(1, 1.0)))
    registry = KernelRegistry([*made, *kernel([Tile(3, 1.0)])])
    for v in registry:
        for said in (v.id, v.name):
            assert matching(registry, said) == (v,)
            assert v not in [*lacking(registry, said)] and len(lacking(registry, said)) == len(registry) - 1
    found = {v.config for v in registry if v.config.startswith("m")}
    assert {v.config for v in (matching(registry, "mine[m*]") if found else ())} == found
    assert matching(registry, "m[hi]ne") == matching(registry, "mine") == tuple(registry)


CELL = """
from aicf.registry.variant import variant

def of(configs):
    @variant("relu", id="cpu.mine.v1", configs=configs)
    class Mine:
        def accepts(region): ...
        def cost(region, device): ...
        def build(region, device, config): ...
    return Mine
"""


@pytest.mark.parametrize("draw", range(4))
def test_a_cell_that_is_run_again_leaves_no_config_behind(draw):
    """Those of another call of the same function stay: a kernel may be brought in parts."""
    rng, registry = seeded(run_seed(), "cells", draw), KernelRegistry()
    for _ in range(3):
        exec(CELL, cell := {"__name__": "__main__"})
        names = [f"{n} rows" for n in rng.choice(50, rng.integers(2, 9), replace=False)]
        cut = int(rng.integers(1, len(names)))
        for part in (names[:cut], names[cut:]):
            registry.add(cell["of"](dict.fromkeys(part, 1)))
        assert {v.config for v in registry} == set(names)


def test_flags_that_mean_nothing_are_refused():
    with pytest.raises(RegistryError, match="capture_save") as e:
        variant("relu", id="cpu.mine.v1", capture_save=True)
    assert "capture_safe" in str(e.value)


def test_an_error_names_the_config_and_the_line():
    def cost(region, device, config):
        raise ValueError(f"unhappy with {config}")

    with pytest.raises(KernelError, match=r"cpu\.mine\.v1\[3 rows\]: its `cost` failed") as e:
        select(region(2), CPU, KernelRegistry(kernel([Tile(3, 1.0)], cost=cost)))
    assert "unhappy with 3_rows" in str(e.value) and f"{__file__}:" in str(e.value)


@pytest.mark.parametrize("answer", [None, "3", float("nan")])
def test_a_floor_that_is_no_time_names_the_config_and_the_line(answer):
    def least(region, device, config):
        return answer if config.rows > 3 else 0.0

    registry = KernelRegistry(kernel([Tile(3, 1.0), Tile(40, 2.0)], least=least))
    questions = [lambda: select(region(2), CPU, registry), lambda: Selector(registry, CPU).least(region(2))]
    for question in questions[: 1 if isinstance(answer, float) else 2]:
        with pytest.raises(KernelError, match=r"cpu\.mine\.v1\[40 rows\]: its `least` failed") as e:
            question()
        assert "microseconds" in str(e.value) and f"{__file__}:" in str(e.value)


def test_the_digest_of_a_kernel_goes_by_its_config():
    one, other = kernel([Tile(3, 1.0), Tile(40, 1.0)])
    (again,) = kernel([Tile(3, 1.0)])
    assert variant_digest(one) == variant_digest(again) != variant_digest(other)


class Steps:
    """A config of a class that is no record."""

    def __init__(self, count):
        self.count = count

    def __str__(self):
        return f"{self.count}_steps"


class OtherSteps(Steps):
    def __str__(self):
        return f"other_{self.count}_steps"


def test_the_digest_of_a_kernel_goes_by_the_attributes_and_the_class_of_its_config():
    rng = seeded(run_seed(), "attributes")
    first, second = (int(n) for n in rng.choice(1000, 2, replace=False))
    configs = [Steps(first), Steps(second), OtherSteps(first), OtherSteps(second)]
    assert len({variant_digest(v) for v in kernel(configs)}) == 4
    assert variant_digest(kernel([Steps(first)])[f"{first} steps"]) == variant_digest(
        kernel(configs)[f"{first} steps"]
    )


def test_a_list_of_tilings_names_each_that_there_is():
    """A name that no tiling has would be a config less."""
    rng, names = seeded(run_seed(), "tilings"), [str(t) for t in TILINGS]
    drawn = rng.choice(names, 5, replace=False).tolist()
    assert [str(t) for t in tilings(" ".join(drawn))] == sorted(drawn, key=names.index)
    with pytest.raises(KeyError, match="128x65"):
        tilings(" ".join([*drawn, "128x65"]))
