"""Muon against its formula in float64, and beside PyTorch's where that is installed."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import VerifyError

from .mlp import on_each_device

RNG = np.random.default_rng()
LR, BETA, DECAY, ADAM_LR, BETAS = 0.05, 0.9, 0.1, 0.01, (0.8, 0.95)


def orthogonal(g, iterations=5):
    """Newton and Schulz's iteration (Jordan et al. 2024), in float64."""
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(iterations):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def muon_step(p, g, m, nesterov=True, lr=LR, decay=DECAY):
    m = BETA * m + (1 - BETA) * g
    u = BETA * m + (1 - BETA) * g if nesterov else m
    return p * (1 - lr * decay) - lr * np.sqrt(max(1, p.shape[0] / p.shape[1])) * orthogonal(u), m


def adamw_step(p, g, m, v, t, lr=ADAM_LR, decay=DECAY):
    m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
    hat = np.sqrt(v / (1 - BETAS[1] ** t)) + 1e-8
    return p * (1 - lr * decay) - lr / (1 - BETAS[0] ** t) * m / hat, m, v


def wide_and_tall():
    """Wide matrices, tall ones of one shape, a square one, and biases."""
    model = nn.Model({"x": (6, 12)}, seed=int(RNG.integers(2**31)))
    for inputs, outputs in ((12, 5), (5, 9), (9, 9), (9, 5), (5, 9)):
        model.add(nn.Linear(inputs, outputs)).add(nn.Tanh())
    return model


def feed():
    return {"x": RNG.normal(size=(6, 12)).astype(np.float32), "y": RNG.normal(size=(6, 9)).astype(np.float32)}


def muon(**how):
    return nn.Muon(LR, BETA, weight_decay=DECAY, adam_lr=ADAM_LR, betas=BETAS, **{"dtype": "f32", **how})


def compiled(model, optimizer, device, mode="train", **how):
    return aicf.compile(
        model,
        mode,
        device=device,
        loss=nn.MeanSquaredError(),
        optimizer=optimizer if mode == "train" else None,
        **how,
    )


@pytest.mark.sample(1, each="dtype")
@pytest.mark.spec("D15")
@on_each_device
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("dtype, tolerance", [("f32", 2e-4), ("bf16", 3e-2)])
def test_steps_are_those_of_the_formula(nesterov, dtype, tolerance, device):
    model = wide_and_tall()
    program = compiled(model, muon(nesterov=nesterov, dtype=dtype, adam_for="4.weight"), device)
    grad = compiled(model, None, device, "grad")
    params = {n: program.get(n).astype(np.float64) for n in grad.variables.names(aicf.ir.Role.param)}
    kept = {n: [0.0, 0.0] for n in params}
    for t in range(1, 5):
        data = feed()
        grads = {n: grad(data)[f"grad.{n}"].numpy().astype(np.float64) for n in params}
        program(data)
        for n, p in params.items():
            if p.ndim == 2 and n != "4.weight":
                params[n], kept[n][0] = muon_step(p, grads[n], kept[n][0], nesterov)
            else:
                params[n], *kept[n] = adamw_step(p, grads[n], *kept[n], t)
            np.testing.assert_allclose(program.get(n), params[n], atol=tolerance, err_msg=n)
            params[n] = program.get(n).astype(
                np.float64
            )  # errors of one step do not become those of the next
    assert program.get("step") == 4
    assert "0.weight.muon_momentum" in program.state_dict() and "4.weight.exp_avg" in program.state_dict()


@pytest.mark.parametrize("shape", [(48, 24), (24, 48)])
def test_singular_values_come_near_1(shape):
    """In bf16: within what five steps of the quintic leave, 0.7 to 1.2, and a little more."""
    model = nn.Model({"x": (64, shape[1])}).add(nn.Linear(shape[1], shape[0], bias=False))
    program = compiled(model, nn.Muon(1.0, momentum=0.0), "cpu")
    before = program.get("0.weight")
    program(
        {
            "x": RNG.normal(size=(64, shape[1])).astype(np.float32),
            "y": RNG.normal(size=(64, shape[0])).astype(np.float32),
        }
    )
    moved = (before - program.get("0.weight")) / np.sqrt(max(1, shape[0] / shape[1]))
    values = np.linalg.svd(moved.astype(np.float64), compute_uv=False)
    assert values.min() > 0.5 and values.max() < 1.35


def test_a_gradient_of_zeros_and_one_that_is_not_finite():
    model = nn.Model({"x": (4, 3)}).add(nn.Linear(3, 5, bias=False))
    program = compiled(model, nn.Muon(0.1), "cpu")
    before, zeros = program.get("0.weight"), np.zeros((4, 3), np.float32)
    program({"x": zeros, "y": np.zeros((4, 5), np.float32)})
    assert (program.get("0.weight") == before).all()
    program({"x": np.full((4, 3), np.nan, np.float32), "y": np.zeros((4, 5), np.float32)})
    assert np.isnan(program.get("0.weight")).all()


