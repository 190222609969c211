"""Explanations for the tests of pages: of an example, of it many times over, and with the worst of names."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import aicf
from aicf import model_file
from aicf.pages.page import page

EXAMPLE = str(Path(aicf.__file__).parents[1] / "examples" / "mlp.py")
HOSTILE = '</script><script>document.title="run"</script><img src=x onerror=\'document.title="run"\'>\x1b[31m\u202e"&amp;'


@cache
def explained(device: str = "h200") -> Any:
    made = model_file.load(EXAMPLE, "train")
    return aicf.explain_for(made.model, device, "train", loss=made.loss, optimizer=made.optimizer)


@cache
def trained() -> dict:
    """As JSON that was written and read. Not to be changed."""
    return json.loads(json.dumps(explained().to_json()))


def repeated(data: dict, times: int) -> dict:
    """The same schedule again and again, each value another one."""
    more = max(v["vid"] for v in data["values"]) + 1
    ops = data["regions"][-1]["last"] + 1
    count = len(data["regions"])
    values = [
        {
            **v,
            "vid": v["vid"] + more * i,
            **({"life": [n + count * i for n in v["life"]]} if "life" in v else {}),
        }
        for i in range(times)
        for v in data["values"]
    ]
    regions = [
        {**r, "anchor": r["anchor"] + ops * i, "last": r["last"] + ops * i, "reads": [v + more * i for v in r["reads"]], "writes": [v + more * i for v in r["writes"]]}
        for i in range(times)
        for r in data["regions"]
    ]  # fmt: skip
    return {**data, "values": values, "regions": regions}


def spoilt(value: Any) -> Any:
    """The same with the worst of names behind each text."""
    if isinstance(value, dict):
        return {key: spoilt(inside) for key, inside in value.items()}
    if isinstance(value, list):
        return [spoilt(inside) for inside in value]
    return value + HOSTILE if isinstance(value, str) else value


def hostile(data: dict) -> dict:
    """An explanation in which all text is such, keys too where they are shown."""
    made = spoilt(data)
    made["regions"][0]["candidates"][0]["terms"] = {HOSTILE: 3.0}
    return made


@cache
def many(count: int = 10_000) -> dict:
    """So many ops."""
    ops = trained()["regions"][-1]["last"] + 1
    return repeated(trained(), -(-count // ops))


@cache
def page_of_many() -> str:
    return page(many())
