"""Bodies of requests as questions: what pipelines are asked, one for each text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.frontends.openai.arguments import (
    Fields,
    check,
    choices_of,
    handed_on,
    has_usage,
    stops_of,
)
from pipeline.frontends.openai.errors import ArgumentError
from pipeline.frontends.openai.options import ModelOptions

MOST_TEXTS = 2048
"""Texts that one request may have, or be answered with."""

_MOST_TOKEN = 2**31 - 1


class Questions(NamedTuple):
    """Content of one request: the fields of each text, and how the answer is to be.

    `each`: choices of each prompt, which stand behind each other; `stops`: texts they end at;
    `is_stream`: part by part, `has_usage`: with a last part that has the counts of tokens;
    `in_base64`: embeddings as bytes of float32; `body`: the request as it came.
    """

    fields: Sequence[Fields]
    each: int = 1
    stops: Sequence[str] = ()
    is_stream: bool = False
    has_usage: bool = False
    in_base64: bool = False
    body: Mapping[str, Any] = {}


def chat_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what a chat asks. Raises ArgumentError."""
    check(body)
    messages = _messages_of(body)
    asked = handed_on(body, model, "messages")
    if model.messages is not None:
        asked[model.messages] = messages
    else:
        asked[model.prompt] = prompt_of(messages)
    return _questions(body, model, [asked])


def completion_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what completions ask, one for each prompt. Raises ArgumentError."""
    check(body)
    texts = _texts_of(body, "prompt")
    shared = handed_on(body, model, "prompt")
    return _questions(body, model, [{**shared, model.prompt: text} for text in texts])


def embedding_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what embeddings ask, one for each text. Raises ArgumentError."""
    check(body)
    texts = _texts_of(body, "input")
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise ArgumentError("encoding_format must be 'float' or 'base64'", "encoding_format")
    shared = handed_on(body, model, "input")
    fields = [{**shared, model.input: text} for text in texts]
    return Questions(fields, in_base64=form == "base64", body=body)


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
        where = f"messages[{at}]"
        if not isinstance(each, dict):
            text = f'{where} must be an object like {{"role": "user", "content": "..."}}'
            raise ArgumentError(text, where)
        if not isinstance(each.get("role"), str):
            raise ArgumentError(f"{where}.role must be text, such as 'user'", f"{where}.role")
    return messages


def _content_of(message: Fields, at: int) -> str:
    """Return the text of a message: a text, or parts of type `text`."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    where = f"messages[{at}].content"
    if not isinstance(content, list):
        raise ArgumentError(f"{where} must be text, or a list of parts of type 'text'", where)
    return "".join(_text_of(part, f"{where}[{number}]") for number, part in enumerate(content))


def _text_of(part: Any, where: str) -> str:
    """Return the text of a part of a message."""
    if isinstance(part, Mapping) and part.get("type") == "text":
        if isinstance(part.get("text"), str):
            return str(part["text"])
        where = f"{where}.text"
    raise ArgumentError(f"{where} must be text, or a part of type 'text'", where)


def _texts_of(body: Fields, name: str) -> Sequence[Any]:
    """Return the one text or the several that an argument has; each may be a list of tokens."""
    given = body.get(name)
    is_one = isinstance(given, str) or (
        isinstance(given, list) and bool(given) and isinstance(given[0], int)
    )
    texts = [given] if is_one else given
    if not isinstance(texts, list) or not texts or len(texts) > MOST_TEXTS:
        text = f"{name} must be a text, or a list of up to {MOST_TEXTS} texts, or of their tokens"
        raise ArgumentError(text, name)
    for at, each in enumerate(texts):
        if not isinstance(each, str):
            _check_tokens(each, name if is_one else f"{name}[{at}]")
    return texts


def _check_tokens(tokens: Any, where: str) -> None:
    """Raise ArgumentError unless these are tokens."""
    if not isinstance(tokens, list) or not tokens:
        raise ArgumentError(f"{where} must be text, or a list of tokens", where)
    for at, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token <= _MOST_TOKEN:
            where = f"{where}[{at}]"
            raise ArgumentError(f"{where} must be a token: 0 to {_MOST_TOKEN}", where)


def _questions(body: Fields, model: ModelOptions, prompts: Sequence[Fields]) -> Questions:
    each = choices_of(body)
    if len(prompts) * each > MOST_TEXTS:
        raise ArgumentError(f"more than {MOST_TEXTS} choices: ask for fewer at once", "n")
    fields = prompts
    if each > 1:
        seed = model.keys.get("seed", "seed")
        fields = [one for prompt in prompts for one in _choices(prompt, each, seed)]
    stops, is_stream = stops_of(body), body.get("stream") is True
    return Questions(fields, each, stops, is_stream, has_usage(body), body=body)


def _choices(prompt: Fields, each: int, seed: str) -> Iterator[Fields]:
    """Yield what each choice of a prompt asks: the same, but that the next seed follows a seed."""
    yield prompt
    for at in range(1, each):
        yield {**prompt, seed: prompt[seed] + at} if seed in prompt else {**prompt}
