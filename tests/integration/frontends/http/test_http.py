"""What the HTTP door promises: routes, proto3 JSON, limits, health, connections."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from doubles import Tag, chain, http, on_loop, post, server_for, virtual, wait_until
from fake_begin import begin_of
from raw_http import Answer, Connection, chunked, request

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp
from pipeline.errors import PackageError
from pipeline.frontends.http.routes import HttpError, WebResponse
from pipeline.frontends.http.server import HttpFrontend
from pipeline.proto import pipeline_service_pb2

LIMIT = 100_000
EMPTY = {"err_no": 0, "err_msg": "", "key": [], "value": [], "tensors": []}


@pytest.fixture(scope="module")
def echo(module_logs: None) -> Iterator[PipelineServer]:
    """Answers with the pairs that it is sent."""
    with server_for(Op("echo", [RequestOp()]), max_message_bytes=LIMIT) as server:
        yield server


@pytest.fixture(scope="module")
def tensors(module_logs: None) -> Iterator[PipelineServer]:
    """Answers with everything that it is sent, as tensors."""
    last = Op("echo", [RequestOp()])
    last.set_pack_tensor_format(True)
    with server_for(last) as server:
        yield server


def connect(server: PipelineServer) -> Connection:
    assert server.http_port is not None
    return Connection(server.http_port)


def ask(server: PipelineServer, raw: bytes, method: str = "POST") -> Answer:
    """The answer to the raw bytes of one request."""
    with connect(server) as connection:
        connection.send(raw)
        return connection.answer(method)


def body_of(**pairs: str) -> bytes:
    return json.dumps({"key": list(pairs), "value": list(pairs.values())}).encode()


def pairs_of(answer: Answer) -> dict[str, str]:
    assert (answer.status, answer.json["err_no"]) == (200, 0), answer
    return dict(zip(answer.json["key"], answer.json["value"], strict=True))


def assert_refused(answer: Answer, status: int, code: int, text: str) -> None:
    """The answer has this status, and tells the error in the shape of a Response."""
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == {**EMPTY, "err_no": code, "err_msg": answer.json["err_msg"]}
    assert text in answer.json["err_msg"]


# Requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        [],
        ["Content-Type: application/x-www-form-urlencoded"],  # what curl -d sends
        ["Content-Type: application/json; charset=utf-8"],
        ["Content-Type: multipart/form-data; boundary=x"],
        ["Content-Type: rubbish"],
    ],
)
def test_the_content_type_does_not_matter(echo, headers):
    answer = ask(echo, request(body_of(a="1"), *headers))
    assert pairs_of(answer) == {"a": "1"}
    assert answer.headers["content-type"] == "application/json"


def test_text_of_any_language_survives(echo):
    pairs = {"词": "漢字 \u0000 \U0001f600", "é": '"\\/\n'}
    assert pairs_of(ask(echo, request(body_of(**pairs)))) == pairs
    unescaped = json.dumps({"key": ["词"], "value": ["漢"]}, ensure_ascii=False).encode()
    assert pairs_of(ask(echo, request(unescaped))) == {"词": "漢"}


def test_unknown_fields_are_ignored(echo):
    body = {"key": ["a"], "value": ["1"], "appid": "x", "nested": {"deep": [1, {}]}}
    assert post(echo, body) == (200, {**EMPTY, "key": ["a"], "value": ["1"]})


def test_fields_of_ones_own_alone_are_refused(echo):
    status, answer = post(echo, {"label": "zh", "prob": 0.86})
    assert (status, answer["err_no"]) == (400, 8000)
    assert 'the field "label" and none of key, value and tensors' in answer["err_msg"]
    assert post(echo, {"label": "zh", "prob": 0.86}, "/api/svc") == (
        200, {"label": "zh", "prob": 0.86},
    )  # fmt: skip


@pytest.mark.parametrize("body", [b"", b"{}", b' {"key": null, "value": null, "logid": null}\n'])
def test_an_empty_or_null_value_is_the_default(echo, body):
    assert post(echo, body) == (200, EMPTY)


def test_tensors_are_read_in_both_spellings_and_written_in_the_original_one(tensors):
    for elem_type, int64_data in (("elem_type", "int64_data"), ("elemType", "int64Data")):
        sent = {"name": "n", elem_type: 0, int64_data: ["9007199254740993", -1], "shape": [1, 2]}
        status, answer = post(tensors, {"tensors": [sent]})
        (tensor,) = answer["tensors"]
        assert (status, answer["err_no"]) == (200, 0)
        assert tensor["int64_data"] == ["9007199254740993", "-1"], "a double has not the digits"
        assert (tensor["elem_type"], tensor["shape"]) == (0, [1, 2])


def test_numbers_that_json_has_not_travel_as_text(tensors):
    sent = {"name": "f", "elem_type": 1, "float_data": ["NaN", 1.5, "-Infinity", "Infinity"]}
    status, answer = post(tensors, {"tensors": [sent]})
    assert (status, answer["err_no"]) == (200, 0)
    assert answer["tensors"][0]["float_data"] == ["NaN", 1.5, "-Infinity", "Infinity"]


def test_bytes_travel_as_base64(tensors):
    data = base64.b64encode(bytes(range(256))).decode()
    sent = {"name": "b", "elem_type": 13, "byte_data": data}
    assert post(tensors, {"tensors": [sent]})[1]["tensors"][0]["byte_data"] == data


class ReturnsRequestFields(RequestOp):
    def unpack_request_package(self, request):
        reported = {"name": request.name, "method": request.method, "clientip": request.clientip}
        return reported, request.logid, None, ""


def test_the_url_overrides_the_body_and_its_query_is_ignored():
    with server_for(Op("echo", [ReturnsRequestFields()]), name=None) as server:
        body = b'{"name": "other", "method": "other", "clientip": "1.2.3.4", "logid": "7"}'
        pairs = pairs_of(ask(server, request(body, path="/svc/predict?name=evil&logid=x#y")))
        assert pairs == {"name": "svc", "method": "predict", "clientip": "1.2.3.4"}
        absolute = request(body, path="http://elsewhere:80/svc/predict")
        assert pairs_of(ask(server, absolute)) == pairs


def test_names_may_be_percent_encoded():
    with server_for(Op("echo", [ReturnsRequestFields()]), name="服务 1") as server:
        answer = ask(server, request(path="/%E6%9C%8D%E5%8A%A1%201/%70redict"))
        assert pairs_of(answer)["name"] == "服务 1"
        assert pairs_of(answer)["method"] == "predict"
        assert ask(server, request(path="/%FF%FE/x")).json["err_no"] == 3002
        assert_refused(ask(server, request(path="/a%2Fb/x")), 404, 3002, "/a/b/x")


def test_errors_of_the_application_are_answers():
    class Refuses(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            raise ProductError(51, "no face")

    with server_for(Refuses("r", [RequestOp()])) as server:
        assert_refused(ask(server, request()), 200, 51, "no face")


@pytest.mark.parametrize(
    ("code", "text", "told"),
    [
        (51, "nul \x00 \n", (51, "nul \x00 \n")),
        (51, "\ud800 of a file's name", (51, "\\ud800 of a file's name")),
        (-(2**31), "a code of its own", (-(2**31), "a code of its own")),
        (2**31, "far out", (50, "[2147483648] far out")),
    ],
)
@pytest.mark.parametrize("where", ["preprocess", "unpack", "pack"])
def test_any_error_reaches_the_caller(where, code, text, told):
    def refuse_in(place):
        if place == where:
            raise ProductError(code, text)

    class Unpacks(RequestOp):
        def unpack_request_package(self, request):
            refuse_in("unpack")
            return {}

    class Prepares(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            refuse_in("preprocess")
            return {}

    class Packs(ResponseOp):
        def pack_response_package(self, channeldata):
            refuse_in("pack")
            return super().pack_response_package(channeldata)

    last = Prepares("p", [Unpacks()])
    with server_for(last, response_op=Packs([last])) as server:
        answer = ask(server, request())
        assert (answer.status, answer.json["err_no"], answer.json["err_msg"]) == (200, *told)


# Refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["*", "/svc", "/svc/", "/svc/prediction/", "/svc/prediction/x", "//prediction", "///"],
)
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_other_paths_are_not_found(echo, method, path):
    assert_refused(ask(echo, request(method=method, path=path)), 404, 3002, path)


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_not_allowed(echo, method):
    answer = ask(echo, request(method=method), method)
    assert_refused(answer, 405, 3000, method)
    assert answer.headers["allow"] == "POST"


def test_head_is_answered_without_a_body_and_the_connection_continues(echo):
    with connect(echo) as connection:
        for path, status in (("/svc/prediction", 405), ("/health/live", 200), ("/svc", 404)):
            connection.send(request(method="HEAD", path=path))
            answer = connection.answer("HEAD")
            assert (answer.status, answer.body) == (status, b"")
            assert int(answer.headers["content-length"]) > 0
        connection.send(request())
        assert connection.answer().json == EMPTY


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"{", "not JSON"),
        (b"null", "null"),
        (b"[]", "an array"),
        (b'"key"', 'object, not "key"'),
        (b"\xff\xfe", "not JSON"),
        (b'{"key": "\xc3("}', "not JSON"),
        (b'{"key": ["\\ud800"]}', "not JSON"),
        (b"[" * 50_000, "not JSON"),
        (b'{"key": [1]}', "key"),
        (b'{"key": {"a": 1}}', "key"),
        (b'{"logid": 1e999}', "JSON"),
        (b'{"logid": 99999999999999999999}', "logid"),
        (b'{"tensors": [{"shape": [4294967296]}]}', "shape"),
        (b'{"tensors": [{"byte_data": "A"}]}', "byte_data"),
        (b"key=a&value=1", "not JSON"),
    ],
)
def test_an_invalid_request_is_refused_with_the_reason(echo, body, text):
    assert_refused(ask(echo, request(body)), 400, 8000, text)


def test_pairs_that_do_not_match_are_the_applications_error(echo):
    assert_refused(ask(echo, request(b'{"key": ["a"]}')), 200, 8000, "1 keys but 0 values")


def test_a_body_at_the_limit_is_accepted_and_one_above_it_is_not(echo):
    frame = body_of(a="")
    most = body_of(a="x" * (LIMIT - len(frame)))
    assert len(most) == LIMIT
    assert ask(echo, request(most)).status == 200
    assert ask(echo, request(chunked(most), "Transfer-Encoding: chunked")).status == 200
    assert_refused(ask(echo, request(most + b" ")), 413, 8000, f"{LIMIT} bytes")


def test_a_content_length_above_the_limit_is_refused_before_the_body(echo):
    with connect(echo) as connection:
        connection.send(request(length=LIMIT + 1))
        answer = connection.answer()
        assert_refused(answer, 413, 8000, f"{LIMIT} bytes")
        assert answer.headers["connection"] == "close"
        assert connection.is_at_end()


def test_chunks_above_the_limit_are_refused_before_the_last_one(echo):
    with connect(echo) as connection:
        connection.send(request(b"", "Transfer-Encoding: chunked"))
        for _ in range(3):
            connection.send(b"%x\r\n%s\r\n" % (LIMIT // 2, b" " * (LIMIT // 2)))
        assert_refused(connection.answer(), 413, 8000, f"{LIMIT} bytes")
        assert connection.is_at_end()


def test_a_client_that_sends_all_before_reading_receives_the_refusal(echo):
    body = b"x" * (20 * 2**20)  # more than the kernel buffers
    status, answer = post(echo, body)
    assert (status, answer["err_no"]) == (413, 8000)
    status, answer = post(echo, chunked(body, body), **{"Transfer-Encoding": "chunked"})
    assert (status, answer["err_no"]) == (413, 8000)


@pytest.mark.parametrize("path", ["/", "/svc/prediction"])
def test_an_answer_before_the_body_ends_the_connection(echo, path):
    with connect(echo) as connection:
        connection.send(request(length=10, path=path, method="PUT"))
        answer = connection.answer()
        assert answer.status in (404, 405)
        assert answer.headers["connection"] == "close"
        assert connection.is_at_end()


# Content encodings ------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip", "gzip \t"])
def test_gzip_is_unpacked(echo, encoding):
    packed = gzip.compress(body_of(a="1" * 1000))
    answer = ask(echo, request(packed, f"Content-Encoding: {encoding}"))
    assert pairs_of(answer) == {"a": "1" * 1000}


@pytest.mark.parametrize("encoding", ["identity", "Identity ", ""])
def test_identity_is_accepted_as_an_encoding(echo, encoding):
    answer = ask(echo, request(body_of(a="1"), f"Content-Encoding: {encoding}"))
    assert pairs_of(answer) == {"a": "1"}


def test_deflate_is_read_as_well(echo):
    packed = zlib.compress(body_of(a="1" * 1000))
    answer = ask(echo, request(packed, "Content-Encoding: deflate"))
    assert pairs_of(answer) == {"a": "1" * 1000}


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "\xe9"])
def test_other_encodings_are_refused(echo, encoding):
    answer = ask(echo, request(b"{}", f"Content-Encoding: {encoding}"))
    text = f'unsupported content-encoding "{encoding}": send gzip, deflate or none'
    assert_refused(answer, 415, 8000, text)


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (gzip.compress(b"{}" * 100, mtime=0)[:-1], "cut short"),
        (gzip.compress(b"{}" * 100, mtime=0)[:4], "cut short"),
        (b"", "cut short"),
        (b"{}", "not valid gzip"),
        (zlib.compress(b"{}"), "not valid gzip"),
        (gzip.compress(b"{}", mtime=0)[:-5] + b"\x00" * 5, "not valid gzip"),
        (gzip.compress(b"{}", mtime=0) + b"garbage", "behind"),
        (gzip.compress(b"{", mtime=0) + gzip.compress(b"}", mtime=0), "behind"),
    ],
)
def test_gzip_that_is_broken_is_refused(echo, packed, text):
    assert_refused(ask(echo, request(packed, "Content-Encoding: gzip")), 400, 8000, text)


def test_a_gzip_bomb_is_not_unpacked_beyond_the_limit(echo):
    bomb = gzip.compress(b" " * (64 * 2**20), compresslevel=9)
    assert len(bomb) < LIMIT
    answer = ask(echo, request(bomb, "Content-Encoding: gzip"))
    assert_refused(answer, 413, 8000, f"{LIMIT} bytes")


# Deadlines --------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["20S", "1H", "99999999M", "20000m", "20000000u", " \t20S\t "])
def test_a_distant_deadline_changes_nothing(echo, value):
    assert ask(echo, request(b"", f"Grpc-Timeout: {value}")).json == EMPTY


@pytest.mark.parametrize("value", ["0m", "1n", "00000000H"])
def test_a_deadline_that_has_passed_is_a_timeout(value):
    release = threading.Event()

    class Waits(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            release.wait(60)
            return {}

    with server_for(Waits("w", [RequestOp()])) as server:
        try:
            answer = ask(server, request(b"", f"Grpc-Timeout: {value}"))
            assert_refused(answer, 200, 6000, "deadline")
        finally:
            release.set()


@pytest.mark.parametrize(
    "value",
    ["", "m", "5", "-1S", "1.5S", "123456789S", "1s", "1 S", "1SS", "\xb2S", "1e3m", "\xa01S",
     "1S\x85"],
)  # fmt: skip
def test_a_deadline_that_cannot_be_read_is_refused(echo, value):
    assert_refused(ask(echo, request(b"", f"Grpc-Timeout: {value}")), 400, 8000, "Grpc-Timeout")


# Health -----------------------------------------------------------------------------------


@pytest.mark.parametrize("probe", ["live", "ready"])
def test_a_running_server_is_live_and_ready(echo, probe):
    status, headers, answer = http(echo, "GET", f"/health/{probe}")
    assert (status, answer) == (200, {"status": "ok"})
    assert headers["content-type"] == "application/json"


def test_health_has_two_probes_and_is_only_read(echo):
    assert_refused(ask(echo, request(method="GET", path="/health/other")), 404, 3002, "ready")
    answer = ask(echo, request(path="/health/live"))
    assert_refused(answer, 405, 3000, "POST")
    assert answer.headers["allow"] == "GET, HEAD"


def test_a_server_is_live_but_not_ready_until_every_op_is_initialised(free_ports):
    release = threading.Event()

    class Slow(Op):
        def init_op(self):
            release.wait(60)

    rpc_port, http_port = free_ports
    server = server_for(Slow("slow", [chain("a")]), rpc_port=rpc_port, http_port=http_port)
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        wait_until(lambda: status_of(http_port, "/health/live") == 200)
        for path in ("/health/ready", "/health", "/healthz"):
            assert status_of(http_port, path) == 503
        release.set()
        starting.join()
        for path in ("/health/ready", "/health", "/healthz"):
            assert status_of(http_port, path) == 200
    finally:
        release.set()
        starting.join()
        server.stop()


def status_of(port: int, path: str) -> int:
    """The status of a GET, 0 if nobody listens."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except ConnectionRefusedError:
        return 0
    finally:
        connection.close()


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that nobody listened on a moment ago."""
    with server_for(chain("a")) as server:
        return server.rpc_port, server.http_port


def test_a_request_during_init_op_waits_for_it(free_ports):
    release = threading.Event()

    class Slow(Op):
        def init_op(self):
            release.wait(60)

    rpc_port, http_port = free_ports
    server = server_for(Slow("slow", [RequestOp()]), rpc_port=rpc_port, http_port=http_port)
    starting = threading.Thread(target=server.start)
    starting.start()
    try:
        wait_until(lambda: status_of(http_port, "/health/live") == 200)
        with Connection(http_port) as connection:
            connection.send(request(body_of(a="early")))
            release.set()
            assert pairs_of(connection.answer()) == {"a": "early"}
    finally:
        release.set()
        starting.join()
        server.stop()


def test_a_worker_that_got_stuck_and_was_replaced_leaves_the_server_ready():
    release = threading.Event()

    class Hangs(Op):
        def process(self, feed_batch, typical_logid):
            if "hang" in feed_batch[0]:
                release.wait(60)
            return feed_batch[0]

    with server_for(Hangs("h", [RequestOp()], timeout=500)) as server:
        try:
            assert ask(server, request(body_of(hang="1"))).json["err_no"] == 6000
            assert status_of(server.http_port, "/health/ready") == 200
            assert pairs_of(ask(server, request(body_of(a="1")))) == {"a": "1"}
        finally:
            release.set()


# Connections ------------------------------------------------------------------------------


def test_a_connection_serves_many_requests(echo):
    with connect(echo) as connection:
        for number in range(5):
            connection.send(request(body_of(n=str(number))))
            assert pairs_of(connection.answer()) == {"n": str(number)}
        connection.send(request(b"", "Connection: close"))
        answer = connection.answer()
        assert (answer.json, answer.headers["connection"]) == (EMPTY, "close")
        assert connection.is_at_end()


def test_http_1_0_is_answered_and_hung_up(echo):
    with connect(echo) as connection:
        connection.send(b"POST /svc/p HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
        assert connection.answer().json == EMPTY
        assert connection.is_at_end()


def test_pipelined_requests_are_answered_in_order():
    entered, release = threading.Event(), threading.Event()

    class First(Tag):
        def preprocess(self, input_dicts, data_id, log_id):
            if data_id == 0:
                entered.set()
                release.wait(60)
            return super().preprocess(input_dicts, data_id, log_id)

    op = First("t", [RequestOp()], concurrency=4)
    with server_for(op) as server, connect(server) as connection:
        bodies = [request(body_of(path=str(number))) for number in range(20)]
        connection.send(b"".join(bodies[:10]))
        assert entered.wait(30)
        connection.send(b"".join(bodies[10:]))
        release.set()
        paths = [pairs_of(connection.answer())["path"] for _ in bodies]
        assert paths == [f"{number}>t" for number in range(20)]


def test_garbage_after_a_request_does_not_affect_its_answer(echo):
    with connect(echo) as connection:
        connection.send(request(body_of(a="1")) + request(body_of(b="2")) + b"garbage\r\n\r\n")
        assert pairs_of(connection.answer()) == {"a": "1"}
        assert pairs_of(connection.answer()) == {"b": "2"}
        assert connection.answer().status == 400
        assert connection.is_at_end()


def test_a_request_sent_byte_by_byte_is_parsed(echo):
    with connect(echo) as connection:
        for byte in request(chunked(body_of(a="1")), "Transfer-Encoding: chunked"):
            connection.send(bytes([byte]))
        assert pairs_of(connection.answer()) == {"a": "1"}


def test_chunks_with_extensions_and_trailers_are_understood(echo):
    body = b'1;a="b"\r\n{\r\n1\r\n}\r\n0\r\nX-Sum: 1\r\n\r\n'
    with connect(echo) as connection:
        for _ in range(2):
            connection.send(request(body, "Transfer-Encoding: chunked"))
            assert connection.answer().json == EMPTY


def test_expect_100_continue_is_answered(echo):
    body = body_of(a="1")
    with connect(echo) as connection:
        connection.send(request(b"", "Expect: 100-continue", length=len(body)))
        assert connection.line() == b"HTTP/1.1 100 Continue\r\n"
        assert connection.line() == b"\r\n"
        connection.send(body)
        assert pairs_of(connection.answer()) == {"a": "1"}


@pytest.mark.parametrize(
    ("path", "length", "status"), [("/svc/p", LIMIT + 1, 413), ("/nowhere", 2, 404)]
)
def test_expect_100_continue_of_an_invalid_request_is_refused_before_the_body(
    echo, path, length, status
):
    with connect(echo) as connection:
        connection.send(request(b"", "Expect: 100-continue", length=length, path=path))
        answer = connection.answer()
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert connection.is_at_end()


def test_an_offer_of_http_2_is_declined(echo):
    """Java's HttpClient makes it with the first request of every connection."""
    offer = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAA"]
    with connect(echo) as connection:
        connection.send(request(body_of(a="1"), *offer))
        assert pairs_of(connection.answer()) == {"a": "1"}
        connection.send(request(body_of(b="2"), *offer) + request(body_of(c="3")))
        assert pairs_of(connection.answer()) == {"b": "2"}
        assert pairs_of(connection.answer()) == {"c": "3"}
        connection.send(request(chunked(body_of(d="4")), *offer, "Transfer-Encoding: chunked"))
        assert pairs_of(connection.answer()) == {"d": "4"}
        connection.send(request(b"", *offer, "Connection: close", method="GET"))
        assert connection.answer().status == 405
        assert connection.is_at_end()


