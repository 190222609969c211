from . import f32, i64

_scalars = [i64(), f32()]
NEGATIVE = {
    ("schedule_step", "C2"): (
        _scalars, {"every": 0, "gamma": 0.5}, r"every is 0, expected at least 1",
    ),
    ("schedule_step", "C3"): (
        _scalars, {"every": 1, "gamma": -0.5}, r"gamma is -0\.5, expected at least 0",
    ),
}  # fmt: skip
for _op in ("schedule_cosine", "schedule_linear"):
    NEGATIVE[_op, "C2"] = [
        (
            _scalars,
            {"warmup": warmup, "total": 5},
            rf"warmup is {warmup} and total 5, expected 0 <= warmup < total",
        )
        for warmup in (5, -1)
    ]
