"""Control flow, tuples, tokens, norms, linear algebra and random numbers."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .making import ALL, COMPLEX, FLOATS, INTS, Maker, T, i64, ints, maker

TOKEN = "!stablehlo.token"


def _value(m: Maker) -> str:
    return TOKEN if m.chance(0.15) else str(m.loose(T(m.shape(0, 3), m.of(ALL))))


def _loosened(m: Maker, types: list[str]) -> list[str]:
    return [type.replace("2x", "?x", 1) if "bounds" not in type and m.chance(0.2) else type for type in types]


def _returned(types: list[str]) -> str:
    names = [f"%v{n}" for n in range(len(types))]
    ops = " ".join(
        f'{name} = "builtin.unrealized_conversion_cast"() : () -> {type}' for name, type in zip(names, types)
    )
    return f'{ops} "stablehlo.return"({", ".join(names)}) : ({", ".join(types)}) -> ()'


@maker("while")
def _(m: Maker, name: str) -> Instance:
    types = [_value(m) for _ in range(m.rng.randint(0, 3))]

    def arguments() -> str:
        return ", ".join(f"%x{n}: {type}" for n, type in enumerate(_loosened(m, types)))

    cond = f"^bb0({arguments()}): {_returned(['tensor<i1>'])}"
    body = f"^bb0({arguments()}): {_returned(_loosened(m, types))}"
    return Instance(name, types, {}, types, [cond, body]) if m.chance(0.8) else Instance(name, types, {})


@maker("if", "case")
def _(m: Maker, name: str) -> Instance:
    types = [_value(m) for _ in range(m.rng.randint(0, 3))]
    bodies = [_returned(_loosened(m, types)) for _ in range(2 if name == "if" else m.rng.randint(1, 3))]
    return Instance(name, ["tensor<i1>" if name == "if" else "tensor<i32>"], {}, _loosened(m, types), bodies)


@maker("tuple", "optimization_barrier")
def _(m: Maker, name: str) -> Instance:
    types = [_value(m) for _ in range(m.rng.randint(0, 3))]
    if name == "tuple" and m.chance(0.3):
        types.append(f"tuple<{', '.join(types)}>")
    made = [f"tuple<{', '.join(types)}>"] if name == "tuple" else types
    return Instance(name, types, {}, made if m.chance() or not types else None)


@maker("get_tuple_element")
def _(m: Maker, name: str) -> Instance:
    types = [_value(m) for _ in range(m.rng.randint(1, 3))]
    index = m.rng.randrange(len(types))
    return Instance(name, [f"tuple<{', '.join(types)}>"], {"index": f"{index} : i32"}, [types[index]])


@maker("after_all", "create_token")
def _(m: Maker, name: str) -> Instance:
    operands = [TOKEN] * (m.rng.randint(0, 3) if name == "after_all" else 0)
    return Instance(name, operands, {}, [m.of([TOKEN, TOKEN, "tensor<f32>"])])


@maker("replica_id", "partition_id")
def _(m: Maker, name: str) -> Instance:
    return Instance(name, [], {}, [m.of(["tensor<ui32>", "tensor<ui32>", "tensor<i32>", "tensor<2xui32>"])])


@maker("batch_norm_grad", "batch_norm_inference", "batch_norm_training")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(1, 4), m.of(FLOATS))
    axis = m.rng.randrange(len(x.shape))
    row = T((x.shape[axis],), x.element)
    rows = {"batch_norm_grad": 3, "batch_norm_inference": 4, "batch_norm_training": 2}[name]
    operands = [str(m.loose(x)), *(str(m.loose(row)) for _ in range(rows))]
    if name == "batch_norm_grad":
        operands.append(str(m.loose(x)))
    made = [x] if name == "batch_norm_inference" else [x, row, row]
    given = {"epsilon": f"0.01 : {m.of(['f32', 'f32', 'f32', 'f32', 'f64'])}", "feature_index": i64(axis)}
    return Instance(
        name,
        operands,
        given,
        [str(m.loose(t)) for t in made] if m.chance() or "f64" in given["epsilon"] else None,
    )


@maker("cholesky", "triangular_solve")
def _(m: Maker, name: str) -> Instance:
    n, batch = m.size(), m.shape(0, 2)
    a = T((*batch, n, n), m.of(FLOATS + COMPLEX))
    if name == "cholesky":
        return Instance(
            name,
            [str(m.loose(a))],
            {"lower": m.of(["true", "false"])} if m.chance() else {},
            [str(m.loose(a))] if m.chance() else None,
        )
    left = m.chance()
    b = replace(a, shape=(*batch, n, m.size()) if left else (*batch, m.size(), n))
    given = {
        "left_side": str(left).lower(), "lower": "true", "unit_diagonal": "false",
        "transpose_a": f"#stablehlo<transpose {m.of(['NO_TRANSPOSE', 'TRANSPOSE', 'ADJOINT', 'TRANSPOSE_INVALID'])}>",
    }  # fmt: skip
    return Instance(
        name, [str(m.loose(a)), str(m.loose(b))], given, [str(m.loose(b))] if m.chance() else None
    )


@maker("fft")
def _(m: Maker, name: str) -> Instance:
    kind, count = m.of(["FFT", "IFFT", "RFFT", "IRFFT"]), m.rng.randint(1, 3)
    shape, part = m.shape(0, 1), m.of(["f32", "f64"])
    lengths = [m.rng.randint(1, 6) for _ in range(count)]
    half = [*lengths[:-1], lengths[-1] // 2 + 1]
    whole, short = T((*shape, *lengths), part), T((*shape, *half), f"complex<{part}>")
    x, y = {"RFFT": (whole, short), "IRFFT": (short, whole)}.get(
        kind, (replace(whole, element=f"complex<{part}>"),) * 2
    )
    given = {"fft_type": f"#stablehlo<fft_type {kind}>", "fft_length": ints(lengths)}
    return Instance(name, [str(m.loose(x))], given, [str(m.loose(y))] if m.chance() else None)


@maker("rng")
def _(m: Maker, name: str) -> Instance:
    kind = m.of(["UNIFORM", "NORMAL"])
    element = m.of(FLOATS if kind == "NORMAL" else [*FLOATS, *INTS, "i1"])
    count = m.rng.randint(0, 4)
    operands = [f"tensor<{element}>"] * 2 + [f"tensor<{count}x{m.of(['i64', 'index'])}>"]
    made = [str(T(tuple(m.size() for _ in range(count)), element))] if m.chance() else None
    return Instance(name, operands, {"rng_distribution": f"#stablehlo<rng_distribution {kind}>"}, made)


@maker("rng_bit_generator")
def _(m: Maker, name: str) -> Instance:
    state = T((m.of([2, 3]),), m.of(["ui64", "ui32"]))
    given = {"rng_algorithm": f"#stablehlo<rng_algorithm {m.of(['DEFAULT', 'THREE_FRY', 'PHILOX'])}>"}
    return Instance(
        name, [str(m.loose(state))], given, [str(m.loose(state)), str(T(m.shape(), m.of(INTS + FLOATS)))]
    )


@maker("einsum", "unary_einsum", "torch_index_select")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(), m.of(ALL)))
    operands = [str(x)] * (1 if name == "unary_einsum" else 2)
    given = (
        {"dim": i64(0), "batch_dims": i64(0)}
        if name == "torch_index_select"
        else {"einsum_config": '"ab,bc->ac"'}
    )
    return Instance(name, operands, given, [str(x)])
