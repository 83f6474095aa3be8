"""A server of OpenAI's API that answers as a test says, and takes down what it was asked."""

from __future__ import annotations

import contextlib
import json
import queue
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

KEY = "sk-of-the-test-0123456789"

DONE = b"data: [DONE]\n\n"


class ReceivedRequest(NamedTuple):
    """One request: its connection's number, path, headers in lower case, and body."""

    connection: int
    path: str
    headers: dict[str, str]
    body: Any


class Upstream(ThreadingHTTPServer):
    """Answers requests in turn by `answers`, then always by the last one.

    Attributes:
        asked: what came.
        left: gets the number of a connection on which a caller hung up during a stream.
    """

    daemon_threads = True

    def __init__(self, *answers: Callable[[Any, Any], None]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = list(answers)
        self.asked: list[ReceivedRequest] = []
        self.left: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.connections = 0
        self.lock = threading.Lock()

    scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/v1"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: callers of these tests hang up."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server.lock:
            self.server.connections += 1
            self.number = self.server.connections

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.server.lock:
            self.server.asked.append(
                ReceivedRequest(self.number, self.path, headers, json.loads(body))
            )
            answers = self.server.answers
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self, self.server.asked[-1])

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@contextlib.contextmanager
def upstream(
    *answers: Callable[[Any, Any], None], tls: ssl.SSLContext | None = None
) -> Iterator[Upstream]:
    """A server that answers so, in threads of its own."""
    with Upstream(*answers) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
            server.scheme = "https"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def says(body: Any, status: int = 200, **headers: str) -> Callable[[Any, Any], None]:
    """An answer in one piece; `body` is JSON data, or bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()

    def answer(handler: Any, asked: ReceivedRequest) -> None:
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def streams(
    *chunks: Any, end: bytes = DONE, then: threading.Event | None = None, is_cut: bool = False
) -> Callable[[Any, Any], None]:
    """An answer of server-sent events; with `then` it waits for that, or for the caller to leave.

    `is_cut`: the connection is closed without the end of the body.
    """

    def answer(handler: Any, asked: ReceivedRequest) -> None:
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream; charset=utf-8")
        handler.send_header("transfer-encoding", "chunked")
        handler.end_headers()
        try:
            for chunk in chunks:
                _chunk(handler, b"data: %b\n\n" % json.dumps(chunk).encode())
            has_left = then is not None and _leaves(handler, then)
        except ConnectionError:  # a caller who has not read all resets the connection
            has_left = True
        if has_left:
            handler.server.left.put(handler.number)
            handler.close_connection = True
            return
        if is_cut:
            handler.close_connection = True
            return
        if end:
            _chunk(handler, end)
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def _leaves(handler: Any, then: threading.Event) -> bool:
    """Whether the caller leaves before the event, as servers look for it."""
    handler.wfile.flush()
    handler.connection.settimeout(0.01)
    while not then.is_set():
        with contextlib.suppress(TimeoutError):
            if not handler.connection.recv(1):
                return True
    handler.connection.settimeout(None)
    return False


def _chunk(handler: Any, data: bytes) -> None:
    handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))


def chat(text: str | None, reason: str = "stop", **message: Any) -> dict[str, Any]:
    """A whole answer to a chat."""
    said = {"role": "assistant", "content": text, "refusal": None, **message}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "logprobs": None, "finish_reason": reason}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def delta(reason: str | None = None, **said: Any) -> dict[str, Any]:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": said, "finish_reason": reason}], "usage": None}


USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}}
