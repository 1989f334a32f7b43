"""Small elements in sums of products: what a factor is made of, the instructions that multiply it,
and copies of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.schedule.expr import Binary, Cast, Const, Expr, Select, cast, const
from tilewright.schedule.stage import Stage
from tilewright.schedule.tensor import IterVar, TensorRead
from tilewright.schedule.types import is_float
from tilewright.target import Target

# Elements of a row that are copied at once: all of the innermost, or a vector of them.
_MOST_COPIED, _COPIED = 128, 64


@dataclass(frozen=True)
class DotProducts:
    """Instructions that add the products of a group of elements to each sum of a vector.

    intrinsic: its name among the language's. what: they add up, in words. dtype, sums: element
    types. group: elements of each sum. extensions: sums in a vector by LLVM's names of the
    extensions that bring an instruction, the widest first. wide: element type that rows are copied
    to, where the instructions take no smaller one; what stands for 0 is taken from them then.
    better: extensions that bring a better way.
    """

    intrinsic: str
    what: str
    dtype: str
    sums: str
    group: int
    extensions: Mapping[str, int]
    wide: str = ""
    better: frozenset[str] = frozenset()

    def lanes(self, target: Target) -> int:
        """Sums that one instruction adds to.

        Args:
            target: a processor whose features are known.

        Returns:
            0 where there is no such instruction, or a better one.
        """
        features = {name.strip("+") for name in target.features.split(",")}
        if features & self.better:
            return 0
        return next((lanes for name, lanes in self.extensions.items() if name in features), 0)


def copy_in_vectors(copy: Stage, axis: IterVar, run: int) -> None:
    """Vectorise a copy along an axis of runs of small elements.

    Args:
        copy: the stage.
        axis: its last.
        run: elements that lie side by side in what is copied.
    """
    _, steps = copy.split(axis, run)
    if run > _MOST_COPIED:
        width = max(n for n in range(1, _COPIED + 1) if run % n == 0)
        _, steps = copy.split(steps, width)
    copy.vectorize(steps)


@dataclass(frozen=True)
class SmallElement:
    """A factor as a small element less what stands for 0.

    value: the element: a read, or a choice between one and what stands for 0. unsigned: whether its
    bits are without a sign.
    """

    value: Expr
    zero: int = 0
    unsigned: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is the element itself that is multiplied, with its sign."""
        return not self.zero and not self.unsigned


def small_element(factor: Expr, dtype: str) -> SmallElement | None:
    """What a factor is made of.

    Args:
        factor: of products that are added up.
        dtype: of small elements.

    Returns:
        None where it is no element of that type that is converted, with or without its sign, with a
        number of that type taken from it or not, or 0. Floats need not be converted.
    """
    match factor:
        case TensorRead() as read if read.dtype == dtype and is_float(dtype):
            return SmallElement(read)
        case Cast(value=TensorRead() as read) if read.dtype == dtype:
            return SmallElement(read)
        case Cast(value=Select(b=Const()) as choice):
            # Padding of the elements themselves, which are converted afterwards.
            a, b = (cast(factor.dtype, one) for one in (choice.a, choice.b))
            return small_element(replace(choice, a=a, b=b), dtype)
        case Binary(op="and", a=whole, b=Const(value=255)) if dtype == "i8":
            found = small_element(whole, dtype)
            plain = found is not None and found.is_plain
            return replace(found, unsigned=True) if found is not None and plain else None
        case Binary(op="sub", a=whole, b=Const() as zero) if not is_float(whole.dtype):
            found = small_element(whole, dtype)
            low = 0 if found is not None and found.unsigned else -128
            if found is None or found.zero or not low <= zero.value <= low + 255:
                return None
            return replace(found, zero=int(zero.value))
        case Select(b=Const() as nothing) if not nothing.value:
            found = small_element(factor.a, dtype)
            if found is None:
                return None
            bits_of_zero = found.zero - 256 if found.zero > 127 else found.zero
            value = replace(factor, a=found.value, b=const(bits_of_zero, dtype))
            return replace(found, value=value)
    return None
