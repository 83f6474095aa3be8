"""Bodies of requests as questions: the fields for the pipeline, for each text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.frontends.openai.arguments import (
    Fields,
    check,
    check_chat_logprobs,
    check_logprobs,
    check_supported,
    choices_of,
    handed_on,
    has_usage,
    stops_of,
)
from pipeline.frontends.openai.errors import ArgumentError, wrong_type
from pipeline.frontends.openai.options import ModelOptions

MOST_TEXTS = 2048
"""Limit of texts in one request, and of choices in its answer."""

_MOST_TOKEN = 2**31 - 1


class Questions(NamedTuple):
    """Content of one request: the fields of each text, and the form of the answer.

    Attributes:
        fields: for the pipeline, by text; the choices of one prompt follow each other.
        choices: number of choices for each prompt.
        stops: texts that end a choice.
        is_stream: answer in parts.
        has_usage: the last part of a stream has the token counts.
        in_base64: embeddings as base64 of float32 bytes.
        body: the unchanged request.
        is_large: an answer that repeats it is too large to be written on the event loop.
    """

    fields: Sequence[Fields]
    choices: int = 1
    stops: Sequence[str] = ()
    is_stream: bool = False
    has_usage: bool = False
    in_base64: bool = False
    body: Mapping[str, Any] = {}
    is_large: bool = False


def chat_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the question of a chat. Raises ArgumentError."""
    check(body)
    check_chat_logprobs(body)
    messages = messages_of(body, model)
    fields = handed_on(body, model, "messages")
    if model.messages is not None:
        fields[model.messages] = messages
    else:
        fields[model.prompt] = prompt_of(messages)
    return questions_of(body, model, [fields])


def completion_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the questions of a completion, one for each prompt. Raises ArgumentError."""
    check(body)
    check_logprobs(body)
    texts = texts_of(body, "prompt", model)
    shared = handed_on(body, model, "prompt")
    return questions_of(body, model, [{**shared, model.prompt: text} for text in texts])


def embedding_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the questions for embeddings, one for each text. Raises ArgumentError."""
    check(body)
    texts = texts_of(body, "input", model)
    form = body.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise ArgumentError("encoding_format must be 'float' or 'base64'", "encoding_format")
    shared = handed_on(body, model, "input")
    fields = [{**shared, model.input: text} for text in texts]
    return Questions(fields, in_base64=form == "base64", body=body)


def prompt_of(messages: Sequence[Fields]) -> str:
    """Return a chat as text: the only message, or a line for each and the assistant's turn."""
    if len(messages) == 1:
        return _content_of(messages[0], 0)
    lines = [
        f"{message['role']}: {_content_of(message, at)}" for at, message in enumerate(messages)
    ]
    return "\n".join([*lines, "assistant:"])


def messages_of(body: Fields, model: ModelOptions) -> Sequence[Fields]:
    """Return the messages of a chat. Raises ArgumentError."""
    messages = body.get("messages")
    if messages is None:
        raise ArgumentError("messages is missing", "messages", "missing_required_parameter")
    if not isinstance(messages, list) or not messages:
        raise ArgumentError("messages must be a list with at least one message", "messages")
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(message, dict):
            text = f'{where} must be an object like {{"role": "user", "content": "..."}}'
            raise ArgumentError(text, where, "invalid_type")
        if not isinstance(role := message.get("role"), str):
            text = f"{where}.role must be text, such as 'user'"
            raise ArgumentError(text, f"{where}.role", "invalid_type")
        content = message.get("content")
        if len(message) == 2 and type(content) is str and role != "tool":  # the common case
            continue
        _check_content(content, role, f"{where}.content", model)
        if role == "tool" and not isinstance(message.get("tool_call_id"), str):
            where = f"{where}.tool_call_id"
            text = f"{where} must be text: the id of the call that this answers"
            raise ArgumentError(text, where, "missing_required_parameter")
        _check_calls(message.get("tool_calls"), f"{where}.tool_calls")
    return messages


