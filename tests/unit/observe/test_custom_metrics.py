"""CustomMetrics: families and series that the code of models counts in."""

from __future__ import annotations

import pytest

from pipeline.engine.model_calls import MetricUse
from pipeline.errors import InputError, NoServiceError, OverloadedError, PipelineError
from pipeline.observe import custom_metrics
from pipeline.observe.custom_metrics import CustomMetrics, CustomMetricsOfWorker


def family(
    number: int, name: str = "seen", kind: str = "counter", text: str = "Of it."
) -> MetricUse:
    return MetricUse(number, "family", name=name, text=text, kind=kind)


def with_family(metrics: CustomMetrics, kind: str = "counter") -> CustomMetricsOfWorker:
    worker = metrics.holder()
    worker.use(family(1, kind=kind))
    return worker


def test_series_of_equal_labels_are_one_for_all_workers() -> None:
    metrics = CustomMetrics()
    first, second = with_family(metrics), with_family(metrics)
    labels = {"b": 'a "b"\n', "a": "1"}
    for worker in (first, second):
        worker.use(MetricUse(1, "series", labels))
        worker.use(MetricUse(1, "add", labels, 1.5))
    assert second.use(MetricUse(1, "value", labels)) == 3
    assert metrics.text().decode() == (
        '# HELP seen Of it.\n# TYPE seen counter\nseen{a="1",b="a \\"b\\"\\n"} 3\n'
    )
    first.close()
    assert second.use(MetricUse(1, "value", labels)) == 3
    second.close()
    assert metrics.text() == b""


def test_a_histogram_counts_up_to_each_bound() -> None:
    metrics = CustomMetrics()
    worker = with_family(metrics, "histogram")
    worker.use(MetricUse(1, "series", buckets=[0.1, 1.0]))
    for value in (0.1, 0.5, 6.0):
        worker.use(MetricUse(1, "observe", amount=value))
    assert metrics.text().decode().splitlines()[2:] == [
        "seen_count 3",
        "seen_sum 6.6",
        'seen_bucket{le="0.1"} 1',
        'seen_bucket{le="1"} 2',
        'seen_bucket{le="+Inf"} 3',
    ]


def test_a_family_exists_until_its_last_owner_drops_it() -> None:
    metrics = CustomMetrics()
    worker = with_family(metrics, "gauge")
    worker.use(family(2, kind="gauge", text="Another text."))
    with pytest.raises(InputError, match="there already, as a gauge, not a counter"):
        worker.use(family(3))
    worker.use(MetricUse(1, "series"))
    worker.use(MetricUse(2, "series"))
    worker.use(MetricUse(1, "set", amount=-0.5))
    worker.use(MetricUse(1, "drop"))
    assert metrics.text() == b"# HELP seen Of it.\n# TYPE seen gauge\nseen -0.5\n"
    worker.use(MetricUse(2, "drop"))
    worker.use(family(3))


@pytest.mark.parametrize(
    "use",
    [
        family(2, "nv_inference_count"),
        family(2, "pipeline_ready"),
        family(2, "with space"),
        family(2, "n" * 513),
        family(2, "other", kind="summary"),
        family(2, "other", text="t" * 513),
        MetricUse(1, "series", {"le": "1"}, buckets=[1]),
        MetricUse(1, "series", {"__name__": "other"}, buckets=[1]),
        MetricUse(1, "series", {"a": "v" * 513}, buckets=[1]),
        MetricUse(1, "series", {f"l{number}": "" for number in range(17)}, buckets=[1]),
        MetricUse(1, "series", buckets=[1, 1]),
        MetricUse(1, "series", buckets=[float("inf")]),
        MetricUse(1, "series", buckets=list(range(65))),
    ],
)
def test_an_invalid_family_is_refused(use: MetricUse) -> None:
    metrics = CustomMetrics()
    worker = with_family(metrics, "histogram")
    with pytest.raises(InputError):
        worker.use(use)
    assert metrics.text() == b""


def test_a_worker_cannot_use_a_family_of_another() -> None:
    worker = with_family(CustomMetrics())
    for use in (MetricUse(2, "add"), MetricUse(1, "add")):
        with pytest.raises(NoServiceError):
            worker.use(use)


def test_there_are_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(custom_metrics, "MAX_SERIES", 2)
    worker = with_family(CustomMetrics())
    worker.use(family(2, "other"))
    refused: list[PipelineError] = []
    for use in (family(3, "third"), *(MetricUse(1, "series", {"a": text}) for text in "abc")):
        try:
            worker.use(use)
        except OverloadedError as error:
            refused.append(error)
    assert [str(error) for error in refused] == [
        "there are 2 families of metrics: no more",
        "there are 2 series of metrics: no more",
    ]
