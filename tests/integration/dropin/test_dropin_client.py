"""The drop-in's client, without a server."""

from __future__ import annotations

import pytest
from served import free_port

from pipeline.errors import (
    PredictorUnavailableError,
)


def test_a_server_that_is_not_there_is_told_by_the_http_client(http_client):
    http_client.connect(f"127.0.0.1:{free_port()}")
    with pytest.raises(PredictorUnavailableError, match="refused"):
        http_client.predict({"words": [1]})
