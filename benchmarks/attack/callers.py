"""Callers that send requests at a fixed rate over HTTP and gRPC, during attacks."""

from __future__ import annotations

import contextlib
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks import NotMeasuredError
from benchmarks.ask import Question
from pipeline.proto import pipeline_service_pb2 as pb

_CALLERS = 2  # of each protocol, with a connection each
_EVERY_S = 0.02  # between two requests of a caller, by default
_LIMIT_S = 10.0
_BODY = b'{"key": ["x"], "value": ["1"]}'
_MESSAGE = pb.Request(key=["x"], value=["1"]).SerializeToString()


@dataclass(slots=True)
class Tally:
    """Times of the answers, from when the request was due, and the failures."""

    times_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def p99_ms(self) -> float:
        """Return the 99th percentile. Raises NotMeasuredError if there was no answer."""
        if not self.times_s:
            raise NotMeasuredError(f"no answers: {self.failures[:3]}")
        return sorted(self.times_s)[int(0.99 * (len(self.times_s) - 1))] * 1e3


class Callers:
    """Callers of both ports of a service with TLS; a file has its authority."""

    def __init__(
        self, http_port: int, grpc_port: int, authority: Path, every_s: float = _EVERY_S
    ) -> None:
        self._every_s = every_s
        self._http_port = http_port
        self._grpc_port = grpc_port
        self._authority = authority

    def ask(self, seconds: float) -> dict[str, Tally]:
        """Ask for so long; what became of it, by protocol."""
        tallies = {"HTTP": Tally(), "gRPC": Tally()}
        kinds = {"HTTP": self._over_http, "gRPC": self._over_grpc}
        threads = [
            threading.Thread(target=self._repeat, args=(kinds[name], tallies[name], seconds))
            for name in tallies
            for _ in range(_CALLERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return tallies

    def first(self) -> None:
        """Ask once by each; OSError: it does not answer yet."""
        for kind in (self._over_http, self._over_grpc):
            with kind() as once:
                once()

    def _repeat(self, kind: Callable[[], _Once], tally: Tally, seconds: float) -> None:
        start = time.monotonic()
        number = 0
        while (due := start + number * self._every_s) < start + seconds:
            try:
                with kind() as once:
                    while (due := start + number * self._every_s) < start + seconds:
                        time.sleep(max(0.0, due - time.monotonic()))
                        number += 1
                        once()
                        tally.times_s.append(time.monotonic() - due)
            except (OSError, http.client.HTTPException) as error:
                tally.failures.append(repr(error))

    @contextlib.contextmanager
    def _over_http(self) -> Iterator[Callable[[], None]]:
        tls = ssl.create_default_context(cafile=str(self._authority))
        connection = http.client.HTTPSConnection(
            "localhost", self._http_port, timeout=_LIMIT_S, context=tls
        )

        def once() -> None:
            connection.request("POST", "/echo/prediction", _BODY)
            answer = connection.getresponse()
            if b'"err_no":0' not in answer.read().replace(b" ", b"") or answer.status != 200:
                raise ConnectionError(f"status {answer.status}")

        with contextlib.closing(connection):
            yield once

    @contextlib.contextmanager
    def _over_grpc(self) -> Iterator[Callable[[], None]]:
        credentials = grpc.ssl_channel_credentials(self._authority.read_bytes())
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        address = f"localhost:{self._grpc_port}"
        with grpc.secure_channel(address, credentials, options) as channel:
            call = channel.unary_unary(
                Question.METHOD, response_deserializer=pb.Response.FromString
            )

            def once() -> None:
                try:
                    answer = call(_MESSAGE, timeout=_LIMIT_S)
                except grpc.RpcError as error:
                    raise ConnectionError(f"{error.code()}: {error.details()}") from error
                if answer.err_no:
                    raise ConnectionError(answer.err_msg)

            yield once


_Once = contextlib.AbstractContextManager[Callable[[], None]]
