"""MLIR's attributes as trees: parsed from their text, changed as data, printed again.

A tree is plain data for JSON. IREE's bindings have classes for some of the attributes that carry a
configuration and none for the others; both are the same here, so nothing else takes a text apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = Any
"""An attribute: a truth value, an integer, a list, a dictionary, or a text.

- An integer has 64 bits; of another width it is `{TYPED: [value, type]}`, as any value with a type.
- A text is what has no parts here, as it is written: a keyword, a quoted string with its quotes, a
  number with a point, a type, an affine map.
- A dictionary has the entries of one of MLIR's, `unit` for an entry without a value.
- With the key `ATTRIBUTE` it is the attribute of that name (`#iree_gpu.lowering_config`; empty
  where the text leaves the name out), and the other entries are its parameters. `BODY` says how
  these are written: without it one after another, `BRACES` as a dictionary; for parameters that are
  not all named it is the list of them, each a list of what stands side by side, where
  `{EQUALS: [name, value]}` is a named one.
"""

ATTRIBUTE, BODY, EQUALS, TYPED = "#", "<>", "=", ":"
BRACES = "{}"
UNIT = "unit"

_TOKEN = re.compile(
    r'\s*(?P<text>"(?:[^"\\]|\\.)*"|->|::|[<>\[\](){}=,:]|[^\s"<>\[\](){}=,:]+)', re.DOTALL
)
_INTEGER = re.compile(r"-?\d+")
_BARE_NAME = re.compile(r"[A-Za-z_][\w$.]*")
_CLOSING = {"<": ">", "(": ")", "[": "]", "{": "}"}


class AttributeSyntaxError(ValueError):
    """A text is no attribute, as far as this module knows them; says where."""


def parse_attribute(text: str) -> Tree:
    """The tree of an attribute's text.

    Args:
        text: as MLIR prints it, aliases resolved.

    Raises:
        AttributeSyntaxError: for a text that is none.
    """
    reader = _Reader(text)
    found = reader.value()
    reader.end()
    return found


def parse_type(text: str) -> Tree:
    """The tree of a type's text: of a dialect's type as of an attribute, by its name and what it is
    made of (`!stream.resource` of `constant`); of any other the text.

    Args:
        text: as MLIR prints it, aliases resolved.

    Raises:
        AttributeSyntaxError: for a text that is none.
    """
    reader = _Reader(text)
    found = reader.type()
    reader.end()
    return found


def print_attribute(tree: Tree) -> str:
    """The text that a tree stands for.

    Args:
        tree: as `parse_attribute` makes them.
    """
    if isinstance(tree, bool):
        return str(tree).lower()
    if isinstance(tree, list | tuple):
        return f"[{', '.join(map(print_attribute, tree))}]"
    if not isinstance(tree, Mapping):
        return str(tree)
    if TYPED in tree:
        value, kind = tree[TYPED]
        return f"{print_attribute(value)} : {kind}"
    if ATTRIBUTE not in tree:
        return _braced(tree)
    name, body = tree[ATTRIBUTE], tree.get(BODY)
    if body is None:
        return f"{name}<{_listed(tree)}>" if len(tree) > 1 else name
    if body == BRACES:
        return f"{name}<{_braced(tree)}>"
    return f"{name}<{', '.join(' '.join(map(_phrase, item)) for item in body)}>"


def attribute(name: str, *items: Tree | Sequence[Tree], **named: Tree) -> dict[str, Tree]:
    """The tree of an attribute.

    Args:
        name: with its dialect: `#iree_gpu.pipeline`.
        items: parameters without a name, or tuples of what stands side by side.
        named: parameters with one, in place of `items`.
    """
    if named or not items:
        return {ATTRIBUTE: name, **named}
    return {
        ATTRIBUTE: name,
        BODY: [list(item) if isinstance(item, tuple) else [item] for item in items],
    }


def attribute_in_braces(name: str, entries: Mapping[str, Tree]) -> dict[str, Tree]:
    """The tree of an attribute whose parameters are written as a dictionary.

    Args:
        name: with its dialect: `#hal.executable.object`.
        entries: by name; a name that is an attribute is that attribute's text.
    """
    return {ATTRIBUTE: name, BODY: BRACES, **entries}


def named_value(name: str, value: Tree) -> Tree:
    """A named parameter among others without a name.

    Args:
        name: of the parameter.
        value: of it.
    """
    return {EQUALS: [name, value]}


def quoted(text: str) -> str:
    """A string attribute.

    Args:
        text: what it says.
    """
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquoted(text: str) -> str:
    """What a string attribute says; another text as it is.

    Args:
        text: with its quotes.
    """
    if len(text) < 2 or text[0] != '"':
        return text
    return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def value_of(tree: Tree) -> Tree:
    """A value without its type.

    Args:
        tree: of any kind.
    """
    return tree[TYPED][0] if isinstance(tree, Mapping) and TYPED in tree else tree


def is_attribute(tree: Tree, name: str) -> bool:
    """Whether a tree is an attribute of a name.

    Args:
        tree: of any kind.
        name: with its dialect.
    """
    return isinstance(tree, Mapping) and tree.get(ATTRIBUTE) == name


def parameters_of(tree: Tree) -> dict[str, Tree]:
    """The named parameters of an attribute, or the entries of a dictionary; none of anything else.

    Args:
        tree: of any kind.
    """
    if not isinstance(tree, Mapping):
        return {}
    return {name: value for name, value in tree.items() if name not in (ATTRIBUTE, BODY, TYPED)}


def items_of(tree: Tree) -> list[Tree]:
    """The parameters of an attribute that has them without names, one after another.

    Args:
        tree: of any kind; what is no such attribute has none.
    """
    body = tree.get(BODY) if isinstance(tree, Mapping) else None
    return [one for item in body for one in item] if isinstance(body, list) else []


def _phrase(tree: Tree) -> str:
    if isinstance(tree, Mapping) and EQUALS in tree:
        name, value = tree[EQUALS]
        return f"{name} = {print_attribute(value)}"
    return print_attribute(tree)


def _listed(tree: Mapping[str, Tree]) -> str:
    return ", ".join(_entries(tree))


def _braced(tree: Mapping[str, Tree]) -> str:
    return "{" + ", ".join(_entries(tree)) + "}"


def _entries(tree: Mapping[str, Tree]) -> Iterator[str]:
    for name, value in parameters_of(tree).items():
        bare = name.startswith("#") or _BARE_NAME.fullmatch(name)
        shown = name if bare else quoted(name)
        yield shown if value == UNIT else f"{shown} = {print_attribute(value)}"


class _Reader:
    """Reads one text from its beginning to its end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(_TOKEN.finditer(text))
        self.at = 0
        if "".join(token["text"] for token in self.tokens) != re.sub(
            r'("(?:[^"\\]|\\.)*")|\s+', r"\1", text
        ):
            raise AttributeSyntaxError(f"'{text}' is no attribute: a string does not end")

    def value(self) -> Tree:
        """One value, with its type if one follows."""
        found = self._untyped()
        if self._next != ":":
            return found
        self._take(":")
        kind = self._untyped()
        if type(found) is int and kind == "i64":
            return found
        return {TYPED: [found, kind]}

    def type(self) -> Tree:
        """One type."""
        word = self._next
        if not word.startswith("!"):
            return self._untyped()
        self._take(word)
        return self._parameters(word) if self._next == "<" else {ATTRIBUTE: word}

    def end(self) -> None:
        """Raises AttributeSyntaxError unless everything has been read."""
        if self.at < len(self.tokens):
            raise self._wrong("the end")

    def _untyped(self) -> Tree:
        word = self._next
        if word == "[":
            return self._sequence("[", "]")
        if word == "{":
            return self._dictionary()
        if word == "<":
            return self._parameters("")
        if word == "(":
            return self._raw("")
        if not word or word in ">])}=,:":
            raise self._wrong("a value")
        self._take(word)
        while self._next == "::":
            self._take("::")
            word += f"::{self._next}"
            self._take(self._next)
        if self._next == "<" and self._touches:
            return self._parameters(word) if word.startswith("#") else self._raw(word)
        if word.startswith("#"):
            return {ATTRIBUTE: word}
        if word in ("true", "false"):
            return word == "true"
        if _INTEGER.fullmatch(word):
            return int(word)
        return self._raw(word) if self._next in ("(", "[") and self._touches else word

    def _sequence(self, first: str, last: str) -> list[Tree]:
        self._take(first)
        found: list[Tree] = []
        while self._next != last:
            if found:
                self._take(",")
            found.append(self.value())
        self._take(last)
        return found

    def _dictionary(self) -> dict[str, Tree]:
        self._take("{")
        found: dict[str, Tree] = {}
        while self._next != "}":
            if found:
                self._take(",")
            name = self._key()
            found[name] = UNIT
            if self._next == "=":
                self._take("=")
                found[name] = self.value()
        self._take("}")
        return found

    def _key(self) -> str:
        word = self._next
        if word.startswith("#"):
            return print_attribute(self._untyped())
        self._take(word)
        return unquoted(word)

    def _parameters(self, name: str) -> dict[str, Tree]:
        """The rest of an attribute, from its `<`."""
        self._take("<")
        body: list[list[Tree]] = []
        while self._next != ">":
            if body:
                self._take(",")
            item: list[Tree] = []
            while self._next not in (",", ">"):
                item.append(self._side_by_side())
            body.append(item)
        self._take(">")
        if len(body) == 1 and len(body[0]) == 1 and _is_dictionary(body[0][0]):
            return {ATTRIBUTE: name, BODY: BRACES, **body[0][0]}
        pairs = [item[0][EQUALS] for item in body if len(item) == 1 and _is_named(item[0])]
        names = {name for name, _ in pairs}
        if pairs and len(pairs) == len(names) == len(body):
            return {ATTRIBUTE: name, **dict(pairs)}
        return {ATTRIBUTE: name, BODY: body}

    def _side_by_side(self) -> Tree:
        found = self.value()
        if isinstance(found, str) and self._next == "=":
            self._take("=")
            return named_value(found, self.value())
        return found

    def _raw(self, word: str) -> str:
        """A word with what is in the brackets behind it, as it is written; brackets follow one
        another, as in `(d0) -> (d0)`."""
        begin = self.tokens[self.at].start("text") - len(word)
        open_: list[str] = []
        end = begin
        while self.at < len(self.tokens):
            token = self.tokens[self.at]["text"]
            if not open_ and token not in _CLOSING and token != "->":
                break
            if token in _CLOSING:
                open_.append(_CLOSING[token])
            elif open_ and token == open_[-1]:
                open_.pop()
            end = self.tokens[self.at].end("text")
            self.at += 1
            if not open_ and word and self._next != "->":
                break
        if open_:
            raise self._wrong(f"'{open_[-1]}'")
        return self.text[begin:end]

    @property
    def _next(self) -> str:
        return self.tokens[self.at]["text"] if self.at < len(self.tokens) else ""

    @property
    def _touches(self) -> bool:
        """Whether nothing is between the next token and the one before."""
        return self.tokens[self.at].start("text") == self.tokens[self.at - 1].end("text")

    def _take(self, expected: str) -> None:
        if self._next != expected:
            raise self._wrong(f"'{expected}'")
        self.at += 1

    def _wrong(self, expected: str) -> AttributeSyntaxError:
        place = self.tokens[self.at].start("text") if self.at < len(self.tokens) else len(self.text)
        return AttributeSyntaxError(
            f"'{self.text}' is no attribute: expected {expected} at position {place}"
        )


def _is_dictionary(tree: Tree) -> bool:
    return isinstance(tree, dict) and not {ATTRIBUTE, EQUALS, TYPED} & set(tree)


def _is_named(tree: Tree) -> bool:
    return isinstance(tree, dict) and EQUALS in tree
