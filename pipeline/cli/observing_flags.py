"""Triton's `--metrics-config` and `--trace-config`, of which a server has what it always does."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import ConfigError

_METRICS_FORM = "--metrics-config option format is <setting>=<value>"
_TRACES_FORM = "--trace-config option format is '<trace mode>,<setting>=<value>'"


def check_metrics(given: Sequence[str]) -> None:
    """Take each `--metrics-config`, as "histogram_latencies=true".

    Counters and histograms are there whatever is said of them; names that are no settings are
    ignored, as in Triton.

    Raises:
        ConfigError: one is no setting, in Triton's words, or asks for summaries.
    """
    for text in given:
        setting, _, value = text.partition("=")
        if not (setting and value) or "," in setting:
            raise ConfigError(f"{_METRICS_FORM}. Got {text}")
        if (setting, value) == ("summary_latencies", "true"):
            raise ConfigError(
                "--metrics-config: there are no summaries; pipeline_request_duration_seconds and "
                "pipeline_queue_duration_seconds are histograms, which are always there"
            )


def check_traces(given: Sequence[str]) -> None:
    """Take each `--trace-config`, as "level=OFF" or "triton,file=/tmp/trace".

    What is said of traces that are not switched on changes nothing.

    Raises:
        ConfigError: one is no setting, in Triton's words, or switches traces on.
    """
    for text in given:
        mode, comma, rest = text.partition(",")
        setting, _, value = (rest if comma else text).partition("=")
        if not (mode and setting and value):
            raise ConfigError(f"{_TRACES_FORM}. Got {text}")
        if setting == "level" and value != "OFF":
            raise ConfigError(
                f"--trace-config: level={value}: there are no trace files; "
                "dag.use_profile and OpenTelemetry write traces"
            )
