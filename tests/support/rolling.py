"""Callers that ask all the time on connections that they keep, while servers come and go."""

from __future__ import annotations

import http.client
import json
import select
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Self

import grpc
from served import PATIENCE_S

from pipeline.proto import pipeline_service_pb2 as pb
from pipeline.proto import pipeline_service_pb2_grpc as stubs

_PAUSE_S = 0.005  # so that servers that start meanwhile also get the processor

SERVICE = """
from pathlib import Path
from pipeline import Op, PipelineServer, RequestOp, ResponseOp

RELEASE = "{release}"

class Say(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {{"release": RELEASE}}

server = PipelineServer("rolling")
server.set_response_op(ResponseOp(Say("say", RequestOp())))
server.prepare_server(str(Path(__file__).with_name("config.yml")))
server.run_server()
"""
"""A script whose answers have the release that it is of."""


class Load:
    """Callers over HTTP and gRPC, each on a thread, whose every request is to be answered.

    Attributes:
        answers: how often each release has answered, over HTTP and over gRPC.
        failures: what went wrong; nothing is tried a second time.
    """

    def __init__(self, rpc_port: int, http_port: int, callers: int = 2) -> None:
        self.answers = {"http": Counter[str](), "grpc": Counter[str]()}
        self.failures: list[str] = []
        self._over = threading.Event()
        works = (lambda: self._http(http_port), lambda: self._grpc(rpc_port))
        self._threads = [threading.Thread(target=work) for work in works * callers]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def wait_for(self, release: str) -> None:
        """Wait until a release answers over HTTP and gRPC."""
        self._wait(lambda: all(counts[release] for counts in self.answers.values()))

    def wait_for_only(self, release: str, answers: int = 20) -> None:
        """Wait until nobody else answers any more."""

        def none_else() -> bool:
            before = {kind: counts.copy() for kind, counts in self.answers.items()}
            self._wait(
                lambda: all(
                    counts.total() >= before[kind].total() + answers
                    for kind, counts in self.answers.items()
                )
            )
            news = [counts - before[kind] for kind, counts in self.answers.items()]
            return all(set(new) == {release} for new in news)

        self._wait(none_else)

    def _wait(self, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not condition():
            assert not self.failures, self.failures
            assert time.monotonic() < ends, f"the awaited answers never came: {self.answers}"
            time.sleep(0.01)

    def _repeat(self, kind: str, ask: Callable[[], str]) -> None:
        while not self._over.is_set():
            try:
                self.answers[kind][ask()] += 1
                self._over.wait(_PAUSE_S)
            except Exception as error:
                self.failures.append(f"{kind}: {type(error).__name__}: {error}")
                return

    def _http(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        body = json.dumps({"key": ["x"], "value": ["y"]})

        def ask() -> str:
            if connection.sock is not None and select.select([connection.sock], [], [], 0)[0]:
                connection.close()  # it was closed while nothing was asked on it
            connection.request("POST", "/rolling/prediction", body)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return _release_in(answer["err_no"], answer["key"], answer["value"])

        self._repeat("http", ask)
        connection.close()

    def _grpc(self, port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = stubs.PipelineServiceStub(channel)
            request = pb.Request(key=["x"], value=["y"], name="rolling", method="prediction")

            def ask() -> str:
                answer = stub.inference(request, timeout=PATIENCE_S)
                return _release_in(answer.err_no, answer.key, answer.value)

            self._repeat("grpc", ask)


def _release_in(err_no: int, keys: Any, values: Any) -> str:
    if err_no:
        raise RuntimeError(f"error {err_no}")
    return str(dict(zip(keys, values, strict=True))["release"])
