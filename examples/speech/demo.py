"""Run the speech detector, send it clip.wav by each protocol, and stop it: `make speech`.

Exits with status 1 if the clip's three sentences are not found, or the answers differ.
"""

from __future__ import annotations

import base64
import json
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from web_server import server

from pipeline import PipelineClient
from pipeline.proto.codec import text_to_numpy

HOST, TIMEOUT_S = "127.0.0.1", 60
SENTENCES = 3
CLIP = (Path(__file__).resolve().parent / "clip.wav").read_bytes()
Row = tuple[float, ...]  # start_s, end_s, loudness_db


def main() -> int:
    with server, PipelineClient() as client:
        client.connect([f"{HOST}:{server.rpc_port}"])
        answers = [
            shown("over gRPC, in parts", over_grpc(client, in_parts=True)),
            shown("over HTTP, server-sent events", over_http("text/event-stream")),
            shown("over gRPC, one answer", over_grpc(client, in_parts=False)),
            shown("over HTTP, one answer", over_http("application/json")),
        ]
    streamed, *others = answers
    if len(streamed) != SENTENCES or any(other != streamed for other in others):
        print("demo failed: see above", file=sys.stderr)
        return 1
    print("\ndemo passed: a part for each sentence, and the single answer has all of them")
    return 0


def shown(title: str, segments: Iterable[Row]) -> list[Row]:
    """Print segments as they arrive, and return them."""
    print(f"\n{title}:")
    began, rows = time.perf_counter(), []
    for row in segments:
        after_ms = 1000 * (time.perf_counter() - began)
        print("  {:.2f} to {:.2f} s, {:.1f} dB".format(*row), f"(after {after_ms:.0f} ms)")
        rows.append(row)
    return rows


def over_grpc(client: PipelineClient, in_parts: bool) -> Iterator[Row]:
    feed = {"audio": CLIP}
    if in_parts:
        answers: Iterable[Any] = client.predict_stream(feed, timeout=TIMEOUT_S)
    else:
        answers = [client.predict(feed, timeout=TIMEOUT_S)]
    for answer in answers:
        answer.raise_for_error()
        yield from rows_of(map(answer.as_numpy, answer.keys()))


def over_http(accept: str) -> Iterator[Row]:
    """Yield the rows of the events, or of the single answer."""
    url = f"http://{HOST}:{server.http_port}/speech/prediction"
    body = {"key": ["audio"], "value": [base64.b64encode(CLIP).decode()]}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Accept": accept})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=TIMEOUT_S) as lines:
        for line in lines:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                yield from rows_of(map(text_to_numpy, json.loads(data).get("value", ())))


def rows_of(columns: Iterable[Any]) -> list[Row]:
    """Return a row for each segment of a part, or of the single answer."""
    return list(zip(*(column.tolist() for column in columns), strict=True))


if __name__ == "__main__":
    sys.exit(main())
