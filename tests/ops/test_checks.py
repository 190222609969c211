"""No check of `infer` without a test that notices when it is gone. See mutants.py."""

from __future__ import annotations

import random
import re
from collections import defaultdict

import pytest

from aicf.ops.scan import _types_of
from aicf.ops.schema import Number, elementwise, schema_of, schemas, unregister
from examples import EVERYTHING

from . import mutants
from .cases import DECLARED, EXACT, NEGATIVE, i32
from .evaluate import refusal
from .sampling import cases, operands, spec

CHECKS = {s.name: mutants.checks_of(s) for s in schemas() if s.origin == "aicf"}
SHARED = "record.py", "schema.py"  # what a declaration checks, whichever op is declared


GIVEN_A_NUMBER = re.compile(  # by the caller: NumPy's C1, and C4 of a body that has an op nobody knows
    r"unsized.py: raise ValueError\(f'{first} beside {wide}'\)|record.py: raise RegistryError\(f'no op is called .*"
)


@pytest.mark.spec("E5")
def test_what_infer_raises_has_a_number():
    found = [u for f in set().union(*CHECKS.values()) for u in mutants.rewritten(f).unnumbered]
    assert not [u for u in found if not GIVEN_A_NUMBER.fullmatch(re.sub(r":\d+", "", u))]


@pytest.fixture
def bounded():
    """An op of any number of operands, and with attributes that are constants beside integers."""

    @elementwise("bounded", types=Number)
    def _(*xs, low: float, high: int):
        return min(max(sum(xs), low), high)

    attrs = {"low": 0.0, "high": 1}
    refused = (
        (([i32(2)], {"low": 0.5, "high": 1}), "bounded types: low is 0.5, a constant beside i32: .*"),
        (
            ([i32(2)], {"low": 0.0, "high": 2**31}),
            "bounded types: high is 2147483648, a constant beside i32: .*",
        ),
        (([], attrs), r"bounded operands: takes \*xs; got 0 operands"),
        (([i32(2), None], attrs), r"bounded operands: xs\[1\] can't be left out"),
    )
    yield refused, (([i32(2)] * 3, attrs),)
    unregister("bounded")


@pytest.mark.spec("E5")
def test_every_part_of_every_check_has_a_case_that_notices_when_it_is_gone(bounded):
    refused, taken = defaultdict(list), defaultdict(list)
    refused["bounded"], taken["bounded"] = map(list, bounded)
    for (name, constraint), *case, message in NEGATIVE:
        refused[name].append((case, rf"{name} {constraint}: {message}"))
    for name, specs, message in DECLARED:
        refused[name].append(((specs, {}), rf"{name} (operands|types|devices): {message}"))
    for schema, sample, dtype in cases():
        taken[schema.name].append(([spec(a) for a in operands(schema, sample, dtype)], sample["attrs"]))
    for name, *case, _ in EXACT:
        taken[name].append(case)

    def notices(name: str, refuses_more: bool) -> bool:
        try:
            if refuses_more:
                return any(refusal(name, *case) for case in taken[name])
            return not all(
                re.fullmatch(message, refusal(name, *case) or "") for case, message in refused[name]
            )
        except Exception:
            return True  # what stands behind the check can't do with what it is to keep out

    having, alive = defaultdict(list), []
    for name, functions in {**CHECKS, "bounded": mutants.checks_of(schema_of("bounded"))}.items():
        for number in (n for f in functions for n in mutants.rewritten(f).numbers):
            having[number].append(name)
    unreached = [str(mutants.SWITCH.mutants[n]) for n in mutants.numbers_everywhere() - set(having)]
    assert not unreached, "no op's infer gets to these checks"
    with pytest.MonkeyPatch.context() as patch:
        mutants.install(patch, set().union(*CHECKS.values()))
        assert not any(notices(name, more) for name in CHECKS for more in (False, True)), "none is on"
        drawn = random.sample([*having], len(having) if EVERYTHING else len(having) // 2)
        for number in drawn:
            names = having[number]
            mutant = mutants.SWITCH.mutants[number]
            patch.setattr(mutants.SWITCH, "on", number)
            _types_of.cache_clear()
            noticed = [notices(name, mutant.refuses_more) for name in names]
            if mutant.where.startswith(SHARED):
                alive += [] if any(noticed) else [str(mutant)]
            else:
                alive += [f"{name}: {mutant}" for name, seen in zip(names, noticed) if not seen]
    _types_of.cache_clear()  # it knows answers that the last of them gave
    assert not alive, "nothing notices if these are left out:\n" + "\n".join(alive)
