"""Twenty steps of a ResNet in halves: parameters, running statistics and logits are as near to f32 training as eager PyTorch's are."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
transformers = pytest.importorskip("transformers")

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import compiled  # noqa: E402

STEPS, WIDER = 20, 3
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU")]),
]  # fmt: skip


def resnet(device):
    """ResNet-50 on a GPU; on the CPU a small one of the same blocks."""
    small = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if device == "cpu" else {}
    torch.manual_seed(0)
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10, **small))
    size, batch = (32, 8) if device == "cpu" else (128, 32)
    images = torch.randn(batch, 3, size, size, dtype=torch.float64)
    return model.to(device), images.to(device), torch.randint(0, 10, (batch,)).to(device)


def trained(model, call, images, labels):
    """Everything that the steps leave behind, and the logits in evaluation, in f64."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model.train()
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(call(images).logits.float(), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        logits = call(images).logits
    state = {name: t.detach().double() for name, t in model.state_dict().items()}
    return {**state, "logits": logits.double()}


@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.spec("E1")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_a_resnet_trains_in_halves_as_in_eager(device, dtype):
    model, images, labels = resnet(device)
    exact = copy.deepcopy(model).double()
    model.to(dtype)
    eager = copy.deepcopy(model)
    truth = trained(exact, exact, images, labels)
    want = trained(eager, eager, images.to(dtype), labels)
    got = trained(model, compiled(model), images.to(dtype), labels)
    for name, true in truth.items():
        if "num_batches" in name:
            assert torch.equal(got[name], true), name
            continue
        size = max(
            float(true.norm()), 0.05 * true.numel() ** 0.5
        )  # gradients of few bits move what is almost 0
        rounding = torch.finfo(dtype).eps * size
        near = float((want[name] - true).norm())
        off = float((got[name] - true).norm())
        assert off <= WIDER * near + rounding, f"{name}: {off:.3g} from f64 training, eager {near:.3g}"
    assert sum(g.taken.total() for g in graphs()) > 20
