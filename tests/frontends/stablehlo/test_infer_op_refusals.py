"""Each constraint of each op is broken by a case, whose error has its number; and every check in the rules by one of them."""

import ast
import sys
from pathlib import Path

import pytest

import aicf
from aicf.errors import TypeInferenceError
from aicf.frontends.stablehlo import infer_op
from aicf.frontends.stablehlo.typing.call import OpTyping
from aicf.frontends.stablehlo.typing.declare import RULES

from .refusals import BASES, CHANGES, changed

FOLDER = Path(aicf.__file__).parent / "frontends" / "stablehlo" / "typing" / "rules"
CHECKS = {"require", "fail", "size", "said", "shaped"}  # methods of OpTyping that refuse
HELPERS = {
    "within",
    "unique",
    "in_order",
    "precise",
    "check_inputs",
    "check_reducer",
}  # functions of rules/ that do


def infer(given):
    return infer_op(given.name, given.operands, given.attributes, given.results, given.bodies)


@pytest.mark.parametrize("name", BASES)
def test_what_is_changed_is_valid_before(name):
    infer(BASES[name])


@pytest.mark.spec("E5")
@pytest.mark.parametrize("base", dict.fromkeys(base for base, *_ in CHANGES))
def test_refused_by_its_number(base):
    for n, change in enumerate(CHANGES):
        if change[0] != base or change[:2] == ("add", ""):  # a bound that does not hold has no number
            continue
        with pytest.raises(TypeInferenceError) as refused:
            infer(changed(change))
        said = refused.value
        assert (said.op, said.constraint) == (BASES[base].name, change[1]), (n, said.message)


def call_sites() -> dict[tuple[str, int, int], str]:
    """(file, first line, last line) of each check in the rules, and its text."""
    found = {}
    for path in FOLDER.glob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                method = (
                    isinstance(node.func, ast.Attribute)
                    and node.func.attr in CHECKS
                    and getattr(node.func.value, "id", "") == "c"
                )
                helper = isinstance(node.func, ast.Name) and node.func.id in HELPERS
                if method or helper:
                    found[path.name, node.lineno, node.end_lineno or node.lineno] = (
                        ast.get_source_segment(text, node) or ""
                    )
    return found


def test_every_check_is_broken_by_a_case(monkeypatch):
    reached = set()
    fail = OpTyping.fail

    def noted(self, constraint, message):
        frame = sys._getframe(1)
        while frame is not None:
            if Path(frame.f_code.co_filename).parent == FOLDER:
                reached.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
            frame = frame.f_back
        fail(self, constraint, message)

    monkeypatch.setattr(OpTyping, "fail", noted)
    for change in CHANGES:
        with pytest.raises(TypeInferenceError):
            infer(changed(change))
    missing = {
        site: text
        for site, text in call_sites().items()
        if not any(name == site[0] and site[1] <= line <= site[2] for name, line in reached)
    }
    assert not missing, "\n".join(f"{name}:{line}: {text[:150]}" for (name, line, _), text in missing.items())


def test_every_op_has_a_case():
    same = {"unary": BASES["abs"], "binary": BASES["multiply"]}  # one rule for many ops
    rules = {RULES[given.name].infer for given in (*BASES.values(), *same.values())}
    plain = {
        "cross-replica-sum",
        "tuple",
        "after_all",
        "create_token",
        "replica_id",
        "partition_id",
        "is_finite",
    }  # nothing of their own
    closures = {
        name for name, rule in RULES.items() if rule.infer.__qualname__.startswith(("_unary", "_binary"))
    }
    assert {name for name, rule in RULES.items() if rule.infer not in rules} <= plain | closures
