"""`tilewright completion`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from tilewright.errors import UserError
from tilewright.files import user_folder_file, write_file

_PROGRAM = "tilewright"
_SHELLS = ("bash", "zsh", "fish")


@click.command(
    name="completion",
    epilog="""\b
Examples:
  tilewright completion --install            for the shell that you use
  tilewright completion zsh > _tilewright""",
)
@click.argument("shell", required=False, type=click.Choice(_SHELLS))
@click.option("--install", is_flag=True, help="Put it where the shell looks for it.")
def command(shell: str | None, install: bool) -> None:
    """Have the shell complete commands and options: print the script for it, or install it.

    SHELL is by default the one that $SHELL names.
    """
    name = shell or _shell_in_use()
    text = _script(name)
    if not install:
        click.echo(text, nl=False)
        return
    path, then = _place(name)
    with suppress(OSError):
        # Where this fails, what the file is for is told.
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, text.encode())
    click.echo(f"{path}: written; {then}")


def _shell_in_use() -> str:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise UserError(
            f"SHELL names {name or 'no shell'}: say which one is meant ({', '.join(_SHELLS)})"
        )
    return name


def _script(shell: str) -> str:
    """The script for a shell, which asks this program what there is."""
    from tilewright.cli.main import commands

    kind = get_completion_class(shell)
    assert kind is not None
    return kind(commands, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source() + "\n"


def _place(shell: str) -> tuple[Path, str]:
    """Where a shell looks for scripts of the user's, and what is left to do."""
    if shell == "bash":
        # Of bash-completion, which asks for the file by the command's name when it is needed.
        data = user_folder_file("data", _PROGRAM, platform="linux").parent.parent
        return data / "bash-completion" / "completions" / _PROGRAM, "new shells have it"
    if shell == "fish":
        config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return config / "fish" / "completions" / f"{_PROGRAM}.fish", "new shells have it"
    folder = Path.home() / ".zfunc"
    return folder / f"_{_PROGRAM}", (f"~/.zshrc needs, before its compinit: fpath+=({folder})")
