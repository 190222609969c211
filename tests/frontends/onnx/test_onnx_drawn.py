"""Models of one node, drawn anew in each run, beside ONNX's own reference in NumPy."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from draws.seeds import run_seed, seeded
from onnx.reference import ReferenceEvaluator

import aicf

from .drawn_nodes import FORMS, DrawnNode

DRAWS = 1  # of each form


@pytest.mark.sample(5)
@pytest.mark.parametrize("form", FORMS)
def test_a_node_computes_what_onnx_says(form):
    for number in range(DRAWS):
        words = (run_seed(), "onnx", form, number)
        node = DrawnNode(seeded(*words), 18 + number % 3)
        FORMS[form](node)
        model = node.model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            wanted = ReferenceEvaluator(model).run(None, node.feed)
            program = aicf.from_onnx(model, device="cpu")
            got = program(node.feed)
        said = f"seeded{words}: {node.node}"
        for name, want in zip(program.outputs, map(np.asarray, wanted)):
            array = got[name].numpy()
            assert (array.shape, array.dtype) == (want.shape, want.dtype), said
            finite = np.where(np.isfinite(want), want, 0).astype(np.float64)
            size = max(1.0, np.abs(finite).max(initial=0))
            np.testing.assert_allclose(
                array.astype(np.float64), want.astype(np.float64), rtol=2e-4, atol=2e-5 * size, err_msg=said
            )
