"""litellm, with a model of the kind `openai/<id>`."""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
import openai
from pydantic import BaseModel
from told import (
    ARGUMENTS,
    HELLO,
    KEY,
    PERSON,
    TEXT,
    TOOL,
    URL,
    ability,
    raises,
    same,
    saying,
)

PLACE = {"api_base": URL, "timeout": 30, **KEY}
SCRIPTED = {"model": "openai/scripted", "max_retries": 0, **PLACE}


class Person(BaseModel):
    name: str
    age: int


@ability("chat")
def chat():
    done = litellm.completion(messages=HELLO, **SCRIPTED)
    same((done.choices[0].message.content, done.usage.total_tokens), (TEXT, 7))


@ability("stream")
def stream():
    parts = list(litellm.completion(messages=HELLO, stream=True, **SCRIPTED))
    same("".join(part.choices[0].delta.content or "" for part in parts), TEXT)


@ability("tools")
def tools():
    done = litellm.completion(messages=HELLO, tools=[TOOL], **SCRIPTED)
    (call,) = done.choices[0].message.tool_calls
    same((call.function.name, json.loads(call.function.arguments)), ("weather", ARGUMENTS))


@ability("stream tools")
def stream_tools():
    parts = list(litellm.completion(messages=HELLO, tools=[TOOL], stream=True, **SCRIPTED))
    (call,) = litellm.stream_chunk_builder(parts).choices[0].message.tool_calls
    same((call.function.name, json.loads(call.function.arguments)), ("weather", ARGUMENTS))


@ability("structured")
def structured():
    done = litellm.completion(messages=HELLO, response_format=Person, **SCRIPTED)
    same(json.loads(done.choices[0].message.content), PERSON)


@ability("logprobs")
def logprobs():
    done = litellm.completion(messages=HELLO, logprobs=True, top_logprobs=1, **SCRIPTED)
    same(done.choices[0].logprobs.content[0].token, "Hello")


@ability("embeddings")
def embeddings():
    done = litellm.embedding(model="openai/vectors", input=["abc", "de"], **PLACE)
    same([each["embedding"][0] for each in done.data], [3, 2])


@ability("errors")
def errors():
    with raises(litellm.BadRequestError):
        litellm.completion(messages=saying("refuse"), **SCRIPTED)
    with raises(openai.APIError):
        list(litellm.completion(messages=saying("fail late"), stream=True, **SCRIPTED))


@ability("retries")
def retries():
    asked = {**SCRIPTED, "max_retries": 2}
    done = litellm.completion(messages=saying("busy litellm"), **asked)
    same(done.choices[0].message.content, TEXT)
