"""What people do around torch.compile(backend="aicf"): frozen and shared weights, hooks, functional calls,
files. Numbers and behaviour are eager PyTorch's."""

import copy
import io
import os

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from torch import nn  # noqa: E402

from aicf.frontends.torch import graphs  # noqa: E402

from .helpers import Blocks, close, compiled, gradients, same_model_gradients, train  # noqa: E402


def test_frozen_layers_have_no_gradients():
    model = Blocks()
    model.blocks[0].requires_grad_(False)
    got = same_model_gradients(model, torch.randn(3, 7, 12))
    assert sum(g is None for g in got.values()) == 6


def test_a_layer_frozen_later_is_compiled_anew():
    model = Blocks()
    call, x = compiled(model), torch.randn(3, 12)
    same_model_gradients(model, x, call=call)
    model.blocks[1][1].weight.requires_grad_(False)
    got = same_model_gradients(model, x, call=call)
    assert got["blocks.1.1.weight"] is None
    model.blocks[1][1].weight.requires_grad_(True)
    assert same_model_gradients(model, x, call=call)["blocks.1.1.weight"] is not None


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
    got = same_model_gradients(model, torch.randn(3, 7, 12))
    assert {name.rpartition(".")[2] for name, g in got.items() if g is not None} == {"down", "up"}


def test_only_the_inputs_gradient():
    model = Blocks().requires_grad_(False)
    found = []
    for call in (compiled(model), model):
        x = torch.linspace(-1, 1, 24).reshape(2, 12).requires_grad_()
        call(x).square().sum().backward()
        found.append(x.grad)
    close(*found, 1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_models_of_halves(dtype):
    model = Blocks().to(dtype)
    got = same_model_gradients(model, torch.randn(3, 7, 12).to(dtype), 3e-2)
    assert all(g.dtype is dtype for g in got.values())


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


def test_a_model_that_keeps_what_it_made():
    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.kept, self.runs = None, 0

        def forward(self, x):
            self.runs += 1
            y = x * 2 + (1 if self.kept is None else self.kept)
            self.kept = y.detach()
            return y.exp()

    model, other = Keeping(), Keeping()
    call = compiled(model)
    for _ in range(3):
        x = torch.randn(3)
        close(call(x), other(x))
        close(model.kept, other.kept)
    assert model.runs == 3


def test_parameters_as_results():
    layer = nn.Linear(3, 3)
    weight, turned, made = compiled(lambda x: (layer.weight, layer.weight.t(), layer(x) * 2 + 1))(
        torch.ones(3)
    )
    assert weight is layer.weight and turned.data_ptr() == layer.weight.data_ptr()
    close(made, layer(torch.ones(3)) * 2 + 1)


def test_in_a_forked_process():
    model, x = Blocks(), torch.randn(3, 12)
    call, want = compiled(model), model(x).detach()
    with torch.no_grad():
        call(x)
        read, write = os.pipe()
        if not (child := os.fork()):
            right = torch.allclose(call(x), want, atol=1e-5) and torch.allclose(
                call(x[:2]), want[:2], atol=1e-5
            )
            os.write(write, b"1" if right else b"0")
            os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)


def test_why_it_was_compiled_again():
    """A static size, then PyTorch's symbol for it, whose sizes are compiled as they are met."""
    from aicf.frontends.torch import compilations

    class CompiledHere(nn.Sequential):
        """No other test of this process compiles a graph of this name, to which the first of it would be compared."""

    torch._dynamo.reset()
    first = compilations().total
    layer = CompiledHere(nn.Linear(8, 4), nn.ReLU()).requires_grad_(False)
    call = torch.compile(layer, backend="aicf")
    for rows in (2, 3, 5):
        call(torch.ones(rows, 8))
    told = [one for one in compilations() if one.number >= first]
    assert [one.what for one in told] == ["function", "function", "sizes", "sizes"]
    assert told[0].why == "the first of it" and told[0].facts["graph"].startswith("CompiledHere, ")
    assert "f32[2x8] on cpu → " in told[1].why and "f32[3x8] on cpu → f32[5x8] on cpu" in told[3].why
