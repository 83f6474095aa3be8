"""OpenAI's Agents SDK, which calls `/v1/responses` by default."""

import asyncio

import agents
from openai import AsyncOpenAI
from pydantic import BaseModel
from told import KEY, PERSON, TEXT, URL, ability, same

agents.set_tracing_disabled(True)


class Person(BaseModel):
    name: str
    age: int


@agents.function_tool
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


def responses_model(client):
    return agents.OpenAIResponsesModel(model="scripted", openai_client=client)


def chat_model(client):
    return agents.OpenAIChatCompletionsModel(model="scripted", openai_client=client)


def answer(make_model=responses_model, text="say hello", **options):
    """Return the last text of an agent, each time with a client of its own event loop."""

    async def run():
        async with AsyncOpenAI(base_url=URL, max_retries=0, timeout=30, **KEY) as client:
            agent = agents.Agent("helper", model=make_model(client), **options)
            return (await agents.Runner.run(agent, text, max_turns=3)).final_output

    return asyncio.run(run())


@ability("chat")
def chat():
    same(answer(chat_model), TEXT)


@ability("responses")
def responses():
    same(answer(), TEXT)


@ability("tools")
def tools():
    for make_model in (responses_model, chat_model):
        same(answer(make_model, tools=[weather]), "The tool says: sunny in Ada")


@ability("stream tools")
def stream_tools():
    async def run():
        async with AsyncOpenAI(base_url=URL, max_retries=0, timeout=30, **KEY) as client:
            agent = agents.Agent("helper", model=responses_model(client), tools=[weather])
            streamed = agents.Runner.run_streamed(agent, "say hello", max_turns=3)
            kinds = [event.type async for event in streamed.stream_events()]
            return streamed.final_output, "raw_response_event" in kinds

    same(asyncio.run(run()), ("The tool says: sunny in Ada", True))


@ability("structured")
def structured():
    for make_model in (responses_model, chat_model):
        same(answer(make_model, output_type=Person).model_dump(), PERSON)
