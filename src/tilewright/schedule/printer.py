"""Loop nests as text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.schedule import nest
from tilewright.schedule.expr import Const, Var, is_true, listed, variables
from tilewright.schedule.pragmas import shown
from tilewright.schedule.tensor import BLOCK_TAGS, THREAD_TAGS, distinct

_INDENT = "  "


def show(program: nest.LoopProgram | nest.Kernel | nest.Stmt) -> str:
    """A program, a kernel or a statement as indented loops.

    Args:
        program: what to show.

    Returns:
        Lines, without an end of the last one.
    """
    if isinstance(program, nest.LoopProgram):
        lines = list(_program(program))
    elif isinstance(program, nest.Kernel):
        lines = list(_Printer(_names(program.body)).stmt(program.body, 0))
    else:
        lines = list(_Printer(_names(program)).stmt(program, 0))
    return "\n".join(lines)


def _program(program: nest.LoopProgram) -> Iterator[str]:
    arguments = ", ".join(f"{b.name}: {_type(b)}" for b in program.arguments)
    yield f"def {program.name}({arguments}):"
    for buffer in program.temporaries:
        yield _INDENT + _allocation(buffer)
    for kernel in program.kernels:
        yield from _Printer(_names(kernel.body)).stmt(kernel.body, 1)


def _type(buffer: nest.Buffer) -> str:
    return f"{buffer.dtype}[{', '.join(map(str, buffer.shape))}]"


def _allocation(buffer: nest.Buffer) -> str:
    strides = f", strides={list(buffer.strides)}" if buffer.strides is not None else ""
    return f"{buffer.name} = allocate({_type(buffer)}, scope={buffer.scope}{strides})"


def _names(body: nest.Stmt) -> dict[Var, str]:
    """A name for every loop variable, told apart where one of two loops is inside of the other."""
    names: dict[Var, str] = {}

    def visit(stmt: nest.Stmt, around: tuple[str, ...]) -> None:
        if isinstance(stmt, nest.For):
            name = names.get(stmt.var, stmt.var.name)
            if name in around:
                name = distinct(stmt.var.name, around)
            names[stmt.var] = name
            around = (*around, name)
        for part in nest.inner(stmt):
            visit(part, around)

    visit(body, ())
    return names


class _Printer:
    def __init__(self, names: dict[Var, str]) -> None:
        self.names = names

    def stmt(self, stmt: nest.Stmt, depth: int) -> Iterator[str]:
        pad = _INDENT * depth
        match stmt:
            case nest.Seq():
                for part in stmt.body:
                    yield from self.stmt(part, depth)
            case nest.For():
                yield pad + self._for(stmt)
                yield from self.stmt(stmt.body, depth + 1)
            case nest.If():
                condition = stmt.condition.text(self.names)
                unbound = sorted(
                    v.name
                    for v in variables(stmt.condition)
                    if v not in self.names and v.name in (*BLOCK_TAGS, *THREAD_TAGS)
                )
                note = f"  # no loop is bound to {', '.join(unbound)}: 0" if unbound else ""
                yield f"{pad}if {f'likely({condition})' if stmt.likely else condition}:{note}"
                yield from self.stmt(stmt.then, depth + 1)
                if stmt.otherwise is not None:
                    yield f"{pad}else:"
                    yield from self.stmt(stmt.otherwise, depth + 1)
            case nest.Store():
                yield f"{pad}{self._places([stmt])} = {stmt.value.text(self.names)}"
            case nest.StoreAll():
                values = listed([s.value for s in stmt.stores], self.names)
                yield f"{pad}{self._places(stmt.stores)} = {values}"
            case nest.Allocate():
                yield pad + _allocation(stmt.buffer)
                yield from self.stmt(stmt.body, depth)
            case nest.Prefetch():
                cache = f", cache={stmt.cache}" if stmt.cache > 1 else ""
                yield f"{pad}prefetch({self._region(stmt.region)}{cache})"
            case nest.Barrier():
                yield f"{pad}barrier()"
            case nest.ThreadReduce():
                given = listed([s.value for s in stmt.targets], self.names)
                always = is_true(stmt.condition)
                where = "" if always else f", where={stmt.condition.text(self.names)}"
                yield (
                    f"{pad}{self._places(stmt.targets)} = thread_{stmt.combiner.name}({given}, "
                    f"threads=[{', '.join(stmt.tags)}]{where})"
                )
            case nest.Intrinsic() if calls := stmt.calls():
                for call in calls:
                    given = ", ".join(map(self._argument, call.args))
                    yield f"{pad}{call.name}({given})"
            case nest.Intrinsic():
                parts = ", ".join(self._region(r) for r in (*stmt.outputs, *stmt.inputs))
                phase = "" if stmt.phase == "body" else f".{stmt.phase}"
                yield f"{pad}{stmt.intrinsic.name}{phase}({parts})"

    def _places(self, stores: Sequence[nest.Store]) -> str:
        return ", ".join(f"{s.buffer.name}[{listed(s.indices, self.names)}]" for s in stores)

    def _for(self, stmt: nest.For) -> str:
        name = self.names.get(stmt.var, stmt.var.name)
        if stmt.kind == nest.THREAD:
            head = f"for {name} in thread({stmt.extent}):"
            if stmt.var.name != stmt.tag:
                head = f"for {name} in thread({stmt.extent}, {stmt.tag}):"
        else:
            kind = "range" if stmt.kind == nest.SERIAL else stmt.kind
            head = f"for {name} in {kind}({stmt.extent}):"
        notes = [f"pragma {shown(stmt.pragmas)}"] if stmt.pragmas else []
        if stmt.reduction and (stmt.kind == nest.PARALLEL or stmt.tag in BLOCK_TAGS):
            notes.append("runs in order: its iterations add to the same elements")
        return f"{head}  # {'; '.join(notes)}" if notes else head

    def _argument(self, arg: tuple[nest.Region, int] | Const) -> str:
        if isinstance(arg, Const):
            return arg.text(self.names)
        region, offset = arg
        return f"{self._region(region)}{f' + {offset}' if offset else ''}"

    def _region(self, region: nest.Region) -> str:
        parts = []
        for low, extent in zip(region.mins, region.extents, strict=True):
            text = low.text(self.names)
            parts.append(text if extent == 1 else f"{text}:+{extent}")
        return f"{region.buffer.name}[{', '.join(parts)}]"
