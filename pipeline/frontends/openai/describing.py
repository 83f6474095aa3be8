"""Paths below `/v1`, as /openapi.json has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.frontends.api.openapi import Described
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
        "output": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
}
_ASKED = {"response": "chat"}  # kinds of models, where not the same
_HELLO = {"role": "user", "content": "hello"}


def described(models: Mapping[str, ModelOptions]) -> Described:
    """Return the paths that answer for models, and the types of what they take and answer."""
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
        "OpenAIModels": _list_of(_reference("OpenAIModel")),
    }
    messages = {"type": "array", "items": _MESSAGE, "minItems": 1}
    kinds: list[tuple[str, str, str, Any, Any, Mapping[str, Any]]] = [
        ("chat", "/v1/chat/completions", "messages", messages, [_HELLO], _CHAT_ARGUMENTS),
        ("completion", "/v1/completions", "prompt", _TEXTS, "hello", _ARGUMENTS),
        ("response", "/v1/responses", "input", _INPUT, "hello", _RESPONSE_ARGUMENTS),
        (
            "embedding",
            "/v1/embeddings",
            "input",
            _TEXTS,
            "hello",
            {"encoding_format": {"enum": ["float", "base64"]}, "dimensions": _COUNT},
        ),
    ]
    answers = {
        "chat": "OpenAIChat",
        "completion": "OpenAICompletion",
        "response": "OpenAIResponse",
    }
    paths: dict[str, Any] = {}
    for kind, path, name, schema, example, arguments in kinds:
        if ids := [
            model_id for model_id, model in models.items() if _ASKED.get(kind, kind) in model.kinds
        ]:
            answer = answers.get(kind, "OpenAIEmbeddings")
            body = _body(ids, {name: schema, **arguments}, {name: example})
            paths[path] = {"post": _post(f"openai_{kind}", body, answer, kind in answers)}
    about = {"summary": "Say which models there are", "tags": ["OpenAI"]}
    paths["/v1/models"] = {
        "get": {"operationId": "openai_models", **about, **_said("OpenAIModels")}
    }
    return Described(paths, components)


def _body(ids: Sequence[str], properties: Mapping[str, Any], example: Mapping[str, Any]) -> Any:
    """Return the schema of a request; other keys are the pipeline's, or refused."""
    schema = {
        "type": "object",
        "required": ["model", *example],
        "properties": {"model": {"type": "string", "enum": [*ids]}, **properties},
        "additionalProperties": True,
    }
    return {"schema": schema, "example": {"model": ids[0], **example}}


def _post(name: str, body: Any, answer: str, streams: bool) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": "Ask as clients of OpenAI's API do",
        "tags": ["OpenAI"],
        "requestBody": {"required": True, "content": {"application/json": body}},
        **_said(answer, streams),
    }


def _said(answer: str, streams: bool = False) -> dict[str, Any]:
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


def _list_of(schema: Any) -> dict[str, Any]:
    data = {"type": "array", "items": schema}
    return {
        "type": "object",
        "required": ["object", "data"],
        "properties": {"object": _TEXT, "data": data},
    }


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
