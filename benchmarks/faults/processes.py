"""Processes that are killed and stopped, and resources of the machine that run out."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack

from benchmarks import NotMeasuredError
from benchmarks.family import members
from benchmarks.faults.clients import FAILED, PATIENCE_S, SIZES, Caller, ask
from benchmarks.faults.fault import Fault, repeat, wait_until
from benchmarks.process import Service

_SMALL_DISKS = """
mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c 2m /dev/zero > /dev/shm/full
cd "$SERVING_LOG_PATH" && mount -t tmpfs -o size=64k tmpfs . && head -c 1m /dev/zero > ./full
cd "$OLDPWD"
exec "$@"
"""


def _kill(title: str) -> Callable[[Service], None]:
    def hit(service: Service) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(_one(service, title), signal.SIGKILL)

    return hit


def _stop(title: str, seconds: float = 1.5) -> Callable[[Service], None]:
    def hit(service: Service) -> None:
        with contextlib.suppress(ProcessLookupError):
            pid = service.pid if title == "server" else _one(service, title)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(pid, signal.SIGCONT)

    return hit


def _one(service: Service, title: str) -> int:
    """Return a process of the service with this name, once there is one."""
    absent = f"no process is named {title}"
    wait_until(lambda: bool(members(service.pid, title)), PATIENCE_S, absent)
    if not (pids := members(service.pid, title)):
        raise NotMeasuredError(absent)
    return random.choice(pids)


def _limit(service: Service) -> None:
    """Let the workers map no more memory than they have, and send requests that need more."""
    pids = members(service.pid, _WORKER)
    if not pids:
        raise NotMeasuredError(f"no process is named {_WORKER}")
    for pid in pids:
        subprocess.run(["prlimit", f"--pid={pid}", f"--as={1 << 20}"], check=True)
    with contextlib.closing(Caller().connection(service.http_port)) as connection:
        endings = [ask(connection, 1, 50 * max(SIZES)) for _ in range(5)]
    if any(ending != FAILED for ending, _ in endings):
        raise NotMeasuredError(f"the workers have memory: {endings}")
    time.sleep(4)


def _half_open(service: Service) -> None:
    """Open connections that send half a request and are silent, beside the clients."""
    with ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", service.http_port)))
            peer.sendall(b"POST /faulted/prediction HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(4)


_WORKER, _ZYGOTE, _GATEWAY = "worker", "zygote", "pipeline-gatewa"
_IN_A_SHELL = ("unshare", "--mount", "sh", "-c", _SMALL_DISKS, "sh")
FAULTS = (
    Fault("nothing"),
    Fault("kill -9 of a worker, 5 times", strike=repeat(5, _kill(_WORKER))),
    Fault("kill -9 of a zygote, 3 times", strike=repeat(3, _kill(_ZYGOTE))),
    Fault("kill -9 of the gateway, 2 times", True, repeat(2, _kill(_GATEWAY))),
    Fault("SIGSTOP of a worker, 3 times", strike=repeat(3, _stop(_WORKER))),
    Fault("SIGSTOP of a zygote, 2 times", strike=repeat(2, _stop(_ZYGOTE))),
    Fault("SIGSTOP of the gateway, 2 times", strike=repeat(2, _stop(_GATEWAY))),
    Fault("SIGSTOP of the server, 2 times", strike=repeat(2, _stop("server"))),
    Fault("full /dev/shm and a full disk of the logs", under=_IN_A_SHELL, needs_root=True),
    Fault("64 descriptors", True, under=("prlimit", "--nofile=64:64")),
    Fault("no more memory for the workers", True, _limit),
    Fault("200 half-open peers", strike=_half_open),
)
