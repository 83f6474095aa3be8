"""Pickling of msgspec.Meta, which msgspec lacks: classes with schemas are pickled by value."""

from __future__ import annotations

import copyreg
import functools
from typing import Any

import msgspec

_FIELDS = [name for name in dir(msgspec.Meta) if not name.startswith("_")]


def make_annotations_picklable() -> None:
    """Let pickle, dill and cloudpickle pickle `Annotated[..., msgspec.Meta(...)]`. Idempotent."""
    copyreg.pickle(msgspec.Meta, _reduced)


def _reduced(meta: msgspec.Meta) -> tuple[Any, ...]:
    fields = {name: getattr(meta, name) for name in _FIELDS}
    given = {name: value for name, value in fields.items() if value is not None}
    return functools.partial(msgspec.Meta, **given), ()
