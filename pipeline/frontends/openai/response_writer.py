"""ResponseWriter: what a chat says, as responses and as the events of one."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.errors import PipelineError
from pipeline.frontends.openai.answers import Choice, as_json, usage_of
from pipeline.frontends.openai.errors import error_of
from pipeline.frontends.openai.questions import Questions
from pipeline.frontends.openai.responses import (
    KeptResponse,
    KeptResponses,
    input_messages,
    messages_of,
)
from pipeline.openai import Delta

Event = dict[str, Any]

_PARTS: Final[Mapping[str, tuple[str, str, str]]] = {  # type of the item, of its part, key of that
    "reasoning_content": ("reasoning", "reasoning_text", "text"),
    "text": ("message", "output_text", "text"),
    "refusal": ("message", "refusal", "refusal"),
}
_CALLS: Final[Mapping[str, tuple[str, str, str]]] = {  # type of the item, its key, and its events
    "function": ("function_call", "arguments", "function_call_arguments"),
    "custom": ("custom_tool_call", "input", "custom_tool_call_input"),
}
_IDS = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc"}
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_ECHOED: Final[Mapping[str, Any]] = {
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


class _Item:
    """An item of the output that grows: a text of one kind, or a call of a tool."""

    def __init__(self, kind: str, index: int, said: Mapping[str, Any]) -> None:
        self.kind = kind
        self.index = index
        self.pieces: list[str] = []
        self.logprobs: list[Any] = []
        self.annotations: list[Any] = []
        self.is_open: bool = True
        item_type = (_PARTS.get(kind) or _CALLS[kind])[0]
        self._said = {"id": f"{_IDS[item_type]}_{os.urandom(16).hex()}", "type": item_type, **said}

    @property
    def place(self) -> Event:
        """Return where its events say that it is."""
        return {"item_id": self._said["id"], "output_index": self.index}

    @property
    def part(self) -> Event:
        """Return the part that a text is, as far as it is there."""
        _, part_type, key = _PARTS[self.kind]
        told: Event = {"type": part_type, key: "".join(self.pieces)}
        if part_type == "output_text":
            told |= {"annotations": self.annotations, "logprobs": self.logprobs}
        return told

    def told(self, is_new: bool = False) -> Event:
        """Return the item; one that is new has nothing in it."""
        status = {"status": "in_progress" if is_new else "completed"}
        if self.kind in _CALLS:
            written = {_CALLS[self.kind][1]: "".join(self.pieces)}
            return {**self._said, **status, **written}
        about: Event = (
            {"summary": []} if self.kind == "reasoning_content" else {"role": "assistant"}
        )
        if self.kind == "reasoning_content":
            status = {}
        return {**self._said, **status, **about, "content": [] if is_new else [self.part]}


class ResponseWriter:
    """Writer of responses, whose streams are events with names and numbers.

    A text ends where something of another kind begins; calls of tools, which may grow side by
    side, end with the response. Source: OpenAI's API reference, "The response object" and
    "Streaming events".

    Args:
        kept: gets the responses that are to be kept.
        model_id: as the caller knows it.
        questions: of the request.
    """

    def __init__(self, kept: KeptResponses, model_id: str, questions: Questions) -> None:
        self._kept = kept
        self._body = questions.body
        self._items: list[_Item] = []
        self._calls: dict[int, _Item] = {}
        self._number = 0
        given = {name: value for name, value in self._body.items() if value is not None}
        self._is_kept: bool = bool(kept.most) and given.get("store") is not False
        self._before = kept.messages_before(self._body) if self._is_kept else ()
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
            **{name: given.get(name, usual) for name, usual in _ECHOED.items()},
        }

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the response."""
        ((choice, whole),) = choices
        for _ in self._taken(whole):
            pass
        return self._ended(choice)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return the events that tell more."""
        return self._begun() + b"".join(map(self._event, self._taken(delta)))

    def end(self, choice: Choice) -> bytes:
        """Return the events that say that the texts and calls are whole."""
        events = (event for item in self._items for event in self._closed(item))
        return self._begun() + b"".join(map(self._event, events))

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the event with the response."""
        self._ended(choices[0])
        kind = f"response.{self._response['status']}"
        return self._event({"type": kind, "response": self._response})

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error: clients raise it for the key `error`."""
        said = error_of(error)
        told = {name: said[name] for name in ("code", "message", "param")}
        return self._event({"type": "error", **told, "error": said})

    def _event(self, said: Event) -> bytes:
        told = as_json({**said, "sequence_number": self._number})
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (said["type"].encode(), told)

    def _begun(self) -> bytes:
        """Return the events before all others, once."""
        if self._number:
            return b""
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._event({"type": kind, "response": self._response}) for kind in kinds)

    def _taken(self, delta: Delta) -> Iterator[Event]:
        """Take more of what is said; yield its events."""
        for kind in _PARTS:
            if text := delta.get(kind):
                yield from self._text(kind, str(text), delta)
        for at, call in enumerate(delta.get("tool_calls", ())):
            yield from self._call({"index": at, **call})

    def _text(self, kind: str, text: str, delta: Delta) -> Iterator[Event]:
        item = self._items[-1] if self._items else None
        _, part_type, _ = _PARTS[kind]
        if item is None or item.kind != kind:
            item = yield from self._opened(kind, {})
            part = {"content_index": 0, "part": item.part}
            yield {"type": "response.content_part.added", **item.place, **part}
        item.pieces.append(text)
        told: Event = {"content_index": 0, "delta": text}
        if kind == "text":
            told["logprobs"] = delta.get("logprobs", [])
            item.logprobs += told["logprobs"]
            item.annotations += delta.get("annotations", ())
        yield {"type": f"response.{part_type}.delta", **item.place, **told}

    def _call(self, call: Mapping[str, Any]) -> Iterator[Event]:
        index = call["index"]
        if (item := self._calls.get(index)) is None:
            kind = call["type"]
            said = {"call_id": call["id"], "name": call[kind]["name"]}
            self._calls[index] = item = yield from self._opened(kind, said)
        _, key, events = _CALLS[item.kind]
        if text := call[item.kind].get(key):
            item.pieces.append(text)
            yield {"type": f"response.{events}.delta", **item.place, "delta": text}

    def _opened(self, kind: str, said: Mapping[str, Any]) -> Generator[Event, None, _Item]:
        """Begin an item, and return it; the text before it has ended."""
        if self._items and self._items[-1].kind in _PARTS:
            yield from self._closed(self._items[-1])
        self._items.append(item := _Item(kind, len(self._items), said))
        added = {"output_index": item.index, "item": item.told(is_new=True)}
        yield {"type": "response.output_item.added", **added}
        return item

    def _closed(self, item: _Item) -> Iterator[Event]:
        """Yield the events of an item's end, unless it has ended."""
        if not item.is_open:
            return
        item.is_open = False
        if item.kind in _CALLS:
            _, key, events = _CALLS[item.kind]
            told = item.told()
            done = {key: told[key], "name": told["name"]}
            yield {"type": f"response.{events}.done", **item.place, **done}
        else:
            part = item.part
            done = {name: part[name] for name in ("text", "refusal", "logprobs") if name in part}
            where = {**item.place, "content_index": 0}
            yield {"type": f"response.{part['type']}.done", **where, **done}
            yield {"type": "response.content_part.done", **where, "part": part}
        ended = {"output_index": item.index, "item": item.told()}
        yield {"type": "response.output_item.done", **ended}

    def _ended(self, choice: Choice) -> bytes:
        """Return the response, now that it is whole, and keep it."""
        counts = usage_of([choice.counts])
        reason = _INCOMPLETE.get(choice.reason)
        self._response |= {
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "output": [item.told() for item in self._items],
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
            messages = [*self._before, *input_, *messages_of(self._response["output"])]
            self._kept.add(self._response["id"], KeptResponse(body, messages))
        return body
