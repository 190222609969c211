"""What is refused: one test per numbered constraint, one per trait of a declaration."""

import re

import numpy as np
import pytest

from aicf import default_registry, op_call
from aicf.errors import AttrError, RegistryError, TypeInferenceError
from aicf.ops.schema import Float, elementwise, op, schema_of, schemas, unregister
from aicf.types import DType

from .cases import DECLARED, NEGATIVE
from .evaluate import refusal
from .numpy_emitter import call_gradient


@pytest.mark.spec("E5")
@pytest.mark.spec("E3")
@pytest.mark.parametrize("op", dict.fromkeys(name for (name, _), *_ in NEGATIVE))
def test_constraints(op):
    for (name, constraint), specs, attrs, message in NEGATIVE:
        if name == op:
            said = refusal(name, specs, attrs) or ""
            assert re.fullmatch(rf"{name} {constraint}: {message}", said), (constraint, specs, attrs, said)


@pytest.mark.spec("E5")
def test_every_constraint_has_its_negative_test():
    stated = {(s.name, c) for s in schemas() if s.origin == "aicf" for c in s.constraints}
    assert stated == {key for key, *_ in NEGATIVE}


@pytest.mark.spec("E2")
@pytest.mark.parametrize("op, specs, message", DECLARED)
def test_what_a_declaration_guarantees(op, specs, message):
    """Once per trait: number of operands, operands left out, type constraints, one shared type, one device."""
    assert re.fullmatch(rf"{op} (operands|types|devices): {message}", refusal(op, specs, {}) or "")


@pytest.mark.spec("D10")
@pytest.mark.parametrize("op, types, attrs, name", [
    ("gemm", "f8e4m3 f8e4m3 f32", {"out_dtype": DType.f32}, "a is f8e4m3"), ("convert", "f8e5m2 f32", {"dtype": DType.f32}, "x is f8e5m2"),
    ("convert", "f32 f8e4m3", {"dtype": DType.f8e4m3}, "y is f8e4m3"),
])  # fmt: skip
def test_nothing_is_differentiated_through_fp8(op, types, attrs, name):
    schema = schema_of(op)
    *operands, result = (np.ones((2, 2), DType[t].numpy) for t in types.split())
    attrs = schema.pack(attrs)
    given = [*operands, None, None] if op == "gemm" else operands
    with pytest.raises(TypeInferenceError, match=f"{op} has no gradient where {name}") as caught:
        call_gradient(schema, given, [result], [result], attrs)
    assert caught.value.hint == "keep master weights in f32, and convert them to fp8 for inference"


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "op, attrs, message, expected",
    [
        ("leaky_relu", {"slop": 0.1}, "leaky_relu has no attribute 'slop'", "slope"),
        ("relu", {"slope": 0.1}, "relu has no attribute 'slope'", "no attributes at all"),
        ("scale", {}, "scale needs attribute 'factor'", "float"),
        ("scale", {"factor": True}, "scale: attribute factor is True", "float"),
        ("sgd_step", {"nesterov": 1}, "sgd_step: attribute nesterov is 1", "bool"),
        ("reduce_sum", {"axes": 1}, "reduce_sum: attribute axes is 1", "tuple"),
    ],
)
def test_attributes_are_of_their_declared_types(op, attrs, message, expected):
    with pytest.raises(AttrError) as caught:
        schema_of(op).pack(attrs)
    assert (caught.value.what, caught.value.expected) == (message, expected)


def test_packing_fills_in_defaults_and_converts_to_the_declared_type():
    assert schema_of("leaky_relu").pack({}) == schema_of("leaky_relu").pack({"slope": 0.01})
    assert schema_of("scale").pack({"factor": 2}) == schema_of("scale").pack({"factor": 2.0})
    assert schema_of("convert").pack({"dtype": DType.f16}) == schema_of("convert").pack({"dtype": 2})


@pytest.fixture
def scratch():
    """A name to register an op under, forgotten afterwards."""
    yield "scratch_op"
    unregister("scratch_op")


def test_a_second_op_of_one_name_is_refused(scratch):
    elementwise(scratch)(lambda x: x)
    with pytest.raises(RegistryError, match="op 'scratch_op' is already registered by "):
        elementwise(scratch)(lambda x: -x)


def test_declarations_need_type_constraints(scratch):
    with pytest.raises(RegistryError, match="operand x needs a type constraint"):

        @op(scratch)
        def untyped(x):
            return x


def test_a_gradient_rule_may_ask_only_for_what_the_op_has(scratch):
    schema = elementwise(scratch)(lambda x: x)
    with pytest.raises(RegistryError, match="the gradient rule of scratch_op asks for z"):

        @schema.gradient
        def _(emit, dy, z):
            return dy


def test_an_unknown_op_is_an_error_that_names_the_nearest_ones_and_where_all_are_listed():
    with pytest.raises(RegistryError, match="no op is called 'ad'") as caught:
        schema_of("ad")
    assert "add" in caught.value.hint.split(" or ") and "`aicf info`" in caught.value.expected
    assert len(str(caught.value)) < 200


def test_a_notebook_s_cell_that_runs_again_defines_its_op_anew(scratch):
    """Of another function and another kind, too: nothing that was known of the first stays. Elsewhere a name is taken once."""
    cell = {"__name__": "__main__", "elementwise": elementwise, "op": op, "Float": Float, "name": scratch}
    x, y = np.array([1, 2, 3], np.float32), np.empty(3, np.float32)

    def kernels():
        return {v.id for v in default_registry().variants(scratch)}

    for factor in (2, 3):
        exec(f"@elementwise(name)\ndef twice(x):\n    return {factor} * x", cell)
        op_call(scratch, [x], [y])
        np.testing.assert_array_equal(y, factor * x)
    assert "cpu.elementwise_loop.v2" in kernels()
    exec("@op(name)\ndef last(x: Float):\n    return x\nlast.reference(lambda x: x[::-1])", cell)
    op_call(scratch, [x], [y])
    np.testing.assert_array_equal(y, x[::-1])
    assert "cpu.elementwise_loop.v2" not in kernels()
    with pytest.raises(RegistryError, match=r"already registered by __main__"):
        elementwise(scratch)(lambda x: x)


def test_a_schema_prints_as_its_signature_and_what_it_says_of_itself():
    schema = schema_of("leaky_relu")
    assert repr(schema) == "<leaky_relu(x: float, *, slope: float = 0.01) -> y; print it>"
    assert str(schema).splitlines()[0] == schema.signature and str(schema).endswith(schema.doc)
