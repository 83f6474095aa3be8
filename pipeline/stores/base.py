"""The seam of stores, and the form of what is in them.

An input of a request is a text that refers to it, `pipeline-stored:<32 hex digits>`, in the place
of an array. In the store, under `pipeline:stored:<these digits>`, is the array as NumPy's .npy.
The digits are random: who was not told them finds nothing.
"""

from __future__ import annotations

import re
import secrets
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from pipeline.config import registry
from pipeline.errors import ConfigError, InitError, PackageError, PipelineError, described
from pipeline.proto.pipeline.shapes import MAGIC, array_to_npy, npy_to_array

REFERENCE = "pipeline-stored:"
"""Text that begins a reference."""

KEY = "pipeline:stored:"
"""Text that begins the key of what is referred to."""

_NAME = re.compile(r"[0-9a-f]{32}")


class InputStore(Protocol):
    """A store that several servers reach. Its methods wait for it, in any thread.

    Each may raise PredictorUnavailableError: it cannot be reached, or does not answer in time.
    """

    def put(self, key: str, data: bytes, ttl_s: int) -> None:
        """Keep `data` for so long."""

    def get(self, key: str, max_bytes: int) -> bytes | None:
        """Return what is there; None: nothing, or not any more. Raises TooLargeError."""

    def delete(self, key: str) -> None:
        """Forget it, if it is there."""

    def close(self) -> None:
        """Close the connections."""


def open_store(url: str) -> InputStore:
    """Return the store at `scheme://...`, which the registry's `stores` knows by its scheme.

    Raises ConfigError: there is none of that scheme; InitError: it cannot be made.
    """
    try:  # a password with a slash ends the host too early: it would be another one
        parts = urlsplit(url)
        _ = parts.port  # ValueError: not a number
        is_cut = ":" in parts.netloc and "@" not in parts.netloc
        rest = parts.path + parts.query + parts.fragment
        is_url = bool(parts.scheme) and not (is_cut and "@" in rest)
    except ValueError:
        is_url = False
    if not is_url:
        raise ConfigError(
            "payload_store: expected a URL such as redis://host:6379/0; a password needs %-escapes"
        ) from None
    scheme = parts.scheme
    make = registry.find("stores", scheme)
    try:
        store: InputStore = make(url)
    except PipelineError:
        raise
    except Exception as error:  # a plug-in's, or of a client on a wrong URL
        raise InitError(f"payload_store: {described(error)}") from error
    return store


def is_reference(value: Any) -> bool:
    """Return whether a value of a request refers to a store."""
    return type(value) is str and value.startswith(REFERENCE)


def stored(store: InputStore, array: np.ndarray, ttl_s: int) -> str:
    """Put an array into a store; return the reference to it."""
    name = secrets.token_hex(16)
    store.put(KEY + name, array_to_npy(array), ttl_s)
    return REFERENCE + name


def forget(store: InputStore, reference: str) -> None:
    """Remove what a reference refers to."""
    store.delete(KEY + reference.removeprefix(REFERENCE))


def fetched(store: InputStore, name: str, reference: str, max_bytes: int) -> np.ndarray:
    """Return the array that the input `name` refers to.

    Raises:
        PackageError: it is not a reference, or the store has nothing there, or not an array.
        TooLargeError: it has more than `max_bytes`.
        PredictorUnavailableError: the store cannot be reached.
    """
    key = reference.removeprefix(REFERENCE)
    if not _NAME.fullmatch(key):
        raise PackageError(f"{name}: {reference[:80]!r} is not a reference to a store")
    data = store.get(KEY + key, max_bytes)
    if data is None:
        raise PackageError(f"{name}: its data is not in the store, or not any more: send it again")
    try:
        if not data.startswith(MAGIC):
            raise ValueError("it does not begin as .npy does")
        return npy_to_array(data)
    except ValueError as error:
        raise PackageError(f"{name}: the value in the store is not an array: {error}") from error
