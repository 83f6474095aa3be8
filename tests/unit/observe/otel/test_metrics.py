"""Families of Prometheus as OpenTelemetry's metrics."""

from __future__ import annotations

from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Histogram, Sum
from opentelemetry.sdk.resources import Resource

from pipeline.observe.metrics import families_of
from pipeline.observe.otel.metrics import metrics_data

TEXT = b"""\
# HELP nv_count Samples.
# TYPE nv_count counter
nv_count{model="m"} 3
nv_count{model="n"} 4
# HELP waiting Now.
# TYPE waiting gauge
waiting 2.5
# HELP took_seconds Time.
# TYPE took_seconds histogram
took_seconds_bucket{op="a",le="0.1"} 1
took_seconds_bucket{op="a",le="1.0"} 3
took_seconds_bucket{op="a",le="+Inf"} 4
took_seconds_count{op="a"} 4
took_seconds_sum{op="a"} 9.5
# HELP latency Times.
# TYPE latency summary
latency_count 5
latency_sum 50
latency{quantile="0.5"} 7
"""


def test_every_kind_has_its_form_and_keeps_its_name():
    data = metrics_data(families_of(TEXT), Resource({}), 10, 20)
    (of_resource,) = data.resource_metrics
    (scope,) = of_resource.scope_metrics
    results = {metric.name: metric.data for metric in scope.metrics}
    assert list(results) == [
        *("nv_count", "waiting", "took_seconds"),
        *("latency_count", "latency_sum", "latency"),
    ]
    count = results["nv_count"]
    assert isinstance(count, Sum)
    assert (count.is_monotonic, count.aggregation_temporality) == (
        True,
        AggregationTemporality.CUMULATIVE,
    )
    assert [(p.attributes, p.value) for p in count.data_points] == [
        ({"model": "m"}, 3.0),
        ({"model": "n"}, 4.0),
    ]
    assert {(p.start_time_unix_nano, p.time_unix_nano) for p in count.data_points} == {(10, 20)}
    assert isinstance(results["waiting"], Gauge)
    took = results["took_seconds"]
    assert isinstance(took, Histogram)
    (point,) = took.data_points
    assert (point.attributes, point.count, point.sum) == ({"op": "a"}, 4, 9.5)
    assert (point.explicit_bounds, point.bucket_counts) == ([0.1, 1.0], [1, 2, 1])
    assert isinstance(results["latency_sum"], Sum)
    quantiles = results["latency"]
    assert isinstance(quantiles, Gauge)
    assert quantiles.data_points[0].attributes == {"quantile": "0.5"}
