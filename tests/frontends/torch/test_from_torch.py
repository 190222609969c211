"""aicf.from_torch: a module as a model of aicf's, compiled, trained and explained without PyTorch."""

import pickle
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: make test-torch")

from draws.seeds import rng  # noqa: E402
from peaks import TELLS, peak_beyond  # noqa: E402
from torch import nn  # noqa: E402

import aicf  # noqa: E402
from aicf.errors import VerifyError  # noqa: E402


def text_model():
    return nn.Sequential(nn.Embedding(10, 8), nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 5))


def test_it_computes_what_the_module_does():
    module, x = text_model(), torch.randint(0, 10, (3, 4))
    model = aicf.torch.load(module, (x,))
    program = aicf.compile(model, device="cpu")
    got = program({"input": x})["output"].numpy()
    np.testing.assert_allclose(got, module(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert set(program.state_dict()) == set(module.state_dict())


def test_a_state_dict_goes_in():
    module, other, x = text_model(), text_model(), torch.randint(0, 10, (3, 4))
    program = aicf.from_torch(module, (x,), device="cpu")
    program.load_state_dict(other.state_dict())
    np.testing.assert_allclose(
        program({"input": x})["output"].numpy(), other(x).detach().numpy(), rtol=1e-5, atol=1e-6
    )


def test_dimensions_have_names():
    module = text_model()
    model = aicf.torch.load(
        module, (torch.randint(0, 10, (3, 4)),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    assert model.inputs["input"].shape == ("batch", 4) and model.sizes == {"batch": 3}
    program = aicf.compile(model, device="cpu")
    for n in (3, 7, 2):
        x = torch.randint(0, 10, (n, 4))
        np.testing.assert_allclose(
            program({"input": x})["output"].numpy(), module(x).detach().numpy(), rtol=1e-5, atol=1e-6
        )


def test_an_absent_device_is_explained():
    text = str(aicf.explain_for(aicf.torch.load(text_model(), (torch.randint(0, 10, (64, 4)),)), "h200"))
    assert "cuda.gemm" in text and "on h200" in text


def test_it_trains_as_pytorch_does():
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.randn(5, 6), torch.randint(0, 3, (5,))
    trained = {"mode": "train", "loss": aicf.nn.SoftmaxCrossEntropy(), "optimizer": aicf.nn.SGD(lr=0.5)}
    program = aicf.from_torch(module, (x,), device="cpu", **trained)
    got = [float(program({"input": x, "y": y})["loss"]) for _ in range(20)]
    optimizer, want = torch.optim.SGD(module.parameters(), lr=0.5), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        want.append(float(loss.detach()))
    np.testing.assert_allclose(got, want, rtol=1e-4)


def test_running_means_are_written():
    module, x = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.randn(6, 4)
    program = aicf.from_torch(module, (x,), device="cpu")
    program({"input": x})
    module(x)
    for name, value in program.state_dict().items():
        np.testing.assert_allclose(value, module.state_dict()[name].numpy(), rtol=1e-5, atol=1e-6)


def test_results_have_the_names_of_what_is_returned():
    class Two(nn.Module):
        def forward(self, x, scale):
            return {"twice": x * 2 * scale, "pair": (x + 1, None, x - scale)}

    model = aicf.torch.load(Two(), (torch.ones(3),), {"scale": torch.tensor(2.0)})
    assert list(model.inputs) == ["x", "scale"]
    assert set(model.outputs) == {"twice", "pair.0", "pair.2"}


def test_what_aicf_lacks_is_named_and_counted():
    class Bessel(nn.Module):
        def forward(self, x):
            return torch.special.bessel_j0(torch.special.bessel_j0(x) * 2)

    with pytest.raises(VerifyError, match=r"special_bessel_j0\.default \(2\)(.|\n)*torch\.compile"):
        aicf.from_torch(Bessel(), (torch.eye(3),))


def test_a_pickle_of_it_needs_no_pytorch(tmp_path):
    module, x = text_model(), torch.randint(0, 10, (3, 4))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(aicf.torch.load(module, (x,))))
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", module(x).detach().numpy())
    code = """
import pickle, sys
sys.modules["torch"] = None
import numpy as np, aicf
model = pickle.load(open("model.pickle", "rb"))
made = aicf.compile(model, device="cpu")({"input": np.load("x.npy")})["output"].numpy()
np.testing.assert_allclose(made, np.load("y.npy"), rtol=1e-5, atol=1e-6)
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)


def test_a_program_has_weights_of_its_own_and_takes_them_once():
    """Neither a module that changes later changes it, nor the other way; nor are weights copied twice on the way."""
    module, x = nn.Sequential(*(nn.Linear(768, 768, bias=False) for _ in range(10))), torch.randn(2, 768)
    aicf.from_torch(module[:2], (x,), device="cpu")  # what stays for good
    wanted, made = module(x).detach().numpy(), []
    beyond = peak_beyond(lambda: made.append(aicf.from_torch(module, (x,), device="cpu"))) if TELLS else 0
    assert beyond < 1.6 * sum(p.numel() for p in module.parameters()) * 4
    (program,) = made or [aicf.from_torch(module, (x,), device="cpu")]
    model = aicf.torch.load(module, (x,))
    with torch.no_grad():
        for param in module.parameters():
            param.zero_()
    for other in (program, aicf.compile(model, device="cpu")):
        np.testing.assert_allclose(other({"input": x})["output"].numpy(), wanted, rtol=1e-4, atol=1e-5)
    program.load_state_dict({name: np.ones_like(w) for name, w in program.state_dict().items()})
    assert not any(param.any() for param in module.parameters())


WRITES = (
    "{}.add_({v})",
    "{}.mul_(2)",
    "{}[1:].copy_({v}[1:])",
    "{}.t().sub_({v}.t())",
    "{}.view(-1)[1:4].fill_(3)",
)


def writing(lines, dtype=torch.float32, persistent=True):
    """A module whose forward has these lines between an op and a result."""

    class Writes(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(3, 2, dtype=dtype), persistent=persistent)
            self.register_buffer("count", torch.zeros(3, 2, dtype=torch.int64))
            self.weight = nn.Parameter(torch.ones(3, 2))

    body = "\n    ".join(["def forward(self, x, y):", "v = (x * y).sum(0) * self.weight.detach()", *lines])
    scope = {"torch": torch}
    exec(f"{body}\n    return v + self.seen.float(), x * 2", scope)
    Writes.forward = scope["forward"]
    return Writes()


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_drawn_writes_into_buffers_are_eagers(dtype, request):
    draw = rng(request.node.nodeid)
    lines = [
        WRITES[draw.integers(len(WRITES))].format(f"self.{name}", v=f"v.to(self.{name}.dtype)")
        for name in ("seen", "count", "seen")
    ]
    module = writing(lines, dtype)
    x, y = (torch.from_numpy(draw.integers(-4, 5, (5, 3, 2))).float() for _ in range(2))
    program = aicf.from_torch(module, (x, y), device="cpu")
    for _ in range(3):
        got, want = program({"x": x, "y": y}), module(x, y)
        for a, b in zip(got.values(), want):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=2e-2, err_msg=str(lines))
        for name, value in program.state_dict().items():
            wanted = module.state_dict()[name]
            close = 4 * torch.finfo(dtype).eps if wanted.is_floating_point() else 0
            np.testing.assert_allclose(
                value.astype(np.float64), wanted.double().numpy(), rtol=close, err_msg=f"{name}: {lines}"
            )


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("x", r"writes into its argument x(.|\n)*x\.clone\(\)(.|\n)*torch\.compile"),
        ("y[0]", r"writes into its argument y"),
        ("self.weight", r"writes into its parameter weight"),
        ("self.seen", r"the buffer seen, which is in no state dict(.|\n)*register_buffer\('seen', tensor\)"),
    ],
)
def test_other_writes_are_refused(target, said, request):
    """A program reads its feeds and parameters: what forward writes into them would be lost."""
    draw = rng(request.node.nodeid)
    line = str(draw.choice(["{}.add_(1)", "{}.mul_(2)", "{}[1:].zero_()", "{}.transpose(0, 1).exp_()"]))
    lines = ["with torch.no_grad():", f"    {line.format(target)}"]
    module = writing(lines, persistent=target != "self.seen")
    x, y = torch.ones(5, 3, 2), torch.ones(5, 3, 2)
    with pytest.raises(VerifyError, match=said):
        aicf.from_torch(module, (x, y), device="cpu")
    assert (x == 1).all() and (y == 1).all()


def test_written_buffers_that_share_memory_are_named():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("all", torch.zeros(4))
            self.register_buffer("some", self.all[1:])

        def forward(self, x):
            self.all.add_(1)
            return x + self.some

    with pytest.raises(VerifyError, match=r"all and some share memory(.|\n)*some as a clone"):
        aicf.from_torch(Shared(), (torch.ones(3),), device="cpu")
