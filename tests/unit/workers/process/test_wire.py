"""Frames and their two ends. Hypothesis, or the capacity of a socket, cuts the bytes."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading

import msgspec
import pytest
from doubles import settle, virtual
from hypothesis import given
from hypothesis import strategies as st

from pipeline.workers.process.wire import (
    ErrorFields,
    Init,
    ItemOutcome,
    Jobs,
    Link,
    Result,
    Unframer,
    WireItem,
    WireJob,
    WireParts,
    WireSlice,
    WorkerLink,
    WorkerReport,
    framed,
)
from pipeline.workers.shm.arena import Block
from pipeline.workers.shm.payload import SerializedPayload

MIB = 2**20

numbers = st.integers(0, 2**32)
blocks = st.builds(Block, numbers, numbers, numbers)
serialized = st.builds(
    SerializedPayload, st.binary(max_size=50), st.lists(blocks, max_size=3), st.booleans()
)
samples = st.builds(
    WireItem,
    st.integers(0, 10**18),
    st.integers(-(2**63), 2**64 - 1),
    st.dictionaries(st.text(max_size=5), serialized, max_size=3),
)
jobs = st.builds(WireJob, numbers, st.lists(samples, max_size=3))
works = st.builds(Jobs, st.lists(jobs, max_size=3), st.lists(blocks, max_size=3))
errors = st.builds(ErrorFields, st.text(), st.integers(-(2**63), 2**63 - 1), st.text())
outcomes = st.builds(ItemOutcome, serialized) | st.builds(ItemOutcome, error=errors)
results = st.builds(Result, numbers, st.lists(outcomes, max_size=3), st.booleans(), *[numbers] * 4)
reports = st.builds(
    WorkerReport,
    st.booleans(),
    st.text(),
    st.lists(results, max_size=3),
    st.lists(st.binary(max_size=50), max_size=3),
    st.lists(numbers, max_size=3),
)
messages = works | reports | st.builds(Init, numbers)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


# The format ---------------------------------------------------------------------------------


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 10**6), max_size=20))
def test_every_message_arrives_however_the_stream_is_cut(sent, cuts):
    unframer = Unframer()
    collected = []
    for piece in pieces(b"".join(map(framed, sent)), cuts):
        collected += [bytes(body) for body in unframer.feed(piece)]
    decoded = [
        msgspec.msgpack.decode(body, type=type(message))
        for body, message in zip(collected, sent, strict=True)
    ]
    assert decoded == sent


def test_every_message_arrives_byte_by_byte():
    parts = WireParts(3, [(0, ItemOutcome(SerializedPayload(b"x"))), (1, ItemOutcome())], 1, 2)
    sent = [
        Init(7),
        WorkerReport(is_ready=True),
        Jobs([], [Block(1, 2, 3)], [WireSlice(3, 1, [5, -1], [0])]),
        WorkerReport(parts=[parts]),
    ]
    unframer = Unframer()
    got = [
        bytes(body)
        for number in b"".join(map(framed, sent))
        for body in unframer.feed(bytes([number]))
    ]
    assert got == [msgspec.msgpack.encode(message) for message in sent]


def test_a_frame_without_a_body_is_one():
    assert [bytes(body) for body in Unframer().feed(struct.pack("<QQ", 0, 0))] == [b"", b""]


@given(st.lists(st.integers(0, 10**6), max_size=10), st.integers(0, 3))
def test_decoded_frames_do_not_change_later(cuts, count):
    """The views that are given out do not hinder, or follow, what comes after."""
    sent = [WorkerReport(failure=str(number) * 30) for number in range(4)]
    unframer = Unframer()
    collected = []
    for piece in pieces(b"".join(map(framed, sent)), cuts):
        collected += unframer.feed(piece)
    assert [msgspec.msgpack.decode(body, type=WorkerReport) for body in collected] == sent
    assert len(collected[count]) == len(msgspec.msgpack.encode(sent[count]))


# The server's end ------------------------------------------------------------------------------


class Ends:
    """A Link that records what it receives, and the worker's end of its socket."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.reports: list[WorkerReport] = []
        self.ends = 0
        self.link = Link(
            ours, asyncio.get_running_loop(), WorkerReport, self.on_report, self.on_end
        )

    def on_report(self, report: WorkerReport) -> None:
        self.reports.append(report)

    def on_end(self) -> None:
        self.ends += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.link.close()
        self.theirs.close()

    def received(self) -> bytes:
        data = b""
        try:
            while piece := self.theirs.recv(MIB):
                data += piece
        except BlockingIOError:
            pass
        return data


@virtual
async def test_reports_arrive_whole_from_any_pieces():
    with Ends() as ends:
        sent = [
            WorkerReport(failure="x" * 300),
            WorkerReport(is_ready=True),
            WorkerReport(records=[b"r"]),
        ]
        for piece in pieces(b"".join(map(framed, sent)), [1, 3, 100, 310, 311, 320]):
            ends.theirs.send(piece)
            await settle(3)
        assert ends.reports == sent


@virtual
async def test_a_report_that_is_longer_than_any_buffer_arrives():
    with Ends() as ends:
        frame = memoryview(framed(WorkerReport(records=[b"x" * 5 * MIB]))).toreadonly()
        while frame:
            try:
                frame = frame[ends.theirs.send(frame) :]
            except BlockingIOError:
                await settle(1)
        await settle(200)
        assert [len(report.records[0]) for report in ends.reports] == [5 * MIB]


