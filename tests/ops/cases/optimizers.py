from . import f32, i64


def steps(rng, shape, shapes):
    return rng.integers(1, 30, shape)


VALUES = {
    ("adam_correction", "step"): steps,
    ("adam_step", "v"): (0, 1),
    ("adam_step", "eps"): (1e-8, 1e-6),
    ("schedule_step", "step"): steps,
    ("schedule_cosine", "step"): steps,
    ("schedule_linear", "step"): steps,
    ("clip_scale", "norm2"): (0, 4),
}

_scalars = [i64(), f32()]
NEGATIVE = {
    ("schedule_step", "C2"): (
        _scalars, {"every": 0, "gamma": 0.5}, r"every is 0, expected at least 1",
    ),
    ("schedule_step", "C3"): (
        _scalars, {"every": 1, "gamma": -0.5}, r"gamma is -0\.5, expected at least 0",
    ),
    ("schedule_cosine", "C2"): (
        _scalars, {"warmup": 5, "total": 5}, r"warmup is 5 and total 5, expected 0 <= warmup < total",
    ),
    ("schedule_linear", "C2"): (
        _scalars, {"warmup": -1, "total": 5}, r"warmup is -1 and total 5, expected 0 <= warmup < total",
    ),
}  # fmt: skip
