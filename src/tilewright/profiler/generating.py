"""`profile generate`: programs of operations, and the configurations of each that `--configs` asks
for.

An operation's program can be several dispatches (padding before a convolution, slices added up
behind a product). The one that does most of the work is the one that is configured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewright import scratch
from tilewright.database_address import ServerAddress, default_database
from tilewright.errors import UserError
from tilewright.kernels.operation import Operation
from tilewright.kernels.worker_tasks import EmitRequest, emit_programs
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.pool import Job, WorkerPool
from tilewright.profiler.configurations import ConfigurationChoice, ConfigurationChooser
from tilewright.profiler.folder import DispatchEntry, GeneratedFolder, OperationFolder
from tilewright.store import Database
from tilewright.target import Target, parse_target
from tilewright.toolchain import Toolchain
from tilewright.tuning.extraction import extraction_job, learn
from tilewright.tuning.opening import LOAD_TIMEOUT_S, OpenProgram
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import read_all_tasks
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.worker_tasks import LoadRequest, read_user_program

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
    db: Path | ServerAddress | None = None


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
    named: set[str] = set()
    store = _open_store(options)
    try:
        with generated.locked(), compile_pool(options.jobs, flags=(flags,)) as pool:
            folders = [generated.folder_of(operation) for operation in operations]
            for folder in folders:
                _check_target(folder, options.target)
                folder.target = options.target.name
            written = _emit(folders, flags, options.target.declaration, pool)
            summary.written = len(written)
            for folder, subject in zip(folders, _subjects(folders, options, pool), strict=True):
                chosen = ConfigurationChooser(folder.operation.name, subject, options.seed, store)
                chosen.choose(options.choices)
                named.update(chosen.taken)
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
                say(f"[Generating]: {folder.program}")
                for name in chosen.configurations:
                    say(f"    Emitting tuning configuration : {name}")
            _check_taken(options.choices, named)
    finally:
        if store is not None:
            store.close()
    return summary


def _check_taken(choices: Sequence[ConfigurationChoice], taken: set[str]) -> None:
    """Raises UserError for a named configuration that no operation has."""
    missing = [c.name for c in choices if c.way == "named" and c.name not in taken]
    if missing:
        raise UserError(
            f"--configs: no operation has the configuration {missing[0]} on this target (see the "
            "notes; `tilewright inspect` shows a dispatch's search space)"
        )


def _open_store(options: GenerateOptions) -> Database | None:
    """The database where one is needed and there is one; a named one must be there."""
    if all(choice.way != "best" for choice in options.choices):
        return None
    place = options.db or default_database()
    if options.db is None and isinstance(place, Path) and not place.is_file():
        return None
    return Database.open(place, create=False)


def _check_target(folder: OperationFolder, target: Target) -> None:
    """Raises UserError for a folder that holds dispatches for another GPU."""
    if not folder.dispatches or folder.target == target.name:
        return
    if target.is_gpu or parse_target(folder.target).is_gpu:
        raise UserError(
            f"--target: {folder.path} was generated for {folder.target}, not for {target.name}; "
            "give another --generated-dir, or delete it"
        )


def _emit(
    folders: Sequence[OperationFolder],
    flags: tuple[str, ...],
    declaration: str,
    pool: WorkerPool,
) -> set[str]:
    programs = [(folder.operation.name, folder.program) for folder in folders]
    jobs = [
        Job(
            emit_programs,
            EmitRequest(tuple(programs[i : i + _PER_JOB]), flags, declaration),
            _EMIT_TIMEOUT_S,
        )
        for i in range(0, len(programs), _PER_JOB)
    ]
    written: set[str] = set()
    for result in pool.run(jobs):
        if result.failure is not None:
            names = ", ".join(name for name, _ in result.job.request.programs)
            raise UserError(f"the programs of {names} cannot be built: {result.failure.message}")
        written.update(result.value)
    return written


# -- the dispatch that is configured ---------------------------------------------------------------


def _subjects(
    folders: Sequence[OperationFolder], options: GenerateOptions, pool: WorkerPool
) -> Sequence[DispatchTask | str]:
    """For each operation the dispatch that does most, or why none can be configured. Each step is
    taken for all operations at once, so that all workers have work."""
    if all(choice.way == "default" for choice in options.choices):
        return [""] * len(folders)
    found: list[DispatchTask | str] = [""] * len(folders)
    with scratch.folder() as work:
        reading = [LoadRequest(f.program, work / str(i), None) for i, f in enumerate(folders)]
        extractions = []
        for i, read in enumerate(
            pool.run([Job(read_user_program, r, LOAD_TIMEOUT_S) for r in reading])
        ):
            if read.failure is not None:
                found[i] = read.failure.message
                continue
            flags = (*folders[i].operation.flags, *options.iree_flags)
            own = TuneOptions(iree_flags=flags, kernels="off")
            opened = OpenProgram(
                read.value, options.target, own, Toolchain(), pool, reading[i].folder
            )
            extractions.append((i, extraction_job(opened)))
        extracted = []
        for (i, job), result in zip(
            extractions, pool.run([job for _, job in extractions]), strict=True
        ):
            if result.failure is not None:
                found[i] = result.failure.message
            else:
                extracted.append((i, job.tag, learn(job.tag, result.value)))
        prepared = read_all_tasks([(opened, one) for _, opened, one in extracted])
        for (i, *_), variant in zip(extracted, prepared, strict=True):
            found[i] = _subject(variant)
    return found


def _subject(prepared: PreparedVariant) -> DispatchTask | str:
    if not prepared.tasks:
        reasons = [one.reason for one in prepared.skipped]
        return reasons[0] if reasons else "the program has no dispatch"
    return max(prepared.tasks, key=lambda t: (t.workload.flops, t.workload.bytes))
