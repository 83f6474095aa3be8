"""Client of models behind OpenAI's API: vLLM, SGLang, llama.cpp, Triton, this library, OpenAI.

The API: https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from msgspec import Meta

from pipeline.config.fields import Masked
from pipeline.data import RequestContext
from pipeline.errors import ConfigError, InitError, InputError, TooLargeError
from pipeline.metrics import METRICS
from pipeline.predictors.remote.base import RemoteModel, waiting_of
from pipeline.predictors.remote.http_calls import HttpCalls, UpstreamCall, target_of
from pipeline.predictors.remote.pool import Waiting
from pipeline.predictors.signature import only_feed, refuse_unknown_arguments
from pipeline.proto.http import EVENTS, header_line
from pipeline.tracing.context import HEADER, call_trace

_INPUT = "input"
_PATHS = {"messages": "/chat/completions", "prompt": "/completions", _INPUT: "/embeddings"}
_TIMEOUT_S = 600.0  # of a call without a deadline: whole answers take long
_JSON = "application/json"
_COUNTS = ("prompt_tokens", "completion_tokens")
_SAID = (
    *("tool_calls", "reasoning_content", "refusal", "audio", "images", "annotations"),
    "function_call",
)
_DONE = b"[DONE]"
_NOT_SENT = (None, "")
_NO_ANSWER = (LookupError, TypeError, ValueError, AttributeError)  # of JSON of another form


class OpenAIModel(RemoteModel, frozen=True, kw_only=True):
    """A model behind OpenAI's API: the keys of `op.<name>`."""

    api_key: Annotated[
        str | None, Masked(), "API key for the servers, best as ${file:...}; absent: none is sent."
    ] = None
    retries: Annotated[
        int,
        Meta(ge=0, le=10),
        "Additional attempts if a server cannot be reached or answers 429 or 503.",
    ] = 2

    def __repr__(self) -> str:
        return f"<OpenAIModel {self.name!r}>"  # without the key


