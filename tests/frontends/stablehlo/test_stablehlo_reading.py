"""Modules as text, as portable artifacts and from JAX; what is refused, and how: damaged, hostile and unknown ones."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import export  # noqa: E402
from jax import numpy as jnp  # noqa: E402

import aicf  # noqa: E402
from aicf.errors import DeviceError, FeedError, FrontendError  # noqa: E402
from aicf.frontends.stablehlo import loops, read, run_module  # noqa: E402

SPEC = jax.ShapeDtypeStruct((3, 4), jnp.float32)
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def main(body, arguments="%x: tensor<3x4xf32>", results="tensor<3x4xf32>", more=""):
    return f"module {{ func.func @main({arguments}) -> {results} {{ {body} }} {more} }}"


def test_every_way_to_give_a_module():
    lowered = jax.jit(lambda x: jnp.tanh(x) * 2).lower(SPEC)
    exported = export.export(jax.jit(lambda x: jnp.tanh(x) * 2))(SPEC)
    given = (
        lowered,
        lowered.as_text(),
        lowered.compiler_ir("stablehlo"),
        exported,
        exported.mlir_module_serialized,
    )
    for source in given:
        (made,) = run_module(source, [X])
        np.testing.assert_allclose(made, np.tanh(X) * 2, rtol=1e-6)


def test_a_module_is_a_model():
    model = read(jax.jit(lambda weights, x: {"y": x @ weights}).lower(jnp.ones((4, 5)), SPEC))
    assert list(model.inputs) == ["weights", "x"]
    assert str(model.outputs["output.0"]) == "tensor<3x5xf32>"
    assert "gemm" in str(aicf.explain_for(model, "h200"))
    program = aicf.compile(model, device="cpu")
    np.testing.assert_array_equal(
        program({"weights": np.ones((4, 5), "f"), "x": X})["output.0"], X @ np.ones((4, 5))
    )


def test_calls_are_inlined_and_names_are_kept_apart():
    text = main(
        "%0 = func.call @f(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32> %1 = func.call @f(%0) : (tensor<3x4xf32>) -> tensor<3x4xf32> "
        "return %1 : tensor<3x4xf32>",
        more="func.func private @f(%a: tensor<3x4xf32>) -> tensor<3x4xf32> "
        "{ %0 = stablehlo.add %a, %a : tensor<3x4xf32> return %0 : tensor<3x4xf32> }",
    )
    np.testing.assert_array_equal(run_module(text, [X])[0], X * 4)


def test_composites_are_what_they_are_made_of():
    text = main(
        '%0 = stablehlo.composite "my.double" %x {decomposition = @f} : (tensor<3x4xf32>) -> tensor<3x4xf32> return %0 : tensor<3x4xf32>',
        more="func.func private @f(%a: tensor<3x4xf32>) -> tensor<3x4xf32> "
        "{ %0 = stablehlo.add %a, %a : tensor<3x4xf32> return %0 : tensor<3x4xf32> }",
    )
    np.testing.assert_array_equal(run_module(text, [X])[0], X * 2)


def test_results_that_are_arguments_or_returned_twice():
    made = run_module(
        main(
            "return %x, %x : tensor<3x4xf32>, tensor<3x4xf32>", results="(tensor<3x4xf32>, tensor<3x4xf32>)"
        ),
        [X],
    )
    for array in made:
        np.testing.assert_array_equal(array, X)


@pytest.mark.parametrize(
    "kind, array",
    [("bf16", [1.5, np.nan, -np.inf]), ("f8E4M3FN", [1.5, -448.0, 0.25]), ("f16", [1e-7, 2, 65504])],
)
def test_constants_of_narrow_floats(kind, array):
    dtype = {"bf16": aicf.bf16, "f8E4M3FN": aicf.f8e4m3, "f16": aicf.f16}[kind].numpy
    few = np.array(array).astype(dtype)
    for elements in (few, np.resize(few, 300)):
        packed = elements.tobytes().hex().upper()
        kept = f"tensor<{elements.size}x{kind}>"
        text = main(f'%c = stablehlo.constant dense<"0x{packed}"> : {kept} return %c : {kept}', "", kept)
        np.testing.assert_array_equal(run_module(text, [])[0].astype(np.float32), elements.astype(np.float32))


def test_everything_that_is_missing_is_in_one_error_with_its_lines():
    def f(x):
        q, _ = jnp.linalg.qr(x)
        return jnp.fft.fft(x[0]).real, q, jnp.fft.fft(x[1]).imag

    with pytest.raises(FrontendError) as refused:
        read(jax.jit(f).lower(SPEC))
    said = str(refused.value)
    assert "2 x stablehlo.fft" in said and "custom_call @" in said and f"{__file__}:" in said


def test_what_nothing_reads_is_not_asked_for():
    text = main("%0 = stablehlo.cholesky %c, lower = true : tensor<3x3xf32> return %x : tensor<3x4xf32>",
                "%x: tensor<3x4xf32>, %c: tensor<3x3xf32>")  # fmt: skip
    np.testing.assert_array_equal(run_module(text, [X, np.ones((3, 3), "f")])[0], X)


GOOD = main("%0 = stablehlo.add %x, %x : tensor<3x4xf32> return %0 : tensor<3x4xf32>")
LAUGHS = "module { func.func @main(%x: tensor<f32>) -> tensor<f32> { %0 = func.call @f0(%x) : (tensor<f32>) -> tensor<f32> return %0 : tensor<f32> } "
for _n in range(60):
    _inner = f"func.call @f{_n + 1}" if _n < 59 else "stablehlo.abs"
    _types = "(tensor<f32>) -> tensor<f32>" if _n < 59 else "tensor<f32>"
    _operand = ("(%x)", "(%0)") if _n < 59 else (" %x", " %0")
    LAUGHS += (
        f"func.func private @f{_n}(%x: tensor<f32>) -> tensor<f32> {{ %0 = {_inner}{_operand[0]} : {_types} "
        f"%1 = {_inner}{_operand[1]} : {_types} return %1 : tensor<f32> }} "
    )

LAUGHS += "}"
HOSTILE = {
    "nothing": ("", "no function to run"),
    "no text": ("hello", "can't be parsed"),
    "half": (GOOD[: len(GOOD) // 2], "can't be parsed"),
    "an unknown dialect": (main("%0 = evil.op %x : tensor<3x4xf32> return %0 : tensor<3x4xf32>"), "can't be parsed"),
    "another type": (main("%0 = stablehlo.add %x, %x : tensor<3x5xf32> return %0 : tensor<3x5xf32>"), "can't be parsed"),
    "a wrong result": (main("return %x : tensor<3x4xf32>", results="tensor<4x3xf32>"), "can't be parsed"),
    "brackets": ("(" * 100_000, "nests brackets"),
    "types in types": (main("return %x : " + "tuple<" * 100_000), "nests brackets"),
    "2^80 elements": (GOOD.replace("3x4", "1099511627776x1099511627776"), "bytes"),
    "2^45 elements": (main("%0 = stablehlo.iota dim = 0 : tensor<35184372088832xf32> return %0 : tensor<35184372088832xf32>",
                           "", "tensor<35184372088832xf32>"), "bytes"),
    "2^40 elements": (main("%0 = stablehlo.constant dense<true> : tensor<1099511627776xi1> return %0 : tensor<1099511627776xi1>",
                           "", "tensor<1099511627776xi1>"), "bytes"),
    "an open size": (GOOD.replace("3x4", "?x4"), r"sizes that are open: tensor<\?x4xf32>"),
    "complex numbers": (GOOD.replace("f32", "complex<f32>"), "lacks the element type complex<f32>"),
    "a circle": (main("%0 = func.call @f(%x) : (tensor<3x4xf32>) -> tensor<3x4xf32> return %0 : tensor<3x4xf32>",
                      more="func.func private @f(%x: tensor<3x4xf32>) -> tensor<3x4xf32> { %0 = func.call @f(%x) : (tensor<3x4xf32>) -> "
                      "tensor<3x4xf32> return %0 : tensor<3x4xf32> }"), "in a circle"),
    "a billion laughs": (LAUGHS, "too large"),
    "several devices": (GOOD.replace("module {", "module attributes {mhlo.num_partitions = 8 : i32} {"), "several devices"),
    "bytes": (b"\x00" * 64, "no StableHLO module"),
    "no bytes": (b"", "no StableHLO module"),
    "bytes that begin well": (b"ML\xefR\rStableHLO_v1.17" + b"\xff" * 64, "can't be parsed"),
    "an object": (42, "a int is no StableHLO module"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_module_is_one_clear_error(name):
    source, said = HOSTILE[name]
    with pytest.raises(FrontendError, match=said):
        read(source)


def test_loops_end_whatever_they_say(monkeypatch):
    monkeypatch.setattr(loops, "MAX_TURNS", 1000)  # counting 100,000 turns takes a while
    forever = jax.jit(
        lambda x: x + jax.lax.while_loop(lambda c: c[1] < 2, lambda c: (c[0] + 1, c[1] * 1), (0.0, 1))[0]
    )
    explained = aicf.explain_for(
        read(forever.lower(SPEC)), "cpu"
    )  # reading ends; the loop would not, as under XLA
    assert "while_loop" in [op.kind.name for r in explained.regions for op in r.spec.ops]


def test_a_long_chain_of_constants_is_computed():
    chain = "".join(f"%{n + 1} = stablehlo.add %{n}, %{n} : tensor<i32> " for n in range(3000))
    text = main(
        f"%0 = stablehlo.constant dense<0> : tensor<i32> {chain} %y = stablehlo.dynamic_slice %x, %3000, %3000, sizes = [1, 4] : "
        "(tensor<3x4xf32>, tensor<i32>, tensor<i32>) -> tensor<1x4xf32> return %y : tensor<1x4xf32>", results="tensor<1x4xf32>",
    )  # fmt: skip
    assert [n for n in str(aicf.explain_for(read(text), "h200")).split() if n == "gather"] == []


def test_an_artifact_cut_anywhere_is_refused():
    whole = export.export(jax.jit(lambda x: jnp.tanh(x) * 2))(SPEC).mlir_module_serialized
    for length in range(4, len(whole), len(whole) // 12):
        with pytest.raises(FrontendError, match="can't be parsed"):
            read(whole[:length])


def test_inputs_are_counted_and_checked():
    with pytest.raises(FeedError, match="another number of inputs"):
        run_module(GOOD, [])
    with pytest.raises(FeedError, match="3x4"):
        run_module(GOOD, [X.T])


def test_what_does_not_fit_into_memory_is_one_error():
    kind = "tensor<137438953472xf32>"  # half of what is refused while the module is read
    text = main(f"%0 = stablehlo.constant dense<1.0> : {kind} return %0 : {kind}", "", kind)
    with pytest.raises(DeviceError, match="the host has no memory of 549755813888 bytes"):
        run_module(text, [])


def test_elements_that_the_bindings_can_t_read_are_refused_as_others():
    kind = "tensor<2xcomplex<f64>>"
    with pytest.raises(FrontendError, match="lacks the element type complex<f64>"):
        run_module(
            main(
                f"%0 = stablehlo.constant dense<[(1.0, 2.0), (3.0, 4.0)]> : {kind} return %0 : {kind}",
                "",
                kind,
            ),
            [],
        )
