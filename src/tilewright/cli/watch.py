"""`tilewright watch`."""

from __future__ import annotations

import threading
from pathlib import Path

import click

from tilewright.cli.tuning_options import PATH
from tilewright.errors import UserError
from tilewright.tuning.event_log import live_place


@click.command(
    name="watch",
    epilog="""\b
Examples:
  tilewright watch tuned                     a run with -o tuned that goes on now
  tilewright watch events.jsonl              what --events wrote, now or earlier
  tilewright watch tuned --port 8080 --open""",
)
@click.argument("run", metavar="OUT|EVENTS", type=PATH)
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME",
    help="Where to listen; another than the loopback lets others see the run.")  # fmt: skip
@click.option("--port", default=0, metavar="N", type=click.IntRange(0, 65535),
    help="The port (default: a free one).")  # fmt: skip
@click.option("--open", "show", is_flag=True, help="Open the page in the browser.")
def command(run: Path, host: str, port: int, show: bool) -> None:
    """Serve a page on a tuning run whose figures move while it goes on.

    OUT is the result folder of a run of this machine that has not ended yet; EVENTS a file that
    `tilewright tune --events` writes. The page needs no network. Ctrl-C ends.
    """
    from tilewright.cli.watch_server import WatchServer, is_loopback
    from tilewright.cli.watched_run import WatchedRun

    path = _events_of(run)
    try:
        watched = WatchedRun(path, here=path != run)
    except OSError as error:
        raise UserError(f"{path}: cannot read it ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"{run}: {error}; give what `tilewright tune --events` wrote") from error
    try:
        server = WatchServer(watched, host, port)
    except OSError as error:
        raise UserError(
            f"--host {host} --port {port}: cannot listen there ({error.strerror}); "
            "leave --port out for a free one"
        ) from error
    if not is_loopback(host):
        click.echo("warning: whoever reaches this machine can see the run", err=True)
    click.echo(f"{server.url}: Ctrl-C ends")
    if show:
        click.launch(server.url)
    # In a thread, so that Ctrl-C is not waited for by a request.
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        thread.join()
    finally:
        server.shutdown()
        server.server_close()


def _events_of(run: Path) -> Path:
    """The file of events that a user means."""
    if run.is_file():
        return run
    path = live_place(run)
    if path.is_file():
        return path
    if (run / "summary.json").is_file():
        raise UserError(f"{run}: this run has ended; open {run / 'report.html'}")
    raise UserError(
        f"{run}: no run of this machine that writes there goes on; give the folder of its "
        "--output, or the file of its --events"
    )
