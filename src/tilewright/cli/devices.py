"""`tilewright devices`."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import json_option, tuning_options
from tilewright.measure.machine import Machine, describe, warnings
from tilewright.target import BACKENDS, parse_target, target_names
from tilewright.toolchain import check_versions
from tilewright.tuning.parse import parse_count

if TYPE_CHECKING:
    from tilewright.measure.devices import CompilerTargets, Driver
    from tilewright.measure.peak import Peak


@click.command(
    name="devices",
    epilog="""\b
Examples:
  tilewright devices
  tilewright devices --threads 1
  tilewright devices --measure --json""",
)
@tuning_options("threads")
@click.option("--measure", is_flag=True, help="Measure the peak anew.")
@json_option
def command(threads: str | None, measure: bool, as_json: bool) -> None:
    """Show what programs can run on, and what this machine can do at most.

    The runtime's drivers with their devices, the targets that the compiler knows, and of this CPU
    the caches, the width of its vectors, and its peak: operations a second by element type and
    bytes a second of memory, measured once for each number of threads with kernels that do nothing
    else. Nothing computed with these types can be faster, as far as IREE generates code for it.
    """
    from tilewright.measure.devices import drivers, targets
    from tilewright.measure.peak import cached_peak, machine_peak

    count = parse_count(threads, "--threads") if threads is not None else None
    cores = parse_target("cpu", count).cores
    check_versions()
    machine = describe()
    found, known = drivers(), targets()
    doubts: tuple[str, ...] = ()
    if measure or cached_peak(cores) is None:
        doubts = warnings(machine)
        click.echo("measuring the peak of this machine; takes some seconds", err=True)
    peak = machine_peak(cores, refresh=measure)
    for doubt in doubts:
        click.echo(f"warning: {doubt}", err=True)
    if as_json:
        data = {
            "drivers": found,
            "compiler": {"error": known} if isinstance(known, str) else known,
            "targets": ["cpu", "cpu:NAME", *target_names()],
            "machine": machine,
            "peak": peak,
        }
        output.print_json(data)
        return
    _print_drivers(found)
    _print_targets(known)
    _print_machine(machine, known)
    _print_peak(peak)


def _print_drivers(found: tuple[Driver, ...]) -> None:
    click.echo("drivers of the runtime")
    for driver in found:
        devices = [f"{one.uri} ({one.name})" for one in driver.devices]
        click.echo(f"  {driver.name:<15} {driver.error or ', '.join(devices) or 'no devices'}")


def _print_targets(known: CompilerTargets | str) -> None:
    if isinstance(known, str):
        click.echo(f"targets of the compiler: {known}")
        return
    click.echo(f"targets of the compiler\n  {', '.join(known.backends)}")
    click.echo("what --target takes\n  cpu, or cpu:NAME with LLVM's name of a processor")
    for backend in BACKENDS.values():
        names = ", ".join(backend.architectures)
        text = f"{backend.name}: {names}" if names else backend.name
        click.echo(textwrap.fill(text, 98, initial_indent="  ", subsequent_indent="    "))


def _print_machine(machine: Machine, known: CompilerTargets | str) -> None:
    click.echo(f"this CPU: {machine.cpu}")
    cores = f"{words.plural(machine.cores, 'core')}, " if machine.cores else ""
    click.echo(f"  threads         {cores}{words.plural(machine.threads, 'thread')} usable")
    for cache in machine.caches:
        shared = f", shared by {cache.shared_by}" if cache.shared_by > 1 else ""
        name = f"L{cache.level} {cache.kind.lower()}"
        click.echo(f"  {name:<15} {_size(cache.bytes)}{shared}")
    if machine.memory_bytes:
        click.echo(f"  memory          {_size(machine.memory_bytes)}")
    if not isinstance(known, str):
        click.echo(f"  processor       {known.processor}, as LLVM names it")
        click.echo(f"  vectors         {8 * known.vector_bytes} bits")


def _print_peak(peak: Peak) -> None:
    from tilewright.measure.peak import FLOAT_FIRST

    busy = " on a busy machine: measured again when it is quiet" if peak.busy else ""
    click.echo(
        f"peak with {words.plural(peak.threads, 'thread')}, measured "
        f"{words.when(peak.measured_at)}{busy}"
    )
    for element_type in sorted(peak.compute, key=FLOAT_FIRST.index):
        unit = "GFLOP/s" if "f" in element_type else "Gop/s"
        rate = words.significant(peak.compute[element_type], 4)
        click.echo(f"  {element_type:<15} {rate:>7} {unit:<8} {peak.instructions[element_type]}")
    rates = ", ".join(f"{k} {words.significant(v)}" for k, v in peak.memory.items())
    rate = words.significant(peak.gbytes_per_s)
    click.echo(f"  {'memory':<15} {rate:>7} {'GB/s':<8} {rates}")


def _size(number: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if number >= size:
            return f"{number / size:.4g} {unit}"
    return f"{number / 1024:.4g} KiB"
