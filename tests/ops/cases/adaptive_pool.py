from . import f16, f32


def _sizes(sizes, said):
    return [f32(2, 4, 5, 6)], {"sizes": sizes}, rf"sizes is {said}, expected 2 integers from 1 on"


OPS = ("adaptive_avg_pool", "adaptive_max_pool")
NEGATIVE = {
    (op, constraint): cases
    for op in OPS
    for constraint, cases in (
        (
            "C1",
            [
                ([f32(*[2] * rank)], {"sizes": (1,)}, rf"x has rank {rank}, expected \(N, C, …\) with one to three spatial axes")
                for rank in (2, 6)
            ],
        ),
        ("C2", [_sizes((1,), r"\(1,\)"), _sizes((1, 0), r"\(1, 0\)"), _sizes((1, 1.0), r"\(1, 1\.0\)")]),
        ("C3", ([f32(2, 4, 0)], {"sizes": (1,)}, r"x has shape \(2, 4, 0\), expected elements along each spatial axis")),
    )
}  # fmt: skip
EXACT = {op: ([f16(2, 3, 7, 5)], {"sizes": (3, 9)}, [f16(2, 3, 3, 9)]) for op in OPS}
