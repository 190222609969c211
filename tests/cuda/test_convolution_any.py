"""Convolutions of every form on every GPU, without one: what im2col and the direct kernel take, compute and cost, and that they compile."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from clean_kernels import are_new, found_clean
from convolution_cases import COLUMNS, DIRECT, FORMS, biased, convolution
from draws.seeds import rng
from kernel_cases import VARIANTS, Case, assert_close, desc, operands_for, reference, region, with_specials
from machines.on_host import OnHost
from test_compile import DEVICES
from test_fused_maps import fresh_seed

from aicf.cuda_kernels import chain
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.compile import signature_of
from aicf.cuda_kernels.conv import columns, direct, problem
from aicf.cuda_kernels.conv.tiling import WEIGHTS
from aicf.device.spec import DeviceSpec, preset
from aicf.dispatch import default_registry
from aicf.registry.select import Selector, select
from aicf.types import DType, bf16, f16, f32
from examples import EVERYTHING

H200 = preset("h200")
TINY = DeviceSpec("tiny", "cuda", (7, 5), frozenset(), 2, 1000.0, {"f32": 20.0})
NEAR = {f32: 2e-5, f16: 4e-3, bf16: 3e-2}
BOTH = COLUMNS, DIRECT


def form(name: str, make: Any = convolution, dtype: DType = f32) -> Any:
    x, w, attrs = FORMS[name]
    return make(x, w, dtype=dtype, **attrs)


def takes(variant: str, name: str) -> bool:
    return variant == DIRECT or FORMS[name][2].get("groups", 1) == 1


@pytest.fixture
def without_naive(monkeypatch):
    """The one product that can't be run on the host."""
    registry = chain._registry.__wrapped__()
    registry.remove("cuda.gemm_naive.v1")
    monkeypatch.setattr(chain, "_registry", lambda: registry)
    caches = columns.chain_of, chain._chosen, columns.family
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


COMPILED: dict[Any, OnHost] = {}


def on_host(case: Case, operands: Any) -> list[np.ndarray]:
    """In memory that is NaN where nothing was written."""
    variant, r = VARIANTS[case.variant], case.region
    assert (reject := variant.supported(r, TINY)) is None, reject
    results = [np.full(t.nbytes, 255, np.uint8).view(t.dtype.numpy).reshape(t.shape) for t in r.results]
    workspace = np.full(variant.query_workspace(r, TINY), 255, np.uint8)
    for launch in variant.build(r, TINY):
        key = launch.body, signature_of(launch, r)
        if key not in COMPILED:
            COMPILED[key] = OnHost(launch, r)
        COMPILED[key].launch = launch
        COMPILED[key](operands.memory, results, workspace)
    return results


def check(case: Case) -> None:
    operands = operands_for(case, fresh_seed())
    assert_close(case, on_host(case, operands), reference(case, operands.arrays))


@pytest.mark.sample(6, pool="on the host")
@pytest.mark.spec("D13", "F2")
@pytest.mark.parametrize("variant", BOTH)
@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_code_run_on_the_host_agrees_with_numpy(without_naive, name, dtype, variant):
    if takes(variant, name):
        check(Case(variant, form(name, biased if dtype is f16 else convolution, dtype), NEAR[dtype]))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("variant", BOTH)
def test_nan_and_infinity_stay_in_the_windows_that_have_them(without_naive, variant):
    case = Case(variant, form("odd"), NEAR[f32])
    operands = with_specials(case, operands_for(case))
    got, want = on_host(case, operands), reference(case, operands.arrays)
    np.testing.assert_array_equal(np.isfinite(got[0]), np.isfinite(want[0]))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("make", [convolution, biased])
