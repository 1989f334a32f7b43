"""The functions of a compiled module, and the arguments that they are called with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.argument import ASYNC, ArgumentType
from tilewright.errors import UserError
from tilewright.ir.signature import Signature
from tilewright.measure.benchmark_worker import open_device
from tilewright.measure.input_syntax import GivenInput, parse_input, resolve_inputs
from tilewright.measure.inputs import InputSet, ScalarInput, index_bounds, write_inputs
from tilewright.measure.jobs import WorkerState

_DECLARATION = "iree.abi.declaration"
_BENCHMARK = "iree.benchmark"
# References that may be tensors: what they are says the tensor that is given for them.
_UNTYPED = ("!vm.ref<?>", "!hal.buffer_view")


@dataclass(frozen=True)
class ModuleFunction:
    """A function that can be called from outside.

    repeats: its only argument is how often it is to run its dispatch, as in the benchmarks that
    `--iree-hal-dump-executable-benchmarks-to=` makes.
    """

    name: str
    signature: Signature
    repeats: bool = False

    @property
    def takes_nothing(self) -> bool:
        """Whether it can be benchmarked without data."""
        return self.repeats or not self.signature.inputs


def list_functions(state: WorkerState, vmfb: str) -> tuple[ModuleFunction, ...]:
    """Task of the benchmark worker: the functions of a compiled module, in its order.

    Left out are those of the runtime (`__init`), and `f$async`, which waits for fences, beside the
    `f` that does not.

    Args:
        state: the benchmark worker's.
        vmfb: the compiled module.

    Returns:
        In the module's order.

    Raises:
        UserError: the file is no compiled module.
    """
    from tilewright.ir.signature import read_signature

    exported = open_device(state).exported(vmfb)
    names = {one.name for one in exported}
    found = []
    for one in exported:
        waits = one.name.endswith(ASYNC) and one.name.removesuffix(ASYNC) in names
        if one.name.startswith("__") or waits:
            continue
        signature = read_signature(one.attributes.get(_DECLARATION, ""), one.convention)
        repeats = one.attributes.get(_BENCHMARK) == "dispatch" and len(signature.inputs) == 1
        found.append(ModuleFunction(one.name, signature, repeats))
    return tuple(found)


def takes_integers(signature: Signature) -> bool:
    """Whether an argument is a tensor of integers, which may be used as indices.

    Args:
        signature: of a function.
    """
    return any(
        kind.shape and kind.element_type.lstrip("su").startswith("i") for kind in signature.inputs
    )


def parse_inputs(texts: Sequence[str]) -> list[GivenInput]:
    """Every `--input`; a file may also be given by its bare name `values.npy`.

    Args:
        texts: as the user wrote them.

    Raises:
        UserError: one cannot be read.
    """
    return [one for text in texts for one in parse_input(_marked(text))]


def _marked(text: str) -> str:
    is_file = text.endswith(".npy") and not text.startswith("@") and "=" not in text
    return f"@{text}" if is_file else text


def make_arguments(
    function: ModuleFunction,
    texts: Sequence[str],
    folder: Path,
    *,
    seed: int = 0,
    limits: Mapping[int, int] | None = None,
    repeats: int = 1,
) -> InputSet:
    """The arguments of a call, written to a folder.

    Args:
        function: that is called.
        texts: as `--input` gives them; without any, random data.
        folder: for the data.
        seed: of random data.
        limits: by position, what random integers must stay below since they are used as indices.
        repeats: see `ModuleFunction`.

    Raises:
        UserError: an input does not fit.
    """
    if function.repeats and not texts:
        return InputSet(f"repeats-{repeats}", (ScalarInput(repeats, function.signature.inputs[0]),))
    given = parse_inputs(texts)
    types = _settled(function, given)
    bounds = index_bounds(dict(limits or {}))
    values = resolve_inputs(given, types, seed=seed, bounds=bounds)
    return write_inputs(folder, types, values)


def _settled(function: ModuleFunction, given: Sequence[GivenInput]) -> tuple[ArgumentType, ...]:
    """The types of the arguments; those that the module does not tell are those given."""
    types = []
    for position, kind in enumerate(function.signature.inputs):
        if kind.element_type.startswith("!"):
            told = given[position].type if position < len(given) else None
            if kind.element_type not in _UNTYPED:
                raise UserError(
                    f"--function: argument {position + 1} of '{function.name}' is {kind}; only "
                    "tensors and numbers can be passed"
                )
            if told is None:
                raise UserError(
                    f"--input: argument {position + 1} of '{function.name}' is a tensor whose type "
                    "the module does not tell; give it as in --input 3x5xf32=1"
                )
            kind = told
        types.append(kind)
    return tuple(types)
