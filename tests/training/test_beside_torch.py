"""A GPT beside PyTorch's from equal weights and batches: the losses of 200 steps, and what was learned."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.training import Tokens

torch = pytest.importorskip("torch", reason="compares with PyTorch, where it is installed")
F = torch.nn.functional

WORDS, SIZE, DEPTH, HEADS, LENGTH, BATCH, STEPS = 61, 32, 2, 4, 24, 4, 200


class GPT(nn.Layer):
    def __init__(self):
        self.embed, self.place = nn.Embedding(WORDS, SIZE), nn.Embedding(LENGTH, SIZE)
        self.blocks = [
            nn.TransformerBlock(SIZE, nn.MultiHeadAttention(SIZE, HEADS), nn.MLP(SIZE)) for _ in range(DEPTH)
        ]
        self.norm = nn.LayerNorm(SIZE)
        self.head = nn.Linear(SIZE, WORDS, bias=False, weight=self.embed)

    def emit(self, ctx, tokens):
        x = self.embed(tokens) + self.place(ctx.iota(shape=tokens.shape[-1:], axis=0, dtype=aicf.i32))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def logits(w, tokens):
    """The same in PyTorch, of weights by name."""

    def norm(x, name):
        return F.layer_norm(x, (SIZE,), w[f"{name}.weight"], w[f"{name}.bias"])

    def linear(x, name):
        return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = w["embed.weight"][tokens] + w["place.weight"][: tokens.shape[1]]
    for n in range(DEPTH):
        at = f"blocks.{n}"
        q, k, v = linear(norm(x, f"{at}.norm1"), f"{at}.attn.qkv").chunk(3, -1)
        heads = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, v)]
        seen = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)
        x = x + linear(seen, f"{at}.attn.out")
        up = F.gelu(linear(norm(x, f"{at}.norm2"), f"{at}.mlp.up"), approximate="tanh")
        x = x + linear(up, f"{at}.mlp.down")
    return norm(x, "norm") @ w["embed.weight"].T


def decayed(name):
    return name.endswith(".weight") and "norm" not in name and name not in ("embed.weight", "place.weight")


def of_torch(start, feeds, rate, autocast):
    w = {name: torch.tensor(x, requires_grad=True) for name, x in start.items()}
    groups = [
        {"params": [p for n, p in w.items() if decayed(n)], "weight_decay": 0.1},
        {"params": [p for n, p in w.items() if not decayed(n)], "weight_decay": 0.0},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95)), []
    for feed in feeds:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            made = logits(w, torch.from_numpy(feed["x"]).long())
        loss = F.cross_entropy(made.flatten(0, 1).float(), torch.from_numpy(feed["y"]).flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {name: p.detach().numpy() for name, p in w.items()}


@pytest.fixture(scope="module")
def feeds():
    """Tokens with something to learn: each is one of three that may follow the one before."""
    rng, tokens = np.random.default_rng(9), [0]
    follow = rng.integers(0, WORDS, (WORDS, 3))
    for _ in range(20_000):
        tokens.append(int(follow[tokens[-1], rng.integers(3)]))
    batches = Tokens(np.array(tokens, np.uint16), LENGTH, BATCH, seed=4)
    return [feed for epoch in range(2) for feed in batches.at(epoch)][:STEPS]


@pytest.mark.spec("C13", "D15")
@pytest.mark.parametrize("loss", [nn.SoftmaxCrossEntropy(), nn.LinearCrossEntropy()], ids=["apart", "as one"])
@pytest.mark.parametrize("policy", ["f32", "bf16"])
def test_losses_are_those_of_pytorch(feeds, loss, policy):
    tokens = {"x": aicf.TensorSpec(("batch", "length"), aicf.i32)}
    model = nn.Model(tokens, GPT(), batch=BATCH, length=LENGTH, seed=2)
    exempt = nn.ParamGroup(use=("bias", "norm", "embedding"), weight_decay=0.0)
    optimizer = nn.AdamW(2e-3, betas=(0.9, 0.95), weight_decay=0.1, clip_norm=1.0, groups=[exempt])
    program = aicf.compile(model, "train", device="cpu", loss=loss, optimizer=optimizer, policy=policy)
    start = aicf.compile(model, device="cpu").state_dict()
    # a table of N(0, 1) makes logits of a size that no model has
    start = {name: x * 0.1 if name in ("embed.weight", "place.weight") else x for name, x in start.items()}
    program.load_state_dict(start, strict=False)
    want, learned = of_torch(start, feeds, 2e-3, policy == "bf16")
    got = program.fit(feeds).losses
    assert len(got) == STEPS and want[-1] < 0.6 * want[0]
    if policy == "f32":
        np.testing.assert_allclose(got, want, rtol=1e-4)
        state = program.state_dict()
        for name, x in learned.items():
            np.testing.assert_allclose(state[name], x, rtol=0.02, atol=2e-3, err_msg=name)
    else:
        np.testing.assert_allclose(got, want, rtol=0.05)
        exact = of_torch(start, feeds, 2e-3, False)[0]
        assert np.mean(got[-50:]) == pytest.approx(np.mean(exact[-50:]), rel=0.02)
