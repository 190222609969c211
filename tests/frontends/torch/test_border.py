"""What crosses between aicf's parts and PyTorch: types, strides, memory and values, of drawn functions, layers and ops."""

import contextlib
import copy
import dataclasses
import threading

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws import torch_border  # noqa: E402
from draws.seeds import rng  # noqa: E402
from torch import nn  # noqa: E402

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import close, compiled  # noqa: E402

HALVES = [torch.bfloat16, torch.float16]
NORM = "aten._native_batch_norm_legit_functional.default"


@pytest.mark.parametrize("number", range(3))
def test_drawn_functions_are_eagers(number, request):
    draw = rng(request.node.nodeid)
    case = next(c for _ in range(99) if (c := torch_border.draw(draw)))
    assert (said := torch_border.check(case)) is None, f"{case}\n{said}"


def test_gradients_are_compared_whatever_the_loss_is(request):
    """Also where it is 0, in one precision or in all; and one that is in another's place is noticed."""
    draw = rng(request.node.nodeid)
    shape = tuple(int(n) for n in draw.integers(2, 5, 2))
    lines = ("v0 = x0 - x0", "v1 = x0.flip(1)")
    case = torch_border.BorderCase(
        "float16", (shape,), ((0, 1),), lines[:1], ("v0",), True, seed=int(draw.integers(2**31))
    )
    flipped = dataclasses.replace(case, lines=lines, returned=("v1",))
    for x in (case.arguments(), [x.double() for x in case.arguments()]):
        found, _ = torch_border._run(case.function(), x, True)
        assert not found["result 0"].any() and not found["gradient 0"].any()
        (got, want) = (
            torch_border._run(f, x, True)[0]["gradient 0"] for f in (flipped.function(), lambda y: (y * 1,))
        )
        assert not torch.equal(got, want) and torch.equal(got.flip(1), want)


# --- types ----------------------------------------------------------------------------------------------------------------


def norm_of(draw, dtype):
    """A drawn model with a BatchNorm, and a batch for it."""
    axes, channels = int(draw.integers(1, 4)), int(draw.integers(2, 6))
    kind = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1]
    norm = kind(channels, momentum=float(draw.uniform(0.05, 0.6)), affine=bool(draw.random() < 0.7))
    shape = [int(draw.integers(2, 5)), channels, *(int(n) for n in draw.integers(2, 5, axes))]
    x = torch.from_numpy(draw.standard_normal(shape) * 2 + draw.uniform(-3, 3)).to(dtype)
    model = nn.Sequential(norm, nn.SiLU()).to(dtype)
    if draw.random() < 0.3:
        model.float()  # statistics and parameters in f32 beside a batch in halves, as under autocast
    return model, x


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("dtype", "how"),
    [(torch.float32, "taken"), *((d, "taken") for d in HALVES), *zip(HALVES, ("raises", "other type"))],
)
def test_running_statistics_of_drawn_batch_norms(dtype, how, request):
    """PyTorch's trace says f32 of the statistics of halves, which are halves where PyTorch computes the op."""
    draw = rng(request.node.nodeid)
    model, x = norm_of(draw, dtype)
    eager, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    with torch_border.failing({} if how == "taken" else {NORM: how}):
        call = compiled(model)
        for step in range(3):
            made = []
            for run, given in ((call, x), (eager, x), (exact, x.double())):
                given = (given * (1 + step)).requires_grad_()
                y = run(given)
                y.sum().backward()
                made.append((y.detach(), given.grad))
            named = [("output", *(y for y, _ in made)), ("gradient", *(g for _, g in made))]
            for of in ("named_buffers", "named_parameters"):
                for (name, a), b, c in zip(*(getattr(m, of)() for m in (model, eager)), getattr(exact, of)()):
                    tensors = (a, b[1], c[1])
                    named.append(
                        (name, *((t.grad for t in tensors) if of == "named_parameters" else tensors))
                    )
            for name, got, want, truth in named:
                said = torch_border.differs(got, want, truth, 8 * torch.finfo(dtype).eps)
                assert said is None, f"{model}, step {step}: {name}: {said}"
    ops = {op for g in graphs() for op, _ in g.left}
    assert (NORM in ops) == (how != "taken"), [str(g) for g in graphs()]


def test_an_op_of_pytorchs_may_return_another_type_than_its_trace_says(request):
    """Element type, shape or strides; before and behind it are parts."""
    draw = rng(request.node.nodeid)
    types = [torch.float32, torch.float64, *HALVES, torch.int64]
    for n in range(4):
        traced, real = (types[i] for i in draw.choice(len(types), 2, replace=False))
        rows, columns = (int(i) for i in draw.integers(2, 6, 2))
        cut = int(draw.integers(1, rows)) if n % 2 else rows

        @torch.library.custom_op(f"aicf_test::lies_{n}", mutates_args=())
        def lies(x: torch.Tensor, real: torch.dtype = real, cut: int = cut) -> torch.Tensor:
            return (x * 8).to(real)[:cut].t().contiguous().t()

        @lies.register_fake
        def _(x, real=real, cut=cut, traced=traced):
            return torch.empty(x.shape, dtype=traced)

        def f(x, lies=lies):
            y = lies(x.tanh() * 2) * 2 + 1
            return y, (y + 3).sum(0)

        x = torch.from_numpy(draw.standard_normal((rows, columns))).float()
        call = compiled(f)
        for _ in range(2):
            for got, want in zip(call(x), f(x)):
                assert got.dtype is want.dtype, (traced, real, cut)
                close(got, want, 2e-2 if real in HALVES else 2e-5)


