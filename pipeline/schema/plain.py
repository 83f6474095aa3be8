"""Plain values of what an Op answers: no scalars of numpy, no objects of a schema's classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np


def without_objects(value: Any) -> Any:
    """Return a value with dicts in place of Structs, dataclasses and models; itself without any."""
    if isinstance(value, msgspec.Struct):
        fields = zip(value.__struct_fields__, value.__struct_encode_fields__, strict=True)
        found = {key: getattr(value, name) for name, key in fields}
        set_ones = {key: one for key, one in found.items() if one is not msgspec.UNSET}
        return without_objects(set_ones)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: without_objects(getattr(value, name)) for name in names}
    dump = getattr(type(value), "model_dump", None)
    if dump is not None:
        return without_objects(dump(value))
    return _changed(value, without_objects)


def plain(value: Any, keeps_arrays: bool) -> Any:
    """Return a value with Python's numbers and lists in place of numpy's; itself without any."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value if keeps_arrays else value.tolist()
    return _changed(value, lambda one: plain(one, keeps_arrays))


def _changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a dict or list with its values changed; itself if none is."""
    if isinstance(value, dict):
        found = {key: change(one) for key, one in value.items()}
        is_same = all(found[key] is one for key, one in value.items())
        return value if is_same else found
    if isinstance(value, list | tuple):
        items = [change(one) for one in value]
        is_same = all(new is old for new, old in zip(items, value, strict=True))
        return value if is_same else items
    return value
