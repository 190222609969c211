"""Published models from their files: logits and tokens against NumPy float64, weights bit for bit, and folders that can't be read."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import aicf
from aicf import models, nn
from aicf.errors import AicfError, FeedError, StateError
from aicf.ir import Role

from . import oracle
from .oracle import GPT2, LLAMA

on_each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
CONFIGS = {
    "gpt2": GPT2,
    "gpt2, another activation and width": GPT2 | {"activation_function": "relu", "n_inner": 20},
    "gpt2, another norm, a head of its own": GPT2 | {"layer_norm_epsilon": 0.1, "tie_word_embeddings": False},
    "llama": LLAMA,
    "llama, tied, biases": LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama, wide heads, Llama 3's rotation": LLAMA | {"head_dim": 8, "rope_scaling": LLAMA3, "rms_norm_eps": 0.1},
    "llama, linear rotation": LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.5}},
    "llama, written by transformers 5": {k: v for k, v in LLAMA.items() if k != "rope_theta"} | {"rope_parameters": {"rope_theta": 90.0, "rope_type": "default"}},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": 5},
    "mistral without a window": LLAMA | {"model_type": "mistral", "sliding_window": None},
    "qwen2": LLAMA | {"model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False},
}  # fmt: skip


def tokens_of(config, rng, *shape):
    return rng.integers(0, config["vocab_size"], shape).astype(np.int32)


def close(got, wanted, tolerance=1e-4):
    np.testing.assert_allclose(
        np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance * np.abs(wanted).max()
    )


@pytest.mark.sample(5)
@on_each_device
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_the_architecture(name, device, tmp_path):
    config, rng = CONFIGS[name], np.random.default_rng()
    place, tensors = oracle.made(tmp_path / "m", config, rng)
    program = aicf.compile(models.from_pretrained(place, batch=2, seq=11), device=device)
    for shape in ((2, 11), (1, 1)):
        tokens = tokens_of(config, rng, *shape)
        close(program({"tokens": tokens})["output"].numpy(), oracle.logits(config, tensors, tokens))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["gpt2", "llama, wide heads, Llama 3's rotation", "mistral"])
def test_greedy_tokens_are_those_of_the_architecture(name, tmp_path):
    config, rng = CONFIGS[name], np.random.default_rng()
    place, tensors = oracle.made(tmp_path / "m", config, rng)
    program = aicf.compile(models.from_pretrained(place, seq=20), device="cpu")
    prompts = [tokens_of(config, rng, n).tolist() for n in (1, 6)]
    wanted = [list(prompt) for prompt in prompts]
    for row in wanted * 12:
        row.append(int(oracle.logits(config, tensors, np.array([row]))[0, -1].argmax()))
    for cache in (True, False):  # one token at a time, or the whole window for each
        said = aicf.generate(program, prompts, 12, temperature=0, cache=cache)
        assert [row.tolist() for row in said] == wanted


def test_names_with_and_without_a_prefix_buffers_and_a_copy_of_the_head(tmp_path):
    """As the first files of GPT-2 are, and those of transformers 2 to 4."""
    rng = np.random.default_rng()
    tensors = oracle.drawn(oracle.gpt2_shapes(GPT2, prefix=""), rng)
    mask = np.tril(np.ones((1, 1, 24, 24), np.float32))
    masks = {f"h.{n}.attn.bias": mask for n in range(2)} | {
        "h.0.attn.masked_bias": np.full((), -1e4, np.float32)
    }
    place = oracle.folder(tmp_path / "a", GPT2, tensors | masks | {"lm_head.weight": tensors["wte.weight"]})
    tokens = tokens_of(GPT2, rng, 1, 7)
    for path in (place, str(place / "model.safetensors")):
        program = aicf.compile(models.from_pretrained(path), device="cpu")
        close(program({"tokens": tokens})["output"].numpy(), oracle.logits(GPT2, tensors, tokens))
    llama = LLAMA | {"tie_word_embeddings": True}
    tensors = oracle.drawn(oracle.llama_shapes(llama, prefix=""), rng)
    waves = {"layers.1.self_attn.rotary_emb.inv_freq": np.ones(2, np.float32)}
    place = oracle.folder(tmp_path / "b", llama, tensors | waves)
    tokens = tokens_of(llama, rng, 1, 7)
    program = aicf.compile(models.from_pretrained(place), device="cpu")
    close(program({"tokens": tokens})["output"].numpy(), oracle.logits(llama, tensors, tokens))


@pytest.mark.sample(1, each="stored")
@pytest.mark.parametrize("config", [GPT2, LLAMA], ids=["gpt2", "llama"])
@pytest.mark.parametrize("stored, held", [("bf16", None), ("f16", None), ("f32", aicf.bf16), ("bf16", "f32")])
def test_the_type_that_a_model_holds_is_a_choice(config, stored, held, tmp_path):
    rng = np.random.default_rng()
    place, tensors = oracle.made(tmp_path / "m", config, rng, aicf.DType.of(stored).numpy)
    program = aicf.compile(models.from_pretrained(place, dtype=held, seq=9), device="cpu")
    kept = aicf.DType.of(held or stored)
    assert {program.variables[n].dtype for n in program.variables.names(Role.param)} == {kept}
    tokens = tokens_of(config, rng, 1, 9)
    rounded = {n: t.astype(kept.numpy) for n, t in tensors.items()}
    got = program({"tokens": tokens})["output"].numpy()
    close(got, oracle.logits(config, rounded, tokens), {"f32": 1e-4, "f16": 2e-2, "bf16": 0.15}[kept.name])


# --- and back ---------------------------------------------------------------------------------------------------------


def bits(tensors):
    return {n: (t.dtype, t.shape, np.ascontiguousarray(t).tobytes()) for n, t in tensors.items()}


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_saved_is_what_was_loaded(name, dtype, tmp_path):
    config = CONFIGS[name]
    place, tensors = oracle.made(tmp_path / "m", config, np.random.default_rng(), aicf.DType.of(dtype).numpy)
    next(t for t in tensors.values() if t.ndim == 2)[0, :4] = [np.nan, np.inf, -0.0, 1e-7]
    oracle.folder(place, config, tensors)
    program = aicf.compile(models.from_pretrained(place, seq=2), device="cpu")
    models.save_pretrained(program, tmp_path / "whole")
    assert bits(load_file(tmp_path / "whole" / "model.safetensors")) == bits(tensors)
    said = json.loads((tmp_path / "whole" / "config.json").read_text())
    kept = {k: v for k, v in config.items() if v is not None and not k.startswith("rope_")}
    assert {k: said[k] for k in kept} == kept
    again = models.from_pretrained(tmp_path / "whole")
    assert again.layer.config == models.from_pretrained(place).layer.config
    # several files, and from them
    models.save_pretrained(program, tmp_path / "parts", most=1500)
    files = sorted(p.name for p in (tmp_path / "parts").glob("*.safetensors"))
    assert len(files) > 3 and files[0] == f"model-00001-of-{len(files):05}.safetensors"
    index = json.loads((tmp_path / "parts" / "model.safetensors.index.json").read_text())
    found = {n: load_file(tmp_path / "parts" / file)[n] for n, file in index["weight_map"].items()}
    assert bits(found) == bits(tensors)
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    other = aicf.compile(models.from_pretrained(tmp_path / "parts", seq=2), device="cpu")
    assert bits(other.state_dict()) == bits(program.state_dict())


@pytest.mark.parametrize(
    "how", [{"held": "bf16"}, {"policy": aicf.Policy("bf16", parameters="bf16")}], ids=["held", "policy"]
)
def test_the_config_says_the_type_of_the_weights_beside_it(how, tmp_path):
    """Not that of the folder that they came from, which newer versions call dtype."""
    place, _ = oracle.made(tmp_path / "m", GPT2 | {"dtype": "float32"}, np.random.default_rng())
    model = models.from_pretrained(place, dtype=how.get("held"), seq=2)
    program = aicf.compile(model, device="cpu", policy=how.get("policy", "f32"))
    models.save_pretrained(program, tmp_path / "saved")
    said = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert said["torch_dtype"] == "bfloat16" and "dtype" not in said
    assert models.from_pretrained(tmp_path / "saved", seq=2).output.dtype is aicf.bf16


def test_a_cache_of_downloads_links_its_files(tmp_path):
    """As the Hugging Face hub's cache lies: snapshots of links to blobs that are named by their digests."""
    place, _ = oracle.made(tmp_path / "m", LLAMA, np.random.default_rng())
    wanted = aicf.compile(models.from_pretrained(place, seq=2), device="cpu")
    models.save_pretrained(wanted, tmp_path / "parts", most=1500)
    for source in (place, tmp_path / "parts"):
        blobs, links = tmp_path / f"{source.name}-blobs", tmp_path / f"{source.name}-links"
        blobs.mkdir(), links.mkdir()
        for n, file in enumerate(sorted(source.iterdir())):
            (blobs / f"{n:040x}").write_bytes(file.read_bytes())
            (links / file.name).symlink_to(f"../{blobs.name}/{n:040x}")
        index = links / "model.safetensors.index.json"
        for path in (links, index if index.exists() else links / "model.safetensors"):
            program = aicf.compile(models.from_pretrained(path, seq=2), device="cpu")
            assert bits(program.state_dict()) == bits(wanted.state_dict())


