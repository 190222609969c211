from . import boolean, f16, f32, i64

NEGATIVE = {
    ("dropout", "C1"): [
        ([f32(3), i64(2)], {"rate": 1.5, "layer": 0}, r"rate is 1\.5, expected 0 to 1"),
        ([f32(3), i64(2)], {"rate": -0.5, "layer": 0}, r"rate is -0\.5, expected 0 to 1"),
    ],
    ("dropout", "C2"): (
        [f32(3), i64(3)], {"rate": 0.5, "layer": 0}, r"rng has shape \(3,\), expected \(2,\): a key and a step",
    ),
    ("dropout", "C3"): [
        ([f32(3), i64(2)], {"rate": 0.5, "layer": -1}, r"layer is -1, expected 0 to 2\^32 - 1"),
        ([f32(3), i64(2)], {"rate": 0.5, "layer": 2**32}, r"layer is 4294967296, expected 0 to 2\^32 - 1"),
    ],
    ("rng_advance", "C2"): ([i64(2), boolean(1)], {}, r"valid has shape \(1,\), expected \(\)"),
    ("rng_advance", "C1"): ([i64(), boolean()], {}, r"rng has shape \(\), expected \(2,\): a key and a step"),
}  # fmt: skip

EXACT = {
    "dropout": ([f16(4, 7), i64(2)], {"rate": 0.5, "layer": 3}, [f16(4, 7)]),
    "rng_advance": ([i64(2), boolean()], {}, [i64(2)]),
}
