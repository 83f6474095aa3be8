"""Output: what a chat says, as items behind each other, for APIs that answer with lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.openai import Delta

TEXTS = ("reasoning_content", "text", "refusal")
"""Kinds of items that are texts; others are kinds of tools, `function` and `custom`."""

_WRITTEN = {"function": "arguments", "custom": "input"}


class OutputItem:
    """A text of one kind, or a call of a tool, which grows.

    Args:
        kind: one of `TEXTS`, or of tools.
        index: its place in the output.
        call_id: of a call.
        name: of the tool.
    """

    def __init__(self, kind: str, index: int, call_id: str = "", name: str = "") -> None:
        self.kind = kind
        self.index = index
        self.call_id = call_id
        self.name = name
        self.id: str = os.urandom(16).hex()
        self.pieces: list[str] = []
        self.logprobs: list[Any] = []
        self.annotations: list[Any] = []
        self.is_open: bool = True

    @property
    def text(self) -> str:
        """Return the text, or what the tool is called with, as far as it is there."""
        return "".join(self.pieces)


class ItemChange(NamedTuple):
    """A change of an item: it begins, `text` is more of it, or it ends."""

    act: Literal["begin", "grow", "end"]
    item: OutputItem
    text: str = ""
    logprobs: Sequence[Any] = ()


class Output:
    """Items of what a chat says, at once or part by part; each ends where the next one begins.

    Attributes:
        items: all of them, in order.
        size: characters of all of them.
    """

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self.size: int = 0
        self._calls: dict[int, OutputItem] = {}

    def take(self, delta: Delta) -> Iterator[ItemChange]:
        """Take more of what is said; yield the steps that it makes."""
        said: Mapping[str, Any] = delta
        for kind in TEXTS:
            if text := said.get(kind):
                yield from self._text(kind, text, said)
        if not said.get("text"):
            self._note(said)
        for at, call in enumerate(said.get("tool_calls", ())):
            yield from self._call(call.get("index", at), call)

    def end(self) -> Iterator[ItemChange]:
        """End the last item."""
        for item in self.items[-1:]:
            item.is_open = False
            yield ItemChange("end", item)

    def _text(self, kind: str, text: str, said: Mapping[str, Any]) -> Iterator[ItemChange]:
        if not self.items or self.items[-1].kind != kind:
            yield from self._begun(OutputItem(kind, len(self.items)))
        item, logprobs = self.items[-1], []
        if kind == "text":
            logprobs = said.get("logprobs", [])
            item.logprobs += logprobs
            item.annotations += said.get("annotations", ())
        yield self._grown(item, text, logprobs)

    def _note(self, said: Mapping[str, Any]) -> None:
        """Take what is said of the last text behind it."""
        for item in reversed(self.items):
            if item.kind == "text":
                item.logprobs += said.get("logprobs", ())
                item.annotations += said.get("annotations", ())
                return

    def _call(self, index: int, call: Mapping[str, Any]) -> Iterator[ItemChange]:
        if (item := self._calls.get(index)) is None:
            kind = call["type"]
            item = OutputItem(kind, len(self.items), call["id"], call[kind]["name"])
            self._calls[index] = item
            yield from self._begun(item)
        if text := call[item.kind].get(_WRITTEN[item.kind]):
            yield self._grown(item, text)

    def _grown(self, item: OutputItem, text: str, logprobs: Sequence[Any] = ()) -> ItemChange:
        item.pieces.append(text)
        self.size += len(text)
        return ItemChange("grow", item, text, logprobs)

    def _begun(self, item: OutputItem) -> Iterator[ItemChange]:
        yield from self.end()
        self.items.append(item)
        yield ItemChange("begin", item)


def exhaust(steps: Iterable[ItemChange]) -> None:
    """Take steps that nobody is told of."""
    for _ in steps:
        pass
