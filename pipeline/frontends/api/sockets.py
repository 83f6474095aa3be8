"""WebSockets of plain JSON: requests are messages, and answers are sent in parts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from pipeline.errors import OverloadedError, PackageError, PipelineError, UserCodeError
from pipeline.frontends.api.bodies import is_large, object_of, sequence_in
from pipeline.frontends.api.errors import failure_of
from pipeline.frontends.http.routes import HttpError
from pipeline.frontends.http.websocket import BINARY, WebMessage, WebSocket
from pipeline.frontends.parts import PartsReader, answers_to

if TYPE_CHECKING:
    from pipeline.frontends.api.routes import ApiEndpoint

_LOGGER = logging.getLogger(__name__)

_MOST_AT_ONCE = 128  # active requests of one connection
_MOST_READ = 2 * _MOST_AT_ONCE  # with waiting requests, so that a cancel after them is read
_KEY = "data"
_JSON = b"application/json"


class SocketRequests:
    """The requests of one WebSocket.

    A message of the client is one of: `{"data": fields}`, which begins a request; bytes, which are
    the field `data`, or the one that `key` in the query names; `{"credit": n}`; `{"cancel":
    number}`. Requests are numbered from 0. Each part of an answer is `{"request": number, "data":
    fields}`, and the answer ends with `{"request": number, "end": true}` or `{"request": number,
    "error": ...}`.

    Raises HttpError: the query is invalid.
    """

    def __init__(self, endpoint: ApiEndpoint, query: str) -> None:
        parameters = dict(parse_qsl(query))
        credit = parameters.get("credit")
        if credit is not None and not (credit.isascii() and credit.isdigit()):
            raise HttpError(400, PackageError(f"credit has to be a number, not {credit[:20]!r}"))
        self._endpoint = endpoint
        self._key = parameters.get("key", _KEY)
        self._sequence: Mapping[str, Any] = sequence_in(query)
        self._credit = None if credit is None else int(credit[:9])
        self._credited = asyncio.Event()
        self._numbers = itertools.count()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def run(self, socket: WebSocket) -> None:
        """Answer requests until the client disconnects or the server stops."""
        try:
            while (message := await socket.receive()) is not None:
                await self._begin(message, socket)
                del message  # free its data while this waits
            if socket.is_last and self._tasks:
                await self._finish(socket)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _finish(self, socket: WebSocket) -> None:
        """Wait for the active requests; credits and cancels of the client still count."""
        orders = asyncio.create_task(self._take_orders(socket))
        try:
            await asyncio.wait(self._tasks.values())
        finally:
            orders.cancel()

    async def _take_orders(self, socket: WebSocket) -> None:
        while (message := await socket.receive(is_stopping=True)) is not None:
            with contextlib.suppress(PipelineError):
                if message.kind != BINARY:
                    self._is_order(await self._content(message.data))

    async def _begin(self, message: WebMessage, socket: WebSocket) -> None:
        try:
            if message.kind == BINARY:
                fields, is_text = {self._key: message.data}, True
            else:
                content = await self._content(message.data)
                if self._is_order(content):
                    return
                fields, is_text = content[_KEY], False
        except PipelineError as error:
            await self._fail(socket, next(self._numbers), error)
            return
        if self._sequence:
            fields = {**self._sequence, **fields}
            self._sequence = {**self._sequence, "sequence_start": False}
        while self._credit is None and len(self._tasks) >= _MOST_READ:
            await asyncio.wait(self._tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        number = next(self._numbers)
        if self._credit is not None and len(self._tasks) >= _MOST_AT_ONCE:
            # They may wait for credit, which follows this request.
            text = f"{_MOST_AT_ONCE} requests of this connection are under way: wait for one to end"
            await self._fail(socket, number, OverloadedError(text))
            return
        task = asyncio.create_task(self._run(socket, number, fields, is_text))
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _content(self, text: bytes) -> dict[str, Any]:
        """Return the content of a message. Raises PackageError."""
        read = partial(object_of, text, _JSON, self._endpoint.limits)
        content = (await self._endpoint.offload.run(read))[0] if is_large(text) else read()
        if len(content) != 1 or not (
            isinstance(content.get(_KEY), dict)
            or self._number(content, "credit", "cancel") is not None
        ):
            raise PackageError(
                'a message is {"data": {...}}, {"credit": number} or {"cancel": number}'
            )
        return content

    def _is_order(self, content: Mapping[str, Any]) -> bool:
        """Handle a message that begins no request; return whether it was one."""
        if (credit := self._number(content, "credit")) is not None:
            if self._credit is not None:
                self._credit += credit
                self._credited.set()
            return True
        if (number := self._number(content, "cancel")) is not None:
            if number in self._tasks:
                self._tasks[number].cancel()
            return True
        return False

    def _number(self, content: Mapping[str, Any], *names: str) -> int | None:
        value = next((content[name] for name in names if name in content), None)
        return value if type(value) is int and value >= 0 else None

    async def _run(
        self, socket: WebSocket, number: int, fields: dict[str, Any], is_text: bool
    ) -> None:
        """Answer a request when it is its turn, also with an error."""
        try:
            async with self._turns:
                await self._answer(socket, number, fields, is_text)
        except (PipelineError, HttpError) as error:
            await self._fail(socket, number, error)
        except Exception:  # a bug in this library: the client gets an error
            _LOGGER.exception("request %d of a WebSocket failed", number)
            await self._fail(socket, number, UserCodeError("internal error of the server"))

    async def _answer(
        self, socket: WebSocket, number: int, fields: dict[str, Any], is_text: bool
    ) -> None:
        """Answer a request in parts, as fast as the client takes them."""
        served, (raw, target) = self._endpoint.asked(fields, is_text)
        reader, left_s = PartsReader(), self._endpoint.left_s
        parts = answers_to(served.engine.begin, raw, left_s, target, reader)
        async with aclosing(parts):
            async for answer, _ in parts:
                body = await self._endpoint.part(answer, reader.failure)
                await self._spend()
                await socket.send(b'{"request":%d,"data":%b}' % (number, body))
        await socket.send(b'{"request":%d,"end":true}' % number)

    async def _spend(self) -> None:
        """Wait for the client's credit for another part, if it uses credit."""
        if self._credit is None:
            return
        while not self._credit:
            self._credited.clear()
            await self._credited.wait()
        self._credit -= 1

    async def _fail(self, socket: WebSocket, number: int, error: PipelineError | HttpError) -> None:
        await socket.send(b'{"request":%d,%b' % (number, failure_of(error).body[1:]))
