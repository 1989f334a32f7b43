"""Sizes and shape files as users write them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright.errors import UserError
from tilewright.kernels.kinds import KINDS
from tilewright.kernels.shapes import dimension_options, parse_sizes, read_shapes

SHAPES = Path(__file__).resolve().parents[2] / "benchmarks" / "shapes"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("768", (768,)),
        ("64,128", (64, 128)),
        ("64:320:128", (64, 192, 320)),
        ("64:319:128", (64, 192)),
        ("3:5", (3, 4, 5)),
        ("7:7:3", (7,)),
        ("64, 1:3 ,64", (64, 1, 2, 3)),
    ],
)
def test_sizes(text: str, values: tuple[int, ...]) -> None:
    assert parse_sizes(text, "--problem-m") == values


@pytest.mark.parametrize(
    "text", ["", "x", "8x8", "-8", "8:", "8:4", "8:64:0", "1:2:3:4", "1,,2", "1.5", "1:99999999"]
)
def test_wrong_sizes_name_the_option(text: str) -> None:
    with pytest.raises(UserError, match=r"^--problem-m: '") as error:
        parse_sizes(text, "--problem-m")
    assert "\n" not in str(error.value)


def test_every_dimension_of_every_kind_has_an_option() -> None:
    options = dimension_options()
    for kind in KINDS.values():
        for dimension in kind.dimensions:
            assert options[dimension.name][0] == (dimension.name,)
    assert options["stride"][0] == ("sh", "sw")


@pytest.mark.parametrize("file", ["matmul.json", "conv.json"])
def test_the_shape_files_of_the_benchmarks_can_be_read(file: str) -> None:
    shapes = read_shapes(SHAPES / file)
    assert shapes
    assert len(shapes) == len(json.loads((SHAPES / file).read_text()))
    assert all(shape.types is not None and shape.types.name == "f32" for shape in shapes)


def test_convolutions_by_the_names_of_shape_files() -> None:
    first, *_, depthwise = read_shapes(SHAPES / "conv.json")
    assert (first.kind.name, first.variant) == ("conv2d", "nhwc_hwcf")
    assert first.dims == {
        **{"batch": 1, "h": 56, "w": 56, "ci": 64, "co": 64},
        **{"kh": 3, "kw": 3, "sh": 1, "sw": 1, "ph": 1, "pw": 1},
    }
    assert (depthwise.kind.name, depthwise.variant) == ("depthwise_conv2d", "nhwc_hwc")
    assert "co" not in depthwise.dims


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "no JSON"),
        ("[]", "at least one"),
        ('{"kind": "matmul"}', "a list of objects"),
        ('[{"kind": "matmull", "m": 1}]', "did you mean 'matmul'"),
        ('[{"m": 1}]', "unknown kind"),
        ('[{"kind": "matmul", "mm": 1}]', "unknown key 'mm'"),
        ('[{"kind": "matmul", "m": "1"}]', "sizes are whole numbers"),
        ('[{"kind": "matmul", "m": true}]', "sizes are whole numbers"),
        ('[{"kind": "matmul", "m": 1, "types": ["f32"]}]', "types are"),
        ('[{"kind": "matmul", "m": 1, "types": ["f32", "f16", "f32"]}]', "which are equal"),
        ('[{"kind": "matmul", "m": 1, "layouts": "xt"}]', "unknown layout"),
        ('[{"kind": "matmul", "m": 1, "variant": "sum"}]', "unknown variant"),
        ('[{"kind": "depthwise_conv2d", "ci": 4, "co": 8}]', "co is 8"),
    ],
)
def test_wrong_shape_files_say_what_and_where(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(content)
    with pytest.raises(UserError) as error:
        read_shapes(path)
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the shape file"):
        read_shapes(tmp_path / "none.json")
