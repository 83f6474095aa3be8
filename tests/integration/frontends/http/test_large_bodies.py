"""Large bodies by their places, over sockets: what is kept, and for how long, and what it costs."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
import tracemalloc
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import numpy as np
import pytest
import uvloop
from fake_transport import FakeTransport
from link_peer import until
from v2_doubles import running

from pipeline import Op, RequestOp
from pipeline.data import Tensor
from pipeline.frontends.http.server import HttpFrontend
from pipeline.frontends.v2.http import InferenceRoutes
from pipeline.workers.shm.arena import Arena
from pipeline.workers.shm.server_memory import ServerMemory

MIB = 2**20
SIZE = 150_528


class Sums(Op):
    """Tells where its input lies, and writes into it; gives it back where it is asked to."""

    input_tensors = (Tensor("x", "UINT8", (-1,)),)
    output_tensors = (Tensor("y", "INT64", (1,)), Tensor("x", "UINT8", (-1,)))
    kept: ClassVar[list[Any]] = []

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        x = answer["x"]
        if len(x) == SIZE + 1:
            self.kept.append(x)
        total = x.sum(dtype=np.int64) if len(x) <= SIZE + 1 else np.int64(len(x))
        if len(x) <= SIZE + 1:
            x[:] = 9
        return {"y": np.array([total]), "x": x}, False, None, ""


class Door:
    """A frontend before an engine, with memory that worker processes could read."""

    def __init__(self, server, region_bytes):
        self.memory = ServerMemory(Arena(region_bytes))
        routes = InferenceRoutes(server.models)
        self.frontend = HttpFrontend(
            None, "127.0.0.1", 0, 64 * MIB, read_timeout_s=0.5, routes=[routes],
            lanes=[routes.inference], memory=self.memory,
        )  # fmt: skip

    def played(self):
        return FakeTransport(self.frontend._listener.meet())

    async def connect(self):
        return await asyncio.open_connection("127.0.0.1", self.frontend.port)

    async def holds(self, blocks):
        """Wait until so much is held."""
        await until(lambda: self.memory.used == blocks)


def run_with(test, loops=(uvloop.new_event_loop, asyncio.new_event_loop), region_bytes=128 * MIB):
    async def main():
        async with running(Sums("sums", RequestOp())) as server, opened(server) as door:
            await asyncio.wait_for(test(door), 30)
            await asyncio.wait_for(door.holds(0), 5)

    @asynccontextmanager
    async def opened(server):
        door = Door(server, region_bytes)
        await door.frontend.start(is_ready=True)
        try:
            yield door
        finally:
            await door.frontend.stop(0.0)
            door.memory.close()

    for make in loops:
        with asyncio.Runner(loop_factory=make) as runner:
            runner.run(main())


def by_sockets(test=None, **more):
    """Run an async test over both loops."""
    return lambda: run_with(test, **more)


def request(body, *headers, outputs=("y",)):
    asked = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    size = {"binary_data_size": len(body)}
    tensor = {"name": "x", "datatype": "UINT8", "shape": [len(body)], "parameters": size}
    text = json.dumps({"inputs": [tensor], "outputs": asked}).encode()
    return head_of(len(text), len(text) + len(body), *headers) + text + body


def start_of(size):
    """Return a request up to its array, which is to have so many bytes."""
    data = request(b"").replace(b'"binary_data_size": 0', b'"binary_data_size": %d' % size)
    text = data.partition(b"\r\n\r\n")[2].replace(b'"shape": [0]', b'"shape": [%d]' % size)
    return head_of(len(text), len(text) + size) + text


def head_of(json_bytes, length, *headers):
    said = [f"Content-Length: {length}"] if length is not None else []
    said += [f"Inference-Header-Content-Length: {json_bytes}", *headers]
    lines = ["POST /v2/models/svc/infer HTTP/1.1", "Host: h", *said, "", ""]
    return "\r\n".join(lines).encode()


async def answer(reader):
    """Return the status, the outputs' bytes and the JSON of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(fields[b"content-length"]))
    length = int(fields.get(b"inference-header-content-length", len(body)))
    return int(head[0].split()[1]), body[length:], body[:length]


