"""Recurrent layers of an ONNX model as one product for all steps, and a loop of what is left.

IREE's importer makes a product of each gate with the input and one of it with the state, in every
step: nine dispatches in each step of an LSTM. What does not depend on the step before is one
product here, and so are the gates' products with the state. That the input's part of a recurrent
layer is computed for all steps at once is from J. Appleyard, T. Kocisky and P. Blunsom, Optimizing
Performance of Recurrent Neural Networks on GPUs, arXiv:1604.01946 (2016).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.onnx_graphs import (
    GraphBuild,
    Shapes,
    constants_of,
    replace_nodes,
    shapes_of,
    version_of,
)

# Gates of each layer, as its weights have them beside each other.
_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_INPUTS = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
# `Slice` has places as inputs since this version, `Scan` its present form since an earlier one.
_OLDEST = 10
# Steps that are written out in a loop: each time around takes some 8 us beside its dispatches.
_TOGETHER = 16


def split_recurrent(model: onnx.ModelProto) -> int:
    """Write recurrent layers as a product for all steps and a loop over these.

    A layer stays as it is where it is not of the usual kind (its own activations, peepholes, a
    limit on values, sequences of different lengths, the batch first) or where the number of steps
    is not known.

    Args:
        model: is changed. Data in other files is not looked at.

    Returns:
        How many layers were rewritten.

    Raises:
        ValueError: a layer is one that IREE's importer takes for another.
    """
    graph = model.graph
    layers = [node for node in graph.node if node.op_type in _GATES and not node.domain]
    if not layers:
        return 0
    shapes, known = shapes_of(model), constants_of(graph)
    for node in layers:
        _drop_equal_lengths(node, shapes, known)
        _refuse_misread(node)
    if version_of(model) < _OLDEST:
        return 0

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        layer = _layer(node, shapes)
        if layer is not None:
            _write(build, layer)
        return layer is not None

    return replace_nodes(graph, "recurrent", write)


def _drop_equal_lengths(
    node: onnx.NodeProto, shapes: Shapes, known: Mapping[str, onnx.TensorProto]
) -> None:
    """Leave out the lengths of a layer's sequences where all of them have all steps."""
    place = _INPUTS.index("sequence_lens")
    lengths = known.get(node.input[place]) if len(node.input) > place else None
    (steps,) = shapes.get(node.input[0], (0, []))[1][:1] or (None,)
    if lengths is not None and steps and (numpy_helper.to_array(lengths) == steps).all():
        node.input[place] = ""


