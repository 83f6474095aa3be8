"""A model without a GPU: it asks for tools as a language model does, by a few rules.

It answers two kinds of questions, sums and differences of temperatures. The second kind needs two
rounds: first the temperatures, then the sum. `client_type: openai` replaces it by a real model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from tools import WEATHER

from pipeline.openai import Delta, Message, ToolCall

_SUM = re.compile(r"[\d(][\d\s.+*/()-]*[+*/-][\d\s.+*/()-]*[\d)]")
_CITY = re.compile(r"\b[A-Z][a-z]+\b")
_MOST_READ = 200  # characters of a question: the time to find a sum grows with their cube
_NO_CITIES = ("How", "What", "Is", "Much", "Warmer", "And", "The", "Tell")


def plan(messages: Sequence[Message]) -> Delta:
    """Return the model's next message: an answer, or tool calls."""
    last = max(at for at, message in enumerate(messages) if message["role"] == "user")
    question = str(messages[last]["content"])[:_MOST_READ]
    results = [str(message["content"]) for message in messages[last:] if message["role"] == "tool"]
    failed = next((result for result in results if result.startswith("error: ")), None)
    if failed is not None:
        return _answer(f"That is not possible: {failed.removeprefix('error: ')}.")
    cities = [city for city in _CITY.findall(question) if city not in _NO_CITIES]
    if cities:
        return _of_cities(cities, results)
    if (match := _SUM.search(question)) is None:
        names = ", ".join(city.title() for city in WEATHER)
        return _answer(f"Ask for a sum, or for the weather of cities: {names}.")
    if results:
        return _answer(f"{match[0].strip()} is {results[0]}.")
    return _calls(("calculate", {"expression": match[0].strip()}))


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


def _calls(*wanted: tuple[str, dict[str, str]]) -> Delta:
    calls: list[ToolCall] = [
        {
            "id": f"call_{name}_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for at, (name, arguments) in enumerate(wanted)
    ]
    return {"text": "", "tool_calls": calls, "finish_reason": "tool_calls"}
