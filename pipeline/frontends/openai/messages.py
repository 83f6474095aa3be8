"""Anthropic's `/v1/messages`: requests become chats, and answers messages and their events.

Source: Anthropic's API reference, "Messages", "Streaming messages" and "Errors".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from pipeline.errors import PackageError, PayloadTypeError, PipelineError
from pipeline.frontends.http.routes import HttpError, WebResponse
from pipeline.frontends.openai.answers import Choice, as_json, usage_of
from pipeline.frontends.openai.arguments import Fields
from pipeline.frontends.openai.errors import (
    ArgumentError,
    error_of,
    reply_to,
    text_at,
    wrong_type,
)
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.output import ItemChange, Output, OutputItem, exhaust
from pipeline.frontends.openai.questions import Questions, chat_questions
from pipeline.openai import Delta
from pipeline.proto.plain_json import read_object

Event = dict[str, Any]

_DONE_HERE = frozenset(
    (
        *("system", "messages", "stop_sequences", "tools", "tool_choice", "metadata", "n"),
        *("output_config", "output_format", "service_tier", "container", "context_management"),
    )
)
_MISSING = "missing_required_parameter"
_NAMES = {  # names in this API, by their names in chats
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    ".function.parameters": ".input_schema",
    ".function": "",
}
_CHOICES: Final[Mapping[object, str]] = {"auto": "auto", "any": "required", "none": "none"}
_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_DELTAS: Final[Mapping[str, tuple[str, str]]] = {  # by kind of item: type of the delta, its key
    "reasoning_content": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "refusal": ("text_delta", "text"),
    "function": ("input_json_delta", "partial_json"),
    "custom": ("input_json_delta", "partial_json"),
}
_ERRORS: Final[Mapping[int, str]] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the question of a request for a message. Raises ArgumentError."""
    if body.get("max_tokens") is None:
        raise ArgumentError("max_tokens is missing", "max_tokens", _MISSING)
    chat = {name: value for name, value in body.items() if name not in _DONE_HERE}
    chat["messages"] = _messages_of(body)
    chat["stop"] = body.get("stop_sequences")
    if body.get("tools"):
        chat["tools"] = _tools_of(body["tools"])
    chat |= _choice_of(body.get("tool_choice"))
    config = body.get("output_config") or {}
    form = config.get("format") if isinstance(config, Mapping) else None
    if isinstance(form := form or body.get("output_format"), Mapping):
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    try:
        return chat_questions(chat, model)._replace(body=body)
    except ArgumentError as error:
        raise error.renamed(_NAMES) from None


def reply_with_error(error: PipelineError | HttpError) -> WebResponse:
    """Return the answer to a request that ended in an error."""
    reply = reply_to(error)
    body = _error(orjson.loads(reply.body)["error"], reply.status)
    return msgspec.structs.replace(reply, body=orjson.dumps(body))


