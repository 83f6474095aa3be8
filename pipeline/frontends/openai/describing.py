"""Paths below `/v1`, as /openapi.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.frontends.api.bodies import MULTIPART
from pipeline.frontends.api.openapi import Described
from pipeline.frontends.http.bodies import JSON
from pipeline.frontends.openai.arguments import MOST_CHOICES
from pipeline.frontends.openai.options import ModelOptions
from pipeline.frontends.openai.questions import MOST_TEXTS

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 0}
_TOKENS = {"type": "array", "items": _COUNT, "minItems": 1}
_TEXTS = {
    "anyOf": [
        _TEXT,
        _TOKENS,
        {"type": "array", "items": {"anyOf": [_TEXT, _TOKENS]}, "maxItems": MOST_TEXTS},
    ]
}
_ARGUMENTS: Mapping[str, Any] = {
    "max_tokens": _COUNT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
    "n": {"type": "integer", "minimum": 1, "maximum": MOST_CHOICES, "default": 1},
    "stream": {"type": "boolean", "default": False},
    "stream_options": {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_CHAT_ARGUMENTS: Mapping[str, Any] = {
    **_ARGUMENTS,
    "tools": _OBJECTS,
    "tool_choice": {"anyOf": [_TEXT, {"type": "object"}]},
    "response_format": {"type": "object", "required": ["type"], "properties": {"type": _TEXT}},
    "logprobs": {"type": "boolean"},
    "top_logprobs": _COUNT,
}
_USAGE = {
    "type": "object",
    "description": "sums of what the pipeline counts, else zeros",
    "properties": dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), _COUNT),
}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": _TEXT, "content": {}, "tool_calls": _OBJECTS},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"], "description": "the argument's path"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": _TEXT, "object": _TEXT, "created": {"type": "integer"}, "owned_by": _TEXT},
}
_INPUT = {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}, "minItems": 1}]}
_RESPONSE_ARGUMENTS: Mapping[str, Any] = {
    "instructions": _TEXT,
    "max_output_tokens": _COUNT,
    "temperature": _NUMBER,
    "top_p": _NUMBER,
    "previous_response_id": _TEXT,
    "stream": {"type": "boolean", "default": False},
}
_RESPONSE = {
    "type": "object",
    "required": ["id", "object", "status", "output"],
    "properties": {
        "id": _TEXT,
        "object": _TEXT,
        "status": {"enum": ["completed", "incomplete"]},
        "output": _OBJECTS,
        "usage": {"type": "object"},
    },
}
_HELLO = {"role": "user", "content": "hello"}


_MESSAGES = {"type": "array", "items": _MESSAGE, "minItems": 1}
_STREAM = {"stream": {"type": "boolean", "default": False}}


class _Path(NamedTuple):
    """A path: the kind of its models, its request body, and the type of its answer."""

    kind: str
    name: str
    properties: Mapping[str, Any]
    example: Mapping[str, Any]
    answer: str
    content_type: str = JSON
    owner: str = "OpenAI"


_PATHS: Mapping[str, _Path] = {
    "/v1/chat/completions": _Path(
        *("chat", "chat", {"messages": _MESSAGES, **_CHAT_ARGUMENTS}, {"messages": [_HELLO]}),
        "OpenAIChat",
    ),
    "/v1/completions": _Path(
        *("completion", "completion", {"prompt": _TEXTS, **_ARGUMENTS}, {"prompt": "hello"}),
        "OpenAICompletion",
    ),
    "/v1/responses": _Path(
        *("chat", "response", {"input": _INPUT, **_RESPONSE_ARGUMENTS}, {"input": "hello"}),
        "OpenAIResponse",
    ),
    "/v1/messages": _Path(
        *("chat", "message", {"messages": _MESSAGES, "max_tokens": _COUNT, **_STREAM}),
        {"max_tokens": 100, "messages": [_HELLO]},
        "AnthropicMessage",
        owner="Anthropic",
    ),
    "/v1/embeddings": _Path(
        *("embedding", "embedding"),
        {
            "input": _TEXTS,
            "encoding_format": {"enum": ["float", "base64"]},
            "dimensions": _COUNT,
        },
        {"input": "hello"},
        "OpenAIEmbeddings",
    ),
    "/v1/audio/transcriptions": _Path(
        *("transcription", "transcription"),
        {
            "file": {"type": "string", "contentMediaType": "application/octet-stream"},
            "language": _TEXT,
            "prompt": _TEXT,
            "temperature": _NUMBER,
            "response_format": {"enum": ["json", "text", "verbose_json"], "default": "json"},
        },
        {"file": ""},
        "OpenAITranscription",
        MULTIPART,
    ),
    "/v1/images/generations": _Path(
        *("image", "image"),
        {
            "prompt": _TEXT,
            "n": _ARGUMENTS["n"],
            "size": _TEXT,
            "response_format": {"enum": ["b64_json", "url"]},
        },
        {"prompt": "a cat"},
        "OpenAIImages",
    ),
}


def described(models: Mapping[str, ModelOptions]) -> Described:
    """Return the paths of the models' API, with the types of requests and answers."""
    components = {
        "OpenAIError": _ERROR,
        "OpenAIModel": _MODEL,
        "OpenAIChat": _answer("message", {**_MESSAGE, "description": "what was said"}),
        "OpenAICompletion": _answer("text", _TEXT),
        "OpenAIEmbeddings": _list_of(
            {
                "type": "object",
                "required": ["object", "index", "embedding"],
                "properties": {
                    "object": _TEXT,
                    "index": _COUNT,
                    "embedding": {"anyOf": [{"type": "array", "items": _NUMBER}, _TEXT]},
                },
            }
        ),
        "OpenAIResponse": _RESPONSE,
        "AnthropicMessage": _object("id", "type", "role", "model", content=_OBJECTS),
        "OpenAITranscription": _object(text=_TEXT),
        "OpenAIImages": _object(created={"type": "integer"}, data=_OBJECTS),
        "OpenAIModels": _list_of(_reference("OpenAIModel")),
    }
    paths: dict[str, Any] = {}
    for path, asked in _PATHS.items():
        if ids := [model_id for model_id, model in models.items() if asked.kind in model.kinds]:
            paths[path] = {"post": _post(asked, ids)}
    about = {"summary": "Say which models there are", "tags": ["OpenAI"]}
    paths["/v1/models"] = {
        "get": {"operationId": "openai_models", **about, **_responses("OpenAIModels")}
    }
    return Described(paths, components)


