"""What models say at length is taken as one op, and nothing else is: masks that are known, activations however they are spelt."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf.frontends.torch import graphs, reset  # noqa: E402

from .helpers import close, compiled  # noqa: E402

T, WIDE = 9, 12


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    reset()
    torch.manual_seed(5)


def recognised():
    return [what for graph in graphs() for what in graph.recognised]


def same(function, *args, tolerance=2e-5, **options):
    """Values and gradients beside eager PyTorch's; what was recognised."""
    given = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    others = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
    got, want = compiled(function, **options)(*given), function(*others)
    close(got, want, tolerance)
    weights = torch.randn(got.shape)
    (got * weights).sum().backward()
    (want * weights).sum().backward()
    for a, b in zip(given, others):
        if a.is_floating_point():
            close(a.grad, b.grad, 10 * tolerance)
    return recognised()


def qkv(queries=T, keys=T, heads=2, d=8):
    return (torch.randn(2, heads, n, d) for n in (queries, keys, keys))


def positions():
    return torch.arange(T)[:, None], torch.arange(T)[None, :]


def additive(shows, hidden):
    return torch.where(shows, 0.0, hidden)


def tril():
    return torch.ones(T, T, dtype=torch.bool).tril()


SAME = "attention's mask is the same in every run: "
MASKS = {
    "compared positions": (lambda: positions()[1] <= positions()[0], "causal"),
    "and of two": (lambda: (positions()[1] <= positions()[0]) & (positions()[0] >= 0), "causal"),
    "expanded": (lambda: tril()[None, None].expand(2, 1, T, T), "causal"),
    "-inf is added": (lambda: additive(tril(), -math.inf), "causal"),
    "triu of -inf": (lambda: torch.full((T, T), -math.inf).triu(1), "causal"),
    "the least number is added": (lambda: additive(tril(), torch.finfo(torch.float32).min), "causal"),
    "packed": (
        lambda: (
            tril() & (torch.diff(torch.arange(T), prepend=torch.arange(1)).ne(1).cumsum(-1)[:, None] >= 0)
        ),
        "causal",
    ),
    "all of it": (lambda: (torch.arange(T) >= 0)[None, :].expand(T, T), "hides nothing"),
    "zeros are added": (lambda: torch.zeros(1, 1, T, T), "hides nothing"),
    "one more key": (lambda: torch.ones(T, T, dtype=torch.bool).tril(1), None),
    "a window": (lambda: tril() & ((positions()[0] - positions()[1]) < 3), None),
    "-100 is added": (lambda: additive(tril(), -100.0), None),
    "some numbers are added": (lambda: (positions()[1] - positions()[0]).float() * 0.1, None),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_the_same_in_every_run(name):
    mask, kind = MASKS[name]

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask())

    assert same(attend, *qkv()) == ([SAME + kind] if kind else [])


def test_a_causal_mask_of_fewer_queries_than_keys_stays():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=torch.ones(4, T, dtype=torch.bool).tril(T - 4)
        )

    assert same(attend, *qkv(4)) == []


def test_a_mask_that_is_written_in_place_stays():
    def attend(q, k, v):
        mask = torch.ones(T, T, dtype=torch.bool).tril()
        mask[:, 0] = False
        mask[0, 1] = True
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    assert same(attend, *qkv()) == []


def test_a_mask_that_is_drawn_stays_and_is_drawn_each_time():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.rand(T, T) > 0.3)

    call, (q, k, v) = compiled(attend), qkv()
    torch.manual_seed(1)
    got = [call(q, k, v) for _ in range(2)]
    torch.manual_seed(1)
    for made in got:
        torch.testing.assert_close(made, attend(q, k, v), rtol=0, atol=2e-5, equal_nan=True)
    assert recognised() == [] and not torch.equal(*got)


def test_padding_is_handed_on_unexpanded():
    seen = torch.arange(T)[None, :] < torch.tensor([T, 4])[:, None]

    def attend(q, k, v, seen):
        keys = seen[torch.arange(2)[:, None, None, None], torch.arange(T)[None, None, None, :]]
        shown = (torch.arange(T) >= 0)[None, None, :, None] & keys
        return F.scaled_dot_product_attention(q, k, v, attn_mask=shown.expand(2, 2, T, T))

    assert same(attend, *qkv(), seen) == ["attention's mask is read as it was before it was expanded"]