def test_a_model_is_trained_further_copied_and_made_anew(tmp_path):
    rng = np.random.default_rng()
    place, tensors = oracle.made(tmp_path / "m", GPT2, rng)
    model = models.from_pretrained(place, seq=8)
    others = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    train = aicf.compile(model, "train", device="cpu", loss=nn.LinearCrossEntropy(), optimizer=nn.SGD(0.05))
    feed = {"tokens": tokens_of(GPT2, rng, 2, 8), "y": tokens_of(GPT2, rng, 2, 8).astype(np.int64)}
    losses = [float(train(feed)["loss"]) for _ in range(8)]
    wanted = oracle.softmax(oracle.logits(GPT2, tensors, feed["tokens"]))
    nll = -np.log(np.take_along_axis(wanted, feed["y"][..., None], -1)).mean()
    assert abs(losses[0] - nll) < 1e-4 * nll and losses[-1] < losses[0]
    models.save_pretrained(train, tmp_path / "tuned")
    tuned = load_file(tmp_path / "tuned" / "model.safetensors")
    assert {n: t.shape for n, t in tuned.items()} == {n: t.shape for n, t in tensors.items()}
    assert all((tuned[n] != tensors[n]).any() for n in tensors)
    for other in others:  # copies start from the file
        program = aicf.compile(other, device="cpu")
        np.testing.assert_array_equal(program.get("embed.weight"), tensors["transformer.wte.weight"])
    fresh = nn.Model({"tokens": aicf.TensorSpec((1, 4), aicf.i32)}, models.GPT2(model.layer.config), seed=3)
    start = aicf.compile(fresh, device="cpu").get("embed.weight")
    assert 0.01 < start.std() < 0.03