def _post(about: _Path, ids: Sequence[str]) -> dict[str, Any]:
    """Return the description of a POST; other keys of its body are the pipeline's, or refused."""
    schema = {
        "type": "object",
        "required": ["model", *about.example],
        "properties": {"model": {"type": "string", "enum": [*ids]}, **about.properties},
        "additionalProperties": True,
    }
    body: dict[str, Any] = {"schema": schema}
    if about.content_type == JSON:
        body["example"] = {"model": ids[0], **about.example}
    return {
        "operationId": f"openai_{about.name}",
        "summary": f"Ask as clients of {about.owner}'s API do",
        "tags": ["OpenAI"],
        "requestBody": {"required": True, "content": {about.content_type: body}},
        **_responses(about.answer, "stream" in about.properties),
    }


def _responses(answer: str, streams: bool = False) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _reference(answer)}}
    if streams:
        text = {"type": "string", "description": "with stream true: chunks, and [DONE]"}
        content["text/event-stream"] = {"schema": text}
    problem = {"application/json": {"schema": _reference("OpenAIError")}}
    return {
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "default": {"description": "An error in OpenAI's form.", "content": problem},
        }
    }


def _answer(key: str, schema: Any) -> dict[str, Any]:
    choice = {
        "type": "object",
        "required": ["index", key, "finish_reason"],
        "properties": {"index": _COUNT, key: schema, "finish_reason": _TEXT},
    }
    head = {"id": _TEXT, "object": _TEXT, "created": {"type": "integer"}, "model": _TEXT}
    return {
        "type": "object",
        "required": [*head, "choices"],
        "properties": {**head, "choices": {"type": "array", "items": choice}, "usage": _USAGE},
    }


def _object(*texts: str, **properties: Any) -> dict[str, Any]:
    properties |= dict.fromkeys(texts, _TEXT)
    return {"type": "object", "required": [*properties], "properties": properties}


def _list_of(schema: Any) -> dict[str, Any]:
    data = {"type": "array", "items": schema}
    return {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": _TEXT, "data": data},
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
