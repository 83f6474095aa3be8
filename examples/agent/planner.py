"""A model that needs no card: it asks for tools as a language model does, by a few rules.

It knows two kinds of questions, sums and differences of temperatures, and needs two rounds for the
second: first the temperatures, then the sum. `client_type: openai` puts a real model in its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tools import WEATHER

from pipeline.openai import Delta, Message, ToolCall

_SUM = re.compile(r"[\d(][\d\s.+*/()-]*[+*/-][\d\s.+*/()-]*[\d)]")
_CITY = re.compile(r"\b[A-Z][a-z]+\b")
_MOST_READ = 200  # characters of a question: to look for a sum takes the cube of them
_NO_CITIES = ("How", "What", "Is", "Much", "Warmer", "And", "The", "Tell")


def plan(messages: Sequence[Message]) -> Delta:
    """Return what the model says next: an answer, or calls of tools."""
    asked_at = max(at for at, each in enumerate(messages) if each["role"] == "user")
    question = str(messages[asked_at]["content"])[:_MOST_READ]
    results = [str(each["content"]) for each in messages[asked_at:] if each["role"] == "tool"]
    failed = next((each for each in results if each.startswith("error: ")), None)
    if failed is not None:
        return _answer(f"That cannot be said: {failed.removeprefix('error: ')}.")
    cities = [city for city in _CITY.findall(question) if city not in _NO_CITIES]
    if cities:
        return _of_cities(cities, results)
    if (found := _SUM.search(question)) is None:
        known = ", ".join(city.title() for city in WEATHER)
        return _answer(f"Ask for a sum, or for the weather of cities: {known}.")
    if results:
        return _answer(f"{found[0].strip()} is {results[0]}.")
    return _calls(("calculate", {"expression": found[0].strip()}))


def _of_cities(cities: Sequence[str], results: Sequence[str]) -> Delta:
    """Ask for all temperatures at once, then for their difference."""
    if not results:
        return _calls(*(("temperature", {"city": city}) for city in cities))
    if len(cities) == 1:
        return _answer(f"It is {results[0]} degrees in {cities[0]}.")
    if len(results) == len(cities):
        return _calls(("calculate", {"expression": f"({results[0]}) - ({results[1]})"}))
    difference = float(results[-1])
    word = "warmer" if difference >= 0 else "colder"
    return _answer(f"{cities[0]} is {abs(difference):g} degrees {word} than {cities[1]}.")


def _answer(text: str) -> Delta:
    return {"text": text, "finish_reason": "stop"}


def _calls(*asked: tuple[str, dict[str, str]]) -> Delta:
    calls: list[ToolCall] = [
        {
            "id": f"call_{name}_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for at, (name, arguments) in enumerate(asked)
    ]
    return {"text": "", "tool_calls": calls, "finish_reason": "tool_calls"}
