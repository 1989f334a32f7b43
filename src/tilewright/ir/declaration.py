"""What a compiled module says of its functions' types.

The compiler leaves each function's declaration in the module, in its `iree.abi.declaration`
attribute: `sync func @main(%input0: tensor<4xf32>, %input1: i64) -> (%output0: tensor<?xf32>)`.
That is a line for people, not IR; the types in it are MLIR's, and are parsed as such.
"""

from __future__ import annotations

from collections.abc import Iterator

from iree.compiler import ir

from tilewright.argument import ArgumentType
from tilewright.ir.signature import Signature, argument_type

_OPEN, _CLOSE = "([{<", ")]}>"
# The letters of a calling convention (`0rI_r`) for values that are passed as they are.
_LETTERS = {"i": "i32", "I": "i64", "f": "f32", "F": "f64"}
#: Element type of an argument of which no more is known than that it is a reference.
UNKNOWN = "!vm.ref<?>"


def read_signature(declaration: str, convention: str) -> Signature:
    """The types of a compiled function.

    Args:
        declaration: the function's `iree.abi.declaration`; may be empty.
        convention: its calling convention (`0rI_r`), which alone makes every tensor `UNKNOWN`.

    Returns:
        The types; one that does not parse, which no compiler writes, is `UNKNOWN` too.
    """
    if declaration:
        inputs, outputs = _parts(declaration)
        context = ir.Context()
        # Types of IREE's own dialects are only names here.
        context.allow_unregistered_dialects = True
        with context:
            return Signature(
                tuple(_type(part) for part in inputs), tuple(_type(part) for part in outputs)
            )
    before, _, after = convention.removeprefix("0").partition("_")
    return Signature(_plain(before), _plain(after))


def _plain(letters: str) -> tuple[ArgumentType, ...]:
    return tuple(ArgumentType(_LETTERS.get(c, UNKNOWN), None) for c in letters if c != "v")


def _type(part: str) -> ArgumentType:
    """`%input0: tensor<4xf32> {attributes}` as a type."""
    text = next(_split(part.partition(": ")[2], " "), "")
    try:
        # The parser crashes on an empty text.
        return argument_type(ir.Type.parse(text)) if text else ArgumentType(UNKNOWN, None)
    except ir.MLIRError:
        return ArgumentType(UNKNOWN, None)


def _parts(declaration: str) -> tuple[list[str], list[str]]:
    """The arguments and the results, each as it is written."""
    rest = declaration.partition("@")[2]
    # A name with odd characters is in quotes.
    rest = rest[rest.find('"', 1) :] if rest.startswith('"') else rest
    groups = [g for g in _split(rest.lstrip('"'), " ") if g.endswith(")")]
    lists = [g[g.index("(") + 1 : -1] for g in groups]
    inputs, outputs = [*lists, "", ""][:2]
    return [p.strip() for p in _split(inputs, ",")], [p.strip() for p in _split(outputs, ",")]


def _split(text: str, separator: str) -> Iterator[str]:
    """The parts of a text between separators that are not in brackets or quotes."""
    depth, quoted, start = 0, False, 0
    for place, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE and text[place - 1 : place + 1] != "->":
            depth -= 1
        elif char == separator and depth == 0:
            if place > start:
                yield text[start:place]
            start = place + 1
    if len(text) > start:
        yield text[start:]
