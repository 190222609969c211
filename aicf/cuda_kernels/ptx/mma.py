"""Matrices in a warp's registers: products, loads and stores of 8 x 8 tiles of halves. PTX ISA, chapter "Warp Level Matrix
Multiply-Accumulate Instructions"."""

from __future__ import annotations

from typing import Any

from ...types import DType, bf16, f16
from ..dsl import deferred, intrinsic, ir, types
from ..llvm import const
from .assemble import assemble, instruction
from .copy import Place, moved

# Where a warp's fragments of 16 rows x 32 bytes of k lie: for each step along k, for each of them, one place of an
# ldmatrix.x4, or four of numbers.
Places = tuple[tuple[tuple[Place, ...], ...], ...]

# Of each kind of product: k of its instruction, type of its operands, and how many instructions 32 bytes of k take. "f16k8": of f16 on sm_75.
PRODUCTS = {
    "f16": (16, "f16", 1), "bf16": (16, "bf16", 1), "tf32": (8, "tf32", 1), "tf32x3": (8, "tf32", 1), "f16k8": (8, "f16", 2),
}  # fmt: skip


def multiply_tile(builder: Any, kind: str, a: list[Any], b: list[Any], acc: list[Any]) -> list[Any]:
    """One instruction: the four 16 x 8 accumulators plus a b. a: four registers and b: two, or half as many for k = 8 of halves."""
    k, name, _ = PRODUCTS[kind]
    args = [*a, *b, *acc]
    names = iter([f"${i}" for i in range(4 + len(args))])
    groups = ", ".join("{" + ",".join(next(names) for _ in x) + "}" for x in (acc, a, b, acc))
    text = f"mma.sync.aligned.m16n8k{k}.row.col.f32.{name}.{name}.f32 {groups};"
    constraints = ",".join(["=f"] * 4 + ["r"] * (len(a) + len(b)) + ["f"] * 4)
    four = ir.LiteralStructType([ir.FloatType()] * 4)
    result = assemble(builder, text, constraints, four, args, together=True)
    return [builder.extract_value(result, i) for i in range(4)]


def k_halves(kind: str, words: list[Any]) -> list[list[Any]]:
    """The registers of a fragment for each instruction that multiplies it, along k."""
    count = len(words) // PRODUCTS[kind][2]
    return [words[i : i + count] for i in range(0, len(words), count)]


def fragment_text(transposed: bool) -> str:
    return f"ldmatrix.sync.aligned.m8n8.x4{'.trans' * transposed}.shared.b16 {{$0,$1,$2,$3}}, [$4];"


@deferred
def read_fragments(a: Places, b: Places, a_transposed: bool, b_transposed: bool) -> Any:
    """`read(a_at, b_at)`: the fragments of the first step, four words each, a's and then b's; see `multiply_steps`.
    `ldmatrix.x4`; of f32 that is MN-major `ld.shared`. sm_75."""

    @intrinsic
    def read(typing, a_at, b_at):
        def codegen(ctx, builder, sig, args):
            words = _load(builder, args[0], a[0], a_transposed) + _load(builder, args[1], b[0], b_transposed)
            return ctx.make_tuple(builder, sig.return_type, words)

        return types.UniTuple(types.uint32, _words(a, b))(types.uint32, types.uint32), codegen

    return read


@deferred
def multiply_steps(kind: str, a: Places, b: Places, a_transposed: bool, b_transposed: bool) -> Any:
    """`multiply(acc, fragments, a_at, b_at)`: (acc + a b over all steps but the last one, whose fragments are the second part).

    kind         "f16" or "bf16": m16n8k16. "f16k8": two m16n8k8 of f16 for each of those, sm_75. "tf32": m16n8k8, operands rounded to
                 nearest as they are read, halves away from zero. "tf32x3": three such products of what is rounded and of what that
                 leaves, the smaller ones first
    a, b         where fragments of 16 rows lie; b's are two tiles of 8 columns each
    a_at, b_at   this thread's addresses, as `mma_slices.Fragments.lane` says
    fragments    of the first step
    acc          four f32 per 16 x 8 tile; tiles row-major

    The next step's fragments are on their way while one's are multiplied. `mma.sync`, `cvt.rna.tf32.f32`; sm_80, "f16k8" sm_75.
    """

    @intrinsic
    def multiply(typing, acc, fragments, a_at, b_at):
        def codegen(ctx, builder, sig, args):
            values = [builder.extract_value(args[0], i) for i in range(len(sig.args[0]))]
            words = [builder.extract_value(args[1], i) for i in range(len(sig.args[1]))]
            for a_places, b_places in zip(a[1:], b[1:]):
                coming = _load(builder, args[2], a_places, a_transposed)
                coming += _load(builder, args[3], b_places, b_transposed)
                values = _products(builder, kind, values, words, len(a[0]))
                words = coming
            pair = ctx.make_tuple(builder, acc, values), ctx.make_tuple(builder, fragments, words)
            return ctx.make_tuple(builder, sig.return_type, pair)

        return types.Tuple((acc, fragments))(acc, fragments, types.uint32, types.uint32), codegen

    return multiply


