"""The JSON Schema of config.yml says what the reader says; see also test_public_surface."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml
from paths import ROOT

from pipeline.config.json_schema import config_schema
from pipeline.config.schema import load_config
from pipeline.errors import ConfigError

CONFIGS = sorted(
    path.relative_to(ROOT)
    for pattern in ("config.yml", "examples/*/config*.yml", "deploy/**/config.yml")
    for path in ROOT.glob(pattern)
)


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft7Validator:
    schema = config_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_the_configurations_of_this_repository_are_valid(config, validator):
    assert list(validator.iter_errors(yaml.safe_load((ROOT / config).read_text()))) == []


WRONG: list[dict[str, Any]] = [
    {"queue_size": -1},
    {"queue_size": "many"},
    {"rpc_port": 1.5},
    {"statistics": 3},
    {"log": {"level": "LOUD"}},
    {"log": []},
    {"op": {"bow": {"concurrency": 0}}},
    {"op": {"bow": {"fetch_list": [1]}}},
    {"op": {"bow": {"sequence": {"strategy": "oldest", "max_idle_ms": 0}}}},
    {"allowed_hosts": "one"},
    {"cache": {"local": {"size": "large"}}},
    {"dag": {"tracer": {"interval_s": "often"}}},
]
RIGHT: list[dict[str, Any]] = [
    {"queue_size": None},
    {"op": {"bow": None}},
    {"op": {"bow": {"timeout": -1, "local_service_conf": {"precision": "fp16"}}}},
    {"op": {"bow": {"batching": "adaptive", "client_type": "local_predictor"}}},
    {"dag": {"channel_recv_frist_arrive": True}},
    {"grpc_gateway_port": 1},
    {"cache": {"redis": {"host": "h", "port": 6379}}},
    {"restricted_apis": {"http": {"apis": ["health"], "header": "h", "value": "v"}}},
]


@pytest.mark.parametrize("keys", WRONG, ids=str)
def test_keys_that_the_reader_refuses_are_invalid(keys, validator):
    with pytest.raises(ConfigError):
        load_config(None, {"rpc_port": 0, **keys})
    assert not validator.is_valid(keys)


@pytest.mark.parametrize("keys", RIGHT, ids=str)
def test_keys_that_the_reader_accepts_are_valid(keys, validator):
    assert load_config(None, {"rpc_port": 0, **keys}).warnings == ()
    assert list(validator.iter_errors(keys)) == []


@pytest.mark.parametrize(
    "keys",
    [{"queu_size": 1}, {"op": {"bow": {"concurency": 1}}}, {"log": {"lvl": 1}}],
    ids=str,
)
def test_an_unknown_key_is_not_valid(keys, validator):
    assert not validator.is_valid(keys)


def test_keys_of_a_plug_in_are_valid(validator):
    keys = {"op": {"bow": {"workers": "mine", "its_option": 1}}}
    assert list(validator.iter_errors(keys)) == []


@pytest.mark.parametrize("value", ["${N}", "${N:-3}", "${file:/run/secrets/x}"])
def test_an_expression_is_valid_for_any_value(value, validator):
    keys = {"queue_size": value, "statistics": value, "log": {"level": value}}
    assert list(validator.iter_errors(keys)) == []


def test_every_key_has_its_sentence_and_default():
    queue_size = config_schema()["properties"]["queue_size"]
    assert queue_size["default"] == 4096
    assert queue_size["description"].startswith("Maximum number of requests")
