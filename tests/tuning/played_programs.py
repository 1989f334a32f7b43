"""A run whose compiler, workers and device are played: they do, and fail, as a test says.

What decides over programs and writes the result folder is real. A program is called by the name of
its file without endings.
"""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from tilewright.files import write_whole
from tilewright.ir.program import Program
from tilewright.measure.comparison import Finalist
from tilewright.measure.device_options import Parameters
from tilewright.measure.inputs import InputSet
from tilewright.measure.jobs import Result, WorkerFailure
from tilewright.measure.measurement_key import MeasurementKey
from tilewright.measure.statistics import Interval, Measurement, Verdict
from tilewright.measure.verify import Comparison
from tilewright.store import Database, TaskKey
from tilewright.target import parse_target
from tilewright.toolchain import CompileOutcome
from tilewright.tuning.builds import Build
from tilewright.tuning.candidate_trial import CandidateTester, Reference
from tilewright.tuning.company import Outcome
from tilewright.tuning.context import RunContext
from tilewright.tuning.evidence import EvidenceRequest
from tilewright.tuning.exact_results import ExactRequest
from tilewright.tuning.extract_tasks import ExtractedDispatch
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.prepared_variant import PreparedVariant
from tilewright.tuning.programs import Programs
from tilewright.tuning.proof import Claim, Proof, SpecRequest
from tilewright.tuning.sequencing import SequencesRequest
from tilewright.tuning.task import DispatchTask
from tilewright.tuning.variants import DEFAULT_VARIANT
from tilewright.tuning.worker_tasks import CandidateRequest


def name_of(path: object) -> str:
    return Path(str(path)).name.partition(".")[0]


_REFERENCE = Reference(InputSet(Path(), ()), Path("expected.npz"), ())


