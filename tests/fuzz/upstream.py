"""`python -m fuzz.upstream`: an Op with `client_type: openai`, and servers that fail.

Each request has a plan of the server's treatment of each attempt: a good answer in pieces of any
size, statuses, bodies that are cut off or are not JSON, a closed connection, silence. The fuzzer
compares the ending with a plain evaluation of the server's log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from openai_upstream import DONE, ReceivedRequest, chat, delta, upstream
from streaming import PartsSink

from fuzz.campaign import campaign, parser_of
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.errors import ErrorCode, OverloadedError
from pipeline.proto import pipeline_service_pb2

_LATER = (408, 429, 502, 503, 504)
_CALLERS = (400, 413, 422)
_OTHERS = (401, 404, 500)
_ENDS = ("good", "garbage", "cut", "silence", *_CALLERS, *_OTHERS)
_PATIENCE_S = 30.0
_MOST_REQUESTS = 12
_UNAVAILABLE, _INPUT = 9000, 5000


@dataclass
class Wanted:
    """One request.

    Attributes:
        attempts: the treatment of each attempt; no attempt follows the last one.
        parts: the texts of a stream; a whole answer has them as one text.
        breaks_at: the number of parts after which a stream ends with `how`.
        done: the log of the server: (treatment, whether the connection had answered before).
    """

    number: int
    streams: bool
    attempts: list[Any]
    parts: list[str]
    breaks_at: int | None
    how: str
    begins_s: float
    leaves_s: float | None
    timeout_s: float | None
    done: list[tuple[Any, bool]] = field(default_factory=list)
    has_left: bool = False


def wanted(rng: random.Random, number: int) -> Wanted:
    """Return a random request."""
    most = rng.choice([0, 0, 0, 1, 2, 4])
    attempts = [rng.choice([*_LATER, "hang up"]) for _ in range(most)]
    attempts.append("good" if rng.random() < 0.6 else rng.choice(_ENDS))
    parts = [f"r{number}.{place} " for place in range(rng.choice([0, 1, 2, 5, 30]))]
    streams, breaks = rng.random() < 0.6, rng.random() < 0.3
    is_left = rng.random() < (0.5 if attempts[-1] == "silence" else 0.1)
    is_limited = not is_left if attempts[-1] == "silence" else rng.random() < 0.1
    return Wanted(
        number,
        streams,
        attempts,
        parts,
        breaks_at=rng.randint(0, len(parts)) if breaks and streams else None,
        how=rng.choice(["error", "cut", "garbage", "no end"]),
        begins_s=rng.choice([0.0, 0.0, rng.random() * 0.3]),
        leaves_s=rng.random() * 0.4 if is_left else None,
        timeout_s=rng.random() if is_limited else None,
    )


class Asks(Op):
    """Asks a remote model for a whole answer or a stream, as the request says."""

    def preprocess(self, input_dicts: Any) -> Any:
        given = input_dicts["@DAGExecutor"]
        turn = {"role": "user", "content": given["number"]}
        return {"messages": [turn], "seed": int(given["streams"])}

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        (feed,) = feed_batch
        if feed["seed"]:
            yield from self.client.stream(feed, context)
        else:
            yield self.client.predict(feed, context=context)

    def postprocess(self, input_dicts: Any, fetch_data: Any) -> Any:
        return {"text": fetch_data["text"]}


class Server:
    """A model server that treats each attempt as its request plans."""

    def __init__(self, requests: list[Wanted], rng: random.Random) -> None:
        self.requests = {str(request.number): request for request in requests}
        self.waits = 0
        self._seed = rng.random()
        self._lock = threading.Lock()
        self._answered: set[tuple[str, int]] = set()  # connections, by server

    def __call__(self, handler: Any, asked: ReceivedRequest) -> None:
        request = self.requests[asked.body["messages"][0]["content"]]
        with self._lock:
            treatment = request.attempts[min(len(request.done), len(request.attempts) - 1)]
            connection = (handler.server.url, asked.connection)
            request.done.append((treatment, connection in self._answered))
            self._answered.add(connection)
        rng = random.Random(f"{self._seed} {request.number} {len(request.done)}")
        if rng.random() < 0.2 or treatment == "hang up":
            handler.close_connection = True
        with contextlib.suppress(OSError):
            self._treat(handler, request, treatment, rng)

    def _treat(self, handler: Any, request: Wanted, treatment: Any, rng: random.Random) -> None:
        if treatment == "hang up":
            return
        if treatment == "silence":
            self._wait(handler)
        elif isinstance(treatment, int):
            later = b"retry-after: 0\r\n" if treatment in _LATER else b""
            self._write(handler, rng, treatment, later, [b'{"error": {"message": "no"}}'])
        elif treatment == "garbage":
            self._write(handler, rng, 200, b"", [rng.choice([b"{", b"[1]", b'{"choices": []}'])])
        elif not request.streams:
            body = json.dumps(chat("".join(request.parts))).encode()
            self._write(handler, rng, 200, b"", [body], is_cut=treatment == "cut")
        else:
            pieces = list(_events(request))
            is_cut = treatment == "cut" or (request.breaks_at is not None and request.how == "cut")
            pieces = pieces[:0] if treatment == "cut" else pieces
            self._write(handler, rng, 200, b"", pieces, is_cut, is_chunked=True)

    def _write(
        self,
        handler: Any,
        rng: random.Random,
        status: int,
        more: bytes,
        pieces: list[bytes],
        is_cut: bool = False,
        is_chunked: bool | None = None,
    ) -> None:
        """Write an answer in pieces of random sizes; a cut one lacks its end."""
        is_chunked = rng.random() < 0.5 if is_chunked is None else is_chunked
        body = b"".join(pieces)
        data = b"HTTP/1.1 %d Fuzzed\r\n%b" % (status, more)
        if handler.close_connection or is_cut:
            data += b"connection: close\r\n"
        if is_chunked:
            data += b"transfer-encoding: chunked\r\n\r\n"
            data += b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
            data += b"" if is_cut else b"0\r\n\r\n"
        else:
            data += b"content-length: %d\r\n\r\n%b" % (len(body) + is_cut, body)
        handler.close_connection |= is_cut
        while data:
            size = rng.choice([1, 7, 100, 4096, 65536])
            handler.connection.sendall(data[:size])
            data = data[size:]

    def _wait(self, handler: Any) -> None:
        """Send nothing until the caller closes the connection."""
        with self._lock:
            self.waits += 1
        handler.close_connection = True
        handler.connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(TimeoutError):
            handler.connection.recv(1)
            with self._lock:
                self.waits -= 1


def _events(request: Wanted) -> Iterator[bytes]:
    """The events of a stream, up to where it breaks."""
    for place, part in enumerate(request.parts):
        if place == request.breaks_at:
            break
        yield b": a comment\n\n" if place % 3 == 2 else b""
        yield _event(delta(content=part))
    if request.breaks_at is None:
        yield _event(delta("stop"))
        yield DONE
    elif request.how == "error":
        yield _event({"error": {"message": "broken", "code": 500}})
    elif request.how == "garbage":
        yield b"data: {\n\n"


def _event(data: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


def problem_with(request: Wanted, retries: int, texts: list[str], last: Any) -> str:
    """Return the defect in the ending of a request, by the server's log; "" if there is none."""
    whole = "".join(request.parts)
    got = "".join(texts)
    if last == "nothing yet":
        return "" if request.has_left and whole.startswith(got) else "it has no end"
    code = 0 if last is None else last.err_no
    if last is not None and not code:
        got += dict(zip(last.key, last.value, strict=True))["text"]
    if not whole.startswith(got):
        return f"{got!r} is of another request, or in another order: {whole!r}"
    if request.timeout_s is not None and code in (ErrorCode.TIMEOUT, OverloadedError.code):
        return ""
    tries = 0
    for place, (treatment, is_kept) in enumerate(request.done):
        is_last = place == len(request.done) - 1
        if treatment == "hang up" or treatment in _LATER:
            tries += not (treatment == "hang up" and is_kept)
            if tries > retries:
                return _refused(code, _UNAVAILABLE, got) if is_last else "it was asked once more"
            if is_last:
                return "" if request.timeout_s is not None else f"it was asked {place + 1} times"
        elif not is_last:
            return f"it was asked once more after {treatment}"
        else:
            return _end(request, treatment, code, got)
    return "" if code and request.timeout_s is not None else "it was never asked"


