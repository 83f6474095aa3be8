"""ProcessMetrics and the families of a Snapshot: what /metrics says of the process."""

from __future__ import annotations

from doubles import VirtualLoop
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from pipeline.engine.state import EngineState
from pipeline.metrics import FamilyHead, Ledger, MetricSamples
from pipeline.observe.metrics import ProcessMetrics, as_openmetrics, metrics_of, render
from pipeline.observe.snapshot import ModelCounters, Snapshot, of_no_replica


def replica(number: int, families: list[MetricSamples]) -> Snapshot:
    return Snapshot(
        number, EngineState(True, 0, 0, number, 0), [ModelCounters("svc")], families=families
    )


def counted(name: str, amount: float) -> list[MetricSamples]:
    ledger = Ledger()
    ledger.change(FamilyHead(name, "counter", "Cats."), (("kind", "siam"),), amount)
    return ledger.families()


def test_the_families_of_replicas_have_series_each() -> None:
    snapshots = [replica(n, counted("cats_total", n)) for n in (3, 4)]
    text = render(snapshots, by_replica=True).decode()
    assert 'cats_total{copy="3",kind="siam"} 3.0' in text
    assert 'cats_total{copy="4",kind="siam"} 4.0' in text
    assert text.count("# TYPE cats_total counter") == 1


def test_a_repository_reports_its_process_without_a_model() -> None:
    text = render([of_no_replica([], counted("cats_total", 2))]).decode()
    assert 'cats_total{kind="siam"} 2.0' in text
    assert "pipeline_ready" not in text


def test_openmetrics_changes_no_name() -> None:
    metrics = metrics_of([replica(0, counted("cats_total", 2))])
    text = as_openmetrics(metrics, b"# HELP mine Mine.\n# TYPE mine counter\nmine 3\n").decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["nv_inference_count"].type == "unknown"
    assert [sample.name for sample in families["nv_inference_count"].samples] == [
        "nv_inference_count"
    ]
    assert families["mine"].type == "unknown"
    assert families["cats"].type == "counter"
    assert families["pipeline_batch_size"].type == "histogram"


def test_the_loop_looks_how_late_it_was_called() -> None:
    loop = VirtualLoop()
    process = ProcessMetrics(loop)
    process._look(loop.time() - 0.02)
    samples = {
        (name, labels.get("le")): value
        for family in process.families()
        for name, labels, value in family.samples
    }
    lag = "pipeline_event_loop_lag_seconds"
    assert samples[f"{lag}_bucket", "0.01"] == 0
    assert samples[f"{lag}_bucket", "0.03"] == 1
    assert samples["process_resident_memory_bytes", None] > 0
    process.close()
    loop.close()
