"""Pages in a real browser: Chromium without a window, spoken to over a pair of pipes in its own
debugging protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome")
     if (found := shutil.which(name))),
    None,
)  # fmt: skip

# Every chart in sight is scrolled to, so that it is drawn.
_DRAW = """
(async () => {
  const wait = (ms) => new Promise((done) => setTimeout(done, ms));
  const until = async (ready) => { for (let i = 0; i < 300 && !ready(); i++) await wait(50); };
  await until(() => window.Plotly && document.documentElement.dataset.ready);
  if (EVERY) for (const details of document.querySelectorAll("details")) details.open = true;
  const charts = [...document.querySelectorAll(".chart")].filter((c) => c.checkVisibility());
  for (const chart of charts) {
    chart.scrollIntoView();
    await until(() => chart.querySelector("svg"));
  }
  scrollTo(0, 0);
  return charts.filter((c) => !c.querySelector("svg")).map((c) => c.id);
})()
"""


@dataclass
class Answer:
    """What JavaScript in a page returned, and what went wrong on the way: lines of the console
    that are errors or warnings, requests other than for the page itself, charts in sight that did
    not come."""

    value: Any
    faults: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    undrawn: list[str] = field(default_factory=list)


@dataclass
class OpenPage:
    """A page that stays open, `width` wide at first."""

    width: int
    _ask: Callable[[str, int], Answer]

    def ask(self, question: str, *, width: int | None = None) -> Answer:
        """What JavaScript returns there, with all that went wrong since the page was opened."""
        return self._ask(question, self.width if width is None else width)


class Browser:
    """A running Chromium; ends with the context."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu",
            "--enable-unsafe-swiftshader", "--disable-dev-shm-usage", "--no-first-run",
            f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        # The browser wants the pipes at these numbers.
        line = f"exec {shlex.join(command)} 3<&{to_browser} 4>&{from_browser}"
        self._process = subprocess.Popen(
            ["bash", "-c", line],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._data = b""
        self._events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def ask(
        self, page: Path | str, question: str, *, width: int = 1280, every: bool = False
    ) -> Answer:
        """Open a page (a file or an address), draw its charts (those of closed details too with
        `every`), and give what JavaScript, the body of an async function, returns there."""
        with self.opened(page, width=width, every=every) as there:
            return there.ask(question)

    @contextlib.contextmanager
    def opened(
        self, page: Path | str, *, width: int = 1280, every: bool = False
    ) -> Iterator[OpenPage]:
        """A page with its charts drawn, to be asked several questions."""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._call(f"{domain}.enable", session)
        self._set_size(session, width)
        self._events.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self._call("Page.navigate", session, url=url)
        self._until("Page.loadEventFired")
        draw = _DRAW.replace("EVERY", str(every).lower())
        undrawn = self._evaluate(session, draw)

        def ask(question: str, wide: int) -> Answer:
            nonlocal width, undrawn
            if wide != width:
                width = wide
                self._set_size(session, wide)
                undrawn = self._evaluate(session, draw)
            value = self._evaluate(session, f"(async () => {{ {question} }})()")
            answer = Answer(value, [], [], undrawn)
            for event in self._events:
                self._note(answer, event, url)
            return answer

        yield OpenPage(width, ask)
        self._call("Target.closeTarget", targetId=target)

    def _set_size(self, session: str, width: int) -> None:
        self._call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def _note(self, answer: Answer, event: dict[str, Any], url: str) -> None:
        method, told = event["method"], event["params"]
        if method == "Network.requestWillBeSent":
            asked = told["request"]["url"]
            if asked != url and not asked.startswith(("data:", "blob:")):
                answer.requests.append(asked)
        elif method == "Runtime.exceptionThrown":
            answer.faults.append(json.dumps(told["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "assert"):
            answer.faults.append(json.dumps(told["args"])[:500])
        elif method == "Log.entryAdded" and told["entry"]["level"] == "error":
            answer.faults.append(told["entry"]["text"])

    def _evaluate(self, session: str, expression: str) -> Any:
        told = self._call(
            "Runtime.evaluate",
            session,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def screenshot(self, page: Path, to: Path, *, width: int, height: int) -> None:
        """A picture of the top of a page."""
        import base64

        target = self._call("Target.createTarget", url=page.resolve().as_uri())["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._call(
            "Emulation.setDeviceMetricsOverride",
            session, width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._evaluate(session, _DRAW.replace("EVERY", "false"))
        time.sleep(0.5)
        told = self._call("Page.captureScreenshot", session, format="png")
        to.write_bytes(base64.b64decode(told["data"]))

    def _call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            told = self._message()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            if "method" in told:
                self._events.append(told)

    def _until(self, method: str) -> None:
        while all(event["method"] != method for event in self._events):
            told = self._message()
            if "method" in told:
                self._events.append(told)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._data:
            ready, _, _ = select.select([self._read], [], [], 90)
            assert ready, "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._data += data
        text, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found
