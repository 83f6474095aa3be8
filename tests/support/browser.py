"""A real Chromium without a window, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

PATIENCE_S = 60.0

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-zygote",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--remote-debugging-pipe",
)


class Chromium:
    """A process of Chromium, as a context manager."""

    def __init__(self) -> None:
        self._next_id = 0
        self._buffer = b""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        environment = {**os.environ, "HOME": self._home.name, "DBUS_SESSION_BUS_ADDRESS": ""}
        # It reads its descriptor 3 and writes to 4, which are not free to give to a child here.
        shell = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        folder = f"--user-data-dir={self._home.name}"
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", shell, CHROMIUM, *_FLAGS, folder, "about:blank"],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        os.close(to_browser)
        os.close(from_browser)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.call("Browser.close")
            else:
                self._process.terminate()
        finally:
            os.close(self._out)
            os.close(self._in)
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._home.cleanup()

    # The protocol: JSON texts that end with a zero byte ------------------------------------

    def call(
        self, method: str, tab: Browser | None = None, params: dict[str, Any] | None = None
    ) -> Any:
        """Send a command, and wait for the answer; the tab takes the events that come before."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params or {}}
        if tab is not None:
            message["sessionId"] = tab.session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._next_id:
            if tab is not None and answer.get("sessionId") == tab.session:
                tab.look_at(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser has ended"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)


_shared: Chromium | None = None


@contextlib.contextmanager
def shared_chromium() -> Iterator[None]:
    """Start a process whose tabs all Browsers of this block are."""
    global _shared
    with Chromium() as _shared:
        yield
    _shared = None


class Browser:
    """One tab, as a context manager, which shares no state with others.

    `complaints` are the messages of its console and its policy.
    """

    def __init__(self, width: int = 1280, height: int = 800, is_dark: bool = False) -> None:
        self.complaints: list[str] = []
        self.session = ""
        self._size = {"width": width, "height": height}
        self._is_dark = is_dark
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._closing:
            self._chromium = chromium = _shared or self._closing.enter_context(Chromium())
            context = chromium.call("Target.createBrowserContext")
            self._closing.callback(chromium.call, "Target.disposeBrowserContext", params=context)
            page = {"url": "about:blank", **context}
            target = chromium.call("Target.createTarget", params=page)
            attached = chromium.call("Target.attachToTarget", params={**target, "flatten": True})
            self.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.resize(**self._size)
            scheme = "dark" if self._is_dark else "light"
            feature = {"name": "prefers-color-scheme", "value": scheme}
            self.call("Emulation.setEmulatedMedia", features=[feature])
            self._closing = self._closing.pop_all()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._closing.__exit__(*failure)

    # The calls of tests ------------------------------------------------------------------

    def open(self, url: str) -> None:
        """Load a page, to its `load` event."""
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; that of a promise is awaited."""
        answer = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """The value of a JavaScript expression as soon as it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := self.run(expression)):
            assert time.monotonic() < deadline, f"never true: {expression}; {self.complaints}"
            time.sleep(0.02)
        return value

    def text(self, selector: str) -> str:
        """What a reader sees of the first element."""
        found = self.run(f"document.querySelector({json.dumps(selector)}).innerText")
        assert isinstance(found, str)
        return found

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file in the first such field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        found = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=found)

    def screenshot(self, path: Path, is_whole: bool = False) -> None:
        """A picture of what is in view, or of the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=is_whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def call(self, method: str, **params: Any) -> Any:
        """Have the tab do a command, and return its answer."""
        return self._chromium.call(method, self, params)

    def look_at(self, event: Any) -> None:
        """Remember a complaint."""
        params = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] != "log":
            self.complaints.append(json.dumps(params["args"]))
