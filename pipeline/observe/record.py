"""Record: the filter `record`, which writes requests to a file that `analyse --serve` replays."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated, Any

import msgspec
import orjson
from google.protobuf.json_format import MessageToDict

from pipeline.engine.filters import Filter
from pipeline.engine.request import RequestState

_LOGGER = logging.getLogger(__name__)

_MOST_WAITING = 1000  # requests that wait for the disk; further ones are left out


class RecordOptions(msgspec.Struct, frozen=True):
    """Keys below `filters.record`."""

    file: Annotated[str, "File to which one line per request is appended."] = "load.jsonl"
    most: Annotated[int, "Maximum number of requests that each process writes."] = 10_000
    service: Annotated[
        str, "Name of the service, for requests that do not contain it, such as those by gRPC."
    ] = ""


class Record(Filter):
    """Writes requests of the pipeline's own protocol as JSON, one per line.

    The event loop only keeps them; a thread writes them.
    """

    Options = RecordOptions

    def __init__(self, options: RecordOptions | None = None) -> None:
        super().__init__(options)
        self._options = options or RecordOptions()
        self._left = self._options.most
        self._waiting: list[tuple[Any, int]] = []
        self._is_writing = False

    def on_request(self, request: RequestState) -> None:
        """Record a request, unless it is a v2 request to a single model."""
        raw, target = request.raw, request.target
        is_own = target is None or target.payload is None
        if self._left <= 0 or not is_own or not (getattr(raw, "name", "") or self._options.service):
            return
        if len(self._waiting) < _MOST_WAITING:
            self._left -= 1
            at_once = request.engine.inside + request.engine.waiting + 1
            self._waiting.append((raw, at_once))
        if not self._is_writing:
            self._write_soon()

    def _write_soon(self) -> None:
        self._is_writing = True
        requests, self._waiting = self._waiting, []
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, self._write, requests).add_done_callback(self._written)

    def _written(self, done: asyncio.Future[None]) -> None:
        self._is_writing = False
        if not done.cancelled() and (error := done.exception()) is not None:
            self._left = 0  # logged once
            _LOGGER.error("filters.record: nothing more is recorded: %s", error)
        elif self._waiting:
            self._write_soon()

    def _write(self, requests: list[tuple[Any, int]]) -> None:
        lines = b"".join(_line(raw, self._options.service, at_once) for raw, at_once in requests)
        with Path(self._options.file).open("ab") as file:
            file.write(lines)


def _line(raw: Any, service: str, at_once: int) -> bytes:
    body = MessageToDict(raw, preserving_proto_field_name=True)
    path = f"/{body.pop('name', service)}/{body.pop('method', 'prediction')}"
    for name in ("logid", "clientip"):
        body.pop(name, None)
    return orjson.dumps({"path": path, "body": body, "at_once": at_once}) + b"\n"
