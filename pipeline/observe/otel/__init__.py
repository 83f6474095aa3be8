"""OpenTelemetry's logs and metrics; its traces are in `pipeline.tracing`.

Nothing of its packages is imported before it is wanted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pipeline.errors import InitError

if TYPE_CHECKING:
    from pipeline.observe.otel.logs import OtelLogSink
    from pipeline.observe.otel.metrics import OtelMetrics


def open_logs(pipeline_name: str) -> OtelLogSink | None:
    """Return the sink of log records; None: the environment says that nothing is exported.

    InitError: the extra `otel` is not installed, or the environment names what is not there.
    """
    try:
        from pipeline.observe.otel.logs import connect_logs
    except ImportError as error:
        raise missing(error) from error
    return connect_logs(pipeline_name)


def open_metrics(pipeline_name: str, collect: Callable[[], Awaitable[bytes]]) -> OtelMetrics | None:
    """Return what sends metrics, which `collect` returns as text; None and InitError as above."""
    try:
        from pipeline.observe.otel.metrics import connect_metrics
    except ImportError as error:
        raise missing(error) from error
    return connect_metrics(pipeline_name, collect)


def missing(error: ImportError) -> InitError:
    """Return what is said where the extra `otel` is not installed."""
    return InitError(
        f"opentelemetry: it needs packages that are missing ({error}): "
        "pip install 'pipeline-serving[otel]'"
    )
