"""Docstrings as Markdown, for the pages of docs/reference/."""

from __future__ import annotations

import re

_ROLE = re.compile(r":(?:class|func|meth|mod|data):`~?\.?([^`]+)`")
_PARAMETER = re.compile(r"^([a-z_*][\w, *]*): (.*)$")

# The sections of a docstring in Google style, and whether their lines begin with a name.
_SECTIONS = {
    "Args": True,
    "Attributes": True,
    "Raises": True,
    "Returns": False,
    "Yields": False,
    "Source": False,
}


def paragraphs(text: str) -> list[str]:
    """A docstring as lines of Markdown.

    The sections `Args:`, `Returns:`, `Raises:` and so on get a bold title, their entries become
    list items; so do names of parameters at the start of a line (`name: what it is`). Other
    indented text, and examples, become code.

    Args:
        text: a docstring as `ast.get_docstring` cleans it.

    Returns:
        Lines without line ends; no empty one at the end.
    """
    blocks = re.split(r"\n\s*\n", _ROLE.sub(r"`\1`", text).strip("\n").rstrip())
    out: list[str] = []
    for block in blocks:
        for lines in _split(block.splitlines()):
            title = lines[0].removesuffix(":") if lines else ""
            if title in _SECTIONS and lines[0].endswith(":"):
                out += [*_section(title, lines[1:]), ""]
            elif lines and all(line.startswith("    ") for line in lines):
                if out[-2:] == ["```", ""]:
                    out[-2:] = [""]
                else:
                    out.append("```python")
                out += [*(line[4:] for line in lines), "```", ""]
            elif lines and lines[0].startswith(">>>"):
                code = [re.sub(r"\s*# doctest:.*", "", line) for line in lines]
                out += ["```python", *code, "```", ""]
            else:
                out += [*_items(lines), ""]
    return out[:-1]


def _split(lines: list[str]) -> list[list[str]]:
    """A block, cut where a section begins."""
    out: list[list[str]] = [[]]
    for line in lines:
        if line.endswith(":") and line[:-1] in _SECTIONS and out[-1]:
            out.append([])
        out[-1].append(line)
    return out


def _section(title: str, lines: list[str]) -> list[str]:
    """A section under its bold title: a list of names, or text."""
    out = [f"**{title}**", ""]
    for line in lines:
        inner = line[4:] if line.startswith("    ") else line
        name, colon, rest = inner.partition(": ")
        if inner.startswith(" "):
            out.append(f"  {inner.strip()}")
        elif _SECTIONS[title] and colon:
            names = ", ".join(f"`{one.strip()}`" for one in name.split(","))
            out.append(f"- {names}: {rest}")
        else:
            out.append(inner)
    return out


def _items(lines: list[str]) -> list[str]:
    out: list[str] = []
    for line in lines:
        match = _PARAMETER.match(line)
        if match and len(match[1].split()) <= 3:
            if out and not out[-1].startswith(("- ", "  ")):
                out.append("")
            names = ", ".join(f"`{name.strip()}`" for name in match[1].split(","))
            out.append(f"- {names}: {match[2]}")
        else:
            out.append(line if not line.startswith("    ") else f"  {line.strip()}")
    return out
