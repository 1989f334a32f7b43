"""A program opened: read by IREE, with workers to compile it and what is known of it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from tilewright import scratch
from tilewright.cluster.connecting import ClusterNeeds, open_cluster
from tilewright.cluster.handing_out import ClusterBenchmark, ClusterPool, device_label
from tilewright.cluster.place import parse_place
from tilewright.errors import UserError
from tilewright.ir.program import Program
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.compile_worker import compile_pool
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.jobs import JobRunner, Reply, Request, WorkerFailure, WorkerTask
from tilewright.measure.remote import parse_runner
from tilewright.target import Target, fallback_of
from tilewright.toolchain import Toolchain, check_versions, installed_version
from tilewright.tuning.events import Event, Listener, Note, ignore
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.variants import DEFAULT_VARIANT, Variant
from tilewright.tuning.worker_tasks import LoadRequest, compile_probe, read_user_program

LOAD_TIMEOUT_S = 600.0


@dataclass
class OpenProgram:
    """A program that IREE has read: all that is needed to compile it and to take it apart.

    There is no device behind it and no database: see `context.RunContext` for a run with both.

    target: what it is compiled for; it learns the processor's vectors when the program is compiled.
    options: the user's; of a program that is only opened, its flags, function and inputs count.
    work: a folder that goes with the program. notes: what the user was told, for the log.
    arguments: the shape or value of each of the program's arguments, once they are known and if its
        own types leave sizes open.
    """

    program: Program
    target: Target
    options: TuneOptions
    toolchain: Toolchain
    compilers: JobRunner
    work: Path
    listener: Listener = ignore
    compiler_version: str = field(
        default_factory=lambda: installed_version("iree-base-compiler"), kw_only=True
    )
    notes: list[str] = field(default_factory=list, kw_only=True)
    arguments: tuple[tuple[int, ...] | int | None, ...] = field(default=(), kw_only=True)

    def emit(self, event: Event) -> None:
        """Tell the listener.

        Args:
            event: what happened.
        """
        self.listener(event)

    def note(self, text: str, warning: bool = False) -> None:
        """Tell the user something, and keep it for the log.

        Args:
            text: a sentence.
            warning: whether it may need attention.
        """
        self.notes.append(text)
        self.emit(Note(text, warning))

    def flags(
        self, variant: Variant = DEFAULT_VARIANT, spec: Path | None = None
    ) -> tuple[str, ...]:
        """Every flag of `iree-compile` for the program.

        Args:
            variant: whose flags come last.
            spec: a tuning spec to compile with.

        Returns:
            The flags of the program's input, the target, the user, the variant and the spec.
        """
        plain = (*self.program.input_flags, *self.target.flags, *self.options.iree_flags)
        with_spec = (f"{self.target.spec_flag}{spec}",) if spec is not None else ()
        return (*plain, *variant.flags, *with_spec)

    def run(
        self,
        task: WorkerTask[Request, Reply],
        request: Request,
        timeout_s: float,
        what: str = "",
    ) -> Reply:
        """Run one task in a worker.

        Args:
            task: the task.
            request: what it is asked.
            timeout_s: seconds after which it is ended.
            what: begins the message of a failure; by default the program's name.

        Returns:
            The task's answer.

        Raises:
            UserError: the task failed.
        """
        reply = self.compilers.ask(task, request, timeout_s)
        if not isinstance(reply, WorkerFailure):
            return reply
        if reply.is_user_error:
            raise UserError(reply.message)
        raise UserError(f"{what or self.program.source}: {reply.message}")


@contextmanager
def open_program(
    path: Path,
    target: Target,
    options: TuneOptions | None = None,
    *,
    input_type: str | None = None,
    listener: Listener = ignore,
) -> Iterator[OpenProgram]:
    """Read a program in a worker (a malformed one can crash the parser); all is gone at the end.

    Args:
        path: MLIR or an ONNX model.
        target: what it is to be compiled for.
        options: of those, `function` and the directory of tools decide how the program is read; by
            default none is given.
        input_type: its dialect, where it cannot be told from the program.
        listener: is told what is noted of the program.

    Yields:
        The program; its target is the nearest one that the compiler accepts.

    Raises:
        UserError: it cannot be read or is not a program, or the tools do not know the processor.
    """
    check_versions()
    options = options or TuneOptions()
    toolchain = Toolchain(*options.tools)
    toolchain.check_same(options.tools[1])
    if not target.is_gpu and target.cpu != "host":
        toolchain.check_processor(target.cpu)
    with (
        scratch.folder() as work,
        compile_pool(target.cores) as compilers,
    ):
        target, note = accepted_target(target, compilers)
        request = LoadRequest(
            path.absolute(), work, options.function, input_type, target.declaration
        )
        program = compilers.ask(read_user_program, request, LOAD_TIMEOUT_S)
        if isinstance(program, WorkerFailure):
            place = "" if program.is_user_error else f"{path}: IREE cannot read the program: "
            raise UserError(place + program.message)
        program = replace(program, source=path)
        opened = OpenProgram(program, target, options, toolchain, compilers, work, listener)
        if note:
            opened.note(note, warning=True)
        yield opened


_NO_DEVICE = (
    "; without such a device here, --runner measures on another machine and --compile-only "
    "measures nothing"
)


def open_benchmark(
    target: Target, options: TuneOptions, announce: Callable[[str], None] = lambda text: None
) -> Benchmark:
    """What measures for a run. Raises UserError for a runner that there is not.

    Args:
        target: what is measured was compiled for it.
        options: `runner`, `device` and `compile_only` decide.
        announce: told what is waited for.

    Returns:
        A device of this machine, or another machine's.
    """
    if options.compile_only or options.dry_run:
        # The device of the target need not be there.
        return Benchmark(DeviceOptions("local-sync"))
    if options.runner is not None:
        return parse_runner(options.runner, announce)
    if options.device is not None:
        return Benchmark(DeviceOptions(options.device))
    if target.is_gpu:
        return Benchmark(DeviceOptions(target.device, advice=_NO_DEVICE))
    # What takes more than there is would have the system pick what it ends.
    most = psutil.virtual_memory().total
    return Benchmark(DeviceOptions.cpu(target.cores), memory_limit=most)


@contextmanager
def opened_cluster(
    opened: OpenProgram, announce: Callable[[str], None]
) -> Iterator[ClusterBenchmark]:
    """Have a cluster compile and measure for an opened program.

    Args:
        opened: its pool is given the cluster for what can travel.
        announce: told what is waited for.

    Yields:
        What measures.

    Raises:
        UserError: there is no cluster, or it cannot work for this run.
    """
    options, target = opened.options, opened.target
    place = parse_place(options.cluster or "local:0")
    asked = devices_of(options.device) or [target.device]
    needs = ClusterNeeds(
        device_label(asked[0]),
        tuple(asked),
        own_processor=not target.is_gpu and target.cpu == "host",
    )
    with open_cluster(place, needs, opened.work, announce, options.cluster_certs) as cluster:
        opened.compilers = ClusterPool(opened.compilers, cluster)
        threads = None if target.is_gpu else target.cores
        yield ClusterBenchmark(cluster, needs.label, threads)


def devices_of(given: str | None) -> list[str]:
    """The devices that `--device` names.

    Args:
        given: with commas between several; None for none.
    """
    return [one.strip() for one in given.split(",")] if given else []


def accepted_target(target: Target, compilers: JobRunner) -> tuple[Target, str]:
    """The target, or the one nearest to it where the compiler refuses a target that it has no name
    for; and a note on that, '' for none.

    Args:
        target: as the user named it.
        compilers: one of them tries it.
    """
    other = fallback_of(target)
    if other is None:
        return target, ""
    refused = compilers.ask(compile_probe, target.declaration, 60.0)
    if refused is None:
        return target, ""
    return other, (
        f"the compiler refuses {target.name} ({refused.message}); code is made for "
        f"{other.name}, which runs there as well"
    )
