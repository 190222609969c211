"""benchmarks/digests.py: an edit of a kernel's source changes the digests of those variants that reach it, and no other's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aicf

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from aicf.code_cache.source import source
from aicf.registry.text_digest import NOT_BUILT
from benchmarks.digests import digest_of
from benchmarks.stats import Stats

ROOT = Path(__file__).parents[1]
ALL = """
import json, aicf
from benchmarks.digests import digest_of
print(json.dumps({v.id: digest_of(v.id) for v in aicf.default_registry()}))
"""


def test_every_kernel_has_a_digest_of_its_own():
    found = {v.id: digest_of(v.id) for v in aicf.default_registry()}
    assert len(set(found.values())) == len(found) > 90
    assert digest_of("cuda.no_such_kernel.v1") is None


EDITS = (
    # a body, its device function's comments, and the same kernel's cost
    ("maps/add_body.py", "put(out, i, add(get(a, i), get(b, i)))", "put(out, i, add(get(b, i), get(a, i)))"),
    ("gemm/small_m_body.py", '"""', '"""Another word of a docstring. '),
    ("gemm/small_m.py", "        return simt_plan(region, device).cost\n", "        return simt_plan(region, device).cost  # dear\n\n\n"),
    ("rows/reduce.py", "    def cost(", "    def least(region, device):\n        return 1.0\n\n    def cost("),
    ("index/labels_body.py", "\nfrom .", "\nUNUSED = 5\nfrom ."),
    ("maps/dropout.py", "THREADS,)", "THREADS // 2,)"),
)  # fmt: skip


def test_an_edit_changes_the_digests_of_what_reaches_it_and_nothing_else(tmp_path):
    """In a copy; by another process, with another seed of hashes."""
    for folder in ("aicf", "benchmarks"):
        left_out = shutil.ignore_patterns("results")  # bytecode is valid there, but for what is edited
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    for name, before, after in EDITS:
        path = tmp_path / "aicf" / "cuda_kernels" / name
        text = path.read_text()
        assert before in text, name
        path.write_text(text.replace(before, after, 1))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", ALL], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    edited = json.loads(done.stdout)
    changed = {id for id, digest in edited.items() if digest != digest_of(id)}
    assert changed == {"cuda.add_f16_half2.v1", "cuda.dropout_philox.v1"}


def twice(x):  # a comment
    """A docstring."""

    # another comment
    return "# no comment" * x  # at the end


PAIR = (lambda x: x + 1, lambda x: x + 2)
WORDS = ("größer", lambda x: (
    x + "größer"  # a comment
))  # fmt: skip


class Sums:
    """A docstring."""

    def cost(self):
        return 1

    def total(self):
        """What it says is not what it is."""
        return 2


def test_the_source_is_what_runs():
    assert source(twice) == 'def twice(x):\n    return "# no comment" * x'
    assert [source(f) for f in PAIR] == ["(lambda x: x + 1)", "(lambda x: x + 2)"]
    assert source(WORDS[1]) == '(lambda x: (\n    x + "größer"\n))'
    assert source(Sums, NOT_BUILT) == "class Sums:\n    def total(self):\n        return 2"
    assert source(Stats).startswith("@dataclass(frozen=True)\nclass Stats:\n")
