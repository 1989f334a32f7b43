"""`tilewright profile`: generate, compile, verify and measure kernels of many kinds."""

from __future__ import annotations

import click

from tilewright.cli.lazy import CommandPlace, LazyGroup

_MODULE = "tilewright.cli.profile_commands"


@click.group(
    name="profile",
    cls=LazyGroup,
    places={
        "generate": CommandPlace(
            _MODULE, "generate", "Write programs and configurations of dispatches."
        ),
        "compile": CommandPlace(
            _MODULE, "compile_", "Compile the generated dispatches that changed."
        ),
        "run": CommandPlace(_MODULE, "run", "Verify and time compiled dispatches."),
    },
    epilog="""\b
Examples:
  tilewright profile generate --kind matmul --types f32 --problem-m=768 \\
      --problem-n=64:1024:128 --problem-k=1024 --configs default,sample:10
  tilewright profile compile
  tilewright profile run --output data.csv --tags cpu:laptop
  tilewright profile run --dispatches 'matmul_768x512x1024_f32t.*' --no-verify""",
)
def command() -> None:
    """Is each kernel right, and how fast? Generate, compile, verify and measure them.

    Kinds of kernels, element types, layouts and shapes make operations; with a configuration for
    the compiler an operation is a dispatch. Each is checked against NumPy before it is timed.
    """
