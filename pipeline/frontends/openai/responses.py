"""Responses: requests for `/v1/responses` as chats, and the responses that are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.engine.streams.combine import size_of
from pipeline.frontends.openai.arguments import Fields
from pipeline.frontends.openai.errors import ArgumentError, text_at, wrong_type
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import Questions, chat_questions

_DONE_HERE = frozenset(
    (
        *("input", "instructions", "tools", "tool_choice", "text", "reasoning", "include"),
        *("max_output_tokens", "previous_response_id", "stream_options", "truncation"),
        *("max_tool_calls", "n", "best_of", "messages", "background", "conversation", "prompt"),
        *("context_management", "prompt_cache_retention"),
    )
)
_NOT_HERE = ("background", "conversation", "prompt")
_NAMES = {  # of what chats have another name for
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    ".function": "",
    ".custom": "",
}
_UNSUPPORTED = "unsupported_parameter"
_LOGPROBS = "message.output_text.logprobs"
_SPEAKERS = ("user", "assistant", "system", "developer")


class KeptResponse(NamedTuple):
    """A response that is kept: its JSON, and all messages of the chat it belongs to."""

    body: bytes
    messages: Sequence[Fields]

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return len(self.body) + size_of(self.messages)


class KeptResponses:
    """Responses by their ids, up to a number of them and of bytes; the oldest go first.

    Args:
        most: that are kept; 0: none.
        most_bytes: of all of them.
    """

    def __init__(self, most: int, most_bytes: int = 256 << 20) -> None:
        self.most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, tuple[KeptResponse, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def add(self, response_id: str, kept: KeptResponse) -> None:
        """Keep a response."""
        size = kept.size
        with self._lock:
            self._kept[response_id] = (kept, size)
            self._size += size
            while len(self._kept) > self.most or self._size > self._most_bytes:
                self._size -= self._kept.popitem(last=False)[1][1]

    def find(self, response_id: str, param: str | None = None) -> KeptResponse:
        """Return a response. Raises ArgumentError: it is not there; `param` named it."""
        if (found := self._kept.get(response_id)) is not None:
            return found[0]
        why = "" if self.most else ": none are kept here, see `stored_responses`"
        reason, status = ("previous_response_not_found", 400) if param else ("not_found", 404)
        text = f"there is no response {response_id[:100]!r}{why}"
        raise ArgumentError(text, param, reason, status)

    def remove(self, response_id: str) -> None:
        """Forget a response. Raises ArgumentError: it is not there."""
        with self._lock:
            self.find(response_id)
            self._size -= self._kept.pop(response_id)[1]

    def messages_before(self, body: Mapping[str, Any]) -> Sequence[Fields]:
        """Return what was said before a request. Raises ArgumentError."""
        name = "previous_response_id"
        if body.get(name) is None:
            return ()
        return self.find(text_at(name, body[name]), name).messages


class ResponseReader:
    """Reader of requests for responses, each of which is a chat.

    Source: OpenAI's API reference, "Create a model response".
    """

    def __init__(self, kept: KeptResponses) -> None:
        self._kept = kept

    def __call__(self, body: Fields, model: ModelOptions) -> Questions:
        """Return what a request asks. Raises ArgumentError."""
        for name in _NOT_HERE:
            if body.get(name):
                raise ArgumentError(f"{name} is not supported here", name, _UNSUPPORTED)
        chat = {name: value for name, value in body.items() if name not in _DONE_HERE}
        messages = [*self._kept.messages_before(body), *input_messages(body.get("input"))]
        if (instructions := body.get("instructions")) is not None:
            said = {"role": "system", "content": text_at("instructions", instructions)}
            messages = [said, *messages]
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
            return chat_questions(chat, model)._replace(body=body)
        except ArgumentError as error:
            raise error.renamed(_NAMES) from None


def input_messages(given: Any) -> list[Fields]:
    """Return the messages that an input is. Raises ArgumentError."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ArgumentError("input must be a text, or a list with at least one item", "input")
    return messages_of(given)


def messages_of(items: Sequence[Any]) -> list[Fields]:
    """Return the messages that items of an input or an output are. Raises ArgumentError."""
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
            said = messages[-1]
            messages[-1] = {**said, "tool_calls": [*said.get("tool_calls", ()), call]}
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind in ("function_call_output", "custom_tool_call_output"):
        told = {"tool_call_id": text_at(f"{where}.call_id", item.get("call_id"))}
        messages.append({"role": "tool", **told, "content": _content(item.get("output"), where)})
    elif kind != "reasoning":  # what the model thought before is not told again
        at = f"{where}.type"
        raise ArgumentError(f"{at} {str(kind)[:50]!r} is not supported here", at, _UNSUPPORTED)


def _call(item: Mapping[str, Any], kind: str, where: str) -> Fields:
    """Return a call of a tool as chats have it."""
    tool, written = ("function", "arguments") if kind == "function_call" else ("custom", "input")
    said = {name: text_at(f"{where}.{name}", item.get(name)) for name in ("name", written)}
    return {"id": text_at(f"{where}.call_id", item.get("call_id")), "type": tool, tool: said}


def _content(content: Any, where: str) -> Any:
    """Return the content of an item as chats have it: texts as one, others as parts."""
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
    """Return the tools as chats have them: what is described lies in an object of its own."""
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise wrong_type("tools", "a list", tools)
    found = []
    for at, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, Mapping) else None
        if kind not in ("function", "custom"):
            where = f"tools[{at}].type"
            raise ArgumentError(
                f"{where} must be function or custom: no others run here", where, _UNSUPPORTED
            )
        text_at(f"tools[{at}].name", tool.get("name"))
        about = {name: value for name, value in tool.items() if name != "type"}
        found.append({"type": kind, kind: about})
    return found


def _choice_of(body: Fields) -> Any:
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in ("function", "custom"):
        return {"type": choice["type"], choice["type"]: {"name": choice.get("name")}}
    return choice


def _format_of(body: Fields) -> Fields:
    """Return the form that the answer is to have, as chats ask for it."""
    text = _object(body, "text")
    form, found = text.get("format"), {}
    if form is not None:
        if not isinstance(form, Mapping):
            raise wrong_type("text.format", "an object", form)
        found["response_format"] = {"type": form.get("type")}
        if form.get("type") == "json_schema":
            schema = {name: value for name, value in form.items() if name != "type"}
            found["response_format"]["json_schema"] = schema
    if text.get("verbosity") is not None:
        found["verbosity"] = text["verbosity"]
    return found


def _object(body: Fields, name: str) -> Mapping[str, Any]:
    found = body.get(name)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise wrong_type(name, "an object", found)
    return found
