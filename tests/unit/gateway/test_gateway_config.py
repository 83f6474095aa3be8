"""`http_server`: who takes HTTP."""

from __future__ import annotations

import pytest

from pipeline.config.schema import load_config
from pipeline.errors import ConfigError


def test_the_server_takes_http_itself_unless_told_otherwise():
    assert load_config(yml_dict={"http_port": 0}).http_server == "embedded"


@pytest.mark.parametrize("word", ["gateway", "Gateway"])
def test_the_gateway_may_take_it(word):
    assert load_config(yml_dict={"http_port": 0, "http_server": word}).http_server == "gateway"


def test_other_words_are_refused():
    with pytest.raises(ConfigError, match="http_server: expected embedded or gateway, found"):
        load_config(yml_dict={"http_port": 0, "http_server": "nginx"})


@pytest.mark.parametrize("more", [{}, {"http_port": None}])
def test_the_gateway_needs_a_port(more):
    with pytest.raises(ConfigError, match=r"http_server: the gateway listens on http_port, .* set"):
        load_config(yml_dict={"rpc_port": 0, "http_server": "gateway", **more})


def test_without_any_port_that_is_said_once():
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"http_server": "gateway"})
    assert str(caught.value).count("\n") == 0


def test_a_port_that_is_wrong_is_not_called_absent():
    with pytest.raises(ConfigError) as caught:
        load_config(yml_dict={"http_port": 80, "http_server": "gateway"})
    assert "absent" not in str(caught.value)
