"""A program that is run in the place of the gateway, and how a test tells it what to do.

It has the gateway's side of what is between the two: it listens on the socket that it inherits,
says that it is ready over its life line, drains at SIGTERM, and ends when the line does. To HTTP
requests it says who it is; `POST /hold` waits until it is released.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()


class Played:
    """The program's binary, which does what it finds in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.binary = folder / "pipeline-gateway"
        from pipeline.frontends.link.frames import VERSION  # not there for the program below

        self.says_its_version(f"pipeline-gateway of a test (link {VERSION})")

    def says_its_version(self, text: str) -> None:
        """From now on, to who asks for it."""
        version = f'[ "$1" = --version ] && echo "{text}" && exit'
        command = f'exec "{sys.executable}" -IS "{HERE}" "{self._folder}" "$@"'
        self.binary.write_text(f"#!/bin/sh\n{version}\n{command}\n")
        self.binary.chmod(0o755)

    def shall(self, what: str, text: str = "") -> None:
        """From now on: `fail` with `text`, `be unready`, `be stubborn`, `hold`."""
        (self._folder / what).write_text(text)

    def shall_not(self, what: str) -> None:
        (self._folder / what).unlink()

    @property
    def pids(self) -> list[int]:
        """Of the processes that were started, in order."""
        path = self._folder / "pids"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    @property
    def holds(self) -> bool:
        """Whether a request waits."""
        return (self._folder / "holds").exists()


# The program ----------------------------------------------------------------------------------


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False  # a request that is inside is answered before the program ends

    def __init__(self, listener: socket.socket, folder: Path, arguments: list[str]) -> None:
        super().__init__(("", 0), _Answers, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.folder = folder
        self.arguments = arguments


class _Answers(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        said = {"pid": os.getpid(), "arguments": self.server.arguments, "path": self.path}
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        (self.server.folder / "holds").touch()
        _wait_while(self.server.folder / "hold")
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


def _wait_while(path: Path) -> None:
    while path.exists():
        time.sleep(0.002)


def main(folder: Path, arguments: list[str]) -> None:
    with (folder / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if (folder / "fail").exists():
        sys.stderr.write(f"INFO it begins\nERROR {(folder / 'fail').read_text()}\n")
        raise SystemExit(1)
    listener = socket.socket(fileno=int(arguments[arguments.index("--listen-fd") + 1]))
    server = _Server(listener, folder, arguments)

    def drain(*_: object) -> None:
        if not (folder / "be stubborn").exists():
            threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, drain)
    life = socket.socket(fileno=0)

    def live() -> None:
        life.recv(1)
        os._exit(0)

    threading.Thread(target=live, daemon=True).start()
    _wait_while(folder / "be unready")
    sys.stderr.write("WARNING it plays\n")
    sys.stderr.flush()
    life.send(b"ready\n")
    server.serve_forever(0.01)
    server.server_close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
