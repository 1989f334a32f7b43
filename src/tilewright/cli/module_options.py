"""Click options that `run` and `bench` share, and what they print of a module on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tilewright import words
from tilewright.cli.output import change_lines
from tilewright.cli.tuning_options import PATH, input_type_option, tuning_options
from tilewright.tuning.parse import parse_count

if TYPE_CHECKING:
    from tilewright.modules.compiling import CompiledModule
    from tilewright.modules.module_source import ModuleOptions

F = TypeVar("F", bound=Callable[..., Any])

# Those of the command line that are not fields of ModuleOptions.
_NOT_OF_MODULE = ("function", "inputs", "seed")


def module_options(function: F) -> F:
    """Adds the options of `ModuleOptions`, and `--function`, `--input` and `--seed`.

    Values arrive as text, and as None or () when they were not given.

    Args:
        function: of the command.
    """
    options = (
        tuning_options("function", "inputs", "parameters"),
        click.option("--seed", metavar="N", help="Seed of random data (default: 0)."),
        tuning_options("threads"),
        click.option("--device", metavar="URI", help="The runtime's device (default: this CPU)."),
        click.option(
            "--timeout", "timeout_s", metavar="DURATION",
            help="For one run, such as 90s or 10m (default: 10m).",
        ),
        tuning_options("target", "iree_flags", "iree_bin"),
        input_type_option,
        click.option(
            "--spec", metavar="FILE", type=PATH,
            help="Apply a tuning spec, the folder of a tuning run, or a transform-dialect library "
            "of strategies, and prove that it applied.",
        ),
        click.option(
            "--compile-to", metavar="PHASE",
            help="Stop at this phase of the compiler and show the IR (or --save it); end: --save "
            "the compiled module and run nothing.",
        ),
        click.option(
            "--dump-phases", metavar="DIR", type=PATH, help="Write the IR after every phase."
        ),
        click.option(
            "--save", metavar="FILE", type=PATH, help="Keep what was compiled, or the IR."
        ),
        click.option(
            "--output-format", metavar="vm-bytecode|vm-c|vm-asm",
            help="What --save writes: a .vmfb (default), C, or the VM's assembly.",
        ),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def split(given: dict[str, Any]) -> tuple[ModuleOptions, dict[str, Any]]:
    """The module's options, and what was given for the call: `function`, `inputs`, `seed`.

    Args:
        given: what click gives, by name.

    Raises:
        UserError: an option has a wrong value.
    """
    from tilewright.modules.module_source import read_options

    call = {name: given.pop(name) for name in _NOT_OF_MODULE}
    call["seed"] = 0 if call["seed"] is None else parse_count(call["seed"], "--seed", least=0)
    return read_options(given), call


def show_ir(module: Path, options: ModuleOptions) -> None:
    """Compile up to `options.compile_to`, and print the IR unless it (or the module) is saved.

    Args:
        module: the program.
        options: with `compile_to`.
    """
    from tilewright.modules.compiling import compiled_program
    from tilewright.modules.ready_module import is_compiled

    if is_compiled(module):
        options.check_compiled(module)
    with compiled_program(module, options, with_limits=False) as compiled:
        tell(compiled)
        if options.phase is None:
            if options.save is not None:
                click.echo(f"{options.save}: written", err=True)
        elif options.save is None:
            assert compiled.ir is not None
            click.echo(compiled.ir.read_text(encoding="utf-8", errors="replace"), nl=False)
        else:
            click.echo(f"{options.save}: written after the phase {options.compile_to}", err=True)


def tell(compiled: CompiledModule | None) -> None:
    """What compiling did beside making the module, on stderr: stdout is for results.

    Args:
        compiled: what was compiled; None: nothing was.
    """
    if compiled is None:
        return
    for note in compiled.notes:
        click.echo(f"note: {note}", err=True)
    if compiled.strategy and not compiled.changes:
        click.echo(f"{compiled.strategy}: no entries; the compiler's own choices stay", err=True)
    elif compiled.strategy:
        number = words.plural(len(compiled.changes), "dispatch", "dispatches")
        click.echo(f"{compiled.strategy}: applied to {number}:", err=True)
        for line in change_lines(compiled.changes, with_entries=False):
            click.echo(line, err=True)
    for file in compiled.phases:
        click.echo(f"{file}: written", err=True)
