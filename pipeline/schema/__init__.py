"""Schemas: the types of requests and answers, and the checks of values."""

from __future__ import annotations

import msgspec


class Schema(msgspec.Struct):
    """Base of the types of requests and answers: its fields are their keys.

        class Ask(pipeline.Schema):
            words: str
            top: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1

        RequestOp(schema=Ask)

    It is a msgspec.Struct with all its options: `forbid_unknown_fields=True` refuses keys that are
    not fields, `rename="camel"` gives clients other names. A TypedDict, a dataclass, another
    msgspec.Struct or a pydantic model can be used instead.
    """


__all__ = ["Schema"]
