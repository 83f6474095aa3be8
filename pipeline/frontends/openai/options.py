"""Options of the frontend `openai`: its models, and how each stands for a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct


class ModelOptions(Struct, frozen=True, kw_only=True):
    """`frontends.openai.models.<id>`: one model, and the pipeline that answers for it."""

    pipeline: Annotated[
        str | None, "Name of the pipeline; absent: the id's, or the only one that is there."
    ] = None
    kind: Annotated[
        Literal["text", "chat", "completion", "embedding", "transcription", "image"],
        "What it answers: text (chats and completions), chat, completion, embedding, transcription "
        "(text of a sound) or image.",
    ] = "text"
    prompt: Annotated[str, "Key of the request that gets the prompt, or a chat as text."] = "prompt"
    messages: Annotated[
        str | None, "Key that gets the messages of a chat as a list; absent: they become a prompt."
    ] = None
    input: Annotated[str, "Key of the request that gets a text to embed."] = "input"
    text: Annotated[str, "Key of the answer, or of each part, that has the text."] = "text"
    embedding: Annotated[str, "Key of the answer that has the embedding."] = "embedding"
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
        "What its Op heeds, of arguments that are refused elsewhere; absent: all reach the Op.",
    ] = None
    audio: Annotated[str, "Key of the request that gets a file of sound, as bytes."] = "audio"
    image: Annotated[str, "Key of the answer that has a picture: a file's bytes, or a URL."] = (
        "image"
    )
    keys: Annotated[
        Mapping[str, str], "Keys of the pipeline for arguments of OpenAI's: {max_tokens: most}."
    ] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Return what it answers; `text` is "chat" and "completion"."""
        return (self.kind,) if self.kind != "text" else ("chat", "completion")


class OpenAIOptions(Struct, frozen=True, kw_only=True):
    """`frontends.openai`: OpenAI's API on the HTTP port."""

    models: Annotated[
        Mapping[str, ModelOptions],
        "One mapping for each model, by its id; none: each pipeline is a model of kind text.",
    ] = {}
    stored_responses: Annotated[
        int,
        "Responses that are kept for `previous_response_id`, the newest of all; 0: none.",
        Meta(ge=0, le=1_000_000),
    ] = 0
