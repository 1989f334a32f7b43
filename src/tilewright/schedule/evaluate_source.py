"""Python source of a kernel, for :mod:`tilewright.schedule.evaluate`: one generator per thread,
which yields where threads meet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.schedule.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
    Var,
)
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
    Prefetch,
    Seq,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
)
from tilewright.schedule.types import is_float
from tilewright.schedule.walk import statements

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
    """The source of a function `kernel`, and the constants that it names.

    It takes shared memory by name, a memory for each buffer that the kernel reads or writes, the
    block's and the thread's place.
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
                loops = stmt.intrinsic.as_loops(stmt)
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