def test_connect_is_refused(echo):
    assert_refused(ask(echo, b"CONNECT a:1 HTTP/1.1\r\n\r\n", "GET"), 405, 8000, "not a proxy")


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /svc/p HTTP/9.9\r\n\r\n",
        b"POST /svc/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        request(length=-1),
        request(length="99999999999999999999999"),
        request(b"{}", "Content-Length: 3"),
        request(b"{}", "A\x00: b"),
        request(chunked(b"{}"), "Transfer-Encoding: chunked", "Content-Length: 2"),
    ],
)
def test_invalid_http_is_refused_with_a_response(echo, raw):
    with connect(echo) as connection:
        connection.send(raw)
        answer = connection.answer()
        assert_refused(answer, 400, 8000, "HTTP")
        assert answer.headers["connection"] == "close"
        assert connection.is_at_end()


@pytest.mark.parametrize(
    ("raw", "status", "text"),
    [
        (request(path="http://x"), 400, "its target has no path"),
        (request(path="http://x?/svc/p"), 400, "its target has no path"),
        (request(path="http://x:99999/svc/p"), 400, "its target has no path"),
        (request(path="/svc/" + "x" * 100_000), 431, "longer than 65536 bytes"),
        (request(path="/" + "x" * 65_535), 431, "longer than 65536 bytes"),
        (request(path="http://x/?" + "x" * 100_000), 431, "longer than 65536 bytes"),
        *(
            (request(chunked(b"{}"), *codings), 400, f'its Transfer-Encoding is "{reported}": send')
            for codings, reported in (
                (["Transfer-Encoding: gzip, chunked"], "gzip, chunked"),
                (["Transfer-Encoding: gzip", "Transfer-Encoding: chunked"], "gzip, chunked"),
                (["Transfer-Encoding: \xe9, Chunked"], "\xe9, Chunked"),
            )
        ),
    ],
)
@pytest.mark.parametrize("offer", [[], ["Connection: Upgrade", "Upgrade: h2c"]])
def test_a_head_that_cannot_be_served_is_refused_with_the_reason(echo, raw, status, text, offer):
    if offer:
        first, rest = raw.split(b"\r\n", 1)
        raw = b"\r\n".join([first, *map(str.encode, offer), rest])
    with connect(echo) as connection:
        connection.send(request(body_of(a="1")) + raw)
        assert pairs_of(connection.answer()) == {"a": "1"}
    with connect(echo) as connection:
        connection.send(raw)
        answer = connection.answer()
        assert_refused(answer, status, 8000, text)
        assert answer.headers["connection"] == "close"
        assert connection.is_at_end()


