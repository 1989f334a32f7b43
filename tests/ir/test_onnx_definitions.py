"""What IREE's importer gets wrong or does not know has the numbers that ONNX says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled_onnx import imported_numbers, numbers, operation

from tilewright.ir.importing import import_onnx

onnx = pytest.importorskip("onnx")

RNG = np.random.default_rng(3)


def integers(shape: tuple[int, ...], kind: type[np.generic]) -> np.ndarray:
    limits = np.iinfo(kind)
    return RNG.integers(limits.min, limits.max, shape).astype(kind)


def product(rank: int, kind: type[np.generic]) -> Any:
    """A quantised product of so many dimensions."""
    batch = (2,) * (rank - 2)
    known = {
        **{"s": np.array([0.02], np.float32), "sy": np.array(0.3, np.float32)},
        **{name: np.array(n, kind) for name, n in (("z", 20), ("zw", 31), ("zy", 28))},
    }
    names = ["a", "s", "z", "b", "s", "zw", "sy", "zy"]
    given = {"a": integers((*batch, 8, 16), kind), "b": integers((*batch, 16, 8), kind)}
    return operation("QLinearMatMul", names, given, known), given


def convolution(version: int = 17, channels: int = 6) -> Any:
    """A quantised convolution, with so many scales of its six filters."""
    known = {
        **{"sx": np.float32(0.02), "zx": np.uint8(117), "w": integers((6, 4, 3, 3), np.int8)},
        "sw": RNG.uniform(0.01, 0.02, channels).astype(np.float32),
        "zw": np.zeros(channels, np.int8),
        **{
            "sy": np.float32(0.1),
            "zy": np.uint8(90),
            "b": integers((6,), np.int8).astype(np.int32),
        },
    }
    known = {name: np.asarray(array) for name, array in known.items()}
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    given = {"x": integers((1, 4, 8, 8), np.uint8)}
    return operation("QLinearConv", names, given, known, version, pads=[1] * 4), given


def pixels(mode: str) -> Any:
    given = {"x": RNG.standard_normal((1, 12, 4, 6)).astype(np.float32)}
    return operation("DepthToSpace", ["x"], given, {}, blocksize=2, mode=mode), given


def attention() -> Any:
    given = {
        n: RNG.standard_normal((1, 2, 8, 16)).astype(np.float32) for n in ("q", "k", "v", "p", "o")
    }
    names = ["q", "k", "v", "", "p", "o"]
    return operation("Attention", names, given, {}, version=23), given


def scaled() -> Any:
    given = {"x": RNG.standard_normal((2, 3, 16)).astype(np.float32)}
    known = {"w": RNG.uniform(0.5, 1.5, 16).astype(np.float32)}
    return operation("RMSNormalization", ["x", "w"], given, known, version=23), given


def turned() -> Any:
    given = {"x": RNG.standard_normal((1, 2, 6, 8)).astype(np.float32)}
    angles = RNG.standard_normal((1, 6, 4))
    known = {"c": np.cos(angles).astype(np.float32), "s": np.sin(angles).astype(np.float32)}
    return operation("RotaryEmbedding", ["x", "c", "s"], given, known, version=23), given


def gated() -> Any:
    given = {"x": RNG.standard_normal((3, 8)).astype(np.float32)}
    return operation("Swish", ["x"], given, {}, version=24, alpha=1.5), given


CASES = {
    "pixels, the channel first": lambda: pixels("CRD"),
    "pixels, the channel last": lambda: pixels("DCR"),
    "a product": lambda: product(2, np.uint8),
    "products, with a sign": lambda: product(3, np.int8),
    "products in two dimensions": lambda: product(4, np.uint8),
    "a scale for each filter": convolution,
    "a scale for each filter, before axes": lambda: convolution(10),
    "a scale for all filters, before axes": lambda: convolution(10, 1),
    "attention to what was before": attention,
    "root mean squares": scaled,
    "turned by their places": turned,
    "gated by a sigmoid": gated,
}


@pytest.mark.parametrize("branch", [False, True])
def test_a_weight_that_is_called_like_the_graph_is_found(tmp_path: Path, branch: bool) -> None:
    from iree import runtime
    from onnx import TensorProto, helper, numpy_helper

    add = helper.make_node("Add", ["x", "net"], ["y"])
    nodes, known = [add], {"net": np.ones((64, 64), np.float32), "net_weight": np.zeros(1)}
    if branch:
        inner = [
            helper.make_graph(
                [helper.make_node("Add", ["x", "net"], [name])],
                name,
                [],
                [helper.make_tensor_value_info(name, TensorProto.FLOAT, (64, 64))],
            )
            for name in ("then", "else")
        ]
        how = {"then_branch": inner[0], "else_branch": inner[1]}
        nodes = [helper.make_node("If", ["yes"], ["y"], **how)]
    graph = helper.make_graph(
        nodes,
        "net",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (64, 64)),
            helper.make_tensor_value_info("yes", TensorProto.BOOL, ()),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (64, 64))],
        [numpy_helper.from_array(array, name) for name, array in known.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    program, ((_, archive),) = import_onnx(tmp_path / "model.onnx", tmp_path)
    index = runtime.ParameterIndex()
    index.load(str(archive))
    kept = {name for name, _ in index.items()}
    assert "net_weight_" in kept
    assert '"net_weight_"' in program.read_text()
    assert '"net">' not in program.read_text()


@pytest.mark.parametrize("name", CASES)
def test_the_compiled_numbers_are_those_of_onnx(tmp_path: Path, name: str) -> None:
    from onnx.reference import ReferenceEvaluator

    model, given = CASES[name]()
    onnx.save(model, tmp_path / "net.onnx")
    before = (tmp_path / "net.onnx").read_bytes()
    import_onnx(tmp_path / "net.onnx", tmp_path)
    assert (tmp_path / "net.onnx").read_bytes() == before, "the user's file is left as it is"
    found = numbers(tmp_path, model, given)
    expected = ReferenceEvaluator(model).run(None, given)[0]
    # A number between two bytes may be either.
    bound = 1 if expected.dtype.kind in "iu" else 1e-5
    found = found.view(expected.dtype)
    assert found.shape == expected.shape
    assert np.abs(found.astype(np.float64) - expected.astype(np.float64)).max() <= bound


def test_channels_of_pixels_of_any_number_keep_their_order() -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_definitions import rewrite_misread

    model, given = pixels("CRD")
    expected = ReferenceEvaluator(model).run(None, given)[0]
    for place, name in ((0, "n"), (2, "h"), (3, "w")):
        model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = name
    assert rewrite_misread(model) == 1
    assert "Gather" in {one.op_type for one in model.graph.node}
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, given)[0], expected)


def test_pixels_of_an_unknown_image_are_refused() -> None:
    from tilewright.ir.onnx_definitions import rewrite_misread

    model, _ = pixels("CRD")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ValueError, match="fixed sizes"):
        rewrite_misread(model)


def test_scales_that_an_old_version_has_no_operation_for_are_refused() -> None:
    model, _ = convolution(version=10)
    from tilewright.ir.onnx_definitions import rewrite_misread

    with pytest.raises(ValueError, match="version 13"):
        rewrite_misread(model)


def test_weights_of_f64_are_those_that_the_compiler_computes_with(tmp_path: Path) -> None:
    """Told nothing, it takes f64 for f32, and would read their bytes so."""
    from onnx import TensorProto, helper, numpy_helper

    from tilewright.ir.onnx_definitions import shorten_weights

    rng = np.random.default_rng(2)
    known = {"w": rng.standard_normal((12, 20)), "b": rng.standard_normal(20)}
    nodes = [
        helper.make_node("Cast", ["x"], ["wide"], to=TensorProto.DOUBLE),
        helper.make_node("MatMul", ["wide", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT),
    ]
    shapes = {"x": [3, 12], "y": [3, 20]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    weights = [numpy_helper.from_array(array, name) for name, array in known.items()]
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    given = rng.standard_normal((3, 12), np.float32)
    found = imported_numbers(*import_onnx(tmp_path / "net.onnx", tmp_path), given)
    np.testing.assert_allclose(found, given @ known["w"] + known["b"], rtol=1e-5, atol=1e-5)
    assert shorten_weights(model) == 1, "the other is small, and stays in the program"
    onnx.checker.check_model(model, full_check=True)
    kinds = {one.data_type for one in model.graph.initializer}
    assert kinds == {TensorProto.FLOAT, TensorProto.DOUBLE}
