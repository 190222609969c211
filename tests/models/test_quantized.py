"""Models with weights of 8 and 4 bits: what they compute beside weights that are dequantised by hand, what they keep, their kernels on a GPU."""

import numpy as np
import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.errors import VerifyError
from aicf.models import GPT2, GPT2Config, Llama, LlamaConfig
from aicf.nn.weight_only import WeightOnlyLinear, codes_of
from aicf.types import bf16, f32, i32

CONFIGS = {
    "llama": (Llama, LlamaConfig(61, 64, 64, 128, 2, 4, 2, tied=True)), "gpt2": (GPT2, GPT2Config(61, 64, 64, 2, 2)),
}  # fmt: skip
TOKENS = np.random.default_rng(5).integers(0, 61, (1, 8)).astype(np.int32)


def model(name, dtype=f32):
    kind, config = CONFIGS[name]
    return nn.Model({"tokens": aicf.TensorSpec(("batch", "seq"), i32)}, kind(config, dtype), batch=1, seq=8)


def rounded(weight, bits, group):
    """By hand: the nearest of so many levels of the greatest number of each group."""
    made = np.empty(weight.shape)
    most = 2 ** (bits - 1) - 1
    for row, x in enumerate(weight.astype(np.float64)):
        for first in range(0, x.size, group):
            part = x[first : first + group]
            step = np.float32(np.abs(part).max()) / np.float32(most)
            made[row, first : first + group] = np.rint(part / step) * step
    return made


@pytest.mark.sample(2)
@pytest.mark.parametrize("to, bits", [("int8", 8), ("int4", 4)])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_rounded_weights(name, to, bits):
    """All products of a block, and the head, which is rounded by itself; the embedding is not."""
    program = aicf.compile(model(name), device="cpu")
    quantised = aicf.compile(aicf.quantize(program, to, group=32, least=16), device="cpu")
    got = quantised({"tokens": TOKENS})["output"].numpy()
    state = {n: np.asarray(a) for n, a in program.state_dict().items()}
    linear = [
        n for n in state if n.endswith(".weight") and n.split(".")[-2] in ("qkv", "out", "gate", "up", "down")
    ]
    assert len(linear) == 2 * (5 if name == "llama" else 4)
    program.load_state_dict(state | {n: rounded(state[n], bits, 32).astype(np.float32) for n in linear})
    blocks = program({"tokens": TOKENS})["output"].numpy()
    # the head's rounding is what is left
    assert np.abs(got - blocks).max() < (0.02 if bits == 8 else 0.3) * blocks.std()
    table = next(n for n in state if n.startswith(("embed", "token")))
    assert np.array_equal(quantised.state_dict()[table], state[table])
    kept = quantised.state_dict()
    assert {n.rpartition(".")[0] for n in kept if n.endswith(".codes")} == {
        n.removesuffix(".weight") for n in linear
    } | {"head"}
    assert all(kept[n].dtype == (np.int8 if bits == 8 else np.uint8) for n in kept if n.endswith(".codes"))


def test_a_model_and_its_program_become_the_same_and_stay_as_they_are():
    made = model("llama")
    program = aicf.compile(made, device="cpu")
    before = program({"tokens": TOKENS})["output"].numpy()
    states = [
        aicf.compile(aicf.quantize(x, "int4", least=16), device="cpu").state_dict() for x in (made, program)
    ]
    assert states[0].keys() == states[1].keys() and all(
        np.array_equal(states[0][n], states[1][n]) for n in states[0]
    )
    assert np.array_equal(program({"tokens": TOKENS})["output"].numpy(), before)
    assert "blocks.0.attn.qkv.weight" in aicf.compile(made, device="cpu").state_dict()