@pytest.mark.parametrize("path", ["http://x/svc/p", "http://x:80/svc/p?q", "/" + "x" * 60_000])
@pytest.mark.parametrize("coding", ["chunked", " \tCHUNKED"])
def test_a_head_that_is_odd_is_served(echo, path, coding):
    answer = ask(echo, request(chunked(b"{}"), f"Transfer-Encoding: {coding}", path=path))
    assert answer.status == (404 if path.startswith("/x") else 200)


def test_a_body_that_breaks_off_into_garbage_is_refused(echo):
    with connect(echo) as connection:
        connection.send(request(b"2\r\n{}\r\nz\r\n", "Transfer-Encoding: chunked"))
        assert_refused(connection.answer(), 400, 8000, "HTTP")
        assert connection.is_at_end()


@pytest.mark.parametrize(
    "part",
    [
        b"POST /" + b"x" * 500_000,
        b"POST /svc/p HTTP/1.1\r\nA: " + b"x" * 500_000,
        b"POST /svc/p HTTP/1.1\r\n" + b"A: b\r\n" * 100_000,
        request(b"0\r\n", "Transfer-Encoding: chunked") + b"A: b\r\n" * 100_000,
        request(b"0\r\n", "Transfer-Encoding: chunked") + b"A: " + b"x" * 500_000,
    ],
    ids=["url", "header", "headers", "trailers", "trailer"],
)
def test_a_head_without_end_is_refused(echo, part):
    with connect(echo) as connection:
        connection.send(part)
        assert_refused(connection.answer(), 431, 8000, "header")
        assert connection.is_at_end()


