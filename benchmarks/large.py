"""`python -m benchmarks big`: how long others wait beside the largest messages.

For each form in which a large thing comes or goes, on each door: the p99 and the longest of small
requests that are asked meanwhile, and the memory that the server needed at most, over what the
message has.
"""

from __future__ import annotations

import gzip
import json
import platform
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import grpc

from benchmarks.ask import Question
from benchmarks.process import Service, running
from pipeline.proto import inference_v2_pb2 as v2
from pipeline.proto.pipeline.blocks import bytes_field
from pipeline.proto.pipeline_service_pb2 import Request, Tensor
from pipeline.proto.v2.codec import SERVICE

_MIB = 2**20
_JSON = 16 * _MIB
_RAW = 255 * _MIB
_TEXTS = 1_000_000
_LIMIT_MS = 100.0
_LIMIT_RATIO = 4.0
_TIMEOUT_S = 120.0
_SETTLE_S = 0.3
_RELIABILITY = Path(__file__).parents[1] / "docs" / "reliability.md"
_BEGIN = "<!-- big: written by `python -m benchmarks big --write` -->"
_END = "<!-- big: end -->"

Ask = Callable[[Service], int]
"""Sends or requests a large message; returns the bytes of the larger of request and answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one case.

    Args:
        size: bytes of the message.
        peak: maximum growth of memory, in bytes.
        alone_ms: p99 of the small requests before it.
    """

    name: str
    size: int
    seconds: float
    p99_ms: float
    longest_ms: float
    pings: int
    peak: int
    alone_ms: float

    @property
    def ratio(self) -> float:
        """Memory over the message."""
        return self.peak / self.size

    def __str__(self) -> str:
        return (
            f"| {self.name} | {self.size / _MIB:.0f} | {self.seconds:.2f} | {self.alone_ms:.0f} "
            f"| {self.p99_ms:.0f} | {self.longest_ms:.0f} | {self.pings} | {self.peak / _MIB:.0f} "
            f"| {self.ratio:.1f} |"
        )


def main(arguments: list[str]) -> int:
    """Measure, print, and with --write put it into docs/reliability.md."""
    wanted = [argument for argument in arguments if not argument.startswith("-")]
    rows = []
    with running("large") as service:
        service.first_answer(lambda: _post(service, "/large/p", _PING.encode()))
        for name, ask in cases():
            if not wanted or any(part in name for part in wanted):
                rows.append(_measured(service, name, ask))
                print(rows[-1], flush=True)
    report = _report(rows)
    print(f"\n{report}")
    if "--write" in arguments:
        _write(report)
    return 0


_PING = '{"key":["x"],"value":["1"]}'


def _measured(service: Service, name: str, ask: Ask) -> Row:
    command = [sys.executable, "-m", "benchmarks.pings", str(service.http_port), "/large/p", _PING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as pings:
        time.sleep(3 * _SETTLE_S)
        Path(f"/proc/{service.pid}/clear_refs").write_text("5")  # the peak counts from here
        before = _memory(service.pid, "VmRSS")
        start = time.monotonic()
        size = ask(service)
        end = time.monotonic()
        peak = _memory(service.pid, "VmHWM") - before
        time.sleep(_SETTLE_S)
        output, _ = pings.communicate(b"end")
    taken = json.loads(output)
    times = sorted(took for at, took in taken if start - took <= at <= end)
    alone = sorted(took for at, took in taken if at + took < start)
    return Row(name, size, end - start, _p99(times), 1e3 * times[-1], len(times), peak, _p99(alone))


def _p99(seconds: list[float]) -> float:
    """In ms, of what is sorted."""
    return 1e3 * seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))] if seconds else 0.0


def _memory(pid: int, key: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(key)).split()[1])


# --- what is sent, and asked for ----------------------------------------------------------------


