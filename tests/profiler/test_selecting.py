"""Choosing dispatches by patterns."""

from __future__ import annotations

import pytest

from tilewright.errors import UserError
from tilewright.profiler.selecting import match_names, split_patterns

NAMES = [
    "matmul_8x8x8_f16t_f16t_f16t_tile_config_default",
    "matmul_8x8x8_f16t_f16t_f16t_tile_config_4x4x0_DoubleTilingExpert",
    "batch_matmul_2x8x8x8_f32t_f32t_f32t_tile_config_default",
    "softmax_8x8_f32t_f32t_tile_config_default",
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("matmul", NAMES[:3]),
        ("^matmul", NAMES[:2]),
        ("softmax,^batch", NAMES[2:]),
        (r"_f(16|32)t_tile_config_default$", [NAMES[0], *NAMES[2:]]),
        (r"(?:8x){2,3}8_f32", [NAMES[2]]),
        (r"[8,9]x8_f32", NAMES[2:]),
        ("softmax,softmax,matmul", NAMES),
        (NAMES[1], [NAMES[1]]),
    ],
)
def test_regular_expressions(text: str, found: list[str]) -> None:
    assert match_names(text, NAMES) == (found, [])


def test_a_shell_pattern_is_taken_with_a_note() -> None:
    pattern = "matmul_8x8x8_f16t_f16t_f16t_*_DoubleTilingExpert"
    found, (note,) = match_names(pattern, NAMES)
    assert found == [NAMES[1]]
    assert "shell pattern" in note
    assert "f16t_.*_DoubleTilingExpert" in note


def test_a_shell_pattern_that_is_no_regular_expression() -> None:
    found, (note,) = match_names("*softmax*,batch", NAMES)
    assert found == NAMES[2:]
    assert "no regular expression" in note
    assert ".*softmax.*" in note


def test_a_shell_pattern_that_is_a_regular_expression_stays_one() -> None:
    # `t*` is a letter, any number of times: found, though not what a shell would mean.
    assert match_names("_f32t*_tile", NAMES) == (NAMES[2:], [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("*_f32t", r"'\*_f32t' is no regular expression: nothing to repeat .*'\.\*'.*: \.\*_f32t"),
        ("matmul(", "is no regular expression"),
        ("matmull_8", "'matmull_8' matches none of the 4 dispatches"),
        ("softmax,conv", "'conv' matches none"),
        ("", "empty pattern"),
        ("softmax,,matmul", "empty pattern"),
    ],
)
def test_what_matches_nothing_is_an_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        match_names(text, NAMES)
    assert "\n" not in str(error.value)


def test_commas_inside_an_expression() -> None:
    assert split_patterns(r"a{1,2},b[,]c,d\,e,(f,g)") == ["a{1,2}", "b[,]c", r"d\,e", "(f,g)"]
