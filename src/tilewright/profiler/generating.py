"""`profile generate`: programs of operations, and configurations for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright.errors import UserError
from tilewright.kernels.operation import Operation
from tilewright.kernels.worker_tasks import EmitRequest, emit_programs
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.pool import Job, WorkerPool
from tilewright.profiler.configurations import Chooser, ConfigurationChoice
from tilewright.profiler.folder import DispatchEntry, GeneratedFolder, OperationFolder
from tilewright.store import Database, default_path
from tilewright.target import Target

Say = Callable[[str], None]

_EMIT_TIMEOUT_S = 120.0
# Operations that one job builds the programs of.
_PER_JOB = 32


@dataclass(frozen=True)
class GenerateOptions:
    """How to generate: `choices` of configurations, `seed` of samples, `jobs` workers. `db` is the
    database (None: the user's own, if there is one)."""

    target: Target
    choices: tuple[ConfigurationChoice, ...] = (ConfigurationChoice("default"),)
    iree_flags: tuple[str, ...] = ()
    jobs: int = 1
    seed: int = 0
    db: Path | None = None


@dataclass
class Generated:
    """What was generated: programs written (the others were there), dispatches that are new."""

    operations: int = 0
    written: int = 0
    dispatches: int = 0
    new: int = 0
    notes: list[str] = field(default_factory=list)


def generate(
    directory: Path,
    operations: Sequence[Operation],
    options: GenerateOptions,
    say: Say = lambda line: None,
) -> Generated:
    """Write the programs and manifests of operations under `directory/generated`; what is there
    stays, and compiled dispatches stay valid as long as their programs do not change.

    Args:
        directory: that of `--generated-dir`.
        operations: what to write.
        options: how.
        say: gets a line for each operation.

    Returns:
        What was written, with notes.

    Raises:
        UserError: a program cannot be built, or the folder is held or cannot be written.
    """
    generated = GeneratedFolder(directory)
    flags = (*options.target.flags, *options.iree_flags)
    summary = Generated(operations=len(operations))
    store = _open_store(options)
    try:
        with generated.locked(), compile_pool(options.jobs, flags=(flags,)) as pool:
            folders = [generated.folder_of(operation) for operation in operations]
            written = _emit(folders, flags, pool)
            summary.written = len(written)
            chooser = Chooser(
                options.choices, options.target, options.iree_flags, options.seed, store
            )
            for folder, chosen in chooser.choose(folders, pool):
                new = [name for name in chosen.configurations if name not in folder.dispatches]
                for name, tuned in chosen.configurations.items():
                    entry = folder.dispatches.setdefault(name, DispatchEntry())
                    entry.tuned = tuned
                if folder.operation.name in written:
                    # What was compiled from another program is no more.
                    for entry in folder.dispatches.values():
                        entry.compiled = None
                folder.save()
                summary.dispatches += len(chosen.configurations)
                summary.new += len(new)
                summary.notes += chosen.notes
                say(f"{folder.program}: {', '.join(chosen.configurations)}")
    finally:
        if store is not None:
            store.close()
    return summary


def _open_store(options: GenerateOptions) -> Database | None:
    """The database where one is needed and there is one; a named one must be there."""
    if all(choice.way != "best" for choice in options.choices):
        return None
    if options.db is None and not default_path().is_file():
        return None
    return Database.open(options.db, create=False)


def _emit(folders: Sequence[OperationFolder], flags: tuple[str, ...], pool: WorkerPool) -> set[str]:
    programs = [(folder.operation.name, folder.program) for folder in folders]
    jobs = [
        Job(emit_programs, EmitRequest(tuple(programs[i : i + _PER_JOB]), flags), _EMIT_TIMEOUT_S)
        for i in range(0, len(programs), _PER_JOB)
    ]
    written: set[str] = set()
    for result in pool.run(jobs):
        if result.failure is not None:
            names = ", ".join(name for name, _ in result.job.request.programs)
            raise UserError(f"the programs of {names} cannot be built: {result.failure.message}")
        written.update(result.value)
    return written
