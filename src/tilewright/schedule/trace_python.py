"""Schedules as Python source: a function of primitives, written and read back as data.

    def schedule(s):
        r0 = s["C"].tile(s["C"].op.axis[0], s["C"].op.axis[1], 32, 32)
        s["C"].vectorize(r0[3])

The function can be called on any schedule of the expression; reading it back never runs it.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.trace import Step, Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = (
    '"""A schedule, written by tilewright."""\n\nfrom tilewright import te\n\n\ndef schedule(s):\n'
)


def source(trace: Trace) -> str:
    """The source of a function `schedule(s)` that applies the steps to a schedule `s`."""
    lines = list(_Writer(trace).lines())
    return _HEAD + "".join(f"    {line}\n" for line in lines or ["pass"])


class _Writer:
    def __init__(self, trace: Trace) -> None:
        self.steps = trace.steps
        # A primitive with one result gives that itself, these give several.
        self.several = {i for i, s in enumerate(trace.steps) if s.primitive in ("split", "tile")}

    def lines(self) -> Iterator[str]:
        used = {number for step in self.steps for number in _results(step)}
        threads: set[int] = set()
        for number, step in enumerate(self.steps):
            for tag, extent, thread in _threads(step.arguments):
                if thread not in threads:
                    threads.add(thread)
                    dom = f"(0, {extent}), " if extent is not None else ""
                    yield f'thread{thread} = te.thread_axis({dom}"{tag}")'
            call = self.call(step)
            yield f"r{number} = {call}" if number in used else call

    def call(self, step: Step) -> str:
        if step.stage is None:
            owner = "s"
        elif isinstance(step.stage, dict):
            owner = self.value(step.stage)
        else:
            owner = f"s[{step.stage!r}]"
        parts: list[str] = []
        for name, value in step.arguments.items():
            if name == "args":
                parts.extend(self.value(v) for v in value)
            else:
                parts.append(f"{name}={self.value(value)}")
        return f"{owner}.{step.primitive}({', '.join(parts)})"

    def value(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{', '.join(self.value(v) for v in value)}]"
        if not isinstance(value, dict):
            return repr(value)
        kind, what = next(iter(value.items()))
        match kind:
            case "stage":
                return f"s[{what!r}]"
            case "tensor":
                return f"s[{what[0]!r}].op.output({what[1]})"
            case "axis" | "reduce_axis":
                return f"s[{what[0]!r}].op.{kind}[{what[1]}]"
            case "result":
                return f"r{what[0]}[{what[1]}]" if what[0] in self.several else f"r{what[0]}"
            case "thread":
                return f"thread{what[2]}"
            case "intrinsic":
                return f"te.intrinsic({what!r})"
            case "expr":
                return self.expr(what)
        raise ScheduleError(f"'{value}' is no reference")

    def expr(self, value: Any) -> str:
        if isinstance(value, dict):
            return self.value(value)
        if value[0] == "const":
            return f"te.const({value[1]!r}, {value[2]!r})"
        if value[0] == "not":
            return f"te.logical_not({self.expr(value[1])})"
        return f"te.binary({value[0]!r}, {self.expr(value[1])}, {self.expr(value[2])})"


def _results(value: Any) -> Iterator[int]:
    """The steps whose results a step uses."""
    for reference in _references(value, "result"):
        yield reference[0]


def _threads(value: Any) -> Iterator[list[Any]]:
    return _references(value, "thread")


def _references(value: Any, kind: str) -> Iterator[list[Any]]:
    if isinstance(value, Step):
        value = [value.stage, value.arguments]
    if isinstance(value, list):
        for part in value:
            yield from _references(part, kind)
    elif isinstance(value, dict):
        if set(value) == {kind}:
            yield value[kind]
        else:
            for part in value.values():
                yield from _references(part, kind)


# -- reading ---------------------------------------------------------------------------------------


def parsed(text: str) -> Trace:
    """The steps of a source that :func:`source` wrote; ScheduleError for any other."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ScheduleError(f"schedule trace: this is no Python source ({error})") from None
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "schedule"]
    if len(functions) != 1:
        raise ScheduleError("schedule trace: the source has no function schedule(s)")
    return Trace(_Reader().steps(functions[0]))


class _Reader:
    def __init__(self) -> None:
        self.threads: dict[str, list[Any]] = {}
        self.numbers: dict[str, int] = {}

    def steps(self, function: ast.FunctionDef) -> list[Step]:
        found: list[Step] = []
        for line in function.body:
            target = None
            if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
                target = line.targets[0].id
            if isinstance(line, ast.Pass):
                continue
            value: Any = getattr(line, "value", None)
            if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
                self._fail(line)
            if self._name(value.func.value) == "te" and value.func.attr == "thread_axis":
                dom = ast.literal_eval(value.args[0]) if len(value.args) > 1 else None
                tag = ast.literal_eval(value.args[-1])
                extent = dom[1] if dom is not None else None
                number = str(target).removeprefix("thread")
                known = int(number) if number.isdigit() else len(self.threads)
                self.threads[str(target)] = [tag, extent, known]
                continue
            if target is not None:
                self.numbers[target] = len(found)
            arguments = {k.arg: self._value(k.value) for k in value.keywords if k.arg}
            if value.args:
                arguments["args"] = [self._value(a) for a in value.args]
            found.append(Step(value.func.attr, self._owner(value.func.value), arguments))
        return found

    def _fail(self, node: ast.AST) -> Any:
        raise ScheduleError(
            f"schedule trace, line {getattr(node, 'lineno', '?')}: '{ast.unparse(node)}' is not "
            "understood"
        )

    @staticmethod
    def _name(node: ast.AST) -> str:
        return node.id if isinstance(node, ast.Name) else ""

    def _owner(self, node: ast.expr) -> Any:
        if self._name(node) == "s":
            return None
        value = self._value(node)
        return value["stage"] if isinstance(value, dict) and "stage" in value else value

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Name() if node.id in self.threads:
                return {"thread": self.threads[node.id]}
            case ast.Name() if node.id in self.numbers:
                return {"result": [self.numbers[node.id], 0]}
            case ast.Subscript(
                value=ast.Name(id=made), slice=ast.Constant(value=int() as place)
            ) if made in self.numbers:
                return {"result": [self.numbers[made], place]}
            case ast.List():
                return [self._value(v) for v in node.elts]
            case ast.Subscript(value=ast.Name(id="s"), slice=ast.Constant(value=str() as name)):
                return {"stage": name}
            case ast.Subscript(
                value=ast.Attribute(value=ast.Attribute(value=owner, attr="op"), attr=kind),
                slice=ast.Constant(value=int() as position),
            ) if kind in ("axis", "reduce_axis"):
                return {kind: [self._value(owner)["stage"], position]}
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=owner, attr="op"))):
                return {"tensor": [self._value(owner)["stage"], ast.literal_eval(node.args[0])]}
            case ast.Call(func=ast.Attribute(value=ast.Name(id="te"), attr=name)):
                return self._te(name, node)
        try:
            return ast.literal_eval(node)
        except ValueError:
            return self._fail(node)

    def _te(self, name: str, node: ast.Call) -> Any:
        if name == "intrinsic":
            return {"intrinsic": ast.literal_eval(node.args[0])}
        return {"expr": self._expr(node)}

    def _expr(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "const":
                return ["const", *(ast.literal_eval(a) for a in node.args)]
            if node.func.attr == "logical_not":
                return ["not", self._expr(node.args[0])]
            if node.func.attr == "binary":
                op, a, b = node.args
                return [ast.literal_eval(op), self._expr(a), self._expr(b)]
        return self._value(node)
