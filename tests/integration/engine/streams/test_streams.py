"""Streams through an engine over real workers: order, room, cancellation, errors, one answer."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
import streaming
from doubles import on_loop, settle, skip, wait_until
from streaming import Count, Event, Mark, Noted, OneSink, PartsSink, serving

from pipeline import Answer, Goto, Op, ProductError, RequestOp, ResponseOp
from pipeline.engine.journal.journal import PIPELINE, Outcome, PartKind
from pipeline.engine.request import RequestTarget
from pipeline.engine.state import EdgeState
from pipeline.errors import ErrorCode, GraphError


@pytest.fixture(params=["thread", "process"], autouse=True)
def workers(request, monkeypatch):
    """All that is not said otherwise holds in threads and in processes."""
    monkeypatch.setattr(streaming, "usual_workers", request.param)
    return request.param


def numbers(count):
    return [f"{number}" for number in range(count)]


# Parts --------------------------------------------------------------------------------------------


@on_loop
async def test_each_yield_is_a_part_in_order():
    async with serving(Count("count", RequestOp())) as streams:
        sink = streams.begin(n=40)
        assert await sink.ended() is None
        assert sink.texts == numbers(40)
        assert streams.engine.executor.is_decoupled()


@on_loop
async def test_a_stream_without_parts_just_ends():
    async with serving(Count("count", RequestOp())) as streams:
        sink = streams.begin(n=0)
        assert await sink.ended() is None
        assert sink.texts == []


@on_loop
async def test_an_async_generator_streams():
    class Waits(Op):
        async def process(self, feed_batch, log_id):
            for number in range(3):
                await asyncio.sleep(0)
                yield {"text": f"{number}"}

    async with serving(Waits("waits", RequestOp())) as streams:
        sink = streams.begin(n=3)
        assert await sink.ended() is None
        assert sink.texts == numbers(3)


@pytest.mark.parametrize("is_async", [False, True])
@on_loop
async def test_postprocess_may_stream_the_result_of_process(is_async):
    class Letters(Op):
        def process(self, feed_batch, log_id):
            return {"word": [feed["text"][::-1] for feed in feed_batch]}

    class Plain(Letters):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            for letter in fetch_data["word"][0]:
                yield {"text": letter}, None, ""

    class Async(Letters):
        async def postprocess(self, input_dicts, fetch_data):
            for letter in fetch_data["word"][0]:
                yield {"text": letter}

    op = (Async if is_async else Plain)("letters", RequestOp())
    async with serving(op) as streams:
        sink = streams.begin(text="abc")
        assert await sink.ended() is None
        assert sink.texts == ["c", "b", "a"]


@on_loop
async def test_a_part_passes_each_later_op_once_and_in_order():
    calls = Noted()

    class Slow(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            calls.append(int(input_dicts["count"]["text"]))
            return super().preprocess(input_dicts, data_id, log_id)

    last = Mark("<", Slow(">", Count("count", RequestOp()), concurrency=3))
    async with serving(last) as streams:
        sink = streams.begin(n=50)
        assert await sink.ended() is None
        assert sink.texts == [f"<>{number}" for number in range(50)]
        assert list(calls) == [*range(50)]


@on_loop
async def test_a_join_repeats_an_input_without_stream():
    read = RequestOp()
    once = Mark("once", [Mark("", read)])
    last = Mark("j", [Count("count", read), once])
    async with serving(last) as streams:
        sink = streams.begin(n=3, text="x")
        assert await sink.ended() is None
        assert sink.texts == ["j0+oncex", "j1+oncex", "j2+oncex"]


@on_loop
async def test_branches_of_one_stream_are_joined_part_by_part():
    count = Count("count", RequestOp())
    last = Mark("j", [Mark("a", count), Mark("c", Mark("b", count))])
    async with serving(last) as streams:
        sink = streams.begin(n=30)
        assert await sink.ended() is None
        assert sink.texts == [f"ja{number}+cb{number}" for number in range(30)]


def test_two_streams_do_not_meet():
    read = RequestOp()
    last = Mark("j", [Count("one", read), Mark("m", Count("two", read))])

    @on_loop
    async def start():
        async with serving(last):
            pass

    with pytest.raises(GraphError, match=r"'j' reads two streams.*'one' brings.*'two'"):
        start()


def test_an_op_that_gathers_must_read_a_stream():
    @on_loop
    async def start():
        async with serving(Mark("g", RequestOp(), gather=True)):
            pass

    with pytest.raises(GraphError, match="gather=True, but the Ops that it reads do not stream"):
        start()


class Words(Op):
    def preprocess(self, input_dicts, data_id, log_id):
        return {"text": " ".join(part["text"] for parts in input_dicts.values() for part in parts)}


@on_loop
async def test_an_op_that_gathers_gets_all_parts_at_once():
    async with serving(Words("words", Count("count", RequestOp()), gather=True)) as streams:
        assert not streams.engine.executor.is_decoupled()
        sink = streams.begin(n=100)
        answer = await sink.ended()
        assert sink.texts == []
        assert dict(zip(answer.key, answer.value, strict=True)) == {"text": " ".join(numbers(100))}


@on_loop
async def test_an_op_that_gathers_may_read_two_streams():
    read = RequestOp()
    last = Words("words", [Count("one", read), Count("two", read)], gather=True)
    async with serving(last) as streams:
        answer = await streams.combined(n=3)
        assert list(answer.value) == ["0 1 2 0 1 2"]


@on_loop
async def test_a_generator_may_read_a_stream():
    class Twice(Op):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            for letter in "ab":
                yield {"text": fetch_data["text"] + letter}

    last = Mark("m", Twice("twice", Count("count", RequestOp())))
    async with serving(last, dag={"stream_window": 3}) as streams:
        sink = streams.begin(n=20)
        assert await sink.ended() is None
        assert sink.texts == [f"m{number}{letter}" for number in range(20) for letter in "ab"]


@on_loop
async def test_a_request_for_an_op_alone_gets_its_parts():
    count = Count("count", RequestOp())
    async with serving(Mark("m", count)) as streams:
        assert streams.engine.executor.is_decoupled(count)
        assert not streams.engine.executor.is_decoupled(streams.node("m").op)
        sink = streams.begin(target=RequestTarget(op=count, payload={"@DAGExecutor": {"n": "3"}}))
        assert await sink.ended() is None
        assert sink.texts == numbers(3)
        whole = streams.begin(
            target=RequestTarget(op=streams.node("m").op, payload={"count": {"text": "x"}})
        )
        assert list((await whole.ended()).value) == ["mx"]


# Batches ------------------------------------------------------------------------------------------


class Rows(Op):
    """Counts every row down; ends it in the way that is asked for."""

    how = "done"

    def preprocess(self, input_dicts, data_id, log_id):
        (answer,) = input_dicts.values()
        return {"n": np.array([int(answer["n"])])}

    def process(self, feed_batch, log_id):
        left = feed_batch[0]["n"]
        while len(left):
            if self.how == "done":
                yield {"n": left, "done": left == 1}
            else:
                yield {"n": [None if n == 0 else int(n) for n in left]}
            left = left[left > (1 if self.how == "done" else 0)] - 1

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return {"text": str(int(fetch_data["n"][0]))}


@on_loop
async def test_without_batches_each_yielded_value_is_a_part():
    class Done(Op):
        def process(self, feed_batch):
            for number in range(2):
                yield {"text": np.array([number]), "done": np.array([True])}

    async with serving(Done("done", RequestOp())) as streams:
        sink = streams.begin(PartsSink())
        assert await sink.ended() is None
        assert sink.texts == ["array([0])", "array([1])"]


@pytest.mark.parametrize("how", ["done", "none"])
@on_loop
async def test_a_batch_continues_for_requests_that_have_not_ended(how):
    op = Rows("rows", RequestOp(), batch_size=4, auto_batching_timeout=10000)
    op.how = how
    async with serving(op) as streams:
        sinks = [streams.begin(n=n) for n in (1, 4, 2, 7)]
        for sink, n in zip(sinks, (1, 4, 2, 7), strict=True):
            assert await sink.ended() is None
            assert sink.texts == [str(left) for left in range(n, 0, -1)]


@on_loop
async def test_a_cancelled_request_of_a_batch_retains_its_row_and_gets_nothing():
    op = Rows("rows", RequestOp(), batch_size=2, auto_batching_timeout=10000)
    async with serving(op, dag={"stream_window": 2}) as streams:
        leaves, stays = streams.begin(PartsSink(False), n=9), streams.begin(n=5)
        await stays.until(2)
        leaves.request.cancel()
        assert await stays.ended() is None
        assert stays.texts == ["5", "4", "3", "2", "1"]
        assert leaves.texts == ["9", "8"]
        await streams.idle()


@on_loop
async def test_a_yield_with_too_few_rows_is_an_error_of_all():
    class Short(Rows):
        def process(self, feed_batch, log_id):
            yield {"n": feed_batch[0]["n"]}
            yield {"n": feed_batch[0]["n"][:1]}

    op = Short("rows", RequestOp(), batch_size=2, auto_batching_timeout=10000)
    async with serving(op) as streams:
        for sink in [streams.begin(n=1), streams.begin(n=2)]:
            assert "with 1 rows for a batch of 2 rows" in (await sink.ended()).err_msg
            assert len(sink.texts) == 1


# Room ---------------------------------------------------------------------------------------------


class Endless(Op):
    """Yields forever; records its progress, and when it was closed."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.made = Noted()
        self.closed = Event()

    def process(self, feed_batch, log_id):
        number = 0
        try:
            while True:
                self.made.append(number)
                yield {"text": f"{number}"}
                number += 1
        finally:
            self.closed.set()


