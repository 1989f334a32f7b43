"""A schedule as data: the steps that made it, written as JSON or as Python and read back.

Axes, stages and tensors are named, so that the steps can be carried over to another shape of the
same expression. As Python they are a function of primitives:

    def schedule(s):
        r0 = s["C"].tile(s["C"].op.axis[0], s["C"].op.axis[1], 32, 32)
        s["C"].vectorize(r0[3])

The function can be called on any schedule of the expression; reading it back never runs it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.schedule.errors import ScheduleError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive: on which stage (None for the schedule's own), with which arguments.

    Arguments are JSON values; an object with one key is a reference: `axis` and `reduce_axis`
    ([stage, position]), `result` ([step, position]), `stage`, `tensor` ([stage, output]),
    `thread` ([tag, extent, number]), `intrinsic`, `expr`.
    """

    primitive: str
    stage: Any
    arguments: dict[str, Any]


@dataclass(slots=True)
class Record:
    """The steps of one schedule so far.

    made: the step and the position in its result that each axis and group comes from. threads: a
    number for each thread axis. depth: how many primitives are at work, one within the other.
    """

    steps: list[Step] = field(default_factory=list)
    made: dict[Hashable, list[int]] = field(default_factory=dict)
    threads: dict[Hashable, int] = field(default_factory=dict)
    depth: int = 0


def saved(steps: Sequence[Step], path: str | Path) -> None:
    """Writes a file: Python where the name ends in .py, JSON otherwise.

    Args:
        steps: the steps.
        path: the file.
    """
    path = Path(path)
    path.write_text(to_python(steps) if path.suffix == ".py" else to_json(steps))


def loaded(path: str | Path) -> list[Step]:
    """Reads a file that :func:`saved` wrote; nothing in it is run.

    Args:
        path: the file.

    Returns:
        The steps.

    Raises:
        ScheduleError: there is none, or it is no trace.
    """
    path = Path(path)
    if not path.is_file():
        raise ScheduleError(f"schedule trace: no file '{path}'")
    text = path.read_text()
    return from_python(text) if path.suffix == ".py" else from_json(text)


def to_json(steps: Sequence[Step]) -> str:
    """The steps as JSON."""
    said = [{"primitive": s.primitive, "stage": s.stage, "arguments": s.arguments} for s in steps]
    return json.dumps({"format": FORMAT, "steps": said}, indent=1)


def from_json(text: str) -> list[Step]:
    """The steps written by :func:`to_json`.

    Raises:
        ScheduleError: for anything else.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise ScheduleError(
                f"schedule trace: format {data['format']} is not known (this is {FORMAT})"
            )
        return [Step(s["primitive"], s["stage"], dict(s["arguments"])) for s in data["steps"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ScheduleError(f"schedule trace: this is not one ({error!r})") from None


def references(value: Any, kind: str) -> Iterator[Any]:
    """What the references of one kind in a step or in its arguments refer to.

    Args:
        value: a step, or an argument of one.
        kind: a kind of reference (:class:`Step`).
    """
    if isinstance(value, Step):
        value = [value.stage, value.arguments]
    if isinstance(value, list):
        for part in value:
            yield from references(part, kind)
    elif isinstance(value, dict):
        if set(value) == {kind}:
            yield value[kind]
        else:
            yield from references(list(value.values()), kind)


# -- as Python -------------------------------------------------------------------------------------

_HEAD = (
    '"""A schedule, written by tilewright."""\n\nfrom tilewright import te\n\n\ndef schedule(s):\n'
)


def to_python(steps: Sequence[Step]) -> str:
    """The source of a function `schedule(s)` that applies the steps to a schedule `s`."""
    lines = list(_Writer(steps).lines())
    return _HEAD + "".join(f"    {line}\n" for line in lines or ["pass"])


class _Writer:
    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = steps
        # A primitive with one result gives that itself, these give several.
        self.several = {i for i, s in enumerate(steps) if s.primitive in ("split", "tile")}

    def lines(self) -> Iterator[str]:
        used = {made[0] for step in self.steps for made in references(step, "result")}
        threads: set[int] = set()
        for number, step in enumerate(self.steps):
            for tag, extent, thread in references(step, "thread"):
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


def from_python(text: str) -> list[Step]:
    """The steps of a source that :func:`to_python` wrote, read as data.

    Raises:
        ScheduleError: for any other source.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ScheduleError(f"schedule trace: this is no Python source ({error})") from None
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "schedule"]
    if len(functions) != 1:
        raise ScheduleError("schedule trace: the source has no function schedule(s)")
    return _Reader().steps(functions[0])


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
