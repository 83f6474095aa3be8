"""Answers of pipelines: what each choice of a request says, and embeddings."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import orjson

from pipeline.errors import PayloadTypeError, utf8_text
from pipeline.frontends.openai.options import ModelOptions
from pipeline.openai import Delta, ToolCall


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
Counts = dict[str, Any]

_COUNTS = ("prompt_tokens", "completion_tokens")
_ZEROS: Counts = dict.fromkeys(_COUNTS, 0)
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")
_MOST_COUNTED = 2**53  # what JSON's readers hold exactly
_REASON = "finish_reason"
_REASONS = ("stop", "length", "content_filter", "tool_calls", "function_call")
_TEXTS = ("reasoning_content", "refusal")
_LISTS = ("images", "annotations")
_LEAST_LOGPROB = -9999.0  # OpenAI's number for a token that is very unlikely: JSON has no infinity


class Choice:
    """One of the answers that a request gets, at once or part by part.

    Args:
        index: its place in the answer.
        key: where the pipeline's answers have the text.
        stops: texts that it ends at.
        in_parts: its pipeline answers in parts, of which there may be none with a text.

    Attributes:
        stops: see above.
        counts: of tokens, as far as its pipeline told them; the latest say those of all.
    """

    def __init__(
        self, index: int, key: str, stops: Sequence[str] = (), in_parts: bool = False
    ) -> None:
        self.index = index
        self.counts: Counts | None = None
        self._key = key
        self._in_parts = in_parts
        self.stops = stops
        self._cutter = Cutter(stops) if stops else None
        self._reason: str | None = None
        self._calls: ToolCalls | None = None
        self._audio_id = ""

    @property
    def is_cut(self) -> bool:
        """Return whether a stop was there: whatever follows is not wanted."""
        return self._cutter is not None and self._cutter.has_cut

    @property
    def reason(self) -> str:
        """Return why the answer has ended."""
        if self.is_cut:
            return "stop"
        return self._reason or ("stop" if self._calls is None else "tool_calls")

    def take(self, payload: Payload) -> Delta:
        """Return what may be told of an answer, or of one part. Raises PayloadTypeError.

        Texts are not empty; calls of tools have an index, and their id and name once. A part, and
        what became of all of them, needs no text where it says something else, or has nothing at
        all: what ends at its first token writes nothing.
        """
        text = payload.get(self._key)
        if len(payload) == 1 and type(text) is str and not self.stops:  # as nearly always
            text = text if text.isascii() else utf8_text(text)
            return {"text": text} if text else {}
        if self.is_cut:
            return {}
        reason, counts = _reason_of(payload), counts_of(payload)
        self._reason, self.counts = reason or self._reason, counts or self.counts
        delta = self._others(payload)
        is_told = delta or (self._in_parts and (reason or counts or not payload))
        if text is None and (is_told or self._calls is not None):
            return delta
        text = text_of(payload, self._key)
        if text := text if self._cutter is None else self._cutter.take(text):
            delta["text"] = text
        return delta

    def rest(self) -> Delta:
        """Return what was held back, as the answer has ended."""
        told: Delta = {}
        if self._cutter is not None and (text := self._cutter.rest()):
            told["text"] = text
        if self._calls is not None and (calls := self._calls.rest()):
            told["tool_calls"] = cast("list[ToolCall]", calls)
        return told

    def whole(self, payload: Payload) -> Delta:
        """Return all that one answer says. Raises PayloadTypeError."""
        said, rest = self.take(payload), self.rest()
        return said if not rest and len(said) == 1 and "text" in said else joined([said, rest])

    def _others(self, payload: Payload) -> Delta:
        """Return what is told beside the text."""
        told: dict[str, Any] = {}
        for name in _TEXTS:
            if payload.get(name) is not None and (text := text_of(payload, name)):
                told[name] = text
        for name in _LISTS:
            if (found := _list_in(payload, name)) is not None and len(found):
                told[name] = found
        if calls := _list_in(payload, "tool_calls"):
            self._calls = self._calls or ToolCalls()
            if deltas := self._calls.take(calls):
                told["tool_calls"] = deltas
        if found := _list_in(_tokens_in(payload), "logprobs"):
            told["logprobs"] = [_logprob(each, f"logprobs[{at}]") for at, each in enumerate(found)]
        if isinstance(called := payload.get("function_call"), Mapping):
            told["function_call"] = {**called}
        if (audio := payload.get("audio")) is not None:
            told["audio"] = self._audio(audio)
        return cast(Delta, told)

    def _audio(self, audio: Any) -> dict[str, Any]:
        """Return what is told of sound; the first part has its id."""
        if not isinstance(audio, Mapping):
            raise PayloadTypeError("audio must be a dict with data, transcript or both")
        told = {name: value for name, value in audio.items() if name != "id"}
        if not self._audio_id:
            self._audio_id = str(audio.get("id") or f"audio_{os.urandom(12).hex()}")
            told = {"id": self._audio_id, "expires_at": int(time.time()), **told}
        return told


class ToolCalls:
    """Calls of tools in one choice, each of which comes whole or in parts.

    They are told one behind the other: what comes of another call is held back until the arguments
    of the one before it are whole. The official client takes a call for finished when the next one
    begins. Nobody is told an id or a name twice: clients append what they are told.
    """

    def __init__(self) -> None:
        self._ids: dict[int, tuple[str, str]] = {}  # by index: id and type
        self._last = 0  # index that came last
        self._told = -1  # index that is told
        self._said: list[str] = []  # pieces of its arguments that were told
        self._held: dict[int, dict[str, Any]] = {}  # deltas that are not told yet, by index

    def take(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        """Return what may be told as deltas, of each call at most one. Raises PayloadTypeError."""
        for at, call in enumerate(calls):
            delta = self._delta(call, f"tool_calls[{at}]")
            if (held := self._held.get(delta["index"])) is None:
                self._held[delta["index"]] = delta
            else:
                _append(held, delta)
        told: list[dict[str, Any]] = []
        while self._held:
            if self._told not in self._held:
                if self._told >= 0 and not self._is_whole():
                    break
                self._told, self._said = min(self._held), []
            told.append(delta := self._held.pop(self._told))
            said = delta.get("function")
            self._said.append("{}" if said is None else said["arguments"])
        return told

    def rest(self) -> list[dict[str, Any]]:
        """Return what was held back, as all calls have ended."""
        told = [self._held[index] for index in sorted(self._held)]
        self._held = {}
        return told

    def _is_whole(self) -> bool:
        """Return whether the arguments that were told are JSON."""
        said = "".join(self._said)
        if not said.rstrip().endswith("}"):
            return False
        try:
            orjson.loads(said)
        except ValueError:
            return False
        return True

    def _delta(self, call: Any, where: str) -> dict[str, Any]:
        """Return a call as a delta: it has an index, and the first of a call its id and name."""
        kind = call.get("type") or "function" if isinstance(call, Mapping) else None
        said = call.get(kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or kind not in _KINDS or not isinstance(said, Mapping):
            raise PayloadTypeError(
                f'{where} must be a dict like {{"id", "function": {{"name", "arguments"}}}}'
            )
        written = "input" if kind == "custom" else "arguments"
        text = said.get(written)
        if not isinstance(text, str):
            text = "" if text is None else as_json(text).decode()
        index, name = self._index_of(call, said, where), said.get("name")
        self._last = index
        if index in self._ids:
            if self._ids[index][1] != kind:
                raise PayloadTypeError(f"{where}.type is {kind}, and was another before")
            return {"index": index, kind: {written: utf8_text(text)}}
        if not isinstance(name, str) or not name:
            raise PayloadTypeError(f"{where}.{kind}.name is missing: a call begins with it")
        call_id = str(call.get("id") or f"call_{os.urandom(12).hex()}")
        self._ids[index] = call_id, kind
        told = {"name": utf8_text(name), written: utf8_text(text)}
        return {"index": index, "id": utf8_text(call_id), "type": kind, kind: told}

    def _index_of(self, call: Payload, said: Payload, where: str) -> int:
        index, call_id = call.get("index"), call.get("id")
        if index is not None:
            if (
                isinstance(index, bool)
                or not isinstance(index, int)
                or not 0 <= index < _MOST_CALLS
            ):
                raise PayloadTypeError(f"{where}.index must be a whole number below {_MOST_CALLS}")
            return index
        if call_id:
            for known, (its_id, _) in self._ids.items():
                if its_id == call_id:
                    return known
        is_new = bool(call_id or said.get("name"))
        return max(self._ids, default=-1) + 1 if is_new else self._last


_MOST_CALLS = 1024
_KINDS = ("function", "custom")


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return what deltas of one choice say together; its calls of tools are whole."""
    whole: dict[str, Any] = {}
    for name, found in _by_key(deltas).items():
        if name == "tool_calls":
            whole[name] = _whole_calls([call for calls in found for call in calls])
        elif name in ("audio", "function_call"):
            whole[name] = _grown(found)
        elif name in ("text", *_TEXTS):
            whole[name] = "".join(found)
        else:
            whole[name] = [each for value in found for each in value]
    return cast(Delta, whole)


