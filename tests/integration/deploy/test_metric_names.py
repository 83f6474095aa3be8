"""The dashboard, the alerts and the autoscaler ask for series that a server has."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from doubles import chain, post, server_for, wait_until
from paths import ROOT
from server_counts import fetched

DEPLOY = ROOT / "deploy"
FILES = (
    "grafana/pipeline.json",
    "prometheus/alerts.yml",
    "kubernetes/components/autoscaling/prometheus-adapter.yaml",
)
SERIES = re.compile(r"\b((?:nv|pipeline|process|python)_\w+)(?:\{([^{}]*)\})?")
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? ", re.MULTILINE)
LABEL = re.compile(r"(\w+)(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\bby \(([\w, ]+)\)")
SCRAPED = {"job", "instance", "namespace", "pod"}
"""Labels that Prometheus adds."""


@pytest.fixture(scope="module")
def series(module_logs: None) -> Mapping[str, set[str]]:
    """The names of all series of a server that has answered a request, with their labels."""
    result: dict[str, set[str]] = defaultdict(set)

    def reads(port: int) -> bool:
        for name, labels in SAMPLE.findall(fetched(port, "/metrics").decode()):
            result[name].update(LABEL.findall(labels))
        return looked_at <= result.keys()

    # These two are there from the first look on, which is a second behind the start.
    looked_at = {f"pipeline_{item}_seconds_bucket" for item in ("event_loop_lag", "gil_wait")}
    with server_for(chain("a")) as server:
        assert post(server, {"key": ["path"], "value": ["x"]})[0] == 200
        wait_until(lambda: reads(server.http_port))
    return dict(result)


def _expressions(path: Path) -> Iterator[str]:
    value = yaml.safe_load(path.read_text())
    if path.suffix == ".json":
        for panel in value["panels"]:
            yield from (target["expr"] for target in panel["targets"])
        asked = [item for item in value["templating"]["list"] if item["type"] == "query"]
        yield from (item["query"]["query"] for item in asked)
    elif path.name == "alerts.yml":
        for group in value["groups"]:
            yield from (rule["expr"] for rule in group["rules"])
    else:
        for rule in value["rules"]["custom"]:
            yield rule["seriesQuery"]
            yield rule["metricsQuery"].replace("<<.LabelMatchers>>", 'pod="a"')


def _wrong(expression: str, series: Mapping[str, set[str]]) -> list[str]:
    findall = SERIES.findall(expression)
    labels = set().union(*(series.get(name, set()) for name, _ in findall), SCRAPED)
    grouped = {label.strip() for match in GROUPED.findall(expression) for label in match.split(",")}
    wrong = [f"no series {name}" for name, _ in findall if name not in series]
    wrong += [f"no label {label}" for label in grouped - labels]
    for name, selector in findall:
        unknown = set(LABEL.findall(selector)) - series.get(name, set()) - SCRAPED
        wrong += [f"{name} has no label {label}" for label in unknown]
    return wrong


@pytest.mark.parametrize("name", FILES)
def test_each_expression_names_series_and_labels_of_a_server(series, name):
    expressions = list(_expressions(DEPLOY / name))
    assert len([expression for expression in expressions if SERIES.search(expression)]) >= 2
    wrong = {
        expression: result for expression in expressions if (result := _wrong(expression, series))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("sum by (model) (rate(pipeline_requests_lost_total[5m]))", "no series"),
        ('pipeline_ready{model="a"}', "pipeline_ready has no label model"),
        ("sum by (colour) (pipeline_ready)", "no label colour"),
    ],
)
def test_an_expression_about_a_missing_series_is_reported(series, expression, wrong):
    assert wrong in " ".join(_wrong(expression, series))
