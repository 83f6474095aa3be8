"""langchain-openai: ChatOpenAI and OpenAIEmbeddings."""

import openai
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel
from told import ARGUMENTS, KEY, PERSON, TEXT, TOOL, URL, ability, raises, same

LLM = {"model": "scripted", "base_url": URL, "timeout": 30, **KEY}
chat_model = ChatOpenAI(max_retries=0, **LLM)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@ability("chat")
def chat():
    done = chat_model.invoke("hello")
    same((done.content, done.usage_metadata["total_tokens"]), (TEXT, 6))
    same(OpenAI(max_retries=0, **LLM).invoke("hello"), TEXT)


@ability("stream")
def stream():
    parts = list(ChatOpenAI(max_retries=0, stream_usage=True, **LLM).stream("hello"))
    whole = sum(parts[1:], parts[0])
    same((whole.content, whole.usage_metadata["output_tokens"]), (TEXT, 5))


@ability("tools")
def tools():
    (call,) = chat_model.bind_tools([TOOL]).invoke("hello").tool_calls
    same((call["name"], call["args"]), ("weather", ARGUMENTS))


@ability("stream tools")
def stream_tools():
    parts = list(chat_model.bind_tools([TOOL]).stream("hello"))
    (call,) = sum(parts[1:], parts[0]).tool_calls
    same((call["name"], call["args"]), ("weather", ARGUMENTS))


@ability("structured")
def structured():
    for method in ("json_schema", "function_calling", "json_mode"):
        found = chat_model.with_structured_output(Person, method=method).invoke("hello, as json")
        same(found.model_dump(), PERSON)


@ability("logprobs")
def logprobs():
    done = ChatOpenAI(logprobs=True, top_logprobs=1, max_retries=0, **LLM).invoke("hello")
    same(done.response_metadata["logprobs"]["content"][0]["token"], "Hello")


@ability("embeddings")
def embeddings():
    # Without the check nothing is fetched: tiktoken would load its tables.
    asked = {"model": "vectors", "base_url": URL, "check_embedding_ctx_length": False, **KEY}
    found = OpenAIEmbeddings(**asked).embed_documents(["abc", "de"])
    same([each[0] for each in found], [3, 2])


@ability("responses")
def responses():
    asked = ChatOpenAI(use_responses_api=True, max_retries=0, **LLM)
    same(asked.invoke("hello").text, TEXT)
    parts = list(asked.stream("hello"))
    same(sum(parts[1:], parts[0]).text, TEXT)


@ability("errors")
def errors():
    with raises(openai.BadRequestError):
        chat_model.invoke("refuse")
    with raises(openai.APIError):
        list(chat_model.stream("fail late"))


@ability("retries")
def retries():
    same(ChatOpenAI(max_retries=2, **LLM).invoke("busy langchain").content, TEXT)
