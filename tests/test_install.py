"""What an installation brings: the CPU device without anything of NVIDIA's, and kernels that compile from wheels."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import aicf

ROOT = Path(__file__).parents[1]
FOREIGN = (
    "numba.cuda",
    "numba_cuda",
    "cuda",
    "nvidia",
    "torch",
    "jax",
    "jaxlib",
    "onnx",
    "sklearn",
    "IPython",
)

# Trains a small model on the CPU device, step by step and by fit, reaches what reads models of others, then prints what was imported that
# the base install must not need.
CPU_PROGRAM = f"""
import sys
import numpy as np
import aicf

model = aicf.nn.Model({{"x": aicf.TensorSpec(("batch", 6))}}, batch=8)
model.add(aicf.nn.Linear(6, 5)).add(aicf.nn.ReLU()).add(aicf.nn.Linear(5, 3))
loss, optimizer = aicf.nn.SoftmaxCrossEntropy(), aicf.nn.SGD(0.5)
program = aicf.compile(model, mode="train", device="cpu", loss=loss, optimizer=optimizer)
feed = {{"x": np.random.default_rng(0).normal(size=(8, 6)).astype(np.float32), "y": np.arange(8, dtype=np.int64) % 3}}
losses = [float(program(feed)["loss"].numpy()) for _ in range(20)]
assert losses[-1] < losses[0], losses
program.fit([feed], steps=1)
assert callable(aicf.from_onnx)
from aicf.frontends.stablehlo import infer_op
assert infer_op("abs", ["tensor<2xf32>"], {{}}) == ["tensor<2xf32>"]
foreign = {FOREIGN}
print([name for name in sys.modules if name in foreign or name.startswith(tuple(f + "." for f in foreign))])
"""


def without_toolkit(*command: str, **options) -> subprocess.CompletedProcess:
    """Run a command on this machine as if it had no CUDA toolkit. Its environment variables go; where a mount namespace
    may be made, so does /usr/local/cuda*, which the dynamic linker would find without any variable."""
    hidden = ("CUDA", "NUMBA", "LD_LIBRARY_PATH", "PYTHONPATH", "CONDA")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    folders = [folder for folder in environment["PATH"].split(os.pathsep) if "cuda" not in folder.lower()]
    environment["PATH"] = os.pathsep.join(folders)
    toolkits = sorted({str(path.resolve()) for path in Path("/usr/local").glob("cuda*") if path.is_dir()})
    alone = ["unshare", "--map-root-user", "--mount"]
    if (
        toolkits
        and shutil.which("unshare")
        and not subprocess.run([*alone, "true"], capture_output=True).returncode
    ):
        hide = "".join(f"mount -t tmpfs none '{toolkit}' && " for toolkit in toolkits)
        command = (*alone, "sh", "-c", hide + 'exec "$@"', "sh", *command)
    return subprocess.run(command, env=environment, capture_output=True, text=True, **options)


@pytest.mark.spec("F1")
def test_the_cpu_device_imports_nothing_of_nvidias():
    done = subprocess.run([sys.executable, "-c", CPU_PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("F1")
def test_wheels_compile_without_the_systems_toolkit():
    from aicf import doctor

    if not any(map(doctor.installed, ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"))):
        pytest.skip("the wheels of neither cu12 nor cu13 are installed")
    done = without_toolkit(
        sys.executable, "-c", "import sys, aicf.doctor as d; sys.exit(d.run(as_json=True))"
    )
    assert done.returncode == 0, done.stderr
    rows = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert rows["compile"]["status"] == "ok", rows["compile"]
    for library in doctor.LIBRARIES:
        found = Path(rows[library]["found"].removesuffix(" (site-packages)"))
        assert found.resolve().is_relative_to(Path(sys.prefix).resolve()), rows[library]


@pytest.mark.spec("F1")
def test_extras():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["optional-dependencies"]) >= {"cu12", "cu13", "torch", "dev"}
    for requirement in project["dependencies"]:
        if requirement.startswith(("numba-cuda", "cuda")):  # no macOS wheels
            assert requirement.endswith("; sys_platform != 'darwin'")


@pytest.mark.spec("F7")
def test_the_tree_has_the_folders_that_people_look_for():
    for folder in ("aicf/ops", "aicf/cuda_kernels", "aicf/registry", "aicf/graph"):
        assert (ROOT / folder / "__init__.py").is_file(), folder
    assert (ROOT / "tests").is_dir()
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["packages"] == ["aicf"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built once, whose name has the version."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("aicf-*.whl")
    assert wheel.name == f"aicf-{aicf.__version__}-py3-none-any.whl"
    return wheel


@pytest.mark.spec("F1", "F7")
def test_the_wheel_has_the_examples_and_the_demo_s_data(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    assert held >= {f"aicf/examples/{file.name}" for file in (ROOT / "examples").glob("*.py")}
    assert {"aicf/py.typed", "aicf/cli/__init__.py", "aicf/data/digits.npz", "aicf/data/README.md"} <= held


PIP = "-m", "pip", "--disable-pip-version-check", "--quiet"
INSTALLS = pytest.mark.skipif(
    not os.environ.get("AICF_TEST_INSTALL"),
    reason="installs aicf into a fresh environment; `make test-all` or AICF_TEST_INSTALL=1 runs it",
)


def installed_from(wheel: Path, python: str, folder: Path, *more: str) -> str:
    """The Python of an empty environment in which the wheel was installed from its file. This Python's pip installs there, and leaves
    it to imports to compile what they need: a pip of its own and all bytecode take twice the time of the rest."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    inside = str(folder / "bin" / "python")
    install = [sys.executable, *PIP, "--python", inside, "install", "--no-compile", wheel, *more]
    subprocess.run(install, check=True)
    return inside


