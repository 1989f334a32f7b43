"""Runs loop nests in plain Python, statement by statement: the meaning of a nest, for tests.

Slow, and strict: reading an element that was never written, an index outside of its dimension and a
barrier that not every thread reaches are errors. Iterations of parallel and vectorized loops, and
threads between two barriers, run in an order that the caller chooses, so that results which depend
on it show.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.schedule.evaluate_source import kernel_source
from tilewright.schedule.nest import Buffer, Kernel, LoopProgram
from tilewright.schedule.types import bits, is_float, numpy_type


class EvaluationError(Exception):
    """A nest did something that has no meaning."""


class Memory:
    """The elements of a buffer, none of them written at first."""

    __slots__ = ("buffer", "elements", "shape", "strides")

    def __init__(self, buffer: Buffer, values: npt.NDArray[Any] | None = None) -> None:
        self.buffer = buffer
        self.shape = buffer.shape
        self.strides = buffer.layout
        self.elements: list[Any] = [None] * buffer.size
        if values is not None:
            for place in np.ndindex(*buffer.shape):
                self.elements[self._offset(place)] = values[place].item()

    def _offset(self, place: tuple[int, ...]) -> int:
        offset = 0
        for i, extent, stride in zip(place, self.shape, self.strides, strict=True):
            if not 0 <= i < extent:
                raise EvaluationError(
                    f"index {list(place)} outside of {self.buffer.name} {list(self.shape)}"
                )
            offset += i * stride
        return offset

    def load(self, *place: int) -> Any:
        value = self.elements[self._offset(place)]
        if value is None:
            raise EvaluationError(f"{self.buffer.name}{list(place)} is read before it is written")
        return value

    def store(self, value: Any, *place: int) -> None:
        self.elements[self._offset(place)] = value

    def array(self) -> npt.NDArray[Any]:
        """The elements as an array; EvaluationError where one was never written."""
        result = np.empty(self.shape, numpy_type(self.buffer.dtype))
        for place in np.ndindex(*self.shape):
            result[place] = self.load(*place)
        return result


def evaluate(
    program: LoopProgram, inputs: Sequence[npt.NDArray[Any]], order: str = "forward", seed: int = 0
) -> list[npt.NDArray[Any]]:
    """The outputs of a program.

    inputs: an array for each of `program.inputs`, of its shape.
    order: of independent iterations: `forward`, `backward` or `random` (by the seed).
    """
    memories: dict[Buffer, Memory] = {}
    for buffer, values in zip(program.inputs, inputs, strict=True):
        memories[buffer] = Memory(buffer, np.asarray(values).reshape(buffer.shape))
    for buffer in (*program.outputs, *program.temporaries):
        memories[buffer] = Memory(buffer)
    ordered = _orders(order, seed)
    for kernel in program.kernels:
        _run(kernel, memories, ordered)
    return [memories[b].array() for b in program.outputs]


def _orders(order: str, seed: int) -> Callable[[int], Iterable[int]]:
    rng = random.Random(seed)
    if order == "forward":
        return range
    if order == "backward":
        return lambda n: reversed(range(n))

    def shuffled(n: int) -> list[int]:
        values = list(range(n))
        rng.shuffle(values)
        return values

    return shuffled


def _run(
    kernel: Kernel, memories: dict[Buffer, Memory], ordered: Callable[[int], Iterable[int]]
) -> None:
    source, constants = kernel_source(kernel)
    namespace: dict[str, Any] = dict(constants)
    namespace.update(MATH)
    namespace.update(Memory=Memory, ordered=ordered, wrap=wrap)
    exec(compile(source, f"<kernel {kernel.name}>", "exec"), namespace)
    function = namespace["kernel"]
    outside = dict.fromkeys((*kernel.reads, *kernel.writes))
    arguments = [memories[b] for b in outside]
    blocks = [range(e) for e in kernel.grid.values()]
    for block in _places(blocks, ordered):
        shared: dict[str, Memory] = {}
        sizes = list(kernel.block.values())
        places = list(product(*(range(e) for e in sizes)))
        threads = [function(shared, *arguments, *block, *place) for place in places]
        _lockstep(threads, places, list(kernel.block), ordered, namespace)


def _places(ranges: list[range], ordered: Callable[[int], Iterable[int]]) -> Iterator[Any]:
    places = list(product(*ranges))
    return (places[i] for i in ordered(len(places)))


def _lockstep(
    threads: list[Any],
    places: list[tuple[int, ...]],
    tags: list[str],
    ordered: Callable[[int], Iterable[int]],
    namespace: dict[str, Any],
) -> None:
    """Runs threads from one meeting point to the next."""
    answers: list[Any] = [None] * len(threads)
    while True:
        arrived: list[Any] = [None] * len(threads)
        for i in ordered(len(threads)):
            try:
                arrived[i] = threads[i].send(answers[i])
            except StopIteration:
                arrived[i] = ("end",)
        kinds = {a[:2] for a in arrived}
        if len(kinds) > 1:
            raise EvaluationError(f"threads wait at different places: {sorted(map(str, kinds))}")
        answers = [None] * len(threads)
        if arrived[0][0] == "end":
            return
        if arrived[0][0] == "reduce":
            answers = _reduced(arrived, places, tags, namespace)


def _reduced(
    arrived: list[Any], places: list[tuple[int, ...]], tags: list[str], namespace: dict[str, Any]
) -> list[Any]:
    _, number, over, _ = arrived[0]
    combine, identity = namespace[f"combine{number}"], namespace[f"identity{number}"]
    totals: dict[tuple[int, ...], Any] = {}
    keys = [tuple(p for p, t in zip(place, tags, strict=True) if t not in over) for place in places]
    for key, (_, _, _, values) in zip(keys, arrived, strict=True):
        given = identity() if values is None else values
        totals[key] = combine(*totals[key], *given) if key in totals else given
    return [totals[key] for key in keys]


def wrap(value: Any, dtype: str) -> Any:
    """A value as its type holds it."""
    if dtype == "bool":
        return bool(value)
    if is_float(dtype):
        return float(value) if dtype == "f64" else numpy_type(dtype).type(value).item()
    span = 1 << bits(dtype)
    return (int(value) + span // 2) % span - span // 2


def _truncdiv(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def function(a: Any, b: Any) -> Any:
        if a != a or b != b:
            return math.nan
        return choose(a, b)

    return function


def _float(function: Callable[..., float]) -> Callable[..., float]:
    def safe(*args: float) -> float:
        with np.errstate(all="ignore"):
            return float(function(*(np.float64(a) for a in args)))

    return safe


_NAMED = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "tanh", "tan", "sin"),
    *("cos", "sinh", "cosh", "floor", "ceil", "trunc"),
)
MATH: dict[str, Any] = {f"fn_{name}": _float(getattr(np, name)) for name in _NAMED}
MATH.update(
    fn_rsqrt=_float(lambda x: 1.0 / np.sqrt(x)),
    fn_asin=_float(np.arcsin),
    fn_acos=_float(np.arccos),
    fn_atan=_float(np.arctan),
    fn_atan2=_float(np.arctan2),
    fn_pow=_float(np.power),
    fn_round=_float(np.round),
    fn_erf=math.erf,
    fn_abs=abs,
    fn_fma=lambda a, b, c: a * b + c,
    fn_isnan=lambda x: x != x,
    fn_div=_float(np.divide),
    fn_min=_extreme(min),
    fn_max=_extreme(max),
    fn_truncdiv=_truncdiv,
    fn_truncmod=lambda a, b: a - b * _truncdiv(a, b),
)
