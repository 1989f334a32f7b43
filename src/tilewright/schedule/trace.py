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
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tilewright.files import parse_json
from tilewright.schedule.errors import ScheduleError
from tilewright.schedule.expr import Expr, as_expr, binary, const
from tilewright.schedule.functions import logical_not
from tilewright.schedule.intrinsic import registered
from tilewright.schedule.state import ScheduleState, StageState, Step
from tilewright.schedule.tensor import IterVar, Tensor, thread_axis

# -- as JSON ---------------------------------------------------------------------------------------

FORMAT = 1


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
        data = parse_json(text)
        if data["format"] != FORMAT:
            raise ScheduleError(
                f"schedule trace: format {data['format']} is not known (this is {FORMAT})"
            )
        return [Step(str(s["primitive"]), s["stage"], dict(s["arguments"])) for s in data["steps"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
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
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
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


# -- steps applied to a schedule -------------------------------------------------------------------


_NOT_ITS_ARGUMENTS = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def replay(steps: Iterable[Step], schedule: ScheduleState[StageState]) -> None:
    """Applies steps to a schedule.

    Args:
        steps: as recorded from a schedule of the same expression, of any shape.
        schedule: What they are applied to.

    Raises:
        ScheduleError: a step does not fit; says which.
    """
    player = _Player(schedule)
    for number, step in enumerate(steps):
        try:
            player.run(step)
        except ScheduleError as error:
            raise ScheduleError(
                f"schedule trace, step {number} ({step.primitive}): {error}"
            ) from None
        except _NOT_ITS_ARGUMENTS as error:
            # Traces come from files: what primitives are called with can be anything.
            raise ScheduleError(
                f"schedule trace, step {number} ({step.primitive}): its arguments are not those of "
                f"the primitive ({type(error).__name__}: {error})"
            ) from error


class _Player:
    def __init__(self, schedule: ScheduleState[StageState]) -> None:
        self.schedule = schedule
        self.results: list[Any] = []
        self.threads: dict[int, IterVar] = {}
        # What each kind of reference refers to.
        self.kinds: dict[str, Callable[[Any], Any]] = {
            "stage": schedule.named,
            "tensor": self.tensor,
            "axis": lambda what: self.axis("axis", *what),
            "reduce_axis": lambda what: self.axis("reduce_axis", *what),
            "result": self.result,
            "thread": lambda what: self.thread(*what),
            "intrinsic": registered,
            "expr": self.expr,
        }

    def run(self, step: Step) -> None:
        """Calls a primitive as a step says."""
        owner: Any = self.schedule
        if step.stage is not None:
            named = isinstance(step.stage, str)
            owner = self.schedule.named(step.stage) if named else self.decoded(step.stage)
        method = getattr(owner, step.primitive, None)
        if method is None or not hasattr(method, "__wrapped__"):
            raise ScheduleError(f"there is no primitive '{step.primitive}'")
        arguments = {name: self.decoded(value) for name, value in step.arguments.items()}
        positional = arguments.pop("args", [])
        self.results.append(method(*positional, **arguments))

    def decoded(self, value: Any) -> Any:
        """The argument that a JSON value with references stands for."""
        if isinstance(value, list):
            return [self.decoded(v) for v in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and set(value) <= set(self.kinds):
            ((kind, what),) = value.items()
            return self.kinds[kind](what)
        raise ScheduleError(f"'{value}' is no reference")

    def tensor(self, what: list[Any]) -> Tensor:
        return self.schedule.named(what[0]).op.output(what[1])

    def axis(self, kind: str, stage: str, position: int) -> IterVar:
        axes: tuple[IterVar, ...] = getattr(self.schedule.named(stage).op, kind)
        if not 0 <= position < len(axes):
            raise ScheduleError(f"stage '{stage}' has {len(axes)} of {kind}, no {position}")
        return axes[position]

    def result(self, what: list[int]) -> Any:
        made = self.results[what[0]]
        return made[what[1]] if isinstance(made, tuple) else made

    def thread(self, tag: str, extent: int | None, number: int) -> IterVar:
        if number not in self.threads:
            dom = (0, extent) if extent is not None else None
            self.threads[number] = thread_axis(dom, tag)
        return self.threads[number]

    def expr(self, value: Any) -> Expr:
        """The condition that a nested list stands for."""
        if isinstance(value, dict):
            return as_expr(self.decoded(value))
        if value[0] == "const":
            return const(value[1], value[2])
        if value[0] == "not":
            return logical_not(self.expr(value[1]))
        return binary(value[0], self.expr(value[1]), self.expr(value[2]))
