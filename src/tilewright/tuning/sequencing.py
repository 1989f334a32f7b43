"""Programs whose kernels that follow each other are one dispatch.

Which kernels follow each other is read off the program with them, behind its preprocessing; so the
choices come first, and a program of theirs is built once more with what the spec says then.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass, replace
from pathlib import Path

from tilewright.files import write_whole
from tilewright.ir.session import SITE_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import WorkerFailure, WorkerState
from tilewright.toolchain import CompileJob
from tilewright.tuning.company import Company, build_companies
from tilewright.tuning.programs import Programs
from tilewright.tuning.variants import without_preprocessing
from tilewright.tuning.worker_tasks import parse_module

_TIMEOUT_S = 300.0
# How much longer a kernel may take alone than the compiler's code does: a product of 12544x16x32
# took 1.24 times as long on operands from memory, and 0.6 times on those that were in a cache.
_NEAR = 1.3


def in_sequence(programs: Programs, company: Company) -> Company | None:
    """A program's choices with kernels that follow each other as one dispatch.

    Args:
        programs: of the run: compiles and checks the program.
        company: the choices, with a program that compiled.

    Returns:
        The same choices with another program, which gives the right results; None where no kernels
        follow each other, or there is none. Of what failed the user is told.
    """
    context, build = programs.context, company.build
    if build.preprocessing is None or context.target.is_gpu:
        return None
    name = f"{build.name}_in_sequence"
    before = programs.folder / f"{name}.before.mlir"
    spec = programs.folder / f"{name}.preprocessing.mlir"
    flags = context.flags(build.as_compiled(context.options.iree_flags), build.spec)
    (read,) = programs.toolchain.compile_many(
        [
            CompileJob(
                programs.program.path,
                before,
                (*flags, f"--compile-to={SITE_PHASE}"),
                programs.compile_timeout_s,
            )
        ],
        1,
    )
    if not read.ok:
        context.note(f"kernels were not put in sequence: {read.error}", warning=True)
        return None
    request = SequencesRequest(before, build.preprocessing, spec, context.target.cores, flags)
    count = context.compilers.ask(write_sequences, request, _TIMEOUT_S)
    if isinstance(count, WorkerFailure):
        context.note(f"kernels were not put in sequence: {count.message}", warning=True)
        return None
    if not count:
        return None
    made = programs.build(replace(build, name=name, preprocessing=spec, vmfb=None))
    wrong = made.error if not made.ok else programs.check(made)
    if wrong:
        context.note(f"the program with kernels in sequence was dropped: {wrong}", warning=True)
        return None
    return replace(company, build=made)


def with_more_kernels(programs: Programs, company: Company) -> Company | None:
    """A program's choices with kernels for dispatches that are left to the compiler, too.

    Where a kernel is almost as fast alone, it can be faster between others: it is a stage of their
    sequence then, and finds in a cache what they wrote, which trials do not.

    Args:
        programs: of the run: compiles and checks the program.
        company: the choices, with a program that compiled.

    Returns:
        The choices with more kernels, and a program that gives the right results; None where there
        are no more, or there is none.
    """
    prepared, more = company.prepared, {}
    taken = {*company.choices, *company.covered}
    # What stands for several dispatches comes first, since it leaves these out.
    for task in sorted(prepared.tasks, key=lambda one: not one.is_chain):
        parts = {one.identity for one in prepared.parts_of(task)} if task.is_chain else set()
        if {task.identity, *parts} & taken:
            continue
        kernels = [t for t in task.trials if t.ok and task.kernel(t.configuration) is not None]
        best = min(kernels, key=lambda t: t.time_s or math.inf, default=None)
        if best is not None and (best.time_s or math.inf) < _NEAR * (task.default_s or 0.0):
            more[task.identity] = best.configuration
            taken |= {task.identity, *parts}
    if not more or company.build.preprocessing is None:
        return None
    stem = f"{company.build.name}_more"
    built = build_companies(programs, prepared, [company.choices | more], stem)
    return replace(built[0], dropped=company.dropped) if built else None


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
