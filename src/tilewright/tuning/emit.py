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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import UserError
from tilewright.measure.compile_worker import write_whole
from tilewright.measure.pool import Job
from tilewright.target import parse_target
from tilewright.tuning.apply import (
    SpecEntryInfo,
    Tuned,
    install,
    listed,
    parse_module,
    resolve_tuned,
    spec_flags,
    spec_info,
)
from tilewright.tuning.files import check_writable_file
from tilewright.tuning.opening import OpenProgram, open_program
from tilewright.tuning.programs import program_flags
from tilewright.tuning.worker_tasks import CONFIGURED

PLAN, WRITE, VERIFY = (f"{__name__}:{name}" for name in ("plan", "write", "verify"))
_TIMEOUT_S = 1800.0
_SOURCE = "tilewright-input"
# Ops that IREE's code generation reads the attribute of.
_CARRIERS = ("linalg.", "iree_linalg_ext.")


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
    with open_program(
        source, parse_target(found.target), iree_flags=found.iree_flags, input_type=input_type
    ) as opened:
        return _Emission(opened, found).run(destination)


@dataclass(frozen=True)
class Wanted:
    """A dispatch that the spec configures, with the op of the input that it comes from.

    `position` is the op's place among all ops of the input, in program order; -1 when `reason`
    says why there is none. `translation_info` and `lowering_config` (of the root op) are attribute
    text; `configs` has the text of every compute op's, '' for none.
    """

    function: str
    entry: str
    translation_info: str
    lowering_config: str
    configs: tuple[str, ...]
    configuration: str
    position: int = -1
    op: str = ""
    reason: str = ""


