"""PyTorch's semantics around compiled functions: sizes that change, aliases, writes in place, exceptions, recompilation."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from aicf.errors import VerifyError  # noqa: E402
from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import close, compiled  # noqa: E402


def dynamic(f, **options):
    from aicf.frontends.torch import backend

    return torch.compile(f, backend=backend, dynamic=True, options=options or None)


class Encoder(nn.Module):
    """Attention over sequences of any length, with what depends on sizes spelt out."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.position = nn.LayerNorm(width), nn.Parameter(torch.randn(32, width))

    def forward(self, x):
        b, t, c = x.shape
        x = x + self.position[:t]
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        y = self.norm(x + self.out(y))
        return y.mean(1) / t + y[:, -1] * b + torch.arange(t).sum() / t**3


def test_training_with_batches_and_lengths_that_change():
    model = Encoder()
    other, call = copy.deepcopy(model), dynamic(model)
    for b, t in ((2, 5), (3, 7), (2, 5), (7, 2), (4, 32), (3, 7)):
        x = torch.randn(b, t, 16)
        found = []
        for f, net in ((call, model), (other, other)):
            net.zero_grad()
            out = f(x)
            out.square().sum().backward()
            found.append([out.detach(), *(p.grad.clone() for p in net.parameters())])
        for got, want in zip(*found):
            close(got, want, 2e-4)
    kinds = [g.kind for g in graphs()]
    assert len(kinds) <= 4, f"a plan for each combination of sizes, not a graph: {kinds}"


def test_the_same_function_with_automatic_dynamic_sizes():
    model = Encoder()
    call = compiled(model)  # dynamic=None: the second size makes a graph with symbols
    with torch.no_grad():
        for b, t in ((2, 5), (3, 5), (9, 6), (5, 11), (1, 1), (2, 1)):
            x = torch.randn(b, t, 16)
            close(call(x), model(x), 2e-4)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.view(x.shape[0] // 2, -1) * 2 + 1,
        lambda x: torch.cat([x, x[1:] * 2], 0).flip(0) + x.shape[0],
        lambda x: x[::2].repeat(2, 3) * x.sum() - 1,
        lambda x: F.pad(x * 2, (1, 2), value=float(x.shape[1])) + 1,
        lambda x: torch.zeros(x.shape[1], x.shape[0]).add_(x.t() * 2) + 1,
        lambda x: (x * 2).expand(3, *x.shape).reshape(-1, x.shape[1]).softmax(-1),
        lambda x: x.unfold(0, 2, 1).sum(-1) * 2 + x.numel(),
        lambda x: torch.where(torch.arange(x.shape[0])[:, None] < x.shape[0] // 2, x * 2, x - 1),
        lambda x: torch.stack([row * 2 + n for n, row in enumerate(x.split(2))][:1]) * 3 + 1,
    ],
)
def test_sizes_in_the_function(f):
    call = dynamic(f)
    for n, m in ((4, 3), (6, 5), (10, 3), (2, 9), (4, 3)):
        x = torch.randn(n, m)
        close(call(x), f(x))


def test_empty_batches_of_a_dynamic_model():
    model, call = (
        (m := nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3))),
        dynamic(m),
    )
    for n in (5, 0, 2, 1):
        x = torch.randn(n, 4)
        close(call(x), model(x), 1e-4)


# --- aliases and writes in place ------------------------------------------------------------------------------------------


def same_effects(f, *args, tolerance=2e-5):
    """Results of f, what it wrote into its arguments, and which results share memory with which argument."""
    mine, theirs = copy.deepcopy(args), copy.deepcopy(args)
    got, want = compiled(f)(*mine), f(*theirs)
    got, want = (y if isinstance(y, tuple) else (y,) for y in (got, want))
    for a, b in zip((*got, *mine), (*want, *theirs), strict=True):
        if isinstance(a, torch.Tensor):
            close(a, b, tolerance)

    def shared(results, given):
        return [
            [
                r.untyped_storage().data_ptr() == g.untyped_storage().data_ptr()
                for g in (*given, *results)
                if isinstance(g, torch.Tensor)
            ]
            for r in results
            if isinstance(r, torch.Tensor)
        ]

    assert shared(got, mine) == shared(want, theirs)
    return got, mine


