"""The shape of the code: packages in the order of docs/design.md, no circles, one name for a thing.

Imports inside functions and for typing alone count like any other: what a module must be read
together with is the same whenever it is loaded.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tilewright"
DESIGN = ROOT / "docs" / "design.md"

# Names that packages give to other things each, none of which a user could take for another.
SHARED_NAMES: frozenset[str] = frozenset()


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def imported(module: str) -> Iterator[str]:
    """The modules of the package that a module imports, anywhere in it."""
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            base = node.module or ""
            full = [f"{base}.{alias.name}" for alias in node.names]
            names = [name if name in modules() else base for name in full]
        else:
            continue
        # `import a.b` inside a.b's own package says nothing about order.
        yield from (n for n in names if n in modules() and not module.startswith(f"{n}."))


@cache
def edges() -> dict[str, frozenset[str]]:
    return {module: frozenset(imported(module)) - {module} for module in modules()}


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """The strongly connected parts with more than one member (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            part = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(part) > 1:
                found.append(sorted(part))

    for node in graph:
        if node not in order:
            visit(node)
    return found


def layers() -> list[str]:
    """The modules and packages of the table in docs/design.md, from the ground up."""
    text = DESIGN.read_text(encoding="utf-8").split("\n## Packages\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `([a-z_]+)/?` \|", text, re.MULTILINE)
    assert len(rows) > 20
    return rows


def layer_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}
    assert circles({k: frozenset(v) for k, v in graph.items()}) == [["a", "b", "c"]]


def test_no_module_needs_itself_by_way_of_others() -> None:
    assert circles(edges()) == []


def test_the_page_lists_every_module_of_the_ground_floor_and_every_package_once() -> None:
    there = {layer_of(m) for m in modules()} - {"__init__"}
    assert sorted(layers()) == sorted(there)


def test_packages_use_only_those_above_them() -> None:
    height = {name: index for index, name in enumerate(layers())}
    wrong = [
        f"{module} imports {other}"
        for module, others in edges().items()
        for other in sorted(others)
        if layer_of(module) in height
        and layer_of(other) in height
        and height[layer_of(other)] > height[layer_of(module)]
    ]
    assert wrong == []


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules():
        for node in tree(module).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return found


def test_a_public_class_has_a_name_of_its_own() -> None:
    twice = {name: where for name, where in public_classes().items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in SHARED_NAMES} == {}


def test_the_words_of_the_page_are_those_of_the_code() -> None:
    text = DESIGN.read_text(encoding="utf-8").split("\n## Words", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)
    words = [word for row in rows for word in row.split(", ") if re.match("[A-Z]", word)]
    assert len(words) > 20
    aliases = {"WorkerTask"}  # of a callable's type
    assert [word for word in words if word not in public_classes().keys() | aliases] == []


@pytest.mark.parametrize("word", ["options", "opening", "utils", "helpers", "common", "misc"])
def test_a_file_says_what_it_holds(word: str) -> None:
    """Several files of one name, or of a name that says nothing, cannot be told apart."""
    named = [module for module in modules() if module.rpartition(".")[2] == word]
    assert len(named) <= (1 if word in ("options", "opening") else 0), named


def test_the_page_names_only_modules_that_there_are() -> None:
    text = DESIGN.read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+/[a-z_/]+)`", text))
    assert len(named) > 20
    missing = [n for n in sorted(named) if not (PACKAGE / n).is_dir()]
    assert [n for n in missing if not (PACKAGE / f"{n}.py").is_file()] == []