def test_state_dicts_go_from_one_to_another():
    first = aicf.compile(aicf.quantize(model("gpt2"), "int4", least=16), device="cpu")
    other = model("gpt2")
    other.seed = 3
    second = aicf.compile(aicf.quantize(other, "int4", least=16), device="cpu")
    want = first({"tokens": TOKENS})["output"].numpy()
    assert not np.array_equal(second({"tokens": TOKENS})["output"].numpy(), want)
    second.load_state_dict(first.state_dict())
    assert np.array_equal(second({"tokens": TOKENS})["output"].numpy(), want)


@pytest.mark.sample(1)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_generator_serves_them(name, device):
    """Token by token with a cache, as with the whole sequence each time."""
    dtype = bf16 if device == "cuda" else f32
    program = aicf.compile(aicf.quantize(model(name, dtype), "int4", group=32, least=16), device=device)
    (made,) = aicf.generate(program, [TOKENS[0, :3].tolist()], 5, temperature=0)
    assert made[:3].tolist() == TOKENS[0, :3].tolist() and made.size == 8
    logits = program({"tokens": made[None, :-1]})["output"].numpy().astype(np.float64)[0]
    for place, token in enumerate(made[3:], 2):
        assert logits[place, token] > logits[place].max() - (0.1 if device == "cuda" else 1e-3)


def test_on_a_gpu_each_product_of_a_token_reads_codes():
    """With the bias, the activation or the residual behind it in the same kernel; a prompt's weights are made first."""
    kind, _ = CONFIGS["llama"]
    big = LlamaConfig(512, 64, 512, 1024, 1, 8, 4)
    quantised = aicf.quantize(nn.Model({"tokens": aicf.TensorSpec((1, 1), i32)}, kind(big, bf16)), "int4")
    regions = aicf.explain_for(quantised, preset("h200")).regions
    products = [r for r in regions if r.selection.kernel_id == "cuda.gemv_codes.v1"]
    assert len(products) == 6 and not any("gemm " in f"{r.spec.signature} " for r in regions)
    assert any("add" in r.spec.signature for r in products)


def test_a_prompt_s_weights_are_not_kept():
    """They would take four times the memory of the codes that were to save it; a CPU keeps them."""
    big = LlamaConfig(512, 256, 1024, 2048, 1, 8, 4)
    quantised = aicf.quantize(nn.Model({"tokens": aicf.TensorSpec((1, 128), i32)}, Llama(big, bf16)), "int4")
    for device, kept in (("h200", False), ("cpu", True)):
        setup = aicf.explain_for(quantised, preset(device)).plan.setup
        sizes = [] if setup is None else [slot.spec.nbytes for slot in setup.outputs]
        assert (max(sizes, default=0) > 2**20) is kept, device


def test_a_code_is_within_half_a_step():
    w = np.random.default_rng().normal(size=(5, 64)).astype(np.float32)
    w[2] = 0
    for bits, groups in ((8, 1), (4, 4)):
        codes, scale = codes_of(w, bits, groups)
        wide = codes * np.repeat(scale, 64 // groups, 1)
        assert (np.abs(wide - w) <= np.repeat(scale, 64 // groups, 1) * 0.5001).all() and not wide[2].any()


@pytest.mark.parametrize("call, message", [
    (lambda: aicf.quantize(model("gpt2"), "int2"), "quantize: to='int2'"),
    (lambda: aicf.quantize({"w": 1}), "quantize: dict has no layers"),
    (lambda: aicf.quantize(model("gpt2")), "there is no Linear layer to quantise"),
    (lambda: aicf.quantize(model("gpt2"), group=48, least=16), "quantize: group=48"),
    (lambda: WeightOnlyLinear(7, 3, bits=4), "WeightOnlyLinear: bits=4"), (lambda: WeightOnlyLinear(8, 3, bits=3), "WeightOnlyLinear: bits=3"),
    (lambda: WeightOnlyLinear(8, 3, group=3), "WeightOnlyLinear: group=3"),
])  # fmt: skip
def test_what_can_t_be_is_refused(call, message):
    with pytest.raises(VerifyError) as caught:
        call()
    assert message in str(caught.value)