# Of `multiply_words`: for each slice of 16 along k, for each tile, the registers of its fragment: a word as it is, or
# (x, y, half): the lower (0) or upper (1) halves of two words.
Words = tuple[tuple[tuple[Any, ...], ...], ...]


@deferred
def multiply_fragments(kind: str, rows: int) -> Any:
    """`multiply(acc, fragments)`: acc + a b of the fragments that were read, `rows` of a and the others of b. `mma.sync`,
    sm_80, "f16k8" sm_75."""

    @intrinsic
    def multiply(typing, acc, fragments):
        def codegen(ctx, builder, sig, args):
            values, words = (
                [builder.extract_value(arg, i) for i in range(len(kinds))]
                for arg, kinds in zip(args, sig.args)
            )
            return ctx.make_tuple(builder, acc, _products(builder, kind, values, words, rows))

        return acc(acc, fragments), codegen

    return multiply


@deferred
def read_operand(a: Places) -> Any:
    """`read(a_at)`: all of an operand's fragments, for `multiply_words_steps`. `ldmatrix.x4`, sm_75."""

    @intrinsic
    def read(typing, a_at):
        def codegen(ctx, builder, sig, args):
            steps = [_load(builder, args[0], places, False) for places in a]
            words = [w for i in range(0, len(steps[0]), 4) for step in steps for w in step[i : i + 4]]
            return ctx.make_tuple(builder, sig.return_type, words)

        return types.UniTuple(types.uint32, 4 * len(a) * len(a[0]))(types.uint32), codegen

    return read


@deferred
def multiply_words_steps(kind: str, b: Places, b_transposed: bool) -> Any:
    """`multiply(acc, words, b_at)`: acc + a b over all steps, of an `a` that lies in registers.

    words  of halves: four for each fragment of 16 x 16, along k, then for the next 16 rows: as `read_operand` reads them, and as accumulators
           of another product are once they are packed
    b      as for `multiply_steps`; each fragment is on its way while the one before it is multiplied
    `mma.sync`, sm_80, "f16k8" sm_75
    """
    order = [(s, j) for s in range(len(b)) for j in range(len(b[0]))]

    @intrinsic
    def multiply(typing, acc, words, b_at):
        def codegen(ctx, builder, sig, args):
            values, a = (
                [builder.extract_value(arg, i) for i in range(len(kinds))]
                for arg, kinds in zip(args, sig.args[:2])
            )
            rows, columns = len(a) // (4 * len(b)), 2 * len(b[0])
            coming = _load(builder, args[2], (b[0][0],), b_transposed)
            for (step, j), following in zip(order, [*order[1:], None]):
                now = coming
                if following:
                    coming = _load(builder, args[2], (b[following[0]][following[1]],), b_transposed)
                for row in range(rows):
                    left = k_halves(kind, a[4 * (row * len(b) + step) :][:4])
                    for half in range(2):
                        tile = slice(first := 4 * (row * columns + 2 * j + half), first + 4)
                        for x, y in zip(left, k_halves(kind, now[2 * half : 2 * half + 2])):
                            values[tile] = multiply_tile(builder, kind, x, y, values[tile])
            return ctx.make_tuple(builder, sig.return_type, values)

        return acc(acc, words, types.uint32), codegen

    return multiply


def _words(a: Places, b: Places) -> int:
    return 4 * (len(a[0]) + len(b[0]))


def _load(builder: Any, base: Any, fragments: tuple[tuple[Place, ...], ...], transposed: bool) -> list[Any]:
    word, words = ir.IntType(32), []
    for places in fragments:
        at = [moved(builder, base, place) for place in places]
        if len(places) == 1:
            four = ir.LiteralStructType([word] * 4)
            text = fragment_text(transposed)
            loaded = assemble(builder, text, "=r,=r,=r,=r,r,~{memory}", four, at, True, True)
            words += [builder.extract_value(loaded, i) for i in range(4)]
        else:
            words += [
                assemble(builder, "ld.shared.b32 $0, [$1];", "=r,r,~{memory}", word, [x], True) for x in at
            ]
    return words


