"""Transcriptions, images and embeddings: forms of OpenAI's API without streams.

Source: OpenAI's API reference, "Create transcription" and "Create image".
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pipeline.errors import PayloadTypeError
from pipeline.frontends.http.routes import WebResponse
from pipeline.frontends.openai.answers import (
    Payload,
    as_json,
    counts_of,
    embeddings,
    text_of,
    usage_of,
)
from pipeline.frontends.openai.arguments import Fields, check, handed_on
from pipeline.frontends.openai.errors import ArgumentError, text_at
from pipeline.frontends.openai.models import ParsedRequest, Read
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import Questions, embedding_questions, questions_of

_TEXT = b"text/plain; charset=utf-8"
_FORMS: Final = ("json", "text", "verbose_json")
_DETAILS = ("language", "duration", "segments", "words")


class PlainForm(NamedTuple):
    """The form of an API that does not stream: its reader and its writer."""

    kind: str
    read: Read
    write: Callable[[ParsedRequest, Sequence[Payload]], bytes | WebResponse]
    takes_forms: bool = False


def transcription_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the question of a request for a transcription. Raises ArgumentError."""
    body = {**body}
    sound = body.pop("file", None)
    if not isinstance(sound, bytes):
        raise ArgumentError("file must be an uploaded audio file", "file")
    form = body.pop("response_format", "json")
    if form not in _FORMS:
        text = f"response_format must be one of {', '.join(_FORMS)}"
        raise ArgumentError(text, "response_format")
    if body.pop("stream", "false") != "false":
        raise ArgumentError("transcriptions are not streamed here: leave stream out", "stream")
    arguments = dict(_plain(name, value) for name, value in body.items())
    check(arguments)
    fields = {**handed_on(arguments, model, "file"), model.audio: sound}
    return Questions([fields], body={"response_format": form})


def _plain(name: str, value: Any) -> tuple[str, Any]:
    """Return a form field, which is text, with the type that it has in JSON."""
    if name.endswith("[]"):
        return name.removesuffix("[]"), value if isinstance(value, list) else [value]
    if name == "temperature":
        try:
            return name, float(value)
        except (TypeError, ValueError):
            raise ArgumentError("temperature must be a number", name) from None
    return name, value


def transcription(parsed: ParsedRequest, payloads: Sequence[Payload]) -> bytes | WebResponse:
    """Return a transcription in the requested form. Raises PayloadTypeError."""
    (payload,) = payloads
    text = text_of(payload, parsed.model.text)
    form = parsed.questions.body["response_format"]
    if form == "text":
        return WebResponse(body=text.encode() + b"\n", content_type=_TEXT)
    if form == "json":
        return as_json({"text": text})
    details = {name: payload[name] for name in _DETAILS if payload.get(name) is not None}
    usual = {"task": "transcribe", "language": "", "duration": 0.0}
    return as_json({**usual, **details, "text": text})


def image_questions(body: Fields, model: ModelOptions) -> Questions:
    """Return the questions of a request for images, one for each. Raises ArgumentError."""
    arguments = {**body}
    form = arguments.pop("response_format", None)
    if form not in (None, "b64_json", "url"):
        raise ArgumentError("response_format must be b64_json or url", "response_format")
    check(arguments)
    if body.get("stream"):
        raise ArgumentError("images are not streamed here: leave stream out", "stream")
    prompt = text_at("prompt", body.get("prompt"))
    fields = {**handed_on(arguments, model, "prompt"), model.prompt: prompt}
    return questions_of(arguments, model, [fields])._replace(body=body)


def images(parsed: ParsedRequest, payloads: Sequence[Payload]) -> bytes:
    """Return the answer with images. Raises PayloadTypeError."""
    wants_url = parsed.questions.body.get("response_format") == "url"
    data = [_image(payload, parsed.model.image, wants_url) for payload in payloads]
    counts = usage_of([counts_of(payload) for payload in payloads])
    usage = {
        "input_tokens": counts["prompt_tokens"],
        "output_tokens": counts["completion_tokens"],
        "total_tokens": counts["total_tokens"],
    }
    return as_json({"created": int(time.time()), "data": data, "usage": usage})


def _image(payload: Payload, key: str, wants_url: bool) -> dict[str, Any]:
    """Return an image, which the Op answered as the bytes of a file or as a URL."""
    value = payload.get(key)
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        value = value.tobytes()
    more = {"revised_prompt": payload["revised_prompt"]} if "revised_prompt" in payload else {}
    if isinstance(value, str):
        return {"url": value, **more}
    if not isinstance(value, bytes):
        there = ", ".join(map(str, payload)) or "nothing"
        text = f"the answer has no file and no URL under {key!r}, but {there}: see `image`"
        raise PayloadTypeError(text)
    data = base64.b64encode(value).decode()
    return {"url": f"data:;base64,{data}", **more} if wants_url else {"b64_json": data, **more}


def _embeddings(parsed: ParsedRequest, payloads: Sequence[Payload]) -> bytes:
    return embeddings(payloads, parsed.model_id, parsed.model, parsed.questions.in_base64)


PLAIN_FORMS: Final[Mapping[str, PlainForm]] = {
    "/v1/embeddings": PlainForm("embedding", embedding_questions, _embeddings),
    "/v1/audio/transcriptions": PlainForm(
        "transcription", transcription_questions, transcription, takes_forms=True
    ),
    "/v1/images/generations": PlainForm("image", image_questions, images),
}
"""The forms by their paths."""
