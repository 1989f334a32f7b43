"""Recording a space: every configuration of a dispatch is compiled, measured and kept.

The same stages as in tuning do it, with more samples. Every trial is in the database before the
next is measured, so that a recording that was killed goes on where it was.

Every program is measured several times, at moments far apart. What else runs on a machine slows
whatever is measured just then, by a factor that differs between programs, so that nothing can
correct it. But it comes and goes: a program is as fast as in the second fastest of its passes (the
fastest may have been lucky, the clock for a moment higher), and samples of passes that were
disturbed are left out.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UserError
from tilewright.files import check_writable_file
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.device_options import DeviceOptions
from tilewright.measure.machine import describe
from tilewright.measure.pool import WorkerFailure
from tilewright.measure.timing import TimingPolicy
from tilewright.replay.choose import RecordingSelection, select
from tilewright.replay.recording import KnobValues, RecordedDispatch, Recording, write_recording
from tilewright.store import Database, RunStatus
from tilewright.store.steady import open_database
from tilewright.target import parse_target
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration, Status, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import measure_defaults
from tilewright.tuning.events import Event, Note
from tilewright.tuning.experience import space_to_json
from tilewright.tuning.extraction import use_given_arguments
from tilewright.tuning.opening import open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import take_apart
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.session_stages import RUN_TIMEOUT_S, compile_limit_s
from tilewright.tuning.stages import CandidateMeasurer, CompiledCandidate, DispatchCompiler, Stages
from tilewright.tuning.task import DispatchTask

RECORD_TIMING = TimingPolicy(
    warmup_max_s=0.02,
    warmup_max_calls=3,
    min_samples=5,
    max_samples=5,
    max_s=0.3,
    min_sample_s=500e-6,
    drop_factor=None,
)
"""How a configuration is timed in each pass. None is dropped early, as tuning does: the recording
must know how slow it is."""

PASSES = 4
_BATCH = 16


@dataclass(frozen=True)
class RecordRequest:
    """What to record: a dispatch of a program, by a regular expression if it has several.

    `knobs` holds lists of values as text, by knob (none: lists of about `points` configurations are
    chosen); `output` is the file; every program is timed in so many `passes`. Of `options` the
    target, threads, seed, flags, function, inputs, database and `resume` are read.
    """

    program: Path
    options: TuneOptions
    output: Path
    dispatch: str | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    points: int = 1000
    name: str = ""
    passes: int = PASSES


@dataclass(frozen=True)
class RecordProgress:
    """A configuration was measured; `done` of `total`, `failed` of those done."""

    done: int
    total: int
    failed: int
    best_s: float | None
    default_s: float


@dataclass(frozen=True)
class _Subject:
    """What a session records: a dispatch of a program, and which configurations of it."""

    context: RunContext
    task: DispatchTask
    selection: RecordingSelection


class RecordSession:
    """One run of `tilewright replay record`.

    `say` is told remarks as text, `progress` each configuration.
    """

    def __init__(
        self,
        request: RecordRequest,
        say: Callable[[str], None] = lambda text: None,
        progress: Callable[[RecordProgress], None] = lambda progress: None,
        timing: TimingPolicy = RECORD_TIMING,
    ) -> None:
        if request.dispatch is not None:
            try:
                re.compile(request.dispatch)
            except re.error as error:
                raise UserError(
                    f"--dispatch: '{request.dispatch}' is not a regular expression ({error})"
                ) from error
        check_writable_file(request.output, "-o")
        self.request = request
        self.timing = timing
        self.stopping = False
        self._say = say
        self._progress = progress

    def request_stop(self) -> None:
        """End at the next configuration; what was measured stays in the database."""
        self.stopping = True

    def abort(self) -> None:
        """Nothing here waits for what cannot be interrupted."""

    def run(self) -> Recording | None:
        """Measure and write the file. None when it was asked to stop before the end.

        Raises UserError for what the user can mend.
        """
        # What is recorded is a space of the compiler's own configurations.
        options = replace(self.request.options, kernels="off")
        target = parse_target(options.target, options.threads)
        with (
            open_program(self.request.program, target, options, listener=self._listen) as opened,
            open_database(options.db, self._say) as store,
            Benchmark(DeviceOptions.cpu(target.cores)) as benchmark,
        ):
            return self._record(RunContext(**vars(opened), benchmark=benchmark, store=store))

    def _listen(self, event: Event) -> None:
        if isinstance(event, Note):
            self._say(event.text)

    def _record(self, context: RunContext) -> Recording | None:
        use_given_arguments(context)
        prepared = take_apart(context)
        task = self._choose(prepared)
        given = self.request
        selection = select(task.space, given.knobs, given.points, context.options.seed)
        for note in selection.notes:
            self._say(note)
        self._say(_described(task, selection))
        prepared.tasks = [task]
        measure_defaults(context, prepared, 1.0)
        if not prepared.tasks:
            raise UserError(f"{given.program}: {prepared.skipped[-1].reason}")
        subject = _Subject(context, task, selection)
        digest = self._digest(subject)
        context.begin(digest, "recording of this dispatch with these values", "configurations")
        with context.ending():
            trials = self._measure(subject)
        if trials is None:
            context.store.finish_run(context.run_id, RunStatus.INTERRUPTED)
            return None
        recording = self._recording(subject, trials)
        write_recording(given.output, recording)
        context.store.finish_run(context.run_id, RunStatus.FINISHED)
        return recording

    def _choose(self, prepared: PreparedVariant) -> DispatchTask:
        """The dispatch that was asked for; UserError with the names when it is not one alone."""
        pattern = self.request.dispatch
        names = ", ".join(task.name for task in prepared.tasks)
        wanted = [
            task
            for task in prepared.tasks
            if pattern is None or any(re.search(pattern, name) for name in task.names)
        ]
        if len(wanted) == 1:
            return wanted[0]
        if wanted:
            raise UserError(
                f"{self.request.program}: several dispatches; name one of them with --dispatch "
                f"({', '.join(task.name for task in wanted)})"
            )
        if prepared.tasks:
            raise UserError(f"--dispatch: none has '{pattern}' in its name (there are: {names})")
        reasons = "; ".join(f"{s.name}: {s.reason}" for s in prepared.skipped)
        raise UserError(
            f"{self.request.program}: no dispatch to record" + (f" ({reasons})" if reasons else "")
        )

    def _digest(self, subject: _Subject) -> str:
        """Equal for recordings of which one can go on with the trials of the other."""
        identity = {
            "what": "replay record",
            "workload": subject.task.workload.key,
            "flags": list(subject.task.flags),
            "seed": self.request.options.seed,
            "timing": asdict(self.timing),
            "lists": {name: list(values) for name, values in subject.selection.lists.items()},
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]

    # -- measuring -----------------------------------------------------------------------------

    def _measure(self, subject: _Subject) -> dict[Configuration, Trial] | None:
        """The trial of every member; None when stopped."""
        context, task = subject.context, subject.task
        store, members = context.store, subject.selection.members
        task.store_id = store.task_id(task.key, task.default_s, space_to_json(task))
        earlier = store.trials(context.run_id, task.store_id)
        task.trials.extend(earlier)
        done = {trial.configuration: trial for trial in earlier}
        # In random order, so that no drift of the machine falls together with a knob.
        order = np.random.default_rng(context.options.seed).permutation(len(members))
        waiting = [members[i] for i in order if members[i] not in done]

        def observe(trial: Trial, best_s: float | None) -> None:
            done[trial.configuration] = trial
            failed = sum(not trial.ok for trial in done.values())
            assert task.default_s is not None
            self._progress(RecordProgress(len(done), len(members), failed, best_s, task.default_s))

        compiler = DispatchCompiler(task, context.compilers, timeout_s=compile_limit_s(task))
        passes = Passes(
            store,
            context.run_id,
            task,
            compiler,
            context.benchmark,
            self.timing,
            context.options.seed,
            lambda: self.stopping,
        )
        # No correction for drift: what disturbs one program does not slow another as much.
        tester = task.tester(context.benchmark, RUN_TIMEOUT_S)
        loop = SearchLoop(
            Stages(_Listed(), compiler, CandidateMeasurer(tester, self.timing)),
            partial(store.record_trial, context.run_id, task.store_id),
            observe=observe,
            stop=lambda: self.stopping,
            discard=passes.keep,
            known=earlier,
        )
        while waiting and not self.stopping:
            loop.try_all(waiting[:_BATCH])
            del waiting[:_BATCH]
        if self.stopping:
            return None
        for number in range(2, self.request.passes + 1):
            self._say(f"pass {number} of {self.request.passes}")
            if not passes.measure(done, number):
                return None
        return passes.combined(done, self.request.passes)

    # -- the result ----------------------------------------------------------------------------

    def _recording(self, subject: _Subject, trials: Mapping[Configuration, Trial]) -> Recording:
        context, task, selection = subject.context, subject.task, subject.selection
        assert subject.task.target is not None
        machine = describe()
        facts: dict[str, Any] = {
            "program": self.request.program.name,
            "dispatch": task.name,
            "workload": task.workload.name,
            "default_s": trials[task.space.default].time_s or task.default_s,
            "passes": self.request.passes,
            "combinations": selection.combinations,
            "rejected": selection.rejected,
            "iree": context.compiler_version,
            "tilewright": installed_version("tilewright"),
            "processor": machine.cpu,
            "threads": context.target.cores,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "seed": context.options.seed,
            "repeats": task.repeats,
            "timing": asdict(self.timing),
        }
        assert task.template is not None
        return Recording.of(
            self.request.name or self.request.output.stem,
            _all_values(selection),
            [trials[member] for member in selection.members],
            default=task.space.default,
            subject=RecordedDispatch(task.workload, task.template, subject.task.target),
            facts=facts,
        )


class _Listed:
    """Stands in for a search: what is tried is known beforehand."""

    def ask(self, n: int) -> list[Configuration]:
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        pass


def _all_values(selection: RecordingSelection) -> tuple[KnobValues, ...]:
    """Every knob with its values, those without effect with the one that they have."""
    found = [KnobValues(name, values) for name, values in selection.lists.items()]
    for knob in selection.space.knobs:
        if knob.name not in selection.lists:
            held = dict.fromkeys(dict(member.items).get(knob.name) for member in selection.members)
            found.append(KnobValues(knob.name, tuple(v for v in held if v is not None)))
    return tuple(found)


def _described(task: DispatchTask, selection: RecordingSelection) -> str:
    varied = ", ".join(
        f"{name} ({len(values)})" for name, values in selection.lists.items() if len(values) > 1
    )
    rejected = f"; {selection.rejected:,} more are invalid" if selection.rejected else ""
    return (
        f"{task.name} ({task.workload.name}): {len(selection.members):,} configurations of "
        f"{varied or 'no knob'}{rejected}"
    )


_KIND = "replay.pass"
# A pass whose lower quartile is above the program's time by more than this was disturbed.
_DISTURBED = 0.1
_TIMEOUT_S = 60.0


@dataclass
class Passes:
    """Further passes over the trials of a recording; what is measured is in the database at once.

    `stop` is asked before each program; `paths` has the compiled programs by digest.
    """

    store: Database
    run_id: int
    task: DispatchTask
    compiler: DispatchCompiler
    benchmark: Benchmark
    policy: TimingPolicy
    seed: int
    stop: Callable[[], bool] = lambda: False
    paths: dict[str, Path] = field(default_factory=dict)

    def keep(self, compiled: CompiledCandidate) -> None:
        """Keep a program that was compiled, if there is none equal to it yet.

        Args:
            compiled: by the compile stage.
        """
        if compiled.artifact is None:
            return
        if compiled.digest and compiled.digest not in self.paths:
            self.paths[compiled.digest] = compiled.artifact
        elif self.paths.get(compiled.digest) != compiled.artifact:
            compiled.artifact.unlink(missing_ok=True)

    def measure(self, trials: Mapping[Configuration, Trial], number: int) -> bool:
        """Pass `number` over every program that has a time; False when stopped before its end.

        Args:
            trials: of the first pass.
            number: of this pass, from 2 on.
        """
        kind = f"{_KIND}.{number}"
        done = {m.name for m in self.store.measurements(self.run_id, kind)}
        first = {t.binary: t for t in trials.values() if t.ok and t.binary}
        waiting = sorted(digest for digest in first if digest not in done)
        for i in np.random.default_rng([self.seed, number]).permutation(len(waiting)):
            if self.stop():
                return False
            digest = waiting[i]
            path = self._path(digest, first[digest].configuration)
            if path is None:
                continue
            measured = self.benchmark.time(
                str(path),
                self.task.inputs,
                repeats=self.task.repeats,
                policy=self.policy,
                timeout_s=_TIMEOUT_S,
            )
            if not isinstance(measured, WorkerFailure):
                self.store.record_measurement(self.run_id, kind, digest, list(measured.samples))
        return True

    def _path(self, digest: str, configuration: Configuration) -> Path | None:
        """The program; compiled again when it was so in a part of the run that was interrupted."""
        if digest not in self.paths:
            (compiled,) = self.compiler.compile([configuration])
            if compiled.status is not Status.OK or compiled.digest != digest:
                return None
            self.keep(compiled)
        return self.paths[digest]

    def combined(
        self, trials: Mapping[Configuration, Trial], last: int
    ) -> dict[Configuration, Trial]:
        """The trials with the time of their second fastest pass, and the samples of all passes that
        were not disturbed.

        Args:
            trials: of the first pass.
            last: the number of the last pass.
        """
        further: dict[str, list[list[float]]] = {}
        for number in range(2, last + 1):
            for measured in self.store.measurements(self.run_id, f"{_KIND}.{number}"):
                samples = measured.data
                if isinstance(samples, list):
                    further.setdefault(measured.name, []).append(
                        [float(s) for s in samples if isinstance(s, int | float)]
                    )
        return {
            configuration: _combine(trial, further.get(trial.binary, []))
            for configuration, trial in trials.items()
        }


def _combine(trial: Trial, further: Sequence[Sequence[float]]) -> Trial:
    if not trial.ok:
        return trial
    passes = [p for p in (trial.samples, *further) if len(p)]
    quartiles = [float(np.quantile(p, 0.25)) for p in passes]
    time_s = sorted(quartiles)[min(1, len(quartiles) - 1)]
    calm = [p for p, q in zip(passes, quartiles, strict=True) if q <= time_s * (1 + _DISTURBED)]
    return replace(trial, time_s=time_s, samples=tuple(s for p in calm for s in p))
