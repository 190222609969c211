from . import bf16, f32

NEGATIVE = {
    ("local_response_norm", "C1"): ([f32(4)], {"size": 2}, "x has rank 1, expected 2 or more"),
    ("local_response_norm", "C2"): ([f32(4, 2)], {"size": 0}, "size is 0, expected 1 or more"),
    ("local_response_norm", "C3"): [
        ([f32(4, 2)], {"size": 1, name: float("inf")}, f"{name} is inf, expected a finite number")
        for name in ("alpha", "beta", "k")
    ],
}
EXACT = {"local_response_norm": ([bf16(2, 7, 3, 3)], {"size": 5}, [bf16(2, 7, 3, 3)])}
