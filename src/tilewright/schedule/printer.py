"""Loop nests and expressions as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.schedule.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Reduce,
    Select,
    TensorRead,
    Var,
)
from tilewright.schedule.nest import (
    SERIAL,
    THREAD,
    Allocate,
    Barrier,
    Buffer,
    For,
    If,
    Intrinsic,
    Kernel,
    LoopProgram,
    Prefetch,
    Region,
    Seq,
    Stmt,
    Store,
    StoreAll,
    ThreadReduce,
)
from tilewright.schedule.types import is_float
from tilewright.schedule.walk import inner

_SIGNS = {
    "add": ("+", 5),
    "sub": ("-", 5),
    "mul": ("*", 6),
    "div": ("/", 6),
    "floordiv": ("//", 6),
    "floormod": ("%", 6),
    "shl": ("<<", 4),
    "shr": (">>", 4),
    "and": ("&", 4),
    "xor": ("^", 4),
    "or": ("|", 4),
    "eq": ("==", 3),
    "ne": ("!=", 3),
    "lt": ("<", 3),
    "le": ("<=", 3),
    "gt": (">", 3),
    "ge": (">=", 3),
    "logical_and": ("and", 1),
    "logical_or": ("or", 0),
}
_INDENT = "  "


def show_expr(expr: Expr, names: dict[Var, str] | None = None) -> str:
    """An expression in one line, with Python's operators."""
    return _Printer(names or {}).expr(expr)


def show(program: LoopProgram | Kernel | Stmt) -> str:
    """A program, a kernel or a statement as indented loops."""
    if isinstance(program, LoopProgram):
        lines = list(_program(program))
    elif isinstance(program, Kernel):
        lines = list(_Printer(_names(program.body)).stmt(program.body, 0))
    else:
        lines = list(_Printer(_names(program)).stmt(program, 0))
    return "\n".join(lines)


def _program(program: LoopProgram) -> Iterator[str]:
    arguments = ", ".join(f"{b.name}: {_type(b)}" for b in program.arguments)
    yield f"def {program.name}({arguments}):"
    for buffer in program.temporaries:
        yield _INDENT + _allocation(buffer)
    for kernel in program.kernels:
        yield from _Printer(_names(kernel.body)).stmt(kernel.body, 1)


def _type(buffer: Buffer) -> str:
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _allocation(buffer: Buffer) -> str:
    strides = f", strides={list(buffer.strides)}" if buffer.strides is not None else ""
    return f"{buffer.name} = allocate({_type(buffer)}, scope={buffer.scope}{strides})"


def _names(body: Stmt) -> dict[Var, str]:
    """A name for every loop variable, told apart where one of two loops is inside of the other."""
    names: dict[Var, str] = {}

    def visit(stmt: Stmt, around: tuple[str, ...]) -> None:
        if isinstance(stmt, For):
            name, number = names.get(stmt.var, stmt.var.name), 0
            while name in around:
                number += 1
                name = f"{stmt.var.name}_{number}"
            names[stmt.var] = name
            around = (*around, name)
        for part in inner(stmt):
            visit(part, around)

    visit(body, ())
    return names


