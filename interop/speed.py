"""Compares the brpc predictor with a bare stub: requests/s and p50 of both, against brpc-java."""

from __future__ import annotations

import argparse
import socket
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from servers import BUILD, Server, build_java

from pipeline.predictors.remote.base import RemoteModel
from pipeline.predictors.remote.general_model import connect_brpc
from pipeline.proto.brpc.frames import HEADER_BYTES, pack, request_meta
from pipeline.proto.brpc_meta_pb2 import RpcMeta
from pipeline.proto.general_model_pb2 import Response

ONE_FEED = """
feed_var { name: "x" alias_name: "x" is_lod_tensor: false feed_type: 1 shape: 13 }
fetch_var { name: "x" alias_name: "x" is_lod_tensor: false fetch_type: 1 shape: 13 }
"""
FEED = {"x": np.full((1, 13), 0.5, np.float32)}
WARM_UP_CALLS = 300

Call = Callable[[], object]


@dataclass(frozen=True)
class Rate:
    requests_per_s: float
    p50_s: float


def bare_stub(server: Server, frame: bytes) -> Call:
    """Sends a frame that is ready and parses the answer, on a blocking socket of its own."""
    stub = socket.create_connection(("127.0.0.1", server.port))
    stub.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def call() -> object:
        stub.sendall(frame)
        data = stub.recv(65536)
        while len(data) < HEADER_BYTES + int.from_bytes(data[4:8], "big"):
            data += stub.recv(65536)
        body_at = HEADER_BYTES + int.from_bytes(data[8:12], "big")
        RpcMeta.FromString(data[HEADER_BYTES:body_at])
        return Response.FromString(data[body_at:])

    return call


def measure(make: Callable[[], Call], threads: int, time_s: float) -> Rate:
    """One call after the other on each of `threads` threads."""
    times: list[float] = []
    start = threading.Barrier(threads)

    def run(call: Call) -> None:
        for _ in range(WARM_UP_CALLS):
            call()
        own = []
        start.wait()
        now = time.perf_counter()
        ends = now + time_s
        while now < ends:
            call()
            began, now = now, time.perf_counter()
            own.append(now - began)
        times.extend(own)

    callers = [threading.Thread(target=run, args=(make(),)) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return Rate(len(times) / time_s, statistics.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time_s", type=float, default=1.0, help="of each measurement")
    options = parser.parse_args()
    conf = BUILD / "one_feed.prototxt"
    server = Server(build_java())
    conf.write_text(ONE_FEED, encoding="utf-8")
    predictor = connect_brpc(RemoteModel("speed", "brpc", (server.endpoint,), conf))
    request = predictor.request(FEED)
    frame = pack(request_meta("inference", 1), request.SerializeToString())
    try:
        for threads in (1, 16):
            pairs = [
                (
                    measure(lambda: bare_stub(server, frame), threads, options.time_s),
                    measure(lambda: lambda: predictor.predict(FEED), threads, options.time_s),
                )
                for _ in range(options.rounds)
            ]
            ratio = statistics.median(
                ours.requests_per_s / bare.requests_per_s for bare, ours in pairs
            )
            bare_s = statistics.median(bare.p50_s for bare, _ in pairs)
            over_s = statistics.median(ours.p50_s - bare.p50_s for bare, ours in pairs)
            print(
                f"{threads} threads: {ratio:.2f} of the bare stub's requests/s; "
                f"p50 {bare_s * 1e6:.0f} us bare, {over_s * 1e6:+.0f} us with the predictor",
                flush=True,
            )
    finally:
        predictor.close()
        server.kill()


if __name__ == "__main__":
    main()
