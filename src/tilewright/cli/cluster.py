"""`tilewright cluster`: certificates, a scheduler, who is there."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright import words
from tilewright.cli import output
from tilewright.cli.tuning_options import PATH, json_option

_certs = click.option(
    "--certs",
    type=PATH,
    metavar="DIR",
    help="Certificates for tls:// (default: $TILEWRIGHT_CERTS).",
)


@click.group(
    name="cluster",
    epilog="""\b
Examples:
  tilewright cluster certs farm-certs
  tilewright cluster scheduler --host 0.0.0.0 --certs farm-certs
  tilewright cluster status tls://farm:8786 --certs farm-certs""",
)
def command() -> None:
    """Have many machines compile and measure for a run (see docs/cluster.md)."""


@command.command("certs")
@click.argument("folder", type=PATH, metavar="DIR")
@click.option(
    "--days", type=click.IntRange(1, 3650), default=825, show_default=True, help="Valid for."
)
def certs_(folder: Path, days: int) -> None:
    """Make certificates for a cluster in DIR.

    An authority of its own, which is kept where DIR has one, and a certificate each for scheduler,
    workers and tuners. Copy DIR to each machine, without ca-key.pem.
    """
    from tilewright.cluster.certificates import AUTHORITY_KEY, make_certificates

    for path in make_certificates(folder, days):
        click.echo(path)
    click.echo(f"copy {folder} to each machine, without {AUTHORITY_KEY}, and name it with --certs")


@command.command("scheduler")
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen at; 0.0.0.0: all."
)
@click.option("--port", type=click.IntRange(0, 65535), default=8786, show_default=True)
@_certs
def scheduler_(host: str, port: int, certs: Path | None) -> None:
    """Start a cluster's scheduler: Dask's, by TLS unless it is for this machine alone."""
    from tilewright.cluster.certificates import AUTHORITY, certificates_folder, security_of
    from tilewright.cluster.place import is_loopback
    from tilewright.cluster.scheduler import run_scheduler

    folder = certificates_folder(certs)
    plain = is_loopback(host) and certs is None and not (folder / AUTHORITY).exists()
    security = None if plain else security_of(folder, "scheduler")
    run_scheduler(host, port, security, click.echo)


@command.command("status")
@click.argument("url", metavar="URL")
@_certs
@json_option
def status_(url: str, certs: Path | None, as_json: bool) -> None:
    """Show a cluster's workers: labels, what they do, versions."""
    from tilewright.cluster.certificates import certificates_folder, security_of
    from tilewright.cluster.place import scheduler_url
    from tilewright.cluster.scheduler import worker_states

    url = scheduler_url(url, "URL")
    encrypted = url.startswith("tls://")
    security = security_of(certificates_folder(certs), "client") if encrypted else None
    states = worker_states(url, security)
    if as_json:
        output.print_json(states)
        return
    click.echo(f"{url}: {words.plural(len(states), 'worker')}")
    if not states:
        return
    table = output.table(
        ["worker", "node", "labels", "doing", "done", "compiler", "runtime"], ["done"]
    )
    for one in states:
        builds = one["builds"]
        table.add_row(
            one["name"],
            one["node"],
            f"{one['role']}: {', '.join(one['labels'])}" if one["labels"] else one["role"],
            one["doing"] or "waits",
            str(one["done"]),
            builds.get("iree-base-compiler", ""),
            builds.get("iree-base-runtime", ""),
        )
    output.console().print(table)