class PlayedRun:
    """A context, and the programs, of a run of nothing.

    seconds: what each program takes (1.0 where nothing is said). wrong: programs with wrong
    results. fails: error of compiles by the name of what they make; `after` is the proof's.
    specs_fail, reading_fails: errors of the workers. missed: entries that reach nothing.
    """

    def __init__(self, folder: Path, **options: object) -> None:
        self.seconds: dict[str, float] = defaultdict(lambda: 1.0)
        self.wrong: set[str] = set()
        self.fails: dict[str, str] = {}
        self.specs_fail: dict[str, str] = {}
        self.reading_fails = ""
        self.comparing_fails = ""
        self.missed: set[str] = set()
        self.sequences = 0
        self.compiled: list[str] = []
        self.asked: dict[str, tuple] = {}
        source = folder / "program.mlir"
        source.write_text("module {}")
        given = {"effort": "quick", "output": folder / "out", "db": folder / "db", **options}
        self.store = Database.open(folder / "db")
        self.context = RunContext(
            Program(source, source, "", (), (), "0" * 64, 0, {}),
            parse_target("cpu"),
            TuneOptions(**given),
            self,
            self,
            folder,
            benchmark=self,
            store=self.store,
        )
        self.programs = Programs(self.context, "main", None, InputSet(folder, ()), Parameters(()))
        self.default = self.programs.build(Build("default", DEFAULT_VARIANT))
        self.prepared = PreparedVariant(DEFAULT_VARIANT, ())
        self.outcome = Outcome(self.default, 1.0, prepared=[self.prepared])

    @property
    def notes(self) -> str:
        return "\n".join(self.context.notes)

    def task(self, name: str, **fields: object) -> SimpleNamespace:
        """A task of the run; its configurations are strings."""
        workload = SimpleNamespace(key=name, kind=name, sizes=(1,), name=name, flops=0, bytes=0)
        given = {
            "name": name,
            "identity": name,
            "names": [name],
            "site": None,
            "data": None,
            "is_chain": False,
            "own_choice": "own",
            "kernel": lambda configuration: None,
            "workload": workload,
            "count": 1,
            "share": 0.5,
            "variant": "default",
            "default_s": 1.0,
            "own_s": 1.0,
            "repeats": 1,
            "rotations": 1,
            "trials": [],
            "space": SimpleNamespace(default="own"),
            "space_points": 9.0,
            "reused": False,
            "reused_trials": 0,
            "store_id": -1,
            "verified_against": "float64 NumPy",
            "inputs": None,
            "folder": self.context.work / name,
            "flags": (),
            "key": TaskKey(workload, "cpu", "compiler"),
            "dispatch": ExtractedDispatch(name, name, 1, self.context.work / f"{name}.mlir"),
            "tester": lambda device, limit: CandidateTester(device, _REFERENCE, 1, limit),
            "finalist_tester": lambda device, limit, one: CandidateTester(
                device, _REFERENCE, 1, limit
            ),
            "lower": lambda configuration: configuration,
            "describe": str,
            "gflops": lambda seconds: None,
            **fields,
        }
        task = SimpleNamespace(**given)
        task.request = partial(DispatchTask.request, task)
        task.folder.mkdir(exist_ok=True)
        self.prepared.tasks.append(task)
        return task

    def measurement_key(self, target):
        return MeasurementKey()

    # The compiler

    def compile(self, program, output, flags, *, timeout_s, extra=()):
        self.compiled.append(output.name)
        error = self.fails.get(name_of(output)) or self.fails.get(output.name, "")
        if not error:
            output.write_text(output.name)
        return CompileOutcome(not error, 0.0, error)

    def compile_many(self, jobs, workers):
        return [self.compile(j.program, j.output, j.flags, timeout_s=j.timeout_s) for j in jobs]

    def command_line(self, program, output, flags):
        return f"iree-compile {program} {' '.join(flags)} -o {output}"

    # The workers

    def run(self, jobs):
        return [Result(job, self._answer(job.request)) for job in jobs]

    def ask(self, task, request, timeout_s):
        if isinstance(request, ExactRequest):
            return WorkerFailure("error", "there is no program")
        assert isinstance(request, EvidenceRequest)
        return write_whole(request.output, request.spec.read_bytes())

    def _answer(self, request):
        if isinstance(request, SpecRequest):
            self.asked[request.path.name] = request.entries
            error = self.specs_fail.get(name_of(request.path), "")
            request.path.write_text(" ".join(entry.name for entry in request.entries))
            return WorkerFailure("error", error) if error else request.path
        if isinstance(request, Claim):
            if self.reading_fails:
                return WorkerFailure("crashed", self.reading_fails)
            entries = {entry.name for asked in self.asked.values() for entry in asked}
            reached = {name: (f"{name}_dispatch",) for name in entries - self.missed}
            return Proof(("a_dispatch",), (), reached, request.beside("after"), {})
        if isinstance(request, SequencesRequest):
            request.spec.write_text("")
            return self.sequences
        assert isinstance(request, CandidateRequest)
        request.vmfb.write_text("")
        return None

    # The device

    round_size = 1

    def runs_on(self, threads):
        return False

    def verify(self, request, **how):
        wrong = name_of(request.vmfb) in self.wrong
        exact = Comparison(True, (0,), 1.0, 1.0, 0.0, 0.5)
        worst = Comparison(not wrong, (0,), 1.25, 1.0, 0.25, 0.5, "all of it is wrong")
        return [exact, worst]

    def time(self, vmfb, inputs, **how):
        return Measurement((self.seconds[name_of(vmfb)],) * 7)

    def compare_interleaved(self, vmfbs, inputs, **how):
        if self.comparing_fails:
            return WorkerFailure("crashed", self.comparing_fails)
        times = [self.seconds[name_of(vmfb)] for vmfb in vmfbs]
        found = []
        for seconds in times:
            ratio = seconds / times[0]
            verdict = Verdict.SAME
            if not np.isclose(ratio, 1.0):
                verdict = Verdict.FASTER if ratio < 1 else Verdict.SLOWER
            found.append(
                Finalist(Measurement((seconds,) * 15), Interval(ratio, ratio, ratio, 0.95), verdict)
            )
        return found
