"""`--metrics-config` and `--trace-config`: what is taken, and what is refused."""

from __future__ import annotations

import pytest

from pipeline.cli.repository import metrics_of, traces_of
from pipeline.errors import ConfigError


def test_families_of_metrics(caplog):
    assert metrics_of([]) == {"histogram_latencies": False}
    given = ["counter_latencies=false", "histogram_latencies=true", "summary_latencies=true"]
    assert metrics_of([*given, "summary_quantiles=0.5:0.05,0.9:0.01,x:1,0.7,2:1", "other=1"]) == {
        "counter_latencies": False,
        "histogram_latencies": True,
        "summary_latencies": True,
        "summary_quantiles": [0.5, 0.9],
    }
    assert [record.args[0] for record in caplog.records] == ["x:1", "0.7", "2:1"]


@pytest.mark.parametrize("text", ["summary_latencies", "=true", "m,summary_latencies=true"])
def test_settings_of_metrics_that_are_refused(text):
    with pytest.raises(ConfigError) as error:
        metrics_of(["counter_latencies=true", text])
    assert str(error.value).endswith(f"<setting>=<value>. Got {text}")


def test_settings_of_traces():
    flags = ["level=TENSORS", "level=on", "rate=100", "triton,file=/tmp/a=b", "count=5"]
    assert traces_of([*flags, "triton,log-frequency=7", "other=1"]).keys["request_traces"] == {
        "file": "/tmp/a=b",
        "level": ["TIMESTAMPS", "TENSORS"],
        "rate": 100,
        "count": 5,
        "log_frequency": 7,
    }
    off = traces_of(["level=TIMESTAMPS", "level=OFF"]).keys["request_traces"]
    assert (off["level"], off["file"], off["rate"], off["count"]) == ([], "", 1000, -1)


def test_newer_flags_of_traces_override_older_ones():
    older = {"file": ["/f"], "level": ["max"], "rate": ["5"], "count": [], "log-frequency": ["2"]}
    result = traces_of(["rate=6"], older).keys["request_traces"]
    assert result == {
        "file": "/f",
        "level": ["TIMESTAMPS"],
        "rate": 6,
        "count": -1,
        "log_frequency": 2,
    }


@pytest.mark.parametrize("setting", ["max_queue_size", "schedule_delay", "max_export_batch_size"])
def test_sizes_of_opentelemetrys_batches_are_numbers(monkeypatch, setting):
    mode, name = "mode=opentelemetry", f"bsp_{setting}"
    with pytest.raises(ConfigError, match=f'Bad option: "--trace-config opentelemetry,{name}"'):
        traces_of([mode, f"opentelemetry,{name}=bad_value"])
    monkeypatch.setenv(f"OTEL_{name.upper()}", "bad_value")
    with pytest.raises(ConfigError, match=f'Bad option: "OTEL_{name.upper()}"'):
        traces_of([mode])
    traces_of([mode, f"opentelemetry,{name}=5"])
    monkeypatch.setenv(f"OTEL_{name.upper()}", "")
    traces_of([mode])
    with pytest.raises(ConfigError, match="expected a number"):
        traces_of([mode, f"opentelemetry,{name}=٣"])


def test_traces_by_opentelemetry_are_settings_of_its_sdk():
    url = "http://127.0.0.1:4318/v1/traces"
    flags = [
        f"opentelemetry,url={url.removeprefix('http://')}",
        "opentelemetry,resource=a=b",
        "opentelemetry,resource=c=d",
    ]
    traces = traces_of(["mode=opentelemetry", "rate=4", "level=TIMESTAMPS", *flags])
    assert traces.keys == {"opentelemetry": True}
    assert traces.environment == {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_RESOURCE_ATTRIBUTES": "a=b,c=d",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }
    assert traces_of(["mode=opentelemetry"]).keys == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("level=FULL", "invalid value for trace level option: FULL"),
        ("mode=zipkin", "invalid value for trace mode option: zipkin"),
        ("zipkin,url=x", "invalid value for trace mode option: zipkin"),
        ("rate=often", "--trace-config rate"),
        ("rate", "option format is '<trace mode>,<setting>=<value>'. Got rate"),
        ("triton,file", "option format is '<trace mode>,<setting>=<value>'. Got triton,file"),
        (",rate=1", "option format is '<trace mode>,<setting>=<value>'. Got ,rate=1"),
    ],
)
def test_settings_of_traces_that_are_refused(text, told):
    with pytest.raises(ConfigError) as error:
        traces_of(["count=100", text])
    assert told in str(error.value)


def test_the_environments_protocol_of_traces_stays(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")
    environment = traces_of(
        ["mode=opentelemetry", "opentelemetry,url=h:4317/v1/traces"]
    ).environment
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" not in environment


@pytest.mark.parametrize("url", ["http://h:4317", "h:4317", "http://h:4317?to=/v1/traces"])
def test_a_url_without_the_path_of_traces_is_that_of_grpc(url):
    environment = traces_of(["mode=opentelemetry", f"opentelemetry,url={url}"]).environment
    assert "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL" not in environment
    assert environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == url


def test_an_invalid_url_of_traces_is_refused():
    with pytest.raises(ConfigError, match="--trace-config opentelemetry,url"):
        traces_of(["mode=opentelemetry", "opentelemetry,url=http://[/v1/traces"])
