"""openai-python, the official client."""

import json

import openai
from pydantic import BaseModel
from told import ARGUMENTS, HELLO, KEY, PERSON, TEXT, TOOL, URL, ability, raises, same, saying

client = openai.OpenAI(base_url=URL, max_retries=0, timeout=30, **KEY)
SCRIPTED = {"model": "scripted"}


class Person(BaseModel):
    name: str
    age: int


@ability("chat")
def chat():
    done = client.chat.completions.create(messages=HELLO, **SCRIPTED)
    same(done.choices[0].message.content, TEXT)
    same((done.choices[0].finish_reason, done.usage.total_tokens), ("stop", 7))


@ability("completions")
def completions():
    same(client.completions.create(prompt="hello", **SCRIPTED).choices[0].text, TEXT)
    parts = client.completions.create(prompt="hello", stream=True, **SCRIPTED)
    same("".join(part.choices[0].text for part in parts), TEXT)


@ability("stream")
def stream():
    wanted = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = client.chat.completions.create(messages=HELLO, **wanted, **SCRIPTED)
    same("".join(part.choices[0].delta.content or "" for part in parts), TEXT)
    same((len(parts) > 3, last.usage.completion_tokens), (True, 5))


@ability("tools")
def tools():
    done = client.chat.completions.create(messages=HELLO, tools=[TOOL], **SCRIPTED)
    (call,) = done.choices[0].message.tool_calls
    same((call.function.name, json.loads(call.function.arguments)), ("weather", ARGUMENTS))
    same(done.choices[0].finish_reason, "tool_calls")
    said = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    turns = [*HELLO, done.choices[0].message, said]
    done = client.chat.completions.create(messages=turns, tools=[TOOL], **SCRIPTED)
    same(done.choices[0].message.content, "The tool says: sunny")


@ability("stream tools")
def stream_tools():
    with client.chat.completions.stream(messages=HELLO, tools=[TOOL], **SCRIPTED) as events:
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    same((call.function.name, json.loads(call.function.arguments)), ("weather", ARGUMENTS))


@ability("structured")
def structured():
    done = client.chat.completions.parse(messages=HELLO, response_format=Person, **SCRIPTED)
    same(done.choices[0].message.parsed, Person(**PERSON))


@ability("logprobs")
def logprobs():
    more = {"logprobs": True, "top_logprobs": 1}
    done = client.chat.completions.create(messages=HELLO, **more, **SCRIPTED)
    same([each.token for each in done.choices[0].logprobs.content][:2], ["Hello", " from"])
    same(done.choices[0].logprobs.content[0].top_logprobs[0].logprob, -0.25)


@ability("embeddings")
def embeddings():
    done = client.embeddings.create(model="vectors", input=["abc", "de"], dimensions=3)
    same([each.embedding for each in done.data], [[3, 0, 0], [2, 0, 0]])
    done = client.embeddings.create(model="vectors", input=[[1, 2, 3], [4]])
    same([each.embedding[0] for each in done.data], [3, 1])
    done = client.embeddings.create(model="vectors", input=[1, 2], encoding_format="float")
    same((done.data[0].embedding[0], done.usage.prompt_tokens), (2, 2))


@ability("responses")
def responses():
    done = client.responses.create(input="hello", **SCRIPTED)
    same((done.output_text, done.usage.output_tokens), (TEXT, 5))
    with client.responses.stream(input="hello", **SCRIPTED) as events:
        same(events.get_final_response().output_text, TEXT)
    tool = {"type": "function", **TOOL["function"]}
    (call,) = client.responses.create(input="hello", tools=[tool], **SCRIPTED).output
    same((call.name, json.loads(call.arguments)), ("weather", ARGUMENTS))
    done = client.responses.parse(input="hello", text_format=Person, **SCRIPTED)
    same(done.output_parsed, Person(**PERSON))
    with raises(openai.APIError):
        list(client.responses.create(input="fail late", stream=True, **SCRIPTED))


@ability("errors")
def errors():
    with raises(openai.NotFoundError):
        client.chat.completions.create(model="none", messages=HELLO)
    with raises(openai.BadRequestError):
        client.chat.completions.create(messages=saying("refuse"), **SCRIPTED)
    with raises(openai.APIError):
        list(client.chat.completions.create(messages=saying("fail late"), stream=True, **SCRIPTED))


@ability("retries")
def retries():
    with raises(openai.RateLimitError):
        client.chat.completions.create(
            messages=saying(f"busy once {openai.__version__}"), **SCRIPTED
        )
    again = client.with_options(max_retries=2)
    said = saying(f"busy {openai.__version__}")
    same(again.chat.completions.create(messages=said, **SCRIPTED).choices[0].message.content, TEXT)
