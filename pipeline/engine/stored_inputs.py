"""StoredInputs: inputs of requests that are in a store; fetched before any Op reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from pipeline.engine.request import ACTIVE, RequestState
from pipeline.errors import ConfigError, PipelineError, PredictorError, described
from pipeline.op import RequestOp
from pipeline.stores.base import InputStore, fetched, is_reference
from pipeline.system.event_loop import DaemonThreads

_THREADS = 8  # that wait for the store at the same time

Dispatch = Callable[[RequestState, Any], None]


class StoredInputs:
    """Replaces references in requests by the arrays in a store, before the graph gets them.

    Args:
        max_bytes: of the inputs of one request.
    """

    def __init__(self, store: InputStore, loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self._store = store
        self._loop = loop
        self._max_bytes = max_bytes
        self._pool = DaemonThreads(_THREADS, "pipeline-stored")

    def bound(self, dispatch: Dispatch, complete: Dispatch) -> Dispatch:
        """Return a function that takes requests and their inputs.

        Args:
            dispatch: takes a request that has all of its inputs.
            complete: takes a request without an input, and the error.
        """
        self._dispatch_now, self._complete = dispatch, complete
        return self._dispatch

    def _dispatch(self, request: RequestState, payload: Any) -> None:
        """Pass on a request, at once or after its references were fetched."""
        references = (
            {name: value for name, value in payload.items() if is_reference(value)}
            if type(payload) is dict
            else {}
        )
        if not references:
            self._dispatch_now(request, payload)
            return
        future = self._pool.submit(self._fetch, request, references)
        future.add_done_callback(partial(self._on_fetched, request, payload))

    def _fetch(self, request: RequestState, references: Mapping[str, str]) -> dict[str, Any]:
        """Return the arrays; in a thread. Stops if the request has ended meanwhile.

        The limit applies to all arrays together, because a thousand references may name one value.
        """
        arrays: dict[str, Any] = {}
        left = self._max_bytes
        for name, reference in references.items():
            if request.phase is not ACTIVE:
                break
            arrays[name] = array = fetched(self._store, name, reference, left)
            left = max(0, left - array.nbytes)
        return arrays

    def _on_fetched(
        self, request: RequestState, payload: dict[str, Any], future: Future[dict[str, Any]]
    ) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, request, payload, future)

    def _take(
        self, request: RequestState, payload: dict[str, Any], future: Future[dict[str, Any]]
    ) -> None:
        if request.phase is not ACTIVE or future.cancelled():
            return
        error = future.exception()
        if error is None:
            request.as_tensors = True  # a client that sends arrays gets arrays
            self._dispatch_now(request, {**payload, **future.result()})
        elif isinstance(error, PipelineError):
            self._complete(request, error)
        else:  # an error of a plug-in
            self._complete(request, PredictorError(f"payload_store: {described(error)}"))

    def close(self) -> None:
        """Fetch nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def check_has_no_schema(op: RequestOp) -> None:
    """Raise ConfigError if a schema would see a reference in the place of an array."""
    if op.pipeline_schema is not None:
        raise ConfigError(
            "payload_store: the RequestOp has a schema, which wants the arrays themselves: leave "
            "one of them out"
        )