def _products(builder: Any, kind: str, values: list[Any], words: list[Any], rows: int) -> list[Any]:
    """All products of a step. Those of the same accumulators come one after another with all others between them."""
    values, columns = list(values), (len(words) - 4 * rows) // 2
    for term in _terms(builder, kind, words, rows):
        lefts = [k_halves(kind, term[4 * row :][:4]) for row in range(rows)]
        rights = [k_halves(kind, term[4 * rows + 2 * column :][:2]) for column in range(columns)]
        for half in range(PRODUCTS[kind][2]):
            for row, left in enumerate(lefts):
                for column, right in enumerate(rights):
                    tile = slice(first := 4 * (row * columns + column), first + 4)
                    values[tile] = multiply_tile(builder, kind, left[half], right[half], values[tile])
    return values


def _terms(builder: Any, kind: str, words: list[Any], rows: int) -> list[list[Any]]:
    """The words of each product that is summed."""
    if not kind.startswith("tf32"):
        return [words]
    if kind == "tf32":
        return [[_rounded(builder, word) for word in words]]
    high, low = zip(*(split(builder, word) for word in words))
    a, b = slice(0, 4 * rows), slice(4 * rows, None)
    return [[*low[a], *high[b]], [*high[a], *low[b]], [*high]]


def _rounded(builder: Any, word: Any) -> Any:
    return assemble(builder, "cvt.rna.tf32.f32 $0, $1;", "=r,r", ir.IntType(32), [word])


def split(builder: Any, word: Any) -> tuple[Any, Any]:
    """A number as TF32, and what that leaves, cut off: 22 bits of it and more. The first part is rounded as `cvt.rna` does it,
    which looks for NaNs besides, at four instructions; here their rest is NaN."""
    real, upper = ir.FloatType(), const(0xFFFFE000)
    near = builder.and_(builder.add(word, const(0x1000)), upper)
    rest = builder.fsub(builder.bitcast(word, real), builder.bitcast(near, real))  # exact
    return near, builder.and_(builder.bitcast(rest, ir.IntType(32)), upper)


@deferred
def multiply_words(dtype: DType, a: Words, b: Words) -> Any:
    """`multiply(acc, a, b)`: acc + a b by a warp, out of words that its threads loaded themselves.

    a    four registers for each 16 x 16 fragment; b: two for each of 16 x 8
    acc  four f32 per 16 x 8 tile; tiles row-major
    `mma.sync.m16n8k16`, sm_80
    """
    kind = {f16: "f16", bf16: "bf16"}[dtype]

    @intrinsic
    def multiply(typing, acc, a_words, b_words):
        def codegen(ctx, builder, sig, args):
            take = builder.extract_value

            def word(source, which):
                if isinstance(which, int):
                    return take(source, which)
                low, high = (take(source, i) for i in which[:2])
                if which[2]:
                    return builder.or_(builder.lshr(low, const(16)), builder.and_(high, const(0xFFFF0000)))
                return builder.or_(builder.and_(low, const(0xFFFF)), builder.shl(high, const(16)))

            values = [take(args[0], i) for i in range(len(acc))]
            for a_tiles, b_tiles in zip(a, b):
                lefts = [[word(args[1], which) for which in tile] for tile in a_tiles]
                rights = [[word(args[2], which) for which in tile] for tile in b_tiles]
                for row, left in enumerate(lefts):
                    for column, right in enumerate(rights):
                        tile = slice(first := 4 * (row * len(rights) + column), first + 4)
                        values[tile] = multiply_tile(builder, kind, left, right, values[tile])
            return ctx.make_tuple(builder, sig.return_type, values)

        return acc(acc, a_words, b_words), codegen

    return multiply


@deferred
def load_matrices(transposed: bool = False) -> Any:
    """`load(address)`: four 8 x 8 matrices of halves from shared memory, as `store_matrices` takes them. `ldmatrix.x4`, sm_75."""
    text = fragment_text(transposed)
    return instruction(text, types.uint32, result=(types.uint32,) * 4, together=True)


@deferred
def store_matrices(transposed: bool = False) -> Any:
    """`store(address, a, b, c, d)`: four 8 x 8 matrices of halves to shared memory; lane 8 j + i gives the address of row i of
    matrix j, 16 bytes, and of each matrix has elements 2 (lane % 4) and the next of row lane // 4, or, transposed, of column
    lane // 4. `stmatrix.x4`, sm_90."""
    text = f"stmatrix.sync.aligned.m8n8.x4{'.trans' * transposed}.shared.b16 [$0], {{$1, $2, $3, $4}};"
    return instruction(text, *[types.uint32] * 5, together=True)
