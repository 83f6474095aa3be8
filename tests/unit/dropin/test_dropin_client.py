"""`paddle_serving_client.Client` under our names: what it does before it is connected."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.dropin.client import Client, HttpClient, MultiLangClient
from pipeline.errors import (
    ClosedError,
    InitError,
    InputError,
    NotImplementedByOpError,
)
from pipeline.proto.brpc.general_model import request_from_json


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("as_folder", [False, True])
def test_a_client_has_the_names_of_the_model_after_reading_the_configuration(
    client_conf, as_list, as_folder
):
    client = Client()
    given = str(client_conf.parent if as_folder else client_conf)
    client.load_client_config([given] if as_list else given)
    assert client.get_feed_names() == ["words"]
    assert client.get_fetch_names() == ["prediction"]


def test_calls_before_connect_are_refused(client_conf):
    client = Client()
    with pytest.raises(InitError, match="call load_client_config first"):
        client.get_feed_names()
    with pytest.raises(InitError, match="before connect"):
        client.connect(["127.0.0.1:9292"])
    client.load_client_config(str(client_conf))
    with pytest.raises(ClosedError, match="not connected"):
        client.predict({"words": [1]}, ["prediction"])
    client.release()
    client.release()


def test_unsupported_features_are_refused(client_conf):
    client = MultiLangClient()
    with pytest.raises(InitError, match="2 configurations"):
        client.load_client_config([str(client_conf), str(client_conf)])
    with pytest.raises(InitError, match="absent"):
        client.load_client_config("absent")
    client.load_client_config(str(client_conf))
    refused = [
        lambda: client.connect(),
        lambda: client.connect(["127.0.0.1:9292"], encryption=True),
        lambda: client.predict({}, need_variant_tag=True),
        lambda: client.use_key("key"),
        lambda: client.add_variant("a", ["127.0.0.1:9292"], 50),
        lambda: HttpClient().use_key("key"),
        lambda: HttpClient().connect("127.0.0.1:9393", encryption=True),
    ]
    for use in refused:
        with pytest.raises(NotImplementedByOpError):
            use()


# HttpClient ---------------------------------------------------------------------------------


def test_the_http_client_has_the_attributes_of_the_configuration(http_client):
    assert (http_client.feed_names_, http_client.feed_real_names) == (["words"], ["words.tmp_0"])
    assert http_client.get_fetch_names() == ["prediction"]
    assert http_client.feed_types_ == {"words": 0}
    assert http_client.feed_shapes_ == {"words": [-1]}
    assert http_client.lod_tensor_set == {"words"}
    assert http_client.get_legal_fetch(("nope", "prediction")) == ["prediction"]
    assert http_client.get_legal_fetch("prediction") == ["prediction"]
    assert http_client.get_legal_fetch(None) == []


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("127.0.0.1:9393", ("http://", "127.0.0.1", "9393")),
        (["http://127.0.0.1:9393"], ("http://", "127.0.0.1", "9393")),
        (("https://models.example:443",), ("https://", "models.example", "443")),
    ],
)
def test_the_http_client_takes_an_address_in_each_of_its_forms(http_client, url, address):
    http_client.connect(url)
    assert (http_client.http_s, http_client.ip, http_client.port) == address


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1",
        "ftp://a:1",
        ":80",
        ["a:1", "b:1"],
        "http://a..b:80",
        "http://a\r\nb:80",
        "\udc80:80",
        "a:\u00b2",
        "a:70000",
        f"a:{'9' * 5000}",
    ],
)
def test_the_http_client_refuses_an_invalid_address(http_client, url):
    with pytest.raises(InitError, match=r"HttpClient\.connect"):
        http_client.connect(url)


@pytest.mark.parametrize(
    ("value", "batch", "shape"),
    [
        (np.ones((2, 3)), True, [2, 3]),
        (np.ones((2, 3)), False, [1, 2, 3]),
        ([[1, 2, 3], [4, 5, 6]], True, [2, 3]),
        ([1, 2, 3], False, [1, 3]),
        (7, False, [1]),
        (np.int64(7), True, [1]),
    ],
)
def test_a_feed_of_the_http_client_has_the_original_shape(http_client, value, batch, shape):
    feed = http_client.get_feedvar_dict({"words": value, "words.lod": [0, 2]})
    request = http_client.process_proto_data(feed, ["prediction"], batch, 5)
    (tensor,) = request.tensor
    assert (tensor.name, tensor.alias_name, tensor.elem_type) == ("words.tmp_0", "words", 0)
    assert (list(tensor.shape), list(tensor.lod)) == (shape, [0, 2])
    assert len(tensor.int64_data) == np.size(value)
    assert (list(request.fetch_var_names), request.log_id) == (["prediction"], 5)
    assert (
        request_from_json(http_client.process_json_data(feed, ["prediction"], batch, 5).encode())
        == request
    )


def test_a_feed_of_the_http_client_may_be_a_dict_a_list_or_a_value(http_client):
    for feed in ({"words": [1]}, [{"words": [1]}], ({"words": [1]},)):
        assert http_client.get_feedvar_dict(feed) == {"words": [1]}
    assert http_client.get_feedvar_dict([1, 2]) == {"words": [1, 2]}
    with pytest.raises(ValueError, match="Feed only accepts"):
        http_client.get_feedvar_dict(5)
    with pytest.raises(ValueError, match="Wrong feed name: other"):
        http_client.process_proto_data({"other": [1]}, [], False, 0)
    with pytest.raises(InputError, match="'words' is text, the model wants int64"):
        http_client.process_proto_data({"words": ["a"]}, [], False, 0)
