"""Generators in real worker processes: crashes in the middle, closing, memory, turns."""

from __future__ import annotations

import asyncio
import os
import signal

import numpy as np
from doubles import on_loop, until
from streaming import Count, Event, Mark, Noted, PartsSink, serving

from pipeline import Op, RequestOp
from pipeline.errors import ErrorCode


class Endless(Op):
    """Yields its process's id forever, and records when a generator of it was closed."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.closed = Event()

    def process(self, feed_batch, log_id):
        try:
            while True:
                yield {"text": f"{os.getpid()}"}
        finally:
            self.closed.set()


def on_processes(**dag):
    return {"workers": "process", "dag": {"stream_window": 4, **dag}}


@on_loop
async def test_a_killed_process_ends_its_streams_after_their_parts():
    op = Endless("endless", RequestOp(), concurrency=2)
    async with serving(op, **on_processes()) as streams:
        sinks = [streams.begin(PartsSink(False)) for _ in range(6)]
        for sink in sinks:
            await sink.until(4)
        pids = {sink.texts[0] for sink in sinks}
        assert len(pids) == 2, "they are spread, idle as the processes are"
        victim = sinks[0].texts[0]
        os.kill(int(victim), signal.SIGKILL)
        for sink in sinks:
            if sink.texts[0] == victim:
                assert "was killed by SIGKILL" in (await sink.ended()).err_msg
                assert sink.texts == [victim] * 4
            else:
                sink.take(4)
                assert await sink.until(8) == [sink.texts[0]] * 8
        new = streams.begin(PartsSink(False))
        await new.until(4)
        await streams.engine.stop(0.0)


class DiesOnce(Op):
    """Its process ends once: before the first part, or behind it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.died = Event()

    def process(self, feed_batch, log_id):
        if feed_batch[0]["before"] == "first":
            self._die()
        yield {"text": "a"}
        self._die()
        yield {"text": "b"}

    def _die(self):
        if not self.died.is_set():
            self.died.set()
            os._exit(3)


@on_loop
async def test_a_stream_without_sent_parts_is_repeated_as_configured():
    async with serving(DiesOnce("dies", RequestOp(), retry=2), **on_processes()) as streams:
        sink = streams.begin(before="first")
        assert await sink.ended() is None
        assert sink.texts == ["a", "b"]
    async with serving(DiesOnce("dies", RequestOp(), retry=2), **on_processes()) as streams:
        sink = streams.begin(before="second")
        assert "ended with exit code 3" in (await sink.ended()).err_msg
        assert sink.texts == ["a"]


@on_loop
async def test_a_server_that_stops_closes_the_generators():
    op = Endless("endless", RequestOp())
    async with serving(op, **on_processes()) as streams:
        sink = streams.begin(PartsSink(False))
        await sink.until(4)
    assert sink.last.err_no == ErrorCode.CLOSED_ERROR
    assert op.closed.is_set()


@on_loop
async def test_a_part_that_no_frame_can_hold_ends_a_stream_after_its_parts():
    class Odd(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            yield {"text": open(os.devnull)}  # noqa: SIM115
            yield {"text": "c"}

    async with serving(Odd("odd", RequestOp()), **on_processes()) as streams:
        sink = streams.begin()
        answer = await sink.ended()
        assert (answer.err_no, sink.texts) == (ErrorCode.TYPE_ERROR, ["a"])
        await streams.idle()


@on_loop
async def test_memory_of_large_parts_is_freed_when_they_are_read():
    class Large(Op):
        def process(self, feed_batch, log_id):
            for number in range(300):
                yield {"x": np.full(2**20, number % 256, np.uint8), "text": f"{number}"}

    class Sums(Op):
        def process(self, feed_batch, log_id):
            return {"text": feed_batch[0]["text"], "first": str(feed_batch[0]["x"][0])}

    last = Sums("sums", Large("large", RequestOp()))
    config = on_processes(shared_memory_mib=64)  # of 300 that pass
    async with serving(last, **config) as streams:
        sink = streams.begin()
        assert await sink.ended() is None
        assert [answer["first"] for answer in sink.answers] == [str(n % 256) for n in range(300)]
        assert streams.node("large").workers.memory_domain.used <= 8


@on_loop
async def test_an_op_that_gathers_in_a_process_gets_large_parts_in_order():
    class Large(Op):
        def process(self, feed_batch, log_id):
            for number in range(3):
                yield {"x": np.full(2**17, number, np.uint8)}

    class Gathers(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            once, parts = input_dicts.values()
            return {"text": once["text"] + "".join(str(part["x"][-1]) for part in parts)}

    read = RequestOp()
    last = Gathers("g", [Mark("once", read), Large("large", read)], gather=True)
    async with serving(last, **on_processes()) as streams:
        assert list((await streams.combined(text="x")).value) == ["oncex012"]


@on_loop
async def test_a_new_request_does_not_wait_for_all_open_streams():
    """Slices and new jobs have turns in a process."""

    class Waits(Op):
        def process(self, feed_batch, log_id):
            while True:
                turns.append(int(feed_batch[0]["n"]))
                yield {"text": "x"}
                is_held.set()
                go_on.wait(20)

    go_on, is_held, turns = Event(), Event(), Noted()
    async with serving(Waits("waits", RequestOp()), **on_processes(stream_window=1)) as streams:
        sinks = [streams.begin(PartsSink(False), n=0) for _ in range(10)]
        for sink in sinks:
            await sink.until(1)
        for sink in sinks:
            sink.take()
        await until(is_held.is_set)  # the first slice of ten that the process has been sent
        sinks.append(streams.begin(PartsSink(False), n=1))
        await until(lambda: streams.node("waits").load.running == 1)
        go_on.set()
        await sinks[-1].until(1)
        assert list(turns)[10:].index(1) <= 2, "behind the one that ran, and perhaps the next"
        for sink in sinks:
            sink.request.cancel()
        await streams.idle()


@on_loop
async def test_a_stream_in_a_stopped_process_continues_with_the_process():
    async with serving(Endless("endless", RequestOp()), **on_processes()) as streams:
        sink = streams.begin(PartsSink(False))
        pid = int((await sink.until(4))[0])
        os.kill(pid, signal.SIGSTOP)
        workers = streams.node("endless").workers
        await until(lambda: workers.count == 0)
        sink.take(4)
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        assert await sink.until(8) == [f"{pid}"] * 8
        sink.request.cancel()
        await streams.idle()


@on_loop
async def test_threads_and_processes_pass_parts_to_each_other():
    read = RequestOp()
    inner = Mark("t", Count("count", read))
    config = {"op": {"t": {"workers": "thread"}}, **on_processes()}
    async with serving(Mark("p", inner), **config) as streams:
        sink = streams.begin(n=20)
        assert await sink.ended() is None
        assert sink.texts == [f"pt{n}" for n in range(20)]
