"""Answers of pipelines as OpenAI's objects: completions, chunks of them, and embeddings."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from pipeline.errors import PayloadTypeError, utf8_text
from pipeline.frontends.openai.options import ModelOptions


class Cutter:
    """Cuts one text, which may come in parts, at the first of some texts.

    That is the one which is complete first, and of several that end at one place the longest: how
    the text comes in parts makes no difference.

    Args:
        stops: none of them is empty; without any, all is let through.

    Attributes:
        has_cut: one of them was there; nothing follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_cut: bool = False

    def take(self, text: str) -> str:
        """Return what is let through; what may be the beginning of a stop is held back."""
        if not self._stops:
            return text
        if self.has_cut:
            return ""
        text = self._held + text
        end = _cut_of(text, self._stops)
        self.has_cut = end is not None
        if end is None:
            end = len(text) - max(_begun(text, stop) for stop in self._stops)
            self._held = text[end:]
        return text[:end]

    def rest(self) -> str:
        """Return what was held back, as the text has ended."""
        held, self._held = self._held, ""
        return "" if self.has_cut else held


def _cut_of(text: str, stops: Sequence[str]) -> int | None:
    """Return where the stop begins that is complete first."""
    found = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(found)[1] if found else None


def _begun(text: str, stop: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop."""
    last = text[max(0, len(text) - len(stop) + 1) :]
    at = last.find(stop[0])
    while at >= 0 and not stop.startswith(last[at:]):
        at = last.find(stop[0], at + 1)
    return len(last) - at if at >= 0 else 0


Payload = Mapping[str, Any]
Counts = dict[str, int]

_COUNTS = ("prompt_tokens", "completion_tokens")
_MOST_COUNTED = 2**53  # what JSON's readers hold exactly
_REASON = "finish_reason"
_REASONS = ("stop", "length", "content_filter", "tool_calls", "function_call")


class Choice:
    """One of the texts that a request is answered with, at once or part by part.

    Args:
        index: its place in the answer.
        key: where the pipeline's answers have the text.
        stops: texts that it ends at.
        in_parts: its pipeline answers in parts, of which there may be none with a text.

    Attributes:
        counts: of tokens, as far as its pipeline told them; the latest say those of all.
    """

    def __init__(
        self, index: int, key: str, stops: Sequence[str] = (), in_parts: bool = False
    ) -> None:
        self.index = index
        self.counts: Counts | None = None
        self._key = key
        self._in_parts = in_parts
        self._cutter = Cutter(stops)
        self._reason = "stop"

    @property
    def is_cut(self) -> bool:
        """Return whether a stop was there: whatever follows is not wanted."""
        return self._cutter.has_cut

    @property
    def reason(self) -> str:
        """Return why the text has ended."""
        return "stop" if self.is_cut else self._reason

    def take(self, payload: Payload) -> str:
        """Return what may be told of an answer, or of one part. Raises PayloadTypeError.

        A part, and what became of all of them, needs no text where it has counts, says why the
        text has ended, or has nothing at all: what ends at its first token writes nothing.
        """
        reason, counts = _reason_of(payload), counts_of(payload)
        self._reason, self.counts = reason or self._reason, counts or self.counts
        if self._in_parts and self._key not in payload and (reason or counts or not payload):
            return ""
        return self._cutter.take(text_of(payload, self._key))

    def rest(self) -> str:
        """Return the end of the text, which might have been the beginning of a stop."""
        return self._cutter.rest()


class Writer:
    """Writer of what one request is answered with.

    Args:
        model_id: as the caller knows it.
        is_chat: objects are those of chats; else of completions.
        wants_usage: chunks say that their counts come in the last one.
        each: choices of each prompt, whose tokens are counted once.
    """

    def __init__(
        self, model_id: str, is_chat: bool, wants_usage: bool = False, each: int = 1
    ) -> None:
        self._is_chat = is_chat
        self._wants_usage = wants_usage
        self._each = each
        kind = "chat.completion" if is_chat else "text_completion"
        self._kinds = (kind, "chat.completion.chunk" if is_chat else kind)
        self._begun: set[int] = set()
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{os.urandom(16).hex()}",
            "created": int(time.time()),
            "model": model_id,
        }

    def whole(self, choices: Sequence[tuple[Choice, str]]) -> bytes:
        """Return the answer that has these texts."""
        said = [
            {
                "index": choice.index,
                **({"message": _message(text)} if self._is_chat else {"text": text}),
                "logprobs": None,
                "finish_reason": choice.reason,
            }
            for choice, text in choices
        ]
        usage = usage_of([choice.counts for choice, _ in choices], self._each)
        return _json({**self._head, "object": self._kinds[0], "choices": said, "usage": usage})

    def part(self, choice: Choice, text: str) -> bytes:
        """Return the chunk with more of a text."""
        return self._chunk(choice, {"content": text} if self._is_chat else {"text": text}, None)

    def end(self, choice: Choice) -> bytes:
        """Return the chunk that says why a text has ended."""
        return self._chunk(choice, {} if self._is_chat else {"text": ""}, choice.reason)

    def usage(self, choices: Sequence[Choice]) -> bytes:
        """Return the chunk behind all others, with the counts; b"" if nobody asks for it."""
        if not self._wants_usage:
            return b""
        usage = usage_of([choice.counts for choice in choices], self._each)
        return _json({**self._head, "object": self._kinds[1], "choices": [], "usage": usage})

    def _chunk(self, choice: Choice, said: Mapping[str, Any], reason: str | None) -> bytes:
        if self._is_chat:
            is_first = choice.index not in self._begun
            self._begun.add(choice.index)
            said = {"delta": {"role": "assistant", **said} if is_first else said}
        told = {"index": choice.index, **said, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._wants_usage else {}
        return _json({**self._head, "object": self._kinds[1], "choices": [told], **usage})


def embeddings(
    payloads: Sequence[Payload], model_id: str, model: ModelOptions, in_base64: bool
) -> bytes:
    """Return the embeddings of payloads. Raises PayloadTypeError."""
    data = [
        {"object": "embedding", "index": at, "embedding": _vector(payload, model, in_base64)}
        for at, payload in enumerate(payloads)
    ]
    usage = None
    if (counts := usage_of([counts_of(payload) for payload in payloads])) is not None:
        usage = {name: counts[name] for name in ("prompt_tokens", "total_tokens")}
    return _json({"object": "list", "data": data, "model": model_id, "usage": usage})


def text_of(payload: Payload, key: str) -> str:
    """Return the text that an answer has under a key, alone or as an array of one."""
    value = payload.get(key)
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if isinstance(value, list | tuple) and len(value) == 1:
        (value,) = value
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        there = ", ".join(map(str, payload)) or "nothing"
        raise PayloadTypeError(f"the answer has no text under {key!r}, but {there}: see `text`")
    return value if value.isascii() else utf8_text(value)


def counts_of(payload: Payload) -> Counts | None:
    """Return the counts of tokens that an answer has; None: it has none."""
    if not any(payload.get(name) is not None for name in _COUNTS):
        return None
    return {name: _count(payload.get(name)) for name in _COUNTS}


def usage_of(counts: Sequence[Counts | None], each: int = 1) -> Counts | None:
    """Return the sums of counts, of which so many are of one prompt; None: there are none."""
    if not any(counts):
        return None
    there = [one or dict.fromkeys(_COUNTS, 0) for one in counts]
    prompts = sum(one["prompt_tokens"] for one in there[::each])
    written = sum(one["completion_tokens"] for one in there)
    return {
        **dict(zip(_COUNTS, (prompts, written), strict=True)),
        "total_tokens": prompts + written,
    }


def _vector(payload: Payload, model: ModelOptions, in_base64: bool) -> Any:
    try:
        if (value := payload.get(model.embedding)) is None:  # of which numpy makes NaN
            raise TypeError
        array = np.asarray(value, "<f4").ravel()
    except (ValueError, TypeError):
        there = ", ".join(map(str, payload)) or "nothing"
        text = f"the answer has no list of numbers under {model.embedding!r}, but {there}"
        raise PayloadTypeError(f"{text}: see `embedding`") from None
    return base64.b64encode(array.tobytes()).decode() if in_base64 else array


def _count(value: Any) -> int:
    """Return a count; the last of several, as parts of a stream that became one answer have it."""
    try:
        count = 0 if value is None else int(np.asarray(value).ravel()[-1])
    except (TypeError, ValueError, OverflowError, IndexError):
        count = -1
    if not 0 <= count <= _MOST_COUNTED:
        raise PayloadTypeError("prompt_tokens and completion_tokens are whole numbers")
    return count


def _reason_of(payload: Payload) -> str | None:
    """Return why an answer has ended; the last reason where those of parts are in one text."""
    if payload.get(_REASON) is None:
        return None
    text = text_of(payload, _REASON)
    return next((reason for reason in _REASONS if text.endswith(reason)), text)


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None}


def _json(said: Mapping[str, Any]) -> bytes:
    return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)