def test_images_take_turns_where_windows_of_all_would_be_many(without_naive, monkeypatch, make):
    """Each some: what follows is of the same images, of unlike alignment."""
    r = make((5, 6, 8, 3), (5, 3, 3, 3), dtype=f32)
    c = problem.read(r)
    of_two = 2 * c.rows // c.images * columns.pitch(c) * 4
    monkeypatch.setattr(columns, "BYTES", of_two)
    launches = VARIANTS[COLUMNS].build(r, TINY)
    assert sum(x.body.__name__.startswith("convolution_columns") for x in launches) >= 3
    check(Case(COLUMNS, r, NEAR[f32]))


def test_windows_of_one_element_are_no_copy():
    r = form("1x1", biased, bf16)
    assert VARIANTS[COLUMNS].query_workspace(r, H200) == 0
    assert all("convolution" not in x.body.__name__ for x in VARIANTS[COLUMNS].build(r, H200))


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.parametrize("variant", BOTH)
def test_what_is_empty_is_refused_or_zeros(variant):
    """No extent, no place for a window, no channels: of one that is drawn, or of all, the zeros are computed."""
    empty = ((2, 0, 5, 4), (3, 1, 2, 4)), ((2, 2, 5, 4), (3, 3, 2, 4)), ((2, 4, 5, 0), (3, 1, 2, 0))
    drawn = empty[int(rng("empty forms").integers(3))]
    for x, w in empty:
        r = convolution(x, w, dtype=f32)
        refused = VARIANTS[variant].supported(r, TINY)
        assert (refused is None) == (variant == DIRECT), refused
        if refused is None and (EVERYTHING or (x, w) == drawn):
            got = on_host(Case(variant, r), operands_for(Case(variant, r)))
            assert got[0].shape == r.results[0].shape and not got[0].any()


@pytest.mark.parametrize("variant, r, reason", [
    (COLUMNS, form("groups"), "groups 2 is over 1"),
    (COLUMNS, convolution((2, 0, 8, 16), (8, 1, 3, 16)), "least extent of results 0 is under 1"),
    (DIRECT, convolution((2, 8, 8, 16), (8, 3, 3, 16), ("z", "add", "y", "e"), given={"e": desc((2, 1, 1, 8), f16)}), "axes of the batch 1 is over 0"),
    (DIRECT, convolution((2**11, 2**11, 2**10, 8), (8, 1, 1, 8)), "greatest extent 4294967296 is over 2147483647"),
    (DIRECT, convolution((1, 2**16, 2**12, 8), (8, 3, 3, 8)), "elements of an image 2147483648 is over 2146435072"),
    (COLUMNS, convolution((1, 4, 4, 8), (8, 3, 3, 8), low=(2**31 - 9, 0), strides=(2**20, 1)), "elements of a padded axis 2147483643 is over 2146435072"),
])  # fmt: skip
def test_refuses_with_the_value_seen(variant, r, reason):
    assert reason in str(VARIANTS[variant].supported(r, H200))


def test_a_map_of_all_images_keeps_them_together():
    """Of another shape, what follows does not say which of its elements are of some images."""
    ops = ("v", "reshape", "y", {"shape": (64 * 110 * 110, 64)}), ("z", "relu", "v")
    r = convolution((64, 112, 112, 64), (64, 3, 3, 64), *ops, dtype=f32)
    assert "reshape is of all" in str(VARIANTS[COLUMNS].supported(r, H200))


@pytest.mark.sample(20)
@pytest.mark.spec("D13")
@pytest.mark.parametrize("device", ["t4", "a100", "l40s", "h100", "h200", "b200"])
@pytest.mark.parametrize("name", FORMS)
def test_every_gpu_has_a_kernel_for_every_form(device, name):
    select = Selector(default_registry(), preset(device))
    for make in (convolution, biased):
        for dtype in (f32, f16, bf16):
            chosen = select(form(name, make, dtype)).chosen
            assert math.isfinite(chosen.us) and ".convolution_" in chosen.variant.id


