"""The official client, in its own process, makes every call of `make clients`."""

from __future__ import annotations

import sys

from clients.__main__ import ABILITIES, HERE, ran, reported_in
from clients.model import scripted_server


def test_the_official_client_has_all_abilities():
    script = HERE / "asks" / "openai_python.py"
    with scripted_server() as server:
        url = f"http://127.0.0.1:{server.http_port}"
        printed = ran([sys.executable, str(script), url], script.parent)
    assert reported_in(printed) == dict.fromkeys(ABILITIES)
