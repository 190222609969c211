"""torch.compile(backend="aicf"): numbers of eager PyTorch's, forward and backward, and PyTorch's semantics around them."""

import io
import re
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf.errors import VerifyError  # noqa: E402
from aicf.frontends.torch import graphs, part, report  # noqa: E402
from aicf.frontends.torch.backend import _checked  # noqa: E402

from .helpers import close, compiled, left, same_as_eager, train  # noqa: E402


def mlp():
    return nn.Sequential(nn.Linear(20, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 5))


def test_the_name_is_known_to_pytorch():
    model = mlp()
    x = torch.randn(3, 20)
    assert aicf.torch.backend is not None
    close(torch.compile(model, backend="aicf")(x), model(x))
    assert graphs()


def test_an_mlp_is_taken_whole():
    found = same_as_eager(mlp(), torch.randn(6, 20))
    assert not left(found) and {g.kind for g in found} == {"inference", "forward", "backward"}
    assert all(g.parts == 1 for g in found if g.kind != "backward")


def test_fifty_steps_of_training_stay_with_eager():
    same_as_eager(mlp(), torch.randn(6, 20), steps=50, lr=0.5)


def test_a_cnn_runs_between_pytorchs_convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 5)
    )
    found = same_as_eager(model, torch.randn(4, 3, 8, 8), steps=3)
    assert "aten._native_batch_norm_legit_functional.default" not in left(found)


def test_batch_norm_in_evaluation():
    model = nn.Sequential(nn.BatchNorm1d(7), nn.Linear(7, 3)).eval()
    model[0].running_mean.normal_()
    model[0].running_var.uniform_(0.5, 2)
    same_as_eager(model, torch.randn(5, 7))


def test_dropout_draws_what_eager_draws():
    found = same_as_eager(
        nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3), nn.ReLU(), nn.Linear(16, 4)), torch.randn(6, 8)
    )
    assert "aten.native_dropout.default" in left(found)


class Views(nn.Module):
    """In place, through views, of its input and of its own."""

    def forward(self, x):
        y = x.clone()
        y[:, 1:3] += 1
        z = y.t()
        z.mul_(2)
        x.add_(1)
        return y, z, x, x.view(-1)[2:6]


def test_in_place_and_aliases():
    got = torch.randn(4, 5)
    want = got.clone()
    outs, wanted = compiled(Views())(got), Views()(want)
    for a, b in zip((*outs, got), (*wanted, want)):
        close(a, b)
    assert outs[2] is got or outs[2].data_ptr() == got.data_ptr()
    outs[2].zero_()
    assert not got.any() and not outs[3].any()


def test_results_that_are_inputs_or_none():
    def f(x, y):
        return x, None, x + y * 2 - 1, 3

    x, y = torch.randn(3), torch.randn(3)
    a, none, b, three = compiled(f)(x, y)
    assert none is None and three == 3 and a is x
    close(b, x + y * 2 - 1)


def test_layouts_are_those_of_eager():
    def f(x, y):
        return (x * 2 + 1).t(), (y.permute(0, 3, 1, 2) * 3 - 1), (x[:, ::2] * 2 - 1), x.t() @ x

    x, y = torch.randn(6, 4).t(), torch.randn(2, 5, 6, 3)
    for got, want in zip(compiled(f)(x, y), f(x, y)):
        close(got, want)
        assert got.stride() == want.stride()


def test_inputs_lie_as_they_like():
    call = compiled(lambda x: torch.softmax(x * 2 + 1, -1))
    for x in (
        torch.randn(4, 6),
        torch.randn(6, 4).t(),
        torch.randn(4, 12)[:, ::2],
        torch.randn(6).expand(4, 6),
        torch.randn(25)[1:].view(4, 6),
    ):
        close(call(x), torch.softmax(x * 2 + 1, -1))


@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (1,), (2, 0, 4)])
def test_empty_and_tiny(shape):
    x = torch.randn(shape)
    close(compiled(lambda x: torch.relu(x * 2 - 1).sum(-1))(x), torch.relu(x * 2 - 1).sum(-1))


