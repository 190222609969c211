"""Invariant rows of models: the logits of a sequence have equal bytes in every batch, at every index."""

from __future__ import annotations

import numpy as np
import pytest
from batched_models import FOR_TENSOR_CORES, SMALL, WORDS, Make, Sizes, bert, feed, gpt2, llama
from draws.seeds import rng
from kernel_cases import VARIANTS
from row_places import classes, differing, drawn_gemm, drawn_op_of_rows, invariant
from test_gpu_kernels import gpu, launch_case, opened  # noqa: F401  (fixtures)

import aicf
from aicf import nn

BATCHES = 1, 2, 3, 17, 64, 257
KINDS = "f32", "f16", "tf32", "tf32x3", "fp8", "int8"


def differing_batches(
    make: Make, draw: np.random.Generator, device: str, sizes: Sizes, batches: tuple[int, ...], policy: str
) -> list[str]:
    """Where the logits of a drawn sequence differ from those that it has among the most others: at the first, the middle and the last index."""
    most = max(batches)
    program = aicf.compile(make(most, sizes), device=device, policy=policy, invariant=True)
    fed, row, found = feed(make, draw, most, sizes), int(draw.integers(most)), []
    wanted = np.asarray(program(fed)["output"])[row].tobytes()
    for batch in batches:
        for at in sorted({0, batch // 2, batch - 1}):
            rows = draw.integers(0, most, batch)
            rows[at] = row
            logits = np.asarray(program({name: x[rows] for name, x in fed.items()})["output"])
            if logits[at].tobytes() != wanted:
                found.append(f"{make.__name__} on {device} in {policy}: row {row} at {at} of {batch}")
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", (gpt2, llama, bert))
@pytest.mark.spec("A15", "C12")
def test_logits_have_equal_bits_in_every_batch_on_the_cpu(make, request):
    draw = rng(request.node.nodeid)
    batches = (*BATCHES[:4], int(draw.integers(18, 60)))
    assert not differing_batches(make, draw, "cpu", SMALL, batches, "f32")


def logits_of_training(
    model: nn.Model, fed: dict[str, np.ndarray], device: str, policy: str
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of a sequence alone, and of all of them in a training step before it changes the parameters."""
    infer = aicf.compile(model, device=device, policy=policy, invariant=True)
    alone = np.asarray(infer({name: x[:1] for name, x in fed.items() if name != "y"})["output"])
    how = {"loss": nn.SoftmaxCrossEntropy(), "optimizer": nn.SGD(0.1)}
    step = aicf.compile(model, "train", device=device, policy=policy, invariant=True, **how)
    assert {r.spec.invariant for r in step.explain().regions} == {True, False}
    return alone, np.asarray(step(fed)["output"])


@pytest.mark.parametrize("make", (gpt2, llama))
@pytest.mark.spec("A15", "C12")
def test_a_training_step_computes_the_logits_of_inference(make, request):
    """Of one sequence, alone and in a batch that is trained on; the backward pass is free."""
    draw, count = rng(request.node.nodeid), 5
    fed = feed(make, draw, count)
    fed["y"] = draw.integers(0, WORDS, fed["tokens"].shape)
    alone, trained = logits_of_training(make(count), fed, "cpu", "f32")
    assert alone[0].tobytes() == trained[0].tobytes()


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("make", "batches"), ((gpt2, BATCHES), (llama, (1, 3, 64, 257)), (bert, (1, 17, 257))), ids=lambda x: getattr(x, "__name__", "")
)  # fmt: skip
@pytest.mark.spec("A15", "C12")
def test_logits_have_equal_bits_in_every_batch(gpu, make, batches, request):  # noqa: F811
    """Each batch compiles kernels of its own: fewer for the second and the third model."""
    draw = rng(request.node.nodeid)
    assert not differing_batches(make, draw, "cuda", FOR_TENSOR_CORES, batches, "bf16")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.spec("A15", "B14")
def test_gemm_kernels_of_one_class_give_invariant_rows(gpu, kind, request):  # noqa: F811
    """Those that strict numerics refuse are among them, such as clusters that divide K."""
    draw = rng(request.node.nodeid)
    for _ in range(2):
        rows, count = invariant(drawn_gemm(draw, kind, 900)), int(draw.integers(65, 400))
        found = classes(rows.make(count), gpu.spec)
        parts = [id for id, numeric in found.items() if "parts" in numeric.order or "every" in numeric.order]
        names = [*draw.permutation(sorted(found))[:6], *draw.permutation(parts)[:4]]
        some = {id: found[id] for id in sorted(set(names), key=lambda id: str(found[id]))}
        run = lambda case, operands: launch_case(gpu, case, operands.memory)  # noqa: E731
        assert some and not differing(rows, some, gpu.spec, run, draw, count), rows.name


@pytest.mark.gpu
@pytest.mark.spec("A15", "B14")
def test_rows_and_attention_give_invariant_rows(gpu, request):  # noqa: F811
    draw = rng(request.node.nodeid)
    seen: set[str] = set()
    for _ in range(12):
        rows, count = invariant(drawn_op_of_rows(draw)), int(draw.integers(3, 40))
        found = classes(rows.make(count), gpu.spec)
        assert found, rows.name
        seen.update(VARIANTS[id].kernel for id in found)
        run = lambda case, operands: launch_case(gpu, case, operands.memory)  # noqa: E731
        assert not differing(rows, found, gpu.spec, run, draw, count), rows.name
    assert "cuda.rows_resident.v2" in seen


@pytest.mark.spec("A15", "C12")
def test_a_prompt_is_continued_alike_in_every_batch(request):
    """With a KV cache, on the CPU: drawn prompts of one length, each alone and all together, greedily and by drawn tokens."""
    draw = rng(request.node.nodeid)
    program = aicf.compile(gpt2(3, Sizes(length=24)), device="cpu", invariant=True)
    prompts = [*draw.integers(0, WORDS, (3, int(draw.integers(2, 8))))]
    alone, together = (aicf.Generator(program, batch=batch, length=24) for batch in (1, 3))
    every = together(prompts, 9, temperature=0.0)
    for prompt, found in zip(prompts, every):
        assert alone([prompt], 9, temperature=0.0)[0].tolist() == found.tolist()
    first = together(prompts, 9, seed=5)[0], alone(prompts[:1], 9, seed=5)[0]
    assert first[0].tolist() == first[1].tolist()
