"""What compile workers do for references: random inputs, float64 results, a site as a program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.argument import ArgumentType
from tilewright.attributes import TYPED, attribute, quoted
from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import (
    InputFile,
    InputSet,
    index_bounds,
    load_arguments,
    random_inputs,
    write_outputs,
)
from tilewright.measure.jobs import WorkerState
from tilewright.measure.verify import integer_errors, is_float_type
from tilewright.site import Site
from tilewright.tuning.candidate_trial import NOT_VERIFIED, Reference
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.roundings import MOVED
from tilewright.tuning.worker_tasks import parse_module

if TYPE_CHECKING:
    from iree.compiler import ir

FLOAT64 = "float64 NumPy"

SITE_PROGRAM_PHASE = "input"
"""What the program of a site is compiled from: it takes and returns tensors."""

SITE_FLAG = f"--compile-from={SITE_PROGRAM_PHASE}"
"""What `iree-compile` needs beside a variant's flags to compile `SiteData.program`."""

_SCOPE = "site"
_SEVERAL = 2


@dataclass(frozen=True)
class ReferenceRequest:
    """Make random inputs of a dispatch and compute its results in float64.

    `with_sensitivity`: find out as well how much each result moves with the inputs' last digit,
    which takes a few evaluations more. `terms`: what is taken for the length of its sums where that
    cannot be read from it. `verify`: whether results are wanted at all.
    """

    dispatch: ExtractedDispatch
    flags: tuple[str, ...]
    seed: int
    folder: Path
    terms: int
    with_sensitivity: bool = False
    verify: bool = True


def make_reference(state: WorkerState, request: ReferenceRequest) -> Reference:
    """Task: see ReferenceRequest.

    Args:
        request: which dispatch, its arguments, and where the data goes.

    Returns:
        The inputs and results in files; no results where the interpreter does not know an op.
    """
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.reference import Unsupported, accuracy, evaluate, sensitivity

    dispatch = request.dispatch
    request.folder.mkdir(parents=True, exist_ok=True)
    inputs = random_inputs(
        request.folder,
        dispatch.arguments,
        seed=request.seed,
        bounds=index_bounds(dict(dispatch.limits)),
        values=dict(dispatch.values),
    )
    if not request.verify:
        return Reference(inputs, None, method=NOT_VERIFIED)
    compiler = session(state, request.flags)
    module = parse_module(compiler, dispatch.file.read_bytes())
    values = load_arguments(inputs)
    outputs, terms = dispatch.output_types, request.terms
    try:
        limits = accuracy(module, ISOLATED_FUNCTION, _largest(dispatch.arguments))
        terms = limits.reduction_length
        expected = evaluate(module, ISOLATED_FUNCTION, values)
    except Unsupported as error:
        return Reference(inputs, None, outputs, terms, unsupported=str(error))
    # A result of floats is as coarse as the coarsest format that the program rounds to inside.
    types = tuple((limits.working_type or own) if is_float_type(own) else own for own in outputs)
    path = request.folder / "expected.npz"
    write_outputs(path, expected)
    slack = int(limits.rounds_to_integer)
    if slack:
        texts = (dispatch.file.read_bytes() for _ in MOVED)
        modules = (parse_module(compiler, text) for text in texts)
        slack = max(slack, _moved_by(modules, values, expected, outputs))
    moves: Path | None = None
    if request.with_sensitivity:
        moves = request.folder / "sensitivity.npz"
        widest = next((t for t in types if is_float_type(t)), "f32")
        write_outputs(moves, sensitivity(module, ISOLATED_FUNCTION, values, widest))
    return Reference(
        inputs,
        path,
        types,
        limits.reduction_length,
        limits.accumulation_type or None,
        slack,
        moves,
        FLOAT64,
    )


def _moved_by(
    modules: Iterable[ir.Module],
    values: Sequence[Any],
    expected: Sequence[Any],
    types: Sequence[str],
) -> int:
    """Steps that an integer result moves by where what is rounded moves by a millionth.

    A number that is rounded, scaled and rounded again can move by several where the first lies
    between two integers: a residual that is added to a layer's result in finer steps.
    """
    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.reference import Unsupported, evaluate
    from tilewright.ir.roundings import move_roundings

    most = 0
    for module, factor in zip(modules, MOVED, strict=True):
        # Rounded once it moves by one step at most.
        if move_roundings(module, factor) < _SEVERAL:
            break
        try:
            moved = evaluate(module, ISOLATED_FUNCTION, values)
        except Unsupported:
            break
        for got, want, own in zip(moved, expected, types, strict=True):
            if not is_float_type(own):
                errors = integer_errors(np.asarray(got), np.asarray(want), own)
                most = max(most, int(errors.max(initial=0)))
    return most


def _largest(arguments: tuple[ArgumentType, ...]) -> int:
    """No size of a dispatch that its types leave open is taken to be larger than this."""
    return max((size for a in arguments for size in a.shape or ()), default=1)


