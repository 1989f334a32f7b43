"""Recording a space: every configuration of a dispatch is compiled, measured and kept.

The same stages as in tuning do it, with more samples. Every trial is in the database before the
next is measured, so that a recording that was killed goes on where it was.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import UserError
from tilewright.files import check_writable_file
from tilewright.measure.benchmark import Benchmark
from tilewright.measure.machine import describe
from tilewright.measure.runtime import DeviceOptions
from tilewright.measure.timing import TimingPolicy
from tilewright.replay.choose import RecordingSelection, select
from tilewright.replay.passes import Passes, ProgramCache
from tilewright.replay.recording import KnobValues, RecordedDispatch, Recording
from tilewright.replay.recording_file import write_recording
from tilewright.store import Database, RunStatus
from tilewright.targets import parse_target
from tilewright.toolchain import installed_version
from tilewright.trial import Configuration, Trial
from tilewright.tuning.context import RunContext
from tilewright.tuning.defaults import measure_defaults
from tilewright.tuning.events import Event, Note
from tilewright.tuning.experience import space_to_json
from tilewright.tuning.opening import open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepare import PreparedVariant, take_apart, task_key, use_given_arguments
from tilewright.tuning.search_loop import SearchLoop
from tilewright.tuning.search_phase import RUN_TIMEOUT_S, compile_limit_s
from tilewright.tuning.stages import CandidateMeasurer, DispatchCompiler, Stages
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
        options = self.request.options
        target = parse_target(options.target, options.threads)
        with (
            open_program(self.request.program, target, options, listener=self._listen) as opened,
            Database.open(options.db) as store,
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
        digest = self._digest(context, task, selection)
        context.begin(digest, "recording of this dispatch with these values", "configurations")
        with context.ending():
            trials = self._measure(context, prepared, task, selection)
        if trials is None:
            context.store.finish_run(context.run_id, RunStatus.INTERRUPTED)
            return None
        recording = self._recording(context, prepared, task, selection, trials)
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

    def _digest(
        self, context: RunContext, task: DispatchTask, selection: RecordingSelection
    ) -> str:
        """Equal for recordings of which one can go on with the trials of the other."""
        identity = {
            "what": "replay record",
            "workload": task.workload.key,
            "flags": list(task.flags),
            "seed": context.options.seed,
            "timing": asdict(self.timing),
            "lists": {name: list(values) for name, values in selection.lists.items()},
        }
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:20]

    # -- measuring -----------------------------------------------------------------------------

    def _measure(
        self,
        context: RunContext,
        prepared: PreparedVariant,
        task: DispatchTask,
        selection: RecordingSelection,
    ) -> dict[Configuration, Trial] | None:
        """The trial of every member; None when stopped."""
        store = context.store
        assert prepared.target is not None
        made_from = space_to_json(task, prepared.target)
        task.store_id = store.task_id(task_key(context, prepared, task), task.default_s, made_from)
        programs = ProgramCache()
        earlier = store.trials(context.run_id, task.store_id)
        task.trials.extend(earlier)
        done = {trial.configuration: trial for trial in earlier}
        # In random order, so that no drift of the machine falls together with a knob.
        order = np.random.default_rng(context.options.seed).permutation(len(selection.members))
        waiting = [selection.members[i] for i in order]
        waiting = [c for c in waiting if c not in done]
        failed = sum(not trial.ok for trial in earlier)

        def record(trial: Trial) -> None:
            store.record_trial(context.run_id, task.store_id, trial)

        def observe(trial: Trial, best_s: float | None) -> None:
            nonlocal failed
            done[trial.configuration] = trial
            failed += not trial.ok
            assert task.default_s is not None
            self._progress(
                RecordProgress(len(done), len(selection.members), failed, best_s, task.default_s)
            )

        compiler = DispatchCompiler(task, context.compilers, timeout_s=compile_limit_s(task))
        # No correction for drift: what disturbs one program does not slow another as much.
        tester = task.tester(context.benchmark, RUN_TIMEOUT_S)
        loop = SearchLoop(
            Stages(_Listed(), compiler, CandidateMeasurer(tester, self.timing)),
            record,
            observe=observe,
            stop=lambda: self.stopping,
            discard=programs.keep,
            known=earlier,
        )
        while waiting and not self.stopping:
            loop.try_all(waiting[:_BATCH])
            del waiting[:_BATCH]
        if self.stopping:
            return None
        passes = Passes(
            store,
            context.run_id,
            task,
            compiler,
            context.benchmark,
            programs,
            self.timing,
            context.options.seed,
            lambda: self.stopping,
        )
        for number in range(2, self.request.passes + 1):
            self._say(f"pass {number} of {self.request.passes}")
            if not passes.measure(done, number):
                return None
        return passes.combined(done, self.request.passes)

    # -- the result ----------------------------------------------------------------------------

    def _recording(
        self,
        context: RunContext,
        prepared: PreparedVariant,
        task: DispatchTask,
        selection: RecordingSelection,
        trials: Mapping[Configuration, Trial],
    ) -> Recording:
        assert prepared.target is not None
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
        return Recording.of(
            self.request.name or self.request.output.stem,
            _all_values(selection),
            [trials[member] for member in selection.members],
            default=task.space.default,
            subject=RecordedDispatch(task.workload, task.template, prepared.target),
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
