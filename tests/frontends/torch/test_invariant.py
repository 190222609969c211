"""torch.compile with invariant rows: forward passes have a row's bits in every batch, also in training; what contradicts it is refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng  # noqa: E402

import aicf  # noqa: E402
import aicf.torch  # noqa: E402
from aicf.errors import VerifyError  # noqa: E402

OPTIONS = {"invariant": True}


class Classifier(torch.nn.Module):
    def __init__(self, size: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.norm, self.up = torch.nn.LayerNorm(size), torch.nn.Linear(size, hidden)
        self.down = torch.nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))), -1)


@pytest.mark.spec("A15")
@pytest.mark.parametrize("trains", (False, True))
def test_rows_have_equal_bits_in_every_batch(trains, request):
    """A drawn network; PyTorch's eager mode is the oracle of values and gradients."""
    draw = rng(request.node.nodeid)
    torch.manual_seed(int(draw.integers(2**31)))
    model = Classifier(*(int(draw.integers(5, 60)) for _ in range(3)))
    compiled = torch.compile(model, backend="aicf", options=OPTIONS, dynamic=False)
    x = torch.randn(23, model.up.in_features)
    with torch.set_grad_enabled(trains):
        every = compiled(x)
        for count in (1, 2, int(draw.integers(3, 20))):
            rows = torch.from_numpy(draw.integers(0, 23, count))
            assert (
                compiled(x[rows].clone()).detach().numpy().tobytes() == every[rows].detach().numpy().tobytes()
            )
    torch.testing.assert_close(every, model(x), rtol=1e-4, atol=1e-5)
    if trains:
        every.square().sum().backward()
        got = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().sum().backward()
        for one, p in zip(got, model.parameters()):
            torch.testing.assert_close(one, p.grad, rtol=1e-3, atol=1e-5)


def test_what_contradicts_it_is_refused():
    model = Classifier(8, 8, 8)
    for more in ({"numerics": "fused"}, {"fallback": "eager"}):
        with pytest.raises(
            (VerifyError, torch._dynamo.exc.BackendCompilerFailed), match="invariant=True with"
        ):
            torch.compile(model, backend="aicf", options=OPTIONS | more)(torch.randn(2, 8))
    convolution = torch.nn.Conv2d(2, 3, 3)
    with pytest.raises(Exception, match="without invariant=True"):
        torch.compile(convolution, backend="aicf", options=OPTIONS)(torch.randn(1, 2, 8, 8))


class OfColumns(torch.nn.Module):
    """Samples are columns of the second factor, and a parameter is the first."""

    def __init__(self, m: int, k: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(m, k))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight.exp() @ x.T).T


def test_parameters_are_known_as_such(request):
    """So the rows of a product are the samples, whichever factor they are."""
    draw = rng(request.node.nodeid)
    torch.manual_seed(int(draw.integers(2**31)))
    model = OfColumns(int(draw.integers(20, 60)), int(draw.integers(20, 60)))
    compiled = torch.compile(model, backend="aicf", options=OPTIONS, dynamic=False)
    x = torch.randn(40, model.weight.shape[1])
    with torch.no_grad():
        every = compiled(x)
        torch.testing.assert_close(every, model(x), rtol=1e-4, atol=1e-3)
        for count in (1, int(draw.integers(2, 33))):
            rows = torch.from_numpy(draw.integers(0, 40, count))
            assert torch.equal(compiled(x[rows].clone()), every[rows])


class Recurrent(torch.nn.Module):
    """A recurrent layer behind a map: TorchDynamo leaves it out."""

    def __init__(self, kind: str, size: int) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(size, size, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(x) * 0.5
        x, _ = self.layer(x)
        return torch.sigmoid(x) + 1


class Broken(torch.nn.Module):
    """Ops behind a break alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return torch.tanh(x) + 1


@pytest.mark.parametrize("first", (False, True))
def test_a_broken_graph_is_refused_and_reported(first, request):
    """Invariant rows refuse the part before a drawn recurrent layer, or what is behind a break; the report says why the graph ended, and what helps."""
    draw = rng(request.node.nodeid)
    size = int(draw.integers(2, 9))
    model = Broken() if first else Recurrent(str(draw.choice(["LSTM", "GRU", "RNN"])), size)
    x = torch.randn(2, 3, size)
    torch._dynamo.reset()
    with torch.no_grad(), pytest.raises(Exception, match="TorchDynamo breaks the graph"):
        torch.compile(model, backend="aicf", options=OPTIONS)(x)
    torch._dynamo.reset()
    aicf.torch.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend="aicf")(x), model(x))
    broken = [graph.broken for graph in aicf.torch.graphs() if graph.broken is not None]
    assert broken and all("test_invariant.py" in one.where for one in broken)
    assert first or "allow_rnn" in broken[0].advice
    assert any("graph break: " in str(graph) for graph in aicf.torch.graphs())
