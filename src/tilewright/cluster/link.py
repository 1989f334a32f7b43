"""A run's side of a cluster: who is there, what they are given, what comes back.

`Dispatcher` decides; here its chunks become tasks of Dask's, each for the worker that it was given
to, and what Dask tells (a result, a worker that came or went) is told to it. What is sent and what
comes back is JSON; the function is named. Dask pickles both on their way, and nothing else is ever
pickled or unpickled.
"""

from __future__ import annotations

import contextlib
import json
import queue
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.cluster.dask_settings import NO_EXTRA, is_refused, settle, why_unreachable
from tilewright.cluster.dispatching import COMPILE, Chunk, Dispatcher, DispatchPolicy, WorkItem
from tilewright.cluster.facts import WIRE_FORMAT, WorkerFacts, differing, disagreement
from tilewright.errors import UserError
from tilewright.files import parse_json
from tilewright.measure.encoding import Files, ManifestEntry

_CONNECT_S = 15.0
# How often is looked who is there; with many workers what they say of themselves takes its time.
_LOOK_S, _LOOK_PER_WORKER_S = 0.5, 0.003
_REMIND_S = 60.0
# A scheduler that has gone is waited for so long.
_SCHEDULER_PATIENCE_S = 120.0

Announce = Callable[[str], None]
OnResult = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class _Asked:
    """What is to be done: where it goes, and who is told."""

    item: WorkItem
    entry: ManifestEntry
    more: Mapping[str, Any]
    on_result: OnResult


