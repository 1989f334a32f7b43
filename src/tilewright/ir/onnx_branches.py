"""Convolutions of one image that are added up, as one convolution.

Networks are trained with several branches side by side, which are one convolution by weights once
they are trained (Ding and others, "RepVGG", arXiv:2101.03697; MobileOne, FastViT and others since).
Often they are exported as they were trained. A convolution is linear in its image: a sum of some
has the sum of their filters, each at its place in the largest. The image itself, also times known
numbers for each channel or normalised by such, is a convolution by windows of one element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tilewright.ir.onnx_graphs import (
    GraphBuild,
    constants_of,
    remove_unused,
    replace_nodes,
    uses,
)

_FLOAT = onnx.TensorProto.FLOAT
# Dimensions that the image of a convolution has at least.
_LEAST = 3


def merge_branches(model: onnx.ModelProto) -> int:
    """Write sums of convolutions of one image as one, where that takes no more multiplications.

    Args:
        model: is changed. Convolutions of numbers other than f32, dilated ones and those whose
            weights are not known are left alone, and so is what is used beside the sum.

    Returns:
        How many sums were rewritten.
    """
    graph = model.graph
    known = constants_of(graph)
    found = _Sums(known, uses(graph)).of(graph.node)
    if not found:
        return 0

    def write(node: onnx.NodeProto, build: GraphBuild) -> bool:
        if node.output[0] not in found:
            return False
        found[node.output[0]].write(build, node.output[0])
        return True

    count = replace_nodes(graph, "branches", write)
    used = uses(graph)
    for node in reversed(list(graph.node)):
        if not any(used[name] for name in node.output):
            used.subtract(node.input)
            graph.node.remove(node)
    remove_unused(graph, set(known))
    return count


@dataclass(frozen=True)
class _Branch:
    """A convolution, times `factor`, one number or one for each result; `filters` None: the image
    itself."""

    factor: Any
    filters: onnx.TensorProto | None = None
    groups: int = 1
    strides: tuple[int, ...] = ()
    begins: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()

    @property
    def kernel(self) -> tuple[int, ...]:
        return tuple(self.filters.dims[2:]) if self.filters is not None else ()


@dataclass(frozen=True)
class _Window:
    """The convolution that a sum of some is: `channels` those of the image."""

    results: int
    channels: int
    groups: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]


@dataclass(frozen=True)
class _Sum:
    """Branches of an image, added up, and `bias`, one number or one for each result."""

    image: str
    branches: tuple[_Branch, ...]
    bias: Any = 0.0

    def times(self, factor: Any) -> _Sum:
        branches = tuple(replace(one, factor=one.factor * factor) for one in self.branches)
        return replace(self, branches=branches, bias=self.bias * factor)

    def plus(self, other: _Sum) -> _Sum | None:
        """The sum of both; None where it is not one convolution, or one of more work."""
        both = replace(self, branches=self.branches + other.branches)
        if self.image != other.image or both.window() is None:
            return None
        return replace(both, bias=self.bias + other.bias)

    def window(self) -> _Window | None:
        """The convolution that it is; None where it is none, or takes more multiplications."""
        plain = [one for one in self.branches if one.filters is not None]
        if not plain:
            return None
        dims, first = [list(one.filters.dims) for one in plain if one.filters is not None], plain[0]
        rank, results, channels = len(dims[0]) - 2, dims[0][0], dims[0][1] * first.groups
        # What the number of places depends on.
        reach = _reach(first)
        whole = len(plain) < len(self.branches)
        if whole and (results != channels or set(first.strides) != {1} or set(reach) != {-1}):
            return None
        for one, (made, each, *kernel) in zip(plain, dims, strict=True):
            same = (made, each * one.groups, len(kernel)) == (results, channels, rank)
            if not same or one.strides != first.strides or _reach(one) != reach:
                return None
        each_groups = [one.groups for one in plain] + [channels] * whole
        groups = min(each_groups)
        if any(one % groups for one in each_groups):
            return None
        begins = tuple(map(max, zip(*(one.begins for one in plain), strict=True)))
        ends = tuple(map(max, zip(*(one.ends for one in plain), strict=True)))
        kernel = [b + e - r for b, e, r in zip(begins, ends, reach, strict=True)]
        given = sum(map(prod, dims)) + whole * channels
        if results * (channels // groups) * prod(kernel) > given:
            return None
        return _Window(results, channels, groups, tuple(kernel), first.strides, begins, ends)

    def write(self, build: GraphBuild, name: str) -> None:
        """Make the convolution, with a name for what it makes."""
        window = self.window()
        assert window is not None
        results, channels, groups = window.results, window.channels, window.groups
        total = np.zeros((results, channels // groups, *window.kernel))
        for one in self.branches:
            begins, have = one.begins or (0,) * len(window.kernel), one.groups
            if one.filters is None:
                filters, have = np.ones((channels, 1, *(1 for _ in window.kernel))), channels
            else:
                filters = numpy_helper.to_array(one.filters).astype(np.float64)
            factor = np.broadcast_to(one.factor, results)
            filters = filters * factor.reshape(-1, *(1 for _ in filters.shape[1:]))
            places: Any = tuple(
                slice(most - begin, most - begin + size)
                for most, begin, size in zip(window.begins, begins, filters.shape[2:], strict=True)
            )
            total[(..., *places)] += _in_groups(filters, have, groups)
        bias = np.broadcast_to(self.bias, results)
        build.op(
            "Conv",
            self.image,
            build.constant(total.astype(np.float32)),
            build.constant(bias.astype(np.float32)),
            to=name,
            group=groups,
            kernel_shape=window.kernel,
            strides=window.strides,
            pads=window.begins + window.ends,
        )


class _Sums:
    """Which values of a graph are sums of convolutions of one image."""

    def __init__(self, known: Mapping[str, onnx.TensorProto], used: Mapping[str, int]) -> None:
        self._known, self._used = known, used
        self._found: dict[str, _Sum] = {}
        # Those that are part of another.
        self._inside: set[str] = set()

    def of(self, nodes: Sequence[onnx.NodeProto]) -> dict[str, _Sum]:
        """The sums of several branches that are part of no larger one, by the name of the value."""
        makers = {
            "Add": self._added,
            "BatchNormalization": self._normalised,
            "Conv": self._convolved,
            "Mul": self._scaled,
            "Sub": self._added,
        }
        for node in nodes:
            if node.domain or node.op_type not in makers:
                continue
            given = {one.name: helper.get_attribute_value(one) for one in node.attribute}
            made = makers[node.op_type](node, given)
            if made is not None:
                self._found[node.output[0]] = made
        return {
            name: one
            for name, one in self._found.items()
            if len(one.branches) > 1 and name not in self._inside and one.window() is not None
        }

    def _array(self, name: str) -> Any:
        """A known vector or number of f32."""
        one = self._known.get(name)
        if one is None or one.data_type != _FLOAT:
            return None
        return numpy_helper.to_array(one).astype(np.float64)

    def _choices(self, name: str) -> list[_Sum]:
        """A value as what it is made of, where nothing else uses it, and as itself."""
        if name in self._known:
            return []
        itself = [_Sum(name, (_Branch(1.0),))]
        made = self._found.get(name)
        return [made, *itself] if made is not None and self._used[name] == 1 else itself

    def _convolved(self, node: onnx.NodeProto, given: dict[str, Any]) -> _Sum | None:
        filters, bias = self._known.get(node.input[1]), 0.0
        if filters is None or filters.data_type != _FLOAT or len(filters.dims) < 3:
            return None
        if len(node.input) > 2 and node.input[2]:
            bias = self._array(node.input[2])
        rank = len(filters.dims) - 2
        named, dilated = given.get("auto_pad", b"NOTSET"), max(given.get("dilations", (1,)))
        if bias is None or named != b"NOTSET" or dilated > 1:
            return None
        pads = tuple(given.get("pads", (0,) * 2 * rank))
        strides = tuple(given.get("strides", (1,) * rank))
        branch = _Branch(1.0, filters, given.get("group", 1), strides, pads[:rank], pads[rank:])
        return _Sum(node.input[0], (branch,), bias)

    def _normalised(self, node: onnx.NodeProto, given: dict[str, Any]) -> _Sum | None:
        scale, bias, mean, variance = map(self._array, node.input[1:5])
        late = given.get("training_mode", 0) or len([one for one in node.output if one]) > 1
        if late or any(one is None for one in (scale, bias, mean, variance)):
            return None
        factor = scale / np.sqrt(variance + given.get("epsilon", 1e-5))
        for value in self._choices(node.input[0])[:1]:
            self._take(node.input[0], value)
            made = value.times(factor)
            return replace(made, bias=made.bias + bias - mean * factor)
        return None

    def _scaled(self, node: onnx.NodeProto, given: dict[str, Any]) -> _Sum | None:
        for one, other in (node.input, tuple(node.input)[::-1]):
            for value in self._choices(one):
                factor = self._for_each_result(other, value)
                if factor is not None:
                    self._take(one, value)
                    return value.times(factor)
        return None

    def _added(self, node: onnx.NodeProto, given: dict[str, Any]) -> _Sum | None:
        sign = -1.0 if node.op_type == "Sub" else 1.0
        pairs = (node.input, 1.0, sign), (tuple(node.input)[::-1], sign, 1.0)
        for (one, other), of_one, of_other in pairs:
            for value in self._choices(one):
                bias = self._for_each_result(other, value)
                if bias is not None:
                    self._take(one, value)
                    value = value.times(of_one)
                    return replace(value, bias=value.bias + of_other * bias)
        first, second = node.input
        for value in self._choices(first):
            for other in self._choices(second):
                both = value.plus(other.times(sign))
                if both is not None:
                    self._take(first, value)
                    self._take(second, other)
                    return both
        return None

    def _take(self, name: str, value: _Sum) -> None:
        """Note that a value is computed inside another, where what it is made of was taken."""
        if value.image != name:
            self._inside.add(name)

    def _for_each_result(self, name: str, value: _Sum) -> Any:
        """A known tensor as one number, or one for each result of a sum; None where it is neither,
        or would give the result more dimensions.

        Of an image alone it is not known which of its axes are which, nor how many it has.
        """
        given, window = self._array(name), value.window()
        if given is None or given.ndim > (_LEAST if window is None else 2 + len(window.kernel)):
            return None
        if given.size == 1:
            return float(given.reshape(()))
        if window is None:
            return None
        whole = (window.results, *(1 for _ in window.kernel))
        of_each = given.shape[-len(whole) :] == whole and given.size == window.results
        return given.reshape(window.results) if of_each else None


def _reach(one: _Branch) -> tuple[int, ...]:
    """By how much less than an image's size, along each axis, windows of stride 1 have places."""
    return tuple(b + e - k for b, e, k in zip(one.begins, one.ends, one.kernel, strict=True))


def _in_groups(filters: Any, have: int, want: int) -> Any:
    """Filters of groups as those of fewer, with zeros for the channels of the others."""
    results, each = filters.shape[:2]
    channels = each * have
    wide = np.zeros((results, channels // want, *filters.shape[2:]))
    for result in range(results):
        first = result * have // results * each - result * want // results * (channels // want)
        wide[result, first : first + each] = filters[result]
    return wide
