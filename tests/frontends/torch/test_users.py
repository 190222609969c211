"""What people do around torch.compile(backend="aicf"): frozen and shared weights, checkpoints, autocast, hooks, functional calls, optimizers,
files. Numbers and behaviour are eager PyTorch's."""

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import close, compiled, train  # noqa: E402


class Blocks(nn.Module):
    """Two blocks with a residual; the head is `head`."""

    def __init__(self, width=12, checkpointed=False):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
            )
            for _ in range(2)
        )
        self.head, self.checkpointed = nn.Linear(width, 5), checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x))
        return self.head(x)


def gradients(call, model, x):
    model.zero_grad()
    (call(x).float() ** 2).mean().backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def same_gradients(model, x, tolerance=1e-4, call=None):
    """Of a compiled model and the same in eager PyTorch: also which have none."""
    other = copy.deepcopy(model)
    want = gradients(other, other, x)
    got = gradients(compiled(model) if call is None else call, model, x)
    most = max(float(g.abs().max()) for g in want.values() if g is not None)
    for name, grad in want.items():
        if grad is None:
            assert got[name] is None, f"{name} is frozen, and has a gradient"
        else:
            torch.testing.assert_close(
                got[name].float(),
                grad.float(),
                rtol=0,
                atol=tolerance * most,
                msg=lambda m, n=name: f"{n}: {m}",
            )
    return got


def test_frozen_layers_have_no_gradients():
    model = Blocks()
    model.blocks[0].requires_grad_(False)
    got = same_gradients(model, torch.randn(3, 7, 12))
    assert sum(g is None for g in got.values()) == 6


def test_a_layer_frozen_later_is_compiled_anew():
    model = Blocks()
    call, x = compiled(model), torch.randn(3, 12)
    same_gradients(model, x, call=call)
    model.blocks[1][1].weight.requires_grad_(False)
    got = same_gradients(model, x, call=call)
    assert got["blocks.1.1.weight"] is None
    model.blocks[1][1].weight.requires_grad_(True)
    assert same_gradients(model, x, call=call)["blocks.1.1.weight"] is not None


class LoRA(nn.Module):
    def __init__(self, of, rank=2):
        super().__init__()
        self.of = of.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, of.in_features) * 0.1)
        self.up = nn.Parameter(torch.randn(of.out_features, rank) * 0.1)

    def forward(self, x):
        return self.of(x) + (x @ self.down.t()) @ self.up.t() * 0.5


def test_lora():
    model = Blocks().requires_grad_(False)
    for block in model.blocks:
        block[1], block[3] = LoRA(block[1]), LoRA(block[3])
    got = same_gradients(model, torch.randn(3, 7, 12))
    assert {name.rpartition(".")[2] for name, g in got.items() if g is not None} == {"down", "up"}


def test_only_the_inputs_gradient():
    model = Blocks().requires_grad_(False)
    found = []
    for call in (compiled(model), model):
        x = torch.linspace(-1, 1, 24).reshape(2, 12).requires_grad_()
        call(x).square().sum().backward()
        found.append(x.grad)
    close(*found, 1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_halves(dtype):
    model = Blocks().to(dtype)
    got = same_gradients(model, torch.randn(3, 7, 12).to(dtype), 3e-2)
    assert all(g.dtype is dtype for g in got.values())


def test_checkpoints_recompute():
    model = Blocks(checkpointed=True)
    same_gradients(model, torch.randn(3, 7, 12))


def test_checkpoints_with_dropout_draw_the_same_mask_again():
    class Dropped(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(12, 12), nn.Dropout(0.5), nn.Linear(12, 12))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False)

    model = Dropped()
    other, x = copy.deepcopy(model), torch.randn(4, 12)
    found = []
    for call, net in ((compiled(model), model), (other, other)):
        torch.manual_seed(3)
        found.append(gradients(call, net, x))
    for name, want in found[1].items():
        close(found[0][name], want, 1e-4)


def test_hooks_on_modules_and_tensors():
    def seen_by(model, call, x):
        seen = []
        handles = [
            model.head.register_forward_hook(lambda m, args, out: out * 2),
            model.blocks[0][1].register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
            model.head.weight.register_hook(lambda g: g * 3),
            model.head.bias.register_post_accumulate_grad_hook(lambda p: seen.append(float(p.grad.sum()))),
        ]
        found = gradients(call, model, x)
        for handle in handles:
            handle.remove()
        return found, seen

    model = Blocks()
    other, x = copy.deepcopy(model), torch.randn(3, 12)
    got, told = seen_by(model, compiled(model), x)
    want, wanted = seen_by(other, other, x)
    for name in want:
        close(got[name], want[name], 1e-4)
    assert told == pytest.approx(wanted, rel=1e-3)