def test_a_slow_client_does_not_hold_up_the_others(echo):
    with contextlib.ExitStack() as stack:
        whole = request(body_of(a="slow"))
        slow = [stack.enter_context(connect(echo)) for _ in range(50)]
        for number, connection in enumerate(slow):
            connection.send(whole[: number % len(whole)])
        assert pairs_of(ask(echo, request(body_of(a="quick")))) == {"a": "quick"}
        for number, connection in enumerate(slow):
            connection.send(whole[number % len(whole) :])
        for connection in slow:
            assert pairs_of(connection.answer()) == {"a": "slow"}


def test_a_client_that_leaves_with_pipelined_requests_frees_its_places(holds):
    with server_for(holds) as server:
        with connect(server) as connection:
            connection.send(request(b"{}") * 3)
            assert holds.entered.acquire(timeout=30)
        try:
            wait_until(lambda: server.executor.inside == 0)
        finally:
            holds.release.set()


def test_a_client_that_does_not_read_its_answer_does_not_delay_the_stop(open_files):
    class Large(Op):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            return {"x": "x" * (30 * 2**20)}, None, ""

    server = server_for(Large("large", [RequestOp()])).start()
    with connect(server) as connection:
        connection.send(request())
        assert connection.line() == b"HTTP/1.1 200 OK\r\n"
        server.stop()