def test_views_that_negate_are_read_with_their_sign():
    def f(z):
        return z.conj().imag * 2 + 1, (z.imag - z.conj().imag).tanh() * 3

    z = torch.randn(3, 4, dtype=torch.complex64)
    for got, want in zip(compiled(f)(z), f(z)):
        close(got, want)
    x = z.conj().imag
    close(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)


# --- strides --------------------------------------------------------------------------------------------------------------


def heads(x, count):
    """Queries, keys and values as GPT-2 has them: views of one product."""
    b, t, c = x.shape
    return [y.view(b, t, count, c // 3 // count).transpose(1, 2) for y in x.chunk(3, -1)]


@pytest.mark.sample(1)
@pytest.mark.parametrize("grad", [False, True])
def test_an_op_that_keeps_layout_sees_the_traced_one(grad, request):
    """Its result is a view of the strides that the trace has, whatever the user does with it."""
    draw = rng(request.node.nodeid)
    ops = [torch.special.i0, torch.digamma, torch.special.erfcx, lambda q: nn.functional.dropout(q, 0.0) + 0]
    for op in (ops[i] for i in draw.choice(len(ops), 2, replace=False)):
        b, t, count, width = (int(n) for n in draw.integers(2, 5, 4))
        linear = nn.Linear(6, 3 * count * width)

        def f(x, op=op, linear=linear, count=count):
            q, k, _ = heads(linear(x) * 2, count)
            y = op(q)
            return y.transpose(1, 2).flatten(2), y, torch.hypot(q, k)

        x = torch.from_numpy(draw.standard_normal((b, t, 6)) / 4).float()
        with torch.set_grad_enabled(grad):
            for got, want in zip(compiled(f)(x), f(x)):
                close(got, want, 1e-4)
                assert got.stride() == want.stride()


def test_flex_attention_of_packed_heads():
    from torch.nn.attention.flex_attention import flex_attention

    linear = nn.Linear(6, 3 * 8)

    def f(x):
        q, k, v = heads(linear(x) * 2, 2)
        return flex_attention(q, k, v).transpose(1, 2).view(2, 5, 8)

    with torch.no_grad():
        x = torch.randn(2, 5, 6)
        close(compiled(f)(x), f(x), 1e-4)


def test_a_view_that_is_dense_only_at_the_traced_size():
    """Parts are cut for the sizes of the trace; at others a result has gaps, or its elements share memory."""

    def f(x, n):
        y = x.tanh() * 2
        return torch.special.i0(y[:, : n.shape[0]]), y[:, : n.shape[0]]

    call = torch.compile(f, backend="aicf", dynamic=True)
    x = torch.randn(3, 6)
    for n in (6, 4, 2, 5):
        for got, want in zip(call(x, torch.ones(n)), f(x, torch.ones(n))):
            close(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("number", range(2))
def test_results_are_copied_to_drawn_strides(number, request):
    from aicf.frontends.torch.part import _with_strides

    draw = rng(request.node.nodeid)
    for _ in range(50):
        rank = int(draw.integers(0, 4))
        base = torch.arange(400.0)
        stride = tuple(int(n) for n in draw.integers(0, 6, rank))
        view = base.as_strided(tuple(int(n) for n in draw.integers(0, 5, rank)), stride)
        got = _with_strides(view.contiguous(), stride)
        assert got.stride() == stride and torch.equal(got, view)


# --- threads --------------------------------------------------------------------------------------------------------------


def test_threads_train_with_sizes_that_change():
    """On a model that nothing compiled before: PyTorch traces in one thread while a part meets new sizes in another."""
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    call, errors = torch.compile(model, backend="aicf"), []

    def work(k):
        try:
            for j in range(6):
                x = torch.randn(1 + (k + j) % 5, 8)
                y = call(x)
                close(y.detach(), model(x).detach(), 1e-4)
                torch.autograd.grad(y.sum(), list(model.parameters()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def test_compiled_functions_run_while_another_thread_compiles(request, monkeypatch):
    """One thread compiles drawn functions, one after another; others call what was compiled before. PyTorch does not mark its
    compilations for other threads, as before 2.13."""
    monkeypatch.setattr(torch.compiler, "_compile_session_context", contextlib.nullcontext, raising=False)
    draw = rng(request.node.nodeid)
    width, factor = int(draw.integers(2, 9)), float(draw.uniform(0.5, 2))
    x, done, errors = torch.randn(3, width), threading.Event(), []
    call = torch.compile(lambda y: (y * factor).tanh() + y, backend="aicf")
    want = call(x)

    def work():
        try:
            while not done.is_set():
                assert torch.equal(call(x), want)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            case = next(c for _ in range(99) if (c := torch_border.draw(draw)))
            f = case.function()
            torch.compile(f, backend="aicf")(*case.arguments())
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not errors, errors[0]
