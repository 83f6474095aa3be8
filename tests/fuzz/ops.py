"""The users' Ops of a case: they compute what the model computes, and act out the faults."""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from typing import Any, Protocol

import numpy as np

from fuzz import model
from fuzz.case import REQUEST, Case, OpSpec, RequestSpec, bulk_of, mark
from pipeline import Answer, Goto, Op, ProductError, RequestOp, ResponseOp, Schema
from pipeline.data import Tensor
from pipeline.errors import PredictorUnavailableError
from pipeline.proto import pipeline_service_pb2

_TEXT_BYTES = 512
_COUNT = struct.Struct("<I")
_BULK = 4096  # numbers: more than 16 KiB, so that they go through shared memory
_ASYNC_HANG_S = 60.0


class World(Protocol):
    """The surroundings of Ops: time, hangs and crashes."""

    def sleep(self, seconds: float) -> None: ...

    def hang(self, seconds: float | None) -> None:
        """Return after so long, or when the case is over."""

    def crash(self) -> None:
        """End this process."""


class Board:
    """The shared memory of a case's processes: counts of calls, and a complaint."""

    def __init__(self, case: Case) -> None:
        self._ops = {op.name: index for index, op in enumerate(case.ops)}
        self._most = max((request.number for request in case.requests), default=0) + 1
        self._file = os.memfd_create("fuzz-board")
        self._size = _TEXT_BYTES + _COUNT.size * len(self._ops) * self._most
        os.ftruncate(self._file, self._size)
        self._memory = mmap.mmap(self._file, self._size)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a process of this machine that was not forked from this one."""
        path = f"/proc/{os.getpid()}/fd/{self._file}"
        return {"_ops": self._ops, "_most": self._most, "_size": self._size, "_path": path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = os.open(state["_path"], os.O_RDWR)
        self._memory = mmap.mmap(self._file, self._size)

    def strike(self, op: str, number: int) -> int:
        """Count a call of `process` of a request at an Op; return how many there were."""
        place = _TEXT_BYTES + _COUNT.size * (self._ops[op] * self._most + number)
        count = _COUNT.unpack_from(self._memory, place)[0] + 1
        _COUNT.pack_into(self._memory, place, count)
        return count

    def complain(self, text: str) -> None:
        """Record that the engine broke a promise to user code."""
        if not self.complaint:
            data = text.encode()[:_TEXT_BYTES]
            self._memory[: len(data)] = data

    @property
    def complaint(self) -> str:
        return self._memory[:_TEXT_BYTES].rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        self._memory.close()
        os.close(self._file)


class Script:
    """The part of a case that its Ops need."""

    def __init__(self, case: Case, world: World) -> None:
        self.requests = {request.number: request for request in case.requests}
        self.world = world
        self.board = Board(case)

    def demand(self, holds: bool, text: str) -> None:
        if not holds:
            self.board.complain(text)
            raise AssertionError(text)


def _is_own(bulk: Any, request: RequestSpec) -> bool:
    """Whether a file, or an Op's large answer, belongs to this request."""
    if isinstance(bulk, np.ndarray):
        return len(bulk) == _BULK and bool((bulk == request.number).all())
    return bytes(bulk) == bulk_of(request)


