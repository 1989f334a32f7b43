"""Which of the generated dispatches a command works on."""

from __future__ import annotations

from tilewright.errors import UserError
from tilewright.kernels.suite import SuiteSelection
from tilewright.profiler.compiling import Selected
from tilewright.profiler.folder import GeneratedFolder
from tilewright.profiler.names import DEFAULT
from tilewright.profiler.patterns import match_names


def select(
    generated: GeneratedFolder, selection: SuiteSelection, dispatches: str | None = None
) -> tuple[list[Selected], list[str]]:
    """The dispatches of the selected operations whose names fit the patterns.

    Args:
        generated: the folder.
        selection: of operations.
        dispatches: patterns; None: all.

    Returns:
        The dispatches in the order of their folders, the compiler's own configuration of an
        operation first; and remarks.

    Raises:
        UserError: nothing is left.
    """
    found: dict[str, Selected] = {}
    for folder in generated.operations():
        if selection.contains(folder.operation):
            for configuration in sorted(folder.dispatches, key=lambda name: name != DEFAULT):
                one = Selected(folder, configuration)
                found[one.name] = one
    if not found:
        raise UserError(f"{generated.root}: no generated dispatch is of the kinds and sizes given")
    if dispatches is None:
        return list(found.values()), []
    names, notes = match_names(dispatches, list(found))
    return [found[name] for name in names], notes
