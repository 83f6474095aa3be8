"""LoggedConnection: an HttpConnection that writes its requests to the access log.

Without a log this class is not used, so that the log costs nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pipeline.engine.request import RequestHandle, ResponseSink
from pipeline.errors import PipelineError
from pipeline.frontends.access_log import AccessLog, Entry, path_of
from pipeline.frontends.http.connection import HttpConnection
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.reader import END
from pipeline.frontends.http.routes import (
    LaneEndpoint,
    LaneReply,
    WebResponse,
    with_head,
)
from pipeline.frontends.listen import address_of
from pipeline.tracing.context import HEADER

if TYPE_CHECKING:
    from pipeline.frontends.http.listener import HttpListener

_CALLER_LEFT = 499  # status of a request whose client did not wait for the answer
_TRACE = re.compile(rb"\r\n%b:([^\r\n]*)" % HEADER.encode(), re.IGNORECASE)


class LoggedConnection(HttpConnection):
    """A connection that writes its requests to a log."""

    __slots__ = ("_access", "_address", "_began", "_lane_head")

    def __init__(self, access: AccessLog, listener: HttpListener) -> None:
        super().__init__(listener)
        self._access = access
        self._lane_head = b""  # the head of a request in the lane
        self._began = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        self._address = address_of(*name[:2]) if isinstance(name, tuple) else ""

    def connection_lost(self, exc: Exception | None) -> None:
        is_asked, exchange = self.endpoint is not None, self._exchange
        super().connection_lost(exc)
        if exchange is not None:
            self._write_exchange(exchange)
        elif is_asked:
            self._write_lane(_CALLER_LEFT, 0)

    def _take(self) -> None:
        self._began = self._loop.time()
        self._lane_head = self._data[self._at : self._data.find(END, self._at)]
        super()._take()

    def end(self, answer: Any) -> None:
        assert self.endpoint is not None, "a request ends once"
        head, noting = self._head, _NotingEndpoint(self.endpoint)
        self.endpoint: LaneEndpoint | None = noting
        super().end(answer)
        reply = noting.given
        if isinstance(reply, bytes | WebResponse):
            sent = with_head(reply, head)
            self._write_lane(sent.status, sent.size)

    def ended(self, exchange: Exchange) -> None:
        current = self._exchange
        super().ended(exchange)
        if current is exchange:
            self._write_exchange(current)

    def _write_lane(self, status: int, sent_bytes: int) -> None:
        trace = _TRACE.search(self._lane_head)
        self._write(
            self._lane_head.partition(b"\r\n")[0].decode("latin-1"),
            *(status, sent_bytes, trace[1] if trace else b""),
        )

    def _write_exchange(self, exchange: Exchange) -> None:
        if not exchange.method:  # from the lane
            self._write_lane(exchange.status or _CALLER_LEFT, exchange.sent_bytes)
            return
        version = "1.0" if exchange.is_old else "1.1"
        self._write(
            f"{exchange.method} {exchange.raw_path} HTTP/{version}",
            *(exchange.status or _CALLER_LEFT, exchange.sent_bytes),
            exchange.said.get(HEADER.encode(), b""),
        )

    def _write(self, line: str, status: int, sent_bytes: int, trace: bytes) -> None:
        method, _, rest = line.partition(" ")
        target, _, version = rest.rpartition(" ")
        entry = Entry(
            self._address, f"{method} {path_of(target)} {version}", str(status), sent_bytes,
            self._loop.time() - self._began, trace.decode("latin-1"),
        )  # fmt: skip
        self._access.write(entry)


class _NotingEndpoint:
    """An endpoint of one request that records the reply."""

    def __init__(self, endpoint: LaneEndpoint) -> None:
        self._endpoint = endpoint
        self.takes_large: bool = endpoint.takes_large
        self.given: LaneReply = WebResponse(500)

    def begin(self, body: Any, sink: ResponseSink) -> RequestHandle:
        return self._endpoint.begin(body, sink)

    def reply(self, answer: Any, failure: PipelineError | None) -> LaneReply:
        self.given = self._endpoint.reply(answer, failure)
        return self.given
