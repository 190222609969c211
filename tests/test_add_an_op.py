"""docs/add-an-op.md, followed word for word in a copy of the source tree: what it says must work, works."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECIPE = (ROOT / "docs" / "add-an-op.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", RECIPE, re.MULTILINE | re.DOTALL)
FILES = {re.match(r"# (\S+)\n", body)[1]: body for lang, body in BLOCKS if lang in ("python", "toml")}
COMMANDS = [line for lang, body in BLOCKS if lang == "sh" for line in body.splitlines()]
TILE = COMMANDS[COMMANDS.index("python tile.py") :][:2]  # these change a file of the recipe


def run(*command: str, cwd: Path, path: Path) -> str:
    """Run Python in a process of its own, with `path` ahead of the installed aicf. What it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AICF_", "PYTEST_"))}
    ahead = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment.update(PYTHONPATH=os.pathsep.join(ahead), COLUMNS="140")
    if folder := os.environ.get("AICF_CACHE_DIR"):  # this run's
        environment.update(AICF_CACHE_DIR=folder, AICF_TEST_CACHE=folder)
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of aicf with the recipe's files: that they lie there is all that is needed."""
    folder = tmp_path_factory.mktemp("tree")
    for part in (
        "aicf",
        "tests/ops",
        "tests/nn",
        "tests/draws",
    ):  # tests of ops take helpers from those of nn
        shutil.copytree(ROOT / part, folder / part)  # with bytecode, which is valid there
    helpers = [path for path in (ROOT / "tests").glob("*.py") if not path.name.startswith("test_")]
    for path in (*helpers, ROOT / "pyproject.toml"):
        shutil.copy(path, folder / path.relative_to(ROOT))
    write(folder, {name: text for name, text in FILES.items() if name.startswith(("aicf/", "tests/"))})
    return folder


def test_the_recipe_is_read_as_it_is_meant():
    assert len(FILES) == 15
    assert len(COMMANDS) == 6


@pytest.mark.sample(1, always=lambda command: "info" in command)
@pytest.mark.spec("A12")
@pytest.mark.spec("B11")
@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in TILE])
def test_the_commands_of_the_recipe(tree, command):
    """Among them: the new op trains, differentiates, fuses behind a GEMM; the new kernels are chosen or say why not."""
    python, *arguments = shlex.split(command)
    assert python == "python"
    printed = run(*arguments, cwd=tree, path=tree)
    if "pytest" in command:
        assert re.search(r"\d+ passed", printed), printed  # files that only the copy has
    else:
        assert "squash(x: float, *, sharpness: float = 1.0) -> y" in printed
        assert "cuda.elementwise_flat.v1" in printed


@pytest.mark.spec("B11")
def test_info_lists_the_new_op_and_its_kernels(tree):
    info = "import aicf; print(aicf.__file__); from aicf.cli import main; main(['info', 'softmin'])"
    printed = run("-c", info, cwd=tree, path=tree)
    for expected in (
        str(tree),
        "C1  -rank(x)",
        "cpu.reference.v1",
        "cpu.softmin_rows.v1",
        "cuda.softmin_lines.v1",
    ):
        assert expected in printed


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B11")
def test_a_tile_is_one_line(tree, tmp_path):
    """The recipe's line adds a config, which info lists and selection ranks with the others."""
    folder = shutil.copytree(tree, tmp_path / "tree")
    write(folder, {"tile.py": FILES["tile.py"]})
    run("tile.py", cwd=folder, path=folder)
    assert "configs: 128 threads, 256 threads, 64 threads" in run(
        *shlex.split(TILE[1])[1:], cwd=folder, path=folder
    )
    ranked = run("-c", RANKED, cwd=folder, path=folder)
    assert sorted(ranked.split()) == ["128", "256", "64"], ranked