def test_writes_into_inputs():
    def f(x, y):
        x.mul_(2).add_(y)
        y[0] = x.sum()
        y[:, 1::2].copy_(x[:, ::2] * 3)
        return x @ y.t()

    same_effects(f, torch.randn(4, 6), torch.randn(4, 6))


def test_writes_into_views_of_inputs():
    def f(x):
        row, column = x[1], x.t()[2]
        row.relu_()
        column.sub_(1)
        x.view(-1)[3:9].fill_(7)
        return row * 2, column + x.sum()

    same_effects(f, torch.randn(5, 5))


def test_results_that_are_views():
    def f(x):
        y = x * 2 + 1
        return y, y[1:], y.t(), y.view(-1), x.view(-1)[2:5], x.detach()

    got, (x,) = same_effects(f, torch.randn(4, 3))
    got[0].zero_()
    assert not got[1].any() and not got[3].any() and got[2]._is_view()
    got[4].fill_(5)
    assert (x.view(-1)[2:5] == 5).all()


def test_strides_of_results_are_eagers_to_the_last_axis():
    def f(x, images):
        y = x * 2 + 1
        return (
            y[:, ::2],
            y.expand(2, *y.shape),
            y[1:2],
            y.unsqueeze(0),
            y.t()[:1],
            (images * 2 + 1).relu(),
            images.amax(2, True) * 3 - 1,
        )

    x, images = torch.randn(4, 6), torch.randn(1, 3, 5, 4).to(memory_format=torch.channels_last)
    for got, want in zip(compiled(f)(x, images), f(x, images)):
        close(got, want)
        assert got.stride() == want.stride()
    alone = compiled(lambda x: (x * 2 + 1)[:, ::2])(x)
    assert alone.stride() == (6, 2) and alone.untyped_storage().nbytes() == 4 * 24


def test_what_pytorch_reads_by_places_in_memory_lies_as_in_pytorch():
    """aicf refuses these as_strided, and must not make dense tensors of what they read."""

    def f(x):
        y = x * 2 + 1
        back = y[1:].as_strided((2, 3), (6, 1), 0)  # before where its source begins
        beyond = y[:2].as_strided((2, 3), (12, 2), 1)
        return back * 3 - 1, beyond * 3 - 1, y[:, ::2].as_strided((4,), (6,), 3) * 2 + 1

    x = torch.arange(24.0).reshape(4, 6)
    for got, want in zip(compiled(f)(x), f(x)):
        close(got, want)


def test_arguments_that_share_memory():
    base, other = torch.randn(12), None
    other = base.clone()

    def f(a, b):
        a.add_(1)
        return a * b + 1

    call = compiled(f)
    for a, b in (((base[:8], base[4:]), (other[:8], other[4:])), ((base, base), (other, other))):
        torch._dynamo.reset()
        close(call(*a), f(*b)), close(base, other)


def test_writes_into_what_is_not_dense():
    def f(x):
        x.mul_(3)
        return x.exp() * 0.5

    for make in (
        lambda: torch.ones(6, 8)[:, ::2],
        lambda: torch.ones(4, 6).t(),
        lambda: torch.ones(20)[3:15].view(3, 4),
    ):
        mine, theirs = make(), make()
        close(compiled(f)(mine), f(theirs))
        close(mine, theirs)


def test_buffers_are_written():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.seen += 1
            self.mean.lerp_(x.mean(0), 0.1)
            return (x - self.mean) * 2 / self.seen

    model = Counting()
    other, call = copy.deepcopy(model), compiled(model)
    for _ in range(4):
        x = torch.randn(5, 3)
        close(call(x), other(x))
        close(model.mean, other.mean), close(model.seen, other.seen)


