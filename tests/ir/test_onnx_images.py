"""What IREE's importer gets wrong or refuses of images has the numbers that ONNX says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_onnx import numbers, operation

onnx = pytest.importorskip("onnx")

RNG = np.random.default_rng(5)
Case = tuple[str, dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def image(*shape: int) -> dict[str, np.ndarray]:
    return {"x": floats(*(shape or (1, 4, 12, 10)))}


def transposed(filters: tuple[int, ...], bias: int = 0, **how: Any) -> Case:
    known = {"w": floats(*filters), **({"b": floats(bias)} if bias else {})}
    return "ConvTranspose", image(), known, how


def convolved(filters: tuple[int, ...], bias: int = 0, **how: Any) -> Case:
    return "Conv", *transposed(filters, bias, **how)[1:]


def padded(mode: str, *pads: int, axes: tuple[int, ...] = ()) -> Case:
    known = {"pads": np.array(pads)}
    if axes:
        known |= {"": np.zeros(0), "axes": np.array(axes)}
    return "Pad", image(), known, {"mode": mode, "version": 18}


def averaged(**how: Any) -> Case:
    return "AveragePool", image(), {}, {"ceil_mode": 1, "count_include_pad": 1, **how}


def sampled(count: int = 1, **how: Any) -> Case:
    given = {"x": floats(count, 3, 7, 5), "grid": floats(count, 4, 6, 2) * 1.5}
    return "GridSample", given, {}, how


def columns(size: tuple[int, int], block: int, given: tuple[int, ...], **how: Any) -> Case:
    known = {"size": np.array(size), "block": np.array([block, block])}
    return "Col2Im", {"x": floats(*given)}, known, {"version": 18, **how}


CASES: dict[str, Case] = {
    "windows beyond the padding": averaged(kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    "windows beyond the image": averaged(kernel_shape=[3, 3], strides=[2, 2]),
    "elements taken away": padded("constant", 0, 0, -1, 1, 0, 0, 0, -2),
    "of some axes": padded("constant", 1, -1, 0, -2, axes=(3, 2)),
    "mirrored on one side": padded("reflect", 0, 0, 2, 1, 0, 0, 0, 2),
    "single channels": transposed((4, 1, 3, 3), 4, group=4, strides=[2, 2], pads=[1] * 4),
    "more at their ends": transposed(
        (4, 1, 3, 4), group=4, strides=[2, 3], pads=[1, 0, 1, 2], output_padding=[1, 2]
    ),
    "several results of a channel": transposed((4, 2, 3, 3), 8, group=4, strides=[3, 2]),
    "filters smaller than the stride": transposed((4, 1, 1, 2), group=4, strides=[2, 3]),
    "usual padding": transposed((4, 6, 3, 3), 6, strides=[2, 2], auto_pad="SAME_UPPER"),
    "usual padding, below": transposed((4, 6, 3, 4), strides=[2, 2], auto_pad="SAME_LOWER"),
    "more off one side": transposed((4, 6, 3, 3), strides=[2, 2], pads=[0, 1, 2, 0]),
    "single pixels of single channels": convolved((8, 1, 1, 1), 8, group=4, strides=[2, 3]),
    "places between pixels": sampled(),
    "places of several images": sampled(3, align_corners=1),
    "the nearest pixels": sampled(mode="nearest"),
    "at the edge": sampled(padding_mode="border"),
    "mirrored places": sampled(padding_mode="reflection"),
    "mirrored places, corners": sampled(padding_mode="reflection", align_corners=1),
    "blocks side by side": columns((12, 10), 2, (2, 16, 30), strides=[2, 2]),
    "blocks over each other": columns((12, 10), 3, (1, 36, 30), strides=[2, 2], pads=[1] * 4),
}

# What stays as it is, with why.
STAYS: dict[str, Case] = {
    "all windows are full": ("AveragePool", image(), {}, {"kernel_shape": [3, 3]}),
    "padding does not count": averaged(kernel_shape=[3, 3], count_include_pad=0),
    "a window in the padding alone": averaged(
        kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1], dilations=[1, 1]
    ),
    "more all around": padded("constant", 0, 0, 1, 1, 0, 0, 2, 2),
    "mirrored on both sides": padded("reflect", 0, 0, 1, 2, 0, 0, 2, 1),
    "groups of channels": transposed((4, 3, 3, 3), group=2, strides=[2, 2]),
    "windows of single channels": convolved((4, 1, 3, 3), group=4, strides=[2, 2]),
    "single pixels, padded": convolved((4, 1, 1, 1), group=4, strides=[2, 2], pads=[1] * 4),
    "single pixels of several channels": convolved((4, 2, 1, 1), group=2, strides=[2, 2]),
    "all pixels of single channels": convolved((4, 1, 1, 1), group=4, strides=[1, 1]),
    "cubic": sampled(mode="bicubic"),
}


def model(case: Case) -> Any:
    kind, given, known, how = case
    named = {name: array for name, array in known.items() if name}
    how = dict(how)
    version = how.pop("version", 17)
    return operation(kind, [*given, *known], given, named, version, **how)


def expected_of(case: Case) -> np.ndarray:
    """By ONNX's evaluator, but for what that does not know."""
    from onnx.reference import ReferenceEvaluator

    kind, given, known, how = case
    if kind == "ConvTranspose":
        return transposed_numbers(given["x"], known, how)
    if kind == "Pad" and how["mode"] == "constant":
        begins, ends = np.split(known["pads"], 2)
        axes = known.get("axes", range(4))
        around, x = [(0, 0)] * 4, given["x"]
        for axis, begin, end in zip(axes, begins, ends, strict=True):
            around[axis] = max(0, begin), max(0, end)
            x = np.take(x, range(max(0, -begin), x.shape[axis] + min(0, end)), axis)
        return np.pad(x, around)
    (expected,) = ReferenceEvaluator(model(case)).run(None, given)
    return np.asarray(expected)


