"""A real Chromium without a window, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
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


class Browser:
    """One tab, as a context manager. `complaints` are what its console and its policy said."""

    def __init__(self, width: int = 1280, height: int = 800, is_dark: bool = False) -> None:
        self.complaints: list[str] = []
        self._size = {"width": width, "height": height}
        self._is_dark = is_dark
        self._next_id = 0
        self._session: str | None = None
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
        self._open_tab()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session = None
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

    def _open_tab(self) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(**self._size)
        scheme = "dark" if self._is_dark else "light"
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

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

    # The protocol: JSON texts that end with a zero byte ------------------------------------

    def call(self, method: str, **params: Any) -> Any:
        """Ask, and wait for the answer; what happens meanwhile is looked at for complaints."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._read()).get("id") != self._next_id:
            self._look_at(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def _read(self) -> Any:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._in, 1 << 20)
            assert piece, "the browser is gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _look_at(self, event: Any) -> None:
        params = event.get("params", {})
        if event.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and params["type"] != "log":
            self.complaints.append(json.dumps(params["args"]))
