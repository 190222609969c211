"""Convolutions, pooling, and what reads and writes by indices, beside eager PyTorch: with fallback="error" aicf computes all of it."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import aicf  # noqa: E402
from aicf.device.spec import preset  # noqa: E402
from aicf.frontends.torch import graphs, peer  # noqa: E402
from aicf.registry.select import Selector  # noqa: E402
from aicf.types import bf16, f16, f32  # noqa: E402

from .helpers import close, compiled, left, same_as_eager  # noqa: E402


def same_gradients(f, *args, tolerance=2e-5, **options):
    """Results of f, and gradients of all its arguments of floats."""
    found = []
    for call in (compiled(f, **options), f):
        own = [a.clone().requires_grad_() if a.is_floating_point() else a for a in args]
        y = call(*own)
        weights = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape).to(y.dtype)
        (y * weights).sum().backward()
        found.append([y.detach(), *(a.grad for a in own if a.requires_grad)])
    for got, want in zip(*found):
        close(got, want, tolerance)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "kernel, size", [((4, 4), (8, 12)), ((2, 3), (5, 7)), ((3,), (9,)), ((2, 2, 2), (4, 5, 2))]
)
@pytest.mark.parametrize("bias", [True, False])
def test_patches_are_taken(kernel, size, bias):
    conv = F.conv1d if len(size) == 1 else F.conv2d if len(size) == 2 else F.conv3d
    args = [torch.randn(2, 3, *size), torch.randn(5, 3, *kernel), *([torch.randn(5)] if bias else [])]
    same_gradients(lambda x, w, b=None: conv(x, w, b, stride=kernel), *args)
    assert not left(graphs()) and sum(g.taken.total() for g in graphs())


def test_patches_in_halves():
    args = [v.bfloat16() for v in (torch.randn(2, 3, 8, 8), torch.randn(5, 3, 4, 4), torch.randn(5))]
    same_gradients(lambda x, w, b: F.conv2d(x, w, b, stride=4), *args, tolerance=2e-2)
    assert not left(graphs())


PADDED = {"low": (1, 1), "high": (1, 1)}


@pytest.mark.sample(3)
@pytest.mark.parametrize("x, w, attrs, dtype, device, taken", [
    ((32, 64, 56, 56), (64, 64, 3, 3), PADDED, bf16, "h200", True),
    ((32, 256, 56, 56), (512, 256, 1, 1), {"strides": (2, 2)}, f16, "h100", True),
    ((256, 256, 14, 14), (256, 256, 3, 3), PADDED, bf16, "h200", True),
    ((32, 64, 56, 56), (64, 64, 3, 3), PADDED, f32, "h200", False),  # no kernel of tensor cores
    ((32, 64, 56, 56), (64, 64, 3, 3), PADDED, bf16, "a100", False),  # im2col in memory
    ((32, 64, 112, 112), (64, 1, 3, 3), {"groups": 64, **PADDED}, bf16, "h200", False),
    ((32, 3, 224, 224), (64, 3, 7, 7), {"strides": (2, 2), "low": (3, 3), "high": (3, 3)}, bf16, "h200", False),
    ((0, 64, 56, 56), (64, 64, 3, 3), PADDED, bf16, "h200", False),
    ((32, 64, 1, 1), (64, 64, 3, 3), {}, bf16, "h200", False),
])  # fmt: skip
def test_on_hopper_convolutions_of_halves_are_taken_where_no_slower(x, w, attrs, dtype, device, taken):
    selector = Selector(aicf.default_registry(), preset(device))
    assert peer.is_faster(selector, x, w, dtype, attrs, peer.OPS[:1]) == taken


def test_what_pytorchs_convolution_takes_is_near_what_was_measured():
    """By cuDNN on an H200: see docs/results/convolution.md."""
    selector = Selector(aicf.default_registry(), preset("h200"))
    measured = {
        ((256, 64, 56, 56), (64, 64, 3, 3)): 126.4, ((256, 256, 14, 14), (256, 256, 3, 3)): 81.0,
        ((32, 128, 28, 28), (128, 128, 3, 3)): 17.6, ((8, 640, 32, 32), (640, 640, 3, 3)): 113.9,
    }  # fmt: skip
    for (x, w), us in measured.items():
        (region,) = peer.regions_of(x, w, bf16, PADDED, peer.OPS[:1])
        assert 0.7 < peer.peer_us(region, selector) / us < 1.3


def test_gradients_that_are_asked_for_are_weighed_together():
    both = peer.regions_of((32, 64, 56, 56), (64, 64, 3, 3), bf16, PADDED, peer.OPS[1:])
    assert [r.results[0].shape for r in both] == [(32, 56, 56, 64), (64, 3, 3, 64)]


def test_other_convolutions_are_pytorchs():
    x = torch.randn(2, 4, 8, 8)
    for how in ({"padding": 2}, {"groups": 2}, {"dilation": 2}, {}):
        torch._dynamo.reset()
        w = torch.randn(4, 4 // how.get("groups", 1), 2, 2)
        stride = 1 if how == {} else 2
        same_gradients(lambda x, w, stride=stride, how=how: F.conv2d(x, w, stride=stride, **how), x, w)
    assert {
        g.left["aten.convolution.default", "PyTorch's own is faster"] for g in graphs() if g.kind == "forward"
    } == {1}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "axes, how",
    [
        (2, {}),
        (2, {"stride": 2, "padding": 1}),
        (2, {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)}),
        (2, {"groups": 2, "padding": 1}),
        (2, {"groups": 4}),
        (1, {"stride": 3}),
        (3, {"padding": 1}),
    ],
    ids=str,
)
def test_any_convolution(axes, how):
    conv = getattr(F, f"conv{axes}d")
    w = torch.randn(8, 4 // how.get("groups", 1), *[3, 2, 2][:axes])
    args = [torch.randn(2, 4, *[7, 6, 5][:axes]), w, torch.randn(8)]
    same_gradients(lambda x, w, b: conv(x, w, b, **how), *args, fallback="error")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "how", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"stride": 2, "groups": 2, "dilation": 2}], ids=str
)  # fmt: skip
def test_transposed_convolutions(how):
    args = [torch.randn(2, 4, 5, 4), torch.randn(4, 6 // how.get("groups", 1), 3, 2), torch.randn(6)]
    same_gradients(lambda x, w, b: F.conv_transpose2d(x, w, b, **how), *args, fallback="error")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "how",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": (2, 3), "stride": (2, 1), "dilation": 2},
        {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    ],
    ids=str,
)
def test_max_pooling(how):
    x = torch.randn(2, 3, 8, 6)
    x[0, 0], x[1, 1, 2:5, 2], x[1, 2] = float("-inf"), float("nan"), 1.0
    for given in (x, x[0]):
        got, want = (
            f(given)
            for f in (
                compiled(lambda x: F.max_pool2d(x * 1, **how, return_indices=True), fallback="error"),
                lambda x: F.max_pool2d(x * 1, **how, return_indices=True),
            )
        )
        torch.testing.assert_close(got[0], want[0], equal_nan=True, rtol=0, atol=0)
        assert torch.equal(got[1], want[1])
    torch._dynamo.reset()
    same_gradients(lambda x: F.max_pool2d(x, **how), torch.randn(2, 3, 8, 6), fallback="error")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "how",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False},
        {"kernel_size": (2, 3), "stride": 2, "divisor_override": 5},
    ],
    ids=str,
)
def test_mean_pooling(how):
    same_gradients(lambda x: F.avg_pool2d(x, **how), torch.randn(2, 3, 8, 7), fallback="error")
    same_gradients(lambda x: F.avg_pool2d(x, **how), torch.randn(3, 8, 7), fallback="error")


@pytest.mark.parametrize("size", [1, (2, 4)])
def test_adaptive_pooling(size):
    same_gradients(lambda x: F.adaptive_avg_pool2d(x, size), torch.randn(2, 3, 8, 12), fallback="error")


@pytest.mark.parametrize("shape", [(2, 6, 5), (2, 6, 3, 4)])
def test_group_norm(shape):
    args = torch.randn(shape) * 3 + 5, torch.randn(6), torch.randn(6)
    same_gradients(lambda x, w, b: F.group_norm(x, 3, w, b), *args, fallback="error", tolerance=1e-4)
    same_gradients(lambda x: F.group_norm(x, 2), args[0], fallback="error", tolerance=1e-4)


def test_a_small_network_is_taken_whole_where_it_must_be():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 8, 3, groups=8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    x = torch.randn(4, 3, 12, 12)
    want = model(x).detach()
    grads = torch.autograd.grad(model(x).square().sum(), list(model.parameters()))
    y = compiled(model, fallback="error")(x)
    close(y.detach(), want, 1e-4)
    for got, grad in zip(torch.autograd.grad(y.square().sum(), list(model.parameters())), grads):
        close(got, grad, 2e-3 if grad.abs().max() > 1e-3 else 1e9)
    assert same_as_eager(
        nn.Sequential(*[nn.Conv2d(3, 4, 2, 2), nn.Flatten(), nn.Linear(64, 3)]), torch.randn(2, 3, 8, 8)
    )


I, J = torch.tensor([2, 0, 2, 1]), torch.tensor([1, -1, 0, 3])  # noqa: E741


def put(x, *where, values, add=False):
    return torch.ops.aten.index_put(x, where, values, add)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[:, I] * 2 + 1,
        lambda x: x[I, :, J[:, None]] * 2 + 1,
        lambda x: put(x, None, I, values=torch.ones(()), add=True) * 2,
        lambda x: put(x, None, I[:2], values=x[:, :2] * 3) * 2,
        lambda x: put(x, I, None, J, values=x[I, :, J] * 3) * 2,
        lambda x: put(x, x[..., 0] > 0, values=torch.tensor(3.0)) * 2,
        lambda x: x.scatter(1, torch.tensor([[[0, 2, 1, 0]], [[1, 1, 0, 2]], [[2, 0, 0, 1]]]), x[:, :1] * 2) * 3,
    ],
)  # fmt: skip
def test_indices_along_any_axis(f):
    same_gradients(f, torch.randn(3, 3, 4))
    assert not {op for op in left(graphs()) if "index" in op or "scatter" in op}


def test_ranges_copies_and_integers():
    def f(x):
        y = x.clone()
        y[1:] = x[:2].double()
        return (
            y * 2,
            torch.arange(0.5, 7, 0.25) * x[0, 0],
            torch.arange(3) * 0.5,
            (x * 9).int() + 1,
            (x * 9).long() * 2,
        )

    x = torch.randn(3, 4)
    for got, want in zip(compiled(f, fallback="error")(x), f(x)):
        close(got, want, 1e-6)
