"""What deploy/ has for containers and clusters: valid by its schemas, and of one mind."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from paths import ROOT

from pipeline.config.schema import load_config

DEPLOY = ROOT / "deploy"
CLUSTER = DEPLOY / "kubernetes"
KUBERNETES = ("1.33", "1.37")
"""The first and the last version that the manifests are held to."""
OTHERS = {"Kustomization", "Component", "ServiceMonitor", "PrometheusRule", None}
"""Kinds that Kubernetes itself does not have; None: values of a chart."""
MARGIN_S = 10


def _objects() -> list[tuple[Path, dict[str, Any]]]:
    files = sorted(CLUSTER.rglob("*.yaml"))
    return [(path, item) for path in files for item in yaml.safe_load_all(path.read_text())]


def _kind(kind: str, name: str = "pipeline") -> dict[str, Any]:
    (result,) = [
        each
        for _, each in _objects()
        if each.get("kind") == kind and each["metadata"]["name"] == name
    ]
    return result


def _container() -> dict[str, Any]:
    (container,) = _kind("Deployment")["spec"]["template"]["spec"]["containers"]
    return container


def _ports() -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in _container()["ports"]}


@pytest.mark.parametrize("version", KUBERNETES)
def test_each_object_is_valid_by_the_schemas_of_kubernetes(version):
    kinds = set()
    for path, value in _objects():
        if value.get("kind") in OTHERS:
            continue
        kubernetes_validate.validate(value, version, strict=True)
        kinds.add(f"{value['kind']} of {path.parent.name}")
    assert len(kinds) >= 7


def test_a_key_unknown_to_kubernetes_is_reported():
    value = _kind("Deployment")
    value["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readinesProbe"):
        kubernetes_validate.validate(value, KUBERNETES[-1], strict=True)


def test_each_kustomization_names_the_files_that_are_there():
    named = set()
    for path, value in _objects():
        if value.get("kind") in ("Kustomization", "Component"):
            for item in (*value["resources"], *value.get("components", ())):
                place = (path.parent / item).resolve()
                assert place.exists(), f"{path}: {item}"
                named.add(place)
    left = {path.resolve() for path, value in _objects() if value.get("kind") not in OTHERS}
    assert left - named == set()


def test_the_selectors_find_the_pods():
    labels = _kind("Deployment")["spec"]["template"]["metadata"]["labels"].items()
    deployment = _kind("Deployment")["spec"]["selector"]["matchLabels"]
    services = [
        _kind("Service", name)["spec"]["selector"] for name in ("pipeline", "pipeline-pods")
    ]
    budget = _kind("PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    policy = _kind("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    for selector in (deployment, *services, budget, policy):
        assert selector
        assert selector.items() <= labels


def test_one_service_is_scraped_so_that_no_series_counts_twice():
    wanted = _kind("ServiceMonitor")["spec"]["selector"]["matchLabels"]
    del wanted["app.kubernetes.io/name"]  # the kustomization's, on all of them
    results = [
        each["metadata"]["name"]
        for _, each in _objects()
        if each.get("kind") == "Service"
        and wanted.items() <= each["metadata"].get("labels", {}).items()
    ]
    assert results == ["pipeline"]
    (endpoint,) = _kind("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in _kind("Service")["spec"]["ports"]]


def test_ports_equal_those_of_the_configuration():
    config = load_config(DEPLOY / "service" / "config.yml")
    assert _ports() == {"grpc": config.rpc_port, "http": config.http_port}
    assert config.host == "::"
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    published = compose["services"]["service"]["ports"]
    expected = [f"127.0.0.1:{port}:{port}" for port in (config.rpc_port, config.http_port)]
    assert published == expected
    text = (DEPLOY / "service" / "Dockerfile").read_text()
    assert f"EXPOSE {config.rpc_port} {config.http_port}" in text
    assert f"HTTP_PORT={config.http_port}" in text
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (job,) = scrape["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"service:{config.http_port}"]}]


def test_a_stopping_server_has_the_time_that_it_takes():
    config = load_config(DEPLOY / "service" / "config.yml")
    takes = config.drain_delay_s + config.stop_grace_period_s + MARGIN_S
    before = _container()["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = _kind("Deployment")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert takes + before < grace
    compose = yaml.safe_load((DEPLOY / "compose.yml").read_text())
    assert takes < int(compose["services"]["service"]["stop_grace_period"].removesuffix("s"))


def test_the_container_has_no_rights_that_it_does_not_need():
    security = _container()["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    pod = _kind("Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    user = pod["securityContext"]["runAsUser"]
    assert f"USER {user}:" in (DEPLOY / "service" / "Dockerfile").read_text()
    config = load_config(DEPLOY / "service" / "config.yml")
    assert (config.log.to, config.log.format) == ("stdout", "json")  # files have no place there


def test_the_autoscaler_asks_for_metrics_that_the_adapter_makes():
    folder = CLUSTER / "components" / "autoscaling"
    adapter = yaml.safe_load((folder / "prometheus-adapter.yaml").read_text())
    made = {rule["name"]["as"] for rule in adapter["rules"]["custom"]}
    asked = {
        item["pods"]["metric"]["name"]
        for item in _kind("HorizontalPodAutoscaler")["spec"]["metrics"]
    }
    assert asked == made
    assert "nv_inference_pending_request_count" in asked


def test_generated_rules_and_dashboards_are_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "generate_monitoring.py"))
    for path, text in script["generated"]().items():
        assert (DEPLOY / path).read_text() == text, "run scripts/generate_monitoring.py"


def test_alerts_of_the_job_have_its_name():
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    assert [job["job_name"] for job in scrape["scrape_configs"]] == ["pipeline"]
    kustomization = yaml.safe_load((CLUSTER / "base" / "kustomization.yaml").read_text())
    (labels,) = kustomization["labels"]
    label = _kind("ServiceMonitor")["spec"]["jobLabel"]
    assert labels["pairs"][label] == "pipeline"
    assert 'up{job="pipeline"}' in (DEPLOY / "prometheus" / "alerts.yml").read_text()


def test_panels_of_the_dashboard_do_not_overlap():
    panels = json.loads((DEPLOY / "grafana" / "pipeline.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
