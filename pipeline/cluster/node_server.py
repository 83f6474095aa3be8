"""NodeServer: a server as a child of a process on its node, kept running there."""

from __future__ import annotations

import http.client
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from pipeline.cluster.bundle import ScriptBundle, unpacked
from pipeline.cluster.plan import ReplicaPhase
from pipeline.errors import InitError, PipelineError
from pipeline.frontends.listen import address_of
from pipeline.system.temp_dir import TempDir
from pipeline.workers.restart_policy import KILLED_S, restart_pause_s, signal_name

_LOGGER = logging.getLogger(__name__)

_READY_LINE = re.compile(r"is ready: (?:gRPC on port (\d+))?(?:, )?(?:HTTP on port (\d+))?")
_PROBE_TIMEOUT_S = 2.0
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not by http_proxy
_LAST_LINES = 20
_OURS = {"PIPELINE__RPC_PORT": "0", "PIPELINE__HTTP_PORT": "0", "PIPELINE__REUSE_PORT": "false"}


class ReplicaReport(NamedTuple):
    """View of a replica, see `plan.FleetReplica`."""

    phase: ReplicaPhase
    address: str
    detail: str = ""


class NodeServer:
    """A script's server, which is started again when it ends, but for one that never was ready.

    It takes any free ports, which its line `... is ready` tells. It ends when this process does,
    however that happens.

    Args:
        host: address of this node, at which it listens.
        environment: further variables.
    """

    def __init__(self, bundle: ScriptBundle, host: str, environment: Mapping[str, str]) -> None:
        self._host = host
        self._environment = {**environment, **_OURS, "PIPELINE__HOST": host}
        self._folder = TempDir("replicas")
        self._script = unpacked(bundle, self._folder.make())
        self._lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._ports: tuple[str, str] | None = None
        self._was_ready = False
        self._failure = ""
        self._child: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        # The system ends the child with the thread that has started it: one thread does it all.
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)

    def start(self) -> None:
        """Start it; `look` says what becomes of it."""
        self._keeper.start()

    def look(self) -> ReplicaReport:
        """Return what it is now. Asks the server whether it is ready; from any thread."""
        if self._failure:
            return ReplicaReport(ReplicaPhase.FAILED, "", self._failure)
        ports = self._ports
        if ports is None:
            phase = ReplicaPhase.UNREADY if self._was_ready else ReplicaPhase.STARTING
            return ReplicaReport(phase, "", self._lines[-1] if self._lines else "")
        rpc_port, http_port = ports
        address = f"{address_of(self._host, int(rpc_port))}/{http_port}"
        url = f"http://{address_of(self._host, int(http_port))}/health/ready"
        try:
            with DIRECT.open(url, timeout=_PROBE_TIMEOUT_S):
                return ReplicaReport(ReplicaPhase.READY, address)
        except (OSError, http.client.HTTPException) as error:
            return ReplicaReport(ReplicaPhase.UNREADY, address, f"not ready: {error}")

    def stop(self, grace_s: float) -> None:
        """Have it answer what it has, for so long, and end it."""
        self._stopping.set()
        child = self._child
        if child is not None:
            child.send_signal(signal.SIGTERM)
            self._keeper.join(grace_s)
            if self._keeper.is_alive():
                child.kill()
        self._keeper.join(KILLED_S)
        self._folder.remove()

    def _keep(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._ports = None
            try:
                how = self._run()
            except (OSError, PipelineError) as error:
                self._failure = f"it could not be started: {error}"
                return
            if self._stopping.is_set():
                return
            if not self._was_ready:
                self._failure = "\n".join([f"the server {how}", *self._lines])
                return
            failures = 1 if self._ports is not None else failures + 1
            pause_s = restart_pause_s(failures)
            _LOGGER.error("the server %s; it is started again in %.1f s", how, pause_s)
            self._stopping.wait(pause_s)

    def _run(self) -> str:
        """Run it to its end; return how that was."""
        self._child = child = subprocess.Popen(
            [sys.executable, "-m", "pipeline.cluster.leashed", self._script.name],
            cwd=self._script.parent,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if self._stopping.is_set():  # it did not see the child
            child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        try:
            with child.stdout as output:
                for line in output:
                    self._take_line(line.rstrip("\n"))
        except BaseException:
            child.kill()
            raise
        finally:
            code = child.wait()
        return f"ended with status {code}" if code >= 0 else f"was killed by {signal_name(-code)}"

    def _take_line(self, line: str) -> None:
        self._lines.append(line)
        sys.stderr.write(f"{line}\n")
        match = _READY_LINE.search(line)
        if match is None or self._ports is not None:
            return
        rpc_port, http_port = match.groups()
        if rpc_port is None or http_port is None:
            raise InitError("the server has to have both ports, gRPC and HTTP")
        self._ports = rpc_port, http_port
        self._was_ready = True