def _end(request: Wanted, treatment: Any, code: int, got: str) -> str:
    """Return the defect in an ending, by the last treatment; "" if there is none."""
    if treatment in _CALLERS:
        return _refused(code, _INPUT, got)
    if treatment != "good":
        return _refused(code, _UNAVAILABLE, got)
    if request.breaks_at is not None:
        before = "".join(request.parts[: request.breaks_at])
        return _refused(code, _UNAVAILABLE, got, before)
    return "" if (code, got) == (0, "".join(request.parts)) else f"it ended with {code}, {got!r}"


def _refused(code: int, expected: int, got: str, before: str = "") -> str:
    return "" if (code, got) == (expected, before) else f"{code}, not {expected}, after {got!r}"


def run(seed: int) -> list[str]:
    """Run a case; return its findings."""
    rng = random.Random(seed)
    requests = [wanted(rng, number) for number in range(rng.randint(1, _MOST_REQUESTS))]
    retries = rng.choice([0, 1, 2, 5])
    played = Server(requests, rng)
    with upstream(played) as one, upstream(played) as two:
        endpoints = [one.url, two.url][: rng.choice([1, 1, 2])]
        op = Asks("llm", [RequestOp()], concurrency=rng.choice([2, 8]))
        server = PipelineServer("fuzz")
        server.set_response_op(ResponseOp([op]))
        keys = {"server_endpoints": endpoints, "retries": retries, "client_type": "openai"}
        server.prepare_server(yml_dict={"rpc_port": 0, "op": {"llm": keys}})
        try:
            return asyncio.run(_run(server, requests, retries, played))
        except Exception as error:
            return [f"{type(error).__name__}: {error}"]


