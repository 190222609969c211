"""Ranks that start unequal: refused with the rank and what differs, or made equal to rank 0. Which rank and what is drawn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.calibration import Calibration
from aicf.device.spec import preset
from aicf.distributed import DataParallel, ZeRO1
from aicf.errors import DistributedError

from .threads import rank_threads  # noqa: F401  (a fixture)

X = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 3, 6)


def compiled(
    parallel,
    width=5,
    act=nn.Tanh,
    seed=0,
    optimizer=nn.SGD,
    rate=0.1,
    init=None,
    loss=nn.SoftmaxCrossEntropy,
    layers=(),
    **how,
):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=2, seed=seed)
    for layer in (nn.Linear(5, width), act(), *layers, nn.Linear(width, 3)):
        model.add(layer)
    if init is not None:
        model.initial = {value.name: init for value in model.graph.externals() if value.role == "param"}
    how = {"loss": loss(), "optimizer": optimizer(rate), "device": "cpu", **how}
    return aicf.compile(model, "train", parallel=parallel, **how)


def run(program, rank, steps=1):
    for _ in range(steps):
        program({"x": X[2 * rank : 2 * rank + 2], "y": Y[2 * rank : 2 * rank + 2]})
    return program.state_dict()


def assert_equal(states):
    for state in states:
        assert not isinstance(state, Exception), state
    for name in states[0]:
        for rank, state in enumerate(states):
            assert state[name].tobytes() == states[0][name].tobytes(), (name, rank)


class FlatSoftmax(nn.SoftmaxCrossEntropy):
    def emit(self, ctx, *values):
        return super().emit(ctx, *values) * 0.5


DIFFERENT = {
    "seed": lambda rng: ({"seed": int(rng.integers(1, 99))}, "seed", "dropout"),
    "optimizer": lambda rng: ({"optimizer": [nn.Adam, nn.AdamW][rng.integers(2)]}, "optimizer", "SGD"),
    "rate": lambda rng: ({"rate": float(rng.uniform(0.2, 1))}, "optimizer", "lr = 0.1"),
    "loss": lambda rng: ({"loss": FlatSoftmax}, "loss", "SoftmaxCrossEntropy"),
    "width": lambda rng: ({"width": int(rng.integers(6, 12))}, "model", "x5"),
    "activation": lambda rng: ({"act": [nn.ReLU, nn.GELU][rng.integers(2)]}, "model", "tanh"),
    "policy": lambda rng: ({"policy": "bf16"}, "setting", "policy"),
    "accumulate": lambda rng: ({"accumulate": int(rng.integers(2, 5))}, "setting", "accumulate = 1"),
    "numerics": lambda rng: ({"numerics": "strict"}, "setting", "numerics = fused"),
}


@pytest.mark.spec("C12")
@pytest.mark.parametrize("aspect", DIFFERENT)
def test_what_differs_is_named_on_all_ranks(rank_threads, aspect):  # noqa: F811
    rng = np.random.default_rng(list(DIFFERENT).index(aspect))
    ranks = int(rng.integers(2, 4))
    which = int(rng.integers(1, ranks))
    other, title, text = DIFFERENT[aspect](rng)
    kind = [DataParallel, ZeRO1][rng.integers(2)]

    def work(world):
        return compiled(kind(world=world, timeout=60), **(other if world.rank == which else {}))

    for error in rank_threads(ranks, work):
        assert isinstance(error, DistributedError) and error.rank == which, (aspect, error)
        assert f"rank {which} has another {title} than rank 0" in str(error), aspect
        assert (
            text in str(error) and "expected" in str(error) and "got" in str(error) and "next" in str(error)
        )


def unequal(shape, rng):
    """Other numbers for each call: an initializer that does not follow the model's seed."""
    return np.random.default_rng().normal(size=shape)


@pytest.mark.spec("C12")
def test_ranks_start_from_the_parameters_of_rank_0(rank_threads):  # noqa: F811
    def work(world):
        program = compiled(DataParallel(world=world, timeout=60), init=unequal, rate=0.0)
        before = program.state_dict()
        return before, run(program, world.rank)

    found = rank_threads(3, work)
    before, after = zip(*found)
    assert any(before[1][n].tobytes() != before[0][n].tobytes() for n in before[0]), (
        "the test draws equal weights"
    )
    assert_equal(after)
    for name in before[0]:
        if name.endswith(("weight", "bias")):
            np.testing.assert_array_equal(after[0][name], before[0][name])


LOADS = {  # who does what before the next run -> what is wrong, None if nothing
    "rank 0 loads": (lambda p, r, s: r == 0 and p.load_state_dict(s), None),
    "all load": (lambda p, r, s: p.load_state_dict(s), None),
    "rank 1 loads": (lambda p, r, s: r == 1 and p.load_state_dict(s), "rank 1 has loaded or set"),
    "rank 0 sets": (lambda p, r, s: r == 0 and p.set(lr=0.3), None),
    "rank 1 sets": (lambda p, r, s: r == 1 and p.set(lr=0.3), "rank 1 has loaded or set optimizer.lr"),
    "all set": (lambda p, r, s: p.set(lr=0.3), None),
    "each sets another": (lambda p, r, s: p.set(lr=0.3 + r), "rank 1 has another optimizer.lr"),
}


