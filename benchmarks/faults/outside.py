"""Faults outside the server: of Redis, the DNS and the clock."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.faults.clients import PATIENCE_S
from benchmarks.faults.fault import Fault, wait_until
from benchmarks.process import Service, running
from benchmarks.services.ports import free_ports

_UPSTREAM = "upstream.test"
_HOSTS = "127.0.0.1 localhost\n"
_SILENT = "127.0.0.253"  # a server of names that never answers
_OWN_NAMES = """
mount --bind "$0/hosts" /etc/hosts && mount --bind "$0/resolv.conf" /etc/resolv.conf && exec "$@"
"""
# The file is read again after a second, as FAKETIME_CACHE_DURATION has it.
_OWN_CLOCK = """
echo +0 > "$SERVING_LOG_PATH/clock"
export FAKETIME_TIMESTAMP_FILE="$SERVING_LOG_PATH/clock" FAKETIME_CACHE_DURATION=1
export FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD=$(ls /usr/lib/*/faketime/libfaketimeMT.so.1)
exec "$@"
"""


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
        wait_until(lambda: _is_open(self.port), PATIENCE_S, "redis-server does not start")
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


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Upstream:
    """A server that the service asks by a name, which a file of hosts resolves.

    The folder is known before the service starts, since its command names it.
    """

    def __init__(self) -> None:
        self._folder = Path(f"/tmp/bench-names-{os.getpid()}")
        self.under = ("unshare", "--mount", "sh", "-c", _OWN_NAMES, str(self._folder))
        self._ports: dict[str, str] = {}
        self._stack = ExitStack()

    def keys(self, stack: ExitStack) -> Mapping[str, Any]:
        self._folder.mkdir()
        stack.callback(self._folder.rmdir)
        for name, text in (("hosts", ""), ("resolv.conf", f"nameserver {_SILENT}\n")):
            (self._folder / name).write_text(text)
            stack.callback((self._folder / name).unlink)
        self._name(f"127.0.0.1 {_UPSTREAM}\n")
        silent = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        silent.bind((_SILENT, 53))
        web, rpc = free_ports()
        self._ports = {"BENCH_HTTP_PORT": str(web), "BENCH_GRPC_PORT": str(rpc)}
        stack.callback(self._end)
        self._start()
        asked = {"client_type": "pipeline_grpc", "server_endpoints": [f"{_UPSTREAM}:{rpc}"]}
        return {"op": {"sums": {**asked, "concurrency": 16, "retry": 3, "timeout": 2000}}}

    def unnamed(self, service: Service) -> None:
        """Have the name unknown for some seconds."""
        self._name("")
        time.sleep(4)
        self._name(f"127.0.0.1 {_UPSTREAM}\n")
        time.sleep(1)

    def restarts_unnamed(self, service: Service) -> None:
        """Have the name unknown while the other server ends and comes back."""
        self._name("")
        self._end()
        self._start()
        time.sleep(2)
        self._name(f"127.0.0.1 {_UPSTREAM}\n")
        time.sleep(2)

    def _name(self, line: str) -> None:
        (self._folder / "hosts").write_text(_HOSTS + line)

    def _start(self) -> None:
        self._stack.enter_context(running("faulted", environment={"FAULTED": "{}", **self._ports}))
        port = int(self._ports["BENCH_GRPC_PORT"])
        wait_until(lambda: _is_open(port), 60.0, "the other server does not start")

    def _end(self) -> None:
        self._stack.close()


def _step(*steps: str) -> Any:
    """Return a strike that sets the clock so far off in turn, for two seconds each."""

    def strike(service: Service) -> None:
        for step in steps:
            (service.folder / "clock").write_text(f"{step}\n")
            time.sleep(2.5)

    return strike


_REDIS, _NAMES = Redis(), Upstream()
_CLOCK = ("sh", "-c", _OWN_CLOCK, "sh")
FAULTS = (
    Fault("Redis is gone", False, _REDIS.gone, _REDIS.keys, needs=("redis-server",)),
    Fault(
        "Redis stops for a second, 3 times", False, _REDIS.slow, _REDIS.keys,
        needs=("redis-server",),
    ),
    Fault(
        "the DNS forgets a model elsewhere", False, _NAMES.unnamed, _NAMES.keys,
        under=_NAMES.under, needs_root=True,
    ),
    Fault(
        "the DNS forgets it while it restarts", True, _NAMES.restarts_unnamed, _NAMES.keys,
        under=_NAMES.under, needs_root=True,
    ),
    Fault(
        "the clock steps an hour forwards and back", strike=_step("+1h", "+0", "+1h"),
        under=_CLOCK, needs=("faketime",),
    ),
    Fault(
        "the clock steps an hour backwards and on", strike=_step("-1h", "+0", "-1h"),
        under=_CLOCK, needs=("faketime",),
    ),
)  # fmt: skip
