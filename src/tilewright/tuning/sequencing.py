"""Programs whose kernels that follow each other are one dispatch.

Which kernels follow each other is read off the program with them, behind its preprocessing; so a
spec with the kernels comes first, and the program is compiled with what is made of it then.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.files import write_whole
from tilewright.ir.session import SITE_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.toolchain import UNVERIFIED, CompileJob
from tilewright.tuning.builds import Build
from tilewright.tuning.estimates import SEQUENCING
from tilewright.tuning.programs import Programs
from tilewright.tuning.variants import without_preprocessing
from tilewright.tuning.worker_tasks import parse_module

_TIMEOUT_S = 300.0


def in_sequence(programs: Programs, builds: Sequence[Build]) -> list[Build]:
    """Programs whose kernels that follow each other are one dispatch.

    Args:
        programs: of the run.
        builds: to be compiled; their specs are written.

    Returns:
        The same, each with another preprocessing spec where kernels of it follow each other. Of
        what failed the user is told.
    """
    context, begin = programs.context, time.monotonic()
    found = list(builds)
    wanted = [n for n, one in enumerate(builds) if one.preprocessing is not None]
    if not wanted or context.target.is_gpu:
        return found
    requests = [_request(programs, builds[n]) for n in wanted]
    read = programs.toolchain.compile_many(
        [
            CompileJob(
                programs.program.path,
                one.program,
                (*one.flags, f"--compile-to={SITE_PHASE}"),
                programs.compile_timeout_s,
                extra=(UNVERIFIED,),
            )
            for one in requests
        ],
        context.target.cores,
    )
    jobs = [Job(write_sequences, one, _TIMEOUT_S) for one in requests]
    counts = iter(context.compilers.run(itertools.compress(jobs, (one.ok for one in read))))
    for number, request, outcome in zip(wanted, requests, read, strict=True):
        count = next(counts).outcome if outcome.ok else None
        if count is None or isinstance(count, WorkerFailure):
            problem = outcome.error if count is None else count.message
            context.note(f"kernels were not put in sequence: {problem}", warning=True)
        elif count:
            build = builds[number]
            found[number] = replace(
                build,
                name=f"{build.name}_in_sequence",
                preprocessing=request.spec,
                apart=build.preprocessing,
            )
    context.deadlines.took(SEQUENCING, time.monotonic() - begin)
    return found


def _request(programs: Programs, build: Build) -> SequencesRequest:
    context = programs.context
    assert build.preprocessing is not None
    return SequencesRequest(
        programs.folder / f"{build.name}_in_sequence.before.mlir",
        build.preprocessing,
        programs.folder / f"{build.name}_in_sequence.preprocessing.mlir",
        context.target.cores,
        context.flags(build.as_compiled(context.options.iree_flags), build.spec),
    )


# In the workers


@dataclass(frozen=True)
class SequencesRequest:
    """Write a spec that has the sequences of a program.

    program: compiled with the spec `before` to the preprocessing phase. spec: where it is written.
    cores: workers of the target. flags: of the compile.
    """

    program: Path
    before: Path
    spec: Path
    cores: int
    flags: tuple[str, ...]


def write_sequences(state: WorkerState, request: SequencesRequest) -> int:
    """Task: see SequencesRequest; how many sequences there are, 0 where nothing was written.

    Args:
        state: the worker's.
        request: what to read and write.

    Raises:
        UserError: a sequence cannot be recognised.
    """
    from tilewright.ir.sequences import find_sequences
    from tilewright.spec.sequences import add_sequences

    compiler = session(state, without_preprocessing(request.flags))
    program = parse_module(compiler, request.program.read_bytes())
    found = []
    for one in find_sequences(program.operation):
        written = io.BytesIO()
        one.module.operation.write_bytecode(written)
        found.append((written.getvalue(), one.together))
    if found:
        text = add_sequences(request.before.read_text(), found, request.cores)
        write_whole(request.spec, text.encode())
    return len(found)
