"""Kernels for sm_90 wait for the one before them before they touch memory; for older ones nothing is added. Needs no GPU."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
import wgmma_cases
from kernel_cases import FIRST, VARIANTS, Case, region

from aicf import config
from aicf.cuda_kernels.compiler import engine
from aicf.cuda_kernels.compiler.keys import kernel_key
from aicf.cuda_kernels.dsl import float32
from aicf.device.spec import preset
from aicf.device.streams import Captured
from aicf.errors import SettingError
from aicf.registry.variant import In, Launch, Num, Out

H200, A100 = preset("h200"), preset("a100")
WAIT = "griddepcontrol.wait;"
# what reads or writes memory that other kernels may touch, at once or later: not parameters, and not what a block has for itself
TOUCHES = re.compile(
    r"^\s*(@%p\d+ )?(ld|st|atom|red|cp|prefetch|discard|multimem)\.(?!param|const|shared|local|async\.(commit|wait))"
)


def follows(ptx: str) -> bool:
    """Whether the kernel waits, once, before it touches memory, and no way leads around."""
    assert ptx.count(".entry") == 1
    lines = ptx[ptx.index(".entry") :].splitlines()
    waits = [i for i, line in enumerate(lines) if line.strip() == WAIT]
    if len(waits) != 1:
        return False
    before = lines[: waits[0]]
    labels = {m[1] for line in before if (m := re.match(r"(\$?\w+):", line.strip()))}
    jumps = {m[1] for line in before if (m := re.search(r"\bbra(?:\.uni)?\s+(\$?\w+);", line))}
    touched = [line for line in before if TOUCHES.match(line) and "prefetch.tensormap" not in line]
    return not touched and jumps <= labels and not any("ret;" in line for line in before)


WGMMAS = [Case(v.id, wgmma_cases.residual(130, 136, 72)) for v in wgmma_cases.BY_NAME.values()]


def named(case: Case) -> str:
    return f"{case.variant} {case.region.results[0].dtype}"


@pytest.mark.sample(1)
@pytest.mark.spec("F3", "F2")
@pytest.mark.parametrize("case", FIRST, ids=named)
def test_every_kernel_waits_before_it_touches_memory(case):
    waits(case)


@pytest.mark.sample(1, pool="machine code")
@pytest.mark.spec("F3", "F2")
@pytest.mark.parametrize("case", WGMMAS, ids=named)
def test_products_in_warpgroups_wait_before_they_touch_memory(case):
    waits(case)


def waits(case: Case) -> None:
    for launch in VARIANTS[case.variant].build(case.region, H200):
        assert follows(engine.ptx_of(launch, case.region, "sm_90a"))


def test_what_the_check_sees():
    """It can tell: a kernel that does not wait, waits too late, on one way only, or after it is over."""
    touch, wait = "ld.global.f32 %f1, [%rd1];", WAIT
    assert follows(f".entry k(\nld.param.u64 %rd1, [a];\n@%p1 bra $L;\n$L:\n{wait}\n{touch}\nret;")
    for bad in (touch, f"{touch}\n{wait}", f"@%p1 bra $L;\n{wait}\n$L:\n{touch}", f"@%p1 ret;\n{wait}\n{touch}",
                f"@%p2 cp.async.bulk.tensor.2d [%r1], [%rd1];\n{wait}", f"{wait}\n{wait}"):  # fmt: skip
        assert not follows(f".entry k(\n{bad}\nret;")


@pytest.mark.spec("F2")
def test_older_ones_are_as_they_were():
    r = region("add", (1000,), (1000,))
    (launch,) = VARIANTS["cuda.elementwise_flat.v1"].build(r, A100)
    for target in ("sm_75", "sm_80", "sm_89"):
        assert "griddepcontrol" not in engine.ptx_of(launch, r, target)


def test_a_body_s_defaults_stay_its_own():
    def scaled(x, y, n, factor=3.0):
        for i in range(n):
            y[i] = x[i] * float32(factor)

    launch, r = Launch(scaled, (1,), (32,), (In(0), Out(0), Num(8))), region("abs", (8,))
    ptx = engine.ptx_of(launch, r, "sm_90a")
    assert follows(ptx) and "0f40400000" in ptx.lower()


@pytest.mark.spec("B14")
def test_a_body_that_waits_itself_has_another_key():
    def body(x, n):
        pass

    launch, keys = Launch(body, (1,), (32,), (Out(0), Num(1))), []
    for waits in (False, True):
        body.waits = waits
        keys.append(kernel_key(launch, ("*float32", "int64"), "sm_90a"))
    assert keys[0] != keys[1]


# --- launches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """The configurations of what is launched."""
    seen = []
    monkeypatch.setattr(
        "cuda.core.launch", lambda stream, config, kernel, *args: seen.append(config), raising=False
    )
    return seen


def start(early: str | None = "early") -> engine.Start:
    return engine.Start("kernel", "usual", (), (), early)


@pytest.mark.spec("F3")
def test_a_kernel_begins_early_right_after_another_one(launched):
    stream = SimpleNamespace(handle=7)
    go, old = engine.bind(start(), stream, [], []), engine.bind(start(None), stream, [], [])
    on = Captured(stream, early=True)
    go(on), go(on), go(on)
    assert launched == ["usual", "early", "early"]
    assert on.handle == 7  # for a copy
    go(on), old(on), go(on)
    assert launched[3:] == ["usual", "usual", "early"]
    assert on.__cuda_stream__() == (0, 7)  # for another library's work
    go(on), go()
    assert launched[6:] == ["usual", "usual"]
    never = Captured(stream, early=False)
    go(never), go(never)
    assert launched[8:] == ["usual", "usual"]


@pytest.mark.spec("F3")
def test_where_kernels_begin_early_can_be_chosen(launched, monkeypatch):
    stream = SimpleNamespace(handle=7)
    for mode, expected in (("off", "usual"), ("graph", "usual"), ("ON", "early")):
        monkeypatch.setenv("AICF_PDL", mode)
        engine.bind(start(), stream, [], [])()
        assert launched.pop() == expected
    monkeypatch.setenv("AICF_PDL", "yes")
    with pytest.raises(SettingError, match="off or graph or on"):
        config.early_launch()
