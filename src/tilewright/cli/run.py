"""`tilewright run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright.cli.module_options import module_options, show_ir, split, tell
from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError
from tilewright.tuning.parse import parse_count

if TYPE_CHECKING:
    from tilewright.modules.running import RunResult, Tolerance

# Results that are not those expected: no mistake of the user's, and not done either.
DIFFERENT = 3


@click.command(
    name="run",
    epilog="""\b
Examples:
  tilewright run model.mlir
  tilewright run add.vmfb --function add --input "4xf32=[1 2 3 4]" --input f32=-2
  tilewright run model.mlir --input image.npy --output scores.npy
  tilewright run model.mlir --input image.npy --expected scores.npy
  tilewright run model.mlir --parameters model=weights.irpa --spec tuned
  tilewright run model.mlir --compile-to flow --save flow.mlir

Exit status 3: the results are not those expected.""",
)
@click.argument("module", type=PATH)
@module_options
@click.option(
    "-o", "--output", "outputs", metavar="FILE.npy", multiple=True,
    type=PATH,
    help="Save the results instead of printing them: a file for each, or one for all.",
)  # fmt: skip
@click.option(
    "--expected", metavar="SPEC", multiple=True,
    help="Expected result as --input gives inputs, or a .npy file with one or more; may be "
    "repeated.",
)  # fmt: skip
@click.option("--rtol", type=float, metavar="X", help="Relative tolerance of --expected.")
@click.option("--atol", type=float, metavar="X", help="Absolute tolerance of --expected.")
@click.option("--max-elements", metavar="N", help="Elements of a result to print (default: 1024).")
def command(
    module: Path,
    outputs: tuple[Path, ...],
    expected: tuple[str, ...],
    rtol: float | None,
    atol: float | None,
    max_elements: str | None,
    **given: Any,
) -> int:
    """Run a function of MODULE once, and print or compare its results.

    MODULE is a compiled .vmfb, or a program in any form that `tilewright tune` takes, which is
    compiled first. The function may be left out when there is only one. Inputs are written as for
    IREE's tools; without any the data is random. Expected results are compared by the tolerance of
    their element types unless --rtol or --atol is given; integers must be equal.

    The program runs in a process of its own: if it crashes or hangs, that is an error message.
    """
    from tilewright.modules.running import check_outputs, save_outputs

    options, call = split(given)
    if options.compile_to is not None:
        show_ir(module, options)
        return 0
    limit = parse_count(max_elements, "--max-elements", least=0) if max_elements else None
    check_outputs(outputs)
    result = _run(module, options, call, expected, _tolerance(rtol, atol, bool(expected)))
    if outputs:
        save_outputs(result, outputs)
        for path in outputs:
            click.echo(f"{path}: written", err=True)
    elif not expected:
        _print(result, limit)
    for index, comparison in enumerate(result.comparisons):
        verdict = "as expected" if comparison.ok else f"DIFFERENT: {comparison}"
        click.echo(f"result[{index}]: {verdict}")
    return 0 if result.ok else DIFFERENT


def _run(
    module: Path, options: Any, call: Any, expected: tuple[str, ...], tolerance: Tolerance | None
) -> RunResult:
    from tilewright.modules.ready_module import open_module
    from tilewright.modules.running import run_module

    with open_module(module, options, with_limits=not call["inputs"]) as opened:
        tell(opened.compiled)
        return run_module(opened, **call, expected=expected, tolerance=tolerance)


def _tolerance(rtol: float | None, atol: float | None, used: bool) -> Tolerance | None:
    from tilewright.modules.running import Tolerance

    if rtol is None and atol is None:
        return None
    if not used:
        raise UserError("--rtol and --atol: there is nothing to compare; give --expected too")
    return Tolerance(rtol or 0.0, atol or 0.0)


def _print(result: RunResult, limit: int | None) -> None:
    from tilewright.modules.running import MAX_ELEMENTS, format_value

    shown = MAX_ELEMENTS if limit is None else limit
    for index, (output, kind) in enumerate(zip(result.outputs, result.types, strict=True)):
        click.echo(f"result[{index}]: {format_value(output, kind, shown)}")
    if not result.outputs:
        click.echo(f"{result.function}: no results")
