"""llama-index: OpenAILike."""

import openai
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel
from told import ARGUMENTS, KEY, PERSON, TEXT, URL, ability, raises, same

LLM = {"model": "scripted", "api_base": URL, "is_chat_model": True, "timeout": 30, **KEY}
llm = OpenAILike(max_retries=0, is_function_calling_model=True, **LLM)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def weather(city: str) -> str:
    """Say how the weather is."""
    return city


@ability("chat")
def chat():
    same(llm.chat([ChatMessage("hello")]).message.content, TEXT)
    same(OpenAILike(**{**LLM, "is_chat_model": False}).complete("hello").text, TEXT)


@ability("stream")
def stream():
    parts = list(llm.stream_chat([ChatMessage("hello")]))
    same((parts[-1].message.content, len(parts) > 3), (TEXT, True))


@ability("tools")
def tools():
    done = llm.chat_with_tools([FunctionTool.from_defaults(weather)], user_msg="hello")
    (call,) = llm.get_tool_calls_from_response(done)
    same((call.tool_name, call.tool_kwargs), ("weather", ARGUMENTS))


@ability("stream tools")
def stream_tools():
    tool = FunctionTool.from_defaults(weather)
    *_, last = llm.stream_chat_with_tools([tool], user_msg="hello")
    (call,) = llm.get_tool_calls_from_response(last)
    same((call.tool_name, call.tool_kwargs), ("weather", ARGUMENTS))


@ability("structured")
def structured():
    same(llm.as_structured_llm(Person).complete("hello").raw.model_dump(), PERSON)


@ability("logprobs")
def logprobs():
    asked = OpenAILike(additional_kwargs={"logprobs": True, "top_logprobs": 1}, **LLM)
    same(asked.chat([ChatMessage("hello")]).raw.choices[0].logprobs.content[0].token, "Hello")


@ability("errors")
def errors():
    with raises(openai.BadRequestError):
        llm.chat([ChatMessage("refuse")])
    with raises(openai.APIError):
        list(llm.stream_chat([ChatMessage("fail late")]))


@ability("retries")
def retries():
    asked = OpenAILike(max_retries=2, **LLM)
    same(asked.chat([ChatMessage("busy llama-index")]).message.content, TEXT)