@pytest.mark.spec("C12")
@pytest.mark.parametrize("case", LOADS)
def test_what_is_loaded_and_set_before_the_first_run(rank_threads, case):  # noqa: F811
    do, wrong = LOADS[case]
    other = compiled(None, seed=7)
    other.set(lr=0.2)
    state = run(other, 0, 2)

    def work(world):
        program = compiled(DataParallel(world=world, timeout=60))
        do(program, world.rank, state)
        return run(program, world.rank)

    found = rank_threads(2, work)
    if wrong:
        for error in found:
            assert isinstance(error, DistributedError) and wrong in str(error) and "next" in str(error), error
        return
    assert_equal(found)
    assert float(found[0]["optimizer.lr"]) == np.float32(0.2 if "load" in case else 0.3)
    assert int(found[0]["program.runs"]) == (3 if "load" in case else 1)


def test_what_rank_0_alone_loads_between_steps_stops_all(rank_threads):  # noqa: F811
    state = run(compiled(None, seed=7), 0)

    def work(world):
        program = compiled(DataParallel(world=world, timeout=60))
        run(program, world.rank)
        if world.rank == 0:
            program.load_state_dict(state)
        return run(program, world.rank)

    for error in rank_threads(2, work):
        assert isinstance(error, DistributedError) and "what has changed" in str(error), error


@pytest.mark.parametrize("who", [(0,), (1,), (0, 1)])
def test_zero_loads_the_checkpoint_of_all_on_all_ranks(rank_threads, who):  # noqa: F811
    state = run(compiled(None, seed=7, optimizer=nn.Adam), 0, 2)

    def work(world):
        parallel = ZeRO1(world=world, timeout=60)
        program = compiled(parallel, optimizer=nn.Adam, rate=0.0)
        if world.rank in who:
            program.load_state_dict({**state, "optimizer.lr": np.float32(0.0)})
        run(program, world.rank, 0)
        program.set(lr=0.0)
        run(program, world.rank)
        return parallel.whole_state(program.state_dict())

    found = rank_threads(2, work)
    if len(who) == 1:
        assert all(isinstance(error, DistributedError) and "loaded" in str(error) for error in found), found
        return
    assert_equal(found)
    assert found[0].keys() == state.keys()
    np.testing.assert_array_equal(found[0]["0.weight"], state["0.weight"])
    assert int(found[0]["optimizer.adam.step"]) == 3


class Positive(nn.Layer):
    """A run is valid if the sum of what it sees is positive."""

    def emit(self, ctx, x):
        ctx.guard(x.sum() > 0.0)
        return x


@pytest.mark.spec("C12")
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_invalid_on_one_rank_steps_none(rank_threads, seed):  # noqa: F811
    """Else that rank would go on from other parameters."""
    rng = np.random.default_rng(seed)
    ranks = int(rng.integers(2, 4))
    bad = [rng.random(ranks) < 0.3 for _ in range(6)]
    kind = [DataParallel, ZeRO1][seed % 2]

    def work(world):
        model = nn.Model({"x": aicf.TensorSpec(("batch", 5))}, batch=2).add(Positive()).add(nn.Linear(5, 3))
        parallel = kind(world=world, timeout=60)
        program = aicf.compile(
            model,
            "train",
            loss=nn.SoftmaxCrossEntropy(),
            optimizer=nn.SGD(0.1, momentum=0.9),
            parallel=parallel,
            device="cpu",
        )
        states = []
        for n in range(len(bad)):
            sign = -1.0 if bad[n][world.rank] else 1.0
            program(
                {"x": sign * np.abs(X[:2]) + world.rank, "y": Y[:2]}
                if sign > 0
                else {"x": sign * np.abs(X[:2]), "y": Y[:2]}
            )
            states.append(parallel.whole_state(program.state_dict()))
        return states

    found = rank_threads(ranks, work)
    for error in found:
        assert not isinstance(error, Exception), (seed, error)
    steps = 0
    for n, states in enumerate(zip(*found)):
        assert_equal(states)
        steps += not any(bad[n])
        assert int(states[0]["optimizer.sgd.step"]) == steps, (seed, n)
    assert 0 < steps < len(bad), "the test draws no case"


def test_sums_of_gradients_between_steps_are_means_in_a_checkpoint(rank_threads):  # noqa: F811
    """Which another number of ranks goes on from."""
    alone = compiled(None, accumulate=2)
    feeds = [{"x": X + n, "y": Y} for n in range(2)]
    for feed in feeds:
        alone(feed)

    def half(world):
        parallel = DataParallel(world=world, timeout=60)
        program = compiled(parallel, accumulate=2)
        program({n: a[3 * world.rank : 3 * world.rank + 3] for n, a in feeds[0].items()})
        return parallel.whole_state(program.state_dict())

    states = rank_threads(2, half)
    assert_equal(states)

    def rest(world):
        program = compiled(DataParallel(world=world, timeout=60), accumulate=2)
        program.load_state_dict(states[0])
        program({n: a[2 * world.rank : 2 * world.rank + 2] for n, a in feeds[1].items()})
        return program.state_dict()

    after = rank_threads(3, rest)
    assert_equal(after)
    for name, array in alone.state_dict().items():
        np.testing.assert_allclose(after[0][name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_ranks_with_other_calibrations_are_refused(rank_threads):  # noqa: F811
    """Their kernels would split sums otherwise, and their plans might differ."""

    def join(world):
        calibration = Calibration("cpu", {"machine.trip_us": 0.5 + (world.rank == 1)})
        spec = replace(preset("cpu"), calibration=calibration)
        DataParallel(world=world).join(SimpleNamespace(kind="cpu", spec=spec, place="cpu"))

    for error in rank_threads(2, join):
        assert isinstance(error, DistributedError) and "rank 1 has another calibration than rank 0" in str(
            error
        )
        assert "AICF_CALIBRATION=off" in str(error)
