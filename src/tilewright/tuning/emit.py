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
from tilewright.files import check_writable_file, write_file
from tilewright.measure.jobs import Reply, Request, WorkerFailure, WorkerTask
from tilewright.targets import parse_target
from tilewright.tuning.apply import (
    TunedSpec,
    listed,
    prove_tuned,
    resolve_tuned,
    spec_report,
)
from tilewright.tuning.emit_tasks import (
    Arrival,
    Lost,
    NumberRequest,
    PlanRequest,
    TryRequest,
    Wanted,
    number_ops,
    plan_attributes,
    try_attributes,
)
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions

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

    Args:
        program: MLIR or an ONNX model.
        tuned: the folder or the spec.
        output: the program with attributes, written last, whole or not at all.
        target: in place of the folder's, as :func:`tilewright.tune` takes it.
        iree_flags: of `iree-compile`, on top of the folder's.
        input_type: the program's dialect, where it cannot be told from it.

    Returns:
        What is carried by which op, what is not and why.

    Raises:
        UserError: Something does not compile, or nothing can be carried; then nothing is written.
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
        report = spec_report(self._opened, self._tuned)
        names = [entry.name for entry in report.entries]
        wanted = self._wanted()
        if not wanted and not self._lost:
            why = "the spec changes no dispatch of it" if names else "the spec has no entries"
            raise UserError(self._nothing(names, why))
        carried = self._settle(self._one_for_each_op(wanted))
        if not carried:
            reasons = dict.fromkeys(f"{one.function}: {one.reason}" for one in self._lost)
            raise UserError(self._nothing(names, "; ".join(reasons)))
        write_file(output, self._written.read_bytes())
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

    def _wanted(self) -> list[Wanted]:
        """The dispatches that the spec configures, with the ops of the input they come from."""
        numbered = self._opened.work / "numbered.mlir"
        self._task(number_ops, NumberRequest(self._opened.program.path, self._plain, numbered))
        proof = prove_tuned(
            self._opened, self._tuned, program=numbered, extra=("--mlir-print-debuginfo",)
        )
        entries = {change.function: change.entry for change in proof.changes}
        request = PlanRequest(numbered, proof.configured, entries, self._plain)
        wanted, self._lost = self._task(plan_attributes, request)
        return wanted

    def _nothing(self, names: Sequence[str], why: str) -> str:
        entries = f" (entries: {listed(names)})" if names else ""
        return (
            f"{self._opened.program.source}: no configuration of {self._tuned.spec} can be put on "
            f"its ops{entries}: {why}; compile with the spec instead (-o)"
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
                self._lost += [
                    Lost(one.function, one.entry, f"the program does not compile with it: {why}")
                    for one, why in zip(kept, alone, strict=True)
                    if isinstance(why, str)
                ]
                kept = [one for i, one in enumerate(kept) if i not in failing]
                continue
            missing = [one for one in kept if arrived[one.function].reason]
            if not missing:
                return [
                    Carried(w.function, w.entry, w.op, w.configuration, arrived[w.function].whole)
                    for w in kept
                ]
            self._lost += [Lost(w.function, w.entry, arrived[w.function].reason) for w in missing]
            kept = [one for one in kept if one not in missing]
        return []

    def _try(self, kept: Sequence[Wanted]) -> dict[str, Arrival] | str:
        """Write the program with these and compile it: what arrived at dispatches, or the error."""
        request = TryRequest(self._opened.program.path, self._plain, tuple(kept), self._written)
        arrived = self._opened.compilers.ask(try_attributes, request, _TIMEOUT_S)
        return arrived.message if isinstance(arrived, WorkerFailure) else arrived

    def _task(self, task: WorkerTask[Request, Reply], request: Request) -> Reply:
        return self._opened.run(task, request, _TIMEOUT_S, str(self._opened.program.source))