def test_weights_are_read_one_by_one(tmp_path):
    """Beside what the program keeps, the host has no more than the copies of one weight."""
    config = LLAMA | {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "vocab_size": 600}
    place, tensors = oracle.made(tmp_path / "m", config, np.random.default_rng(), np.float16)
    aicf.compile(models.from_pretrained(place, seq=2), device="cpu")  # whatever is kept for good
    model = models.from_pretrained(place, dtype="f32", seq=2)
    tracemalloc.start()
    program = aicf.compile(model, device="cpu")
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    largest = max(t.nbytes for t in program.state_dict().values())
    assert peak - kept < 4 * largest < sum(t.nbytes for t in tensors.values()) / 2


# --- sizes that are published -----------------------------------------------------------------------------------------

COUNTS = {  # parameters, from the models' cards and papers
    "gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616, "llama-3-8b": 8_030_261_248, "llama-3.1-8b": 8_030_261_248, "llama-3.2-1b": 1_235_814_400,
    "tinyllama-1.1b": 1_100_048_384,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTS)
def test_presets_have_the_published_numbers_of_parameters(name):
    kind, sizes = (models.GPT2, models.GPT2Config) if "gpt2" in name else (models.Llama, models.LlamaConfig)
    config = sizes.preset(name)
    model = nn.Model({"tokens": aicf.TensorSpec((1, 2), aicf.i32)}, kind(config))
    assert sum(int(np.prod(v.spec.shape)) for v in model.graph.externals(Role.param)) == COUNTS[name]
    assert sizes.of_json(config.to_json()) == config


# --- what can't be read -----------------------------------------------------------------------------------------------


def changed(config, edit):
    """A folder with one thing wrong: `edit(folder, config, tensors)`."""

    def make(path, rng):
        place, tensors = oracle.made(path, config, rng)
        edit(place, dict(config), tensors)
        return place

    return make