class OpenAIPredictor:
    """A model on other servers as a `Predictor`, with whole or streamed answers.

    The input decides the call: `messages` is a chat, `prompt` a text, `input` embeddings. It is
    sent unchanged, with arrays as lists. The answer has the names that the frontend `openai` reads:
    `text`, `finish_reason`, `prompt_tokens`, `completion_tokens`, and other fields of the model's
    answer, such as `tool_calls`; or `embedding`, an array with a row for each input.

    Raises InitError: an endpoint or the key cannot be used.
    """

    Options = OpenAIModel
    feed_names: tuple[str, ...] = ()

    def __init__(self, model: OpenAIModel) -> None:
        key = (model.api_key or "").strip()
        head = header_line("content-type", _JSON)
        try:
            targets = [target_of(endpoint, "/v1") for endpoint in model.endpoints]
        except ConfigError as error:
            raise InitError(f"op.{model.name}.server_endpoints: {error}") from None
        if key:
            if not (key.isascii() and key.isprintable()):
                raise InitError(f"op.{model.name}.api_key: it cannot stand in a header")
            head += header_line("authorization", f"Bearer {key}")
        self.fetch_names: tuple[str, ...] = tuple(model.fetch_list or ())
        self._name = model.name
        self._model = model.model_name or model.name
        self._is_merged = model.batch_size > 1
        self._calls = HttpCalls(model.name, targets, head, model.retries, key)

    def predict(
        self,
        feed: Any,
        fetch: Sequence[str] | None = None,
        batch: bool = True,
        log_id: int = 0,
        *,
        deadline_s: float | None = None,
        context: Sequence[RequestContext] = (),
        **legacy: Any,
    ) -> dict[str, Any]:
        """Return the whole answer; see `Predictor.predict`, and `stream` for `context`.

        Raises as `HttpCalls.begin`.
        """
        refuse_unknown_arguments(legacy)
        asked = self._asked(feed)
        path = _path_of(self._name, asked)
        waiting = waiting_of(context, deadline_s, _TIMEOUT_S)
        call = self._begin(path, _JSON, asked, waiting)
        try:
            answer = _object(call.body(waiting))
            counts = _counts(answer.get("usage"))
            result = _vectors(answer, asked) if path == "/embeddings" else _whole(answer)
        except _NO_ANSWER as error:
            self._calls.refuse(call.index, f"the answer cannot be used: {error}")
        finally:
            call.close()
        self._count(counts)
        names = fetch or self.fetch_names
        return {name: result[name] for name in names if name in result} if names else result

    def stream(self, feed: Any, context: Sequence[RequestContext] = ()) -> Iterator[dict[str, Any]]:
        """Answer part by part: `yield from self.client.stream(feed_batch[0], context)`.

        Args:
            feed: as in `predict`, for a chat or a text.
            context: the `context` of `process`. The call ends when no caller waits for the answer
                any more, also while the model sends nothing. Without it, the call ends at the next
                part.
        """
        asked = {"stream_options": {"include_usage": True}, **self._asked(feed), "stream": True}
        path = _path_of(self._name, asked)
        if path == "/embeddings":
            raise InputError(f"[{self._name}] embeddings do not come in parts")
        call = self._begin(path, EVENTS, asked, waiting_of(context, None, _TIMEOUT_S))
        try:
            yield from self._parts(call, context)
        except TooLargeError as error:
            self._calls.refuse(call.index, error)
        finally:
            call.close()

    def close(self) -> None:
        """Refuse new calls; calls in progress finish."""
        self._calls.close()

    def _asked(self, feed: Any) -> dict[str, Any]:
        """Return the body of a request for a feed, with plain values."""
        given = only_feed(self._name, feed)
        if self._is_merged and _INPUT not in given:  # all messages would be one chat
            raise InputError(
                f"[{self._name}] batch_size above 1 is for embeddings: chats and texts are asked "
                "one by one, as many at once as concurrency says"
            )
        own = {"encoding_format": "base64"} if _INPUT in given else {}
        plain = {name: _plain(name, value, _INPUT in given) for name, value in given.items()}
        body = {name: value for name, value in plain.items() if value is not None}
        if body.pop("n", 1) != 1:
            raise InputError(f"[{self._name}] n: one answer is asked for at a time")
        body.pop("stream", None)  # the called method decides this
        return {**own, **body, "model": self._model}  # callers cannot choose the model

    def _begin(
        self, path: str, accept: str, asked: Mapping[str, Any], waiting: Waiting
    ) -> UpstreamCall:
        head = header_line("accept", accept)
        if trace := call_trace():
            head += header_line(HEADER, trace)
        left_ms = math.ceil(max(0.0, waiting.ends - time.monotonic()) * 1000)
        head += header_line("grpc-timeout", f"{left_ms}m")  # this library's server reads it
        try:
            body = orjson.dumps(asked, option=orjson.OPT_SERIALIZE_NUMPY, default=_other)
        except orjson.JSONEncodeError as error:
            raise InputError(f"[{self._name}] this cannot be sent as JSON: {error}") from None
        return self._calls.begin(path, head, body, waiting)

    def _parts(
        self, call: UpstreamCall, context: Sequence[RequestContext]
    ) -> Iterator[dict[str, Any]]:
        has_ended = False
        while True:
            for _, data in call.reader.events():
                if data == _DONE:
                    call.finish()
                    return
                try:
                    chunk = _object(data)
                    if (error := chunk.get("error")) is not None:
                        self._calls.refuse(call.index, f"it ended the stream: {_message(error)}")
                    part, counts = _part(chunk), _counts(chunk.get("usage"))
                except _NO_ANSWER as error:
                    self._calls.refuse(call.index, f"a part cannot be used: {error}")
                self._count(counts)
                has_ended = has_ended or "finish_reason" in part
                if part or counts:
                    yield {"text": "", **part, **counts}
            if call.reader.is_whole:
                if not has_ended:
                    self._calls.refuse(call.index, "the stream was cut off")
                return
            call.receive(waiting_of(context, None, _TIMEOUT_S))

    def _count(self, counts: Mapping[str, int]) -> None:
        """Count tokens for `/metrics`."""
        for name, count in counts.items():
            METRICS.counter(
                "model_tokens",
                "Tokens that servers of OpenAI's API counted.",
                op=self._name,
                model=self._model,
                kind=name.removesuffix("_tokens"),
            ).inc(count)