def cases() -> Iterator[tuple[str, Ask]]:
    """Everything that is large, by a name that says door and form."""
    numbers = _filled('{"key":["drop"],"value":["1"],"tensors":[{"name":"x","elem_type":1,', "1.5,")
    texts = _pairs(_JSON // 32)
    yield "HTTP JSON, numbers", _posting("/large/p", numbers)
    yield "HTTP JSON, text of 1,000,000 keys and values", _posting("/large/p", lambda: texts)
    yield "HTTP JSON, a field that nobody knows", _posting("/large/p", _junk)
    yield "HTTP JSON, one base64 text", _posting("/large/p", _base64)
    yield (
        "HTTP JSON, numbers, gzip",
        _posting("/large/p", lambda: gzip.compress(numbers(), 1), {"Content-Encoding": "gzip"}),
    )
    yield "HTTP, answer: text of 3,000,000 numbers", _answer("/large/p", 3_000_000, "uint8")
    yield (
        "HTTP, answer: 40,000,000 numbers as text, refused",
        _answer("/large/p", 40_000_000, "uint8"),
    )
    yield "gRPC float_data", _calling(lambda: _tensor("float_data", b"\0" * _RAW, 1))
    yield "gRPC byte_data", _calling(lambda: _tensor("byte_data", b"x" * _RAW, 13))
    yield "gRPC uint32_data, varints", _calling(lambda: _tensor("uint32_data", b"\7" * _RAW, 7))
    yield (
        "gRPC int64_data, varints",
        _calling(lambda: _tensor("int64_data", b"\7" * (32 * _MIB), 0)),
    )
    yield "gRPC 500,000 keys and values", _calling(_grpc_pairs)
    yield "v2 HTTP, JSON data", _posting("/v2/models/large/infer", _v2_json)
    yield "v2 HTTP, binary data", _posting_v2(lambda: (b"\0" * _RAW, "FP32", [_RAW // 4]))
    yield (
        "v2 HTTP, 1,000,000 BYTES",
        _posting_v2(lambda: (b"\1\0\0\0A\2\0\0\0AB" * (_TEXTS // 2), "BYTES", [_TEXTS])),
    )
    yield "v2 gRPC, raw", _inferring(lambda: _v2_raw("FP32", [_RAW // 4], b"\0" * _RAW))
    yield (
        "v2 gRPC, fp32_contents",
        _inferring(lambda: _v2_contents("FP32", 6, b"\0" * _RAW, _RAW // 4)),
    )
    yield (
        "v2 gRPC, 1,000,000 BYTES, raw",
        _inferring(lambda: _v2_raw("BYTES", [_TEXTS], b"\1\0\0\0A" * _TEXTS)),
    )
    yield "v2 gRPC, 1,000,000 bytes_contents", _inferring(_v2_bytes)


def _filled(start: str, unit: str) -> Callable[[], bytes]:
    def body() -> bytes:
        count = (_JSON - 200) // len(unit)
        head = f'{start}"shape":[{count + 1}],"float_data":['
        return head.encode() + unit.encode() * count + b"1]}]}"

    return body


def _pairs(count: int) -> bytes:
    names = [f"k{number:08}" for number in range(count)]
    return json.dumps({"key": names, "value": names}, separators=(",", ":")).encode()


def _junk() -> bytes:
    return b'{"zz":[' + b"[]," * ((_JSON - 100) // 3) + b'1],"key":["x"],"value":["1"]}'


def _base64() -> bytes:
    return b'{"key":["drop"],"value":["' + b"abcd" * ((_JSON - 100) // 4) + b'"]}'


def _v2_json() -> bytes:
    count = (_JSON - 200) // 4
    head = f'{{"inputs":[{{"name":"x","datatype":"FP32","shape":[{count + 1}],"data":['
    tail = '1]}],"outputs":[{"name":"x","parameters":{"binary_data":true}}]}'
    return head.encode() + b"1.5," * count + tail.encode()


def _tensor(field: str, content: bytes, elem_type: int) -> bytes:
    number = Tensor.DESCRIPTOR.fields_by_name[field].number
    inner = bytes_field(number, content) + Tensor(name="x", elem_type=elem_type).SerializeToString()
    return bytes_field(3, inner)


def _grpc_pairs() -> bytes:
    names = [f"k{number:08}" for number in range(_TEXTS // 2)]
    return Request(key=names, value=names).SerializeToString()


def _v2_raw(datatype: str, shape: list[int], raw: bytes) -> bytes:
    head = v2.ModelInferRequest(model_name="large")
    head.inputs.add(name="x", datatype=datatype, shape=shape)
    return head.SerializeToString() + bytes_field(7, raw)


def _v2_contents(datatype: str, number: int, content: bytes, count: int) -> bytes:
    head = v2.ModelInferRequest(model_name="large").SerializeToString()
    tensor = v2.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=[count])
    inner = tensor.SerializeToString() + bytes_field(5, bytes_field(number, content))
    return head + bytes_field(5, inner)


def _v2_bytes() -> bytes:
    request = v2.ModelInferRequest(model_name="large")
    tensor = request.inputs.add(name="x", datatype="BYTES", shape=[_TEXTS])
    tensor.contents.bytes_contents.extend([b"A"] * _TEXTS)
    return request.SerializeToString()


# --- doors --------------------------------------------------------------------------------------


def _post(service: Service, path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    url = f"http://127.0.0.1:{service.http_port}{path}"
    request = urllib.request.Request(
        url, body, {"Content-Type": "application/json", **(headers or {})}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as reply:
            answer: bytes = reply.read()
    except urllib.error.HTTPError as error:
        answer = error.read()
        print(f"  HTTP {error.code}: {answer[:200]!r}", file=sys.stderr)
    return answer


def _posting(path: str, body: Callable[[], bytes], headers: dict[str, str] | None = None) -> Ask:
    def ask(service: Service) -> int:
        content = body()
        answer = _post(service, path, content, headers)
        is_packed = headers is not None
        return max(len(gzip.decompress(content)) if is_packed else len(content), len(answer))

    return ask


def _posting_v2(tensor: Callable[[], tuple[bytes, str, list[int]]]) -> Ask:
    def ask(service: Service) -> int:
        raw, datatype, shape = tensor()
        entry = {"name": "x", "datatype": datatype, "shape": shape}
        fields = {
            "inputs": [{**entry, "parameters": {"binary_data_size": len(raw)}}],
            "parameters": {"binary_data_output": True},
        }
        head = json.dumps(fields).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        answer = _post(service, "/v2/models/large/infer", head + raw, headers)
        return max(len(raw), len(answer))

    return ask


def _answer(path: str, count: int, dtype: str) -> Ask:
    body = json.dumps({"key": ["count", "dtype"], "value": [str(count), dtype]}).encode()

    def ask(service: Service) -> int:
        return max(len(_post(service, path, body)), 16 * _MIB)

    return ask


def _call(service: Service, method: str, message: bytes) -> int:
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}", options=unlimited) as channel:
        call: Callable[..., bytes] = channel.unary_unary(method)
        try:
            answer = call(message, timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"  {error.code()}: {str(error.details())[:200]}", file=sys.stderr)
            answer = b""
    return max(len(message), len(answer))


def _calling(message: Callable[[], bytes]) -> Ask:
    return lambda service: _call(service, Question.METHOD, message())


def _inferring(message: Callable[[], bytes]) -> Ask:
    return lambda service: _call(service, f"/{SERVICE}/ModelInfer", message())


# --- report -------------------------------------------------------------------------------------


def _report(rows: list[Row]) -> str:
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d}, {platform.machine()}, CPython {platform.python_version()}.",
        "",
        "| what one caller sends or asks for | MiB | s | others' p99 before, ms | beside it | "
        "longest | requests | memory, MiB | over the message |",
        "|---|---|---|---|---|---|---|---|---|",
        *map(str, rows),
    ]
    slow = sum(row.p99_ms > _LIMIT_MS for row in rows)
    fat = sum(row.ratio > _LIMIT_RATIO for row in rows)
    lines += [
        "",
        f"Of {len(rows)}: p99 above {_LIMIT_MS:.0f} ms in {slow}; memory above "
        f"{_LIMIT_RATIO:.0f} times the message in {fat}.",
    ]
    return "\n".join(lines)


def _write(report: str) -> None:
    text = _RELIABILITY.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _RELIABILITY.write_text(f"{before}{_BEGIN}\n{report}\n{_END}{after}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
