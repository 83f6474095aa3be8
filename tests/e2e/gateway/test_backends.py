"""Several servers, each a process, behind one gateway whose list of them changes."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from conformance_gateway import Gateway, gateway_before
from doubles import wait_until
from other_user import AS_ROOT, NOBODY, listens
from served import PATIENCE_S, Served, unique

CALLERS = 8
SCRIPT = """
import os
import sys
from pathlib import Path

from pipeline import Op, PipelineServer, RequestOp, ResponseOp


class Who(Op):
    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"pid": str(os.getpid())}, None, ""


server = PipelineServer("svc")
server.set_response_op(ResponseOp([Who("who", [RequestOp()], concurrency=2)]))
server.prepare_server(f"{sys.argv[1]}/config.yml")
server.run_server()
"""


@contextlib.contextmanager
def served(folder: Path, count: int) -> Iterator[list[Served]]:
    """So many servers that are ready."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(count):
            own = folder / next(unique)
            own.mkdir()
            servers.append(stack.enter_context(contextlib.closing(Served(own, SCRIPT, {}))))
        yield [server.wait_until_ready() for server in servers]


def address_of(server: Served) -> str:
    return f"127.0.0.1:{server.rpc_port}/{server.http_port}"


def put(path: Path, servers: list[Served]) -> None:
    """Write a list of backends as it is to be written: at once."""
    new = path.with_suffix(".new")
    new.write_text("".join(f"{address_of(server)}\n" for server in servers))
    new.rename(path)


class Load:
    """Callers that send one request after the other until `stop`.

    Attributes:
        answers: how often each process has answered.
        failures: what else came.
    """

    def __init__(self, gateway: Gateway, **headers: str) -> None:
        self._headers = headers
        self.answers: Counter[str] = Counter()
        self.failures: list[str] = []
        self._port = gateway.port
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._callers = ThreadPoolExecutor(CALLERS)

    def __enter__(self) -> Self:
        self._asking = [self._callers.submit(self._ask) for _ in range(CALLERS)]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._callers.shutdown()

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            while not self._is_over.is_set():
                body = '{"key":["a"],"value":["1"]}'
                connection.request("POST", "/svc/prediction", body, self._headers)
                answer = connection.getresponse()
                self._note(answer.status, answer.read())

    def _note(self, status: int, body: bytes) -> None:
        document = json.loads(body)
        with self._lock:
            if status == 200 and document["err_no"] == 0:
                self.answers[dict(zip(document["key"], document["value"], strict=True))["pid"]] += 1
            else:
                self.failures.append(f"{status} {document}")

    def wait_for(self, *servers: Served) -> None:
        """Wait until each of these has answered from now on."""
        with self._lock:
            before = self.answers.copy()
        pids = [str(server.process.pid) for server in servers]
        wait_until(lambda: self.failures or all(self.answers[pid] > before[pid] for pid in pids))


def test_servers_are_added_and_removed_under_load_without_a_failed_request(
    tmp_path, gateway_binary
):
    listed = tmp_path / "backends"
    with served(tmp_path, 3) as (first, second, third):
        put(listed, [first, second])
        flags = ("--backends-file", str(listed))
        with gateway_before(gateway_binary, flags=flags) as gateway:
            gateway.wait_until_ready(2)
            with Load(gateway) as load:
                load.wait_for(first, second)
                assert not load.answers[str(third.process.pid)]
                put(listed, [first, second, third])
                load.wait_for(third)
                put(listed, [second, third])
                wait_until(lambda: f"{address_of(first)} is let go" in gateway.said)
                os.kill(first.process.pid, signal.SIGTERM)
                assert first.ends() == 0
                load.wait_for(second, third)
            assert load.failures == []
            assert len(load.answers) == 3


def test_a_server_that_stops_under_load_fails_no_request(tmp_path, gateway_binary):
    with (
        served(tmp_path, 2) as (first, second),
        gateway_before(gateway_binary, *map(address_of, (first, second))) as gateway,
    ):
        gateway.wait_until_ready(2)
        with Load(gateway) as load:
            load.wait_for(first, second)
            os.kill(first.process.pid, signal.SIGTERM)
            assert first.ends() == 0
            load.wait_for(second)
        assert load.failures == []


def test_a_killed_server_fails_only_unsafe_requests_that_it_had(tmp_path, gateway_binary):
    with served(tmp_path, 3) as servers:
        first, second, third = servers
        with gateway_before(gateway_binary, *map(address_of, servers)) as gateway:
            gateway.wait_until_ready(3)
            with Load(gateway, **{"Pipeline-Idempotent": "1"}) as load:
                load.wait_for(*servers)
                os.kill(first.process.pid, signal.SIGKILL)
                first.ends()
                load.wait_for(second, third)
            assert load.failures == []
            with Load(gateway) as load:
                load.wait_for(second, third)
                os.kill(second.process.pid, signal.SIGKILL)
                second.ends()
                load.wait_for(third)
            assert len(load.failures) <= CALLERS, load.failures
            assert all(failure.startswith("503 ") for failure in load.failures), load.failures


def test_a_server_that_hangs_gets_no_more_requests(tmp_path, gateway_binary):
    with served(tmp_path, 2) as (first, second):
        flags = ("--health-interval", "50ms", "--health-timeout", "1s")
        backends = map(address_of, (first, second))
        with gateway_before(gateway_binary, *backends, flags=flags) as gateway:
            gateway.wait_until_ready(2)
            os.kill(first.process.pid, signal.SIGSTOP)
            wait_until(lambda: "it has not answered 3 checks" in gateway.said)
            with Load(gateway) as load:
                load.wait_for(second)
            assert load.failures == []
            os.kill(first.process.pid, signal.SIGCONT)
            gateway.wait_until_ready(2)


@AS_ROOT
def test_a_server_of_another_user_receives_nothing(gateway_binary):
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        with (
            listens(folder / "0.link") as other,
            gateway_before(gateway_binary, f"link:{folder}/0.link") as gateway,
        ):
            wait_until(lambda: f"is of user {NOBODY}, and this gateway of 0" in gateway.said)
            assert gateway.status_of("/health/ready") == 503
            other.communicate("")
