"""`python -m benchmarks.faults`: what 64 clients see of faults of a machine and of its processes.

Each fault has a server of its own, process workers behind the gateway, and 64 clients over HTTP
that send one request after the other. Prints how many requests were answered, failed, were wrong or
had no end, and whether the server answers afterwards. Exit status 1: an answer was wrong, a request
had no end, one failed that may not, or the server does not answer.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import NotMeasuredError
from benchmarks.family import members
from benchmarks.process import Service, running
from benchmarks.report import machine, table, write
from benchmarks.services.ports import free_ports

_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- faults: written by `python -m benchmarks.faults --write` -->"
_CLIENTS = 64
_PAUSE_S = 0.05  # of a client between two requests
_PATIENCE_S = 15.0  # the server's own deadline is 8 s
_SIZES = (1, 1, 1, 100, 10_000, 1_000_000)
_WRONG, _HUNG, _ANSWERED = "wrong", "hung", "answered"
_SMALL_DISKS = """
mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c 2m /dev/zero > /dev/shm/full
cd "$SERVING_LOG_PATH" && mount -t tmpfs -o size=64k tmpfs . && head -c 1m /dev/zero > ./full
cd "$OLDPWD"
exec "$@"
"""


@dataclass(slots=True)
class Tally:
    """The endings of the requests; `errors`: the texts of failures."""

    endings: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)


class Clients:
    """Clients that send requests until the block ends."""

    def __init__(self, port: int) -> None:
        self.tally = Tally()
        self._port = port
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(_CLIENTS)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int) -> None:
        dice = random.Random(client)
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_PATIENCE_S)
        number = client
        while not self._is_over.wait(_PAUSE_S):
            number += _CLIENTS
            ending, text = ask(connection, number, dice.choice(_SIZES))
            with self._lock:
                self.tally.endings[ending] += 1
                self.tally.errors[text] += bool(text)
        connection.close()


def ask(connection: http.client.HTTPConnection, number: int, size: int) -> tuple[str, str]:
    """Send one request; return its ending and the reason of a failure."""
    feed = {"number": str(number), "size": str(size)}
    body = json.dumps({"key": [*feed], "value": [*feed.values()]})
    try:
        connection.request("POST", "/faulted/prediction", body)
        text = connection.getresponse().read()
    except TimeoutError:
        connection.close()
        return _HUNG, ""
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return "failed", type(error).__name__
    try:
        answer = json.loads(text)
        if answer.get("err_no"):
            return "failed", f"err_no {answer['err_no']}"
        pairs = dict(zip(answer["key"], answer["value"], strict=True))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _WRONG, ""
    is_right = pairs == {"number": str(number), "sum": str(size)}
    return (_ANSWERED, "") if is_right else (_WRONG, "")


# Faults -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """A fault: keys of the server, a command that it runs under, and what happens meanwhile.

    Attributes:
        may_fail: whether requests may fail; otherwise each has to be answered.
        strike: called once the clients are there; returns when the fault is over.
        keys: made in a context that ends with the server.
        needs: a program.
        needs_root: the command that it runs under does.
    """

    name: str
    may_fail: bool = False
    strike: Callable[[Service], None] = lambda service: time.sleep(3)
    keys: Callable[[ExitStack], Mapping[str, Any]] = lambda stack: {}
    under: tuple[str, ...] = ()
    needs: str = ""
    needs_root: bool = False


def _repeat(times: int, hit: Callable[[Service], None]) -> Callable[[Service], None]:
    def strike(service: Service) -> None:
        for _ in range(times):
            hit(service)
            time.sleep(1.0)

    return strike


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
    ends = time.monotonic() + _PATIENCE_S
    while not (pids := members(service.pid, title)):
        if time.monotonic() > ends:
            raise NotMeasuredError(f"no process is named {title}")
        time.sleep(0.05)
    return random.choice(pids)


def _limit(service: Service) -> None:
    """Let the workers map no more memory than they have, and send requests that need more."""
    pids = members(service.pid, _WORKER)
    if not pids:
        raise NotMeasuredError(f"no process is named {_WORKER}")
    for pid in pids:
        subprocess.run(["prlimit", f"--pid={pid}", f"--as={1 << 20}"], check=True)
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=_PATIENCE_S)
    with contextlib.closing(connection):
        endings = [ask(connection, 1, 50 * max(_SIZES)) for _ in range(5)]
    if any(ending != "failed" for ending, _ in endings):
        raise NotMeasuredError(f"the workers have memory: {endings}")
    time.sleep(4)


def _half_open(service: Service) -> None:
    """Open connections that send half a request and are silent, beside the clients."""
    with ExitStack() as stack:
        for _ in range(200):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", service.http_port)))
            peer.sendall(b"POST /faulted/prediction HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        time.sleep(4)


class Redis:
    """A Redis server for the cache of the service, and what becomes of it."""

    process: subprocess.Popen[bytes]
    port: int

    def keys(self, stack: ExitStack) -> Mapping[str, Any]:
        self.port = free_ports()[0]
        folder = stack.enter_context(TemporaryDirectory(prefix="redis-"))
        command = ["redis-server", "--port", str(self.port), "--save", "", "--dir", folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
                break
            time.sleep(0.05)
        cache = {"redis": {"host": "127.0.0.1", "port": self.port}}
        return {"cache": cache, "response_cache": True}

    def gone(self, service: Service) -> None:
        time.sleep(1)
        self.process.kill()
        time.sleep(3)

    def slow(self, service: Service) -> None:
        for _ in range(3):
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(1)
            self.process.send_signal(signal.SIGCONT)
            time.sleep(0.5)


_REDIS = Redis()
_WORKER, _ZYGOTE, _GATEWAY = "worker", "zygote", "pipeline-gatewa"
_IN_A_SHELL = ("unshare", "--mount", "sh", "-c", _SMALL_DISKS, "sh")
FAULTS = (
    Fault("nothing"),
    Fault("kill -9 of a worker, 5 times", strike=_repeat(5, _kill(_WORKER))),
    Fault("kill -9 of a zygote, 3 times", strike=_repeat(3, _kill(_ZYGOTE))),
    Fault("kill -9 of the gateway, 2 times", True, _repeat(2, _kill(_GATEWAY))),
    Fault("SIGSTOP of a worker, 3 times", strike=_repeat(3, _stop(_WORKER))),
    Fault("SIGSTOP of a zygote, 2 times", strike=_repeat(2, _stop(_ZYGOTE))),
    Fault("SIGSTOP of the gateway, 2 times", strike=_repeat(2, _stop(_GATEWAY))),
    Fault("SIGSTOP of the server, 2 times", strike=_repeat(2, _stop("server"))),
    Fault("full /dev/shm and a full disk of the logs", under=_IN_A_SHELL, needs_root=True),
    Fault("64 descriptors", True, under=("prlimit", "--nofile=64:64")),
    Fault("no more memory for the workers", True, _limit),
    Fault("200 half-open peers", strike=_half_open),
    Fault("Redis is gone", False, _REDIS.gone, _REDIS.keys, needs="redis-server"),
    Fault(
        "Redis stops for a second, 3 times", False, _REDIS.slow, _REDIS.keys, needs="redis-server"
    ),
)


def suffer(fault: Fault) -> tuple[list[str], bool]:
    """Return the fault's row, and whether all is as it has to be."""
    with ExitStack() as stack:
        keys = json.dumps({"edge": "gateway", **fault.keys(stack)})
        more = {"FAULTED": keys, "PYTHONDONTWRITEBYTECODE": ""}
        running_one = running("faulted", under=fault.under, environment=more)
        service = stack.enter_context(running_one)
        service.first_answer(lambda: _check_answers(service))
        with Clients(service.http_port) as clients:
            time.sleep(0.5)
            fault.strike(service)
        is_back = _answers_again(service)
    endings, errors = clients.tally.endings, clients.tally.errors
    reasons = ", ".join(f"{count} {text}" for text, count in errors.most_common(3) if text)
    is_met = (
        is_back
        and not endings[_WRONG]
        and not endings[_HUNG]
        and bool(endings[_ANSWERED])
        and (fault.may_fail or not endings["failed"])
    )
    counts = [f"{endings[kind]:,}" for kind in (_ANSWERED, "failed", _WRONG, _HUNG)]
    ends = "met" if is_met else "**missed**"
    return [fault.name, *counts, reasons, "yes" if is_back else "**no**", ends], is_met


