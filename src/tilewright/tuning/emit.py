"""Writes a program with its configurations on its own ops, for compilers without a tuning spec.

IREE keeps a `compilation_info` attribute on an op of the input only where no pass replaces the op
before code generation: on matmuls, batch matmuls, matrix-vector products, reductions, mmt4d, pack
and attention, and on convolutions of a batch above 1; it is lost on most others. So each attribute
is tried: the program is compiled with it, and what does not arrive is taken out again.

Which op of the input a dispatch comes from is read off the locations that the compiler carries
along: the input is printed and parsed again, so that every op has a place of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.errors import UserError
from tilewright.files import check_writable_file, write_file, write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.jobs import Reply, Request, WorkerFailure, WorkerState, WorkerTask
from tilewright.target import parse_target
from tilewright.tuning.apply import (
    TunedSpec,
    listed,
    prove_tuned,
    read_tuned,
    resolve_tuned,
)
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.options import TuneOptions
from tilewright.tuning.worker_tasks import parse_module

if TYPE_CHECKING:
    from tilewright.ir.template import DispatchFunction


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
        self._tuned, self._report = read_tuned(opened, tuned)
        self._plain = opened.flags(tuned.variant)
        self._written = opened.work / "emitted.mlir"
        self._lost: list[Lost] = []

    def run(self, output: Path) -> EmittedProgram:
        names = [entry.name for entry in self._report.entries]
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


# In the workers


_SOURCE = "tilewright-input"
# Ops that IREE's code generation reads the attribute of.
_CARRIERS = ("linalg.", "iree_linalg_ext.")


@dataclass(frozen=True)
class Wanted:
    """A dispatch that the spec configures, with the op of the input that it comes from.

    `position` is the op's place among all ops of the input, in program order. `translation_info`
    and `lowering_config` (of the root op) are attribute text; `configs` has the text of every
    compute op's, '' for none.
    """

    function: str
    entry: str
    translation_info: str
    lowering_config: str
    configs: tuple[str, ...]
    configuration: str
    position: int
    op: str


@dataclass(frozen=True)
class Lost:
    """A configuration that cannot be carried by the input, and why."""

    function: str
    entry: str
    reason: str


@dataclass(frozen=True)
class NumberRequest:
    """Print a program to `path`, where every op stands on a line of its own."""

    program: Path
    flags: tuple[str, ...]
    path: Path


def number_ops(state: WorkerState, request: NumberRequest) -> None:
    """Task: see NumberRequest."""
    module = session(state, request.flags).parse(request.program.read_bytes(), name=_SOURCE)
    write_whole(request.path, module.get_asm().encode())


@dataclass(frozen=True)
class PlanRequest:
    """Find the ops of the input that dispatches come from.

    `numbered` is the program as `number_ops` wrote it; `configured` what the compiler made of that
    file at the executable-configurations phase, with locations and the spec. `entries`: the entry
    that configured it by the name of each dispatch that is wanted.
    """

    numbered: Path
    configured: Path
    entries: Mapping[str, str]
    flags: tuple[str, ...]


def plan_attributes(state: WorkerState, request: PlanRequest) -> tuple[list[Wanted], list[Lost]]:
    """Task: see PlanRequest. The dispatches whose op was found, and the others."""
    from tilewright.ir.locations import places
    from tilewright.ir.template import configured_functions, describe
    from tilewright.ir.walk import walk

    compiler = session(state, request.flags)
    origins: dict[frozenset[int], tuple[int, str]] = {}
    numbered = compiler.parse(request.numbered.read_bytes(), name=str(request.numbered))
    for position, op in enumerate(walk(numbered)):
        origins.setdefault(places(op.location), (position, op.name))
    module = parse_module(compiler, request.configured.read_bytes())
    wanted, lost = [], []
    for name, found in configured_functions(module).items():
        if name not in request.entries or found.root is None or found.translation_info is None:
            continue
        entry = request.entries[name]
        origin = _origin(places(found.root.location), origins)
        if isinstance(origin, str):
            lost.append(Lost(name, entry, origin))
            continue
        wanted.append(
            Wanted(
                name,
                entry,
                str(found.translation_info),
                str(found.root_config),
                found.lowering_configs,
                describe(found),
                *origin,
            )
        )
    return wanted, lost


def _origin(
    root: frozenset[int], origins: Mapping[frozenset[int], tuple[int, str]]
) -> tuple[int, str] | str:
    """The op of the input that an op with these places comes from, or why there is none.

    Where ops were fused into one, the last of those that can carry a configuration.
    """
    inside = [found for place, found in origins.items() if place <= root]
    carriers = [found for found in inside if found[1].startswith(_CARRIERS)]
    if carriers:
        return max(carriers)
    if inside:
        names = ", ".join(sorted({op for _, op in inside if not op.endswith(".func")}))
        return f"it comes from {names or 'no op of its own'}, which cannot carry it"
    return "the compiler made it itself, from no op of the input"


@dataclass(frozen=True)
class TryRequest:
    """Write a program with configurations on its ops to `path`, compile it, and see which arrive at
    their dispatches."""

    program: Path
    flags: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    path: Path


@dataclass(frozen=True)
class Arrival:
    """Whether a configuration arrived (`reason` empty), and whether for the whole dispatch."""

    whole: bool
    reason: str = ""


def try_attributes(state: WorkerState, request: TryRequest) -> dict[str, Arrival]:
    """Task: see TryRequest. Raises CompileError when the program does not compile."""
    from iree.compiler import ir
    from iree.compiler.dialects import iree_codegen

    from tilewright.ir.lowering import COMPILATION_INFO
    from tilewright.ir.template import configured_functions
    from tilewright.ir.walk import walk

    compiler = session(state, request.flags)
    module = compiler.parse(request.program.read_bytes(), name=_SOURCE)
    by_position = {one.position: one for one in request.wanted}
    with compiler.context:
        for position, op in enumerate(walk(module)):
            one = by_position.get(position)
            if one is not None:
                op.attributes[COMPILATION_INFO] = iree_codegen.CompilationInfoAttr.get(
                    ir.Attribute.parse(one.lowering_config),
                    ir.Attribute.parse(one.translation_info),
                )
        source = module.get_asm().encode()
    write_whole(request.path, source)
    text = compiler.compile(source, compile_to=CONFIGURED_PHASE, name=request.path.name)
    # The functions live as long as their module.
    configured = parse_module(compiler, text)
    functions = configured_functions(configured)
    return {one.function: _arrival(one, functions.get(one.function)) for one in request.wanted}


def _arrival(one: Wanted, found: DispatchFunction | None) -> Arrival:
    if found is None:
        return Arrival(False, "with the attribute the compiler makes another dispatch of its op")
    if str(found.translation_info) != one.translation_info:
        return Arrival(False, "the compiler replaces its op and loses the attribute")
    if str(found.root_config) != one.lowering_config:
        return Arrival(False, "the compiler changes or loses the tile sizes on the way")
    return Arrival(found.lowering_configs == one.configs)