def transposed_numbers(
    x: np.ndarray, known: dict[str, np.ndarray], how: dict[str, Any]
) -> np.ndarray:
    """Each element times the filters, at its place."""
    w, groups, strides = known["w"], how.get("group", 1), how["strides"]
    more, each = how.get("output_padding", [0, 0]), w.shape[1]
    whole = [
        (n - 1) * s + k + m
        for n, s, k, m in zip(x.shape[2:], strides, w.shape[2:], more, strict=True)
    ]
    total = np.zeros((1, groups * each, *whole))
    inputs = x.shape[1] // groups
    for channel, row, column in np.ndindex(*x.shape[1:]):
        first = channel // inputs * each
        place = np.s_[
            first : first + each,
            row * strides[0] : row * strides[0] + w.shape[2],
            column * strides[1] : column * strides[1] + w.shape[3],
        ]
        total[0][place] += x[0, channel, row, column] * w[channel].astype(np.float64)
    if "b" in known:
        total += known["b"][:, None, None]
    pads = how.get("pads", [0] * 4)
    if "auto_pad" in how:
        cut = [n - s * size for n, s, size in zip(whole, strides, x.shape[2:], strict=True)]
        less, rest = [n // 2 for n in cut], [n - n // 2 for n in cut]
        pads = less + rest if how["auto_pad"] == "SAME_UPPER" else rest + less
    return total[:, :, pads[0] : whole[0] - pads[2], pads[1] : whole[1] - pads[3]]


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_numbers_are_those_of_onnx(tmp_path: Path, name: str) -> None:
    from tilewright.ir.onnx_images import rewrite_images

    one, given, expected = model(CASES[name]), CASES[name][1], expected_of(CASES[name])
    found = numbers(tmp_path, one, given)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert rewrite_images(one) == 1


@pytest.mark.parametrize("version", [17, 18])
def test_images_of_sizes_at_run_time_are_normalised(tmp_path: Path, version: int) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_images import rewrite_images

    given, known = image(2, 4, 9, 7), {"s": floats(4), "b": floats(4)}
    one = operation("InstanceNormalization", ["x", "s", "b"], given, known, version)
    (expected,) = ReferenceEvaluator(one).run(None, given)
    assert rewrite_images(one) == 0, "its sizes are known"
    for place, name in ((0, "n"), (2, "h"), (3, "w")):
        one.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
        one.graph.output[0].type.tensor_type.shape.dim[place].dim_param = name
    del one.graph.value_info[:]
    found = numbers(tmp_path, one, given)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert rewrite_images(one) == 1


@pytest.mark.parametrize(("kernel", "count"), [(3, 1), (2, 0)])
def test_windows_that_may_begin_in_the_padding_of_an_unknown_image_stay(
    tmp_path: Path, kernel: int, count: int
) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_images import rewrite_images

    case = averaged(kernel_shape=[kernel] * 2, strides=[2, 2], pads=[1] * 4)
    one, given = model(case), case[1]
    (expected,) = ReferenceEvaluator(one).run(None, given)
    for value in (one.graph.input[0], one.graph.output[0]):
        for place, name in ((2, "h"), (3, "w")):
            value.type.tensor_type.shape.dim[place].dim_param = name
    del one.graph.value_info[:]
    if count:
        np.testing.assert_allclose(numbers(tmp_path, one, given), expected, rtol=1e-5, atol=1e-5)
    assert rewrite_images(one) == count


@pytest.mark.parametrize("name", STAYS)
def test_what_the_importer_takes_stays(name: str) -> None:
    from tilewright.ir.onnx_images import rewrite_images

    one = model(STAYS[name])
    before = one.SerializeToString()
    assert rewrite_images(one) == 0
    assert one.SerializeToString() == before


@pytest.mark.parametrize(
    "name", ["places between pixels", "single channels", "mirrored on one side"]
)
def test_what_needs_sizes_that_are_not_known_stays(name: str) -> None:
    from tilewright.ir.onnx_images import rewrite_images

    one = model(CASES[name])
    one.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "n"
    assert rewrite_images(one) == 0


def test_an_older_version_stays() -> None:
    from tilewright.ir.onnx_images import rewrite_images

    kind, given, known, how = CASES["more off one side"]
    assert rewrite_images(operation(kind, [*given, *known], given, known, 10, **how)) == 0
