from . import f16, f32, i32, i64


def _dot(message, a=None, b=None, **attrs):
    return [a or f32(2, 3), b or f32(3, 4)], attrs, message


def _einsum(equation, told, *xs):
    return list(xs), {"equation": equation}, rf"equation {equation!r}: {told}".replace("...", r"\.\.\.")


_A = r"axes \({}\) of a: expected integers in \[0, 2\), each once"
_B = r"axes \({}\) of b: expected integers in \[0, 2\), each once"

NEGATIVE = {
    ("dot_general", "C1"): _dot(r"batch_a \(0,\) and batch_b \(\) differ in length", batch_a=(0,)),
    ("dot_general", "C2"): _dot(r"contract_a \(0,\) and contract_b \(\) differ in length", contract_a=(0,)),
    ("dot_general", "C3"): [
        _dot(_A.format("2,"), contract_a=(2,), contract_b=(0,)), _dot(_A.format("-1,"), contract_a=(-1,), contract_b=(0,)),
        _dot(_A.format(r"1\.0,"), contract_a=(1.0,), contract_b=(0,)),
        _dot(_A.format("0, 0"), f32(2, 3), f32(2, 2), contract_a=(0,), contract_b=(0,), batch_a=(0,), batch_b=(1,)),
    ],
    ("dot_general", "C4"): [
        _dot(_B.format("2,"), contract_a=(1,), contract_b=(2,)), _dot(_B.format("-1,"), contract_a=(1,), contract_b=(-1,)),
        _dot(_B.format(r"0\.0,"), contract_a=(1,), contract_b=(0.0,)),
        _dot(_B.format("0, 0"), f32(2, 2), f32(2, 3), contract_a=(0,), contract_b=(0,), batch_a=(1,), batch_b=(0,)),
    ],
    ("dot_general", "C5"): [
        _dot("axis 0 of a has size 2, axis 0 of b 3", batch_a=(0,), batch_b=(0,)),
        _dot("axis 1 of a has size 3, axis 1 of b 4", b=f32(2, 4), batch_a=(0, 1), batch_b=(0, 1)),
    ],
    ("dot_general", "C6"): [
        _dot("axis 0 of a has size 2, axis 0 of b 3", contract_a=(0,), contract_b=(0,)),
        _dot("axis 1 of a has size 3, axis 1 of b 4", b=f32(2, 4), contract_a=(0, 1), contract_b=(0, 1)),
    ],
    ("einsum", "C1"): [
        _einsum("ij", "it has 1 operands, 2 are given", f32(2, 3), f32(3)),
        _einsum("ijk", "'ijk' has 3 axes, its operand 2", f32(2, 3)),
        _einsum("ii->i", "'ii' names an axis twice: a diagonal is taken by eye, mul and reduce_sum", f32(2, 2)),
        _einsum("i1->i", "'i1' is not of letters and one ellipsis", f32(2, 2)),
        _einsum("ij->ii", "'ii' names an axis twice", f32(2, 2)),
        _einsum("ij->k", "'k' has k, which no operand has", f32(2, 2)),
        _einsum("ij->i.j", "'i.j' is not of letters and one ellipsis", f32(2, 2)),
    ],
    ("einsum", "C2"): ([f32(2, 3), f32(4, 5)], {"equation": "ij,jk"}, r"axis j has size 4 in xs\[1\], 3 before"),
}  # fmt: skip
EXACT = {
    "dot_general": [
        ([f16(2, 3, 4), f16(4, 2, 5)], {"contract_a": (2,), "contract_b": (0,), "batch_a": (0,), "batch_b": (1,)}, [f16(2, 3, 5)]),
        ([i32(2), i32(3)], {}, [i32(2, 3)]),
    ],
    "einsum": [
        ([f32(2, 3), f32(3, 4)], {"equation": "ij,jk"}, [f32(2, 4)]),
        ([i64(2, 3, 4)], {"equation": "... k -> k ..."}, [i64(4, 2, 3)]),
    ],
}  # fmt: skip
