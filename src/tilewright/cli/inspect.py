"""`tilewright inspect`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import PATH, input_type_option, json_option, tuning_options

if TYPE_CHECKING:
    from tilewright.tuning.inspect import (
        DispatchInfo,
        Inspection,
        SiteInfo,
        SpaceInfo,
        VariantInfo,
    )

# A constraint that rejects less than this is not worth a place in the line.
_LEAST_SHARE = 0.0005


@click.command(
    name="inspect",
    epilog="""\b
Examples:
  tilewright inspect model.mlir
  tilewright inspect model.mlir --variants default,data-tiling --only matmul
  tilewright inspect model.mlir --json > spaces.json""",
)
@click.argument("program", type=PATH)
@tuning_options(
    "target",
    "function",
    "inputs",
    "iree_flags",
    "variants",
    "kernels",
    "accuracy",
    "only",
    "threads",
)
@input_type_option
@json_option
def command(program: Path, target: str | None, as_json: bool, **given: Any) -> None:
    """Show what there is to tune in PROGRAM; nothing is run or measured.

    For each variant (by default the compiler's own): the dispatches with how often they run, what
    they compute, the compiler's choice in words, how large their search spaces are, which
    constraint removes how much, which knobs have no effect, and which dispatches cannot be tuned
    and why; and what kernels of our own can compute, by which sketches, and what they cannot.
    """
    from tilewright.tuning.inspect import inspect

    found = inspect(program, target=target or "cpu", **given)
    if as_json:
        output.print_json(found.to_json())
    else:
        _print(found)


def _print(found: Inspection) -> None:
    dialect = f" ({found.dialect})" if found.dialect else ""
    click.echo(f"{found.program}{dialect}, functions: {', '.join(found.functions)}")
    click.echo(f"target {found.target}, compiler {found.compiler}")
    for note in found.notes:
        click.echo(f"note: {note}")
    for variant in found.variants:
        _print_variant(variant)


def _print_variant(variant: VariantInfo) -> None:
    flags = f": {' '.join(variant.flags)}" if variant.flags else ""
    click.echo(f"\nvariant {variant.name}{flags}")
    number = sum(len(d.names) for d in variant.dispatches)
    runs = sum(d.count for d in variant.dispatches)
    click.echo(
        f"  {words.plural(len(variant.dispatches), 'workload')} to tune, in "
        f"{words.plural(number, 'dispatch', 'dispatches')}, run {words.plural(runs, 'time')}; "
        f"{words.plural(len(variant.skipped), 'dispatch', 'dispatches')} not tuned"
    )
    for dispatch in variant.dispatches:
        click.echo()
        for line in dispatch_lines(dispatch):
            click.echo(line)
    if variant.sites:
        click.echo("\nkernels of our own:")
    for site in variant.sites:
        for line in site_lines(site):
            click.echo(f"  {line}")
    if variant.skipped:
        click.echo("\nnot tuned:")
    for skipped in variant.skipped:
        what = f" ({skipped.workload})" if skipped.workload else ""
        often = words.plural(skipped.count, "run")
        click.echo(f"  {skipped.name}{what}, {often}: {skipped.reason}")


def site_lines(site: SiteInfo) -> list[str]:
    """What kernels of our own there can be for a part of the program, in words.

    Args:
        site: as it was inspected.
    """
    kinds = Counter(op.partition(".")[2] if op.startswith("linalg.") else op for op in site.ops)
    ops = ", ".join(f"{n} {op}" if n > 1 else op for op, n in kinds.items())
    lines = [f"{site.name}, {words.plural(site.count, 'run')}{f': {ops}' if ops else ''}"]
    if len(site.dispatches) > 1:
        lines.append(f"  in place of  {', '.join(site.dispatches)}")
    sizes = [f"{name} (about {words.count(points)})" for name, points in site.sketches]
    lines.append(f"  sketches  {', '.join(sizes)}" if sizes else f"  none      {site.reason}")
    return lines


def dispatch_lines(dispatch: DispatchInfo) -> list[str]:
    """A dispatch and its space in words.

    Args:
        dispatch: as it was inspected.
    """
    first, *others = dispatch.names
    lines = [f"{first}, {words.plural(dispatch.count, 'run')}"]
    lines.append(f"  computes  {dispatch.workload}, {words.count(dispatch.flops)} operations")
    if others:
        lines.append(f"  also      {', '.join(others)}")
    lines.append(f"  compiler  {dispatch.configuration}")
    lines.append(f"  space     {_size(dispatch)}")
    for space in dispatch.spaces:
        lines += _space_lines(space)
    return lines


def _size(one: DispatchInfo | SpaceInfo) -> str:
    if one.exact:
        return f"{words.count(one.points)} configurations"
    points, low, high = map(words.count, (one.points, one.low, one.high))
    interval = "" if low == points == high else f" ({low} to {high})"
    return f"about {points} configurations{interval}"


def _space_lines(space: SpaceInfo) -> list[str]:
    own = " (the compiler's)" if space.own else ""
    lines = [
        f"    {space.pipeline}{own}: {_size(space)} of {words.count(space.total)} combinations"
    ]
    knobs = [f"{k.name} ({k.values})" for k in space.knobs if k.effect]
    if knobs:
        lines.append(f"      knobs    {', '.join(knobs)}")
    removed = [
        f"{name} {words.share(share)}" for name, share in space.rejections if share > _LEAST_SHARE
    ]
    if removed:
        lines.append(f"      removed  {', '.join(removed)}")
    for knob in space.knobs:
        if not knob.effect:
            why = f": {knob.note}" if knob.note else ""
            lines.append(f"      no effect  {knob.name}{why}")
    return lines
