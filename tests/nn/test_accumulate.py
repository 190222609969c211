"""Gradients of several runs: sums and their count are the model's, whichever of its programs adds to them (D16, C17)."""

from __future__ import annotations

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.errors import LabelError

from .mlp import batch_of, mlp, on_each_device, oracle, params, same, trainer

HOW = pytest.mark.parametrize("how", ["run", "replay"])
RATE = 0.5


def program_of(device: str, model: nn.Model, runs: int) -> aicf.Program:
    return trainer(device, model, nn.SGD(RATE), accumulate=runs)


def mean_of(program: aicf.Program, seeds: list[int]) -> dict[str, np.ndarray]:
    """By the oracle, of batches with these seeds."""
    found = [oracle(program).step(**batch_of(6, seed=seed))[2] for seed in seeds]
    return {name: sum(grads[name] for grads in found) / len(found) for name in found[0]}


def check_moved(program: aicf.Program, before: dict[str, np.ndarray], mean: dict[str, np.ndarray]) -> None:
    for name, value in params(program).items():
        np.testing.assert_allclose(value, before[name] - RATE * mean[name], rtol=1e-4, atol=1e-6)


@on_each_device
@pytest.mark.spec("D16", "C17")
@HOW
def test_a_program_compiled_in_between_goes_on_with_the_sums(device, how):
    model = mlp(seed=3)
    first = program_of(device, model, 3)
    before, mean = params(first), mean_of(first, [0, 1, 2])
    for seed in (0, 1):
        getattr(first, how)(batch_of(6, seed=seed))
    again = program_of(device, model, 3)
    assert again.get("accumulated") == 2
    assert same(params(again), before)
    getattr(again, how)(batch_of(6, seed=2))
    check_moved(again, before, mean)
    assert again.get("step") == 1 and again.get("accumulated") == 0


@on_each_device
@pytest.mark.spec("D16", "C17")
@HOW
def test_programs_that_take_turns_step_by_the_mean(device, how):
    model = mlp(seed=3)
    programs = [program_of(device, model, 2) for _ in range(2)]
    for turn in range(3):
        before, mean = params(programs[0]), mean_of(programs[0], [2 * turn, 2 * turn + 1])
        for n, program in enumerate(programs):
            getattr(program, how)(batch_of(6, seed=2 * turn + n))
        check_moved(programs[0], before, mean)
    assert programs[0].get("step") == 3


@on_each_device
@pytest.mark.spec("D16", "C17")
def test_a_program_steps_when_its_own_number_of_runs_is_there(device):
    """Two of one, which wants three; then one of another, which wants two: three are in the mean. The greedy one goes alone."""
    model = mlp(seed=3)
    three, two, one = (program_of(device, model, n) for n in (3, 2, 1))
    before, mean = params(three), mean_of(three, [0, 1, 2])
    three.run(batch_of(6, seed=0))
    three.run(batch_of(6, seed=1))
    two.run(batch_of(6, seed=2))
    check_moved(two, before, mean)
    two.run(batch_of(6, seed=3))
    before, alone = params(one), mean_of(one, [4])
    one.run(batch_of(6, seed=4))  # adds nothing up
    check_moved(one, before, alone)
    assert two.get("accumulated") == 1


@on_each_device
@pytest.mark.spec("D16")
@pytest.mark.parametrize("older", [False, True])
def test_a_checkpoint_says_how_many_runs_are_in_its_sums(device, older):
    """One from before the count was kept says it by the number of runs."""
    saved, fresh = program_of(device, mlp(seed=3), 3), program_of(device, mlp(seed=4), 3)
    for seed in range(5):
        saved.run(batch_of(6, seed=seed))
    state = saved.state_dict()
    if older:
        del state["optimizer.accumulated"]
    fresh.run(batch_of(6, seed=9))
    fresh.load_state_dict(state)
    assert fresh.get("accumulated") == 2
    for program in (saved, fresh):
        program.replay(batch_of(6, seed=5))
    assert same(saved.state_dict(), fresh.state_dict())
    assert fresh.get("step") == 2


@on_each_device
@pytest.mark.spec("D16", "C12")
@HOW
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_run_that_is_not_valid_is_in_no_sum(device, how, at):
    """The n-th run too: then the step waits for one that is."""
    program = program_of(device, mlp(seed=3), 3)
    before, mean = params(program), mean_of(program, [0, 1, 2])
    for seed in range(3):
        if seed == at:
            wrong = batch_of(6, seed=8)
            wrong["y"][2] = 5
            with pytest.raises(LabelError, match="label 5 at row 2"):
                getattr(program, how)(wrong)["loss"].item()
        assert same(params(program), before)
        getattr(program, how)(batch_of(6, seed=seed))
    check_moved(program, before, mean)


@pytest.mark.gpu
@pytest.mark.spec("D16", "C12")
def test_a_run_that_nobody_reads_of_is_missing_from_the_mean():
    program = program_of("cuda", mlp(seed=3), 3)
    before, mean = params(program), mean_of(program, [0, 2])
    wrong = batch_of(6, seed=1)
    wrong["y"][2] = 5
    for feed in (batch_of(6, seed=0), wrong, batch_of(6, seed=2)):
        program.replay(feed)
    check_moved(program, before, mean)
