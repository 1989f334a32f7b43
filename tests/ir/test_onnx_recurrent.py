"""Recurrent layers that are written as a product and a loop compute what the layers do."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
BATCH, WIDTH, STATE = 2, 6, 4


def layer(
    kind: str, direction: str, steps: int, *, bias: bool = True, late: bool = False, **more: Any
) -> tuple[Any, dict[str, np.ndarray]]:
    """A model of one layer with all its results, and what it reads."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(steps)
    sides, gates = 2 if direction == "bidirectional" else 1, GATES[kind] * STATE
    shapes = {
        "x": (steps, BATCH, WIDTH),
        "w": (sides, gates, WIDTH),
        "r": (sides, gates, STATE),
        "b": (sides, 2 * gates),
        "h": (sides, BATCH, STATE),
        "c": (sides, BATCH, STATE),
    }
    values = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    inputs = ["x", "w", "r", "b" if bias else "", "", "h", *(["c"] if kind == "LSTM" else [])]
    outputs = ["y", "last_h", *(["last_c"] if kind == "LSTM" else [])]
    attributes = {"hidden_size": STATE, "direction": direction, **more}
    if late:
        attributes["linear_before_reset"] = 1
    graph = helper.make_graph(
        [helper.make_node(kind, inputs, outputs, **attributes)],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shapes["x"])],
        [
            helper.make_tensor_value_info(
                n,
                TensorProto.FLOAT,
                [steps, sides, BATCH, STATE] if n == "y" else [sides, BATCH, STATE],
            )
            for n in outputs
        ],
        [numpy_helper.from_array(values[n], n) for n in inputs if n not in ("", "x")],
    )
    if not bias:
        values["b"] = np.zeros_like(values["b"])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ), values


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


def expected(
    kind: str, direction: str, late: bool, values: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """By the equations of the operators' documentation."""
    made = []
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
    for d, back in enumerate(backwards[direction]):
        w, r, (wb, rb) = values["w"][d], values["r"][d], np.split(values["b"][d], 2)
        h, c = values["h"][d], values["c"][d]
        hs = []
        for x in values["x"][::-1] if back else values["x"]:
            wx, rh = x @ w.T + wb, h @ r.T + rb
            if kind == "LSTM":
                i, o, f, g = np.split(wx + rh, 4, axis=1)
                c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
                h = sigmoid(o) * np.tanh(c)
            elif kind == "RNN":
                h = np.tanh(wx + rh)
            else:
                (wz, wr, wh), (rz, rr, rl) = np.split(wx, 3, axis=1), np.split(rh, 3, axis=1)
                z, reset = sigmoid(wz + rz), sigmoid(wr + rr)
                early = (reset * h) @ r[2 * STATE :].T + rb[2 * STATE :]
                new = np.tanh(wh + (reset * rl if late else early))
                h = (1 - z) * new + z * h
            hs.append(h)
        made.append((np.stack(hs[::-1] if back else hs), h, c))
    y, h, c = (np.stack([one[n] for one in made], axis=int(n == 0)) for n in range(3))
    return [y, h, c] if kind == "LSTM" else [y, h]


CASES = [
    (kind, direction, late)
    for kind, direction, late in itertools.product(
        GATES, ("forward", "reverse", "bidirectional"), (False, True)
    )
    if kind == "GRU" or not late
]


@pytest.mark.parametrize("steps", [2, 5, 17, 32])
@pytest.mark.parametrize(("kind", "direction", "late"), CASES)
def test_the_same_is_computed(kind: str, direction: str, late: bool, steps: int) -> None:
    from onnx.reference import ReferenceEvaluator

    from tilewright.ir.onnx_recurrent import split_recurrent

    model, values = layer(kind, direction, steps, late=late, bias=steps != 5)
    assert split_recurrent(model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert kind not in {node.op_type for node in model.graph.node}
    got = ReferenceEvaluator(model).run(None, {"x": values["x"]})
    for have, want in zip(got, expected(kind, direction, late, values), strict=True):
        assert np.allclose(have, want, atol=2e-5)


@pytest.mark.parametrize(
    ("kind", "direction", "late", "steps"),
    [
        ("LSTM", "bidirectional", False, 10),
        ("GRU", "reverse", True, 11),
        ("RNN", "forward", False, 4),
    ],
)
def test_the_compiler_takes_it(
    kind: str, direction: str, late: bool, steps: int, tmp_path: Path
) -> None:
    from iree import runtime
    from iree.compiler.tools import compile_file

    from tilewright.ir.onnx_import import run

    model, values = layer(kind, direction, steps, late=late)
    onnx.save(model, tmp_path / "net.onnx")
    before = (tmp_path / "net.onnx").read_bytes()
    run([str(tmp_path / "net.onnx"), "-o", str(tmp_path / "net.mlir")])
    assert (tmp_path / "net.onnx").read_bytes() == before, "the user's file is left as it is"
    assert "onnx.Scan" in (tmp_path / "net.mlir").read_text()
    flags = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    flags.append("--iree-llvmcpu-target-cpu=host")
    module = compile_file(str(tmp_path / "net.mlir"), input_type="auto", extra_args=flags)
    net = runtime.load_vm_flatbuffer(module, driver="local-sync")
    for have, want in zip(
        net.net(values["x"]), expected(kind, direction, late, values), strict=True
    ):
        assert np.allclose(have.to_host(), want, atol=2e-5)


def test_an_unusual_layer_stays() -> None:
    from tilewright.ir.onnx_recurrent import split_recurrent

    model, _ = layer("LSTM", "forward", 8, input_forget=1)
    before = model.SerializeToString()
    assert split_recurrent(model) == 0
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"activations": ["Sigmoid", "Tanh", "Relu"]}, "activations of its own"),
        ({"clip": 3.0}, "clipped sums"),
    ],
)
def test_a_layer_that_the_importer_takes_for_another_is_refused(
    tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    from tilewright.errors import UserError
    from tilewright.ir.importing import import_onnx

    model, _ = layer("LSTM", "forward", 8, **more)
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(UserError, match=said):
        import_onnx(tmp_path / "net.onnx", tmp_path)


@pytest.mark.parametrize("lengths", [[8, 8], [8, 5]])
def test_sequences_have_all_steps_or_are_refused(lengths: list[int]) -> None:
    from onnx import numpy_helper

    from tilewright.ir.onnx_recurrent import split_recurrent

    model, _ = layer("LSTM", "forward", 8)
    node = model.graph.node[0]
    node.input.extend([""] * (5 - len(node.input)))
    node.input[4] = "lengths"
    given = numpy_helper.from_array(np.array(lengths, np.int32), "lengths")
    model.graph.initializer.append(given)
    if lengths == [8, 8]:
        assert split_recurrent(model) == 1
        return
    with pytest.raises(ValueError, match="sequence_lens"):
        split_recurrent(model)


def test_an_unknown_number_of_steps_stays() -> None:
    from tilewright.ir.onnx_recurrent import split_recurrent

    model, _ = layer("GRU", "forward", 8)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "steps"
    for one in model.graph.output:
        if one.name == "y":
            one.type.tensor_type.shape.dim[0].dim_param = "steps"
    assert split_recurrent(model) == 0