def test_a_result_is_not_overwritten_by_the_next_call():
    call = compiled(lambda x: (x * 2 + 1, (x - 1).softmax(-1)))
    first = call(torch.ones(3, 4))
    held = [t.clone() for t in first]
    call(torch.full((3, 4), float("nan")))
    for a, b in zip(first, held):
        assert torch.equal(a, b)


# --- errors and graphs ----------------------------------------------------------------------------------------------------


def test_the_users_exceptions_are_theirs():
    def f(x, n):
        y = x * 2 + 1
        if n > 2:
            raise KeyError(f"no {n}")
        return y.softmax(-1)

    call, x = compiled(f), torch.randn(3, 4)
    close(call(x, 1), f(x, 1))
    with pytest.raises(KeyError, match="no 3"):
        call(x, 3)
    close(call(x, 2), f(x, 2))
    with pytest.raises(Exception, match=r"[Ii]ncompatible|size|shape"):
        compiled(lambda a, b: (a @ b).relu() * 2)(torch.ones(2, 3), torch.ones(2, 3))


def test_breaks_in_the_graph():
    def f(x):
        y = torch.relu(x * 2 - 1)
        if y.sum() > 0:  # known only when it runs
            return y.softmax(-1) + 1
        print("nothing", end="")
        return (y - 1).exp() * 3

    call = compiled(f)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        close(call(x), f(x))
    assert len(graphs()) == 3


def test_data_dependent_sizes_run():
    def f(x):
        kept = x[x > 0]
        return (kept * 2 + 1).sum() + x.nonzero().shape[0]

    call = compiled(f)
    for seed in range(3):
        x = torch.randn(11, generator=torch.Generator().manual_seed(seed))
        close(call(x), f(x))


def test_numbers_as_arguments():
    def f(x, a, b):
        return (x * a + b).relu() * a

    call, x = compiled(f), torch.randn(7)
    for a, b in ((2, 0.5), (3, 0.25), (0.1, -1), (7, True)):
        close(call(x, a, b), f(x, a, b))


def test_fallback_error_says_where_and_what_to_do():
    class Net(nn.Module):
        def forward(self, x):
            y = torch.special.bessel_j0(x) * 2
            return y + torch.special.bessel_j0(x + 1) + torch.special.i1e(x)

    with pytest.raises(Exception) as caught:
        torch.compile(Net(), backend="aicf", options={"fallback": "error"})(torch.ones(3))
    text = str(caught.value)
    for said in (
        "backend='aicf' raised:\nVerifyError: Net, inference: aten.special_bessel_j0.default would run in PyTorch, 2 times",
        "also aten.special_i1e.default, 1 time: no rule",
        "got: no rule",
        f"at: {__file__}:{Net.forward.__code__.co_firstlineno + 1}: y = torch.special.bessel_j0(x) * 2",
        'next: options={"fallback": "eager"}, the default, runs it in PyTorch between parts of aicf',
    ):
        assert said in text, text
    assert isinstance(caught.value.inner_exception, VerifyError)


def test_branches_in_the_graph():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * 2 + 1, lambda x: x.cos() * 3 - 1, (x,)) * 2

    call = compiled(f)
    for x in (torch.ones(3), -torch.ones(3)):
        close(call(x), f(x))


def test_views_of_what_is_written_have_gradients():
    def f(x):
        y = x * 1
        y[0].mul_(3)
        y.t()[1] += 2
        return y.exp(), y.view(-1)[1:]

    found = []
    for call in (compiled(f), f):
        x = torch.arange(6.0).reshape(2, 3).div(7).requires_grad_()
        y, view = call(x)
        (y.sum() + (view * 3).sum()).backward()
        found.append(x.grad)
    close(*found)


def test_a_recompilation_says_which_guard_failed():
    call = compiled(lambda x: x * 2 + 1)
    call(torch.ones(3))
    with (
        torch._dynamo.config.patch(error_on_recompile=True),
        pytest.raises(Exception, match=r"dtype mismatch.*expected Float, actual Double"),
    ):
        call(torch.ones(3, dtype=torch.float64))