RANKED = """
import sys
sys.path.append("tests")
from test_softmin import aicf, model, preset
(region,) = aicf.explain_for(model(0), preset("h200")).to_json()["regions"]
names = [c["id"] for c in region["candidates"]]
print(*[n.partition("[")[2].split()[0] for n in names if n.startswith("cuda.softmin_lines.v1[")])
"""

ACME = """
import numpy as np
import aicf
from aicf import nn

class Squareplus(nn.Layer):
    def emit(self, ctx, x):
        return ctx.squareplus(x)

def build(*layers):
    model = nn.Model({"x": aicf.TensorSpec(("batch", 6))}, batch=8)
    for layer in layers:
        model.add(layer)
    return model

x = np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32)
program = aicf.compile(build(Squareplus()), device="cpu")
got = program({"x": x})["output"].numpy()
np.testing.assert_allclose(got, 0.5 * (x + np.sqrt(x.astype(np.float64) ** 2 + 4)), rtol=1e-6)
assert program.executed == ["cpu.squareplus_numpy.v1"], program.executed
model = build(nn.Linear(6, 16), Squareplus(), nn.Linear(16, 1))
train = aicf.compile(model, "train", device="cpu", loss=nn.MeanSquaredError(), optimizer=nn.SGD(0.1))
losses = [float(train({"x": x, "y": x[:, :1]})["loss"]) for _ in range(50)]
assert losses[-1] < 0.5 * losses[0], losses
print(program.explain().region(0))
print("listed")
from aicf.cli import main
main(["info", "squareplus"])
"""


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B15")
@pytest.mark.spec("B11")
def test_another_package_brings_an_op_and_a_kernel(tmp_path):
    project = tomllib.loads(FILES["pyproject.toml"])["project"]
    points = "".join(
        f"[{group}]\n" + "".join(f"{name} = {module}\n" for name, module in entries.items())
        for group, entries in project["entry-points"].items()
    )
    info = f"{project['name']}-{project['version']}.dist-info"
    write(tmp_path, {name: text for name, text in FILES.items() if name.startswith("acme/")})
    write(tmp_path, {
        "acme/__init__.py": "", f"{info}/entry_points.txt": points,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
    })  # fmt: skip
    path = Path(f"{tmp_path}{os.pathsep}{ROOT}")
    trained, listed = run("-c", ACME, cwd=tmp_path, path=path).split("listed\n")
    assert "cpu.squareplus_numpy.v1 [acme]" in trained and "cpu.squareplus_numpy.v1" in listed


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B11")
def test_a_script_brings_an_op_and_a_kernel(tmp_path):
    write(tmp_path, {"script.py": FILES["script.py"]})
    assert "chosen    cpu.softsine_numpy.v1" in run("script.py", cwd=tmp_path, path=ROOT)
    printed = run(
        "-m", "aicf", "explain", "script.py", "--device", "h200", "--region", "0", cwd=tmp_path, path=ROOT
    )
    assert "softsine   op 0" in printed and "cuda." in printed


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("B11")
def test_a_script_brings_an_op_that_expands_and_fuses_on_every_device(tmp_path):
    write(tmp_path, {"spread.py": FILES["spread.py"]})
    printed = run("spread.py", cwd=tmp_path, path=ROOT)
    assert [line.split() for line in printed.splitlines()] == [
        ["cpu", "cpu.rows_loop.v1"],
        ["h200", "cuda.rows_resident.v2"],
    ]
    explained = run("-m", "aicf", "explain", "spread.py", "--device", "h200", cwd=tmp_path, path=ROOT)
    assert "spread + tanh" in explained


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("A12")
@pytest.mark.spec("B11")
def test_a_script_brings_a_core_and_fuses_maps_around_it(tmp_path):
    write(tmp_path, {"running_sum.py": FILES["running_sum.py"]})
    printed = run("running_sum.py", cwd=tmp_path, path=ROOT)
    assert "relu + running_sum + tanh" in printed and "chosen    cpu.running_sum_rows.v1" in printed