@virtual
async def test_bytes_that_the_socket_does_not_accept_are_sent_later_in_order():
    with Ends() as ends:
        frames = [framed(WorkerReport(records=[bytes([number]) * MIB])) for number in range(5)]
        for frame in frames:
            ends.link.send(frame)
        received = b""
        while len(received) < 5 * MIB:
            received += ends.received()
            await settle(2)
        assert received == b"".join(frames)
        ends.link.send(framed(Init(1)))
        assert ends.received() == framed(Init(1)), "at once again"


@virtual
async def test_frames_for_a_dead_worker_are_dropped():
    with Ends() as ends:
        for _ in range(3):
            ends.link.send(bytes(MIB))
        ends.theirs.close()
        ends.link.send(b"more")
        await settle()
        ends.link.send(b"more")
        assert ends.ends == 1
        assert ends.link._unsent == b""


@virtual
async def test_the_end_is_reported_once_after_all_frames():
    with Ends() as ends:
        ends.link.send(b"what the worker does not read")
        ends.theirs.send(framed(WorkerReport(is_ready=True)) + b"\x09")
        ends.theirs.close()
        await settle()
        assert ends.reports == [WorkerReport(is_ready=True)]
        assert ends.ends == 1


@virtual
async def test_a_local_close_does_not_report_an_end():
    with Ends() as ends:
        ends.link.close()
        assert ends.theirs.recv(1) == b""
        await settle()
        assert ends.ends == 0
        ends.link.close()
        ends.link.send(b"nowhere")


@virtual
async def test_drain_reads_all_frames_and_closes():
    with Ends() as ends:
        sent = [WorkerReport(failure="x" * 30_000)] * 5 + [WorkerReport(is_ready=True)]
        for report in sent:
            ends.theirs.send(framed(report))
        ends.link.drain()  # the other end is open, by a process that the worker forked
        assert ends.reports == sent
        assert ends.theirs.recv(1) == b""
        ends.link.drain()
        await settle()
        assert ends.ends == 0


@virtual
async def test_a_receiver_that_raises_gets_the_next_message():
    class Raises(Ends):
        def on_report(self, report: WorkerReport) -> None:
            super().on_report(report)
            raise ValueError("not this one")

    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, what: reported.append(what))
    with Raises() as ends:
        for _ in range(2):
            ends.theirs.send(framed(WorkerReport()) * 2 + framed(WorkerReport())[:1])
            await settle()
            ends.theirs.send(framed(WorkerReport())[1:])
            await settle()
        assert len(ends.reports) == len(reported) == 6
        assert {type(what["exception"]) for what in reported} == {ValueError}


@virtual
async def test_a_receiver_may_part_amidst_the_messages():
    class Parts(Ends):
        def on_report(self, report: WorkerReport) -> None:
            super().on_report(report)
            self.link.close()

    with Parts() as ends:
        ends.theirs.send(framed(WorkerReport()))
        ends.theirs.close()
        await settle()
        assert len(ends.reports) == 1
        assert ends.ends == 0


# The worker's end -----------------------------------------------------------------------------


@pytest.fixture
def pair():
    server, worker = socket.socketpair()
    server.settimeout(20)
    worker.settimeout(None)
    yield server, WorkerLink(worker)
    server.close()
    worker.close()


def read_reports(server: socket.socket, count: int) -> list[WorkerReport]:
    unframer, collected = Unframer(), []
    while len(collected) < count:
        data = server.recv(MIB)
        assert data, "the worker has parted"
        collected += [
            msgspec.msgpack.decode(body, type=WorkerReport) for body in unframer.feed(data)
        ]
    return collected


def test_a_worker_reads_its_init_and_then_its_jobs(pair):
    server, link = pair
    work = Jobs([WireJob(1, [])], [])
    server.sendall(framed(Init(3)) + framed(work) + framed(work)[:7])
    assert link.init() == Init(3)
    assert link.next() == work
    assert link.next_if_there() is None
    server.sendall(framed(work)[7:] + framed(work))
    assert link.next_if_there() == work
    assert link.next() == work
    assert link.next_if_there() is None


@pytest.mark.parametrize("half", [b"", b"\x09", framed(Jobs([], []))[:-1]])
def test_a_worker_learns_that_the_server_has_parted(pair, half):
    server, link = pair
    server.sendall(half)
    server.close()
    with pytest.raises(EOFError):
        link.next()


def test_a_worker_whose_server_ended_before_the_init_gets_an_error(pair):
    server, link = pair
    server.sendall(framed(Init(3))[:-1])
    server.close()
    with pytest.raises(EOFError):
        link.init()


def test_records_of_all_threads_arrive_in_whole_frames(pair):
    server, link = pair

    def log(name):
        for number in range(200):
            link.send_record(b"%d %d " % (name, number) + b"x" * 1000)

    threads = [threading.Thread(target=log, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    unframer, records, results = Unframer(), [], 0
    sending = threading.Thread(
        target=lambda: [link.send(WorkerReport(failure="y" * 1000)) for _ in range(200)]
    )
    sending.start()
    while len(records) < 800 or results < 200:
        for body in unframer.feed(server.recv(MIB)):
            report = msgspec.msgpack.decode(body, type=WorkerReport)
            results += bool(report.failure)
            records += report.records
    for thread in (*threads, sending):
        thread.join()
    for name in range(4):
        mine = [int(r.split()[1]) for r in records if r.split()[0] == b"%d" % name]
        assert mine == list(range(200))


def test_a_record_logged_during_a_send_follows_it(pair):
    """By a finaliser, which runs in the very thread that sends."""
    server, link = pair
    with link._sending:
        link.send_record(b"late")
    link.send(WorkerReport(is_ready=True))
    assert read_reports(server, 2) == [WorkerReport(is_ready=True), WorkerReport(records=[b"late"])]
