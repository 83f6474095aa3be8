"""ModelStep: an Op's request to a model of the same server; ServerModels: the available models."""

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
        ready_ns: int = 0,
    ) -> RequestState:
        """Call a model; on the event loop.

        Args:
            version: -1: the latest that is ready.
            feeds: its inputs, by name.
            info: the request's parameters, headers and so on.
            traceparent: of the calling request; "" for none.
            sink: gets the answer as ChannelData; if it takes parts, each of them.
            collector: of the calling request; None: it is not traced in a file.
            convoy: the requests whose inputs these are; None: it is a single request.
            ready_ns: when the inputs were made; 0: now.

        Raises:
            PipelineError: there is no such model, or it takes no more requests.
        """

    def convoy_size(self, name: str, version: int, rows: int) -> int:
        """Return how many requests of so many samples a model takes as a convoy; 0: none."""


class ModelStep(Protocol):
    """An Op's request to a model; `pipeline_step` of the Op is one.

    Attributes:
        models: has the model.
        name: of the model.
        version: of the model; -1: the latest.
        most: number of requests that may run at once; 0: any number.
    """

    models: ServerModels
    name: str
    version: int
    most: int

    def feeds(self, item: Item) -> dict[str, Any] | None:
        """Return the model's inputs, made of the Op's; None: the model is not called."""

    def info(self, item: Item) -> RequestInfo:
        """Return the info for the model's request."""

    def model_info(self, info: RequestInfo) -> RequestInfo:
        """Return the info for the model's request, made of a client's."""

    def convoy_size(self, rows: int) -> int:
        """Return how many requests of so many samples the model takes as a convoy; 0: none."""

    def answer(self, item: Item, fetched: dict[str, Any]) -> Any:
        """Return the Op's answer, made of the model's; `fetched` is empty if it was not called."""

    def failed(self, error: PipelineError) -> PipelineError:
        """Return the error of the request after the model has failed with `error`."""


def ask(
    step: ModelStep,
    item: Any,
    trace: str,
    sink: ResponseSink,
    collector: TraceCollector | None = None,
    convoy: Members | None = None,
) -> RequestState | None:
    """Call the model of a step, see `ServerModels.begin`; None: it need not be called."""
    feeds = step.feeds(item)
    if feeds is None:
        return None
    return step.models.begin(
        *(step.name, step.version, feeds, step.info(item), trace, sink),
        collector=collector,
        convoy=convoy,
        ready_ns=item.ready_ns,
    )


def answer_of(step: ModelStep, item: Any, fetched: Any) -> Any:
    """Return the Op's answer, made of the model's, or the error in its place."""
    try:
        return step.answer(item, fetched)
    except Exception as error:  # our own, on some data
        return failure_of(step, error)


def failure_of(step: ModelStep, error: Exception) -> PipelineError:
    """Return the error of the request after an error of the model, or our own, which is logged."""
    if not isinstance(error, PipelineError):
        _LOGGER.error("the call of model '%s' failed", step.name, exc_info=error)
        error = UserCodeError(described(error))
    return step.failed(error)


def step_of(op: Op) -> ModelStep:
    """Return the step of an Op. Raises ConfigError: it has none."""
    step: ModelStep | None = op.pipeline_step
    if step is None:
        raise ConfigError(f"op.{op.name}.workers: model: the Op calls no model of the server")
    return step
