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


HALVES = {"bf16": torch.bfloat16, "f16": torch.float16}


def of_torch(start, feeds, rate, policy):
    w = {name: torch.tensor(x, requires_grad=True) for name, x in start.items()}
    groups = [
        {"params": [p for n, p in w.items() if decayed(n)], "weight_decay": 0.1},
        {"params": [p for n, p in w.items() if not decayed(n)], "weight_decay": 0.0},
    ]
    optimizer, losses = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95)), []
    scaler = torch.amp.GradScaler("cpu", enabled=policy == "f16")
    for feed in feeds:
        with torch.autocast("cpu", HALVES.get(policy), enabled=policy in HALVES):
            made = logits(w, torch.from_numpy(feed["x"]).long())
        loss = F.cross_entropy(made.flatten(0, 1).float(), torch.from_numpy(feed["y"]).flatten())
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        scaler.step(optimizer)
        scaler.update()
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
@pytest.mark.parametrize("policy", ["f32", "bf16", "f16"])
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
    want, learned = of_torch(start, feeds, 2e-3, policy)
    got = program.fit(feeds).losses
    assert len(got) == STEPS and want[-1] < 0.6 * want[0]
    if policy == "f32":
        np.testing.assert_allclose(got, want, rtol=1e-4)
        state = program.state_dict()
        for name, x in learned.items():
            np.testing.assert_allclose(state[name], x, rtol=0.02, atol=2e-3, err_msg=name)
    else:
        np.testing.assert_allclose(got, want, rtol=0.05 if policy == "bf16" else 0.02)
        exact = of_torch(start, feeds, 2e-3, "f32")[0]
        assert np.mean(got[-50:]) == pytest.approx(np.mean(exact[-50:]), rel=0.02)


@pytest.mark.spec("D15", "C13")
def test_the_scale_of_the_loss_is_gradscaler_s_step_by_step():
    """The same overflows, brought in by inputs that f16 does not hold: equal scales, equal steps taken, parameters within rounding."""
    rng = np.random.default_rng()
    how = {"growth_factor": 2.0, "backoff_factor": 0.25, "growth_interval": 3}
    scale = aicf.LossScale(init=1.0, growth=2.0, backoff=0.25, interval=3)
    model = nn.Model({"x": (8, 12)}, seed=5).add(nn.Linear(12, 16)).add(nn.ReLU()).add(nn.Linear(16, 3))
    program = aicf.compile(
        model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.AdamW(1e-2, clip_norm=0.5),
        policy=aicf.Policy("f16", loss_scale=scale),
    )  # fmt: skip
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    w = {name: torch.tensor(program.get(name), requires_grad=True) for name in names}
    optimizer = torch.optim.AdamW(w.values(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, **how)
    for n in range(40):
        x, y = (rng.normal(size=(8, k)).astype(np.float32) for k in (12, 3))
        if rng.integers(4) == 0:
            x[rng.integers(8), rng.integers(12)] = rng.choice([1e6, -np.inf, np.nan])
        with torch.autocast("cpu", torch.float16):
            hidden = F.relu(F.linear(torch.tensor(x), w["0.weight"], w["0.bias"]))
            made = F.linear(hidden, w["2.weight"], w["2.bias"])
        optimizer.zero_grad()
        scaler.scale(F.mse_loss(made.float(), torch.tensor(y))).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(w.values(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        program({"x": x, "y": y})
        assert program.get("loss_scale") == scaler.get_scale(), n
        assert program.get("good_steps") == scaler._get_growth_tracker()
        steps = [int(state["step"]) for state in optimizer.state.values()]
        assert int(program.get("step")) == (steps[0] if steps else 0)
    for name in names:
        np.testing.assert_allclose(program.get(name), w[name].detach().numpy(), atol=0.03, err_msg=name)
    assert 0 < int(program.get("skipped_steps")) < 40
