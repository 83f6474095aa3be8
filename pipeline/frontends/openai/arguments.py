"""Arguments of OpenAI's API: their types, what a model supports, and what its Op gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.frontends.openai.errors import ArgumentError, wrong_type
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.tools import check_choice, check_format, check_tools

MOST_CHOICES = 128
"""Limit of choices for one prompt, the same as OpenAI's."""

Fields = dict[str, Any]

_MOST_STOPS, _MOST_CHARACTERS = 16, 256
_MOST_TOP_LOGPROBS = 20  # OpenAI's limit
_LEAST: Mapping[str, int | None] = {  # minimums of arguments that are whole numbers
    "max_tokens": 0,
    "max_completion_tokens": 0,
    "n": 1,
    "best_of": 1,
    "dimensions": 1,
    "seed": None,
    "top_logprobs": 0,
}
_KINDS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    **dict.fromkeys(
        ("temperature", "top_p", "presence_penalty", "frequency_penalty"),
        ((int, float), "a number"),
    ),
    **dict.fromkeys(("logit_bias", "stream_options", "audio"), (dict, "an object")),
    **dict.fromkeys(("stream", "echo", "parallel_tool_calls"), (bool, "true or false")),
    "suffix": (str, "text"),
    "modalities": (list, "a list"),
}
_CHECKS: Mapping[str, Callable[[Any, str], None]] = {
    "tools": check_tools,
    "response_format": check_format,
}

_DONE_HERE = frozenset(("model", "stream", "stream_options", "n", "best_of", "encoding_format"))
_IGNORED = frozenset(  # for bills, caches and logs; passed on only if the model's `keys` name them
    (
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
        "prediction",
    )
)
_OF_TOOLS = {"tool_choice": "tools", "parallel_tool_calls": "tools", "function_call": "functions"}
_RENAMED = {"max_completion_tokens": "max_tokens"}
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # values that are the same as no argument
    "echo": (),
    "suffix": (),
    "logprobs": (),
    "top_logprobs": (0,),
    "tools": (),
    "functions": (),
    "modalities": (["text"],),
    "audio": (),
    "response_format": ({"type": "text"},),
    "web_search_options": (),
}
_FEATURES: Mapping[str, str] = {  # feature in the model's `supports`, by argument
    "tools": "tools",
    "functions": "tools",
    "logprobs": "logprobs",
    "top_logprobs": "logprobs",
    "echo": "echo",
    "suffix": "suffix",
    "modalities": "audio",
    "audio": "audio",
    "web_search_options": "web_search",
}


def check(body: Fields) -> None:
    """Raise ArgumentError for arguments of a wrong type, or out of range."""
    for name, value in body.items():
        if value is None:
            continue
        if name in _LEAST:
            _check_whole(name, value, _LEAST[name])
        elif name in _KINDS:
            kind, expected = _KINDS[name]
            if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
                raise wrong_type(name, expected, value)
        elif name in _CHECKS:
            _CHECKS[name](value, name)


def handed_on(body: Fields, model: ModelOptions, own: str) -> Fields:
    """Return the arguments for the pipeline, by its keys, without nulls.

    `own` names the input itself, which is left out. Raises ArgumentError for an argument that the
    model does not support.
    """
    arguments = {
        name: value
        for name, value in body.items()
        if value is not None
        and name != own
        and name not in _DONE_HERE
        and (name not in _IGNORED or name in model.keys)
        and (name not in _NEUTRAL or not _is_one_of(value, (*_NOTHING, *_NEUTRAL[name])))
    }
    for name, needed in _OF_TOOLS.items():
        if name not in arguments or needed in arguments:
            continue
        if not _is_one_of(arguments.pop(name), ("none", "auto", True, False)):
            raise ArgumentError(f"{name} is for requests with {needed}: send them", name)
    if "tool_choice" in arguments:
        check_choice(arguments["tool_choice"], arguments["tools"])
    if model.supports is not None:
        for name in arguments:
            check_supported(model, _feature_of(name, arguments[name]), name)
    for name, new_name in _RENAMED.items():
        if name in arguments:
            arguments[new_name] = arguments.pop(name)
    if "stop" in arguments:
        arguments["stop"] = stops_of(body)
    return {model.keys.get(name, name): value for name, value in arguments.items()}