class _Printer:
    def __init__(self, names: dict[Var, str]) -> None:
        self.names = names

    def expr(self, expr: Expr, level: int = -1) -> str:
        match expr:
            case Var():
                return self.names.get(expr, expr.name)
            case Const():
                return _constant(expr)
            case Binary():
                return self._binary(expr, level)
            case Load():
                return f"{expr.buffer.name}[{self._list(expr.indices)}]"
            case TensorRead():
                return f"{expr.tensor.name}[{self._list(expr.indices)}]"
            case Cast():
                return f"{expr.dtype}({self.expr(expr.value)})"
            case Select():
                name = "if_then_else" if expr.guarded else "select"
                return f"{name}({self._list((expr.condition, expr.a, expr.b))})"
            case Call():
                return f"{expr.name}({self._list(expr.args)})"
            case Not():
                return f"not {self.expr(expr.a, 7)}"
            case Reduce():
                return self._reduce(expr)
        raise AssertionError(expr)

    def _list(self, parts: tuple[Expr, ...]) -> str:
        return ", ".join(self.expr(p) for p in parts)

    def _binary(self, expr: Binary, level: int) -> str:
        if expr.op not in _SIGNS:
            return f"{expr.op}({self.expr(expr.a)}, {self.expr(expr.b)})"
        sign, own = _SIGNS[expr.op]
        right = own + (expr.op not in ("add", "mul", "logical_and", "logical_or"))
        right = own + 1 if expr.op == "mul" and _is_quotient(expr.b) else right
        text = f"{self.expr(expr.a, own)} {sign} {self.expr(expr.b, right)}"
        if own >= 6:
            text = f"{self.expr(expr.a, own)}{sign}{self.expr(expr.b, right)}"
        return f"({text})" if own < level else text

    def _reduce(self, expr: Reduce) -> str:
        axes = ", ".join(a.name for a in expr.axes)
        source = self.expr(expr.sources[expr.index])
        where = "" if _true(expr.condition) else f", where={self.expr(expr.condition)}"
        return f"{expr.combiner.name}({source}, axis=[{axes}]{where})"

    # -- statements --------------------------------------------------------------------------------

    def stmt(self, stmt: Stmt, depth: int) -> Iterator[str]:
        pad = _INDENT * depth
        match stmt:
            case Seq():
                for part in stmt.body:
                    yield from self.stmt(part, depth)
            case For():
                yield pad + self._for(stmt)
                yield from self.stmt(stmt.body, depth + 1)
            case If():
                condition = self.expr(stmt.condition)
                yield f"{pad}if {f'likely({condition})' if stmt.likely else condition}:"
                yield from self.stmt(stmt.then, depth + 1)
                if stmt.otherwise is not None:
                    yield f"{pad}else:"
                    yield from self.stmt(stmt.otherwise, depth + 1)
            case Store():
                yield f"{pad}{stmt.buffer.name}[{self._list(stmt.indices)}] = " + self.expr(
                    stmt.value
                )
            case StoreAll():
                places = [f"{s.buffer.name}[{self._list(s.indices)}]" for s in stmt.stores]
                values = [self.expr(s.value) for s in stmt.stores]
                yield f"{pad}{', '.join(places)} = {', '.join(values)}"
            case Allocate():
                yield pad + _allocation(stmt.buffer)
                yield from self.stmt(stmt.body, depth)
            case Prefetch():
                yield f"{pad}prefetch({self._region(stmt.region)})"
            case Barrier():
                yield f"{pad}barrier()"
            case ThreadReduce():
                places = [f"{s.buffer.name}[{self._list(s.indices)}]" for s in stmt.targets]
                given = ", ".join(self.expr(s.value) for s in stmt.targets)
                where = "" if _true(stmt.condition) else f", where={self.expr(stmt.condition)}"
                yield (
                    f"{pad}{', '.join(places)} = thread_{stmt.combiner.name}({given}, "
                    f"threads=[{', '.join(stmt.tags)}]{where})"
                )
            case Intrinsic():
                parts = ", ".join(self._region(r) for r in (*stmt.outputs, *stmt.inputs))
                phase = "" if stmt.phase == "body" else f".{stmt.phase}"
                yield f"{pad}{stmt.intrinsic.name}{phase}({parts})"

    def _for(self, stmt: For) -> str:
        name = self.names.get(stmt.var, stmt.var.name)
        if stmt.kind == THREAD:
            head = f"for {name} in thread({stmt.extent}):"
            if stmt.var.name != stmt.tag:
                head = f"for {name} in thread({stmt.extent}, {stmt.tag}):"
        else:
            kind = "range" if stmt.kind == SERIAL else stmt.kind
            head = f"for {name} in {kind}({stmt.extent}):"
        if stmt.pragmas:
            said = ", ".join(f"{k}={v}" if v is not None else k for k, v in stmt.pragmas.items())
            head += f"  # pragma {said}"
        return head

    def _region(self, region: Region) -> str:
        parts = []
        for low, extent in zip(region.mins, region.extents, strict=True):
            text = self.expr(low)
            parts.append(text if extent == 1 else f"{text}:+{extent}")
        return f"{region.buffer.name}[{', '.join(parts)}]"


def _is_quotient(expr: Expr) -> bool:
    return isinstance(expr, Binary) and expr.op in ("div", "floordiv", "floormod")


def _true(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value is True


def _constant(expr: Const) -> str:
    if is_float(expr.dtype):
        text = repr(float(expr.value))
        return text if expr.dtype == "f32" else f"{expr.dtype}({text})"
    if expr.dtype in ("index", "bool", "i32"):
        return str(expr.value)
    return f"{expr.dtype}({expr.value})"
