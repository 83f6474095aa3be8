"""Run the service, send it all kinds of requests, print the answers, stop it: `make generate`.

Exits with status 1 if a stream and a single answer differ, or if parallel clients get no streams.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request

import grpc
from web_server import server

from pipeline import PipelineClient
from pipeline.proto import pipeline_service_pb2, pipeline_service_pb2_grpc

HOST, TIMEOUT_S = "127.0.0.1", 60
PROMPT = "i loved this movie because"
CALLERS = 16


def main() -> int:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with server, PipelineClient() as client:
        client.connect([f"{HOST}:{server.rpc_port}"])
        print(f"\nover gRPC, word by word: {PROMPT}", end="")
        parts = []
        with client.predict_stream({"prompt": PROMPT, "seed": "0"}, timeout=TIMEOUT_S) as stream:
            for part in stream:
                part.raise_for_error()
                parts.append(part.value[0])
                print(parts[-1], end="", flush=True)
        print()

        response = client.predict({"prompt": PROMPT, "seed": "0"}, timeout=TIMEOUT_S)
        response.raise_for_error()
        print(f"\nover gRPC, one answer: {PROMPT}{response.value[0]}")

        url = f"http://{HOST}:{server.http_port}/generate/prediction"
        body = json.dumps({"key": ["prompt", "seed"], "value": [PROMPT, "1"]}).encode()
        with direct.open(url, body, timeout=TIMEOUT_S) as answer:
            over_http = json.load(answer)
        print(f"\nover HTTP, another seed: {PROMPT}{over_http['value'][0]}")
        request = urllib.request.Request(url, body, {"Accept": "application/x-ndjson"})
        print(f"over HTTP, a line for each part: {PROMPT}", end="")
        with direct.open(request, timeout=TIMEOUT_S) as answer:
            lines = [json.loads(line)["value"][0] for line in answer]
        print("".join(lines))

        began = time.perf_counter()
        streams_of_words = asyncio.run(streams(CALLERS))
        took_s = time.perf_counter() - began
        count = sum(map(len, streams_of_words))
        print(f"\n{CALLERS} callers at once: {count} words in {took_s:.2f} s")
    same = "".join(parts) == response.value[0] and "".join(lines) == over_http["value"][0]
    if not (same and len(parts) > 1 and all(len(words) > 1 for words in streams_of_words)):
        print("demo failed: see above", file=sys.stderr)
        return 1
    print("demo passed: the parts of a stream are the words of the single answer")
    return 0


async def streams(callers: int) -> list[list[str]]:
    """Request several texts at once, each with another seed; return their parts."""
    async with grpc.aio.insecure_channel(f"{HOST}:{server.rpc_port}") as channel:
        stub = pipeline_service_pb2_grpc.PipelineServiceStub(channel)

        async def caller(seed: int) -> list[str]:
            request = pipeline_service_pb2.Request(
                key=["prompt", "seed"], value=[PROMPT, f"{seed}"]
            )
            parts = []
            async for part in stub.inference_stream(request, timeout=TIMEOUT_S):
                if part.err_no:
                    raise RuntimeError(part.err_msg)
                parts.append(part.value[0])
            return parts

        return await asyncio.gather(*map(caller, range(callers)))


if __name__ == "__main__":
    sys.exit(main())
