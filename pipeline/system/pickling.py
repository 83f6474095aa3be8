"""Pickling by value: of msgspec.Meta, as in schemas, and of code objects, as in lambdas."""

from __future__ import annotations

import copyreg
import functools
import marshal
import types
from collections.abc import Callable
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


def reduced_code(code: types.CodeType) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
    """Reduce a code object: dill's own form reads an attribute that Python 3.15 lacks."""
    return marshal.loads, (marshal.dumps(code),)
