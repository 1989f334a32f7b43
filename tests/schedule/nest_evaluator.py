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

from tilewright.schedule.expr import Binary, Call, Cast, Const, Expr, Not, Select, Var
from tilewright.schedule.nest import (
    PARALLEL,
    SHARED,
    THREAD,
    VECTORIZED,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Intrinsic,
    Kernel,
    Load,
    LoopProgram,
    Prefetch,
    Seq,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
    statements,
)
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


# -- the source of a kernel ------------------------------------------------------------------------

_SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "floordiv": "//",
    "floormod": "%",
    "and": "&",
    "or": "|",
    "xor": "^",
    "shl": "<<",
    "shr": ">>",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "logical_and": "and",
    "logical_or": "or",
}


def kernel_source(kernel: Kernel) -> tuple[str, dict[str, Any]]:
    """Python source of a kernel, a function `kernel`, and the constants that it names.

    It gives a generator for each thread, which yields where threads meet. It takes shared memory by
    name, a memory for each buffer that the kernel reads or writes, the block's and the thread's
    place.
    """
    writer = _Writer()
    body = kernel.body
    places = []
    while isinstance(body, For) and body.kind == THREAD:
        places.append(writer.name(body.var))
        if body.tag == "threadIdx.x":
            writer.lane = places[-1]
        body = body.body
    outside = [writer.buffer(b) for b in dict.fromkeys((*kernel.reads, *kernel.writes))]
    head = ", ".join(["shared", *outside, *places])
    lines = [f"def kernel({head}):", "  if False: yield", *writer.stmt(body, 1)]
    return "\n".join([*writer.functions, *lines]), writer.constants


class _Writer:
    def __init__(self) -> None:
        self.names: dict[object, str] = {}
        self.constants: dict[str, Any] = {}
        self.functions: list[str] = []
        self.lane = ""

    def name(self, var: Var) -> str:
        return self.names.setdefault(var, f"v{len(self.names)}")

    def buffer(self, buffer: Buffer) -> str:
        return self.names.setdefault(buffer, f"b{len(self.names)}")

    def expr(self, expr: Expr) -> str:
        match expr:
            case Var():
                return self.name(expr)
            case Const():
                text = repr(expr.value)
                return f"float('{text}')" if text.strip("-") in ("inf", "nan") else f"({text})"
            case Binary():
                return self._binary(expr)
            case Load():
                return f"{self.buffer(expr.buffer)}.load({self._list(expr.indices)})"
            case Cast():
                if expr.dtype == "index":
                    return f"int({self.expr(expr.value)})"
                return f"wrap({self.expr(expr.value)}, '{expr.dtype}')"
            case Select():
                condition = self.expr(expr.condition)
                return f"({self.expr(expr.a)} if {condition} else {self.expr(expr.b)})"
            case Call():
                return f"fn_{expr.name}({self._list(expr.args)})"
            case Not():
                return f"(not {self.expr(expr.a)})"
        raise AssertionError(expr)

    def _list(self, parts: tuple[Expr, ...]) -> str:
        return ", ".join(self.expr(p) for p in parts)

    def _binary(self, expr: Binary) -> str:
        a, b = self.expr(expr.a), self.expr(expr.b)
        sign = _SIGNS.get(expr.op)
        text = f"({a} {sign} {b})" if sign else f"fn_{expr.op}({a}, {b})"
        if is_float(expr.dtype) or expr.dtype in ("bool", "index"):
            return text
        return f"wrap({text}, '{expr.dtype}')"

    # -- statements --------------------------------------------------------------------------------

    def stmt(self, stmt: Stmt, depth: int) -> Iterator[str]:
        pad = "  " * depth
        match stmt:
            case Seq():
                for part in stmt.body:
                    yield from self.stmt(part, depth)
            case For():
                # Threads that meet inside of a loop run its iterations in one order.
                meets = any(isinstance(s, Barrier | ThreadReduce) for s in statements(stmt))
                independent = stmt.kind in (PARALLEL, VECTORIZED) and not meets
                over = "ordered" if independent else "range"
                yield f"{pad}for {self.name(stmt.var)} in {over}({stmt.extent}):"
                yield from self.stmt(stmt.body, depth + 1)
            case If():
                yield f"{pad}if {self.expr(stmt.condition)}:"
                yield from self.stmt(stmt.then, depth + 1)
                if stmt.otherwise is not None:
                    yield f"{pad}else:"
                    yield from self.stmt(stmt.otherwise, depth + 1)
            case Store():
                yield pad + self._store(stmt, self.expr(stmt.value))
            case StoreAll():
                values = ", ".join(self.expr(s.value) for s in stmt.stores)
                yield f"{pad}values = ({values},)"
                for i, store in enumerate(stmt.stores):
                    yield pad + self._store(store, f"values[{i}]")
            case Allocate():
                yield pad + self._allocate(stmt.buffer)
                yield from self.stmt(stmt.body, depth)
            case Prefetch():
                yield f"{pad}pass"
            case Barrier():
                yield f"{pad}yield ('barrier', {id(stmt)})"
            case ThreadReduce():
                yield from self._thread_reduce(stmt, pad)
            case Intrinsic():
                loops = stmt.as_loops()
                own = any("." in r.buffer.scope for r in stmt.outputs)
                if stmt.intrinsic.collective and self.lane and not own:
                    yield f"{pad}if {self.lane} == 0:"
                    depth += 1
                yield from self.stmt(loops, depth)

    def _store(self, store: Store, value: str) -> str:
        indices = self._list(store.indices)
        return (
            f"{self.buffer(store.buffer)}.store(wrap({value}, '{store.buffer.dtype}'), {indices})"
        )

    def _allocate(self, buffer: Buffer) -> str:
        name = self.buffer(buffer)
        self.constants[f"of_{name}"] = buffer
        if buffer.scope != SHARED:
            return f"{name} = Memory(of_{name})"
        return f"{name} = shared.setdefault('{name}', Memory(of_{name}))"

    def _thread_reduce(self, stmt: ThreadReduce, pad: str) -> Iterator[str]:
        number = len(self.functions)
        combiner = stmt.combiner
        parameters = ", ".join(self.name(v) for v in (*combiner.lhs, *combiner.rhs))
        results = self._list(combiner.result)
        self.functions.append(f"def combine{number}({parameters}): return ({results},)")
        self.functions.append(f"def identity{number}(): return ({self._list(combiner.identity)},)")
        values = ", ".join(self.expr(s.value) for s in stmt.targets)
        condition = self.expr(stmt.condition)
        yield (
            f"{pad}values = yield ('reduce', {number}, {stmt.tags!r}, "
            f"({values},) if {condition} else None)"
        )
        for i, store in enumerate(stmt.targets):
            yield pad + self._store(store, f"values[{i}]")
