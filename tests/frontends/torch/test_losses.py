"""Cross entropy through torch.compile(backend="aicf"): eager PyTorch's numbers, and nothing of the logits' size kept but the logits."""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch.nn import functional as F  # noqa: E402

from aicf.errors import AicfError  # noqa: E402
from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import close, compiled, left  # noqa: E402

JOINED = "aicf.cross_entropy.default"


def taken():
    return {op for graph in graphs() for op in graph.taken}


def both(function, logits, *args):
    """(result, gradient of its weighted sum) by aicf and by eager PyTorch."""
    found = []
    for call in (compiled(function), function):
        x = logits.clone().requires_grad_()
        y = call(x, *args)
        weights = torch.linspace(0.5, 1.5, y.numel()).reshape(y.shape)
        (y.float() * weights).sum().backward()
        found.append((y.detach(), x.grad))
    return found


def labels_of(rows, classes, ignored=()):
    labels = torch.randint(classes, (rows,))
    labels[list(ignored)] = -100
    return labels


@pytest.mark.sample(4)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("rows, classes", [(7, 5), (1, 1), (3, 1025), (33, 50)])
def test_cross_entropy_is_one_op(rows, classes, reduction):
    labels = labels_of(rows, classes, range(0, rows - 1, 3))

    def loss(x, labels):
        return F.cross_entropy(x, labels, reduction=reduction)

    (y, dx), (want, wanted) = both(loss, torch.randn(rows, classes) * 3, labels)
    close(y, want)
    close(dx, wanted)
    assert JOINED in taken() and not left(graphs())
    assert not any("log_softmax" in op or "nll" in op for op in taken())


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_all_rows_ignored(reduction):
    labels = torch.full((4,), -100)
    (y, dx), (want, wanted) = both(
        lambda x, t: F.cross_entropy(x, t, reduction=reduction), torch.randn(4, 6), labels
    )
    torch.testing.assert_close(y, want, equal_nan=True)
    assert not wanted.any() and not dx.any()


def test_no_rows():
    for reduction in ("none", "sum"):
        function = partial(F.cross_entropy, reduction=reduction)
        (y, dx), (want, wanted) = both(function, torch.randn(0, 6), torch.zeros(0, dtype=torch.int64))
        assert torch.equal(y, want) and dx.shape == wanted.shape


def next_token_loss(logits, labels):
    """As transformers has it: logits widened, views around, the labels shifted."""
    shifted = F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), shifted.view(-1))


def test_halves_are_kept_as_halves():
    logits, labels = (torch.randn(2, 9, 40) * 4).bfloat16(), torch.randint(40, (2, 9))
    (y, dx), (want, wanted) = both(next_token_loss, logits, labels)
    close(y, want, 1e-6)
    close(dx, wanted, 4e-3)  # both are rounded once: the last bit of bf16
    assert dx.dtype is torch.bfloat16 and JOINED in taken()


def test_what_is_kept_for_the_backward_pass():
    """The logits as they came, which are there anyway, and numbers of rows: nothing else of their size."""
    kept = []
    logits = (torch.randn(4, 16, 64)).bfloat16().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        compiled(next_token_loss)(logits, torch.randint(64, (4, 16))).backward()
    large = [t for t in kept if t.numel() >= logits.numel()]
    assert len(large) <= 1 and all(t.data_ptr() == logits.data_ptr() for t in large)
    assert logits.grad is not None


def test_a_gradient_that_is_read_in_f32_is_not_rounded():
    def loss(x, labels):
        wide = x.float()
        wide.retain_grad() if not torch.compiler.is_compiling() else None
        return F.cross_entropy(wide * 1.5, labels)

    x, labels = torch.randn(6, 11), torch.randint(11, (6,))
    (y, dx), (want, wanted) = both(loss, x, labels)
    close(y, want)
    close(dx, wanted)


def test_logarithms_that_are_also_returned():
    def loss(x, labels):
        y = F.log_softmax(x, 1)
        return F.nll_loss(y, labels) + y.mean()

    (y, dx), (want, wanted) = both(loss, torch.randn(6, 11), labels_of(6, 11, [2]))
    close(y, want)
    close(dx, wanted)
    assert JOINED not in taken() and not left(graphs())


