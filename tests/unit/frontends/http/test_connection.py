"""Connections, with a listener and a transport that are played."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from doubles import run_virtual
from fake_transport import FakeTransport

from pipeline.answer_head import AnswerHead, head_of
from pipeline.engine.run.payload import MemoryDomain
from pipeline.errors import ERROR_STATUSES, OverloadedError, ProductError
from pipeline.frontends.http.connection import HttpConnection
from pipeline.frontends.http.exchange import Exchange
from pipeline.frontends.http.heads import HeadMemory
from pipeline.frontends.http.routes import (
    HandOverError,
    Header,
    HttpError,
    WebRequest,
    WebResponse,
)


class Handle:
    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Memory(MemoryDomain):
    """Heap memory; what was given out is looked at, and kept by nobody."""

    def __init__(self) -> None:
        self.placed: list[weakref.ref[Any]] = []
        self.is_full = False

    def place(self, size: int, aligned_at: int = 0) -> Any:
        if self.is_full:
            raise OverloadedError("there is no memory left")
        result = super().place(size, aligned_at)
        self.placed.append(weakref.ref(result))
        return result


class Place:
    """All of what a connection stands in: listener, service and endpoint in one."""

    read_timeout_s = 60.0
    keep_alive_s = 75.0
    ok_head = b"OK "
    takes_large = True

    def __init__(self) -> None:
        self.connections: dict[Any, None] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.heads = HeadMemory([self], most_large_bytes=2**24)
        self.memory = Memory()
        self.hands_over = False
        self.is_draining = False
        self.lost = asyncio.Event()
        self.begun: list[bytes] = []
        self.sinks: list[Any] = []
        self.failures: list[Any] = []
        self.handles: list[Handle] = []
        self.at_once: Callable[[bytes], Any] | None = None
        self.exchanges: list[Exchange] = []

    def connect(self) -> FakeTransport:
        return FakeTransport(HttpConnection(self))  # type: ignore[arg-type]

    # A listener

    async def app(self, exchange: Exchange) -> None:
        """Answer what is not for the lane with what it is."""
        exchange.task = asyncio.current_task()
        self.exchanges.append(exchange)
        if exchange.given is not None:
            await exchange.answer(await exchange.given)
            return
        body = b""
        try:
            while piece := await exchange.next_piece():
                body += piece
        except HttpError as error:
            await exchange.answer(WebResponse(error.status, b""))
        else:
            said = f"{exchange.method} {exchange.path} ".encode()
            await exchange.answer(WebResponse(203, said + body))

    def head(self, reply: WebResponse, is_last: bool, *more: Header) -> bytes:
        return b"%d%b " % (reply.status, b" last" if is_last else b"")

    def answer(self, reply: WebResponse, is_last: bool) -> bytes:
        return b"%d%b %b;" % (reply.status, b" last" if is_last else b"", reply.body)

    # A service, and its endpoint

    def in_line(self, request: WebRequest) -> Any:
        return self

    def begin(self, body: bytes, sink: Any) -> Handle:
        if body == b"odd" or (self.hands_over and len(body) == SIZE):
            raise HandOverError
        if body == b"bug":
            raise ValueError("a bug")
        self.begun.append(body)
        self.sinks.append(sink)
        self.handles.append(Handle())
        if self.at_once is not None:
            sink.end(self.at_once(body))
        return self.handles[-1]

    def reply(self, answer: Any, failure: Any) -> Any:
        self.failures.append(failure)
        if isinstance(answer, Exception):
            raise answer
        return answer


def post(body: bytes) -> bytes:
    return b"POST /s/m HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def on_a_virtual_clock(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    return lambda: run_virtual(test())


async def rounds(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@on_a_virtual_clock
async def test_a_request_is_answered_with_one_write_before_the_next():
    place = Place()
    transport = place.connect()
    for body in (b"a", b"b"):
        transport.send(post(body))
        place.sinks[-1].end(b"<%b>" % body)
    assert transport.written == b"OK 3\r\n\r\n<a>OK 3\r\n\r\n<b>"
    assert not place.exchanges


@on_a_virtual_clock
async def test_requests_that_are_sent_together_are_answered_in_turn():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"b") + post(b"c")[:-1])
    await rounds()
    assert place.begun == [b"a"], "one at a time"
    place.sinks[0].end(b"A")
    await rounds()
    assert place.begun == [b"a", b"b"]
    transport.send(b"c")
    place.sinks[1].end(b"B")
    await rounds()
    place.sinks[2].end(b"C")
    assert transport.written == b"OK 1\r\n\r\nAOK 1\r\n\r\nBOK 1\r\n\r\nC"


@on_a_virtual_clock
async def test_a_body_may_arrive_in_any_pieces():
    place = Place()
    place.at_once = lambda body: body
    transport = place.connect()
    transport.send(post(b"abc")[:-3])
    for piece in (b"a", b"b", b"c" + post(b"d")):
        transport.send(piece)
        await rounds()
    assert place.begun == [b"abc", b"d"]


@on_a_virtual_clock
async def test_a_general_request_is_answered_in_order_and_the_lane_continues():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"odd") + b"GET /x HTTP/1.1\r\n\r\n" + post(b"b"))
    await rounds()
    assert not place.exchanges, "one at a time"
    place.sinks[0].end(b"A")
    await rounds()
    place.sinks[1].end(b"B")
    assert transport.written == (
        b"OK 1\r\n\r\nA203 13\r\n\r\nPOST /s/m odd203 7\r\n\r\nGET /x OK 1\r\n\r\nB"
    )
    assert place.begun == [b"a", b"b"]


@on_a_virtual_clock
async def test_a_partial_head_is_completed_by_later_bytes():
    place = Place()
    transport = place.connect()
    for byte in post(b"a"):
        transport.send(bytes([byte]))
    await rounds()
    transport.send(post(b"b"))
    assert transport.written == b"203 11\r\n\r\nPOST /s/m a"
    assert place.begun == [b"b"]


@on_a_virtual_clock
async def test_the_next_request_is_not_read_before_the_answer():
    place = Place()
    transport = place.connect()
    chunks = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    transport.send(chunks + post(b"a")[:-1] + b"\r\nno request")
    await rounds()
    assert transport.written == b"203 10\r\n\r\nPOST /c {}"
    assert place.begun == [b"\r"]
    place.sinks[0].end(b"A")
    await rounds()
    assert transport.written.endswith(b"A400 last " + transport.written.rpartition(b" last ")[2])


@on_a_virtual_clock
async def test_a_large_answer_has_a_task_and_the_lane_continues():
    async def large() -> WebResponse:
        return WebResponse(body=b"large")

    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"b"))
    place.sinks[0].end(large())
    assert place.begun == [b"a"]
    await rounds()
    assert transport.written == b"200 5\r\n\r\nlarge"
    assert place.begun == [b"a", b"b"]


@on_a_virtual_clock
async def test_a_bug_costs_one_answer():
    place = Place()
    place.at_once = lambda body: body
    transport = place.connect()
    transport.send(post(b"bug") + post(b"a"))
    await rounds()
    assert transport.written.startswith(b"500 ")
    assert transport.written.endswith(b"OK 1\r\n\r\na")


@on_a_virtual_clock
async def test_a_client_that_does_not_read_answers_is_not_read_from():
    place = Place()
    place.at_once = lambda body: body
    transport = place.connect()
    transport.send(post(b"a"))
    transport.protocol.pause_writing()
    assert not transport.is_reading
    transport.protocol.data_received(post(b"b") + post(b"c"))  # was on its way
    await rounds()
    assert place.begun == [b"a"], "its answer would have to be kept"
    transport.protocol.resume_writing()
    await rounds()
    assert transport.is_reading
    assert place.begun == [b"a", b"b", b"c"]


@on_a_virtual_clock
async def test_after_an_answer_that_fills_the_connection_no_request_starts():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"b"))
    lane, write = transport.protocol, transport.write

    def full(data: bytes) -> None:
        write(data)
        lane.pause_writing()

    transport.write = full  # type: ignore[method-assign]
    place.sinks[0].end(b"A")
    await rounds()
    assert place.begun == [b"a"]
    lane.resume_writing()
    await rounds()
    assert place.begun == [b"a", b"b"]


@on_a_virtual_clock
async def test_bytes_sent_ahead_are_bounded():
    place = Place()
    transport = place.connect()
    body = b"x" * 30_000
    transport.send(post(body))
    for _ in range(3):
        assert transport.is_reading
        transport.send(post(body))
    assert not transport.is_reading
    assert len(transport.protocol._data) < 100_000
    place.sinks[-1].end(b"")
    await rounds()
    assert transport.is_reading, "two are left behind the one that is asked"
    assert len(place.begun) == 2


@on_a_virtual_clock
async def test_a_request_as_long_as_the_bound_does_not_stop_reading():
    place = Place()
    transport = place.connect()
    body = b"x" * 65_500
    for rest in (b"", b"x"):
        transport.send(post(b"a"))
        transport.send(post(body)[: -1 if rest else None])
        assert not transport.is_reading
        place.sinks[-1].end(b"")
        await rounds()
        assert transport.is_reading
        transport.send(rest)
        place.sinks[-1].end(b"")
        await rounds()
    assert place.begun == [b"a", body] * 2


@on_a_virtual_clock
async def test_a_caller_that_leaves_cancels_its_request():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"b"))
    transport.leave()
    await rounds()
    assert [handle.is_cancelled for handle in place.handles] == [True]
    assert place.lost.is_set()
    assert not place.connections


@on_a_virtual_clock
async def test_a_disconnect_after_the_answer_cancels_nothing():
    place = Place()
    place.at_once = lambda body: body
    transport = place.connect()
    transport.send(post(b"a"))
    transport.leave()
    assert [handle.is_cancelled for handle in place.handles] == [False]


@on_a_virtual_clock
async def test_a_silent_connection_is_closed_unless_it_waits_for_an_answer():
    place = Place()
    silent, asking = place.connect(), place.connect()
    asking.send(post(b"a"))
    await asyncio.sleep(place.read_timeout_s + 1)
    assert silent.is_over
    await asyncio.sleep(1000)
    assert not asking.is_over, "it is we who take that long"
    place.sinks[0].end(b"A")
    await asyncio.sleep(place.keep_alive_s - 1)
    assert not asking.is_over
    await asyncio.sleep(2)
    assert asking.is_over


@on_a_virtual_clock
async def test_a_slow_body_is_refused():
    place = Place()
    lane, routes = place.connect(), place.connect()
    await asyncio.sleep(30)
    lane.send(post(b"abc")[:-2])
    routes.send(post(b"odd")[:20])
    await asyncio.sleep(31)
    lane.send(b"b")
    routes.send(post(b"odd")[20:-1])
    assert [lane.written, routes.written] == [b"", b""]
    await asyncio.sleep(30)
    assert [lane.written, routes.written] == [b"408 last 0\r\n\r\n"] * 2
    assert lane.has_ended


@on_a_virtual_clock
async def test_half_a_head_is_hung_up_on():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a")[:9])
    await asyncio.sleep(30)
    transport.send(post(b"a")[9:12])
    await asyncio.sleep(31)
    assert transport.is_over
    assert transport.written == b""


@on_a_virtual_clock
async def test_a_refused_client_that_is_busy_sending_is_read_for_longer():
    for piece, seconds in (b"x", 5), (bytes(2**21), 30):
        transport = Place().connect()
        transport.send(b"no request\r\n\r\n")
        assert transport.has_ended
        for _ in range(seconds - 1):
            await asyncio.sleep(1)
            transport.send(piece)
            assert not transport.is_over
        await asyncio.sleep(1.5)
        assert transport.is_over


@on_a_virtual_clock
async def test_while_draining_the_last_answer_closes_the_connection():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a") + post(b"b"))
    place.is_draining = True
    for answer in (b"A", b"B"):
        place.sinks[-1].end(answer)
        await rounds()
    assert transport.written == b"200 A;200 last B;"
    assert transport.is_over


@on_a_virtual_clock
async def test_a_shut_down_connection_closes_after_its_answer():
    place = Place()
    idle, asking, half = place.connect(), place.connect(), place.connect()
    asking.send(post(b"a"))
    half.send(post(b"abc")[:-1])
    for transport in (idle, asking, half):
        transport.protocol.shutdown()
    await rounds()
    assert idle.is_over
    assert not asking.is_over
    assert not half.is_over, "it waits for the rest"
    place.sinks[0].end(b"A")
    half.send(b"c")
    place.sinks[1].end(b"C")
    await rounds()
    assert half.written == b"200 last C;"
    assert asking.written == b"200 last A;"
    assert asking.is_over


@on_a_virtual_clock
async def test_a_shut_down_connection_closes_after_an_answer_under_way():
    """Its head was sent before, and says nothing of the end."""

    async def large() -> WebResponse:
        return WebResponse(body=LARGE)

    place = Place()
    transport = place.connect()
    connection, write = transport.protocol, transport.write

    def write_and_be_full(data: bytes) -> None:
        write(data)
        connection.pause_writing()

    transport.send(post(b"a"))
    transport.write = write_and_be_full  # type: ignore[method-assign]
    place.sinks[0].end(large())
    await rounds()
    transport.write = write  # type: ignore[method-assign]
    connection.shutdown()
    await rounds()
    assert not transport.is_over
    connection.resume_writing()
    await rounds()
    assert transport.written == b"200 %d\r\n\r\n" % SIZE + LARGE
    assert transport.is_over


@on_a_virtual_clock
async def test_an_error_does_not_have_the_head_of_an_answer():
    place = Place()
    transport = place.connect()
    for answer in (WebResponse(500, b"no"), ValueError("a bug"), b"well"):
        transport.send(post(b"a"))
        place.sinks[-1].take_head(AnswerHead(201))
        place.sinks[-1].end(answer)
    statuses = [part.split(b" ")[0] for part in transport.written.split(b";")[:-1]]
    assert statuses == [b"500", b"500", b"201"]


@on_a_virtual_clock
async def test_the_error_of_a_request_is_recorded_with_its_answer_only():
    place = Place()
    transport = place.connect()
    for error in (ProductError(51, status=429), ProductError(51), None):
        transport.send(post(b"a"))
        if error is not None:
            error.head = head_of(error.status, error.headers, *ERROR_STATUSES)
            place.sinks[-1].fail(error)
        place.sinks[-1].end(b"said")
        assert place.failures[-1] is error
    assert transport.written == b"429 said;200 said;OK 4\r\n\r\nsaid"


@on_a_virtual_clock
async def test_a_body_that_could_end_anywhere_is_read_in_turns():
    place = Place()
    transport = place.connect()
    body = b"\r\n\r\n" * 3000
    head = b"POST /c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(body)
    transport.send(head + body + b"\r\n0\r\n\r\n" + post(b"a"))
    assert transport.protocol._data.endswith(post(b"a"))
    await rounds()
    assert transport.written == b"203 12008\r\n\r\nPOST /c " + body
    assert place.begun == [b"a"]


@on_a_virtual_clock
async def test_blank_lines_without_end_are_refused():
    transport = Place().connect()
    for _ in range(17):
        assert not transport.has_ended
        transport.send(b"\r\n" * 2000)
    assert transport.written.startswith(b"431 last ")


@on_a_virtual_clock
async def test_any_number_of_blank_lines_may_follow_requests():
    place = Place()
    place.at_once = lambda body: body
    transport = place.connect()
    for _ in range(17):
        transport.send(post(b"a") + b"\r\n" * 2000)
        await rounds()
        transport.send(b"\r\n" * 200)
    assert len(place.begun) == 17
    assert not transport.has_ended


# Large bodies -------------------------------------------------------------------------------

SIZE = 100_000
LARGE = bytes(range(250)) * (SIZE // 250)


@on_a_virtual_clock
async def test_a_large_body_is_received_in_place_with_any_cuts():
    place = Place()
    transport = place.connect()
    data = post(LARGE)
    head = len(data) - SIZE
    for cuts in ((), (head,), (head + 1,), (head, head + 50_000, head + 99_999)):
        for start, end in itertools.pairwise((0, *cuts, len(data))):
            transport.send(data[start:end])
        body = place.begun.pop()
        assert type(body) is memoryview
        assert body == LARGE
        place.sinks.pop().end(b"<>")
        await rounds()
    assert transport.written == b"OK 2\r\n\r\n<>" * 4
    assert not place.exchanges


@on_a_virtual_clock
async def test_few_bytes_are_read_where_another_large_body_may_follow():
    place = Place()
    transport = place.connect()
    for _ in range(2):
        transport.send(post(LARGE)[:70_000])
        transport.send(post(LARGE)[70_000:])
        place.sinks[-1].end(b"<>")
        await rounds()
        assert len(transport.get_protocol().get_buffer(-1)) == 4096
    assert place.begun == [LARGE, LARGE]
    transport.send(post(b"a"))
    assert place.begun[2:] == [b"a"]
    assert transport.get_protocol() in place.connections


@on_a_virtual_clock
async def test_few_bytes_are_read_ahead_after_a_body():
    """Else a caller whose bodies come so fast would have each of them copied."""
    place = Place()
    transport = place.connect()
    transport.send(post(LARGE))
    assert len(transport.get_protocol().get_buffer(-1)) == 4096
    place.sinks[-1].end(b"<>")
    await rounds()
    transport.send(post(LARGE))
    assert place.begun == [LARGE, LARGE]


@on_a_virtual_clock
async def test_small_requests_after_a_large_one_wait_for_its_answer():
    place = Place()
    transport = place.connect()
    transport.send(post(LARGE) + post(b"small") + post(LARGE)[:5000])
    await rounds()
    assert [len(body) for body in place.begun] == [SIZE]
    place.sinks[0].end(b"a")
    await rounds()
    assert place.begun[1:] == [b"small"]
    place.sinks[1].end(b"b")
    await rounds()
    assert len(place.begun) == 2
    transport.send(post(LARGE)[5000:])
    place.sinks[2].end(b"c")
    assert transport.written == b"OK 1\r\n\r\naOK 1\r\n\r\nbOK 1\r\n\r\nc"


@on_a_virtual_clock
async def test_a_large_body_that_is_handed_over_is_answered_by_the_routes():
    place = Place()
    transport = place.connect()
    place.hands_over = True
    transport.send(post(LARGE)[:50_000])
    transport.send(post(LARGE)[50_000:] + post(b"next"))
    await rounds()
    assert transport.written == b"203 %d\r\n\r\nPOST /s/m %b" % (len(LARGE) + 10, LARGE)
    assert place.begun == [b"next"]


@on_a_virtual_clock
async def test_a_disconnect_within_a_body_releases_its_memory():
    place = Place()
    transport = place.connect()
    transport.send(post(LARGE)[:50_000])
    (kept,) = place.memory.placed
    transport.leave()
    await rounds()
    assert kept() is None
    assert not place.begun
    assert not place.connections


@on_a_virtual_clock
async def test_an_incomplete_body_is_given_up():
    for sent in (0, 30_000):
        place = Place()
        transport = place.connect()
        transport.send(post(LARGE)[: len(post(LARGE)) - SIZE + sent])
        (kept,) = place.memory.placed
        await asyncio.sleep(59)
        assert transport.written == b""
        await asyncio.sleep(2)
        await rounds()
        assert transport.written.startswith(b"408")
        assert kept() is None
        transport.send(LARGE)
        await asyncio.sleep(200)
        assert transport.is_over
        assert not place.begun


@on_a_virtual_clock
async def test_a_stopping_server_waits_for_a_body_and_answers_it():
    place = Place()
    transport = place.connect()
    transport.send(post(LARGE)[:50_000])
    (connection,) = place.connections
    assert not connection.is_idle
    connection.shutdown()
    transport.send(post(LARGE)[50_000:])
    place.sinks[0].end(b"<>")
    await rounds()
    assert transport.written == b"200 last <>;"
    assert transport.is_over


@on_a_virtual_clock
async def test_without_memory_a_large_body_takes_the_general_path():
    place = Place()
    place.memory.is_full = True
    transport = place.connect()
    transport.send(post(LARGE))
    await rounds()
    assert place.exchanges
    assert transport.written.endswith(LARGE)


@on_a_virtual_clock
async def test_the_rest_of_an_answer_is_written_from_where_it_is():
    place = Place()
    transport = place.connect()
    transport.send(post(b"a"))
    place.sinks[-1].end(WebResponse(200, b"head", tail=(memoryview(b"one"), memoryview(b"two"))))
    assert transport.written == b"200 head;onetwo"
