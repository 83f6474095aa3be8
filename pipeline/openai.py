"""Types of requests and answers of Ops behind `frontends: openai`.

An Op gets a request's fields with the names of OpenAI's API, and answers, at once or in parts, with
the keys of `Delta`. At run time all of these are plain dicts, so they pass between processes and
servers as any other answer does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict

import orjson

from pipeline.errors import ErrorCode, ProductError
from pipeline.schema.json_schema import fault_in

# Answers of an Op -------------------------------------------------------------------------------


class FunctionCall(TypedDict, total=False):
    """The function that a model calls; in parts, `arguments` is JSON that grows.

    Source: OpenAI's API reference, `chat.completion.chunk`, `delta.tool_calls[].function`.
    """

    name: str
    arguments: str


class ToolCall(TypedDict, total=False):
    """A call of a tool, whole or as a delta; the first delta of a call has its name.

    `index` says which call a delta belongs to. Without it, a delta with a new `id`, or with a name,
    begins a call, and any other delta continues the last call. A call without an `id` gets one.
    Source: OpenAI's API reference, `chat.completion.chunk`, `delta.tool_calls`.
    """

    index: int
    id: str
    type: Literal["function"]
    function: FunctionCall


class TopLogprob(TypedDict, total=False):
    """A token that the model could have written instead. Source: see `Logprob`."""

    token: str
    logprob: float | None
    bytes: list[int] | None


class Logprob(TopLogprob, total=False):
    """A token that was written, with its log probability.

    Source: OpenAI's API reference, `chat.completion`, `choices[].logprobs.content`. Completions get
    the same in the older form: `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`. The first
    token of an echoed prompt has None.
    """

    top_logprobs: list[TopLogprob]


class Audio(TypedDict, total=False):
    """Sound; `data` is bytes, or text in base64. In parts, data and transcript grow.

    Source: OpenAI's API reference, `chat.completion`, `choices[].message.audio`.
    """

    id: str
    data: bytes | str
    transcript: str
    expires_at: int


class ImageURL(TypedDict, total=False):
    """URL of an image; `data:image/png;base64,...` contains the image itself."""

    url: str
    detail: str


class ImagePart(TypedDict, total=False):
    """An image in a request or an answer.

    Source: OpenAI's API reference, "Image content part". Answers have these under `images`, as in
    OpenRouter, LiteLLM and their clients; OpenAI's chats do not answer with images.
    """

    type: Literal["image_url"]
    image_url: ImageURL


class Usage(TypedDict, total=False):
    """Token counts, under the key `usage`, or the first two directly as keys of the answer.

    In a stream the latest counts are valid; they cover all parts so far. Source: OpenAI's API
    reference, `usage`.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Delta(TypedDict, total=False):
    """An answer, or one of its parts, which the client joins in order; all keys are optional.

    The option `text` of the model can rename `text`. Source: OpenAI's API reference,
    `chat.completion.chunk`; `reasoning_content` is the name in DeepSeek and vLLM.
    """

    text: str
    reasoning_content: str
    refusal: str
    tool_calls: list[ToolCall]
    logprobs: list[Logprob]
    audio: Audio
    images: list[ImagePart]
    annotations: list[dict[str, Any]]
    function_call: FunctionCall
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    usage: Usage
    prompt_tokens: int
    completion_tokens: int


# Requests to an Op ------------------------------------------------------------------------------


class Message(TypedDict, total=False):
    """A message of a chat; `content` is text, or a list of parts such as `ImagePart`.

    Source: OpenAI's API reference, "Create chat completion", `messages`.
    """

    role: str
    content: str | list[dict[str, Any]] | None
    name: str
    tool_calls: list[ToolCall]
    tool_call_id: str
    reasoning_content: str


class Function(TypedDict, total=False):
    """Name and arguments of a tool; `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None


class Tool(TypedDict, total=False):
    """A tool that a model may call.

    Source: OpenAI's API reference, "Create chat completion", `tools`.
    """

    type: Literal["function"]
    function: Function


class JsonSchema(TypedDict, total=False):
    """The JSON schema for an answer; see `ResponseFormat`."""

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool | None


class ResponseFormat(TypedDict, total=False):
    """The form of an answer: any JSON, or JSON that fits a schema.

    Source: OpenAI's API reference, "Create chat completion", `response_format`.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema


