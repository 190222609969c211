"""A process of its own, for the suites startup, gpt and frontends: the first training step of a network, with the time of each stage.

python first_step.py {aicf,torch,torch.compile,max-autotune,numpy} {cpu,cuda} [NET]: the demo's network, one of gpts.py, or
brought:NAME, one of torch_models.py, where aicf is the backend of torch.compile
"""

import time

STARTED = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from itertools import pairwise  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2]))

BATCH, SIZES, DIGITS = 64, (64, 512, 256, 10), "digits"
BROUGHT = "brought:"


def data() -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(7)
    return rng.normal(size=(BATCH, SIZES[0])).astype(np.float32), rng.integers(0, SIZES[-1], BATCH)


def stages(engine: str, device: str, net: str = DIGITS) -> dict[str, Any]:
    """Seconds from the start of this file until the imports are done, the device is open, and the loss is computed."""
    moments = []

    def reached() -> None:
        moments.append(time.perf_counter() - STARTED)

    if net == DIGITS:
        loss = {"aicf": _aicf, "numpy": _numpy}.get(engine, _torch)(engine, device, reached)
    elif net.startswith(BROUGHT):
        loss = _brought(net.removeprefix(BROUGHT), engine, device, reached)
    else:
        loss = (_aicf_gpt if engine == "aicf" else _torch_gpt)(net, engine, device, reached)
    reached()
    imported, opened, done = moments
    return {
        "imported": imported,
        "opened": opened,
        "done": done,
        "loss": loss,
        "numba": "numba" in sys.modules,
    }


def _aicf(engine: str, device: str, reached: Any) -> float:
    aicf = _opened(device, reached)
    from aicf import demo

    program = aicf.compile(
        demo.build_model(),
        "train",
        device=device,
        loss=aicf.nn.SoftmaxCrossEntropy(),
        optimizer=aicf.nn.AdamW(),
    )
    x, y = data()
    return float(program({"x": x, "y": y})["loss"])


def _opened(device: str, reached: Any) -> Any:
    import aicf

    if device != "cpu":
        import cuda.bindings.driver
        import cuda.core  # noqa: F401
    reached()
    aicf.runtime(device).sync()
    reached()
    return aicf


def _numpy(engine: str, device: str, reached: Any) -> float:
    from benchmarks.numpy_trainer import NumpyTrainer, np

    reached()
    reached()
    rng = np.random.default_rng(0)
    shapes = [s for i, o in pairwise(SIZES) for s in ((o, i), (o,))]
    params = [rng.uniform(-1, 1, s).astype(np.float32) / s[-1] ** 0.5 for s in shapes]
    return NumpyTrainer("adamw", 1e-3, params, np.float32).step(*data())


def _torch(engine: str, device: str, reached: Any) -> float:
    import torch

    reached()
    torch.zeros(1, device=device).item()
    reached()
    layers = [f for i, o in pairwise(SIZES) for f in (torch.nn.Linear(i, o), torch.nn.ReLU())]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def forward(x: Any, y: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(x), y)

    if engine == "torch.compile":
        forward = torch.compile(forward)
    x, y = (torch.from_numpy(a).to(device) for a in data())
    loss = forward(x, y)
    loss.backward()
    optimizer.step()
    return loss.item()


def _aicf_gpt(net: str, engine: str, device: str, reached: Any) -> float:
    from benchmarks.gpts import GPTS, np

    _opened(device, reached)
    gpt = GPTS[net]
    x, y = gpt.batch_of(np.random.default_rng(7))
    return float(gpt.program(device)({"x": x, "y": y})["loss"])


def _torch_gpt(net: str, engine: str, device: str, reached: Any) -> float:
    import torch

    from benchmarks import torch_gpt
    from benchmarks.gpts import GPTS, np
    from benchmarks.torch_trainer import COMPILED, EAGER

    reached()
    torch.zeros(1, device=device).item()
    reached()
    gpt = GPTS[net]
    x, y = (torch.from_numpy(a).to(device) for a in gpt.batch_of(np.random.default_rng(7)))
    how = COMPILED if engine == "torch.compile" else EAGER
    return torch_gpt.trainer(torch, gpt, torch_gpt.started(torch, gpt, device), how).train(x, y).item()


def _brought(net: str, engine: str, device: str, reached: Any) -> float:
    """The model and its batch are built before the clock starts: the time is that of the first step of a training loop."""
    import torch

    from benchmarks.torch_models import MODELS, SMALL, training

    m = {**MODELS, **SMALL}[net]
    reached()
    module = m.build(device).train()
    inputs, labels = m.data(torch, device)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    loss_of = training(torch, module, half=device != "cpu")
    ways = {"aicf": {"backend": "aicf"}, "torch.compile": {}, "max-autotune": {"mode": "max-autotune"}}
    if engine == "aicf":
        import aicf.frontends.torch  # noqa: F401  # the backend, where aicf is not installed
    if engine in ways:
        loss_of = torch.compile(loss_of, **ways[engine])
    if device != "cpu":
        torch.cuda.synchronize()
    reached()
    loss = loss_of({**inputs, **labels})
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(json.dumps(stages(*sys.argv[1:])))
