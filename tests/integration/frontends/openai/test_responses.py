"""`/v1/responses` as the official client asks it."""

from __future__ import annotations

import itertools
import threading

import openai
import pytest
from clients.model import OPTIONS, scripted_server
from openai_models import client_of
from pydantic import BaseModel

from pipeline.frontends.openai import response_writer
from pipeline.frontends.openai.models import Models
from pipeline.frontends.openai.response_writer import ResponseWriter
from pipeline.frontends.openai.responses import KeptResponses
from pipeline.proto.slices import SHORT_BYTES

TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
TEXT = "Hello from the scripted model"
ITEM = ("response.output_item.added", "response.output_item.done")
PART = ("response.content_part.added", "response.content_part.done")


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def client():
    with scripted_server() as server, client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def keeping():
    """A client of a server that keeps two responses."""
    options = {**OPTIONS, "stored_responses": 2}
    with scripted_server(frontends={"openai": options}) as server, client_of(server) as client:
        yield client


def ask(client, **asked):
    return client.responses.create(**{"model": "scripted", "input": "say hello", **asked})


def kinds_of(events):
    """The types of events, each once where it follows itself."""
    return [kind for kind, _ in itertools.groupby(event.type for event in events)]


def test_a_response(client):
    done = ask(client, instructions="be short", temperature=0.5, metadata={"a": "b"})
    assert (done.output_text, done.status, done.error) == (TEXT, "completed", None)
    assert (done.instructions, done.temperature, done.metadata) == ("be short", 0.5, {"a": "b"})
    usage = done.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (2, 5, 7)
    assert usage.output_tokens_details.reasoning_tokens == 0


def test_a_long_response_is_written_outside_the_event_loop(client, monkeypatch):
    ran_on = {}

    def noted(name, write):
        def writes(writer, *said):
            ran_on.setdefault(name, threading.get_ident())
            ran_on[f"last {name}"] = threading.get_ident()
            return write(writer, *said)

        monkeypatch.setattr(ResponseWriter, name, writes)

    for name in ("part", "end", "last"):
        noted(name, getattr(ResponseWriter, name))
    *_, done = ask(client, stream=True)
    assert done.response.output_text == TEXT
    assert ran_on["part"] == ran_on["end"] == ran_on["last"]
    loop = ran_on["part"]
    ran_on.clear()
    *_, done = ask(client, stream=True, instructions="a" * SHORT_BYTES)
    assert done.response.output_text == TEXT
    assert ran_on.pop("last part") == loop
    assert loop not in ran_on.values()  # the first part, whose events repeat the request, neither
    ran_on.clear()
    monkeypatch.setattr(response_writer, "SHORT_BYTES", 1)  # after the first part the text is long
    *_, done = ask(client, stream=True)
    assert done.response.output_text == TEXT
    assert (ran_on.pop("part"), ran_on.pop("last part")) == (loop, loop)  # they repeat nothing
    assert loop not in ran_on.values()


@pytest.mark.parametrize("stream", [False, True])
def test_a_long_history_is_read_and_written_outside_the_event_loop(keeping, stream, monkeypatch):
    ran_on = {}

    def noted(kind, name):
        work = getattr(kind, name)

        def works(*given):
            ran_on[name] = threading.get_ident()
            return work(*given)

        monkeypatch.setattr(kind, name, works)

    noted(Models, "parse")
    noted(KeptResponses, "add")
    ask(keeping)
    loop = ran_on["parse"]
    assert ran_on["add"] == loop
    first = ask(keeping, input="say hello " * SHORT_BYTES)
    ran_on.clear()
    done = ask(keeping, input="say hello", previous_response_id=first.id, stream=stream)
    if stream:
        *_, done = done
        done = done.response
    assert done.output_text == TEXT
    assert set(ran_on) == {"parse", "add"}
    assert loop not in ran_on.values()


@pytest.mark.parametrize(
    ("name", "value"), [("max_output_tokens", 2**70), ("metadata", {"a": [2**64]})]
)
def test_a_number_that_no_response_can_repeat_is_refused(client, name, value):
    with pytest.raises(openai.BadRequestError, match="Integer exceeds 64-bit range") as error:
        ask(client, **{name: value})
    assert error.value.param == name


def test_a_response_cut_by_its_limit_is_incomplete(client):
    done = ask(client, max_output_tokens=2)
    assert (done.output_text, done.status) == ("Hello from", "incomplete")
    assert done.incomplete_details.reason == "max_output_tokens"


