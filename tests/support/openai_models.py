"""A pipeline behind OpenAI's API: it says word by word, or at once, what it was asked."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
from doubles import server_for

from pipeline import Op, PipelineServer, ProductError, RequestOp

OPTIONS = {
    "models": {
        "echo": {"keys": {"max_tokens": "most"}},
        "talks": {"kind": "chat", "messages": "messages"},
        "places": {"kind": "embedding"},
    }
}


class Says(Op):
    """Says the words of the prompt again, at most `most`, and what else it was asked."""

    def __init__(self, schema: Any = None, **config: Any) -> None:
        super().__init__("says", [RequestOp(schema=schema)], **config)

    def preprocess(self, input_dicts: Any, data_id: int = 0, log_id: int = 0) -> Any:
        (fields,) = input_dicts.values()
        return fields, False, None, ""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        (fields,) = fetch_data if isinstance(fetch_data, list) else [fetch_data]
        return self.answer(fields), None, ""

    def answer(self, fields: Any) -> Any:
        if "input" in fields:
            size = fields.get("dimensions", 4)
            vector = np.arange(size, dtype=np.float32) + len(fields["input"])
            return {"embedding": vector, "prompt_tokens": 1}
        if fields.get("prompt") == "raise":
            raise ValueError("of the user")
        if fields.get("prompt") == "product":
            raise ProductError(51, "nothing to say")
        if "messages" in fields:
            return {"text": "; ".join(str(each["content"]) for each in fields["messages"])}
        words = fields["prompt"].split()[: fields.get("most", 100)]
        names = ("temperature", "stop", "seed", "more")
        more = {name: fields[name] for name in names if name in fields}
        text = " ".join(words) + (f" {more}" if more else "")
        counts = {"prompt_tokens": len(fields["prompt"].split()), "completion_tokens": len(words)}
        reason = "length" if len(words) < counts["prompt_tokens"] else "stop"
        return {"text": text, "finish_reason": reason, **counts}


class SaysByWord(Says):
    """Says each word as a part."""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        (fields,) = fetch_data if isinstance(fetch_data, list) else [fetch_data]
        if "input" in fields:
            yield self.answer(fields), None, ""
            return
        answer = self.answer({**fields, "prompt": fields["prompt"].replace("late ", "")})
        for at, word in enumerate(answer["text"].split()):
            if at == 2 and fields["prompt"].startswith("late "):
                raise ProductError(52, "out of words")
            yield {**answer, "text": f" {word}", "completion_tokens": at + 1}, None, ""


class SaysPrompt(Op):
    """Answers a chat with the parts that its last message has, a JSON list of dicts.

    A part that is a text is an error. What it was asked is in `asked`.
    """

    def __init__(self) -> None:
        super().__init__("says", [RequestOp()])
        self.asked: list[Any] = []

    def preprocess(self, input_dicts: Any) -> Any:
        (fields,) = input_dicts.values()
        self.asked.append(fields)
        return fields

    def process(self, feed_batch: Any) -> Any:
        for part in json.loads(feed_batch[0]["messages"][-1]["content"]):
            if isinstance(part, str):
                raise ProductError(52, part)
            yield part


class SaysAllAtOnce(SaysPrompt):
    """Answers with the first of those parts alone."""

    def process(self, feed_batch: Any) -> Any:
        return json.loads(feed_batch[0]["messages"][-1]["content"])[0]


BEGUN: queue.SimpleQueue[str] = queue.SimpleQueue()
"""The prompt of each generator of a SaysParts that began."""

ENDED: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
"""The prompt of each generator of a SaysParts, and what became of it: "ended", or "closed"."""


class SaysParts(Says):
    """Says the texts of a JSON list, each as a part; for any other text the same word forever."""

    def postprocess(self, input_data: Any, fetch_data: Any, *args: Any) -> Any:
        (fields,) = fetch_data if isinstance(fetch_data, list) else [fetch_data]
        prompt, became = fields["prompt"], "closed"
        BEGUN.put(prompt)
        try:
            texts = json.loads(prompt) if prompt.startswith("[") else iter(lambda: prompt, None)
            for at, text in enumerate(texts):
                yield {"text": text, "prompt_tokens": 3, "completion_tokens": at + 1}, None, ""
            yield {"finish_reason": "length"}, None, ""
            became = "ended"
        finally:
            ENDED.put((prompt, became))


def wait_until_begun(prompt: str) -> None:
    """Wait until the generator of a prompt is under way."""
    while BEGUN.get(timeout=60) != prompt:
        pass


def became_of(prompt: str, count: int = 1) -> list[str]:
    """Wait for so many generators of a prompt; return what became of them."""
    found: list[str] = []
    while len(found) < count:
        asked, became = ENDED.get(timeout=60)
        found += [became] if asked == prompt else []
    return found


def openai_server(op: Op | None = None, options: Any = OPTIONS, **config: Any) -> PipelineServer:
    """A prepared server on free ports, called "says"; use it as a context manager."""
    return server_for(op or Says(), name="says", frontends={"openai": options}, **config)


@contextlib.contextmanager
def client_of(server: PipelineServer) -> Iterator[openai.OpenAI]:
    """The official client, which asks once alone."""
    url = f"http://127.0.0.1:{server.http_port}/v1"
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=60) as client:
        yield client
