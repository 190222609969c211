"""How many threads BLAS gets: by size alone, and only while a product of aicf's is computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from draws.seeds import rng

from aicf.cpu_kernels import blas


class Library:
    """A BLAS that tells what it was set to."""

    def __init__(self, threads: int) -> None:
        self.threads, self.told = threads, []

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, n: int) -> None:
        self.threads = n
        self.told.append(n)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(16)
    monkeypatch.setattr(blas, "_libraries", lambda: (made,))
    return made


@pytest.mark.parametrize("m, n, k, threads", [
    (1, 1, 1, None), (64, 64, 64, None), (64, 512, 64, 1), (64, 512, 256, 1), (256, 256, 256, 1), (512, 512, 512, 10),
    (4096, 4096, 4096, 5497),
])  # fmt: skip
def test_threads_grow_with_the_work(m, n, k, threads):
    assert blas.threads_for(2 * m * n * k) == threads


def test_a_product_has_its_threads_and_others_have_theirs_back(library, monkeypatch):
    seen = []
    monkeypatch.setattr(np, "matmul", lambda a, b, out: seen.append(library.threads) or a)
    for most in (None, 1, 10, 16, 5000):
        blas.matmul(np.ones((2, 2)), np.ones((2, 2)), None, most)
    assert seen == [16, 1, 10, 16, 16] and library.threads == 16
    assert library.told == [1, 16, 10, 16]  # nothing where nothing changes


def test_a_product_that_fails_gives_them_back_too(library):
    with pytest.raises(ValueError):
        blas.matmul(np.ones((2, 3)), np.ones((2, 3)), None, 1)
    assert library.threads == 16


def test_products_of_several_threads_leave_what_was_there(library):
    a = np.ones((8, 8), np.float32)

    def work(i: int) -> bool:
        return bool((blas.matmul(a, a, None, 1 + i % 3) == 8).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(3000)))
    assert library.threads == 16


@pytest.mark.spec("C12")
def test_a_product_has_its_own_number_of_threads_whatever_runs_at_once(library, monkeypatch, request):
    """The number decides a product's bits: no other call may change it before the product is computed."""
    draw, seen = rng(request.node.nodeid), []

    def product(a, b, out):
        first = library.threads
        time.sleep(2e-4)
        seen.append((int(a[0, 0]), first, library.threads))
        return a

    monkeypatch.setattr(np, "matmul", product)
    wanted = draw.choice([1, 2, 3, 10, 16, 5000], 400).tolist()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda most: blas.matmul(np.full((2, 2), most), np.ones((2, 2)), None, most), wanted))
    assert sorted(most for most, _, _ in seen) == sorted(wanted) and library.threads == 16
    for most, first, last in seen:
        assert first == last == min(most, 16)


REAL = """
import json
import numpy as np
from threadpoolctl import ThreadpoolController
from aicf.cpu_kernels import blas
(numpy_s,) = blas._libraries()
numpy_s.set_num_threads(2)
seen, matmul = [], np.matmul
np.matmul = lambda *args, **kw: (seen.append(numpy_s.get_num_threads()), matmul(*args, **kw))[1]
a = np.ones((128, 128), np.float32)
for m in (1, None):
    assert (blas.matmul(a, a, None, m) == 128).all()
print(json.dumps([seen, numpy_s.get_num_threads()]))
"""


@pytest.mark.skipif(sys.platform == "darwin", reason="NumPy's Accelerate takes no number of threads")
def test_numpys_own_blas_is_found_and_set():
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    ran = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, env=env, check=True)
    seen, after = json.loads(ran.stdout)
    assert seen[0] == 1 and seen[1] == after