async def _run(
    server: PipelineServer, requests: list[Wanted], retries: int, played: Server
) -> list[str]:
    loop = asyncio.get_running_loop()
    async with server:
        sinks = [PartsSink() for _ in requests]
        for request, sink in zip(requests, sinks, strict=True):
            loop.call_later(request.begins_s, _begin, server, request, sink, loop)

        def is_over() -> bool:
            pairs = zip(requests, sinks, strict=True)
            return all(one.has_left or sink.last != "nothing yet" for one, sink in pairs)

        await _until(is_over)
        await _until(lambda: not (played.waits or server.executor.inside))
        found = []
        if played.waits or server.executor.inside:
            found.append(f"{played.waits} calls, {server.executor.inside} requests are left")
        for request, sink in zip(requests, sinks, strict=True):
            problem = problem_with(request, retries, sink.texts, sink.last)
            if problem:
                found.append(f"{problem}; {request}; retries {retries}; {sink.last!r:.200}")
        return found


def _begin(server: PipelineServer, request: Wanted, sink: Any, loop: Any) -> None:
    values = [str(request.number), str(int(request.streams))]
    raw = pipeline_service_pb2.Request(key=["number", "streams"], value=values)
    try:
        sink.request = server.executor.begin(raw, request.timeout_s, None, sink)
    except OverloadedError:  # it could not be answered in time
        request.has_left = True
        return
    if request.leaves_s is not None:
        loop.call_later(request.leaves_s, _leave, request, sink)


def _leave(request: Wanted, sink: Any) -> None:
    if sink.last == "nothing yet":
        request.has_left = True
        sink.request.cancel()


async def _until(is_so: Any) -> None:
    ends = time.monotonic() + _PATIENCE_S
    await asyncio.sleep(0.35)  # all have begun
    while not is_so() and time.monotonic() < ends:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0.02)


def main() -> int:
    parser = parser_of("upstream", __doc__)
    return campaign(parser.prog, parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
