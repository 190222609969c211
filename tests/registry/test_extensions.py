"""Other packages' ops, variants and devices, by entry points (B11, B15). Each runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import aicf

OP = '''
import numpy as np
from aicf.ops.schema import elementwise

@elementwise("softsign", alias="x")
def softsign(x):
    """x / (1 + |x|)."""
    return x / (1.0 + abs(x))

@softsign.reference
def _(x):
    return x / (1 + np.abs(x))

@softsign.gradient
def _(emit, dy, y):
    slope = emit.sub(1.0, emit.abs(y))
    return emit.mul(dy, emit.mul(slope, slope))

softsign.samples((4, 7))
'''

VARIANT = '''
import numpy as np
from aicf.registry.cost import Cost
from aicf.registry.variant import HostCall, contiguous, dtype, one_op, variant
from aicf.types import f32

@variant("softsign", "relu", id="cpu.softsign_numpy.v1", priority=1)
class SoftsignNumpy:
    """Two NumPy calls."""

    def accepts(region):
        yield one_op(region)
        yield contiguous(region)
        yield dtype(region, f32)

    def cost(region, device):
        return Cost({"calls": 0.01})

    def build(region, device):
        def run(operands, results):
            x, y = operands[0], results[0]
            np.copyto(y, np.maximum(x, 0) if region.kind.name == "relu" else x / (1 + np.abs(x)))
        return HostCall(run)
'''

TRAIN = """
import numpy as np, aicf
from aicf import nn

class Softsign(nn.Layer):
    def emit(self, ctx, x):
        return ctx.softsign(x)

model = nn.Model({"x": aicf.TensorSpec(("batch", 3))}, batch=4).add(Softsign()).add(nn.Linear(3, 2, bias=False))
program = aicf.compile(model, "grad", device="cpu", loss=nn.MeanSquaredError())
rng = np.random.default_rng(7)
x, y = rng.normal(size=(4, 3)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
got = program.run({"x": x, "y": y})
h, w = x / (1 + np.abs(x)), program.get("1.weight")
np.testing.assert_allclose(got["output"].numpy(), h @ w.T, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(got["grad.1.weight"].numpy(), (2 / 8 * (h @ w.T - y)).T @ h, rtol=1e-4, atol=1e-6)
print(program.executed[0])
print(program.explain())
print(program.explain().region(0))
print(program.explain().to_json()["regions"][0]["candidates"][0]["origin"])
"""


def package(folder: Path, name: str, entry_points: str, **modules: str) -> None:
    """A distribution as an installer would leave it: a package, and its metadata beside it."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    for module, text in modules.items():
        (folder / name / f"{module}.py").write_text(text)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))


def python(folder: Path, code: str) -> subprocess.CompletedProcess:
    root = Path(aicf.__file__).parents[1]
    path = os.pathsep.join([str(folder), str(root)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.spec("B11", "B15")
def test_a_package_brings_an_op_and_a_kernel_that_train_and_show_their_origin(tmp_path):
    points = """
        [aicf.ops]
        softsign = softsigns.ops

        [aicf.variants]
        softsign = softsigns.kernels
    """
    package(tmp_path, "softsigns", points, ops=OP, kernels=VARIANT)
    info = "import sys; from aicf.cli import main; print('listed'); sys.exit(main(['info', 'softsign']))"
    ran = python(tmp_path, f"{TRAIN}\n{info}")
    assert ran.returncode == 0, ran.stderr
    trained, listed = ran.stdout.split("listed\n")
    lines = trained.splitlines()
    assert lines[0] == "cpu.softsign_numpy.v1"
    assert "cpu.softsign_numpy.v1 [softsigns]" in trained
    assert lines[-1] == "softsigns"
    assert "x / (1 + |x|)" in listed
    assert "  cpu.softsign_numpy.v1 [softsigns]\n" in listed and "  cpu.reference.v1\n" in listed


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B11")
def test_an_op_alone_runs_on_the_kernels_that_are_there(tmp_path):
    package(tmp_path, "softsigns", "[aicf.ops]\nsoftsign = softsigns.ops\n", ops=OP)
    ran = python(tmp_path, TRAIN)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[0].startswith("cpu.")


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B15")
def test_a_package_brings_a_device(tmp_path):
    device = "from aicf import DeviceSpec\nspec = DeviceSpec('toy9000', 'cuda', (9, 0), sms=2, tflops={'f32': 1.0})\n"
    package(tmp_path, "toys", "[aicf.devices]\ntoy = toys.spec:spec\n", spec=device)
    code = "import aicf; aicf.default_registry(); print(aicf.device.spec.preset('toy9000').sms)"
    ran = python(tmp_path, code)
    assert ran.stdout == "2\n", ran.stderr


BROKEN = {
    "import": ("[aicf.ops]\nbad = broken.ops\n", "import nowhere_to_be_found", "can't be loaded: ModuleNotFoundError"),
    "missing": ("[aicf.variants]\nbad = broken.gone\n", "", "can't be loaded: ModuleNotFoundError"),
    "type": ("[aicf.variants]\nbad = broken.ops:number\n", "number = 3", "is a int"),
    "device": ("[aicf.devices]\nbad = broken.ops\n", "", "is a module"),
    "taken id": (
        "[aicf.variants]\nbad = broken.ops\n", VARIANT.replace("softsign_numpy", "reduce_loop"), "is taken by aicf",
    ),
    "taken op": ("[aicf.ops]\nbad = broken.ops\n", OP.replace('"softsign"', '"relu"'), "already registered by aicf"),
}  # fmt: skip


@pytest.mark.sample(1)
@pytest.mark.spec("B15")
@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_package_is_named_in_one_error(tmp_path, how):
    points, text, said = BROKEN[how]
    package(tmp_path, "broken", points, ops=text)
    ran = python(tmp_path, "import sys; from aicf.cli import main; sys.exit(main(['info']))")
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr
    assert ran.stderr.startswith("RegistryError: ")
    assert said in " ".join(ran.stderr.split())
    assert "broken" in ran.stderr.split("\n")[0]
