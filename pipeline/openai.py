"""Types of what Ops behind `frontends: openai` are asked and answer: plain dicts, as everywhere.

An Op gets a request's fields as OpenAI's API names them, and answers, at once or part by part, with
the keys of `Delta`. At run time all of these are dicts: they pass processes, servers and links as
any other answer does.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

# What an Op answers -----------------------------------------------------------------------------


class FunctionCall(TypedDict, total=False):
    """The function that a model calls; in parts, `arguments` is JSON that grows.

    Source: OpenAI's API reference, `chat.completion.chunk`, `delta.tool_calls[].function`.
    """

    name: str
    arguments: str


class ToolCall(TypedDict, total=False):
    """A call of a tool, whole or as a delta; the first delta of a call has its name.

    `index` says which call a delta belongs to. Without it, a delta with an `id` that is new, or
    with a name, begins a call, and any other one goes on with the last. A call without an `id` gets
    one. Source: OpenAI's API reference, `chat.completion.chunk`, `delta.tool_calls`.
    """

    index: int
    id: str
    type: Literal["function"]
    function: FunctionCall


class TopLogprob(TypedDict, total=False):
    """A token that might have been written in the place of another. Source: see `Logprob`."""

    token: str
    logprob: float
    bytes: list[int] | None


class Logprob(TopLogprob, total=False):
    """A token that was written, with its log probability.

    Source: OpenAI's API reference, `chat.completion`, `choices[].logprobs.content`. Completions are
    told the same in the older form, `tokens`, `token_logprobs`, `top_logprobs`, `text_offset`.
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
    """Place of a picture; `data:image/png;base64,...` has the picture itself."""

    url: str
    detail: str


class ImagePart(TypedDict, total=False):
    """A picture, asked or answered.

    Source: OpenAI's API reference, "Image content part"; answers have `images` of these as
    OpenRouter, LiteLLM and their clients do: OpenAI's chats answer with none.
    """

    type: Literal["image_url"]
    image_url: ImageURL


class Usage(TypedDict, total=False):
    """Counts of tokens: under the key `usage`, or each of the first two as a key of the answer.

    In a stream the latest counts hold, and are those of all parts so far. Source: OpenAI's API
    reference, `usage`.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class Delta(TypedDict, total=False):
    """An answer, or one of its parts, of which all go behind each other; all keys are optional.

    `text` may have another name (`text` of the model's options). Source: OpenAI's API reference,
    `chat.completion.chunk`; `reasoning_content` is DeepSeek's name, and vLLM's.
    """

    text: str
    reasoning_content: str
    refusal: str
    tool_calls: list[ToolCall]
    logprobs: list[Logprob]
    audio: Audio
    images: list[ImagePart]
    annotations: list[dict[str, Any]]
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    usage: Usage
    prompt_tokens: int
    completion_tokens: int


# What an Op is asked ----------------------------------------------------------------------------


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
    """The JSON schema that an answer is to have; see `ResponseFormat`."""

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool | None


class ResponseFormat(TypedDict, total=False):
    """Form that an answer is to have: JSON of any kind, or of a schema.

    Source: OpenAI's API reference, "Create chat completion", `response_format`.
    """

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema


class ChatRequest(TypedDict, total=False):
    """A chat as its Op gets it, where the model's options have `messages: messages`.

    `max_completion_tokens` comes as `max_tokens`, `stop` as a list; arguments that are null, or ask
    for nothing, do not come. Each of `n` choices is a request of its own. Source: OpenAI's API
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
