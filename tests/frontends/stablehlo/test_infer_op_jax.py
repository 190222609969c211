"""`infer_op` on every operation of functions that JAX lowers: types, attributes and bodies as MLIR prints them, in its generic and its short forms."""

import re
from collections import Counter

import numpy as np
import pytest

jax = pytest.importorskip("jax")
from jax import lax  # noqa: E402
from jax import numpy as jnp  # noqa: E402

from aicf.errors import TypeInferenceError  # noqa: E402
from aicf.frontends.stablehlo import infer_op  # noqa: E402
from aicf.frontends.stablehlo.typing.scanner import Scanner  # noqa: E402

from .test_stablehlo_rules import FUNCTIONS  # noqa: E402

X = np.ones((4, 8), np.float32)


def step(x, w):
    def body(carry):
        i, h = carry
        h = jnp.tanh(h @ w) * jnp.where(h > 0, h, -h) + jax.nn.softmax(h)
        h = jnp.sort(h.at[i % 4].add(1.0), axis=0)[::-1]
        h = lax.cond(h.sum() > 0, lambda v: v * 2, lambda v: jnp.flip(v), h)
        return i + 1, h + jnp.pad(h, ((0, 0), (1, 0)))[:, :-1] + lax.dynamic_slice(h, (i, 0), h.shape)

    return lax.while_loop(lambda c: (c[0] < 5) & (c[1].sum() < 100), body, (0, x))


MORE = {
    "a loop": (step, X, np.ones((8, 8), np.float32)),
    "a scan": (lambda x: lax.scan(lambda c, r: (c + r, (c * r).sum()), x[0], x), X),
    "branches": (lambda i, x: lax.switch(i, [jnp.sin, jnp.cos, lambda v: v[::-1]], x), np.int32(1), X),
    "windows": (
        lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME"), lax.reduce_window(x, 0.0, lax.add, (2, 1), (1, 1), "VALID")), X,
    ),
    "a pool's gradient": (jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (1, 1), "VALID").sum()), X),
    "convolutions": (
        jax.grad(lambda w, x: lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2), feature_group_count=2).sum()),
        np.ones((4, 1, 3, 3), np.float32), np.ones((2, 2, 8, 9), np.float32),
    ),
    "linear algebra": (lambda x: (jnp.linalg.cholesky(x @ x.T), jnp.fft.rfft(x), jnp.fft.ifft(x.astype(complex)).real, x.view(jnp.int32)), X),
    "several results": (lambda x: (lax.top_k(x, 3), lax.sort((x, x), num_keys=2), lax.reduce((x, x), (0.0, 1.0), lambda a, b: (a[0] + b[0], a[1] * b[1]), (0,))), X),
    "random numbers": (lambda k: (jax.random.normal(k, (3, 4)), jax.random.permutation(k, 7)), np.zeros(2, np.uint32)),
}  # fmt: skip


def operations(function, arguments):
    """All operations of StableHLO in a lowered function, those inside of bodies, too."""
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")

    def walk(op):
        for region in op.regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield inner.operation
                    yield from walk(inner.operation)

    with module.context:
        yield from (
            op
            for op in walk(module.operation)
            if op.name.startswith("stablehlo.") and op.name != "stablehlo.return"
        )


def bodies_of(text: str) -> list[str] | None:
    """The text of each body of an operation that stands in MLIR's generic form; None if it does not."""
    found = re.search(r'(?:= )?"stablehlo\.\w+"', text)
    if found is None or found.start() > 200:
        return None
    s = Scanner(text)
    s.skip(found.end() - s.pos)
    s.balanced()
    if s.take("<"):
        s.balanced()
        s.expect(">")
    made = []
    if s.sees("("):
        s.take("(")
        while not s.take(")"):
            made.append(s.balanced())
            s.take(",")
    return made


def test_every_operation_that_jax_makes_is_typed():
    seen, bodied = Counter(), Counter()
    for name, (function, *arguments) in {**FUNCTIONS, **MORE}.items():
        for op in operations(function, arguments):
            operands, results = ([str(v.type) for v in values] for values in (op.operands, op.results))
            attributes = {n if isinstance(n, str) else n.name: None for n in op.attributes}
            try:
                attributes = {key: str(op.attributes[key]) for key in attributes}
            except TypeError:
                continue  # elements that the bindings can't read
            forms = (
                [bodies_of(op.get_asm(print_generic_op_form=True)), bodies_of(op.get_asm())]
                if len(op.regions)
                else [None]
            )
            for bodies in forms:
                if len(op.regions) and bodies is None:
                    continue
                if op.name == "stablehlo.custom_call":
                    continue
                try:
                    assert infer_op(op.name, operands, attributes, results, bodies) == results
                except TypeInferenceError as refused:
                    raise AssertionError(f"{name}: {str(op)[:1000]}") from refused
                seen[op.name] += 1
                bodied[op.name] += bodies is not None
    assert len(seen) > 55 and sum(seen.values()) > 1000
    assert {"stablehlo.while", "stablehlo.case", "stablehlo.sort", "stablehlo.scatter", "stablehlo.reduce", "stablehlo.reduce_window",
            "stablehlo.select_and_scatter"} <= set(+bodied)  # fmt: skip


def test_short_forms_inside_of_bodies_are_read_and_checked():
    function, *arguments = MORE["a loop"]
    (loop,) = [op for op in operations(function, arguments) if op.name == "stablehlo.while"]
    text = loop.get_asm()
    types = [str(v.type) for v in loop.operands]
    names = re.findall(r"(%iterArg\w*) =", text)
    head = f"^bb0({', '.join(f'{name}: {type}' for name, type in zip(names, types))}):"
    condition, body = (
        text[text.index("cond {") + 6 : text.index("} do {")],
        text[text.index("} do {") + 6 : text.rindex("}")],
    )
    bodies = [head + condition, head + body]
    assert infer_op("while", types, {}, types, bodies) == types
    assert "stablehlo.slice %" in body and "[0:4, 0:8]" in body
    with pytest.raises(TypeInferenceError) as refused:
        infer_op("while", types, {}, types, [bodies[0], bodies[1].replace("[0:4, 0:8]", "[0:4, 0:80]")])
    assert (refused.value.op, refused.value.constraint) == ("stablehlo.slice", "C3")
    with pytest.raises(TypeInferenceError, match="used as"):
        infer_op(
            "while",
            types,
            {},
            types,
            [bodies[0], re.sub(r"(stablehlo.tanh %\d+ : tensor<4x)8", r"\g<1>9", bodies[1])],
        )
