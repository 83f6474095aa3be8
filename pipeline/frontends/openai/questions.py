"""Bodies of requests as questions: what pipelines are asked, one for each text."""

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
    check_chat_logprobs(body)
    messages = messages_of(body, model)
    asked = handed_on(body, model, "messages")
    if model.messages is not None:
        asked[model.messages] = messages
    else:
        asked[model.prompt] = prompt_of(messages)
    return questions_of(body, model, [asked])


def completion_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what completions ask, one for each prompt. Raises ArgumentError."""
    check(body)
    check_logprobs(body)
    texts = texts_of(body, "prompt", model)
    shared = handed_on(body, model, "prompt")
    return questions_of(body, model, [{**shared, model.prompt: text} for text in texts])


def embedding_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return what embeddings ask, one for each text. Raises ArgumentError."""
    check(body)
    texts = texts_of(body, "input", model)
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


def messages_of(body: Fields, model: ModelOptions) -> Sequence[Fields]:
    """Return the messages of a chat. Raises ArgumentError."""
    messages = body.get("messages")
    if messages is None:
        raise ArgumentError("messages is missing", "messages", "missing_required_parameter")
    if not isinstance(messages, list) or not messages:
        raise ArgumentError("messages must be a list with at least one message", "messages")
    for at, each in enumerate(messages):
        where = f"messages[{at}]"
        if not isinstance(each, dict):
            text = f'{where} must be an object like {{"role": "user", "content": "..."}}'
            raise ArgumentError(text, where, "invalid_type")
        if not isinstance(role := each.get("role"), str):
            text = f"{where}.role must be text, such as 'user'"
            raise ArgumentError(text, f"{where}.role", "invalid_type")
        if (
            len(each) == 2 and type(each.get("content")) is str and role != "tool"
        ):  # as nearly always
            continue
        _check_content(each.get("content"), role, f"{where}.content", model)
        if role == "tool" and not isinstance(each.get("tool_call_id"), str):
            where = f"{where}.tool_call_id"
            text = f"{where} must be text: the id of the call that this answers"
            raise ArgumentError(text, where, "missing_required_parameter")
        _check_calls(each.get("tool_calls"), f"{where}.tool_calls")
    return messages


def _check_content(content: Any, role: str, where: str, model: ModelOptions) -> None:
    """Raise ArgumentError for what no message says; the parts of a list say their type."""
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
    """Raise ArgumentError for calls of tools, as an assistant has made them, without a name."""
    if calls is None:
        return
    if not isinstance(calls, list):
        raise wrong_type(where, "a list", calls)
    for at, call in enumerate(calls):
        place = f"{where}[{at}]"
        kind = call.get("type") or "function" if isinstance(call, dict) else None
        said = call.get(kind) if isinstance(kind, str) else None
        if not isinstance(said, dict):
            raise wrong_type(place, "an object with a function", call)
        if not isinstance(said.get("name"), str):
            raise wrong_type(f"{place}.{kind}.name", "text", said.get("name"))


def _content_of(message: Fields, at: int) -> str:
    """Return the text of a message: a text, or parts of type `text`."""
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
    """Return the one text or the several that an argument has, as text or as tokens.

    Raises ArgumentError.
    """
    given = body.get(name)
    if given is None:
        raise ArgumentError(f"{name} is missing", name, "missing_required_parameter")
    is_one = isinstance(given, str) or (_is_list(given) and type(given[0]) is int)
    texts = [given] if is_one else given
    if not _is_list(texts) or len(texts) > MOST_TEXTS:
        text = f"{name} must be a text, or a list of up to {MOST_TEXTS} texts"
        raise ArgumentError(text, name)
    for at, each in enumerate(texts):
        where = name if is_one else f"{name}[{at}]"
        if _is_list(each):
            check_supported(model, "tokens", where)
            _check_tokens(each, where)
        elif not isinstance(each, str):
            raise wrong_type(where, "text, or a list of tokens", each)
    return texts


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value)


def _check_tokens(tokens: list[Any], where: str) -> None:
    """Raise ArgumentError for what is no token of any vocabulary; Ops know their own."""
    if set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) <= _MOST_TOKEN:
        return
    for at, token in enumerate(tokens):
        if type(token) is not int:
            raise wrong_type(f"{where}[{at}]", "a token: a whole number", token)
        if not 0 <= token <= _MOST_TOKEN:
            text = f"{where}[{at}] is no token: it must be 0 to {_MOST_TOKEN}"
            raise ArgumentError(text, f"{where}[{at}]", "token_out_of_range")


def questions_of(body: Fields, model: ModelOptions, prompts: Sequence[Fields]) -> Questions:
    """Return what prompts ask: each of them for all of its choices. Raises ArgumentError."""
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
