"""A region as a value: what goes to another process."""

from __future__ import annotations

import pickle

import pytest

import aicf
from aicf import nn
from aicf.device.spec import preset
from aicf.registry.select import select
from aicf.rows.read import read

H200 = preset("h200")


@pytest.mark.spec("B14")
def test_a_region_that_was_read_and_chosen_for_is_pickled_as_the_question_alone():
    model = nn.Model({"x": (32, 64)}).add(nn.Linear(64, 48)).add(nn.GELU()).add(nn.Dropout(0.5))
    for region in aicf.explain_for(model, "h200", "grad", loss=nn.MeanSquaredError()).regions:
        spec = region.spec
        before = read(spec), select(spec, H200, aicf.default_registry())
        there = pickle.loads(pickle.dumps(spec))
        assert there == spec and hash(there) == hash(spec) and there.key == spec.key and there.before is None
        assert (
            read(there) == before[0]
            and select(there, H200, aicf.default_registry()).kernel_id == before[1].kernel_id
        )
        assert len(pickle.dumps(spec)) < 20_000
