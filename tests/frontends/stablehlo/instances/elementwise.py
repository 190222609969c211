"""Elementwise ops."""

from __future__ import annotations

from dataclasses import replace

from ..mlir_worker import Instance
from .making import ALL, COMPLEX, FLOATS, INTS, SIGNED, Maker, T, maker


def unary(names: str, elements: list[str]) -> None:
    @maker(*names.split())
    def _(m: Maker, name: str) -> Instance:
        x = m.loose(T(m.shape(), m.of(elements)))
        return Instance(name, [str(x)], {}, [str(m.loose(x))] if m.chance() else None)


def binary(names: str, elements: list[str]) -> None:
    @maker(*names.split())
    def _(m: Maker, name: str) -> Instance:
        x = T(m.shape(), m.of(elements))
        return Instance(
            name, [str(m.loose(x)), str(m.loose(x))], {}, [str(m.loose(x))] if m.chance() else None
        )


unary("ceil floor round_nearest_afz round_nearest_even", FLOATS)
unary("count_leading_zeros popcnt", INTS)
unary("negate", INTS + FLOATS + COMPLEX)
unary("not", ["i1", *INTS])
unary("sign", SIGNED + FLOATS + COMPLEX)
binary("atan2", FLOATS + COMPLEX)
binary("divide power remainder subtract", INTS + FLOATS + COMPLEX)
binary("maximum minimum multiply add", ALL)
binary("and or xor", ["i1", *INTS])
binary("shift_left shift_right_arithmetic shift_right_logical", INTS)


@maker(
    *[
        "cbrt",
        "cosine",
        "exponential",
        "exponential_minus_one",
        "log",
        "log_plus_one",
        "logistic",
        "rsqrt",
        "sine",
        "sqrt",
        "tan",
        "tanh",
    ]
)
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(), m.of(FLOATS + COMPLEX)))
    accuracy = f"#stablehlo.result_accuracy<ulps = {m.of([0, 10, -1])}, mode = #stablehlo.result_accuracy_mode<{m.of(['TOLERANCE', 'DEFAULT'])}>>"
    return Instance(
        name,
        [str(x)],
        {"result_accuracy": accuracy} if m.chance(0.2) else {},
        [str(x)] if m.chance() else None,
    )


@maker("abs", "real", "imag", "is_finite")
def _(m: Maker, name: str) -> Instance:
    elements = {"abs": SIGNED + FLOATS + COMPLEX, "is_finite": FLOATS}.get(name, FLOATS + COMPLEX)
    x = T(m.shape(), m.of(elements))
    made = replace(
        x, element="i1" if name == "is_finite" else x.element.removeprefix("complex<").removesuffix(">")
    )
    return Instance(name, [str(m.loose(x))], {}, [str(m.loose(made))] if m.chance() else None)


@maker("convert", "bitcast_convert")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    made = replace(x, element=m.of(ALL))
    if name == "bitcast_convert" and m.chance(0.8):
        narrow, wide = m.of(
            [
                ("i8", "f32"),
                ("f16", "i64"),
                ("i4", "i8"),
                ("f32", "complex<f64>"),
                ("i32", "f32"),
                ("complex<f32>", "complex<f64>"),
            ]
        )
        bits = {
            "i8": 8,
            "f32": 32,
            "f16": 16,
            "i64": 64,
            "i4": 4,
            "complex<f64>": 128,
            "i32": 32,
            "complex<f32>": 64,
        }
        more = bits[wide] // bits[narrow]
        x, made = replace(x, element=wide), T((*x.shape, more) if more > 1 else x.shape, narrow)
        if m.chance():
            x, made = made, x
    return Instance(name, [str(m.loose(x))], {}, [str(m.loose(made))])


@maker("reduce_precision")
def _(m: Maker, name: str) -> Instance:
    x = m.loose(T(m.shape(), m.of(FLOATS)))
    bits = {"exponent_bits": f"{m.of([1, 5, 8, 0])} : i32", "mantissa_bits": f"{m.of([0, 7, 23, -1])} : i32"}
    return Instance(name, [str(x)], bits, [str(x)] if m.chance() else None)


@maker("complex", "compare")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(["f32", "f64"] if name == "complex" else ALL))
    attributes = {}
    if name == "compare":
        attributes["comparison_direction"] = (
            f"#stablehlo<comparison_direction {m.of(['EQ', 'NE', 'GE', 'GT', 'LE', 'LT'])}>"
        )
        if m.chance():
            attributes["compare_type"] = (
                f"#stablehlo<comparison_type {m.of(['NOTYPE', 'FLOAT', 'TOTALORDER', 'SIGNED', 'UNSIGNED'])}>"
            )
    made = replace(x, element=f"complex<{x.element}>" if name == "complex" else "i1")
    return Instance(
        name, [str(m.loose(x)), str(m.loose(x))], attributes, [str(m.loose(made))] if m.chance() else None
    )


@maker("select", "clamp")
def _(m: Maker, name: str) -> Instance:
    x = T(m.shape(), m.of(ALL))
    scalar = replace(x, shape=())
    if name == "select":
        pred = replace(x, element="i1", shape=() if m.chance() else x.shape)
        operands = [pred, x, x]
    else:
        operands = [scalar if m.chance() else x, x, scalar if m.chance() else x]
    return Instance(name, [str(m.loose(t)) for t in operands], {}, [str(m.loose(x))] if m.chance() else None)
