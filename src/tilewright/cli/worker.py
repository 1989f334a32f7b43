"""`tilewright worker`."""

from __future__ import annotations

from pathlib import Path

import click

from tilewright.cli.tuning_options import PATH


@click.command(
    name="worker",
    epilog="""\b
Examples:
  tilewright worker --scheduler tls://farm:8786 --role compile
  tilewright worker --scheduler tls://farm:8786 --role device --device cuda://0
  tilewright worker --scheduler tcp://127.0.0.1:8786 --role device --label quiet""",
)
@click.option(
    "--scheduler",
    metavar="URL",
    required=True,
    help="Of the cluster: tls://HOST:PORT, or tcp://127.0.0.1:PORT on one machine.",
)
@click.option(
    "--role",
    type=click.Choice(["compile", "device"]),
    required=True,
    help="What it does: compile (one process for each core), or measure on a device.",
)
@click.option(
    "--device",
    metavar="URI",
    help="The runtime's device that it measures on, such as cuda://0 (default: local-task).",
)
@click.option(
    "--label",
    "labels",
    metavar="NAME",
    multiple=True,
    help="A name by which a run's --device may ask for it; may be repeated.",
)
@click.option(
    "--certs",
    type=PATH,
    metavar="DIR",
    help="Certificates for tls:// (default: $TILEWRIGHT_CERTS).",
)
@click.option("--name", metavar="NAME", help="In lists of workers (default: its address).")
@click.option("--nthreads", hidden=True, help="Given by job queues; a worker has one thread.")
@click.option("--memory-limit", hidden=True, help="Given by job queues.")
@click.option(
    "--death-timeout",
    metavar="DURATION",
    help="End when there is no scheduler for so long (default: wait for one for ever).",
)
@click.option("--quiet", is_flag=True, help="Say nothing.")
def command(
    scheduler: str,
    role: str,
    device: str | None,
    labels: tuple[str, ...],
    certs: Path | None,
    name: str | None,
    nthreads: str | None,
    memory_limit: str | None,
    death_timeout: str | None,
    quiet: bool,
) -> None:
    """Work for a cluster until told to end: compile, or measure on one device.

    Candidates run in a process of its own, so one that crashes or hangs ends nothing else. A device
    is measured on by one at a time, whoever asks for it. A scheduler that goes away is waited for.
    """
    from tilewright.cluster.certificates import certificates_folder, security_of, tls_context
    from tilewright.cluster.facts import facts_of
    from tilewright.cluster.place import scheduler_url
    from tilewright.cluster.worker import run_worker
    from tilewright.errors import UserError
    from tilewright.tuning.parse import parse_duration

    url = scheduler_url(scheduler, "--scheduler")
    if role == "compile" and device is not None:
        raise UserError(f"--device: '{device}': a worker that compiles has none; use --role device")
    security = context = None
    if url.startswith("tls://"):
        folder = certificates_folder(certs)
        security = security_of(folder, "worker")
        context = tls_context(folder, "worker", server=False)
    patience_s = None
    if death_timeout is not None:
        seconds = f"{death_timeout}s" if death_timeout.isdigit() else death_timeout
        patience_s = parse_duration(seconds, "--death-timeout")
    run_worker(
        facts_of(role, device or "local-task", labels),
        url,
        security=security,
        context=context,
        name=name,
        death_timeout_s=patience_s,
        say=(lambda text: None) if quiet else (lambda text: click.echo(text)),
    )