class _Emission:
    def __init__(self, opened: OpenProgram, tuned: Tuned) -> None:
        self._opened = opened
        self._tuned = tuned
        self._plain = program_flags(opened.program, opened.target, opened.iree_flags, tuned.variant)
        self._written = opened.work / "emitted.mlir"
        self._lost: list[Lost] = []

    def run(self, output: Path) -> EmittedProgram:
        info = spec_info(self._opened, self._tuned)
        path = self._opened.program.path
        wanted: tuple[Wanted, ...] = self._task(
            PLAN, PlanRequest(path, spec_flags(self._opened, self._tuned), self._plain)
        )
        if not wanted:
            raise UserError(self._nothing(info.entries, "the spec changes no dispatch of it"))
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

    def _nothing(self, entries: Sequence[SpecEntryInfo], why: str) -> str:
        names = listed([entry.name for entry in entries]) or "no entry"
        return (
            f"{self._opened.program.source}: none of the spec's configurations ({names}) can be "
            f"put on its ops: {why}; compile with the spec instead (tilewright apply -o)"
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
        """Write the program with these configurations and compile it: what arrived, or the error."""
        request = WriteRequest(self._opened.program.path, self._plain, tuple(kept), self._written)
        self._task(WRITE, request)
        result = self._opened.compilers.run(
            [Job(VerifyRequest(self._written, self._plain, tuple(kept)), VERIFY, _TIMEOUT_S)]
        )[0]
        if result.failure is not None:
            return result.failure.message
        arrived: dict[str, Arrival] = result.value
        return arrived

    def _task(self, name: str, request: Any) -> Any:
        return self._opened.run(name, request, _TIMEOUT_S, str(self._opened.program.source))


# In the workers


@dataclass(frozen=True)
class PlanRequest:
    """Find the dispatches that a spec configures, and the ops of the input they come from."""

    program: Path
    flags: tuple[str, ...]
    plain: tuple[str, ...]


def plan(state: dict[str, Any], request: PlanRequest) -> tuple[Wanted, ...]:
    """Task: see PlanRequest. Raises CompileError."""
    from tilewright.ir.walk import walk
    from tilewright.measure.compile_worker import session
    from tilewright.spec import changed_configurations
    from tilewright.tuning.configured import configured_functions

    compiler = session(state, request.flags)
    # Printed and parsed again: every op gets a line of its own.
    text = compiler.parse(request.program.read_bytes(), name=_SOURCE).get_asm()
    places = {}
    for position, op in enumerate(walk(compiler.parse(text, name=_SOURCE))):
        places.setdefault(_place(op), (position, op.name))
    numbered = text.encode()
    after_text = compiler.compile(numbered, compile_to=CONFIGURED, output="bytecode", name=_SOURCE)
    before_text = session(state, request.plain).compile(
        numbered, compile_to=CONFIGURED, output="bytecode", name=_SOURCE
    )
    after = parse_module(state, request.flags, after_text)
    before = parse_module(state, request.plain, before_text)
    entries = {c.function: c.entry for c in changed_configurations(before, after)}
    wanted = []
    for name, found in configured_functions(after).items():
        if name not in entries or found.translation_info is None:
            continue
        if found.root is None or found.root_config is None:
            continue
        from tilewright.tuning.configured import describe

        position, op, reason = _origin(str(found.root.location.attr), places)
        wanted.append(
            Wanted(
                function=name,
                entry=entries[name],
                translation_info=str(found.translation_info),
                lowering_config=str(found.root_config),
                configs=found.lowering_configs,
                configuration=describe(found),
                position=position,
                op=op,
                reason=reason,
            )
        )
    return tuple(wanted)


def _place(op: Any) -> str:
    """Where an op stands, as locations that are made from it have it: `"file":line:column`."""
    return str(op.location.attr).removeprefix("loc(").removesuffix(")")


def _origin(location: str, places: dict[str, tuple[int, str]]) -> tuple[int, str, str]:
    """The op of the input that a location comes from: its position and name, or why there is none.

    Where ops were fused into one, the last of those that can carry a configuration.
    """
    inside = [found for place, found in places.items() if _names(location, place)]
    carriers = [found for found in inside if found[1].startswith(_CARRIERS)]
    if carriers:
        position, op = max(carriers)
        return position, op, ""
    if inside:
        names = ", ".join(sorted({op for _, op in inside if not op.endswith(".func")}))
        return -1, "", f"it comes from {names or 'no op of its own'}, which cannot carry it"
    return -1, "", "the compiler made it itself, from no op of the input"


def _names(location: str, place: str) -> bool:
    """Whether a location has this place in it (and not one whose column only begins so)."""
    at = location.find(place)
    while at >= 0:
        if not location[at + len(place) : at + len(place) + 1].isdigit():
            return True
        at = location.find(place, at + 1)
    return False


@dataclass(frozen=True)
class WriteRequest:
    """Write a program with these configurations on its ops to `path`."""

    program: Path
    flags: tuple[str, ...]
    wanted: tuple[Wanted, ...]
    path: Path


def write(state: dict[str, Any], request: WriteRequest) -> None:
    """Task: see WriteRequest."""
    from iree.compiler import ir
    from iree.compiler.dialects import iree_codegen

    from tilewright.ir.lowering import COMPILATION_INFO
    from tilewright.ir.walk import walk
    from tilewright.measure.compile_worker import session

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
        write_whole(request.path, module.get_asm().encode())


@dataclass(frozen=True)
class VerifyRequest:
    """Compile a program with configurations on its ops, and see which arrive at the dispatch."""

    program: Path
    flags: tuple[str, ...]
    wanted: tuple[Wanted, ...]


@dataclass(frozen=True)
class Arrival:
    """Whether a configuration arrived (`reason` empty), and whether for the whole dispatch."""

    whole: bool
    reason: str = ""


def verify(state: dict[str, Any], request: VerifyRequest) -> dict[str, Arrival]:
    """Task: see VerifyRequest. Raises CompileError when the program does not compile."""
    from tilewright.measure.compile_worker import session
    from tilewright.tuning.configured import configured_functions

    text = session(state, request.flags).compile(
        request.program.read_bytes(), compile_to=CONFIGURED, name=request.program.name
    )
    functions = configured_functions(parse_module(state, request.flags, text))
    return {one.function: _arrival(one, functions.get(one.function)) for one in request.wanted}


def _arrival(one: Wanted, found: Any) -> Arrival:
    if found is None:
        return Arrival(False, "with the attribute the compiler makes another dispatch of its op")
    if str(found.translation_info) != one.translation_info:
        return Arrival(False, "the compiler replaces its op and loses the attribute")
    if str(found.root_config) != one.lowering_config:
        return Arrival(False, "the compiler changes or loses the tile sizes on the way")
    return Arrival(found.lowering_configs == one.configs)
