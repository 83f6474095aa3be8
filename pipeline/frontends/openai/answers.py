"""Answers of pipelines as OpenAI's objects: completions, chunks of them, and embeddings."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson

from pipeline.errors import PayloadTypeError
from pipeline.frontends.openai.options import ModelOptions

Payload = Mapping[str, Any]
Usage = dict[str, int]

_COUNTS = ("prompt_tokens", "completion_tokens")


class Writer:
    """Writer of what one request is answered with.

    Args:
        model_id: as the caller knows it.
        model: says under which key the text stands.
        is_chat: objects are those of chats; else of completions.
        wants_usage: chunks say that their counts come in the last one.
    """

    def __init__(
        self, model_id: str, model: ModelOptions, is_chat: bool, wants_usage: bool = False
    ) -> None:
        self._model = model
        self._is_chat = is_chat
        self._wants_usage = wants_usage
        self._kind = "chat.completion" if is_chat else "text_completion"
        self._reason = "stop"
        self._usage: Usage | None = None
        self._has_begun = False
        self._head = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": self._kind,
            "created": int(time.time()),
            "model": model_id,
        }

    def whole(self, payloads: Sequence[Payload]) -> bytes:
        """Return the answer with a choice for each payload. Raises PayloadTypeError."""
        choices = []
        for at, payload in enumerate(payloads):
            text = text_of(payload, self._model.text)
            said = {"message": _message(text)} if self._is_chat else {"text": text}
            reason = _reason_of(payload) or "stop"
            choices.append({"index": at, **said, "logprobs": None, "finish_reason": reason})
        return _json({**self._head, "choices": choices, "usage": usage_of(payloads)})

    def chunk(self, payload: Payload) -> bytes:
        """Return a part of a stream. Raises PayloadTypeError."""
        text = text_of(payload, self._model.text)
        self._reason = _reason_of(payload) or self._reason
        self._usage = usage_of([payload]) or self._usage
        return self._chunk(text, None)

    def last_chunks(self) -> Sequence[bytes]:
        """Return what is behind the last part: the end of the choice, and if asked the counts."""
        end = self._chunk("", self._reason)
        if not self._wants_usage:
            return [end]
        return [end, _json({**self._chunk_head(), "choices": [], "usage": self._usage})]

    def _chunk(self, text: str, reason: str | None) -> bytes:
        said: dict[str, Any] = {"text": text}
        if self._is_chat:
            role = {} if self._has_begun else {"role": "assistant"}
            said = {"delta": {**role, **({} if reason else {"content": text})}}
        self._has_begun = True
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self._wants_usage else {}
        return _json({**self._chunk_head(), "choices": [choice], **usage})

    def _chunk_head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._is_chat else self._kind
        return {**self._head, "object": kind}


def embeddings(
    payloads: Sequence[Payload], model_id: str, model: ModelOptions, in_base64: bool
) -> bytes:
    """Return the embeddings of payloads. Raises PayloadTypeError."""
    data = [
        {"object": "embedding", "index": at, "embedding": _vector(payload, model, in_base64)}
        for at, payload in enumerate(payloads)
    ]
    usage = None
    if (counts := usage_of(payloads)) is not None:
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
    return value


def usage_of(payloads: Sequence[Payload]) -> Usage | None:
    """Return the sums of the counts that answers have; None: they have none."""
    if not any(name in payload for payload in payloads for name in _COUNTS):
        return None
    counts = {name: sum(_count(payload.get(name)) for payload in payloads) for name in _COUNTS}
    return {**counts, "total_tokens": sum(counts.values())}


def _vector(payload: Payload, model: ModelOptions, in_base64: bool) -> Any:
    try:
        array = np.asarray(payload[model.embedding], "<f4").ravel()
    except (KeyError, ValueError, TypeError):
        there = ", ".join(map(str, payload)) or "nothing"
        text = f"the answer has no list of numbers under {model.embedding!r}, but {there}"
        raise PayloadTypeError(f"{text}: see `embedding`") from None
    return base64.b64encode(array.tobytes()).decode() if in_base64 else array


def _count(value: Any) -> int:
    try:
        return int(np.asarray(value).sum()) if value is not None else 0
    except (TypeError, ValueError, OverflowError):
        raise PayloadTypeError("prompt_tokens and completion_tokens are whole numbers") from None


def _reason_of(payload: Payload) -> str | None:
    return text_of(payload, "finish_reason") if payload.get("finish_reason") is not None else None


def _message(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "refusal": None}


def _json(said: Mapping[str, Any]) -> bytes:
    return orjson.dumps(said, option=orjson.OPT_SERIALIZE_NUMPY)