def total(found):
    status, data, text = found
    assert status == 200, text
    return int(np.frombuffer(data, np.int64, 1)[0])


@by_sockets
async def test_bodies_in_pieces_are_returned_one_after_the_other(door):
    reader, writer = await door.connect()
    body = bytes(range(250)) * 602
    whole = request(body, outputs=("y", "x"))
    for at in (0, 1, 100, 300, 5000, len(whole) - 1, len(whole)):
        for piece in (whole[:at], whole[at:]):
            writer.write(piece)
            await asyncio.sleep(0.002)
        status, data, _ = await answer(reader)
        assert status == 200
        assert data == np.array([sum(body)]).tobytes() + bytes([9]) * len(body)
    writer.write(whole + request(b"small") + whole)
    assert total(await answer(reader)) == sum(body)
    assert total(await answer(reader)) == sum(b"small")
    assert total(await answer(reader)) == sum(body)
    writer.close()


@by_sockets
async def test_other_encodings_of_a_large_body_are_accepted(door):
    body = b"\1" * SIZE
    whole = request(body)
    _, _, rest = whole.partition(b"\r\n\r\n")
    json_bytes = len(rest) - SIZE
    packed = gzip.compress(rest)
    chunked = b"".join(
        b"%x\r\n%b\r\n" % (len(rest[at : at + 9999]), rest[at : at + 9999])
        for at in range(0, len(rest), 9999)
    )
    for data in (
        head_of(json_bytes, len(rest), "Expect: 100-continue"),
        head_of(json_bytes, len(packed), "Content-Encoding: gzip") + packed,
        head_of(json_bytes, None, "Transfer-Encoding: chunked") + chunked + b"0\r\n\r\n",
        whole.replace(b"HTTP/1.1", b"HTTP/1.0"),
        head_of(json_bytes, len(rest), "Connection: close") + rest,
    ):
        for _ in range(3):
            reader, writer = await door.connect()
            writer.write(data)
            if b"100-continue" in data:
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(rest)
            assert total(await answer(reader)) == SIZE
            writer.close()


@by_sockets
async def test_an_invalid_large_body_is_refused_and_the_connection_continues(door):
    reader, writer = await door.connect()
    whole = request(b"\1" * SIZE)
    for wrong, text in (
        (whole.replace(b"UINT8", b"INT16"), b"byte size mismatch"),
        (whole.replace(b'{"inputs"', b'{!inputs"'), b"JSON"),
    ):
        for _ in range(3):
            writer.write(wrong)
            status, _, reported = await answer(reader)
            assert status == 400
            assert text in reported
            writer.write(whole)
            assert total(await answer(reader)) == SIZE
    writer.close()


@by_sockets
async def test_a_client_that_leaves_or_stops_within_a_body_holds_no_memory(door):
    whole = request(b"\1" * SIZE)
    for known in (False, True):
        if known:
            reader, writer = await door.connect()
            for _ in range(3):
                writer.write(whole)
                assert total(await answer(reader)) == SIZE
            writer.close()
        for sent in (len(whole) - SIZE, len(whole) - 1000):
            _, writer = await door.connect()
            writer.write(whole[:sent])
            await writer.drain()
            await asyncio.sleep(0.01)
            writer.transport.abort()
        reader, writer = await door.connect()
        writer.write(whole[:-1000])
        assert (await answer(reader))[0] == 408
        writer.close()
        await door.holds(0)


@by_sockets
async def test_an_op_may_keep_its_input(door):
    reader, writer = await door.connect()
    for number in range(1, 5):
        writer.write(request(bytes([number]) * (SIZE + 1)))
        assert total(await answer(reader)) == number * (SIZE + 1)
    assert door.memory.used == 4
    assert [array[0] for array in Sums.kept] == [9, 9, 9, 9]
    assert len({array.ctypes.data for array in Sums.kept}) == 4
    Sums.kept.clear()
    writer.close()


