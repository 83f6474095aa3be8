"""`--metrics-config` and `--trace-config`: what is taken, and what is refused."""

from __future__ import annotations

import pytest

from pipeline.cli.observing_flags import check_metrics, check_traces
from pipeline.errors import ConfigError


def test_what_is_always_there_may_be_asked_for():
    check_metrics(["counter_latencies=false", "histogram_latencies=true"])
    check_metrics(["summary_latencies=false", "summary_quantiles=0.5:0.05,0.9:0.01"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("summary_latencies=true", "there are no summaries"),
        ("summary_latencies", "<setting>=<value>. Got summary_latencies"),
        ("=true", "<setting>=<value>. Got =true"),
        ("m,summary_latencies=true", "<setting>=<value>. Got m,summary_latencies=true"),
    ],
)
def test_settings_of_metrics_that_are_refused(text, told):
    with pytest.raises(ConfigError) as error:
        check_metrics(["counter_latencies=true", text])
    assert told in str(error.value)


def test_traces_that_are_off_may_have_settings():
    check_traces(["level=OFF", "rate=100", "triton,file=/tmp/a=b"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("level=TIMESTAMPS", "level=TIMESTAMPS: there are no trace files"),
        ("triton,level=TENSORS", "level=TENSORS: there are no trace files"),
        ("rate", "option format is '<trace mode>,<setting>=<value>'. Got rate"),
        ("triton,file", "option format is '<trace mode>,<setting>=<value>'. Got triton,file"),
        (",rate=1", "option format is '<trace mode>,<setting>=<value>'. Got ,rate=1"),
    ],
)
def test_settings_of_traces_that_are_refused(text, told):
    with pytest.raises(ConfigError) as error:
        check_traces(["rate=100", text])
    assert told in str(error.value)
