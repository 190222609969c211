"""Advice about layers, state dicts and files is followed as it is written, on drawn cases, and works."""

from __future__ import annotations

import ast
import pickle
import re
from itertools import pairwise

import numpy as np
import pytest
from draws.seeds import rng

import aicf
from aicf import nn
from aicf.errors import AicfError, StateError, TypeInferenceError

NAMES = {"np": np, "nn": nn, "aicf": aicf, "pickle": pickle}
DRAWS = 40


def refusal(call, *arguments, error: type[AicfError] = TypeInferenceError) -> str:
    with pytest.raises(error) as raised:
        call(*arguments)
    assert raised.value.hint, str(raised.value)
    return raised.value.hint


def added(shape: tuple[int, ...], *layers: nn.Layer) -> nn.Model:
    model = nn.Model({"x": aicf.TensorSpec(("batch", *shape))}, batch=2)
    for layer in layers:
        model = model.add(layer)
    return model


def first_call(hint: str, prefix: str) -> str:
    """The first expression of a hint that is a call of such a name."""
    start = hint.index(prefix)
    ends = [n for n in range(start, len(hint) + 1) if hint[start:n].endswith(")")]
    return next(hint[start:n] for n in ends if parses(hint[start:n]))


def parses(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
        return True
    except SyntaxError:
        return False


def of_images(draw: np.random.Generator) -> tuple[str, int, tuple[int, ...], int]:
    """A layer of images: its class, its spatial axes, its arguments, and the channels that it takes."""
    axes, channels = int(draw.integers(1, 4)), int(draw.integers(2, 5))
    kind = str(draw.choice(["Conv", "ConvTranspose", "BatchNorm", "InstanceNorm"]))
    more = (int(draw.integers(1, 5)), int(draw.integers(1, 4))) if kind.startswith("Conv") else ()
    return f"{kind}{axes}d", axes, (channels, *more), channels


@pytest.mark.spec("D16")
def test_images_whose_channels_are_last_are_moved_as_the_error_says():
    for n in range(DRAWS):
        draw = rng(__name__, "channels last", n)
        kind, axes, arguments, channels = of_images(draw)
        space = tuple(int(s) for s in draw.integers(6, 9, axes))  # no extent is that of the channels
        layer = getattr(nn, kind)(*arguments)
        hint = refusal(added, (*space, channels), layer)
        x = draw.standard_normal((2, *space, channels)).astype(np.float32)
        moved = eval(first_call(hint, "np.moveaxis("), {**NAMES, "x": x})
        assert added(ast.literal_eval(hint.rpartition("ends in ")[2]), layer).output.shape[0] == 2
        np.testing.assert_array_equal(
            moved, x.transpose(0, axes + 1, *range(1, axes + 1)), err_msg=f"draw {n}, {kind}"
        )
        assert moved.shape[1:] == ast.literal_eval(hint.rpartition("ends in ")[2])


@pytest.mark.spec("D16")
def test_a_layer_of_other_channels_is_replaced_as_the_error_says():
    for n in range(DRAWS):
        draw = rng(__name__, "other channels", n)
        kind, axes, arguments, channels = of_images(draw)
        shape = (channels + int(draw.integers(1, 4)), *(int(s) for s in draw.integers(9, 12, axes)))
        hint = refusal(added, shape, getattr(nn, kind)(*arguments))
        assert hint.startswith(f"nn.{kind}({shape[0]}"), f"draw {n}: {hint}"
        like = added(shape, eval(hint, NAMES))
        want = added((channels, *shape[1:]), getattr(nn, kind)(*arguments)).output.shape
        assert like.output.shape[2:] == want[2:], f"draw {n}: {hint}"
        assert like.output.shape[1] == (want[1] if kind.startswith("Conv") else shape[0])


@pytest.mark.spec("D16")
def test_features_that_do_not_fit_are_flattened_or_the_layer_is_replaced_as_the_error_says():
    flattened = 0
    for n in range(DRAWS):
        draw = rng(__name__, "features", n)
        shape = tuple(int(s) for s in draw.integers(2, 7, int(draw.integers(1, 4))))
        inputs = int(np.prod(shape)) if draw.random() < 0.6 else int(draw.integers(20, 900))
        outputs, bias = int(draw.integers(1, 9)), bool(draw.integers(2))
        if inputs == shape[-1]:
            continue
        hint = refusal(added, shape, nn.Linear(inputs, outputs, bias))
        layers = [eval(part, NAMES) for part in re.split(r" before ", hint)]
        model = added(shape, *layers)
        assert layers[-1].outputs == outputs and layers[-1].bias == bias, f"draw {n}: {hint}"
        flat = inputs == int(np.prod(shape))
        assert model.output.shape == ((2, outputs) if flat else (2, *shape[:-1], outputs)), (
            f"draw {n}: {hint}"
        )
        flattened += flat
    assert flattened > 3


def programs() -> list[aicf.Program]:
    """Models of one, two and three layers, some alike in part."""
    sizes = [(8, 4), (8, 16, 4), (8, 16), (8, 4, 4), (8, 16, 4, 4), (8, 4, 16)]
    made = [
        aicf.compile(added(s[:1], *(nn.Linear(a, b) for a, b in pairwise(s))), device="cpu") for s in sizes
    ]
    return [*made, aicf.compile(added((8,), nn.Linear(8, 4, bias=False)), device="cpu")]


@pytest.mark.spec("D16")
def test_strict_false_is_advised_only_where_it_loads_something():
    made = programs()
    seen = {True: 0, False: 0}
    for n in range(DRAWS):
        draw = rng(__name__, "state", n)
        one, other = (made[int(i)] for i in draw.choice(len(made), 2, replace=False))
        state = one.state_dict()
        if draw.random() < 0.3:
            state = {f"module.{name}": array for name, array in state.items()}
        if set(state) == set(other.state_dict()):
            continue  # shapes alone differ: another error
        before = other.state_dict()
        hint = refusal(other.load_state_dict, state, error=StateError)
        advised = "strict=False" in hint
        seen[advised] += 1
        if advised:
            missing = other.load_state_dict(state, strict=False)
            assert len(missing) < len(before), f"draw {n}: nothing was loaded"
            loaded = other.state_dict()
            assert all((loaded[k] == state[k]).all() for k in set(before) - set(missing))
        else:
            try:
                missing = other.load_state_dict(state, strict=False)
            except StateError:
                continue
            assert len(missing) == len(before), f"draw {n}: strict=False would have loaded something: {hint}"
    assert min(seen.values()) > 2, seen


@pytest.mark.spec("D16")
@pytest.mark.parametrize("suffix", [".npz", ".npy", ".NPZ", ".pt", ".pth", ".pkl", ".onnx", ".h5", ".gguf"])
def test_a_file_with_another_format_s_suffix_is_saved_as_the_error_says(suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw = rng(__name__, "files", suffix)
    arrays = {f"a{n}": draw.standard_normal(int(draw.integers(1, 9))).astype(np.float32) for n in range(3)}
    hint = refusal(aicf.save, f"model{suffix}", arrays, error=StateError)
    assert not list(tmp_path.iterdir())
    eval(first_call(hint, "aicf.save("), {**NAMES, "arrays": arrays})
    found = aicf.load("model.safetensors")
    assert set(found) == set(arrays) and all((found[n] == a).all() for n, a in arrays.items())
    path, file = f"model{suffix}", f"model{suffix}"
    if "np.savez(" in hint:
        eval(first_call(hint, "np.savez("), {**NAMES, "arrays": arrays, "path": path.lower()})
        with np.load(path.lower()) as again:
            assert all((again[n] == a).all() for n, a in arrays.items())
    if "pickle.dump(" in hint:
        with open(file, "wb") as opened:
            eval(first_call(hint, "pickle.dump("), {**NAMES, "arrays": arrays, "file": opened})
        with open(file, "rb") as opened:
            assert set(pickle.load(opened)) == set(arrays)


@pytest.mark.spec("D16")
@pytest.mark.parametrize("dtype", [aicf.f32, aicf.bf16, aicf.f16], ids=str)
def test_a_program_that_can_t_be_pickled_is_kept_as_the_error_says(dtype, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Model({"x": aicf.TensorSpec((2, 8), dtype)}).add(nn.Linear(8, 4))
    program = aicf.compile(model, device="cpu")
    hint = refusal(pickle.dumps, program, error=StateError)
    eval(first_call(hint, "aicf.save("), {**NAMES, "program": program})
    again = aicf.compile(pickle.loads(pickle.dumps(model)), device="cpu")
    again.run({"x": np.zeros((2, 8), dtype.numpy)})
    eval(first_call(hint, "program.load_state_dict("), {**NAMES, "program": again})
    for name, array in program.state_dict().items():
        assert again.state_dict()[name].tobytes() == array.tobytes()