class PlainOp(Op):
    """An Op without `process`: its `postprocess` makes the answer from its inputs."""

    def __init__(self, spec: OpSpec, script: Script, inputs: list[Op]) -> None:
        super().__init__(
            name=spec.name,
            input_ops=inputs,
            loop_to=spec.loops_to or (),
            max_loops=spec.max_loops,
        )
        self.spec = spec
        self.script = script
        self.current = -1
        self.makes_bulk = self.is_loop = self.is_end = False
        if spec.max_batch_size:
            self.max_batch_size = spec.max_batch_size
            self.output_tensors = [Tensor("y", "INT64", (-1,))]

    def preprocess(
        self, input_dicts: dict[str, dict[str, Any]], data_id: int = 0, log_id: int = 0
    ) -> Any:
        script, name = self.script, self.name
        numbers = {int(part["id"]) for part in input_dicts.values()}
        script.demand(len(numbers) == 1, f"{name}: parts of several requests: {input_dicts}")
        request = script.requests[numbers.pop()]
        script.demand(
            log_id in (request.log_id, 0 if request.alone_at else request.log_id),
            f"{name}: request {request.number} has log_id {log_id}, not {request.log_id}",
        )
        for name_of, part in input_dicts.items():
            bulk = part.get("bulk")
            script.demand(
                bulk is None or _is_own(bulk, request),
                f"{name}: request {request.number} reads another one's bulk of {name_of}",
            )
        self.current = request.number
        script.world.sleep(self._delay_s(request, 0))
        kind = self._kind(request)
        if kind == "stuck":
            script.world.hang(request.faults[name].back_s)
        if kind == "raise_pre":
            raise ValueError(mark(request.number, name))
        if kind == "product_pre":
            return {}, False, model.PRODUCT, mark(request.number, name)
        return self.feed(request)

    def feed(self, request: RequestSpec) -> Any:
        return {"id": str(request.number)}, False, None, ""

    def postprocess(
        self,
        input_dicts: dict[str, dict[str, Any]],
        fetch_data: Any,
        data_id: int = 0,
        log_id: int = 0,
    ) -> Any:
        request = self.script.requests[int(next(iter(input_dicts.values()))["id"])]
        self.script.demand(
            self.current == request.number,
            f"{self.name}: what preprocess of {request.number} stored is of {self.current}",
        )
        self.script.world.sleep(self._delay_s(request, 2))
        if self._kind(request) == "raise_post":
            raise ValueError(mark(request.number, self.name))
        read = ",".join(f"{name}={part.get('value', 'in')}" for name, part in input_dicts.items())
        made = self.made_of(request, fetch_data)
        text = model.squeezed(f"{self.name}({read})r{request.number}{made}")
        laps = max(int(part.get("laps", 0)) for part in input_dicts.values()) + self.is_loop
        answer: dict[str, Any] = {"id": str(request.number), "value": text, "laps": str(laps)}
        if self.makes_bulk:
            answer["bulk"] = np.full(_BULK, request.number, np.int64)
        elif self.is_end and request.bulk:
            answer["bulk"] = bulk_of(request)
        return self.routed(request, answer, laps), None, ""

    def routed(self, request: RequestSpec, answer: dict[str, Any], laps: int) -> Any:
        """Return the answer, sent where the request wants it."""
        if self.spec.loops_to and laps <= request.laps:
            return Goto(answer, self.spec.loops_to)
        to = request.ways.get(self.name, ())
        if self.name not in request.ways:
            return answer
        return Answer(answer) if to is None else Goto(answer, to)

    def made_of(self, request: RequestSpec, fetched: Any) -> str:
        return ""

    def check_jumping(self, input_data: Any) -> bool:
        oldest = next(iter(input_data.values())).payload
        if self.is_loop:
            return bool(int(oldest["laps"]) <= self.script.requests[int(oldest["id"])].laps)
        return self.name in self.script.requests[int(oldest["id"])].jumps

    def _kind(self, request: RequestSpec) -> str:
        fault = request.faults.get(self.name)
        return fault.kind if fault is not None else ""

    def _delay_s(self, request: RequestSpec, stage: int) -> float:
        return request.delays_s.get(self.name, (0.0, 0.0, 0.0))[stage]