def _path_of(name: str, asked: Mapping[str, Any]) -> str:
    for key, path in _PATHS.items():
        if key in asked:
            return path
    raise InputError(f"[{name}] feed it messages, prompt or input, not {', '.join(asked)}")


def _plain(name: str, value: Any, has_rows: bool) -> Any:
    """Return a value in JSON's types; of the rows of a batch, the common value."""
    is_array = isinstance(value, np.ndarray)
    if is_array:
        value = value.tolist()
    is_text = name == "prompt" and isinstance(value, list) and value and isinstance(value[0], str)
    if name == _INPUT or not isinstance(value, list) or not (is_array or has_rows or is_text):
        return value
    if name == "prompt" and not is_text:  # tokens
        return value
    if value and all(one == value[0] for one in value):
        return value[0]
    raise InputError(f"{name} has {len(value)} values, where one request has one")


def _other(value: Any) -> Any:
    """Convert a value of a type that orjson lacks."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


def _object(data: bytes) -> dict[str, Any]:
    value = orjson.loads(data)
    if not isinstance(value, dict):
        raise TypeError("it is not an object")
    return value


def _vectors(answer: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for each input; the first row has the total count."""
    rows = sorted(answer["data"], key=lambda row: int(row["index"]))
    vectors = np.stack([_vector(row["embedding"]) for row in rows])
    given = asked[_INPUT]
    is_one = not isinstance(given, list) or (given and isinstance(given[0], int))
    if len(vectors) != (1 if is_one else len(given)):
        raise ValueError(f"it has {len(vectors)} embeddings")
    result: dict[str, Any] = {"embedding": vectors}
    for name, count in _counts(answer.get("usage")).items():
        result[name] = np.array([count] + [0] * (len(vectors) - 1))
    return result


def _whole(answer: Mapping[str, Any]) -> dict[str, Any]:
    (choice,) = answer["choices"]
    return _told(choice, choice.get("message") or choice) | _counts(answer.get("usage"))


def _part(chunk: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a chunk adds; empty if it only has the role."""
    for choice in chunk.get("choices") or ():
        part = _told(choice, choice.get("delta") or choice)
        return part if len(part) > 1 or part["text"] else {}
    return {}


def _told(choice: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    text = message.get("content", message.get("text"))
    if not isinstance(text, str | None):
        raise TypeError("the content is not text")
    part: dict[str, Any] = {"text": text or ""}
    if (thought := message.get("reasoning")) not in _NOT_SENT:  # vLLM's newer name
        part["reasoning_content"] = thought
    part |= {name: message[name] for name in _SAID if message.get(name) not in (*_NOT_SENT, [])}
    if (reason := choice.get("finish_reason")) is not None:
        part["finish_reason"] = reason
    if logprobs := _logprobs(choice.get("logprobs")):
        part["logprobs"] = logprobs
    return part


def _logprobs(logprobs: Any) -> list[dict[str, Any]]:
    """Return the tokens of a chat or of the older completions as `Logprob`s."""
    if not logprobs:
        return []
    if "tokens" not in logprobs:
        return list(logprobs.get("content") or ())
    tokens = logprobs["tokens"]
    tops = logprobs.get("top_logprobs") or [{}] * len(tokens)
    return [
        {
            "token": token,
            "logprob": logprob,
            "top_logprobs": [{"token": one, "logprob": its} for one, its in (top or {}).items()],
        }
        for token, logprob, top in zip(tokens, logprobs["token_logprobs"], tops, strict=True)
    ]


def _counts(usage: Any) -> dict[str, int]:
    """Return the counts of an answer or chunk. Raises TypeError: they are not whole numbers."""
    counts = {name: usage[name] for name in _COUNTS if name in usage} if usage else {}
    if not all(isinstance(count, int) and count >= 0 for count in counts.values()):
        raise TypeError("its usage has other counts than whole numbers")
    return counts


def _vector(value: Any) -> np.ndarray:
    if isinstance(value, str):
        return np.frombuffer(base64.b64decode(value, validate=True), "<f4")
    return np.asarray(value, np.float32)


def _message(error: Any) -> object:
    return error.get("message", error) if isinstance(error, dict) else error
