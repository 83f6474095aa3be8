"""What children of zygotes do in tests, and how to look at processes; loads nothing heavy."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path


def obey(sock: socket.socket, number: int) -> None:
    """Answer questions; end when the parent closes its end of the socket, or asks for it."""
    while question := sock.recv(4096).decode():
        if question == "return":
            return
        sock.sendall(str(COMMANDS[question](number)).encode())


def crash(number: int) -> None:
    faulthandler.disable()  # pytest's, which would tell at length
    ctypes.string_at(0)


def abort(number: int) -> None:
    faulthandler.disable()
    os.abort()


def fail(number: int) -> None:
    raise LookupError("the user's own mistake")


LOADED: list[int] = []  # processes that have imported a runtime


def load_runtime() -> None:
    """Import something large."""
    LOADED.append(os.getpid())


def load_with_thread() -> None:
    """Import something that starts a thread."""
    load_runtime()
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def load_and_end() -> None:
    """Import something that ends the process."""
    os._exit(1)


COMMANDS: dict[str, Callable[[int], object]] = {
    "ping": lambda number: "pong",
    "number": lambda number: number,
    "loaded": lambda number: LOADED,
    "segfault": crash,
    "abort": abort,
    "raise": fail,
    "os._exit": lambda number: os._exit(3),
    "sys.exit": lambda number: sys.exit(4),
    "sys.exit text": lambda number: sys.exit("no more of this"),
    "sys.exit nothing": lambda number: sys.exit(),
    "terminate": lambda number: os.kill(os.getpid(), signal.SIGUSR1),
    "real time": lambda number: os.kill(os.getpid(), signal.SIGRTMIN + 3),
    "thread": lambda number: threading.current_thread().name,
    "is main": lambda number: threading.current_thread() is threading.main_thread(),
    "sockets": lambda number: sum(name.startswith("socket:") for name in open_files()),
    "pidfds": lambda number: sum("pidfd" in name for name in open_files()),
    "blocked": lambda number: int(status_of("self", "SigBlk"), 16),
    "asyncio": lambda number: asyncio.run(asyncio.sleep(0, "ran")),
    "is frozen": lambda number: gc.get_freeze_count() > 1000,
    "timeout": lambda number: socket.socketpair()[0].gettimeout(),
    "sh": lambda number: subprocess.run(["sh", "-c", "kill -INT $$; echo alive"]).returncode,
}


# Looking at processes ---------------------------------------------------------------------


def open_files(pid: int | str = "self") -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(found)


def our_files() -> Counter[str]:
    """Count the open files of this process, without those of gRPC's threads.

    Other tests leave these threads, which open and close files at any time.
    """
    of_others = ("anon_inode:[eventfd]", "anon_inode:[eventpoll]")
    return Counter(file for file in open_files() if file not in of_others)


def living(pids: Iterable[int | None]) -> list[int]:
    """Those that run; a zombie does not."""
    return [pid for pid in pids if pid is not None and status_of(pid, "State")[:1] not in "ZX"]


def status_of(pid: int | str, key: str) -> str:
    """A line of /proc/PID/status; "X" if there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{key}:"))