@on_loop
async def test_a_reader_that_takes_no_parts_stops_the_generator():
    op = Endless("endless", RequestOp())
    async with serving(op, dag={"stream_window": 4}) as streams:
        slow = streams.begin(PartsSink(False))
        assert await slow.until(4) == numbers(4)
        quick = streams.begin(PartsSink(False))  # the only worker is free
        await quick.until(4)
        slow.take(2)
        assert await slow.until(6) == numbers(6)
        assert sorted(op.made) == sorted([*range(6), *range(4)])
        slow.request.cancel()
        quick.request.cancel()
        await streams.idle()
        assert op.closed.is_set()


@on_loop
async def test_a_slice_that_was_cut_off_continues_while_there_is_room():
    """Its reader has taken nothing: it waits for a whole window."""

    class Stalls(Op):
        def process(self, feed_batch, log_id):
            for number in range(100):
                if number == 9:
                    time.sleep(0.03)  # longer than a slice
                yield {"text": f"{number}"}

    async with serving(Stalls("stalls", RequestOp()), dag={"stream_window": 16}) as streams:
        sink = streams.begin(PartsSink(False))
        assert await sink.until(16) == numbers(16)
        sink.request.cancel()
        await streams.idle()


@on_loop
async def test_a_join_after_a_gathering_branch_pauses_the_generator():
    """The slower of two ends counts."""

    may_go = Event()

    class Held(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            may_go.wait(20)
            return super().preprocess(input_dicts, data_id, log_id)

    endless = Endless("endless", RequestOp())
    held = Held("held", endless)
    last = Words("words", [held, Mark("m", endless)], gather=True)
    async with serving(last, dag={"stream_window": 3}) as streams:
        sink = streams.begin()
        await asyncio.to_thread(wait_until, lambda: len(endless.made) == 3)
        await settle()
        assert len(endless.made) == 3
        may_go.set()
        sink.request.cancel()
        await streams.idle()


@on_loop
async def test_endless_streams_leave_a_worker_for_others():
    op = Endless("endless", RequestOp())
    async with serving(op) as streams:
        endless = [streams.begin() for _ in range(3)]
        for sink in endless:
            await sink.until(20)
        new = streams.begin()
        await new.until(20)
        for sink in [*endless, new]:
            sink.request.cancel()
        await streams.idle()


# Ends ---------------------------------------------------------------------------------------------


@on_loop
async def test_a_new_stream_waits_for_few_turns_of_each_of_the_others():
    """In parts, not in seconds: its first part comes before most parts of the others."""
    count, window = 20, 4
    op = Endless("endless", RequestOp())
    async with serving(op, worker_num=count + 1, dag={"stream_window": window}) as streams:
        others = [streams.begin() for _ in range(count)]
        for other in others:
            await other.until(3 * window)
        for _ in range(10):
            before = sum(len(other.answers) for other in others)
            new = streams.begin()
            await new.until(1)
            assert sum(len(other.answers) for other in others) - before <= 5 * count * window
            new.request.cancel()
        for other in others:
            other.request.cancel()
        await streams.idle()


@on_loop
async def test_a_cancellation_closes_the_generator():
    op = Endless("endless", RequestOp())
    async with serving(op) as streams:
        sink = streams.begin(PartsSink(False))
        await sink.until(16)
        sink.request.cancel()
        assert await asyncio.to_thread(op.closed.wait, 20)
        await streams.idle()
        assert sink.last == "nothing yet"


@on_loop
async def test_an_async_generator_is_closed_too():
    closed = Event()

    class Waits(Op):
        async def process(self, feed_batch, log_id):
            try:
                while True:
                    yield {"text": "x"}
            finally:
                closed.set()

    async with serving(Waits("waits", RequestOp())) as streams:
        sink = streams.begin(PartsSink(False))
        await sink.until(16)
        sink.request.cancel()
        assert await asyncio.to_thread(closed.wait, 20)
        await streams.idle()


@on_loop
async def test_an_error_in_the_middle_follows_the_parts():
    class Breaks(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            yield {"text": "b"}
            raise ProductError(77, "no more")

    async with serving(Mark("m", Breaks("breaks", RequestOp()))) as streams:
        sink = streams.begin()
        answer = await sink.ended()
        assert sink.texts == ["ma", "mb"]
        assert (answer.err_no, answer.err_msg) == (77, "no more")


@on_loop
async def test_an_error_of_a_later_op_ends_the_stream_and_closes_the_generator():
    class Refuses(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            if input_dicts["endless"]["text"] == "5":
                raise ProductError(78, "five")
            return super().preprocess(input_dicts, data_id, log_id)

    op = Endless("endless", RequestOp())
    async with serving(Refuses("r", op)) as streams:
        sink = streams.begin()
        assert (await sink.ended()).err_no == 78
        assert sink.texts == ["r0", "r1", "r2", "r3", "r4"]
        assert await asyncio.to_thread(op.closed.wait, 20)
        await streams.idle()


@on_loop
async def test_a_branch_that_fails_does_not_hold_the_others_back():
    """That branch takes no more parts; the generator continues for the others."""

    class Fails(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            raise ProductError(79, "never")

    count = Count("count", RequestOp())
    last = Words(
        "words",
        [Mark("m", Fails("fails", count), gather=True), Words("all", count, gather=True)],
    )
    async with serving(last, dag={"stream_window": 2}) as streams:
        assert (await streams.begin(n=50).ended()).err_no == 79
        await streams.idle()


@on_loop
async def test_an_invalid_part_is_an_error():
    class Wrong(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            yield 5

    async with serving(Wrong("wrong", RequestOp())) as streams:
        sink = streams.begin()
        answer = await sink.ended()
        assert answer.err_no == ErrorCode.TYPE_ERROR
        assert sink.texts == ["a"]


@on_loop
async def test_a_generator_that_hangs_is_given_up(workers):
    """The others continue in another thread; in a process they end with it."""
    release = Event()

    class Hangs(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            if feed_batch[0]["n"] == "hang":
                release.wait(20)
            yield {"text": "b"}

    op = Hangs("hangs", RequestOp(), timeout=500)
    try:
        async with serving(op, dag={"stream_window": 1}) as streams:
            other = streams.begin(PartsSink(False), n="x")
            await other.until(1)  # its generator waits in the worker that is going to hang
            sink = streams.begin(n="hang")
            answer = await sink.ended()
            assert sink.texts == ["a"]
            assert answer.err_no == ErrorCode.TIMEOUT
            if workers == "thread":
                other.take()
                assert await other.until(2) == ["a", "b"]
                release.set()
                other.take()
                assert await other.ended() is None
            else:
                assert "hung and was killed" in (await other.ended()).err_msg
                assert other.texts == ["a"]
                assert await streams.begin(n="x").ended() is None
    finally:
        release.set()


# One answer ---------------------------------------------------------------------------------------


@on_loop
async def test_a_unary_request_gets_the_parts_as_one_answer():
    async with serving(Count("count", RequestOp())) as streams:
        answer = await streams.combined(n=30)
        assert list(answer.value) == ["".join(numbers(30))]


@on_loop
async def test_a_response_op_may_combine_parts_itself():
    response_op = ResponseOp(
        [Count("count", RequestOp())], combine=lambda parts: {"text": f"{len(parts)} parts"}
    )
    async with serving(None, response_op) as streams:
        answer = await streams.combined(n=5)
        assert list(answer.value) == ["5 parts"]


@on_loop
async def test_a_combine_that_fails_is_an_error():
    response_op = ResponseOp([Count("count", RequestOp())], combine=lambda parts: 1 / 0)
    async with serving(None, response_op) as streams:
        assert "combine of the ResponseOp raised" in (await streams.combined(n=5)).err_msg


@on_loop
async def test_an_unbounded_answer_is_refused():
    async with serving(Endless("endless", RequestOp()), max_message_bytes=65536) as streams:
        answer = await streams.combined()
        assert "Op 'endless' are larger than max_message_bytes (65536 bytes)" in answer.err_msg
        await streams.idle()


@on_loop
async def test_an_answer_of_too_many_parts_is_refused():
    op = Endless("endless", RequestOp())
    async with serving(op, dag={"max_parts": 20}) as streams:
        answer = await streams.combined()
        assert "Op 'endless' are more than dag.max_parts (20)" in answer.err_msg
        await streams.idle()
        assert op.closed.is_set()
        assert list((await streams.begin(PartsSink()).until(50))[:2]) == ["0", "1"]


@pytest.mark.parametrize(
    ("key", "config"),
    [
        ("more than dag.max_parts (20)", {"dag": {"max_parts": 20}}),
        ("larger than max_message_bytes (16384 bytes)", {"max_message_bytes": 16384}),
    ],
)
@on_loop
async def test_an_op_gathers_so_much_and_no_more(key, config):
    read = RequestOp()
    endless, count = Endless("endless", read), Count("count", read)
    last = Words("words", [Mark("m", endless), count], gather=True)
    async with serving(last, **config) as streams:
        answer = await streams.combined(n=3)
        assert "Op 'words' gathers" in answer.err_msg
        assert key in answer.err_msg
        await streams.idle()
        assert endless.closed.is_set()


@on_loop
async def test_a_stream_with_too_many_gathered_parts_is_closed_at_once():
    """The request itself waits for another Op."""
    may_go = Event()

    class Held(Mark):
        def preprocess(self, input_dicts, data_id, log_id):
            may_go.wait(20)
            return super().preprocess(input_dicts, data_id, log_id)

    begun = {"one": Event(), "two": Event()}

    class Together(Endless):
        def process(self, feed_batch, log_id):
            begun[self.name].set()
            for item in begun.values():  # else the other one might not be there to be closed
                item.wait(20)
            yield from super().process(feed_batch, log_id)

    read = RequestOp()
    streaming = [Together(name, read) for name in begun]
    words = Words("words", streaming, gather=True)
    last = Mark("last", [words, Held("held", read)])
    async with serving(last, dag={"max_parts": 20}) as streams:
        sink = streams.begin(OneSink(), text="x")
        for op in streaming:
            assert await asyncio.to_thread(op.closed.wait, 20)
        assert not sink.done()
        may_go.set()
        assert "more than dag.max_parts" in (await sink).err_msg


@on_loop
async def test_a_users_response_op_packs_each_part_in_order():
    class Packs(ResponseOp):
        def pack_response_package(self, channeldata):
            response = super().pack_response_package(channeldata)
            response.value[0] += "!"
            return response

    response_op = Packs([Count("count", RequestOp())])
    async with serving(None, response_op, worker_num=4) as streams:
        sink = streams.begin(n=40)
        assert await sink.ended() is None
        assert sink.texts == [f"{number}!" for number in range(40)]


# Time ---------------------------------------------------------------------------------------------


class Pauses(Op):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.go_on = Event()

    def process(self, feed_batch, log_id):
        if feed_batch[0]["before"] == "first":
            self.go_on.wait(20)
        yield {"text": "a"}
        self.go_on.wait(20)
        yield {"text": "b"}


@pytest.mark.parametrize(("before", "key"), [("first", "first_part_timeout"), ("", "part_timeout")])
@on_loop
async def test_a_part_that_is_overdue_ends_the_stream(before, key):
    op = Pauses("pauses", RequestOp())
    async with serving(op, dag={key: 30}) as streams:
        sink = streams.begin(before=before)
        answer = await sink.ended()
        assert answer.err_no == ErrorCode.TIMEOUT
        assert f" {key} passed" in answer.err_msg
        op.go_on.set()
        await streams.idle()


@on_loop
async def test_a_slow_reader_is_not_a_timeout():
    async with serving(
        Endless("endless", RequestOp()), dag={"part_timeout": 20_000, "stream_window": 2}
    ) as streams:
        sink = streams.begin(PartsSink(False))
        await sink.until(2)
        await skip(60)
        sink.take(2)
        assert await sink.until(4) == numbers(4)
        sink.request.cancel()
        await streams.idle()


@on_loop
async def test_the_deadline_of_a_request_ends_its_stream():
    op = Endless("endless", RequestOp())
    async with serving(op) as streams:
        sink = streams.begin(PartsSink(False), timeout_s=0.05)
        answer = await sink.ended()
        assert "deadline passed" in answer.err_msg
        await streams.idle()


# Counts, spans and logs ---------------------------------------------------------------------------


@on_loop
async def test_parts_are_recorded_for_the_pipeline_and_for_their_op():
    async with serving(Mark("m", Count("count", RequestOp()))) as streams:
        assert await streams.begin(n=3).ended() is None
        streams.journal.flush()
        kinds = [(row["target"], row["number"], row["kind"]) for row in streams.rows.parts]
        ends = [(number, PartKind.GIVEN) for number in range(3)] + [(3, PartKind.EMPTY)]
        assert [(number, kind) for target, number, kind in kinds if target == 0] == ends
        assert [(number, kind) for target, number, kind in kinds if target == PIPELINE] == ends
        assert all(row["start_ns"] <= row["made_ns"] <= row["end_ns"] for row in streams.rows.parts)
        (request,) = streams.rows.requests
        assert request["outcome"] == Outcome.OK
        spans = [span["op"] for span in streams.rows.spans]
        assert sorted(spans) == [0, 1, 1, 1]


@on_loop
async def test_a_unary_request_has_no_parts_of_the_pipeline():
    async with serving(Count("count", RequestOp())) as streams:
        await streams.combined(n=3)
        streams.journal.flush()
        assert {row["target"] for row in streams.rows.parts} == {0}


@on_loop
async def test_the_outcome_of_a_cancelled_or_failed_stream_is_recorded():
    class Breaks(Op):
        def process(self, feed_batch, log_id):
            yield {"text": "a"}
            raise ProductError(77, "no more")

    op = Endless("endless", RequestOp())
    for last, kind in ((op, PartKind.CANCELED), (Breaks("breaks", RequestOp()), PartKind.FAILED)):
        async with serving(last) as streams:
            sink = streams.begin()
            await sink.until(1)
            if last is op:
                sink.request.cancel()
            else:
                await sink.ended()
            await streams.idle()
            streams.journal.flush()
            ends = {row["target"]: row["kind"] for row in streams.rows.parts}
            assert ends == {0: kind, PIPELINE: kind}


class Leads(Count):
    """Its second part goes to an Op that does not read it."""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return Goto(fetch_data, "m" if fetch_data["text"] == "0" else "x")


class EndsWithSecondPart(Count):
    """Its second part is the last one."""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return Answer(fetch_data) if fetch_data["text"] == "1" else fetch_data


class Decides(Mark):
    """Ends the request with its second part."""

    def postprocess(self, input_dicts, fetch_data, data_id, log_id):
        return Answer(fetch_data) if fetch_data["text"].endswith("1") else fetch_data


@pytest.mark.parametrize(
    ("graph", "outcome"),
    [
        ("left", Outcome.CANCELED),
        ("late", Outcome.REJECTED),
        ("lost way", Outcome.BACKEND),
        ("says the last", Outcome.OK),
        ("others end it", Outcome.OK),
    ],
)
@on_loop
async def test_a_stream_that_is_cut_has_one_span_as_it_ended(graph, outcome):
    maker = {"lost way": Leads, "says the last": EndsWithSecondPart}.get(graph, Endless)(
        "maker", RequestOp()
    )
    last = {"lost way": Mark, "others end it": Decides}.get(graph)
    async with serving(maker if last is None else last("m", maker)) as streams:
        sink = streams.begin(timeout_s=0.3 if graph == "late" else None, n=5)
        await sink.until(1)
        if graph == "left":
            sink.request.cancel()
        else:
            await sink.ended()
        await streams.idle()
        streams.journal.flush()
        (span,) = [span for span in streams.rows.spans if span["op"] == 0]
        (request,) = streams.rows.requests
        assert (span["outcome"], request["outcome"]) == (outcome, outcome)
        assert request["start_ns"] <= span["start_ns"] <= span["end_ns"] <= request["end_ns"]


@on_loop
async def test_the_edges_after_a_stream_count_its_parts():
    count = Count("count", RequestOp())
    words = Words("words", Mark("m", count), gather=True)
    async with serving(words) as streams:
        for _ in range(2):
            await streams.combined(n=3)
        states = [streams.node(name).state().edges for name in ("count", "m", "words")]
        assert states == [[EdgeState("m", 6, 0)], [EdgeState("words", 6, 0)], []]


# Conditions ---------------------------------------------------------------------------------------


@on_loop
async def test_each_part_may_have_its_own_target():
    class Sorts(Count):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return Goto(fetch_data, "odd" if int(fetch_data["text"]) % 2 else "even")

    sorts = Sorts("sorts", RequestOp())
    last = Mark("j", [Mark("odd", sorts), Mark("even", sorts)])
    async with serving(last) as streams:
        sink = streams.begin(n=5)
        assert await sink.ended() is None
        assert sink.texts == ["jeven0", "jodd1", "jeven2", "jodd3", "jeven4"]
        edges = {edge.to: (edge.sent, edge.absent) for edge in streams.node("sorts").state().edges}
        assert edges == {"odd": (2, 3), "even": (3, 2)}, "each part counts"


@pytest.mark.parametrize("kept", [["d1", "d40"], []])
@on_loop
async def test_parts_without_a_target_are_dropped(kept):
    class Drops(Mark):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return fetch_data if fetch_data["text"] in kept else Goto(fetch_data)

    async with serving(Drops("d", Count("count", RequestOp()))) as streams:
        sink = streams.begin(n=50)
        end = await sink.ended()
        assert sink.texts == kept
        assert end is None if kept else "went to no Op" in end.err_msg


@on_loop
async def test_no_parts_are_held_for_a_second_branch_when_the_first_ends_the_request():
    class Past(Count):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return Goto(fetch_data, "words")

    past = Past("past", RequestOp())
    words = Words("words", [past, Mark("second", past)], gather=True)
    async with serving(words, dag={"max_parts": 1}) as streams:
        assert "more than dag.max_parts" in (await streams.combined(n=3)).err_msg
        await streams.idle()
        assert not streams.node("second")._inlets


@on_loop
async def test_a_goto_to_no_reader_ends_the_stream():
    class Errs(Count):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return Goto(fetch_data, "m" if fetch_data["text"] == "0" else "x")

    async with serving(Mark("m", Errs("errs", RequestOp()))) as streams:
        sink = streams.begin(n=3)
        assert "'x' does not read it" in (await sink.ended()).err_msg
        assert sink.texts == ["m0"]


@on_loop
async def test_a_loop_may_make_and_gather_a_stream_in_each_lap():
    class Again(Op):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            (whole,) = input_dicts.values()
            is_last = len(whole["text"]) > 5
            return fetch_data if is_last else Goto({**fetch_data, "n": 3}, "first")

    first = Count("first", RequestOp())
    last = Again("again", Words("words", Mark("m", first), gather=True), loop_to=["first"])
    async with serving(last) as streams:
        answer = await streams.combined(n=2)
        assert list(answer.value) == ["m0 m1 m2"], answer.err_msg
        await streams.idle()


@on_loop
async def test_an_answer_is_the_last_part():
    class Ends(Mark):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return Answer({"text": "end"}) if fetch_data["text"] == "e3" else fetch_data

    op = Endless("endless", RequestOp())
    async with serving(Ends("e", op)) as streams:
        sink = streams.begin()
        assert await sink.ended() is None
        assert sink.texts == ["e0", "e1", "e2", "end"]
        await streams.idle()
        assert list((await streams.combined()).value) == ["e0e1e2end"]


@on_loop
async def test_a_request_that_bypasses_a_stream_has_one_part():
    class Chooses(Mark):
        def postprocess(self, input_dicts, fetch_data, data_id, log_id):
            return Goto({"n": 3, "text": "c"}, fetch_data["text"].removeprefix("c"))

    chooses = Chooses("c", RequestOp())
    last = Mark("j", [Count("count", chooses), Mark("one", chooses)])
    async with serving(last) as streams:
        sink = streams.begin(text="one")
        assert await sink.ended() is None
        assert sink.texts == ["jonec"]
        sink = streams.begin(text="count")
        assert await sink.ended() is None
        assert sink.texts == ["j0", "j1", "j2"]


@on_loop
async def test_a_hook_before_the_generator_may_answer():
    class AnswersInPreprocess(Count):
        def preprocess(self, input_dicts, data_id, log_id):
            return Answer({"text": "known"})

    async with serving(Mark("m", AnswersInPreprocess("knows", RequestOp()))) as streams:
        sink = streams.begin(n=3)
        assert await sink.ended() is None
        assert sink.texts == ["known"]


@on_loop
async def test_preprocess_may_skip_the_generator():
    class Skips(Count):
        def preprocess(self, input_dicts, data_id, log_id):
            return {"text": "skipped"}, True, None, ""

    async with serving(Mark("m", Skips("skips", RequestOp()))) as streams:
        sink = streams.begin(n=3)
        assert await sink.ended() is None
        assert sink.texts == ["mskipped"]
