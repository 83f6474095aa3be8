"""Triton's `--metrics-config` and `--trace-config`, in the words of config.yml."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from pipeline.errors import ConfigError

_LOGGER = logging.getLogger(__name__)

_FAMILIES = ("counter_latencies", "histogram_latencies", "summary_latencies")
_METRICS_FORM = "--metrics-config option format is <setting>=<value>"
_NOTHING: Mapping[str, Sequence[str]] = MappingProxyType({})
_LEVELS = {
    **dict.fromkeys(("false", "off"), ""),
    **dict.fromkeys(("true", "on", "min", "max", "timestamps"), "TIMESTAMPS"),
    "tensors": "TENSORS",
}
_OTEL = {
    "url": "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}
_TRACES_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>'"


def metrics_of(given: Sequence[str]) -> dict[str, Any]:
    """Return what `--metrics-config` asks for, as "summary_latencies=true": keys of config.yml.

    Names that are no settings are ignored, and quantiles that are none told, as in Triton.

    Raises:
        ConfigError: one is no setting, in Triton's words.
    """
    found: dict[str, Any] = {"histogram_latencies": False}
    for text in given:
        setting, _, value = text.partition("=")
        if not (setting and value) or "," in setting:
            raise ConfigError(f"{_METRICS_FORM}. Got {text}")
        if setting in _FAMILIES and value in ("true", "false"):
            found[setting] = value == "true"
        elif setting == "summary_quantiles" and (quantiles := _quantiles(value)):
            found[setting] = quantiles
    return found


def _quantiles(text: str) -> list[float]:
    """Return the quantiles in "0.5:0.05,0.9:0.01"; how exact they are to be is not needed."""
    found = []
    for pair in text.split(","):
        quantile, colon, _ = pair.partition(":")
        try:
            value = float(quantile) if colon else -1.0
        except ValueError:
            value = -1.0
        if 0 <= value <= 1:
            found.append(value)
        else:
            form = "Expected format is <quantile>:<error>"
            _LOGGER.error("--metrics-config: Invalid option: [%s]. %s", pair, form)
    return found


class TraceFlags(msgspec.Struct, frozen=True):
    """Settings of traces that flags say: keys of config.yml, and variables of the environment."""

    keys: Mapping[str, Any]
    environment: Mapping[str, str]


def traces_of(given: Sequence[str], older: Mapping[str, Sequence[str]] = _NOTHING) -> TraceFlags:
    """Return what `--trace-config` asks for, as "level=TIMESTAMPS" or "triton,file=/tmp/trace".

    `older` has the values of the flags before it, such as `--trace-rate`, by their settings.

    Raises:
        ConfigError: one is no setting, or has no such value, in Triton's words.
    """
    said: dict[str, list[tuple[str, str]]] = {"": [], "triton": [], "opentelemetry": []}
    for text in given:
        mode, pair = _parted(text)
        said[mode].append(pair)
    for_all = {name: values[-1] for name, values in older.items() if values} | dict(said[""])
    levels = [value for name, value in said[""] if name == "level"] or older.get("level", ())
    level, rate = _level(levels), _number("rate", for_all.get("rate", "1000"))
    if _mode(for_all.get("mode", "triton")) == "opentelemetry":
        environment = _otel(said["opentelemetry"], rate)
        return TraceFlags({"opentelemetry": True} if level else {}, environment)
    of_file = for_all | dict(said["triton"])
    settings = {
        "file": of_file.get("file", ""),
        "level": level,
        "rate": rate,
        "count": _number("count", for_all.get("count", "-1")),
        "log_frequency": _number("log-frequency", of_file.get("log-frequency", "0")),
    }
    return TraceFlags({"request_traces": settings}, {})


def _parted(text: str) -> tuple[str, tuple[str, str]]:
    """Return the mode, "" without one, and (setting, value)."""
    mode, comma, rest = text.partition(",")
    setting, _, value = (rest if comma else text).partition("=")
    if (comma and not mode) or not (setting and value):
        raise ConfigError(f"{_TRACES_FORM}. Got {text}")
    return _mode(mode) if comma else "", (setting, value)


def _mode(text: str) -> str:
    if text.lower() not in ("triton", "opentelemetry"):
        options = 'Available options are "triton" and "opentelemetry"'
        raise ConfigError(f"invalid value for trace mode option: {text}. {options}")
    return text.lower()


def _level(words: Sequence[str]) -> list[str]:
    """Return the levels that words name; one that says off says so for all."""
    for word in words:
        if word.lower() not in _LEVELS:
            raise ConfigError(f"invalid value for trace level option: {word}")
    found = {_LEVELS[word.lower()] for word in words}
    return [] if "" in found else sorted(found, reverse=True)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise ConfigError(f'Bad option: "--trace-config {name}": {text} is no number') from error


def _otel(said: Sequence[tuple[str, str]], rate: int) -> dict[str, str]:
    """Return the OTEL_* variables for settings of OpenTelemetry: others are those of its SDK."""
    share = 1 / rate if rate > 0 else 0.0
    found = {
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": str(share),
    }
    resources = [value for name, value in said if name == "resource"]
    if resources:
        found["OTEL_RESOURCE_ATTRIBUTES"] = ",".join(resources)
    return found | {_OTEL[name]: value for name, value in said if name in _OTEL}