@pytest.mark.sample(3)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(
    "options", [{"weight": True}, {"label_smoothing": 0.1}, {"ignore_index": 3}], ids=lambda o: next(iter(o))
)
def test_with_weights_smoothing_and_another_ignored_label(options, reduction):
    given = {**options, "reduction": reduction}
    if "weight" in given:
        given["weight"] = torch.rand(7) + 0.5
    labels = torch.randint(7, (9,))
    labels[[1, 4]] = given.get("ignore_index", -100)
    (y, dx), (want, wanted) = both(lambda x, t: F.cross_entropy(x, t, **given), torch.randn(9, 7), labels)
    close(y, want)
    close(dx, wanted)
    assert not left(graphs())


@pytest.mark.sample(1)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_one_row_and_images(reduction):
    for x, labels in (
        (torch.randn(7), torch.tensor(3)),
        (torch.randn(2, 5, 3, 4), torch.randint(5, (2, 3, 4))),
    ):
        torch._dynamo.reset()
        function = partial(F.cross_entropy, reduction=reduction)
        (y, dx), (want, wanted) = both(function, x, labels)
        close(y, want)
        close(dx, wanted)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_nll_loss_alone(reduction):
    given = {"reduction": reduction, "weight": torch.rand(6) + 0.5}
    (y, dx), (want, wanted) = both(
        lambda x, t: F.nll_loss(x, t, **given), torch.randn(8, 6), labels_of(8, 6, [0, 5])
    )
    close(y, want)
    close(dx, wanted)
    assert {"aten.nll_loss_forward.default", "aten.nll_loss_backward.default"} <= taken()


def test_a_loss_without_gradients():
    x, labels = torch.randn(6, 11).bfloat16(), labels_of(6, 11, [2])
    with torch.no_grad():
        close(compiled(next_token_loss)(x[None], labels[None]), next_token_loss(x[None], labels[None]))
    assert JOINED in taken()


def test_logits_that_are_no_numbers():
    rows = torch.randn(6, 5)
    rows[0, 2], rows[1, 0], rows[2, 1] = float("nan"), float("inf"), -float("inf")
    labels = torch.tensor([0, 1, 2, 3, 4, 0])
    labels[1] = 0
    (y, dx), (want, wanted) = both(lambda x, t: F.cross_entropy(x, t, reduction="none"), rows, labels)
    torch.testing.assert_close(y, want, equal_nan=True, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dx, wanted, equal_nan=True, rtol=1e-5, atol=1e-5)


def test_a_label_that_is_no_class_is_an_error_on_the_host():
    loss = compiled(F.cross_entropy)
    with pytest.raises(AicfError, match="label 9 at row 1 is no class"):
        loss(torch.randn(4, 6, requires_grad=True), torch.tensor([0, 9, 1, 2]))


def test_strict_leaves_ops_as_they_were_written():
    x, labels = torch.randn(6, 11), labels_of(6, 11, [2])
    close(compiled(F.cross_entropy, numerics="strict")(x, labels), F.cross_entropy(x, labels))
    assert JOINED not in taken()


def test_many_batch_sizes():
    loss = torch.compile(F.cross_entropy, backend="aicf", dynamic=True)
    for rows in (3, 5, 8):
        x, labels = torch.randn(rows, 7, requires_grad=True), labels_of(rows, 7, [1])
        y = loss(x, labels)
        y.backward()
        other = x.detach().clone().requires_grad_()
        want = F.cross_entropy(other, labels)
        want.backward()
        close(y.detach(), want.detach())
        close(x.grad, other.grad)
    assert JOINED in taken()


def test_the_ops_by_themselves():
    """What PyTorch runs where one of them is left to it."""
    x, labels = torch.randn(5, 9).bfloat16(), labels_of(5, 9, [3])
    loss, peak, rsum = torch.ops.aicf.cross_entropy(x, labels, -100)
    other = x.float().requires_grad_()
    want = F.cross_entropy(other, labels, reduction="none")
    weights = torch.rand(5)
    (want * weights).sum().backward()
    close(loss, want.detach())
    close(peak, x.float().amax(1))
    close(rsum, 1 / (x.float() - peak[:, None]).exp().sum(1))
    grad = torch.ops.aicf.cross_entropy_grad(x, labels, weights, peak, rsum, -100)
    close(grad, other.grad.bfloat16(), 4e-3)