@dataclass(frozen=True)
class SiteDataRequest:
    """Make random inputs of a site, its results in float64, and the site as a program.

    The other fields are as of a ReferenceRequest.
    """

    site: Site
    flags: tuple[str, ...]
    seed: int
    folder: Path
    terms: int
    with_sensitivity: bool = False
    verify: bool = True


@dataclass(frozen=True)
class SiteData:
    """A site alone: what it is tried on, and what it must compute.

    reference: with inputs for all arguments of the site. program: its module with the constant ones
        inside, as parameters, so that the compiler packs them ahead as it does in the user's
        program. inputs, parameters: what the program takes.
    """

    reference: Reference
    program: Path
    inputs: InputSet
    parameters: Parameters


def make_site_data(state: WorkerState, request: SiteDataRequest) -> SiteData:
    """Task: see SiteDataRequest.

    Args:
        request: which site, its flags, and where the data goes.

    Returns:
        Inputs, results and the program in files; no results where the interpreter does not know an
        op.
    """
    site = request.site
    assert site.output is not None
    dispatch = ExtractedDispatch(
        "", site.name, site.count, site.module, arguments=site.inputs, outputs=(site.output,)
    )
    reference = make_reference(
        state,
        ReferenceRequest(
            dispatch,
            request.flags,
            request.seed,
            request.folder,
            request.terms,
            request.with_sensitivity,
            request.verify,
        ),
    )
    compiler = session(state, request.flags)
    module = parse_module(compiler, site.module.read_bytes())
    held = [at for at, constant in enumerate(site.constant) if constant]
    _hold(module, held)
    program = write_whole(request.folder / "program.mlir", module.operation.get_asm().encode())
    arguments = reference.inputs.arguments
    archives: tuple[tuple[str, str], ...] = ()
    if held:
        path = request.folder / "constants.irpa"
        _write_archive(path, {str(at): arguments[at] for at in held})
        archives = ((_SCOPE, str(path)),)
    given = InputSet(
        f"{reference.inputs.key}/program",
        tuple(one for at, one in enumerate(arguments) if at not in held),
    )
    return SiteData(reference, program, given, Parameters(archives))


@dataclass(frozen=True)
class SiteProgramRequest:
    """Compile a site as a program, as the compiler does it.

    program: its module. repeats: executions in one submission when it is timed; all that the
    compiler makes of the site runs this often.
    """

    program: Path
    flags: tuple[str, ...]
    vmfb: Path
    repeats: int


def compile_site_program(state: WorkerState, request: SiteProgramRequest) -> Path:
    """Task: see SiteProgramRequest.

    Args:
        state: the worker's.
        request: which site, and where the program goes.

    Returns:
        Where it is.

    Raises:
        CompileError: it does not compile.
    """
    from tilewright.ir.candidate import make_candidate

    compiler = session(state, request.flags)
    source = compiler.compile(request.program.read_bytes(), SITE_PROGRAM_PHASE, CONFIGURED_PHASE)
    made = make_candidate(source, compiler.context, "", "", None, request.repeats, whole=True)
    vmfb = compiler.compile(made.operation, compile_from=CONFIGURED_PHASE)
    return write_whole(request.vmfb, vmfb)


def _hold(module: Any, held: list[int]) -> None:
    """Have the function of a site's module load these arguments from parameters, in place."""
    from iree.compiler import ir
    from iree.compiler.dialects import util

    from tilewright.ir.dispatches import ISOLATED_FUNCTION
    from tilewright.ir.walk import attribute_of, string_attribute

    with module.context, ir.Location.unknown():
        function = next(
            op.operation
            for op in module.body.operations
            if string_attribute(op.operation, "sym_name") == ISOLATED_FUNCTION
        )
        block = function.regions[0].blocks[0]
        for at in reversed(held):
            argument = block.arguments[at]
            name = f"constant_{at}"
            place = attribute("#flow.parameter.named", f"{quoted(_SCOPE)}::{quoted(str(at))}")
            value = attribute_of({TYPED: [place, str(argument.type)]})
            with ir.InsertionPoint.at_block_begin(module.body):
                util.GlobalOp(
                    name,
                    ir.TypeAttr.get(argument.type),
                    initial_value=value,
                    sym_visibility="private",
                )
            with ir.InsertionPoint.at_block_begin(block):
                loaded = util.GlobalLoadOp(argument.type, name).result
            argument.replace_all_uses_with(loaded)
            block.erase_argument(at)
        kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        left = [one for at, one in enumerate(kind.inputs) if at not in held]
        function.attributes["function_type"] = ir.TypeAttr.get(
            ir.FunctionType.get(left, kind.results)
        )
        module.operation.verify()


def _write_archive(path: Path, arguments: dict[str, Any]) -> None:
    """An archive of parameters, by their names."""
    import iree.runtime

    index = iree.runtime.ParameterIndex()
    for name, argument in arguments.items():
        assert isinstance(argument, InputFile)
        array = argument.load()
        index.add_buffer(name, array.view("u1") if array.shape else array.reshape(1).view("u1"))
    index.create_archive_file(str(path))
