"""Inlet: the inputs of one Op for one request if any of them streams, joined part by part."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.engine.op.channel import own_dict
from pipeline.engine.run.payload import Absent, present
from pipeline.engine.streams.combine import PartCounter, StreamLimits
from pipeline.engine.streams.flow import ENDED, Part
from pipeline.errors import PipelineError, TooLargeError

if TYPE_CHECKING:
    from pipeline.engine.streams.dispatcher import StreamDispatcher


class Inlet:
    """Joins parts by their number, and repeats other inputs for each of them.

    Args:
        producers: the Ops that the Op reads, in its order.
        streaming: the names of the producers that stream.

    Attributes:
        number: of the next or current part.
        is_busy: whether the Op processes a part: the next one waits, to keep the order.
        has_failed: whether an error has ended it: later messages are ignored.
    """

    def __init__(self, producers: Sequence[str], streaming: Iterable[str]) -> None:
        self.number: int = 0
        self.is_busy: bool = False
        self.has_failed: bool = False
        self._producers = producers
        self._streaming = frozenset(streaming)
        self._parts: dict[str, deque[Any]] = {name: deque() for name in self._streaming}
        self._unary: dict[str, Any] = {}

    @property
    def has_streams(self) -> bool:
        """Return whether any input still streams, and is not absent."""
        return bool(self._parts)

    def take(self, producer: str, message: Any) -> None:
        """Take a message of a producer: a Part, ENDED, a PipelineError; or its only payload.

        Absent: nothing will come from it; in a Part: nothing comes this time.
        """
        if self.has_failed:
            return
        parts = self._parts.get(producer)
        if parts is None or isinstance(message, Absent):
            self._parts.pop(producer, None)
            self._unary[producer] = message
        else:
            parts.append(message)

    def begin_lap(self, again: Container[str]) -> None:
        """Forget what the producers `again` have sent; the error of another one comes again."""
        self.has_failed = False
        for name in self._producers:
            if name in again:
                self._unary.pop(name, None)
                if name in self._streaming:
                    self._parts[name] = deque()

    def next(self) -> Any:
        """Return the next inputs; ENDED; a PipelineError; None: something has not come yet.

        Absent: there is nothing to read for this part, or, instead of a dict, for the request.
        """
        heads = {name: parts[0] for name, parts in self._parts.items() if parts}
        for message in (*self._unary.values(), *heads.values()):
            if isinstance(message, PipelineError):
                return message
        if len(self._unary) + len(heads) < len(self._producers):
            return None
        if not heads:  # no producer streams: the inputs are one part
            return present(self._in_order(self._unary)) if not self.number else ENDED
        ended = [message is ENDED for message in heads.values()]
        if any(ended):
            return ENDED if all(ended) else PipelineError("a stream ended before another one")
        for name in heads:
            self._parts[name].popleft()
        payloads = {name: part.payload for name, part in heads.items()}
        if all(isinstance(payload, Absent) for payload in payloads.values()):
            return present(payloads)
        copies = {name: own_dict(payload) for name, payload in self._unary.items()}
        return present(self._in_order({**copies, **payloads}))

    def _in_order(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {name: inputs[name] for name in self._producers}


def inlet_of(node: StreamDispatcher, reads: Iterable[str]) -> Inlet:
    """Return a new inlet of an Op that reads these streams, among other inputs."""
    producers = node.channel.producers
    if node.op.pipeline_gathers:
        return GatherInlet(producers, reads, node.limits, node.name)
    return Inlet(producers, reads)


class GatherInlet(Inlet):
    """Collects all parts: the Op runs once, after all streams have ended.

    Args:
        limits: of the collected parts.
        op: the name of the Op, for the error.
    """

    def __init__(
        self, producers: Sequence[str], streaming: Iterable[str], limits: StreamLimits, op: str
    ) -> None:
        super().__init__(producers, streaming)
        self._kept = PartCounter()
        self._limits = limits
        self._op = op

    def take(self, producer: str, message: Any) -> None:
        if isinstance(message, Part) and not self.has_failed:
            if isinstance(message.payload, Absent):
                return
            if too_much := self._kept.add(message.payload, self._limits):
                message = TooLargeError(
                    f"Op {self._op!r} gathers the parts of a stream, and they are {too_much}"
                )
        super().take(producer, message)

    def begin_lap(self, again: Container[str]) -> None:
        super().begin_lap(again)
        self._kept = PartCounter()
        for message in itertools.chain(*self._parts.values()):
            if isinstance(message, Part):
                self._kept.add(message.payload, self._limits)

    def next(self) -> Any:
        ends = [parts[-1] if parts else None for parts in self._parts.values()]
        for message in (*self._unary.values(), *ends):
            if isinstance(message, PipelineError):
                return message
        is_whole = all(message is ENDED for message in ends)
        if not is_whole or len(self._unary) + len(ends) < len(self._producers):
            return None
        gathered = {
            name: [part.payload for part in parts if isinstance(part, Part)]
            for name, parts in self._parts.items()
        }
        return present(self._in_order({**self._unary, **gathered}))
