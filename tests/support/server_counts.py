"""What a running server says of itself, everywhere that it says it: counters that must agree."""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from doubles import wait_until
from prometheus_client.parser import text_string_to_metric_families

from pipeline.proto import inference_v2_pb2 as v2

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Model:
    """The counts of one model. `failed` is by Triton's reason, without zeros."""

    success: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    samples: int = 0
    batches: Counter[int] = field(default_factory=Counter)

    def since(self, before: Model) -> Model:
        return Model(
            self.success - before.success,
            self.failed - before.failed,
            self.samples - before.samples,
            self.batches - before.batches,
        )


def model(success: int = 0, *sizes: int, samples: int | None = None, **failed: int) -> Model:
    """A Model of `success` requests, in batches of `sizes`, and of failed ones by reason."""
    count = success if samples is None else samples
    return Model(success, Counter(failed), count, Counter(sizes))


@dataclass(frozen=True)
class Seen:
    """All that a server counted. `inside` and `at_ops`: requests that it has not answered yet."""

    models: Mapping[str, Model]
    accepted: int
    rejected: int
    restarts: Mapping[str, int]
    inside: int
    at_ops: int

    def since(self, before: Seen) -> Seen:
        return Seen(
            {name: found.since(before.models[name]) for name, found in self.models.items()},
            self.accepted - before.accepted,
            self.rejected - before.rejected,
            {name: count - before.restarts[name] for name, count in self.restarts.items()},
            self.inside,
            self.at_ops,
        )


# Three ways to ask ----------------------------------------------------------------------------


def fetched(port: int, path: str) -> bytes:
    """The body of a GET that goes well."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_S) as answer:
        body: bytes = answer.read()
        return body


def over_http(port: int) -> list[dict[str, Any]]:
    """`model_stats` as HTTP gives it."""
    found: list[dict[str, Any]] = json.loads(fetched(port, "/v2/models/stats"))["model_stats"]
    return found


def over_grpc(port: int) -> list[dict[str, Any]]:
    """`model_stats` as gRPC gives it, in the words of the HTTP form."""
    with contextlib.closing(grpc.insecure_channel(f"127.0.0.1:{port}")) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelStatistics",
            v2.ModelStatisticsRequest.SerializeToString,
            v2.ModelStatisticsResponse.FromString,
        )
        answer = call(v2.ModelStatisticsRequest(), timeout=PATIENCE_S)
    return [_plain(found) for found in answer.model_stats]


def _plain(found: v2.ModelStatistics) -> dict[str, Any]:
    durations = {
        name: {"count": getattr(found.inference_stats, name).count,
               "ns": getattr(found.inference_stats, name).ns}
        for name in found.inference_stats.DESCRIPTOR.fields_by_name
    }  # fmt: skip
    stages = ("compute_input", "compute_infer", "compute_output")
    return {
        "name": found.name,
        "version": found.version,
        "last_inference": found.last_inference,
        "inference_count": found.inference_count,
        "execution_count": found.execution_count,
        "inference_stats": durations,
        "response_stats": {},
        "batch_stats": [
            {"batch_size": batch.batch_size}
            | {s: {"count": getattr(batch, s).count, "ns": getattr(batch, s).ns} for s in stages}
            for batch in found.batch_stats
        ],
        "memory_usage": [
            {"type": use.type, "id": use.id, "byte_size": use.byte_size}
            for use in found.memory_usage
        ],
    }


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metrics(port: int, path: str = "/metrics") -> Samples:
    """Every sample of `/metrics`, by name (without `_total`) and labels; none is there twice."""
    samples: Samples = {}
    for family in text_string_to_metric_families(fetched(port, path).decode()):
        for sample in family.samples:
            key = sample.name.removesuffix("_total"), frozenset(sample.labels.items())
            assert key not in samples, key
            samples[key] = sample.value
    return samples


def total(samples: Samples, name: str, **labels: str) -> int:
    """The sum of the samples with this name, and with these labels among theirs."""
    wanted = frozenset(labels.items())
    return int(sum(value for (n, own), value in samples.items() if n == name and wanted <= own))


# Checks ---------------------------------------------------------------------------------------


def check_form(found: Mapping[str, Any]) -> None:
    """Check what holds for one model's statistics at any time."""
    stats = found["inference_stats"]
    success = stats["success"]["count"]
    for name in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert stats[name]["count"] == success, found
    executions = [batch["compute_infer"]["count"] for batch in found["batch_stats"]]
    samples = [
        batch["batch_size"] * batch["compute_infer"]["count"] for batch in found["batch_stats"]
    ]
    assert sum(executions) == found["execution_count"], found
    assert sum(samples) >= found["inference_count"] >= success, found
    assert (found["last_inference"] > 0) == (found["execution_count"] > 0), found


