from . import f32, i64

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