async def read_no_answers(door):
    reader, writer = await door.connect()
    whole = request(b"\1" * (20 * MIB), outputs=("x",))
    for _ in range(3):
        writer.write(whole)
        assert (await answer(reader))[:2] == (200, b"\1" * (20 * MIB))
    writer.transport.pause_reading()
    writer.write(whole)
    await door.holds(1)
    await asyncio.sleep(0.2)
    await door.holds(1)
    writer.transport.abort()


def test_unread_answers_are_held_until_the_client_leaves():
    run_with(read_no_answers, loops=(uvloop.new_event_loop,))  # asyncio's own loop copies them


def test_without_room_bodies_are_in_other_memory():
    async def ask(door):
        held = door.memory.place(MIB)
        reader, writer = await door.connect()
        for _ in range(4):
            writer.write(request(b"\1" * SIZE))
            assert total(await answer(reader)) == SIZE
            assert door.memory.used == 1
        writer.close()
        del held

    run_with(ask, region_bytes=2 * MIB)


def test_a_draining_server_accepts_the_rest_of_a_body_and_closes():
    async def ask(door):
        reader, writer = await door.connect()
        whole = request(b"\1" * SIZE)
        for _ in range(3):
            writer.write(whole)
            await answer(reader)
        writer.write(whole[:-1000])
        await asyncio.sleep(0.05)
        await door.frontend.drain()
        writer.write(whole[-1000:])
        assert total(await answer(reader)) == SIZE
        assert await reader.read() == b""
        writer.close()

    run_with(ask)


# What it costs ------------------------------------------------------------------------------


def counted(work):
    """Return the bytecodes of this thread that `work` takes."""
    count = 0

    def each(frame, event, arg):
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return each

    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(None)
    return count


PIECE = 128 * 1024  # of a body, that a turn of the loop reads at most
PIECES = 2


def test_in_a_turn_of_the_loop_few_of_many_bodies_are_read():
    async def ask(door):
        transports = [door.played() for _ in range(3 * PIECES)]
        for transport in transports:
            transport.send(start_of(MIB))
            transport.protocol.buffer_updated(len(transport.protocol.get_buffer(-1)))
        transports.pop().leave()
        for reading in (0, PIECES, 2 * PIECES, 3 * PIECES - 1):
            assert sum(transport.is_reading for transport in transports) == reading
            await asyncio.sleep(0)
        for transport in transports:
            transport.leave()

    run_with(ask)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="bytecodes are counted on CPython 3.11")
def test_the_work_of_a_loop_iteration_does_not_depend_on_the_size():
    costs = {}

    async def ask(door):
        loop = asyncio.get_running_loop()
        for size in (SIZE, 16 * MIB):
            transport = door.played()
            connection = transport.protocol
            start = start_of(size)

            def send(transport=transport, start=start):
                transport.send(start)
                transport.protocol.buffer_updated(len(transport.protocol.get_buffer(-1)))

            def finish(transport=transport):
                transport.protocol.buffer_updated(len(transport.protocol.get_buffer(-1)))

            collected = []
            for number in range(12):
                transport.written = b""
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                bytecodes = counted(send)
                assert not transport.is_reading
                left = size - PIECE
                while left > PIECE:
                    await asyncio.wait_for(transport.reads_again.wait(), 5)
                    finish()
                    left -= PIECE
                bytecodes += counted(finish)
                await until(lambda connection=connection: connection.is_idle)
                grown = tracemalloc.get_traced_memory()[1] - before
                assert transport.written.startswith(b"HTTP/1.1 200")
                if number >= 6:
                    collected.append((bytecodes, grown < 100_000))
            costs.setdefault(loop.__class__, []).append(min(collected))
            transport.leave()

    tracemalloc.start()
    try:
        run_with(ask, loops=(uvloop.new_event_loop,))
    finally:
        tracemalloc.stop()
    (result,) = costs.values()
    assert result[0] == result[1]
    assert result[0][1]
