"""ModelStep: what an Op asks of a model of the same server; ServerModels: those that there are."""

from __future__ import annotations

import logging
from typing import Any, Protocol

from pipeline.data import RequestInfo
from pipeline.engine.op.channel import Item
from pipeline.engine.request import Members, RequestState, ResponseSink, TraceCollector
from pipeline.errors import ConfigError, PipelineError, UserCodeError, described
from pipeline.op import Op

_LOGGER = logging.getLogger(__name__)


class ServerModels(Protocol):
    """The models of a server, found by name for each request: they come and go."""

    def begin(
        self,
        name: str,
        version: int,
        feeds: dict[str, Any],
        info: RequestInfo,
        traceparent: str,
        sink: ResponseSink,
        *,
        collector: TraceCollector | None = None,
        convoy: Members | None = None,
    ) -> RequestState:
        """Ask a model; on the event loop.

        Args:
            version: -1: the latest that is ready.
            feeds: its inputs, by name.
            info: what the caller says beside them.
            traceparent: of the request that asks; "" for none.
            sink: gets the answer as ChannelData; if it takes parts, each of them.
            collector: of the request that asks; None: it is not traced in a file.
            convoy: those whose inputs these are; None: it is one request.

        Raises:
            PipelineError: there is no such model, or it takes no more requests.
        """

    def convoy_size(self, name: str, version: int, rows: int) -> int:
        """Return how many requests of so many samples a model takes as one; 0: none does."""


class ModelStep(Protocol):
    """Question of an Op to a model; `pipeline_step` of the Op is one.

    Attributes:
        models: has the model.
        name: of the model.
        version: of the model; -1: the latest.
        most: requests that are under way at once; 0: any number.
    """

    models: ServerModels
    name: str
    version: int
    most: int

    def feeds(self, item: Item) -> dict[str, Any] | None:
        """Return what the model is fed, of what the Op reads; None: it is not asked."""

    def info(self, item: Item) -> RequestInfo:
        """Return what the model is told beside that."""

    def told(self, info: RequestInfo) -> RequestInfo:
        """Return the same, of what a caller says."""

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples the model takes as one; 0: none does."""

    def answer(self, item: Item, fetched: dict[str, Any]) -> Any:
        """Return the Op's answer, of the model's; of nothing, if that was not asked."""

    def failed(self, error: PipelineError) -> PipelineError:
        """Return what the request is told that the model has failed with `error`."""


def ask(
    step: ModelStep,
    item: Any,
    trace: str,
    sink: ResponseSink,
    collector: TraceCollector | None = None,
    convoy: Members | None = None,
) -> RequestState | None:
    """Ask the model of a step, see `ServerModels.begin`; None: it is not to be asked."""
    feeds = step.feeds(item)
    if feeds is None:
        return None
    arguments = step.name, step.version, feeds, step.info(item), trace, sink
    return step.models.begin(*arguments, collector=collector, convoy=convoy)


def answer_of(step: ModelStep, item: Any, fetched: Any) -> Any:
    """Return the Op's answer, of the model's, or the error in its place."""
    try:
        return step.answer(item, fetched)
    except Exception as error:  # ours, on data of any type
        return failure_of(step, error)


def failure_of(step: ModelStep, error: Exception) -> PipelineError:
    """Return what a request is told of an error of the model's, or of ours, which is logged."""
    if not isinstance(error, PipelineError):
        _LOGGER.error("asking the model '%s' went wrong", step.name, exc_info=error)
        error = UserCodeError(described(error))
    return step.failed(error)


def step_of(op: Op) -> ModelStep:
    """Return what an Op asks. Raises ConfigError: it asks no model."""
    step: ModelStep | None = op.pipeline_step
    if step is None:
        raise ConfigError(f"op.{op.name}.workers: model: the Op asks no model of the server")
    return step
