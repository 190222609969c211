"""The project's own files: what CI and pre-commit run, and what texts say of installing."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from aicf import doctor

ROOT = Path(__file__).parents[1]
if not (ROOT / ".ci").exists():
    pytest.skip("a source distribution has no CI", allow_module_level=True)
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_ci_runs_what_a_contributor_runs_on_every_python():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert set(workflow[True]) >= {"push", "pull_request"}, "YAML reads the key `on` as true"
    (job,) = workflow["jobs"].values()
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert [p.rsplit(" :: ")[-1] for p in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", p)] == PYTHONS
    setup = next(step for step in job["steps"] if step.get("uses", "").startswith("actions/setup-python@"))
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    (run,) = (step for step in job["steps"] if "run" in step)
    assert run["run"] == "bash .ci/run" and (ROOT / ".ci" / "run").exists()
    # The Makefile takes the newest Python that it finds, and the runner's own is one, unless PYTHON names another.
    assert run["env"] == {"PYTHON": "python${{ matrix.python }}"}
    assert "$(or $(PYTHON)," in (ROOT / "Makefile").read_text()


def test_pre_commit_runs_what_lint_does():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.search(r"^lint: ([\w -]+?) *##", makefile, re.MULTILINE)[1].split()
    commands = [re.search(rf"^{t}:.*\n\t(.+)$", makefile, re.MULTILINE)[1] for t in targets]
    wanted = {
        c.replace("$(PY)", ".venv/bin/python").replace("$(VENV)", ".venv").removesuffix(" .")
        for c in commands
    }
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repo["repo"] == "local"
    assert {hook["entry"] for hook in repo["hooks"]} == wanted and len(wanted) == 5
    for hook in repo["hooks"]:
        assert hook["language"] == "system"
        whole = (
            "ruff" not in hook["entry"]
        )  # mypy and import-linter look at the project, whatever files have changed
        assert hook.get("pass_filenames", True) is not whole


INDEX = re.compile(r"""pip3? install(?:\s+-[-\w=]+)*\s+\\?['"`]?aicf\b|_pip\(f?["']aicf\b""")


def test_what_would_ask_an_index_is_noticed():
    for text in (
        "pip install " + "aicf", "pip install --quiet '" + "aicf[cu13]'", ".venv/bin/python -m pip install " + "aicf",
        '_pip(f"' + 'aicf[{extra}]")',
    ):  # fmt: skip
        assert INDEX.search(text), text
    for text in (
        "pip install .  # aicf",
        "pip install '.[cu13]'",
        "pip install numba-cuda",
        "installing aicf[x]",
    ):
        assert not INDEX.search(text), text


def test_no_text_says_that_an_index_has_aicf():
    """It is installed from a checkout: there is none yet."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("no git history here")
    suffixes = {".md", ".py", ".toml", ".ipynb", ".yml", ".yaml", ".sh", ""}
    paths = [ROOT / name for name in listed.stdout.splitlines() if Path(name).suffix in suffixes]
    assert len(paths) > 200
    found = {}
    for path in paths:
        if path.is_file() and (hit := INDEX.search(path.read_text(encoding="utf-8"))):
            found[str(path.relative_to(ROOT))] = hit.group()
    assert not found


def test_what_the_doctor_advises_is_what_the_extras_bring():
    for extra in ("cu12", "cu13"):
        (requirement,) = PROJECT["optional-dependencies"][extra]
        assert requirement.split(";")[0].strip() == doctor._toolkit(extra)
