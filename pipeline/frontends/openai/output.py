"""Output: a chat's answer as a list of items, for APIs that answer with lists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Literal, NamedTuple

from pipeline.errors import PayloadTypeError
from pipeline.frontends.openai.answers import is_complete
from pipeline.openai import Delta
from pipeline.proto.slices import weight

TEXTS = ("reasoning_content", "text", "refusal")
"""Kinds of text items; the other kinds are those of tools, `function` and `custom`."""

_ITEM_BYTES = 256
_WRITTEN = {"function": "arguments", "custom": "input"}


class OutputItem:
    """A text of one kind, or a tool call, that grows.

    Args:
        kind: one of `TEXTS`, or the kind of a tool.
        index: its place in the output.
        call_id: id of the tool call.
        name: name of the tool.
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
        """Return the text, or the arguments of the tool, up to now."""
        return "".join(self.pieces)


class ItemChange(NamedTuple):
    """A change of an item: it begins, it grows by `text`, or it ends."""

    act: Literal["begin", "grow", "end"]
    item: OutputItem
    text: str = ""
    logprobs: Sequence[Any] = ()


class Output:
    """Items of a chat's answer, whole or in parts.

    A text ends where the next item begins, a call with its arguments or with the answer: clients
    of both APIs know items by their index, so that a text may begin inside of a call.

    Attributes:
        items: in order.
        size: of what the events at the end of all items repeat, roughly, in bytes.
    """

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self.size: int = 0
        self._calls: dict[int, OutputItem] = {}
        self._open: list[OutputItem] = []

    def take(self, delta: Delta) -> Iterator[ItemChange]:
        """Add a delta; yield the changes that it makes."""
        fields: Mapping[str, Any] = delta
        for kind in TEXTS:
            if text := fields.get(kind):
                yield from self._add_text(kind, text, fields)
        if not fields.get("text"):
            self._add_notes(fields)
        for at, call in enumerate(fields.get("tool_calls", ())):
            yield from self._add_call(call.get("index", at), call)

    def grows_by(self, kinds: Set[str]) -> bool:
        """Return whether content of these kinds only makes the last item longer."""
        return not kinds or (bool(self.items) and kinds == {self.items[-1].kind})

    def end(self) -> Iterator[ItemChange]:
        """End all items."""
        yield from self._end(self._open)
        self._open = []

    def _end(self, items: Iterable[OutputItem]) -> Iterator[ItemChange]:
        for item in items:
            item.is_open = False
            yield ItemChange("end", item)

    def _add_text(self, kind: str, text: str, delta: Mapping[str, Any]) -> Iterator[ItemChange]:
        if not self.items or self.items[-1].kind != kind:
            yield from self._begun(OutputItem(kind, len(self.items)))
        item, logprobs = self.items[-1], []
        if kind == "text":
            logprobs = delta.get("logprobs", [])
            self._note(item, delta)
        yield self._grown(item, text, logprobs)

    def _add_notes(self, fields: Mapping[str, Any]) -> None:
        """Add log probabilities and annotations to the last text."""
        for item in reversed(self.items):
            if item.kind == "text":
                self._note(item, fields)
                return

    def _note(self, item: OutputItem, delta: Mapping[str, Any]) -> None:
        for notes, more in (
            (item.logprobs, delta.get("logprobs")),
            (item.annotations, delta.get("annotations")),
        ):
            if more:
                notes += more
                self.size += weight(more)

    def _add_call(self, index: int, call: Mapping[str, Any]) -> Iterator[ItemChange]:
        if (item := self._calls.get(index)) is None:
            kind = call["type"]
            item = OutputItem(kind, len(self.items), call["id"], call[kind]["name"])
            self._calls[index] = item
            yield from self._begun(item)
        text = call[item.kind].get(_WRITTEN[item.kind], "")
        if item.is_open and text:
            yield self._grown(item, text)
        elif text.strip():
            raise PayloadTypeError(f"the arguments of call {index} had ended")

    def _grown(self, item: OutputItem, text: str, logprobs: Sequence[Any] = ()) -> ItemChange:
        item.pieces.append(text)
        self.size += len(text)
        return ItemChange("grow", item, text, logprobs)

    def _begun(self, item: OutputItem) -> Iterator[ItemChange]:
        ended = [
            known
            for known in self._open
            if known.kind in TEXTS or (known.kind == "function" and is_complete(known.pieces))
        ]
        yield from self._end(ended)
        self._open = [*(known for known in self._open if known.is_open), item]
        self.size += _ITEM_BYTES + len(item.name)
        self.items.append(item)
        yield ItemChange("begin", item)


def exhaust(changes: Iterable[ItemChange]) -> None:
    """Make changes without sending them."""
    for _ in changes:
        pass
