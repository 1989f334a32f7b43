"""Results carried by attributes: for backends that read no tuning spec (SPIR-V: Vulkan, Metal).

The program is compiled to where IREE has configured every dispatch; dispatches that an entry was
made for get its attributes in place of the compiler's own, and plain `iree-compile
--compile-from=executable-configurations` goes on from that file. An entry is for every dispatch
that has the same compute ops, by the digest that also makes the database's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.measure.compile_worker import session, write_whole
from tilewright.tuning.worker_tasks import CONFIGURED, SpecEntryRequest, parse_module

WRITE_CONFIGURED = f"{__name__}:write_configured"


@dataclass(frozen=True)
class ConfiguredProgramRequest:
    """Compile `program` to where it is configured, apply the entries, and write `path`."""

    program: Path
    path: Path
    entries: tuple[SpecEntryRequest, ...]
    flags: tuple[str, ...]


def write_configured(
    state: dict[str, Any], request: ConfiguredProgramRequest
) -> dict[str, tuple[str, ...]]:
    """Task: see ConfiguredProgramRequest. The functions that each entry was put on, by its name.

    Raises CompileError.
    """
    from tilewright.ir.classify import digest
    from tilewright.ir.compute_ops import compute_ops
    from tilewright.ir.lowering import write_configuration
    from tilewright.ir.template import dispatch_functions, find_function
    from tilewright.ir.walk import string_attribute

    compiler = session(state, request.flags)
    source = request.program.read_bytes()
    text = compiler.compile(source, compile_to=CONFIGURED, name=request.program.name)
    module = parse_module(compiler, text)
    wanted: dict[str, SpecEntryRequest] = {}
    kept = []
    for entry in request.entries:
        own = parse_module(compiler, entry.configured.read_bytes())
        kept.append(own)  # the function lives as long as its module
        wanted.setdefault(digest(find_function(own, entry.executable, entry.entry)), entry)
    applied: dict[str, tuple[str, ...]] = {}
    for function in dispatch_functions(module).values():
        found = wanted.get(digest(function))
        if found is None:
            continue
        write_configuration(function, compute_ops(function), found.configuration)
        name = string_attribute(function, "sym_name")
        applied[found.name] = (*applied.get(found.name, ()), name)
    write_whole(request.path, module.operation.get_asm().encode())
    return applied
