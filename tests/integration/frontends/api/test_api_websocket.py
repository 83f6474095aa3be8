"""Requests that come as messages of a WebSocket, and what breaks one."""

from __future__ import annotations

import json
import queue
import threading
from typing import Any

import pytest
from doubles import server_for, wait_until
from raw_ws import ACCEPT, masked, web_socket

from pipeline import Op, ProductError, RequestOp
from pipeline.frontends.api.routes import ApiEndpoint
from pipeline.frontends.http import connection

PATH = "/api/svc/ws"
CLOSED: queue.SimpleQueue[int] = queue.SimpleQueue()
MADE: dict[int, int] = {}


class Counts(Op):
    """Counts up to `n`, forever if it is negative; 99 fails after two parts."""

    def __init__(self, **options: Any) -> None:
        super().__init__("counts", [RequestOp()], **options)

    def process(self, feed_batch: Any, log_id: int) -> Any:
        data = feed_batch[0]
        if "sound" in data:
            yield {"bytes": len(data["sound"])}
            return
        n, at = data["n"], 0
        MADE[n] = 0
        try:
            while at != n:
                at += 1
                if n == 99 and at == 3:
                    raise ProductError(51, "no more")
                MADE[n] = at
                yield {"at": at, **({"text": "x" * data["size"]} if "size" in data else {})}
        finally:
            CLOSED.put(n)


@pytest.fixture(scope="module")
def server():
    with server_for(Counts()) as running:
        yield running


def answers(socket: Any, count: int) -> list[Any]:
    return [socket.next() for _ in range(count)]


def test_a_request_is_answered_part_by_part(server):
    with web_socket(server.http_port, PATH) as socket:
        assert (socket.status, socket.headers["sec-websocket-accept"]) == (101, ACCEPT)
        for number in range(2):
            socket.say(data={"n": 2})
            assert answers(socket, 3) == [
                {"request": number, "data": {"at": 1}},
                {"request": number, "data": {"at": 2}},
                {"request": number, "end": True},
            ]
        socket.raw(masked(8, (1000).to_bytes(2) + b"bye"))
        assert socket.next() == (1000, "")
        assert socket.frame() is None


def test_bytes_are_a_field(server):
    with web_socket(server.http_port, f"{PATH}?key=sound") as socket:
        socket.raw(masked(2, bytes(70_000)))
        assert socket.next() == {"request": 0, "data": {"bytes": 70_000}}


def test_requests_run_concurrently(server):
    with web_socket(server.http_port, PATH) as socket:
        socket.say(data={"n": -1})
        socket.say(data={"n": 1})
        seen = set()
        while {"request": 1, "end": True} not in (last := socket.next(),):
            seen.add(last["request"])
        assert 0 in seen


def test_errors_are_of_one_request(server):
    with web_socket(server.http_port, PATH) as socket:
        socket.say(data={"n": 99})
        *parts, error = answers(socket, 3)
        assert [part["data"]["at"] for part in parts] == [1, 2]
        assert (error["request"], error["error"]["code"]) == (0, 51)
        for text in (b"{", b"[]", b'{"data":3}', b'{"data":{},"credit":1}', b'{"credit":-1}'):
            socket.raw(masked(1, text))
            assert socket.next()["error"]["code"] == 8000
        socket.say(data={"n": 1})
        assert socket.next() == {"request": 6, "data": {"at": 1}}


def test_no_part_is_sent_without_credit(server):
    with web_socket(server.http_port, f"{PATH}?credit=1") as socket:
        socket.say(data={"n": -7})
        assert socket.next()["data"] == {"at": 1}
        socket.raw(masked(9, b"still there?"))
        assert socket.frame() == (10, b"still there?")  # and no part came before it
        assert MADE[-7] <= 40  # the window of the stream, and a few that were under way
        socket.say(credit=2)
        assert [part["data"]["at"] for part in answers(socket, 2)] == [2, 3]
    closed = {CLOSED.get(timeout=20) for _ in range(CLOSED.qsize() or 1)}
    while -7 not in closed:
        closed.add(CLOSED.get(timeout=20))


def test_credit_is_read_however_many_requests_wait_for_it(server):
    with web_socket(server.http_port, f"{PATH}?credit=0") as socket:
        for _ in range(129):
            socket.say(data={"n": 1})
        refused = socket.next()
        assert (refused["request"], refused["error"]["name"]) == (128, "OVERLOADED")
        socket.say(credit=128)
        ended = {answer["request"] for answer in answers(socket, 256) if "end" in answer}
        assert ended == set(range(128))


def test_a_cancel_is_read_after_more_endless_requests_than_run_at_once(server):
    with web_socket(server.http_port, PATH) as socket:
        for _ in range(130):
            socket.say(data={"n": -6, "size": 10_000})
        socket.say(cancel=5)
        socket.say(cancel=129)  # it waits for its turn
        seen = set()
        while 128 not in seen:  # it begins in the place of 5
            seen.add(socket.next()["request"])
        assert 129 not in seen