def test_events_of_a_text(client):
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert kinds_of(events) == [
        "response.created",
        "response.in_progress",
        ITEM[0],
        PART[0],
        "response.output_text.delta",
        "response.output_text.done",
        PART[1],
        ITEM[1],
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert (len(deltas), "".join(deltas)) == (5, TEXT)
    assert events[-1].response.output_text == TEXT
    assert events[-1].response.id == events[0].response.id


def test_tools_are_called_and_answered(client):
    done = ask(client, tools=[TOOL])
    (call,) = done.output
    assert (call.type, call.name, call.arguments) == ("function_call", "weather", '{"city": "Ada"}')
    reported = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    turns = [{"role": "user", "content": "hello"}, *done.output, reported]
    assert ask(client, tools=[TOOL], input=turns).output_text == "The tool says: sunny"


def test_events_of_a_call(client):
    choice = {"type": "function", "name": "weather"}
    events = list(ask(client, tools=[TOOL], tool_choice=choice, stream=True))
    assert kinds_of(events)[2:] == [
        ITEM[0],
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        ITEM[1],
        "response.completed",
    ]
    assert events[-3].arguments == '{"city": "Ada"}'
    assert (events[2].item.status, events[-2].item.status) == ("in_progress", "completed")


def test_an_answer_has_the_requested_format(client):
    done = client.responses.parse(model="scripted", input="who?", text_format=Person)
    assert done.output_parsed == Person(name="Ada", age=36)
    with client.responses.stream(model="scripted", input="who?", text_format=Person) as events:
        assert events.get_final_response().output_parsed == Person(name="Ada", age=36)


def test_log_probabilities(client):
    done = ask(client, include=["message.output_text.logprobs"], top_logprobs=1)
    first = done.output[0].content[0].logprobs[0]
    assert (first.token, first.top_logprobs[0].logprob) == ("Hello", -0.25)


def test_an_error_after_the_first_event_is_raised(client):
    events = ask(client, input="fail late", stream=True)
    with pytest.raises(openai.APIError, match="breaks off"):
        list(events)


@pytest.mark.parametrize(
    ("param", "asked"),
    [
        ("input", {"input": []}),
        ("input", {"input": 5}),
        ("input[0]", {"input": ["a"]}),
        ("input[0].role", {"input": [{"role": "nobody", "content": "a"}]}),
        ("input[0].content", {"input": [{"role": "user", "content": 5}]}),
        ("input[0].content[0].type", {"input": [{"role": "user", "content": [{"type": "x"}]}]}),
        ("input[0].type", {"input": [{"type": "computer_call"}]}),
        ("input[0].call_id", {"input": [{"type": "function_call_output", "output": "a"}]}),
        ("instructions", {"instructions": 5}),
        ("tools", {"tools": {}}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].name", {"tools": [{"type": "function"}]}),
        ("text.format", {"text": {"format": "json"}}),
        ("reasoning", {"reasoning": "much"}),
        ("include", {"include": 5}),
        ("background", {"background": True}),
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("max_output_tokens", {"max_output_tokens": -1}),
    ],
)
def test_bad_input_is_named(client, param, asked):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, **asked)
    assert caught.value.param == param


def test_responses_are_not_stored_by_default(client):
    done = ask(client)
    with pytest.raises(openai.NotFoundError, match="stored_responses"):
        client.responses.retrieve(done.id)
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, previous_response_id=done.id)
    assert caught.value.code == "previous_response_not_found"


def test_a_response_continues_a_stored_one(keeping):
    done = ask(keeping, tools=[TOOL])
    message = [
        {"type": "function_call_output", "call_id": done.output[0].call_id, "output": "rain"}
    ]
    events = list(ask(keeping, input=message, previous_response_id=done.id, stream=True))
    last = events[-1].response
    assert (last.output_text, last.previous_response_id) == ("The tool says: rain", done.id)
    assert keeping.responses.retrieve(last.id).output_text == last.output_text
    assert ask(keeping, store=False).store is False
    keeping.responses.delete(last.id)
    for forgotten in (last.id, "resp_none"):
        with pytest.raises(openai.NotFoundError):
            keeping.responses.retrieve(forgotten)
        with pytest.raises(openai.NotFoundError):
            keeping.responses.delete(forgotten)


def test_the_oldest_response_is_removed_first(keeping):
    ids = [ask(keeping).id for _ in range(3)]
    with pytest.raises(openai.NotFoundError):
        keeping.responses.retrieve(ids[0])
    assert [keeping.responses.retrieve(item).id for item in ids[1:]] == ids[1:]
