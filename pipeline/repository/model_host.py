"""RepositoryHost: models of a repository, asked and changed by others of it."""

from __future__ import annotations

from typing import Any

from pipeline.engine.model_calls import MetricHolder, ModelChange, PeerCall
from pipeline.engine.request import ResponseSink, StreamHandle
from pipeline.errors import (
    InputError,
    NoServiceError,
    NotImplementedByOpError,
    OverloadedError,
    PipelineError,
    RequestCancelledError,
    UserCodeError,
)
from pipeline.frontends.v2.control import Overrides, RepositoryControl
from pipeline.frontends.v2.errors import V2Error, V2Status
from pipeline.observe.custom_metrics import CustomMetrics
from pipeline.observe.traces.traces import collector_of
from pipeline.repository.served_models import ServedModels

_KINDS: dict[V2Status, type[PipelineError]] = {
    V2Status.INVALID: InputError,
    V2Status.NOT_FOUND: NoServiceError,
    V2Status.CANCELLED: RequestCancelledError,
    V2Status.UNSUPPORTED: NotImplementedByOpError,
    V2Status.UNAVAILABLE: OverloadedError,
}
_FILE = "file:"


class RepositoryHost:
    """The models of a server, for its own; see `ModelHost`.

    Args:
        models: those that are ready.
        control: loads them.
        metrics: that they count in.
    """

    def __init__(
        self, models: ServedModels, control: RepositoryControl, metrics: CustomMetrics
    ) -> None:
        self._models = models
        self._control = control
        self._metrics = metrics

    def begin(self, call: PeerCall, feeds: dict[str, Any], sink: ResponseSink) -> StreamHandle:
        """Ask a model. Raises PipelineError, in Triton's words: it cannot be asked so."""
        config = self._models.config(call.model, call.version)
        if config.model_transaction_policy.decoupled and not call.takes_parts:
            raise NotImplementedByOpError(
                f"Model {call.model} is using the decoupled. The current BLS request call doesn't "
                "support models using the decoupled transaction policy. Please use "
                "'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
                "models.'"
            )
        try:
            self._models.check_outputs(call.model, call.version, call.info.outputs)
        except V2Error as error:
            raise _ours(error) from None
        asked = call.model, call.version, feeds, call.info, call.traceparent, sink
        collector = collector_of(call.traceparent)
        return self._models.begin(*asked, timeout_s=call.timeout_s, collector=collector)

    async def change(self, change: ModelChange) -> bool:
        """Load or unload a model, or return whether it is ready. Raises PipelineError."""
        name, control = change.model, self._control
        if change.action == "is_ready":
            return self._models.is_ready(name, change.version)
        try:
            if change.action == "load":
                files = {key.removeprefix(_FILE): data for key, data in change.files.items()}
                await control.load(name, Overrides(change.config, files), is_inner=True)
            else:
                await control.unload(name, change.with_dependents)
        except V2Error as error:
            raise _ours(error) from error
        return True

    def metrics(self) -> MetricHolder:
        """Return what a worker uses metrics by."""
        return self._metrics.holder()


def _ours(error: V2Error) -> PipelineError:
    return _KINDS.get(error.kind, UserCodeError)(str(error))
