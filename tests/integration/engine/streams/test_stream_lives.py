"""The life of a generator in its worker: state, context, retries, hangs, the end of the server."""

from __future__ import annotations

import asyncio
import threading

import pytest
from doubles import client_of, on_loop, post, server_for, settle, wait_until
from streaming import PATIENCE_S, Count, Mark, OneSink, PartsSink, serving

from pipeline import Answer, Op, RequestOp
from pipeline.data import ChannelData
from pipeline.engine.request import RequestTarget
from pipeline.errors import ErrorCode, PredictorUnavailableError


@on_loop
async def test_attributes_set_by_preprocess_are_present_when_a_generator_continues():
    class StoresName(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            (answer,) = input_dicts.values()
            self.who = answer["who"]
            return answer

        def process(self, feed_batch, log_id):
            while True:
                yield {"text": self.who}

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return {"text": fetch_data["text"] + self.who}

    async with serving(StoresName("keeps", RequestOp()), dag={"stream_window": 1}) as streams:
        sinks = [streams.begin(PartsSink(False), who=who) for who in "abc"]
        for count in (1, 2, 3):
            for sink in sinks:
                await sink.until(count)
                sink.take()
        assert [sink.texts[:3] for sink in sinks] == [["aa"] * 3, ["bb"] * 3, ["cc"] * 3]
        for sink in sinks:
            sink.request.cancel()
        await streams.idle()


@on_loop
async def test_a_generator_may_ask_for_its_context():
    class ReadsContext(Op):
        def process(self, feed_batch, typical_logid, *, context):
            (request,) = context
            while not request.is_cancelled():
                yield {"text": str(request.data_id)}
            self.seen.append("left")

    op = ReadsContext("asks", RequestOp())
    op.seen = []
    async with serving(op) as streams:
        sink = streams.begin(PartsSink())
        await sink.until(3)
        assert set(sink.texts) == {str(sink.request.data_id)}
        sink.request.cancel()
        await streams.idle()
        assert len(op.seen) <= 1  # it was closed at its yield, or saw it by itself


@on_loop
async def test_a_hook_of_a_streaming_postprocess_gets_the_context_of_its_request():
    class ReadsContext(Op):
        def postprocess(self, input_dicts, fetch_data, *, context):
            for _ in range(2):
                yield {"text": str(context.data_id)}

    async with serving(ReadsContext("asks", RequestOp()), dag={"stream_window": 1}) as streams:
        sinks = [streams.begin() for _ in range(3)]
        for sink in sinks:
            assert await sink.ended() is None
            assert sink.texts == [str(sink.request.data_id)] * 2


@on_loop
async def test_a_retryable_call_is_repeated_before_the_first_part():
    class Flaky(Op):
        def process(self, feed_batch, log_id):
            self.calls.append(1)
            if len(self.calls) < 3:
                raise PredictorUnavailableError("busy")
            yield {"text": "a"}
            raise PredictorUnavailableError("gone")

    op = Flaky("flaky", RequestOp(), retry=3)
    op.calls = []
    async with serving(op) as streams:
        sink = streams.begin()
        assert "gone" in (await sink.ended()).err_msg
        assert (sink.texts, len(op.calls)) == (["a"], 3)


@pytest.mark.parametrize("where", ["op", "dag"])
@on_loop
async def test_a_generator_that_hangs_before_its_first_part_starts_again(where):
    release = threading.Event()

    class Hangs(Op):
        def process(self, feed_batch, log_id):
            self.calls.append(1)
            if len(self.calls) == 1:
                release.wait(20)
            yield {"text": "a"}

    op = Hangs("hangs", RequestOp(), timeout=500, retry=2 if where == "op" else 0)
    op.calls = []
    try:
        async with serving(op, dag={"retry": 2 if where == "dag" else 1}) as streams:
            sink = streams.begin()
            assert await sink.ended() is None
            assert (sink.texts, len(op.calls)) == (["a"], 2)
            release.set()
            await streams.idle()
    finally:
        release.set()


@on_loop
async def test_a_part_may_be_overdue_after_its_request_has_started_again():
    calls, release = [], threading.Event()

    class Hangs(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            calls.append(1)
            if len(calls) == 2:
                release.wait(20)
            return {}

        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            release.wait(20)

    op = Hangs("hangs", RequestOp(), timeout=100)
    try:
        async with serving(op, dag={"part_timeout": 2000, "retry": 2}) as streams:
            answer = await streams.combined()
            assert answer.err_no == ErrorCode.TIMEOUT
            assert "part_timeout passed: the part 0 " in answer.err_msg
            release.set()
            await streams.idle()
    finally:
        release.set()


def let_it_end_while_it_is_given_up(workers, release):
    """Let a generator that hangs end its slice just when its worker is replaced."""
    real = workers.replace

    def replace(worker, job):
        is_replaced = real(worker, job)
        release.set()
        worker.thread.inbox.put(None)
        worker.thread.join(20)
        return is_replaced

    workers.replace = replace


@pytest.mark.parametrize("texts", [[], ["a"]])
@on_loop
async def test_a_generator_that_ends_while_it_is_given_up_has_timed_out(texts):
    release = threading.Event()

    class Hangs(Op):
        def process(self, feed_batch, log_id):
            for text in texts:
                yield {"text": text}
            release.wait(20)

    async with serving(Hangs("hangs", RequestOp(), timeout=200)) as streams:
        let_it_end_while_it_is_given_up(streams.node("hangs").workers, release)
        sink = streams.begin()
        assert (await sink.ended()).err_no == ErrorCode.TIMEOUT
        assert sink.texts == texts
        await streams.idle()


@on_loop
async def test_only_generators_that_have_not_ended_start_again_after_a_hang():
    release, calls, read = threading.Event(), [], threading.Event()

    class Hangs(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            (answer,) = input_dicts.values()
            return {"n": [answer["n"]]}

        def process(self, feed_batch, log_id):
            return {"n": feed_batch[0]["n"]}

        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            (n,) = fetch_data["n"]
            calls.append(n)
            if n == "hangs" and calls.count(n) == 1:
                release.wait(20)
            yield from [{"text": "a"}] * (n == "hangs")

    class Reads(Op):
        def preprocess(self, input_dicts, data_id, log_id):
            read.wait(20)
            (parts,) = input_dicts.values()
            return {"text": "".join(part["text"] for part in parts)}

    batches = {"batch_size": 2, "auto_batching_timeout": 10_000}
    hangs = Hangs("hangs", RequestOp(), timeout=200, retry=2, **batches)
    async with serving(Reads("reads", hangs, gather=True)) as streams:
        let_it_end_while_it_is_given_up(streams.node("hangs").workers, release)
        sinks = [streams.begin(OneSink(), n=n) for n in ("empty", "hangs")]
        await asyncio.to_thread(wait_until, lambda: len(calls) > 2)
        read.set()
        answers = [await sink for sink in sinks]
        assert [list(answer.value) for answer in answers] == [[""], ["a"]]
        assert sorted(calls) == ["empty", "hangs", "hangs"]
        await streams.idle()


@on_loop
async def test_an_async_generator_that_waits_forever_is_closed_after_a_cancellation():
    ended = asyncio.Event()

    class Waits(Op):
        async def process(self, feed_batch, log_id):
            try:
                yield {"text": "a"}
                await asyncio.Event().wait()
            finally:
                ended.set()

    async with serving(Waits("waits", RequestOp())) as streams:
        sink = streams.begin()
        await sink.until(1)
        sink.request.cancel()
        await asyncio.wait_for(ended.wait(), 20)
        again = streams.begin()
        assert await again.until(1) == ["a"]
        again.request.cancel()
        await streams.idle()


@on_loop
async def test_a_server_that_stops_answers_open_streams_and_closes_their_generators():
    closed = []

    class Endless(Op):
        def process(self, feed_batch, log_id):
            try:
                while True:
                    yield {"text": "a"}
            finally:
                closed.append(1)

    async with serving(Endless("endless", RequestOp())) as streams:
        sinks = [streams.begin(PartsSink(False)) for _ in range(3)]
        for sink in sinks:
            await sink.until(1)
    assert [sink.last.err_no for sink in sinks] == [ErrorCode.CLOSED_ERROR] * 3
    assert len(closed) == 3


@on_loop
async def test_a_server_that_stops_closes_a_generator_whose_slice_ends_meanwhile():
    closed = []
    reported, may_report = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    class Endless(Op):
        def process(self, feed_batch, log_id):
            try:
                while True:
                    yield {"text": "a"}
            finally:
                closed.append(1)

    class EndsLater(PartsSink):
        def end(self, answer):
            super().end(answer)
            loop.call_soon(loop.call_soon, loop.call_soon, may_report.set)  # the stop continues

    async with serving(Endless("endless", RequestOp())) as streams:
        pool = streams.node("endless").workers.pool
        post = pool.post

        def post_late(callback, worker, job):
            if callback == pool.on_done_idle and not may_report.is_set():
                loop.call_soon_threadsafe(reported.set)
                assert may_report.wait(PATIENCE_S)
            post(callback, worker, job)

        pool.post = post_late
        sink = streams.begin(EndsLater(False))
        await reported.wait()
        (run,) = [flow.run for flow in streams.node("endless")._runs.values()]
    assert sink.last.err_no == ErrorCode.CLOSED_ERROR
    assert closed == [1]
    assert run.is_finished  # the garbage collector has not closed it


@on_loop
async def test_a_generator_that_cannot_be_closed_does_not_affect_others():
    class Stubborn(Op):
        def process(self, feed_batch, log_id):
            try:
                while True:
                    yield {"text": "a"}
            finally:
                raise ValueError("not now")

    async with serving(Stubborn("stubborn", RequestOp())) as streams:
        sink = streams.begin(PartsSink(False))
        await sink.until(1)
        sink.request.cancel()
        await streams.idle()
        assert await streams.begin(PartsSink(False)).until(1) != []


@on_loop
async def test_a_target_without_response_gets_the_data_of_each_part():
    class Data(PartsSink):
        def add(self, answers):
            assert all(isinstance(answer, ChannelData) for answer in answers)
            self.answers += [answer.payload for answer in answers]
            self.take(len(answers))

    count = Count("count", RequestOp())
    async with serving(count) as streams:
        target = RequestTarget(payload={"n": "3"}, wants_response=False)
        sink = streams.begin(Data(), target=target)
        assert await sink.ended() is None
        assert sink.texts == ["0", "1", "2"]


@on_loop
async def test_a_unary_pipeline_gives_its_answer_as_the_end():
    async with serving(Mark("m", RequestOp())) as streams:
        sink = streams.begin(text="x")
        assert list((await sink.ended()).value) == ["mx"]
        assert sink.texts == []
        sink.take()  # what nobody waits for
        await settle()


def test_a_caller_over_http_and_grpc_gets_the_parts_as_one():
    with server_for(Mark("<", Count("count", RequestOp()))) as server:
        answer = post(server, {"key": ["n"], "value": ["3"]})[1]
        assert answer["value"] == ["<0<1<2"]
        with client_of(server) as client:
            assert list(client.predict({"n": "4"}).value) == ["<0<1<2<3"]


@on_loop
async def test_a_part_that_waits_is_dropped_when_its_request_ends():
    second_part, answer, worker_is_free = (threading.Event() for _ in range(3))

    class Source(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "0"}
            if feed_batch[0]["text"] == "ends early":
                second_part.wait(PATIENCE_S)
                yield {"text": "1"}

    class Each(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            if data_id != sink.request.data_id:
                worker_is_free.wait(PATIENCE_S)
            return super().preprocess(input_dicts, data_id, log_id)

        def process(self, feed_batch, log_id):
            yield feed_batch[0]

    class Last(Mark):
        def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
            if data_id != sink.request.data_id:
                return fetch_dict, None, ""
            answer.wait(PATIENCE_S)
            return Answer(fetch_dict), None, ""

    each = Each("each", Source("source", RequestOp()))
    op = {"source": {"concurrency": 2}, "last": {"concurrency": 2}}
    async with serving(Last("last", each), op=op) as streams:
        node = streams.node("each")
        sink = streams.begin(text="ends early")
        await asyncio.to_thread(wait_until, lambda: node.links.answered == 1 and not node._runs)
        others = [streams.begin(text="other") for _ in range(30)]
        await asyncio.to_thread(wait_until, lambda: node.load.items + len(node.scheduler) == 30)
        second_part.set()
        await asyncio.to_thread(wait_until, lambda: node.load.items + len(node.scheduler) == 31)
        answer.set()
        await sink.ended()
        assert node.load.items + len(node.scheduler) == 30
        worker_is_free.set()
        for other in others:
            await other.ended()


def test_threads_do_not_grow_with_streams():
    """A thousand open streams of one worker."""

    async def main():
        class Endless(Op):
            def process(self, feed_batch, log_id):
                while True:
                    yield {"text": "a"}

        config = {"worker_num": 1000, "dag": {"stream_window": 2}}
        async with serving(Endless("endless", RequestOp()), **config) as streams:
            before = threading.active_count()
            sinks = [streams.begin(PartsSink(False)) for _ in range(1000)]
            for sink in sinks:
                await sink.until(2)
            assert threading.active_count() <= before + 1  # of `idle` below
            for sink in sinks:
                sink.request.cancel()
            await streams.idle()

    asyncio.run(main())
    wait_until(lambda: not [t for t in threading.enumerate() if "endless" in t.name])
