"""A configuration as rows: which keys, which values, where they came from, and what is masked."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pipeline.config.layers import Layers, read_layers
from pipeline.config.rows import rows_of, without_defaults
from pipeline.config.schema import ServiceConfig, load_config
from pipeline.config.yaml import dotted

CONFIG = """\
rpc_port: 0
cache: {redis: {host: h, port: 1, password: p4ssword}}
restricted_apis: {http: [{apis: [health], header: h, value: p4ssword}]}
dag: {channel_recv_frist_arrive: True}
op:
  bow: {encryption_key: p4ssword, token: p4ssword, unknown: [1, {password: p4ssword}]}
  cnn:
    model_version: "${file:pw}"
    fetch_list: [a, "x${file:pw}"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yml").write_text(CONFIG)
    Path("pw").write_text("p4ssword")


def rows(*settings: str, **environ: str):
    layers = Layers(environ=environ, settings=settings)
    source, _ = read_layers(ServiceConfig, "config.yml", None, layers)
    return {dotted(row.path): row for row in rows_of(source, ServiceConfig)}


def test_each_key_has_its_origin():
    result = rows(
        "op.bow.retry=3", PIPELINE__OP__bow__concurrency="2", PIPELINE__OP__bow="{timeout: 1}"
    )
    origins = {
        "rpc_port": "config.yml:1",
        "http_port": "default",
        "op.bow.retry": "--set",
        "op.bow.concurrency": "environment variable PIPELINE__OP__bow__concurrency",
        "op.bow.timeout": "environment variable PIPELINE__OP__bow",
        "op.cnn.model_version": "config.yml:8",
        "dag.channel_recv_frist_arrive": "config.yml:4",
        "op.bow.unknown": "config.yml:6",
    }
    assert {key: result[key].origin for key in origins} == origins


def test_no_secret_is_shown():
    result = rows()
    assert "p4ssword" not in str([row.value for row in result.values()])
    assert result["cache.redis.password"].value == "***"
    assert result["restricted_apis.http"].value == [
        {"apis": ["health"], "header": "h", "value": "***"}
    ]
    assert result["op.cnn.fetch_list"].value == ["a", "***"]
    assert result["op.bow.unknown"].value == [1, {"password": "***"}]


@pytest.mark.parametrize("password", ["p4ssword", "p4/ss@word", "p4?s#s w@rd"])
def test_a_password_in_a_url_is_not_shown(password):
    url = f"redis://user:{password}@host:6379/0"
    Path("config.yml").write_text(
        f"rpc_port: 0\npayload_store: '{url}'\nop: {{bow: {{input_store: {{url: '{url}'}}}}}}\n"
    )
    found = rows()
    for key in ("payload_store", "op.bow.input_store.url"):
        assert found[key].value == "redis://***@host:6379/0"


def test_the_rows_are_the_configuration():
    """What they show, read as a file, is the same configuration."""
    Path("config.yml").write_text("rpc_port: 0\ntimeout: 500\nop: {bow: {concurrency: 3}}\n")
    data: dict[str, object] = {}
    for row in without_defaults(iter(rows(PIPELINE__OP__cnn__model_version="7").values())):
        place = data
        for key in row.path[:-1]:
            place = place.setdefault(key, {})  # type: ignore[assignment]
        place[str(row.path[-1])] = {} if row.is_section else row.value
    layers = Layers(environ={"PIPELINE__OP__cnn__model_version": "7"})
    read, shown = load_config("config.yml", None, layers), load_config(None, data)
    assert (read.timeout_s, read.op) == (shown.timeout_s, shown.op)


def test_without_defaults_only_configured_rows_remain():
    Path("config.yml").write_text("rpc_port: 0\nop: {bow: {concurrency: 3}, cnn: {}}\n")
    left = without_defaults(iter(rows().values()))
    assert [dotted(row.path) for row in left] == ["rpc_port", "op", "op.bow", "op.bow.concurrency"]


def test_the_rows_have_every_key():
    keys = set(yaml.safe_load(Path("config.yml").read_text())) | set(
        ServiceConfig.__struct_fields__
    )
    shown = {key.partition(".")[0] for key in rows()}
    assert (
        {"rpc_port", "op", "log", "dag", "timeout", "tls"}
        <= shown
        <= keys | {field.removesuffix("_s") for field in keys}
    )
