"""`python -m benchmarks.bytecodes`: bytecodes and calls of warm requests, each with its budget.

What the server's threads execute is counted by a trace function, from the moment when a request is
sent until its answer is there. Noise does not touch the counts: a slower way is found without a
clock. Child processes and native code are not counted. The counts are those of CPython 3.11: other
versions compile to other bytecodes.

The budgets are held by tests/integration/benchmarks/test_bytecodes.py, each with 2 % above it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import queue
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import grpc
import numpy as np

import pipeline
from pipeline import Op, PipelineServer, RequestOp, ResponseOp
from pipeline.config.op_settings import resolve_op
from pipeline.config.schema import load_config
from pipeline.data import NO_INFO
from pipeline.engine.streams import steps
from pipeline.engine.trips import pace, trip, trips
from pipeline.op import configure_op
from pipeline.proto.pipeline_service_pb2 import Request
from pipeline.repository.backends.python.model_op import ModelSpec, model_op
from pipeline.repository.control import ControlSettings
from pipeline.repository.server import RepositorySettings, new_service
from pipeline.system.event_loop import LoopThread
from pipeline.workers.process.main import WorkerMain
from pipeline.workers.process.wire import (
    Init,
    Jobs,
    Unframer,
    WireConvoy,
    WireItem,
    WireJob,
    framed,
)
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.payload import SerializedPayload, plain_arrays

Ask = Callable[[], None]

BUDGETS = {
    "E": 1887,
    "E5": 3342,
    "D": 2939,
    "chain of 20": 7032,
    "own unpack and pack": 3540,
    "three with process": 5368,
    "the same in batches of 8": 6767,
    "v2 JSON": 2399,
    "v2 binary": 2436,
    "/api": 1825,
    "gRPC": 2100,
    "the link": 2143,
    "a step of a sequence": 4796,
    "a Python model alone": 4741,
    "a part of a stream": 990,  # some more, or fewer, as threads take turns
    "a part that goes alone": 1300,
    "a chat": 3470,
    "a part of a chat": 1237,  # at most 1.25 times "a part of a stream"
    "a part of a chat that goes alone": 1540,  # at most 1.25 times "a part that goes alone"
    "a word of 32 callers": 960,  # some more, or fewer, as threads take turns
    "a Python model in a convoy of 8": 1854,  # fewer where all of them are read in one turn
    "a Python model in a message of 16": 1106,  # of the server: its worker is a process
    "a worker's request": 2069,
    "a worker's request, of 8 in a message": 1155,
    "a worker's request, of 8 in a batch": 708,
}
"""Bytecodes of each case: lower one when a change makes its request cheaper."""

TOLERANCE = 0.02
"""Share of its budget by which a count may exceed it."""

STEPS = {
    "a part of a stream": (28, 21),
    "a part that goes alone": (33, 25),
    "a word of 32 callers": (18, 9),
}
"""Limits for a part of a stream: (calls in our code, moves between our files)."""

_OURS = str(Path(pipeline.__file__).parent)
_WARM_UP = 200  # requests: one-time work is done, and all Ops count as quick
_COUNTED = 12  # requests; the cheapest counts, since the number of thread wake-ups varies
_TIMES_SLOWER = 200  # under the trace function
_SETTLE_S = 0.004  # the engine still does bookkeeping after an answer


class Count(NamedTuple):
    """The cost of a request: bytecodes, calls in our code, moves between our files."""

    bytecodes: float
    calls: float
    moves: float

    def minus(self, other: Count, by: int = 1) -> Count:
        """Return the `by`th part of the difference."""
        return Count(*((mine - its) / by for mine, its in zip(self, other, strict=True)))


class Counter:
    """A trace function for all threads but this one, where gRPC's client works."""

    def __init__(self) -> None:
        self.bytecodes = self.calls = self.moves = 0
        self._is_on = False
        self._main = threading.get_ident()
        self._last = ""  # our file that was entered last

    def begin(self) -> None:
        """Trace the threads that start from now on; `of` counts."""
        threading.settrace(self._enter)

    def of(self, ask: Ask) -> Count:
        """Return the cost of one request."""
        self.bytecodes = self.calls = self.moves = 0
        self._is_on = True
        ask()
        time.sleep(_SETTLE_S)
        self._is_on = False
        return Count(self.bytecodes, self.calls, self.moves)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        is_counted = self._is_on and threading.get_ident() != self._main
        file = frame.f_code.co_filename
        if not is_counted or "/grpc/" in file:
            return None
        if file.startswith(_OURS):
            self.calls += 1
            self.moves += file != self._last
            self._last = file
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.bytecodes += 1
        return self._step


