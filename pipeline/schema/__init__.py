"""Schemas: the types of requests and answers, and what checks values by them."""

from __future__ import annotations

import msgspec


class Schema(msgspec.Struct):
    """Base of the types of requests and answers: its fields are their keys.

        class Ask(pipeline.Schema):
            words: str
            top: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1

        RequestOp(schema=Ask)

    It is a msgspec.Struct, with all of its options: `forbid_unknown_fields=True` refuses keys that
    are not fields, `rename="camel"` gives clients other names. A TypedDict, a dataclass, a
    msgspec.Struct and a model of pydantic work as well.
    """


__all__ = ["Schema"]
