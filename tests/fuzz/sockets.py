"""`python -m fuzz.sockets`: the cases of `fuzz.streams` on real servers, asked by WebSockets.

Each connection carries several requests, with or without credit. Callers read parts at once or
slowly, cancel, close the connection in the middle, and send messages that are not requests.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from types import SimpleNamespace
from typing import Any

from raw_ws import KEY, masked

from fuzz.campaign import campaign, parser_of
from fuzz.stream_cases import Case
from fuzz.streams import Caller, compared, left_over
from fuzz.streams_real import real_case, until
from pipeline import PipelineServer, ResponseOp

_BROKEN = (b"{", b"[1]", b'{"data": 5}', b'{"credit": -1}', b'{"data": {}, "cancel": 0}')
_MOST_AT_ONCE = 4  # connections of a case


class Connection:
    """A WebSocket, and the callers that share it.

    Attributes:
        wrong: the defects that it found.
    """

    def __init__(self, rng: random.Random) -> None:
        self.credit = rng.choice([None, 0, 1, 3, 20])
        self.timeout_s = rng.choice([None, None, None, rng.random() * 0.2])
        self.hangs_up_s = rng.choice([None, None, None, None, rng.random() * 0.3])
        self.says_close = rng.random() < 0.5
        self.rng = rng
        self.wrong: list[str] = []
        self.callers: list[Caller] = []
        self._by_number: dict[int, Caller | None] = {}  # None: of a message that is not a request
        self._cancelled: dict[int, int] = {}  # with the first number that was sent later
        self._room = self.credit or 0
        self._silent: set[int] = set()  # the server has taken their cancel
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter
        self._reading: asyncio.Task[None] | None = None

    async def open(self, port: int) -> None:
        """Connect, and schedule the requests of the callers."""
        loop = asyncio.get_running_loop()
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        query = "" if self.credit is None else f"?credit={self.credit}"
        limit = "" if self.timeout_s is None else f"grpc-timeout: {self.timeout_s * 1e6:.0f}u\r\n"
        self._writer.write(
            f"GET /api/fuzz/ws{query} HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\n"
            f"connection: upgrade\r\nsec-websocket-key: {KEY}\r\nsec-websocket-version: 13\r\n"
            f"{limit}\r\n".encode()
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head, head
        self._reading = asyncio.create_task(self._read())
        for caller in self.callers:
            loop.call_later(caller.begins_s, self._begin, caller)
        if self.hangs_up_s is not None:
            loop.call_later(self.hangs_up_s, self.hang_up)

    def _say(self, text: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(masked(1, text, mask=self.rng.randbytes(4)))

    def _begin(self, caller: Caller) -> None:
        if self._writer.is_closing():
            caller.has_left = True
            return
        if self.rng.random() < 0.1:
            self._say_nonsense()
        number = len(self._by_number)
        self._by_number[number] = caller
        self._say(json.dumps({"data": {"text": caller.text}}).encode())
        if caller.leaves_s is not None:
            asyncio.get_running_loop().call_later(caller.leaves_s, self._leave, number, caller)

    def _say_nonsense(self) -> None:
        self._by_number[len(self._by_number)] = None
        self._say(self.rng.choice(_BROKEN))

    def _leave(self, number: int, caller: Caller) -> None:
        if caller.is_open:
            caller.has_left = True
            self._cancelled[number] = len(self._by_number)
            self._say(b'{"cancel": %d}' % number)
            self._say_nonsense()  # its answer shows that the server has taken the cancel

    def _give(self, count: int) -> None:
        """Give credit, as long as a caller waits for something."""
        if self.credit is not None and any(caller.is_open for caller in self.callers):
            self._room += count
            self._say(b'{"credit": %d}' % count)

    async def _read(self) -> None:
        if self.credit == 0:
            self._give(2)
        while (frame := await self._frame()) is not None:
            kind, data = frame
            if kind == 1:
                self._take(json.loads(data))
            elif kind == 8:
                break
        for caller in self.callers:
            caller.has_left |= caller.is_open and self.hangs_up_s is not None

    async def _frame(self) -> tuple[int, bytes] | None:
        try:
            first, size = await self._reader.readexactly(2)
            if size > 125:
                size = int.from_bytes(await self._reader.readexactly(2 if size == 126 else 8))
            return first & 15, await self._reader.readexactly(size)
        except (OSError, asyncio.IncompleteReadError):
            return None

    def _take(self, message: dict[str, Any]) -> None:
        number = message["request"]
        if number in self._silent:
            self.wrong.append(f"{message} after an answer to a request that followed its cancel")
        self._silent |= {one for one, later in self._cancelled.items() if number >= later}
        if number not in self._by_number:
            self.wrong.append(f"an answer to a request that was not sent: {message}")
            return
        caller = self._by_number[number]
        if caller is None:
            if message.get("error", {}).get("name") != "RPC_PACKAGE_ERROR":
                self.wrong.append(f"a message that is not a request was answered with {message}")
            return
        if "data" in message:
            self._take_part(caller, message["data"]["text"])
        elif not caller.has_left:
            if caller.last != "nothing":
                self.wrong.append(f"{caller.text}: two ends")
            error = message.get("error")
            caller.last = error and SimpleNamespace(err_no=error["code"], value=[], said=error)

    def _take_part(self, caller: Caller, text: str) -> None:
        if self.credit is not None:
            self._room -= 1
            if self._room < 0:
                self.wrong.append(f"{caller.text}: more parts than there is credit for")
        if not caller.has_left and not caller.is_open:
            self.wrong.append(f"{caller.text}: a part after the end")
        caller.parts.append(text)
        if caller.kind == "slow":
            asyncio.get_running_loop().call_later(caller.pause_s, self._give, 1)
        else:
            self._give(1)

    def hang_up(self) -> None:
        """Close the connection, with or without a close frame."""
        self.hangs_up_s = 0.0
        for caller in self.callers:
            caller.has_left |= caller.is_open
        if self.says_close and not self._writer.is_closing():
            self._writer.write(masked(8, (1000).to_bytes(2)))
            return
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the connection, and wait until the server has closed it."""
        self.hang_up()
        if self._reading is not None:
            await self._reading
        self._writer.close()


