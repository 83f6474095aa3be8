"""`paddle_serving_client.Client` under our names: what it does before it is connected."""

from __future__ import annotations

import pytest

from pipeline.dropin.client import Client, HttpClient, MultiLangClient
from pipeline.errors import ClosedError, InitError, NotImplementedByOpError

CONF = """
feed_var { name: "words.tmp_0" alias_name: "words" is_lod_tensor: true feed_type: 0 shape: -1 }
fetch_var { name: "fc_2" alias_name: "prediction" fetch_type: 1 shape: 2 }
"""


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / "serving_client_conf.prototxt"
    path.write_text(CONF)
    return path


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("as_folder", [False, True])
def test_it_knows_the_names_of_the_model_once_it_has_read_the_configuration(
    conf, as_list, as_folder
):
    client = Client()
    given = str(conf.parent if as_folder else conf)
    client.load_client_config([given] if as_list else given)
    assert client.get_feed_names() == ["words"]
    assert client.get_fetch_names() == ["prediction"]


def test_what_comes_too_early_is_refused(conf):
    client = Client()
    with pytest.raises(InitError, match="call load_client_config first"):
        client.get_feed_names()
    with pytest.raises(InitError, match="before connect"):
        client.connect(["127.0.0.1:9292"])
    client.load_client_config(str(conf))
    with pytest.raises(ClosedError, match="not connected"):
        client.predict({"words": [1]}, ["prediction"])
    client.release()
    client.release()


def test_what_is_not_supported_says_so(conf):
    client = MultiLangClient()
    with pytest.raises(InitError, match="2 configurations"):
        client.load_client_config([str(conf), str(conf)])
    with pytest.raises(InitError, match="absent"):
        client.load_client_config("absent")
    client.load_client_config(str(conf))
    refused = [
        lambda: client.connect(),
        lambda: client.connect(["127.0.0.1:9292"], encryption=True),
        lambda: client.predict({}, need_variant_tag=True),
        lambda: client.use_key("key"),
        lambda: client.add_variant("a", ["127.0.0.1:9292"], 50),
        lambda: HttpClient(),
    ]
    for use in refused:
        with pytest.raises(NotImplementedByOpError):
            use()
