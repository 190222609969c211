"""What replaces functions of numba's front end: the machine code is numba's own, and numba has its functions again afterwards."""

from __future__ import annotations

import linecache
import re
import struct
from typing import Any

import numpy as np
import pytest
from cache_support import ADD, launch_of
from draws.seeds import run_seed, seeded
from kernel_cases import FIRST, MORE, VARIANTS

from aicf.cuda_kernels import dsl
from aicf.cuda_kernels.compiler import keys
from aicf.cuda_kernels.compiler.compile import compile_kernel, ptx_of
from aicf.device.spec import preset

dsl.module("numba.cuda")
front_end: Any = dsl.module("aicf.cuda_kernels.compiler.front_end")


def test_replacements_are_written_for_this_numba():
    """Else read what has changed in these modules of numba's, and add the digests to TEXTS."""
    assert front_end.unknown() == {}


@pytest.fixture
def numbas_own(monkeypatch):
    """compile(launch, region) by numba's own front end."""

    def compile(launch: Any, region: Any) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(front_end, "replacements", tuple)
            return compile_kernel(launch, region, "sm_90a").cubin

    return compile


# Small ones: what their bodies are written with is what large ones are written with.
SMALL = re.compile(
    r"elementwise|multi_map|reduce_|rows_|scan|scatter_add_rows|check|fill|reshape|naive|dropout"
)


@pytest.mark.parametrize("n", range(3))
def test_drawn_kernels_have_the_same_machine_code(n, numbas_own):
    seed = run_seed(), "front end", n
    draw, cases = (
        seeded(*seed),
        [c for c in [*FIRST, *MORE] if SMALL.search(c.variant) and all(t.numel for t in c.region.tensors)],
    )
    names = sorted({c.variant for c in cases})
    some = [c for c in cases if c.variant == names[draw.integers(len(names))]]
    case = some[draw.integers(len(some))]
    (launch, *_) = VARIANTS[case.variant].build(case.region, preset("h200"))
    assert compile_kernel(launch, case.region, "sm_90a").cubin == numbas_own(launch, case.region), (
        seed,
        case,
    )


# --- drawn bodies -----------------------------------------------------------------------------------------------------


def drawn_body(draw: np.random.Generator) -> tuple[Any, str]:
    """A kernel of device functions that call each other again and again, with loops, branches, defaults and tuples; its source."""
    lines = ["from aicf.cuda_kernels.dsl import cuda, device, float32", "def make(scale):"]

    def term(names: list[str], n: int) -> str:
        a, b = (names[draw.integers(len(names))] for _ in range(2))
        number = f"float32({draw.integers(2, 99)})"
        calls = [f"f{draw.integers(n)}({a}, {b})", f"f{draw.integers(n)}({b})"] if n else []
        choices = [f"{a} + {b}", f"{a} * {number}", f"scale - {a}", f"({a}, {b})[1] * {a}", *calls * 2]
        return choices[draw.integers(len(choices))]

    count = int(draw.integers(3, 6))
    for n in range(count):
        lines += ["    @device", f"    def f{n}(x, y=float32({n + 1})):", "        z = x", "        w = y"]
        for _ in range(draw.integers(1, 4)):
            target, value = "zw"[draw.integers(2)], term(["x", "y", "z", "w"], n)
            lines += [
                [f"        {target} = {value}"],
                [f"        for i in range({draw.integers(2, 5)}):", f"            {target} = {value} + z"],
                [f"        if z < {term(['x', 'w'], 0)}:", f"            {target} = {value}", "        else:", "            w = z"],
                ["        if x < y:", f"            return {value}"],
            ][draw.integers(4)]  # fmt: skip
        lines += ["        return z + w"]
    lines += ["    def kernel(x, y, n):", "        i = cuda.grid(1)", "        a = x[i]"]
    lines += [
        f"        {'if i < n: ' * int(draw.integers(2))}a = {term(['a', 'x[i + 1]'], count)}"
        for _ in range(3)
    ]
    lines += ["        y[i] = a", "    return kernel"]
    source = "\n".join(lines)
    names: dict[str, Any] = {"__name__": "__main__"}
    file = f"<drawn {hash(source)}>"
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    exec(compile(source, file, "exec"), names)
    return names["make"](np.float32(draw.integers(2, 99))), source


@pytest.mark.parametrize("n", range(6))
def test_drawn_bodies_have_the_same_machine_code(n, numbas_own):
    seed = run_seed(), "front end's bodies", n
    body, source = drawn_body(seeded(*seed))
    launch = launch_of(body)
    assert compile_kernel(launch, ADD, "sm_90a").cubin == numbas_own(launch, ADD), f"{seed}\n{source}"


def named_alike(*numbers: float) -> list[Any]:
    """Device functions of one name and one code."""

    def of(number: Any) -> Any:
        @dsl.device
        def scaled(x):
            return x * number

        return scaled

    return [of(np.float32(number)) for number in numbers]


def test_functions_of_one_name_do_not_mix():
    def compiled(*numbers: float) -> list[float]:
        first, second, third = named_alike(*numbers)

        def body(x, y, n):
            y[0] = first(x[0])
            y[1] = second(x[1])
            y[2] = third(x[2]) + first(x[3])

        ptx = ptx_of(launch_of(body), ADD, "sm_90a")
        return [
            struct.unpack("!f", bytes.fromhex(number))[0] for number in re.findall(r"0f([0-9A-F]{8})", ptx)
        ]

    assert set(compiled(3, 5, 7)) == {3, 5, 7}
    assert set(compiled(13, 5, 17)) == {13, 5, 17}


# --- around them ------------------------------------------------------------------------------------------------------


def numbas() -> list[Any]:
    return [vars(owner)[name] for owner, name, _ in front_end.replacements()]


def test_numba_has_its_functions_again():
    before = numbas()
    with pytest.raises(ZeroDivisionError), front_end.faster():
        assert all(now is not own for now, own in zip(numbas(), before))
        raise ZeroDivisionError
    assert numbas() == before and len(before) > 8
    assert not front_end._INLINED and not front_end._CALLS and not front_end._FRESH


def test_another_numba_keeps_its_own(monkeypatch):
    changed = "numba.cuda.core.ssa"
    monkeypatch.setitem(front_end.TEXTS, changed, set())
    left = {name for _, name, _ in front_end.replacements.__wrapped__()}
    assert changed in front_end.unknown()
    assert not left & {"_run_ssa", "_run_block_rewrite"} and {"inline_function", "run"} <= left


def test_a_key_changes_with_the_front_end(monkeypatch):
    before, read = keys.toolchain.__wrapped__(), keys.pkgutil.get_data
    monkeypatch.setattr(keys.pkgutil, "get_data", lambda *names: read(*names) + b"\n")
    assert keys.toolchain.__wrapped__() != before