def _check_answers(service: Service) -> None:
    """Raises OSError if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=_PATIENCE_S)
    with contextlib.closing(connection):
        ending, text = ask(connection, 1, 1)
    if ending != _ANSWERED:
        raise OSError(f"{ending}: {text}")


def _answers_again(service: Service) -> bool:
    ends = time.monotonic() + 2 * _PATIENCE_S
    while time.monotonic() < ends:
        with contextlib.suppress(OSError):
            _check_answers(service)
            return True
        time.sleep(0.2)
    return False


def _possible(names: list[str]) -> Iterator[Fault]:
    for fault in FAULTS:
        if names and not any(name in fault.name for name in names):
            continue
        is_here = not fault.needs or shutil.which(fault.needs)
        if is_here and (not fault.needs_root or os.geteuid() == 0):
            yield fault
        else:
            print(f"not run: {fault.name}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help="parts of names; default: all")
    parser.add_argument("--write", action="store_true", help=f"into {_RELIABILITY.name}")
    given = parser.parse_args()
    rows, are_met = [], True
    for fault in _possible(given.names):
        row, is_met = suffer(fault)
        rows.append(row)
        are_met &= is_met
        print(" | ".join(row), flush=True)
    head = ("fault", *(_ANSWERED, "failed", _WRONG, _HUNG), "of these", "answers again", "verdict")
    verdict = "met" if are_met else "**missed**"
    end = f"Nothing wrong, nothing hung, nothing fails that may not: {verdict}."
    report = f"{machine()}. {_CLIENTS} clients over HTTP.\n\n{table(head, rows)}\n\n{end}\n"
    print(report)
    if given.write:
        write(report, _RELIABILITY, _BEGIN)
    return 0 if are_met else 1


if __name__ == "__main__":
    sys.exit(main())
