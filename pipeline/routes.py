"""Goto and Answer: a hook returns them instead of its answer, to decide where the answer goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.answer_head import AnswerHead, head_of
from pipeline.errors import GraphError, PayloadTypeError

if TYPE_CHECKING:
    from pipeline.op import Op


_STATUSES = (200, 299)


class Routed:
    """Base of answers that do not go to all readers of their Op; `answer` is the plain answer."""

    __slots__ = ("answer",)

    def __init__(self, answer: Any) -> None:
        self.answer: Any = answer


class Goto(Routed):
    """An answer for only some of the Ops that read it; the others learn that none will come.

        def postprocess(self, input_dicts, fetch_dict):
            return Goto(fetch_dict, "big") if is_unsure(fetch_dict) else Goto(fetch_dict, "out")

    A hook returns it where it may return its answer: `postprocess`; or `preprocess`, and then
    neither `process` nor `postprocess` runs for this request.

    Args:
        answer: the dict that the Op would return.
        to: names of Ops that read this one, or the Ops; several, a list, or none: then no Op gets
            it.
            Or one of the Op's `loop_to`, alone: it runs again, and reads this answer.
    """

    __slots__ = ("to",)

    def __init__(self, answer: Any, *to: str | Op | Iterable[str | Op]) -> None:
        super().__init__(answer)
        self.to: tuple[str, ...] = names_of_ops(*to)

    def __repr__(self) -> str:
        return f"Goto({self.answer!r}, {', '.join(map(repr, self.to))})"


class Answer(Routed):
    """The answer of the whole request, which ends here: no other Op runs for it.

    Any hook of an Op may return it; `process` for all requests of its call, with a row for each.

    Args:
        answer: the dict that the ResponseOp packs.
        status: over HTTP, 200 to 299 without 204 and 205, which have no body; None: 200.
        headers: of the answer over HTTP, such as Location; over gRPC they are trailing metadata.

    Raises:
        ValueError: an answer cannot have that status, or those headers.
    """

    __slots__ = ("head",)

    def __init__(
        self,
        answer: Any,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(answer)
        self.head: AnswerHead | None = head_of(status, headers or {}, *_STATUSES)

    def __repr__(self) -> str:
        return f"Answer({self.answer!r})"


def answer_with(answer: Any, head: AnswerHead | None) -> Answer:
    """Return an Answer whose head was checked before."""
    routed = Answer(answer)
    routed.head = head
    return routed


def checked(routed: Routed, method: str) -> Routed:
    """Return `routed`; raise PayloadTypeError if its answer is not a dict."""
    if not isinstance(routed.answer, dict):
        kind, answer_kind = type(routed).__name__, type(routed.answer).__name__
        raise PayloadTypeError(
            f"{method} returned {kind} with {answer_kind} in it: put a dict into it"
        )
    return routed


def names_of_ops(*given: Any) -> tuple[str, ...]:
    """Return the names of Ops that are given by name, as Ops, or as lists of these; each once."""
    names: dict[str, None] = {}
    for op in given:
        name = op if isinstance(op, str) else getattr(op, "name", None)
        if isinstance(name, str):
            names[name] = None
        elif isinstance(op, Iterable):
            names |= dict.fromkeys(names_of_ops(*op))
        else:
            raise GraphError(f"expected an Op, its name, or a list of these, found {op!r}")
    return tuple(names)