def _whole_calls(deltas: Sequence[Any]) -> list[Any]:
    """Return the calls that deltas of them make, in the order of their indexes."""
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        if (known := calls.get(delta["index"])) is None:
            kind = delta["type"]
            calls[delta["index"]] = {"id": delta["id"], "type": kind, kind: {**delta[kind]}}
        else:
            _append(known, delta)
    return [calls[index] for index in sorted(calls)]


def _append(call: dict[str, Any], delta: Mapping[str, Any]) -> None:
    """Add to a call, or to a delta of it, the arguments of the delta behind it."""
    for kind in _KINDS:
        for name, text in delta.get(kind, {}).items():
            call[kind][name] += text


def _grown(parts: Sequence[Any]) -> dict[str, Any]:
    """Return the sound, or the call of a function, that its parts are."""
    return {name: _together(name, found) for name, found in _by_key(parts).items()}


def _by_key(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values that several dicts have under each key, in order."""
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return values


def _together(name: str, found: Sequence[Any]) -> Any:
    """Return what the values of a key in several parts are together; else the last one."""
    if len(found) == 1 or name not in ("data", "transcript", "arguments"):
        return found[-1]
    try:
        return (b"" if isinstance(found[0], bytes) else "").join(found)
    except TypeError:
        raise PayloadTypeError(f"{name} of several parts must be all text or all bytes") from None


def embeddings(
    payloads: Sequence[Payload], model_id: str, model: ModelOptions, in_base64: bool
) -> bytes:
    """Return the embeddings of payloads. Raises PayloadTypeError."""
    data = [
        {"object": "embedding", "index": at, "embedding": _vector(payload, model, in_base64)}
        for at, payload in enumerate(payloads)
    ]
    counts = usage_of([counts_of(payload) for payload in payloads])
    usage = {name: counts[name] for name in ("prompt_tokens", "total_tokens")}
    return as_json({"object": "list", "data": data, "model": model_id, "usage": usage})


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
    usage = payload.get("usage")
    given = usage if isinstance(usage, Mapping) else payload
    if given.get(_COUNTS[0]) is None and given.get(_COUNTS[1]) is None:
        return None
    counts: Counts = {name: _count(given.get(name)) for name in _COUNTS}
    for name in _DETAILS:
        if isinstance(details := given.get(name), Mapping):
            counts[name] = {str(key): _count(value) for key, value in details.items()}
    return counts


def usage_of(counts: Sequence[Counts | None], each: int = 1) -> Counts:
    """Return the sums of counts, of which so many are of one prompt; zeros: nothing is counted."""
    if len(counts) == 1:
        one = counts[0] or _ZEROS
        return {**one, "total_tokens": one[_COUNTS[0]] + one[_COUNTS[1]]}
    there = [one or _ZEROS for one in counts]
    details: dict[str, Counts] = {}
    prompts = sum(one[_COUNTS[0]] for one in there[::each])
    written = sum(one[_COUNTS[1]] for one in there)
    for name, those in zip(_DETAILS, (there[::each], there), strict=True):
        for one in those:
            for key, value in one.get(name, {}).items():
                sums = details.setdefault(name, {})
                sums[key] = sums.get(key, 0) + value
    return {
        **dict(zip(_COUNTS, (prompts, written), strict=True)),
        "total_tokens": prompts + written,
        **details,
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


def _list_in(payload: Payload, name: str) -> Sequence[Any] | None:
    """Return the list under a key; None: there is none. Raises PayloadTypeError."""
    found = payload.get(name)
    if found is None or isinstance(found, list | tuple):
        return found
    raise PayloadTypeError(f"{name} must be a list, not {type(found).__name__}")


def _tokens_in(payload: Payload) -> Payload:
    """Return an answer whose `logprobs`, if it has OpenAI's own form of either API, are a list."""
    said = payload.get("logprobs")
    if not isinstance(said, Mapping):
        return payload
    if (content := said.get("content")) is None and isinstance(said.get("tokens"), list):
        values = _list_in(said, "token_logprobs") or []
        tops = _list_in(said, "top_logprobs") or [None] * len(values)
        if not all(isinstance(top, Mapping | None) for top in tops):
            raise PayloadTypeError("logprobs.top_logprobs must be a list of dicts")
        content = [
            {
                "token": token,
                "logprob": value,
                "top_logprobs": [
                    {"token": key, "logprob": its} for key, its in (top or {}).items()
                ],
            }
            for token, value, top in zip(said["tokens"], values, tops, strict=False)
        ]
    return {"logprobs": content}


def _logprob(given: Any, where: str) -> dict[str, Any]:
    """Return a token and its log probability with all keys that clients read.

    Raises PayloadTypeError.
    """
    try:
        token, value = utf8_text(given["token"]), given["logprob"]
        if value is not None:  # the first token of a text that is said again has none
            value = value if (value := float(value)) > _LEAST_LOGPROB else _LEAST_LOGPROB
    except (LookupError, TypeError, ValueError, AttributeError):
        raise PayloadTypeError(f'{where} must be a dict like {{"token", "logprob"}}') from None
    told = {"token": token, "logprob": value, "bytes": given.get("bytes") or [*token.encode()]}
    if "top_logprobs" in given or where.startswith("logprobs["):
        tops = _list_in(given, "top_logprobs") or ()
        told["top_logprobs"] = [_logprob(each, f"top_{where}") for each in tops]
    return told


def as_json(said: Any) -> bytes:
    """Return the JSON of what an Op says: arrays are lists, bytes text in base64."""
    try:
        return orjson.dumps(said, _plain, orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, ValueError) as error:
        raise PayloadTypeError(f"the answer has no form in JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Return what stands in JSON for a value that has no form of its own there."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
