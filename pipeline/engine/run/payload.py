"""Stand-ins for answers: Payload, an answer in the workers' memory; Absent, no answer."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pipeline.errors import GraphError, OverloadedError, PayloadTypeError

ALIGNMENT = 64
"""Bytes of a cache line; vector instructions need this alignment."""


class Payload:
    """A handle of an answer, passed on unopened to Ops whose workers can read its memory.

    A base class and not a Protocol, because users' own data may have a method `open`.
    """

    __slots__ = ()

    def open(self, copy: bool = True, bytes_as_views: bool = False) -> Any:
        """Return the answer: private and writable or, if not `copy`, perhaps only a view.

        With `bytes_as_views` its large bytes may be read-only memoryviews.

        Raises:
            PayloadTypeError: it cannot be opened in this process.
        """
        raise NotImplementedError

    @property
    def byte_size(self) -> int:
        """Return roughly how many bytes it holds."""
        return 0


class MemoryDomain:
    """The memory that workers read payloads from; this class stands for the server's own objects.

    Ops whose workers share a domain pass payloads to each other unopened.
    """

    is_mapped: ClassVar[bool] = False
    """True if other processes of this machine read it in place."""

    def serialize(self, payload: Any) -> Any:
        """Return a form that all Ops of this domain can read; raises PipelineError."""
        return payload

    def place(self, size: int, aligned_at: int = 0) -> np.ndarray[Any, Any]:
        """Return `size` bytes of uninitialised memory to receive a body in.

        Arrays on it are ordinary arrays, and keep the memory alive. An array of any dtype may begin
        at its byte `aligned_at`.

        Raises:
            OverloadedError: there is no memory left.
        """
        pad = -aligned_at % ALIGNMENT
        try:
            whole = np.empty(size + pad + ALIGNMENT, np.uint8)
        except MemoryError as error:
            text = f"there is not enough memory to receive {size} bytes"
            raise OverloadedError(text) from error
        start = pad + -whole.__array_interface__["data"][0] % ALIGNMENT
        return whole[start : start + size]


LOCAL: MemoryDomain = MemoryDomain()
"""The domain of workers that run in the server's process."""


def opened(answer: Any, copy: bool = True, bytes_as_views: bool = False) -> Any:
    """Return the content of a Payload, or the error of opening it; any other value unchanged.

    See `Payload.open`.
    """
    if not isinstance(answer, Payload):
        return answer
    try:
        return answer.open(copy, bytes_as_views)
    except PayloadTypeError as error:
        return error


class Absent:
    """Replaces an answer that will not come, because it went elsewhere.

    Args:
        by: names of the Ops that sent their answers elsewhere.
    """

    __slots__ = ("by",)

    def __init__(self, by: tuple[str, ...]) -> None:
        self.by: tuple[str, ...] = by

    def at_the_end(self) -> GraphError:
        """Return the error of a request of which nothing reaches the ResponseOp."""
        by = ", ".join(map(repr, self.by))
        return GraphError(
            f"the request got lost in the graph: what {by} answered went to no Op that leads to "
            "the ResponseOp. Check Goto, or jump_to_ops."
        )


def present(inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs without Absents; if all are absent, one Absent that names all causes."""
    for part in inputs.values():
        if type(part) is Absent:
            break
    else:
        return inputs
    values = {name: part for name, part in inputs.items() if type(part) is not Absent}
    if values:
        return values
    by = dict.fromkeys(name for part in inputs.values() for name in part.by)
    return {next(iter(inputs)): Absent(tuple(by))}