# Services ---------------------------------------------------------------------------------------


class Echo(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, fields),) = input_dicts.items()
        return fields, False, None, ""

    def postprocess(self, input_dicts: Any, fetched: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return fetched, None, ""


class Sum(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        ((_, fields),) = input_dicts.items()
        return {"sum": fields["x"]}, False, None, ""


class Combine(Op):
    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        return {"x": input_dicts["a"]["sum"]}, False, None, ""


class Processes(Op):
    def preprocess(self, input_dicts: Any) -> Any:
        (fields,) = input_dicts.values()
        return fields

    def process(self, feed_batch: Any) -> Any:
        return {"x": feed_batch[0]["x"]}


class Paced(Op):
    def process(self, feed_batch: Any) -> Any:
        for number in range(int(feed_batch[0]["x"])):
            _GATE.get()  # a part goes when the one before it has been read
            yield {"x": str(number)}


class Writes(Op):
    """Writes so many words, step by step, for all who are there."""

    def preprocess(self, input_dicts: Any, *, context: Any) -> Any:
        (fields,) = input_dicts.values()
        context.state["left"] = int(fields["x"])
        return {"one": np.ones(1, np.float32)}

    def process(self, feed_batch: Any, *, context: Any) -> Any:
        left = [request.state["left"] - 1 for request in context]
        for request, count in zip(context, left, strict=True):
            request.state["left"] = count
        return {"word": np.array(left), "done": np.array(left) == 0}

    def postprocess(self, input_dicts: Any, fetched: Any) -> Any:
        return {"x": "word"}


class Speaks(Op):
    def process(self, feed_batch: Any) -> Any:
        for number in range(int(feed_batch[0]["x"])):
            yield {"x": str(number)}


class OwnRequest(RequestOp):
    def unpack_request_package(self, request: Any) -> Any:
        return dict(zip(request.key, request.value, strict=True)), None, None, ""


class OwnResponse(ResponseOp):
    def pack_response_package(self, channeldata: Any) -> Any:
        return super().pack_response_package(channeldata)


def chain(count: int, kind: type[Op] = Echo, read: RequestOp | None = None) -> Op:
    """Return the last of so many Ops in a row."""
    last: Op = read or RequestOp()
    for number in range(count):
        last = kind(f"op{number}", [last])
    return last


def diamond() -> Op:
    read = RequestOp()
    return Combine("c", [Sum("a", [read]), Sum("b", [read])])


@contextlib.contextmanager
def serving(last: Op, response: type[ResponseOp] = ResponseOp, **config: Any) -> Iterator[Any]:
    """Serve a graph on free ports."""
    server = PipelineServer("svc")
    server.set_response_op(response([last]))
    server.prepare_server(
        yml_dict={"rpc_port": 0, "http_port": 0, "edge": "embedded", "host": "127.0.0.1", **config}
    )
    with server:
        yield server


def post(path: str, body: object, *headers: str) -> bytes:
    """Return the bytes of a request; what is not bytes is sent as JSON."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join([*head, f"Content-Length: {len(sent)}", "", ""]).encode() + sent


class Connection:
    """A connection over HTTP; `ends`: what an answer ends with."""

    def __init__(self, port: int | None, ends: bytes = b"}") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ends = ends
        self._received = b""

    def ask(self, request: bytes) -> None:
        """Send a request and read its answer."""
        self.send(request)
        self.read()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def read(self) -> None:
        """Read an answer. RuntimeError: it is not that of a request that went well."""
        received, self._received = self._received, b""
        while b"\r\n\r\n" not in received or not received.rstrip(b" ").endswith(self._ends):
            more = self._socket.recv(65536)
            if not more:
                break
            received += more
        if not received.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"not answered: {received[:400]!r}")

    def read_parts(self, count: int) -> None:
        """Read so many parts of an answer; `read` reads the rest."""
        while self._received.count(b'data: {"') < count:
            self._received += self._socket.recv(65536)

    def close(self) -> None:
        self._socket.close()


PAIRS = post("/svc/prediction", {"key": ["x"], "value": ["1"]})
TENSOR = {"name": "x", "shape": [16], "datatype": "FP32"}


@contextlib.contextmanager
def over_http(server: Any, request: bytes, ends: bytes = b"}") -> Iterator[Ask]:
    with contextlib.closing(Connection(server.http_port, ends)) as connection:
        yield lambda: connection.ask(request)


@contextlib.contextmanager
def http(last: Op, request: bytes = PAIRS, *given: Any, **config: Any) -> Iterator[Ask]:
    """Serve a graph and ask it over HTTP."""
    with serving(last, *given, **config) as server, over_http(server, request) as ask:
        yield ask


@contextlib.contextmanager
def over_grpc() -> Iterator[Ask]:
    method = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
    message = Request(key=["x"], value=["1"], name="svc").SerializeToString()
    with (
        serving(chain(1)) as server,
        grpc.insecure_channel(f"127.0.0.1:{server.rpc_port}") as channel,
    ):
        call: Any = channel.unary_unary(method)
        yield lambda: call(message, timeout=30)


def binary_infer() -> bytes:
    sizes = {"binary_data_size": 64}
    head = json.dumps(
        {
            "inputs": [{**TENSOR, "parameters": sizes}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = f"Inference-Header-Content-Length: {len(head)}"
    return post("/v2/models/svc/infer", head + bytes(64), length)


MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(each, "x").as_numpy())]
            )
            for each in requests
        ]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 16 ] } ]
"""
BATCHES = """
dynamic_batching { }
parameters { key: "workers" value { string_value: "thread" } }
"""


@contextlib.contextmanager
def worker(count: int, batch_size: int) -> Iterator[Ask]:
    """Run a Python model's worker, in a thread; send it so many requests in one message."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.py")
        file.write_text(MODEL)
        op = model_op(ModelSpec("m", 1, folder, str(file), folder, "{}", ("y",)))
        batching = {"batch_size": batch_size, "batching": "dynamic" if batch_size > 1 else "full"}
        config = load_config(yml_dict={"rpc_port": 0, "op": {"m": batching}})
        configure_op(op, resolve_op("m", {}, config))
        arena = Arena(2**20)
        here, there = socket.socketpair()
        main = WorkerMain(op, arena, lambda send: None, lambda op, number: None)
        runs = threading.Thread(target=main, args=(there, 0), daemon=True)
        runs.start()
        here.sendall(framed(Init(arena.new_region(), arena.new_region())))
        reports, numbers = Unframer(), itertools.count(1)
        inputs = {"x": SerializedPayload(b"", arrays=plain_arrays(np.ones((count, 16)), 2**20))}
        item = WireItem(1, 0, inputs, is_feed=True, info=NO_INFO)
        if count > 1:
            item.convoy = WireConvoy(list(range(count)), [1] * count)

        def read() -> None:
            while not reports.feed(here.recv(65536)):
                """A report came in part."""

        def ask() -> None:
            here.sendall(framed(Jobs([WireJob(next(numbers), [item])], [])))
            read()

        read()  # that it is ready
        yield ask
        here.shutdown(socket.SHUT_RDWR)
        runs.join()
        here.close()
        arena.close()


@contextlib.contextmanager
def repository(count: int, config: str = "") -> Iterator[Ask]:
    """Serve a Python model; ask so many times at once, while the event loop is held.

    Without a configuration it is a thread's, and has batches.
    """
    request = post(
        "/v2/models/m/infer", {"inputs": [{**TENSOR, "shape": [1, 16], "data": [1.0] * 16}]}
    )
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        version = Path(folder, "m", "1")
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL)
        (version.parent / "config.pbtxt").write_text(config or CONFIG + BATCHES)
        settings = {"rpc_port": 0, "http_port": 0, "edge": "embedded", "host": "127.0.0.1"}
        service = new_service(RepositorySettings(ControlSettings((Path(folder),)), settings))
        thread = stack.enter_context(contextlib.closing(LoopThread()))
        thread.run(service.start())
        stack.callback(lambda: thread.run(service.stop()))
        callers = [
            stack.enter_context(contextlib.closing(Connection(service.http_port)))
            for _ in range(count)
        ]

        def ask() -> None:
            held, sent = threading.Event(), threading.Event()
            thread.loop.call_soon_threadsafe(held.set)
            thread.loop.call_soon_threadsafe(sent.wait)
            held.wait()
            for caller in callers:
                caller.send(request)
            sent.set()
            for caller in callers:
                caller.read()

        yield ask


_GATE: queue.SimpleQueue[None] = queue.SimpleQueue()
_LAST_CHUNK = b"0\r\n\r\n"


CHAT = {"frontends": {"openai": {"models": {"svc": {"prompt": "x", "text": "x"}}}}}


def asks_in_a_chat(count: int, **more: Any) -> bytes:
    messages = [{"role": "user", "content": str(count)}]
    return post("/v1/chat/completions", {"model": "svc", "messages": messages, **more})


def asks_for_parts(count: int) -> bytes:
    pairs = {"key": ["x"], "value": [str(count)]}
    return post("/svc/prediction", pairs, "Accept: text/event-stream")


@contextlib.contextmanager
def speaking(request: bytes) -> Iterator[Ask]:
    with (
        serving(chain(1, Speaks), **CHAT) as server,
        over_http(server, request, _LAST_CHUNK) as ask,
    ):
        yield ask


@contextlib.contextmanager
def paced(parts: int, request: bytes) -> Iterator[Ask]:
    """Ask for parts, each of which is made when the one before it has been read."""
    with (
        serving(chain(1, Paced), **CHAT) as server,
        contextlib.closing(Connection(server.http_port, _LAST_CHUNK)) as connection,
    ):

        def ask() -> None:
            connection.send(request)
            for number in range(parts):
                _GATE.put(None)
                connection.read_parts(number + 1)
            connection.read()

        yield ask


@contextlib.contextmanager
def writing(words: int, callers: int = 32) -> Iterator[Ask]:
    """Have so many callers ask at once for so many words, which are written step by step."""
    steps._QUICK_NS = steps._HOLD_NS = 10**12
    iterative = {"op0": {"batching": "iterative", "batch_size": callers}}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            serving(chain(1, Writes), op=iterative, worker_num=2 * callers)
        )
        connections = [
            stack.enter_context(contextlib.closing(Connection(server.http_port, _LAST_CHUNK)))
            for _ in range(callers)
        ]

        def ask() -> None:
            for connection in connections:
                connection.send(asks_for_parts(words))
            for connection in connections:
                connection.read()

        yield ask


@contextlib.contextmanager
def stepping() -> Iterator[Ask]:
    """Ask for steps of one sequence."""

    def step(**more: object) -> bytes:
        body = {"parameters": {"sequence_id": 7, **more}}
        return post("/v2/models/svc/infer", {"inputs": [{**TENSOR, "data": [1.0] * 16}], **body})

    direct = {"op0": {"sequence": {"strategy": "direct"}}}
    with serving(chain(1), op=direct) as server, over_http(server, step()) as ask:
        with contextlib.closing(Connection(server.http_port)) as connection:
            connection.ask(step(sequence_start=True))
        yield ask


def cases() -> dict[str, Callable[[], contextlib.AbstractContextManager[Ask]]]:
    """Return what is counted, by name."""
    infer = post("/v2/models/svc/infer", {"inputs": [{**TENSOR, "data": [1.0] * 16}]})
    batches = {f"op{number}": {"batch_size": 8} for number in range(3)}
    return {
        "E": lambda: http(chain(1)),
        "E5": lambda: http(chain(5)),
        "D": lambda: http(diamond()),
        "chain of 20": lambda: http(chain(20)),
        "own unpack and pack": lambda: http(chain(2, read=OwnRequest()), PAIRS, OwnResponse),
        "three with process": lambda: http(chain(3, Processes)),
        "the same in batches of 8": lambda: http(chain(3, Processes), op=batches),
        "v2 JSON": lambda: http(chain(1), infer),
        "v2 binary": over_binary,
        "/api": lambda: http(chain(1), post("/api/svc", {"x": "1"})),
        "gRPC": over_grpc,
        "the link": lambda: http(chain(1), edge="gateway"),
        "a chat": lambda: http(chain(1), asks_in_a_chat(1), **CHAT),
        "1 part of a stream": lambda: speaking(asks_for_parts(1)),
        "33 parts of a stream": lambda: speaking(asks_for_parts(33)),
        "1 part by itself": lambda: paced(1, asks_for_parts(1)),
        "9 parts by themselves": lambda: paced(9, asks_for_parts(9)),
        "1 piece of a chat": lambda: speaking(asks_in_a_chat(1, stream=True)),
        "33 pieces of a chat": lambda: speaking(asks_in_a_chat(33, stream=True)),
        "1 piece by itself": lambda: paced(1, asks_in_a_chat(1, stream=True)),
        "9 pieces by themselves": lambda: paced(9, asks_in_a_chat(9, stream=True)),
        "8 words of 32 callers": lambda: writing(8),
        "40 words of 32 callers": lambda: writing(40),
        "a step of a sequence": stepping,
        "a Python model alone": lambda: repository(1),
        "8 requests in a convoy": lambda: repository(8),
        "16 requests in a message": lambda: repository(16, CONFIG),
        "a worker's request": lambda: worker(1, 1),
        "8 requests of a worker": lambda: worker(8, 1),
        "8 requests of a batch": lambda: worker(8, 8),
    }


@contextlib.contextmanager
def over_binary() -> Iterator[Ask]:
    with serving(chain(1)) as server, over_http(server, binary_infer(), bytes(64)) as ask:
        yield ask


# Counts -----------------------------------------------------------------------------------------


def counted(names: Sequence[str]) -> dict[str, Count]:
    """Return what each case takes; of streams and convoys what one part, or request, does."""
    pace._QUICK_NS *= _TIMES_SLOWER
    pace.SLOW_NS *= _TIMES_SLOWER
    trip._LONGEST_NS *= _TIMES_SLOWER
    trips._STEP_S *= _TIMES_SLOWER
    counter, counts = Counter(), {}
    counter.begin()
    for name, serve in cases().items():
        if any(name.startswith(prefix) for prefix in names) or not names:
            with serve() as ask:
                for _ in range(_WARM_UP):
                    ask()
                counts[name] = min(counter.of(ask) for _ in range(_COUNTED))
    return _by_piece(counts)


def _by_piece(counts: dict[str, Count]) -> dict[str, Count]:
    for piece, (few, many, by) in _PIECES.items():
        one, all_ = counts.pop(few, Count(0, 0, 0)), counts.pop(many, None)
        if all_ is not None:
            counts[piece] = all_.minus(one, by)
    return counts


_PIECES = {
    "a part of a stream": ("1 part of a stream", "33 parts of a stream", 32),
    "a part that goes alone": ("1 part by itself", "9 parts by themselves", 8),
    "a part of a chat": ("1 piece of a chat", "33 pieces of a chat", 32),
    "a part of a chat that goes alone": ("1 piece by itself", "9 pieces by themselves", 8),
    "a word of 32 callers": ("8 words of 32 callers", "40 words of 32 callers", 32 * 32),
    "a Python model in a convoy of 8": ("", "8 requests in a convoy", 8),
    "a Python model in a message of 16": ("", "16 requests in a message", 16),
    "a worker's request, of 8 in a message": ("", "8 requests of a worker", 8),
    "a worker's request, of 8 in a batch": ("", "8 requests of a batch", 8),
}
"""The counted part of two cases: the share of one piece in their difference."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bytecodes", description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names; all cases without them")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    counts = counted(given.names)
    if given.json:
        print(json.dumps({name: list(count) for name, count in counts.items()}))
        return 0
    print("| case | bytecodes | budget | calls | moves |\n|---|---:|---:|---:|---:|")
    for name, count in counts.items():
        budget = f"{BUDGETS[name]:,}" if name in BUDGETS else ""
        taken = f"{count.bytecodes:,.0f} | {budget} | {count.calls:,.0f} | {count.moves:,.0f}"
        print(f"| {name} | {taken} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
