"""Names and imports of the package, read from its source: one class a name, and no circle of modules."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import aicf

ROOT = Path(aicf.__file__).parent
FILES = {
    ".".join(("aicf", *p.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): p
    for p in ROOT.rglob("*.py")
    if "examples" not in p.parts
}
PUBLIC = {"Linear"}  # a layer, and a schedule of learning rates: both are called what PyTorch calls them


@functools.cache
def facts() -> dict[str, tuple[list[str], set[str]]]:
    """Of each module the names of its classes, and what it imports. The trees, which are millions of objects, go at once."""
    found = {}
    for module, path in FILES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found[module] = (
            [n.name for n in statements(tree) if isinstance(n, ast.ClassDef)],
            imported(module, tree),
        )
    return found


def test_a_class_s_name_is_one_class():
    found = defaultdict(list)
    for module, (classes, _) in facts().items():
        for name in classes:
            found[name].append(module)
    assert len(found) > 200
    assert {name: where for name, where in found.items() if len(where) > 1 and name not in PUBLIC} == {}


def statements(tree: ast.AST, functions: bool = True) -> Iterator[ast.AST]:
    """Its statements, those within functions only if wanted."""
    for block in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, block, ()):
            if functions or not isinstance(node, ast.FunctionDef):
                yield node
                yield from statements(node, functions)


def imported(module: str, tree: ast.Module) -> set[str]:
    """Modules of aicf's that are imported with it, those for type checkers included, and none that a function imports when it runs."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in statements(tree, functions=False):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if name in FILES else base for name in inside}
    return (found & FILES.keys()) - {module}


def test_no_modules_import_each_other_in_a_circle():
    edges = {module: imports for module, (_, imports) in facts().items()}
    assert sum(map(len, edges.values())) > 800
    while leaves := [m for m, targets in edges.items() if not targets & set(edges)]:
        for module in leaves:
            del edges[module]
    assert {m: sorted(t & set(edges)) for m, t in edges.items()} == {}


def test_bodies_of_kernels_import_no_variants():
    """Who builds kernels knows their bodies; a body knows what it is made of, and not who chooses it."""
    family = "aicf.cuda_kernels."
    variants = {m for m in FILES if f"{m}_body" in FILES}
    wrong = {
        m: sorted(imports & variants)
        for m, (_, imports) in facts().items()
        if m.startswith(family) and m.endswith("_body") and imports & variants
    }
    assert len(variants) > 12 and wrong == {}
