"""Losses of fifty steps of training stay with eager PyTorch's: as near as those of eager PyTorch whose weights are moved by an ulp
before each step, which is what another order of sums does."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")
transformers = pytest.importorskip("transformers")

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import compiled  # noqa: E402

STEPS, RUNS, WIDER = 50, 5, 4  # a band of few runs is narrower than that of many
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no NVIDIA GPU")]),
]  # fmt: skip


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=61, n_embd=32, n_layer=2, n_head=2, n_positions=24, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )  # fmt: skip
    tokens = torch.randint(0, 61, (4, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def resnet():
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], layer_type="basic", num_labels=5
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(8, 3, 32, 32), "labels": torch.randint(0, 5, (8,))}


def losses(call, model, given, moved=None):
    """Of each step; `moved` draws which weights are moved by an ulp."""
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(STEPS):
        if moved is not None:
            with torch.no_grad():
                for p in model.parameters():
                    to = torch.randint(0, 2, p.shape, generator=moved).to(p.device) * 2.0 - 1.0
                    p.copy_(torch.nextafter(p, to * float("inf")))
        optimizer.zero_grad()
        loss = call(**given).loss
        loss.backward()
        optimizer.step()
        found.append(loss.detach().double())
    return torch.stack(found).cpu()


@pytest.mark.slow
@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [gpt2, resnet])
def test_losses_stay_in_eagers_own_band(make, device):
    model, given = make()
    model.train().to(device)
    given = {name: value.to(device) for name, value in given.items()}
    others = [copy.deepcopy(model) for _ in range(RUNS)]
    want = losses(others[0], others[0], given)
    moved = torch.stack([
        losses(net, net, given, torch.Generator().manual_seed(n)) for n, net in enumerate(others[1:])
    ])  # fmt: skip
    got = losses(compiled(model), model, given)
    band = (moved - want).abs().amax(0).cummax(0).values
    assert want[-1] < 0.8 * want[0], "nothing was learnt"
    off = (got - want).abs() / (WIDER * band + 2 * torch.finfo(torch.float32).eps * want.abs())
    assert off.max() <= 1, f"step {int(off.argmax())}: {float(off.max()):.2f} times the band"
    assert sum(g.taken.total() for g in graphs()) > 50