def configured(config, **fields):
    def edit(place, said, tensors):
        said = {k: v for k, v in (said | fields).items() if v is not Ellipsis}
        (place / "config.json").write_text(json.dumps(said))

    return changed(config, edit)


def written(config, change):
    def edit(place, said, tensors):
        change(tensors)
        save_file(tensors, place / "model.safetensors")

    return changed(config, edit)


def text(name, content):
    return changed(GPT2, lambda place, config, tensors: (place / name).write_text(content))


def indexed(weight_map):
    def edit(place, config, tensors):
        (place / "model.safetensors").rename(place / "model-1.safetensors")
        index = weight_map(tensors) if callable(weight_map) else weight_map
        (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    return changed(GPT2, edit)


def header(change):
    """A safetensors header that says something else."""

    def edit(place, config, tensors):
        file = place / "model.safetensors"
        raw = file.read_bytes()
        size = int.from_bytes(raw[:8], "little")
        told = json.loads(raw[8 : 8 + size])
        change(told)
        new = json.dumps(told).encode()
        file.write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])

    return changed(GPT2, edit)


WTE, ATTN = "transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"


def half_missing(tensors):
    for name in [n for n in tensors if ".h.1." in n][:-1]:
        del tensors[name]
    tensors[ATTN] = tensors[ATTN].T.copy()
    tensors["transformer.more"] = np.zeros(3, np.float32)
    tensors[WTE] = tensors[WTE].astype(np.int8)


