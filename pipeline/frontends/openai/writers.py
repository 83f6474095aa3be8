"""Writers of what choices say: the objects and the events of one API."""

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
    """Writer of what one request is answered with, in the form of one API.

    A stream is `part`s of its choices, side by side, an `end` of each and `last`; b"" writes
    nothing. Whatever comes before the first part, the first call writes.
    """

    @property
    def is_short(self) -> bool:
        """Return whether `end` and `last` take no longer than a part: they may say all again."""

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the one answer that has these choices. Raises PayloadTypeError."""

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return the events that tell more of a choice. Raises PayloadTypeError."""

    def end(self, choice: Choice) -> bytes:
        """Return the events that say why a choice has ended."""

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the events behind all choices."""

    def error(self, error: PipelineError) -> bytes:
        """Return the event of an error behind the first part, which ends the stream."""


class ChunkWriter:
    """Base of the writers of chats and completions, which have chunks, and counts behind them.

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

    def last(self, choices: Sequence[Choice]) -> bytes:
        """Return the chunk with the counts, if it is asked for, and the end."""
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
        return usage_of([choice.counts for choice in choices], self._questions.each)

    def _whole(self, choices: Sequence[Choice], said: Sequence[Mapping[str, Any]]) -> bytes:
        usage = self._usage(choices)
        return as_json({**self._head, "object": self.kind, "choices": said, "usage": usage})

    def _chunk(self, choices: Sequence[Mapping[str, Any]], **more: Any) -> bytes:
        said = {**self._head, "object": self.chunk_kind, "choices": choices, **more}
        return event(as_json(said))


class ChatWriter(ChunkWriter):
    """Writer of chats.

    Source: OpenAI's API reference, `chat.completion` and `chat.completion.chunk`.
    """

    id_head = "chatcmpl"
    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, model_id: str, questions: Questions) -> None:
        super().__init__(model_id, questions)
        self._begun: dict[int, bytes] = {}  # by index: how a chunk with text alone begins

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the completion."""
        said = []
        for choice, whole in choices:
            told = _in_chat(whole)
            content = told.pop("content", None if told else "")
            message = {"role": "assistant", "content": content, "refusal": None, **told}
            ended = {"logprobs": _logprobs_of(whole), "finish_reason": choice.reason}
            said.append({"index": choice.index, "message": message, **ended})
        return self._whole([choice for choice, _ in choices], said)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return a chunk."""
        begin = self._begun.get(choice.index)
        if begin and len(delta) == 1 and "text" in delta:  # as nearly always
            return begin + orjson.dumps(delta["text"]) + _TEXT_TAIL
        return self._said(choice, _in_chat(delta), _logprobs_of(delta), None)

    def end(self, choice: Choice) -> bytes:
        """Return the chunk that says why a choice has ended."""
        return self._said(choice, {}, None, choice.reason)

    def _said(
        self, choice: Choice, said: Mapping[str, Any], logprobs: Any, reason: str | None
    ) -> bytes:
        index, first = choice.index, b""
        if index not in self._begun:  # it says who speaks, once
            head = orjson.dumps({**self._head, "object": self.chunk_kind})[:-1]
            begin = b'data: %s,"choices":[{"index":%d,"delta":{"content":' % (head, index)
            self._begun[index] = begin
            who = {"role": "assistant"}
            if said.keys() <= {"content"} and logprobs is None:
                said = {**who, **said}
            else:  # in a chunk of its own: the official client counts log probabilities there twice
                none = {"logprobs": None, "finish_reason": None}
                first = self._chunk([{"index": index, "delta": {**who, "content": ""}, **none}])
        ended = {"logprobs": logprobs, "finish_reason": reason}
        return first + self._chunk([{"index": index, "delta": said, **ended}])


class CompletionWriter(ChunkWriter):
    """Writer of completions, which are text and log probabilities alone.

    Source: OpenAI's API reference, `text_completion`.
    """

    id_head = "cmpl"
    kind = chunk_kind = "text_completion"

    def __init__(self, model_id: str, questions: Questions) -> None:
        super().__init__(model_id, questions)
        self._offsets: dict[int, int] = {}  # by index: characters of the tokens that were told

    def whole(self, choices: Sequence[tuple[Choice, Delta]]) -> bytes:
        """Return the completion."""
        said = [
            {**self._said(choice, whole), "finish_reason": choice.reason}
            for choice, whole in choices
        ]
        return self._whole([choice for choice, _ in choices], said)

    def part(self, choice: Choice, delta: Delta) -> bytes:
        """Return a chunk."""
        if "text" not in delta and "logprobs" not in delta:
            return b""
        return self._chunk([{**self._said(choice, delta), "finish_reason": None}])

    def end(self, choice: Choice) -> bytes:
        """Return the chunk that says why a choice has ended."""
        return self._chunk([{**self._said(choice, {}), "finish_reason": choice.reason}])

    def _said(self, choice: Choice, delta: Delta) -> dict[str, Any]:
        logprobs = self._logprobs(choice.index, delta.get("logprobs"))
        return {"index": choice.index, "text": delta.get("text", ""), "logprobs": logprobs}

    def _logprobs(self, index: int, tokens: Sequence[Any] | None) -> dict[str, Any] | None:
        """Return the older form: a list of each kind for all tokens."""
        if tokens is None:
            return None
        offsets, at = [], self._offsets.get(index, 0)
        for token in tokens:
            offsets.append(at)
            at += len(token["token"])
        self._offsets[index] = at
        tops = [{top["token"]: top["logprob"] for top in each["top_logprobs"]} for each in tokens]
        return {
            "tokens": [each["token"] for each in tokens],
            "token_logprobs": [each["logprob"] for each in tokens],
            "top_logprobs": tops,
            "text_offset": offsets,
        }


def event(body: bytes) -> bytes:
    """Return an event without a name."""
    return b"data: %s\n\n" % body


def _in_chat(delta: Delta) -> dict[str, Any]:
    """Return what is said as a message has it."""
    told: dict[str, Any] = {**delta}
    told.pop("logprobs", None)
    if "text" in told:
        told = {"content": told.pop("text"), **told}
    return told


def _logprobs_of(delta: Delta) -> dict[str, Any] | None:
    return {"content": delta["logprobs"], "refusal": None} if "logprobs" in delta else None
