"""anthropic, the official client of `/v1/messages`."""

import sys

import anthropic
from pydantic import BaseModel
from told import ARGUMENTS, CITY, HELLO, KEY, PERSON, TEXT, ability, raises, same, saying

client = anthropic.Anthropic(base_url=sys.argv[1], max_retries=0, timeout=30, **KEY)
SCRIPTED = {"model": "scripted", "max_tokens": 100}
TOOL = {"name": "weather", "input_schema": CITY}


class Person(BaseModel):
    name: str
    age: int


@ability("chat")
def chat():
    done = client.messages.create(messages=HELLO, system="be short", **SCRIPTED)
    same((done.content[0].text, done.stop_reason), (TEXT, "end_turn"))
    same((done.usage.input_tokens, done.usage.output_tokens), (2, 5))


@ability("stream")
def stream():
    with client.messages.stream(messages=HELLO, **SCRIPTED) as events:
        same("".join(events.text_stream), TEXT)
        same(events.get_final_message().usage.output_tokens, 5)


@ability("tools")
def tools():
    done = client.messages.create(messages=HELLO, tools=[TOOL], **SCRIPTED)
    (call,) = done.content
    same((call.name, call.input, done.stop_reason), ("weather", ARGUMENTS, "tool_use"))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    told = {"role": "user", "content": [result]}
    turns = [*HELLO, {"role": "assistant", "content": done.content}, told]
    done = client.messages.create(messages=turns, tools=[TOOL], **SCRIPTED)
    same(done.content[0].text, "The tool says: sunny")


@ability("stream tools")
def stream_tools():
    with client.messages.stream(messages=HELLO, tools=[TOOL], **SCRIPTED) as events:
        (call,) = events.get_final_message().content
    same((call.name, call.input), ("weather", ARGUMENTS))


@ability("structured")
def structured():
    done = client.messages.parse(messages=HELLO, output_format=Person, **SCRIPTED)
    same(done.parsed_output, Person(**PERSON))


@ability("errors")
def errors():
    with raises(anthropic.NotFoundError):
        client.messages.create(messages=HELLO, **{**SCRIPTED, "model": "none"})
    with raises(anthropic.BadRequestError):
        client.messages.create(messages=saying("refuse"), **SCRIPTED)
    with raises(anthropic.APIError):
        list(client.messages.create(messages=saying("fail late"), stream=True, **SCRIPTED))


@ability("retries")
def retries():
    again = client.with_options(max_retries=2)
    said = saying(f"busy anthropic {anthropic.__version__}")
    same(again.messages.create(messages=said, **SCRIPTED).content[0].text, TEXT)
