"""AheadProtocol: requests sent ahead of their answers stay bytes until it is their turn."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_AT_ONCE_BYTES = 8192  # that are parsed in one go: of the shortest requests there are 450


class AheadProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which parses no more while requests wait behind the one that is served.

    It would make an object of each, thousands of them of one packet, and read on with each answer.
    """

    _ahead = b""  # what came behind the requests that were parsed; never without one that waits

    def data_received(self, data: bytes) -> None:
        if self.pipeline:
            self._keep(self._ahead + data)
        else:
            self._parse(data)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._ahead or self.transport.is_closing():
            return
        if self.pipeline:
            self.flow.pause_reading()  # uvicorn would read on
        else:
            data, self._ahead = self._ahead, b""
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        for at in range(0, len(data), _AT_ONCE_BYTES):
            if self.pipeline:
                self._keep(data[at:])
                return
            self.take(data[at : at + _AT_ONCE_BYTES])

    def _keep(self, data: bytes) -> None:
        self._ahead = data
        self.flow.pause_reading()

    def take(self, data: bytes) -> None:
        """Parse some bytes."""
        super().data_received(data)
