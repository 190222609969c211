"""scatter_add by sorted indices: on the host, as machine code of its LLVM, and on a GPU; the time that is predicted."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import VARIANTS, Case, desc, region, sorted_scatters
from machines.on_host import OnHost
from test_fused_maps import fresh_seed
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

from aicf.device.spec import preset
from aicf.rows import RegionSpec
from aicf.types import bf16, f16, f32, i32, i64

H200 = preset("h200")
SORTED, ROWS = (VARIANTS[f"cuda.scatter_add_{name}"] for name in ("sorted.v1", "rows.v2"))
ERROR = {f32: 3e-6, f16: 1e-3, bf16: 8e-3, i32: 0.0, i64: 0.0}  # of the sum of magnitudes
GUARD = 64  # bytes around the result
PATTERNS = ("random", "equal", "sorted", "frequent", "beyond")


def indices_for(pattern: str, many: int, size: int, rng: np.random.Generator) -> np.ndarray:
    made = {
        "random": lambda: rng.integers(-size, size, many),
        "equal": lambda: np.full(many, rng.integers(-size, size)),
        "sorted": lambda: np.sort(rng.integers(0, size, many)),
        "frequent": lambda: np.minimum(rng.zipf(1.3, many), size) - 1,
        "beyond": lambda: rng.integers(-2 * size, 2 * size, many),
    }
    return made[pattern]()


def operands_of(r: RegionSpec, pattern: str, rng: np.random.Generator) -> list[np.ndarray]:
    updates, indices = r.operands
    few = min(updates.numel, 99_991)  # a prime: no two rows are equal where numbers come again
    drawn = rng.standard_normal(few) if updates.dtype.kind == "float" else rng.integers(-99, 99, few)
    found = indices_for(pattern, indices.numel, r.attrs["size"], rng)
    return [
        np.resize(drawn.astype(updates.dtype.numpy), updates.shape),
        found.astype(indices.dtype.numpy).reshape(indices.shape),
    ]


def assert_right(r: RegionSpec, updates: np.ndarray, indices: np.ndarray, made: np.ndarray) -> None:
    """By what float64 makes of it, in NumPy; errors beside the sum of what was added."""
    size, axis = r.attrs["size"], r.attrs["axis"]
    places = np.where(indices < 0, indices.astype(np.int64) + size, indices).reshape(-1)
    inside = (places >= 0) & (places < size)
    flat = updates.astype(np.float64).reshape(
        *updates.shape[:axis], places.size, *updates.shape[axis + indices.ndim :]
    )
    rows = np.moveaxis(flat, axis, 0)[inside]
    want, most = np.zeros((2, size, *rows.shape[1:]))
    np.add.at(want, places[inside], rows)
    np.add.at(most, places[inside], abs(rows))
    error = abs(np.moveaxis(made.astype(np.float64), axis, 0) - want)
    assert (error <= ERROR[r.results[0].dtype] * most).all(), error.max()


HOST = [
    (region("scatter_add", desc((300, 8), f32), desc((300,), i64), size=50), "random"),
    (region("scatter_add", desc((1100, 16), bf16), desc((1100,), i32), size=300), "equal"),
    (region("scatter_add", desc((500, 4), f16), desc((500,), i32), size=70000), "frequent"),
    (region("scatter_add", desc((300, 3), i32), desc((300,), i64), size=70), "beyond"),
    (region("scatter_add", desc((5, 60, 2), i64), desc((5, 60), i64), size=40), "sorted"),
    (region("scatter_add", desc((2, 300, 6), f16), desc((300,), i32), size=5, axis=1), "random"),
    (region("scatter_add", desc((300, 140), f32, alignment=4), desc((300,), i64), size=3), "frequent"),
    (region("scatter_add", desc((333, 770), bf16), desc((333,), i32), size=1), "equal"),
    (region("scatter_add", desc((1, 8), f32), desc((), i32), size=9, axis=1), "random"),
]  # fmt: skip


@pytest.mark.sample(1, pool="on the host")
@pytest.mark.spec("A12", "F2", "D5")
@pytest.mark.parametrize("r, pattern", HOST, ids=str)
def test_sums_by_sorted_indices_agree_with_numpy_and_repeat(r, pattern):
    assert (reject := SORTED.supported(r, H200)) is None, reject
    operands = operands_of(r, pattern, np.random.default_rng(fresh_seed()))
    launches, made = [OnHost(launch, r) for launch in SORTED.build(r, H200)], []
    for filling in (201, 17):
        memory = np.full(r.results[0].nbytes + 2 * GUARD, filling, np.uint8)
        inside = memory[GUARD:-GUARD].view(r.results[0].dtype.numpy).reshape(r.results[0].shape)
        scratch = np.full(SORTED.query_workspace(r, H200) + 512, filling, np.uint8)
        work = scratch[-scratch.ctypes.data % 256 :][:-256]
        for launch in launches:
            launch(operands, [inside], work)
        assert (memory[:GUARD] == filling).all() and (memory[-GUARD:] == filling).all(), "written outside"
        assert (work[SORTED.query_workspace(r, H200) :] == filling).all(), "written behind the workspace"
        made.append(inside)
    assert_right(r, *operands, made[0])
    assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.gpu
@pytest.mark.spec("F2", "D5")
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("dtype", [f32, f16, bf16, i32, i64], ids=str)
def test_sums_by_sorted_indices_on_a_gpu(gpu, dtype, pattern):  # noqa: F811
    rng = np.random.default_rng(fresh_seed())
    large = region("scatter_add", desc((16384, 768), dtype), desc((16384,), i32), size=50257)
    for r in [*sorted_scatters(dtype), large]:
        operands = operands_of(r, pattern, rng)
        shift = int(r.operands[0].alignment < 256)
        first, again = (launch_case(gpu, Case(SORTED.id, r), operands, shift)[0] for _ in range(2))
        assert_right(r, *operands, first)
        assert first.tobytes() == again.tobytes(), r


@pytest.mark.spec("B8")
def test_each_kernel_is_chosen_where_it_is_fast():
    def chosen(many, size, width, dtype=f32):
        r = region("scatter_add", desc((many, width), dtype), desc((many,), i32), size=size)
        return min((SORTED, ROWS), key=lambda v: v.cost(r, H200).us).id, SORTED.cost(r, H200).us

    assert chosen(16384, 50257, 768)[0] == SORTED.id and 55 < chosen(16384, 50257, 768)[1] < 90
    assert chosen(2**20, 2**18, 768, bf16)[0] == SORTED.id and chosen(2**20, 2**18, 768, bf16)[1] < 1000
    assert chosen(64, 1000, 64)[0] == ROWS.id
    assert chosen(32, 5000, 768)[0] == ROWS.id
    assert chosen(32, 50257, 768)[0] == SORTED.id  # a result is stored in half the instructions
