"""On an NVIDIA GPU: PyTorch's streams, its allocator, its graph capture, half precision, attention, training."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws import torch_border  # noqa: E402
from draws.seeds import rng  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import close, compiled, left, same_as_eager  # noqa: E402

pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU")
]  # fmt: skip


class Block(nn.Module):
    """A transformer's, with PyTorch's own attention."""

    def __init__(self, width=64, heads=2):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


def mlp():
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).cuda()


def test_training_stays_with_eager():
    found = same_as_eager(mlp(), torch.randn(48, 64, device="cuda"), steps=50)
    assert not left(found), [str(g) for g in found]


def test_tokens_attention_and_a_loss():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.block, self.head = nn.Embedding(97, 64), Block(), nn.Linear(64, 97)

        def forward(self, tokens):
            return self.head(self.block(self.embedding(tokens)))

    found = same_as_eager(
        Model().cuda(), torch.randint(0, 97, (4, 32), device="cuda"), steps=5, tolerance=1e-3
    )
    assert min(g.share for g in found) > 0.9, [str(g) for g in found]


def test_autocast_in_bf16():
    model, x = Block(128, 2).cuda(), torch.randn(4, 64, 128, device="cuda")
    call = compiled(model)
    with torch.autocast("cuda", torch.bfloat16):
        got = call(x)
        want = model(x)
    close(got, want, 2e-2)
    got.square().mean().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    want.square().mean().backward()
    most = max(float(p.grad.abs().max()) for p in model.parameters())
    for got_, p in zip(grads, model.parameters()):
        assert float((got_ - p.grad).abs().max()) < 3e-2 * most
    assert any("attention" in op for g in graphs() for op in g.taken), [str(g) for g in graphs()]


def test_work_is_on_pytorchs_current_stream():
    """Thousands of times: what a stream makes slowly is read in its order, and memory goes around among streams."""
    model, side = mlp(), torch.cuda.Stream()
    call = compiled(model)
    with torch.no_grad():
        base = torch.randn(32, 64, device="cuda")
        want = [model(base * n) for n in range(4)]
        call(base)
        torch.cuda.synchronize()
        wrong = torch.zeros((), device="cuda", dtype=torch.int64)
        for run in range(1500):
            n = run % 4
            stream = side if run % 3 else torch.cuda.current_stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                poison = torch.full((32, 64), float("nan"), device="cuda")
                poison.copy_(base).mul_(n)
                got = call(poison)
                poison.fill_(float("nan"))
                wrong += (~torch.isclose(got, want[n], atol=1e-4)).any()
            torch.cuda.current_stream().wait_stream(stream)
        assert int(wrong) == 0


def test_it_can_be_captured_by_pytorch():
    model = mlp()
    call, x = compiled(model), torch.randn(16, 64, device="cuda")
    with torch.no_grad():
        for _ in range(3):
            call(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = call(x)
        for seed in range(50):
            torch.manual_seed(seed)
            x.normal_()
            graph.replay()
            close(y, model(x), 1e-4)


def test_a_training_step_can_be_captured():
    model = mlp()
    call, x = compiled(model), torch.randn(16, 64, device="cuda")
    other = mlp()
    other.load_state_dict(model.state_dict())
    rate = 0.05

    def step(run, net):
        grads = torch.autograd.grad(run(x).square().mean(), list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads):
                p.sub_(g, alpha=rate)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(call, model)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(call, model)
    for _ in range(20):
        graph.replay()
    for _ in range(23):
        step(other, other)
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.detach(), q.detach(), 1e-3)


def test_layouts_and_misaligned_inputs():
    def f(x):
        return (x * 2 + 1).relu().sum(-1), (x - 1).t() * 3

    call = compiled(f)
    whole = torch.randn(4097, device="cuda")
    for x in (
        whole[1:].view(64, 64),
        whole[:4096].view(64, 64).t(),
        whole[:4096].view(64, 64)[:, ::2],
        whole[:64].expand(64, 64),
    ):
        for got, want in zip(call(x), f(x)):
            close(got, want)
            assert got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.float64])
def test_element_types(dtype):
    def f(x, y):
        return x * 3 + y, (x > y), torch.where(x > y, x, y).sum(0)

    x, y = (
        (torch.randn(33, 17, device="cuda") * 9).to(dtype),
        (torch.randn(33, 17, device="cuda") * 9).to(dtype),
    )
    for got, want in zip(compiled(f)(x, y), f(x, y)):
        close(got, want, 2e-2 if dtype.itemsize == 2 else 1e-6)


def test_sizes_that_change():
    model = mlp()
    call = torch.compile(model, backend="aicf", dynamic=True)
    for n in (3, 8, 33, 3):
        x = torch.randn(n, 64, device="cuda")
        close(call(x), model(x), 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_how_long_a_step_takes(dtype, capsys):
    """Told, not judged: forward and backward of four blocks beside eager and torch.compile's own."""
    import time

    model = nn.Sequential(*[Block(768, 12) for _ in range(4)]).cuda().to(dtype)
    x = torch.randn(8, 512, 768, device="cuda", dtype=dtype)

    def milliseconds(call, steps=20):
        started = time.perf_counter()
        call(x).float().square().mean().backward()
        torch.cuda.synchronize()
        cold = time.perf_counter() - started
        for _ in range(5):
            call(x).float().square().mean().backward()
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(steps):
            call(x).float().square().mean().backward()
        torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - started) / steps, cold

    ours = milliseconds(compiled(model))
    torch._dynamo.reset()
    eager, theirs = milliseconds(model), milliseconds(torch.compile(model))
    with capsys.disabled():
        for name, (ms, cold) in {"aicf": ours, "eager": eager, "torch.compile": theirs}.items():
            print(f"\n{name}: {ms:.2f} ms a step, first {cold:.1f} s", end="")
        for graph in graphs():
            print(f"\n{graph}", end="")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_attention_with_dropout_sees_the_traced_strides(packed, dtype):
    """PyTorch's flash attention, whose result follows the layout of q: heads are views of one product, or results of a part."""

    class Heads(nn.Module):
        def __init__(self, width=64, heads=2):
            super().__init__()
            self.heads, self.norm, self.qkv = heads, nn.LayerNorm(width), nn.Linear(width, 3 * width)

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = (
                y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1)
            )
            if not packed:
                q, k = q * 0.5 + k, k.tanh()
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25, is_causal=True)
            return y.transpose(1, 2).reshape(b, t, c), y

    model = Heads().cuda().to(dtype)
    x = torch.randn(2, 48, 64, device="cuda", dtype=dtype)
    made = []
    for call in (compiled(model), model):
        torch.manual_seed(1)
        model.zero_grad()
        flat, y = call(x)
        (flat.float().square().mean() + y.float().mean()).backward()
        made.append([flat, y, *(p.grad for p in model.parameters())])
    for n, (got, want) in enumerate(zip(*made)):
        close(got.detach(), want.detach(), 5e-2)
        assert n > 1 or got.stride() == want.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_running_statistics_of_batch_norms(dtype):
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.BatchNorm2d(8)
    )
    model = model.cuda().to(dtype).to(memory_format=torch.channels_last)
    other, exact = copy.deepcopy(model), copy.deepcopy(model).double()
    call, x = compiled(model), torch.randn(4, 3, 16, 16, device="cuda", dtype=dtype) * 2 + 1
    for _ in range(4):
        for run, given in ((call, x), (other, x), (exact, x.double())):
            run(given).float().square().mean().backward()
    for (name, got), want, truth in zip(model.named_buffers(), other.buffers(), exact.buffers()):
        error, own = (float((t.double() - truth.double()).abs().max()) for t in (got, want))
        scale = float(truth.double().abs().max())
        assert got.dtype is want.dtype and error <= 4 * own + 8 * torch.finfo(dtype).eps * scale, (
            name, error, own,
        )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpu_scalars_among_tensors_of_a_gpu(dtype, request):
    """Constants, arguments, and what is computed on the CPU; in a captured graph they keep the values of the capture, as eager PyTorch's."""
    draw = rng(request.node.nodeid)
    value, factor = (float(v) for v in draw.uniform(1, 3, 2))

    def f(x, c, d):
        y = x.clone()
        y[0], y[:, 1] = value, c
        y = torch.where(y > 0.5, y * torch.tensor(factor, dtype=torch.float64), d + 1)
        return y.masked_fill(y < 0, c) / d

    call, x = compiled(f), torch.from_numpy(draw.standard_normal((7, 5))).to("cuda", dtype)
    for _ in range(3):
        c, d = (
            torch.tensor(float(draw.uniform(1, 3)), dtype=torch.float64),
            torch.tensor(float(draw.uniform(1, 3))),
        )
        close(call(x, c, d), f(x, c, d), 8 * torch.finfo(dtype).eps)
    assert not [why for g in graphs() for _, why in g.left if "several devices" in why], graphs()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(x, c, d)
    graph.replay()
    close(captured, f(x, c, d), 8 * torch.finfo(dtype).eps)


def test_drawn_functions_are_eagers(request):
    draw = rng(request.node.nodeid)
    for case in [c for _ in range(8) if (c := torch_border.draw(draw, "cuda"))]:
        assert (said := torch_border.check(case, "cuda")) is None, f"{case}\n{said}"
