"""The command `tilewright`: its subcommands, and what becomes of an error."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from tilewright.cli.interrupt import Interruption
from tilewright.cli.lazy import CommandPlace, LazyGroup
from tilewright.errors import TRACEBACK, UserError

# What the system says of a disk, a quota or a limit on files that is full.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Characters of an error that are shown; what is longer quotes a file.
_LONGEST_LINE = 2000

_SUMMARIES = {
    "tune": "Find faster code for a program, and prove it.",
    "inspect": "Show a program's dispatches and their search spaces; measures nothing.",
    "apply": "Compile a program with what tuning has found.",
    "spec": "Merge, check and show tuning specs.",
    "specs": "Push specs into a library, and pull them from one.",
    "ci": "Say whether results still hold, for CI servers.",
    "run": "Run a function of a module or program.",
    "bench": "Time functions of a module or program.",
    "trace": "Draw what a run of a module or program does over time.",
    "profile": "Generate, compile, verify and measure kernels of many kinds.",
    "compare": "Compare IREE, tuned and not, with other compilers and libraries.",
    "report": "Make a page on a tuning run or on a comparison.",
    "watch": "Serve a page on a tuning run that goes on.",
    "devices": "Show drivers, devices, targets, and this machine's peak.",
    "config": "Show what options a run has that are not on its command line.",
    "doctor": "Say what on this machine makes times doubtful, or a run fail.",
    "completion": "Have the shell complete commands and options.",
    "worker": "Work for a cluster: compile, or measure on a device.",
    "cluster": "Make certificates for a cluster, start its scheduler, show who is there.",
    "measure": "Measure on this machine what a run on another asks for.",
    "db": "List, explain, check, move and prune the database.",
    "replay": "Score search strategies on spaces that were measured.",
}


class Commands(LazyGroup):
    """The group of all commands. An error is one line on stderr and an exit status, never a trace.

    Exit status: 0 done; 1 a fault of tilewright; 2 something that the user can mend; 3 a check that
    found what it was to look for; 130 interrupted.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As click does; what goes wrong is one line and an exit status.

        Args:
            args: of the command line.
            prog_name: for help.
            complete_var: see click.
            standalone_mode: see click; without it errors pass.
        """
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        sys.exit(self._guarded(args, prog_name, complete_var, extra))

    def _guarded(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        extra: dict[str, Any],
    ) -> int:
        """Run, and give the exit status."""
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
            return status if isinstance(status, int) else 0
        except UserError as error:
            return _report(str(error), 2)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return 2
        except click.UsageError as error:
            return _report(f"{error.format_message()}{_see(error.ctx)}", 2)
        except click.ClickException as error:
            return _report(error.format_message(), 2)
        except Interruption as error:
            return _report(str(error), 130, "")
        except (KeyboardInterrupt, click.Abort):
            return _report("interrupted", 130, "")
        except BrokenPipeError:
            # The reader of our output (`head`, a pager) has gone. What is buffered must not fail
            # again when the interpreter flushes it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except MemoryError as error:
            return _report(f"not enough memory ({' '.join(str(error).split())})", 2)
        except Exception as error:
            if os.environ.get(TRACEBACK):
                traceback.print_exc()
            if isinstance(error, OSError) and error.errno in _FULL:
                place = error.filename or "that of temporary files ($TMPDIR), or one written to"
                return _report(f"a disk is full: {place} ({error.strerror})", 2)
            return _report(
                f"internal error: {type(error).__name__}: {error} (a fault of tilewright: set "
                f"{TRACEBACK}=1 and run it again for the traceback to report)",
                1,
            )


def _see(context: click.Context | None) -> str:
    return f" (see {context.command_path} --help)" if context is not None else ""


def _report(message: str, status: int, mark: str = "error: ") -> int:
    """One line on stderr, whatever line breaks the message has, and however long what it quotes."""
    line = " ".join(message.split())
    if len(line) > _LONGEST_LINE:
        half = _LONGEST_LINE // 2
        line = f"{line[:half]} … {line[-half:]}"
    click.echo(mark + line, err=True)
    return status


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from tilewright.toolchain import versions

    found = versions()
    others = ", ".join(
        f"{name} {found[name] or 'not installed'}"
        for name in ("iree-base-compiler", "iree-base-runtime", "numpy", "python")
    )
    click.echo(f"tilewright {found['tilewright']} ({others})")
    context.exit()


@click.command(
    cls=Commands,
    places={
        name: CommandPlace(f"tilewright.cli.{name}", "command", summary)
        for name, summary in _SUMMARIES.items()
    },
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Examples:
  tilewright tune matmul.mlir -o tuned       find faster code, write it to tuned/
  tilewright inspect model.mlir              what there is to tune
  tilewright apply model.mlir tuned -o model.vmfb
                                             compile with what was found

Every command explains its options with --help.""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the versions of tilewright and of IREE, and exit.",
)
def commands() -> None:
    """An auto-scheduler for the IREE compiler.

    Finds faster code-generation choices for the kernels of a program, proves that they compute the
    same and that they are faster, and hands back what plain iree-compile needs.
    """


def main() -> NoReturn:
    """The console script."""
    commands.main(prog_name="tilewright")
    raise AssertionError("click exits by itself")