class Cluster:
    """A connection to a scheduler, with what a run has its workers do.

    Everything happens in the thread that calls: `submit` only queues, `wait` hands out and takes
    in. Results come in any order.

    url: of the scheduler. files: what is handed out by digest; place: where workers find it.
    own_processor: whether code is made for the processor of whatever machine compiles it.
    security: Dask's.
    """

    def __init__(
        self,
        url: str,
        files: Files,
        place: Mapping[str, str],
        ours: WorkerFacts,
        *,
        own_processor: bool = False,
        security: Any = None,
        announce: Announce = lambda text: None,
        policy: DispatchPolicy | None = None,
    ) -> None:
        self.url = url
        self.files = files
        self.announce = announce
        self.dispatcher = Dispatcher(policy)
        self.workers: dict[str, WorkerFacts] = {}
        self._place = dict(place)
        self._ours = ours
        self._own_processor = own_processor
        self._security = security
        self._run = secrets.token_hex(8)
        self._asked: dict[str, _Asked] = {}
        self._futures: dict[int, Any] = {}
        self._events: queue.SimpleQueue[tuple[int, str, str]] = queue.SimpleQueue()
        self._refused: dict[str, str] = {}
        self._machine: tuple[str, Mapping[str, Any]] | None = None
        self._look_at = 0.0
        self._reminded = time.monotonic()
        self._client: Any = None
        self._connect(_CONNECT_S)
        try:
            self.look()
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        """See that builds agree.

        Raises:
            UserError: compile workers have another build than this machine; names them.
        """
        wrong = [f"{name}: {why}" for name, why in self._refused.items()]
        if wrong:
            raise UserError(
                f"--cluster: {self.url}: these cannot work for this run: {'; '.join(wrong)}"
            )

    def count(self, role: str) -> int:
        """How many workers of a role there are.

        Args:
            role: `compile` or `device`.
        """
        return sum(one.role == role for one in self.workers.values())

    def measures_on(self, label: str) -> Mapping[str, Any] | None:
        """What measurements hold for on devices with a label, but for the run's part; None where
        they do not agree. Where they do, no other that comes later measures for this run.

        Args:
            label: of the devices.
        """
        there = [one.machine for one in self.workers.values() if label in one.labels]
        names = {name for one in there for name in differing(there[0], one)}
        if names:
            self.announce(
                f"the devices '{label}' differ in {', '.join(sorted(names))}: what earlier runs "
                "found is only tried first, and so will be what this one finds"
            )
        if names or not there:
            return None
        self._machine = label, there[0]
        return there[0]

    def why_not(self, facts: WorkerFacts) -> str:
        """Why a worker cannot work for this run; '' where it can.

        Args:
            facts: of the worker.
        """
        why = disagreement(self._ours, facts, own_processor=self._own_processor)
        if why or self._machine is None or self._machine[0] not in facts.labels:
            return why
        names = differing(self._machine[1], facts.machine)
        return f"the run's other devices have another {', '.join(names)}" if names else ""

    def submit(
        self, item: WorkItem, entry: ManifestEntry, more: Mapping[str, Any], on_result: OnResult
    ) -> None:
        """Have something done.

        Args:
            item: how it is placed; its key is the entry's.
            entry: what is asked.
            more: what else the worker is told, equal for items of a group.
            on_result: told the result; `failure` where there is none.
        """
        self._asked[item.key] = _Asked(item, entry, more, on_result)
        self.dispatcher.submit([item])

    def wait(self, is_done: Callable[[], bool], stop: Callable[[], bool]) -> None:
        """Hand out and take in until enough is done.

        Args:
            is_done: asked whenever something has come back.
            stop: asked all the time; what is still open is withdrawn.

        Raises:
            UserError: the scheduler has gone for good.
        """
        while not is_done():
            if stop():
                self._cancel(self.dispatcher.withdraw(list(self._asked)))
                self._asked.clear()
                return
            self._step()

    def close(self) -> None:
        """Leave the cluster."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close(timeout=2)
            self._client = None

    # -- one round

    def _step(self) -> None:
        now = time.monotonic()
        if now >= self._look_at:
            self.look()
        for chunk in self.dispatcher.next(now):
            self._send(chunk)
        gone, self.dispatcher.given_up = self.dispatcher.given_up, []
        for item, why in gone:
            failure = {"class": "WorkerFailure", "kind": "crashed", "message": f"given up: {why}"}
            self._deliver({"key": item.key, "seconds": 0.0, "failure": failure})
        self._remind(now)
        if gone:
            return
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=max(0.0, min(0.1, self._look_at - now)))
            self._take(*event)
            while True:
                self._take(*self._events.get_nowait())

    def _send(self, chunk: Chunk) -> None:
        from tilewright.cluster.worker import perform

        asked = [self._asked[item.key] for item in chunk.items]
        text = json.dumps(
            {
                "format": WIRE_FORMAT,
                "run": self._run,
                "label": asked[0].item.group or asked[0].item.role,
                "files": self._place,
                "entries": [asdict(one.entry) for one in asked],
                **asked[0].more,
            }
        )
        try:
            future = self._client.submit(
                perform,
                text,
                key=f"tilewright-{self._run}-{chunk.number}",
                workers=[chunk.address],
                allow_other_workers=False,
                resources={asked[0].item.role: 1},
                pure=False,
            )
        except (OSError, RuntimeError, ValueError) as error:
            self._events.put((chunk.number, "fail", str(error)))
            return
        self._futures[chunk.number] = future
        events, number = self._events, chunk.number

        def ended(future: Any) -> None:
            # In a thread of Dask's.
            try:
                events.put((number, "done", str(future.result(timeout=60))))
            except BaseException as error:
                events.put((number, "fail", str(error) or type(error).__name__))

        future.add_done_callback(ended)

    def _take(self, number: int, kind: str, text: str) -> None:
        """What became of a chunk."""
        future = self._futures.pop(number, None)
        if future is None:
            return
        why = text
        if kind == "done":
            data = _reply(text)
            why = str(data.get("error", ""))
            if not why:
                results = {str(one["key"]): one for one in data["results"]}
                done, needless = self.dispatcher.finish(number, time.monotonic())
                self._cancel(needless)
                for item in done:
                    found = results.get(item.key)
                    self._deliver(found if found is not None else _no_result(item.key))
                return
        chunk = next((c for c in self.dispatcher.running if c.number == number), None)
        node = self.workers.get(chunk.address) if chunk else None
        self.announce(f"a worker on {node.node if node else 'another machine'} failed: {why}")
        self.dispatcher.fail(number, why)

    def _deliver(self, data: Mapping[str, Any]) -> None:
        asked = self._asked.pop(str(data["key"]), None)
        if asked is not None:
            asked.on_result(data)

    def _cancel(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            future = self._futures.pop(chunk.number, None)
            if future is not None:
                with contextlib.suppress(Exception):
                    future.cancel()

    # -- who is there

    def look(self) -> None:
        """Compare the scheduler's list of workers with what is known."""
        try:
            info = self._client.sync(self._client.scheduler.identity, callback_timeout=10)
            processing = self._client.sync(self._client.scheduler.processing, callback_timeout=10)
        except Exception as error:
            self._scheduler_lost(error)
            return
        there: dict[str, dict[str, Any]] = info["workers"]
        for address in [a for a in self.workers if a not in there]:
            node = self.workers.pop(address)
            lost = self.dispatcher.lose(address)
            self._cancel(lost)
            again = sum(len(chunk.items) for chunk in lost)
            self.announce(
                f"lost a {node.role} worker on {node.node}"
                + (f"; what it had ({again}) goes to others" if again else "")
            )
        for address, data in there.items():
            facts = WorkerFacts.from_json((data.get("metrics") or {}).get("tilewright"))
            if facts is None or address in self.workers:
                continue
            why = self.why_not(facts)
            if why:
                name = f"{facts.role} worker on {facts.node} ({address})"
                if name not in self._refused:
                    self._refused[name] = why
                    if self.workers:
                        self.announce(f"{name} is not used: {why}")
                continue
            self.workers[address] = facts
            self.dispatcher.add(facts.worker(address))
        own = f"tilewright-{self._run}-"
        self.dispatcher.observe(
            {a: sum(not str(k).startswith(own) for k in keys) for a, keys in processing.items()}
        )
        self._look_at = time.monotonic() + max(_LOOK_S, _LOOK_PER_WORKER_S * len(there))

    def _remind(self, now: float) -> None:
        missing = self.dispatcher.missing()
        if not missing:
            self._reminded = min(self._reminded, now - _REMIND_S + 5)
        elif now - self._reminded >= _REMIND_S:
            self._reminded = now
            role, label = missing[0]
            wanted = f"'{label}'" if label else ""
            option = f" --device {label}" if label and role != COMPILE else ""
            self.announce(
                f"no {role} worker {wanted} is there: start `tilewright worker --scheduler "
                f"{self.url} --role {role}{option}`"
            )

    # -- the scheduler

    def _connect(self, patience_s: float) -> None:
        settle()
        try:
            from distributed import Client
        except ImportError:
            raise UserError(NO_EXTRA) from None
        end = time.monotonic() + patience_s
        while True:
            try:
                client: Any = Client
                self._client = client(
                    self.url,
                    security=self._security,
                    timeout=min(10.0, patience_s),
                    set_as_default=False,
                    name="tilewright",
                )
                return
            except (OSError, TimeoutError, RuntimeError, ValueError) as error:
                if is_refused(error):
                    raise UserError(f"--cluster: {self.url}: {why_unreachable(error)}") from None
                if time.monotonic() >= end:
                    raise UserError(
                        f"--cluster: {self.url}: no scheduler answers there "
                        f"({why_unreachable(error)}); start one with `tilewright cluster scheduler`"
                    ) from None
                time.sleep(0.5)

    def _scheduler_lost(self, error: Exception) -> None:
        """Wait for the scheduler to come back; all that was handed out is handed out again."""
        self.announce(
            f"the scheduler at {self.url} has gone ({why_unreachable(error)}); waiting for it"
        )
        self.close()
        for address in list(self.workers):
            self._cancel(self.dispatcher.lose(address, suspect=False))
        self.workers.clear()
        self._futures.clear()
        self._run = secrets.token_hex(8)
        self._connect(_SCHEDULER_PATIENCE_S)
        self._look_at = 0.0


def _reply(text: str) -> dict[str, Any]:
    """A worker's reply; what is none says so as its error."""
    try:
        data = parse_json(text)
        if isinstance(data, dict) and ("error" in data or isinstance(data["results"], list)):
            return data
    except (ValueError, KeyError):
        pass
    return {"error": "it answers something else than results"}


def _no_result(key: str) -> dict[str, Any]:
    failure = {"class": "WorkerFailure", "kind": "error", "message": "the worker left it out"}
    return {"key": key, "seconds": 0.0, "failure": failure}
