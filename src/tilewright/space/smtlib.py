"""Search spaces as SMT-LIB 2: knobs with their domains, and every constraint under its name.

Any solver reads it: to check the rules, to ask for a member with further properties, or to search
without tilewright. What a knob's value is as a number, and the way back, is said here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tilewright.gpu import SmtNode
from tilewright.space.knobs import BoolKnob, ChoiceKnob, Knob, TileKnob
from tilewright.space.search_space import SearchSpace
from tilewright.space.terms import Term, nodes_of
from tilewright.trial import Configuration, Value

_WRITTEN = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "div",
    "mod": "mod",
    "neg": "-",
    "abs": "abs",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "=",
    "distinct": "distinct",
    "and": "and",
    "or": "or",
    "not": "not",
    "xor": "xor",
    "implies": "=>",
}
_TAKES_TRUTHS = ("and", "or", "not", "xor", "implies")
_IS_TRUTH = (*_TAKES_TRUTHS, "lt", "le", "gt", "ge", "eq", "distinct")


def to_smtlib(space: SearchSpace) -> str:
    """A space as a script that declares an integer for each knob and asserts what holds.

    Args:
        space: of knobs of any kind; one that chooses among names (or orders) is the position of its
            value, and comments say of what. A knob without effect is held at the default's value.

    Returns:
        The script, without `check-sat`.

    Raises:
        ValueError: where a constraint is a function only, and not declared as data.
    """
    functions = [c.name for c in space.constraints if c.condition is None]
    if functions:
        raise ValueError(
            f"search space '{space.name}': {', '.join(map(repr, functions))} of its constraints "
            "cannot be written as SMT-LIB: these are functions, not declared as data"
        )
    lines = [f"; {_comment(space.name)}", "(set-logic QF_NIA)"]
    default = dict(space.default.items)
    for knob in space.knobs:
        values = knob.values if knob.effect else (default[knob.name],)
        numbers = [number_of(knob, value) for value in values]
        if not isinstance(knob, TileKnob | BoolKnob):
            shown = (f"{n} = {v}" for n, v in zip(numbers, values, strict=True))
            lines.append(f"; {_comment(', '.join(shown))}")
        symbol = _symbol(knob.name)
        lines.append(f"(declare-const {symbol} Int)")
        lines.append(f"(assert {_one_of(symbol, numbers)})")
    for constraint in space.constraints:
        assert constraint.condition is not None
        written = _written(constraint.condition)
        lines.append(f"(assert (! {written} :named {_symbol('rule: ' + constraint.name)}))")
    return "\n".join(lines) + "\n"


def number_of(knob: Knob, value: Value) -> int:
    """The integer that stands for a value of a knob.

    Args:
        knob: of any kind.
        value: in its domain.
    """
    if isinstance(value, int):
        return int(value)
    every = knob.vocabulary if isinstance(knob, ChoiceKnob) else tuple(knob.values)
    return every.index(value)


def configuration_of(space: SearchSpace, numbers: Mapping[str, int]) -> Configuration:
    """The configuration that a solver's model stands for.

    Args:
        space: whose knobs were declared.
        numbers: the integer of each knob, by its name.

    Raises:
        ValueError: where a number is missing, or stands for no value of its knob.
    """
    values: dict[str, Value] = {}
    for knob in space.knobs:
        by_number = {number_of(knob, value): value for value in knob.values}
        number = numbers.get(knob.name)
        if number is None or number not in by_number:
            raise ValueError(f"knob '{knob.name}' has no value for {number}")
        values[knob.name] = by_number[number]
    return Configuration.of(values)


def _one_of(symbol: str, numbers: Sequence[int]) -> str:
    ordered = sorted(numbers)
    if len(ordered) > 2 and ordered == list(range(ordered[0], ordered[-1] + 1)):
        return f"(<= {_number(ordered[0])} {symbol} {_number(ordered[-1])})"
    equal = [f"(= {symbol} {_number(n)})" for n in ordered]
    return equal[0] if len(equal) == 1 else f"(or {' '.join(equal)})"


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _symbol(name: str) -> str:
    """A quoted symbol, which may have anything in it but these two."""
    return f"|{name.replace('|', '/').replace(chr(92), '/')}|"


def _comment(text: str) -> str:
    return " ".join(text.split())


def _written(condition: Term) -> str:
    """A truth value; what several of its parts have in common is bound once."""
    nodes, (result,) = nodes_of([condition])
    uses = Counter(i for node in nodes for i in node.operands)
    texts: list[str] = []
    bindings: list[str] = []
    for at, node in enumerate(nodes):
        text = _node(nodes, node, texts)
        if node.operands and uses[at] > 1:
            bindings.append(f"({_local(at)} {text})")
            text = _local(at)
        texts.append(text)
    written = _truth(nodes[result], texts[result])
    for binding in reversed(bindings):
        written = f"(let ({binding}) {written})"
    return written


def _local(at: int) -> str:
    return f"t!{at}"


def _node(nodes: Sequence[SmtNode], node: SmtNode, texts: Sequence[str]) -> str:
    if node.operation == "constant":
        return _number(node.value)
    if node.operation == "variable":
        return _symbol(node.name)
    truths = [_truth(nodes[i], texts[i]) for i in node.operands]
    numbers = [_integer(nodes[i], texts[i]) for i in node.operands]
    if node.operation == "lookup":
        text = _number(node.table[-1][1])
        for key, value in reversed(node.table[:-1]):
            text = f"(ite (= {numbers[0]} {_number(key)}) {_number(value)} {text})"
        return text
    if node.operation == "ite":
        return f"(ite {truths[0]} {numbers[1]} {numbers[2]})"
    operands = truths if node.operation in _TAKES_TRUTHS else numbers
    return f"({_WRITTEN[node.operation]} {' '.join(operands)})"


def _truth(node: SmtNode, text: str) -> str:
    return text if node.operation in _IS_TRUTH else f"(distinct {text} 0)"


def _integer(node: SmtNode, text: str) -> str:
    return f"(ite {text} 1 0)" if node.operation in _IS_TRUTH else text
