"""Payload: what stands in the graph for an answer that lies in a memory of its workers' own."""

from __future__ import annotations

from typing import Any

from pipeline.errors import PayloadTypeError


class Payload:
    """A handle of an answer, passed on unopened to Ops whose workers can read its memory.

    A class to derive from and no Protocol: users' own data may well have a method `open`.
    """

    __slots__ = ()

    def open(self, copy: bool = True) -> Any:
        """Return what is in it: private and writable or, with `copy` False, perhaps only a view.

        Raises:
            PayloadTypeError: it cannot be opened in this process.
        """
        raise NotImplementedError

    @property
    def byte_size(self) -> int:
        """Return about how many bytes it holds."""
        return 0


class MemoryDomain:
    """The memory that workers read payloads from; this one is the server's own objects.

    Ops whose workers have the same domain hand each other payloads unopened.
    """

    def serialize(self, payload: Any) -> Any:
        """Return what several Ops of this domain can read; raises PipelineError."""
        return payload


LOCAL: MemoryDomain = MemoryDomain()
"""The domain of workers that run in the server's process."""


def opened(answer: Any, copy: bool = True) -> Any:
    """Return what is in a Payload, or the error that kept it shut; anything else as it is."""
    if not isinstance(answer, Payload):
        return answer
    try:
        return answer.open(copy)
    except PayloadTypeError as error:
        return error