def _check_content(content: Any, role: str, where: str, model: ModelOptions) -> None:
    """Raise ArgumentError for invalid content; each part of a list must have a type."""
    if isinstance(content, str) or (content is None and role == "assistant"):
        return
    if not isinstance(content, list):
        raise wrong_type(where, "text, or a list of parts", content)
    for at, part in enumerate(content):
        place = f"{where}[{at}]"
        if not isinstance(part, dict):
            raise wrong_type(place, "an object with a type", part)
        if not isinstance(kind := part.get("type"), str):
            raise wrong_type(f"{place}.type", "text", kind)
        if kind in ("text", "refusal") and not isinstance(part.get(kind), str):
            raise wrong_type(f"{place}.{kind}", "text", part.get(kind))
        check_supported(model, _FEATURES.get(kind), place)


_FEATURES = {"image_url": "images", "input_audio": "audio", "file": "files"}  # by type of a part


def _check_calls(calls: Any, where: str) -> None:
    """Raise ArgumentError for an assistant's tool calls without a name."""
    if calls is None:
        return
    if not isinstance(calls, list):
        raise wrong_type(where, "a list", calls)
    for at, call in enumerate(calls):
        place = f"{where}[{at}]"
        kind = call.get("type") or "function" if isinstance(call, dict) else None
        function = call.get(kind) if isinstance(kind, str) else None
        if not isinstance(function, dict):
            raise wrong_type(place, "an object with a function", call)
        if not isinstance(function.get("name"), str):
            raise wrong_type(f"{place}.{kind}.name", "text", function.get("name"))


def _content_of(message: Fields, at: int) -> str:
    """Return the text of a message, joined from parts of type `text`."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    for number, part in enumerate(content):
        if part["type"] != "text":
            where = f"messages[{at}].content[{number}]"
            text = f"{where} must be a part of type 'text': this model takes a chat as text"
            raise ArgumentError(text, where, "unsupported_parameter")
    return "".join(part["text"] for part in content)


def texts_of(body: Fields, name: str, model: ModelOptions) -> Sequence[str | list[int]]:
    """Return the texts of an argument, one or several, as text or as tokens.

    Raises ArgumentError.
    """
    value = body.get(name)
    if value is None:
        raise ArgumentError(f"{name} is missing", name, "missing_required_parameter")
    is_one = isinstance(value, str) or (_is_list(value) and type(value[0]) is int)
    texts = [value] if is_one else value
    if not _is_list(texts) or len(texts) > MOST_TEXTS:
        raise ArgumentError(f"{name} must be a text, or a list of up to {MOST_TEXTS} texts", name)
    for at, text in enumerate(texts):
        where = name if is_one else f"{name}[{at}]"
        if _is_list(text):
            check_supported(model, "tokens", where)
            _check_tokens(text, where)
        elif not isinstance(text, str):
            raise wrong_type(where, "text, or a list of tokens", text)
    return texts


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _check_tokens(tokens: list[Any], where: str) -> None:
    """Raise ArgumentError for values that are not tokens; Ops know their own vocabulary."""
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) <= _MOST_TOKEN:
        return
    for at, token in enumerate(tokens):
        if type(token) is not int:
            raise wrong_type(f"{where}[{at}]", "a token: a whole number", token)
        if not 0 <= token <= _MOST_TOKEN:
            text = f"{where}[{at}] is not a token: it must be 0 to {_MOST_TOKEN}"
            raise ArgumentError(text, f"{where}[{at}]", "token_out_of_range")


def questions_of(body: Fields, model: ModelOptions, prompts: Sequence[Fields]) -> Questions:
    """Return the questions of prompts, for all choices of each. Raises ArgumentError."""
    choices = choices_of(body)
    if len(prompts) * choices > MOST_TEXTS:
        raise ArgumentError(f"more than {MOST_TEXTS} choices: ask for fewer at once", "n")
    fields = prompts
    if choices > 1:
        seed = model.keys.get("seed", "seed")
        fields = [choice for prompt in prompts for choice in _choices(prompt, choices, seed)]
    stops, is_stream = stops_of(body), body.get("stream") is True
    return Questions(fields, choices, stops, is_stream, has_usage(body), body=body)


def _choices(prompt: Fields, choices: int, seed: str) -> Iterator[Fields]:
    """Yield the fields for each choice of a prompt; they differ only in the seed."""
    yield prompt
    for at in range(1, choices):
        yield {**prompt, seed: prompt[seed] + at} if seed in prompt else {**prompt}
