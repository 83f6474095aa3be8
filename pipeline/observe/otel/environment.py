"""Exporters and the service name from the OTEL_* environment."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Any

from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_SDK_DISABLED
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from pipeline.config.schema import Signal
from pipeline.errors import InitError, one_line

CLOSE_S = 5.0
"""Time that the server waits for a collector when it stops."""

_PROTOCOLS = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


def exporters_of(signal: Signal) -> list[Any]:
    """Return the exporters that the environment names; `otlp` if it names none.

    [] if it disables the export. Raises InitError: an exporter or protocol does not exist or
    cannot be made.
    """
    if setting(OTEL_SDK_DISABLED).lower() == "true":
        return []
    names = (setting(f"OTEL_{signal.upper()}_EXPORTER") or "otlp").split(",")
    return [_exporter(signal, name.strip()) for name in names if name.strip() != "none"]


def resource_of(pipeline_name: str) -> Resource:
    """Return the service of signals: the environment's, otherwise the pipeline."""
    named = OTELResourceDetector().detect().attributes
    return Resource.create({"service.name": named.get("service.name") or pipeline_name})


def setting(variable: str) -> str:
    """Return an environment variable; "" if it is not set."""
    return os.environ.get(variable, "").strip()


@contextmanager
def impatience(exporters: Sequence[Any], close_s: float) -> Iterator[None]:
    """Shut down exporters if the block takes too long: a collector may never answer."""

    def give_up() -> None:
        for exporter in exporters:
            exporter.shutdown()

    timer = threading.Timer(close_s, give_up)
    timer.daemon = True
    timer.name = "pipeline-otel-close"
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _otlp(signal: Signal) -> str:
    """Return the exporter of the protocol that is set for the signal or for all signals."""
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", OTEL_EXPORTER_OTLP_PROTOCOL)
    variable = next(filter(setting, variables), OTEL_EXPORTER_OTLP_PROTOCOL)
    protocol = setting(variable) or "grpc"
    if protocol not in _PROTOCOLS:
        raise InitError(
            f"opentelemetry: {variable}: expected one of {', '.join(_PROTOCOLS)}, "
            f"found {protocol!r}"
        )
    return _PROTOCOLS[protocol]


def _exporter(signal: Signal, name: str) -> Any:
    name = _otlp(signal) if name == "otlp" else name
    group = f"opentelemetry_{signal}_exporter"
    points = list(entry_points(group=group, name=name))
    if not points:
        known = sorted({point.name for point in entry_points(group=group)})
        raise InitError(
            f"opentelemetry: the exporter {name!r} is not installed, only {', '.join(known)}: "
            f"install its package (opentelemetry-exporter-{name.replace('_', '-')}), or change "
            f"OTEL_{signal.upper()}_EXPORTER or {OTEL_EXPORTER_OTLP_PROTOCOL}"
        )
    try:
        return points[0].load()()
    except Exception as error:  # code of another package, which reads the environment
        raise InitError(
            f"opentelemetry: the exporter {name!r} cannot be made: {one_line(str(error))}"
        ) from error