def test_shared_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.body, self.head = (
                nn.Embedding(11, 8),
                nn.Linear(8, 8),
                nn.Linear(8, 11, bias=False),
            )
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(torch.tanh(self.body(self.embedding(tokens))))

    model, tokens = Tied(), torch.randint(0, 11, (3, 5))
    other = copy.deepcopy(model)
    assert other.head.weight is other.embedding.weight
    losses, grads = train(compiled(model), model, (tokens,), 5)
    wanted, others = train(other, other, (tokens,), 5)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4, atol=1e-6)
    for name in others:
        close(grads[name], others[name], 1e-4)
    assert model.head.weight is model.embedding.weight


def test_a_state_dict_loaded_after_compiling():
    model, other, x = Blocks(), Blocks(), torch.randn(3, 12)
    call = compiled(model)
    close(call(x), model(x), 1e-4)
    model.load_state_dict(other.state_dict())
    close(call(x), other(x), 1e-4)
    third = Blocks()
    call.load_state_dict({f"_orig_mod.{k}": v for k, v in third.state_dict().items()})
    close(call(x), third(x), 1e-4)
    fourth = Blocks()
    model.load_state_dict(fourth.state_dict(), assign=True)
    close(call(x), fourth(x), 1e-4)
    assert len([g for g in graphs() if g.kind == "forward"]) <= 2


def test_a_compiled_module_is_saved():
    model, x = Blocks(), torch.randn(3, 12)
    model.compile(backend="aicf")
    want = model(x).detach()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    close(read(x).detach(), want, 1e-5)
    file = io.BytesIO()
    torch.save(torch.compile(model, backend="aicf").state_dict(), file)
    file.seek(0)
    assert set(torch.load(file)) == {f"_orig_mod.{k}" for k in model.state_dict()}


OPTIMIZERS = {
    "sgd, foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam, one by one": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    def losses(call, model, x):
        optimizer, found = OPTIMIZERS[name](model.parameters()), []
        for _ in range(8):
            optimizer.zero_grad(set_to_none=True)
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return torch.stack(found)

    model, x = Blocks(), torch.randn(6, 12)
    other = copy.deepcopy(model)
    want = losses(other, other, x)
    torch.testing.assert_close(losses(compiled(model), model, x), want, rtol=1e-3, atol=1e-6)
    assert want[-1] < 0.9 * want[0]


def test_gradients_accumulate():
    model = Blocks()
    other, xs = copy.deepcopy(model), [torch.randn(n, 12) for n in (3, 5, 3)]
    call = compiled(model)
    for x in xs:
        call(x).square().mean().backward()
        other(x).square().mean().backward()
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.grad, q.grad, 1e-4)


def test_training_under_autocast():
    model = Blocks()
    other, x = copy.deepcopy(model), torch.randn(6, 12)
    found = []
    for call, net in ((compiled(model), model), (other, other)):
        with torch.amp.autocast("cpu", torch.bfloat16):
            out = call(x)
            loss = out.float().square().mean()
        assert out.dtype is torch.bfloat16
        loss.backward()
        found.append([p.grad for p in net.parameters()])
    for got, want in zip(*found):
        assert got.dtype is torch.float32
        close(got, want, 4e-2)
    close(compiled(model)(x), other(x), 1e-4)  # without it again


def test_modes_without_gradients():
    model, x = Blocks(), torch.randn(3, 12)
    call, want = compiled(model), model(x).detach()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            got = call(x)
        close(got.detach(), want, 1e-4)
        assert got.requires_grad == (mode is torch.enable_grad)
        assert got.is_inference() == (mode is torch.inference_mode)
    with torch.inference_mode():
        y = call(torch.ones(3, 12) + x - 1)
        y.add_(1)
    close(call(x).detach(), want, 1e-4)


def test_functional_calls_and_gradients_of_functions():
    model, x = Blocks(), torch.randn(3, 12)
    given = {name: torch.randn_like(p) * 0.3 for name, p in model.named_parameters()}

    def loss(params, x):
        return torch.func.functional_call(model, params, (x,)).square().mean()

    close(compiled(loss)(given, x), loss(given, x), 1e-4)
    got, want = (f(given, x) for f in (compiled(torch.func.grad(loss)), torch.func.grad(loss)))
    most = max(float(g.abs().max()) for g in want.values())
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-4 * most)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    xs = torch.randn(4, 2, 12)
    got, want = compiled(each)(given, xs), each(given, xs)
    for name in want:
        torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-4 * float(want[name].abs().max()))


def test_gradients_of_gradients_are_pytorchs_refusal():
    """AOTAutograd compiles a backward pass once; PyTorch says so."""
    model, x = Blocks(), torch.randn(3, 12, requires_grad=True)
    (grad,) = torch.autograd.grad(compiled(model)(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_a_loss_inside():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = Blocks()

        def forward(self, x, y):
            return F.cross_entropy(self.body(x), y, label_smoothing=0.1, ignore_index=2)

    model = Whole()
    other, x, y = copy.deepcopy(model), torch.randn(6, 12), torch.tensor([0, 1, 2, 3, 4, 2])
    for call in ((got := compiled(model)), other):
        call(x, y).backward()
    assert got is not None
    for p, q in zip(model.parameters(), other.parameters()):
        close(p.grad, q.grad, 1e-4)
