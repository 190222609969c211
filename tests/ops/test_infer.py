"""Type inference: every op's results against its reference, and against types written out by hand."""

import numpy as np
import pytest

from aicf.errors import TypeInferenceError
from aicf.ops.schema import ELEMENTWISE, schema_of, schemas
from aicf.types import DType, TensorSpec

from .cases import EXACT, bf16, boolean, f16, f32, i32, i64, of
from .sampling import name, operands, packed, spec, types_of


@pytest.mark.spec("E3")
@pytest.mark.parametrize("schema", list(schemas()), ids=name)
def test_inferred_types_are_those_of_the_reference(schema):
    for sample in schema.sample_specs:
        for dtype in types_of(schema):
            check_types(schema, sample, dtype)


def check_types(schema, sample, dtype):
    arrays = operands(schema, sample, dtype)
    attrs = packed(schema, arrays, sample["attrs"])
    inferred = schema.infer([spec(a) for a in arrays], attrs)
    with np.errstate(all="ignore"):
        narrow = [a is not None and spec(a).dtype.compute is not spec(a).dtype for a in arrays]
        wide = [a.astype(np.float32) if n else a for a, n in zip(arrays, narrow)]
        raw = schema.reference_fn(*wide, **schema.values(attrs))
    raw = raw if isinstance(raw, tuple) else (raw,)
    assert [r.shape for r in inferred] == [np.shape(r) for r in raw]
    for got, want in zip(raw, inferred):  # the reference may compute wider, but not in another kind of number
        assert np.can_cast(np.asarray(got).dtype, want.dtype.compute.numpy, "same_kind"), (got.dtype, want)
    for got, want in zip(schema.call_reference(arrays, attrs), inferred):
        assert spec(got) == want


@pytest.mark.spec("E3")
@pytest.mark.parametrize("op, specs, attrs, results", EXACT)
def test_exact_inference(op, specs, attrs, results):
    schema = schema_of(op)
    assert list(schema.infer(specs, schema.pack(schema.normalized(specs, attrs)))) == results


@pytest.mark.spec("E5")
def test_every_op_has_an_exact_inference_test():
    """Elementwise ops share one rule, tested below; every other op writes its own case."""
    assert {s.name for s in schemas() if ELEMENTWISE not in s.traits and s.origin == "aicf"} == {
        op for op, *_ in EXACT
    }


@pytest.mark.spec("E2")
@pytest.mark.parametrize(
    "op, specs, attrs, results",
    [
        ("add", [f32(4, 1), f32(3, 1, 7)], {}, [f32(3, 4, 7)]),
        ("add", [i64(), i64(5)], {}, [i64(5)]),
        ("add", [f32(0, 1), f32(1, 3)], {}, [f32(0, 3)]),
        ("less", [i32(2, 3), i32(3)], {}, [boolean(2, 3)]),
        ("select", [boolean(2, 1), i32(3), i32()], {}, [i32(2, 3)]),
        ("convert", [boolean(2)], {"dtype": DType.i64}, [i64(2)]),
        ("convert", [f32(2)], {"dtype": DType.f8e4m3}, [of(DType.f8e4m3)(2)]),
        ("select", [boolean(2), *[of(DType.f8e5m2)()] * 2], {}, [of(DType.f8e5m2)(2)]),
        ("sgd_step", [f32(3)] * 3 + [f32()] * 3 + [boolean()], {}, [f32(3)] * 2),
        ("adam_step", [f16(3)] * 2 + [f32(3)] * 2 + [f32()] * 7 + [boolean()], {}, [f16(3), f32(3), f32(3)]),
        ("adam_step", [bf16(3)] + [f32(3)] * 3 + [f32()] * 7 + [boolean()], {}, [bf16(3), f32(3), f32(3)]),
        ("lamb_update", [bf16(3)] * 2 + [f32(3)] * 2 + [f32()] * 6 + [boolean()], {}, [f32(3)] * 3),
        ("lion_step", [f16(3)] * 2 + [f32(3)] + [f32()] * 4 + [boolean()], {}, [f16(3), f32(3)]),
        (
            "rmsprop_centered_step",
            [bf16(3)] + [f32(3)] * 4 + [f32()] * 5 + [boolean()],
            {},
            [bf16(3)] + [f32(3)] * 3,
        ),
        ("schedule_step", [i32(), f32()], {"every": 2, "gamma": 0.5}, [f32()]),
    ],
)
def test_results_types(op, specs, attrs, results):
    schema = schema_of(op)
    assert list(schema.infer(specs, schema.pack(attrs))) == results


def test_attributes_left_out_have_their_defaults():
    assert schema_of("reduce_sum").infer([f32(4, 7)], {}) == (f32(),)
    assert schema_of("schedule_linear").infer([i64(), f32()], {"total": 5}) == (f32(),)


def test_results_live_where_the_operands_do():
    x = TensorSpec((2,), DType.f32, "cuda")
    assert schema_of("relu").infer([x], {})[0].device == "cuda"
    attrs = schema_of("fill").pack({"shape": (2,), "value": 0.0, "dtype": DType.f32})
    assert schema_of("fill").infer([], attrs)[0].device == "cpu"
    assert schema_of("fill").infer([], attrs, device="cuda") == (x,)


@pytest.mark.spec("E5")
def test_every_op_is_documented_and_sampled():
    for schema in schemas():
        op, samples = schema.name, schema.sample_specs
        assert schema.summary and schema.summary[-1] in ".?", f"{op}: the first line is a sentence"
        assert schema.reference_fn is not None and samples, op
        assert list(schema.constraints) == [f"C{i + 1}" for i in range(len(schema.constraints))], op
        shapes = [s for sample in samples for s in sample["shapes"] if s is not None]
        if any(shapes) and op not in ("rng_advance", "random_permutation"):  # operands that have one shape
            shapes += [sample["attrs"].get("shape", ()) for sample in samples]
            assert any(0 in s for s in shapes), f"{op}: one sample is empty"


def test_the_error_describes_operands_and_where_they_come_from():
    class Named:
        spec, name, where = f32(4, 7), "hidden", "examples/mlp.py:14"

    with pytest.raises(TypeInferenceError) as caught:
        schema_of("reduce_sum").infer([Named()], {"axes": (2,), "keepdims": False})
    lines = str(caught.value).split("\n")
    assert lines[0] == "reduce_sum C1: axis 2 is not an integer in [-2, 2)"
    assert lines[1] == "  x (hidden): tensor<4x7xf32>  at examples/mlp.py:14"
    assert "aicf info reduce_sum" in lines[2]