class ModelOp(PlainOp):
    """An Op with `process`, which gets the merged rows of a batch."""

    def feed(self, request: RequestSpec) -> Any:
        shape = request.shape(self.name)
        if shape.kind == "skip":
            return {"id": str(request.number)}, True, None, ""
        parts = [
            self._part(request.number, part, rows, shape.width, shape.dtype)
            for part, rows in enumerate(shape.rows)
        ]
        return (parts if shape.kind == "mini" else parts[0]), False, None, ""

    def _part(self, number: int, part: int, rows: int, width: int, dtype: str) -> dict[str, Any]:
        table = model.fed(number, part, rows, width)
        feed: dict[str, Any] = {
            "id": np.full(rows, number, np.int64),
            "x": np.array(table, dtype).reshape(rows, width),
        }
        if self.spec.has_texts:
            feed["s"] = [f"t{row[0]}" for row in table]
        if self.spec.has_scalars:
            feed |= {"n": number, "w": f"w{number}", "none": None}
        if self.spec.has_lod:
            counts = [model.tokens(row[0]) for row in table]
            feed["t"] = np.array(
                [row[0] for row, n in zip(table, counts, strict=True) for _ in range(n)], np.int64
            )
            feed["t.lod"] = np.cumsum([0, *counts]).tolist()
        return feed

    def process(self, feed_batch: list[Any], typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        called = self._called(feed, typical_logid)
        self.script.world.sleep(self._longest_s(called))
        for request, count in called:
            if self._hangs(request, count):
                self.script.world.hang(request.faults[self.name].back_s)
            if (error := self._act(request, count)) is not None:
                return error
        return self._result(feed)

    def _called(self, feed: Any, log_id: int) -> list[tuple[RequestSpec, int]]:
        """Return the requests of a call, each with its number of calls."""
        self.script.world.sleep(0.0)  # ends a strand that was killed
        numbers = list(dict.fromkeys(feed["id"].tolist()))
        requests = [self.script.requests[number] for number in numbers]
        self._check(feed, requests, log_id)
        return [(each, self.script.board.strike(self.name, each.number)) for each in requests]

    def _longest_s(self, called: list[tuple[RequestSpec, int]]) -> float:
        return max((self._delay_s(request, 1) for request, _ in called), default=0.0)

    def _hangs(self, request: RequestSpec, count: int) -> bool:
        fault = request.faults.get(self.name)
        return fault is not None and fault.kind == "hang" and count <= fault.attempts

    def _result(self, feed: Any) -> dict[str, Any]:
        salt = model.salt(self.name)
        result = {"y": feed["x"] * 3 + np.array(salt, feed["x"].dtype)}
        if self.spec.has_texts:
            # Made from its own row, so that a text in the wrong row shows.
            ys = result["y"]
            result["s"] = [
                f"T{int(ys[row][0])}" if text == f"t{int(feed['x'][row][0])}" else "torn"
                for row, text in enumerate(feed["s"])
            ]
        if self.spec.has_lod:
            result["t"], result["t.lod"] = feed["t"] * 3 + salt + 1, feed["t.lod"]
        return result

    def _check(self, feed: Any, requests: list[RequestSpec], log_id: int) -> None:
        demand, spec = self.script.demand, self.spec
        demand(
            len(requests) <= spec.batch_size,
            f"{self.name}: {len(requests)} requests in a batch of {spec.batch_size}",
        )
        rows = len(feed["id"])
        demand(
            not spec.max_batch_size or rows <= spec.max_batch_size,
            f"{self.name}: {rows} samples in a call, max_batch_size {spec.max_batch_size}",
        )
        if spec.has_scalars and requests:
            ids, is_mini = feed["id"].tolist(), requests[0].shape(self.name).kind == "mini"
            fed = feed["n"], feed["w"], feed["none"]
            if spec.batch_size == 1 or is_mini:
                right = fed == (ids[0], f"w{ids[0]}", None)
            else:
                texts = [f"w{number}" for number in ids]
                right = isinstance(fed[0], np.ndarray) and fed[0].tolist() == ids
                right = right and fed[1:] == (texts, [None] * len(ids))
            demand(right, f"{self.name}: scalars are fed as {fed} beside {ids}")
        if requests and spec.batch_size == 1:
            expected = 0 if requests[0].alone_at else requests[0].log_id
            demand(log_id == expected, f"{self.name}: log_id {log_id}, not {expected}")

    def _act(self, request: RequestSpec, count: int) -> Any:
        """Act out the fault of one request; return the result of `process`, or None."""
        fault, text = request.faults.get(self.name), mark(request.number, self.name)
        if fault is None:
            return None
        if fault.kind == "raise_process":
            raise ValueError(text)
        if fault.kind == "product_process":
            raise ProductError(model.PRODUCT, text)
        if fault.kind == "code":
            return None, model.OWN_CODE, text
        if count > fault.attempts:
            return None
        if fault.kind == "unavailable":
            raise PredictorUnavailableError(text)
        if fault.kind == "crash":
            self.script.world.crash()
        return None

    def made_of(self, request: RequestSpec, fetched: Any) -> str:
        shape = request.shape(self.name)
        if shape.kind == "skip":
            return "skip" if fetched == {"id": str(request.number)} else f"skipped: {fetched!r}"
        parts = fetched if isinstance(fetched, list) else [fetched]
        return f"{shape.kind}{[self._text(part) for part in parts]}"

    def _text(self, part: dict[str, Any]) -> str:
        text = str(part["y"].astype(np.int64).tolist())
        if self.spec.has_texts:
            text += "|" + ",".join(part["s"])
        if self.spec.has_lod:
            text += "|" + ",".join(map(str, part["t"].tolist()))
        return text


class AsyncOp(ModelOp):
    """An Op whose `process` is a coroutine."""

    async def process(self, feed_batch: list[Any], typical_logid: int = 0) -> Any:
        (feed,) = feed_batch
        called = self._called(feed, typical_logid)
        await asyncio.sleep(self._longest_s(called))
        for request, count in called:
            if self._hangs(request, count):
                await asyncio.sleep(request.faults[self.name].back_s or _ASYNC_HANG_S)
            if (error := self._act(request, count)) is not None:
                return error
        return self._result(feed)


class Asked(Schema):
    """A request: its number, which comes as text."""

    id: int


class OwnRequestOp(RequestOp):
    """A user's unpack method, which runs in a thread."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self.script = script

    def unpack_request_package(self, request: Any) -> Any:
        fields, log_id, *_ = super().unpack_request_package(request)
        spec = self.script.requests[int(fields["id"])]
        self.script.world.sleep(spec.delays_s.get(REQUEST, (0.0, 0.0, 0.0))[0])
        fault = spec.faults.get(REQUEST)
        if fault is not None and fault.kind == "raise_pre":
            raise ValueError(mark(spec.number, REQUEST))
        return fields, log_id, None, ""


class OwnResponseOp(ResponseOp):
    """A user's pack method, which runs in a thread."""

    def __init__(self, script: Script, last: Op) -> None:
        super().__init__([last])
        self.script = script

    def pack_response_package(self, channeldata: Any) -> pipeline_service_pb2.Response:
        if channeldata.error is None:
            spec = self.script.requests[int(channeldata.payload["id"])]
            self.script.world.sleep(spec.delays_s.get(REQUEST, (0.0, 0.0, 0.0))[2])
            fault = spec.faults.get(REQUEST)
            if fault is not None and fault.kind == "raise_post":
                raise ValueError(mark(spec.number, REQUEST))
        return super().pack_response_package(channeldata)


def build(case: Case, script: Script) -> tuple[dict[str, Op], ResponseOp]:
    """Return the case's Ops by name, and its ResponseOp."""
    request_op = OwnRequestOp(script) if case.own_edges else RequestOp()
    if case.has_schema:
        request_op = RequestOp(schema=Asked)
    made: dict[str, Op] = {REQUEST: request_op}
    for spec in case.ops:
        made[spec.name] = op = _class_of(spec)(spec, script, [made[name] for name in spec.inputs])
        # An answer that is packed as text has no large value.
        op.is_loop = case.is_loop(spec) or bool(spec.loops_to)
        is_end = any(each.ways.get(spec.name, ()) is None for each in case.requests)
        is_end = is_end or case.last.name in (spec.name, *spec.jumps_to)
        op.makes_bulk, op.is_end = spec.has_bulk and not is_end, is_end
    for spec in case.ops:
        made[spec.name].set_jump_to_ops([made[target] for target in spec.jumps_to])
    last = made[case.last.name]
    response_op = OwnResponseOp(script, last) if case.own_edges else ResponseOp([last])
    return made, response_op


def _class_of(spec: OpSpec) -> type[PlainOp]:
    if not spec.has_process:
        return PlainOp
    return AsyncOp if spec.is_async else ModelOp


def config(case: Case) -> dict[str, Any]:
    """Return the configuration of a case and its siblings, as in config.yml."""
    settings: dict[str, Any] = {
        "rpc_port": 0,
        "queue_size": case.queue_size,
        "dag": {
            "retry": case.dag_retry,
            "channel_size": case.channel_size,
            "fuse": "off" if case.fuse == "off" else "auto",
        },
        "op": {op.name: _op_config(op) for one in case.pipelines for op in one.ops},
    }
    if case.worker_num is not None:
        settings["worker_num"] = case.worker_num
    return settings


def _op_config(op: OpSpec) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "concurrency": op.concurrency,
        "batch_size": op.batch_size,
        "retry": op.retry,
        "workers": op.workers,
        "batching": "adaptive" if op.adaptive else "full",
        "channel_recv_first_arrive": op.first_arrival,
    }
    if op.timeout_s is not None:
        settings["timeout"] = round(op.timeout_s * 1000)
    if op.batching_s is not None:
        settings["auto_batching_timeout"] = round(op.batching_s * 1000)
    return settings
