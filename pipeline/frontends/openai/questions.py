"""Bodies of requests as questions: what pipelines are asked, one for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.frontends.openai.errors import ArgumentError
from pipeline.frontends.openai.options import ModelOptions

MOST_TEXTS = 2048
"""Texts that one request may have."""

Fields = dict[str, Any]

_NOT_HANDED_ON = frozenset(("model", "stream", "stream_options", "n", "user", "encoding_format"))
_RENAMED = {"max_completion_tokens": "max_tokens"}
_NOTHING: tuple[Any, ...] = (None, False, [], {}, "")
_ONLY: Mapping[str, tuple[Any, ...]] = {  # values of arguments that have no others here
    "n": (1,),
    "best_of": (1,),
    "echo": (),
    "suffix": (),
    "logprobs": (),
    "top_logprobs": (0,),
    "tools": (),
    "tool_choice": ("none",),
    "functions": (),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "response_format": ({"type": "text"},),
}


class Questions(NamedTuple):
    """Content of one request: the fields of each text, and how the answer is to be.

    `in_base64`: embeddings as bytes of float32; `is_stream`: part by part, `has_usage`: with a
    last part that has the counts of tokens.
    """

    fields: Sequence[Fields]
    is_stream: bool = False
    has_usage: bool = False
    in_base64: bool = False


def chat_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what a chat asks. Raises ArgumentError."""
    messages = _messages_of(body)
    asked = _handed_on(body, model, "messages")
    if model.messages is not None:
        asked[model.messages] = messages
    else:
        asked[model.prompt] = prompt_of(messages)
    return _questions(body, [asked])


def completion_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what completions ask, one for each prompt. Raises ArgumentError."""
    texts = _texts_of(body, "prompt")
    if body.get("stream") and len(texts) > 1:
        raise ArgumentError("a stream has one prompt: send a text, or ask without it", "prompt")
    shared = _handed_on(body, model, "prompt")
    return _questions(body, [{**shared, model.prompt: text} for text in texts])


def embedding_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what embeddings ask, one for each text. Raises ArgumentError."""
    texts = _texts_of(body, "input")
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise ArgumentError("encoding_format must be 'float' or 'base64'", "encoding_format")
    shared = _handed_on(body, model, "input")
    fields = [{**shared, model.input: text} for text in texts]
    return Questions(fields, in_base64=form == "base64")


def prompt_of(messages: Sequence[Fields]) -> str:
    """Return a chat as text: one message as it is, of several a line for each, and who is next."""
    if len(messages) == 1:
        return _content_of(messages[0], 0)
    lines = [f"{each['role']}: {_content_of(each, at)}" for at, each in enumerate(messages)]
    return "\n".join([*lines, "assistant:"])


def _messages_of(body: Fields) -> Sequence[Fields]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ArgumentError("messages must be a list with at least one message", "messages")
    for at, each in enumerate(messages):
        if not isinstance(each, dict) or not isinstance(each.get("role"), str):
            text = 'must be an object like {"role": "user", "content": "..."}'
            raise ArgumentError(f"messages[{at}] {text}", f"messages[{at}]")
    return messages


def _content_of(message: Fields, at: int) -> str:
    """Return the text of a message: a text, or parts of type `text`."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [None]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
    ]
    if len(texts) < len(parts):
        where = f"messages[{at}].content"
        raise ArgumentError(f"{where} must be text, or a list of parts of type 'text'", where)
    return "".join(texts)


def _texts_of(body: Fields, name: str) -> Sequence[str]:
    """Return the one text or the several that an argument has."""
    given = body.get(name)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or len(texts) > MOST_TEXTS:
        text = f"{name} must be a text, or a list of up to {MOST_TEXTS} texts"
        raise ArgumentError(text, name)
    for at, each in enumerate(texts):
        if not isinstance(each, str):
            raise ArgumentError(f"{name}[{at}] must be text: tokens are not taken", name)
    return texts


def _handed_on(body: Fields, model: ModelOptions, own: str) -> Fields:
    """Return the arguments that the pipeline gets, by its keys; nulls are none.

    Raises ArgumentError for those that nothing here can do.
    """
    asked: Fields = {}
    for name, value in body.items():
        if name in _ONLY and value not in _NOTHING and value not in _ONLY[name]:
            raise ArgumentError(f"{name} is not supported here: leave it out", name)
        if value is None or name == own or name in _NOT_HANDED_ON or name in _ONLY:
            continue
        name = _RENAMED.get(name, name)
        if name == "stop":
            value = _stops(value)
        asked[model.keys.get(name, name)] = value
    return asked


def _stops(value: Any) -> Sequence[str]:
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise ArgumentError("stop must be a text or a list of texts", "stop")
    return stops


def _questions(body: Fields, fields: Sequence[Fields]) -> Questions:
    is_stream = body.get("stream") or False
    if not isinstance(is_stream, bool):
        raise ArgumentError("stream must be true or false", "stream")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ArgumentError("stream_options must be an object", "stream_options")
    return Questions(fields, is_stream, options.get("include_usage") is True)
