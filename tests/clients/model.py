"""A language model that follows a script: the same request is answered in the same way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pipeline import Op, PipelineServer, ProductError, RequestOp, ResponseOp

OPTIONS = {
    "models": {
        "scripted": {"messages": "messages"},
        "vectors": {"kind": "embedding"},
    }
}
WORDS = ("Hello", " from", " the", " scripted", " model")
LOGPROB = -0.25


class Scripted(Op):
    """Writes in parts: a call of the first tool, an instance of the schema, else `WORDS`."""

    def __init__(self, name: str, inputs: Any) -> None:
        super().__init__(name, inputs)
        self._refused: set[str] = set()

    def preprocess(self, input_dicts: Any) -> Any:
        (asked,) = input_dicts.values()
        return asked

    def process(self, feed_batch: Any, log_id: int = 0) -> Iterator[Any]:
        (asked,) = feed_batch
        if "input" in asked:
            yield embedding_of(asked)
            return
        said = last_message(asked)
        if said == "refuse":
            raise ProductError(51, "the script says no")
        if said.startswith("busy") and said not in self._refused:
            self._refused.add(said)
            raise ProductError(52, "busy, once", status=429, headers={"Retry-After": "1"})
        parts = parts_of(asked)
        yield from parts if said != "fail late" else itertools.islice(parts, 2)
        if said == "fail late":
            raise ProductError(53, "the script breaks off")


def parts_of(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the parts that a request is answered with, the last one with its finish_reason."""
    tools, messages = asked.get("tools"), asked.get("messages", ())
    is_answered = bool(messages) and messages[-1]["role"] == "tool"
    counts = {"prompt_tokens": len(last_message(asked).split())}
    if tools and not is_answered and asked.get("tool_choice") != "none":
        yield from calls_of(asked)
        yield {"finish_reason": "tool_calls", **counts, "completion_tokens": 9}
        return
    words = list(words_of(asked, messages[-1]["content"] if is_answered else None))
    for count, word in enumerate(words, 1):
        more = {"logprobs": [logprob_of(word)]} if asked.get("logprobs") else {}
        yield {"text": word, **more, **counts, "completion_tokens": count}
    is_cut = len(words) < len(WORDS) and len(words) == asked.get("max_tokens")
    yield {"finish_reason": "length" if is_cut else "stop"}


def calls_of(asked: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the deltas of a call: of the tool that the request names, else of the first."""
    tools = {each["function"]["name"]: each["function"] for each in asked["tools"]}
    choice = asked.get("tool_choice")
    name = choice["function"]["name"] if isinstance(choice, dict) else next(iter(tools))
    text = json.dumps(instance_of(tools[name].get("parameters") or {}))
    head = {"id": "call_1", "type": "function"}
    yield {"tool_calls": [{"index": 0, **head, "function": {"name": name, "arguments": ""}}]}
    for at in range(0, len(text), 8):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": text[at : at + 8]}}]}


def words_of(asked: Mapping[str, Any], told: str | None) -> Iterator[str]:
    """Yield the words of an answer; `told`: what a tool said, which is said again."""
    form = asked.get("response_format") or {}
    if form.get("type") == "json_schema":
        text = json.dumps(instance_of(form["json_schema"]["schema"]))
        yield from (text[at : at + 8] for at in range(0, len(text), 8))
    elif form.get("type") == "json_object":
        yield from ('{"name": ', '"Ada", ', '"age": 36}')
    elif told is not None:
        yield from ("The tool says: ", str(told))
    else:
        most = asked.get("max_tokens") or len(WORDS)
        is_long = asked.get("ignore_eos") or asked.get("min_tokens")
        yield from itertools.islice(
            itertools.cycle(WORDS), most if is_long else min(most, len(WORDS))
        )


def last_message(asked: Mapping[str, Any]) -> str:
    """Return the last message as text, or the prompt."""
    said = asked["messages"][-1].get("content") if "messages" in asked else asked["prompt"]
    if isinstance(said, list) and said and isinstance(said[0], dict):
        said = "".join(part.get("text", "") for part in said)
    return str(said)


def instance_of(schema: Any, root: Any = None) -> Any:
    """Return a value that fits a JSON schema of the usual kinds."""
    root = root or schema
    if "$ref" in schema:
        return instance_of(root["$defs"][schema["$ref"].rpartition("/")[2]], root)
    if "const" in schema or schema.get("enum"):
        return schema.get("const", schema.get("enum", [None])[0])
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return instance_of(schema[key][0], root)
    kind = schema.get("type", "object")
    if kind == "object":
        return {
            name: instance_of(each, root) for name, each in schema.get("properties", {}).items()
        }
    if kind == "array":
        return [instance_of(schema.get("items", {}), root)]
    return {"string": "Ada", "integer": 36, "number": 0.5, "boolean": True}.get(kind)


def embedding_of(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return a vector whose first number is the length of the input."""
    vector = np.zeros(asked.get("dimensions") or 4, np.float32)
    vector[0] = len(asked["input"])
    return {"embedding": vector, "prompt_tokens": len(asked["input"])}


def logprob_of(word: str) -> dict[str, Any]:
    """Return the log probability of a word, and those of what else might stand there."""
    said = {"token": word, "logprob": LOGPROB, "bytes": list(word.encode())}
    return {**said, "top_logprobs": [said]}


def scripted_server(**config: Any) -> PipelineServer:
    """Return a prepared server on free ports; it is a context manager."""
    server = PipelineServer("scripted")
    server.set_response_op(ResponseOp(Scripted("scripted", RequestOp())))
    ports = {"rpc_port": 0, "http_port": 0}
    server.prepare_server(yml_dict={**ports, "frontends": {"openai": OPTIONS}, **config})
    return server