class ChatRequest(TypedDict, total=False):
    """A chat as its Op gets it if the model's options have `messages: messages`.

    `max_completion_tokens` arrives as `max_tokens`, `stop` as a list; arguments that are null, or
    have no effect, are left out. Each of `n` choices is a request of its own. Source: OpenAI's API
    reference, "Create chat completion".
    """

    messages: list[Message]
    tools: list[Tool]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    response_format: ResponseFormat
    logprobs: bool
    top_logprobs: int
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: list[str]
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[str, float]
    modalities: list[str]
    audio: dict[str, Any]
    reasoning_effort: str
    verbosity: str
    web_search_options: dict[str, Any]


ChatRequest.__extra_items__ = Any  # type: ignore[attr-defined]  # PEP 728: other keys are kept


# The requested form of an answer ----------------------------------------------------------------


def held_to_format(
    ask: ChatRequest, write: Callable[[ChatRequest], Delta], key: str = "text"
) -> Delta:
    """Return the answer of `write` to a chat, checked against the form that the chat asks for.

    The form is JSON that fits `response_format`, or `tool_calls` whose arguments fit `parameters`.
    If an answer does not fit, `write` is asked once more, with the fault in the chat. Token counts
    are the sum of both turns. `write` is the Op's own function, and may constrain its decoding.

    Args:
        ask: a chat with `messages`.
        write: returns a whole answer.
        key: key of the text in the answer.

    Raises:
        ProductError: the second answer does not fit either.
        PackageError: the caller's schema cannot be checked.
    """
    answer = write(ask)
    if not (fault := fault_of(ask, answer, key)):
        return answer
    again = write(repair_of(ask, answer, fault, key))
    for name in ("usage", "prompt_tokens", "completion_tokens"):
        if answer.get(name) is not None:
            again[name] = _sum_of(answer[name], again.get(name))
    if fault := fault_of(ask, again, key):
        text = f"the model's second answer does not fit the requested form either: {fault}"
        raise ProductError(ErrorCode.PRODUCT_ERROR, text, status=502)
    return again


def _sum_of(one: Any, other: Any) -> Any:
    """Return the sum of two counts, or of two objects of counts; if one is missing, the other."""
    if other is None or one is None:
        return one if other is None else other
    if not isinstance(one, Mapping):
        return one + other
    return {**other, **{name: _sum_of(count, other.get(name)) for name, count in one.items()}}


def fault_of(ask: ChatRequest, answer: Delta, key: str = "text") -> str:
    """Return the first fault of an answer, with its path; "": the answer fits the chat.

    Raises:
        PackageError: the caller's schema cannot be checked.
    """
    if calls := answer.get("tool_calls"):
        schemas = {
            tool["function"]["name"]: tool["function"].get("parameters") or True
            for tool in ask.get("tools", ())
            if tool["type"] == "function"
        }
        faults = (_fault_of_call(call, schemas) for call in calls if "function" in call)
        return next(filter(None, faults), "")
    form = ask.get("response_format", {})
    if form.get("type") not in ("json_object", "json_schema"):
        return ""
    schema = (form.get("json_schema") or {}).get("schema")
    return _fault_in_json(answer.get(key), {"type": "object"} if schema is None else schema)


def repair_of(ask: ChatRequest, answer: Delta, fault: str, key: str = "text") -> ChatRequest:
    """Return the chat with a faulty answer and the request to repair it."""
    calls = answer.get("tool_calls")
    text = str(answer.get(key) or "") if calls is None else orjson.dumps(calls).decode()
    turns: list[Message] = [
        {"role": "assistant", "content": text},
        {"role": "user", "content": f"That does not fit: {fault}. Answer again, with all of it."},
    ]
    return {**ask, "messages": [*ask["messages"], *turns]}


def _fault_of_call(call: ToolCall, schemas: Mapping[str, Any]) -> str:
    function = call["function"]
    if (name := function.get("name", "")) not in schemas:
        return f"there is no tool {name!r}"
    fault = _fault_in_json(function.get("arguments") or "{}", schemas[name])
    return f"arguments of {name}: {fault}" if fault else ""


def _fault_in_json(text: Any, schema: Any) -> str:
    try:
        value = orjson.loads(text)
    except (ValueError, TypeError) as error:
        return f"it is not JSON ({error})"
    return fault_in(value, schema)
