"""Intrinsics for `tensorize`: dot products of small elements in groups, added to wide sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, vector

from tilewright.schedule import functions
from tilewright.schedule.codegen.view import BufferView, IntrinsicBuilder
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, binary, cast, const
from tilewright.schedule.intrinsic import UPDATE, TensorIntrinsic, decl_tensor_intrin
from tilewright.schedule.tensor import Tensor, compute, placeholder, reduce_axis

__all__ = ["bf16_dot", "byte_dot", "byte_value", "word_dot"]


@dataclass(frozen=True)
class Dot:
    """A family of instructions that add the products of a group of elements to each sum.

    name, what: of the intrinsic, and of the instructions in words. dtype, sums: element types.
    group: elements of each sum. x86, arm: by sums in a vector, the instruction by LLVM's name and
    the extensions any of which brings it. wide: what the instruction takes, where that is wider
    than `dtype`: a has such elements, b's are widened; it does not add to the sums itself.
    """

    name: str
    what: str
    dtype: str
    sums: str
    group: int
    x86: Mapping[int, tuple[str, tuple[str, ...]]]
    arm: Mapping[int, tuple[str, tuple[str, ...]]]
    wide: str = ""

    @property
    def lanes(self) -> tuple[int, ...]:
        """Sums in one or two vectors of each of the instructions."""
        single = (*self.x86, *self.arm)
        return tuple(sorted({n * lanes for lanes in single for n in (1, 2)}, reverse=True))


BYTES = Dot(
    "byte_dot",
    "byte dot products (AVX-512 VNNI, AVX-VNNI, Arm dotprod)",
    "i8",
    "i32",
    4,
    {
        16: ("llvm.x86.avx512.vpdpbusd.512", ("avx512vnni",)),
        8: ("llvm.x86.avx512.vpdpbusd.256", ("avx512vnni", "avxvnni")),
    },
    {4: ("llvm.aarch64.neon.sdot.v4i32.v16i8", ("dotprod",))},
)
BF16 = Dot(
    "bf16_dot",
    "bf16 dot products (AVX-512 BF16, Arm bf16)",
    "bf16",
    "f32",
    2,
    {
        16: ("llvm.x86.avx512bf16.dpbf16ps.512", ("avx512bf16",)),
        8: ("llvm.x86.avx512bf16.dpbf16ps.256", ("avx512bf16",)),
    },
    {4: ("llvm.aarch64.neon.bfdot.v4f32.v8bf16", ("bf16",))},
)
_WORDS = Dot(
    "word_dot",
    "dot products of 16 bits (AVX2, AVX-512 BW)",
    "i8",
    "i32",
    2,
    {
        16: ("llvm.x86.avx512.pmaddw.d.512", ("avx512bw",)),
        8: ("llvm.x86.avx2.pmadd.wd", ("avx2",)),
    },
    {},
    "i16",
)
#: By LLVM's name of an instruction the extensions of a processor, any of which brings it.
EXTENSIONS: dict[str, tuple[str, ...]] = {
    instruction: extensions
    for dot in (BYTES, BF16, _WORDS)
    for instruction, extensions in (*dot.x86.values(), *dot.arm.values())
}


def byte_dot(
    lanes: int = 16,
    k: int = 4,
    m: int = 1,
    zero: int = 0,
    unsigned: bool = False,
    window: tuple[int, int] | None = None,
) -> TensorIntrinsic:
    """`c[r, i] += sum of (a[r, 4 g + e] - zero) * b[g, i, e]` of i8 values, added up in i32,
    exactly; of a window `(lines, step)` that slides over a,
    `c[r, i] += sum of (a[l, r step + 4 g + e] - zero) * b[l, g, i, e]`.

    VNNI multiplies unsigned bytes by signed ones: 128 is added to a's, and what that and the zero
    point add to the sums is taken off again, by one more instruction for each group; by none where
    both are nothing, as for unsigned bytes with a zero point of 0, and for others with -128.

    Args:
        lanes: of c: 16 (AVX-512 VNNI), 8 (VNNI), 4 (Arm), or two vectors of these.
        k: length of the sums, a multiple of 4; with k = 4, b has no dimension g.
        m: rows; with m = 1, c and a have no dimension r.
        zero: of a byte: what stands for 0 in a.
        unsigned: whether a's bytes are without a sign, `a & 255` in i32; not on Arm.
        window: lines of a window, and how far neighbouring rows are apart in a line of a; k is then
            the length of the sums in each line.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[C].tensorize(ji, te.intrinsics.byte_dot(16))
    """
    low, high = (0, 255) if unsigned else (-128, 127)
    if not low <= zero <= high:
        raise ScheduleError(f"byte_dot: a zero point of {zero} (allowed: {low} to {high})")
    return _dot(BYTES, lanes, k, m, zero, unsigned, window)


def word_dot(lanes: int = 8, k: int = 2, m: int = 1) -> TensorIntrinsic:
    """`c[r, i] += sum of a[r, 2 g + e] * b[g, i, e]` of i16 values in a and i8 values in b, added
    up in i32: for processors of x86 without dot products of bytes.

    Exact, since b's numbers have 8 bits.

    Args:
        lanes: of c: 16 (AVX-512 BW) or 8 (AVX2), or two vectors of these.
        k: length of the sums, a multiple of 2; with k = 2, b has no dimension g.
        m: rows; with m = 1, c and a have no dimension r.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[C].tensorize(ji, te.intrinsics.word_dot(8))
    """
    return _dot(_WORDS, lanes, k, m)


def bf16_dot(lanes: int = 16, k: int = 2, m: int = 1) -> TensorIntrinsic:
    """`c[r, i] += sum of a[r, 2 g + e] * b[g, i, e]` of bf16 values, added up in f32.

    Both products of a group are added by the instruction itself, which takes what is smaller than
    1.2e-38 for 0.

    Args:
        lanes: of c: 16 or 8 (AVX-512 BF16), 4 (Arm), or two vectors of these.
        k: length of the sums, a multiple of 2; with k = 2, b has no dimension g.
        m: rows; with m = 1, c and a have no dimension r.

    Returns:
        The intrinsic.

    Raises:
        ScheduleError: for other numbers.

        s[C].tensorize(ji, te.intrinsics.bf16_dot(16))
    """
    return _dot(BF16, lanes, k, m)


def _dot(
    dot: Dot,
    lanes: int,
    k: int,
    m: int,
    zero: int = 0,
    unsigned: bool = False,
    window: tuple[int, int] | None = None,
) -> TensorIntrinsic:
    """The intrinsic of a family for a tile of m rows, `lanes` wide, over k elements."""
    size = dot.group
    if lanes not in dot.lanes:
        allowed = ", ".join(map(str, dot.lanes))
        raise ScheduleError(f"{dot.name}: {lanes} lanes (allowed: {allowed})")
    if k < 1 or k % size or m < 1:
        raise ScheduleError(
            f"{dot.name}: k={k}, m={m}; k must be a multiple of {size} and m at least 1"
        )
    groups = k // size
    c = dot_computation(dot, lanes, groups, m, (zero, unsigned), window)
    lines, stride = window or (1, 0)
    name = tile_name(dot.name, (m, lanes, k), (zero, unsigned), window)

    def emit(
        builder: IntrinsicBuilder,
        phase: str,
        inputs: Sequence[BufferView],
        outputs: Sequence[BufferView],
    ) -> None:
        instruction, is_x86, width = _instruction(builder, dot, name, lanes)
        (out,) = outputs
        zeros = builder.constant(0, dot.sums, width)
        # Vectors of sums: of each row one or two.
        vectors = range(0, lanes, width)
        places = [(*_row(m, row), first) for row in range(m) for first in vectors]
        if phase == "reset":
            for place in places:
                out.store(zeros, *place)
            return
        left, right = inputs
        start = [out.load(*p, lanes=width) if phase == UPDATE else zeros for p in places]
        if unsigned and not is_x86:
            raise builder.unsupported(name, "dot products of unsigned bytes")
        of_bytes = dot is BYTES
        # An instruction of x86 takes bytes without a sign: 128 more than with one.
        flip = of_bytes and is_x86 and not unsigned
        flipped = builder.constant(-128, "i8", size * width) if flip else None
        # What stands for 0 in what the instruction takes, as the byte of its bits.
        taken = (zero + 128 * flip) if of_bytes else 0
        offset = builder.constant((taken + 128) % 256 - 128, "i8", size * width) if taken else None

        def added(total: ir.Value, values: ir.Value, weights: ir.Value) -> ir.Value:
            if dot.wide:
                called = llvm.CallIntrinsicOp(total.type, instruction, [values, weights], [], [])
                return arith.AddIOp(total, called.results[0]).result
            operands = [total, values, weights]
            return llvm.CallIntrinsicOp(total.type, instruction, operands, [], []).results[0]

        def step(line: tuple[ir.Value, ...], at: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            group = () if groups == 1 and window is None else (at,)
            weights = [right.load(*line, *group, i, 0, lanes=size * width) for i in vectors]
            if dot.wide:
                widened = builder.vector_type(dot.wide, size * width)
                weights = [arith.ExtSIOp(widened, one).result for one in weights]
            place = arith.MulIOp(at, builder.index(size)).result
            made: list[ir.Value] = []
            for row in range(m):
                if window is None:
                    here = (*_row(m, row), place)
                else:
                    here = (*line, arith.AddIOp(place, builder.index(row * stride)).result)
                one = left.load(*here, lanes=size)
                values = _spread(builder, one, dot.wide or dot.dtype, size, width)
                if flipped is not None:
                    values = arith.XOrIOp(values, flipped).result
                for own in weights:
                    made.append(added(sums[len(made)], values, own))
            for own in () if offset is None else weights:
                made.append(added(sums[len(made)], offset, own))
            return made

        # What stands for 0 adds the same to the sums of all rows.
        first = start if offset is None else [*start, *(zeros for _ in vectors)]

        def over_groups(line: tuple[ir.Value, ...], sums: list[ir.Value]) -> list[ir.Value]:
            return builder.loop(groups, 1, sums, lambda at, now: step(line, at, now))

        if window is None:
            sums = over_groups((), first)
        else:
            sums = builder.loop(lines, 1, first, lambda line, now: over_groups((line,), now))
        less = sums[len(places) :]
        for i, place in enumerate(places):
            taken_off = less[i % len(less)] if less else None
            result = sums[i] if taken_off is None else arith.SubIOp(sums[i], taken_off).result
            out.store(result, *place)

    return decl_tensor_intrin(c.op, emit, name=name)


def tile_name(
    name: str,
    sizes: tuple[int, int, int],
    taken: tuple[int, bool],
    window: tuple[int, int] | None,
) -> str:
    """What an intrinsic for a tile is called.

    Args:
        name: of its family.
        sizes: rows, sums of a row, elements of a sum.
        taken: what stands for 0, and whether a's bytes are without a sign.
        window: as of `byte_dot`.
    """
    zero, unsigned = taken
    name += "_" + "x".join(map(str, sizes))
    if zero or unsigned:
        name += f"_{'u' if unsigned else 's'}{zero}".replace("-", "m")
    return name if window is None else f"{name}_{window[0]}x{window[1]}"


def dot_computation(
    dot: Dot,
    lanes: int,
    groups: int,
    m: int,
    taken: tuple[int, bool],
    window: tuple[int, int] | None,
) -> Tensor:
    """What an intrinsic of a family computes.

    Args:
        dot: the family.
        lanes, groups, m: sums of a row, groups of elements of each sum, rows.
        taken: what stands for 0, and whether a's bytes are without a sign.
        window: as of `byte_dot`.
    """
    size = dot.group
    k = groups * size
    group, element = reduce_axis(groups, "g"), reduce_axis(size, "e")
    grouped = groups > 1 or window is not None
    at = group * size + element if grouped else element
    axes = [group, element] if grouped else [element]
    lines, step = window or (1, 0)
    line = reduce_axis(lines, "l")
    a_shape: tuple[int, ...] = (k,) if m == 1 else (m, k)
    b_shape: tuple[int, ...] = (groups, lanes, size)
    if window is not None:
        a_shape, b_shape, axes = (lines, (m - 1) * step + k), (lines, *b_shape), [line, *axes]
    a = placeholder(a_shape, dot.wide or dot.dtype, name="a")
    b = placeholder(b_shape if grouped else (lanes, size), dot.dtype, name="b")

    def product(row: Sequence[Expr], i: Expr) -> Expr:
        if window is None:
            left = a[(*row, at)]
            right = b[(group, i, element) if grouped else (i, element)]
        else:
            left = a[line, row[0] * step + at if row else at]
            right = b[line, group, i, element]
        value = byte_value(cast(dot.sums, left), *taken)
        total: Expr = functions.sum(value * cast(dot.sums, right), axis=axes)
        return total

    made: Tensor
    if m == 1:
        made = compute((lanes,), lambda i: product((), i), name="c")
    else:
        made = compute((m, lanes), lambda r, i: product((r,), i), name="c")
    return made


def byte_value(value: Expr, zero: int, unsigned: bool) -> Expr:
    """What a byte of `byte_dot`'s rows stands for.

    Args:
        value: the byte in i32, with its sign.
        zero, unsigned: as of `byte_dot`.
    """
    if unsigned:
        value = binary("and", value, const(255, value.dtype))
    return binary("sub", value, const(zero, value.dtype)) if zero else value


def _row(m: int, row: int) -> tuple[int, ...]:
    return () if m == 1 else (row,)


def _instruction(
    builder: IntrinsicBuilder, dot: Dot, name: str, lanes: int
) -> tuple[str, bool, int]:
    """The instruction for so many lanes, or for half of them, whether it is one of x86, and its
    lanes."""
    for width in (lanes, lanes // 2):
        for table in (dot.x86, dot.arm):
            instruction, features = table.get(width, ("", ()))
            if builder.machine.features & frozenset(features):
                return instruction, table is dot.x86, width
    raise builder.unsupported(name, dot.what)


def _spread(
    builder: IntrinsicBuilder, group: ir.Value, dtype: str, size: int, lanes: int
) -> ir.Value:
    """A group of elements in every lane of a vector of words, as a vector of elements."""
    word = vector.BitCastOp(builder.vector_type("i32", 1), group).result
    spread = builder.splat(vector.ExtractOp(word, [], [0]).result, lanes)
    return vector.BitCastOp(builder.vector_type(dtype, size * lanes), spread).result