POSITIONS = {
    "from 0": (lambda n: torch.arange(n) + 0 >= 0, True),
    "from 2, and others": (lambda n: (torch.arange(2, n + 2) >= 0) & torch.ones(n, dtype=torch.bool), True),
    "from 1": (lambda n: torch.arange(n) >= 1, False),
    "less 1": (lambda n: torch.arange(n) + -1 >= 0, False),
    "from -1": (lambda n: torch.arange(-1, n - 1) >= 0, False),
    "down from 1": (lambda n: torch.arange(1, 1 - n, -1) >= 0, False),
    "written": (lambda n: torch.ones(n, dtype=torch.bool).index_fill_(0, torch.tensor([0]), False), False),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", POSITIONS)
def test_padding_of_sizes_that_change_is_handed_on_unexpanded(name):
    """Where the queries' own part hides nothing whatever the sizes are."""
    of, hides_nothing = POSITIONS[name]

    def attend(q, k, v, seen):
        n = q.shape[-2]
        keys = seen[torch.arange(2)[:, None, None, None], torch.arange(n)[None, None, None, :]]
        shown = of(n)[None, None, :, None] & keys
        return F.scaled_dot_product_attention(q, k, v, attn_mask=shown)

    call = torch.compile(attend, backend="aicf", dynamic=True)
    for n in (5, 9, 6):
        seen = torch.arange(n)[None, :] < torch.tensor([n, 3])[:, None]
        q, k, v = qkv(n, n)
        close(call(q, k, v, seen), attend(q, k, v, seen).nan_to_num(0.0))
    assert bool(recognised()) == hides_nothing


def test_masks_of_sizes_that_change_stay():
    def attend(q, k, v):
        n = torch.arange(q.shape[-2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=n[None, :] <= n[:, None])

    call = torch.compile(attend, backend="aicf", dynamic=True)
    for n in (5, 9, 6):
        q, k, v = qkv(n, n)
        close(call(q, k, v), attend(q, k, v))
    assert recognised() == []


@pytest.mark.spec("A15")
def test_strict_numerics_recognise_nothing():
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=tril())

    assert same(attend, *qkv(), numerics="strict") == []


ROOT = math.sqrt(2 / math.pi)
ACTIVATIONS = {
    "transformers' NewGELU": (lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))), "gelu, tanh form"),
    "FastGELU": (lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))), "gelu, tanh form"),
    "of cubes": (lambda x: (torch.tanh(ROOT * (x + 0.044715 * x**3)) + 1) * x * 0.5, "gelu, tanh form"),
    "of the error function": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), "gelu"),
    "of its complement": (lambda x: 0.5 * x * torch.erfc(-x * math.sqrt(0.5)), "gelu"),
    "x sigmoid": (lambda x: torch.sigmoid(x) * x, "silu"),
    "x over 1 + exp": (lambda x: x / (1 + torch.exp(-x)), "silu"),
    "another constant": (lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.04472 * x**3))), None),
    "quick GELU": (lambda x: x * torch.sigmoid(1.702 * x), None),
    "tanh twice": (lambda x: x * torch.tanh(x), None),
}  # fmt: skip


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_however_they_are_spelt(name):
    function, kind = ACTIVATIONS[name]
    found = same(lambda x, w: function(x @ w) * 2, torch.randn(6, 5) * 3, torch.randn(5, WIDE))
    assert [what.rpartition(",")[0] for what in found] == ([kind] if kind else [])


def test_two_in_a_row_and_one_whose_middle_is_read():
    def twice(x):
        y = x * torch.sigmoid(x)
        s = torch.sigmoid(y)
        return y * s + s

    assert same(twice, torch.randn(7, WIDE)) == ["silu, of 2 ops"]
    assert sum(g.recognised.total() for g in graphs()) == 2


def test_what_is_widened_in_between_or_reads_two_tensors_stays():
    def widened(x):
        return (x.float() * torch.sigmoid(x.float())).to(x.dtype) * x

    def two(x, y):
        return x * torch.sigmoid(y)

    with torch.no_grad():
        x = torch.randn(4, WIDE, dtype=torch.bfloat16)
        close(compiled(widened)(x), widened(x), 1e-2)
        close(compiled(two)(x, x + 1), two(x, x + 1), 1e-2)
    assert recognised() == []


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if ACTIVATIONS[n][1]])
def test_autocast_widens_what_is_in_between(name):
    """Powers and exponentials are f32 there, though the operand is bf16."""
    function, _ = ACTIVATIONS[name]
    x, w = torch.randn(64, 48, requires_grad=True), torch.randn(48, 40)

    def layer(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = function(x @ w)
        return y.float()

    got, want = compiled(layer)(x), layer(x)
    close(got, want, 2e-2)
    (grad,), (other,) = (torch.autograd.grad(y.square().sum(), x) for y in (got, want))
    close(grad, other, 3e-2)
    assert len(recognised()) == 1


@pytest.mark.sample(3)
@pytest.mark.spec("A15")
@pytest.mark.parametrize("name", [n for n in ACTIVATIONS if ACTIVATIONS[n][1]])
def test_a_recognised_activation_is_no_less_exact(name):
    """In bf16, beside f64: spelt out, each op rounds."""
    function, _ = ACTIVATIONS[name]
    x = (torch.randn(4096) * 3).to(torch.bfloat16)
    want = function(x.double())
    with torch.no_grad():
        off = [(made.double() - want).abs().mean() for made in (compiled(function)(x), function(x))]
    assert recognised() and off[0] <= 1.01 * off[1]


def test_special_numbers():
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e30, -1e30, 88.0, -104.0, 1e-40])
    for function, kind in ACTIVATIONS.values():
        if kind:
            with torch.no_grad():
                got, want = (
                    compiled(function)(x),
                    {"silu": F.silu, "gelu": F.gelu}.get(kind, lambda x: F.gelu(x, approximate="tanh"))(x),
                )
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6, equal_nan=True)


def test_exported_models_too():
    class Block(torch.nn.Module):
        def forward(self, q, k, v):
            n = torch.arange(T)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=n[None, :] <= n[:, None])
            return 0.5 * out * (1.0 + torch.tanh(ROOT * (out + 0.044715 * torch.pow(out, 3.0))))

    given = tuple(qkv())
    model = aicf.torch.load(Block(), given)
    kinds = {op.kind for op in model.body.calls}
    assert "attention" in kinds and "gelu" in kinds and "tanh" not in kinds and "less_equal" not in kinds
    got = aicf.compile(model, device="cpu")({n: x.numpy() for n, x in zip("qkv", given)})["output"]
    close(torch.from_numpy(got.numpy()), Block()(*given))
