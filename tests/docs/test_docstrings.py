"""Public functions say what they take, give and raise, as the pages of the reference show them."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from generate_reference import PAGES

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "tilewright"


@functools.cache
def modules() -> tuple[tuple[str, ast.Module], ...]:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found.append((".".join(parts).removesuffix(".__init__"), ast.parse(path.read_text())))
    return tuple(found)


def node_name(node: ast.stmt) -> str:
    return node.name if isinstance(node, ast.ClassDef | ast.FunctionDef) else "_"


def is_property(node: ast.FunctionDef) -> bool:
    """Which its class describes where its name does not: to a reader it is an attribute."""
    return any("property" in ast.unparse(one) for one in node.decorator_list)


def callables(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The public functions, and the public methods of public classes."""

    def inside(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for node in body:
            if node_name(node).startswith("_"):
                continue
            if isinstance(node, ast.ClassDef):
                yield from inside(node.body, f"{owner}{node.name}.")
            elif isinstance(node, ast.FunctionDef) and not is_property(node):
                yield f"{owner}{node.name}", node

    return inside(tree.body, "")


def parameters(node: ast.FunctionDef) -> list[str]:
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [a.arg for a in every if a.arg not in ("self", "cls") and not a.arg.startswith("_")]


def test_every_public_callable_says_what_it_does() -> None:
    """A method that an interface has described needs no second description."""
    described: dict[str, bool] = defaultdict(bool)
    found = [(m, n, node) for m, tree in modules() for n, node in callables(tree)]
    for _, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [n for n in node.body if isinstance(n, ast.FunctionDef)]
                described.update((n.name, True) for n in methods if ast.get_docstring(n))
    silent = [
        f"{module}: {name}"
        for module, name, node in found
        if not ast.get_docstring(node) and not ("." in name and described[node.name])
    ]
    assert silent == []


def test_the_reference_says_what_every_argument_is() -> None:
    """In the modules that the reference lists: a section `Args` that names every parameter."""
    listed = {module for _, names in PAGES.values() for module in names}
    missing = []
    for module, tree in modules():
        if module not in listed:
            continue
        for name, node in callables(tree):
            text = ast.get_docstring(node)
            # What a task of a worker takes is its request, a method what its interface says.
            told = "state" in parameters(node) or (text or "").startswith(("See ", "As "))
            if not text or not parameters(node) or told:
                continue
            _, _, section = text.partition("Args:\n")
            absent = [p for p in parameters(node) if p not in section]
            if absent:
                missing.append(f"{module}: {name}: {', '.join(absent)}")
    assert missing == []
