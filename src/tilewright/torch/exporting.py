"""Modules as programs of torch.export, and what is known of how they are called.

A program's digest is of what it computes and of the types of all that goes in, not of names, of the
order of weights or of their values: a module that is exported, and the graph that torch.compile
makes of the same module, have the same one.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.export.graph_signature import ConstantArgument, InputKind, TensorArgument
from torch.utils import _pytree as pytree

from tilewright.errors import UserError
from tilewright.ir.fx_import import ELEMENT_TYPES, decomposed
from tilewright.plain_data import tupled


@dataclass(frozen=True)
class CallingForm:
    """How a program is called: plain data.

    digest: of what it computes. weights: their names, in the order of their first use. inputs: of
    the tensors among the arguments, their places in that order. arguments: for each leaf of the
    arguments None for a tensor or a number that the program takes, else the value that it was
    exported with, as `{"value": ...}`. results: the same of the results, where a tensor is its
    element type as torch names it. argument_tree, result_tree: the trees that the leaves make, as
    torch writes them. likeness: a digest of its operations alone, whatever their sizes and types.
    types: of the tensors and numbers that it takes, in the order of `inputs`, such as `1x3xf32`.
    Both are empty in files of earlier versions.
    """

    digest: str
    weights: tuple[str, ...]
    inputs: tuple[int, ...]
    arguments: tuple[Mapping[str, Any] | None, ...]
    results: tuple[Mapping[str, Any] | str, ...]
    argument_tree: str
    result_tree: str
    likeness: str = ""
    types: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As a file has it."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def from_json(text: str) -> CallingForm:
        """What `to_json` wrote.

        Args:
            text: the file's.

        Raises:
            ValueError, TypeError: it did not write this.
        """
        data: dict[str, Any] = {name: tupled(value) for name, value in json.loads(text).items()}
        return CallingForm(**data)


def export(
    module: torch.nn.Module | torch.export.ExportedProgram,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """A module as a program, in ops that the compiler reads.

    Args:
        module: in any mode; what is exported is its evaluation mode. A program is taken as it is.
        inputs: arguments of a call.
        kwargs: arguments by name.
        dynamic_shapes: as `torch.export.export` takes it.

    Raises:
        UserError: PyTorch cannot export it, or a weight is not on the CPU.
    """
    if torch.is_autocast_enabled("cpu"):
        raise UserError(
            f"{type(module).__name__}: torch.autocast is on, which compiled programs do not look "
            "at; tune outside of it, and use module.bfloat16() for smaller types"
        )
    if isinstance(module, torch.export.ExportedProgram):
        with _quiet():
            return decomposed(module)
    try:
        with evaluation(module), _quiet(), torch.no_grad():
            program = torch.export.export(
                module, inputs, dict(kwargs or {}), dynamic_shapes=dynamic_shapes
            )
            weights_of(program)
            return decomposed(program)
    except UserError:
        raise
    except Exception as error:
        # Whatever the module's own code raises when it is traced.
        said = str(error).strip().splitlines() or [type(error).__name__]
        name = type(module).__name__
        raise UserError(f"{name}: torch.export cannot export it: {said[0]}") from error


@contextmanager
def evaluation(module: torch.nn.Module) -> Iterator[None]:
    """A module in evaluation mode; each of its parts is as it was in the end.

    Args:
        module: changed in place.
    """
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True


def weights_of(program: torch.export.ExportedProgram) -> dict[str, torch.Tensor]:
    """Parameters, buffers and constant tensors by their names, the same memory as the module's.

    Args:
        program: of `export`.

    Raises:
        UserError: one is not on the CPU.
    """
    found = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind != InputKind.USER_INPUT and spec.target is not None:
            store = program.state_dict if spec.target in program.state_dict else program.constants
            found[spec.target] = weight = store[spec.target]
            if isinstance(weight, torch.Tensor) and weight.device.type != "cpu":
                raise UserError(
                    f"weight '{spec.target}' is on the device '{weight.device}'; what is tuned "
                    "here runs on the CPU: module.cpu()"
                )
    return found


def calling_form(program: torch.export.ExportedProgram) -> CallingForm:
    """How a program is called.

    Args:
        program: of `export`.

    Raises:
        UserError: it takes or returns what a compiled program cannot.
    """
    signature = program.graph_signature
    targets = {
        spec.arg.name: spec.target
        for spec in signature.input_specs
        if spec.kind != InputKind.USER_INPUT
    }
    users = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    order, digest = _first_uses(program, targets)
    places = {arg.name: place for place, arg in enumerate(users)}
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    results: list[Mapping[str, Any] | str] = []
    for output in signature.output_specs:
        arg = output.arg
        if isinstance(arg, ConstantArgument):
            results.append({"value": _plain(arg.value, "result")})
        elif isinstance(arg, TensorArgument):
            results.append(str(values[arg.name].dtype).removeprefix("torch."))
        else:
            results.append("number")
    return CallingForm(
        digest=digest,
        weights=tuple(targets[name] for name in order if name in targets),
        inputs=tuple(places[name] for name in order if name in places),
        arguments=tuple(
            {"value": _plain(arg.value, "argument")} if isinstance(arg, ConstantArgument) else None
            for arg in users
        ),
        results=tuple(results),
        argument_tree=pytree.treespec_dumps(program.call_spec.in_spec),
        result_tree=pytree.treespec_dumps(program.call_spec.out_spec),
        likeness=_digest([node.target for node in program.graph.nodes if node.op != "placeholder"]),
        types=tuple(_type_in_words(values[name]) for name in order if name in places),
    )


def computes_f64(program: torch.export.ExportedProgram) -> bool:
    """Whether anything in a program is of 64-bit floats.

    Args:
        program: of `export`.
    """
    return any(
        isinstance(one, torch.Tensor) and one.dtype in (torch.float64, torch.complex128)
        for node in program.graph.nodes
        for one in pytree.tree_leaves(node.meta.get("val"))
    )


def _type_in_words(value: Any) -> str:
    """An argument's type as options write it: `1x3x?xf32`."""
    if not isinstance(value, torch.Tensor):
        return "number"
    sizes = [str(size) if isinstance(size, int) else "?" for size in value.shape]
    return "x".join([*sizes, ELEMENT_TYPES.get(value.dtype, str(value.dtype))])