def _check_metrics(found: Mapping[str, Any], samples: Samples) -> None:
    """The metrics of a model are its statistics."""
    name, stats = found["name"], found["inference_stats"]
    assert stats["fail"]["count"] == total(samples, "nv_inference_request_failure", model=name)
    for metric, number in {
        "nv_inference_request_success": stats["success"]["count"],
        "nv_inference_count": found["inference_count"],
        "nv_inference_exec_count": found["execution_count"],
        "pipeline_request_duration_seconds_count": stats["success"]["count"],
        "pipeline_queue_duration_seconds_count": stats["success"]["count"],
        "pipeline_batch_size_count": found["execution_count"],
        "pipeline_batch_size_sum": sum(
            batch["batch_size"] * batch["compute_infer"]["count"] for batch in found["batch_stats"]
        ),
    }.items():
        assert total(samples, metric, model=name) == number, (metric, name)


def _model(found: Mapping[str, Any], samples: Samples) -> Model:
    reasons: Counter[str] = Counter()
    for (metric, labels), value in samples.items():
        if metric == "nv_inference_request_failure" and ("model", found["name"]) in labels:
            reasons[dict(labels)["reason"]] += int(value)
    sizes = {batch["batch_size"]: batch["compute_infer"]["count"] for batch in found["batch_stats"]}
    return Model(
        found["inference_stats"]["success"]["count"],
        +reasons,
        found["inference_count"],
        Counter(sizes),
    )


def requests_in(samples: Samples) -> tuple[int, int]:
    """(requests that the server has, requests that its Ops have; a request may be at several)."""
    return total(samples, "pipeline_requests"), total(samples, "pipeline_op_requests")


def looked_at(rpc_port: int, http_port: int, pipeline: str = "svc") -> Seen:
    """What a server that has nothing to do says, the same everywhere.

    It is waited for until it has nothing to do: also what nobody waits for any more is finished.
    """
    wait_until(lambda: requests_in(metrics(http_port)) == (0, 0), PATIENCE_S)
    found, samples = over_http(http_port), metrics(http_port)
    assert over_grpc(rpc_port) == found
    assert [each["name"] for each in found] == sorted(each["name"] for each in found)
    for each in found:
        check_form(each)
        _check_metrics(each, samples)
    models = {each["name"]: _model(each, samples) for each in found}
    inside, at_ops = requests_in(samples)
    seen = Seen(
        models,
        total(samples, "pipeline_requests_accepted"),
        total(samples, "pipeline_requests_rejected"),
        {name: total(samples, "pipeline_op_worker_restarts", model=name)
         for name in models if name != pipeline},
        inside,
        at_ops,
    )  # fmt: skip
    whole = models[pipeline]
    assert seen.accepted == whole.success + whole.failed.total() + inside
    return seen


class Moved:
    """What moved since `before`; there when the block of `moves` has ended."""

    def __init__(self, before: Seen) -> None:
        self.before = before
        self.seen = before

    def end(self, after: Seen) -> None:
        self.seen = after.since(self.before)

    def __getitem__(self, name: str) -> Model:
        return self.seen.models[name]


@contextlib.contextmanager
def moves(rpc_port: int, http_port: int) -> Iterator[Moved]:
    """Looks before and after the block."""
    moved = Moved(looked_at(rpc_port, http_port))
    yield moved
    moved.end(looked_at(rpc_port, http_port))
