"""Writes a program with its configurations on its own ops, for compilers without a tuning spec.

IREE keeps a `compilation_info` attribute on an op of the input only where no pass replaces the op
before code generation: on matmuls, batch matmuls, matrix-vector products, reductions, mmt4d, pack
and attention, and on convolutions of a batch above 1; it is lost on most others. So each attribute
is tried: the program is compiled with it, and what does not arrive is taken out again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.errors import UserError
from tilewright.files import check_writable_file
from tilewright.measure.jobs import Reply, Request, WorkerFailure, WorkerTask
from tilewright.target import parse_target
from tilewright.toolchain import CompileJob
from tilewright.tuning.apply import (
    SpecEntryInfo,
    TunedSpec,
    install,
    listed,
    resolve_tuned,
    spec_flags,
    spec_info,
)
from tilewright.tuning.emit_tasks import (
    Arrival,
    EmitVerifyRequest,
    NumberRequest,
    PlanRequest,
    Wanted,
    WriteRequest,
    number_ops,
    plan_attributes,
    verify_attributes,
    write_attributes,
)
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.worker_tasks import CONFIGURED

_TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Carried:
    """A configuration that an op of the input carries to its dispatch.

    `whole`: the dispatch is configured exactly as by the spec; else only its root op is, since the
    attribute reaches no other.
    """

    function: str
    entry: str
    op: str
    configuration: str
    whole: bool


@dataclass(frozen=True)
class Lost:
    """A configuration that cannot be carried by the input, and why."""

    function: str
    entry: str
    reason: str


@dataclass(frozen=True)
class EmittedProgram:
    """A program with `compilation_info` on its ops; `command` compiles it."""

    program: Path
    spec: Path
    variant: str
    output: Path
    carried: tuple[Carried, ...]
    dropped: tuple[Lost, ...]
    command: str
    notes: tuple[str, ...] = ()


def emit(
    program: str | os.PathLike[str],
    tuned: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    target: str | None = None,
    iree_flags: Iterable[str] = (),
    input_type: str | None = None,
) -> EmittedProgram:
    """Write a program with the configurations of a result folder or a spec on its ops.

    Options as those of :func:`tilewright.apply`. Raises UserError when nothing can be carried;
    then nothing is written.
    """
    source, destination = Path(program), Path(output)
    check_writable_file(destination, "--emit-mlir")
    found = resolve_tuned(Path(tuned), target, tuple(iree_flags))
    options = TuneOptions(iree_flags=found.iree_flags)
    with open_program(source, parse_target(found.target), options, input_type=input_type) as opened:
        return _Emission(opened, found).run(destination)


class _Emission:
    def __init__(self, opened: OpenProgram, tuned: TunedSpec) -> None:
        self._opened = opened
        self._tuned = tuned
        self._plain = opened.flags(tuned.variant)
        self._written = opened.work / "emitted.mlir"
        self._lost: list[Lost] = []

    def run(self, output: Path) -> EmittedProgram:
        info = spec_info(self._opened, self._tuned)
        wanted = self._wanted()
        if not wanted:
            why = (
                "the spec changes no dispatch of it" if info.entries else "the spec has no entries"
            )
            raise UserError(self._nothing(info.entries, why))
        kept = [one for one in wanted if one.position >= 0]
        self._lost += [Lost(w.function, w.entry, w.reason) for w in wanted if w.position < 0]
        kept = self._one_for_each_op(kept)
        carried = self._settle(kept)
        if not carried:
            reasons = "; ".join(
                dict.fromkeys(f"{one.function}: {one.reason}" for one in self._lost)
            )
            raise UserError(self._nothing(info.entries, reasons))
        install(self._written, output)
        return EmittedProgram(
            program=self._opened.program.source,
            spec=self._tuned.spec,
            variant=self._tuned.variant.name,
            output=output,
            carried=tuple(carried),
            dropped=tuple(self._lost),
            command=self._opened.toolchain.command_line(
                output, output.with_suffix(".vmfb"), self._plain
            ),
            notes=self._tuned.notes,
        )

    def _wanted(self) -> tuple[Wanted, ...]:
        """The dispatches that the spec changes.

        Compiled by the native compiler, in a process of its own: in a worker, the option that names
        the spec would stay for what is compiled next.
        """
        work = self._opened.work
        numbered, before, after = (work / f"{n}.mlir" for n in ("numbered", "before", "after"))
        self._task(number_ops, NumberRequest(self._opened.program.path, self._plain, numbered))
        extra = (f"--compile-to={CONFIGURED}", "--mlir-print-debuginfo")
        jobs = [
            CompileJob(numbered, before, self._plain, _TIMEOUT_S, extra),
            CompileJob(numbered, after, spec_flags(self._opened, self._tuned), _TIMEOUT_S, extra),
        ]
        for outcome in self._opened.toolchain.compile_many(jobs, self._opened.target.cores):
            if not outcome.ok:
                raise UserError(f"{self._opened.program.source}: {outcome.error}")
        return self._task(plan_attributes, PlanRequest(numbered, before, after, self._plain))

    def _nothing(self, entries: Sequence[SpecEntryInfo], why: str) -> str:
        names = listed([entry.name for entry in entries])
        return (
            f"{self._opened.program.source}: no configuration of {self._tuned.spec} can be put on "
            f"its ops{f' (entries: {names})' if names else ''}: {why}; compile with the spec "
            "instead (-o)"
        )

    def _one_for_each_op(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """One configuration for each op of the input, where several dispatches come from it."""
        kept: dict[int, Wanted] = {}
        for one in wanted:
            other = kept.setdefault(one.position, one)
            if other is not one and other.configuration != one.configuration:
                reason = f"its op has the configuration of {other.function}"
                self._lost.append(Lost(one.function, one.entry, reason))
        return list(kept.values())

    def _settle(self, kept: list[Wanted]) -> list[Carried]:
        """Take out what does not arrive until all that is left does; the file then stands."""
        while kept:
            arrived = self._try(kept)
            if isinstance(arrived, str):
                alone = [self._try([one]) for one in kept]
                failing = [i for i, a in enumerate(alone) if isinstance(a, str)]
                if not failing:
                    raise UserError(f"{self._opened.program.source}: {arrived}")
                for index in failing:
                    self._drop(kept[index], f"the program does not compile with it: {alone[index]}")
                kept = [one for i, one in enumerate(kept) if i not in failing]
                continue
            missing = [one for one in kept if arrived[one.function].reason]
            if not missing:
                return [self._carried(one, arrived[one.function]) for one in kept]
            for one in missing:
                self._drop(one, arrived[one.function].reason)
            kept = [one for one in kept if one not in missing]
        return []

    def _drop(self, one: Wanted, reason: str) -> None:
        self._lost.append(Lost(one.function, one.entry, reason))

    @staticmethod
    def _carried(one: Wanted, arrival: Arrival) -> Carried:
        return Carried(one.function, one.entry, one.op, one.configuration, arrival.whole)

    def _try(self, kept: Sequence[Wanted]) -> dict[str, Arrival] | str:
        """Write the program with these and compile it: what arrived at dispatches, or the error."""
        request = WriteRequest(self._opened.program.path, self._plain, tuple(kept), self._written)
        self._task(write_attributes, request)
        verify = EmitVerifyRequest(self._written, self._plain, tuple(kept))
        arrived = self._opened.compilers.ask(verify_attributes, verify, _TIMEOUT_S)
        return arrived.message if isinstance(arrived, WorkerFailure) else arrived

    def _task(self, task: WorkerTask[Request, Reply], request: Request) -> Reply:
        return self._opened.run(task, request, _TIMEOUT_S, str(self._opened.program.source))
