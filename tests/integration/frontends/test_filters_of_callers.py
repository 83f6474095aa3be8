"""A filter sees whole messages, whichever way a request comes in."""

from __future__ import annotations

import pytest
from doubles import post, server_for

from pipeline import Filter, Op, RequestOp
from pipeline.config import registry


class Adding(Filter):
    """Adds a tensor to each answer."""

    def on_answer(self, request, answer):
        answer.tensors.add(name="added")
        return answer


@pytest.fixture(params=["embedded", "gateway"])
def server(request, monkeypatch, gateway_binary):
    monkeypatch.setattr(registry, "_registered", {})
    registry.register("filters", "adding", lambda options: Adding())
    with server_for(
        Op("a", [RequestOp()]), edge=request.param, filters={"adding": None}
    ) as running:
        yield running


def test_an_answer_in_json_is_a_response_to_its_filters(server):
    status, answer = post(server, b'{"key": ["x"], "value": ["1"]}')
    assert (status, answer["key"]) == (200, ["x"])
    assert [tensor["name"] for tensor in answer["tensors"]] == ["added"]