def interpreter(version: str) -> str | None:
    """A Python of that version on this machine that can make an environment: on the path, or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*sorted(pyenv.glob(f"{version}.*/bin/python")), shutil.which(f"python{version}")]
    asked = f"import sys, venv, ensurepip; sys.exit('%d.%d' % sys.version_info[:2] != {version!r})"
    for python in filter(None, found):
        if not subprocess.run([python, "-c", asked], capture_output=True).returncode:
            return str(python)
    return None


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
NUMPY = next(r for r in PROJECT["dependencies"] if r.startswith("numpy>="))


@pytest.mark.spec("F1")
@pytest.mark.slow
@INSTALLS
@pytest.mark.sample(1)
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_the_wheel_works_without_extras_and_without_a_toolkit(which, wheel, tmp_path):
    """With the oldest Python and the oldest NumPy that aicf takes, or the newest of both that are there: the CPU device works, and the
    doctor says what would bring the CUDA device."""
    if which == "oldest":
        version, python, numpy = VERSIONS[0], interpreter(VERSIONS[0]), NUMPY.replace(">=", "==") + ".*"
    else:
        there = ((v, found) for v in reversed(VERSIONS) if (found := interpreter(v)))
        version, python = next(there, (VERSIONS[-1], None))
        numpy = "numpy"
        if version != VERSIONS[-1]:
            print(f"Python {VERSIONS[-1]} is not on this machine: the newest here is {version}")
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    inside = installed_from(wheel, python, tmp_path / "venv", numpy)

    def runs(*arguments: str) -> str:
        done = without_toolkit(inside, *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    versions = "import numpy; print('%d.%d' % sys.version_info[:2], numpy.__version__)"
    *_, foreign, file, found = runs("-c", f"{CPU_PROGRAM}\nprint(aicf.__file__)\n{versions}").splitlines()
    assert foreign == "[]" and file.startswith(str(tmp_path))
    print(f"{which}: Python, NumPy", found)
    assert found.startswith(f"{version} ") and (which == "newest" or found.split()[1].startswith(numpy[7:-1]))
    assert runs("-m", "aicf", "--version") == f"aicf {aicf.__version__}\n"
    report = json.loads(runs("-c", "import sys, aicf.doctor as d; sys.exit(d.run(as_json=True))"))
    assert report["cpu"] and not report["cuda"]
    compile_row = next(check for check in report["checks"] if check["name"] == "compile")
    if compile_row["status"] != "ok":  # it can be, where the machine's toolkit could not be hidden
        assert compile_row["status"] == "warn" and "numba-cuda[cu1" in compile_row["fix"]
    for command in (
        ["info"],
        ["doctor"],
        ["examples", "here"],
        ["explain", "here/mlp.py", "--device", "h200"],
    ):
        assert runs("-m", "aicf", *command)
    asked = without_toolkit(inside, "-m", "aicf", "doctor", "--device", "cuda", cwd=tmp_path)
    if not report["cuda"]:
        assert asked.returncode == 1, asked.stdout + asked.stderr


# As numpy 2.5 is: without the alias that numba-cuda 0.30 names while it is imported.
WITHOUT_ALIAS = """
import numpy as np
if hasattr(np, "row_stack"):
    del np.row_stack
import aicf
from aicf.cuda_kernels.compiler import engine
from aicf.device.spec import preset
from aicf.dispatch import default_registry
from aicf.rows import RegionSpec
from aicf.types import AttrPack, OpKind, TensorDesc, TensorSpec
x = TensorDesc.dense(TensorSpec((8, 16), aicf.f32, "cuda"))
region = RegionSpec.single(OpKind.add, AttrPack(), [x, x], [x])
(variant,) = [v for v in default_registry().variants(OpKind.add) if v.id.startswith("cuda.elementwise_flat")]
for launch in variant.build(region, preset("h200")):
    made = engine.compile_kernel(launch, region, "sm_90a")
    assert made.cubin and not made.spill_bytes
"""


@pytest.mark.sample(1, pool="processes")
@pytest.mark.spec("F1")
def test_kernels_compile_with_a_numpy_that_has_no_row_stack():
    from aicf import doctor

    if not any(map(doctor.installed, ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12"))):
        pytest.skip("the wheels of neither cu12 nor cu13 are installed")
    environment = {**os.environ, "AICF_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ALIAS], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