BAD = {
    "many tensors": (written(GPT2, half_missing), "14 tensors are not those of GPT2Config(words=37", "missing: transformer.h.1.", "and 6 more"),
    "another shape": (written(GPT2, lambda t: t.update({ATTN: t[ATTN].T.copy()})), f"shape: {ATTN}: tensor<36x12xf32>, not [12x36]"),
    "one too many": (written(LLAMA, lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": np.zeros(12, np.float32)})), "1 tensors are not", "extra: model.layers.0.self_attn.q_proj.bias"),
    "quantised": (written(GPT2, lambda t: t.update({ATTN: t[ATTN].astype(np.int8)})), f"type: {ATTN}: tensor<12x36xi8>, not f32, bf16, f16"),
    "no head": (written(LLAMA, lambda t: t.pop("lm_head.weight") is None), "missing: lm_head.weight: [41x12]"),
    "a head that is not tied": (written(GPT2, lambda t: t.update({"lm_head.weight": t[WTE] + 1})), "lm_head.weight is not transformer.wte.weight", '"tie_word_embeddings": false'),
    "fewer blocks": (configured(GPT2, n_layer=3), "it has 2 blocks", "expected: 3 blocks"),
    "a hostile number of blocks": (configured(LLAMA, num_hidden_layers=10**9), "it has 2 blocks"),
    "a hostile number of words": (configured(LLAMA, vocab_size=10**30), "a whole number, from 1 to 2147483647", "config.json"),
    "wrong heads": (configured(GPT2, n_head=5), "heads=5", "a divisor of size=12", "config.json"),
    "wrong heads of keys": (configured(LLAMA, num_key_value_heads=2), "kv_heads=2", "a divisor of heads=3", "config.json"),
    "heads that divide no size": (configured(LLAMA, num_attention_heads=5), "LlamaConfig: heads=5", "a divisor of size=12"),
    "other heads": (configured(GPT2 | {"n_embd": 12, "n_head": 4}, n_embd=8), "28 tensors are not those", "size=8", "and 20 more"),
    "no heads": (configured(GPT2, n_head=0), "n_head=0", "from 1 to 2147483647"),
    "heads as text": (configured(GPT2, n_head="3"), "n_head='3'"),
    "heads as a list": (configured(LLAMA, num_attention_heads=[3]), "num_attention_heads=[3]"),
    "a size left out": (configured(GPT2, n_embd=...), "config.json has no n_embd"),
    "an eps of nothing": (configured(LLAMA, rms_norm_eps=-1), "rms_norm_eps=-1"),
    "another model": (configured(GPT2, model_type="bert"), "model_type='bert'", "'gpt2' or 'llama' or 'mistral' or 'qwen2'"),
    "no model": (configured(GPT2, model_type=...), "config.json has no model_type"),
    "another activation": (configured(GPT2, activation_function="tan"), "activation_function='tan'", "'gelu_new'"),
    "a scale for each layer": (configured(GPT2, scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx=True", "no other is built"),
    "a rotation of another kind": (configured(LLAMA, rope_scaling={"rope_type": "yarn", "factor": 2.0}), "rope_scaling: rope_type='yarn'", "'llama3'"),
    "a rotation without its factor": (configured(LLAMA, rope_scaling={"type": "linear"}), "rope_scaling has no factor"),
    "a rotation that is no object": (configured(LLAMA, rope_scaling=2), "rope_scaling=2", "an object"),
    "a part of the head turned": (configured(LLAMA, partial_rotary_factor=0.5), "partial_rotary_factor=0.5"),
    "windows in some blocks": (configured(LLAMA | {"model_type": "qwen2"}, use_sliding_window=True), "use_sliding_window=True"),
    "no JSON": (text("config.json", "{"), "config.json can't be read"),
    "deep JSON": (text("config.json", "[" * 100_000), "config.json"),
    "a list for a config": (text("config.json", "[]"), "is no object of JSON", "list"),
    "no config": (changed(GPT2, lambda place, *_: (place / "config.json").unlink()), "there is no", "config.json"),
    "no weights": (changed(GPT2, lambda place, *_: (place / "model.safetensors").unlink()), "has no weights", "model.safetensors.index.json"),
    "weights cut short": (changed(GPT2, lambda place, *_: (place / "model.safetensors").write_bytes(b"\x10" * 40)), "is damaged, or no safetensors file"),
    "a header beyond the end": (header(lambda told: told[WTE].update(data_offsets=[0, 10**12])), "is damaged, or no safetensors file"),
    "a header of another shape": (header(lambda told: told[WTE].update(shape=[10**9, 12])), "is damaged, or no safetensors file"),
    "a header of halves": (header(lambda told: told[WTE].update(dtype="F16", shape=[74, 12])), f"shape: {WTE}: tensor<74x12xf16>"),
    "blocks of hostile numbers": (header(lambda told: told.update({f"transformer.h.{'9' * 5000}.ln_1.weight": told.pop("transformer.ln_f.weight")})), "2 tensors are not", "extra: transformer.h.99", "missing: transformer.ln_f.weight"),
    "a file whose name can't be": (indexed({WTE: "\ud800"}), "names a file elsewhere", "'\\ud800'"),
    "a file whose name ends early": (indexed({WTE: "model\0.safetensors"}), "names a file elsewhere"),
    "a file elsewhere": (indexed({WTE: "../model.safetensors"}), "names a file elsewhere", "../model.safetensors"),
    "a file that is not there": (indexed({WTE: "model-2.safetensors"}), "there is no file", "model-2.safetensors"),
    "an index of what is not there": (indexed(lambda t: dict.fromkeys([*t, "more"], "model-1.safetensors")), "1 tensors are not in the files", "more in model-1"),
    "an index of nothing": (indexed({}), "it has 0 blocks"),
    "no index": (indexed([1]), "has no weight_map"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_folder_that_is_not_whole_is_one_error(what, tmp_path):
    make, *said = BAD[what]
    place = make(tmp_path / "m", np.random.default_rng())
    with pytest.raises(StateError) as raised:
        models.from_pretrained(place)
    assert all(part in str(raised.value) for part in said), raised.value
    assert len(str(raised.value).splitlines()) < 16


ODD = [
    None,
    True,
    -1,
    0,
    2,
    10**12,
    10**30,
    0.5,
    np.inf,
    np.nan,
    "",
    "3",
    [],
    [1],
    {},
    {"rope_type": "linear"},
]


@pytest.mark.parametrize("config", [GPT2, LLAMA | {"rope_scaling": LLAMA3}], ids=["gpt2", "llama"])
def test_whatever_the_files_say_is_a_model_or_one_error(config, tmp_path):
    """Fields of any values, and headers with some other bytes."""
    rng, refused = np.random.default_rng(), 0
    place, _ = oracle.made(tmp_path / "m", config, rng)
    weights, raw = place / "model.safetensors", (place / "model.safetensors").read_bytes()
    for n in range(60):
        said, changed = dict(config), bytearray(raw)
        if n % 2:
            said[rng.choice(list(said))] = ODD[rng.integers(len(ODD))]
        else:
            at = rng.integers(0, 8 + int.from_bytes(raw[:8], "little"), 2)
            for k in at:
                changed[k] = rng.choice([*rng.integers(0, 256, 2), *b"09"])
        (place / "config.json").write_text(json.dumps(said))
        weights.write_bytes(changed)
        try:
            models.from_pretrained(place, seq=2)
        except StateError as error:  # and no other
            refused += 1
            assert len(str(error)) < 4000, error
    assert refused > 10


def test_arguments_that_make_no_sense(tmp_path):
    place, _ = oracle.made(tmp_path / "m", GPT2, np.random.default_rng())
    for call, said in (
        (lambda: models.from_pretrained("gpt2-that-is-not-here"), "hf download"),
        (lambda: models.from_pretrained(3), "a folder of weights can't be 3"),
        (lambda: models.from_pretrained(place, dtype="i32"), "dtype=i32"),
        (lambda: models.from_pretrained(place, config={}), "config={}"),
        (lambda: models.from_pretrained(place, seq=25), "25 tokens, and 24 positions"),
        (lambda: models.GPT2Config.preset("gpt5"), "gpt2-medium"),
        (lambda: models.LlamaConfig(model_type="bert"), "model_type='bert'"),
        (lambda: models.LlamaConfig(qkv_bias=True).to_json(), "no config.json of 'llama' says"),
        (lambda: models.LlamaConfig(window=8).to_json(), "window=8"),
        (lambda: models.GPT2Config(activation="tan"), "activation='tan'"),
        (lambda: models.from_pretrained(place, config=models.GPT2Config(depth=0)), "it has 2 blocks"),
        (lambda: models.LlamaConfig(heads=3), "a divisor of size=4096"),
    ):
        with pytest.raises(AicfError) as raised:
            call()
        assert said in str(raised.value), raised.value
    with pytest.raises(AttributeError, match=r"from_pretrained\(folder\)"):
        _ = models.AutoModelForCausalLM


def test_more_tokens_than_positions(tmp_path):
    place, tensors = oracle.made(tmp_path / "m", GPT2, np.random.default_rng())
    program = aicf.compile(models.from_pretrained(place), device="cpu")
    before = program.state_dict()
    with pytest.raises(FeedError, match=r"25 tokens, and 24 positions(.|\n)*T <= 24"):
        program({"tokens": np.zeros((1, 25), np.int32)})
    assert bits(program.state_dict()) == bits(before)
    for cache in (None, True, False):
        with pytest.raises(AicfError, match=r"25 tokens, and 24 positions"):
            aicf.generate(program, [[1] * 20], 6, length=25, cache=cache)
    tokens = np.zeros((1, 24), np.int32)
    close(program({"tokens": tokens})["output"].numpy(), oracle.logits(GPT2, tensors, tokens))


def test_a_folder_that_can_t_be_written(tmp_path, monkeypatch):
    place, _ = oracle.made(tmp_path / "m", GPT2, np.random.default_rng())
    program = aicf.compile(models.from_pretrained(place, seq=2), device="cpu")
    there = sorted(tmp_path.rglob("*"))
    plain = aicf.compile(nn.Model((2, 4)).add(nn.Linear(4, 2)), device="cpu")
    for call, said in (
        (lambda: models.save_pretrained(program, place), "there is something at"),
        (lambda: models.save_pretrained(program, tmp_path / "no" / "folder"), "can't be written"),
        (lambda: models.save_pretrained(plain, tmp_path / "plain"), "this has no published names"),
        (lambda: models.save_pretrained(program, tmp_path / "m2", most=0), "most can't be 0"),
        (lambda: models.save_pretrained(program, 3), "a folder can't be 3"),
    ):
        with pytest.raises(StateError, match=said):
            call()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(aicf.weights, "save_file", full)
    with pytest.raises(StateError, match="No space left"):
        models.save_pretrained(program, tmp_path / "m2")
    assert sorted(tmp_path.rglob("*")) == there
    monkeypatch.undo()
    (tmp_path / "m2").mkdir()  # an empty folder is taken
    models.save_pretrained(program, tmp_path / "m2")
    assert sorted(p.name for p in (tmp_path / "m2").iterdir()) == ["config.json", "model.safetensors"]
