"""Graphs of TorchDynamo's that nearly are an activation keep their values: an op more, or another number, at a drawn place; computed in f64."""

import math

import pytest
from draws.seeds import rng

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.fx import symbolic_trace  # noqa: E402
from torch.fx.passes.shape_prop import ShapeProp  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from aicf.frontends.torch import graphs, reset  # noqa: E402
from aicf.frontends.torch.recognise.activations import recognise_activations  # noqa: E402

from .helpers import close, compiled  # noqa: E402
from .test_recognise import ACTIVATIONS  # noqa: E402

SPELT = [name for name, (_, kind) in ACTIVATIONS.items() if kind]
DRAWS = 60
SLIPS = {
    "a floor": lambda v, n: torch.clamp(v, min=n),
    "a ceiling": lambda v, n: torch.clamp(v, max=n),
    "large ones left out": lambda v, n: torch.where(v > n, 0.0, v),
    "small ones marked": lambda v, n: torch.where(v < n, n, v),
    "a threshold": lambda v, n: torch.nn.functional.softplus(v, 1.0, abs(n)),
    "an eps": lambda v, n: v + 10.0 ** -(3 + abs(int(n)) % 30),
    "a factor": lambda v, n: v * 1.001,
    "a soft cap": lambda v, n: n * torch.tanh(v / n),
    "the size": lambda v, n: v.abs(),
    "a square": lambda v, n: v + 1e-6 * v * v,
}


def numbers():
    """Where graphs are compared; not where the recogniser compares functions."""
    size = torch.logspace(-8, 5, 400, dtype=torch.float64) * 1.0123
    return torch.cat([size, -size, torch.linspace(-60, 60, 1001, dtype=torch.float64)])


def traced(function, example):
    graph = symbolic_trace(function)
    ShapeProp(graph).propagate(example)
    for node in graph.graph.nodes:
        node.meta["val"] = example if node.op == "placeholder" else torch.empty_like(example)
    return graph


def slipped(graph, draw):
    """Insert an op between two nodes, or change a number; what was done."""
    calls = [n for n in graph.graph.nodes if n.op.startswith("call_")]
    node = calls[draw.integers(len(calls))]
    places = [i for i, a in enumerate(node.args) if not isinstance(a, float | int)]
    constants = [i for i, a in enumerate(node.args) if isinstance(a, float)]
    if constants and draw.random() < 0.2:
        args = list(node.args)
        args[constants[0]] *= 1 + 1e-3
        node.args = tuple(args)
        return f"another number in {node}"
    place = places[draw.integers(len(places))]
    name = list(SLIPS)[draw.integers(len(SLIPS))]
    number = float(draw.choice([-1.0, 1.0]) * 10 ** draw.uniform(-2, 4))
    before = node.args[place]
    with graph.graph.inserting_before(node):
        made = graph.graph.call_function(SLIPS[name], (before, number))
    made.meta = dict(before.meta)
    node.args = tuple(made if i == place else a for i, a in enumerate(node.args))
    graph.recompile()
    # what the slip itself calls becomes nodes of the graph
    flat = symbolic_trace(graph)
    example = before.meta["val"]
    for one in flat.graph.nodes:
        one.meta["val"] = example if one.op == "placeholder" else torch.empty_like(example)
    graph.graph = flat.graph
    return f"{name} ({number:.4g}) before {node}"


def test_near_misses_of_activations_keep_their_values(request):
    draw, x = rng(request.node.nodeid), numbers()
    found = 0
    for n in range(40 * DRAWS):
        if n >= DRAWS and found:  # slips before or after it leave the activation as it is
            break
        name = SPELT[draw.integers(len(SPELT))]
        graph = traced(ACTIVATIONS[name][0], x)
        what = slipped(graph, draw)
        graph.recompile()
        want = graph(x)
        found += recognise_activations(graph).total()
        graph.recompile()
        torch.testing.assert_close(graph(x), want, rtol=3e-6, atol=1e-11, equal_nan=True, msg=lambda m, w=(name, what): f"{w}: {m}")  # fmt: skip
    assert found


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", SPELT)
def test_spellings_are_recognised_in_traced_graphs(name):
    x = numbers()
    graph = traced(ACTIVATIONS[name][0], x)
    assert recognise_activations(graph).total() == 1


def test_near_misses_of_cross_entropy_keep_their_values_and_gradients(request):
    """Joined in AOTAutograd's graphs, by structure alone: floors and cuts of drawn numbers around it."""
    torch._dynamo.reset()
    reset()
    draw = rng(request.node.nodeid)
    low, most = float(draw.uniform(5, 30)), float(draw.uniform(5, 30))

    def losses(x, y):
        logs = torch.log_softmax(x, 1)
        rows = F.cross_entropy(x, y, reduction="none")
        floor = F.nll_loss(logs.clamp(min=-low), y)
        return floor + torch.where(rows > most, 0.0, rows).mean() + F.nll_loss(torch.log_softmax(x, 0), y)

    x = torch.from_numpy(3 * draw.normal(size=(12, 12))).float()
    x[torch.arange(6), torch.from_numpy(draw.integers(0, 12, 6))] = 45.0
    y = torch.from_numpy(draw.integers(0, 12, 12))
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, want = compiled(losses)(mine, y), losses(other, y)
    assert math.isfinite(float(got.detach())) and graphs()
    close(got, want, 1e-5)
    got.backward()
    want.backward()
    close(mine.grad, other.grad, 1e-5)
