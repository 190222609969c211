"""Which ops take negative indices, and what an index out of range raises: drawn indices, beside eager PyTorch."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng as rng_of  # noqa: E402
from draws.seeds import run_seed  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf.frontends.torch import backend  # noqa: E402

ROWS, WIDTH, COUNT = 5, 3, 4
CALLED, DRAWS = 3, 3  # ops of a run, index tensors of each op


def _along(i):
    return i[:, None].expand(-1, WIDTH)


# of x (5, 3), indices (4,) of axis 0, and updates (4, 3)
OPS = {
    "embedding": lambda x, i, u: F.embedding(i, x) * 2,
    "index_select": lambda x, i, u: x.index_select(0, i) + 1,
    "gather": lambda x, i, u: x.gather(0, _along(i)) + 1,
    "take_along_dim": lambda x, i, u: torch.take_along_dim(x, _along(i), 0) + 1,
    "index": lambda x, i, u: x[i] * 2,
    "index of two axes": lambda x, i, u: x[i, i.clamp(0, 2)] * 2,
    "take": lambda x, i, u: torch.take(x[:, 0], i) * 2,
    "index_add": lambda x, i, u: x.index_add(0, i, u, alpha=2),
    "index_copy": lambda x, i, u: x.index_copy(0, i, u),
    "index_fill": lambda x, i, u: x.index_fill(0, i, 7.0) + 1,
    "index_put": lambda x, i, u: x.index_put((i,), u, accumulate=True),
    "scatter": lambda x, i, u: x.scatter(0, _along(i), u),
    "scatter_add": lambda x, i, u: x.scatter_add(0, _along(i), u),
    "scatter of a number": lambda x, i, u: x.scatter(0, _along(i[:1]), 3.0) + 1,
    "nll_loss": lambda x, i, u: F.nll_loss(x.T[:2].repeat(2, 1), i),
    "cross_entropy": lambda x, i, u: F.cross_entropy(x.T[:2].repeat(2, 1), i),
}
BAD = -1, -ROWS, ROWS, -ROWS - 1, 2**40, -(2**40)


class _Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, i, u):
        return self.function(x, i, u)


def _indices(rng, several):
    """Valid indices, one of them replaced by one that not every op takes."""
    i, bad = rng.permutation(ROWS)[:COUNT], int(rng.choice(BAD))
    i[0 if several else rng.integers(COUNT)] = bad
    return torch.tensor(i), bad


def _of_eager(function, *args):
    try:
        return function(*args)
    except (IndexError, RuntimeError) as refused:
        return refused


def check(name, call, function, x, indices, bad, u):
    """Whether eager PyTorch refuses the indices: then `call` does, by an IndexError that names the index, else results are equal."""
    want, case = _of_eager(function, x, indices, u), f"{name} {indices.tolist()}"
    if isinstance(want, torch.Tensor):
        torch.testing.assert_close(torch.as_tensor(call(x, indices, u)), want, msg=lambda m: f"{case}: {m}")
        return False
    with pytest.raises(IndexError) as error:
        call(x, indices, u)
        pytest.fail(f"{case}: eager PyTorch raises {want!r}")
    first = str(error.value).splitlines()[0]
    assert f" {bad} " in first and (": index" in first or "target" in first or "label" in first), (
        f"{case}: {error.value}"
    )
    return True


def test_drawn_indices_of_each_op():
    rng, refused = rng_of("test_indices"), 0
    for name in rng.choice(sorted(OPS), CALLED, replace=False):
        function = OPS[name]
        compiled = torch.compile(function, backend=backend, options={"fallback": "error"})
        x, u = (torch.tensor(rng.normal(size=(n, WIDTH)).astype(np.float32)) for n in (ROWS, COUNT))
        for _ in range(DRAWS):
            indices, bad = _indices(rng, name == "scatter of a number")
            print(f"AICF_TEST_SEED={run_seed()}: {name} {indices.tolist()}")
            refused += check(name, compiled, function, x, indices, bad, u)
    assert refused


def test_drawn_indices_of_a_program():
    rng = rng_of("test_indices")
    names = [n for n in sorted(OPS) if n not in ("nll_loss", "cross_entropy")]
    for name in rng.choice(names, 3, replace=False):
        function = OPS[name]
        x, u = (torch.tensor(rng.normal(size=(n, WIDTH)).astype(np.float32)) for n in (ROWS, COUNT))
        program = aicf.from_torch(_Module(function), (x, torch.arange(COUNT), u), device="cpu")
        given = list(program.recipe.model.inputs)

        def call(*args, program=program, given=given):
            return program({n: a for n, a in zip("xiu", args) if n in given})["output"].numpy()

        for _ in range(DRAWS):
            indices, bad = _indices(rng, name == "scatter of a number")
            print(f"AICF_TEST_SEED={run_seed()}: {name} {indices.tolist()}")
            check(name, call, function, x, indices, bad, u)
