"""Arguments of OpenAI's API: their types, what nothing here can do, and what is handed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.frontends.openai.errors import ArgumentError
from pipeline.frontends.openai.options import ModelOptions

MOST_CHOICES = 128
"""Choices of one prompt, OpenAI's own limit."""

Fields = dict[str, Any]

_MOST_STOPS, _MOST_CHARACTERS = 16, 256
_LEAST: Mapping[str, int | None] = {  # whole numbers, and the least of them
    "max_tokens": 0,
    "max_completion_tokens": 0,
    "n": 1,
    "best_of": 1,
    "dimensions": 1,
    "seed": None,
}
_NUMBERS = frozenset(("temperature", "top_p", "presence_penalty", "frequency_penalty"))
_OBJECTS = frozenset(("logit_bias", "stream_options"))
_SWITCHES = frozenset(("stream",))

_DONE_HERE = frozenset(("model", "stream", "stream_options", "n", "best_of", "encoding_format"))
_IGNORED = frozenset(  # they are for bills, caches, logs, and for tools that are not here
    (
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prediction", "parallel_tool_calls"),
    )
)
_RENAMED = {"max_completion_tokens": "max_tokens"}
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # values of arguments that ask for nothing
    "echo": (),
    "suffix": (),
    "logprobs": (),
    "top_logprobs": (0,),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "functions": (),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "response_format": ({"type": "text"},),
    "web_search_options": (),
}
_NOT_HANDED_ON = _DONE_HERE | _IGNORED


def check(body: Fields) -> None:
    """Raise ArgumentError for arguments of another type."""
    for name, value in body.items():
        if value is None:
            continue
        if name in _LEAST:
            _check_whole(name, value, _LEAST[name])
        elif name in _NUMBERS:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise _wrong(name, "a number", value)
        elif name in _OBJECTS:
            if not isinstance(value, dict):
                raise _wrong(name, "an object", value)
        elif name in _SWITCHES and not isinstance(value, bool):
            raise _wrong(name, "true or false", value)


def handed_on(body: Fields, model: ModelOptions, own: str) -> Fields:
    """Return the arguments that the pipeline gets, by its keys; nulls are none.

    `own` is what it is asked for, which is not among them.
    """
    asked = {
        name: value
        for name, value in body.items()
        if value is not None and name != own and name not in _NOT_HANDED_ON
        if name not in _NEUTRAL or not _is_one_of(value, (*_NOTHING, *_NEUTRAL[name]))
    }
    for name, known in _RENAMED.items():
        if name in asked:
            asked[known] = asked.pop(name)
    if "stop" in asked:
        asked["stop"] = stops_of(body)
    return {model.keys.get(name, name): value for name, value in asked.items()}


def stops_of(body: Fields) -> Sequence[str]:
    """Return the texts that an answer ends at. Raises ArgumentError."""
    given = body.get("stop")
    stops = [given] if isinstance(given, str) else given
    if stops is None:
        return []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise ArgumentError(f"stop must be a text, or a list of up to {_MOST_STOPS}", "stop")
    for at, each in enumerate(stops):
        if not isinstance(each, str) or not 0 < len(each) <= _MOST_CHARACTERS:
            where = "stop" if stops is not given else f"stop[{at}]"
            raise ArgumentError(
                f"{where} must be text of 1 to {_MOST_CHARACTERS} characters", where
            )
    return stops


def choices_of(body: Fields) -> int:
    """Return how many choices each prompt is to have. Raises ArgumentError."""
    count: int = body.get("n") or 1
    if count > MOST_CHOICES:
        raise ArgumentError(f"n must be at most {MOST_CHOICES}", "n")
    if (body.get("best_of") or count) != count:
        raise ArgumentError("best_of other than n is not supported here: leave it out", "best_of")
    return count


def has_usage(body: Fields) -> bool:
    """Return whether the counts are to be the last chunk of a stream. Raises ArgumentError."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not body.get("stream"):
        raise ArgumentError("stream_options is for streams: send stream true", "stream_options")
    wanted = options.get("include_usage")
    if wanted is not None and not isinstance(wanted, bool):
        raise _wrong("stream_options.include_usage", "true or false", wanted)
    return wanted is True


def _check_whole(name: str, value: Any, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, "a whole number", value)
    if least is not None and value < least:
        raise ArgumentError(f"{name} must be at least {least}", name)


def _is_one_of(value: Any, those: Sequence[Any]) -> bool:
    """Return whether a value is there, of which 0 is not False."""
    return any(type(value) is type(each) and value == each for each in those)


def _wrong(name: str, expected: str, value: Any) -> ArgumentError:
    kinds = {str: "text", bool: "true or false", list: "a list", dict: "an object"}
    found = kinds.get(type(value), "a number")
    return ArgumentError(f"{name} must be {expected}, not {found}", name)
