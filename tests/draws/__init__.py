"""Random cases with independent oracles: tests check a few of them, `tools/fuzz.py` checks them until its time is up.

A kind of case is a module here that has

    NAME                    what `--only` calls it
    draw(rng, device)       a case, which is data: picklable, with a text; None if the draw is refused
    check(case, device)     None, or a text that says how results differ
    smaller(case)           simpler cases, the simplest first, from which a failure is shrunk
    script(case, device)    a program of its own that shows the failure

`kinds()` finds them; no list names them.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def kinds() -> dict[str, ModuleType]:
    """The kinds of cases whose imports are installed, by name."""
    found = {}
    for info in pkgutil.iter_modules(__path__):
        try:
            module = importlib.import_module(f"{__name__}.{info.name}")
        except ModuleNotFoundError as error:
            if error.name in OPTIONAL:
                continue
            raise
        if hasattr(module, "NAME"):
            found[module.NAME] = module
    return found


OPTIONAL = {"torch", "jax", "onnx"}