@pytest.mark.spec("D15")
@on_each_device
def test_adam_s_rate_has_the_shape_of_the_schedule(device):
    """AdamW's first steps of a bias are of its rate, whatever the gradient: from 0.01 down to a tenth, as lr is."""
    rate = nn.schedules.Linear(0.5, total=4, floor=0.05)
    model = nn.Model({"x": (6, 12)}).add(nn.Linear(12, 9))
    program = compiled(model, nn.Muon(rate, adam_lr=0.01, betas=(0.0, 0.0), eps=0.0), device)
    data = {"x": np.zeros((6, 12), np.float32), "y": np.full((6, 9), 99, np.float32)}
    for n in range(6):
        before = program.get("0.bias").astype(np.float64)
        program(data)
        want = 0.01 * (1 - 0.9 * min(n, 4) / 4)
        np.testing.assert_allclose(program.get("0.bias") - before, want, rtol=1e-3)
    program.set(lr=0.0)
    program(data)
    assert np.isfinite(program.get("0.bias")).all()


@pytest.mark.spec("D15", "C13")
@on_each_device
@pytest.mark.parametrize("policy", ["bf16", "f16"])
def test_with_policies_schedules_clipping_and_groups(policy, device):
    model, rate = wide_and_tall(), nn.schedules.Cosine(0.05, total=40, warmup=2)
    groups = [nn.ParamGroup(use="bias", weight_decay=0.0, lr_scale=0.5)]
    optimizer = nn.Muon(rate, weight_decay=0.1, adam_lr=0.02, clip_norm=1.0, groups=groups)
    program = compiled(model, optimizer, device, policy=policy)
    start, data = program.get("0.bias"), feed()
    losses = [float(program(data)["loss"])]
    assert (program.get("0.bias") == start).all(), "the schedule begins at 0, for AdamW too"
    losses += [float(program(data)["loss"]) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]
    program.set(adam_lr=0.0, lr=0.0)
    before = program.state_dict()
    program(data)
    assert (program.get("0.weight") == before["0.weight"]).all() and (
        program.get("0.bias") == before["0.bias"]
    ).all()
    kind = {"f16": np.float16, "bf16": aicf.bf16.numpy}[policy]
    assert (program.get(f"2.weight.{policy}") == program.get("2.weight").astype(kind)).all()


def test_products_are_on_kernels_of_half_precision():
    model = nn.Model({"x": (512, 1024)}).add(nn.Linear(1024, 512))
    explained = aicf.explain_for(model, "h200", "train", loss=nn.MeanSquaredError(), optimizer=nn.Muon())
    halves = [
        r
        for r in explained.regions
        if r.spec.ops[0].kind.name == "gemm" and r.spec.operands[0].dtype is aicf.bf16
    ]
    assert len(halves) == 15 and all("wgmma" in r.kernel_id for r in halves)
    assert {op.kind.name for r in explained.regions for op in r.spec.ops} >= {
        "muon_momentum",
        "muon_step",
        "adam_step",
    }
    assert not any(op.kind.name == "transpose" for r in explained.regions for op in r.spec.ops)


@pytest.mark.parametrize("wrong, told", [
    ({"dtype": "f16"}, "needs their range"), ({"iterations": 0}, "iterations"), ({"adam_for": 3}, "adam_for"), ({"adam_lr": -1.0}, "adam_lr"),
    ({"lr": -1.0}, "lr"), ({"momentum": 2.0}, "momentum"), ({"betas": 0.9}, "betas"),
])  # fmt: skip
def test_what_can_t_be_is_refused(wrong, told):
    with pytest.raises(VerifyError, match=told):
        nn.Muon(**wrong)


def test_a_model_without_matrices_is_refused():
    model = nn.Model({"x": (4, 3)}).add(nn.LayerNorm(3))
    with pytest.raises(VerifyError, match="Muon has no matrix to step"):
        compiled(model, nn.Muon(), "cpu")


def test_beside_pytorch_s():
    torch = pytest.importorskip("torch", reason="compares with PyTorch, where it is installed")
    model = nn.Model({"x": (6, 8)}, seed=2).add(nn.Linear(8, 20, bias=False))
    program = compiled(model, nn.Muon(0.02, 0.95, weight_decay=0.1), "cpu")
    weight = torch.nn.Parameter(torch.tensor(program.get("0.weight")))
    theirs = torch.optim.Muon([weight], lr=0.02, momentum=0.95, weight_decay=0.1)
    start = program.get("0.weight")
    for _ in range(10):
        x, y = RNG.normal(size=(6, 8)).astype(np.float32), RNG.normal(size=(6, 20)).astype(np.float32)
        loss = torch.nn.functional.mse_loss(torch.tensor(x) @ weight.T, torch.tensor(y))
        theirs.zero_grad()
        loss.backward()
        theirs.step()
        assert float(program({"x": x, "y": y})["loss"]) == pytest.approx(loss.item(), rel=0.02)
    moved, apart = program.get("0.weight") - start, program.get("0.weight") - weight.detach().numpy()
    assert np.linalg.norm(apart) < 0.03 * np.linalg.norm(moved)
