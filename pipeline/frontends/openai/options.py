"""Options of the frontend `openai`: its models, and how each stands for a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct


class ModelOptions(Struct, frozen=True, kw_only=True):
    """`frontends.openai.models.<id>`: one model, and the pipeline that answers for it."""

    pipeline: Annotated[
        str | None, "Name of the pipeline; absent: the one named like the id, or the only one."
    ] = None
    kind: Annotated[
        Literal["text", "chat", "completion", "embedding", "transcription", "image"],
        "What the model answers: text (chats and completions), chat, completion, embedding, "
        "transcription or image.",
    ] = "text"
    prompt: Annotated[str, "Request key for the prompt, or for a chat as text."] = "prompt"
    messages: Annotated[
        str | None,
        "Request key for the messages of a chat as a list; absent: they become a prompt.",
    ] = None
    input: Annotated[str, "Request key for a text to embed."] = "input"
    text: Annotated[str, "Answer key, also of each stream part, with the text."] = "text"
    embedding: Annotated[str, "Answer key with the embedding."] = "embedding"
    supports: Annotated[
        Sequence[
            Literal[
                "tools",
                "json_object",
                "json_schema",
                "logprobs",
                "echo",
                "suffix",
                "tokens",
                "images",
                "audio",
                "files",
                "web_search",
            ]
        ]
        | None,
        "Optional arguments that the Op uses; others are refused; absent: the Op gets all.",
    ] = None
    audio: Annotated[str, "Request key for an audio file, as bytes."] = "audio"
    image: Annotated[str, "Answer key with an image: the bytes of a file, or a URL."] = "image"
    keys: Annotated[
        Mapping[str, str], "Request keys for OpenAI's arguments: {max_tokens: most}."
    ] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what it answers; `text` is "chat" and "completion"."""
        return (self.kind,) if self.kind != "text" else ("chat", "completion")


class OpenAIOptions(Struct, frozen=True, kw_only=True):
    """`frontends.openai`: OpenAI's API on the HTTP port."""

    models: Annotated[
        Mapping[str, ModelOptions],
        "One mapping for each model, by its id; empty: each pipeline is a model of kind text.",
    ] = {}
    stored_responses: Annotated[
        int,
        "Maximum number of responses kept for `previous_response_id`, the newest ones; 0: none.",
        Meta(ge=0, le=1_000_000),
    ] = 0
