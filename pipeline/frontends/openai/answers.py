"""Answers of pipelines, read as the choices of a request, and as embeddings."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Mapping, Sequence, Set
from itertools import chain
from typing import Any, cast

import numpy as np
import orjson

from pipeline.errors import PayloadTypeError, utf8_text
from pipeline.frontends.openai.options import ModelOptions
from pipeline.openai import Delta, ToolCall


class Cutter:
    """Cuts one text, which may come in parts, at the first stop text in it.

    The first stop is the one that is complete first; of several that end at one place, the longest.
    So the result does not depend on how the text is split into parts.

    Args:
        stops: texts that are not empty; without stops the text passes unchanged.

    Attributes:
        has_cut: a stop was in the text; nothing follows.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.has_cut: bool = False

    def take(self, text: str) -> str:
        """Return the text that may pass; hold back what may be the beginning of a stop."""
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
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return "" if self.has_cut else held


def _cut_of(text: str, stops: Sequence[str]) -> int | None:
    """Return the place of the stop that is complete first."""
    ends = [(at + len(stop), at) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[1] if ends else None


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
_MOST_COUNTED = 2**53  # JSON readers hold larger numbers only inexactly
_REASON = "finish_reason"
_REASONS = ("stop", "length", "content_filter", "tool_calls", "function_call")
_TEXTS = ("reasoning_content", "refusal")
_LISTS = ("images", "annotations")
_CONTENT = frozenset({"text", *_TEXTS, "tool_calls"})
_LEAST_LOGPROB = -9999.0  # OpenAI's number for a token that is very unlikely: JSON has no infinity


class Choice:
    """One choice of a request's answer, whole or in parts.

    Args:
        index: its place in the answer.
        key: key of the text in the pipeline's answers.
        stops: texts that end it.
        in_parts: its pipeline answers in parts, which may all be without a text.

    Attributes:
        stops: see above.
        counts: token counts from its pipeline; the latest ones cover all parts.
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
        """Return whether a stop has ended the choice; the rest is dropped."""
        return self._cutter is not None and self._cutter.has_cut

    @property
    def reason(self) -> str:
        """Return why the choice has ended."""
        if self.is_cut:
            return "stop"
        return self._reason or ("stop" if self._calls is None else "tool_calls")

    def take(self, payload: Payload) -> Delta:
        """Return what the client may get of an answer, or of one part. Raises PayloadTypeError.

        Texts are not empty; tool calls have an index, and their id and name once. A part needs no
        text if it has other content or is empty: a model that ends at its first token writes
        nothing. The same holds for the answer that is joined from parts.
        """
        text = payload.get(self._key)
        if len(payload) == 1 and type(text) is str and not self.stops:  # as nearly always
            text = text if text.isascii() else utf8_text(text)
            return {"text": text} if text else {}
        if self.is_cut:
            return {}
        reason, counts = _reason_of(payload), counts_of(payload)
        self._reason, self.counts = reason or self._reason, counts or self.counts
        delta = self._delta_without_text(payload)
        is_complete = delta or (self._in_parts and (reason or counts or not payload))
        if text is None and (is_complete or self._calls is not None):
            return delta
        text = text_of(payload, self._key)
        if text := text if self._cutter is None else self._cutter.take(text):
            delta["text"] = text
        return delta

    def kinds_of(self, payload: Payload) -> Set[str]:
        """Return which texts an answer or a part has, and whether it has tool calls."""
        names = (
            "text" if name == self._key else name
            for name, value in payload.items()
            if isinstance(value, np.ndarray) or value
        )
        return _CONTENT.intersection(names)

    def rest(self) -> Delta:
        """Return what was held back, at the end of the answer."""
        delta: Delta = {}
        if self._cutter is not None and (text := self._cutter.rest()):
            delta["text"] = text
        if self._calls is not None and (calls := self._calls.rest()):
            delta["tool_calls"] = cast("list[ToolCall]", calls)
        return delta

    def whole(self, payload: Payload) -> Delta:
        """Return the whole content of one answer. Raises PayloadTypeError."""
        delta, rest = self.take(payload), self.rest()
        return delta if not rest and len(delta) == 1 and "text" in delta else joined([delta, rest])

    def _delta_without_text(self, payload: Payload) -> Delta:
        """Return everything but the text."""
        delta: dict[str, Any] = {}
        for name in _TEXTS:
            if payload.get(name) is not None and (text := text_of(payload, name)):
                delta[name] = text
        for name in _LISTS:
            if values := _list_in(payload, name):
                delta[name] = values
        if calls := _list_in(payload, "tool_calls"):
            self._calls = self._calls or ToolCalls()
            if deltas := self._calls.take(calls):
                delta["tool_calls"] = deltas
        if tokens := _list_in(_tokens_in(payload), "logprobs"):
            delta["logprobs"] = [
                _logprob(token, f"logprobs[{at}]") for at, token in enumerate(tokens)
            ]
        if isinstance(call := payload.get("function_call"), Mapping):
            delta["function_call"] = {**call}
        if (audio := payload.get("audio")) is not None:
            delta["audio"] = self._audio(audio)
        return cast(Delta, delta)

    def _audio(self, audio: Any) -> dict[str, Any]:
        """Return a part of the sound; the first part has its id."""
        if not isinstance(audio, Mapping):
            raise PayloadTypeError("audio must be a dict with data, transcript or both")
        part = {name: value for name, value in audio.items() if name != "id"}
        if not self._audio_id:
            self._audio_id = str(audio.get("id") or f"audio_{os.urandom(12).hex()}")
            part = {"id": self._audio_id, "expires_at": int(time.time()), **part}
        return part


class ToolCalls:
    """Tool calls of one choice, each whole or in parts.

    The client gets one call after the other: parts of the next call wait until the arguments of the
    current one are complete. The official client takes a call as finished when the next one begins.
    The input of a custom tool is complete only at the end of the answer: it may be any text. Ids
    and names are sent once: clients append what they receive.
    """

    def __init__(self) -> None:
        self._ids: dict[int, tuple[str, str]] = {}  # by index: id and type
        self._last = 0  # index of the last part from the pipeline
        self._current = -1  # index of the call that is being sent
        self._sent: list[str] = []  # pieces of its arguments that were sent
        self._is_complete: bool | None = None  # they are; None: not known
        self._ended: set[int] = set()  # indexes of the calls before it
        self._held: dict[int, list[dict[str, Any]]] = {}  # deltas that are not sent yet, by index

    def take(self, calls: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the deltas to send now, at most one for each call. Raises PayloadTypeError."""
        for at, call in enumerate(calls):
            delta = self._delta(call, f"tool_calls[{at}]")
            if (index := delta["index"]) not in self._ended:
                self._held.setdefault(index, []).append(delta)
            elif any(text.strip() for text in delta[_kind_of(delta)].values()):
                raise PayloadTypeError(f"tool_calls[{at}]: the arguments of call {index} had ended")
        deltas: list[dict[str, Any]] = []
        while self._held:
            if self._current not in self._held:
                if self._current >= 0:
                    if not self._is_whole():
                        break
                    self._ended.add(self._current)
                self._current, self._sent = min(self._held), []
            deltas.append(delta := _combined(self._held.pop(self._current)))
            self._sent.append(delta["function"]["arguments"] if "function" in delta else "")
            self._is_complete = None
        return deltas

    def rest(self) -> list[dict[str, Any]]:
        """Return what was held back, at the end of all calls."""
        deltas = [_combined(self._held[index]) for index in sorted(self._held)]
        self._held = {}
        return deltas

    def _is_whole(self) -> bool:
        """Return whether the arguments that were sent are complete JSON."""
        if self._is_complete is None:
            self._is_complete = is_complete(self._sent)
        return self._is_complete

    def _delta(self, call: Any, where: str) -> dict[str, Any]:
        """Return a call as a delta with an index; the first delta of a call has its id and name."""
        kind = call.get("type") or "function" if isinstance(call, Mapping) else None
        function = call.get(kind) if isinstance(kind, str) else None
        if not isinstance(kind, str) or kind not in _KINDS or not isinstance(function, Mapping):
            raise PayloadTypeError(
                f'{where} must be a dict like {{"id", "function": {{"name", "arguments"}}}}'
            )
        key = "input" if kind == "custom" else "arguments"
        text = function.get(key)
        if not isinstance(text, str):
            text = "" if text is None else as_json(text).decode()
        index, name = self._index_of(call, function, where), function.get("name")
        self._last = index
        if index in self._ids:
            if self._ids[index][1] != kind:
                raise PayloadTypeError(f"{where}.type is {kind}, and was another before")
            return {"index": index, kind: {key: utf8_text(text)}}
        if not isinstance(name, str) or not name:
            raise PayloadTypeError(f"{where}.{kind}.name is missing: a call begins with it")
        call_id = str(call.get("id") or f"call_{os.urandom(12).hex()}")
        self._ids[index] = call_id, kind
        content = {"name": utf8_text(name), key: utf8_text(text)}
        return {"index": index, "id": utf8_text(call_id), "type": kind, kind: content}

    def _index_of(self, call: Payload, function: Payload, where: str) -> int:
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
            for earlier, (earlier_id, _) in self._ids.items():
                if earlier_id == call_id:
                    return earlier
        is_new = bool(call_id or function.get("name"))
        return max(self._ids, default=-1) + 1 if is_new else self._last


_MOST_CALLS = 1024
_KINDS = ("function", "custom")


def is_complete(arguments: Sequence[str]) -> bool:
    """Return whether pieces of arguments are a complete JSON object, so that none may follow."""
    if not (arguments and arguments[-1].rstrip().endswith("}")):
        return False
    try:
        orjson.loads("".join(arguments))
    except ValueError:
        return False
    return True


def _kind_of(delta: Mapping[str, Any]) -> str:
    return next(kind for kind in _KINDS if kind in delta)


def _combined(deltas: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the deltas of one tool call as one."""
    if len(deltas) == 1:
        return deltas[0]
    kind = _kind_of(deltas[0])
    return {**deltas[0], kind: _grown([delta[kind] for delta in deltas])}


def joined(deltas: Sequence[Delta]) -> Delta:
    """Return the deltas of one choice as one; its tool calls are whole."""
    whole: dict[str, Any] = {}
    for name, values in _by_key(deltas).items():
        if name == "tool_calls":
            whole[name] = _whole_calls(list(chain.from_iterable(values)))
        elif name in ("audio", "function_call"):
            whole[name] = _grown(values)
        elif name in ("text", *_TEXTS):
            whole[name] = "".join(values)
        else:
            whole[name] = list(chain.from_iterable(values))
    return cast(Delta, whole)


def _whole_calls(deltas: Sequence[Any]) -> list[Any]:
    """Return the tool calls that deltas add up to, in the order of their indexes."""
    by_index: dict[int, list[Any]] = {}
    for delta in deltas:
        by_index.setdefault(delta["index"], []).append(delta)
    calls = [_combined(by_index[index]) for index in sorted(by_index)]
    return [{name: call[name] for name in ("id", "type", call["type"])} for call in calls]


def _grown(parts: Sequence[Any]) -> dict[str, Any]:
    """Return what the parts of a sound, a function call or a tool add up to."""
    return {name: _together(name, found) for name, found in _by_key(parts).items()}


def _by_key(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of several dicts by key, in order."""
    values: dict[str, list[Any]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(value)
    return values


def _together(name: str, values: Sequence[Any]) -> Any:
    """Return the values of a key joined if the key's values grow, otherwise the last one."""
    if len(values) == 1 or name not in ("data", "transcript", "arguments", "input"):
        return values[-1]
    try:
        return (b"" if isinstance(values[0], bytes) else "").join(values)
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
    """Return the text under a key of an answer: a text, or an array with one text."""
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
    """Return the token counts of an answer; None: it has no counts."""
    usage = payload.get("usage")
    source = usage if isinstance(usage, Mapping) else payload
    if source.get(_COUNTS[0]) is None and source.get(_COUNTS[1]) is None:
        return None
    counts: Counts = {name: _count(source.get(name)) for name in _COUNTS}
    for name in _DETAILS:
        if isinstance(details := source.get(name), Mapping):
            counts[name] = {str(key): _count(value) for key, value in details.items()}
    return counts


def usage_of(counts: Sequence[Counts | None], choices: int = 1) -> Counts:
    """Return the sums of counts, with so many `choices` for each prompt; zeros: without counts."""
    if len(counts) == 1:
        only = counts[0] or _ZEROS
        return {**only, "total_tokens": only[_COUNTS[0]] + only[_COUNTS[1]]}
    by_choice = [count or _ZEROS for count in counts]
    by_prompt = by_choice[::choices]
    details: dict[str, Counts] = {}
    prompts = sum(count[_COUNTS[0]] for count in by_prompt)
    written = sum(count[_COUNTS[1]] for count in by_choice)
    for name, summed in zip(_DETAILS, (by_prompt, by_choice), strict=True):
        for count in summed:
            for key, value in count.get(name, {}).items():
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
    """Return a count; of several (a stream that became one answer), the last."""
    try:
        count = 0 if value is None else int(np.asarray(value).ravel()[-1])
    except (TypeError, ValueError, OverflowError, IndexError):
        count = -1
    if not 0 <= count <= _MOST_COUNTED:
        raise PayloadTypeError("prompt_tokens and completion_tokens are whole numbers")
    return count


def _reason_of(payload: Payload) -> str | None:
    """Return why an answer has ended; if the reasons of several parts are one text, the last."""
    if payload.get(_REASON) is None:
        return None
    text = text_of(payload, _REASON)
    return next((reason for reason in _REASONS if text.endswith(reason)), text)


def _list_in(payload: Payload, name: str) -> Sequence[Any] | None:
    """Return the list under a key, or None. Raises PayloadTypeError."""
    value = payload.get(name)
    if value is None or isinstance(value, list | tuple):
        return value
    raise PayloadTypeError(f"{name} must be a list, not {type(value).__name__}")


def _tokens_in(payload: Payload) -> Payload:
    """Return an answer with `logprobs` as a list, converted from OpenAI's form of either API."""
    logprobs = payload.get("logprobs")
    if not isinstance(logprobs, Mapping):
        return payload
    if (content := logprobs.get("content")) is None and isinstance(logprobs.get("tokens"), list):
        values = _list_in(logprobs, "token_logprobs") or []
        tops = _list_in(logprobs, "top_logprobs") or [None] * len(values)
        if not all(isinstance(top, Mapping | None) for top in tops):
            raise PayloadTypeError("logprobs.top_logprobs must be a list of dicts")
        content = [
            {
                "token": token,
                "logprob": value,
                "top_logprobs": [
                    {"token": name, "logprob": number} for name, number in (top or {}).items()
                ],
            }
            for token, value, top in zip(logprobs["tokens"], values, tops, strict=False)
        ]
    return {"logprobs": content}


def _logprob(logprob: Any, where: str) -> dict[str, Any]:
    """Return a token and its log probability with the keys that clients read.

    Raises PayloadTypeError.
    """
    try:
        token, value = utf8_text(logprob["token"]), logprob["logprob"]
        if value is not None:  # the first token of an echoed prompt has no probability
            value = value if (value := float(value)) > _LEAST_LOGPROB else _LEAST_LOGPROB
    except (LookupError, TypeError, ValueError, AttributeError):
        raise PayloadTypeError(f'{where} must be a dict like {{"token", "logprob"}}') from None
    entry = {"token": token, "logprob": value, "bytes": logprob.get("bytes") or [*token.encode()]}
    if "top_logprobs" in logprob or where.startswith("logprobs["):
        tops = _list_in(logprob, "top_logprobs") or ()
        entry["top_logprobs"] = [_logprob(top, f"top_{where}") for top in tops]
    return entry


def as_json(value: Any) -> bytes:
    """Return an Op's answer as JSON: arrays become lists, bytes become base64 text."""
    try:
        return orjson.dumps(value, _plain, orjson.OPT_SERIALIZE_NUMPY)
    except (TypeError, ValueError) as error:
        raise PayloadTypeError(f"the answer has no form in JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Return the JSON form of a value that orjson cannot write."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
