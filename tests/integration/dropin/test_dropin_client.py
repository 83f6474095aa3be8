"""The drop-in's client, without a server."""

from __future__ import annotations

import pytest
from served import free_port

from pipeline.dropin.client import HttpClient
from pipeline.errors import (
    PredictorUnavailableError,
)

CONF = """
feed_var { name: "words.tmp_0" alias_name: "words" is_lod_tensor: true feed_type: 0 shape: -1 }
fetch_var { name: "fc_2" alias_name: "prediction" fetch_type: 1 shape: 2 }
"""


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "serving_client_conf.prototxt"
    path.write_text(CONF)
    return path


@pytest.fixture
def http_client(conf):
    client = HttpClient()
    client.load_client_config(str(conf))
    yield client
    client.release()


def test_a_server_that_is_not_there_is_told_by_the_http_client(http_client):
    http_client.connect(f"127.0.0.1:{free_port()}")
    with pytest.raises(PredictorUnavailableError, match="refused"):
        http_client.predict({"words": [1]})
