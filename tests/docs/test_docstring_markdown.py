"""Docstrings as Markdown: sections, lists of names, code."""

from __future__ import annotations

from docstring_markdown import paragraphs

SECTIONS = """What it does.

Args:
    first, second: two shapes,
        in elements.
    rate: between 0 and 1.

Returns:
    One text.

Raises:
    UserError: when it is wrong.
"""


def test_sections_have_titles_and_lists() -> None:
    assert paragraphs(SECTIONS) == [
        "What it does.",
        "",
        "**Args**",
        "",
        "- `first`, `second`: two shapes,",
        "  in elements.",
        "- `rate`: between 0 and 1.",
        "",
        "**Returns**",
        "",
        "One text.",
        "",
        "**Raises**",
        "",
        "- `UserError`: when it is wrong.",
    ]


def test_sections_need_no_empty_line_between_them() -> None:
    assert paragraphs("Does it.\nArgs:\n    a: one.\nReturns:\n    Two.")[-4:] == [
        "",
        "**Returns**",
        "",
        "Two.",
    ]


def test_examples_and_indented_text_are_code() -> None:
    assert paragraphs("Says.\n\n    x = 1\n\n>>> f()  # doctest: +SKIP\n2") == [
        "Says.",
        "",
        "```python",
        "x = 1",
        "```",
        "",
        "```python",
        ">>> f()",
        "2",
        "```",
    ]
