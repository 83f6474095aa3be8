"""OpenTelemetry's logs and metrics; its traces are in `pipeline.tracing`.

Its packages are imported only when they are needed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from pipeline.errors import InitError

if TYPE_CHECKING:
    from pipeline.observe.otel.logs import OtelLogSink
    from pipeline.observe.otel.metrics import OtelMetrics


def open_logs(pipeline_name: str) -> OtelLogSink | None:
    """Return the sink of log records; None if the environment disables the export.

    Raises InitError: the extra `otel` is not installed, or an exporter in the environment is.
    """
    try:
        from pipeline.observe.otel.logs import connect_logs
    except ImportError as error:
        raise missing(error) from error
    return connect_logs(pipeline_name)


def open_metrics(pipeline_name: str, collect: Callable[[], Awaitable[bytes]]) -> OtelMetrics | None:
    """Return the exporter of the metrics that `collect` returns; None and InitError as above."""
    try:
        from pipeline.observe.otel.metrics import connect_metrics
    except ImportError as error:
        raise missing(error) from error
    return connect_metrics(pipeline_name, collect)


def missing(error: ImportError) -> InitError:
    """Return the error for a missing extra `otel`."""
    return InitError(
        f"opentelemetry: it needs packages that are missing ({error}): "
        "pip install 'pipeline-serving[otel]'"
    )