def test_nan_and_infinities():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e38, -1e-40])
    for f in (
        lambda x: torch.maximum(x * 2, -x),
        lambda x: (x * 10).clamp(-1, 5),
        lambda x: torch.where(x > 0, x, -x) + 1,
    ):
        torch.testing.assert_close(compiled(f)(x), f(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_remainders_and_signs(dtype):
    def f(x, b, n):
        return x // b, x // n, x % b, torch.div(x, b, rounding_mode="trunc"), x.sign(), x.sgn()

    inf = float("inf")
    x = torch.tensor([1.0, 0.6, 0.7, 0.3, 2.0, inf, -5.0, float("nan"), -0.0], dtype=dtype)
    for by in (0.1, inf, -0.3, 0.0):
        torch._dynamo.reset()
        b = torch.full_like(x, by)
        for got, want in zip(compiled(f)(x, b, by), f(x, b, by)):
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("f", [lambda a, b: a // b * 2 + 1, lambda a, b: a % b * 2 + 1])
def test_integers_by_zero_are_an_error_on_the_host(f):
    a = torch.tensor([5, -5])
    close(compiled(f)(a, torch.tensor([2, 3])), f(a, torch.tensor([2, 3])))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(f)(a, torch.tensor([1, 0]))


def test_halves_beside_numbers_are_compared_as_halves():
    def f(x):
        return x == 0.1, x < 0.2, x >= 1e-9, x == 0.5

    for dtype in (torch.float16, torch.bfloat16):
        x = torch.tensor([0.1, 0.2, 0.5, 0.0]).to(dtype)
        for got, want in zip(compiled(f)(x), f(x)):
            close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_element_types(dtype):
    def f(x, y):
        return (x * 0.1 + y).sum(-1), (x > y).to(dtype), x @ y.t() - 1

    x, y = torch.randn(5, 7).to(dtype), torch.randn(5, 7).to(dtype)
    for got, want in zip(compiled(f)(x, y), f(x, y)):
        close(got, want, 2e-2 if dtype.itemsize == 2 else 1e-6)


def test_promotion():
    def f(x, i, b):
        return x + i, i * 2.5, i / 2, x * b, (i + b) * 2, i > x, torch.where(b, x, i)

    x, i, b = torch.randn(4), torch.arange(4), torch.tensor([True, False, True, True])
    for got, want in zip(compiled(f)(x, i, b), f(x, i, b)):
        close(got, want)


def test_autocast():
    model, x = mlp(), torch.randn(6, 20)
    call = compiled(model)
    with torch.autocast("cpu", torch.bfloat16):
        close(call(x), model(x), 3e-2)


def test_sizes_that_change():
    model = mlp()
    call = torch.compile(model, backend="aicf", dynamic=True)
    for n in (3, 8, 3, 1, 5):
        x = torch.randn(n, 20)
        close(call(x), model(x))
    assert len({g.kind for g in graphs()}) <= 2 and len(graphs()) <= 4, "a plan for each size, not a graph"


def test_several_threads():
    model, x = mlp(), torch.randn(6, 20)
    call, want, wrong = compiled(model), model(x).detach(), []
    call(x)

    def work():
        for _ in range(40):
            with torch.no_grad():
                if not torch.allclose(call(x), want, atol=1e-5):
                    wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_an_index_out_of_bounds_is_told_on_the_host():
    table = torch.randn(5, 3)
    call = compiled(lambda i: F.embedding(i, table) * 2 + 1)
    close(call(torch.tensor([0, 4])), F.embedding(torch.tensor([0, 4]), table) * 2 + 1)
    with pytest.raises(aicf.errors.OutOfBoundsError, match="index 5"):
        call(torch.tensor([0, 5]))


@pytest.mark.parametrize("j", [[1, 5], [1, -5]])
def test_an_index_beyond_one_of_several_axes_is_not_in_the_next_row(j):
    x, i = torch.arange(12.0).view(3, 4), torch.tensor([0, 0])
    call = compiled(lambda x, i, j: x[i, j] * 2 + 1)
    close(call(x, i, torch.tensor([1, -1])), torch.tensor([3.0, 7.0]))
    with pytest.raises(aicf.errors.OutOfBoundsError, match=f"axis 1, {j[1]} in row 1"):
        call(x, i, torch.tensor(j))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "f, index",
    [
        (lambda x, i: F.embedding(i, x) * 2 + 1, [0, -1]),
        (lambda x, i: x.index_select(1, i) * 2 + 1, [0, -1]),
        (lambda x, i: x.gather(1, i) * 2 + 1, [[0, -1]]),
        (lambda x, i: x.scatter(1, i, 2.0) * 2 + 1, [[0], [-1], [0]]),
        (lambda x, i: x.scatter(1, i, 2.0) * 2 + 1, [[0], [4], [0]]),
    ],
)
def test_indices_that_pytorch_takes_for_none(f, index):
    x, index = torch.arange(12.0).view(3, 4), torch.tensor(index)
    call = compiled(f)
    close(call(x, index.clamp(0, 2)), f(x, index.clamp(0, 2)))
    with pytest.raises(aicf.errors.OutOfBoundsError):
        call(x, index)


def test_sizes_that_a_rule_refuses_are_pytorchs():
    def f(x):
        return x.var(0, correction=3) * 2 + 1

    call = torch.compile(f, backend="aicf", dynamic=True)
    for n in (8, 5, 3, 3, 6):
        x = torch.randn(n, 4)
        torch.testing.assert_close(call(x), f(x))
    (graph,) = graphs()
    assert graph.refused == {"a variance of too few elements": 1} and "sizes met later" in str(graph)
    text = io.StringIO()
    report(text)
    assert "sizes met later" in text.getvalue()
    torch._dynamo.reset()
    call = torch.compile(f, backend="aicf", dynamic=True, options={"fallback": "error"})
    call(torch.randn(8, 4))
    with pytest.raises(VerifyError, match="too few elements"):
        call(torch.randn(3, 4))


def bessel(x):
    """With an op that aicf lacks."""
    return torch.special.bessel_j0(x @ x) * 2 + 1


def test_the_report_names_and_counts_what_was_left():
    x = torch.randn(3, 3)
    close(compiled(bessel)(x), bessel(x))
    (graph,) = graphs()
    assert graph.left == {("aten.special_bessel_j0.default", "no rule"): 1}
    assert graph.taken.total() == 3 and graph.parts == 2 and graph.share == 0.75
    text = io.StringIO()
    report(text)
    assert "bessel_j0" in text.getvalue() and "3 of 4" in text.getvalue()


def test_a_lone_cheap_op_is_not_worth_a_part():
    x = torch.randn(3)
    close(compiled(lambda x: x + 1)(x), x + 1)
    (graph,) = graphs()
    assert graph.parts == 0 and "too small to pay" in str(graph)


def test_fallback_error_names_the_first_op():
    with pytest.raises(Exception, match=r"bessel_j0\.default would run in PyTorch"):
        compiled(bessel, fallback="error")(torch.eye(3))
    close(compiled(mlp(), fallback="error")(torch.ones(2, 20)).detach() * 0, torch.zeros(2, 5))


def test_options_that_make_no_sense():
    from aicf.frontends.torch import backend

    for options, said in (({"fallbak": 1}, "fallbak"), ({"fallback": "no"}, "'eager' or 'error'")):
        with pytest.raises(VerifyError, match=said):
            backend(None, [], options=options)
    with pytest.raises(VerifyError, match="max-autotune"):
        backend(None, [], mode="max-autotune")


def test_training_under_clipping_and_accumulation():
    """Gradients are PyTorch's own tensors: what reads and writes them goes on as ever."""
    model, other = mlp(), mlp()
    other.load_state_dict(model.state_dict())
    call, x = compiled(model), torch.randn(6, 20)
    for run, net in ((call, model), (other, other)):
        for _ in range(2):
            run(x).square().sum().backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    for a, b in zip(model.parameters(), other.parameters()):
        close(a.grad, b.grad, 1e-4)
    assert train(call, model, (x,), 1)[0][0] > 0


class Fake(io.StringIO):
    """A terminal that is so wide."""

    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [80, 160])
def test_the_report_in_a_terminal(columns, monkeypatch):
    class QuiteALongNameForAModelWithAHead(nn.Module):
        def forward(self, q, k):
            return torch.special.bessel_j0(F.scaled_dot_product_attention(q, k, k, is_causal=True) * 2 + 1)

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    compiled(QuiteALongNameForAModelWithAHead())(torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8))
    report(terminal := Fake())
    report(piped := io.StringIO())
    plain = [re.sub(r"\x1b\[[\d;]*m", "", line).rstrip() for line in terminal.getvalue().splitlines()]
    assert max(map(len, plain)) <= columns
    attention = "     1 aten._scaled_dot_product_flash_attention_for_cpu.default:"
    broken = [
        [f"{attention} causal", "       attention of fewer queries than keys"],
        [f"{attention} causal attention of fewer queries than keys"],
    ][columns == 160]
    at = plain.index(broken[0])
    assert plain[at : at + len(broken)] == broken, plain
    assert piped.getvalue().splitlines() == [
        "QuiteALongNameForAModelWithAHead, inference: 2 of 4 op calls (50%), 1 part",
        f"{attention} causal attention of fewer queries than keys",
        "     1 aten.special_bessel_j0.default: no rule",
        "1 graph, 0 of them whole: 2 of 4 op calls (50%)",
    ]


def test_the_report_names_the_model_and_what_it_is_asked_before_anything_ran():
    report(text := io.StringIO())
    assert text.getvalue() == 'no graph was compiled yet: torch.compile(model, backend="aicf")(x)\n'
    compiled(mlp())(torch.ones(2, 20))

    class Net(nn.Module):
        def forward(self, x):
            return x * 2 + 1

    def a_function(x):
        return x * 2 + 1

    compiled(Net())(torch.ones(2)), compiled(a_function)(torch.ones(2))
    assert [g.name for g in graphs()] == ["Sequential", "Net", "a_function"]


def attended(x, w, heads=3):
    """Heads of one product, attention, and its result as rows again: views on both sides."""
    n, length, width = x.shape
    q, k, v = (
        part.view(n, length, heads, width // heads).transpose(1, 2) for part in (x @ w).split(width, dim=2)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(n, length, width) + 1


def test_what_is_kept_through_views_is_kept_once():
    """The product, and what attention made: no head of either by itself."""
    x, w = torch.randn(2, 5, 12), torch.randn(12, 36, requires_grad=True)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = compiled(attended)(x, w)
    want = torch.autograd.grad(attended(x, w).square().sum(), w)[0]
    close(torch.autograd.grad(y.square().sum(), w)[0], want, 1e-4)
    sizes = sorted(t.numel() for t in kept)
    assert sizes.count(2 * 5 * 36) == 1 and sizes.count(2 * 5 * 12) == 2, sizes  # and x
    bound = [part for g in graphs() for module in g.modules for part in module.bound]
    moved = [
        step.region.signature
        for part in bound
        for step in part.compiled.plan.steps
        if step.kernel_id and {op.kind.name for op in step.region.ops} <= {"transpose", "slice", "copy"}
    ]
    assert not moved


def test_results_that_are_the_same_bytes():
    def f(x):
        y = torch.tanh(x) * 2
        return y, y.view(6, 4), y.view(24) + 1, y.transpose(0, 1), y.view(2, 12).t(), torch.relu(y).view(4, 6)

    x = torch.randn(2, 3, 4)
    for got, want in zip(compiled(f)(x), f(x)):
        close(got, want)
        assert got.stride() == want.stride()


def test_transposes_of_transposes():
    def f(x):
        y = x.permute(2, 0, 3, 1)
        return (
            y.permute(1, 3, 0, 2) * 2 + 1,
            y.transpose(0, 3).sum(0),
            x.permute(0, 2, 1, 3).permute(0, 1, 3, 2).exp(),
        )

    x = torch.randn(2, 3, 4, 5)
    for given in (x, x.permute(3, 1, 0, 2)):
        for got, want in zip(compiled(f)(given), f(given)):
            close(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("length", [6, 9])
def test_a_norm_is_converted_by_its_own_kernel(length):
    def f(x, w):
        y = F.layer_norm(x, (8,))
        return y.view(-1, 8).bfloat16() @ w

    x, w = torch.randn(2, length, 8), torch.randn(8, 4).bfloat16()
    close(compiled(f)(x, w), f(x, w), 1e-2)
    (part,) = [part for g in graphs() for module in g.modules for part in module.bound]
    signatures = [step.region.signature for step in part.compiled.plan.steps if step.kernel_id]
    assert len(signatures) == 2, signatures


@pytest.mark.spec("C12")
def test_kernels_that_keep_no_order_need_an_option_that_pytorchs_setting_overrules(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: False)
    assert part.target(cpu).selector.required == {"deterministic"}
    assert part.target(cpu, part.Numerics(deterministic=False)).selector.required == frozenset()
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert part.target(cpu, part.Numerics(deterministic=False)).selector.required == {"deterministic"}
    assert _checked({}, None)["deterministic"] is True
