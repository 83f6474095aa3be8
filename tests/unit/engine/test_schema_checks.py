"""Where an engine checks by schemas: once, in the places of the RequestOp and the ResponseOp."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from doubles import Engine, answers, settle, virtual

import pipeline
from pipeline import Answer, Op, RequestOp, ResponseOp
from pipeline.engine.pack_jobs import Packer, Unpacker
from pipeline.engine.request import RequestTarget
from pipeline.proto.pipeline_service_pb2 import Request

PACKAGE, TYPE_ERROR = 8000, 7000


class Ask(pipeline.Schema):
    a: int
    b: str = "b"


class Reply(pipeline.Schema):
    said: str
    more: str = "more"


class Slow(Reply):
    """A valid request whose check may take long."""

    def __post_init__(self) -> None:
        if self.said == "fail":
            raise RuntimeError("no luck")


class RecordsInputs(Op):
    """Answers with what it saw."""

    def __init__(self, read: RequestOp | None = None) -> None:
        super().__init__("says", read or RequestOp(schema=Ask))
        self.seen: list[dict[str, object]] = []

    def preprocess(self, input_dicts):
        (fields,) = input_dicts.values()
        self.seen.append(fields)
        if fields["a"] == 13:
            return {"said": 13}
        return {"said": "fail" if fields["a"] == 14 else "fine"}


class Adds(RequestOp):
    """Unpacks by itself."""

    def unpack_request_package(self, request):
        data, log_id, _, _ = super().unpack_request_package(request)
        return {**data, "b": 5 if data["a"] == "5" else "own"}, log_id, None, ""


def count_calls(holder, name):
    """Calls that an attribute gets from now on."""
    calls, asked = [], getattr(holder, name)

    def counted(*args):
        calls.append(args)
        return asked(*args)

    setattr(holder, name, counted)
    return calls


@virtual
async def test_text_is_converted_and_answers_are_completed_by_schemas():
    op = RecordsInputs()
    async with Engine(op, response_op=ResponseOp(op, schema=Reply)) as engine:
        assert answers(await engine.ask(a="3")) == {"said": "fine", "more": "more"}
        assert op.seen == [{"a": 3, "b": "b"}]
        refused = await engine.ask(a="x")
        assert (refused.err_no, refused.err_msg) == (PACKAGE, "a: expected int, found str 'x'")
        refused = await engine.ask(a="13")
        assert refused.err_no == TYPE_ERROR
        text = "the answer is not a valid Reply: said: expected str, found int 13"
        assert refused.err_msg == text
        assert answers(await engine.ask(a="4"))["said"] == "fine", "nothing else is touched"
        assert engine.executor.inside == 0


@virtual
async def test_data_that_a_frontend_unpacked_is_checked_without_conversion():
    op = RecordsInputs()
    async with Engine(op) as engine:

        async def ask(op=None, is_text=False, **payload):
            target = RequestTarget(op, payload, wants_response=False, is_text=is_text)
            data = await engine.executor.handle(Request(), None, target)
            return data.payload or str(data.error)

        assert await ask(a=3) == {"said": "fine"}
        assert await ask(a=np.array([3])) == {"said": "fine"}
        assert await ask(a="3") == "a: expected int, found str '3'"
        assert await ask(a="3", is_text=True) == {"said": "fine"}
        assert op.seen == [{"a": 3, "b": "b"}] * 3
        # A request for one Op does not pass the RequestOp.
        assert await ask(op, **{"@DAGExecutor": {"a": 13}}) == {"said": 13}


@virtual
async def test_large_data_is_checked_in_a_thread():
    class Many(pipeline.Schema):
        a: int
        many: list[int]

    op = RecordsInputs(RequestOp(schema=Many))
    async with Engine(op) as engine:
        jobs = engine.pools["RequestOp"].begun_at
        for payload, is_large in (
            ({"a": 1, "many": [1]}, False),
            ({"a": 1, "many": [1] * 2000}, True),
        ):
            target = RequestTarget(None, payload, wants_response=False)
            await engine.executor.handle(Request(), None, target)
            assert bool(jobs) is is_large
            assert op.seen[-1] == payload
        payload["many"][-1] = "x"
        data = await engine.executor.handle(Request(), None, target)
        assert str(data.error) == "many[1999]: expected int, found str 'x'"
        assert data.error.is_callers


@virtual
async def test_a_schema_with_custom_code_is_checked_in_threads():
    op = RecordsInputs()
    async with Engine(op, response_op=ResponseOp(op, schema=Slow)) as engine:
        assert answers(await engine.ask(a="3")) == {"said": "fine", "more": "more"}
        assert len(engine.pools["ResponseOp"].begun_at) == 1
        failed = await engine.ask(a="14")
        assert failed.err_no == 10000
        assert "schema Slow raised RuntimeError: no luck" in failed.err_msg


@virtual
async def test_the_result_of_a_custom_unpack_is_checked():
    op = RecordsInputs(Adds(schema=Ask))
    async with Engine(op) as engine:
        assert answers(await engine.ask(a="3")) == {"said": "fine"}
        assert op.seen == [{"a": 3, "b": "own"}]
        assert (await engine.ask(a="5")).err_msg == "b: expected str, found int 5"


@pytest.mark.parametrize("has_schema", [False, True])
@virtual
async def test_without_a_schema_no_check_is_installed(has_schema):
    op = RecordsInputs(RequestOp(schema=Ask) if has_schema else RequestOp())
    response_op = ResponseOp(op, schema=Reply) if has_schema else ResponseOp(op)
    async with Engine(op, response_op=response_op) as engine:
        inner = engine.executor
        is_plain = (
            type(inner._unpacker) is Unpacker
            and type(inner._packer) is Packer
            and inner._unpacker._unpacked == inner._dispatch
            and inner._unpacker.given == inner._dispatch
            and inner.executor.complete == inner._complete
        )
        assert is_plain is not has_schema


# With `dag.retry`, which has a request run again --------------------------------------------------


def called(self, feed_batch, typical_logid):
    """A `process`: a scripted worker may hang in it."""
    return feed_batch[0]


@virtual
async def test_a_repeated_request_starts_with_the_converted_payload():
    class Pops(RecordsInputs):
        def preprocess(self, input_dicts):
            seen = dict(super().preprocess(input_dicts))
            op.seen[-1] = dict(op.seen[-1])
            input_dicts["@DAGExecutor"].clear()
            return seen

        process = called

    op = Pops()
    config = {"dag": {"retry": 3}, "op": {"says": {"timeout": 200}}}
    engine = Engine(op, config, {"says": None}, ResponseOp(op, schema=Reply))
    async with engine:
        checks = count_calls(engine.executor._unpacker, "_check_text")
        answer = engine.ask(a="3")
        await asyncio.sleep(0.5)
        engine.pools["says"].release()
        assert answers(await answer) == {"said": "fine", "more": "more"}
        assert op.seen == [{"a": 3, "b": "b"}] * 3
        assert len(checks) == 1, "what was checked is not text any more"
        refused = await engine.ask(a="x")
        assert refused.err_msg == "a: expected int, found str 'x'"
        assert len(checks) == 2, "it is not tried again"
        assert engine.executor.inside == 0


@pytest.mark.parametrize("said", ["fine", "fail"])
@virtual
async def test_an_answer_under_check_is_ignored_after_a_restart_of_its_request(said):
    """The last Op hangs with what came first; the second one answers in its place meanwhile."""
    said_before = ["before"]

    class Answers(Op):
        def postprocess(self, input_dicts, fetch_dict):
            return Answer({"said": said_before.pop() if said_before else said})

    class Hangs(Op):
        process = called

    read = RequestOp(schema=Ask)
    last = Hangs("hangs", [Op("quick", read), Answers("answers", read)])
    dag = {"retry": 2, "channel_recv_first_arrive": True}
    config = {"dag": dag, "op": {"hangs": {"timeout": 200}}}
    times = {"hangs": None, "answers": 0.1, "@DAGExecutor": None}
    engine = Engine(last, config, times, ResponseOp(last, schema=Slow))
    async with engine:
        task = engine.ask(a="3")
        await asyncio.sleep(0.35)
        assert engine.pools["answers"].begun_at == pytest.approx([1000.0, 1000.2])
        checks = engine.pools["ResponseOp"]
        checks.release()  # that of the first start
        await settle()
        assert not task.done(), "what the first start answered is not its answer"
        checks.release()
        answer = await task
        if said == "fine":
            assert answers(answer) == {"said": "fine", "more": "more"}
        else:
            assert "schema Slow raised RuntimeError: no luck" in answer.err_msg
        assert engine.executor.inside == 0