def _digest(lines: Iterable[Any]) -> str:
    return hashlib.sha256(json.dumps(list(lines), default=str).encode()).hexdigest()


def _plain(value: Any, what: str) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"a {what} of the module is {value!r}; only tensors and numbers can be passed")


def _first_uses(
    program: torch.export.ExportedProgram, weights: Mapping[str, str]
) -> tuple[list[str], str]:
    """The placeholders in the order of their first use, and the digest of what is computed."""
    numbers: dict[str, int] = {}
    order: list[str] = []
    lines: list[Any] = []

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node):
            return repr(value)
        if value.name not in numbers:
            # The only nodes that no line has made: placeholders.
            numbers[value.name] = len(numbers)
            order.append(value.name)
            lines.append(_placeholder(program, value, weights.get(value.name)))
        return numbers[value.name]

    for node in program.graph.nodes:
        if node.op != "placeholder":
            given = pytree.tree_map(leaf, (node.args, node.kwargs))
            lines.append([node.op, str(node.target), repr(given)])
            numbers[node.name] = len(numbers)
    return order, _digest(lines)


def _placeholder(
    program: torch.export.ExportedProgram, node: torch.fx.Node, weight: str | None
) -> list[Any]:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ["input", repr(value)]
    # Sizes that are open have names, which say nothing.
    sizes = [size if isinstance(size, int) else "?" for size in value.shape]
    constant = program.constants.get(weight) if weight is not None else None
    if isinstance(constant, torch.Tensor) and constant.numel() <= 1:
        # The compiler gets the value itself.
        return ["constant", constant.tolist(), str(value.dtype)]
    return ["input" if weight is None else "weight", sizes, str(value.dtype)]


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch's own exporting warns of is nothing that its user can mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
