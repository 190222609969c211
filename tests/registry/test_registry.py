"""The registry (B6, B14, D2): ids, kinds, traits, OpKey."""

from __future__ import annotations

import types
from dataclasses import replace

import pytest

from aicf import OpKey, OpKind, default_registry
from aicf.device.spec import preset
from aicf.errors import MissingKernelError, NoKernelError, RegistryError
from aicf.registry.variant import variant
from aicf.types import ActKind, DType, TensorDesc, TensorSpec

from .synthetic import kernel, region, registry_of


@pytest.mark.spec("B14")
def test_an_id_is_never_used_twice():
    registry = registry_of(kernel("cpu.a.v1"))
    with pytest.raises(RegistryError, match=r"'cpu.a.v1' is taken by aicf"):
        registry.add(kernel("cpu.a.v1"))
    registry.add(kernel("cpu.a.v2"))
    assert [v.id for v in registry] == ["cpu.a.v1", "cpu.a.v2"]


def test_what_a_notebook_s_cell_defines_again_replaces_the_kernel_that_it_defined_before():
    """But never aicf's own, nor another package's."""

    def of_a_cell(id):
        cell = {"__name__": "__main__"}
        exec("def build(region, device): ...", cell)
        return replace(kernel(id), build=cell["build"])

    first, second = of_a_cell("cpu.a.v1"), of_a_cell("cpu.a.v1")
    registry = registry_of(first, kernel("cpu.b.v1"))
    before = registry.generation
    assert registry.add(second) is second is registry.by_id("cpu.a.v1") is not first
    assert registry.generation > before and len(registry) == 2
    with pytest.raises(RegistryError, match=r"'cpu.b.v1' is taken by"):
        registry.add(of_a_cell("cpu.b.v1"))


@pytest.mark.spec("B14")
def test_the_same_record_may_come_twice():
    once = kernel("cpu.a.v1")
    registry = registry_of(once)
    assert registry.add(once) is once
    assert len(registry) == 1


@pytest.mark.spec("B14")
@pytest.mark.parametrize(
    "id", ["relu", "cpu.relu", "cpu.relu.1", "cpu.ReLU.v1", "cpu.a.b.v1", "cpu..v1", "cpu.a.v", ""]
)
def test_a_malformed_id_is_refused(id):
    with pytest.raises(RegistryError, match="malformed"):
        variant("relu", id=id)


@pytest.mark.spec("B14")
def test_every_registered_id_is_well_formed_and_found():
    registry = default_registry()
    for v in registry:
        assert variant("relu", id=v.id)
        assert registry.by_id(v.id) is v
        assert v.device == v.id.split(".")[0]


@pytest.mark.spec("B14")
def test_a_missing_id_fails_by_name():
    with pytest.raises(MissingKernelError, match=r"no kernel 'cpu.gone.v7' is registered"):
        default_registry().by_id("cpu.gone.v7")


@pytest.mark.spec("B7")
def test_a_variant_without_its_functions_or_with_unknown_ones_is_refused():
    def build(region, device): ...

    incomplete = type("Incomplete", (), {"build": build})
    with pytest.raises(RegistryError, match="has no `accepts`"):
        variant("relu", id="cpu.a.v1")(incomplete)
    functions = dict.fromkeys(("accepts", "cost", "build", "speed"), build)
    with pytest.raises(RegistryError, match="defines speed"):
        variant("relu", id="cpu.a.v1")(type("Excess", (), functions))


@pytest.mark.spec("B2", "B6")
def test_only_variants_of_the_op_are_searched():
    named, trait, star = (
        kernel("cpu.a.v1", "relu"),
        kernel("cpu.b.v1", "elementwise"),
        kernel("cpu.c.v1", "*"),
    )
    registry = registry_of(star, trait, named, kernel("cpu.d.v1", "tanh", "gemm"))
    assert registry.variants(OpKind.relu) == registry.variants("relu") == (named, trait, star)
    assert [v.id for v in registry.variants(OpKind.gemm)] == ["cpu.c.v1", "cpu.d.v1"]


def test_a_removed_variant_is_no_longer_found():
    registry = registry_of(kernel("cpu.a.v1", "relu"), kernel("cpu.b.v1", "relu"))
    assert len(registry.variants(OpKind.relu)) == 2
    registry.remove("cpu.a.v1")
    assert [v.id for v in registry.variants(OpKind.relu)] == ["cpu.b.v1"]
    assert "cpu.a.v1" not in registry


