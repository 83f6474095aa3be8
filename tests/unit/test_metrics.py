"""Metrics of users' own: what a process counts, what it tells, and what is refused."""

from __future__ import annotations

import pickle

import pytest

from pipeline import metrics
from pipeline.metrics import FamilyHead, Ledger, Metrics, SeriesChange

COUNTS = FamilyHead("cats_total", "counter", "Cats.")
SIZES = FamilyHead("sizes", "histogram", "", (1.0, 2.0))
LEVEL = FamilyHead("level", "gauge")


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    own = Ledger()
    monkeypatch.setattr(metrics, "LEDGER", own)
    return own


def shown(ledger: Ledger) -> dict[str, float]:
    return {
        name + "".join(f"{{{key}={value}}}" for key, value in labels.items()): value
        for family in ledger.families()
        for name, labels, value in family.samples
    }


def test_counted_values_are_shown(ledger: Ledger) -> None:
    asked = Metrics()
    asked.counter("cats", "Cats.", kind="siam").inc()
    asked.counter("cats_total", kind="siam").inc(2)
    asked.counter("cats", kind="manx").inc(0)
    asked.gauge("level").set(5)
    asked.gauge("level").dec(2)
    asked.gauge("level").inc()
    for value in (0.5, 1, 7):
        asked.histogram("sizes", "", (1, 2)).observe(value)
    assert shown(ledger) == {
        "cats_total{kind=siam}": 3.0,
        "cats_total{kind=manx}": 0.0,
        "level": 4.0,
        "sizes_bucket{le=1.0}": 2.0,
        "sizes_bucket{le=2.0}": 2.0,
        "sizes_bucket{le=+Inf}": 3.0,
        "sizes_count": 3.0,
        "sizes_sum": 8.5,
    }


def test_counts_of_worker_processes_add_up() -> None:
    server, workers = Ledger(), [Ledger(), Ledger()]
    for worker in workers:
        worker.begin()
        worker.change(COUNTS, (), 1.0)
        worker.change(SIZES, (), 1.5)
        server.merge(worker.take())
        worker.change(COUNTS, (), 2.0)
        server.merge(worker.take())
        server.merge(worker.take())
    assert shown(server)["cats_total"] == 6.0
    assert shown(server)["sizes_count"] == 2.0


def test_a_gauge_has_the_last_value_plus_later_additions() -> None:
    server, worker = Ledger(), Ledger()
    worker.begin()
    server.change(LEVEL, (), 100.0)
    worker.change(LEVEL, (), 1.0)
    server.merge(worker.take())
    assert shown(server) == {"level": 101.0}
    worker.change(LEVEL, (), 5.0, is_set=True)
    worker.change(LEVEL, (), 2.0)
    server.merge(worker.take())
    assert shown(server) == {"level": 7.0}


def test_a_worker_starts_without_the_counts_of_its_parent() -> None:
    ledger = Ledger()
    ledger.change(COUNTS, (), 3.0)
    ledger.begin()
    assert ledger.take() == []
    assert ledger.families() == []


def test_a_process_without_a_reader_stores_no_changes() -> None:
    ledger = Ledger()
    ledger.change(COUNTS, (), 3.0)
    assert ledger.take() == []


def test_changes_with_different_buckets_are_dropped() -> None:
    ledger = Ledger()
    ledger.change(SIZES, (), 1.0)
    ledger.head(SIZES)
    ledger.merge(
        [SeriesChange(FamilyHead("sizes", "histogram", "", (9.0,)), (), 1.0, False, [1, 0])]
    )
    assert shown(ledger)["sizes_count"] == 1.0


def test_a_metric_may_be_stored_and_pickled(ledger: Ledger) -> None:
    kept = Metrics().counter("cats", kind="siam")
    pickle.loads(pickle.dumps(kept)).inc()
    kept.inc()
    assert shown(ledger) == {"cats_total{kind=siam}": 2.0}


def test_more_series_than_there_may_be_are_lost_with_one_warning(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(metrics, "MAX_SERIES", 2)
    for number in range(5):
        Metrics().counter("cats", number=number).inc()
    assert shown(ledger) == {"cats_total{number=0}": 1.0, "cats_total{number=1}": 1.0}
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "name", ["", "1st", "two words", "pipeline_x", "nv_inference_x", "x" * 600]
)
def test_names_that_cannot_be_had(ledger: Ledger, name: str) -> None:
    with pytest.raises(ValueError, match="a metric"):
        Metrics().gauge(name)


def test_an_invalid_metric_is_refused(ledger: Ledger) -> None:
    asked = Metrics()
    asked.gauge("level")
    with pytest.raises(ValueError, match="exists already, as a gauge"):
        asked.histogram("level")
    with pytest.raises(ValueError, match="not a valid name of a label"):
        asked.histogram("sizes", le="1")
    with pytest.raises(ValueError, match="over 512 characters"):
        asked.gauge("level", user="x" * 600)
    with pytest.raises(ValueError, match="16 labels"):
        asked.gauge("level", **{f"label{number}": "" for number in range(17)})
    with pytest.raises(ValueError, match="ascending numbers"):
        asked.histogram("others", "", (2, 1))
    with pytest.raises(ValueError, match="cannot fall"):
        asked.counter("cats").inc(-1)
    with pytest.raises(ValueError, match="NaN"):
        asked.histogram("sizes").observe(float("nan"))
    assert shown(ledger) == {}
