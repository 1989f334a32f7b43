"""What repeats each element of an image is a broadcast; what computes new elements stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

SIZES: list[int | str] = [2, 3, 4, 5]


def resized(
    version: int = 18,
    scales: tuple[float, ...] = (1, 1, 2, 3),
    how: str = "scales",
    sizes: list[int | str] = SIZES,
    **attributes: Any,
) -> Any:
    """An image made larger, by what this version of ONNX has for it."""
    from onnx import TensorProto, helper, numpy_helper

    known: dict[str, Any] = {"scales": np.array(scales, np.float32)}
    inputs = ["x", "", "scales"]
    if how == "sizes":
        known = {"sizes": np.array([int(s * n) for s, n in zip(scales, SIZES, strict=True)])}
        inputs = ["x", "", "", "sizes"]
    if version <= 10:
        inputs = ["x", "scales"]
    node = helper.make_node("Resize", inputs, ["y"], mode=attributes.pop("mode", "nearest"))
    node.attribute.extend(helper.make_attribute(n, v) for n, v in attributes.items())
    graph = helper.make_graph(
        [node],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    if how == "at run time":
        del graph.initializer[:]
        graph.input.append(helper.make_tensor_value_info("scales", TensorProto.FLOAT, [4]))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)


ASYMMETRIC = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
REPEATS: dict[str, dict[str, Any]] = {
    "half pixels": {},
    "half pixels, up": {"nearest_mode": "round_prefer_ceil"},
    "as PyTorch says it": ASYMMETRIC,
    "sizes": {"how": "sizes"},
    "axes": {"axes": [3, 2], "scales": (3, 2)},
    "sizes at run time": {"sizes": ["n", 3, "h", "w"]},
    "pixels of PyTorch": {"coordinate_transformation_mode": "pytorch_half_pixel"},
    "before regions": {"version": 10},
}
STAYS: dict[str, dict[str, Any]] = {
    "cubic": {"mode": "cubic"},
    "linear, by one and a half": {"mode": "linear", "scales": (1, 1, 1.5, 1)},
    "linear, of an unknown image": {
        "mode": "linear",
        "coordinate_transformation_mode": "align_corners",
        "sizes": [2, 3, 4, "w"],
    },
    "smaller": {"scales": (1, 1, 0.5, 1)},
    "by one and a half": {"scales": (1, 1, 1.5, 1)},
    "as it is": {"scales": (1, 1, 1, 1)},
    "corners": {"coordinate_transformation_mode": "align_corners"},
    "asymmetric, rounded": {"coordinate_transformation_mode": "asymmetric"},
    "half pixels, down": {"nearest_mode": "floor"},
    "scales at run time": {"how": "at run time"},
    "sizes of an unknown image": {"how": "sizes", "sizes": ["n", 3, "h", 5]},
}


IMAGE = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
LARGER = np.repeat(np.repeat(IMAGE, 2, axis=2), 3, axis=3)


@pytest.mark.parametrize("name", REPEATS)
def test_repeated_elements_are_a_broadcast(name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_resizes import repeat_elements

    model = resized(**REPEATS[name])
    if model.opset_import[0].version > 10:  # the evaluator has no older ones
        np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"x": IMAGE})[0], LARGER)
    assert repeat_elements(model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert {one.op_type for one in model.graph.node} >= {"Expand", "Reshape"}
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"x": IMAGE})[0], LARGER)


@pytest.mark.parametrize("sizes", [SIZES, ["n", 3, "h", "w"]])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_the_compiler_takes_the_broadcast(
    tmp_path: Path, sizes: list[int | str], mode: str
) -> None:
    from iree import runtime
    from iree.compiler.tools import compile_file
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.importing import import_onnx

    path = tmp_path / "larger.onnx"
    model = resized(sizes=sizes, mode=mode)
    onnx.save(model, path)
    program, _ = import_onnx(path, tmp_path)
    flags = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ]
    module = compile_file(str(program), input_type="auto", extra_args=flags)
    loaded = runtime.load_vm_flatbuffer(module, driver="local-sync")
    expected = ReferenceEvaluator(model).run(None, {"x": IMAGE})[0]
    np.testing.assert_allclose(loaded["net"](IMAGE).to_host(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"coordinate_transformation_mode": "pytorch_half_pixel"},
        {"coordinate_transformation_mode": "asymmetric"},
        {"coordinate_transformation_mode": "align_corners"},
        {"coordinate_transformation_mode": "align_corners", "scales": (1, 3, 1, 4)},
        {"how": "sizes"},
        {"version": 11},
    ],
)
def test_elements_between_others_are_sums_of_broadcasts(how: dict[str, Any]) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_resizes import repeat_elements

    model = resized(mode="linear", **how)
    image = np.random.default_rng(4).standard_normal(IMAGE.shape).astype(np.float32)
    expected = ReferenceEvaluator(model).run(None, {"x": image})[0]
    assert repeat_elements(model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert "Resize" not in {one.op_type for one in model.graph.node}
    found = ReferenceEvaluator(model).run(None, {"x": image})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STAYS)
def test_others_stay(name: str) -> None:
    from tilewright.ir.onnx_resizes import repeat_elements

    model = resized(**STAYS[name])
    before = model.SerializeToString()
    assert repeat_elements(model) == 0
    assert model.SerializeToString() == before
