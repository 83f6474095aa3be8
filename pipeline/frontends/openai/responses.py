"""Responses: requests to `/v1/responses` become chats, and their responses are stored."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from pipeline.engine.streams.combine import size_of
from pipeline.frontends.openai.arguments import Fields
from pipeline.frontends.openai.errors import ArgumentError, text_at, wrong_type
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import Questions, chat_questions
from pipeline.proto.slices import SHORT_BYTES

_DONE_HERE = frozenset(
    (
        *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "include"),
        *("max_output_tokens", "previous_response_id", "stream_options", "truncation"),
        *("max_tool_calls", "n", "best_of", "messages", "background", "conversation", "prompt"),
        *("context_management", "prompt_cache_retention"),
    )
)
_NOT_HERE = ("background", "conversation", "prompt")
_NAMES = {  # names in this API, by their names in chats
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    ".function": "",
    ".custom": "",
}
ECHOED: Final[Mapping[str, Any]] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
"""Settings of a request that its response repeats, with their defaults."""

_PREVIOUS = "previous_response_id"
_UNSUPPORTED = "unsupported_parameter"
_LOGPROBS = "message.output_text.logprobs"
_SPEAKERS = ("user", "assistant", "system", "developer")


class KeptResponse(NamedTuple):
    """A stored response: its JSON, and all messages of its chat."""

    body: bytes
    messages: Sequence[Fields]

    @property
    def size(self) -> int:
        """Return its size, about, in bytes."""
        return len(self.body) + size_of(self.messages)


class KeptResponses:
    """Stored responses by id; beyond a number or a size the oldest are dropped.

    Args:
        most: maximum number; 0: nothing is stored.
        most_bytes: maximum size of all of them.
    """

    def __init__(self, most: int, most_bytes: int = 256 << 20) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[KeptResponse, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, response_id: str, response: KeptResponse) -> None:
        """Keep a response."""
        size = response.size
        with self._lock:
            self._kept[response_id] = (response, size)
            self._size += size
            while len(self._kept) > self.most or self._size > self._most_bytes:
                self._size -= self._kept.popitem(last=False)[1][1]

    def find(self, response_id: str, param: str | None = None) -> KeptResponse:
        """Return a response. Raises ArgumentError: it is not stored; `param` named it."""
        if (entry := self._kept.get(response_id)) is not None:
            return entry[0]
        why = "" if self.most else ": none are kept here, see `stored_responses`"
        reason, status = ("previous_response_not_found", 400) if param else ("not_found", 404)
        text = f"there is no response {response_id[:100]!r}{why}"
        raise ArgumentError(text, param, reason, status)

    def remove(self, response_id: str) -> None:
        """Delete a response. Raises ArgumentError: it is not stored."""
        with self._lock:
            self.find(response_id)
            self._size -= self._kept.pop(response_id)[1]

    def is_large_before(self, body: Mapping[str, Any]) -> bool:
        """Return whether the messages of the previous response are too many for the event loop."""
        name = body.get(_PREVIOUS)
        entry = self._kept.get(name) if isinstance(name, str) else None
        return entry is not None and entry[1] > SHORT_BYTES

    def messages_before(self, body: Mapping[str, Any]) -> Sequence[Fields]:
        """Return the messages of the previous response. Raises ArgumentError."""
        if body.get(_PREVIOUS) is None:
            return ()
        return self.find(text_at(_PREVIOUS, body[_PREVIOUS]), _PREVIOUS).messages


class ResponseReader:
    """Reader of requests for responses, as chats.

    Source: OpenAI's API reference, "Create a model response".
    """

    def __init__(self, kept: KeptResponses) -> None:
        self._kept = kept

    def __call__(self, body: Fields, model: ModelOptions) -> Questions:
        """Return the question of a request. Raises ArgumentError."""
        for name in _NOT_HERE:
            if body.get(name):
                raise ArgumentError(f"{name} is not supported here", name, _UNSUPPORTED)
        chat = {name: value for name, value in body.items() if name not in _DONE_HERE}
        messages = [*self._kept.messages_before(body), *input_messages(body.get("input"))]
        if (instructions := body.get("instructions")) is not None:
            system = {"role": "system", "content": text_at("instructions", instructions)}
            messages = [system, *messages]
        chat["messages"] = messages
        chat["max_tokens"] = body.get("max_output_tokens")
        chat["tools"] = _tools_of(body)
        chat["tool_choice"] = _choice_of(body)
        chat |= _format_of(body)
        chat["reasoning_effort"] = _object(body, "reasoning").get("effort")
        include = body.get("include") or []
        if not isinstance(include, list):
            raise wrong_type("include", "a list", include)
        chat["logprobs"] = _LOGPROBS in include
        try:
            questions = chat_questions(chat, model)
        except ArgumentError as error:
            raise error.renamed(_NAMES) from None
        for name in ECHOED.keys() & body.keys():
            try:
                orjson.dumps(body[name])
            except TypeError as error:
                raise ArgumentError(f"{name} cannot be repeated: {error}", name) from None
        is_large = self._kept.is_large_before(body) or size_of(body) > SHORT_BYTES
        return questions._replace(body=body, is_large=is_large)


def input_messages(value: Any) -> list[Fields]:
    """Return an input as messages. Raises ArgumentError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        raise ArgumentError("input must be a text, or a list with at least one item", "input")
    return messages_of(value)