def test_an_unexpected_error_is_answered_and_logged(server, monkeypatch, caplog):
    def break_down(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(ApiEndpoint, "asked", break_down)
    with web_socket(server.http_port, PATH) as socket:
        socket.say(data={"n": 1})
        answer = socket.next()
        assert answer["request"] == 0
        assert answer["error"]["message"] == "internal error of the server"
        monkeypatch.undo()
        socket.say(data={"n": 1})
        assert socket.next() == {"request": 1, "data": {"at": 1}}
    assert "request 0 of a WebSocket failed" in caplog.text


def test_a_request_is_cancelled_alone(server):
    with web_socket(server.http_port, f"{PATH}?credit=3") as socket:
        socket.say(data={"n": -8})
        answers(socket, 3)
        socket.say(cancel=0)
        while CLOSED.get(timeout=20) != -8:
            pass
        socket.say(credit=2)
        socket.say(data={"n": 1})
        assert socket.next() == {"request": 1, "data": {"at": 1}}


def test_a_slow_reader_stops_the_generator(server):
    with web_socket(server.http_port, PATH) as socket:
        socket.say(data={"n": -9, "size": 1_000_000})
        assert socket.next()["data"]["at"] == 1
        before = -1
        stands = threading.Event()
        while MADE[-9] != before:
            before = MADE[-9]
            stands.wait(0.2)
        assert before < 100
        answers(socket, before)  # the stream continues
    while CLOSED.get(timeout=20) != -9:
        pass


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x01a", 1002),
        (masked(1, b"\xff"), 1007),
        (masked(8, b"\x03"), 1002),
        (masked(8, (1005).to_bytes(2)), 1002),
        (masked(8, (1000).to_bytes(2) + b"\xff"), 1007),
        (b"\x82\xff" + (2**33).to_bytes(8), 1009),
        (masked(8), 1000),
    ],
)
def test_a_violation_of_the_protocol_closes_the_connection(server, data, code):
    with web_socket(server.http_port, PATH) as socket:
        socket.raw(data)
        assert socket.next()[0] == code
        assert socket.frame() is None


def test_a_client_that_continues_to_send_is_disconnected(server, monkeypatch):
    monkeypatch.setattr(connection, "_LINGER_TIMEOUT_S", 0.05)
    with web_socket(server.http_port, PATH) as socket:
        socket.raw(b"\x81\x01a")
        assert socket.next()[0] == 1002
        wait_until(lambda: not socket.sends(masked(9)))


def test_a_flood_of_frames_is_read_to_its_end(server):
    with web_socket(server.http_port, PATH) as socket:
        socket.raw(masked(1, b'{"data":', False) + masked(0, b"", False) * 5000)
        socket.raw(masked(9, b"x") * 3 + masked(0, b'{"n":0}}'))
        assert [socket.frame() for _ in range(3)] == [(10, b"x")] * 3
        assert socket.next() == {"request": 0, "end": True}


@pytest.mark.parametrize(
    ("path", "headers", "status", "said"),
    [
        ("/api/none/ws", {}, 404, "no pipeline 'none'"),
        (PATH, {"Upgrade": "", "Connection": ""}, 426, "behind it, ask the server's own port"),
        (PATH, {"Sec_WebSocket_Version": "8"}, 426, "has to be 13"),
        (PATH, {"Sec_WebSocket_Key": "abc"}, 400, "16 bytes"),
        (f"{PATH}?credit=x", {}, 400, "credit has to be a number"),
        (PATH, {"Origin": "http://evil.example"}, 403, "add its host to allowed_hosts"),
    ],
)
def test_offers_that_are_refused(server, path, headers, status, said):
    with web_socket(server.http_port, path, **headers) as socket:
        assert socket.status == status
        assert said in socket.body.decode()


def test_a_page_of_the_server_itself_may_ask(server):
    origin = f"http://127.0.0.1:{server.http_port}"
    with web_socket(server.http_port, PATH, Origin=origin) as socket:
        assert socket.status == 101


def test_a_stopping_server_closes_a_socket_after_running_requests():
    with server_for(Counts()) as running:
        socket = web_socket(running.http_port, f"{PATH}?credit=0")
        opened = socket.__enter__()
        opened.say(data={"n": 1})
        opened.raw(masked(9))
        assert opened.frame() == (10, b"")
        stopping = threading.Thread(target=running.stop)
        opened.say(credit=5)
        assert opened.next()["data"] == {"at": 1}
        stopping.start()
        while (last := opened.next()) == {"request": 0, "end": True}:
            pass
        assert last == (1001, "")
        opened.raw(masked(8, (1001).to_bytes(2)))
        stopping.join(20)
        socket.__exit__(None, None, None)


def test_the_gateway_refuses_websockets_with_advice(gateway_binary):
    with (
        server_for(Counts(), edge="gateway") as running,
        web_socket(running.http_port, PATH) as socket,
    ):
        assert socket.status == 426
        assert b"The gateway passes none on" in socket.body


def test_a_client_that_others_wrote(server):
    sync = pytest.importorskip("websockets.sync.client")
    url = f"ws://127.0.0.1:{server.http_port}{PATH}?key=sound"
    with sync.connect(url, max_size=None) as socket:
        socket.send(json.dumps({"data": {"n": 1, "size": 3_000_000}}))
        part = json.loads(socket.recv())
        assert len(part["data"]["text"]) == 3_000_000
        assert json.loads(socket.recv()) == {"request": 0, "end": True}
        socket.send([bytes(70_000), bytes(3)])  # in two frames
        assert json.loads(socket.recv()) == {"request": 1, "data": {"bytes": 70_003}}
        assert socket.ping().wait(20)


class Sums(Op):
    """Adds up what the requests of a sequence bring."""

    def init_op(self) -> None:
        self.sums: dict[Any, int] = {}

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        step = context[0].sequence
        before = 0 if step.start else self.sums[step.id]
        self.sums[step.id] = before + int(feed_batch[0]["n"])
        return {"sum": self.sums[step.id]}


def test_a_connection_is_a_sequence():
    with (
        server_for(Sums("sums", [RequestOp()], sequence="direct")) as running,
        web_socket(running.http_port, f"{PATH}?sequence_id=7&sequence_start=true") as socket,
    ):
        for n in (1, 2):
            socket.say(data={"n": n})
        socket.say(data={"n": 4, "sequence_end": True})
        said = [socket.next() for _ in range(6)]
    assert [item["data"]["sum"] for item in said if "data" in item] == [1, 3, 7]
