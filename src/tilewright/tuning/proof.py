"""The proof that specs reach a program: they are written, compiled with, and what they did is read.

One way for finalists, for programs that are handed back and for files that the user gives. What a
spec does to a program is an entry (:mod:`tilewright.tuning.entries`): the proof knows how to write,
compile and read, and no kind of entry by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import Job, WorkerFailure, WorkerState
from tilewright.toolchain import CompileJob
from tilewright.tuning.entries import KINDS, Entry, write_entries
from tilewright.tuning.opening import OpenProgram
from tilewright.tuning.variants import (
    PREPROCESSING_FLAG,
    with_spec_flags,
    without_preprocessing,
)
from tilewright.tuning.worker_tasks import parse_module

_WORKER_TIMEOUT_S = 300.0
# The program with what its preprocessing spec does, and without the tuning spec.
_PREPROCESSED = "preprocessed"
_OF_THE_COMPILER, _KERNEL = "the compiler's own code", "a kernel of tilewright"
NOT_REACHED = "the spec did not apply to the dispatch that it was made for"


@dataclass(frozen=True)
class Claim:
    """That specs reach dispatches of a program.

    program: what is compiled, with `flags` and without a spec or with all of them. entries: what
    the specs shall do; files with them are written beside `stem`, unless `given`, flags of
    `iree-compile`, names what there is. before, after: the program at the executable-configurations
    phase without a spec and with all of them, where it is there already. vmfb: the program is also
    compiled to its end with the specs, to this file. code: dispatches whose code alone differs
    count as changed, too. extra: flags that change no result. timeout_s: of each compile.
    """

    program: Path
    flags: tuple[str, ...]
    stem: Path
    entries: tuple[Entry, ...] = ()
    given: tuple[str, ...] = ()
    before: Path | None = None
    after: Path | None = None
    vmfb: Path | None = None
    code: bool = False
    extra: tuple[str, ...] = ()
    timeout_s: float = 1800.0

    @property
    def only_preprocesses(self) -> bool:
        """Whether no entry configures a dispatch."""
        return bool(self.entries) and all(one.preprocesses for one in self.entries)

    def beside(self, name: str) -> Path:
        """A file of the proof: `before` and `after` are the program without and with the specs.

        Args:
            name: what is in it.
        """
        return self.stem.with_name(f"{self.stem.name}.{name}.mlir")


@dataclass(frozen=True)
class ConfigurationChange:
    """A dispatch that a spec configures differently from the compiler; both choices in words.

    `entry` is the name of the entry that did it, '' where the spec is not one of tilewright's.
    """

    function: str
    entry: str
    before: str
    after: str


@dataclass(frozen=True)
class Proof:
    """What specs did to a program.

    dispatches: all there are. changes: those configured otherwise, and those that an entry of ours
    set to what the compiler chooses anyway. reached: by the name of an entry what it changed.
    configured: the program at the executable-configurations phase, with the specs. constant_work:
    dispatches that compute something of constants alone in a call, and how often.
    """

    dispatches: tuple[str, ...]
    changes: tuple[ConfigurationChange, ...]
    reached: Mapping[str, tuple[str, ...]]
    configured: Path
    constant_work: Mapping[str, int]

    def missed(self, entries: Sequence[Entry]) -> list[str]:
        """The names of those entries that changed nothing.

        Args:
            entries: what the specs were written for.

        Returns:
            Names in the order of the entries.
        """
        return [entry.name for entry in entries if not self.reached.get(entry.name)]


class ProofStage(StrEnum):
    """Where a proof failed: writing a spec, compiling without or with specs, reading, reaching."""

    SPEC = "spec"
    WITHOUT = "without"
    WITH = "with"
    READING = "reading"
    REACH = "reach"


@dataclass(frozen=True)
class ProofFailure:
    """Why there is no proof: what went wrong where, in one line."""

    stage: ProofStage
    message: str


def prove(opened: OpenProgram, claim: Claim) -> Proof | ProofFailure:
    """One claim, as :func:`prove_all`.

    Args:
        opened: what compiles.
        claim: what is to be proven.

    Returns:
        The proof, or why there is none.
    """
    (found,) = prove_all(opened, [claim])
    return found


def prove_all(opened: OpenProgram, claims: Sequence[Claim]) -> list[Proof | ProofFailure]:
    """Write the specs of the claims, compile with them, and read what they reached.

    Compiles natively, with the command line that the user is handed: in a worker, the option that
    names a spec would stay for what is compiled next.

    Args:
        opened: what compiles; as many compiles run at a time as the target has cores.
        claims: what is to be proven, each with a `stem` of its own.

    Returns:
        For each claim, in order, the proof or why there is none. Specs that reach none of the
        entries that they are for are a failure.
    """
    found: dict[int, Proof | ProofFailure] = {}
    named = _write(opened, claims, found)
    compiles: list[tuple[int, ProofStage, CompileJob]] = []
    for number, claim in enumerate(claims):
        if number not in found:
            compiles += [(number, *one) for one in _compiles(claim, named[number])]
    outcomes = opened.toolchain.compile_many([job for *_, job in compiles], opened.target.cores)
    for (number, stage, _), outcome in zip(compiles, outcomes, strict=True):
        if not outcome.ok:
            found.setdefault(number, ProofFailure(stage, outcome.error))
    left = [number for number in range(len(claims)) if number not in found]
    results = opened.compilers.run(
        Job(read_proof, claims[number], _WORKER_TIMEOUT_S) for number in left
    )
    for number, result in zip(left, results, strict=True):
        entries = claims[number].entries
        if isinstance(result.outcome, WorkerFailure):
            found[number] = ProofFailure(ProofStage.READING, result.outcome.message)
        elif entries and len(result.outcome.missed(entries)) == len(entries):
            found[number] = ProofFailure(ProofStage.REACH, NOT_REACHED)
        else:
            found[number] = result.outcome
    return [found[number] for number in range(len(claims))]


def _write(
    opened: OpenProgram, claims: Sequence[Claim], found: dict[int, Proof | ProofFailure]
) -> list[list[str]]:
    """Write the specs that are not given; for each claim the flags that name its specs."""
    named = [list(claim.given) for claim in claims]
    requests: list[SpecRequest] = []
    numbers: list[int] = []
    for number, claim in enumerate(claims):
        for flag, entries in _by_flag(opened, claim).items():
            path = claim.beside(type(entries[0]).__name__)
            requests.append(SpecRequest(tuple(entries), path, claim.flags))
            numbers.append(number)
            named[number].append(f"{flag}{path}")
    for number, wrong in zip(numbers, write_specs(opened, requests), strict=True):
        if wrong:
            found.setdefault(number, ProofFailure(ProofStage.SPEC, wrong))
    return named


def _by_flag(opened: OpenProgram, claim: Claim) -> dict[str, list[Entry]]:
    """The entries that specs have to be written for, by the flag of these."""
    found: dict[str, list[Entry]] = {}
    for entry in claim.entries if not claim.given else ():
        found.setdefault(entry.flag(opened.target), []).append(entry)
    return found


def _compiles(claim: Claim, named: Sequence[str]) -> list[tuple[ProofStage, CompileJob]]:
    """The compiles that a proof is read from, and the one that makes the program."""
    to_phase = f"--compile-to={CONFIGURED_PHASE}"
    with_specs = with_spec_flags(claim.flags, named)

    def job(output: Path, *flags: str) -> CompileJob:
        return CompileJob(claim.program, output, flags, claim.timeout_s, claim.extra)

    jobs = []
    if claim.before is None:
        jobs.append((ProofStage.WITHOUT, job(claim.beside("before"), *claim.flags, to_phase)))
    if claim.after is None:
        jobs.append((ProofStage.WITH, job(claim.beside("after"), *with_specs, to_phase)))
    claim.beside(_PREPROCESSED).unlink(missing_ok=True)
    first = [flag for flag in named if flag.startswith(PREPROCESSING_FLAG)]
    if first and len(first) < len(named) and not claim.only_preprocesses:
        # What preprocessing changes, other dispatches among it, is no change of a configuration.
        flags = with_spec_flags(claim.flags, first)
        jobs.append((ProofStage.WITH, job(claim.beside(_PREPROCESSED), *flags, to_phase)))
    if claim.vmfb is not None:
        jobs.append((ProofStage.WITH, job(claim.vmfb, *with_specs)))
    return jobs


def write_specs(opened: OpenProgram, requests: Sequence[SpecRequest]) -> list[str]:
    """Write specs, several at a time; of their entries what takes long before, each by itself.

    Args:
        opened: has the workers that write them.
        requests: what to write where.

    Returns:
        For each request, in order, '' or why there is no spec.
    """
    slow = [(one, r.flags) for r in requests for one in r.entries if one.takes_long]
    if len(slow) > 1:
        # What goes wrong does so again where it is told.
        opened.compilers.run(
            Job(prepare_entry, EntryRequest(*one), _WORKER_TIMEOUT_S) for one in dict.fromkeys(slow)
        )
    jobs = [Job(write_spec, request, _WORKER_TIMEOUT_S) for request in requests]
    results = opened.compilers.run(jobs)
    return [result.failure.message if result.failure else "" for result in results]


# In the workers


@dataclass(frozen=True)
class SpecRequest:
    """Write a spec for entries of one flag; one without entries changes nothing.

    flags: those of the compiles that it is for; a preprocessing spec that they name is part of one
    for kernels or convolutions. header: kept in the spec where its kind has room.
    """

    entries: tuple[Entry, ...]
    path: Path
    flags: tuple[str, ...]
    header: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class EntryRequest:
    """Make and keep what takes long of an entry, for specs with these flags."""

    entry: Entry
    flags: tuple[str, ...]


def prepare_entry(state: WorkerState, request: EntryRequest) -> None:
    """Task: see EntryRequest. Raises UserError or CompileError."""
    request.entry.prepare(state, without_preprocessing(request.flags))


def write_spec(state: WorkerState, request: SpecRequest) -> Path:
    """Task: see SpecRequest. Raises UserError or CompileError."""
    text = write_entries(request.entries, state, request.flags, dict(request.header))
    return write_whole(request.path, text.encode())


def read_proof(state: WorkerState, claim: Claim) -> Proof:
    """Task: what the specs of a claim did, read from the program compiled without and with them."""
    from tilewright.ir.constant_work import constant_dispatches
    from tilewright.ir.template import configured_functions, describe

    compiler = session(state, without_preprocessing(claim.flags))
    compiled = claim.after or claim.beside("after")
    preprocessed = claim.beside(_PREPROCESSED)
    paths = (claim.before or claim.beside("before"), compiled)
    before, after = (parse_module(compiler, path.read_bytes()) for path in paths)
    without, new = configured_functions(before), configured_functions(after)
    between = parse_module(compiler, preprocessed.read_bytes()) if preprocessed.exists() else before
    # Dispatches that preprocessing left alone can have another's name behind it.
    old = {} if claim.only_preprocesses else configured_functions(between)
    earlier = {
        place for kind in KINDS for where in kind.reached(between).values() for place in where
    }
    changed = [
        name
        for name, found in new.items()
        if name in old and found.configuration != old[name].configuration
    ]
    places = {name: where for kind in KINDS for name, where in kind.reached(after).items()}
    entries = {place: name for name, where in places.items() for place in where}
    # What an entry of ours configured is told even where the compiler would choose the same.
    told = dict.fromkeys([*changed, *(name for name in old if name in entries and name in new)])
    changes = [
        ConfigurationChange(name, entries.get(name, ""), describe(old[name]), describe(new[name]))
        for name in told
    ]
    if claim.code:
        changes += [
            ConfigurationChange(
                name, "", describe(old[name]), f"{describe(found)}, with other code"
            )
            for name, found in new.items()
            if name in old and name not in told and str(found.function) != str(old[name].function)
        ]

    def is_new(place: str) -> bool:
        """Whether a place is no dispatch, one configured anew, or one that was not there."""
        appeared = place not in without and (place in earlier or place not in old)
        return place in changed or place not in new or appeared

    reached = {name: tuple(filter(is_new, where)) for name, where in places.items()}
    changes += [
        ConfigurationChange(place, name, _OF_THE_COMPILER, _KERNEL)
        for name, where in places.items()
        for place in dict.fromkeys(where)
        if place in new and place not in without and is_new(place) and place not in told
    ]
    return Proof(tuple(new), tuple(changes), reached, compiled, constant_dispatches(after))
