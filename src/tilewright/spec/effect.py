"""What a spec did to a program: read from `--compile-to=executable-configurations` modules."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from iree.compiler import ir

from tilewright.errors import UserError
from tilewright.ir.compute_ops import compute_ops
from tilewright.spec import library


@dataclass(frozen=True)
class ConfigurationChange:
    """A dispatch function whose configuration differs between two compilations of a program.

    `before` and `after` are the configurations as text: the translation info, then `op:
    lowering_config` for every op that has one, separated by `; `. `entry` is the id of the entry of
    ours that configured the function in the second compilation, or empty.
    """

    function: str
    before: str
    after: str
    entry: str


@dataclass(frozen=True)
class _Configured:
    configuration: str
    entry: str


def applied(program: str | ir.Module | ir.Operation) -> dict[str, str]:
    """Which functions of a configured program an entry of ours applied to: name to entry id.

    `program` is the text or module that `--compile-to=executable-configurations` gives. Raises
    UserError if the text does not parse.
    """
    functions = _functions(program)
    return {name: function.entry for name, function in functions.items() if function.entry}


def changed_configurations(
    before: str | ir.Module | ir.Operation, after: str | ir.Module | ir.Operation
) -> list[ConfigurationChange]:
    """The functions that both programs have and that are configured differently, in order.

    Both arguments as for :func:`applied`: the same program compiled without and with a spec. A
    function that a spec gave the configuration it has anyway is not listed.
    """
    old = _functions(before)
    return [
        ConfigurationChange(name, old[name].configuration, new.configuration, new.entry)
        for name, new in _functions(after).items()
        if name in old and old[name].configuration != new.configuration
    ]


def _functions(program: str | ir.Module | ir.Operation) -> dict[str, _Configured]:
    """Every configured function of a program by name."""
    with library.new_context() if isinstance(program, str) else nullcontext():
        if isinstance(program, str):
            try:
                root = ir.Module.parse(program).operation
            except ir.MLIRError as error:
                lines = str(error).splitlines()
                raise UserError(
                    "configured program: not a valid MLIR module: "
                    f"{lines[1] if len(lines) > 1 else lines[0]}"
                ) from error
        else:
            root = program.operation
        functions: dict[str, _Configured] = {}
        for op in library.walk(root):
            if op.name != "func.func" or "translation_info" not in op.attributes:
                continue
            marked = library.MARKER in op.attributes
            functions[library.symbol(op)] = _Configured(
                configuration=_describe(op),
                entry=library.text(op.attributes[library.MARKER]) if marked else "",
            )
        return functions


def _describe(function: ir.Operation) -> str:
    parts = [str(function.attributes["translation_info"])]
    for op in compute_ops(function):
        if "lowering_config" in op.attributes:
            parts.append(f"{op.name}: {op.attributes['lowering_config']}")
    return "; ".join(parts)
