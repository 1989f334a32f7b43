"""A program compiled to its dispatches by a worker, and what that tells of it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.program import choose_function
from tilewright.ir.signature import demotes_f64
from tilewright.measure.inputs import argument_sizes
from tilewright.measure.jobs import Job, WorkerFailure
from tilewright.tuning.extract_tasks import Extraction, ExtractRequest, extract_dispatches
from tilewright.tuning.kernel_sites import sites_folder
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.programs import program_inputs
from tilewright.tuning.variants import (
    DEFAULT_VARIANT,
    PREPROCESSING_FLAG,
    Variant,
    preprocessing_spec,
)

_EXTRACT_TIMEOUT_S = 1800.0


def extract(
    opened: OpenProgram, variant: Variant = DEFAULT_VARIANT, sites: bool = False
) -> Extraction:
    """Compile a program to its dispatches, and note what the compiler makes of its types.

    Args:
        opened: the program; its target learns what the compiler knows of the processor.
        variant: as which it is compiled.
        sites: find its sites as well, where kernels are tried: that takes no compile of its own.

    Returns:
        The dispatches, each in a file of the variant's folder.

    Raises:
        UserError: it does not compile; with the compiler's line.
    """
    job = extraction_job(opened, variant)
    where = sites_folder(opened, variant) if sites and why_no_kernels(opened) is None else None
    quick = replace(job.request, sites=where, verify=False)
    extraction = opened.compilers.ask(job.task, quick, _EXTRACT_TIMEOUT_S)
    if not isinstance(extraction, WorkerFailure):
        return learn(opened, extraction)
    # What ails sites shall not cost the dispatches; and who verifies can say what is wrong.
    return learn(opened, opened.run(job.task, job.request, _EXTRACT_TIMEOUT_S))


def extraction_job(
    opened: OpenProgram, variant: Variant = DEFAULT_VARIANT
) -> Job[ExtractRequest, Extraction]:
    """What `extract` asks a worker, for who asks it of many programs at once.

    Args:
        opened: the program.
        variant: as which it is compiled.

    Returns:
        The job; the program is its tag, which `learn` is to be given with the answer.
    """
    program = opened.program
    request = ExtractRequest(
        program.path,
        opened.flags(variant),
        opened.work / variant.name,
        program.functions,
        opened.options.function,
        opened.arguments,
    )
    return Job(extract_dispatches, request, _EXTRACT_TIMEOUT_S, tag=opened)


def learn(opened: OpenProgram, extraction: Extraction) -> Extraction:
    """Take over what compiling a program told of the processor, and note what it made of types.

    Args:
        opened: the program.
        extraction: the answer to its `extraction_job`.

    Returns:
        The extraction.
    """
    opened.target = opened.target.with_vectors(*extraction.processor)
    _note_demotion(opened, extraction)
    return extraction


def _note_demotion(opened: OpenProgram, extraction: Extraction) -> None:
    """Say once that IREE computes in f32 what the program has in f64."""
    text = (
        "IREE compiles the program's f64 as f32 unless told otherwise "
        "(--iree-flag=--iree-input-demote-f64-to-f32=false)"
    )
    compiled = extraction.signatures.items()
    known = opened.program.functions
    demoted = any(demotes_f64(known.get(name), one) for name, one in compiled)
    if demoted and text not in opened.notes:
        opened.note(text)


def use_given_arguments(opened: OpenProgram) -> None:
    """Where the user gave inputs, the program's arguments have their sizes.

    Args:
        opened: the program, before it is taken apart.

    Raises:
        UserError: it does not compile, or the inputs are not its arguments.
    """
    if opened.options.inputs:
        extraction = extract(opened)
        name = choose_function(extraction.signatures, opened.options.function)
        signature, folder = extraction.signatures[name], opened.work / "inputs"
        inputs = program_inputs(opened.options, signature, extraction.limits, folder)
        opened.arguments = argument_sizes(inputs)


def why_no_kernels(opened: OpenProgram) -> str | None:
    """Why no kernels of our own are tried.

    Args:
        opened: the program.

    Returns:
        A sentence; '' where the user does not want any, None where they are tried.
    """
    if opened.options.kernels == "off":
        return ""
    if opened.target.is_gpu:
        return "kernels of our own are for CPUs: for this target the compiler's are tuned alone"
    config = opened.options.config
    if config is not None and config.restricts and opened.options.kernels == "on":
        return f"{config.path} restricts the search: kernels of our own are left out"
    if preprocessing_spec(opened.options.iree_flags) is not None:
        return (
            f"--iree-flag={PREPROCESSING_FLAG}=... takes the place of the spec that kernels of "
            "our own need: they are left out"
        )
    return None
