"""Pydantic AI, by its models of OpenAI's chats and responses."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, NativeOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from told import KEY, PERSON, TEXT, URL, ability, same

CITY_TEXT = "The tool says: sunny in Ada"
place = OpenAIProvider(base_url=URL, **KEY)
chats = OpenAIChatModel("scripted", provider=place)
responses_of = OpenAIResponsesModel("scripted", provider=place)


class Person(BaseModel):
    name: str
    age: int


def weather(city: str) -> str:
    return f"sunny in {city}"


@ability("chat")
def chat():
    same(Agent(chats).run_sync("say hello").output, TEXT)


@ability("responses")
def responses():
    same(Agent(responses_of).run_sync("say hello").output, TEXT)


@ability("tools")
def tools():
    for model in (chats, responses_of):
        same(Agent(model, tools=[weather]).run_sync("say hello").output, CITY_TEXT)


async def streamed(model, **options):
    async with Agent(model, **options).run_stream("say hello") as answer:
        return [part async for part in answer.stream_text(delta=True, debounce_by=None)]


@ability("stream")
def stream():
    for model in (chats, responses_of):
        same("".join(asyncio.run(streamed(model))), TEXT)


@ability("stream tools")
def stream_tools():
    for model in (chats, responses_of):
        same("".join(asyncio.run(streamed(model, tools=[weather]))), CITY_TEXT)


@ability("structured")
def structured():
    for model in (chats, responses_of):
        for form in (Person, NativeOutput(Person)):
            found = Agent(model, output_type=form).run_sync("say hello").output
            same(found.model_dump(), PERSON)


@ability("embeddings")
def embeddings():
    embedder = Embedder(OpenAIEmbeddingModel("vectors", provider=place))
    same(embedder.embed_query_sync("abc").embeddings[0][0], 3)
