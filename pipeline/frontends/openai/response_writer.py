"""ResponseWriter: a chat's answer as a response, or as the events of one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.frontends.openai.answers import Choice, as_json, usage_of
from pipeline.frontends.openai.errors import error_of
from pipeline.frontends.openai.output import TEXTS, ItemChange, Output, OutputItem, exhaust
from pipeline.frontends.openai.questions import Questions
from pipeline.frontends.openai.responses import (
    ECHOED,
    KeptResponse,
    KeptResponses,
    input_messages,
    messages_of,
)
from pipeline.openai import Delta
from pipeline.proto.slices import SHORT_BYTES

Event = dict[str, Any]

_TYPES: Final[Mapping[str, tuple[str, str, str]]] = {  # by kind: type and id of items, of events
    "reasoning_content": ("reasoning", "rs", "reasoning_text"),
    "text": ("message", "msg", "output_text"),
    "refusal": ("message", "msg", "refusal"),
    "function": ("function_call", "fc", "function_call_arguments"),
    "custom": ("custom_tool_call", "ctc", "custom_tool_call_input"),
}
_WRITTEN = {"function": "arguments", "custom": "input"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseWriter:
    """Writer of responses, whose streams are events with names and numbers.

    Source: OpenAI's API reference, "The response object" and "Streaming events".

    Args:
        kept: stores responses.
        model_id: as the client knows it.
        questions: of the request.
    """

    def __init__(self, kept: KeptResponses, model_id: str, questions: Questions) -> None:
        self._kept = kept
        self._body = questions.body
        self._is_large = questions.is_large
        self._output = Output()
        self._number = 0
        settings = {name: value for name, value in self._body.items() if value is not None}
        self._is_kept: bool = bool(kept.most) and settings.get("store") is not False
        self._previous = kept.messages_before(self._body) if self._is_kept else ()
        self._response: Event = {
            "id": f"resp_{os.urandom(16).hex()}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model_id,
            "output": [],
            "store": self._is_kept,
            "usage": None,
            **{name: settings.get(name, usual) for name, usual in ECHOED.items()},
        }

    @property
    def is_short(self) -> bool:
        """Return whether the texts and the request, whose settings it repeats, are short."""
        return self._output.size < SHORT_BYTES and not self._is_large

    def is_short_part(self, choice: Choice, payload: Mapping[str, Any]) -> bool:
        """Return whether the texts are short, or the part only makes the last one longer."""
        return self._output.size < SHORT_BYTES or self._output.grows_by(choice.kinds_of(payload))

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the response."""
        ((choice, whole),) = choices
        exhaust(self._output.take(whole))
        exhaust(self._output.end())
        return self._ended(choice)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return the events of one delta."""
        return self._events(self._output.take(delta))

    def end(self, choice: Choice) -> bytes:
        """Return the events that end the texts and calls."""
        return self._events(self._output.end())

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the event with the response."""
        self._ended(choices[0])
        return self._event(self._response["status"], {"response": self._response})

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error; its key `error` makes clients raise it."""
        error_fields = error_of(error)
        fields = {name: error_fields[name] for name in ("code", "message", "param")}
        return self._named("error", {**fields, "error": error_fields})

    def _event(self, name: str, fields: Event) -> bytes:
        return self._named(f"response.{name}", fields)

    def _named(self, kind: str, fields: Event) -> bytes:
        body = as_json({"type": kind, **fields, "sequence_number": self._number})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), body)

    def _begun(self) -> bytes:
        """Return the first two events of a stream, once."""
        if self._number:
            return b""
        fields = {"response": self._response}
        return self._event("created", fields) + self._event("in_progress", fields)

    def _events(self, changes: Iterable[ItemChange]) -> bytes:
        """Return the events of changes."""
        events = self._begun()
        for change in changes:
            item = change.item
            place = {"item_id": _id_of(item), "output_index": item.index}
            is_text = item.kind in TEXTS
            if is_text:
                place["content_index"] = 0
            if change.act == "begin":
                added = {"output_index": item.index, "item": _item(item)}
                events += self._event("output_item.added", added)
                if is_text:
                    events += self._event("content_part.added", {**place, "part": _part(item)})
            elif change.act == "grow":
                more = {"logprobs": change.logprobs} if item.kind == "text" else {}
                name = f"{_TYPES[item.kind][2]}.delta"
                events += self._event(name, {**place, "delta": change.text, **more})
            else:
                events += self._end_events(item, place)
        return events

    def _end_events(self, item: OutputItem, place: Event) -> bytes:
        if item.kind in TEXTS:
            part = _part(item)
            names = ("text", "refusal", "logprobs")
            done: Event = {name: part[name] for name in names if name in part}
        else:
            done = {_WRITTEN[item.kind]: item.text, "name": item.name}
        events = self._event(f"{_TYPES[item.kind][2]}.done", {**place, **done})
        if item.kind in TEXTS:
            events += self._event("content_part.done", {**place, "part": part})
        ended = {"output_index": item.index, "item": _item(item)}
        return events + self._event("output_item.done", ended)

    def _ended(self, choice: Choice) -> bytes:
        """Return the complete response, and store it."""
        counts = usage_of([choice.counts])
        reason = _INCOMPLETE.get(choice.reason)
        self._response |= {
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [_item(item) for item in self._output.items],
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {
                    "cached_tokens": 0,
                    **counts.get("prompt_tokens_details", {}),
                },
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {
                    "reasoning_tokens": 0,
                    **counts.get("completion_tokens_details", {}),
                },
                "total_tokens": counts["total_tokens"],
            },
        }
        body = as_json(self._response)
        if self._is_kept:
            input_ = input_messages(self._body.get("input"))
            messages = [*self._previous, *input_, *messages_of(self._response["output"])]
            self._kept.add(self._response["id"], KeptResponse(body, messages))
        return body


def _id_of(item: OutputItem) -> str:
    return f"{_TYPES[item.kind][1]}_{item.id}"


def _part(item: OutputItem) -> Event:
    """Return a text as a content part, with its text up to now."""
    kind = _TYPES[item.kind][2]
    part: Event = {"type": kind, "refusal" if kind == "refusal" else "text": item.text}
    if kind == "output_text":
        part |= {"annotations": item.annotations, "logprobs": item.logprobs}
    return part


def _item(item: OutputItem) -> Event:
    """Return an item in the API's form; a new one is empty."""
    fields: Event = {"id": _id_of(item), "type": _TYPES[item.kind][0]}
    status = {"status": "in_progress" if item.is_open else "completed"}
    if item.kind not in TEXTS:
        call = {"call_id": item.call_id, "name": item.name, _WRITTEN[item.kind]: item.text}
        return {**fields, **status, **call}
    content = {"content": [] if item.is_open else [_part(item)]}
    if item.kind == "reasoning_content":
        return {**fields, "summary": [], **content}
    return {**fields, **status, "role": "assistant", **content}