def _refuse_misread(node: onnx.NodeProto) -> None:
    """Say of a layer what IREE 3.13's importer would leave out without a word."""
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    names = dict.fromkeys(_INPUTS, "") | dict(zip(_INPUTS, node.input, strict=False))
    activations = [one.decode() for one in given.get("activations", [])]
    usual = _ACTIVATIONS[node.op_type]
    others = activations != usual * (len(activations) // len(usual))
    left_out = {
        "lengths of its own for each sequence (sequence_lens)": names["sequence_lens"],
        "peepholes": names["P"],
        "clipped sums": given.get("clip"),
        "activations of its own": others and node.op_type != "RNN",
    }
    found = [what for what, there in left_out.items() if there]
    if found:
        raise ValueError(
            f"{node.name or node.op_type} is a layer ({node.op_type}) with {', '.join(found)}, "
            "which IREE's importer leaves out and would compute wrong numbers: write it as a "
            "loop (Scan), or export the model without"
        )


@dataclass(frozen=True)
class _Layer:
    """A recurrent layer; names are '' where it has no such input or output.

    steps, batch, input_width, width: what X has, and the state. linear_before_reset: of a GRU.
    """

    kind: str
    inputs: dict[str, str]
    outputs: list[str]
    reversed: tuple[bool, ...]
    steps: int
    batch: int
    input_width: int
    width: int
    element_type: int
    linear_before_reset: bool


def _layer(node: onnx.NodeProto, shapes: Shapes) -> _Layer | None:
    """What a node is as a layer that can be rewritten; None where it is none."""
    if node.op_type not in _GATES or node.domain:
        return None
    given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    names = dict.fromkeys(_INPUTS, "") | dict(zip(_INPUTS, node.input, strict=False))
    reversed_ = _DIRECTIONS.get(given.get("direction", b"forward").decode())
    element_type, sizes = shapes.get(names["X"], (0, []))
    known = [size for size in (*sizes, *shapes.get(names["R"], (0, []))[1][-1:]) if size]
    if reversed_ is None or len(sizes) != 3 or len(known) != 4:
        return None
    steps, batch, input_width, width = known
    activations = [one.decode() for one in given.get("activations", [])]
    usual = _ACTIVATIONS[node.op_type] * len(reversed_)
    unusual = (
        (activations and activations != usual)
        or any(given.get(name) for name in ("clip", "input_forget", "layout"))
        or names["sequence_lens"]
        or names["P"]
        or steps < 2
    )
    if unusual:
        return None
    return _Layer(
        node.op_type,
        names,
        [*node.output, "", "", ""][:3],
        reversed_,
        steps,
        batch,
        input_width,
        width,
        element_type,
        bool(given.get("linear_before_reset")),
    )


def _write(build: GraphBuild, layer: _Layer) -> None:
    """The layer, one direction after the other."""
    sides = [_Side(build, layer, n).write() for n in range(len(layer.reversed))]
    for name, values, axis in zip(layer.outputs, zip(*sides, strict=True), (1, 0, 0), strict=False):
        if name and len(values) == 1:
            build.op("Identity", values[0], to=name)
        elif name:
            build.op("Concat", *values, to=name, axis=axis)


def _steps_together(steps: int) -> int:
    """How many steps are written out in the loop: what leaves the fewest behind it."""
    together = range(min(_TOGETHER, max(1, steps // 2)), _TOGETHER // 2, -1)
    return min(together, key=lambda n: steps % n, default=max(1, steps // 2))


class _Side:
    """One direction of a layer."""

    def __init__(self, build: GraphBuild, layer: _Layer, number: int) -> None:
        self._build, self._layer, self._number = build, layer, number
        self._back = layer.reversed[number]
        self._gates = _GATES[layer.kind] * layer.width
        self._weights = self._transposed("R", layer.width)
        self._bias = self._biases()

    def write(self) -> list[str]:
        """The names of Y, '' where it is not asked for, and of the states behind the last step,
        with an axis for directions."""
        build, layer = self._build, self._layer
        states = [self._initial("initial_h")]
        states += [self._initial("initial_c")] if layer.kind == "LSTM" else []
        value = layer.inputs["X"]
        order = build.constant(np.arange(layer.steps - 1, -1, -1)) if self._back else ""
        value = build.op("Gather", value, order, axis=0) if self._back else value
        together = _steps_together(layer.steps)
        looped = layer.steps - layer.steps % together
        weights = self._transposed("W", layer.input_width)
        states, results = self._loop(value, weights, states, looped // together, together)
        if looped < layer.steps:
            rest = self._products(build.part(value, 0, looped, layer.steps), weights)
            for n in range(layer.steps - looped):
                step = build.part(rest, 0, n * layer.batch, (n + 1) * layer.batch)
                states = self._step(build, states, step)
                results.append(build.reshaped(states[0], [1, *self._state()]))
        whole = ""
        if layer.outputs[0]:
            whole = results[0] if len(results) == 1 else build.op("Concat", *results, axis=0)
            # By indices: IREE's importer does not look at the directions of a Scan.
            whole = build.op("Gather", whole, order, axis=0) if self._back else whole
            whole = build.reshaped(whole, [layer.steps, 1, *self._state()])
        return [whole, *(build.reshaped(one, [1, *self._state()]) for one in states)]

    def _loop(
        self, value: str, weights: str, states: list[str], times: int, together: int
    ) -> tuple[list[str], list[str]]:
        """A loop of so many steps at a time: the states behind it, and what it makes of all steps,
        where that is asked for."""
        build, layer = self._build, self._layer
        # Beside each other what the loop takes first, then what it takes second, ...
        taken = build.reshaped(
            build.part(value, 0, 0, times * together),
            [times, together, layer.batch, layer.input_width],
        )
        taken = build.op("Transpose", taken, perm=[1, 0, 2, 3])
        taken = self._products(taken, weights)
        rows, shape = times * layer.batch, [times, layer.batch, self._gates]
        steps = [
            build.reshaped(build.part(taken, 0, n * rows, (n + 1) * rows), shape)
            for n in range(together)
        ]
        body = build.inner()
        # The states behind one time around are rows of what all its steps made, so that one value
        # is all that it hands on.
        count, state = together + len(states) - 1, self._state()
        unused = [np.zeros([together - 1, *state], self._numpy())] if together > 1 else []
        first = build.op(
            "Concat",
            *(build.constant(one) for one in unused),
            *(build.reshaped(one, [1, *state]) for one in states),
            axis=0,
        )
        before, inside = body.name(), [body.name() for _ in steps]
        after, made = self._behind(body, before, together, count), []
        for step in inside:
            after = self._step(body, after, step)
            made.append(body.reshaped(after[0], [1, *state]))
        made += [body.reshaped(one, [1, *state]) for one in after[1:]]
        results = [body.op("Concat", *made, axis=0)]
        scanned = [build.name()] if layer.outputs[0] else []
        results += [body.op("Identity", results[0]) for _ in scanned]

        def known(name: str, *shape: int) -> onnx.ValueInfoProto:
            return helper.make_tensor_value_info(name, layer.element_type, shape)

        wide = [known(one, layer.batch, self._gates) for one in inside]
        loop = helper.make_graph(
            body.nodes,
            body.name(),
            [known(before, count, *state), *wide],
            [known(one, count, *state) for one in results],
        )
        last = build.name()
        build.nodes.append(
            helper.make_node(
                "Scan",
                [first, *steps],
                [last, *scanned],
                body=loop,
                num_scan_inputs=together,
            )
        )
        hidden = [build.part(one, 1, 0, together) for one in scanned]
        return self._behind(build, last, together, count), [
            build.reshaped(one, [times * together, *state]) for one in hidden
        ]

    def _behind(self, build: GraphBuild, rows: str, together: int, count: int) -> list[str]:
        """The states behind the last of some steps, of what these made."""
        return [
            build.reshaped(build.part(rows, 0, n, n + 1), self._state())
            for n in range(together - 1, count)
        ]

    def _products(self, value: str, weights: str) -> str:
        """The products of an input's steps with its weights, a row for each sample of each step."""
        width = self._layer.input_width
        return self._build.op("MatMul", self._build.reshaped(value, [-1, width]), weights)

    def _step(self, build: GraphBuild, states: list[str], step: str) -> list[str]:
        """A step: the states behind it.

        Args:
            build: gets its nodes.
            states: before it.
            step: the product with the input.
        """
        steps = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}
        return steps[self._layer.kind](build, states, step)

    def _state(self) -> list[int]:
        return [self._layer.batch, self._layer.width]

    def _part(self, name: str) -> str:
        """An input's part that is of this direction."""
        return self._build.part(self._layer.inputs[name], 0, self._number, self._number + 1)

    def _transposed(self, name: str, width: int) -> str:
        one = self._build.reshaped(self._part(name), [self._gates, width])
        return self._build.op("Transpose", one, perm=[1, 0])

    def _initial(self, name: str) -> str:
        if self._layer.inputs[name]:
            return self._build.reshaped(self._part(name), self._state())
        return self._build.constant(np.zeros(self._state(), self._numpy()))

    def _biases(self) -> tuple[str, str]:
        """What is added to the products of a step, and to the input's part of the last gate; ''
        where nothing is."""
        build, layer, gates = self._build, self._layer, self._gates
        if not layer.inputs["B"]:
            return "", ""
        both = build.reshaped(self._part("B"), [2, gates])
        first, second = (build.reshaped(build.part(both, 0, n, n + 1), [gates]) for n in (0, 1))
        if not (layer.kind == "GRU" and layer.linear_before_reset):
            return build.op("Add", first, second), ""
        # The reset gate scales what the state gives, with the bias of that.
        until = gates - layer.width
        zeros = build.constant(np.zeros(layer.width, self._numpy()))
        first_part = build.op("Concat", build.part(first, 0, 0, until), zeros, axis=0)
        return build.op("Add", first_part, second), build.part(first, 0, until, gates)

    def _numpy(self) -> Any:
        return helper.tensor_dtype_to_np_dtype(self._layer.element_type)

    # -- steps: what is computed from the states before and the input's part, both of the step -----

    def _lstm(self, build: GraphBuild, states: list[str], step: str) -> list[str]:
        hidden, cell = states
        product = build.added(build.op("MatMul", hidden, self._weights), self._bias[0])
        i, o, f, c = self._gates_of(build, build.op("Add", product, step))
        kept = build.op("Mul", build.op("Sigmoid", f), cell)
        new = build.op("Mul", build.op("Sigmoid", i), build.op("Tanh", c))
        cell = build.op("Add", kept, new)
        return [build.op("Mul", build.op("Sigmoid", o), build.op("Tanh", cell)), cell]

    def _gru(self, build: GraphBuild, states: list[str], step: str) -> list[str]:
        (hidden,), width = states, self._layer.width
        both, last = (0, 2 * width), (2 * width, 3 * width)
        late = self._layer.linear_before_reset
        if late:
            product = build.added(build.op("MatMul", hidden, self._weights), self._bias[0])
            of_gates = build.part(product, 1, *both)
            of_input = build.added(build.part(step, 1, *last), self._bias[1])
        else:
            of_gates = build.op("MatMul", hidden, build.part(self._weights, 1, *both))
            step = build.added(step, self._bias[0])
            of_input = build.part(step, 1, *last)
        gates = build.op("Add", of_gates, build.part(step, 1, *both))
        z, r = (build.op("Sigmoid", one) for one in self._gates_of(build, gates, 2))
        if late:
            of_state = build.op("Mul", r, build.part(product, 1, *last))
        else:
            weights = build.part(self._weights, 1, *last)
            of_state = build.op("MatMul", build.op("Mul", r, hidden), weights)
        new = build.op("Tanh", build.op("Add", of_state, of_input))
        # (1 - z) * new + z * hidden
        return [build.op("Add", new, build.op("Mul", z, build.op("Sub", hidden, new)))]

    def _rnn(self, build: GraphBuild, states: list[str], step: str) -> list[str]:
        product = build.added(build.op("MatMul", states[0], self._weights), self._bias[0])
        return [build.op("Tanh", build.op("Add", product, step))]

    def _gates_of(self, build: GraphBuild, value: str, count: int = 4) -> list[str]:
        width = self._layer.width
        return [build.part(value, 1, n * width, (n + 1) * width) for n in range(count)]
