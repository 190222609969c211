"""No kernel adds floats in an order of chance: where atomic and reducing instructions occur, in source and in PTX."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import aicf.cuda_kernels
from aicf.cuda_kernels import ptx

ROOT = Path(aicf.cuda_kernels.__file__).parent
ADDING = {"add_words", "add_box", "add_bytes", "fetch_add"}  # of `ptx`: they add to what memory has
# Each use, with the reason why it depends on no order.
ORDERED = {
    ("attention/wgmma_grad_body.py", "fetch_add"): "a ticket: which tile a block takes next; each tile is computed alike wherever it is",
    ("attention/wgmma_grad_body.py", "add_bytes"): "dQ, one tile of keys after the other: a flag says when those before are there",
    ("index/sampling_body.py", "atomic.add"): "integers: weights in fixed point",
    ("index/sort_body.py", "atomic.add"): "integers: counts",
}  # fmt: skip


def uses(path: Path) -> set[str]:
    """The adding functions of `ptx` that a module refers to, and methods of `cuda.atomic`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.update(name.name for name in node.names if name.name in ADDING)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "atomic"
        ):
            found.add(f"atomic.{node.attr}")
        elif isinstance(node, ast.Attribute) and node.attr in ADDING:
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.update(
                f"text {word}" for word in ("red.global", "atom.global", "multimem") if word in node.value
            )
    return found


@pytest.mark.spec("C12")
def test_every_use_of_an_atomic_is_known_to_be_ordered():
    found = {
        (str(path.relative_to(ROOT)), use)
        for path in ROOT.rglob("*.py")
        if path.parent.name != "ptx"
        for use in uses(path)
    }
    assert found == set(ORDERED)


@pytest.mark.spec("C12")
def test_the_instructions_that_add_to_memory_are_those_looked_for():
    """In the texts of `ptx`: no other function has an instruction of the kind."""
    adding = set()
    for path in Path(ptx.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef):
                continue
            texts = [
                n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            if any(text.startswith(("red.", "atom.", "cp.reduce.", "multimem.")) for text in texts):
                adding.add(node.name)
    assert adding == ADDING
