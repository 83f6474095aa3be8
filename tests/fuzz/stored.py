"""`python -m fuzz.stored`: inputs by reference, in a store that is slow, wrong or away.

Each request has several inputs: arrays, and references to arrays, to nothing, to damaged or large
values, to values that come late, and texts that only look like references. The ending of a request
follows from the first of its references that cannot be read.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest import mock

import grpc
import numpy as np

from fuzz.campaign import campaign, parser_of
from pipeline import Op, PipelineClient, PipelineServer, RequestOp, ResponseOp
from pipeline.config import registry
from pipeline.errors import ErrorCode, PredictorUnavailableError, TooLargeError
from pipeline.proto.pipeline.shapes import array_to_npy
from pipeline.stores.base import KEY, REFERENCE

_REQUESTS = 40
_CALLERS = 12
_PATIENCE_S = 30.0
_MOST_BYTES = 1 << 16
_SLOW_S, _SHORT_S = 0.4, 0.1
GOOD = ("plain", "stored", "stored", "slow")
_CODES = {
    "missing": ErrorCode.RPC_PACKAGE_ERROR,
    "damaged": ErrorCode.RPC_PACKAGE_ERROR,
    "odd": ErrorCode.RPC_PACKAGE_ERROR,
    "large": ErrorCode.RPC_PACKAGE_ERROR,
    "away": ErrorCode.CLIENT_ERROR,
    "breaks": ErrorCode.CLIENT_ERROR,
}


class Store:
    """A store of this process. The kind of a value says how it is read."""

    values: ClassVar[dict[str, tuple[str, bytes]]] = {}

    def __init__(self, url: str) -> None:
        self.url = url

    def put(self, key: str, data: bytes, ttl_s: int) -> None:
        raise NotImplementedError

    def delete(self, key: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def get(self, key: str, max_bytes: int) -> bytes | None:
        kind, data = self.values.get(key, ("missing", b""))
        if kind == "missing":
            return None
        if kind == "slow":
            time.sleep(_SLOW_S)
        if kind == "away":
            raise PredictorUnavailableError("payload_store: away")
        if kind == "breaks":
            raise ZeroDivisionError("a defect of a plug-in")
        if len(data) > max_bytes:
            raise TooLargeError(f"{len(data)} bytes; the limit is {max_bytes}")
        return data


class Sums(Op):
    """Answers with the sum of each input."""

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fed,) = input_dicts.values()
        return {
            name: np.asarray(value, np.float64).sum(keepdims=True) for name, value in fed.items()
        }


@dataclass(frozen=True)
class Request:
    """Kinds and arrays of the inputs; `is_short`: the deadline comes before a slow value."""

    inputs: Mapping[str, tuple[str, np.ndarray]]
    is_short: bool

    def allowed(self) -> set[int]:
        """Return the codes that it may end with."""
        kinds = [kind for kind, _ in self.inputs.values()]
        code = next((_CODES[kind] for kind in kinds if kind in _CODES), ErrorCode.OK)
        return {int(code), int(ErrorCode.TIMEOUT)} if self.is_short else {int(code)}

    def must_expire(self) -> bool:
        kinds = [kind for kind, _ in self.inputs.values()]
        fetched = itertools.takewhile(lambda kind: kind not in _CODES, kinds)
        return self.is_short and "slow" in fetched

    def feed(self) -> dict[str, Any]:
        return {name: self._value(kind, array) for name, (kind, array) in self.inputs.items()}

    def _value(self, kind: str, array: np.ndarray) -> Any:
        if kind == "plain":
            return array
        if kind == "odd":
            return f"{REFERENCE}../{id(array)}"
        name = f"{id(array):032x}"
        data = array_to_npy(np.zeros(_MOST_BYTES) if kind == "large" else array)
        Store.values[KEY + name] = kind, data[:-1] if kind == "damaged" else data
        return REFERENCE + name


def made_requests(seed: int) -> list[Request]:
    rng = random.Random(f"stored {seed}")
    requests = []
    for _ in range(_REQUESTS):
        kinds = [rng.choice((*GOOD, *GOOD, *_CODES)) for _ in range(rng.choice((1, 2, 4)))]
        sizes = [rng.choice((1, 7, 300)) for _ in kinds]
        arrays = [np.array([rng.randrange(1000) for _ in range(size)]) for size in sizes]
        inputs = {f"x{place}": pair for place, pair in enumerate(zip(kinds, arrays, strict=True))}
        requests.append(Request(inputs, rng.random() < 0.2))
    return requests


@contextmanager
def serving() -> Iterator[PipelineServer]:
    server = PipelineServer("sums")
    server.set_response_op(ResponseOp(Sums("sums", RequestOp())))
    server.prepare_server(
        yml_dict={
            "rpc_port": 0,
            "max_message_bytes": _MOST_BYTES,
            "payload_store": "fuzz://",
            "op": {"sums": {"concurrency": 4}},
        }
    )
    known = {**registry._registered, ("stores", "fuzz"): Store}
    with mock.patch.object(registry, "_registered", known), server:
        yield server


def judge(client: PipelineClient, request: Request) -> str:
    """Send a request; return what is wrong with its ending."""
    kinds = [kind for kind, _ in request.inputs.values()]
    timeout_s = _SHORT_S if request.is_short else _PATIENCE_S
    try:
        answer = client.predict(request.feed(), pack_tensor_format=True, timeout=timeout_s)
    except grpc.RpcError as error:
        is_late = request.is_short and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return "" if is_late else f"{kinds}: {error.code()}, {error.details()}"
    if answer.err_no not in request.allowed():
        return f"{kinds}: {answer.err_no} {answer.err_msg}, allowed {request.allowed()}"
    if answer.err_no:
        return ""
    if request.must_expire():
        return f"{kinds}: answered, though its deadline was before the value"
    sums = {name: float(array.sum()) for name, (_, array) in request.inputs.items()}
    found = {name: float(answer[name][0]) for name in sums}
    return "" if found == sums else f"{kinds}: {found}, expected {sums}"


def run(seed: int) -> list[str]:
    """Return the defects that the case of a seed shows."""
    requests = made_requests(seed)
    with mock.patch.dict(Store.values, clear=True), serving() as server:
        client = PipelineClient()
        client.connect([f"127.0.0.1:{server.rpc_port}"])
        with client, ThreadPoolExecutor(_CALLERS) as callers:
            findings = list(filter(None, callers.map(lambda each: judge(client, each), requests)))
        ends = time.monotonic() + _PATIENCE_S
        while server.executor.inside and time.monotonic() < ends:
            time.sleep(0.01)
        if server.executor.inside:
            findings.append(f"{server.executor.inside} requests are still inside")
    return findings


def main() -> int:
    parser = parser_of("stored", __doc__)
    return campaign(parser.prog, parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