def test_half_a_body_does_not_keep_the_server_from_stopping():
    halves = (
        b"POST /svc/prediction HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{",
        b"POST /api/svc HTTP/1.1\r\nhost: localhost\r\ncontent-type: image/png\r\n"
        b"content-length: 1000000\r\n\r\nhalf",
        b"POST /api/svc HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{",
    )
    server = server_for(chain("a"), stop_grace_period=100).start()
    with contextlib.ExitStack() as closing:
        connections = [closing.enter_context(connect(server)) for _ in halves]
        for connection, half in zip(connections, halves, strict=True):
            connection.send(half)
        server.stop()
        for connection in connections:
            with contextlib.suppress(ConnectionResetError):
                assert connection.line() == b"", "it is closed"


# What the rest of the server may do wrong ---------------------------------------------------


def test_a_pack_method_that_gives_no_response_is_an_internal_error():
    class Wrong(ResponseOp):
        def pack_response_package(self, channeldata):
            return {"not": "a Response"}

    with server_for(chain("a"), response_op=Wrong([chain("a")])) as server:
        assert_refused(ask(server, request()), 500, 8000, "pack_response_package returned dict")


class Door:
    """An HttpFrontend on its own, in a loop of the test's, for a `handle` of the test's."""

    def __init__(self, handle, read_timeout_s: float = 60.0, routes=()) -> None:
        self._door = HttpFrontend(
            begin_of(handle), "127.0.0.1", 0, LIMIT, read_timeout_s, routes=routes
        )

    @property
    def port(self) -> int:
        return self._door.port

    async def __aenter__(self) -> Door:
        await self._door.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._door.close()
        await self._door.stop()

    async def talk(self, *pieces: bytes) -> bytes:
        """All that the server says, until it hangs up."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._door.port)
        try:
            text = b""
            for piece in pieces:
                writer.write(piece)
                if piece.endswith(b"}"):  # a whole request
                    text += await asyncio.wait_for(reader.readuntil(b"}"), 30)
            return text + await asyncio.wait_for(reader.read(), 30)
        finally:
            writer.close()
            await writer.wait_closed()


class Shelf:
    """A site of one path, whose answer says what it was asked."""

    def endpoint(self, request):
        return self.answer if request.path == "/shelf/of a/b" else None

    async def answer(self, request):
        if request.method == "DELETE":
            raise HttpError(410, PackageError("gone"))
        reported = [request.raw_path, request.query, request.headers[b"x-mine"].decode()]
        body = ",".join(reported).encode() + b"," + await request.read()
        return WebResponse(201, body, b"text/plain", ((b"x-site", b"yes"),))


def test_a_site_answers_for_its_own_paths():
    head = "Connection: close\r\nX-Mine: 1\r\n"

    async def test():
        async with Door(answers_at_once, routes=[Shelf()]) as door:
            return [
                await door.talk(
                    f"{line} HTTP/1.1\r\nHost: x\r\n{head}Content-Length: 4\r\n\r\nbody".encode()
                )
                for line in ("PUT /shelf/of%20a/b?q=1", "DELETE /shelf/of%20a/b", "GET /")
            ]

    ours, gone, nobody = asyncio.run(test())
    assert ours.startswith(b"HTTP/1.1 201 Created\r\n")
    assert b"content-type: text/plain\r\n" in ours
    assert b"x-site: yes\r\n" in ours
    assert ours.endswith(b"\r\n\r\n/shelf/of%20a/b,q=1,1,body")
    assert gone.startswith(b"HTTP/1.1 410 ")
    assert nobody.startswith(b"HTTP/1.1 404 ")


@on_loop
async def test_a_site_is_cancelled_when_its_client_disconnects():
    class Waits:
        def __init__(self):
            self.begun, self.cancelled = asyncio.Event(), asyncio.Event()

        def endpoint(self, request):
            return self.answer

        async def answer(self, request):
            self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()

    site = Waits()
    async with Door(answers_at_once, routes=[site]) as door:
        _, writer = await asyncio.open_connection("127.0.0.1", door.port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.wait_for(site.begun.wait(), 30)
        writer.close()
        await asyncio.wait_for(site.cancelled.wait(), 30)


async def answers_at_once(request, timeout_s):
    return pipeline_service_pb2.Response()


def test_an_unexpected_exception_is_an_internal_error_response(caplog):
    async def fails(request, timeout_s):
        raise ZeroDivisionError("our defect")

    async def test():
        async with Door(fails) as door:
            return await door.talk(request(b"", "Connection: close"))

    head, _, body = asyncio.run(test()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ")
    assert json.loads(body) == {**EMPTY, "err_no": 10000, "err_msg": "internal error of the server"}
    assert "our defect" in caplog.text


def test_an_answer_that_cannot_be_written_ends_the_connection(caplog):
    class Odd:
        def endpoint(self, request):
            return self.answer

        async def answer(self, request):
            return WebResponse(body="text")

    async def test():
        async with Door(answers_at_once, routes=[Odd()]) as door:
            return await door.talk(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")

    assert asyncio.run(test()) == b""
    assert "GET /a failed" in caplog.text


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b"POST /svc/p HT"],
        [request(b"{}"), b"POST /svc/p HT"],
        [request(b"{}"), b"\r\n"],
    ],
    ids=["silence", "half a head", "half a second head", "a blank line"],
)
def test_an_idle_connection_is_closed(pieces):
    async def test():
        async with Door(answers_at_once, read_timeout_s=0.05) as door:
            return await door.talk(*pieces)

    said = asyncio.run(test())
    assert said.count(b"HTTP/1.1 200 OK") == (len(pieces) > 1)
    assert said.count(b"HTTP/1.1") == said.count(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("body", [b"", b"{"], ids=["no body", "half a body"])
@pytest.mark.parametrize("header", ["Content-Length: 2", "Transfer-Encoding: chunked"])
def test_a_body_that_is_too_slow_is_a_timeout(header, body):
    if "chunked" in header and body:
        body = b"2\r\n{"

    async def test():
        async with Door(answers_at_once, read_timeout_s=0.05) as door:
            return await door.talk(f"POST /svc/p HTTP/1.1\r\n{header}\r\n\r\n".encode() + body)

    head, _, body = asyncio.run(test()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in head
    assert json.loads(body)["err_no"] == 6000


def test_patience_is_with_the_caller_not_with_the_answer():
    async def slow(request, timeout_s):
        await asyncio.sleep(0.2)
        return pipeline_service_pb2.Response(err_msg=request.value[0])

    async def test():
        async with Door(slow, read_timeout_s=0.05) as door:
            last = request(body_of(a="3"), "Connection: close")
            return await door.talk(request(body_of(a="1")), request(body_of(a="2")), last)

    said = asyncio.run(test())
    assert said.count(b"HTTP/1.1 200 OK") == 3


@virtual
async def test_a_frontend_without_connections_closes_without_waiting():
    loop = asyncio.get_running_loop()
    async with Door(answers_at_once):
        before = loop.time()
    assert loop.time() == before


# Too many connections ---------------------------------------------------------------------


def test_idle_connections_are_closed_for_new_ones_and_busy_ones_are_not(monkeypatch):
    monkeypatch.setattr("pipeline.frontends.http.listener.most_open_files", lambda: 8)
    entered, release = threading.Semaphore(0), threading.Event()

    class Waits(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            if "held" in input_dicts["@DAGExecutor"]:
                entered.release()
                release.wait(60)
            return {"x": "fine"}

    op, settings = Waits("w", [RequestOp()]), {"w": {"concurrency": 5}}
    with server_for(op, worker_num=8, op=settings) as server, contextlib.ExitStack() as held:
        for _ in range(20):
            held.enter_context(connect(server))
        assert ask(server, request(body_of(x="1"))).status == 200
        busy = []
        for _ in range(4):
            busy.append(held.enter_context(connect(server)))
            busy[-1].send(request(body_of(held="1")))
            assert entered.acquire(timeout=20)
        refused = ask(server, b"")
        assert (refused.status, refused.json["err_no"]) == (503, 3004)
        assert refused.headers["retry-after"] == "1"
        assert "ulimit -n" in refused.json["err_msg"]
        release.set()
        assert [connection.answer().status for connection in busy] == [200] * 4