# layers of published models, and the kernel that has them on an H200 in bf16
LAYERS = {
    "stem": ((32, 224, 224, 3), (64, 7, 7, 3), {"low": (3, 3), "high": (3, 3), "strides": (2, 2)}, COLUMNS),
    "bottleneck": ((32, 56, 56, 64), (64, 3, 3, 64), {"low": (1, 1), "high": (1, 1)}, "cuda.convolution_wgmma."),
    "depthwise": ((32, 112, 112, 64), (64, 3, 3, 1), {"low": (1, 1), "high": (1, 1), "groups": 64}, DIRECT),
    "ResNeXt": ((32, 56, 56, 128), (128, 3, 3, 4), {"low": (1, 1), "high": (1, 1), "groups": 32}, DIRECT),
    "three axes": ((2, 16, 112, 112, 16), (32, 3, 3, 3, 16), {"low": (1, 1, 1), "high": (1, 1, 1)}, COLUMNS),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_published_models_have_the_kernel_for_them(name):
    x, w, attrs, wanted = LAYERS[name]
    selected = Selector(default_registry(), H200)(convolution(x, w, dtype=bf16, **attrs))
    assert selected.chosen.variant.id.startswith(wanted), selected.chosen


def test_what_every_kernel_costs_is_never_under_its_floor():
    for name in FORMS:
        for variant in BOTH:
            r, v = form(name, dtype=bf16), VARIANTS[variant]
            if v.supported(r, H200) is None:
                assert v.least(r, H200) <= v.cost(r, H200).us


def test_tiles_are_whole_and_weights_fit():
    for name in FORMS:
        for dtype in NEAR:
            c = problem.read(form(name, dtype=dtype))
            t = direct.tiling_of(c)
            places, deep = direct.weights_at_once(c)
            assert places * deep * t.pitch <= WEIGHTS and (t.depthwise or not deep % t.depth)


def own_launches(name, dtype, variant, device):
    r = form(name, biased, dtype)
    built = VARIANTS[variant].build(r, device)
    return r, [x for x in built if x.body.__name__.startswith("convolution_")]


COMPILES = [
    ("3x3", f16, COLUMNS), ("odd", bf16, COLUMNS), ("transposed", f32, COLUMNS), ("3x3", bf16, DIRECT), ("odd", f32, DIRECT),
    ("depthwise", f16, DIRECT), ("odd depthwise", bf16, DIRECT), ("transposed depthwise", f32, DIRECT),
]  # fmt: skip


def is_new(name, dtype, variant, device):
    r, launches = own_launches(name, dtype, variant, device)
    return are_new(launches, r, device.target)


@pytest.mark.sample(1, always=is_new, pool="machine code")
@pytest.mark.spec("F2", "D13")
@pytest.mark.parametrize(
    "device", [d for d in DEVICES if d.target in ("sm_75", "sm_90a")], ids=lambda d: d.target
)
@pytest.mark.parametrize("name, dtype, variant", COMPILES)
def test_compiles_without_spills(name, dtype, variant, device):
    r, launches = own_launches(name, dtype, variant, device)
    for launch in launches:
        compiled = engine.compile_launch(launch, r, device.target, variant)
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0), compiled.log
        assert 0 < compiled.registers * launch.block[0] <= 65536
        assert compiled.shared_bytes <= engine.STATIC_SHARED_LIMIT
        assert ".f64" not in engine.ptx_of(launch, r, device.target)
        found_clean(launch, r, device.target)


@pytest.mark.parametrize("device", ["h200", "a100"])
def test_an_empty_convolution_starts_nothing(device):
    """Drawn without images, channels of results or windows."""
    draw, empty = rng("empty convolutions", device), 0
    for _ in range(30):
        axes = int(draw.integers(1, 4))
        images, channels, results = (int(n) for n in draw.integers((0, 1, 0), 4))
        sizes, window = draw.integers(0, 4, axes).tolist(), draw.integers(1, 5, axes).tolist()
        r = region("convolution_channels_last", (images, *sizes, channels), (results, *window, channels))
        if r.results[0].numel:
            continue
        empty += 1
        chosen = select(r, preset(device), default_registry()).chosen.variant
        assert chosen.build(r, preset(device)) == [], (chosen.id, r)
    assert empty > 5