def run(seed: int) -> list[str]:
    """Run a case; return its findings."""
    rng = random.Random(seed)
    case, callers, config = real_case(rng)
    connections = [Connection(rng) for _ in range(rng.randint(1, _MOST_AT_ONCE))]
    for caller in callers:
        caller.op = None
        connection = rng.choice(connections)
        connection.callers.append(caller)
        caller.kind = "quick" if caller.kind == "one" else caller.kind
        caller.timeout_s = connection.timeout_s
    try:
        return asyncio.run(_run(case, callers, connections, config))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        case.open.close()


async def _run(
    case: Case, callers: list[Caller], connections: list[Connection], config: dict[str, Any]
) -> list[str]:
    wrong: list[str] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: wrong.append(f"on the loop: {context}")
    )
    server = PipelineServer("fuzz")
    server.set_response_op(ResponseOp([case.last]))
    server.prepare_server(yml_dict={"rpc_port": 0, "http_port": 0, "host": "127.0.0.1", **config})
    async with server:
        for connection in connections:
            await connection.open(server.http_port or 0)
        await until(lambda: not any(caller.is_open for caller in callers))
        for caller in callers:
            wrong += compared(case, caller)

        def left() -> list[str]:
            found = left_over(server.executor)
            if not case.is_crashing and case.open.count():
                found.append(f"{case.open.count()} generators are open")
            return found

        await until(lambda: not left())  # while the connections are open
        wrong += left()
        await asyncio.gather(*(connection.close() for connection in connections))
    for connection in connections:
        wrong += connection.wrong
    return wrong


def main() -> int:
    parser = parser_of("sockets", __doc__)
    return campaign(parser.prog, parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