def test_a_copy_is_independent():
    registry = registry_of(kernel("cpu.a.v1"))
    registry.copy().add(kernel("cpu.b.v1"))
    assert len(registry) == 1


@pytest.mark.spec("B15")
def test_a_module_of_another_package_gives_its_variants_its_origin():
    module = types.ModuleType("elsewhere")
    module.fast, module.number = kernel("cpu.fast.v1"), 3
    registry = registry_of()
    registry.add_module(module, origin="elsewhere")
    assert [(v.id, v.origin) for v in registry] == [("cpu.fast.v1", "elsewhere")]


# --- OpKey ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("D2")
@pytest.mark.parametrize("act", list(ActKind))
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trans_a, trans_b, save_z", [(0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 0)])
def test_a_key_reads_back_from_the_region_it_stands_for(act, bias, trans_a, trans_b, save_z):
    key = OpKey(
        OpKind.gemm, "cuda", DType.f32, act=act, with_bias=bias, trans_a=bool(trans_a), trans_b=bool(trans_b),
        save_z=bool(save_z),
    )  # fmt: skip
    r = key.region(64, 32, 16)
    assert OpKey.of(r, "cuda") == key
    assert r.results[0].shape == (64, 32)


@pytest.mark.spec("D2")
def test_a_strided_tensor_makes_a_strided_key():
    r = region("relu", (4, 8))
    strided = replace(r, tensors=(replace(r.tensors[0], stride=(16, 2)), r.tensors[1]))
    assert OpKey.of(r, "cpu").layout == "row_major"
    key = OpKey.of(strided, "cpu")
    assert key.layout == "strided"
    assert OpKey.of(key.region(4, 8, 1), "cpu") == key


@pytest.mark.spec("D2")
def test_a_fused_region_has_the_key_of_the_op_with_attributes():
    from aicf.rows import RegionOp, RegionSpec

    desc = lambda *shape: TensorDesc.dense(TensorSpec(shape))  # noqa: E731
    head = region("gemm", (4, 7), (7, 5))
    none = region("relu", (4, 5)).attrs
    fused = RegionSpec(
        (head.anchor, RegionOp(OpKind.bias_add, none, (2, 3), (4,)), RegionOp(OpKind.gelu, none, (4,), (5,))),
        (*head.tensors, desc(5), desc(4, 5), desc(4, 5)), (0, 1, 3), (5,),
    )  # fmt: skip
    assert OpKey.of(fused, "cpu") == OpKey(OpKind.gemm, "cpu", DType.f32, act=ActKind.gelu, with_bias=True)


@pytest.mark.spec("D2")
@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_find_best_is_what_selection_chooses(device):
    from aicf import select

    spec, registry = preset(device), default_registry()
    for mnk in ((1, 1, 1), (17, 33, 65), (4096, 4096, 4096)):
        key = OpKey(OpKind.gemm, spec.kind, DType.f32, act=ActKind.relu, with_bias=True)
        best = registry.find_best(key, spec, *mnk)
        assert best is select(key.region(*mnk), spec, registry).chosen.variant


@pytest.mark.spec("D2")
def test_find_best_says_why_there_is_none():
    registry = default_registry()
    with pytest.raises(NoKernelError, match="the key asks for cuda, cpu is a cpu device"):
        registry.find_best(OpKey(OpKind.gemm, "cuda", DType.f32), preset("cpu"))
    with pytest.raises(NoKernelError, match="no kernel takes gemm"):
        registry_of(kernel("cpu.a.v1", "relu")).find_best(OpKey(OpKind.gemm, "cpu", DType.f32), preset("cpu"))


@pytest.mark.spec("D2")
def test_an_op_that_a_key_says_too_little_of_is_refused():
    for kind in ("reduce_sum", "bias_add", "convert", "reshape"):
        with pytest.raises(RegistryError, match=f"an OpKey says too little of {kind}"):
            default_registry().find_best(OpKey(OpKind(kind), "cpu", DType.f32), preset("cpu"))
    region = OpKey(OpKind("greater"), "cpu", DType.f32).region(3, 4, 1)
    assert [t.dtype for t in region.results] == [DType.bool]


@pytest.mark.spec("B11")
def test_a_module_registers_what_it_makes_and_not_what_it_imports():
    from types import ModuleType

    from aicf.cpu_kernels.gemm import GemmBlas

    module = ModuleType("other_package")
    module.GemmBlas = GemmBlas
    registry = registry_of(GemmBlas)
    registry.add_module(module, origin="other_package")
    assert [v.origin for v in registry] == ["aicf"]
