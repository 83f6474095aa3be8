"""Writers of answers and events in the form of one API."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import orjson

from pipeline.errors import PipelineError
from pipeline.frontends.openai.answers import Choice, as_json, usage_of
from pipeline.frontends.openai.errors import error_body
from pipeline.frontends.openai.questions import Questions
from pipeline.openai import Delta

_TEXT_TAIL = b'},"logprobs":null,"finish_reason":null}]}\n\n'


class Writer(Protocol):
    """Writer of one request's answer in the form of one API.

    A stream is the `part`s of its choices, interleaved, an `end` for each choice, and `last`; b""
    writes nothing. The first call also writes what precedes the first part.
    """

    @property
    def is_short(self) -> bool:
        """Return whether the events around the parts take no longer than a part.

        Some repeat the request or the answer.
        """

    def is_short_part(self, choice: Choice, payload: Mapping[str, Any]) -> bool:
        """Return whether the events of a short part are short.

        Some parts begin an item, and the event before it repeats the whole last one.
        """

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the answer with all choices. Raises PayloadTypeError."""

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return the events of one delta of a choice. Raises PayloadTypeError."""

    def end(self, choice: Choice) -> bytes:
        """Return the events that end a choice."""

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the events after all choices."""

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error after the first part; it ends the stream."""


class ChunkWriter:
    """Base of the writers of chats and completions: chunks, then the token counts.

    Args:
        model_id: as the caller knows it.
        questions: of the request.
    """

    id_head: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]
    is_short: bool = True

    def __init__(self, model_id: str, questions: Questions) -> None:
        self._questions = questions
        self._head = {
            "id": f"{self.id_head}-{os.urandom(16).hex()}",
            "created": int(time.time()),
            "model": model_id,
        }

    def is_short_part(self, choice: Choice, payload: Mapping[str, Any]) -> bool:
        """Return True: no event repeats another."""
        return True

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the chunk with the counts, if the client asked for it, and the end."""
        done = b"data: [DONE]\n\n"
        return (
            self._chunk([], usage=self._usage(choices)) + done
            if self._questions.has_usage
            else done
        )

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error."""
        return event(error_body(error))

    def _usage(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return usage_of([choice.counts for choice in choices], self._questions.choices)

    def _whole(self, choices: Sequence[Choice], written: Sequence[Mapping[str, Any]]) -> bytes:
        usage = self._usage(choices)
        return as_json({**self._head, "object": self.kind, "choices": written, "usage": usage})

    def _chunk(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
        return event(as_json({**self._head, "object": self.chunk_kind, "choices": choices, **more}))


class ChatWriter(ChunkWriter):
    """Writer of chats.

    Source: OpenAI's API reference, `chat.completion` and `chat.completion.chunk`.
    """

    id_head = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, model_id: str, questions: Questions) -> None:
        super().__init__(model_id, questions)
        self._begun: dict[int, bytes] = {}  # by index: the beginning of a chunk with only text

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the completion."""
        written = []
        for choice, whole in choices:
            delta = _in_chat(whole)
            content = delta.pop("content", None if delta else "")
            message = {"role": "assistant", "content": content, "refusal": None, **delta}
            ended = {"logprobs": _logprobs_of(whole), "finish_reason": choice.reason}
            written.append({"index": choice.index, "message": message, **ended})
        return self._whole([choice for choice, _ in choices], written)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return a chunk."""
        begin = self._begun.get(choice.index)
        if begin and len(delta) == 1 and "text" in delta:  # the common case
            return begin + orjson.dumps(delta["text"]) + _TEXT_TAIL
        return self._delta_chunk(choice, _in_chat(delta), _logprobs_of(delta), None)

    def end(self, choice: Choice) -> bytes:
        """Return the chunk that says why a choice has ended."""
        return self._delta_chunk(choice, {}, None, choice.reason)

    def _delta_chunk(
        self, choice: Choice, delta: Mapping[str, Any], logprobs: Any, reason: str | None
    ) -> bytes:
        index, first = choice.index, b""
        if index not in self._begun:  # the first chunk of a choice has the role
            head = orjson.dumps({**self._head, "object": self.chunk_kind})[:-1]
            begin = b'data: %s,"choices":[{"index":%d,"delta":{"content":' % (head, index)
            self._begun[index] = begin
            role = {"role": "assistant"}
            if delta.keys() <= {"content"} and logprobs is None:
                delta = {**role, **delta}
            else:  # the role in its own chunk: with it the official client counts logprobs twice
                nothing = {"logprobs": None, "finish_reason": None}
                first = self._chunk([{"index": index, "delta": {**role, "content": ""}, **nothing}])
        ended = {"logprobs": logprobs, "finish_reason": reason}
        return first + self._chunk([{"index": index, "delta": delta, **ended}])


class CompletionWriter(ChunkWriter):
    """Writer of completions, which have only text and log probabilities.

    Source: OpenAI's API reference, `text_completion`.
    """

    id_head = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(self, model_id: str, questions: Questions) -> None:
        super().__init__(model_id, questions)
        self._offsets: dict[int, int] = {}  # by index: characters of the tokens that were sent

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the completion."""
        written = [
            {**self._fields(choice, whole), "finish_reason": choice.reason}
            for choice, whole in choices
        ]
        return self._whole([choice for choice, _ in choices], written)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return a chunk."""
        if "text" not in delta and "logprobs" not in delta:
            return b""
        return self._chunk([{**self._fields(choice, delta), "finish_reason": None}])

    def end(self, choice: Choice) -> bytes:
        """Return the chunk that says why a choice has ended."""
        return self._chunk([{**self._fields(choice, {}), "finish_reason": choice.reason}])

    def _fields(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        logprobs = self._logprobs(choice.index, delta.get("logprobs"))
        return {"index": choice.index, "text": delta.get("text", ""), "logprobs": logprobs}

    def _logprobs(self, index: int, tokens: Sequence[Any] | None) -> dict[str, Any] | None:
        """Return the older form: one list for each kind of value."""
        if tokens is None:
            return None
        offsets, at = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(at)
            at += len(token["token"])
        self._offsets[index] = at
        return {
            "tokens": [token["token"] for token in tokens],
            "token_logprobs": [token["logprob"] for token in tokens],
            "top_logprobs": [
                {top["token"]: top["logprob"] for top in token["top_logprobs"]} for token in tokens
            ],
            "text_offset": offsets,
        }


def event(body: bytes) -> bytes:
    """Return an event without a name."""
    return b"data: %s\n\n" % body


def _in_chat(delta: Delta) -> dict[str, Any]:
    """Return a delta with the keys of a chat message."""
    fields: dict[str, Any] = {**delta}
    fields.pop("logprobs", None)
    if "text" in fields:
        fields = {"content": fields.pop("text"), **fields}
    return fields


def _logprobs_of(delta: Delta) -> dict[str, Any] | None:
    return {"content": delta["logprobs"], "refusal": None} if "logprobs" in delta else None
