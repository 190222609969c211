"""Type rules on dimensions that are names: an answer that is right for every size, or an error that says what is unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aicf.errors import AicfError, AttrError, TypeInferenceError
from aicf.ops.schema import Float, op, schema_of, schemas, unregister
from aicf.types import TensorSpec

from .cases import boolean, f32, i64
from .sampling import name, operands, spec, types_of

SIZES = 1, 2, 3, 5, 64, 0
SAMPLES = [(schema, sample) for schema in schemas() for sample in schema.sample_specs]


def named(specs):
    """One dimension of one operand as a name; and all of one size as one name, one size after the other."""
    for i, s in enumerate(specs):
        for j in range(s.rank if s else 0):
            one = replace(s, shape=(*s.shape[:j], "n", *s.shape[j + 1 :]))
            yield [*specs[:i], one, *specs[i + 1 :]]
    for size in sorted({d for s in specs if s for d in s.shape}):
        yield [s and replace(s, shape=tuple("n" if d == size else d for d in s.shape)) for s in specs]


@pytest.mark.sample(2, each="schema")
@pytest.mark.spec("E3")
@pytest.mark.parametrize("schema, sample", SAMPLES, ids=name)
def test_a_rule_answers_for_every_size_or_says_that_it_can_t(schema, sample):
    arrays = operands(schema, sample, types_of(schema)[0])
    given = [None if a is None else spec(a) for a in arrays]
    attrs = schema.pack(schema.normalized(given, sample["attrs"]))
    for specs in named(given):
        try:
            results = schema.infer(specs, attrs)
        except TypeInferenceError:
            continue
        for n in SIZES:
            bound = schema.infer([s and s.bind({"n": n}) for s in specs], attrs)
            assert tuple(r.bind({"n": n}) for r in results) == bound, (specs, results, n)
        assert all(type(d) in (int, str) for r in results for d in r.shape)


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    "kind, specs, attrs, result",
    [
        ("relu", [f32("n", 4)], {}, f32("n", 4)), ("add", [f32("n", 4), f32(4)], {}, f32("n", 4)),
        ("add", [f32("n", 1), f32("n", 7)], {}, f32("n", 7)), ("add", [f32(1, 4), f32("n", 1)], {}, f32("n", 4)),
        ("less", [f32("n"), f32()], {}, boolean("n")), ("bias_add", [f32("n", 4), f32(4)], {}, f32("n", 4)),
        ("gemm", [f32("n", 64), f32(64, 10)], {}, f32("n", 10)), ("reduce_sum", [f32("n", 4)], {"axes": (1,)}, f32("n")),
        ("reduce_sum", [f32("n", 4)], {"axes": (0,)}, f32(4)), ("cross_entropy", [f32("n", 4), i64("n")], {}, f32("n")),
    ],
)  # fmt: skip
def test_what_a_name_decides_nothing_about_is_inferred(kind, specs, attrs, result):
    schema = schema_of(kind)
    assert schema.infer(specs, schema.pack(schema.normalized(specs, attrs)))[0] == result


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    "kind, specs, attrs",
    [
        ("add", [f32("n", 4), f32(5, 4)], {}), ("add", [f32("n"), f32("m")], {}), ("gemm", [f32(3, "n"), f32(64, 10)], {}),
        ("reshape", [f32("n", 4)], {"shape": (8, 2)}), ("reshape", [f32("n", "m")], {"shape": (8, 2)}),
    ],
)  # fmt: skip
def test_what_a_size_decides_is_refused_by_name(kind, specs, attrs):
    schema = schema_of(kind)
    with pytest.raises(AicfError) as error:
        schema.infer(specs, schema.pack(schema.normalized(specs, attrs)))
    text = str(error.value)
    assert 'spec.bind({"n": 32})'.replace('"', "'") in text and "nn" not in text, text


@pytest.mark.spec("E3")
@pytest.mark.parametrize(
    "shape",
    [
        lambda d: (d * 2,), lambda d: (2 * d,), lambda d: (d + d,), lambda d: (d // 2,), lambda d: (d % 2,), lambda d: (len(d),),
        lambda d: (d - 1,), lambda d: (1 - d,), lambda d: (int(d),), lambda d: (max(d, 1),), lambda d: (d,) if d else (),
        lambda d: (d,) if d == 4 else (), lambda d: (d,) if d != 4 else (), lambda d: tuple(range(d)), lambda d: (-d,),
        lambda d: (d if d in (1, 4) else 2,), lambda d: (d[0],), lambda d: tuple(d), lambda d: (round(d),),
    ],
)  # fmt: skip
def test_arithmetic_on_a_name_never_happens_by_accident(shape):
    """In an op of a user's own, whatever its rule does."""

    @op("named_dims_probe")
    def probe(x: Float):
        """x, of another shape."""
        return TensorSpec(shape(x.shape[0]), x.dtype)

    try:
        with pytest.raises(TypeInferenceError, match="depends on the size of n, which has none yet"):
            probe.infer([f32("n")], {})
    finally:
        unregister("named_dims_probe")


@pytest.mark.parametrize("shape", [("n",), (4, "n"), ("n", 4), ("n", "m")])
def test_a_spec_with_a_name_has_no_number_of_elements(shape):
    for ask in (lambda s: s.numel, lambda s: s.nbytes):
        with pytest.raises(AttrError, match="has no number of elements while n has no size") as error:
            ask(TensorSpec(shape))
        assert "spec.bind({'n': 32})" in str(error.value)
    assert TensorSpec(shape).bind({"n": 3, "m": 2}).numel in (3, 12, 6)