def check_supported(model: ModelOptions, feature: str | None, where: str) -> None:
    """Raise ArgumentError if the model does not support a feature; `where` is its place."""
    if feature and model.supports is not None and feature not in model.supports:
        there = ", ".join(model.supports) or "none"
        raise ArgumentError(
            f"{where} is not supported by this model ({feature}): it supports {there}",
            where,
            "unsupported_parameter",
        )


def _feature_of(name: str, value: Any) -> str | None:
    return str(value["type"]) if name == "response_format" else _FEATURES.get(name)


def stops_of(body: Fields) -> Sequence[str]:
    """Return the texts that end an answer. Raises ArgumentError."""
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return []
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise ArgumentError(f"stop must be a text, or a list of up to {_MOST_STOPS}", "stop")
    for at, stop in enumerate(stops):
        if not isinstance(stop, str) or not 0 < len(stop) <= _MOST_CHARACTERS:
            where = "stop" if stops is not value else f"stop[{at}]"
            raise ArgumentError(
                f"{where} must be text of 1 to {_MOST_CHARACTERS} characters", where
            )
    return stops


def choices_of(body: Fields) -> int:
    """Return the number of choices for each prompt. Raises ArgumentError."""
    count: int = body.get("n") or 1
    if count > MOST_CHOICES:
        raise ArgumentError(f"n must be at most {MOST_CHOICES}", "n", "integer_above_max_value")
    if (body.get("best_of") or count) != count:
        text = "best_of other than n is not supported here: leave it out"
        raise ArgumentError(text, "best_of", "unsupported_parameter")
    return count


def check_chat_logprobs(body: Fields) -> None:
    """Raise ArgumentError for a chat's arguments about log probabilities."""
    logprobs = body.get("logprobs")
    if logprobs is not None and not isinstance(logprobs, bool):
        raise wrong_type("logprobs", "true or false", logprobs)
    most: int = body.get("top_logprobs") or 0
    if most > _MOST_TOP_LOGPROBS:
        text = f"top_logprobs must be at most {_MOST_TOP_LOGPROBS}"
        raise ArgumentError(text, "top_logprobs", "integer_above_max_value")
    if most and not logprobs:
        text = "top_logprobs is for requests with logprobs: send logprobs true"
        raise ArgumentError(text, "top_logprobs")


def check_logprobs(body: Fields) -> None:
    """Raise ArgumentError for a completion whose `logprobs` is not a count."""
    if body.get("logprobs") not in (None, False) or body.get("logprobs") is True:
        _check_whole("logprobs", body["logprobs"], 0)


def has_usage(body: Fields) -> bool:
    """Return whether the last chunk of the stream has the token counts. Raises ArgumentError."""
    options = body.get("stream_options")
    if options is None:
        return False
    if not body.get("stream"):
        raise ArgumentError("stream_options is for streams: send stream true", "stream_options")
    include_usage = options.get("include_usage")
    if include_usage is not None and not isinstance(include_usage, bool):
        raise wrong_type("stream_options.include_usage", "true or false", include_usage)
    return include_usage is True


def _check_whole(name: str, value: Any, least: int | None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(name, "a whole number", value)
    if least is not None and value < least:
        raise ArgumentError(f"{name} must be at least {least}", name, "integer_below_min_value")


def _is_one_of(value: Any, values: Sequence[Any]) -> bool:
    """Return whether a value is among others of its own type: 0 is not False."""
    return any(type(value) is type(other) and value == other for other in values)
