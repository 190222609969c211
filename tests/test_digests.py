"""benchmarks/digests.py: an edit of a kernel's source changes the digests of those variants that reach it, and no other's."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import aicf

pytest.importorskip("benchmarks", reason="a source distribution has no benchmarks")

from aicf.code_cache.digest import Portable
from aicf.registry.text_digest import NOT_BUILT
from benchmarks.digests import digest_of

ROOT = Path(__file__).parents[1]
ALL = """
import json, aicf
from benchmarks.digests import digest_of
print(json.dumps({v.id: digest_of(v.id) for v in aicf.default_registry()}))
"""


def test_every_kernel_has_a_digest_of_its_own():
    """Of each kind of device: a collective is the same call of a communicator on all."""
    for device, least in (("cpu", 15), ("cuda", 90)):
        found = [digest_of(v.id) for v in aicf.default_registry() if v.device == device]
        assert len(set(found)) == len(found) > least and all(found)
    assert digest_of("cuda.no_such_kernel.v1") is None


EDITS = (
    # a body, its docstring, the same kernel's cost and layout
    ("maps/add_body.py", "put(out, i, add(get(a, i), get(b, i)))", "put(out, i, add(get(b, i), get(a, i)))"),
    ("gemm/small_m_body.py", '"""', '"""Another word of a docstring. '),
    ("gemm/small_m.py", "        return simt_plan(region, device).cost\n", "        return simt_plan(region, device).cost  # dear\n\n\n"),
    ("rows/reduce.py", "    def cost(", "    def least(region, device):\n        return 1.0\n\n    def cost("),
    ("index/labels_body.py", "\nfrom .", "\nUNUSED = 5\nfrom ."),
    ("maps/dropout.py", "THREADS,)", "THREADS // 2,)"),
)  # fmt: skip

# Names of a body, a dataclass, a device function, a constant and a module, in all files
RENAMED = ("half2", "SmallTile", "wide_step", "THREADS", "small_m_body")


@pytest.mark.sample(1, pool="processes")
def test_an_edit_changes_the_digests_of_what_reaches_it_and_a_new_name_changes_none(tmp_path):
    """In a copy; by another process, with another seed of hashes."""
    for folder in ("aicf", "benchmarks"):
        left_out = shutil.ignore_patterns("results")  # bytecode is valid there, but for what is edited
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=left_out)
    kernels = tmp_path / "aicf" / "cuda_kernels"
    for name, before, after in EDITS:
        path = kernels / name
        text = path.read_text()
        assert before in text, name
        path.write_text(text.replace(before, after, 1))
    words = re.compile(rf"\b({'|'.join(RENAMED)})\b")
    for path in kernels.rglob("*.py"):
        text = path.read_text()
        if (renamed := words.sub(r"other_\1", text)) != text:  # else its bytecode stays valid
            path.write_text(renamed)
    (kernels / "gemm" / "small_m_body.py").rename(kernels / "gemm" / "other_small_m_body.py")
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


def plain(x): return "# no comment" * x  # fmt: skip


def four_times(x):
    return twice(twice(x))


def four_plain(a_name):
    return plain(plain(a_name))


def four_plainly(x):
    return plain(plain(x))


def once_plain(x):
    return plain(x)


PAIR = (lambda x: x + 1, lambda x: x + 2)


class Sums:
    """A docstring."""

    def cost(self):
        return 1

    def total(self):
        """What it says is not what it is."""
        return 2


class Totals:
    def total(self) -> int:
        return 2


class Others:
    def total(self) -> int:
        return 3


class WithoutCost(Portable):
    without = NOT_BUILT


def test_names_comments_and_layout_do_not_count_and_what_runs_does():
    def digest(value):
        return WithoutCost().function(value)

    assert digest(twice) == digest(plain) != digest(four_times)
    assert digest(four_times) == digest(four_plainly) != digest(once_plain)
    assert digest(four_plain) != digest(four_plainly)  # names of parameters count: a call may use them
    assert digest(PAIR[0]) != digest(PAIR[1]) != digest(lambda x: x + 1) == digest(PAIR[0])
    assert digest(Sums) == digest(Totals) != digest(Others)


def test_a_global_that_is_another_is_another_text(monkeypatch):
    before = Portable().function(four_times)
    monkeypatch.setitem(globals(), "twice", once_plain)
    assert Portable().function(four_times) != before
