"""Models that people have: of transformers, and of PyTorch's own layers."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402

from .helpers import left, same_as_eager  # noqa: E402

TEXT = {
    "vocab_size": 31,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
}


def of_transformers(kind, model, **config):
    transformers = pytest.importorskip("transformers")
    made = getattr(transformers, f"{kind}Config")(**config)
    made.use_cache = False
    return getattr(transformers, f"{kind}{model}")(made)


@pytest.mark.sample(1, pool="models of PyTorch")
@pytest.mark.parametrize(
    "kind, model, config",
    [
        ("GPT2", "LMHeadModel", {"vocab_size": 31, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}),
        ("Bert", "Model", TEXT | {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}),
        ("Llama", "ForCausalLM", TEXT | {"num_key_value_heads": 1}),
    ],
    ids=["gpt2", "bert", "llama"],
)  # fmt: skip
def test_transformers(kind, model, config):
    found = same_as_eager(of_transformers(kind, model, **config), torch.randint(0, 31, (2, 7)), steps=2)
    assert min(g.share for g in found) > 0.9, [str(g) for g in found]


@pytest.mark.sample(1, pool="models of PyTorch")
def test_a_vision_transformer():
    model = of_transformers(
        "ViT", "Model", hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=16,
        patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    assert left(same_as_eager(model, torch.randn(2, 3, 16, 16))) <= {
        "aten.convolution.default",
        "aten.convolution_backward.default",
    }


class Recurrent(nn.Module):
    """An LSTM's cell, step by step."""

    def __init__(self):
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(11, 6), nn.LSTMCell(6, 8), nn.Linear(8, 11)

    def forward(self, tokens):
        h = c = torch.zeros(tokens.shape[0], 8)
        made = []
        for x in self.embedding(tokens).unbind(1):
            h, c = self.cell(x, (h, c))
            made.append(self.head(h))
        return torch.stack(made, 1)


@pytest.mark.sample(1, pool="models of PyTorch")
def test_an_lstm():
    same_as_eager(Recurrent(), torch.randint(0, 11, (3, 4)))


@pytest.mark.sample(1, pool="models of PyTorch")
def test_pytorchs_own_lstm_runs():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(torch.tanh(self.lstm(x)[0] * 2))

    same_as_eager(Whole(), torch.randn(2, 5, 6))


class UNet(nn.Module):
    def __init__(self, width=4):
        super().__init__()

        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(2, b), nn.SiLU())

        self.first, self.down, self.up, self.last = (
            block(3, width),
            block(width, 8),
            block(8 + width, width),
            nn.Conv2d(width, 3, 1),
        )

    def forward(self, x):
        a = self.first(x)
        b = self.down(nn.functional.avg_pool2d(a, 2))
        return self.last(self.up(torch.cat([nn.functional.interpolate(b, scale_factor=2), a], 1)))


@pytest.mark.sample(1, pool="models of PyTorch")
def test_a_unet():
    same_as_eager(UNet(), torch.randn(2, 3, 8, 8))