def messages_of(items: Sequence[Any]) -> list[Fields]:
    """Return the items of an input or an output as messages. Raises ArgumentError."""
    messages: list[Fields] = []
    for at, item in enumerate(items):
        _add(messages, item, f"input[{at}]")
    return messages


def _add(messages: list[Fields], item: Any, where: str) -> None:
    """Add an item of the input to the messages of a chat."""
    if not isinstance(item, Mapping):
        raise wrong_type(where, 'an object like {"role", "content"}', item)
    kind = item.get("type") or "message"
    if kind == "message":
        role = item.get("role")
        if role not in _SPEAKERS:
            at = f"{where}.role"
            raise ArgumentError(f"{at} must be one of {', '.join(_SPEAKERS)}", at)
        messages.append({"role": role, "content": _content(item.get("content"), where)})
    elif kind in ("function_call", "custom_tool_call"):
        call = _call(item, kind, where)
        if messages and messages[-1]["role"] == "assistant":
            last = messages[-1]
            messages[-1] = {**last, "tool_calls": [*last.get("tool_calls", ()), call]}
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        reference = {"tool_call_id": text_at(f"{where}.call_id", item.get("call_id"))}
        messages.append(
            {"role": "tool", **reference, "content": _content(item.get("output"), where)}
        )
    elif kind != "reasoning":  # the model does not get its earlier thoughts
        at = f"{where}.type"
        raise ArgumentError(f"{at} {str(kind)[:50]!r} is not supported here", at, _UNSUPPORTED)


def _call(item: Mapping[str, Any], kind: str, where: str) -> Fields:
    """Return a tool call in the form of chats."""
    tool, input_key = ("function", "arguments") if kind == "function_call" else ("custom", "input")
    function = {name: text_at(f"{where}.{name}", item.get(name)) for name in ("name", input_key)}
    return {"id": text_at(f"{where}.call_id", item.get("call_id")), "type": tool, tool: function}


def _content(content: Any, where: str) -> Any:
    """Return the content of an item in the form of chats: one text, or parts."""
    if isinstance(content, str):
        return content
    where = f"{where}.content"
    if not isinstance(content, list):
        raise wrong_type(where, "text, or a list of parts", content)
    parts = [_part(part, f"{where}[{at}]") for at, part in enumerate(content)]
    if all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: Any, where: str) -> Fields:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in ("input_text", "output_text", "text"):
        return {"type": "text", "text": text_at(f"{where}.text", part.get("text"))}
    if kind == "refusal":
        return {"type": "text", "text": text_at(f"{where}.refusal", part.get("refusal"))}
    if kind == "input_image":
        url = {"url": text_at(f"{where}.image_url", part.get("image_url"))}
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {**url, **detail}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        names = ("file_data", "file_id", "filename", "file_url")
        return {"type": "file", "file": {name: part[name] for name in names if part.get(name)}}
    raise ArgumentError(
        f"{where}.type must be input_text, input_image, input_audio, input_file or output_text",
        f"{where}.type",
    )


def _tools_of(body: Fields) -> list[Fields] | None:
    """Return the tools in the form of chats, where the description is an inner object."""
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise wrong_type("tools", "a list", tools)
    tools_of_chat = []
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind not in ("function", "custom"):
            where = f"tools[{at}].type"
            raise ArgumentError(
                f"{where} must be function or custom: the server has no tools", where, _UNSUPPORTED
            )
        text_at(f"tools[{at}].name", tool.get("name"))
        about = {name: value for name, value in tool.items() if name != "type"}
        tools_of_chat.append({"type": kind, kind: about})
    return tools_of_chat


def _choice_of(body: Fields) -> Any:
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom"):
        return {"type": choice["type"], choice["type"]: {"name": choice.get("name")}}
    return choice


def _format_of(body: Fields) -> Fields:
    """Return the requested form of the answer, with the names of chats."""
    text = _object(body, "text")
    form, arguments = text.get("format"), {}
    if form is not None:
        if not isinstance(form, Mapping):
            raise wrong_type("text.format", "an object", form)
        arguments["response_format"] = {"type": form.get("type")}
        if form.get("type") == "json_schema":
            schema = {name: value for name, value in form.items() if name != "type"}
            arguments["response_format"]["json_schema"] = schema
    if text.get("verbosity") is not None:
        arguments["verbosity"] = text["verbosity"]
    return arguments


def _object(body: Fields, name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong_type(name, "an object", value)
    return value
