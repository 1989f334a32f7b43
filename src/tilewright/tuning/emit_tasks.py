"""What compile workers do to put configurations on the ops of a program.

Which op of the input a dispatch comes from is read off the locations that the compiler carries
along: the input is printed and parsed again, so that every op has a place of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.files import write_whole
from tilewright.ir.session import CONFIGURED_PHASE
from tilewright.measure.compile_worker import session
from tilewright.measure.worker_state import WorkerState
from tilewright.tuning.worker_tasks import parse_module

if TYPE_CHECKING:
    from tilewright.ir.configured import DispatchFunction

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
    from tilewright.ir.configured import configured_functions, describe
    from tilewright.ir.locations import places
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

    from tilewright.ir.configured import configured_functions
    from tilewright.ir.lowering import COMPILATION_INFO
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
    functions = configured_functions(parse_module(compiler, text))
    return {one.function: _arrival(one, functions.get(one.function)) for one in request.wanted}


def _arrival(one: Wanted, found: DispatchFunction | None) -> Arrival:
    if found is None:
        return Arrival(False, "with the attribute the compiler makes another dispatch of its op")
    if str(found.translation_info) != one.translation_info:
        return Arrival(False, "the compiler replaces its op and loses the attribute")
    if str(found.root_config) != one.lowering_config:
        return Arrival(False, "the compiler changes or loses the tile sizes on the way")
    return Arrival(found.lowering_configs == one.configs)