class MessageWriter:
    """Writer of messages, whose streams are events with names.

    Args:
        model_id: as the caller knows it.
        questions: of the request.
    """

    is_short: bool = True

    def __init__(self, model_id: str, questions: Questions) -> None:
        self._stops = questions.stops
        self._output = Output()
        self._has_begun: bool = False
        self._message: Event = {
            "id": f"msg_{os.urandom(16).hex()}",
            "type": "message",
            "role": "assistant",
            "model": model_id,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }

    def is_short_part(self, choice: Choice, payload: Mapping[str, Any]) -> bool:
        """Return True: no event repeats another."""
        return True

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the message. Raises PipelineError: a tool's arguments are not JSON."""
        ((choice, whole),) = choices
        exhaust(self._output.take(whole))
        content = [_block(item) for item in self._output.items]
        return as_json({**self._message, "content": content, **self._ended(choice)})

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return the events of one delta."""
        return self._events(self._output.take(delta))

    def end(self, choice: Choice) -> bytes:
        """Return the events that end the blocks, and the reason why the message has ended."""
        ended = self._ended(choice)
        delta = {"delta": {name: ended[name] for name in ("stop_reason", "stop_sequence")}}
        events = self._events(self._output.end())
        return events + _event("message_delta", {**delta, "usage": ended["usage"]})

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the event of the end."""
        return _event("message_stop", {})

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error."""
        status = reply_to(error).status
        return _event("error", _error(error_of(error), status))

    def _events(self, changes: Iterable[ItemChange]) -> bytes:
        """Return the events of changes."""
        events = b"" if self._has_begun else _event("message_start", {"message": self._message})
        self._has_begun = True
        for act, item, text, _ in changes:
            place = {"index": item.index}
            if act == "begin":
                events += _event("content_block_start", {**place, "content_block": _block(item)})
            elif act == "grow":
                kind, key = _DELTAS[item.kind]
                events += _event(
                    "content_block_delta", {**place, "delta": {"type": kind, key: text}}
                )
            else:
                events += _event("content_block_stop", place)
        return events

    def _ended(self, choice: Choice) -> Event:
        """Return why the message has ended, and its counts."""
        counts = usage_of([choice.counts])
        reason = _REASONS.get(choice.reason, "end_turn")
        stop = None
        if choice.is_cut:
            reason, stop = "stop_sequence", self._stops[0] if len(self._stops) == 1 else None
        usage = {
            "input_tokens": counts["prompt_tokens"],
            "output_tokens": counts["completion_tokens"],
        }
        return {"stop_reason": reason, "stop_sequence": stop, "usage": usage}


def _event(kind: str, fields: Event) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), as_json({"type": kind, **fields}))


def _error(error: Mapping[str, Any], status: int) -> Event:
    """Return an error in Anthropic's form, with OpenAI's `param` and `code` added."""
    usual = "api_error" if status >= 500 else "invalid_request_error"
    fields = {"type": _ERRORS.get(status, usual), "message": error["message"]}
    return {"type": "error", "error": {**fields, "param": error["param"], "code": error["code"]}}


def _block(item: OutputItem) -> Event:
    """Return an item as a block, with its content up to now."""
    if item.kind == "reasoning_content":
        return {"type": "thinking", "thinking": item.text, "signature": ""}
    if item.kind in ("text", "refusal"):
        return {"type": "text", "text": item.text}
    try:
        arguments = read_object(item.text.encode()) if item.text else {}
    except PackageError as error:
        text = f"the arguments of tool {item.name!r} are not a JSON object: {error}"
        raise PayloadTypeError(text) from None
    return {"type": "tool_use", "id": item.call_id, "name": item.name, "input": arguments}


def _messages_of(body: Fields) -> list[Fields]:
    """Return the messages of a chat. Raises ArgumentError."""
    chat: list[Fields] = []
    if (system := body.get("system")) is not None:
        chat.append({"role": "system", "content": _content(system, "system")})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ArgumentError("messages must be a list with at least one message", "messages")
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant", "system"):
            raise ArgumentError(f"{where}.role must be user or assistant", f"{where}.role")
        chat += _turns(role, message.get("content"), f"{where}.content")
    return chat


def _turns(role: str, content: Any, where: str) -> list[Fields]:
    """Return a message as messages of a chat: each tool result becomes a message of its own."""
    if not isinstance(content, list):
        return [{"role": role, "content": _content(content, where)}]
    chat: list[Fields] = []
    calls, parts = [], []
    for at, block in enumerate(content):
        place = f"{where}[{at}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "tool_use":
            function = {"name": text_at(f"{place}.name", block.get("name"))}
            try:
                function["arguments"] = orjson.dumps(block.get("input") or {}).decode()
            except TypeError as error:
                raise ArgumentError(f"{place}.input cannot be passed on: {error}", place) from None
            call_id = text_at(f"{place}.id", block.get("id"))
            calls.append({"id": call_id, "type": "function", "function": function})
        elif kind == "tool_result":
            reference = {"tool_call_id": text_at(f"{place}.tool_use_id", block.get("tool_use_id"))}
            text = _content(block.get("content") or "", f"{place}.content")
            chat.append({"role": "tool", **reference, "content": text})
        elif kind not in ("thinking", "redacted_thinking"):  # the model does not get its thoughts
            parts.append(_part(block, place))
    if parts or calls:
        text = _joined(parts) if parts else None
        chat.append({"role": role, "content": text, **({"tool_calls": calls} if calls else {})})
    return chat


def _content(content: Any, where: str) -> Any:
    """Return a text, or blocks as the parts of a chat message."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(where, "text, or a list of blocks", content)
    return _joined([_part(block, f"{where}[{at}]") for at, block in enumerate(content)])


def _joined(parts: Sequence[Fields]) -> Any:
    """Return parts as one text if all are texts, otherwise the parts."""
    is_text = all(part["type"] == "text" for part in parts)
    return "".join(part["text"] for part in parts) if is_text else parts


def _part(block: Any, where: str) -> Fields:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return {"type": "text", "text": text_at(f"{where}.text", block.get("text"))}
    source = block.get("source") if kind == "image" else None
    if isinstance(source, Mapping):
        url = source.get("url")
        if source.get("type") == "base64":
            data = text_at(f"{where}.source.data", source.get("data"))
            url = f"data:{source.get('media_type')};base64,{data}"
        return {"type": "image_url", "image_url": {"url": text_at(f"{where}.source.url", url)}}
    raise ArgumentError(f"{where} must be text or an image with its source", where)


def _tools_of(tools: Any) -> list[Fields]:
    if not isinstance(tools, list):
        raise wrong_type("tools", "a list", tools)
    functions = []
    for at, tool in enumerate(tools):
        where = f"tools[{at}]"
        if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
            raise ArgumentError(
                f"{where} must be a tool of the client: the server has no tools", where
            )
        about = {"name": text_at(f"{where}.name", tool.get("name"))}
        if tool.get("description") is not None:
            about["description"] = text_at(f"{where}.description", tool["description"])
        function = {**about, "parameters": tool.get("input_schema") or {"type": "object"}}
        functions.append({"type": "function", "function": function})
    return functions


def _choice_of(choice: Any) -> Fields:
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    arguments: Fields = {}
    if choice and kind == "tool":
        name = text_at("tool_choice.name", choice.get("name"))
        arguments["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif isinstance(kind, str) and kind in _CHOICES:
        arguments["tool_choice"] = _CHOICES[kind]
    else:
        where = "tool_choice.type"
        raise ArgumentError(f"{where} must be auto, any, tool or none", where)
    if choice.get("disable_parallel_tool_use"):
        arguments["parallel_tool_calls"] = False
    return arguments
