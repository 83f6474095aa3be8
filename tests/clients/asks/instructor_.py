"""instructor, in its default mode (tools) and by JSON schemas."""

import instructor
import openai
from pydantic import BaseModel
from told import HELLO, KEY, PERSON, URL, ability, same

SCRIPTED = {"model": "scripted", "messages": HELLO, "max_retries": 1}
asked = openai.OpenAI(base_url=URL, max_retries=0, timeout=30, **KEY)


class Person(BaseModel):
    name: str
    age: int


@ability("tools")
def tools():
    found = instructor.from_openai(asked).create(response_model=Person, **SCRIPTED)
    same((found.name, found.age), ("Ada", 36))


@ability("stream tools")
def stream_tools():
    parts = list(instructor.from_openai(asked).create_partial(response_model=Person, **SCRIPTED))
    same((parts[-1].name, parts[-1].age), ("Ada", 36))


@ability("structured")
def structured():
    for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON):
        found = instructor.from_openai(asked, mode=mode).create(response_model=Person, **SCRIPTED)
        same(found.model_dump(), PERSON)
